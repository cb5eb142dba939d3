"""Shards: where the changes of tables go, all of them up to the same time, one after the other.

An append moves a shard's upper from what we know it to be; if it is another one, another process writes too,
and we stop. Shards are appended to in the order of their names, so of two processes that feed the same ones
the second to come to the first of them is the one that stops, before it has changed anything.

A time t is sealed in a shard once its upper is t + 1: the rows at t are the table's at WAL position t.

Does not: read the server; keep rows in memory, but for a TRUNCATE and a new snapshot, which retract what is
there and so have to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from clusterd.ingest.binding import POSITION, Binding, Found
from clusterd.ingest.changes import Changes, Values
from clusterd.ingest.columns import column_of_texts, texts_of_values
from clusterd.ingest.errors import IngestError
from clusterd.ingest.source import PublishedTable
from clusterd.storage.merging import LARGEST_INLINE_BYTES
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements import failpoints
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates

__all__ = ["TableShard", "append_all", "find_shard", "make_shard"]

failpoints.declare("ingest.shard-appended")
_BLOCK_ROWS = 65_536


class TableShard:
    """The shard of one table. upper: the first time it is not sealed at, as we know it."""

    def __init__(self, table: str, shard: Shard) -> None:
        self.table = table
        self.shard = shard
        self.upper = shard.upper.time

    @property
    def arity(self) -> int:
        return len(self.shard.specs)

    def updates_of(self, changes: Changes) -> Updates:
        """What to append for these changes, consolidated. Raises IngestError(`invalid-data`)."""
        pieces: list[Updates] = []
        start = 0
        for at, time in changes.cleared:
            pieces.append(self._piece(changes, start, at))
            pieces.append(_retraction([*self._contents(), *pieces], time))
            start = at
        pieces.append(self._piece(changes, start, len(changes.rows)))
        return Updates.concat(pieces).consolidate()

    def _piece(self, changes: Changes, start: int, end: int) -> Updates:
        times = np.array(changes.times[start:end], np.uint64)
        return self.updates_of_rows(
            changes.rows[start:end], times, np.array(changes.diffs[start:end], np.int64)
        )

    def updates_of_rows(self, rows: Sequence[Values], times: np.ndarray, diffs: np.ndarray) -> Updates:
        """Of n rows of values, times (n,) uint64, diffs (n,) int64."""
        specs = self.shard.specs
        if not rows:
            return Updates.empty(tuple(spec.type for spec in specs))
        wheres = [f"table {self.table}, column {spec.name}" for spec in specs]
        columns = tuple(
            column_of_texts(texts_of_values(values, where), spec, where)
            for spec, where, values in zip(specs, wheres, zip(*rows, strict=True), strict=True)
        )
        return Updates(columns, times, diffs)

    def correct(self, wanted: Sequence[Updates], time: int, binding: Binding) -> int:
        """Make the contents at `time` those of `wanted`, whatever they were, and seal it; keep `binding`.

        wanted: rows at `time`. Returns how many updates that took. Raises IngestError(`shard-taken`).
        """
        empty = Updates.empty(tuple(spec.type for spec in self.shard.specs))
        pieces = [empty, *wanted]
        if self.upper:
            pieces.append(_retraction([empty, *self._contents()], time))
        updates = Updates.concat(pieces)
        if self.upper:
            updates = updates.consolidate()
        is_first = not self.upper
        self._append(updates, time + 1, {POSITION: msgspec.json.encode(binding).decode()})
        if is_first:  # before it, the shard has not what the table had
            self.shard.advance_since(Frontier.at(time))
        return len(updates)

    def _contents(self) -> list[Updates]:
        return list(self.shard.read(0, Frontier.at(self.upper), block_rows=_BLOCK_ROWS))

    def append(self, updates: Updates, upper: int) -> None:
        """Add updates and seal up to `upper`; nothing if that is so. Small parts are merged.

        Raises IngestError(`shard-taken`).
        """
        if upper > self.upper:
            self._append(updates, upper, {})
            if len(updates):
                self.shard.merge(largest_bytes=LARGEST_INLINE_BYTES)

    def _append(self, updates: Updates, upper: int, positions: Mapping[str, str]) -> None:
        try:
            self.shard.append(updates, Frontier.at(self.upper), Frontier.at(upper), positions=positions)
        except Refusal as refusal:
            if refusal.code != "upper-mismatch":
                raise
            found = self.shard.upper
            raise IngestError(
                "shard-taken",
                f"another process wrote to shard {self.shard.name!r}: its upper is {found}, not {self.upper}",
                "this process has stopped, the other one goes on; if it has another slot, drop one of them",
            ) from refusal
        self.upper = upper


def _retraction(pieces: Sequence[Updates], time: int) -> Updates:
    """What takes away, at `time`, all that there is then. pieces: at least one, of times up to it."""
    there = Updates.concat(pieces)
    whole = Updates(there.columns, np.full(len(there), time, np.uint64), there.diffs).consolidate()
    return Updates(whole.columns, whole.times, -whole.diffs)


def find_shard(store: Store, table: PublishedTable, name: str) -> Found:
    """What there is of a table's shard. Raises IngestError(`bad-setup`) if `name` cannot be one."""
    try:
        if not store.has_shard(name):
            return Found(table, name, 0, None)
        shard = store.shard(name)
    except Refusal as refusal:
        hint = f"--shard {table.full_name}=NAME; {refusal.hint}"
        raise IngestError("bad-setup", refusal.message, hint) from refusal
    text = shard.positions.get(POSITION)
    try:
        binding = None if text is None else msgspec.json.decode(text, type=Binding)
    except msgspec.DecodeError as error:
        message = f"what shard {name!r} says it is fed from cannot be read: {error}"
        raise IngestError(
            "bad-setup", message, f"--shard {table.full_name}=NAME takes another one"
        ) from error
    upper = shard.upper
    return Found(table, name, None if upper.is_empty else upper.time, binding)


def make_shard(store: Store, found: Found, schema_of: Callable[[PublishedTable, int], Schema]) -> TableShard:
    """The shard of a table, made if it is not there. schema_of: of so many of a table's first columns.

    A shard that is there keeps its number of columns: those that were added to the table are left out.

    Raises IngestError(`schema-changed`) if the shard's columns are others; as `schema_of`.
    """
    table = found.table
    arity = len(table.columns)
    if store.has_shard(found.shard):
        arity = store.shard(found.shard).schema.arity
    schema = schema_of(table, arity)
    try:
        return TableShard(table.full_name, store.create_shard(found.shard, schema))
    except Refusal as refusal:
        hint = f"take another shard: --shard {table.full_name}=NAME"
        raise IngestError("schema-changed", f"table {table.full_name}: {refusal.message}", hint) from refusal


def append_all(shards: Mapping[int, TableShard], changes: Mapping[int, Changes], sealed: int) -> int:
    """Append changes by table to their shards, and seal all of them at `sealed`. Returns how many updates."""
    count = 0
    # Before the first append, so that what cannot be converted leaves all shards at one time.
    updates = {oid: shards[oid].updates_of(each) for oid, each in changes.items()}
    for oid, shard in sorted(shards.items(), key=lambda item: item[1].shard.name):
        mine = updates.get(oid)
        if mine is None:
            mine = Updates.empty(tuple(spec.type for spec in shard.shard.specs))
        shard.append(mine, sealed + 1)
        failpoints.hit("ingest.shard-appended")
        count += len(mine)
    return count
