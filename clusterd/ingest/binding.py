"""Binding: what each shard is fed from, kept with it, and how a process begins that finds shards and a slot.

A shard's binding is a position of its catalog (storage/shard.py), written in the same step as the rows of its
first snapshot. So whatever a shard holds, it tells of which table, slot and server it is, and up to which
place of the WAL: that one is its upper. A slot comes to be after all shards have their snapshot. From these
`plan_start` tells what to do; being killed anywhere leaves one of the states that it knows:

| shards                                 | slot                    | start                                  |
|----------------------------------------|-------------------------|----------------------------------------|
| none has anything of ours              | none                    | snapshot                               |
| some, none beyond its snapshot         | none                    | snapshot (the first one was not ended) |
| all                                    | confirmed what all have | resume behind the least upper          |
| some or all, beyond their snapshot     | none, lost, or too far  | `slot-gone`; with resnapshot: snapshot |
| of a table that is another by now      | any                     | `schema-changed`; the same             |
| none                                   | there                   | `slot-exists`                          |
| of another writer, slot or server      | any                     | `shard-taken`, `other-source`          |

A snapshot over shards that hold something writes what differs (shards.py), so it is right over any of them.

Does not: ask a server or a shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from clusterd.ingest.errors import IngestError
from clusterd.ingest.pgoutput import Relation
from clusterd.ingest.source import PublishedTable, Server, SlotState, SourceColumn

__all__ = ["POSITION", "Binding", "Found", "Resume", "Snapshot", "check_relation", "plan_start"]

POSITION = "postgres"  # the name of the position in a shard's catalog
_RESNAPSHOT = "start with --resnapshot: the difference to a new snapshot is written, at the time of that one"


class Binding(msgspec.Struct, frozen=True):
    """snapshot: the WAL position that the shard's first rows are of, or those of the last new snapshot.
    filter: of PublishedTable.
    """

    system: str
    database: str
    slot: str
    table: str
    oid: int
    columns: tuple[SourceColumn, ...]
    snapshot: int
    filter: str | None = None


class Found(msgspec.Struct, frozen=True):
    """A table, and what its shard is. upper: 0 for one that is not there; None if it has ended."""

    table: PublishedTable
    shard: str
    upper: int | None
    binding: Binding | None


class Resume(msgspec.Struct, frozen=True):
    """Ask for what ends behind `lsn`."""

    lsn: int


class Snapshot(msgspec.Struct, frozen=True):
    """Take a snapshot. drop_slot: there is a slot that is of no use any more. reason: for the log."""

    drop_slot: bool
    reason: str


def plan_start(
    found: Sequence[Found],
    server: Server,
    slot_name: str,
    slot: SlotState | None,
    *,
    resnapshot: bool,
    broken: str = "",
) -> Resume | Snapshot:
    """How to begin. found: at least one. resnapshot: over shards that cannot go on, a snapshot may be taken.
    broken: why they cannot, if it is what the slot has for them.

    Raises IngestError, as the table above says.
    """
    for each in found:
        _check_owner(each, server, slot_name)
    bound = [each for each in found if each.binding is not None]
    if slot is not None:
        _check_slot(slot_name, slot, server, bound=bool(bound))
    if not bound:
        return Snapshot(False, "the first one")
    if slot is None and all(_is_fresh(each) for each in bound):
        return Snapshot(False, "the first one was not ended")
    if broken:
        return Snapshot(slot is not None, broken)
    try:
        return _plan_resume(found, slot_name, slot)
    except IngestError as error:
        if not resnapshot:
            raise
        return Snapshot(slot is not None, error.message)


def _plan_resume(found: Sequence[Found], slot_name: str, slot: SlotState | None) -> Resume:
    if slot is None:
        raise IngestError("slot-gone", f"slot {slot_name!r} is gone", _RESNAPSHOT)
    if slot.wal_status == "lost":
        message = f"slot {slot_name!r} was invalidated: it kept more WAL than max_slot_wal_keep_size"
        raise IngestError("slot-gone", message, _RESNAPSHOT)
    for each in found:
        _check_table(each)
    behind = min(found, key=lambda each: each.upper or 0)
    lsn = (behind.upper or 0) - 1
    if slot.confirmed > lsn:
        message = (
            f"slot {slot_name!r} was read up to {slot.confirmed}, shard {behind.shard!r} has less: {lsn}"
        )
        raise IngestError("slot-gone", message, _RESNAPSHOT)
    return Resume(lsn)


def _is_fresh(found: Found) -> bool:
    """Whether the shard has its snapshot and no more."""
    return found.binding is not None and found.upper == found.binding.snapshot + 1


def _check_owner(found: Found, server: Server, slot_name: str) -> None:
    binding = found.binding
    if found.upper is None:
        raise IngestError("shard-taken", f"shard {found.shard!r} has ended", "take another one, with --shard")
    if binding is None:
        if found.upper:
            raise IngestError(
                "shard-taken",
                f"shard {found.shard!r} has upper {found.upper}, and not from PostgreSQL",
                f"take another one: --shard {found.table.full_name}=NAME",
            )
        return
    if binding.slot != slot_name:
        raise IngestError(
            "shard-taken",
            f"shard {found.shard!r} is fed from slot {binding.slot!r}, and has upper {found.upper}",
            f"--slot {binding.slot} goes on with it; --shard takes another one",
        )
    if (binding.system, binding.database) != (server.system, server.database):
        raise IngestError(
            "other-source",
            f"shard {found.shard!r} comes from database {binding.database!r} of system {binding.system}, "
            f"this is {server.database!r} of {server.system}",
            "another --data-dir, or other shards",
        )
    if found.upper - 1 > server.wal_end:
        raise IngestError(
            "other-source",
            f"shard {found.shard!r} has WAL up to {found.upper - 1}, the server's ends at {server.wal_end}",
            "the server was set back to an older state: its times cannot be told apart from those taken",
        )


def _check_slot(name: str, slot: SlotState, server: Server, *, bound: bool) -> None:
    if not bound:
        raise IngestError(
            "slot-exists",
            f"slot {name!r} exists, and no shard here has anything of it",
            f"another --slot, or the right --data-dir, or SELECT pg_drop_replication_slot('{name}')",
        )
    if slot.plugin != "pgoutput" or slot.database != server.database:
        message = f"slot {name!r} is of plugin {slot.plugin!r} in database {slot.database!r}"
        raise IngestError("slot-exists", message, "take another --slot")


def _check_table(found: Found) -> None:
    """Refuse a table that is not the one the shard was made of. Columns added behind are left out."""
    binding, table = found.binding, found.table
    if binding is None:
        message = f"table {table.full_name} came into the publication"
        raise IngestError("schema-changed", message, _RESNAPSHOT)
    if binding.oid != table.oid:
        message = f"table {table.full_name} was made anew, or is another one than {binding.table}"
        raise IngestError("schema-changed", message, _RESNAPSHOT)
    if binding.filter != table.filter:
        before, after = (f"those with {each}" if each else "all" for each in (binding.filter, table.filter))
        message = f"of table {table.full_name} other rows are published: {before} before, {after} now"
        raise IngestError("schema-changed", message, _RESNAPSHOT)
    for at, was in enumerate(binding.columns):
        now = table.columns[at] if at < len(table.columns) else None
        if now != was:
            found_ = "there is none" if now is None else f"column {now.name!r} is of another number or type"
            message = f"table {table.full_name} was altered: in the place of column {was.name!r}, {found_}"
            raise IngestError("schema-changed", message, _RESNAPSHOT)


def check_relation(relation: Relation, binding: Binding, table: PublishedTable | None) -> None:
    """Refuse rows of a table that was changed. relation: what the stream says of its rows from here on.
    table: what the catalog says, at this point or later; only it has the numbers by which a column that was
    dropped and made again can be told.

    Raises IngestError(`schema-changed`).
    """
    if table is None:
        raise IngestError("schema-changed", f"table {binding.table} is not published any more", _RESNAPSHOT)
    told = [(c.name, c.type, c.modifier) for c in relation.columns[: len(binding.columns)]]
    wanted = [(c.name, c.type, c.modifier) for c in binding.columns]
    if told != wanted:
        shown = ", ".join(name for name, _, _ in told)
        message = f"table {binding.table} was altered, its columns are ({shown}) and types now"
        raise IngestError("schema-changed", message, _RESNAPSHOT)
    _check_table(Found(table, "", 0, binding))
