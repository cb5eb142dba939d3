"""Inspection: the batches of one index, each with what it holds and where it lies; and what changed in it.

Does not: read rows at a time (view.py), or follow the index as it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shm_arrangements import text
from shm_arrangements.discover import PublicationInfo, describe, newest_page
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import HALVES
from shm_arrangements.read import updates_between
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import PublishedTrace, require_readable, snapshot_together
from shm_arrangements.updates import Updates
from shm_arrangements.view import ReadView


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """One batch of a chain. place: its segment, and in an arena the offset; "" if it has no updates."""

    half: str
    shard: int
    lower: Frontier
    upper: Frontier
    updates: int
    nbytes: int
    place: str
    encodings: str

    def cells(self) -> tuple[str, ...]:
        """half, lower, upper, updates and bytes, as text."""
        half = f"{self.half}/{self.shard}" if self.shard else self.half
        lower, upper = text.frontier_text(self.lower), text.frontier_text(self.upper)
        return half, lower, upper, f"{self.updates:,}", text.size_text(self.nbytes)

    def as_json(self) -> dict[str, Any]:
        """Frontiers as the wire has them."""
        return {
            "half": self.half,
            "shard": self.shard,
            "lower": list(self.lower.to_wire()),
            "upper": list(self.upper.to_wire()),
            "updates": self.updates,
            "bytes": self.nbytes,
            "place": self.place,
            "columns": self.encodings,
        }


def changes_between(id: str, token: str, t1: int, t2: int) -> tuple[ArrangementSchema, Updates]:
    """What changed in the rows of an index after `t1` up to `t2`, by id or name, consolidated.

    Raises: as `inspect_index`; NotReadable (`t1` before since), NotSealed (`t2` at or beyond upper);
    DataError if errors stand at `t2`; MultiplicityOverflow.
    """
    page = newest_page(token, id)
    shards = range(describe(page).shards)
    oks, errs = ([page._replace(half=half, shard=shard) for shard in shards] for half in HALVES)
    parts = snapshot_together([PublishedTrace(name) for name in (*oks, *errs)])
    for part in parts:
        require_readable(part.since, part.upper, t1)
        require_readable(part.since, part.upper, t2)
    schema = parts[0].schema
    chains = [
        [batch for part in half for batch in part.batches()]
        for half in (parts[: len(oks)], parts[len(oks) :])
    ]
    ReadView(id, schema, [], chains[1], t2).scan()
    return schema, updates_between(chains[0], t1, t2, schema=schema)


def inspect_index(id: str, token: str) -> tuple[PublicationInfo, Sequence[BatchInfo]]:
    """The newest incarnation of an index, by id or name, and its batches: by half and shard, oldest first.

    Raises: PublicationClosed, AmbiguousName, FormatMismatch, RegistryFull.
    """
    page = newest_page(token, id)
    info = describe(page)
    batches: list[BatchInfo] = []
    for half in HALVES:
        for shard in range(info.shards):
            trace = PublishedTrace(page._replace(half=half, shard=shard))
            for batch in trace.snapshot().batches():
                told, where = batch.description, batch.locator
                place = "" if where is None else where.name
                if where is not None and where.in_arena:
                    place += f" at {where.offset:,}"
                named = [
                    f"{spec.name} {column.encoding.name.lower()}"
                    for spec, column in zip(batch.schema.stored, batch.columns, strict=True)
                    if column.encoding
                ]
                size = len(batch), batch.nbytes
                batches.append(BatchInfo(half, shard, told.lower, told.upper, *size, place, ", ".join(named)))
            trace.close()
    return info, batches
