"""Source: what a publication publishes, as the server's catalog has it now.

Does not: say whether that suits the shards (binding.py), read rows (snapshot.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from clusterd.ingest.columns import PgType, map_type
from clusterd.ingest.connection import Connection, Row, quote_literal
from clusterd.ingest.errors import IngestError
from controller_proto.schema import Schema

__all__ = [
    "PublishedTable", "Server", "SlotState", "SourceColumn", "lsn_of", "lsn_text", "published_tables",
    "read_types", "server_of", "shard_schema", "slot_state",
]  # fmt: skip

_MIN_VERSION = 150000  # column lists and row filters of publications are in its catalog


class SourceColumn(msgspec.Struct, frozen=True):
    """attnum: its number in the table, which no later column gets. type, modifier: as in pg_attribute."""

    name: str
    attnum: int
    type: int
    modifier: int


class PublishedTable(msgspec.Struct, frozen=True):
    """A table as it is published. columns: those published, as the stream orders them. not_null: of each.

    filter: SQL that the published rows fulfil; None if all are published. only: without tables that inherit.
    """

    oid: int
    namespace: str
    name: str
    columns: tuple[SourceColumn, ...]
    not_null: tuple[bool, ...]
    filter: str | None
    only: bool
    identity_full: bool

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"


class Server(msgspec.Struct, frozen=True):
    """system: the identifier of the cluster, the same on its standbys. wal_end: where its WAL ends."""

    system: str
    database: str
    wal_end: int


class SlotState(msgspec.Struct, frozen=True):
    """A replication slot, and where the WAL ends. confirmed: what ends at or before it is not sent again.

    retained_bytes: of WAL that the server keeps for it.
    """

    plugin: str
    database: str
    active_pid: int | None
    confirmed: int
    wal_status: str
    wal_end: int
    retained_bytes: int


def server_of(connection: Connection) -> Server:
    """Which server, and where it is, asked over a replication connection.

    Raises IngestError(`bad-setup`) if it cannot serve us.
    """
    if connection.server_version < _MIN_VERSION:
        major = connection.server_version // 10_000
        raise IngestError("bad-setup", f"the server is PostgreSQL {major}", "15 or later is needed")
    system, _, wal_end, database = connection.query("IDENTIFY_SYSTEM")[0]
    standby, level = connection.query("SELECT pg_is_in_recovery(), current_setting('wal_level')")[0]
    if standby == "t":
        raise IngestError("bad-setup", "the server is a standby", "connect to the primary")
    if level != "logical":
        hint = "ALTER SYSTEM SET wal_level = logical, then restart it"
        raise IngestError("bad-setup", f"the server's wal_level is {level}, not logical", hint)
    return Server(system or "", database or "", lsn_of(wal_end or "0/0"))


def lsn_of(text: str) -> int:
    """A WAL position as a number. Raises ValueError.

    >>> lsn_of("1/10")
    4294967312
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(lsn: int) -> str:
    """Inverse of `lsn_of`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def slot_state(connection: Connection, slot: str) -> SlotState | None:
    """The slot; None if there is none."""
    rows = connection.query(
        "SELECT plugin, database, active_pid, coalesce(confirmed_flush_lsn - '0/0', 0),"
        " coalesce(wal_status, 'lost'), pg_current_wal_lsn() - '0/0',"
        " greatest(0, coalesce(pg_current_wal_lsn() - restart_lsn, 0))"
        f" FROM pg_replication_slots WHERE slot_name = {quote_literal(slot)}"
    )
    if not rows:
        return None
    plugin, database, pid, confirmed, status, wal_end, retained = rows[0]
    return SlotState(
        plugin or "", database or "", None if pid is None else int(pid), _int(confirmed), status or "",
        _int(wal_end), _int(retained),
    )  # fmt: skip


def published_tables(connection: Connection, publication: str) -> list[PublishedTable]:
    """The tables of a publication, by name.

    Raises IngestError(`bad-setup`): no such publication, or it leaves out changes, or has no tables.
    """
    name = quote_literal(publication)
    found = connection.query(
        f"SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = {name}"
    )
    if not found:
        hint = f"CREATE PUBLICATION {publication} FOR TABLE .."
        raise IngestError("bad-setup", f"there is no publication {publication!r} in the database", hint)
    if found[0] != ("t", "t", "t", "t"):
        hint = "its `publish` has to be 'insert, update, delete, truncate', as by default"
        raise IngestError("bad-setup", f"publication {publication!r} leaves out some kinds of changes", hint)
    rows = connection.query(
        "SELECT c.oid, t.schemaname, t.tablename, t.rowfilter, c.relkind <> 'p', c.relreplident = 'f',"
        " a.attname, a.attnum, a.atttypid, a.atttypmod, a.attnotnull"
        " FROM pg_publication_tables t"
        " JOIN pg_namespace n ON n.nspname = t.schemaname"
        " JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename"
        " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = ANY (t.attnames)"
        " AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
        f" WHERE t.pubname = {name} ORDER BY t.schemaname, t.tablename, a.attnum"
    )
    if not rows:
        message = f"publication {publication!r} has no tables"
        raise IngestError("bad-setup", message, "ALTER PUBLICATION .. ADD TABLE ..")
    tables: dict[str | None, list[Row]] = {}
    for row in rows:
        tables.setdefault(row[0], []).append(row)
    return [_table(each) for each in tables.values()]


def _table(rows: Sequence[Row]) -> PublishedTable:
    oid, namespace, name, filter_, only, full = rows[0][:6]
    columns = []
    for row in rows:
        column, attnum, type_, modifier, _ = row[6:]
        if column is None:
            raise IngestError("bad-setup", f"table {namespace}.{name} has no published columns")
        columns.append(SourceColumn(column, _int(attnum), _int(type_), _int(modifier)))
    not_null = tuple(row[10] == "t" for row in rows)
    return PublishedTable(
        _int(oid), namespace or "", name or "", tuple(columns), not_null, filter_, only == "t", full == "t"
    )


def shard_schema(
    table: PublishedTable, arity: int, types: Mapping[int, PgType], *, numeric_scale: int | None
) -> Schema:
    """What the shard of the first `arity` columns of a table has. types: of `read_types`.

    Raises IngestError(`unmapped-type`).
    """
    try:
        return Schema(tuple(
            map_type(types, c.type, c.modifier, c.name, nullable=not not_null, numeric_scale=numeric_scale)
            for c, not_null in list(zip(table.columns, table.not_null, strict=True))[:arity]
        ))  # fmt: skip
    except IngestError as error:
        message = f"table {table.full_name}: {error.message}"
        raise IngestError(error.code, message, error.hint) from error


def read_types(connection: Connection) -> dict[int, PgType]:
    """All types but composite ones; oidvector and the like count as no arrays."""
    rows = connection.query(
        "SELECT t.oid, typname, typtype, nspname = 'pg_catalog', typbasetype, typtypmod,"
        " CASE WHEN typcategory = 'A' AND typlen = -1 AND typsubscript = 'array_subscript_handler'::regproc"
        " THEN typelem ELSE 0 END"
        " FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace WHERE typtype <> 'c'"
    )
    return {
        _int(oid): PgType(name or "", kind or "", builtin == "t", _int(base), _int(modifier), _int(element))
        for oid, name, kind, builtin, base, modifier, element in rows
    }


def _int(text: str | None) -> int:
    assert text is not None
    return int(text)
