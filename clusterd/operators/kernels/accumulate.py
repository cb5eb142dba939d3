"""Sums that are exact under retraction: wide two's complement integers, and doubles as fixed-point numbers.

A sum of bigints is 3 words (192 bits), of numerics 4, of squares of either 6, so that no run of products
value x diff leaves it; since arithmetic modulo 2^k is exact, any order of adding gives the same words, and a
sum whose contents are gone is zero.

A sum of doubles is a fixed-point number of 64-bit limbs whose least unit is 2^-1074 * 2^(64 * first),
beside three counts: of +inf, -inf and NaN. A sum of their squares is one too, of unit 2^-2148 * 2^(64 *
first) and without counts. The caller keeps windows of limbs [first, first + n) wide enough for all values
seen (`place_range`).

NULLs hold zero, so they add nothing and need no test; only `add_valid` looks at validity.

Does not: allocate, give results (finals.py does), or know what a group is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import (
    BOOL,
    I64,
    OUT_I64,
    OUT_U64_2D,
    U64,
    U64_2D,
    i64,
    inner,
    kernel,
)

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_S32, _S52 = np.uint64(32), np.uint64(52)
_LOW = np.uint64(0xFFFFFFFF)
_EXPONENT = np.uint64(0x7FF)
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)
_SIGN = np.uint64(1 << 63)
PLUS_INF, MINUS_INF, NAN, LIMBS = 0, 1, 2, 3  # places in a sum of doubles


@inner
def multiply(a: Any, b: Any) -> Any:
    """(low, high) of the 128-bit product of two unsigned words."""
    a0, a1, b0, b1 = a & _LOW, a >> _S32, b & _LOW, b >> _S32
    p00, p01, p10, p11 = a0 * b0, a0 * b1, a1 * b0, a1 * b1
    middle = (p00 >> _S32) + (p01 & _LOW) + (p10 & _LOW)
    low = (p00 & _LOW) | (middle << _S32)
    high = p11 + (p01 >> _S32) + (p10 >> _S32) + (middle >> _S32)
    return low, high


@inner
def _add_at(words: Any, p: Any, w: Any, y: Any, carry: Any) -> Any:
    """words[p, w] += y + carry; the carry out."""
    total = words[p, w] + y
    over = total < y
    total = total + carry
    words[p, w] = total
    return _ONE if over or total < carry else _ZERO


@inner
def _subtract_at(words: Any, p: Any, w: Any, y: Any, borrow: Any) -> Any:
    """words[p, w] -= y + borrow; the borrow out."""
    x = words[p, w]
    words[p, w] = x - y - borrow
    return _ONE if x < y or (x == y and borrow != _ZERO) else _ZERO


@inner
def _carry_on(words: Any, p: Any, w: Any, end: Any, carry: Any) -> None:
    while carry != _ZERO and w < end:
        words[p, w] = words[p, w] + _ONE
        carry = _ONE if words[p, w] == _ZERO else _ZERO
        w += 1


@inner
def _borrow_on(words: Any, p: Any, w: Any, end: Any, borrow: Any) -> None:
    while borrow != _ZERO and w < end:
        borrow = _ONE if words[p, w] == _ZERO else _ZERO
        words[p, w] = words[p, w] - _ONE
        w += 1


@kernel(I64, BOOL, I64, OUT_U64_2D, i64)
def add_valid(partials: Any, validity: Any, diffs: Any, words: Any, at: int) -> None:
    """Add to the 128-bit count at `at` the diffs of the valid rows; an empty validity means all are."""
    known = validity.shape[0] == 0
    for i in range(partials.shape[0]):
        if known or validity[i]:
            p = partials[i]
            diff = diffs[i]
            low = words[p, at] + np.uint64(diff)
            carry = _ONE if low < np.uint64(diff) else _ZERO
            words[p, at] = low
            words[p, at + 1] = words[p, at + 1] + np.uint64(diff >> 63) + carry


@kernel(I64, I64, I64, OUT_U64_2D, i64)
def add_integers(partials: Any, values: Any, diffs: Any, words: Any, at: int) -> None:
    """Add value x diff to the 3 words at `at`."""
    for i in range(partials.shape[0]):
        p = partials[i]
        value = values[i]
        diff = diffs[i]
        if -2147483648 <= value <= 2147483647 and -2147483648 <= diff <= 2147483647:
            product = value * diff
            low = np.uint64(product)
            total = words[p, at] + low
            words[p, at] = total
            if product >= 0:
                if total < low:
                    words[p, at + 1] = words[p, at + 1] + _ONE
                    if words[p, at + 1] == _ZERO:
                        words[p, at + 2] = words[p, at + 2] + _ONE
            elif total >= low:  # no carry out of the low word: the upper ones lose one
                if words[p, at + 1] == _ZERO:
                    words[p, at + 2] = words[p, at + 2] - _ONE
                words[p, at + 1] = words[p, at + 1] - _ONE
            continue
        a = np.uint64(-value if value < 0 else value)
        b = np.uint64(-diff if diff < 0 else diff)
        w0, w1 = multiply(a, b)
        w2 = _ZERO
        if (value < 0) != (diff < 0):
            w0 = ~w0 + _ONE
            w1 = ~w1 + (_ONE if w0 == _ZERO else _ZERO)
            w2 = np.uint64(np.int64(w1) >> 63)  # a product is below 2^126, or zero
        carry = _add_at(words, p, at, w0, _ZERO)
        carry = _add_at(words, p, at + 1, w1, carry)
        _add_at(words, p, at + 2, w2, carry)


@kernel(I64, U64_2D, I64, OUT_U64_2D, i64)
def add_numerics(partials: Any, values: Any, diffs: Any, words: Any, at: int) -> None:
    """Add value x diff to the 4 words at `at`; values (n, 2) low, high."""
    for i in range(partials.shape[0]):
        p = partials[i]
        diff = diffs[i]
        low, high = values[i, 0], values[i, 1]
        negative = np.int64(high) < 0
        if negative:
            low = ~low + _ONE
            high = ~high + (_ONE if low == _ZERO else _ZERO)
        negative = negative != (diff < 0)
        b = np.uint64(-diff if diff < 0 else diff)
        w0, carry = multiply(low, b)
        w1, w2 = multiply(high, b)
        w1 = w1 + carry
        if w1 < carry:
            w2 = w2 + _ONE
        w3 = _ZERO
        if negative:
            w0 = ~w0 + _ONE
            carry = _ONE if w0 == _ZERO else _ZERO
            w1 = ~w1 + carry
            carry = _ONE if carry != _ZERO and w1 == _ZERO else _ZERO
            w2 = ~w2 + carry
            carry = _ONE if carry != _ZERO and w2 == _ZERO else _ZERO
            w3 = ~w3 + carry
        carry = _add_at(words, p, at, w0, _ZERO)
        carry = _add_at(words, p, at + 1, w1, carry)
        carry = _add_at(words, p, at + 2, w2, carry)
        _add_at(words, p, at + 3, w3, carry)


@kernel(U64, OUT_I64)
def place_range(bits: Any, out: Any) -> None:
    """out[0:2] = the least and the greatest place of these doubles, 0 and -1 if there is none.

    A value takes 53 bits; its place is the first of them, above 2^-1074.
    """
    least: Any = np.int64(2048)
    greatest: Any = np.int64(-1)
    for i in range(bits.shape[0]):
        word = bits[i]
        exponent = np.int64((word >> _S52) & _EXPONENT)
        if exponent == 2047 or word << _ONE == _ZERO:
            continue
        place = exponent - 1 if exponent > 0 else 0
        least = min(least, place)
        greatest = max(greatest, place)
    out[0] = least if greatest >= 0 else 0
    out[1] = greatest


@kernel(I64, U64, I64, OUT_U64_2D, i64, i64, i64)
def add_doubles(partials: Any, bits: Any, diffs: Any, words: Any, at: int, first: int, limbs: int) -> None:
    """Add value x diff to the sums of doubles at `at`, whose window is [first, first + limbs)."""
    base = at + LIMBS
    end = base + limbs
    for i in range(partials.shape[0]):
        word = bits[i]
        diff = diffs[i]
        p = partials[i]
        if word << _ONE == _ZERO or diff == 0:
            continue
        negative = word >= _SIGN
        exponent = np.int64((word >> _S52) & _EXPONENT)
        fraction = word & _FRACTION
        if exponent == 2047:
            kind = NAN if fraction != _ZERO else (MINUS_INF if negative else PLUS_INF)
            words[p, at + kind] = words[p, at + kind] + np.uint64(diff)
            continue
        if exponent > 0:
            fraction = fraction | _HIDDEN
        place = exponent - 1 if exponent > 0 else 0
        if diff < 0:
            negative = not negative
        low, high = fraction, _ZERO
        if diff != 1 and diff != -1:
            low, high = multiply(fraction, np.uint64(-diff if diff < 0 else diff))
        shift = np.uint64(place & 63)
        w0, w1, w2 = low << shift, high << shift, _ZERO
        if shift != _ZERO:
            back = np.uint64(64) - shift
            w1 = w1 | (low >> back)
            w2 = high >> back
        w = base + (place >> 6) - first
        if not negative:
            carry = _add_at(words, p, w, w0, _ZERO)
            carry = _add_at(words, p, w + 1, w1, carry)
            carry = _add_at(words, p, w + 2, w2, carry)
            _carry_on(words, p, w + 3, end, carry)
        else:
            borrow = _subtract_at(words, p, w, w0, _ZERO)
            borrow = _subtract_at(words, p, w + 1, w1, borrow)
            borrow = _subtract_at(words, p, w + 2, w2, borrow)
            _borrow_on(words, p, w + 3, end, borrow)


@inner
def _multiply_wide(a0: Any, a1: Any, b0: Any, b1: Any) -> Any:
    """The four words of the product of two unsigned 128-bit numbers."""
    w0, w1 = multiply(a0, b0)
    x0, x1 = multiply(a0, b1)
    y0, y1 = multiply(a1, b0)
    w2, w3 = multiply(a1, b1)
    w1 = w1 + x0
    carry = _ONE if w1 < x0 else _ZERO
    w1 = w1 + y0
    carry = carry + (_ONE if w1 < y0 else _ZERO)
    w2 = w2 + carry
    w3 = w3 + (_ONE if w2 < carry else _ZERO)
    w2 = w2 + x1
    w3 = w3 + (_ONE if w2 < x1 else _ZERO)
    w2 = w2 + y1
    w3 = w3 + (_ONE if w2 < y1 else _ZERO)
    return w0, w1, w2, w3


@kernel(I64, U64_2D, I64, OUT_U64_2D, i64, i64)
def add_squares(partials: Any, values: Any, diffs: Any, words: Any, at: int, size: int) -> None:
    """Add value x value x diff to the `size` words at `at`; values (n, 2) low, high. size: at least 5."""
    end = at + size
    for i in range(partials.shape[0]):
        p = partials[i]
        diff = diffs[i]
        low, high = values[i, 0], values[i, 1]
        if np.int64(high) < 0:
            low = ~low + _ONE
            high = ~high + (_ONE if low == _ZERO else _ZERO)
        s0, s1, s2, s3 = _multiply_wide(low, high, low, high)
        d = np.uint64(-diff if diff < 0 else diff)
        w0, carry = multiply(s0, d)
        w1, over = multiply(s1, d)
        w1 = w1 + carry
        carry = over + (_ONE if w1 < carry else _ZERO)
        w2, over = multiply(s2, d)
        w2 = w2 + carry
        carry = over + (_ONE if w2 < carry else _ZERO)
        w3, over = multiply(s3, d)
        w3 = w3 + carry
        w4 = over + (_ONE if w3 < carry else _ZERO)
        if diff >= 0:
            carry = _add_at(words, p, at, w0, _ZERO)
            carry = _add_at(words, p, at + 1, w1, carry)
            carry = _add_at(words, p, at + 2, w2, carry)
            carry = _add_at(words, p, at + 3, w3, carry)
            carry = _add_at(words, p, at + 4, w4, carry)
            _carry_on(words, p, at + 5, end, carry)
        else:
            carry = _subtract_at(words, p, at, w0, _ZERO)
            carry = _subtract_at(words, p, at + 1, w1, carry)
            carry = _subtract_at(words, p, at + 2, w2, carry)
            carry = _subtract_at(words, p, at + 3, w3, carry)
            carry = _subtract_at(words, p, at + 4, w4, carry)
            _borrow_on(words, p, at + 5, end, carry)


@kernel(I64, U64, I64, OUT_U64_2D, i64, i64, i64)
def add_double_squares(
    partials: Any, bits: Any, diffs: Any, words: Any, at: int, first: int, limbs: int
) -> None:
    """Add value x value x diff to the sums at `at`, whose window is [first, first + limbs) above 2^-2148.

    Infinities and NaN add nothing: the sum of the values themselves counts them.
    """
    end = at + limbs
    for i in range(partials.shape[0]):
        word = bits[i]
        diff = diffs[i]
        exponent = np.int64((word >> _S52) & _EXPONENT)
        if word << _ONE == _ZERO or diff == 0 or exponent == 2047:
            continue
        p = partials[i]
        fraction = word & _FRACTION
        if exponent > 0:
            fraction = fraction | _HIDDEN
        place = 2 * (exponent - 1 if exponent > 0 else 0)
        s0, s1 = multiply(fraction, fraction)
        d = np.uint64(-diff if diff < 0 else diff)
        w0, carry = multiply(s0, d)
        w1, w2 = multiply(s1, d)
        w1 = w1 + carry
        w2 = w2 + (_ONE if w1 < carry else _ZERO)
        w3 = _ZERO
        shift = np.uint64(place & 63)
        if shift != _ZERO:
            back = np.uint64(64) - shift
            w3 = w2 >> back
            w2 = (w2 << shift) | (w1 >> back)
            w1 = (w1 << shift) | (w0 >> back)
            w0 = w0 << shift
        w = at + (place >> 6) - first
        if diff >= 0:
            carry = _add_at(words, p, w, w0, _ZERO)
            carry = _add_at(words, p, w + 1, w1, carry)
            carry = _add_at(words, p, w + 2, w2, carry)
            # Of small squares the window ends here; what is borrowed from above it is nobody's.
            if w + 3 < end:
                carry = _add_at(words, p, w + 3, w3, carry)
                _carry_on(words, p, w + 4, end, carry)
        else:
            carry = _subtract_at(words, p, w, w0, _ZERO)
            carry = _subtract_at(words, p, w + 1, w1, carry)
            carry = _subtract_at(words, p, w + 2, w2, carry)
            if w + 3 < end:
                carry = _subtract_at(words, p, w + 3, w3, carry)
                _borrow_on(words, p, w + 4, end, carry)
