"""Results of exact sums: the nearest double, a numeric, a mean, a variance, each rounded where it says.

A number is words [at, at + size) of a row, two's complement, in units of 2^unit above 2^-1074, the least
double; a sum of integers has unit 1074, a sum of squares of doubles a negative one. `round_row` gives the
nearest double or real, ties to even. What fits no result is reported in `fits`, row by row.

Does not: allocate, add, or know what a group is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterd.operators.kernels.accumulate import LIMBS, MINUS_INF, NAN, PLUS_INF, multiply
from shm_arrangements.kernels.jit import (
    I64,
    OUT_BOOL,
    OUT_U64,
    OUT_U64_2D,
    U64_2D,
    i64,
    inner,
    kernel,
)

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_S32, _S63 = np.uint64(32), np.uint64(63)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(1 << 63)
_INFINITE = np.uint64(0x7FF << 52)
_NAN_BITS = np.uint64(0xFFF << 51)
# 10^38, the first integer that a numeric cannot hold
_LIMIT_LOW = np.uint64(10**38 & ((1 << 64) - 1))
_LIMIT_HIGH = np.uint64(10**38 >> 64)

DIGITS = 16  # words of scratch that `mean_words` needs
_REAL_BASE = 1074 - 149  # the least real above the least double


@inner
def _limb(words: Any, row: Any, at: Any, k: Any, carry: Any, negative: Any) -> Any:
    """Limb k of the absolute value, and the carry into the next."""
    x = words[row, at + k]
    if not negative:
        return x, carry
    x = ~x + carry
    return x, (_ONE if carry != _ZERO and x == _ZERO else _ZERO)


@inner
def round_row(words: Any, row: Any, at: Any, size: Any, unit: Any, bits: Any) -> Any:
    """(the nearest float's bits without sign, whether it is negative) of a number; size > 0.

    unit: 2-logarithm of the number's unit over the least float's. bits: of the fraction. A result beyond all
    floats comes out as infinity's bits or more.
    """
    negative = words[row, at + size - 1] >= _HALF
    carry = _ONE
    top = -1
    head = _ZERO
    for k in range(size):
        x, carry = _limb(words, row, at, k, carry, negative)
        if x != _ZERO:
            top = k
            head = x
    if top < 0:
        return _ZERO, False
    bit = 63
    while head >> np.uint64(bit) == _ZERO:
        bit -= 1
    place = unit + 64 * top + bit
    exponent = max(place - bits, 0)
    drop = exponent - unit  # bits of the number below the fraction
    mantissa = _ZERO
    half = False
    sticky = False
    carry = _ONE
    for k in range(size):
        x, carry = _limb(words, row, at, k, carry, negative)
        low = drop - 64 * k  # bits of this limb below the fraction
        if low >= 64:
            if low == 64:
                half = x >= _HALF
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
    # An exponent of 0 is subnormal or the first normal binade: there bits and value agree.
    return mantissa + (np.uint64(exponent) << np.uint64(bits)), negative


@inner
def _special(words: Any, i: Any, at: Any, infinite: Any, quiet: Any) -> Any:
    """(whether infinities or NaN decide a sum of doubles, its bits then without sign, whether negative).

    Infinities count with their sign, so minus one of +inf is -inf; both kinds together, or any NaN, make NaN.
    """
    plus, minus = np.int64(words[i, at + PLUS_INF]), np.int64(words[i, at + MINUS_INF])
    up = plus > 0 or minus < 0
    down = minus > 0 or plus < 0
    if words[i, at + NAN] != _ZERO or (up and down):
        return True, infinite | quiet, False
    return up or down, infinite, down


@kernel(U64_2D, i64, i64, i64, i64, OUT_U64, OUT_BOOL)
def round_limbs(words: Any, at: int, first: int, limbs: int, is_real: int, out: Any, fits: Any) -> None:
    """out[i] = bits of the double (or real) nearest to the sum of doubles of row i; fits[i]: there is one."""
    bits, top = (23, np.uint64(31)) if is_real else (52, _S63)
    infinite = ((_ONE << (top - np.uint64(bits))) - _ONE) << np.uint64(bits)
    unit = 64 * first - (_REAL_BASE if is_real else 0)
    for i in range(words.shape[0]):
        fits[i] = True
        special, word, negative = _special(words, i, at, infinite, _ONE << np.uint64(bits - 1))
        if not special:
            word = _ZERO
            if limbs > 0:
                word, negative = round_row(words, i, at + LIMBS, limbs, unit, bits)
                if word >= infinite:
                    fits[i] = False
                    word = _ZERO
        out[i] = word | (_ONE << top) if negative and word != _ZERO else word


@inner
def _is_numeric(low: Any, high: Any) -> bool:
    """Whether an unsigned number has at most 38 digits."""
    return bool(high < _LIMIT_HIGH or (high == _LIMIT_HIGH and low < _LIMIT_LOW))


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
        fits[i] = fit and _is_numeric(low, high)


@kernel(U64_2D, i64, i64, I64, i64, OUT_U64, OUT_U64_2D, OUT_BOOL)
def mean_words(
    words: Any, at: int, size: int, counts: Any, factor: int, digits: Any, out: Any, fits: Any
) -> None:
    """out[i] (2 words) = the number in words[i, at:at+size] times `factor` over counts[i], half away from 0.

    counts: 0 gives 0. factor: positive. digits: (DIGITS,) scratch, 32 bits in each.
    """
    parts = 2 * size + 2
    for i in range(words.shape[0]):
        fits[i] = True
        out[i, 0] = _ZERO
        out[i, 1] = _ZERO
        count = counts[i]
        if count == 0:
            continue
        negative = words[i, at + size - 1] >= _HALF
        carry = _ONE
        over = _ZERO
        for k in range(size):
            x, carry = _limb(words, i, at, k, carry, negative)
            low, high = multiply(x, np.uint64(factor))
            low = low + over
            over = high + (_ONE if low < over else _ZERO)
            digits[2 * k] = low & _LOW
            digits[2 * k + 1] = low >> _S32
        digits[parts - 2] = over & _LOW
        digits[parts - 1] = over >> _S32
        divisor = np.uint64(-count if count < 0 else count)
        rest = _ZERO
        for k in range(parts - 1, -1, -1):
            if divisor <= _LOW:
                rest = (rest << _S32) | digits[k]
                digits[k] = rest // divisor
                rest = rest % divisor
            else:
                quotient = _ZERO
                for b in range(31, -1, -1):  # divisor < 2^63, so twice the rest is a word
                    rest = (rest << _ONE) | ((digits[k] >> np.uint64(b)) & _ONE)
                    quotient = quotient << _ONE
                    if rest >= divisor:
                        rest = rest - divisor
                        quotient = quotient | _ONE
                digits[k] = quotient
        low = digits[0] | (digits[1] << _S32)
        high = digits[2] | (digits[3] << _S32)
        for k in range(4, parts):
            fits[i] = fits[i] and digits[k] == _ZERO
        if rest >= divisor - rest:
            low = low + _ONE
            high = high + (_ONE if low == _ZERO else _ZERO)
        fits[i] = fits[i] and _is_numeric(low, high)
        if negative != (count < 0):
            low = ~low + _ONE
            high = ~high + (_ONE if low == _ZERO else _ZERO)
        out[i, 0] = low
        out[i, 1] = high


@inner
def _accumulate(scratch: Any, w: Any, word: Any, subtract: Any) -> None:
    """scratch[0, w:] += word, or -= word."""
    while word != _ZERO and w < scratch.shape[1]:
        x = scratch[0, w]
        if subtract:
            scratch[0, w] = x - word
            word = _ONE if x < word else _ZERO
        else:
            scratch[0, w] = x + word
            word = _ONE if scratch[0, w] < word else _ZERO
        w += 1


@kernel(U64_2D, i64, i64, i64, i64, i64, i64, i64, I64, OUT_U64_2D, OUT_U64, OUT_BOOL)
def spread_words(
    words: Any, at: int, size: int, first: int, squares_at: int, squares_size: int, squares_first: int,
    counters_at: int, counts: Any, scratch: Any, out: Any, fits: Any,
) -> None:  # fmt: skip
    """out[i] = bits of the double nearest to n x squares - sum x sum, exact before that.

    first, squares_first: in units of 64 bits above 1; or, if infinities and NaN are counted from
    `counters_at` >= 0 on, above 2^-1074 and 2^-2148: any of them makes NaN. size, squares_size: 0 if nothing
    was ever added. A negative result is -inf. counts: n. scratch: (1, m) with room for the number.
    """
    base = min(2 * first, squares_first)
    unit = 64 * base + (1074 if counters_at < 0 else -1074)
    m = scratch.shape[1]
    for i in range(words.shape[0]):
        fits[i] = True
        out[i] = _ZERO
        n = counts[i]
        if counters_at >= 0 and (
            words[i, counters_at + PLUS_INF] != _ZERO
            or words[i, counters_at + MINUS_INF] != _ZERO
            or words[i, counters_at + NAN] != _ZERO
        ):
            out[i] = _NAN_BITS
            continue
        if size == 0:
            continue
        for w in range(m):
            scratch[0, w] = _ZERO
        # Both products by their absolute values.
        negative = words[i, squares_at + squares_size - 1] >= _HALF
        minus = negative != (n < 0)
        carry = _ONE
        for k in range(squares_size):
            x, carry = _limb(words, i, squares_at, k, carry, negative)
            low, high = multiply(x, np.uint64(-n if n < 0 else n))
            _accumulate(scratch, squares_first - base + k, low, minus)
            _accumulate(scratch, squares_first - base + k + 1, high, minus)
        negative = words[i, at + size - 1] >= _HALF
        carry = _ONE
        for k in range(size):
            x, carry = _limb(words, i, at, k, carry, negative)
            if x == _ZERO:
                continue
            other = _ONE
            for j in range(size):
                y, other = _limb(words, i, at, j, other, negative)
                low, high = multiply(x, y)
                _accumulate(scratch, 2 * first - base + k + j, low, True)
                _accumulate(scratch, 2 * first - base + k + j + 1, high, True)
        word, negative = round_row(scratch, 0, 0, m, unit, 52)
        if negative:
            out[i] = _HALF | _INFINITE
            continue
        fits[i] = word < _INFINITE
        if fits[i]:
            out[i] = word
