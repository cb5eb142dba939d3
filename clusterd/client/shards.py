"""Shards: the client's access to the replica's data. Every call may block on files.

Does not: speak to the replica, which follows the shards by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from clusterd.client.answer import schema_of
from clusterd.client.arguments import plain_row, time_of
from clusterd.client.values import wire_rows
from clusterd.convert import updates_from_rows
from clusterd.storage.store import Store
from controller_proto.dataflow import WireFrontier
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.schema import Schema
from controller_proto.suggest import did_you_mean
from shm_arrangements.frontier import Frontier

__all__ = ["ShardState", "Shards"]

_INDEX = "an index is given as what created it, or index(ID), returned"


class ShardState(NamedTuple):
    """What dataflows over a shard need to know of it."""

    schema: Schema
    upper: WireFrontier
    since: int


class Shards:
    """The shards of a replica, or of none that we know of."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    @property
    def store(self) -> Store:
        """Raises LocalProtocolError if the client was not told where the shards are."""
        if self._store is None:
            raise LocalProtocolError(
                "unknown-shard", "the client was not told where the shards are: connect with data_dir=DIR"
            )
        return self._store

    @property
    def location(self) -> str | None:
        """Where they are; None if we were not told."""
        return None if self._store is None else str(self._store.place.location)

    def create(self, name: str, columns: Schema | Mapping[str, str]) -> None:
        """As `Client.create_shard`."""
        self.store.create_shard(name, schema_of(columns))

    def write(
        self, name: str, rows: Sequence[Sequence[Any] | Mapping[str, Any]], at: int | None, diff: int
    ) -> int:
        """As `Client.write`."""
        at = time_of(at)
        shard = self.store.shard(name)
        upper = shard.upper
        if upper.is_empty:
            raise Refusal("upper-mismatch", f"shard {name!r} has ended")
        time = upper.time if at is None else at
        if time < upper.time:
            hint = f"write at {upper.time} or later; diff=-1 retracts what was written before"
            raise Refusal("upper-mismatch", f"time {time} of shard {name!r} is sealed", hint)
        names = [c.name for c in shard.schema.columns]
        plain = wire_rows(shard.schema.columns, [plain_row(row, names) for row in rows])
        shard.append(updates_from_rows(shard.schema, plain, time, diff), upper, Frontier.at(time + 1))
        return time

    def advance(self, name: str, upper: int | None) -> None:
        """As `Client.advance`."""
        shard = self.store.shard(name)
        new = Frontier.empty() if upper is None else Frontier.at(upper)
        shard.append(updates_from_rows(shard.schema, [], 0), shard.upper, new)

    def schema(self, name: str) -> Schema:
        """Raises Refusal(`unknown-shard`), with the name that was probably meant."""
        if self._store is None:
            message = f"{name!r} would be a shard, and the client was not told where the shards are"
            raise LocalProtocolError("unknown-shard", message, f"connect with data_dir=DIR; {_INDEX}")
        if not self.store.has_shard(name):
            hint = f"{did_you_mean(name, self.store.list())}; {_INDEX}"
            raise Refusal("unknown-shard", f"no shard named {name!r} in {self.store.place.location}", hint)
        return self.store.shard(name).schema

    def states(self, names: Iterable[str]) -> dict[str, ShardState]:
        """What is so of these shards now."""
        found = {}
        for name in names:
            shard = self.store.shard(name)
            since = shard.since
            floor = 0 if since.is_empty else since.time
            found[name] = ShardState(shard.schema, shard.upper.to_wire(), floor)
        return found

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def __repr__(self) -> str:
        return str(self.location)
