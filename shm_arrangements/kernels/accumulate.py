"""Sums of diffs over runs of sorted updates: what makes equal updates one.

A sum is kept in two halves, the upper in units of 2^32, so that only the total counts, whatever the order of
adding, and no addition overflows before 2^31 of them. A total beyond 64 bits stays in parts where a batch is
made (batch.py), and is an error where rows are read.

Does not: sum values of rows: those are a matter of what computes with them.
"""

from __future__ import annotations

from typing import Any, Final

from shm_arrangements.kernels.jit import I64, I64_2D, OUT_I64, U8, U64, U64_2D, inner, kernel
from shm_arrangements.kernels.rows import compare_rows

LOW32: Final = 0xFFFFFFFF
MOST_HIGH: Final = 0x7FFFFFFF  # the upper half of 2^63 - 1
LEAST_HIGH: Final = -0x80000000  # of -2^63


@inner
def write_parts(high: int, low: int, sums: Any, at: int) -> int:
    """Write a sum of k diffs from `at` on: nothing if zero, as up to k parts if beyond 64 bits.

    low: within 32 bits. Returns where the next goes. All parts but the last are 2^63 - 1 or -2^63.
    """
    while high > MOST_HIGH:
        sums[at] = (MOST_HIGH << 32) | LOW32
        at += 1
        low -= LOW32
        high -= MOST_HIGH
        if low < 0:
            low += LOW32 + 1
            high -= 1
    while high < LEAST_HIGH:
        sums[at] = LEAST_HIGH << 32
        at += 1
        high -= LEAST_HIGH
    if high != 0 or low != 0:
        sums[at] = (high << 32) | low
        at += 1
    return at


@kernel(U64_2D, U8, I64_2D, I64_2D, U8, U64, I64, I64, OUT_I64, OUT_I64)
def consolidate(
    lanes: Any, kinds: Any, lo: Any, hi: Any, text: Any, times: Any, diffs: Any,
    order: Any, out_rows: Any, out_diffs: Any,
) -> int:  # fmt: skip
    """Sum the diffs of neighbours in `order` with equal row and time; drop zero sums.

    times: (rows,), or empty to sum over all times. out_rows gets the first row of each sum.
    Returns how many were written, or -1 if a sum is beyond 64 bits. out_rows may be `order` itself.
    """
    kept = 0
    k = 0
    n = order.shape[0]
    while k < n:
        row = order[k]
        high, low = diffs[row] >> 32, diffs[row] & LOW32
        k += 1
        while (
            k < n
            and (times.shape[0] == 0 or times[order[k]] == times[row])
            and compare_rows(lanes, lo, hi, text, row, lanes, lo, hi, text, order[k], kinds, 0, 0) == 0
        ):
            diff = diffs[order[k]]
            high += diff >> 32
            low += diff & LOW32
            k += 1
        high += low >> 32
        low &= LOW32
        if high < LEAST_HIGH or high > MOST_HIGH:
            return -1
        if high != 0 or low != 0:
            out_rows[kept], out_diffs[kept] = row, (high << 32) | low
            kept += 1
    return kept
