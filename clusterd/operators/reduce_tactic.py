"""Accumulable aggregates: count, count(x) and exact sums as words of a row, by group, and back to columns.

A group's sums are one row of u64 words. Words 0 and 1 count its rows; every other number is a field: the
count of values that are not NULL (2 words), a sum of bigints (3) or of numerics (4), or a sum of doubles
(three counters and a window of limbs, widened when a value falls outside). Fields are shared between
aggregates of one column. Adding is modular and exact, so retraction gives back the very words, and a group
without contents has zero words.

Does not: find groups, order times, or emit; reduce.py does. min and max are not accumulable:
kernels/ordered.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.growable import Growable
from clusterd.operators.kernels import accumulate as kernels
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType

__all__ = ["AggregateCall", "Field", "Sums", "Values", "result_spec"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]

COUNT_WORDS = 2
_ALL_VALID = np.zeros(0, np.bool_)
_SUM_SIZES: dict[AnyType, int] = {
    ColumnType.INT64: 3,
    ColumnType.NUMERIC: 4,
    ColumnType.FLOAT64: kernels.LIMBS,
}
_RESULTS = {
    ColumnType.INT64: ColumnType.NUMERIC,
    ColumnType.NUMERIC: ColumnType.NUMERIC,
    ColumnType.FLOAT64: ColumnType.FLOAT64,
}


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """function: `count`, `sum`, `min`, `max`; column: position in the input rows, None for `count(*)`."""

    function: str
    column: int | None = None
    name: str = ""


def result_spec(call: AggregateCall, columns: Sequence[ColumnSpec]) -> ColumnSpec:
    """The output column of an aggregate.

    Raises: ValueError for a function that does not exist or does not take the column's type.
    """
    name = call.name or call.function
    if call.function == "count":
        return ColumnSpec(name, ColumnType.INT64, False)
    if call.column is None:
        raise ValueError(f"{call.function} needs a column")
    spec = columns[call.column]
    if call.function in ("min", "max"):
        return ColumnSpec(name, spec.type, spec.nullable, spec.scale)
    if call.function != "sum" or spec.type not in _RESULTS:
        raise ValueError(f"no aggregate {call.function} of {spec.type.name.lower()}")
    return ColumnSpec(name, _RESULTS[spec.type], spec.nullable, spec.scale)


@dataclass(slots=True)
class Field:
    """Words [at, at + size) of a row: `valid` counts values of `column`, `sum` adds them up.

    first: for doubles, the least limb of the window, in units of 64 bits above 2^-1074.
    """

    kind: str
    column: int
    type: AnyType
    at: int
    size: int
    first: int = 0

    @property
    def limbs(self) -> int:
        return self.size - kernels.LIMBS


@dataclass(frozen=True, slots=True)
class Values:
    """m results of one aggregate: values (m,) or (m, 2), zero where `nulls`, and where they fit no type."""

    type: AnyType
    values: NDArray[Any]
    nulls: Bools | None = None
    unfit: Bools | None = None

    def differs(self, other: Values) -> Bools:
        """(m,) where the two differ in value or in being NULL."""
        unequal = self.values.view(np.uint64) != other.values.view(np.uint64)
        out: Bools = unequal.any(axis=1) if unequal.ndim == 2 else unequal
        if self.nulls is not None and other.nulls is not None:
            out |= self.nulls != other.nulls
        return out

    def column(self, rows: Ints) -> Column:
        """The results `rows`."""
        validity = None if self.nulls is None else ~self.nulls.take(rows)
        if validity is not None and validity.all():
            validity = None
        return Column(self.type, self.values.take(rows, axis=0), None, validity)


class Sums:
    """The words of all groups, by slot, and their fields."""

    def __init__(self, columns: Sequence[ColumnSpec], calls: Sequence[AggregateCall]) -> None:
        self.width = COUNT_WORDS
        self.fields: list[Field] = []
        for call in calls:
            if call.column is None:
                continue
            spec = columns[call.column]
            if spec.nullable:
                self._want("valid", call.column, spec.type, COUNT_WORDS)
            if call.function == "sum":
                self._want("sum", call.column, spec.type, _SUM_SIZES[spec.type])
        self._words = Growable(np.uint64, (self.width,))

    @property
    def words(self) -> Words:
        """(slots, width); for the moment, not to be kept."""
        return self._words.a

    def grow(self, slots: int) -> None:
        self._words.grow(slots)

    def _want(self, kind: str, column: int, type_: AnyType, size: int) -> None:
        if self.find(kind, column) is None:
            self.fields.append(Field(kind, column, type_, self.width, size))
            self.width += size

    def find(self, kind: str, column: int) -> Field | None:
        return next((f for f in self.fields if f.kind == kind and f.column == column), None)

    def table(self) -> Ints:
        """(F, 2) offset and size of every number, for the fold."""
        numbers = [(0, COUNT_WORDS)]
        for field in self.fields:
            if field.kind == "sum" and field.type is ColumnType.FLOAT64:
                numbers += [(field.at + k, 1) for k in range(kernels.LIMBS)]
                numbers.append((field.at + kernels.LIMBS, field.limbs))
            else:
                numbers.append((field.at, field.size))
        return np.array(numbers, np.int64)

    def add(self, columns: Sequence[Column], diffs: Ints, partials: Ints, words: Words) -> Words:
        """Add a block to the `words` of its partials (n,); returns the words, moved if a window grew."""
        for field in self.fields:
            if field.kind == "sum" and field.type is ColumnType.FLOAT64:
                words = self._widen(field, columns[field.column], words)
        for field in self.fields:
            column = columns[field.column]
            values = np.ascontiguousarray(column.values)
            if field.kind == "valid":
                validity = column.validity
                kernels.add_valid(
                    partials, _ALL_VALID if validity is None else validity, diffs, words, field.at
                )
            elif field.type is ColumnType.INT64:
                kernels.add_integers(partials, values, diffs, words, field.at)
            elif field.type is ColumnType.NUMERIC:
                kernels.add_numerics(partials, values, diffs, words, field.at)
            else:
                bits = values.view(np.uint64)
                kernels.add_doubles(partials, bits, diffs, words, field.at, field.first, field.limbs)
        return words

    def _widen(self, field: Field, column: Column, words: Words) -> Words:
        """Make the window of `field` hold the values of `column`, in the groups' words and in `words`."""
        span = np.zeros(2, np.int64)
        kernels.limb_range(np.ascontiguousarray(column.values).view(np.uint64), span)
        first, end = span.tolist()
        if end == 0:
            return words
        if field.limbs:
            first, end = min(first, field.first), max(end, field.first + field.limbs)
            below = field.first - first
        else:
            below = 0
        above = end - first - field.limbs - below
        if below == above == 0:
            return words
        old_at, old_end = field.at + kernels.LIMBS, field.at + field.size
        self._words.replace(_stretch(self.words, old_at, old_end, below, above))
        words = _stretch(words, old_at, old_end, below, above)
        field.first = first
        field.size += below + above
        for other in self.fields:
            if other.at > field.at:
                other.at += below + above
        self.width += below + above
        return words

    def evaluate(self, call: AggregateCall, words: Words) -> Values:
        """The results of count or sum for m rows of words."""
        if call.function == "count":
            field = None if call.column is None else self.find("valid", call.column)
            at = 0 if field is None else field.at
            low, high = words[:, at].view(np.int64), words[:, at + 1].view(np.int64)
            return Values(ColumnType.INT64, np.ascontiguousarray(low), None, high != low >> 63)
        assert call.column is not None
        total = self.find("sum", call.column)
        assert total is not None
        valid = self.find("valid", call.column)
        nulls = None if valid is None else (words[:, valid.at] == 0) & (words[:, valid.at + 1] == 0)
        fits = np.empty(len(words), np.bool_)
        if total.type is ColumnType.FLOAT64:
            out = np.empty(len(words), np.uint64)
            kernels.round_limbs(words, total.at, total.first, total.limbs, out, fits)
            if nulls is not None:
                out[nulls] = 0
            return Values(ColumnType.FLOAT64, out.view(np.float64), nulls, ~fits)
        wide = np.empty((len(words), 2), np.uint64)
        kernels.narrow_words(words, total.at, total.size, wide, fits)
        if nulls is not None:
            wide[nulls] = 0
        return Values(ColumnType.NUMERIC, wide, nulls, ~fits)


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
