"""Pairs of updates with equal keys, of two batches sorted by code.

`match_runs` walks two ascending code arrays and gives the runs of equal codes; it gallops on both sides, so a
small side costs the logarithm of the large one a key, not its length. The caller verifies that the keys of a
run are equal. `expand_runs` gives every pair of the verified runs whose times are wanted, with the greater
time and the product of the diffs, of all pairs or of those in which the right update is not later than the
left one, or is earlier. Both stop at a budget of steps and go on where they stopped, so any join is
cut into small pieces.

Does not: look at keys, allocate, gather columns, or give products of 48 bits and more: such pairs are set
aside (join_overflow.py says why).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.cells import cell
from shm_arrangements.kernels.jit import (
    I64,
    OUT_I64,
    OUT_I64_2D,
    OUT_U64,
    U64,
    i64,
    inner,
    kernel,
    u64,
    write,
)

# places in the state of match_runs
LEFT, RIGHT, SOUGHT = 0, 1, 2
# places in the state of expand_runs
RUN, AT_LEFT, AT_RIGHT, WIDE, STEPS = 0, 1, 2, 3, 4

# which pairs expand_runs wants, by their times
ANY, NOT_LATER, EARLIER = 0, 1, 2

_SMALL = 16777215  # the product of two such diffs is below 2^48
_WIDE = 281474976710656.0  # 2^48


@inner
def _gallop(codes: Any, start: Any, code: Any) -> Any:
    """(first place from `start` on whose code is not below `code`, steps taken)."""
    n = codes.shape[0]
    if start >= n or codes[start] >= code:
        return start, 1
    low = start  # codes[low] < code
    step = 1
    steps = 1
    while low + step < n and codes[low + step] < code:
        low += step
        step <<= 1
        steps += 1
    high = min(low + step, n)  # not below, or the end
    while high - low > 1:
        middle = (low + high) >> 1
        steps += 1
        if codes[middle] < code:
            low = middle
        else:
            high = middle
    return high, steps


@inner
def _run_end(codes: Any, start: Any) -> Any:
    """(end of the run of equal codes that begins at `start`, steps taken)."""
    n = codes.shape[0]
    code = codes[start]
    low = start  # codes[low] == code
    step = 1
    steps = 1
    while low + step < n and codes[low + step] == code:
        low += step
        step <<= 1
        steps += 1
    high = min(low + step, n)
    while high - low > 1:
        middle = (low + high) >> 1
        steps += 1
        if codes[middle] == code:
            low = middle
        else:
            high = middle
    return high, steps


@kernel(U64, U64, i64, OUT_I64, OUT_I64_2D)
def match_runs(left: Any, right: Any, budget: int, state: Any, out: Any) -> int:
    """out[k] = [left start, left end, right start, right end) of the k-th run of equal codes. Returns how
    many.

    state: (3,) where to go on, all being done when either has reached its end; and the steps of this call,
    about `budget` at most.
    """
    i, j = state[LEFT], state[RIGHT]
    n, m = left.shape[0], right.shape[0]
    runs = 0
    steps = 0
    while i < n and j < m and runs < out.shape[0] and steps < budget:
        x, y = left[i], right[j]
        if x < y:
            i, more = _gallop(left, i, y)
            steps += more
        elif y < x:
            j, more = _gallop(right, j, x)
            steps += more
        else:
            end, more = _run_end(left, i)
            last, again = _run_end(right, j)
            steps += more + again
            out[runs, 0] = i
            out[runs, 1] = end
            out[runs, 2] = j
            out[runs, 3] = last
            runs += 1
            i, j = end, last
    state[LEFT] = i
    state[RIGHT] = j
    state[SOUGHT] = steps
    return runs


@kernel(
    write(i64, 2), U64, I64, u64, u64, U64, I64, u64, u64, u64, i64, i64,
    OUT_I64, OUT_I64, OUT_I64, OUT_U64, OUT_I64, OUT_I64, OUT_I64,
)  # fmt: skip
def expand_runs(
    runs: Any, l_times: Any, l_diffs: Any, l_first: Any, l_last: Any, r_times: Any, r_diffs: Any, r_first:
    Any, r_last: Any, as_of: Any, order: int, budget: int, state: Any, out_left: Any, out_right: Any,
    out_times: Any, out_diffs: Any, wide_left: Any, wide_right: Any,
) -> int:  # fmt: skip
    """Pairs (left row, right row, time, diff) of `runs` (k, 4), those with times in [first, last] on each
    side.

    Times and diffs are one an update, or one for all. Times are advanced to as_of before they are judged.
    order: ANY, or what the right time has to be beside the left one.
    Pairs whose product has more than 48 bits go to wide_*.
    Returns how many pairs; state[WIDE] is how many wide ones, state[STEPS] the steps of this call, `budget`
    at most. All is done when state[RUN] == k.
    """
    run, a, b = state[RUN], state[AT_LEFT], state[AT_RIGHT]
    pairs = 0
    wide = 0
    room = out_left.shape[0]
    wide_room = wide_left.shape[0]
    steps = 0
    while run < runs.shape[0]:
        if a < 0:
            a, b = runs[run, 0], runs[run, 2]
        l_end, r_end = runs[run, 1], runs[run, 3]
        while a < l_end:
            time = max(cell(l_times, a), as_of)
            steps += 1
            if l_first <= time and time <= l_last:
                most = r_last
                if order == NOT_LATER:
                    most = min(most, time)
                elif order == EARLIER:
                    if time == np.uint64(0):
                        a += 1
                        b = runs[run, 2]
                        continue
                    most = min(most, time - np.uint64(1))
                diff = cell(l_diffs, a)
                # As far as room and budget surely reach, without asking at each pair.
                while b < r_end:
                    stop = min(r_end, b + min(room - pairs, budget - steps, wide_room - wide))
                    if stop <= b:
                        state[RUN], state[AT_LEFT], state[AT_RIGHT] = run, a, b
                        state[WIDE], state[STEPS] = wide, steps
                        return pairs
                    steps += stop - b
                    small = -_SMALL <= diff <= _SMALL
                    for j in range(b, stop):
                        other = max(cell(r_times, j), as_of)
                        if other < r_first or other > most:
                            continue
                        d = cell(r_diffs, j)
                        if not (small and -_SMALL <= d <= _SMALL):
                            product = float(diff) * float(d)
                            if product >= _WIDE or product <= -_WIDE:
                                wide_left[wide] = a
                                wide_right[wide] = j
                                wide += 1
                                continue
                        out_left[pairs] = a
                        out_right[pairs] = j
                        out_times[pairs] = max(time, other)
                        out_diffs[pairs] = diff * d
                        pairs += 1
                    b = stop
            a += 1
            b = runs[run, 2]
            if steps >= budget and a < l_end:
                state[RUN], state[AT_LEFT], state[AT_RIGHT] = run, a, b
                state[WIDE], state[STEPS] = wide, steps
                return pairs
        run += 1
        a, b = np.int64(-1), np.int64(0)
        if steps >= budget:
            break
    state[RUN], state[AT_LEFT], state[AT_RIGHT] = run, a, b
    state[WIDE], state[STEPS] = wide, steps
    return pairs
