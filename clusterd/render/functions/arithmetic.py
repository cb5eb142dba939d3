"""Arithmetic on every type of number, each checked against its own range.

The small integers are computed as bigints, which hold every result of theirs or say that they do not; uint8
as a numeric. Reals and doubles are numpy's, with the cases that IEEE 754 makes infinite or zero told apart.

Does not: loop over rows in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.kernels import scalar
from clusterd.render.functions.evaluated import Bools, Codes, code_of, first_errors, rows_of, step
from clusterd.render.functions.registry import CallSite, Outcome, strict
from controller_proto.functions import FUNCTIONS
from controller_proto.schema import ColumnType as WireType
from shm_arrangements.columns import Column, canonical_floats
from shm_arrangements.types import DTYPES, ColumnType

__all__ = ["NAMES", "arithmetic", "in_range", "lanes", "multiply_divide", "of_lanes", "power_of_ten"]

# Of types in errors.
NAMES: Final = {
    ColumnType.INT16: "smallint", ColumnType.INT32: "integer", ColumnType.INT64: "bigint",
    ColumnType.UINT16: "uint2", ColumnType.UINT32: "uint4", ColumnType.UINT64: "uint8",
    ColumnType.NUMERIC: "numeric", ColumnType.FLOAT32: "real", ColumnType.FLOAT64: "double precision",
}  # fmt: skip
_FLOATS: Final = (ColumnType.FLOAT32, ColumnType.FLOAT64)
_MOST_DIGITS: Final = 38
_FLOAT_FUNCTIONS: Final = (np.add, np.subtract, np.multiply, np.divide, np.fmod)


def power_of_ten(digits: int) -> NDArray[np.uint64]:
    """10 ** digits as one numeric, (1, 2) words."""
    return Column.from_pylist(ColumnType.NUMERIC, [10**digits]).values


def lanes(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Integers of any width as 128-bit ones, (n, 2) words."""
    high = np.zeros(len(values), np.uint64)
    if values.dtype.kind == "i":
        values = values.astype(np.int64)
        high = (values >> 63).view(np.uint64)
        values = values.view(np.uint64)
    return np.stack((values.astype(np.uint64), high), axis=1)


def of_lanes(type_: ColumnType, wide: NDArray[np.uint64], codes: Codes | None) -> tuple[Column, Codes | None]:
    """128-bit integers as an integer type, or as numerics; those out of its range become errors."""
    if type_ is ColumnType.NUMERIC:
        return Column(type_, wide), codes
    low, high = wide[:, 0], wide[:, 1]
    if type_ is ColumnType.UINT64:
        beyond = high != 0
        return Column(type_, np.where(beyond, np.uint64(0), low)), _with_code(codes, beyond, type_)
    narrow = low.view(np.int64)
    beyond = high != (narrow >> 63).view(np.uint64)
    return in_range(type_, np.where(beyond, 0, narrow), _with_code(codes, beyond, type_))


def in_range(
    type_: ColumnType, values: NDArray[np.int64], codes: Codes | None
) -> tuple[Column, Codes | None]:
    """Bigints as a smaller integer type; those out of its range become errors."""
    bounds = np.iinfo(DTYPES[type_])
    if type_ is ColumnType.INT64:
        return Column(type_, values), codes
    beyond = values < bounds.min
    if type_ is not ColumnType.UINT64:
        beyond |= values > bounds.max
    return Column(type_, values.astype(DTYPES[type_])), _with_code(codes, beyond, type_)


def _with_code(codes: Codes | None, beyond: Bools, type_: ColumnType) -> Codes | None:
    if not beyond.any():
        return codes
    own = np.where(beyond, np.uint32(code_of(f"{NAMES[type_]} out of range")), np.uint32(0))
    return own if codes is None else np.where(codes != 0, codes, own)


def arithmetic(op: int, left: Column, right: Column) -> tuple[Column, Codes | None]:
    """`scalar.ADD` and so on, of two columns of one type; of numerics with one scale, but for MUL."""
    type_ = left.type
    assert isinstance(type_, ColumnType)
    if type_ in _FLOATS:
        return _float_arithmetic(type_, op, left.values, right.values)
    n = rows_of((left, right))
    codes = np.zeros(n, np.uint8)
    if type_ in (ColumnType.NUMERIC, ColumnType.UINT64):
        a, b = (c.values if type_ is ColumnType.NUMERIC else lanes(c.values) for c in (left, right))
        wide = np.zeros((n, 2), np.uint64)
        count = scalar.numeric_arithmetic(op, a, step(left), b, step(right), wide, codes)
        return of_lanes(type_, wide, codes.astype(np.uint32) if count else None)
    x, y = (np.ascontiguousarray(c.values.astype(np.int64, copy=False)) for c in (left, right))
    out = np.zeros(n, np.int64)
    count = scalar.int64_arithmetic(op, x, step(left), y, step(right), out, codes)
    if not count:
        return in_range(type_, out, None)
    found = codes.astype(np.uint32)
    if type_ is not ColumnType.INT64:
        found[found == scalar.BIGINT_RANGE] = code_of(f"{NAMES[type_]} out of range")
    return in_range(type_, out, found)


def _float_arithmetic(
    type_: ColumnType, op: int, a: NDArray[Any], b: NDArray[Any]
) -> tuple[Column, Codes | None]:
    with np.errstate(all="ignore"):
        values: NDArray[Any] = _FLOAT_FUNCTIONS[op](a, b)
    by_zero: Bools = np.zeros(1, np.bool_)
    divides = op in (scalar.DIV, scalar.MOD)
    beyond = np.isinf(values) & ~np.isinf(a) & (divides | ~np.isinf(b))
    if op == scalar.MUL:
        beyond |= (values == 0) & (a != 0) & (b != 0)
    elif op == scalar.DIV:
        beyond |= (values == 0) & (a != 0) & ~np.isinf(b)
    if divides:
        by_zero = (b == 0) & ~np.isnan(a)
    column = Column(type_, canonical_floats(values))
    if not by_zero.any() and not beyond.any():
        return column, None
    range_code = code_of(f"{NAMES[type_]} out of range")
    codes = np.where(by_zero, scalar.DIVISION_BY_ZERO, np.where(beyond, range_code, 0)).astype(np.uint32)
    return column, codes


def _numbers(name: str) -> list[str]:
    """The signatures of a function that are of numbers alone."""
    numbers = {WireType[type_.name] for type_ in NAMES}
    return [each.text for each in FUNCTIONS[name].signatures if all(arg.type in numbers for arg in each.args)]


@strict("+", *_numbers("+"))
def _add(call: CallSite, args: Sequence[Column]) -> Outcome:
    return arithmetic(scalar.ADD, *args)


@strict("-", *_numbers("-"))
def _subtract(call: CallSite, args: Sequence[Column]) -> Outcome:
    return arithmetic(scalar.SUB, *args)


@strict("%")
@strict("mod")
def _remainder(call: CallSite, args: Sequence[Column]) -> Outcome:
    return arithmetic(scalar.MOD, *args)


_PRODUCT, _QUOTIENT = "numeric(s), numeric(t) -> numeric(s+t)", "numeric(s), numeric(t) -> numeric(q)"
_OTHERS: Final = [text for text in _numbers("*") if text != _PRODUCT]  # the same as those of `/`


@strict("*", *_OTHERS)
def _multiply(call: CallSite, args: Sequence[Column]) -> Outcome:
    return arithmetic(scalar.MUL, *args)


@strict("/", *_OTHERS)
def _divide(call: CallSite, args: Sequence[Column]) -> Outcome:
    return arithmetic(scalar.DIV, *args)


@strict("div")
def _whole_quotient(call: CallSite, args: Sequence[Column]) -> Outcome:
    return arithmetic(scalar.DIV, *args)


def multiply_divide(a: Column, b: Column, c: Column) -> tuple[Column, Codes | None]:
    """`a * b / c` of unscaled numerics, rounded once, half away from zero."""
    n = rows_of((a, b, c))
    out, codes = np.zeros((n, 2), np.uint64), np.zeros(n, np.uint8)
    pairs = [each for column in (a, b, c) for each in (column.values, step(column))]
    count = scalar.multiply_divide(*pairs, out, codes)
    return Column(ColumnType.NUMERIC, out), codes.astype(np.uint32) if count else None


def _ten(digits: int) -> Column:
    return Column(ColumnType.NUMERIC, power_of_ten(digits))


@strict("*", _PRODUCT)
def _multiply_numerics(call: CallSite, args: Sequence[Column]) -> Outcome:
    beyond = call.args[0].scale + call.args[1].scale - call.result.scale
    if not beyond:
        return arithmetic(scalar.MUL, *args)
    return multiply_divide(args[0], args[1], _ten(beyond))


@strict("/", _QUOTIENT)
def _divide_numerics(call: CallSite, args: Sequence[Column]) -> Outcome:
    digits = call.result.scale - call.args[0].scale + call.args[1].scale
    if digits <= _MOST_DIGITS:
        return multiply_divide(args[0], _ten(digits), args[1])
    # The factor has up to 76 digits: the greater part of it goes into the dividend, which has room or fails.
    dividend, codes = arithmetic(scalar.MUL, args[0], _ten(digits - _MOST_DIGITS))
    quotient, more = multiply_divide(dividend, _ten(_MOST_DIGITS), args[1])
    return quotient, first_errors(more, codes)


@strict("neg", *_numbers("neg"))
def _negate(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = args[0].type
    assert isinstance(type_, ColumnType)
    if type_ in _FLOATS:
        return Column(type_, canonical_floats(-args[0].values))
    return arithmetic(scalar.SUB, Column.zeros(type_, 1), args[0])
