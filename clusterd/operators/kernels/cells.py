"""Cells: of each group of a recursion, the iterations at which it was changed, as a chain that ascends.

A cell is a (group, iteration). Whoever keeps something by cell finds what came after an iteration at a cost
of what came after it alone: a chain is walked from its end. Most changes come at the last iteration so far.

Does not: allocate, or know what is kept by cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from shm_arrangements.kernels.jit import I64, OUT_I64, i64, kernel, read, write

I32_2D, OUT_I32_2D = read(types.int32, 2), write(types.int32, 2)

# places in the meta of the pool of cells
FREE, USED = 0, 1
# places in the state of reach
GROUP, REACHED = 0, 1
# columns of `links`, and of `ends` (by group)
AFTER, BEFORE = 0, 1
FIRST, LAST = 0, 1


@kernel(I64, i64, I32_2D, I32_2D, I64, OUT_I64, OUT_I64)
def reach(
    groups: Any, iteration: int, ends: Any, links: Any, iterations: Any, cells: Any, state: Any
) -> None:
    """The cells of groups[state[GROUP]:] after `iteration`, each group's descending.

    Stops before a group whose cells have no room; state[REACHED]: how many are given.
    """
    n, room = groups.shape[0], cells.shape[0]
    k = state[GROUP]
    count = 0
    while k < n:
        start = count
        at = np.int64(ends[groups[k], LAST])
        while at >= 0 and iterations[at] > iteration and count < room:
            cells[count] = at
            count += 1
            at = np.int64(links[at, BEFORE])
        if at >= 0 and iterations[at] > iteration:
            count = start
            break
        k += 1
    state[GROUP] = k
    state[REACHED] = count


@kernel(I64, i64, OUT_I32_2D, OUT_I32_2D, OUT_I64, I64, OUT_I64, OUT_I64)
def open_cells(
    groups: Any, iteration: int, ends: Any, links: Any, iterations: Any, free: Any, meta: Any, out: Any
) -> None:
    """out[k] = the cell of groups[k] (distinct) at `iteration`, made where there is none.

    The pool has room for one more a group.
    """
    for k in range(groups.shape[0]):
        group = groups[k]
        later = np.int64(-1)
        at = np.int64(ends[group, LAST])
        while at >= 0 and iterations[at] > iteration:
            later = at
            at = np.int64(links[at, BEFORE])
        if at >= 0 and iterations[at] == iteration:
            out[k] = at
            continue
        if meta[FREE] > 0:
            meta[FREE] -= 1
            made = free[meta[FREE]]
        else:
            made = meta[USED]
            meta[USED] += 1
        iterations[made] = iteration
        links[made, AFTER] = later
        links[made, BEFORE] = at
        if at >= 0:
            links[at, AFTER] = made
        else:
            ends[group, FIRST] = made
        if later >= 0:
            links[later, BEFORE] = made
        else:
            ends[group, LAST] = made
        out[k] = made


@kernel(I64, I64, OUT_I32_2D, OUT_I32_2D, OUT_I64, OUT_I64)
def close_cells(groups: Any, cells: Any, ends: Any, links: Any, free: Any, meta: Any) -> None:
    """Take cells (distinct, of these groups) out of their chains, for reuse."""
    for k in range(cells.shape[0]):
        cell = cells[k]
        after, before = links[cell, AFTER], links[cell, BEFORE]
        if before >= 0:
            links[before, AFTER] = after
        else:
            ends[groups[k], FIRST] = after
        if after >= 0:
            links[after, BEFORE] = before
        else:
            ends[groups[k], LAST] = before
        free[meta[FREE]] = cell
        meta[FREE] += 1
