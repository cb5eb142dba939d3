"""The catalog of a shard in PostgreSQL (catalog.py): rows of the schema `clusterd` of a database.

An append changes the shard's row where its upper is the expected one. Two that expect the same take turns at
the row's lock, and the second finds it changed: PostgreSQL looks at the condition again after it has waited.
The notice of an append is sent by the same transaction, so it comes if and only if that commits.

Does not: know of other shards; connect again in the middle of a transaction.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec
import psycopg

from clusterd.storage.catalog import ShardState, frontier_of, frontier_text, time_text
from clusterd.storage.parts import PartInfo
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements.frontier import Frontier

__all__ = [
    "CHANNEL",
    "FORMAT",
    "LOCK_TIMEOUT_S",
    "SCHEMA",
    "Connecting",
    "PostgresCatalog",
    "database_errors",
]

CHANNEL: Final = "clusterd_shard"
FORMAT: Final = "clusterd-catalog 1"
LOCK_TIMEOUT_S: Final = 30  # a commit holds a row for the few syncs of one transaction
SCHEMA: Final = """
CREATE SCHEMA IF NOT EXISTS clusterd;
CREATE TABLE IF NOT EXISTS clusterd.place (one INTEGER PRIMARY KEY CHECK (one = 1), format TEXT NOT NULL,
    parts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS clusterd.shard (name TEXT COLLATE "C" PRIMARY KEY, schema TEXT NOT NULL,
    since TEXT COLLATE "C" NOT NULL, upper TEXT COLLATE "C" NOT NULL);
CREATE TABLE IF NOT EXISTS clusterd.part (seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard TEXT COLLATE "C" NOT NULL REFERENCES clusterd.shard, file TEXT NOT NULL,
    min_time TEXT COLLATE "C" NOT NULL, max_time TEXT COLLATE "C" NOT NULL, rows BIGINT NOT NULL,
    nbytes BIGINT NOT NULL, UNIQUE (shard, file));
CREATE INDEX IF NOT EXISTS part_by_time ON clusterd.part (shard, max_time);
CREATE TABLE IF NOT EXISTS clusterd.dropped (shard TEXT COLLATE "C" NOT NULL, file TEXT NOT NULL,
    at TIMESTAMPTZ NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS clusterd.position (shard TEXT COLLATE "C" NOT NULL REFERENCES clusterd.shard,
    name TEXT NOT NULL, position TEXT NOT NULL, PRIMARY KEY (shard, name));
"""


class Connecting(Protocol):
    """Who keeps the connection."""

    def connection(self) -> psycopg.Connection[Any]:
        """An open one, autocommit."""


@contextmanager
def database_errors() -> Iterator[None]:
    """What the driver raises, as what our callers know."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise Refusal(
            "timeout",
            f"the catalog was locked for {LOCK_TIMEOUT_S} s",
            "a process that writes to it may be stopped",
        ) from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise ConnectionError(f"PostgreSQL: {error}") from error
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
        raise PermissionError(errno.EACCES, f"PostgreSQL: {error}") from error
    except psycopg.ProgrammingError as error:
        hint = "the location, or the schema clusterd in its database, is not what it was made to be"
        raise Refusal("format-mismatch", f"PostgreSQL: {error}", hint) from error


class PostgresCatalog:
    """A Catalog: the rows of `name`. grace_s: how long a part that was merged is still told as dropped."""

    def __init__(self, place: Connecting, name: str, grace_s: float) -> None:
        self._place = place
        self._name = name
        self._grace_s = grace_s

    def close(self) -> None:
        """The connection is the place's."""

    def _rows(self, query: Any, *values: Any) -> list[Any]:
        with database_errors():
            cursor = self._place.connection().execute(query, (self._name, *values))
            return cursor.fetchall() if cursor.description else []

    def wait_for_locks(self, wait_s: float) -> None:
        """No effect: readers wait for no lock here, and writers for that of one row."""

    def schema(self) -> Schema:
        ((text,),) = self._rows("SELECT schema FROM clusterd.shard WHERE name = %s")
        return msgspec.json.decode(text, type=Schema)

    def state(self) -> ShardState:
        ((since, upper),) = self._rows("SELECT since, upper FROM clusterd.shard WHERE name = %s")
        return ShardState(frontier_of(since), frontier_of(upper))

    def parts(self, lower: int, upper: Frontier) -> list[PartInfo]:
        query = (
            "SELECT file, min_time, max_time, rows, nbytes FROM clusterd.part WHERE shard = %s"
            " AND max_time >= %s AND min_time < %s ORDER BY seq"
        )
        return [
            PartInfo(file, int(least), int(most), rows, nbytes)
            for file, least, most, rows, nbytes in self._rows(query, time_text(lower), frontier_text(upper))
        ]

    def files(self) -> set[str]:
        return {file for (file,) in self._rows("SELECT file FROM clusterd.part WHERE shard = %s")}

    def dropped(self) -> set[str]:
        query = (
            "SELECT file FROM clusterd.dropped WHERE shard = %s AND at > now() - make_interval(secs => %s)"
        )
        return {file for (file,) in self._rows(query, self._grace_s)}

    def totals(self) -> tuple[int, int, int]:
        query = (
            "SELECT count(*), coalesce(sum(rows), 0)::bigint, coalesce(sum(nbytes), 0)::bigint"
            " FROM clusterd.part WHERE shard = %s"
        )
        ((parts, rows, nbytes),) = self._rows(query)
        return parts, rows, nbytes

    def positions(self) -> dict[str, str]:
        return dict(self._rows("SELECT name, position FROM clusterd.position WHERE shard = %s"))

    def compare_and_append(
        self,
        expected: Frontier,
        new: Frontier,
        parts: Sequence[PartInfo],
        positions: Mapping[str, str | None],
    ) -> Frontier:
        with self._transaction() as run:
            changed = run(
                "UPDATE clusterd.shard SET upper = %s WHERE name = %s AND upper = %s RETURNING upper",
                frontier_text(new), self._name, frontier_text(expected),
            )  # fmt: skip
            if not changed:
                ((found,),) = run("SELECT upper FROM clusterd.shard WHERE name = %s", self._name)
                return frontier_of(found)
            self._list(run, parts)
            for name, position in positions.items():
                run("DELETE FROM clusterd.position WHERE shard = %s AND name = %s", self._name, name)
                if position is not None:
                    run("INSERT INTO clusterd.position VALUES (%s, %s, %s)", self._name, name, position)
            run("SELECT pg_notify(%s, %s)", CHANNEL, self._name)
        return expected

    def replace_parts(self, old: Sequence[str], new: Sequence[PartInfo]) -> bool:
        with self._transaction() as run:
            # Mergers take turns, and in the order of the shard's row, as appends do.
            run("SELECT 1 FROM clusterd.shard WHERE name = %s FOR UPDATE", self._name)
            query = "SELECT count(*) FROM clusterd.part WHERE shard = %s AND file = ANY(%s)"
            ((listed,),) = run(query, self._name, list(old))
            if listed != len(old):
                return False
            run("DELETE FROM clusterd.part WHERE shard = %s AND file = ANY(%s)", self._name, list(old))
            run("INSERT INTO clusterd.dropped SELECT %s, unnest(%s::text[])", self._name, list(old))
            query = (
                "DELETE FROM clusterd.dropped WHERE shard = %s AND at <= now() - make_interval(secs => %s)"
            )
            run(query, self._name, self._grace_s)
            self._list(run, new)
        return True

    def _list(self, run: Callable[..., list[Any]], parts: Sequence[PartInfo]) -> None:
        for part in parts:
            run(
                "INSERT INTO clusterd.part (shard, file, min_time, max_time, rows, nbytes)"
                " VALUES (%s, %s, %s, %s, %s, %s)",
                self._name, part.file, time_text(part.min_time), time_text(part.max_time), part.rows,
                part.nbytes,
            )  # fmt: skip

    def advance_since(self, since: Frontier) -> Frontier:
        text = frontier_text(since)
        with self._transaction() as run:
            query = "UPDATE clusterd.shard SET since = %s WHERE name = %s AND since < %s"
            run(query, text, self._name, text)
            ((found,),) = run("SELECT since FROM clusterd.shard WHERE name = %s", self._name)
        return frontier_of(found)

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., list[Any]]]:
        with database_errors():
            connection = self._place.connection()

            def run(query: Any, *values: Any) -> list[Any]:
                cursor = connection.execute(query, values)
                return cursor.fetchall() if cursor.description else []

            with connection.transaction():
                yield run
