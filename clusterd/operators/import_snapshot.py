"""Import of a published arrangement at one time: what a query on the interactive runtime reads.

The two snapshots (oks and errs) are taken before the graph is built, all of a query's in one step (R7); they
pin their own batches, so nothing that maintenance does afterwards shows or hurts. The query has one round;
in it every update up to `as_of` happens at `as_of`, and later ones, which the chain may hold, never happen.
Joins look keys up in the shared batches themselves: no row is copied, no index is built.

Does not: attach, wait, check that `as_of` is readable (whoever took the snapshots did).
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterd.dataflow.operator import ArrangedInput, Columns, Delta, OperatorStatistics, Round
from clusterd.operators.common import ImportedRound
from shm_arrangements.contracts import TraceReader
from shm_arrangements.frontier import Frontier

__all__ = ["ImportSnapshot"]


class ImportSnapshot:
    """A Source over two readers that do not change."""

    def __init__(self, oks: TraceReader, errs: TraceReader) -> None:
        self._oks: TraceReader | None = oks
        self._errs: TraceReader | None = errs
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
        """What the snapshots hold; it does not move."""
        return self._frontier

    def start(self, round: Round) -> None:
        assert self._oks is not None
        assert self._errs is not None
        oks, errs = tuple(self._oks.batches()), tuple(self._errs.batches())
        self._view.set(round, () if round.is_first else oks, oks, errs)

    def blocks(self) -> Iterator[Delta]:
        return self._view.blocks()

    def finish(self) -> None:
        self._view.clear()

    def statistics(self) -> OperatorStatistics:
        """Nothing is kept: the batches are shared."""
        return OperatorStatistics(expected_rows=self._view.expected_rows)

    def close(self) -> None:
        self._view.clear()
        self._oks = self._errs = None
