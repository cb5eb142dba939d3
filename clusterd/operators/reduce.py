"""Reduce: one row a group, its key and its aggregates, kept up to date by the changes alone.

A block that is pushed is added at once to the round's partials, by (group, time); nothing of it is kept. At
the end of the round the partials are walked once, as steps, of a group by time: each gives what is known of
the group before and after, and where the row that this stands for differs, the old one is retracted and the
new one inserted at that time. So many times in one interval are one compiled pass, and no group is read that
did not change.

Aggregates of all kinds are taken at the same step and make one row. Sums are words by group
(reduce_tactic.py). Distinct values come and go by step and are added as rows would be (distinct_rows.py). min
and max take the first and last row of a tree a group (ordered.py), or of the one row kept of an input that
only grows (best_rows.py); lists walk such trees (lists.py).

A group whose net count of rows is 0 has no row. Where all aggregates have signed results (count, sum, avg of
all values that have a sign) a negative count gives them; else (min, max, distinct, lists, and distinct keys,
which is a Reduce without aggregates) a row, value or group below zero is an error in data. Of unsigned
integers sum and avg are errors as far as it shows in them.

Does not: evaluate expressions, make a row for an empty input, or judge the order of blocks: no answer depends
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
from clusterd.operators.aggregates import AggregateCall, result_spec
from clusterd.operators.best_rows import BestRows
from clusterd.operators.distinct_rows import DistinctRows
from clusterd.operators.faults import Faults, count_of, show_row
from clusterd.operators.growable import Growable
from clusterd.operators.kernels.table import fold
from clusterd.operators.lists import MOST_ELEMENTS, NULL_KEY, ListRows, Lists
from clusterd.operators.ordered import OrderedRows, Tell
from clusterd.operators.reduce_tactic import COUNT, FINE, NEGATIVE, RANGE, Codes, Sums, difference
from clusterd.operators.row_table import Partials, RowTable
from clusterd.operators.time_steps import Steps, Work, pausing
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

__all__ = ["ReduceOperator"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]

_CHUNK_WORDS = 1 << 20  # of sums looked at in one piece, before and after each
_LEAST_STEPS = 256
_LEAST_ADDED = 8192  # updates added at once, however many kinds of aggregates there are
_FAULTS_A_PIECE = 1024
_TOO_MANY = 4  # beside the codes of reduce_tactic.py: rows of a list
_TYPE_NAMES = {ColumnType.FLOAT64: "double precision", ColumnType.FLOAT32: "real"}


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One aggregate at m steps: where it changed, and why there is none before and after."""

    changed: Bools
    was: Codes | None
    now: Codes | None
    column: Callable[[Ints, Ints], Column]  # of the results before steps (k,), then after steps (l,)


class ReduceOperator:
    """Rows of `columns` grouped by the positions `key`, with `calls`; output: key columns, then results.

    monotonic: the input never takes a row away.
    Raises: ValueError for an aggregate that its column's type does not have.
    """

    def __init__(
        self, columns: Columns, key: Sequence[int], calls: Sequence[AggregateCall], *, monotonic: bool = False
    ) -> None:
        self._key = tuple(key)
        self._calls = tuple(calls)
        self._monotonic = monotonic
        key_columns = tuple(columns[k] for k in self._key)
        self.schema: Columns = (*key_columns, *(result_spec(call, columns) for call in calls))
        self._types = types_of(self.schema)
        self._pause = Delta.empty(self._types)
        self._key_spec = RowSpec.of(key_columns)
        self._input = columns
        edges = {c.column for c in calls if c.kind == "hierarchical"}
        distinct = {
            c.column for c in calls if c.kind == "accumulable" and c.column is not None and c.source[1]
        }
        self._value_specs = {
            k: RowSpec(((columns[k].type, False),)) for k in {*edges, *distinct} if k is not None
        }
        self._edge_columns = sorted(k for k in edges if k is not None)
        self._distinct_columns = sorted(k for k in distinct if k is not None)
        self._touched = 0
        self._reset()

    def _reset(self) -> None:
        self._groups = RowTable(self._key_spec)
        self._sums = Sums(self._input, self._calls)
        self._partials = Partials(self._sums.width)
        self._holders = Growable(np.int32)
        kept = BestRows if self._monotonic else OrderedRows
        specs = self._value_specs
        self._edges: dict[int, OrderedRows | BestRows] = {k: kept(specs[k]) for k in self._edge_columns}
        self._distinct = {k: DistinctRows(specs[k]) for k in self._distinct_columns}
        self._lists = {
            call: ListRows(call, self._input, spec.type)
            for call, spec in zip(self._calls, self.schema[len(self._key) :], strict=True)
            if call.kind == "basic"
        }

    @property
    def _kept(self) -> list[OrderedRows | BestRows | DistinctRows]:
        """Everything that keeps rows by group."""
        return [
            *self._edges.values(),
            *self._distinct.values(),
            *(lists.rows for lists in self._lists.values()),
        ]

    def start(self, round: Round) -> None:
        """Nothing is kept of a round's bounds: the times of its updates say all."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        if len(delta.errs):
            yield Delta(Updates.empty(self._types), delta.errs)
        rows = len(delta.oks)
        size = max(_LEAST_ADDED, BLOCK_ROWS // (1 + 3 * len(self._kept)))
        for start in range(0, rows, size):
            if start:
                yield self._pause
            part = delta.oks if rows <= size else delta.oks.slice(start, min(start + size, rows))
            yield from pausing(self._make_room(len(part)), self._pause)
            missing = self._add(part)
            if missing is not None:
                yield Delta(Updates.empty(self._types), missing)

    def _make_room(self, rows: int) -> Work[None]:
        """For that many more of everything."""
        yield from self._groups.make_room(rows)
        yield from self._partials.make_room(rows, self._groups.capacity)
        for kept in self._kept:
            yield from kept.table.make_room(rows)
            yield from kept.partials.make_room(rows, kept.table.capacity)

    def _add(self, updates: Updates) -> Updates | None:
        """Take a block into the round. Returns the errors of single rows."""
        columns, times, diffs = updates.columns, updates.times, updates.diffs
        image = encode([columns[k] for k in self._key], self._key_spec, len(updates))
        slots = self._groups.assign(image)
        partials = self._partials.add(slots, times, diffs, self._groups.capacity)
        for source in self._sums.sources:
            if not source[1]:
                words = self._partials.words
                self._partials.words = self._sums.add(source, columns[source[0]], diffs, partials, words)
        for tracked in (self._edges, self._distinct):
            for k, rows in tracked.items():
                column, mine, at, by, owners = columns[k], slots, times, diffs, partials
                validity = column.validity
                if validity is not None and not validity.all():
                    kept = np.flatnonzero(validity)
                    column, owners = column.take(kept), owners.take(kept)
                    mine, at, by = mine.take(kept), at.take(kept), by.take(kept)
                rows.add(encode([column], self._value_specs[k], len(at)), mine, at, by, owners)
        missing = [lists.add(columns, slots, times, diffs, partials) for lists in self._lists.values()]
        wrong = [numbers for numbers in missing if len(numbers)]
        if not wrong:
            return None
        at = np.concatenate(wrong)
        message = Column.constant(ColumnType.TEXT, NULL_KEY, len(at)).plain()
        return Updates((message,), times.take(at), diffs.take(at))

    def finish(self) -> Iterator[Delta]:
        count = len(self._partials)
        self._touched += count
        if count == 0:
            return
        faults = Faults()
        steps = yield from pausing(Steps.of(self._partials), self._pause)
        groups = self._groups.capacity
        self._sums.grow(groups)
        self._holders.grow(groups)
        for k, rows in self._distinct.items():
            yield from pausing(rows.open(steps), self._pause)
            for values, signs, owners in rows.flips(self._row_faults(rows, self._name_of(k), faults)):
                words = self._partials.words
                self._partials.words = self._sums.add((k, True), values, signs, owners, words)
                yield self._piece(faults)
        for tracked in (*self._edges.values(), *self._lists.values()):
            for _ in tracked.open(steps, groups):
                yield self._piece(faults)
        fields = self._sums.table()
        size = max(_LEAST_STEPS, min(BLOCK_ROWS // 2, _CHUNK_WORDS // self._sums.width))
        shape = (min(size, count), self._sums.width)
        before: Words = np.empty(shape, np.uint64)
        after: Words = np.empty(shape, np.uint64)
        start = 0
        while start < count:
            end = min(start + size, count)
            for call, lists in self._lists.items():
                for reached in lists.reach(start, end, self._row_faults(lists.rows, _label(call), faults)):
                    if reached is not None:
                        end = reached
                    yield self._piece(faults)
            edges: dict[int, NDArray[np.int32]] = {}
            for k, tree in self._edges.items():
                for found in tree.extremes(end, self._row_faults(tree, self._name_of(k), faults)):
                    if found is not None:
                        edges[k] = found
                    yield self._piece(faults)
            fold(
                steps.order, start, end, self._partials.slots, self._partials.words, self._sums.words, fields,
                before, after,
            )  # fmt: skip
            n = end - start
            yield from self._emit(steps, start, end, before[:n], after[:n], edges)
            start = end
        yield from pausing(self._retire(), self._pause)

    def _retire(self) -> Work[None]:
        """End of the round: let go of what is no more."""
        for kept in self._kept:
            yield from kept.retire(self._holders.a)
        gone = yield from self._partials.retire(self._sums.words, self._holders.a)
        yield from self._groups.freeing(gone)

    def _piece(self, faults: Faults) -> Delta:
        """The end of a piece of work, with the faults that it found."""
        return Delta(Updates.empty(self._types), faults.take() if len(faults) else NO_ERRS)

    def _emit(
        self, steps: Steps, start: int, end: int, before: Words, after: Words,
        edges: dict[int, NDArray[np.int32]],
    ) -> Iterator[Delta]:  # fmt: skip
        """What changed at the steps start .. end, whose sums are these."""
        slots, times = steps.groups[start:end], steps.times[start:end]
        was, now = self._is_present(before), self._is_present(after)
        changed = was != now
        outcomes = [self._outcome(call, start, end, before, after, edges) for call in self._calls]
        faulty = np.zeros(len(slots), np.bool_)
        for outcome in outcomes:
            changed |= outcome.changed
            for codes, present in ((outcome.was, was), (outcome.now, now)):
                if codes is not None:
                    codes[~present & (codes != NEGATIVE)] = FINE
                    faulty |= codes != FINE
        changed |= faulty
        for outcome in outcomes:
            if outcome.was is not None:
                was &= outcome.was == FINE
            if outcome.now is not None:
                now &= outcome.now == FINE
        out, into = np.flatnonzero(was & changed), np.flatnonzero(now & changed)
        both = np.concatenate([out, into])
        columns = (*self._groups.columns(slots.take(both)), *(o.column(out, into) for o in outcomes))
        diffs = np.ones(len(both), np.int64)
        diffs[: len(out)] = -1
        yield Delta(Updates(columns, times.take(both), diffs), NO_ERRS)
        for errs in self._group_faults(slots, times, before, after):
            yield Delta(Updates.empty(self._types), errs)
        if faulty.any():
            wrong = np.flatnonzero(faulty)
            for errs in self._result_faults(wrong, start, slots, times, before, after, outcomes):
                yield Delta(Updates.empty(self._types), errs)

    def _outcome(
        self, call: AggregateCall, start: int, end: int, before: Words, after: Words,
        edges: dict[int, NDArray[np.int32]],
    ) -> _Outcome:  # fmt: skip
        if call.kind == "accumulable":
            old, new = (self._sums.evaluate(call, words) for words in (before, after))

            def results(out: Ints, into: Ints) -> Column:
                return Column.concat(old.type, [old.column(out), new.column(into)])

            return _Outcome(old.differs(new), old.unfit, new.unfit, results)
        assert call.column is not None
        if call.kind == "hierarchical":
            rows, side = self._edges[call.column], 0 if call.function == "min" else 1
            first, last = (edges[call.column][:, k] for k in (side, side + 2))

            def edge_values(out: Ints, into: Ints) -> Column:
                return _edge_column(rows, np.concatenate([first.take(out), last.take(into)]))

            # Within a round a slot is one value.
            return _Outcome(first != last, None, None, edge_values)
        lists = self._lists[call]
        found = lists.lists(start, end)
        codes = (_list_codes(found, 0), _list_codes(found, 1))
        return _Outcome(found.changed, *codes, lambda out, into: lists.column(found, out, into))

    def _is_present(self, words: Words) -> Bools:
        """(m,) whether a group with these words has a row.

        Where not all results are signed, only if its count is positive: less is an error in data there, and
        there may be no value to show.
        """
        there: Bools = (words[:, 0] != 0) | (words[:, 1] != 0)
        if self._edges or self._distinct or self._lists or not self._calls:
            there &= words[:, 1].view(np.int64) >= 0
        return there

    # Errors in data.

    def _name_of(self, column: int) -> str:
        """The first aggregate that asks for the values of a column one by one."""
        return next(
            _label(c) for c in self._calls if c.column == column and (c.kind != "accumulable" or c.source[1])
        )

    def _row_faults(self, rows: OrderedRows | BestRows | DistinctRows, name: str, faults: Faults) -> Tell:
        def tell(slots: Ints, times: Words, words: Words) -> None:
            columns = (*self._groups.columns(rows.table.groups(slots)), *rows.table.columns(slots))
            faults.changes(columns, times, words, lambda row, n: _negative(name, "group and value", row, n))

        return tell

    def _group_faults(self, slots: Ints, times: Words, before: Words, after: Words) -> Iterator[Updates]:
        """Errors of whole groups: a negative count of keys or of NULLs."""
        if not self._calls:
            yield from self._negatives(slots, times, before[:, :2], after[:, :2], "distinct", "row")
        skipping = {c.column for c, lists in self._lists.items() if lists.skips_nulls}
        for k in sorted({*self._edges, *self._distinct, *(k for k in skipping if k is not None)}):
            field = self._sums.find("valid", (k, False))
            if field is not None:
                at = field.at
                old, new = (difference(w[:, :2], w[:, at : at + 2]) for w in (before, after))
                yield from self._negatives(slots, times, old, new, self._name_of(k), "NULL of group")

    def _negatives(
        self, slots: Ints, times: Words, old: Words, new: Words, name: str, what: str
    ) -> Iterator[Updates]:
        faults = Faults()
        wrong = np.flatnonzero((old[:, 1].view(np.int64) < 0) | (new[:, 1].view(np.int64) < 0))
        for start in range(0, len(wrong), _FAULTS_A_PIECE):
            part = wrong[start : start + _FAULTS_A_PIECE]
            words = np.concatenate([old.take(part, axis=0), new.take(part, axis=0)], axis=1)
            columns = self._groups.columns(slots.take(part))
            faults.changes(columns, times.take(part), words, lambda row, n: _negative(name, what, row, n))
            yield faults.take()

    def _result_faults(
        self, wrong: Ints, start: int, slots: Ints, times: Words, before: Words, after: Words,
        outcomes: Sequence[_Outcome],
    ) -> Iterator[Updates]:  # fmt: skip
        """Results that are none, of the steps start + wrong."""
        faults = Faults()
        for call, outcome in zip(self._calls, outcomes, strict=True):
            for at in wrong.tolist():
                told = [
                    None
                    if codes is None
                    else self._complaint(call, int(codes[at]), slots, start, at, words, side)
                    for side, (codes, words) in enumerate(((outcome.was, before), (outcome.now, after)))
                ]
                faults.change(int(times[at]), told[0], told[1])
                if len(faults) >= _FAULTS_A_PIECE:
                    yield faults.take()
        if len(faults):
            yield faults.take()

    def _complaint(
        self, call: AggregateCall, code: int, slots: Ints, start: int, at: int, words: Words, side: int
    ) -> str | None:
        if code == FINE:
            return None
        key = show_row(c.to_pylist()[0] for c in self._groups.columns(slots[at : at + 1]))
        what = f"{_label(call)} of group {key}"
        if code == RANGE:
            result = self.schema[len(self._key) + self._calls.index(call)].type
            assert isinstance(result, ColumnType)
            return f"eval-error: {_TYPE_NAMES.get(result, 'numeric')} out of range: {what}"
        if code == COUNT:
            mine = words[at : at + 1]
            low, high = (mine[:, :2] if call.column is None else self._sums.present(call.source, mine))[0]
            is_count = call.function == "count"
            return (
                f"multiplicity-overflow: {what} is {'' if is_count else 'of '}{count_of(int(low), int(high))}"
            )
        if code == NEGATIVE:
            return f"invalid-data: {_label(call)}: values of group {key} have negative multiplicity"
        rows = int(self._lists[call].lists(start + at, start + at + 1).counts(side)[0])
        return f"eval-error: {what} is of {rows} values, beyond {MOST_ELEMENTS}"

    def statistics(self) -> OperatorStatistics:
        held = self._sums.words.nbytes + self._groups.nbytes + self._partials.nbytes
        sizes = [kept.group_sizes() for kept in self._edges.values() if isinstance(kept, OrderedRows)]
        groups, largest = max(sizes, key=lambda each: each[1], default=(0, -1))
        return OperatorStatistics(
            state_rows=len(self._groups) + sum(len(kept) for kept in self._kept),
            state_bytes=held + sum(kept.nbytes for kept in self._kept),
            touched_rows=self._touched + sum(kept.visited for kept in self._kept),
            groups=groups,
            largest_group=largest,
        )

    def close(self) -> None:
        self._reset()


def _label(call: AggregateCall) -> str:
    return f"{call.function}(distinct)" if call.distinct else call.function


def _negative(name: str, what: str, row: str, count: int) -> str | None:
    return f"invalid-data: {name}: {what} {row} has multiplicity {count}" if count < 0 else None


def _list_codes(lists: Lists, side: int) -> Codes | None:
    many = lists.counts(side) > MOST_ELEMENTS
    return np.where(many, np.uint8(_TOO_MANY), np.uint8(FINE)) if many.any() else None


def _edge_column(rows: OrderedRows | BestRows, slots: NDArray[np.int32]) -> Column:
    """The values of `slots`; -1 is NULL."""
    known = slots >= 0
    wide = slots.astype(np.int64)
    if known.all():
        return rows.table.columns(wide)[0]
    type_ = rows.table.spec.types[0][0]
    value = rows.table.columns(wide[known])[0]
    place = np.where(known, np.cumsum(known), 0)
    return Column.concat(type_, [Column.nulls(type_, 1), value]).take(place)
