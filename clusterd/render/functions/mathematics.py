"""Mathematical functions of doubles, numerics and integers, and bits.

Does not: loop over rows in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.kernels import doubles, scalar
from clusterd.render.functions.arithmetic import NAMES, arithmetic, power_of_ten
from clusterd.render.functions.casts import rescaled
from clusterd.render.functions.evaluated import Bools, Codes, code_of, first_errors, rows_of, step
from clusterd.render.functions.registry import CallSite, Outcome, Strict, strict
from clusterd.render.functions.texts import by_constants
from shm_arrangements.columns import Column, canonical_floats
from shm_arrangements.types import ColumnType

__all__ = ["failing"]

_DOUBLE: Final = ColumnType.FLOAT64
_NUMERIC: Final = ColumnType.NUMERIC
# What the codes of kernels/doubles.py are called, where nothing else is said.
_ERRORS: Final = {
    doubles.OVERFLOW: "double precision out of range",
    doubles.INPUT: "input is out of range",
    doubles.ZERO: "cannot take logarithm of zero",
    doubles.NEGATIVE: "cannot take logarithm of a negative number",
    doubles.POLE: "division by zero",
    doubles.COMPLEX: "a negative number raised to a non-integer power yields a complex result",
}
_OF_ONE: Final = {
    "sin": doubles.SIN, "cos": doubles.COS, "tan": doubles.TAN, "cot": doubles.COT, "asin": doubles.ASIN,
    "acos": doubles.ACOS, "atan": doubles.ATAN, "sinh": doubles.SINH, "cosh": doubles.COSH,
    "tanh": doubles.TANH, "exp": doubles.EXP, "ln": doubles.LN, "log10": doubles.LOG10, "cbrt": doubles.CBRT,
}  # fmt: skip
_MOST_FACTORIAL: Final = 33  # more has more than 38 digits


def failing(wrong: Bools, error: str) -> Codes | None:
    """Codes of one error where it is wrong; None if nowhere."""
    return np.where(wrong, np.uint32(code_of(error)), np.uint32(0)) if wrong.any() else None


def _named_codes(codes: NDArray[np.uint8], count: int, names: dict[int, str]) -> Codes | None:
    if not count:
        return None
    table = np.zeros(max(names) + 1, np.uint32)
    for code, name in names.items():
        table[code] = code_of(name)
    return table[codes]


def _doubles(values: NDArray[Any]) -> Column:
    return Column(_DOUBLE, canonical_floats(values))


def _of_one(op: int, column: Column) -> tuple[Column, Codes | None]:
    values = np.ascontiguousarray(column.values)
    out, codes = np.empty(len(values)), np.zeros(len(values), np.uint8)
    count = doubles.of_one(op, values, out, codes)
    return _doubles(out), _named_codes(codes, count, _ERRORS)


def _by_kernel(op: int) -> Strict:
    return lambda call, args: _of_one(op, args[0])


for _name, _op in _OF_ONE.items():
    strict(_name)(_by_kernel(_op))
strict("log", "double precision -> double precision")(_by_kernel(doubles.LOG10))


@strict("log", "double precision, double precision -> double precision")
def _log(call: CallSite, args: Sequence[Column]) -> Outcome:
    (base, base_codes), (value, codes) = (_of_one(doubles.LN, each) for each in args)
    column, more = arithmetic(scalar.DIV, value, base)
    return column, first_errors(base_codes, codes, more)


def _of_two(op: int, args: Sequence[Column], names: dict[int, str]) -> Outcome:
    a, b = args
    n = rows_of(args)
    out, codes = np.empty(n), np.zeros(n, np.uint8)
    values = [np.ascontiguousarray(each.values) for each in args]
    count = doubles.of_two(op, values[0], step(a), values[1], step(b), out, codes)
    return _doubles(out), _named_codes(codes, count, names)


@strict("power")
@strict("pow")
def _power(call: CallSite, args: Sequence[Column]) -> Outcome:
    names = {**_ERRORS, doubles.POLE: "zero raised to a negative power is undefined"}
    return _of_two(doubles.POWER, args, names)


@strict("atan2")
def _atan2(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _of_two(doubles.ATAN2, args, _ERRORS)


@strict("sqrt")
def _sqrt(call: CallSite, args: Sequence[Column]) -> Outcome:
    values = args[0].values
    negative = values < 0
    return _doubles(np.sqrt(np.where(negative, 0, values))), failing(
        negative, "cannot take square root of a negative number"
    )


@strict("degrees")
def _degrees(call: CallSite, args: Sequence[Column]) -> Outcome:
    return arithmetic(scalar.MUL, args[0], Column.from_pylist(_DOUBLE, [180 / math.pi]))


@strict("radians")
def _radians(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _doubles(args[0].values * (math.pi / 180))


@strict("pi")
def _pi(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column.from_pylist(_DOUBLE, [math.pi])


def _test(test: Callable[[Any], Any]) -> Strict:
    return lambda call, args: Column(ColumnType.BOOL, test(args[0].values))


for _name, _test_of in (("isnan", np.isnan), ("isfinite", np.isfinite), ("isinf", np.isinf)):
    strict(_name)(_test(_test_of))


# Signs and whole numbers.


@strict("abs")
def _abs(call: CallSite, args: Sequence[Column]) -> Outcome:
    column = args[0]
    type_ = column.type
    assert isinstance(type_, ColumnType)
    if type_ is _NUMERIC:
        opposite, _ = arithmetic(scalar.SUB, Column.zeros(_NUMERIC, 1), column)
        return Column(_NUMERIC, np.where(_is_negative(column)[:, None], opposite.values, column.values))
    values = np.abs(column.values)
    if type_ in (ColumnType.FLOAT32, ColumnType.FLOAT64):
        return Column(type_, values)
    return Column(type_, values), failing(values < 0, f"{NAMES[type_]} out of range")


def _is_negative(column: Column) -> Bools:
    negative: Bools = column.values[:, 1] >> np.uint64(63) != 0
    return negative


@strict("sign")
def _sign(call: CallSite, args: Sequence[Column]) -> Outcome:
    column = args[0]
    if column.type is not _NUMERIC:
        type_ = column.type
        return Column(type_, np.sign(column.values))
    negative, some = _is_negative(column), column.values.any(axis=1)
    low = np.where(negative, ~np.uint64(0), some.astype(np.uint64))
    return Column(_NUMERIC, np.stack((low, np.where(negative, ~np.uint64(0), np.uint64(0))), axis=1))


_WHOLE, _AT_DIGITS = "numeric(s) -> numeric", "numeric(s), bigint -> numeric(s)"


def _one_double(function: Callable[[Any], Any]) -> Strict:
    return lambda call, args: _doubles(function(args[0].values))


for _name, _function in (
    ("round", np.rint), ("trunc", np.trunc), ("ceil", np.ceil), ("ceiling", np.ceil), ("floor", np.floor),
):  # fmt: skip
    strict(_name, "double precision -> double precision")(_one_double(_function))


@strict("round", _WHOLE)
def _round(call: CallSite, args: Sequence[Column]) -> Outcome:
    return rescaled(args[0], -call.args[0].scale)


def _ten(digits: int) -> Column:
    return Column(_NUMERIC, power_of_ten(digits))


def _truncated(column: Column, digits: int) -> Column:
    return arithmetic(scalar.DIV, column, _ten(digits))[0]


@strict("trunc", _WHOLE)
def _trunc(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _truncated(args[0], call.args[0].scale)


def _toward(column: Column, digits: int, op: int) -> Outcome:
    """The whole part, and one more (or less) where something on that side of zero was cut off."""
    rest, _ = arithmetic(scalar.MOD, column, _ten(digits))
    cut = _is_negative(rest) if op == scalar.SUB else ~_is_negative(rest) & rest.values.any(axis=1)
    ones = np.stack((cut.astype(np.uint64), np.zeros(len(cut), np.uint64)), axis=1)
    return arithmetic(op, _truncated(column, digits), Column(_NUMERIC, ones))


@strict("ceil", _WHOLE)
@strict("ceiling", _WHOLE)
def _ceil(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _toward(args[0], call.args[0].scale, scalar.ADD)


@strict("floor", _WHOLE)
def _floor(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _toward(args[0], call.args[0].scale, scalar.SUB)


def _at_digits(call: CallSite, args: Sequence[Column], rounded: bool) -> Outcome:
    def at(column: Column, wanted: int) -> Outcome:
        digits = call.args[0].scale - wanted
        if digits <= 0:
            return column
        if digits > 38:
            return Column.zeros(_NUMERIC, 1)
        kept = rescaled(column, -digits)[0] if rounded else _truncated(column, digits)
        return arithmetic(scalar.MUL, kept, _ten(digits))

    return by_constants(_NUMERIC, at, *args)


@strict("round", _AT_DIGITS)
def _round_at(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _at_digits(call, args, True)


@strict("trunc", _AT_DIGITS)
def _trunc_at(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _at_digits(call, args, False)


# Integers.


def _bigints(args: Sequence[Column]) -> list[NDArray[np.int64]]:
    n = rows_of(args)
    return [np.ascontiguousarray(np.broadcast_to(each.values, n)) for each in args]


def _gcd(args: Sequence[Column]) -> NDArray[np.uint64]:
    # As magnitudes: that of the least bigint is none.
    a, b = (np.where(x < 0, np.uint64(0) - x.view(np.uint64), x.view(np.uint64)) for x in _bigints(args))
    return np.gcd(a, b)


@strict("gcd")
def _greatest_divisor(call: CallSite, args: Sequence[Column]) -> Outcome:
    found = _gcd(args)
    return Column(ColumnType.INT64, found.view(np.int64)), failing(
        found >> np.uint64(63) != 0, "bigint out of range"
    )


@strict("lcm")
def _least_multiple(call: CallSite, args: Sequence[Column]) -> Outcome:
    a, b = _bigints(args)
    divisor = _gcd(args)
    none = divisor == 0
    large = divisor >> np.uint64(63) != 0
    part = a // np.where(none | large, 1, divisor.view(np.int64))
    column, codes = arithmetic(
        scalar.MUL, Column(ColumnType.INT64, part), Column(ColumnType.INT64, np.where(none, 0, b))
    )
    values = np.abs(column.values)
    wrong = failing((values < 0) | (large & (a != 0) & (b != 0)), "bigint out of range")
    return Column(ColumnType.INT64, values), first_errors(codes, wrong)


@strict("factorial")
def _factorial(call: CallSite, args: Sequence[Column]) -> Outcome:
    wanted = args[0].values
    found = Column.from_pylist(_NUMERIC, [math.factorial(n) for n in range(_MOST_FACTORIAL + 1)])
    column = found.take(np.clip(wanted, 0, _MOST_FACTORIAL))
    negative = failing(wanted < 0, "input is out of range")
    return column, first_errors(negative, failing(wanted > _MOST_FACTORIAL, "numeric out of range"))


@strict("width_bucket")
def _width_bucket(call: CallSite, args: Sequence[Column]) -> Outcome:
    value, low, high, count = (each.values for each in args)
    wrong = (low == high) | (count <= 0) | ~np.isfinite(low) | ~np.isfinite(high) | np.isnan(value)
    with np.errstate(all="ignore"):
        part = (value - low) / (high - low)
        inside = np.floor(np.clip(part, 0, 1) * count) + 1
        bucket = np.where(part < 0, 0, np.where(part >= 1, count + 1.0, np.minimum(inside, count)))
    values = np.where(wrong, 0, bucket).astype(np.int64)
    return Column(ColumnType.INT64, values), failing(wrong, "input is out of range")


_BITS: Final[dict[str, Any]] = {"&": np.bitwise_and, "|": np.bitwise_or, "#": np.bitwise_xor}
_SHIFTS: Final[dict[str, Any]] = {"<<": np.left_shift, ">>": np.right_shift}


def _bitwise(function: Any) -> Strict:
    return lambda call, args: Column(call.result.type, function(args[0].values, args[1].values))


def _shift(function: Any) -> Strict:
    def run(call: CallSite, args: Sequence[Column]) -> Outcome:
        values = args[0].values
        by = (args[1].values % (8 * values.dtype.itemsize)).astype(values.dtype)
        return Column(call.result.type, function(values, by))

    return run


for _name, _function in _BITS.items():
    strict(_name)(_bitwise(_function))
for _name, _function in _SHIFTS.items():
    strict(_name)(_shift(_function))
strict("bit_not")(lambda call, args: Column(call.result.type, ~args[0].values))
