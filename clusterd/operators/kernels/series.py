"""Series of integers: which values, from a start by a step up or down to a stop.

`series_ends` says, once a block, what the last position of each row's series is; `expand_series` writes (row,
value) pairs until the room is used, and goes on where it stopped, so a series of any length is cut into
blocks. Positions are unsigned, values are made modulo 2^64, and as the last value lies between start and
stop no value wraps.

Does not: allocate, look at NULLs (the caller marks them), or know a block's rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import BOOL, I64, OUT_BOOL, OUT_I64, OUT_U64, U64, kernel

ROW, POSITION = 0, 1  # places in the state of expand_series


@kernel(I64, I64, I64, BOOL, OUT_U64, OUT_BOOL)
def series_ends(starts: Any, stops: Any, steps: Any, known: Any, out: Any, some: Any) -> None:
    """out[i] = the position of the last value of row i, where some[i]; else the series is empty.

    A step of 0 has no series.
    """
    for i in range(starts.shape[0]):
        start, stop, step = starts[i], stops[i], steps[i]
        some[i] = False
        out[i] = np.uint64(0)
        if not known[i]:
            continue
        if step > 0 and stop >= start:
            out[i] = (np.uint64(stop) - np.uint64(start)) // np.uint64(step)
            some[i] = True
        elif step < 0 and stop <= start:
            out[i] = (np.uint64(start) - np.uint64(stop)) // (~np.uint64(step) + np.uint64(1))
            some[i] = True


@kernel(I64, I64, U64, BOOL, OUT_U64, OUT_I64, OUT_I64)
def expand_series(
    starts: Any, steps: Any, ends: Any, some: Any, state: Any, out_rows: Any, out_values: Any
) -> int:
    """Fill out_rows and out_values with the next values; returns how many. All is done when
    state[ROW] == n.
    """
    n = starts.shape[0]
    i = np.int64(state[ROW])
    at = state[POSITION]
    room = out_rows.shape[0]
    made = 0
    while i < n and made < room:
        if not some[i]:
            i += 1
            continue
        start, step = np.uint64(starts[i]), np.uint64(steps[i])
        left = ends[i] - at
        take = np.int64(room - made)
        whole = left < np.uint64(take)
        if whole:
            take = np.int64(left) + 1
        value = start + step * at
        for _ in range(take):
            out_rows[made] = i
            out_values[made] = np.int64(value)
            value += step
            made += 1
        if whole:
            i += 1
            at = np.uint64(0)
        else:
            at += np.uint64(take)
    state[ROW] = np.uint64(i)
    state[POSITION] = at
    return made
