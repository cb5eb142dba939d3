"""The scalar functions, on columns: values, NULL, and errors as data.

A value of a row is one of three things: a value, NULL, or an error code. Errors combine like values do: FALSE
AND error is FALSE, TRUE OR error is TRUE, on whichever side the error stands, and CASE takes value and error
of the chosen arm alone. Where nothing decides, an error outweighs NULL, and the first of two errors is told.
That is why guards need no order of evaluation, which columns do not have.

Every function keeps the canonical form of columns (NULL positions hold zero), and takes a column of length 1
as standing for any number of equal rows.

Does not: choose functions or types (expr.py does), loop over rows in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.kernels import scalar
from shm_arrangements.columns import Column, Table, canonical_floats
from shm_arrangements.types import DTYPES, AnyType, ColumnType, is_nested

__all__ = [
    "COMPARISONS", "MESSAGES", "Codes", "Evaluated", "arithmetic", "case", "compare", "concat", "error_texts",
    "filled", "is_null", "is_true", "logic", "negation", "widened",
]  # fmt: skip

DOUBLE_RANGE: Final = 4
# By error code, from 1. The texts are what a reader sees.
MESSAGES: Final = (
    "eval-error: division by zero",
    "eval-error: bigint out of range",
    "eval-error: numeric out of range",
    "eval-error: double precision out of range",
)

Bools = NDArray[np.bool_]
Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A column and its errors: `errors` (len(column),) uint8 codes, 0 for none, or None if no row has one.

    Where there is an error the value is NULL. A column of length 1 stands for any number of equal rows.
    """

    column: Column
    errors: Codes | None = None


def filled(evaluated: Evaluated, n: int) -> Evaluated:
    """`evaluated` with n rows of its own."""
    if len(evaluated.column) == n:
        return evaluated
    errors = None if evaluated.errors is None else np.repeat(evaluated.errors, n)
    return Evaluated(evaluated.column.take(np.zeros(n, np.int64)), errors)


def error_texts(codes: Codes) -> Column:
    """The messages of error codes (n,), none of them 0, as a text column."""
    return Column.from_pylist(ColumnType.TEXT, MESSAGES).take(codes.astype(np.int64) - 1)


# Putting results together.


def _both_valid(left: Column, right: Column) -> Bools | None:
    a, b = left.validity, right.validity
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _first_errors(left: Codes | None, right: Codes | None) -> Codes | None:
    if left is None or right is None:
        return right if left is None else left
    return np.where(left != 0, left, right)


def _result(type_: AnyType, values: NDArray[Any], valid: Bools | None, *errors: Codes | None) -> Evaluated:
    """A fixed-width result: NULL where not valid or in error."""
    n = len(values)
    codes: Codes | None = None
    for more in errors:
        codes = _first_errors(codes, more)
    if codes is not None:
        codes = np.ascontiguousarray(np.broadcast_to(codes, n)) if codes.any() else None
    if codes is not None:
        fine = codes == 0
        valid = fine if valid is None else valid & fine
    if valid is not None:
        valid = np.ascontiguousarray(np.broadcast_to(valid, n))
        if valid.all():
            valid = None
        else:
            values = np.where(valid[:, None] if values.ndim == 2 else valid, values, values.dtype.type(0))
    return Evaluated(Column(type_, np.ascontiguousarray(values), None, valid), codes)


def _size(left: Column, right: Column) -> int:
    # A column of length 1 stands for all rows, also where there are none.
    return len(right) if len(left) == 1 else len(left)


def _step(column: Column) -> int:
    return 0 if len(column) == 1 else 1


# Logic.


@dataclass(frozen=True, slots=True)
class _Truth:
    """A boolean column as masks; a row in neither, without an error, is NULL."""

    true: Bools
    false: Bools
    errors: Codes | None


def _truth(evaluated: Evaluated) -> _Truth:
    values, valid = evaluated.column.values, evaluated.column.validity
    if valid is None:
        return _Truth(values, ~values, evaluated.errors)
    return _Truth(values & valid, ~values & valid, evaluated.errors)


def _of_truth(truth: _Truth) -> Evaluated:
    return _result(ColumnType.BOOL, truth.true, truth.true | truth.false, truth.errors)


def logic(is_and: bool, args: Sequence[Evaluated]) -> Evaluated:
    """AND or OR of at least one boolean."""
    total = _truth(args[0])
    for argument in args[1:]:
        one = _truth(argument)
        errors = _first_errors(total.errors, one.errors)
        if is_and:
            total = _Truth(total.true & one.true, total.false | one.false, errors)
        else:
            total = _Truth(total.true | one.true, total.false & one.false, errors)
    if total.errors is None:
        return _of_truth(total)
    # What decides alone makes an error beside it unseen.
    decided = total.false if is_and else total.true
    return _of_truth(_Truth(total.true, total.false, total.errors * ~decided))


def negation(argument: Evaluated) -> Evaluated:
    """NOT."""
    truth = _truth(argument)
    return _of_truth(_Truth(truth.false, truth.true, truth.errors))


def is_null(argument: Evaluated) -> Evaluated:
    """Whether the argument is NULL; its errors stay."""
    valid = argument.column.validity
    answer = np.zeros(len(argument.column), np.bool_) if valid is None else ~valid
    return _result(ColumnType.BOOL, answer, None, argument.errors)


def is_true(argument: Evaluated, wanted: bool) -> Evaluated:
    """IS TRUE, or IS FALSE if not `wanted`."""
    truth = _truth(argument)
    return _result(ColumnType.BOOL, truth.true if wanted else truth.false, None, argument.errors)


def case(condition: Evaluated, then: Evaluated, otherwise: Evaluated, n: int) -> Evaluated:
    """Of n rows, `then` where the condition is true, else `otherwise`; both of one type."""
    yes = np.broadcast_to(_truth(condition).true, n)
    rows = np.arange(n, dtype=np.int64)
    # Both arms in one column, then one row of each pair.
    first = len(then.column)
    pick = np.where(yes, rows * _step(then.column), first + rows * _step(otherwise.column))
    column = Column.concat(then.column.type, (then.column, otherwise.column)).take(pick)
    if condition.errors is None and then.errors is None and otherwise.errors is None:
        return Evaluated(column)
    none = np.zeros(1, np.uint8)
    arms = np.where(
        yes,
        none if then.errors is None else then.errors,
        none if otherwise.errors is None else otherwise.errors,
    )
    errors = _first_errors(condition.errors, arms)
    assert errors is not None
    errors = np.ascontiguousarray(np.broadcast_to(errors, n))
    if not errors.any():
        return Evaluated(column)
    fine, valid = errors == 0, column.validity
    kept = fine if valid is None else valid & fine
    kept_column = Column(
        column.type, column.values, column.offsets, kept, children=column.children, length=len(column)
    )
    return Evaluated(kept_column.canonical(), errors)


# Types and comparison.


def widened(argument: Evaluated, to: AnyType, digits: int = 0, *, compared: bool = False) -> Evaluated:
    """A number as a wider one: an integer as any number, a real as a double; a numeric with `digits` more
    digits behind the point, be it made of an integer or not.

    A numeric that has no room for that is an error; if it is only `compared`, to a numeric that does not
    change, it becomes one beyond all of them instead, which compares as it does.
    """
    column = argument.column
    if to is not ColumnType.NUMERIC:
        assert isinstance(to, ColumnType)
        values: NDArray[Any] = column.values.astype(DTYPES[to])
        return Evaluated(Column(to, values, None, column.validity), argument.errors)
    values = column.values
    if column.type is not ColumnType.NUMERIC:
        high = np.zeros(len(column), np.uint64)
        if values.dtype.kind == "i":
            high = (values.astype(np.int64) >> 63).view(np.uint64)
            values = values.astype(np.int64).view(np.uint64)
        values = np.stack((values.astype(np.uint64), high), axis=1)
    if not digits:
        return Evaluated(Column(to, values, None, column.validity), argument.errors)
    shift = Column.from_pylist(to, [10**digits]).values
    out = np.zeros((len(column), 2), np.uint64)
    codes = np.zeros(len(column), np.uint8)
    count = scalar.numeric_arithmetic(scalar.MUL, values, 1, shift, 0, out, codes)
    if count and compared:
        beyond = codes != 0
        negative = values[:, 1] >> np.uint64(63) != 0
        out[beyond & negative] = _LEAST
        out[beyond & ~negative] = _GREATEST
        count = 0
    return _result(to, out, column.validity, argument.errors, codes if count else None)


_BY_CELLS: Final = (ColumnType.UUID, ColumnType.INTERVAL, ColumnType.BYTEA, ColumnType.JSONB)
# 128-bit integers as [low, high]; a numeric is far within them.
_LEAST: Final = np.array([0, 1 << 63], np.uint64)
_GREATEST: Final = np.array([(1 << 64) - 1, (1 << 63) - 1], np.uint64)

# From "is less" and "is equal" to each comparison.
COMPARISONS: Final[dict[str, Callable[[Bools, Bools], Bools]]] = {
    "=": lambda less, equal: equal,
    "!=": lambda less, equal: ~equal,
    "<": lambda less, equal: less,
    "<=": lambda less, equal: less | equal,
    ">": lambda less, equal: ~(less | equal),
    ">=": lambda less, equal: ~less,
}


def _order(left: Column, right: Column) -> tuple[Bools, Bools]:
    a, b = left.values, right.values
    if left.type is ColumnType.TEXT:
        order = np.empty(_size(left, right), np.int8)
        scalar.text_compare(a, left.offsets, _step(left), b, right.offsets, _step(right), order)
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
        order = np.empty(_size(left, right), np.int8)
        tables = Table([left]), Table([right])
        scalar.compare_values(tables[0].cells, _step(left), tables[1].cells, _step(right), order)
        return order < 0, order == 0
    return a < b, a == b


def compare(function: str, left: Evaluated, right: Evaluated) -> Evaluated:
    """One of `COMPARISONS`, of two columns of one type."""
    answer = COMPARISONS[function](*_order(left.column, right.column))
    valid = _both_valid(left.column, right.column)
    return _result(ColumnType.BOOL, answer, valid, left.errors, right.errors)


# Arithmetic and text.

_FLOAT_FUNCTIONS: Final = (np.add, np.subtract, np.multiply, np.divide, np.fmod)


def arithmetic(op: int, left: Evaluated, right: Evaluated) -> Evaluated:
    """`scalar.ADD` and so on, of two columns of one numeric type."""
    type_ = left.column.type
    valid = _both_valid(left.column, right.column)
    if type_ is ColumnType.FLOAT64:
        values, codes = _float_arithmetic(op, left.column.values, right.column.values)
    else:
        values, codes = _exact_arithmetic(op, left.column, right.column)
    if codes is not None and valid is not None:
        codes = codes * valid  # an error of a NULL operand's stand-in value is none
    return _result(type_, values, valid, left.errors, right.errors, codes)


def _exact_arithmetic(op: int, left: Column, right: Column) -> tuple[NDArray[Any], Codes | None]:
    n = _size(left, right)
    codes = np.zeros(n, np.uint8)
    if left.type is ColumnType.INT64:
        out: NDArray[Any] = np.zeros(n, np.int64)
        kernel = scalar.int64_arithmetic
    else:
        out = np.zeros((n, 2), np.uint64)
        kernel = scalar.numeric_arithmetic
    count = kernel(op, left.values, _step(left), right.values, _step(right), out, codes)
    return out, codes if count else None


def _float_arithmetic(
    op: int, a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Codes | None]:
    with np.errstate(all="ignore"):
        values: NDArray[np.float64] = _FLOAT_FUNCTIONS[op](a, b)
    by_zero: Bools = np.zeros(1, np.bool_)
    divides = op in (scalar.DIV, scalar.MOD)
    beyond = np.isinf(values) & ~np.isinf(a) & (divides | ~np.isinf(b))
    if op == scalar.MUL:
        beyond |= (values == 0) & (a != 0) & (b != 0)
    elif op == scalar.DIV:
        beyond |= (values == 0) & (a != 0) & ~np.isinf(b)
    if divides:
        by_zero = (b == 0) & ~np.isnan(a)
    values = canonical_floats(values)
    if not by_zero.any() and not beyond.any():
        return values, None
    codes = np.where(by_zero, scalar.DIVISION_BY_ZERO, np.where(beyond, DOUBLE_RANGE, 0)).astype(np.uint8)
    return values, codes


def concat(left: Evaluated, right: Evaluated) -> Evaluated:
    """`||` of two texts."""
    a, b = left.column, right.column
    assert a.offsets is not None
    assert b.offsets is not None
    n = _size(a, b)
    sizes = np.broadcast_to(np.diff(a.offsets) + np.diff(b.offsets), n)
    errors = _first_errors(left.errors, right.errors)
    if errors is not None:
        errors = np.ascontiguousarray(np.broadcast_to(errors, n))
    valid = _both_valid(a, b)
    if valid is not None:
        # The value of an error is NULL already, so this covers errors.
        valid = np.ascontiguousarray(np.broadcast_to(valid, n))
        sizes = sizes * valid
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    scalar.text_concat(a.values, a.offsets, _step(a), b.values, b.offsets, _step(b), offsets, data)
    return Evaluated(Column(ColumnType.TEXT, data, offsets, valid), errors)
