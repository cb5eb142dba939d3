"""Searching sorted codes: where one code stands, the runs of given ones, and the runs two arrays share.

A first guess by proportion between the two ends lands on the place if codes are consecutive integers, and
near it if they are spread evenly, as hashes are; a second and a third guess from there by the same slope end
a few codes off, and those few are compared all at once. Codes of any other shape only cost more steps: after
three guesses that miss, doubling ones, so at most 2 log n.

Many codes are searched in lockstep, `_WIDTH` at a time: each guess asks the memory for its line, and when its
turn comes again the line is there. So a search costs what the memory's bandwidth says, and not its latency.

Does not: verify that rows with equal codes have equal keys; callers do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from shm_arrangements.kernels.jit import OUT_I64, U64, inner, kernel

_WIDTH = 64
_GUESSES = 3
_NEAR = 16  # codes compared at once, where the last guess says
SCRATCH = _WIDTH  # int64 that `find_runs` needs


@intrinsic
def _prefetch(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], cgutils.voidptr_t)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        name = "llvm.prefetch.p0"
        function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        builder.call(function, [place, word(0), word(3), word(1)])  # to read, into every cache, data
        return context.get_dummy_value()

    return types.void(types.int64), codegen


prefetch: Any = _prefetch  # the line at an address, which need not be one: nothing comes of a wrong one
if getattr(config, "DISABLE_JIT", 0):
    prefetch = lambda address: None  # noqa: E731


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
def seek_near(codes: Any, code: Any, near: Any) -> Any:
    """First position whose code is not below `code`, by doubling steps from `near` in either direction."""
    if codes[near] < code:
        return seek_from(codes, code, near)
    step = 1
    hi = near
    while hi - step >= 0 and codes[hi - step] >= code:
        hi -= step
        step *= 2
    return lower_bound(codes, code, max(hi - step + 1, 0), hi)


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
def slope_of(codes: Any) -> Any:
    """Rows a unit of code, between the ends of n > 0 codes."""
    n = codes.shape[0]
    span = codes[n - 1] - codes[0]
    if span == np.uint64(0):
        return 0.0
    return float(n - 1) / float(span)


@inner
def guess_from(codes: Any, code: Any, slope: Any, at: Any) -> Any:
    """Where `code` stands if the codes go on from position `at` by the slope."""
    here = codes[at]
    if here < code:
        away = float(code - here) * slope
        return at + np.int64(min(away, float(codes.shape[0] - 1 - at)))
    away = float(here - code) * slope
    return at - np.int64(min(away, float(at)))


@inner
def window_of(codes: Any, at: Any) -> Any:
    """Where the _NEAR codes around a position begin."""
    return max(min(at - _NEAR // 2, codes.shape[0] - _NEAR), 0)


@inner
def seek_in_window(codes: Any, code: Any, start: Any) -> Any:
    """First position whose code is not below `code`, which is probably in the window from `start` on."""
    n = codes.shape[0]
    if n < _NEAR:
        return lower_bound(codes, code, 0, n)
    below = 0
    for k in range(_NEAR):
        below += codes[start + k] < code
    if 0 < below < _NEAR or (below == 0 and start == 0):
        return start + below
    return seek_near(codes, code, start if below == 0 else start + _NEAR - 1)


@inner
def find_code(codes: Any, code: Any) -> Any:
    """First position whose code is not below `code`; len(codes) if all are.

    codes: (n,) uint64, ascending. The run of an equal code ends at `run_end(codes, position)`. For other
    kernels: find.find_in_batch makes the rows of a key of this.
    """
    n = codes.shape[0]
    if n == 0 or codes[n - 1] < code:
        return np.int64(n)
    if codes[0] >= code:
        return np.int64(0)
    slope = slope_of(codes)
    at = np.int64(0)
    for _ in range(_GUESSES):
        at = guess_from(codes, code, slope, at)
        if codes[at] == code and codes[at - 1] < code:  # at > 0: the first code is below
            return np.int64(at)
    return np.int64(seek_in_window(codes, code, window_of(codes, at)))


@kernel(U64, U64, OUT_I64, OUT_I64, OUT_I64)
def find_runs(codes: Any, keys: Any, out_lo: Any, out_hi: Any, scratch: Any) -> int:
    """[out_lo[k], out_hi[k]) = where code keys[k] stands in the sorted `codes`; equal if nowhere.

    Keys may be in any order, and are found faster if they ascend. scratch: (SCRATCH,). Returns the updates
    found.
    """
    n = codes.shape[0]
    found: Any = 0
    if n == 0:
        for k in range(keys.shape[0]):
            out_lo[k] = 0
            out_hi[k] = 0
        return 0
    slope = slope_of(codes)
    first_code = np.int64(codes.ctypes.data)
    base = np.int64(0)
    for first in range(0, keys.shape[0], _WIDTH):
        width = min(_WIDTH, keys.shape[0] - first)
        for k in range(width):
            at = guess_from(codes, keys[first + k], slope, base)
            prefetch(first_code + 8 * at)
            scratch[k] = at
        for guess in range(1, _GUESSES):
            for k in range(width):
                at = guess_from(codes, keys[first + k], slope, scratch[k])
                if guess == _GUESSES - 1:
                    at = window_of(codes, at)
                    prefetch(first_code + 8 * (at + _NEAR))
                prefetch(first_code + 8 * at)
                scratch[k] = at
        for k in range(width):
            code = keys[first + k]
            lo = seek_in_window(codes, code, scratch[k])
            hi = lo
            if lo < n and codes[lo] == code:
                hi = run_end(codes, lo)
            out_lo[first + k] = lo
            out_hi[first + k] = hi
            found += hi - lo
        base = np.int64(min(out_lo[first + width - 1], n - 1))
    return found  # type: ignore[no-any-return]
