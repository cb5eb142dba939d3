"""Numbers from text and as text: decimal digits of 128-bit integers that stand for numerics.

Reading is exact: all digits count, however many there are, and what is behind the last place is rounded
once, half away from zero. Writing fills a field of fixed width from its end; the caller gathers the spans.

Does not: know NULL (an empty text is an error the caller drops), allocate.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clusterd.operators.kernels.scalar import magnitude_of, negated_wide, wide_product, wide_quotient
from shm_arrangements.kernels.jit import I64, OUT_I64, OUT_U8, OUT_U64_2D, U8, U64_2D, i64, inner, kernel

__all__ = ["MALFORMED", "OUT_OF_RANGE", "WIDTH", "read_decimals", "write_decimals"]

MALFORMED: Final = 1
OUT_OF_RANGE: Final = 2
WIDTH: Final = 42  # 38 digits, a zero before the point, the point, a sign; and room

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TEN = np.uint64(10)
_TEN19 = np.uint64(10**19)
_TENTH_HIGH = np.uint64(10**37 >> 64)
_TENTH_LOW = np.uint64(10**37 & ((1 << 64) - 1))
_LIMIT_HIGH = np.uint64(10**38 >> 64)
_LIMIT_LOW = np.uint64(10**38 & ((1 << 64) - 1))
_FAR = 1 << 20  # exponents beyond it make no difference


@inner
def _is_space(byte: Any) -> Any:
    return byte == 32 or 9 <= byte <= 13


@inner
def _is_digit(byte: Any) -> Any:
    return 48 <= byte <= 57


@inner
def _read(data: Any, start: Any, end: Any, scale: Any, is_integer: Any) -> Any:
    """One number times 10 ** scale, as (low, high, code)."""
    while start < end and _is_space(data[start]):
        start += 1
    while end > start and _is_space(data[end - 1]):
        end -= 1
    negative = False
    if start < end and (data[start] == 43 or data[start] == 45):
        negative = data[start] == 45
        start += 1
    # The digits are those of data[start:stop] but for the point.
    stop = start
    whole = 0
    digits = 0
    points = 0
    while stop < end and (_is_digit(data[stop]) or (data[stop] == 46 and points == 0)):
        if data[stop] == 46:
            points = 1
        else:
            digits += 1
            if points == 0:
                whole += 1
        stop += 1
    exponent: Any = 0
    at = stop
    if digits > 0 and at < end and (data[at] == 101 or data[at] == 69):
        at += 1
        below = False
        if at < end and (data[at] == 43 or data[at] == 45):
            below = data[at] == 45
            at += 1
        if at == end:
            digits = 0
        while at < end and _is_digit(data[at]):
            exponent = min(exponent * 10 + np.int64(data[at]) - 48, _FAR)
            at += 1
        if below:
            exponent = -exponent
    if digits == 0 or at != end or (is_integer != 0 and (points != 0 or stop != end)):
        return _ZERO, _ZERO, MALFORMED
    keep = whole + exponent + scale
    low = _ZERO
    high = _ZERO
    seen = 0
    rounds: Any = False
    for i in range(start, stop):
        if data[i] == 46:
            continue
        digit = np.uint64(data[i]) - np.uint64(48)
        if seen < keep:
            if high > _TENTH_HIGH or (high == _TENTH_HIGH and low >= _TENTH_LOW):
                return _ZERO, _ZERO, OUT_OF_RANGE
            low, carry = wide_product(low, _TEN)
            high = high * _TEN + carry
            low += digit
            if low < digit:
                high += _ONE
        elif seen == keep:
            rounds = digit >= np.uint64(5)
        seen += 1
    while seen < keep and (low != _ZERO or high != _ZERO):
        if high > _TENTH_HIGH or (high == _TENTH_HIGH and low >= _TENTH_LOW):
            return _ZERO, _ZERO, OUT_OF_RANGE
        low, carry = wide_product(low, _TEN)
        high = high * _TEN + carry
        seen += 1
    if rounds:
        low += _ONE
        if low == _ZERO:
            high += _ONE
    if high > _LIMIT_HIGH or (high == _LIMIT_HIGH and low >= _LIMIT_LOW):
        return _ZERO, _ZERO, OUT_OF_RANGE
    if negative:
        low, high = negated_wide(low, high)
    return low, high, 0


@kernel(U8, I64, i64, i64, OUT_U64_2D, OUT_U8)
def read_decimals(data: Any, offsets: Any, scale: int, is_integer: int, out: Any, codes: Any) -> int:
    """out (n, 2) gets the numbers that n texts are, times 10 ** scale; codes (n,) what is wrong with one.

    is_integer: neither a point nor an exponent may stand. Blanks around are none of the number. Returns how
    many are wrong; codes must be zeroed.
    """
    count = 0
    for i in range(codes.shape[0]):
        low, high, code = _read(data, offsets[i], offsets[i + 1], scale, is_integer)
        out[i, 0] = low
        out[i, 1] = high
        if code != 0:
            codes[i] = code
            count += 1
    return count


@kernel(U64_2D, i64, OUT_U8, OUT_I64, OUT_I64)
def write_decimals(values: Any, scale: int, out: Any, lo: Any, hi: Any) -> None:
    """out (n * WIDTH,) gets the digits of 128-bit integers, with a point before the last `scale` of them.

    lo, hi (n,): the span of each.
    """
    for i in range(values.shape[0]):
        low, high = magnitude_of(values[i, 0], values[i, 1])
        at = (i + 1) * WIDTH
        hi[i] = at
        written = 0
        while written <= scale or low != _ZERO or high != _ZERO:
            part = low
            places = 38
            if high != _ZERO:
                low, high, part, _ = wide_quotient(low, high, _TEN19, _ZERO)
                places = 19
            else:
                low = _ZERO
            # All 19 places of a lower part, zeros too; of the last one what says something.
            while places > 0 and (part != _ZERO or written <= scale or low != _ZERO or high != _ZERO):
                if written == scale and scale > 0:
                    at -= 1
                    out[at] = 46
                rest = part // _TEN
                at -= 1
                out[at] = np.uint8(part - rest * _TEN) + np.uint8(48)
                part = rest
                written += 1
                places -= 1
        if values[i, 1] >> np.uint64(63) != _ZERO:
            at -= 1
            out[at] = 45
        lo[i] = at
