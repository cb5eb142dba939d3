"""A query's result that is an imported index under another id: read from its snapshot, copied nowhere.

What the query shows is what its original held at the one time it is read at (`as_of`), for ever: the batches
it took hold that, and a read of any later time is a read at that one. They are kept mapped as long as the
result is; of the original nothing is held back (R7).

Batches may hold later times too. A peek is cut at `as_of`; whoever imports the result for later times gets
those batches without them, which copies them, once.

Does not: publish (what a page shows goes on with its original), take snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clusterd.dataflow.operator import Round
from clusterd.operators.common import cut_blocks
from controller_proto.dataflow import MAX_TIME
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.contracts import TraceReader
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexReader
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["FrozenIndex", "FrozenTrace"]


@dataclass(frozen=True, slots=True)
class FrozenTrace:
    """A TraceReader that stays as another was."""

    schema: ArrangementSchema
    since: Frontier
    upper: Frontier
    chain: tuple[Batch, ...]

    @staticmethod
    def of(reader: TraceReader) -> FrozenTrace:
        return FrozenTrace(reader.schema, reader.since, reader.upper, tuple(reader.batches()))

    def batches(self) -> tuple[Batch, ...]:
        return self.chain


@dataclass(slots=True)
class FrozenIndex:
    """Both halves of such a result; empty and sealed to nothing until it is filled."""

    schema: ArrangementSchema
    as_of: int
    reader: IndexReader = field(init=False)
    _cut: IndexReader | None = None

    def __post_init__(self) -> None:
        at = Frontier.at(self.as_of), Frontier.minimum()
        self.reader = IndexReader(FrozenTrace(self.schema, *at, ()), FrozenTrace(ERRS_SCHEMA, *at, ()))

    def fill(self, oks: TraceReader, errs: TraceReader) -> None:
        """Show what the original's snapshot holds at `as_of`."""
        until = Frontier.empty() if self.as_of == MAX_TIME else Frontier.at(self.as_of + 1)
        self.reader = IndexReader(_begun(oks, until), _begun(errs, until))

    def cut(self) -> IndexReader:
        """The same without later times, to be read at them."""
        if self._cut is None or self._cut.upper != self.reader.upper:
            self._cut = IndexReader(
                self._without_later(self.reader.oks), self._without_later(self.reader.errs)
            )
        return self._cut

    def _without_later(self, half: TraceReader) -> FrozenTrace:
        chain = tuple(self._earlier(batch, half.schema) for batch in half.batches())
        return FrozenTrace(half.schema, half.since, half.upper, chain)

    def _earlier(self, batch: Batch, schema: ArrangementSchema) -> Batch:
        if not len(batch) or int(batch.time_cells.max()) <= self.as_of:
            return batch
        # A first round that rounds up nothing, and ends with `as_of`.
        kept = list(cut_blocks((batch,), Round(0, Frontier.at(self.as_of + 1), 0)))
        return build_batch(Updates.concat(kept), schema, batch.description, HeapAllocator())


def _begun(half: TraceReader, until: Frontier) -> FrozenTrace:
    """The batches that may hold a time before `until`."""
    chain = tuple(batch for batch in half.batches() if batch.description.lower.precedes(until))
    return FrozenTrace(half.schema, half.since, Frontier.empty(), chain)
