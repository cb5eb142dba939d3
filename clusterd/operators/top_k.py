"""TopK: the rows at positions [offset, offset + limit) of each group, ties broken by the whole row.

Positions count copies: a row of multiplicity 3 takes three. The order is a tree a group, so a change costs
O(log n) of its group, and what is emitted at a time is the difference of the windows before and after it.

A net-negative row is no row, and an error in data that names it. So is a row of more than 2^40 copies
(`multiplicity-overflow`), unless the window ends before that: copies beyond it do not matter.

Does not: order its output, or evaluate a limit; the caller gives numbers.
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
from clusterd.operators.faults import Faults
from clusterd.operators.growable import Growable
from clusterd.operators.ordered import MOST_COPIES, MOST_OFFSET, OrderColumn, OrderedRows, lane_flips
from clusterd.operators.row_table import Partials, RowTable
from clusterd.operators.time_steps import Work, pausing
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.updates import Updates

__all__ = ["TopKOperator"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


class TopKOperator:
    """Rows of `columns`, grouped by the positions `group`; limit None is all that follow the offset.

    Raises: ValueError for a negative limit or offset.
    """

    def __init__(
        self,
        columns: Columns,
        group: Sequence[int],
        order: Sequence[OrderColumn],
        limit: int | None,
        offset: int = 0,
    ) -> None:
        if offset < 0 or (limit is not None and limit < 0):
            raise ValueError(f"a window from {offset} of {limit} rows")
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
        self._limit, self._offset = limit, min(offset, MOST_OFFSET)
        self._sees_all = limit is None or offset + limit > MOST_COPIES
        self._groups = RowTable(self._group_spec)
        self._rows = OrderedRows(self._row_spec, flips)
        # Groups that the round touched; their own sums are only whether rows name them.
        self._partials = Partials(2)
        self._no_sums = Growable(np.uint64, (2,))
        self._holders = Growable(np.int32)
        # Position of each output column in (group columns, row columns).
        where = {k: at for at, k in enumerate((*self._group, *self._row))}
        self._where = tuple(where[k] for k in range(len(columns)))

    def start(self, round: Round) -> None:
        """Nothing is kept of a round's bounds: the times of its updates say all."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        updates = delta.oks
        n = len(updates)
        if n:
            yield from pausing(self._make_room(n), self._pause)
            image = encode([updates.columns[k] for k in self._group], self._group_spec, n)
            slots = self._groups.assign(image)
            self._partials.add(slots, np.zeros(n, np.uint64), updates.diffs, self._groups.capacity)
            image = encode([updates.columns[k] for k in self._row], self._row_spec, n)
            self._rows.add(image, slots, updates.times, updates.diffs)
        if len(delta.errs):
            yield Delta(Updates.empty(self._types), delta.errs)

    def _make_room(self, rows: int) -> Work[None]:
        for sized in (self._groups, self._partials, self._rows.table, self._rows.partials):
            yield from sized.make_room(rows)

    def finish(self) -> Iterator[Delta]:
        if len(self._partials) == 0:
            return
        faults = Faults()
        groups = self._groups.capacity

        def tell(rows: Ints, times: Words, words: Words) -> None:
            faults.changes(self._columns(rows), times, words, self._complaint)

        pieces = self._rows.windows(self._offset, self._limit, groups, BLOCK_ROWS // 2, tell)
        for rows, times, diffs in pieces:
            errs = faults.take() if len(faults) else NO_ERRS
            yield Delta(Updates(self._columns(rows), times.copy(), diffs.copy()), errs)
        self._holders.grow(groups)
        self._no_sums.grow(groups)
        yield from pausing(self._retire(), self._pause)

    def _retire(self) -> Work[None]:
        """End of the round: let go of what is no more."""
        yield from self._rows.retire(self._holders.a)
        gone = yield from self._partials.retire(self._no_sums.a, self._holders.a)
        yield from self._groups.freeing(gone)

    def _columns(self, rows: Ints) -> tuple[Column, ...]:
        """The whole rows of slots, in the order of the schema."""
        parts = (*self._groups.columns(self._rows.table.groups(rows)), *self._rows.columns(rows))
        return tuple(parts[at] for at in self._where)

    def _complaint(self, row: str, count: int) -> str | None:
        if count < 0:
            return f"invalid-data: top-k: row {row} has multiplicity {count}"
        if self._sees_all and count > MOST_COPIES:
            return f"multiplicity-overflow: top-k: row {row} has multiplicity {count}"
        return None

    def statistics(self) -> OperatorStatistics:
        held = self._groups.nbytes + self._rows.nbytes + self._partials.nbytes + self._no_sums.nbytes
        return OperatorStatistics(
            state_rows=len(self._rows), state_bytes=held, touched_rows=self._rows.visited
        )

    def close(self) -> None:
        self._groups = RowTable(self._group_spec)
        self._rows = OrderedRows(self._row_spec)
        self._partials = Partials(2)
