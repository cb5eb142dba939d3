"""The rows at positions [offset, offset + limit) of each group, and how they change.

`top_k` keeps the difference of the windows around each time: inserting or removing copies at one position
moves the rows behind it, so the change is the copies themselves and the rows that cross an edge of the
window. It stops at a budget and goes on where it stopped.

Does not: keep trees (treap.py), allocate, or free slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from clusterd.operators.kernels.treap import (
    EMITTED,
    FAULTS,
    FLUSHED,
    LEFT,
    OWN,
    PARENT,
    PENDING,
    POSITION,
    RIGHT,
    TOUCHED,
    VISITED,
    apply_count,
    below,
    insert,
    position,
    set_weight,
    weight_of,
)
from shm_arrangements.kernels.jit import (
    I64,
    OUT_I64,
    OUT_U8,
    OUT_U64,
    OUT_U64_2D,
    U8,
    U64,
    U64_2D,
    i64,
    inner,
    kernel,
    read,
    write,
)

I64_2D = read(i64, 2)
OUT_I32 = write(types.int32)
OUT_I32_2D = write(types.int32, 2)
OUT_I64_2D = write(i64, 2)


@inner
def _note(weights: Any, touched: Any, marks: Any, state: Any, node: Any, change: Any) -> None:
    """Add to what the window's change holds of a row."""
    weights[node, PENDING] += change
    if marks[node] == 0:
        marks[node] = 1
        touched[state[TOUCHED]] = node
        state[TOUCHED] += 1


@inner
def _note_range(
    links: Any, weights: Any, root: Any, group: Any, skipped: Any, start: Any, end: Any, sign: Any,
    touched: Any, marks: Any, state: Any,
) -> int:  # fmt: skip
    """Note sign x the rows at positions [start, end) of the group, not counting the copies of `skipped`."""
    own, at = weights[skipped, OWN], np.int64(0)
    if own > 0:
        at, _ = position(links, weights, skipped)
        # Positions are of the sequence without `skipped`; those behind it stand `own` further on.
        if start >= at:
            start += own
        if end > at:
            end += own
    end = min(end, below(weights, np.int64(root[group])))
    if start >= end:
        return 0
    visited = 0
    node = np.int64(root[group])
    before = 0  # copies before the subtree of node
    while True:
        visited += 1
        left = np.int64(links[node, LEFT])
        here = before + below(weights, left)
        if start < here:
            node = left
        elif start < here + weights[node, OWN]:
            before = here
            break
        else:
            before = here + weights[node, OWN]
            node = np.int64(links[node, RIGHT])
    while before < end:
        stop = before + weights[node, OWN]
        if node != skipped:
            _note(weights, touched, marks, state, node, sign * (min(stop, end) - max(before, start)))
        before = stop
        if before >= end:
            break
        visited += 1
        if links[node, RIGHT] >= 0:
            node = np.int64(links[node, RIGHT])
            while links[node, LEFT] >= 0:
                node = np.int64(links[node, LEFT])
                visited += 1
        else:
            child = node
            node = np.int64(links[node, PARENT])
            while links[node, RIGHT] == child:
                child = node
                node = np.int64(links[node, PARENT])
                visited += 1
    return visited


@inner
def _overlap(a: Any, b: Any, c: Any, d: Any) -> Any:
    return max(min(b, d) - max(a, c), 0)


@inner
def _note_copies(
    links: Any, weights: Any, root: Any, group: Any, node: Any, before: Any, old: Any, new: Any,
    offset: Any, limit: Any, touched: Any, marks: Any, state: Any,
) -> int:  # fmt: skip
    """Note how the window changes as the copies of `node`, at position `before`, go from `old` to `new`.

    Both windows are read off the sequence S without the node: with c copies at position p the window [a, b)
    shows S[a, min(p, b)) and S[max(a - c, p), b - c), so the change is the difference of two such unions,
    at either edge.
    """
    end = offset + limit
    change = _overlap(before, before + new, offset, end) - _overlap(before, before + old, offset, end)
    if change != 0:
        _note(weights, touched, marks, state, node, change)
    # Rows behind the node: S[max(offset - c, before), max(end - c, before)) for c = old, then for c = new.
    a0, b0 = max(offset - old, before), max(end - old, before)
    a1, b1 = max(offset - new, before), max(end - new, before)
    visited = 0
    if b0 <= a1 or b1 <= a0:
        visited += _note_range(links, weights, root, group, node, a0, b0, -1, touched, marks, state)
        visited += _note_range(links, weights, root, group, node, a1, b1, 1, touched, marks, state)
    else:
        if a0 < a1:
            visited += _note_range(links, weights, root, group, node, a0, a1, -1, touched, marks, state)
        else:
            visited += _note_range(links, weights, root, group, node, a1, a0, 1, touched, marks, state)
        if b0 < b1:
            visited += _note_range(links, weights, root, group, node, b0, b1, 1, touched, marks, state)
        else:
            visited += _note_range(links, weights, root, group, node, b1, b0, -1, touched, marks, state)
    return visited


@kernel(
    I64, I64, U64, U64_2D, i64, i64, i64, i64, i64,
    U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_U64_2D, OUT_I32_2D, OUT_I64_2D, OUT_I32, OUT_U8, OUT_I64,
    OUT_I64, OUT_U64, OUT_I64, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64,
)  # fmt: skip
def top_k(
    order: Any, p_slot: Any, p_time: Any, p_words: Any,
    offset: int, limit: int, cap: int, most: int, budget: int,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, links: Any, weights: Any, root: Any, marks: Any, touched: Any,
    out_rows: Any, out_times: Any, out_diffs: Any,
    fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> int:  # fmt: skip
    """Apply the partials `order`, ascending in time, and emit the changes of the windows, each time's net.

    Returns 1 when all is done, else 0: call again after taking state[EMITTED] rows and state[FAULTS] faults.
    budget: nodes to visit in this call, about. touched: (slots,), marks: (slots,) zero between times.
    """
    n = order.shape[0]
    state[EMITTED] = 0
    state[FAULTS] = 0
    stop = state[VISITED] + budget
    while True:
        k = state[POSITION]
        if state[TOUCHED] > 0 and (
            state[FLUSHED] > 0 or k == n or (k > 0 and p_time[order[k]] != p_time[order[k - 1]])
        ):
            time = p_time[order[k - 1]]
            while state[FLUSHED] < state[TOUCHED]:
                if state[EMITTED] == out_rows.shape[0]:
                    return 0
                row = touched[state[FLUSHED]]
                state[FLUSHED] += 1
                marks[row] = 0
                if weights[row, PENDING] != 0:
                    e = state[EMITTED]
                    out_rows[e] = row
                    out_times[e] = time
                    out_diffs[e] = weights[row, PENDING]
                    weights[row, PENDING] = 0
                    state[EMITTED] += 1
            state[TOUCHED] = 0
            state[FLUSHED] = 0
            state[VISITED] += state[EMITTED]
        if k == n:
            return 1
        if state[VISITED] >= stop or state[FAULTS] == fault_rows.shape[0]:
            return 0
        p = order[k]
        state[POSITION] += 1
        state[VISITED] += 1
        row = p_slot[p]
        group = np.int64(lanes[row, 0])
        apply_count(p_words, p, s_words, row, p_time, most, fault_rows, fault_times, fault_words, state)
        old = weights[row, OWN]
        new = weight_of(s_words[row, 0], s_words[row, 1], cap)
        if old == new:
            continue
        if old == 0:
            state[VISITED] += insert(lanes, lo, hi, text, kinds, flips, links, weights, root, group, row, new)
        before, visited = position(links, weights, row)
        state[VISITED] += visited
        if before < offset + limit:
            state[VISITED] += _note_copies(
                links, weights, root, group, row, before, old, new, offset, limit, touched, marks, state
            )
        if old != 0:
            state[VISITED] += set_weight(
                lanes, lo, hi, text, kinds, flips, links, weights, root, group, row, new
            )
