"""Accumulable aggregates: counts and exact sums as words of a row, by group, and back to columns.

A group's sums are one row of u64 words. Words 0 and 1 count its rows; every other number is a field of a
source, which is a column, with each value as often as it is there or once: the count of values that are not
NULL (2 words) and of those that are true (2), a sum of integers up to 64 bits with sign (3) or of wider ones
(4), a sum of their squares (6), a sum of doubles (three counters and a window of limbs, widened when a value
falls outside) and of their squares (a window). Aggregates share fields. Adding is modular and exact, so
retraction gives back the very words, and a group without contents has zero words.

A count of values that is below zero makes signed results of count, sum and avg. bool_and, bool_or and the
variances have no such results, nor do sums and means of unsigned integers: there it is a fault, as is a
result that does not fit its type.

Does not: find groups, order times, or emit; reduce.py does. min and max are not accumulable:
kernels/steps.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.aggregates import AggregateCall, Source, result_spec
from clusterd.operators.growable import Growable
from clusterd.operators.kernels import accumulate as kernels
from clusterd.operators.kernels import finals
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType

__all__ = ["COUNT", "FINE", "NEGATIVE", "RANGE", "Codes", "Field", "Sums", "Values", "difference"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.uint8]

FINE, RANGE, COUNT, NEGATIVE = (
    0,
    1,
    2,
    3,
)  # why a result is none: it, or its count, is too large; less than none

COUNT_WORDS: Final = 2
_SQUARE_WORDS: Final = 6
_ALL_VALID: Final = np.zeros(0, np.bool_)
_FLOATS: Final = (ColumnType.FLOAT64, ColumnType.FLOAT32)
_WIDE: Final = (ColumnType.NUMERIC, ColumnType.UINT64)
_UNSIGNED: Final = (ColumnType.UINT16, ColumnType.UINT32, ColumnType.UINT64)
_VARIANCES: Final = {
    # function: whether of a sample, whether the root
    "var_samp": (True, False),
    "variance": (True, False),
    "var_pop": (False, False),
    "stddev_samp": (True, True),
    "stddev": (True, True),
    "stddev_pop": (False, True),
}
# Room above a value's own bits: a diff takes 63, and 2^14 such products 14 more, with a sign.
_HEADROOM: Final = 63 + 14 + 1


@dataclass(slots=True)
class Field:
    """Words [at, at + size) of a row: a number, or `counters` of one word and then a number.

    kind: `valid`, `true`, `sum` or `squares` of `source`, whose type is `type`. first: of doubles, the least
    limb of the window, in units of 64 bits above 2^-1074, of squares above 2^-2148.
    """

    kind: str
    source: Source
    type: AnyType
    at: int
    size: int
    counters: int = 0
    first: int = 0

    @property
    def is_window(self) -> bool:
        return self.type in _FLOATS and self.kind in ("sum", "squares")

    @property
    def limbs(self) -> int:
        return self.size - self.counters


@dataclass(frozen=True, slots=True)
class Values:
    """m results of one aggregate: values (m,) or (m, 2), zero where `nulls`; unfit: why there is none."""

    type: AnyType
    values: NDArray[Any]
    nulls: Bools | None = None
    unfit: Codes | None = None

    def differs(self, other: Values) -> Bools:
        """(m,) where the two differ in value or in being NULL."""
        words = [np.ascontiguousarray(v.values) for v in (self, other)]
        bits = [v.view(f"u{v.itemsize}") for v in words]
        unequal = bits[0] != bits[1]
        out: Bools = unequal.any(axis=1) if unequal.ndim == 2 else unequal
        mine, theirs = (False if v.nulls is None else v.nulls for v in (self, other))
        out |= np.not_equal(mine, theirs)
        return out

    def column(self, rows: Ints) -> Column:
        """The results `rows`."""
        validity = None if self.nulls is None else ~self.nulls.take(rows)
        if validity is not None and validity.all():
            validity = None
        return Column(self.type, self.values.take(rows, axis=0), None, validity)


class Sums:
    """The words of all groups, by slot, and their fields. calls: those that are accumulable make fields.

    Of every nullable column of any call the values that are not NULL are counted.
    """

    def __init__(self, columns: Sequence[ColumnSpec], calls: Sequence[AggregateCall]) -> None:
        self.width = COUNT_WORDS
        self.fields: list[Field] = []
        self._columns = columns
        for call in calls:
            if call.column is None:
                continue
            spec = columns[call.column]
            source = call.source
            if spec.nullable:
                self._want("valid", (call.column, False), spec.type, COUNT_WORDS)
            if call.kind != "accumulable":
                continue
            if source[1]:
                self._want("valid", source, spec.type, COUNT_WORDS)
            if call.function in ("bool_and", "bool_or"):
                self._want("true", source, spec.type, COUNT_WORDS)
            elif call.function != "count":
                self._want_sums(source, spec.type, squares=call.function in _VARIANCES)
        self._words = Growable(np.uint64, (self.width,))
        self._results = {call: result_spec(call, columns) for call in calls if call.kind == "accumulable"}

    def _want_sums(self, source: Source, type_: AnyType, *, squares: bool) -> None:
        if type_ in _FLOATS:
            self._want("sum", source, type_, kernels.LIMBS, kernels.LIMBS)
            if squares:
                self._want("squares", source, type_, 0)
            return
        self._want("sum", source, type_, 4 if type_ in _WIDE else 3)
        if squares:
            self._want("squares", source, type_, _SQUARE_WORDS)

    def _want(self, kind: str, source: Source, type_: AnyType, size: int, counters: int = 0) -> None:
        if self.find(kind, source) is None:
            self.fields.append(Field(kind, source, type_, self.width, size, counters))
            self.width += size

    @property
    def words(self) -> Words:
        """(slots, width); for the moment, not to be kept."""
        return self._words.a

    @property
    def sources(self) -> list[Source]:
        return list(dict.fromkeys(field.source for field in self.fields))

    def grow(self, slots: int) -> None:
        self._words.grow(slots)

    def find(self, kind: str, source: Source) -> Field | None:
        return next((f for f in self.fields if f.kind == kind and f.source == source), None)

    def table(self) -> Ints:
        """(F, 2) offset and size of every number, for the fold."""
        numbers = [(0, COUNT_WORDS)]
        for field in self.fields:
            numbers += [(field.at + k, 1) for k in range(field.counters)]
            numbers.append((field.at + field.counters, field.limbs))
        return np.array(numbers, np.int64)

    # Adding.

    def add(self, source: Source, column: Column, diffs: Ints, partials: Ints, words: Words) -> Words:
        """Add values of a source to the `words` of their partials (n,); gives back the words.

        They are others if a window grew.
        """
        mine = [field for field in self.fields if field.source == source]
        values = _numbers(column) if any(field.kind in ("sum", "squares") for field in mine) else None
        if values is not None and column.type in _FLOATS:
            for field in mine:
                if field.is_window:
                    words = self._widen(field, values, words)
        for field in mine:
            if field.kind == "valid":
                validity = column.validity
                known = _ALL_VALID if validity is None else validity
                kernels.add_valid(partials, known, diffs, words, field.at)
            elif field.kind == "true":
                # A NULL is stored as false.
                kernels.add_valid(partials, np.ascontiguousarray(column.values), diffs, words, field.at)
            else:
                assert values is not None
                _add(field, values, diffs, partials, words)
        return words

    def _widen(self, field: Field, bits: Words, words: Words) -> Words:
        """Make the window of `field` hold these doubles, in the groups' words and in `words`."""
        span = np.zeros(2, np.int64)
        kernels.place_range(bits, span)
        least, most = span.tolist()
        if most < 0:
            return words
        if field.kind == "squares":
            least, most = 2 * least, 2 * most + 53
        first, end = least >> 6, ((most + 53 + _HEADROOM) >> 6) + 1
        below = 0
        if field.limbs:
            first, end = min(first, field.first), max(end, field.first + field.limbs)
            below = field.first - first
        above = end - first - field.limbs - below
        if below == above == 0:
            return words
        old_at, old_end = field.at + field.counters, field.at + field.size
        self._words.replace(_stretch(self.words, old_at, old_end, below, above))
        words = _stretch(words, old_at, old_end, below, above)
        field.first = first
        field.size += below + above
        for other in self.fields[self.fields.index(field) + 1 :]:
            other.at += below + above
        self.width += below + above
        return words

    # Results.

    def present(self, source: Source, words: Words) -> Words:
        """(m, 2) how many values of a source there are that are not NULL."""
        field = self.find("valid", source)
        at = 0 if field is None else field.at
        return words[:, at : at + 2]

    def evaluate(self, call: AggregateCall, words: Words) -> Values:
        """The results of an accumulable aggregate for m rows of words."""
        result = self._results[call]
        if call.column is None or call.function == "count":
            counts, unfit = _narrow(words[:, :2] if call.column is None else self.present(call.source, words))
            return Values(ColumnType.INT64, counts, None, unfit)
        counts, unfit = _narrow(self.present(call.source, words))
        nulls = counts == 0 if unfit is None else (counts == 0) & (unfit == FINE)
        if call.function in ("bool_and", "bool_or"):
            return self._truth(call, words, nulls)
        if call.function == "sum":
            unfit = None  # it does not need the count
            found = self._sum(call.source, words, is_real=result.type is ColumnType.FLOAT32)
        elif call.function in _VARIANCES:
            if _VARIANCES[call.function][0]:
                nulls |= counts == 1
            found = self._variance(call, words, counts)
        elif result.type is ColumnType.FLOAT64:
            total = self._sum(call.source, words)
            with np.errstate(invalid="ignore"):
                mean = total.values / np.where(counts == 0, 1, counts)
            found = Values(result.type, mean + 0.0, None, total.unfit)
        else:
            found = self._mean(call.source, words, counts, result.scale)
        negative = self._below_zero(call, words, nulls)
        found.values[nulls] = 0
        if found.unfit is not None:
            found.unfit[nulls & (found.unfit == RANGE)] = FINE
        codes = found.unfit
        if unfit is not None:  # what was made of a count that is none says nothing
            codes = unfit if codes is None else np.where(unfit != FINE, unfit, codes)
        if negative is not None:
            codes = negative if codes is None else np.where(negative != FINE, negative, codes)
        return Values(result.type, found.values, nulls if nulls.any() else None, codes)

    def _below_zero(self, call: AggregateCall, words: Words, nulls: Bools) -> Codes | None:
        """Where a sum or mean of unsigned integers shows that a value is there less than no times.

        It shows in a count or a sum below zero, and in a sum of no values that is not zero.
        """
        field = self.find("sum", call.source)
        if call.function not in ("sum", "avg") or field is None or field.type not in _UNSIGNED:
            return None
        counts, total = self.present(call.source, words), words[:, field.at : field.at + field.size]
        wrong = (counts[:, 1].view(np.int64) < 0) | (total[:, -1].view(np.int64) < 0)
        wrong |= nulls & (total != 0).any(axis=1)
        return _codes(wrong, NEGATIVE)

    def _truth(self, call: AggregateCall, words: Words, nulls: Bools) -> Values:
        at = self._field("true", call.source).at
        true, valid = words[:, at : at + 2], self.present(call.source, words)
        false = difference(valid, true)
        negative = (true[:, 1].view(np.int64) < 0) | (false[:, 1].view(np.int64) < 0)
        values = (true != 0).any(axis=1) if call.function == "bool_or" else ~(false != 0).any(axis=1)
        values[nulls] = False
        return Values(ColumnType.BOOL, values, nulls if nulls.any() else None, _codes(negative, NEGATIVE))

    def _sum(self, source: Source, words: Words, *, is_real: bool = False) -> Values:
        total = self._field("sum", source)
        fits = np.empty(len(words), np.bool_)
        if total.type in _FLOATS:
            bits = np.empty(len(words), np.uint64)
            finals.round_limbs(words, total.at, total.first, total.limbs, int(is_real), bits, fits)
            if is_real:
                real = bits.astype(np.uint32).view(np.float32)
                return Values(ColumnType.FLOAT32, real, None, _codes(~fits, RANGE))
            return Values(ColumnType.FLOAT64, bits.view(np.float64), None, _codes(~fits, RANGE))
        wide = np.empty((len(words), 2), np.uint64)
        finals.narrow_words(words, total.at, total.size, wide, fits)
        return Values(ColumnType.NUMERIC, wide, None, _codes(~fits, RANGE))

    def _mean(self, source: Source, words: Words, counts: Ints, scale: int) -> Values:
        total = self._field("sum", source)
        column = self._columns[source[0]]
        wide, fits = np.empty((len(words), 2), np.uint64), np.empty(len(words), np.bool_)
        digits = np.empty(finals.DIGITS, np.uint64)
        factor = 10 ** (scale - column.scale)
        finals.mean_words(words, total.at, total.size, counts, factor, digits, wide, fits)
        return Values(ColumnType.NUMERIC, wide, None, _codes(~fits, RANGE))

    def _variance(self, call: AggregateCall, words: Words, counts: Ints) -> Values:
        total, squares = (self._field(kind, call.source) for kind in ("sum", "squares"))
        is_sample, is_root = _VARIANCES[call.function]
        low = min(2 * total.first, squares.first)
        high = max(2 * (total.first + total.limbs), squares.first + squares.limbs + 1)
        scratch = np.empty((1, high - low + 1), np.uint64)
        bits, fits = np.empty(len(words), np.uint64), np.empty(len(words), np.bool_)
        finals.spread_words(
            words, total.at + total.counters, total.limbs, total.first,
            squares.at, squares.size, squares.first, total.at if total.counters else -1,
            counts, scratch, bits, fits,
        )  # fmt: skip
        above = bits.view(np.float64)
        n = counts.astype(np.float64)
        # (n - 1) before it is rounded: of 2^53 and more the two differ, if by little.
        below = n * (counts - 1).astype(np.float64) if is_sample else n * n
        unit = float(10 ** (2 * self._columns[call.source[0]].scale))
        negative = above < 0
        with np.errstate(invalid="ignore"):
            out = np.where(negative, 0.0, above) / np.where(below == 0, 1.0, below) / unit
        codes = _codes(~fits, RANGE)
        if negative.any():
            codes = np.where(negative, np.uint8(NEGATIVE), np.uint8(0) if codes is None else codes)
        return Values(ColumnType.FLOAT64, np.sqrt(out) if is_root else out, None, codes)

    def _field(self, kind: str, source: Source) -> Field:
        field = self.find(kind, source)
        assert field is not None
        return field


def _numbers(column: Column) -> Words:
    """Values as `_add` takes them: bits of doubles (n,), bigints (n,) as words, wider ones (n, 2)."""
    values = np.ascontiguousarray(column.values)
    if column.type in _FLOATS:
        return values.astype(np.float64, copy=False).view(np.uint64)
    if column.type is ColumnType.NUMERIC:
        return values
    if column.type is ColumnType.UINT64:
        return _widened(values, np.zeros(len(values), np.uint64))
    return values.astype(np.int64, copy=False).view(np.uint64)


def _widened(low: Words, high: Words) -> Words:
    return np.ascontiguousarray(np.stack([low, high], axis=1))


def _add(field: Field, values: Words, diffs: Ints, partials: Ints, words: Words) -> None:
    at = field.at
    if field.is_window:
        adding = kernels.add_doubles if field.kind == "sum" else kernels.add_double_squares
        adding(partials, values, diffs, words, at, field.first, field.limbs)
    elif field.kind == "squares":
        if values.ndim == 1:
            values = _widened(values, (values.view(np.int64) >> 63).view(np.uint64))
        kernels.add_squares(partials, values, diffs, words, at, field.size)
    elif values.ndim == 1:
        kernels.add_integers(partials, values.view(np.int64), diffs, words, at)
    else:
        kernels.add_numerics(partials, values, diffs, words, at)


def _codes(wrong: Bools, code: int) -> Codes | None:
    return np.where(wrong, np.uint8(code), np.uint8(FINE)) if wrong.any() else None


def _narrow(wide: Words) -> tuple[Ints, Codes | None]:
    """Counts as int64, and which are none."""
    low, high = wide[:, 0].view(np.int64), wide[:, 1].view(np.int64)
    return np.ascontiguousarray(low), _codes(high != low >> 63, COUNT)


def difference(a: Words, b: Words) -> Words:
    """(m, 2) a - b, each of two words."""
    borrow = (a[:, 0] < b[:, 0]).astype(np.uint64)
    return np.stack([a[:, 0] - b[:, 0], a[:, 1] - b[:, 1] - borrow], axis=1)


def _stretch(words: Words, at: int, end: int, below: int, above: int) -> Words:
    """Rows of words whose number [at, end) has `below` more limbs under it and `above` more over it."""
    rows, width = words.shape
    out = np.zeros((rows, width + below + above), np.uint64)
    out[:, :at] = words[:, :at]
    out[:, at + below : end + below] = words[:, at:end]
    if above and end > at:
        sign = words[:, end - 1].view(np.int64) >> 63
        out[:, end + below : end + below + above] = sign.view(np.uint64)[:, None]
    out[:, end + below + above :] = words[:, end:]
    return out
