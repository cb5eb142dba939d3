"""ListRows: an aggregate that is made of all rows of its group, in order: array_agg, string_agg, ...

The rows that matter stand in trees by group, in the order asked for and then by argument. A step that changes
a group walks its tree before and after, so a change costs its group, and groups that do not change are not
read. What is walked are numbers of rows; values are gathered only of results that are emitted.

A result of more than MOST_ELEMENTS rows is none (`eval-error`), and a NULL key of jsonb_object_agg an error
of its row.

Does not: find groups, or emit; reduce.py does.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.kernels import lists as kernels
from clusterd.operators.kernels.steps import COUNT, HI, LO, SPAN
from clusterd.operators.ordered import Bools, Ints, OrderColumn, OrderedRows, Tell, lane_flips
from clusterd.operators.time_steps import Steps
from shm_arrangements.columns import Column
from shm_arrangements.kernels import gather
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType

__all__ = ["MOST_ELEMENTS", "NULL_KEY", "ListRows", "Lists"]

MOST_ELEMENTS = 1 << 24
NULL_KEY = "eval-error: jsonb_object_agg: a key is NULL"

_START_ELEMENTS = 1 << 16
_KEPT_ELEMENTS = 1 << 20  # written before results are taken: 4 MB


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists of m steps before and after: spans (m, 2 x SPAN) into elements; changed (m,)."""

    elements: NDArray[np.int32]
    spans: Ints
    changed: Bools

    def counts(self, side: int) -> Ints:
        """(m,) rows of the group before (0) or after (1) the step."""
        return self.spans[:, side * SPAN + COUNT]

    def take(self, out: Ints, into: Ints) -> tuple[Ints, Ints]:
        """The lists before steps `out`, then after steps `into`: offsets (n + 1,) and their rows."""
        before, after = self.spans[out], self.spans[into]
        lo = np.concatenate([before[:, LO], after[:, SPAN + LO]])
        hi = np.concatenate([before[:, HI], after[:, SPAN + HI]])
        offsets = np.empty(len(lo) + 1, np.int64)
        rows = np.empty(gather.span_offsets(lo, hi, offsets), np.int64)
        kernels.take_spans(self.elements, lo, offsets, rows)
        return offsets, rows


def _json() -> ModuleType:
    """Imported where it is used: it takes a tenth of a second, and few plans make JSON."""
    return importlib.import_module("clusterd.render.functions.json_texts")


class ListRows:
    """The rows of one `call` over `columns`, and results of `type_`."""

    def __init__(self, call: AggregateCall, columns: Sequence[ColumnSpec], type_: AnyType) -> None:
        assert call.column is not None
        self.call = call
        self._type = type_
        ordered = {item.column: item for item in reversed(call.order)}
        first = dict.fromkeys(item.column for item in call.order)
        self._taken = tuple(dict.fromkeys((*first, call.column, *call.args)))
        self.skips_nulls = call.function in ("string_agg", "jsonb_object_agg")
        self._columns = columns
        specs = [columns[k] for k in self._taken]
        if self.skips_nulls:
            at = self._taken.index(call.column)
            specs[at] = ColumnSpec(specs[at].name, specs[at].type, False, specs[at].scale)
        flips = lane_flips(
            [(s, ordered.get(k, OrderColumn(k))) for k, s in zip(self._taken, specs, strict=True)]
        )
        # What becomes JSON value by value does so once, when it comes.
        self._json = {"jsonb_agg": call.column, "jsonb_object_agg": (*call.args, -1)[0]}.get(call.function)
        if self._json is not None:
            specs.append(ColumnSpec("json", ColumnType.JSONB, False))
            flips += [0] * len(RowSpec.of(specs[-1:]).kinds)
        self._spec = RowSpec.of(specs)
        self._rows = OrderedRows(self._spec, flips)
        self._cap = 1 if call.distinct else MOST_ELEMENTS + 1
        self._elements = np.empty(_START_ELEMENTS, np.int32)
        self._first = 0  # step of the first span
        self._spans: Ints = np.empty((0, 2 * SPAN), np.int64)
        self._changed: Bools = np.empty(0, np.bool_)

    @property
    def rows(self) -> OrderedRows:
        return self._rows

    def add(
        self, columns: Sequence[Column], slots: Ints, times: NDArray[np.uint64], diffs: Ints, owners: Ints
    ) -> Ints:
        """Take updates into the round. Returns those (k,) whose key is NULL, which are none."""
        call = self.call
        assert call.column is not None
        validity = columns[call.column].validity if self.skips_nulls else None
        missing = np.empty(0, np.int64)
        taken = [columns[k] for k in self._taken]
        json = None if self._json is None else columns[self._json]
        if validity is not None and not validity.all():
            if call.function == "jsonb_object_agg":
                missing = np.flatnonzero(~validity)
            kept = np.flatnonzero(validity)
            taken = [column.take(kept) for column in taken]
            json = None if json is None else json.take(kept)
            slots, times, diffs, owners = (
                slots.take(kept),
                times.take(kept),
                diffs.take(kept),
                owners.take(kept),
            )
        if json is not None:
            assert self._json is not None
            taken.append(_json().json_texts(self._columns[self._json], json))
        self._rows.add(encode(taken, self._spec, len(diffs)), slots, times, diffs, owners)
        return missing

    def open(self, steps: Steps, groups: int) -> Iterator[None]:
        """Begin to apply the round's updates. groups: slots of the groups' table."""
        self._first = 0
        self._spans, self._changed = self._spans[:0], self._changed[:0]
        yield from self._rows.open(steps, groups)

    def reach(self, start: int, end: int, tell: Tell) -> Iterator[int | None]:
        """Apply steps from `start` on, up to `end` if there is room; the last value is how far it got.

        Results are there of [start, reached) until a later call. Values before the last are None: the end of
        a piece of work.
        """
        rows = self._rows
        if start >= rows.step:
            rows.forget_elements()
            self._first = start
            self._spans = np.empty((end - start, 2 * SPAN), np.int64)
            self._changed = np.empty(end - start, np.bool_)
            if len(self._elements) > _KEPT_ELEMENTS:
                self._elements = np.empty(_START_ELEMENTS, np.int32)
            stop = end
            while rows.step < stop:
                needed = rows.sequences(
                    end, MOST_ELEMENTS, self._cap, self._elements, self._spans, self._changed, tell
                )
                if needed is not None and not self._make_room(needed):
                    break
                if rows.step < stop:
                    yield None
        yield min(end, rows.step)

    def _make_room(self, needed: int) -> bool:
        """Whether there is room for a step of `needed` elements; none, if what is there can go first."""
        used = self._rows.elements_used
        if used and used + needed > _KEPT_ELEMENTS:
            return False
        size = max(used + needed, 2 * len(self._elements))
        elements = np.empty(size, np.int32)
        elements[:used] = self._elements[:used]
        self._elements = elements
        return True

    def lists(self, start: int, end: int) -> Lists:
        """Of steps that were reached."""
        part = slice(start - self._first, end - self._first)
        return Lists(self._elements, self._spans[part], self._changed[part])

    # Results.

    def column(self, lists: Lists, out: Ints, into: Ints) -> Column:
        """The results before steps `out`, then after steps `into`."""
        offsets, rows = lists.take(out, into)
        match self.call.function:
            case "array_agg":
                return Column(self._type, _NOTHING, offsets, children=(self._part(rows, self.call.column),))
            case "string_agg":
                return self._joined(offsets, rows)
            case "jsonb_agg":
                return _enclosed(offsets, self._json_part(rows), b"[]")
        return self._object(offsets, rows)

    def _part(self, rows: Ints, column: int | None) -> Column:
        assert column is not None
        return self._rows.table.column(rows, self._taken.index(column))

    def _json_part(self, rows: Ints) -> Column:
        return self._rows.table.column(rows, len(self._taken))

    def _joined(self, lists: Ints, rows: Ints) -> Column:
        values, separators = (self._part(rows, column) for column in (self.call.column, self.call.args[0]))
        texts, between = values.offsets, separators.offsets
        assert texts is not None
        assert between is not None
        first, last = lists[:-1], lists[1:]
        some = last > first
        sizes = texts[last] - texts[first]
        sizes[some] += between[last[some]] - between[first[some] + 1]
        offsets = _offsets(sizes)
        out = np.empty(int(offsets[-1]), np.uint8)
        kernels.join_texts(lists, texts, values.values, between, separators.values, offsets, out)
        return Column(self._type, out, offsets, None if some.all() else some)

    def _object(self, lists: Ints, rows: Ints) -> Column:
        """Keys ascend in the canonical form; of equal ones the last counts."""
        keys = self._part(rows, self.call.column)
        numbers = np.repeat(np.arange(len(lists) - 1), np.diff(lists))
        image = encode([keys], RowSpec(((ColumnType.TEXT, False),)), len(rows))
        order = image.sort_order(numbers.astype(np.uint64))
        starts = image.run_starts(order)  # of equal keys; an object's end need not be one
        is_last = np.zeros(len(order), np.bool_)
        is_last[starts[1:] - 1] = True
        is_last[len(order) - 1 :] = True
        mine = numbers.take(order)
        is_last[:-1] |= mine[1:] != mine[:-1]
        kept = order[is_last]
        names, values = _json().quoted(keys.take(kept)), self._json_part(rows.take(kept))
        a, b = names.offsets, values.offsets
        assert a is not None
        assert b is not None
        offsets = _offsets(np.diff(a) + np.diff(b) + 1)
        out = np.empty(int(offsets[-1]), np.uint8)
        kernels.pair_texts(a, names.values, b, values.values, offsets, out)
        counts = np.bincount(mine[is_last], minlength=len(lists) - 1)
        return _enclosed(_offsets(counts), Column(ColumnType.JSONB, out, offsets), b"{}")


_NOTHING = np.empty(0, np.uint8)


def _offsets(sizes: Ints) -> Ints:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _enclosed(lists: Ints, texts: Column, brackets: bytes) -> Column:
    """The texts of each list, with commas between them, in brackets."""
    inner = texts.offsets
    assert inner is not None
    counts = np.diff(lists)
    offsets = _offsets(inner[lists[1:]] - inner[lists[:-1]] + 2 + np.maximum(counts - 1, 0))
    out = np.empty(int(offsets[-1]), np.uint8)
    kernels.enclose_texts(lists, inner, texts.values, brackets[0], brackets[1], offsets, out)
    return Column(ColumnType.JSONB, out, offsets)
