"""Rows of a group in order: one treap a group, over the slots of a row table, copies summed below each.

A node is the slot of a row; its priority is a hash of the slot, so the shape depends on no input order.
Every change costs O(log n) expected nodes, and `state[VISITED]` counts them. Nodes hold parents, so the
position of a row that is there already is found without comparing rows. Rows compare by lanes, each flipped
or not (descending, NULLs first), a tied text by its bytes; the first lane is the group and is skipped.

A row stands in its tree with `weight` > 0 copies: its count, cut to [0, cap]. So a net-negative row is no
row, and what the tree shows is a function of the counts alone, whatever order they came in.

`top_k` keeps the difference of the windows [offset, offset + limit) around each time: inserting or removing
copies at one position moves the rows behind it, so the change is the copies themselves and the rows that
cross an edge of the window. `extremes` gives the first and last row around each time. Both stop at a budget
and go on where they stopped.

Does not: allocate, free slots (the caller does at the end of the round), or know what a column is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

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

# columns of `links`
LEFT, RIGHT, PARENT = 0, 1, 2
# columns of `weights`
OWN, BELOW, PENDING = 0, 1, 2

# places in `state`
POSITION, VISITED, FAULTS, EMITTED, TOUCHED, FLUSHED, PHASE, GROUPS = 0, 1, 2, 3, 4, 5, 6, 7
STATE_SIZE = 8

_TEXT = 2  # the lane kind
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_S40 = np.uint64(40)


@inner
def _priority(node: Any) -> Any:
    return (np.uint64(node) * _ODD) >> _S40


@inner
def _is_before(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any, a: Any, b: Any
) -> Any:  # fmt: skip
    """Whether row a sorts before row b; they differ."""
    slot = 0
    for lane in range(1, kinds.shape[0]):
        x, y = lanes[a, lane], lanes[b, lane]
        if x != y:
            return (x < y) != (flips[lane] != 0)
        if kinds[lane] == _TEXT:
            a_lo, b_lo = lo[a, slot], lo[b, slot]
            a_size, b_size = hi[a, slot] - a_lo, hi[b, slot] - b_lo
            for k in range(8, min(a_size, b_size)):
                if text[a_lo + k] != text[b_lo + k]:
                    return (text[a_lo + k] < text[b_lo + k]) != (flips[lane] != 0)
            if a_size != b_size:
                return (a_size < b_size) != (flips[lane] != 0)
            slot += 1
    return False


@inner
def _below(weights: Any, node: Any) -> Any:
    return weights[node, BELOW] if node >= 0 else 0


@inner
def _replace_child(links: Any, root: Any, group: Any, parent: Any, old: Any, new: Any) -> None:
    if parent < 0:
        root[group] = new
    elif links[parent, LEFT] == old:
        links[parent, LEFT] = new
    else:
        links[parent, RIGHT] = new
    if new >= 0:
        links[new, PARENT] = parent


@inner
def _rotate_up(links: Any, weights: Any, root: Any, group: Any, node: Any) -> None:
    """Put `node` in the place of its parent."""
    parent = np.int64(links[node, PARENT])
    near, far = (LEFT, RIGHT) if links[parent, LEFT] == node else (RIGHT, LEFT)
    inner_child = np.int64(links[node, far])
    _replace_child(links, root, group, np.int64(links[parent, PARENT]), parent, node)
    links[node, far] = parent
    links[parent, PARENT] = node
    links[parent, near] = inner_child
    if inner_child >= 0:
        links[inner_child, PARENT] = parent
    weights[node, BELOW] = weights[parent, BELOW]
    weights[parent, BELOW] = (
        weights[parent, OWN]
        + _below(weights, np.int64(links[parent, LEFT]))
        + _below(weights, np.int64(links[parent, RIGHT]))
    )


@inner
def _insert(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    links: Any, weights: Any, root: Any, group: Any, node: Any, weight: Any,
) -> int:  # fmt: skip
    """Hang a new node into its tree. Returns nodes visited."""
    visited = 1
    parent = np.int64(-1)
    side = LEFT
    at = np.int64(root[group])
    while at >= 0:
        visited += 1
        weights[at, BELOW] += weight
        parent = at
        side = LEFT if _is_before(lanes, lo, hi, text, kinds, flips, node, at) else RIGHT
        at = np.int64(links[at, side])
    links[node, LEFT] = -1
    links[node, RIGHT] = -1
    links[node, PARENT] = parent
    weights[node, OWN] = weight
    weights[node, BELOW] = weight
    if parent < 0:
        root[group] = node
    else:
        links[parent, side] = node
    while parent >= 0 and _priority(node) > _priority(parent):
        _rotate_up(links, weights, root, group, node)
        parent = np.int64(links[node, PARENT])
        visited += 1
    return visited


@inner
def _remove(links: Any, weights: Any, root: Any, group: Any, node: Any) -> int:
    """Take a node out of its tree. Returns nodes visited."""
    visited = 1
    while True:
        left, right = np.int64(links[node, LEFT]), np.int64(links[node, RIGHT])
        if left < 0 or right < 0:
            break
        child = left if _priority(left) > _priority(right) else right
        _rotate_up(links, weights, root, group, child)
        visited += 1
    parent = np.int64(links[node, PARENT])
    _replace_child(links, root, group, parent, node, left if left >= 0 else right)
    weight = weights[node, OWN]
    while parent >= 0:
        weights[parent, BELOW] -= weight
        parent = np.int64(links[parent, PARENT])
        visited += 1
    weights[node, OWN] = 0
    return visited


@inner
def _reweigh(links: Any, weights: Any, node: Any, change: Any) -> int:
    """Change the copies of a node in its tree. Returns nodes visited."""
    visited = 0
    weights[node, OWN] += change
    while node >= 0:
        weights[node, BELOW] += change
        node = np.int64(links[node, PARENT])
        visited += 1
    return visited


@inner
def _position(links: Any, weights: Any, node: Any) -> Any:
    """(copies before the node, nodes visited)."""
    before = _below(weights, np.int64(links[node, LEFT]))
    visited = 1
    parent = np.int64(links[node, PARENT])
    while parent >= 0:
        if links[parent, RIGHT] == node:
            before += weights[parent, OWN] + _below(weights, np.int64(links[parent, LEFT]))
        node = parent
        parent = np.int64(links[node, PARENT])
        visited += 1
    return before, visited


@inner
def _set_weight(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    links: Any, weights: Any, root: Any, group: Any, node: Any, weight: Any,
) -> int:  # fmt: skip
    old = weights[node, OWN]
    if weight == old:
        return 0
    if old == 0:
        return _insert(lanes, lo, hi, text, kinds, flips, links, weights, root, group, node, weight)
    if weight == 0:
        return _remove(links, weights, root, group, node)
    return _reweigh(links, weights, node, weight - old)


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
        at, _ = _position(links, weights, skipped)
        # Positions are of the sequence without `skipped`; those behind it stand `own` further on.
        if start >= at:
            start += own
        if end > at:
            end += own
    end = min(end, _below(weights, np.int64(root[group])))
    if start >= end:
        return 0
    visited = 0
    node = np.int64(root[group])
    before = 0  # copies before the subtree of node
    while True:
        visited += 1
        left = np.int64(links[node, LEFT])
        here = before + _below(weights, left)
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


@inner
def _weight_of(low: Any, high: Any, cap: Any) -> Any:
    """The 128-bit count cut to [0, cap]."""
    if np.int64(high) < 0:
        return np.int64(0)
    if high != _ZERO or low > np.uint64(cap):
        return np.int64(cap)
    return np.int64(low)


@inner
def _is_fault(low: Any, high: Any, most: Any) -> Any:
    """Whether a count is negative, or beyond `most` (if that is not negative)."""
    if np.int64(high) < 0:
        return True
    return most >= 0 and (high != _ZERO or low > np.uint64(most))


@inner
def _apply_count(
    p_words: Any, p: Any, s_words: Any, row: Any, p_time: Any, most: Any,
    fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> None:  # fmt: skip
    """Add the count of partial p to its row, and note a fault before or after it."""
    low0, high0 = s_words[row, 0], s_words[row, 1]
    low = low0 + p_words[p, 0]
    high = high0 + p_words[p, 1] + (_ONE if low < low0 else _ZERO)
    s_words[row, 0] = low
    s_words[row, 1] = high
    if _is_fault(low0, high0, most) or _is_fault(low, high, most):
        k = state[FAULTS]
        state[FAULTS] += 1
        fault_rows[k] = row
        fault_times[k] = p_time[p]
        fault_words[k, 0] = low0
        fault_words[k, 1] = high0
        fault_words[k, 2] = low
        fault_words[k, 3] = high


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
        _apply_count(p_words, p, s_words, row, p_time, most, fault_rows, fault_times, fault_words, state)
        old = weights[row, OWN]
        new = _weight_of(s_words[row, 0], s_words[row, 1], cap)
        if old == new:
            continue
        if old == 0:
            state[VISITED] += _insert(
                lanes, lo, hi, text, kinds, flips, links, weights, root, group, row, new
            )
        before, visited = _position(links, weights, row)
        state[VISITED] += visited
        if before < offset + limit:
            state[VISITED] += _note_copies(
                links, weights, root, group, row, before, old, new, offset, limit, touched, marks, state
            )
        if old != 0:
            state[VISITED] += _set_weight(
                lanes, lo, hi, text, kinds, flips, links, weights, root, group, row, new
            )


@inner
def _edge(links: Any, root: Any, group: Any, side: Any) -> Any:
    """(the first or last node of a group's tree or -1, nodes visited)."""
    node = np.int64(root[group])
    visited = 0
    if node < 0:
        return node, visited
    while links[node, side] >= 0:
        node = np.int64(links[node, side])
        visited += 1
    return node, visited


@kernel(
    I64, I64, U64, I64, I64, U64, U64_2D, i64,
    U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_U64_2D, OUT_I32_2D, OUT_I64_2D, OUT_I32,
    OUT_I32_2D, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64,
)  # fmt: skip
def extremes(
    g_order: Any, g_slot: Any, g_time: Any, order: Any, p_slot: Any, p_time: Any, p_words: Any, budget: int,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, links: Any, weights: Any, root: Any,
    out: Any, fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> int:  # fmt: skip
    """Apply the partials `order` of rows; note for each partial of a group its first and last row around it.

    g_order, order: ascending in time; the times of `order` are among those of `g_order`.
    out: (groups' partials, 4) int32: first and last before, first and last after; -1 is none.
    Returns 1 when all is done, else 0: call again after taking state[FAULTS] faults.
    Per time: note before (PHASE 0), apply (1), note after (2). GROUPS is where the time's groups begin.
    """
    groups, n = g_order.shape[0], order.shape[0]
    state[FAULTS] = 0
    stop = state[VISITED] + budget
    while True:
        start = state[GROUPS]
        if start >= groups:
            return 1
        time = g_time[g_order[start]]
        if state[PHASE] != 1:
            side = 0 if state[PHASE] == 0 else 2
            k = start + state[FLUSHED]
            while k < groups and g_time[g_order[k]] == time:
                if state[VISITED] >= stop:
                    state[FLUSHED] = k - start
                    return 0
                group = g_slot[g_order[k]]
                node, visited = _edge(links, root, group, LEFT)
                out[k, side] = node
                state[VISITED] += visited + 1
                node, visited = _edge(links, root, group, RIGHT)
                out[k, side + 1] = node
                state[VISITED] += visited + 1
                k += 1
            state[FLUSHED] = 0
            if state[PHASE] == 0:
                state[PHASE] = 1
            else:
                state[PHASE] = 0
                state[GROUPS] = k
            continue
        while state[POSITION] < n and p_time[order[state[POSITION]]] == time:
            if state[VISITED] >= stop or state[FAULTS] == fault_rows.shape[0]:
                return 0
            p = order[state[POSITION]]
            state[POSITION] += 1
            row = p_slot[p]
            group = np.int64(lanes[row, 0])
            _apply_count(p_words, p, s_words, row, p_time, -1, fault_rows, fault_times, fault_words, state)
            new = _weight_of(s_words[row, 0], s_words[row, 1], 1)
            state[VISITED] += 1 + _set_weight(
                lanes, lo, hi, text, kinds, flips, links, weights, root, group, row, new
            )
        state[PHASE] = 2
