"""Sums that are exact under retraction: wide two's complement integers, and doubles as fixed-point numbers.

A sum of bigints is 3 words (192 bits), of numerics 4, so that no run of products value x diff leaves it;
since arithmetic modulo 2^k is exact, any order of adding gives the same words, and a sum whose contents are
gone is zero.

A sum of doubles is a fixed-point number of 64-bit limbs whose least unit is 2^-1074 * 2^(64 * first),
beside three counts: of +inf, -inf and NaN. The caller keeps a window of limbs [first, first + n) wide
enough for all values seen (`limb_range`). `round_limbs` gives the double nearest to the exact sum, ties to
even.

NULLs hold zero, so they add nothing and need no test; only `add_valid` looks at validity.

Does not: allocate, judge ranges (`narrow_words` and `round_limbs` report them), or know what a group is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import (
    BOOL,
    I64,
    OUT_BOOL,
    OUT_I64,
    OUT_U64,
    OUT_U64_2D,
    U64,
    U64_2D,
    i64,
    inner,
    kernel,
)

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_S32, _S63, _S52 = np.uint64(32), np.uint64(63), np.uint64(52)
_LOW = np.uint64(0xFFFFFFFF)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_EXPONENT = np.uint64(0x7FF)
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)
_SIGN = np.uint64(1 << 63)
_INFINITE = np.uint64(0x7FF << 52)
# 10^38, the first integer that a numeric cannot hold
_LIMIT_LOW = np.uint64(10**38 & ((1 << 64) - 1))
_LIMIT_HIGH = np.uint64(10**38 >> 64)

PLUS_INF, MINUS_INF, NAN, LIMBS = 0, 1, 2, 3  # places in a sum of doubles


@inner
def _multiply(a: Any, b: Any) -> Any:
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
        w0, w1 = _multiply(a, b)
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
        w0, carry = _multiply(low, b)
        w1, w2 = _multiply(high, b)
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
def limb_range(bits: Any, out: Any) -> None:
    """out[0:2] = least limb that sums of these doubles (as bits) need, and one past the greatest; 0, 0: none.

    A value takes 53 bits, a diff 63 more, and 2^14 such products 14 more, with a sign.
    """
    least: Any = np.int64(2048)
    greatest: Any = np.int64(-1)
    for i in range(bits.shape[0]):
        word = bits[i]
        exponent = np.int64((word >> _S52) & _EXPONENT)
        if exponent == 2047 or word << _ONE == _ZERO:
            continue
        place = exponent - 1 if exponent > 0 else 0  # of the least bit, above 2^-1074
        least = min(least, place)
        greatest = max(greatest, place)
    if greatest < 0:
        out[0], out[1] = 0, 0
    else:
        out[0] = least >> 6
        out[1] = ((greatest + 53 + 63 + 14 + 1) >> 6) + 1


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
            low, high = _multiply(fraction, np.uint64(-diff if diff < 0 else diff))
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
            w += 3
            while carry != _ZERO and w < end:
                words[p, w] = words[p, w] + _ONE
                carry = _ONE if words[p, w] == _ZERO else _ZERO
                w += 1
        else:
            borrow = _ZERO
            for k in range(3):
                y = w0 if k == 0 else (w1 if k == 1 else w2)
                x = words[p, w]
                words[p, w] = x - y - borrow
                borrow = _ONE if x < y or (x == y and borrow != _ZERO) else _ZERO
                w += 1
            while borrow != _ZERO and w < end:
                borrow = _ONE if words[p, w] == _ZERO else _ZERO
                words[p, w] = words[p, w] - _ONE
                w += 1


@inner
def _limb(words: Any, row: Any, at: Any, k: Any, carry: Any, negative: Any) -> Any:
    """Limb k of the absolute value, and the carry into the next."""
    x = words[row, at + k]
    if not negative:
        return x, carry
    x = ~x + carry
    return x, (_ONE if carry != _ZERO and x == _ZERO else _ZERO)


@kernel(U64_2D, i64, i64, i64, OUT_U64, OUT_BOOL)
def round_limbs(words: Any, at: int, first: int, limbs: int, out: Any, fits: Any) -> None:
    """out[i] = bits of the double nearest to the sum of row i; fits[i] is false if no double is near.

    Infinities count with their sign, so minus one of +inf is -inf; both kinds together, or any NaN, make NaN.
    """
    base = at + LIMBS
    for i in range(words.shape[0]):
        fits[i] = True
        plus, minus = np.int64(words[i, at + PLUS_INF]), np.int64(words[i, at + MINUS_INF])
        up = plus > 0 or minus < 0
        down = minus > 0 or plus < 0
        if words[i, at + NAN] != _ZERO or (up and down):
            out[i] = _INFINITE | (_ONE << np.uint64(51))
            continue
        if up or down:
            out[i] = _INFINITE if up else _INFINITE | _SIGN
            continue
        out[i] = _ZERO
        if limbs == 0:
            continue
        negative = words[i, base + limbs - 1] >= _SIGN
        # The highest set bit of the absolute value.
        carry = _ONE
        top = -1
        head = _ZERO
        for k in range(limbs):
            x, carry = _limb(words, i, base, k, carry, negative)
            if x != _ZERO:
                top = k
                head = x
        if top < 0:
            continue
        bit = 63
        while head >> np.uint64(bit) == _ZERO:
            bit -= 1
        place = 64 * (first + top) + bit  # above 2^-1074
        drop = max(place - 52, 0) - 64 * first  # bits of the window below the 53 kept
        mantissa = _ZERO
        half = False
        sticky = False
        carry = _ONE
        for k in range(limbs):
            x, carry = _limb(words, i, base, k, carry, negative)
            low = drop - 64 * k  # bits of this limb below the mantissa
            if low >= 64:
                if low == 64:
                    half = x >= _SIGN
                    sticky = sticky or x << _ONE != _ZERO
                else:
                    sticky = sticky or x != _ZERO
            elif low > 0:
                mantissa = mantissa | (x >> np.uint64(low))
                half = (x >> np.uint64(low - 1)) & _ONE != _ZERO
                if low > 1:
                    sticky = sticky or x << np.uint64(65 - low) != _ZERO
            elif low > -64:
                mantissa = mantissa | (x << np.uint64(-low))
        if half and (sticky or mantissa & _ONE != _ZERO):
            mantissa = mantissa + _ONE
        # place 52 and below is subnormal or the first normal binade: bits and value agree without an
        # exponent.
        exponent = max(place - 52, 0)
        bits = mantissa
        if exponent > 0:
            bits = mantissa + (np.uint64(exponent) << _S52)
        if bits >= _INFINITE:
            fits[i] = False
            continue
        out[i] = bits | _SIGN if negative else bits


@kernel(U64_2D, i64, i64, OUT_U64_2D, OUT_BOOL)
def narrow_words(words: Any, at: int, size: int, out: Any, fits: Any) -> None:
    """out[i] (2 words) = the number in words[i, at:at+size]; fits[i] is whether it has at most 38 digits."""
    for i in range(words.shape[0]):
        low, high = words[i, at], words[i, at + 1]
        sign = np.uint64(np.int64(high) >> 63)
        fit = True
        for w in range(at + 2, at + size):
            fit = fit and words[i, w] == sign
        out[i, 0] = low
        out[i, 1] = high
        if sign != _ZERO:
            low = ~low + _ONE
            high = ~high + (_ONE if low == _ZERO else _ZERO)
        fits[i] = fit and (high < _LIMIT_HIGH or (high == _LIMIT_HIGH and low < _LIMIT_LOW))
