"""Arithmetic, comparison and text primitives of scalar expressions that numpy cannot check exactly.

Every kernel takes two operands with a step of 0 or 1 each, so that a constant is one value and not n
copies, and writes one error code a row (0: none) instead of raising. What a row with an error holds is left
to the caller, who makes it NULL. Numerics are two's complement 128-bit integers of at most 38 digits, as
[low, high] words; products and quotients are computed from magnitudes, so that no intermediate can wrap
unseen.

Does not: know NULL (a NULL operand holds zero; the caller drops its error), allocate, or choose types.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from shm_arrangements.kernels.cells import TABLE, compare_cells
from shm_arrangements.kernels.jit import (
    I64,
    OUT_I64,
    OUT_U8,
    OUT_U64_2D,
    U8,
    U64_2D,
    i64,
    inner,
    kernel,
    write,
)

__all__ = [
    "ADD", "BIGINT_RANGE", "DIV", "DIVISION_BY_ZERO", "MOD", "MUL", "NUMERIC_RANGE", "SUB",
    "compare_values", "int64_arithmetic", "magnitude_of", "multiply_divide", "negated_wide",
    "numeric_arithmetic", "text_compare", "text_concat", "wide_product", "wide_quotient",
]  # fmt: skip

ADD: Final = 0
SUB: Final = 1
MUL: Final = 2
DIV: Final = 3
MOD: Final = 4

DIVISION_BY_ZERO: Final = 1
BIGINT_RANGE: Final = 2
NUMERIC_RANGE: Final = 3

OUT_I8 = write(types.int8)

_MIN64 = -(1 << 63)
_HALF = 1 << 31
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_LOW32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)
_SHIFT63 = np.uint64(63)
_TOP = np.uint64(1 << 63)
_LIMIT_HIGH = np.uint64(10**38 >> 64)
_LIMIT_LOW = np.uint64(10**38 & ((1 << 64) - 1))


@inner
def _divide64(a: Any, b: Any) -> Any:
    """Quotient and remainder, rounded toward zero; b is not 0 and it is not MIN / -1."""
    quotient = a // b
    remainder = a - quotient * b
    if remainder != 0 and ((a < 0) != (b < 0)):
        quotient += 1
        remainder -= b
    return quotient, remainder


@inner
def wide_product(a: Any, b: Any) -> Any:
    """The 128-bit product of two words, as (low, high)."""
    a0 = a & _LOW32
    a1 = a >> _SHIFT32
    b0 = b & _LOW32
    b1 = b >> _SHIFT32
    low = a0 * b0
    middle = a1 * b0 + (low >> _SHIFT32)
    other = a0 * b1 + (middle & _LOW32)
    high = a1 * b1 + (middle >> _SHIFT32) + (other >> _SHIFT32)
    return (other << _SHIFT32) | (low & _LOW32), high


@inner
def _multiply64(a: Any, b: Any) -> Any:
    """The product, and whether it fits.

    By magnitudes: a signed product is compiled in the trust that it does not wrap.
    """
    if -_HALF <= a < _HALF and -_HALF <= b < _HALF:
        return a * b, True
    x = np.uint64(a)
    y = np.uint64(b)
    if a < 0:
        x = _ZERO - x
    if b < 0:
        y = _ZERO - y
    low, high = wide_product(x, y)
    negative = (a < 0) != (b < 0)
    limit = _TOP if negative else _TOP - _ONE
    if high != _ZERO or low > limit:
        return 0, False
    return np.int64(_ZERO - low) if negative else np.int64(low), True


@kernel(i64, I64, i64, I64, i64, OUT_I64, OUT_U8)
def int64_arithmetic(op: int, a: Any, a_step: int, b: Any, b_step: int, out: Any, errors: Any) -> int:
    """out (n,) and errors (n,), both zeroed, get `a op b`; returns the number of errors."""
    count = 0
    for i in range(out.shape[0]):
        x = a[i * a_step]
        y = b[i * b_step]
        code = 0
        result: Any = 0
        if op == ADD:
            result = np.int64(np.uint64(x) + np.uint64(y))  # unsigned: may wrap
            if ((x ^ result) & (y ^ result)) < 0:
                code = BIGINT_RANGE
        elif op == SUB:
            result = np.int64(np.uint64(x) - np.uint64(y))
            if ((x ^ y) & (x ^ result)) < 0:
                code = BIGINT_RANGE
        elif op == MUL:
            result, exact = _multiply64(x, y)
            if not exact:
                code = BIGINT_RANGE
        elif y == 0:
            code = DIVISION_BY_ZERO
        elif y == -1:
            # Without dividing: MIN / -1 traps in hardware.
            if op == DIV:
                result = -x
                if x == _MIN64:
                    code = BIGINT_RANGE
        else:
            quotient, remainder = _divide64(x, y)
            result = quotient if op == DIV else remainder
        if code != 0:
            errors[i] = code
            count += 1
        else:
            out[i] = result
    return count


@inner
def negated_wide(low: Any, high: Any) -> Any:
    """A 128-bit number with its sign turned, as (low, high)."""
    low = ~low + _ONE
    high = ~high
    if low == _ZERO:
        high += _ONE
    return low, high


@inner
def magnitude_of(low: Any, high: Any) -> Any:
    """A 128-bit number without its sign, as (low, high)."""
    if high >> _SHIFT63 != _ZERO:
        return negated_wide(low, high)
    return low, high


@inner
def _product(a_low: Any, a_high: Any, b_low: Any, b_high: Any) -> Any:
    """Product of two magnitudes, as (low, high, whether it fits 128 bits)."""
    if a_high != _ZERO and b_high != _ZERO:
        return _ZERO, _ZERO, False
    low, high = wide_product(a_low, b_low)
    if a_high != _ZERO:
        cross, over = wide_product(a_high, b_low)
    else:
        cross, over = wide_product(a_low, b_high)
    if over != _ZERO:
        return _ZERO, _ZERO, False
    total = high + cross
    return low, total, total >= high


@inner
def wide_quotient(a_low: Any, a_high: Any, b_low: Any, b_high: Any) -> Any:
    """Quotient and remainder of two magnitudes, b not 0: (low, high, low, high). Shift and subtract."""
    if a_high == _ZERO and b_high == _ZERO:
        return a_low // b_low, _ZERO, a_low % b_low, _ZERO
    q_low = _ZERO
    q_high = _ZERO
    r_low = _ZERO
    r_high = _ZERO
    for step in range(128):
        bit = 127 - step
        word = a_high if bit >= 64 else a_low
        r_high = (r_high << _ONE) | (r_low >> _SHIFT63)
        r_low = (r_low << _ONE) | ((word >> np.uint64(bit % 64)) & _ONE)
        q_high = (q_high << _ONE) | (q_low >> _SHIFT63)
        q_low = q_low << _ONE
        if r_high > b_high or (r_high == b_high and r_low >= b_low):
            if r_low < b_low:
                r_high -= _ONE
            r_low -= b_low
            r_high -= b_high
            q_low |= _ONE
    return q_low, q_high, r_low, r_high


@kernel(i64, U64_2D, i64, U64_2D, i64, OUT_U64_2D, OUT_U8)
def numeric_arithmetic(op: int, a: Any, a_step: int, b: Any, b_step: int, out: Any, errors: Any) -> int:
    """As `int64_arithmetic`, for (n, 2) words; a result beyond 38 digits is an error.

    `/` rounds toward zero.
    """
    count = 0
    for i in range(out.shape[0]):
        x_low = a[i * a_step, 0]
        x_high = a[i * a_step, 1]
        y_low = b[i * b_step, 0]
        y_high = b[i * b_step, 1]
        low = _ZERO
        high = _ZERO
        code = 0
        if op <= SUB:
            if op == SUB:
                y_low, y_high = negated_wide(y_low, y_high)
            low = x_low + y_low
            high = x_high + y_high
            if low < x_low:
                high += _ONE
            if ((x_high ^ high) & (y_high ^ high)) >> _SHIFT63 != _ZERO:
                code = NUMERIC_RANGE
        elif op != MUL and y_low == _ZERO and y_high == _ZERO:
            code = DIVISION_BY_ZERO
        else:
            negative = (x_high ^ y_high) >> _SHIFT63 != _ZERO
            m_low, m_high = magnitude_of(x_low, x_high)
            n_low, n_high = magnitude_of(y_low, y_high)
            if op == MUL:
                low, high, fits = _product(m_low, m_high, n_low, n_high)
                if not fits or high >> _SHIFT63 != _ZERO:
                    code = NUMERIC_RANGE
            else:
                q_low, q_high, r_low, r_high = wide_quotient(m_low, m_high, n_low, n_high)
                if op == DIV:
                    low, high = q_low, q_high
                else:
                    low, high = r_low, r_high
                    negative = x_high >> _SHIFT63 != _ZERO
            if negative:
                low, high = negated_wide(low, high)
        if code == 0:
            m_low, m_high = magnitude_of(low, high)
            if m_high > _LIMIT_HIGH or (m_high == _LIMIT_HIGH and m_low >= _LIMIT_LOW):
                code = NUMERIC_RANGE
        if code != 0:
            errors[i] = code
            count += 1
        else:
            out[i, 0] = low
            out[i, 1] = high
    return count


@inner
def _long_product(a_low: Any, a_high: Any, b_low: Any, b_high: Any) -> Any:
    """Product of two magnitudes, as four words, the lowest first."""
    w0, w1 = wide_product(a_low, b_low)
    if a_high == _ZERO and b_high == _ZERO:
        return w0, w1, _ZERO, _ZERO
    x0, x1 = wide_product(a_low, b_high)
    y0, y1 = wide_product(a_high, b_low)
    w2, w3 = wide_product(a_high, b_high)
    for low, high in ((x0, x1), (y0, y1)):
        w1 += low
        carry = _ONE if w1 < low else _ZERO
        w2 += carry
        if w2 < carry:
            w3 += _ONE
        w2 += high
        if w2 < high:
            w3 += _ONE
    return w0, w1, w2, w3


@inner
def _long_quotient(w0: Any, w1: Any, w2: Any, w3: Any, c_low: Any, c_high: Any) -> Any:
    """As `wide_quotient`, of four words, and whether it fits two. The divisor is below 2 ** 127."""
    if w2 == _ZERO and w3 == _ZERO:
        q_low, q_high, r_low, r_high = wide_quotient(w0, w1, c_low, c_high)
        return q_low, q_high, r_low, r_high, True
    if w3 > c_high or (w3 == c_high and w2 >= c_low):
        return _ZERO, _ZERO, _ZERO, _ZERO, False
    q_low = _ZERO
    q_high = _ZERO
    r_low = w2
    r_high = w3
    for step in range(128):
        bit = 127 - step
        word = w1 if bit >= 64 else w0
        r_high = (r_high << _ONE) | (r_low >> _SHIFT63)
        r_low = (r_low << _ONE) | ((word >> np.uint64(bit % 64)) & _ONE)
        q_high = (q_high << _ONE) | (q_low >> _SHIFT63)
        q_low = q_low << _ONE
        if r_high > c_high or (r_high == c_high and r_low >= c_low):
            if r_low < c_low:
                r_high -= _ONE
            r_low -= c_low
            r_high -= c_high
            q_low |= _ONE
    return q_low, q_high, r_low, r_high, True


@kernel(U64_2D, i64, U64_2D, i64, U64_2D, i64, OUT_U64_2D, OUT_U8)
def multiply_divide(
    a: Any, a_step: int, b: Any, b_step: int, c: Any, c_step: int, out: Any, errors: Any
) -> int:
    """As `numeric_arithmetic`: `a * b / c`, rounded once, half away from zero; the product is exact."""
    count = 0
    for i in range(out.shape[0]):
        x_low, x_high = magnitude_of(a[i * a_step, 0], a[i * a_step, 1])
        y_low, y_high = magnitude_of(b[i * b_step, 0], b[i * b_step, 1])
        z_low, z_high = magnitude_of(c[i * c_step, 0], c[i * c_step, 1])
        code = 0
        if z_low == _ZERO and z_high == _ZERO:
            code = DIVISION_BY_ZERO
        else:
            sign = a[i * a_step, 1] ^ b[i * b_step, 1] ^ c[i * c_step, 1]
            w0, w1, w2, w3 = _long_product(x_low, x_high, y_low, y_high)
            low, high, r_low, r_high, fits = _long_quotient(w0, w1, w2, w3, z_low, z_high)
            r_high = (r_high << _ONE) | (r_low >> _SHIFT63)
            r_low = r_low << _ONE
            if r_high > z_high or (r_high == z_high and r_low >= z_low):
                low += _ONE
                if low == _ZERO:
                    high += _ONE
            if not fits or high > _LIMIT_HIGH or (high == _LIMIT_HIGH and low >= _LIMIT_LOW):
                code = NUMERIC_RANGE
            else:
                if sign >> _SHIFT63 != _ZERO:
                    low, high = negated_wide(low, high)
                out[i, 0] = low
                out[i, 1] = high
        if code != 0:
            errors[i] = code
            count += 1
    return count


@kernel(TABLE, i64, TABLE, i64, OUT_I8)
def compare_values(a: Any, a_step: int, b: Any, b_step: int, out: Any) -> None:
    """out[i] = -1, 0 or 1: the order of the first columns of two tables, of one type, whichever it is."""
    for i in range(out.shape[0]):
        out[i] = compare_cells(a, i * a_step, b, i * b_step, 0, 1)


@kernel(U8, I64, i64, U8, I64, i64, OUT_I8)
def text_compare(a: Any, a_offsets: Any, a_step: int, b: Any, b_offsets: Any, b_step: int, out: Any) -> None:
    """out (n,) int8 gets -1, 0 or 1: the order of two texts by bytes, a prefix first."""
    for i in range(out.shape[0]):
        x = a_offsets[i * a_step]
        x_end = a_offsets[i * a_step + 1]
        y = b_offsets[i * b_step]
        y_end = b_offsets[i * b_step + 1]
        order = 0
        while order == 0 and x < x_end and y < y_end:
            if a[x] != b[y]:
                order = -1 if a[x] < b[y] else 1
            x += 1
            y += 1
        if order == 0:
            if x < x_end:
                order = 1
            elif y < y_end:
                order = -1
        out[i] = order


@kernel(U8, I64, i64, U8, I64, i64, I64, OUT_U8)
def text_concat(
    a: Any, a_offsets: Any, a_step: int, b: Any, b_offsets: Any, b_step: int, offsets: Any, out: Any
) -> None:
    """out gets the texts of a followed by those of b, row by row, where `offsets` (n + 1,) says.

    A row whose place is empty gets nothing (its result is NULL).
    """
    for i in range(offsets.shape[0] - 1):
        at = offsets[i]
        if at == offsets[i + 1]:
            continue
        for source in range(a_offsets[i * a_step], a_offsets[i * a_step + 1]):
            out[at] = a[source]
            at += 1
        for source in range(b_offsets[i * b_step], b_offsets[i * b_step + 1]):
            out[at] = b[source]
            at += 1
