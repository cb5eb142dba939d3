"""Arranging a round: its updates, in whatever blocks they come, become one sorted batch, in pieces.

Blocks are gathered until they fill a run, sorted in private memory, and runs of like size are merged
as they come, so what cancels is gone early and no piece of work grows with the round (R11). At the end of the
round the runs are merged, smallest first, and the last merge writes straight to the batch's final memory. A
round that fits one run, the usual case, is one sort and nothing else.

Until then a run covers no time: it says `[lower, lower)`, so that any two abut. The batch that comes out says
what the round was.

Does not: keep anything between rounds, insert or publish the batch, choose its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.contracts import Allocator
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.merger import Merger
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.updates import Updates

__all__ = ["Arranger"]

_RUN_ROWS: Final = 32_768  # updates sorted at once: 10 ms, or 40 if rows are long and compare slowly
_FUEL: Final = _RUN_ROWS  # updates a piece of merging
_HEAP: Final = HeapAllocator()
_ANY_TIME: Final = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())
_NOTHING: Final = Description(Frontier.minimum(), Frontier.minimum(), Frontier.minimum())


class Arranger:
    """Collects the updates of a round, columns in row order, for one arrangement."""

    def __init__(self, schema: ArrangementSchema) -> None:
        self._schema = schema
        self._blocks: list[Updates] = []
        self._pending = 0  # updates in _blocks
        self._runs: list[Batch] = []  # each at least twice as large as the next
        self._batch: Batch | None = None

    @property
    def rows(self) -> int:
        """Updates held."""
        return self._pending + sum(map(len, self._runs))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(block.nbytes for block in self._blocks) + sum(run.nbytes for run in self._runs)

    def add(self, updates: Updates) -> Iterator[None]:
        """Take some updates; yields between pieces of work."""
        if not len(updates):
            return
        # What fills a run alone waits: if nothing follows, it is the whole round.
        if self._pending and self._pending + len(updates) > _RUN_ROWS:
            yield from self._sort_blocks()
            while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
                yield
                yield from self._merge_last(_NOTHING, _HEAP)
        self._blocks.append(updates)
        self._pending += len(updates)

    def seal(self, description: Description, allocator: Allocator) -> Iterator[None]:
        """Make the batch of everything taken since the last one; yields between pieces. Then `take` it.

        The times of the updates lie in `description`. Raises: what the allocator raises.
        """
        if not self._runs and self._pending <= _RUN_ROWS:
            updates = Updates.concat(self._blocks) if self._blocks else self._none()
            self._forget_blocks()
            self._batch = build_batch(updates, self._schema, description, allocator)
            return
        if self._pending:
            yield from self._sort_blocks()
            yield
        if len(self._runs) == 1:
            # Alone it still has to move to its final memory.
            self._runs.append(Batch.empty(self._schema, _NOTHING))
        while len(self._runs) > 2:
            yield from self._merge_last(_NOTHING, _HEAP)
        yield from self._merge_last(description, allocator)
        self._batch = self._runs.pop()

    def take(self) -> Batch:
        """The batch that `seal` made."""
        batch, self._batch = self._batch, None
        assert batch is not None
        return batch

    def clear(self) -> None:
        """Forget everything that was taken."""
        self._forget_blocks()
        self._runs = []
        self._batch = None

    def _none(self) -> Updates:
        return Updates.empty([spec.type for spec in self._schema.columns])

    def _forget_blocks(self) -> None:
        self._blocks = []
        self._pending = 0

    def _sort_blocks(self) -> Iterator[None]:
        whole = Updates.concat(self._blocks)
        self._forget_blocks()
        for lo in range(0, len(whole), _RUN_ROWS):
            if lo:
                yield
            block = whole.slice(lo, min(lo + _RUN_ROWS, len(whole)))
            self._runs.append(build_batch(block, self._schema, _ANY_TIME, _HEAP).with_description(_NOTHING))

    def _merge_last(self, description: Description, allocator: Allocator) -> Iterator[None]:
        """Put the last two runs together; the result covers `description`."""
        newer, older = self._runs.pop(), self._runs.pop()
        lower, since = description.lower, description.since
        parts = (
            older.with_description(Description(lower, lower, since)),
            newer.with_description(description),
        )
        merger = Merger(parts, since, allocator)
        try:
            merger.work(_FUEL)
            while merger.result() is None:
                yield  # and not once there is a result: it would be left in its memory if this ended here
                merger.work(_FUEL)
        finally:
            merger.abandon()  # no effect on a result
        merged = merger.result()
        assert merged is not None
        self._runs.append(merged)
