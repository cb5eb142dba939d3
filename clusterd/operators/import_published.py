"""Import of an index that another process maintains, followed: what a subscription over it reads.

At the start of each round the published chain is taken as it is then, both halves together; the batches
that may hold a time of the round are its changes, and the whole chain is what a join looks up. Stream and
state are one snapshot, cut by one function, so nothing is seen twice or missed (Z6). The chain may hold later
times: they are of later rounds.

What is read of a merged batch is found by going through it, so a reader who keeps up reads as much as comes,
and one that lags reads the batches that have been merged meanwhile.

Does not: wait, hold compaction back (the core does, for as long as the dataflow needs it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clusterd.dataflow.operator import ArrangedInput, Columns, Delta, OperatorStatistics, Round
from clusterd.operators.common import ImportedRound
from shm_arrangements.batch import Batch
from shm_arrangements.contracts import TraceReader
from shm_arrangements.frontier import Frontier

__all__ = ["ImportPublished"]

Halves = tuple[TraceReader, TraceReader]


class ImportPublished:
    """A Source over what `snapshot` returns: oks and errs as they are published now."""

    def __init__(self, snapshot: Callable[[], Halves]) -> None:
        self._snapshot = snapshot
        oks, errs = snapshot()
        self._view = ImportedRound(oks.schema)
        self._frontier = Frontier.meet(oks.upper, errs.upper)

    @property
    def schema(self) -> Columns:
        return self._view.columns

    @property
    def arranged(self) -> ArrangedInput:
        return self._view

    @property
    def frontier(self) -> Frontier:
        """What the last snapshot held."""
        return self._frontier

    def start(self, round: Round) -> None:
        oks, errs = self._snapshot()
        self._frontier = Frontier.meet(oks.upper, errs.upper)
        chain = tuple(oks.batches())
        changes, faults = (_of_round(batches, round) for batches in (chain, tuple(errs.batches())))
        self._view.set(round, () if round.is_first else chain, changes, faults)

    def blocks(self) -> Iterator[Delta]:
        return self._view.blocks()

    def finish(self) -> None:
        self._view.clear()

    def statistics(self) -> OperatorStatistics:
        """Nothing is kept: the batches are shared."""
        return OperatorStatistics()

    def close(self) -> None:
        self._view.clear()


def _of_round(batches: tuple[Batch, ...], round: Round) -> tuple[Batch, ...]:
    """Those that may hold a time of the round."""
    lower = Frontier.at(round.lower)
    return tuple(
        batch
        for batch in batches
        if len(batch)
        and lower.precedes(batch.description.upper)
        and batch.description.lower.precedes(round.limit)
    )
