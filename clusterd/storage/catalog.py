"""Catalog: which parts a shard has and how far it is sealed; one row of it decides who appended.

A SQLite database with a rollback journal. An append is one transaction: the shard's row gets its new upper
where the old one is the expected one and, if that changed the row, the part is listed, and positions of what
was loaded (positions.py) are set with it. The write lock
makes appends take turns, so of two with the same expectation exactly one changes the row. The commit is the
removal of the journal, and that is also what a watcher of the directory is told (tail.py): there is no
moment at which an append is committed and its notice still owed. `synchronous=EXTRA` puts that removal on
the disk too, before we answer.

Frontiers are text, 20 digits, so that they sort as numbers do (SQLite's integers end at 2^63); `[]` is the
empty one, and sorts after all of them.

Does not: write or remove parts, wait for news.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec

from clusterd.storage.parts import PartInfo
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements.frontier import Frontier

__all__ = ["JOURNAL", "NAME", "Catalog", "ShardState"]

NAME = "catalog.db"
JOURNAL = "catalog.db-journal"
_BUSY_TIMEOUT_S = 30.0  # a commit holds the lock for the few fsyncs of one transaction

_SCHEMA = """
CREATE TABLE shard (one INTEGER PRIMARY KEY CHECK (one = 1), schema TEXT NOT NULL, since TEXT NOT NULL,
    upper TEXT NOT NULL);
CREATE TABLE part (seq INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, min_time TEXT NOT NULL,
    max_time TEXT NOT NULL, rows INTEGER NOT NULL, nbytes INTEGER NOT NULL);
CREATE INDEX part_by_time ON part (max_time);
"""
# Apart, for shards made before there were positions: the first one makes the table.
_POSITIONS = "CREATE TABLE IF NOT EXISTS position (name TEXT PRIMARY KEY, position TEXT NOT NULL)"


class ShardState(msgspec.Struct, frozen=True):
    """How far a shard may be read: `since` <= t < `upper`."""

    since: Frontier
    upper: Frontier


def _text(frontier: Frontier) -> str:
    return "[]" if frontier.is_empty else _time_text(frontier.time)


def _time_text(time: int) -> str:
    return f"{time:020d}"


def _frontier(text: str) -> Frontier:
    return Frontier.empty() if text == "[]" else Frontier.at(int(text))


class Catalog:
    """One process's connection to the catalog of one shard; kept open, for opening costs more than a
    query.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.parent.name
        # Autocommit: transactions are written out, `mode=rw` never makes a file.
        self._db = sqlite3.connect(
            f"file:{path}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None
        )
        self._db.execute("PRAGMA synchronous = EXTRA")

    @staticmethod
    def create(path: Path, schema: Schema) -> None:
        """Make a new catalog, readable from the minimum time on, with nothing sealed."""
        db = sqlite3.connect(path, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("PRAGMA synchronous = EXTRA")
            encoded = msgspec.json.encode(schema).decode()
            start = _text(Frontier.minimum())
            db.executescript(f"BEGIN; {_SCHEMA}")
            db.execute("INSERT INTO shard VALUES (1, ?, ?, ?)", (encoded, start, start))
            db.execute("COMMIT")
        finally:
            db.close()

    def close(self) -> None:
        self._db.close()

    def schema(self) -> Schema:
        with self._reading():
            (text,) = self._db.execute("SELECT schema FROM shard").fetchone()
        return msgspec.json.decode(text, type=Schema)

    def state(self) -> ShardState:
        with self._reading():
            since, upper = self._db.execute("SELECT since, upper FROM shard").fetchone()
        return ShardState(_frontier(since), _frontier(upper))

    def parts(self, lower: int, upper: Frontier) -> list[PartInfo]:
        """The parts with a time in [lower, upper), in the order of their appends."""
        query = (
            "SELECT file, min_time, max_time, rows, nbytes FROM part"
            " WHERE max_time >= ? AND min_time < ? ORDER BY seq"
        )
        with self._reading():
            rows = self._db.execute(query, (_time_text(lower), _text(upper))).fetchall()
        return [
            PartInfo(file, int(least), int(most), rows, nbytes) for file, least, most, rows, nbytes in rows
        ]

    def files(self) -> set[str]:
        """The file names of all parts."""
        with self._reading():
            return {file for (file,) in self._db.execute("SELECT file FROM part")}

    def totals(self) -> tuple[int, int, int]:
        """How many parts, updates and bytes there are."""
        with self._reading():
            parts, rows, nbytes = self._db.execute(
                "SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(nbytes), 0) FROM part"
            ).fetchone()
        return parts, rows, nbytes

    def positions(self) -> dict[str, str]:
        """What `compare_and_append` was told, by name."""
        with self._reading():
            if not self._db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'position'").fetchall():
                return {}
            return dict(self._db.execute("SELECT name, position FROM position"))

    def compare_and_append(
        self,
        expected: Frontier,
        new: Frontier,
        parts: Sequence[PartInfo],
        positions: Mapping[str, str | None] = MappingProxyType({}),
    ) -> Frontier:
        """Move upper from `expected` to `new`, list `parts` and set `positions` (None: forget that name), in
        one step, or do nothing.

        Returns the upper found; the append took place exactly if that is `expected`.
        """
        with self._writing():
            changed = self._db.execute(
                "UPDATE shard SET upper = ? WHERE upper = ?", (_text(new), _text(expected))
            ).rowcount
            if not changed:
                (found,) = self._db.execute("SELECT upper FROM shard").fetchone()
                return _frontier(found)
            for part in parts:
                self._db.execute(
                    "INSERT INTO part (file, min_time, max_time, rows, nbytes) VALUES (?, ?, ?, ?, ?)",
                    (part.file, _time_text(part.min_time), _time_text(part.max_time), part.rows, part.nbytes),
                )
            if positions:
                self._db.execute(_POSITIONS)
            for name, position in positions.items():
                if position is None:
                    self._db.execute("DELETE FROM position WHERE name = ?", (name,))
                else:
                    self._db.execute("INSERT OR REPLACE INTO position VALUES (?, ?)", (name, position))
        return expected

    def advance_since(self, since: Frontier) -> Frontier:
        """Raise since to at least `since`. Returns what it is then."""
        with self._writing():
            self._db.execute("UPDATE shard SET since = ? WHERE since < ?", (_text(since), _text(since)))
            (found,) = self._db.execute("SELECT since FROM shard").fetchone()
        return _frontier(found)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise self._locked(error) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _locked(self, error: sqlite3.OperationalError) -> Exception:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return error
        return Refusal(
            "timeout",
            f"the catalog of shard {self._name!r} was locked for {_BUSY_TIMEOUT_S:g} s",
            "a process that writes to it may be stopped",
        )
