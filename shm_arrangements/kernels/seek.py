"""Searching sorted codes: the runs of given keys, and the runs two arrays have in common.

Codes are hashes, so they are spread evenly: a first guess by proportion lands near, and doubling steps from
there find the place in a few cache lines. Skewed codes only cost more steps, never more than 2 log n. Who
walks two arrays skips by doubling steps too, so a small side costs its own length times a logarithm, not
the length of the large one.

Does not: verify that rows with equal codes have equal keys; callers do.
"""

from __future__ import annotations

from typing import Any

from shm_arrangements.kernels.cells import cell
from shm_arrangements.kernels.jit import I64, OUT_I64, U64, i64, inner, kernel, u64

_WORDS = float(1 << 64)


@inner
def lower_bound(codes: Any, code: Any, lo: Any, hi: Any) -> Any:
    """First position in [lo, hi] whose code is not below `code`; codes[lo:hi] ascending."""
    while lo < hi:
        middle = (lo + hi) >> 1
        if codes[middle] < code:
            lo = middle + 1
        else:
            hi = middle
    return lo


@inner
def seek_from(codes: Any, code: Any, start: Any) -> Any:
    """First position >= start whose code is not below `code`, by doubling steps from `start`."""
    n = codes.shape[0]
    if start >= n or codes[start] >= code:
        return start
    step = 1
    lo = start
    while lo + step < n and codes[lo + step] < code:
        lo += step
        step *= 2
    return lower_bound(codes, code, lo + 1, min(lo + step, n))


@inner
def run_end(codes: Any, start: Any) -> Any:
    """End of the run of equal codes that begins at `start`, by doubling steps."""
    n = codes.shape[0]
    code = codes[start]
    step = 1
    lo = start
    while lo + step < n and codes[lo + step] == code:
        lo += step
        step *= 2
    hi = min(lo + step, n)
    lo += 1
    while lo < hi:
        middle = (lo + hi) >> 1
        if codes[middle] == code:
            lo = middle + 1
        else:
            hi = middle
    return lo


@inner
def _seek_by_proportion(codes: Any, code: Any) -> Any:
    n = codes.shape[0]
    guess = min(int(float(code) / _WORDS * n), n - 1)
    if codes[guess] < code:
        return seek_from(codes, code, guess)
    step = 1
    hi = guess
    while hi - step >= 0 and codes[hi - step] >= code:
        hi -= step
        step *= 2
    return lower_bound(codes, code, max(hi - step, 0), hi)


@kernel(U64, U64, OUT_I64, OUT_I64)
def find_runs(codes: Any, keys: Any, out_lo: Any, out_hi: Any) -> int:
    """[out_lo[k], out_hi[k]) = where code keys[k] stands in the sorted `codes`; equal if nowhere.

    Keys may be in any order; ascending ones are found by walking on. Returns the updates found.
    """
    n = codes.shape[0]
    found = 0
    for k in range(keys.shape[0]):
        code = keys[k]
        if n == 0:
            out_lo[k] = 0
            out_hi[k] = 0
            continue
        if k > 0 and code == keys[k - 1]:
            out_lo[k] = out_lo[k - 1]
            out_hi[k] = out_hi[k - 1]
            found += out_hi[k] - out_lo[k]
            continue
        # Many ascending keys stand close together; few are found faster from the proportion.
        if k > 0 and code > keys[k - 1] and keys.shape[0] * 16 > n:
            lo = seek_from(codes, code, out_lo[k - 1])
        else:
            lo = _seek_by_proportion(codes, code)
        hi = lo
        if lo < n and codes[lo] == code:
            hi = run_end(codes, lo)
        out_lo[k] = lo
        out_hi[k] = hi
        found += hi - lo
    return found


@kernel(U64, U64, i64, i64, OUT_I64, OUT_I64, OUT_I64, OUT_I64)
def match_runs(
    codes_a: Any, codes_b: Any, i: int, j: int, out_a_lo: Any, out_a_hi: Any, out_b_lo: Any, out_b_hi: Any
) -> tuple[int, int, int]:
    """Pairs of runs of the same code in two sorted arrays, from positions i and j on.

    Returns (k, i, j): k pairs were written, as [out_a_lo, out_a_hi) and [out_b_lo, out_b_hi), and the
    search goes on at (i, j). It is over when k is less than the room given.
    """
    n, m = codes_a.shape[0], codes_b.shape[0]
    room = out_a_lo.shape[0]
    k = 0
    while i < n and j < m and k < room:
        if codes_a[i] < codes_b[j]:
            i = seek_from(codes_a, codes_b[j], i)
        elif codes_b[j] < codes_a[i]:
            j = seek_from(codes_b, codes_a[i], j)
        else:
            out_a_lo[k] = i
            out_b_lo[k] = j
            i = run_end(codes_a, i)
            j = run_end(codes_b, j)
            out_a_hi[k] = i
            out_b_hi[k] = j
            k += 1
    return k, i, j


@kernel(I64, I64, U64, u64, OUT_I64, OUT_I64)
def expand_runs(lo: Any, hi: Any, times: Any, last: Any, out_rows: Any, out_keys: Any) -> int:
    """List the rows of all runs whose time is at most `last`, each with the number of its run.

    times: one a row, or one for all. Returns how many.
    """
    count = 0
    for k in range(lo.shape[0]):
        for row in range(lo[k], hi[k]):
            if cell(times, row) <= last:
                out_rows[count] = row
                out_keys[count] = k
                count += 1
    return count
