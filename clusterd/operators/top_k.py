"""TopK: the rows at positions [offset, offset + limit) of each group, ties broken by the whole row.

Positions count copies: a row of multiplicity 3 takes three. The order is a tree a group, so a change costs
O(log n) of its group, and what is emitted at a time is the difference of the windows before and after it.

A net-negative row is no row, and an error in data that names it. So is a row of more than 2^40 copies
(`multiplicity-overflow`), unless the window ends before that: copies beyond it do not matter. A group whose
limit or offset fails, or is negative, gives that error and no rows as long as it has some.

Of an input that only grows nothing behind a window is kept. If it takes rows away all the same, that is an
error in data which stays, as in Reduce: what would come instead was not kept.

Does not: order its output, or find out whether an input grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import (
    BLOCK_ROWS,
    NO_ERRS,
    Columns,
    Delta,
    OperatorStatistics,
    Round,
    types_of,
)
from clusterd.operators.bounds import Bounds
from clusterd.operators.faults import Faults
from clusterd.operators.growable import Growable
from clusterd.operators.kernels.windows import note_groups
from clusterd.operators.ordered import MOST_COPIES, OrderColumn, OrderedRows, lane_flips
from clusterd.operators.row_table import RowTable
from clusterd.operators.time_steps import Work, pausing, pieces
from clusterd.operators.waiting import RowUpdates
from controller_proto.expr import Expr
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.updates import Updates

__all__ = ["TopKOperator"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_ADDED = 1 << 15  # updates whose groups are found at once


class TopKOperator:
    """Rows of `columns`, grouped by the positions `group`; limit None is all that follow the offset.

    Expressions for limit and offset read columns of the group. monotonic: the input never takes a row away.
    Raises: ValueError for a negative limit or offset; Refusal(`invalid-plan`) for an expression.
    """

    def __init__(
        self,
        columns: Columns,
        group: Sequence[int],
        order: Sequence[OrderColumn],
        limit: int | Expr | None,
        offset: int | Expr = 0,
        *,
        monotonic: bool = False,
    ) -> None:
        self.schema: Columns = columns
        self._types = types_of(columns)
        self._pause = Delta.empty(self._types)
        self._group = tuple(dict.fromkeys(group))
        ordered: dict[int, OrderColumn] = {}
        for item in order:
            if item.column not in self._group:  # constant in its group
                ordered.setdefault(item.column, item)
        rest = [k for k in range(len(columns)) if k not in ordered and k not in self._group]
        self._row = (*ordered, *rest)
        flips = lane_flips([(columns[k], ordered.get(k, OrderColumn(k))) for k in self._row])
        self._group_spec = RowSpec.of([columns[k] for k in self._group])
        self._row_spec = RowSpec.of([columns[k] for k in self._row])
        self._bounds = Bounds(columns, self._group, limit, offset)
        self._monotonic = monotonic
        self._groups = RowTable(self._group_spec)
        self._rows = OrderedRows(self._row_spec, flips)
        self._holders = Growable(np.int32)
        # Groups that the round touched.
        self._touched = Growable(np.int64)
        self._marks = Growable(np.uint8)
        self._count = 0
        # Position of each output column in (group columns, row columns).
        where = {k: at for at, k in enumerate((*self._group, *self._row))}
        self._where = tuple(where[k] for k in range(len(columns)))

    def start(self, round: Round) -> None:
        """Nothing is kept of a round's bounds: the times of its updates say all."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        for lo, hi in pieces(len(delta.oks), _ADDED):
            if lo:
                yield self._pause
            part = delta.oks.slice(lo, hi)
            yield from pausing(self._groups.make_room(len(part)), self._pause)
            self._add(part)
            if self._rows.waiting.is_full:
                yield from pausing(self._rows.settle(self._groups.capacity), self._pause)
        if len(delta.errs):
            yield Delta(Updates.empty(self._types), delta.errs)

    def _add(self, updates: Updates) -> None:
        n = len(updates)
        image = encode([updates.columns[k] for k in self._group], self._group_spec, n)
        slots = self._groups.assign(image)
        self._touched.grow(self._groups.capacity)
        self._marks.grow(self._groups.capacity)
        self._count = note_groups(slots, self._marks.a, self._touched.a, self._count)
        image = encode([updates.columns[k] for k in self._row], self._row_spec, n)
        self._rows.waiting.add(RowUpdates(image, slots, updates.times, updates.diffs))

    def finish(self) -> Iterator[Delta]:
        if self._count == 0:
            return
        yield from pausing(self._rows.settle(self._groups.capacity), self._pause)
        touched = self._touched.a[: self._count]
        yield from pausing(self._bounds.learn(self._groups, touched), self._pause)
        faults = Faults()
        groups = self._groups.capacity

        def tell(rows: Ints, times: Words, words: Words) -> None:
            self._tell(faults, rows, times, words)

        changes = self._rows.windows(self._bounds.a, groups, BLOCK_ROWS // 2, tell, grows=self._monotonic)
        for rows, times, diffs in changes:
            errs = faults.take() if len(faults) else NO_ERRS
            yield Delta(Updates(self._columns(rows), times.copy(), diffs.copy()), errs)
        self._holders.grow(groups)
        yield from pausing(self._retire(), self._pause)

    def _retire(self) -> Work[None]:
        """End of the round: let go of what is no more."""
        yield from self._rows.retire(self._holders.a, grows=self._monotonic)
        touched, self._count = self._touched.a[: self._count], 0
        self._marks.a[touched] = 0
        gone = touched[self._holders.a[touched] == 0]
        self._bounds.forget(gone)
        yield from self._groups.freeing(gone)

    def _columns(self, rows: Ints) -> tuple[Column, ...]:
        """The whole rows of slots, in the order of the schema."""
        parts = (*self._groups.columns(self._rows.table.groups(rows)), *self._rows.columns(rows))
        return tuple(parts[at] for at in self._where)

    def _tell(self, faults: Faults, rows: Ints, times: Words, words: Words) -> None:
        """Faults as the kernel notes them: of rows, and of groups that have an error for a window."""
        of_group = rows < 0
        if of_group.any():
            wrong = np.flatnonzero(of_group)
            messages = self._bounds.errors(-1 - rows[wrong])
            for at, message in zip(wrong.tolist(), messages, strict=True):
                was, now = (message if words[at, side] else None for side in (0, 2))
                faults.change(int(times[at]), was, now)
            kept = np.flatnonzero(~of_group)
            rows, times, words = rows[kept], times[kept], words[kept]
        sees_all = self._bounds.sees_all(self._rows.table.groups(rows))
        for some, complaint in ((sees_all, _of_all_copies), (~sees_all, _of_negative)):
            mine = np.flatnonzero(some)
            faults.changes(self._columns(rows[mine]), times[mine], words[mine], complaint)

    def statistics(self) -> OperatorStatistics:
        held = self._groups.nbytes + self._rows.nbytes + self._bounds.nbytes
        held += self._holders.nbytes + self._touched.nbytes + self._marks.nbytes
        groups, largest = self._rows.group_sizes()
        return OperatorStatistics(
            len(self._rows), held, self._rows.visited, groups=groups, largest_group=largest
        )

    def close(self) -> None:
        self._groups = RowTable(self._group_spec)
        self._rows = OrderedRows(self._row_spec)
        self._count = 0


def _of_negative(row: str, count: int) -> str | None:
    return f"invalid-data: top-k: row {row} has multiplicity {count}" if count < 0 else None


def _of_all_copies(row: str, count: int) -> str | None:
    """Of a window that sees all copies of a row."""
    if count > MOST_COPIES:
        return f"multiplicity-overflow: top-k: row {row} has multiplicity {count}"
    return _of_negative(row, count)
