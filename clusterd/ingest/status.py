"""Status: how far the shards of a slot are behind their server, as asked from outside.

Does not: need the feeding process, or disturb it.
"""

from __future__ import annotations

import msgspec

from clusterd.ingest.binding import POSITION, Binding
from clusterd.ingest.connection import Connection, ConnectionLost, ServerError
from clusterd.ingest.errors import IngestError
from clusterd.ingest.source import slot_state
from clusterd.ingest.stopping import Stop
from clusterd.storage.store import Store

__all__ = ["ShardLag", "Status", "status_of"]


class ShardLag(msgspec.Struct, frozen=True):
    """upper: None if the shard has ended."""

    name: str
    table: str
    upper: int | None
    behind_bytes: int


class Status(msgspec.Struct, frozen=True):
    """behind_bytes: of WAL that was not confirmed; retained_bytes: that the server keeps for the slot."""

    slot: str
    wal_status: str
    active_pid: int | None
    wal_end: int
    confirmed: int
    behind_bytes: int
    retained_bytes: int
    shards: tuple[ShardLag, ...]


def status_of(store: Store, dsn: str, slot: str) -> Status:
    """Raises IngestError: `cannot-connect`, `slot-gone`, as `Connection.open`."""
    stop = Stop()
    try:
        with Connection.open(dsn, stop) as connection:
            state = slot_state(connection, slot)
    except (ConnectionLost, ServerError) as error:
        raise IngestError("cannot-connect", str(error)) from error
    finally:
        stop.close()
    if state is None:
        raise IngestError("slot-gone", f"there is no slot {slot!r}", "clusterd-ingest postgres makes it")
    shards = []
    for name in store.list():
        shard = store.shard(name)
        text = shard.positions.get(POSITION)
        binding = None if text is None else msgspec.json.decode(text, type=Binding)
        if binding is not None and binding.slot == slot:
            upper = None if shard.upper.is_empty else shard.upper.time
            behind = 0 if upper is None else max(0, state.wal_end + 1 - upper)
            shards.append(ShardLag(name, binding.table, upper, behind))
    return Status(
        slot, state.wal_status, state.active_pid, state.wal_end, state.confirmed,
        max(0, state.wal_end - state.confirmed), state.retained_bytes, tuple(shards),
    )  # fmt: skip
