"""The end of a binding's value in a recursion: what is fed back, in a form in which a change is a change.

Rows are consolidated, so that what cancels is no change and the recursion can end; errors are made distinct,
or one that passes through the recursion would be counted anew at every iteration.

Does not: make rows distinct; a binding whose counts grow for ever has no fixed point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, types_of
from clusterd.operators.consolidation import consolidated
from clusterd.operators.iterative import Blocks
from clusterd.operators.iterative_counts import CountMode, IterativeCounts
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["IterativeBinding"]


class IterativeBinding:
    """Rows of `columns`; of each row that changes at an iteration, one update."""

    def __init__(self, columns: Columns) -> None:
        self.schema = columns
        self._spec = RowSpec.of(columns)
        self._nothing = Updates.empty(types_of(columns))
        self._errs = IterativeCounts(ERRS_SCHEMA.columns, CountMode.SET)

    def step(self, iteration: int, inputs: Sequence[Blocks]) -> Iterator[Delta]:
        oks = [delta.oks for delta in inputs[0] if len(delta.oks)]
        for updates in consolidated(oks, self._spec):
            yield Delta.of(updates)
        errs = [Delta.of(delta.errs) for delta in inputs[0] if len(delta.errs)]
        if errs:
            for delta in self._errs.step(iteration, [errs]):
                yield Delta(self._nothing, delta.oks)

    def settle(self) -> Iterator[None]:
        yield from self._errs.settle()

    def statistics(self) -> OperatorStatistics:
        return self._errs.statistics()

    def close(self) -> None:
        self._errs.close()
