"""Folding sorted rows: sums of equal neighbours, and merges of sorted runs.

Sums of diffs are kept in two 32-bit halves, so that only the total counts, whatever the order of adding. A
total beyond 64 bits stays in parts where a batch is made (batch.py), and is an error where rows are read.

`compare_rows` comes from rows.py, and numba's cache of this file does not notice a change there: `make
clean-cache`.
"""

from __future__ import annotations

from typing import Any

from shm_arrangements.kernels.jit import I64, OUT_I64, U8, U64, U64_2D, i64, inner, kernel, u64
from shm_arrangements.kernels.rows import I64_2D, compare_rows

_LOW32 = 0xFFFFFFFF
_MOST_HIGH = 0x7FFFFFFF  # the high half of 2^63 - 1
_LEAST_HIGH = -0x80000000  # of -2^63


@inner
def _write_sum(high: int, low: int, ref: int, at: int, refs: Any, sums: Any) -> int:
    """Write a sum of k diffs from `at` on: nothing if zero, as up to k parts if beyond 64 bits.

    low: within 32 bits. Returns where the next goes. All parts but the last are 2^63 - 1 or -2^63.
    """
    while high > _MOST_HIGH:
        refs[at] = ref
        sums[at] = (_MOST_HIGH << 32) | _LOW32
        at += 1
        low -= _LOW32
        high -= _MOST_HIGH
        if low < 0:
            low += _LOW32 + 1
            high -= 1
    while high < _LEAST_HIGH:
        refs[at] = ref
        sums[at] = _LEAST_HIGH << 32
        at += 1
        high -= _LEAST_HIGH
    if high != 0 or low != 0:
        refs[at] = ref
        sums[at] = (high << 32) | low
        at += 1
    return at


@kernel(U64_2D, U8, I64_2D, I64_2D, U8, U64, I64, I64, i64, OUT_I64, OUT_I64)
def consolidate(
    lanes: Any, kinds: Any, lo: Any, hi: Any, text: Any, times: Any, diffs: Any,
    order: Any, split: int, out_rows: Any, out_diffs: Any,
) -> int:  # fmt: skip
    """Sum the diffs of neighbours in `order` with equal row and time; drop zero sums.

    times: (rows,), or empty to sum over all times. out_rows gets the first row of each sum.
    split: 1 writes a sum beyond 64 bits in parts; 0 refuses it.
    Returns how many were written, or -1 if a sum was refused. out_rows may be `order` itself.
    """
    kept = 0
    k = 0
    n = order.shape[0]
    while k < n:
        row = order[k]
        high, low = diffs[row] >> 32, diffs[row] & _LOW32
        k += 1
        while (
            k < n
            and (times.shape[0] == 0 or times[order[k]] == times[row])
            and compare_rows(lanes, lo, hi, text, row, lanes, lo, hi, text, order[k], kinds, 0, 0) == 0
        ):
            diff = diffs[order[k]]
            high += diff >> 32
            low += diff & _LOW32
            k += 1
        high += low >> 32
        low &= _LOW32
        if split == 0 and (high < _LEAST_HIGH or high > _MOST_HIGH):
            return -1
        kept = _write_sum(high, low, row, kept, out_rows, out_diffs)
    return kept


@inner
def _emit(refs: Any, sums: Any, state: Any) -> None:
    """Close the open update: append its sum."""
    high = state[4] + (state[5] >> 32)
    state[3] = _write_sum(high, state[5] & _LOW32, state[6], state[3], refs, sums)


@kernel(
    U64, U64_2D, I64_2D, I64_2D, U8, U64, I64, i64, i64,
    U64, U64_2D, I64_2D, I64_2D, U8, U64, I64, i64, i64,
    U8, u64, i64, OUT_I64, OUT_I64, OUT_I64,
)  # fmt: skip
def merge_rows(
    a_codes: Any, a_lanes: Any, a_lo: Any, a_hi: Any, a_text: Any, a_times: Any, a_diffs: Any,
    a_first: int, a_final: int,
    b_codes: Any, b_lanes: Any, b_lo: Any, b_hi: Any, b_text: Any, b_times: Any, b_diffs: Any,
    b_first: int, b_final: int,
    kinds: Any, since: Any, fuel: int, state: Any, refs: Any, sums: Any,
) -> int:  # fmt: skip
    """Merge two sorted slices, times advanced to `since`, equal (row, time) summed, zero sums dropped.

    A slice is part of a run, from row `a_first` of it; `a_final` says that the run ends with it. Each slice
    must begin one row before the next to consume (if there is one), so that a new row can be compared to
    the last. state: next row in a, next in b (within the slices), side of the last (-1 none, 0 a, 1 b),
    updates written, high and low half of the open sum, its ref, finished. A ref r >= 0 is row r of a's run,
    r < 0 row ~r of b's.
    Stops after `fuel` updates, at the end of a slice that is not final, or when finished.
    Returns the updates consumed.
    """
    i, j, side = state[0], state[1], state[2]
    n, m = a_codes.shape[0], b_codes.shape[0]
    done = 0
    while done < fuel:
        if (i == n and a_final == 0) or (j == m and b_final == 0):
            break
        if i == n and j == m:
            if side >= 0:
                _emit(refs, sums, state)
            state[7] = 1
            break
        if j == m:
            take = 0
        elif i == n:
            take = 1
        elif a_codes[i] != b_codes[j]:
            take = 0 if a_codes[i] < b_codes[j] else 1
        else:
            c = compare_rows(a_lanes, a_lo, a_hi, a_text, i, b_lanes, b_lo, b_hi, b_text, j, kinds, 0, 0)
            if c == 0:
                take = 0 if max(a_times[i], since) <= max(b_times[j], since) else 1
            else:
                take = 0 if c < 0 else 1
        same = False
        if side >= 0:
            code = a_codes[i] if take == 0 else b_codes[j]
            time = max(a_times[i] if take == 0 else b_times[j], since)
            last_code = a_codes[i - 1] if side == 0 else b_codes[j - 1]
            last_time = max(a_times[i - 1] if side == 0 else b_times[j - 1], since)
            if code == last_code and time == last_time:
                if take == 0 and side == 0:
                    c = compare_rows(
                        a_lanes, a_lo, a_hi, a_text, i - 1, a_lanes, a_lo, a_hi, a_text, i, kinds, 0, 0
                    )
                elif take == 0:
                    c = compare_rows(
                        b_lanes, b_lo, b_hi, b_text, j - 1, a_lanes, a_lo, a_hi, a_text, i, kinds, 0, 0
                    )
                elif side == 0:
                    c = compare_rows(
                        a_lanes, a_lo, a_hi, a_text, i - 1, b_lanes, b_lo, b_hi, b_text, j, kinds, 0, 0
                    )
                else:
                    c = compare_rows(
                        b_lanes, b_lo, b_hi, b_text, j - 1, b_lanes, b_lo, b_hi, b_text, j, kinds, 0, 0
                    )
                same = c == 0
        if not same:
            if side >= 0:
                _emit(refs, sums, state)
            state[4] = 0
            state[5] = 0
            state[6] = a_first + i if take == 0 else ~(b_first + j)
        diff = a_diffs[i] if take == 0 else b_diffs[j]
        state[4] += diff >> 32
        state[5] += diff & _LOW32
        side = take
        if take == 0:
            i += 1
        else:
            j += 1
        done += 1
    state[0], state[1], state[2] = i, j, side
    return done


@kernel(U64, U64_2D, U8, I64_2D, I64_2D, U8, OUT_I64, OUT_I64, I64)
def merge_sorted(
    codes: Any, lanes: Any, kinds: Any, lo: Any, hi: Any, text: Any, order: Any, spare: Any, starts: Any
) -> None:
    """Sort order (n,) by (code, row), given that each run of it is; runs begin at `starts`, the first at 0.

    The runs are merged from the last to the first, so they should fall in size, as a chain's batches do:
    then the cost is about 2 n. spare: (n,) scratch.
    """
    n = order.shape[0]
    for run in range(starts.shape[0] - 2, -1, -1):
        first, middle = starts[run], starts[run + 1]
        size = middle - first
        for k in range(size):
            spare[k] = order[first + k]
        a, b, at = 0, middle, first
        while a < size and b < n:
            i, j = spare[a], order[b]
            after = codes[i] > codes[j]
            if codes[i] == codes[j]:
                after = compare_rows(lanes, lo, hi, text, i, lanes, lo, hi, text, j, kinds, 0, 0) > 0
            if after:
                order[at] = j
                b += 1
            else:
                order[at] = i
                a += 1
            at += 1
        while a < size:
            order[at] = spare[a]
            a += 1
            at += 1
