"""Import of an index that this process maintains: read in place, as a stream and as an arrangement.

The writer's queue gives the chain as it stood and then every batch inserted since, so a round's changes are
found without searching the chain; the state a join looks up is the live chain, merged or not. Stream and
upper come from the same source, so no frontier is ahead of its batches (Z7).

What the import needs of the arrangement is its `hold`: a time below the next round's lower must stay told
apart from it, for by that a join knows old from new. So it counts at `as_of` before the first round, and at
`lower - 1` afterwards; when the last round is over, at nothing.

Does not: listen before its first round (a dataflow that is not scheduled piles nothing up); copy; wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterd.dataflow.operator import ArrangedInput, Columns, Delta, OperatorStatistics, Round
from clusterd.operators.common import ImportedRound
from shm_arrangements.batch import Batch
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.writer import BatchQueue

__all__ = ["ImportIndex"]


class ImportIndex:
    """A Source over the IndexWriter of another dataflow of this process."""

    def __init__(self, index: IndexWriter, as_of: int) -> None:
        self._index = index
        self._hold = Frontier.at(as_of)
        self._as_of = as_of
        self._view = ImportedRound(index.schema)
        self._queues: tuple[BatchQueue, BatchQueue] | None = None
        # Batches that some round still has to see, of oks and of errs.
        self._pending: tuple[list[Batch], list[Batch]] = ([], [])
        self._upper = Frontier.minimum()  # of the round that runs
        self._closed = False

    @property
    def schema(self) -> Columns:
        return self._view.columns

    @property
    def arranged(self) -> ArrangedInput:
        return self._view

    @property
    def frontier(self) -> Frontier:
        return self._index.upper

    @property
    def hold(self) -> Frontier:
        """The index must not compact beyond this; empty once nothing is needed. Never regresses."""
        return Frontier.empty() if self._closed else self._hold

    def start(self, round: Round) -> None:
        if self._queues is None:
            self._queues = self._index.listen()
            for pending, queue in zip(self._pending, self._queues, strict=True):
                pending += queue.history
                queue.history = ()
        for pending, queue in zip(self._pending, self._queues, strict=True):
            pending += queue.drain()
        self._upper = round.upper
        oks, errs = (_before(pending, round.limit) for pending in self._pending)
        history = () if round.is_first else tuple(self._index.oks.reader().batches())
        self._view.set(round, history, oks, errs)

    def blocks(self) -> Iterator[Delta]:
        return self._view.blocks()

    def finish(self) -> None:
        self._view.clear()
        for pending in self._pending:
            pending[:] = [batch for batch in pending if _has_more(batch, self._upper)]
        if self._upper.is_empty:
            self.close()
        else:
            self._hold = Frontier.at(max(self._as_of, self._upper.time - 1))

    def statistics(self) -> OperatorStatistics:
        """Nothing is kept but batches that wait for their round."""
        waiting = [batch for pending in self._pending for batch in pending]
        nbytes = sum(batch.nbytes for batch in waiting)
        return OperatorStatistics(sum(map(len, waiting)), nbytes, expected_rows=self._view.expected_rows)

    def close(self) -> None:
        self._closed = True
        self._view.clear()
        self._pending = ([], [])
        if self._queues is not None:
            self._index.forget(self._queues)
            self._queues = None


def _before(batches: list[Batch], limit: Frontier) -> tuple[Batch, ...]:
    """The batches that can hold a time before `limit`."""
    return tuple(batch for batch in batches if batch.description.lower.precedes(limit))


def _has_more(batch: Batch, upper: Frontier) -> bool:
    """Whether the batch holds something for the round that begins at `upper`.

    The batches of a finished index reach to the end of time, and hold nothing there.
    """
    if not upper.precedes(batch.description.upper):
        return False
    return len(batch) > 0 and not Frontier.at(int(batch.time_cells.max())).precedes(upper)
