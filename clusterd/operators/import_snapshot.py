"""Import of what another process maintains: what a query or a subscription on the interactive runtime reads.

At the start of each round both halves are taken as they are then; the batches that may hold a time of the
round are its changes, and the whole chain is what a join looks up. Stream and state are one snapshot, cut by
one function, so nothing is seen twice or missed (Z6). The chain may hold later times: they are of later
rounds, or never happen. Joins look keys up in the shared batches themselves: no row is copied, no index is
built.

A query has one round, and its snapshots, all taken in one step before its graph is built (R7), are what it
gets at each call. What is read of a merged batch is found by going through it, so a subscription that keeps
up reads as much as comes, and one that lags reads the batches that have been merged meanwhile.

Does not: attach, wait, check that `as_of` is readable, hold compaction back (the core does, for as long as
the dataflow needs it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clusterd.dataflow.operator import ArrangedInput, Columns, Delta, OperatorStatistics, Round
from clusterd.operators.common import ImportedRound
from shm_arrangements.batch import Batch
from shm_arrangements.contracts import TraceReader
from shm_arrangements.frontier import Frontier

__all__ = ["ImportSnapshot"]

Halves = tuple[TraceReader, TraceReader]


class ImportSnapshot:
    """A Source over what `snapshot` returns: oks and errs, that do not change while the round runs."""

    def __init__(self, snapshot: Callable[[], Halves]) -> None:
        self._snapshot: Callable[[], Halves] | None = snapshot
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
        assert self._snapshot is not None
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
        return OperatorStatistics(expected_rows=self._view.expected_rows)

    def close(self) -> None:
        self._view.clear()
        self._snapshot = None  # and with it the memory that a query's snapshots map


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
