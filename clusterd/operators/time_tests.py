"""When a row passes temporal filters: from the values of their bounds to a first time and a last.

A bound is a whole number once it is rounded to the side on which its test lies, of up to 128 bits once the
test's shift is added; and a time is a u64. So whether a bound is below all times, above them, or one of them
is decided on two words, for every type alike, and nothing wraps.

Does not: evaluate bounds, or judge those that are NULL or fail (mfp.py does).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller_proto.expr import Call, Expr
from controller_proto.temporal import TimeTest
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType

__all__ = ["FOREVER", "End", "Times", "ends_of", "narrow", "passed"]

Times = NDArray[np.uint64]

FOREVER: Final = np.uint64((1 << 64) - 1)  # as a last time: the row stays
_FLOATS: Final = (ColumnType.FLOAT32, ColumnType.FLOAT64)
_MOST_FLOAT: Final = float(1 << 100)  # beyond every time and every shift, and a whole number
_WORD: Final = (1 << 64) - 1
_ZERO: Final = np.uint64(0)
# By comparison: what the test says of the first time and of the last, as (rounding, offset).
_FIRST: Final = {"=": ("ceil", 0), ">=": ("ceil", 0), ">": ("floor", 1)}
_LAST: Final = {"=": ("floor", 0), "<=": ("floor", 0), "<": ("ceil", -1)}


@dataclass(frozen=True, slots=True)
class End:
    """The value of `bound`, a whole number or an infinity, plus `offset` is the first time or the last."""

    bound: Expr
    offset: int
    is_last: bool


def ends_of(test: TimeTest, of: AnyType) -> tuple[End, ...]:
    """What `test`, whose bound is of type `of`, says of first and last times: one end, or for = both."""
    made = []
    for sides, is_last in ((_FIRST, False), (_LAST, True)):
        if test.comparison in sides:
            rounding, offset = sides[test.comparison]
            rounds = of is ColumnType.NUMERIC or of in _FLOATS
            bound = Call(rounding, (test.bound,)) if rounds else test.bound
            made.append(End(bound, offset - test.shift, is_last))
    return tuple(made)


def narrow(first: Times, last: Times, column: Column, end: End) -> tuple[Times, Times, NDArray[np.bool_]]:
    """(first, last, alive): the times (n,) after `end` too, whose bound has the values `column` (n,).

    Rows where it is NULL are as before. alive: False where the bound leaves no time at all.
    """
    low, high = _added(_words(column), end.offset)
    below, above = high.view(np.int64) < 0, high.view(np.int64) > 0
    valid = column.validity
    if valid is not None:
        below, above = below & valid, above & valid
    if end.is_last:
        low = np.where(above, FOREVER, low)
        if valid is not None:
            low = np.where(valid, low, FOREVER)
        return first, np.minimum(last, low), ~below
    low = np.where(below, _ZERO, low)
    if valid is not None:
        low = np.where(valid, low, _ZERO)
    return np.maximum(first, low), last, ~above


def passed(first: Times, last: Times, time: int) -> NDArray[np.bool_]:
    """Where `time` is one of the times from first to last."""
    at = np.uint64(time)
    inside: NDArray[np.bool_] = (first <= at) & (at <= last)
    return inside


def _words(column: Column) -> tuple[Times, Times]:
    """The low and the high words (n,) of each value in two's complement."""
    values = column.values
    if column.type is ColumnType.NUMERIC:
        return np.ascontiguousarray(values[:, 0]), np.ascontiguousarray(values[:, 1])
    if column.type in _FLOATS:
        whole = np.nan_to_num(values.astype(np.float64), nan=_MOST_FLOAT)  # NaN sorts after all numbers
        whole = np.clip(whole, -_MOST_FLOAT, _MOST_FLOAT)
        size = np.abs(whole)
        high = np.floor(size / 2.0**64)
        low = (size - high * 2.0**64).astype(np.uint64)
        return _signed(low, high.astype(np.uint64), whole < 0)
    low = values.astype(np.uint64)
    return low, np.where(values < 0, np.uint64(_WORD), _ZERO)


def _signed(low: Times, high: Times, negative: NDArray[np.bool_]) -> tuple[Times, Times]:
    """Negated where `negative`."""
    minus = ~low + np.uint64(1)
    carry = (minus == 0).astype(np.uint64)
    return np.where(negative, minus, low), np.where(negative, ~high + carry, high)


def _added(words: tuple[Times, Times], number: int) -> tuple[Times, Times]:
    low, high = words
    total = low + np.uint64(number & _WORD)
    carry = (total < low).astype(np.uint64)
    return total, high + np.uint64((number >> 64) & _WORD) + carry
