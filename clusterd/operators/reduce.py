"""Reduce: one row a group, its key and its aggregates, kept up to date by the changes alone.

A block that is pushed is added at once to the round's partials, by (group, time); nothing of it is kept. At
the end of the round the partials are walked once, ascending in time over all groups together: each step gives
the group's words before and after, and where the row that they stand for differs, the old one is retracted
and the new one inserted at that time. So many times in one interval are one compiled pass, and no group is
read again. min and max take the first and last row of a tree a group (ordered.py), around the same steps.

A group whose net count of rows is 0 has no row. count and sums give the signed result of a negative count;
where a row may not be negative (min, max, and distinct keys, which is a Reduce without aggregates) it is an
error in data.

Does not: evaluate expressions, make a row for an empty input, or judge the order of blocks: no answer depends
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
from clusterd.operators.faults import Faults, count_of, show_row
from clusterd.operators.growable import Growable
from clusterd.operators.kernels.table import fold
from clusterd.operators.ordered import OrderedRows
from clusterd.operators.reduce_tactic import AggregateCall, Sums, Values, result_spec
from clusterd.operators.row_table import Partials, RowTable
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.updates import Updates

__all__ = ["ReduceOperator"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]

_CHUNK_WORDS = 1 << 20  # of sums looked at in one piece, before and after each
_FAULTS_A_PIECE = 1024


class ReduceOperator:
    """Rows of `columns` grouped by the positions `key`, with `calls`; output: key columns, then results.

    Raises: ValueError for an aggregate that its column's type does not have.
    """

    def __init__(self, columns: Columns, key: Sequence[int], calls: Sequence[AggregateCall]) -> None:
        self._key = tuple(key)
        self._calls = tuple(calls)
        key_columns = tuple(columns[k] for k in self._key)
        self.schema: Columns = (*key_columns, *(result_spec(call, columns) for call in calls))
        self._types = types_of(self.schema)
        self._key_spec = RowSpec.of(key_columns)
        self._input = columns
        ordered = sorted({c.column for c in calls if c.function in ("min", "max") and c.column is not None})
        self._value_specs = {k: RowSpec(((columns[k].type, False),)) for k in ordered}
        self._touched = 0
        self._reset()

    def _reset(self) -> None:
        self._groups = RowTable(self._key_spec)
        self._sums = Sums(self._input, self._calls)
        self._partials = Partials(self._sums.width)
        self._holders = Growable(np.int32)
        self._ordered = {k: OrderedRows(spec) for k, spec in self._value_specs.items()}

    def start(self, round: Round) -> None:
        """Nothing is kept of a round's bounds: the times of its updates say all."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        if len(delta.oks):
            self._add(delta.oks)
        if len(delta.errs):
            yield Delta(Updates.empty(self._types), delta.errs)

    def _add(self, updates: Updates) -> None:
        columns, times, diffs = updates.columns, updates.times, updates.diffs
        image = encode([columns[k] for k in self._key], self._key_spec, len(updates))
        slots = self._groups.assign(image)
        partials = self._partials.add(slots, times, diffs, self._groups.capacity)
        self._partials.words = self._sums.add(columns, diffs, partials, self._partials.words)
        for k, rows in self._ordered.items():
            column, mine, at, by = columns[k], slots, times, diffs
            validity = column.validity
            if validity is not None and not validity.all():
                kept = np.flatnonzero(validity)
                column, mine, at, by = column.take(kept), slots.take(kept), times.take(kept), diffs.take(kept)
            rows.add(encode([column], self._value_specs[k], len(at)), mine, at, by)

    def finish(self) -> Iterator[Delta]:
        count = len(self._partials)
        self._touched += count
        if count == 0:
            return
        nothing = Delta.empty(self._types)
        order = self._partials.order()
        self._sums.grow(self._groups.capacity)
        self._holders.grow(self._groups.capacity)
        faults = Faults()
        edges: dict[int, NDArray[np.int32]] = {}
        for k, rows in self._ordered.items():
            steps = rows.extremes(
                order, self._partials.slots, self._partials.times, self._groups.capacity,
                self._row_faults(k, rows, faults),
            )  # fmt: skip
            for step in steps:
                if step is not None:
                    edges[k] = step
                yield nothing if not len(faults) else Delta(nothing.oks, faults.take())
        fields = self._sums.table()
        size = max(256, min(BLOCK_ROWS // 2, _CHUNK_WORDS // self._sums.width))
        shape = (min(size, count), self._sums.width)
        before: Words = np.empty(shape, np.uint64)
        after: Words = np.empty(shape, np.uint64)
        for start, end in self._partials.chunks(size):
            yield from self._step(order, start, end, fields, before, after, edges)
        self._retire()

    def _retire(self) -> None:
        for rows in self._ordered.values():
            rows.retire(self._holders.a)
        self._groups.free(self._partials.retire(self._sums.words, self._holders.a))

    def _step(
        self, order: Ints, start: int, end: int, fields: Ints, before: Words, after: Words,
        edges: dict[int, NDArray[np.int32]],
    ) -> Iterator[Delta]:  # fmt: skip
        """Fold the partials order[start:end] and emit what changed."""
        partials = self._partials
        fold(order, start, end, partials.slots, partials.words, self._sums.words, fields, before, after)
        before, after = before[: end - start], after[: end - start]
        mine = order[start:end]
        slots, times = partials.slots.take(mine), partials.times.take(mine)
        was, now = self._is_present(before), self._is_present(after)
        changed = was != now
        results: list[tuple[Values, Values]] = []
        unfit = False
        for call in self._calls:
            if call.function in ("min", "max"):
                assert call.column is not None
                side = 0 if call.function == "min" else 1
                edge = edges[call.column][start:end]
                pair = self._edge_values(call, edge[:, side]), self._edge_values(call, edge[:, side + 2])
            else:
                pair = self._sums.evaluate(call, before), self._sums.evaluate(call, after)
            changed |= pair[0].differs(pair[1])
            for values, present in zip(pair, (was, now), strict=True):
                if values.unfit is not None and values.unfit.any():
                    unfit = True
                    values.unfit[~present] = False
            results.append(pair)
        if unfit:
            for old, new in results:
                if old.unfit is not None and new.unfit is not None:
                    was &= ~old.unfit
                    now &= ~new.unfit
                    changed |= old.unfit | new.unfit
        changed &= was | now
        out = np.flatnonzero(was & changed)
        into = np.flatnonzero(now & changed)
        both = np.concatenate([out, into])
        columns = list(self._groups.columns(slots.take(both)))
        for call, (old, new) in zip(self._calls, results, strict=True):
            if call.function in ("min", "max"):
                assert call.column is not None
                ids = np.concatenate([old.values.take(out), new.values.take(into)])
                columns.append(_edge_column(self._ordered[call.column], ids))
            else:
                columns.append(Column.concat(old.type, [old.column(out), new.column(into)]))
        diffs = np.ones(len(both), np.int64)
        diffs[: len(out)] = -1
        yield Delta(Updates(tuple(columns), times.take(both), diffs), NO_ERRS)
        for errs in self._group_faults(slots, times, before, after, results):
            yield Delta(Updates.empty(self._types), errs)

    def _is_present(self, words: Words) -> Bools:
        """(m,) whether a group with these words has a row.

        With min, max or no aggregate only if its count is positive: less is an error in data there, and there
        may be no value to show.
        """
        there: Bools = (words[:, 0] != 0) | (words[:, 1] != 0)
        if self._ordered or not self._calls:
            there &= words[:, 1].view(np.int64) >= 0
        return there

    def _edge_values(self, call: AggregateCall, rows: NDArray[np.int32]) -> Values:
        """Rows of the tree as values to compare: within a round a slot is one value."""
        assert call.column is not None
        return Values(self._input[call.column].type, rows.astype(np.int64))

    def _row_faults(
        self, column: int, rows: OrderedRows, faults: Faults
    ) -> Callable[[Ints, Words, Words], None]:
        names = [c.function for c in self._calls if c.column == column and c.function in ("min", "max")]

        def tell(slots: Ints, times: Words, words: Words) -> None:
            columns = (*self._groups.columns(rows.table.groups(slots)), *rows.columns(slots))
            faults.changes(
                columns, times, words, lambda row, n: _negative(names[0], "group and value", row, n)
            )

        return tell

    def _group_faults(
        self, slots: Ints, times: Words, before: Words, after: Words, results: list[tuple[Values, Values]]
    ) -> Iterator[Updates]:
        """Errors of whole groups: a negative count of keys or NULLs, a result that fits no type."""
        faults = Faults()
        if not self._calls:
            yield from self._negatives(slots, times, before[:, :2], after[:, :2], faults, "distinct", "row")
        for k in self._ordered:
            field = self._sums.find("valid", k)
            if field is not None:
                name = next(c.function for c in self._calls if c.column == k and c.function != "count")
                old, new = (_difference(words, field.at) for words in (before, after))
                yield from self._negatives(slots, times, old, new, faults, name, "NULL of group")
        for call, (was, now) in zip(self._calls, results, strict=True):
            if was.unfit is None or now.unfit is None:
                continue
            for at in np.flatnonzero(was.unfit | now.unfit).tolist():
                told = [
                    self._unfit(call, slots, at, words) if unfit[at] else None
                    for unfit, words in ((was.unfit, before), (now.unfit, after))
                ]
                faults.change(int(times[at]), told[0], told[1])
                if len(faults) >= _FAULTS_A_PIECE:
                    yield faults.take()
        if len(faults):
            yield faults.take()

    def _negatives(
        self, slots: Ints, times: Words, old: Words, new: Words, faults: Faults, name: str, what: str
    ) -> Iterator[Updates]:
        wrong = np.flatnonzero((old[:, 1].view(np.int64) < 0) | (new[:, 1].view(np.int64) < 0))
        for start in range(0, len(wrong), _FAULTS_A_PIECE):
            part = wrong[start : start + _FAULTS_A_PIECE]
            words = np.concatenate([old.take(part, axis=0), new.take(part, axis=0)], axis=1)
            columns = self._groups.columns(slots.take(part))
            faults.changes(columns, times.take(part), words, lambda row, n: _negative(name, what, row, n))
            yield faults.take()

    def _unfit(self, call: AggregateCall, slots: Ints, at: int, words: Words) -> str:
        key = show_row(c.to_pylist()[0] for c in self._groups.columns(slots[at : at + 1]))
        if call.function == "count":
            field = None if call.column is None else self._sums.find("valid", call.column)
            first = 0 if field is None else field.at
            count = count_of(int(words[at, first]), int(words[at, first + 1]))
            return f"multiplicity-overflow: count of group {key} is {count}"
        assert call.column is not None
        kind = "double precision" if self._input[call.column].type.name == "FLOAT64" else "numeric"
        return f"eval-error: {kind} out of range: sum of group {key}"

    def statistics(self) -> OperatorStatistics:
        trees = self._ordered.values()
        held = self._sums.words.nbytes + self._groups.nbytes + self._partials.nbytes
        return OperatorStatistics(
            state_rows=len(self._groups) + sum(len(t) for t in trees),
            state_bytes=held + sum(t.nbytes for t in trees),
            touched_rows=self._touched + sum(t.visited for t in trees),
        )

    def close(self) -> None:
        self._reset()


def _negative(name: str, what: str, row: str, count: int) -> str | None:
    return f"invalid-data: {name}: {what} {row} has multiplicity {count}" if count < 0 else None


def _difference(words: Words, at: int) -> Words:
    """(m, 2) the count of rows less the count at `at`: how many are NULL."""
    low = words[:, 0] - words[:, at]
    borrow = (words[:, 0] < words[:, at]).astype(np.uint64)
    return np.stack([low, words[:, 1] - words[:, at + 1] - borrow], axis=1)


def _edge_column(rows: OrderedRows, slots: Ints) -> Column:
    """The values of `slots`; -1 is NULL."""
    known = slots >= 0
    if known.all():
        return rows.columns(slots)[0]
    type_ = rows.table.spec.types[0][0]
    value = rows.columns(slots[known])[0]
    place = np.where(known, np.cumsum(known), 0)
    return Column.concat(type_, [Column.nulls(type_, 1), value]).take(place)
