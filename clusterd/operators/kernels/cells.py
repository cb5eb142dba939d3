"""Cells: of each group of a recursion, the iterations at which it was changed, as a chain that ascends.

A cell is a (group, iteration), an entry of its group's chain (chains.py). Whoever keeps something by cell
finds what came after an iteration at a cost of what came after it alone: a chain is walked from its end. Most
changes come at the last iteration so far.

Does not: allocate, or know what is kept by cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterd.operators.kernels.chains import BEFORE, LAST, link, unlink
from shm_arrangements.kernels.jit import I32_2D, I64, OUT_I32_2D, OUT_I64, i64, kernel

# places in the state of reach
GROUP, REACHED = 0, 1


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
        out[k] = link(ends, links, free, meta, group, at, later)
        iterations[out[k]] = iteration


@kernel(I64, I64, OUT_I32_2D, OUT_I32_2D, OUT_I64, OUT_I64)
def close_cells(groups: Any, cells: Any, ends: Any, links: Any, free: Any, meta: Any) -> None:
    """Take cells (distinct, of these groups) out of their chains, for reuse."""
    for k in range(cells.shape[0]):
        unlink(ends, links, free, meta, groups[k], cells[k])
