"""Shards whose catalogs are in a PostgreSQL database, and whose parts are wherever Arrow can write.

    postgres://HOST/DB?parts=s3://BUCKET/PREFIX

What stands before `parts` is libpq's: host, user and the rest; a password is better kept in ~/.pgpass than in
a location, which is shown. The first to open a database writes down where the parts are, and who comes later
may leave that out, but not say otherwise. A shard is made in one transaction with what is in it at first.

Does not: make the database; hold a transaction open while parts are written, but that of a new shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
import psycopg

from clusterd.storage.catalog import frontier_text
from clusterd.storage.object_parts import GRACE_S, ObjectParts, file_system_of
from clusterd.storage.place import Fill
from clusterd.storage.postgres_catalog import (
    CHANNEL,
    FORMAT,
    LOCK_TIMEOUT_S,
    SCHEMA,
    PostgresCatalog,
    database_errors,
)
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements.frontier import Frontier

__all__ = ["PostgresPlace"]

_PARTS = "parts"
_CONNECT_AGAIN_S = 3
_CREATION = 5_081_931  # of the advisory lock under which the tables are made


class PostgresPlace:
    """The Place of a database. created: whether its tables were made by this process."""

    def __init__(self, dsn: str, parts: str, *, created: bool) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None
        self._system, self._path = file_system_of(parts)
        self.location = f"{dsn}{'&' if '?' in dsn else '?'}{_PARTS}={quote(parts, safe=':/')}"
        self.created = created

    @classmethod
    def open(cls, uri: str, *, create: bool) -> PostgresPlace:
        """Raises Refusal(`format-mismatch`) if the database holds another format, or parts elsewhere, or it
        is not said where they are; FileNotFoundError if it has no catalogs and `create` is not set; OSError
        if it cannot be reached.
        """
        dsn, parts = _split(uri)
        with database_errors(), _connect(dsn) as connection:
            try:
                found = connection.execute("SELECT format, parts FROM clusterd.place").fetchone()
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                found = None
            made = found is None
            if found is None:
                if not create:
                    raise FileNotFoundError(f"no shards in {dsn}")
                if not parts:
                    raise Refusal(
                        "format-mismatch", f"{dsn} says not where parts are", "add parts=s3://BUCKET/PREFIX"
                    )
                file_system_of(parts)  # refused before anything is made
                found, made = _created(connection, parts)
        if found[0] != FORMAT:
            raise Refusal(
                "format-mismatch",
                f"{dsn} holds {found[0]!r}, this version reads {FORMAT!r}",
                "use another database, or the version that wrote this one",
            )
        if parts and parts != found[1]:
            raise Refusal(
                "format-mismatch",
                f"the shards in {dsn} have their parts at {found[1]}, not at {parts}",
                "leave out parts",
            )
        return cls(dsn, found[1], created=made)

    def connection(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            # Who has been connected has other things to do than to wait for a host that is gone.
            wait_s = LOCK_TIMEOUT_S if self._connection is None else _CONNECT_AGAIN_S
            self._connection = _connect(self._dsn, wait_s)
        return self._connection

    def _rows(self, query: Any, values: Sequence[Any] = ()) -> list[Any]:
        with database_errors():
            return self.connection().execute(query, values).fetchall()

    def names(self) -> list[str]:
        return [name for (name,) in self._rows("SELECT name FROM clusterd.shard ORDER BY name")]

    def has(self, name: str) -> bool:
        return bool(self._rows("SELECT 1 FROM clusterd.shard WHERE name = %s", (name,)))

    def open_shard(
        self, name: str, *, lock_wait_s: float = LOCK_TIMEOUT_S
    ) -> tuple[PostgresCatalog, ObjectParts]:
        return PostgresCatalog(self, name, GRACE_S), ObjectParts(self._system, f"{self._path}/{name}")

    def create(self, name: str, schema: Schema, fill: Fill | None) -> bool:
        if self.has(name):
            return False
        start = frontier_text(Frontier.minimum())
        encoded = msgspec.json.encode(schema).decode()
        with database_errors():
            connection = self.connection()
            with connection.transaction():
                made = connection.execute(
                    "INSERT INTO clusterd.shard VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING 1",
                    (name, encoded, start, start),
                ).fetchall()
                if made and fill is not None:
                    fill(*self.open_shard(name))
        return bool(made)

    def sweep(self) -> list[str]:
        """Creations are transactions: they leave nothing."""
        return []

    def notices(self) -> PostgresNotices:
        return PostgresNotices(_connect(self._dsn, _CONNECT_AGAIN_S))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresNotices:
    """The Notices of a database: one connection that listens."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._watched: set[str] = set()
        with database_errors():
            connection.execute(f"LISTEN {CHANNEL}")

    def fileno(self) -> int:
        return self._connection.fileno()

    def watch(self, name: str) -> None:
        self._watched.add(name)

    def unwatch(self, name: str) -> None:
        self._watched.discard(name)

    def drain(self) -> set[str]:
        """Raises OSError if the connection is lost: what came since cannot be told."""
        with database_errors():
            told = {notice.payload for notice in self._connection.notifies(timeout=0)}
        return told & self._watched

    def close(self) -> None:
        self._connection.close()


def _split(uri: str) -> tuple[str, str]:
    """What libpq is given of the location, and where the parts are, or nothing."""
    split = urlsplit(uri)
    query = parse_qsl(split.query, keep_blank_values=True)
    parts = "".join(value for name, value in query if name == _PARTS).rstrip("/")
    rest = urlencode([(name, value) for name, value in query if name != _PARTS], quote_via=quote, safe="/:")
    return f"{split.scheme}://{split.netloc}{split.path}" + (f"?{rest}" if rest else ""), parts


def _connect(dsn: str, wait_s: int = LOCK_TIMEOUT_S) -> psycopg.Connection[Any]:
    with database_errors():
        connection = psycopg.connect(
            dsn, autocommit=True, connect_timeout=wait_s, application_name="clusterd",
            options=f"-c lock_timeout={LOCK_TIMEOUT_S}s -c client_min_messages=warning",
        )  # fmt: skip
    connection.prepare_threshold = None  # a pooler may stand between
    return connection


def _created(connection: psycopg.Connection[Any], parts: str) -> tuple[Any, bool]:
    """The row of the place, and whether it was made now; of several at once one makes it."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION,))
        connection.execute(SCHEMA)
        made = connection.execute(
            "INSERT INTO clusterd.place VALUES (1, %s, %s) ON CONFLICT DO NOTHING RETURNING one",
            (FORMAT, parts),
        ).fetchall()
        return connection.execute("SELECT format, parts FROM clusterd.place").fetchone(), bool(made)
