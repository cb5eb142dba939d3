"""The catalog of a shard in a directory (catalog.py): a SQLite database there, with a rollback journal.

The write lock makes appends take turns. The commit is the removal of the journal, and that is also what a
watcher of the directory is told (directory_place.py): there is no moment at which an append is committed and
its notice still owed. `synchronous=EXTRA` puts that removal on the disk too, before we answer.

Does not: write or remove parts, wait for news.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from clusterd.storage.catalog import LOCK_WAIT_S, ShardState, frontier_of, frontier_text, time_text
from clusterd.storage.parts import PartInfo
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements.frontier import Frontier

__all__ = ["JOURNAL", "NAME", "SqliteCatalog"]

NAME = "catalog.db"
JOURNAL = "catalog.db-journal"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last: lacks a table
_ERRNOS = {  # of what is not the database's own fault
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.ENOENT,
    sqlite3.SQLITE_IOERR: errno.EIO,
}

_SCHEMA = """
CREATE TABLE shard (one INTEGER PRIMARY KEY CHECK (one = 1), schema TEXT NOT NULL, since TEXT NOT NULL,
    upper TEXT NOT NULL);
CREATE TABLE part (seq INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, min_time TEXT NOT NULL,
    max_time TEXT NOT NULL, rows INTEGER NOT NULL, nbytes INTEGER NOT NULL);
CREATE INDEX part_by_time ON part (max_time);
"""
# Apart, for shards made before there were positions: the first one makes the table.
_POSITIONS = "CREATE TABLE IF NOT EXISTS position (name TEXT PRIMARY KEY, position TEXT NOT NULL)"


class SqliteCatalog:
    """A Catalog: one process's connection; kept open, for opening costs more than a query."""

    def __init__(self, path: Path, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        """Raises as a Catalog."""
        self._name = path.parent.name
        self._lock_wait_s = lock_wait_s
        with self._reading():
            # Autocommit: transactions are written out, `mode=rw` never makes a file.
            uri = f"file:{quote(str(path))}?mode=rw"
            self._db = sqlite3.connect(
                uri, uri=True, timeout=lock_wait_s, isolation_level=None,
                check_same_thread=False,  # a client may go from thread to thread; SQLite has its own locks
            )  # fmt: skip
            self._db.execute("PRAGMA synchronous = EXTRA")

    @staticmethod
    def create(path: Path, schema: Schema) -> None:
        """Make a new catalog, readable from the minimum time on, with nothing sealed."""
        db = sqlite3.connect(path, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("PRAGMA synchronous = EXTRA")
            encoded = msgspec.json.encode(schema).decode()
            start = frontier_text(Frontier.minimum())
            db.executescript(f"BEGIN; {_SCHEMA}")
            db.execute("INSERT INTO shard VALUES (1, ?, ?, ?)", (encoded, start, start))
            db.execute("COMMIT")
        finally:
            db.close()

    def close(self) -> None:
        self._db.close()

    def wait_for_locks(self, wait_s: float) -> None:
        self._lock_wait_s = wait_s
        self._db.execute(f"PRAGMA busy_timeout = {round(wait_s * 1000)}")

    def schema(self) -> Schema:
        with self._reading():
            (text,) = self._db.execute("SELECT schema FROM shard").fetchone()
        return msgspec.json.decode(text, type=Schema)

    def state(self) -> ShardState:
        with self._reading():
            since, upper = self._db.execute("SELECT since, upper FROM shard").fetchone()
        return ShardState(frontier_of(since), frontier_of(upper))

    def parts(self, lower: int, upper: Frontier) -> list[PartInfo]:
        query = (
            "SELECT file, min_time, max_time, rows, nbytes FROM part"
            " WHERE max_time >= ? AND min_time < ? ORDER BY seq"
        )
        with self._reading():
            rows = self._db.execute(query, (time_text(lower), frontier_text(upper))).fetchall()
        return [
            PartInfo(file, int(least), int(most), rows, nbytes) for file, least, most, rows, nbytes in rows
        ]

    def files(self) -> set[str]:
        with self._reading():
            return {file for (file,) in self._db.execute("SELECT file FROM part")}

    def dropped(self) -> set[str]:
        """None: who has opened a file may read it for ever."""
        return set()

    def totals(self) -> tuple[int, int, int]:
        with self._reading():
            parts, rows, nbytes = self._db.execute(
                "SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(nbytes), 0) FROM part"
            ).fetchone()
        return parts, rows, nbytes

    def positions(self) -> dict[str, str]:
        with self._reading():
            if not self._db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'position'").fetchall():
                return {}
            return dict(self._db.execute("SELECT name, position FROM position"))

    def compare_and_append(
        self,
        expected: Frontier,
        new: Frontier,
        parts: Sequence[PartInfo],
        positions: Mapping[str, str | None],
    ) -> Frontier:
        with self._writing():
            changed = self._db.execute(
                "UPDATE shard SET upper = ? WHERE upper = ?", (frontier_text(new), frontier_text(expected))
            ).rowcount
            if not changed:
                (found,) = self._db.execute("SELECT upper FROM shard").fetchone()
                return frontier_of(found)
            self._list(parts)
            if positions:
                self._db.execute(_POSITIONS)
            for name, position in positions.items():
                if position is None:
                    self._db.execute("DELETE FROM position WHERE name = ?", (name,))
                else:
                    self._db.execute("INSERT OR REPLACE INTO position VALUES (?, ?)", (name, position))
        return expected

    def replace_parts(self, old: Sequence[str], new: Sequence[PartInfo]) -> bool:
        with self._writing():
            for file in old:
                if not self._db.execute("DELETE FROM part WHERE file = ?", (file,)).rowcount:
                    self._db.execute("ROLLBACK")
                    return False
            self._list(new)
        return True

    def _list(self, parts: Sequence[PartInfo]) -> None:
        for part in parts:
            self._db.execute(
                "INSERT INTO part (file, min_time, max_time, rows, nbytes) VALUES (?, ?, ?, ?, ?)",
                (part.file, time_text(part.min_time), time_text(part.max_time), part.rows, part.nbytes),
            )

    def advance_since(self, since: Frontier) -> Frontier:
        with self._writing():
            text = frontier_text(since)
            self._db.execute("UPDATE shard SET since = ? WHERE since < ?", (text, text))
            (found,) = self._db.execute("SELECT since FROM shard").fetchone()
        return frontier_of(found)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._told(error) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                if self._db.in_transaction:
                    self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _told(self, error: sqlite3.DatabaseError) -> Exception:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Refusal(
                "timeout",
                f"the catalog of shard {self._name!r} was locked for {self._lock_wait_s:g} s",
                "a process that writes to it may be stopped",
            )
        if code in _DAMAGED:
            why = f"the catalog of shard {self._name!r} is damaged: {error}"
            return Refusal("format-mismatch", why, "have its file from a backup")
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED:
            return FileNotFoundError(
                errno.ENOENT, f"the catalog of shard {self._name!r} was removed, or replaced"
            )
        if code in _ERRNOS:
            return OSError(_ERRNOS[code], f"the catalog of shard {self._name!r}: {error}")
        return error
