"""The end of a binding's value in a recursion: what is fed back, in a form in which a change is a change.

Rows are consolidated, so that what cancels is no change and the recursion can end; errors are made distinct,
or one that passes through the recursion would be counted anew at every iteration.

Does not: make rows distinct; a binding whose counts grow for ever has no fixed point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from clusterd.dataflow.operator import BLOCK_ROWS, NO_ERRS, Columns, Delta, OperatorStatistics, types_of
from clusterd.operators.growable import Growable
from clusterd.operators.iterative import Blocks
from clusterd.operators.iterative_counts import CountMode, IterativeCounts
from clusterd.operators.kernels.iterate import gather_changes
from clusterd.operators.row_table import RowTable
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.rows import RowSpec, encode
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
        if sum(map(len, oks)) > BLOCK_ROWS:
            yield from self._consolidated(oks, iteration)
        elif oks:
            yield Delta.of(Updates.concat(oks).consolidate())
        errs = [Delta.of(delta.errs) for delta in inputs[0] if len(delta.errs)]
        if errs:
            for delta in self._errs.step(iteration, [errs]):
                yield Delta(self._nothing, delta.oks)

    def _consolidated(self, blocks: list[Updates], iteration: int) -> Iterator[Delta]:
        """By a table instead of a sort, which would be one long piece of work."""
        table = RowTable(self._spec)
        sums, marks = Growable(np.int64), Growable(np.uint8)
        changed = np.empty(sum(map(len, blocks)), np.int64)
        count = 0
        for updates in blocks:
            slots = table.assign(encode(updates.columns, self._spec, len(updates)))
            sums.grow(table.capacity)
            marks.grow(table.capacity)
            count = gather_changes(slots, updates.diffs, sums.a, marks.a, count, changed)
            if count < 0:
                raise MultiplicityOverflow("a multiplicity in a recursion leaves 64 bits")
            yield Delta(self._nothing, NO_ERRS)
        for start in range(0, count, BLOCK_ROWS):
            slots = changed[start : min(start + BLOCK_ROWS, count)]
            diffs = sums.a.take(slots)
            slots, diffs = slots[diffs != 0], diffs[diffs != 0]
            times = np.full(len(slots), iteration, np.uint64)
            yield Delta.of(Updates(table.columns(slots), times, diffs))

    def settle(self) -> None:
        self._errs.settle()

    def statistics(self) -> OperatorStatistics:
        return self._errs.statistics()

    def close(self) -> None:
        self._errs.close()
