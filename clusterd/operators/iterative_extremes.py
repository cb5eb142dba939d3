"""min and max inside a recursion: the edges of a group at every iteration, from a tree of its values.

A change of a value at an iteration alters the edges there and at the later iterations at which its group was
changed, and only these are looked at: before the change and after it, each in a walk down the tree of the
group (kernels/extremes.py). No value is read again, however many came later.

What alters is given at the iteration where it begins, and taken back where it ends. A group is there while
its count of rows is positive; a value, or the NULLs, of negative count are an error in data.

Does not: know other aggregates; those go by iterative_grouped.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import (
    BLOCK_ROWS,
    NO_ERRS,
    Columns,
    Delta,
    OperatorStatistics,
    types_of,
)
from clusterd.operators.aggregates import AggregateCall, result_spec
from clusterd.operators.faults import Faults, show_row
from clusterd.operators.growable import Growable
from clusterd.operators.iteration_cells import IterationCells
from clusterd.operators.iteration_index import Keys, distinct_slots
from clusterd.operators.iterative import Blocks
from clusterd.operators.kernels import extremes as kernels
from clusterd.operators.kernels.chains import USED
from clusterd.operators.kernels.iterate import gather_changes
from clusterd.operators.time_steps import pausing
from shm_arrangements.columns import Column
from shm_arrangements.errors import InvariantViolation, MultiplicityOverflow
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates

__all__ = ["IterativeExtremes", "is_of_extremes"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BUDGET = 1 << 17  # nodes visited in one piece
_VALUES = 32_768  # changed in one piece
_STEPS = 16_384  # given in one piece


def is_of_extremes(calls: Sequence[AggregateCall]) -> bool:
    """Whether these are min and max of one column."""
    return all(call.kind == "hierarchical" for call in calls) and len({call.column for call in calls}) == 1


class _Step:
    """Steps of some groups: (m,) group, and cell after the iteration, descending, or -1 for itself; found."""

    def __init__(self, groups: Ints, cells: Ints) -> None:
        self.groups, self.cells = groups, cells
        self.before, self.after = (np.empty((len(groups), 4), np.int64) for _ in range(2))


class IterativeExtremes:
    """Rows of `columns` grouped by the positions `key`; output: key columns, then the results of `calls`."""

    def __init__(self, columns: Columns, key: Sequence[int], calls: Sequence[AggregateCall]) -> None:
        column = calls[0].column
        if column is None or not is_of_extremes(calls):
            raise InvariantViolation("min and max of one column", calls=calls)
        self._key, self._column, self._calls = tuple(key), column, tuple(calls)
        key_columns = [columns[k] for k in key]
        self.schema: Columns = (*key_columns, *(result_spec(call, columns) for call in calls))
        self._types = types_of(self.schema)
        self._specs = RowSpec.of(key_columns), RowSpec.of([columns[column]])
        self._null_lane = 1 if columns[column].nullable else -1
        self._name = calls[0].function
        functions = {call.function for call in calls}
        self._wants = int("min" in functions), int("max" in functions)
        self._visited = 0
        self._reset()

    def _reset(self) -> None:
        self._keys, self._values = Keys(self._specs[0]), Keys(self._specs[1], grouped=True)
        self._flips = np.zeros(len(self._values.table.kinds), np.uint8)
        # By value.
        self._changes, self._marks = Growable(np.int64), Growable(np.uint8)
        self._ends, self._tree = Growable(np.int32, (2,), fill=-1), Growable(np.int32, (3,))
        self._spans, self._below = Growable(np.int64, (2,)), Growable(np.int64, (2,))
        # The pool of entries of values.
        self._links = Growable(np.int32, (2,))
        self._iterations, self._diffs, self._free = (Growable(np.int64) for _ in range(3))
        self._meta: Ints = np.zeros(2, np.int64)
        # By group.
        self._root, self._totals = Growable(np.int32, fill=-1), Growable(np.int64, (2,))
        self._cell = Growable(np.int64)  # for the moment
        self._cells = IterationCells()
        # By cell: rows, and entries of values.
        self._counts, self._entries = Growable(np.int64, (2,)), Growable(np.int64)

    def step(self, iteration: int, inputs: Sequence[Blocks]) -> Iterator[Delta]:
        pause = Delta.empty(self._types)
        changed = np.empty(sum(len(delta.oks) for delta in inputs[0]), np.int64)
        count = 0
        for delta in inputs[0]:
            if len(delta.errs):
                yield Delta(pause.oks, delta.errs)
            oks = delta.oks
            if not len(oks):
                continue
            for keys in (self._keys, self._values):
                yield from pausing(keys.make_room(len(oks)), pause)
            groups = self._keys.assign([oks.columns[k] for k in self._key], len(oks))
            values = self._values.assign([oks.columns[self._column]], len(oks), groups)
            for sized in (self._changes, self._marks, self._ends, self._tree, self._spans, self._below):
                sized.grow(self._values.capacity)
            count = gather_changes(values, oks.diffs, self._changes.a, self._marks.a, count, changed)
            if count < 0:
                raise MultiplicityOverflow("a multiplicity in a recursion leaves 64 bits")
            yield pause
        if count:
            yield from self._change(changed[:count], iteration)

    def _change(self, values: Ints, iteration: int) -> Iterator[Delta]:
        pause = Delta.empty(self._types)
        for sized in (self._root, self._totals, self._cell):
            sized.grow(self._keys.capacity)
        diffs = self._changes.a.take(values)
        owners = self._values.table.groups(values)
        groups = distinct_slots([owners], self._keys.capacity)
        steps = []
        for lo in range(0, len(groups), BLOCK_ROWS):
            part = groups[lo : lo + BLOCK_ROWS]
            for start, end, later in self._cells.after(part, iteration):
                steps.append(self._steps(part[start:end], later))
                for _ in self._look_up(steps[-1], steps[-1].before, iteration):
                    yield pause
        entries = np.empty(len(values), np.int64)
        for errs in self._apply(values, entries, iteration):
            yield Delta(pause.oks, errs)
        for lo in range(0, len(groups), BLOCK_ROWS):
            part = groups[lo : lo + BLOCK_ROWS]
            self._cell.a[part] = self._cells.open(part, iteration)
            yield pause
        self._counts.grow(self._cells.capacity)
        self._entries.grow(self._cells.capacity)
        for lo in range(0, len(values), BLOCK_ROWS):
            of, by = owners[lo : lo + BLOCK_ROWS], diffs[lo : lo + BLOCK_ROWS]
            kernels.add_by_group(
                of, by, entries[lo : lo + BLOCK_ROWS], self._cell.a, self._totals.a, self._counts.a,
                self._entries.a,
            )  # fmt: skip
            yield pause
        for each in steps:
            for _ in self._look_up(each, each.after, iteration):
                yield pause
            yield from self._give(each, iteration)
        for lo in range(0, len(groups), BLOCK_ROWS):
            cells = self._cell.a.take(groups[lo : lo + BLOCK_ROWS])
            self._cells.close(cells[self._entries.a.take(cells) == 0])
            yield pause

    def _steps(self, groups: Ints, later: Ints) -> _Step:
        """The cells `later` of these groups, each group's followed by the iteration itself."""
        self._cell.a[groups] = np.arange(len(groups))
        owners = self._cell.a.take(self._cells.groups(later))
        each = np.bincount(owners, minlength=len(groups)) + 1
        cells = np.full(len(groups) + len(later), -1, np.int64)
        cells[np.arange(len(later)) + owners] = later
        return _Step(np.repeat(groups, each), cells)

    def _look_up(self, steps: _Step, found: Ints, iteration: int) -> Iterator[None]:
        """What is known of the groups at these steps, as it stands, in pieces."""
        state = np.zeros(4, np.int64)
        while state[kernels.AT] < len(found):
            kernels.look_up(
                steps.groups, steps.cells, iteration, _BUDGET,
                self._cells.iterations, self._counts.a, self._totals.a, *self._wants,
                self._ends.a, self._links.a, self._iterations.a, self._diffs.a,
                self._values.table.lanes, self._null_lane,
                self._tree.a, self._spans.a, self._below.a, self._root.a, found, state,
            )  # fmt: skip
            yield
        self._visited += int(state[kernels.VISITED])

    def _apply(self, values: Ints, entries: Ints, iteration: int) -> Iterator[Updates]:
        """Let the values be changed; the errors of those that are negative, in pieces."""
        table = self._values.table
        for lo in range(0, len(values), _VALUES):
            part = values[lo : lo + _VALUES]
            for sized in (self._links, self._iterations, self._diffs, self._free):
                sized.grow(int(self._meta[USED]) + len(part))
            odd = np.empty(2 * len(part), np.int64)
            state = np.array([0, 0, 1, 0], np.int64)
            while state[kernels.AT] < len(part):
                kernels.apply_values(
                    part, len(part), iteration, _BUDGET, self._changes.a, self._marks.a,
                    table.lanes, table.text_lo, table.text_hi, table.text, table.kinds, self._flips,
                    self._ends.a, self._links.a, self._iterations.a, self._diffs.a, self._free.a, self._meta,
                    self._tree.a, self._spans.a, self._below.a, self._root.a,
                    entries[lo : lo + len(part)], odd, state,
                )  # fmt: skip
                if not state[kernels.FITS]:
                    raise MultiplicityOverflow("a multiplicity in a recursion leaves 64 bits")
                faults = Faults()
                for k in range(int(state[kernels.ODD])):
                    self._complain(faults, int(odd[2 * k]), int(odd[2 * k + 1]), iteration)
                yield faults.take()
            self._visited += int(state[kernels.VISITED])

    def _complain(self, faults: Faults, value: int, change: int, iteration: int) -> None:
        """How the complaints about a value alter by a change that it has taken."""
        slot = np.array([value], np.int64)
        key = [c.to_pylist()[0] for c in self._keys.table.columns(self._values.table.groups(slot))]
        (mine,) = self._values.table.columns(slot)[0].to_pylist()
        what = (
            f"group and value {show_row([*key, mine])}"
            if mine is not None
            else f"NULL of group {show_row(key)}"
        )
        after: dict[int, int] = {}
        at = int(self._ends.a[value, 0])
        while at >= 0:
            after[int(self._iterations.a[at])] = int(self._diffs.a[at])
            at = int(self._links.a[at, 0])
        before = {**after, iteration: after.get(iteration, 0) - change}
        for history, sign in ((after, 1), (before, -1)):
            count = 0
            for time in sorted(history):
                told = [
                    f"invalid-data: {self._name}: {what} has multiplicity {n}" if n < 0 else None
                    for n in (count, count + history[time])
                ]
                count += history[time]
                if time >= iteration:
                    faults.change(time, *told[::sign])

    def _give(self, steps: _Step, iteration: int) -> Iterator[Delta]:
        """How the output alters: at a step by what is other there than at the step before it."""
        old, new, cells = steps.before, steps.after, steps.cells
        for found in (old, new):
            kernels.judge_counts(found)
        alters = (old != new).any(axis=1)
        has_before = cells >= 0  # the step before stands behind it
        same = np.zeros(len(cells), np.bool_)
        same[:-1] = ((old[:-1] == old[1:]) & (new[:-1] == new[1:])).all(axis=1)
        same &= has_before
        begins = np.flatnonzero(alters & ~same)
        ends = np.flatnonzero(has_before & ~same)
        ends = ends[alters[ends + 1]]
        for at, of, sign in ((begins, begins, 1), (ends, ends + 1, -1)):
            for found, diff in ((old, -sign), (new, sign)):
                there = found[of, kernels.HIGH] > 0
                mine, its = at[there], of[there]
                for lo in range(0, len(mine), _STEPS):
                    part = mine[lo : lo + _STEPS]
                    times = np.where(cells[part] < 0, iteration, self._cells.iterations.take(cells[part]))
                    columns = self._rows(steps.groups.take(part), found.take(its[lo : lo + _STEPS], axis=0))
                    diffs = np.full(len(part), diff, np.int64)
                    yield Delta(Updates(columns, times.astype(np.uint64), diffs), NO_ERRS)

    def _rows(self, groups: Ints, found: Ints) -> tuple[Column, ...]:
        edges = {
            function: self._edge(found[:, place])
            for function, place in (("min", kernels.FIRST), ("max", kernels.LAST))
            if self._wants[place]
        }
        return (*self._keys.table.columns(groups), *(edges[call.function] for call in self._calls))

    def _edge(self, slots: Ints) -> Column:
        """The values of `slots`; -1 is NULL."""
        known = slots >= 0
        if known.all():
            return self._values.table.columns(slots)[0]
        value = self._values.table.columns(slots[known])[0]
        place = np.where(known, np.cumsum(known), 0)
        return Column.concat(value.type, [Column.nulls(value.type, 1), value]).take(place)

    def settle(self) -> Iterator[None]:
        yield from self._values.settle(lambda values: self._ends.a[values, 0] < 0)
        yield from self._keys.settle(self._cells.is_empty)

    def statistics(self) -> OperatorStatistics:
        """touched_rows: nodes of trees and entries of histories that were looked at, and cells."""
        sized: tuple[Growable[Any], ...] = (
            self._changes, self._marks, self._ends, self._tree, self._spans, self._below, self._links,
            self._iterations, self._diffs, self._free, self._root, self._totals, self._cell, self._counts,
            self._entries,
        )  # fmt: skip
        held = self._keys.nbytes + self._values.nbytes + self._cells.nbytes + sum(a.nbytes for a in sized)
        return OperatorStatistics(len(self._values.table), held, self._visited + self._cells.visited)

    def close(self) -> None:
        self._reset()
