"""Inspection: the batches of one index, each with what it holds and where it lies.

Does not: read rows (view.py), or follow the index as it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shm_arrangements import text
from shm_arrangements.discover import PublicationInfo, describe, newest_page
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import HALVES
from shm_arrangements.snapshot import PublishedTrace


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
