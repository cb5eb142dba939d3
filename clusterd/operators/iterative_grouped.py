"""Any operator by key inside a recursion: one that is kept, and led back and forth through the iterations.

The operator of plain dataflows holds each group as it is at the last iteration at which it was changed. To
change a group at an earlier one, what came after is taken back, one iteration at a time from the last; then
the change is made; then all of it is given again. Iterations are times to the operator: so this is one round,
for all groups together. What it gives while iteration j is taken back and given again adds up to how the
change alters what it gave at j; what it gives for the change itself belongs there. That is right for whatever
it computes from the rows of a group, errors included.

Cost: the change, and what its groups got at later iterations, each as the operator itself has it. What came
at iterations before is not read.

Does not: spare the operator what came later where that could not matter (iterative_counts.py and
iterative_extremes.py do, for what they know).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import (
    BLOCK_ROWS,
    Columns,
    Delta,
    Operator,
    OperatorStatistics,
    Round,
    types_of,
)
from clusterd.operators.consolidation import consolidated
from clusterd.operators.growable import Growable
from clusterd.operators.iteration_cells import IterationCells
from clusterd.operators.iteration_index import IterationIndex, Keys, distinct_slots
from clusterd.operators.iterative import Blocks
from clusterd.operators.time_steps import pausing
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["Grouped"]

Ints = NDArray[np.int64]

_GROUPS = 8192  # led back and forth in one round of the operator
_ROUND = Round(0, Frontier.empty(), 0)
_CHANGE = np.uint64(1 << 32)  # the time of the change: j is taken back that much before it, and given after


class Grouped:
    """An operator of one input of `columns`, whose rows it groups by the positions `key`."""

    def __init__(self, operator: Operator, columns: Columns, key: Sequence[int]) -> None:
        self._operator = operator
        self._key = tuple(dict.fromkeys(key))
        self._rest = tuple(k for k in range(len(columns)) if k not in self._key)
        places = {k: at for at, k in enumerate((*self._key, *self._rest))}
        self._places = tuple(places[k] for k in range(len(columns)))
        self._specs = tuple(RowSpec.of([columns[k] for k in part]) for part in (self._key, self._rest))
        self.schema: Columns = operator.schema
        self._out_specs = RowSpec.of(self.schema), RowSpec.of(ERRS_SCHEMA.columns)
        self._types = types_of(self.schema)
        self._reset()

    def _reset(self) -> None:
        self._keys = Keys(self._specs[0])
        self._cells = IterationCells()
        self._cell = Growable(np.int64)  # by group, for the moment
        self._index = IterationIndex(self._cells, self._specs[1])

    def step(self, iteration: int, inputs: Sequence[Blocks]) -> Iterator[Delta]:
        pause = Delta.empty(self._types)
        changes: list[tuple[Ints, Updates]] = []
        for delta in inputs[0]:
            oks = delta.oks
            if len(delta.errs):
                yield Delta(pause.oks, delta.errs)
            if len(oks):
                yield from pausing(self._keys.make_room(len(oks)), pause)
                changes.append((self._keys.assign([oks.columns[k] for k in self._key], len(oks)), oks))
                yield pause
        if not changes:
            return
        slots = distinct_slots([each for each, _ in changes], self._keys.capacity)
        is_late = self._cells.have_after(slots, iteration)
        early, late = slots[~is_late], slots[is_late]
        if len(early):
            mine = changes if not len(late) else [each for each in self._of(early, changes) if len(each[0])]
            yield from self._change(iteration, late[:0], mine)
            yield from self._keep(iteration, early, mine)
        for lo in range(0, len(late), _GROUPS):
            groups = late[lo : lo + _GROUPS]
            for start, end, cells in self._cells.after(groups, iteration):
                part = groups[start:end]
                mine = [each for each in self._of(part, changes) if len(each[0])]
                yield from self._change(iteration, cells, mine)
                yield from self._keep(iteration, part, mine)

    def _of(self, groups: Ints, changes: Sequence[tuple[Ints, Updates]]) -> Iterator[tuple[Ints, Updates]]:
        """What of `changes` is of these groups."""
        is_mine = np.zeros(self._keys.capacity, np.bool_)
        is_mine[groups] = True
        for of, oks in changes:
            held = is_mine.take(of)
            yield of[held], oks.filter(held)

    def _change(
        self, iteration: int, later: Ints, changes: Sequence[tuple[Ints, Updates]]
    ) -> Iterator[Delta]:
        """What `changes` at `iteration` do to the output, if its groups have the cells `later` after it."""
        pause = Delta.empty(self._types)
        out: list[Delta] = []
        self._operator.start(_ROUND)
        for updates in self._replayed(later):
            for delta in self._operator.push(0, Delta.of(updates)):
                out.append(delta)
                yield pause
        for _, updates in changes:
            times = np.full(len(updates), _CHANGE)
            for delta in self._operator.push(0, Delta.of(Updates(updates.columns, times, updates.diffs))):
                out.append(delta)
                yield pause
        for delta in self._operator.finish():
            out.append(delta)
            yield pause
        oks = [_in_iterations(delta.oks, iteration) for delta in out if len(delta.oks)]
        errs = [_in_iterations(delta.errs, iteration) for delta in out if len(delta.errs)]
        if not len(later):
            for updates in oks:
                yield Delta.of(updates)
        else:
            for updates in consolidated(oks, self._out_specs[0]):
                yield Delta.of(updates)
        for updates in consolidated(errs, self._out_specs[1]):
            yield Delta(pause.oks, updates)

    def _replayed(self, cells: Ints) -> Iterator[Updates]:
        """The rows of cells, taken back before the change and given again after it."""
        for owners, rest in self._index.history(cells):
            groups = self._cells.groups(owners)
            columns = (*self._keys.table.columns(groups), *rest.columns)
            columns = tuple(columns[at] for at in self._places)
            times = self._cells.iterations.take(owners).view(np.uint64)
            yield Updates(columns, _CHANGE - times, -rest.diffs)
            yield Updates(columns, _CHANGE + times, rest.diffs)

    def _keep(self, iteration: int, groups: Ints, changes: Sequence[tuple[Ints, Updates]]) -> Iterator[Delta]:
        """Write down what changed these groups."""
        pause = Delta.empty(self._types)
        self._cell.grow(self._keys.capacity)
        for lo in range(0, len(groups), BLOCK_ROWS):
            part = groups[lo : lo + BLOCK_ROWS]
            self._cell.a[part] = self._cells.open(part, iteration)
            yield pause
        for of, oks in changes:
            cells = self._cell.a.take(of)
            yield from pausing(self._index.make_room(len(oks)), pause)
            self._index.add(cells, [oks.columns[k] for k in self._rest], 0, oks.diffs)
            yield pause
        for lo in range(0, len(groups), BLOCK_ROWS):
            cells = self._cell.a.take(groups[lo : lo + BLOCK_ROWS])
            self._cells.close(cells[self._index.is_empty(cells)])
            yield pause

    def settle(self) -> Iterator[None]:
        yield from self._keys.settle(self._cells.is_empty)

    def statistics(self) -> OperatorStatistics:
        """touched_rows: what the operator has looked at, what it was led back and forth by included."""
        inner = self._operator.statistics()
        held = self._keys.nbytes + self._cells.nbytes + self._index.nbytes
        return OperatorStatistics(
            len(self._index) + inner.state_rows, held + inner.state_bytes,
            inner.touched_rows + self._cells.visited,
        )  # fmt: skip

    def close(self) -> None:
        self._operator.close()
        self._reset()


def _in_iterations(updates: Updates, iteration: int) -> Updates:
    times = updates.times
    after = np.where(times > _CHANGE, times - _CHANGE, _CHANGE - times)
    return Updates(updates.columns, np.where(times == _CHANGE, np.uint64(iteration), after), updates.diffs)
