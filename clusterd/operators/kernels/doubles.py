"""Functions of doubles by the C library, one value at a time.

numpy computes most of these in vectors, and rounds a value in the rest of a vector another way on some
machines; here a value gives the same bits wherever it stands, so that what retracts a row finds it. Where the
library would signal, the arguments are told before.

Does not: know NULL (its zero is computed, and the caller drops what comes), make results canonical.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import types

from shm_arrangements.kernels.jit import F64, OUT_U8, i64, inner, kernel, write

__all__ = [
    "ACOS", "ASIN", "ATAN", "ATAN2", "CBRT", "COMPLEX", "COS", "COSH", "COT", "EXP", "INPUT", "LN", "LOG10",
    "NEGATIVE", "OVERFLOW", "POLE", "POWER", "SIN", "SINH", "TAN", "TANH", "ZERO", "of_one", "of_two",
]  # fmt: skip

SIN, COS, TAN, COT, ASIN, ACOS, ATAN, SINH, COSH, TANH, EXP, LN, LOG10, CBRT = range(14)
POWER, ATAN2 = range(2)
# What is wrong: out of range; of an argument: not in the domain, zero, negative; a pole; a complex result.
OVERFLOW: Final = 1
INPUT: Final = 2
ZERO: Final = 3
NEGATIVE: Final = 4
POLE: Final = 5
COMPLEX: Final = 6

OUT_F64 = write(types.float64)
_EXP_MOST = 709.782712893384
_EXP_LEAST = -745.1332191019411
_SINH_MOST = 710.4758600739439


@inner
def _cube_root(x: Any) -> Any:
    if x == 0.0 or math.isinf(x):
        return x
    size = abs(x)
    root = math.exp(math.log(size) / 3.0)
    for _ in range(2):  # Newton's steps, from so near that the last digit is all they change
        root -= (root - size / (root * root)) / 3.0
    return root if x > 0.0 else -root


@inner
def _one(op: Any, x: Any) -> Any:
    """The value, and what is wrong."""
    if math.isnan(x):
        return x, 0
    if op <= COT:
        if math.isinf(x):
            return 0.0, INPUT
        if op == SIN:
            return math.sin(x), 0
        if op == COS:
            return math.cos(x), 0
        if op == TAN:
            return math.tan(x), 0
        tangent = math.tan(x)
        if tangent == 0.0:
            return 0.0, POLE
        return 1.0 / tangent, 0
    if op in (ASIN, ACOS):
        if x < -1.0 or x > 1.0:
            return 0.0, INPUT
        return (math.asin(x) if op == ASIN else math.acos(x)), 0
    if op == ATAN:
        return math.atan(x), 0
    if op == TANH:
        return math.tanh(x), 0
    if op == CBRT:
        return _cube_root(x), 0
    if op in (LN, LOG10):
        if x == 0.0:
            return 0.0, ZERO
        if x < 0.0:
            return 0.0, NEGATIVE
        return (math.log(x) if op == LN else math.log10(x)), 0
    if math.isinf(x):
        if op == EXP:
            return (x if x > 0.0 else 0.0), 0
        return (x if op == SINH else -x if x < 0.0 else x), 0
    if op == EXP:
        if x > _EXP_MOST or x < _EXP_LEAST:
            return 0.0, OVERFLOW
        return math.exp(x), 0
    if x > _SINH_MOST or x < -_SINH_MOST:
        return 0.0, OVERFLOW
    return (math.sinh(x) if op == SINH else math.cosh(x)), 0


@kernel(i64, F64, OUT_F64, OUT_U8)
def of_one(op: int, values: Any, out: Any, codes: Any) -> int:
    """out (n,) gets the function of values (n,), codes (n,), zeroed, what is wrong. Returns how many are."""
    count = 0
    for i in range(values.shape[0]):
        result, code = _one(op, values[i])
        out[i] = result
        if code != 0:
            codes[i] = code
            count += 1
    return count


@inner
def _power(x: Any, y: Any) -> Any:
    # As IEEE 754 has it where a NaN has no say.
    if y == 0.0 or x == 1.0:
        return 1.0, 0
    if math.isnan(x) or math.isnan(y):
        return np.nan, 0
    if x == 0.0:
        if y < 0.0:
            return 0.0, POLE
        return 0.0, 0
    if math.isinf(y):
        size = abs(x)
        if size == 1.0:
            return 1.0, 0
        return (np.inf if (size > 1.0) == (y > 0.0) else 0.0), 0
    whole = math.floor(y) == y
    if math.isinf(x):
        if y < 0.0:
            return 0.0, 0
        odd = whole and math.floor(y * 0.5) != y * 0.5
        return (-np.inf if x < 0.0 and odd else np.inf), 0
    if x < 0.0 and not whole:
        return 0.0, COMPLEX
    # The size of the result, with room for what rounding does at the edge.
    size = math.log2(abs(x)) * y
    if size > 1024.5 or size < -1075.5:
        return 0.0, OVERFLOW
    result = np.power(x, y)
    if math.isinf(result) or result == 0.0:
        return 0.0, OVERFLOW
    return result, 0


@kernel(i64, F64, i64, F64, i64, OUT_F64, OUT_U8)
def of_two(op: int, a: Any, a_step: int, b: Any, b_step: int, out: Any, codes: Any) -> int:
    """As `of_one`, of two columns with a step of 0 or 1."""
    count = 0
    for i in range(out.shape[0]):
        x = a[i * a_step]
        y = b[i * b_step]
        if op == ATAN2:
            out[i] = np.nan if math.isnan(x) or math.isnan(y) else math.atan2(x, y)
            continue
        result, code = _power(x, y)
        out[i] = result
        if code != 0:
            codes[i] = code
            count += 1
    return count
