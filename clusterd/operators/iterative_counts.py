"""Counts inside a recursion: operators for which a whole row is the key, distinct and threshold.

All that is kept of a row is by how much its count changed at which iteration. A change is added there, and
from there on the history of what shows is taken anew, for this row alone, in compiled code; a row that never
came at a later iteration costs O(1).

Distinct shows a row once while its count is positive, and complains about a negative one; threshold shows
the positive part of the count and has no complaint.

Does not: consolidate what it is given, or keep rows that cancel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

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
from clusterd.operators.faults import Faults, show_row
from clusterd.operators.growable import Growable
from clusterd.operators.iteration_index import Keys
from clusterd.operators.iterative import Blocks
from clusterd.operators.kernels import iterate as kernels
from clusterd.operators.kernels.chains import USED
from clusterd.operators.time_steps import pausing
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates

__all__ = ["CountMode", "IterativeCounts"]

Ints = NDArray[np.int64]

_KEYS = 32_768  # of one piece of work
_STEPS = 2 * BLOCK_ROWS  # along the histories of keys, of one piece


class CountMode(IntEnum):
    """What a count shows. SET: once if positive. MULTISET: the same, and negative is an error in data.

    POSITIVE: as often as it is positive.
    """

    SET = kernels.SET
    MULTISET = kernels.MULTISET
    POSITIVE = kernels.POSITIVE


class IterativeCounts:
    """Rows of `columns` as `mode` says; a distinct complains of negative counts."""

    def __init__(self, columns: Columns, mode: CountMode) -> None:
        self.schema = columns
        self._types = types_of(columns)
        self._spec = RowSpec.of(columns)
        self._mode = mode
        self._steps = 0
        self._reset()

    def _reset(self) -> None:
        self._keys = Keys(self._spec)
        self._changes, self._marks = Growable(np.int64), Growable(np.uint8)
        self._totals, self._ends = Growable(np.int64), Growable(np.int32, (2,), fill=-1)
        # The pool of entries.
        self._links = Growable(np.int32, (2,))
        self._iterations, self._diffs, self._free = (Growable(np.int64) for _ in range(3))
        self._meta: Ints = np.zeros(2, np.int64)

    def __len__(self) -> int:
        """Rows that are kept; after `settle` those that some iteration has changed."""
        return len(self._keys.table)

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
            yield from pausing(self._keys.make_room(len(oks)), pause)
            slots = self._keys.assign(oks.columns, len(oks))
            for sized in (self._changes, self._marks, self._totals, self._ends):
                sized.grow(self._keys.capacity)
            count = kernels.gather_changes(slots, oks.diffs, self._changes.a, self._marks.a, count, changed)
            if count < 0:
                raise MultiplicityOverflow("a multiplicity in a recursion leaves 64 bits")
            yield pause
        yield from self._apply(changed[:count], iteration)

    def _apply(self, changed: Ints, iteration: int) -> Iterator[Delta]:
        start = room = 0
        while start < len(changed):
            part = changed[start : start + _KEYS]
            entries = int(self._meta[USED]) + len(part)
            for sized in (self._links, self._iterations, self._diffs, self._free):
                sized.grow(entries)
            state = np.array([0, 0, 0, 1], np.int64)
            room = max(room, min(BLOCK_ROWS, max(1024, 2 * len(part))))
            slots, odd = np.empty(room, np.int64), np.empty(2 * len(part), np.int64)
            times, diffs = np.empty(room, np.uint64), np.empty(room, np.int64)
            self._steps += len(part) + kernels.change_counts(
                part, len(part), iteration, int(self._mode), _STEPS, self._changes.a, self._marks.a,
                self._totals.a, self._ends.a, self._links.a, self._iterations.a, self._diffs.a,
                self._free.a, self._meta, state, slots, times, diffs, odd,
            )  # fmt: skip
            if not state[kernels.FITS]:
                raise MultiplicityOverflow("a multiplicity in a recursion leaves 64 bits")
            done, emitted = int(state[kernels.KEY]), int(state[kernels.EMITTED])
            room = 0 if done else 2 * room  # one key may have more to say than there was room
            start += done
            shown = slots[:emitted]
            oks = Updates(self._keys.table.columns(shown), times[:emitted], diffs[:emitted])
            yield Delta.of(oks)
            for k in range(int(state[kernels.ODD])):
                yield self._odd(int(odd[2 * k]), int(odd[2 * k + 1]), iteration)

    def _odd(self, slot: int, change: int, iteration: int) -> Delta:
        """What a row that is negative somewhere gives: the change is in its chain already."""
        after = self._chain(slot)
        before = dict(after)
        before[iteration] = before.get(iteration, 0) - change
        row = self._keys.table.columns(np.array([slot], np.int64))
        shown = show_row(c.to_pylist()[0] for c in row)
        faults = Faults()
        rows: list[tuple[int, int]] = []
        for history, sign in ((after, 1), (before, -1)):
            count = 0
            for time in sorted(history):
                was, count = count, count + history[time]
                if time < iteration:
                    continue
                rows.append((time, sign * (int(count > 0) - int(was > 0))))
                told = self._complaint(shown, was), self._complaint(shown, count)
                faults.change(time, *(told if sign > 0 else reversed(told)))
        times = np.array([time for time, _ in rows], np.uint64)
        diffs = np.array([diff for _, diff in rows], np.int64)
        columns = tuple(c.take(np.zeros(len(rows), np.int64)) for c in row)
        oks = Updates(columns, times, diffs)
        return Delta(oks.filter(diffs != 0), faults.take() if len(faults) else NO_ERRS)

    def _chain(self, slot: int) -> dict[int, int]:
        """Iteration -> change of the count, ascending."""
        out = {}
        at = int(self._ends.a[slot, 0])
        while at >= 0:
            out[int(self._iterations.a[at])] = int(self._diffs.a[at])
            at = int(self._links.a[at, 0])
        return out

    def _complaint(self, row: str, count: int) -> str | None:
        return f"invalid-data: distinct: row {row} has multiplicity {count}" if count < 0 else None

    def settle(self) -> Iterator[None]:
        self._ends.grow(self._keys.capacity)
        yield from self._keys.settle(lambda slots: self._ends.a[slots, 0] < 0)

    def statistics(self) -> OperatorStatistics:
        """touched_rows: rows that changed, and later iterations of theirs that were looked at."""
        sized = (
            self._changes, self._marks, self._totals, self._ends, self._links, self._iterations, self._diffs,
            self._free,
        )  # fmt: skip
        held = self._keys.nbytes + sum(a.nbytes for a in sized)
        return OperatorStatistics(len(self._keys.table), held, self._steps)

    def close(self) -> None:
        self._reset()
