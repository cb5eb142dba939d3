"""Comparison of two columns of one type.

Does not: widen (expr.py does), loop over rows in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from clusterd.operators.kernels import scalar
from clusterd.render.functions.evaluated import Bools, Evaluated, all_valid, fixed, rows_of, step
from clusterd.render.functions.registry import CallSite, Implementation, opened
from shm_arrangements.columns import Column
from shm_arrangements.table import Table
from shm_arrangements.types import ColumnType, is_nested

__all__ = ["compare", "order_of"]

_BY_CELLS: Final = (ColumnType.UUID, ColumnType.INTERVAL, ColumnType.BYTEA, ColumnType.JSONB)

# From "is less" and "is equal" to each comparison.
_COMPARISONS: Final[dict[str, Callable[[Bools, Bools], Bools]]] = {
    "=": lambda less, equal: equal,
    "!=": lambda less, equal: ~equal,
    "<": lambda less, equal: less,
    "<=": lambda less, equal: less | equal,
    ">": lambda less, equal: ~(less | equal),
    ">=": lambda less, equal: ~less,
}


def order_of(left: Column, right: Column) -> tuple[Bools, Bools]:
    """Where left is less, and where equal; what NULLs give says nothing."""
    a, b = left.values, right.values
    if left.type is ColumnType.TEXT:
        order = np.empty(rows_of((left, right)), np.int8)
        scalar.text_compare(a, left.offsets, step(left), b, right.offsets, step(right), order)
        return order < 0, order == 0
    if left.type is ColumnType.NUMERIC:
        a_high, b_high = a[:, 1].view(np.int64), b[:, 1].view(np.int64)
        same_high = a_high == b_high
        less = (a_high < b_high) | (same_high & (a[:, 0] < b[:, 0]))
        return less, same_high & (a[:, 0] == b[:, 0])
    if left.type in (ColumnType.FLOAT64, ColumnType.FLOAT32):
        a_nan, b_nan = np.isnan(a), np.isnan(b)
        return (a < b) | (b_nan & ~a_nan), (a == b) | (a_nan & b_nan)
    if is_nested(left.type) or left.type in _BY_CELLS:
        order = np.empty(rows_of((left, right)), np.int8)
        tables = Table([left]), Table([right])
        scalar.compare_values(tables[0].cells, step(left), tables[1].cells, step(right), order)
        return order < 0, order == 0
    return a < b, a == b


def compare(function: str, left: Evaluated, right: Evaluated) -> Evaluated:
    """One of `= != < <= > >=`."""
    answer = _COMPARISONS[function](*order_of(left.column, right.column))
    valid = all_valid((left.column, right.column))
    return fixed(ColumnType.BOOL, answer, valid, left.errors, right.errors)


def _comparison(function: str) -> Implementation:
    return lambda call, args, n: compare(function, *args)


for _name in _COMPARISONS:
    opened(_name)(_comparison(_name))


@opened("is_distinct_from")
def _is_distinct_from(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    left, right = args
    _, equal = order_of(left.column, right.column)
    a, b = left.column.validity, right.column.validity
    if a is not None or b is not None:
        a = np.ones(1, np.bool_) if a is None else a
        b = np.ones(1, np.bool_) if b is None else b
        equal = (equal & a & b) | (~a & ~b)
    return fixed(ColumnType.BOOL, ~equal, None, left.errors, right.errors)
