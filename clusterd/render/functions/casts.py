"""Casts among numbers.

Does not: casts of text and of moments (casts_of_text.py and others), loop over rows in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clusterd.operators.kernels import digits as kernels
from clusterd.operators.kernels import scalar
from clusterd.render.functions.arithmetic import (
    NAMES,
    arithmetic,
    in_range,
    lanes,
    multiply_divide,
    of_lanes,
    power_of_ten,
)
from clusterd.render.functions.evaluated import Bools, Codes, code_of
from clusterd.render.functions.registry import CallSite, Outcome, strict
from clusterd.render.functions.texts import from_arrow, from_spans, plain_texts, to_arrow
from shm_arrangements.columns import Column, canonical_floats
from shm_arrangements.types import DTYPES, ColumnType

__all__ = ["double_texts", "numeric_of_texts", "numeric_texts", "rescaled", "widened_for_comparison"]

_INTEGERS: Final = ("smallint", "integer", "bigint", "uint2", "uint4", "uint8")
_FLOATS: Final = ("real", "double precision")
_TYPES: Final = {name: type_ for type_, name in NAMES.items()}
_EXACT: Final = 22  # powers of ten up to it are exact doubles
# 128-bit integers as [low, high]; a numeric is far within them.
_LEAST: Final = np.array([0, 1 << 63], np.uint64)
_GREATEST: Final = np.array([(1 << 64) - 1, (1 << 63) - 1], np.uint64)


@strict("cast", "T -> T")
def _same(call: CallSite, args: Sequence[Column]) -> Outcome:
    return args[0]


def rescaled(column: Column, digits: int) -> tuple[Column, Codes | None]:
    """Numerics with `digits` more digits behind the point, or fewer, rounded half away from zero."""
    if digits == 0:
        return column, None
    ten = Column(ColumnType.NUMERIC, power_of_ten(abs(digits)))
    if digits > 0:
        return arithmetic(scalar.MUL, column, ten)
    one = Column(ColumnType.NUMERIC, power_of_ten(0))
    return multiply_divide(column, one, ten)


def widened_for_comparison(column: Column, digits: int) -> Column:
    """An integer or a numeric with more digits behind the point. What has no room for that becomes one beyond
    all numerics instead, which compares as it does.
    """
    values = column.values if column.type is ColumnType.NUMERIC else lanes(column.values)
    column = Column(ColumnType.NUMERIC, values, None, column.validity)
    if not digits:
        return column
    wider, codes = rescaled(Column(ColumnType.NUMERIC, values), digits)
    out = wider.values
    if codes is not None:
        beyond, negative = codes != 0, values[:, 1] >> np.uint64(63) != 0
        out = out.copy()
        out[beyond & negative] = _LEAST
        out[beyond & ~negative] = _GREATEST
    return Column(ColumnType.NUMERIC, out, None, column.validity)


def _integer_to_integer(call: CallSite, args: Sequence[Column]) -> Outcome:
    to = call.result.type
    assert isinstance(to, ColumnType)
    if args[0].type is ColumnType.UINT64 or to is ColumnType.UINT64:
        return of_lanes(to, lanes(args[0].values), None)
    return in_range(to, args[0].values.astype(np.int64), None)


def _integer_to_numeric(call: CallSite, args: Sequence[Column]) -> Outcome:
    return rescaled(Column(ColumnType.NUMERIC, lanes(args[0].values)), call.result.scale)


def _numeric_to_integer(call: CallSite, args: Sequence[Column]) -> Outcome:
    to = call.result.type
    assert isinstance(to, ColumnType)
    whole, _ = rescaled(args[0], -call.args[0].scale)
    return of_lanes(to, whole.values, None)


@strict("cast", "numeric(s) -> numeric(s)")
def _numeric_to_numeric(call: CallSite, args: Sequence[Column]) -> Outcome:
    return rescaled(args[0], call.result.scale - call.args[0].scale)


def _integer_to_float(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _floats(call, args[0].values)


def _floats(call: CallSite, values: NDArray[Any]) -> Outcome:
    """Numbers as the nearest real or double; one that is finite and would not stay so, or vanish, fails."""
    to = call.result.type
    assert isinstance(to, ColumnType)
    with np.errstate(all="ignore"):
        out = values.astype(DTYPES[to])
        beyond: Bools = (np.isinf(out) & ~np.isinf(values)) | ((out == 0) & (values != 0))
    codes = None
    if beyond.any():
        codes = np.where(beyond, np.uint32(code_of(f"{NAMES[to]} out of range")), np.uint32(0))
    return Column(to, canonical_floats(out)), codes


def _float_to_integer(call: CallSite, args: Sequence[Column]) -> Outcome:
    to = call.result.type
    assert isinstance(to, ColumnType)
    bounds = np.iinfo(DTYPES[to])
    rounded = np.rint(args[0].values.astype(np.float64))
    fits = (rounded >= float(bounds.min)) & (rounded < float(bounds.max + 1))
    values = np.where(fits, rounded, 0.0).astype(DTYPES[to])
    code = np.uint32(code_of(f"{NAMES[to]} out of range"))
    return Column(to, values), None if fits.all() else np.where(fits, np.uint32(0), code)


def double_texts(values: NDArray[Any]) -> Any:
    """The shortest digits that read back, as an Arrow array; they may have an exponent."""
    return pc.cast(pa.array(values), pa.large_string())


def _float_to_numeric(call: CallSite, args: Sequence[Column]) -> Outcome:
    """By the shortest digits that read back as the same number."""
    finite = np.isfinite(args[0].values)
    texts = from_arrow(ColumnType.TEXT, double_texts(np.where(finite, args[0].values, 0)))
    column, codes = numeric_of_texts(texts, call.result.scale)
    code = np.uint32(code_of("numeric out of range"))
    wrong = ~finite if codes is None else ~finite | (codes != 0)
    return column, np.where(wrong, code, np.uint32(0)) if wrong.any() else None


def numeric_of_texts(
    texts: Column, scale: int, *, is_integer: bool = False
) -> tuple[Column, NDArray[np.uint8] | None]:
    """The numerics that texts are, and where one is not, `digits.MALFORMED` or `digits.OUT_OF_RANGE`."""
    data, offsets = plain_texts(texts)
    out, codes = np.zeros((len(texts), 2), np.uint64), np.zeros(len(texts), np.uint8)
    wrong = kernels.read_decimals(data, offsets, scale, int(is_integer), out, codes)
    return Column(ColumnType.NUMERIC, out), codes if wrong else None


def numeric_texts(values: NDArray[np.uint64], scale: int) -> Column:
    """The digits of 128-bit integers, (n, 2) words, with a point before the last `scale` of them."""
    n = len(values)
    out = np.empty(n * kernels.WIDTH, np.uint8)
    lo, hi = np.empty(n, np.int64), np.empty(n, np.int64)
    kernels.write_decimals(np.ascontiguousarray(values), scale, out, lo, hi)
    return from_spans(ColumnType.TEXT, out, lo, hi)


def _numeric_to_float(call: CallSite, args: Sequence[Column]) -> Outcome:
    """The nearest: by one division of exact doubles where that is all, else by way of the digits."""
    values, scale = args[0].values, call.args[0].scale
    narrow = values[:, 0].view(np.int64)
    small = (values[:, 1] == (narrow >> 63).view(np.uint64)) & (np.abs(narrow) < 1 << 53)
    if call.result.type is ColumnType.FLOAT64 and scale <= _EXACT and small.all():
        return Column(ColumnType.FLOAT64, canonical_floats(narrow / 10.0**scale))
    texts = to_arrow(numeric_texts(values, scale))
    to = pa.float64() if call.result.type is ColumnType.FLOAT64 else pa.float32()
    return Column(call.result.type, canonical_floats(pc.cast(texts, to).to_numpy(zero_copy_only=False)))


def _float_to_float(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _floats(call, args[0].values)


for _a in _INTEGERS:
    strict("cast", *(f"{_a} -> {_b}" for _b in _INTEGERS if _a != _b))(_integer_to_integer)
    strict("cast", f"{_a} -> numeric(s)")(_integer_to_numeric)
    strict("cast", f"numeric(s) -> {_a}")(_numeric_to_integer)
    strict("cast", *(f"{_a} -> {_b}" for _b in _FLOATS))(_integer_to_float)
    strict("cast", *(f"{_b} -> {_a}" for _b in _FLOATS))(_float_to_integer)
strict("cast", "real -> double precision", "double precision -> real")(_float_to_float)
strict("cast", *(f"{_b} -> numeric(s)" for _b in _FLOATS))(_float_to_numeric)
strict("cast", *(f"numeric(s) -> {_b}" for _b in _FLOATS))(_numeric_to_float)
