"""The rows at positions [offset, end) of each group, and how they change.

`top_k` keeps the difference of the windows around each time: inserting or removing copies at one position
moves the rows behind it, so the change is the copies themselves and the rows that cross an edge of the
window. It takes a group at a time, and in it the times as they ascend. It stops at a budget and goes on where
it stopped.

A group that is new is built in one walk over its rows, if they come in order. Else what changes will walk is
asked for ahead (ahead.py).

Of groups that only grow, what falls behind the window leaves its tree and is no row any more: it cannot come
back. So a tree holds no more copies than its window needs.

Does not: keep trees (treap.py), allocate, free slots, or evaluate what bounds a window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterd.operators.kernels.ahead import AHEAD, look_for_edges, look_for_rows
from clusterd.operators.kernels.treap import (
    EMITTED,
    EVICTED,
    FAULTS,
    FLUSHED,
    LEFT,
    LOOKED,
    MARK,
    OWN,
    PARENT,
    PENDING,
    POSITION,
    RIGHT,
    TOUCHED,
    VISITED,
    append,
    apply_count,
    below,
    close,
    insert,
    is_before,
    is_before_node,
    note_fault,
    order_key,
    position,
    set_weight,
    weight_of,
)
from shm_arrangements.kernels.jit import (
    I64,
    I64_2D,
    OUT_I32,
    OUT_I64,
    OUT_I64_2D,
    OUT_U8,
    OUT_U64,
    OUT_U64_2D,
    U8,
    U64,
    U64_2D,
    i64,
    inner,
    kernel,
)

# columns of the bounds of groups: the window is [OFFSET, END); where CODE is not 0 there is an error instead
OFFSET, END, CODE = 0, 1, 2

_MOST_BUILT = 16_384  # rows of a group built without a pause: some ms


_ZERO, _ONE = np.uint64(0), np.uint64(1)


@inner
def _note(nodes: Any, touched: Any, state: Any, node: Any, change: Any) -> None:
    """Add to what the window's change holds of a row."""
    nodes[node, PENDING] += change
    if nodes[node, MARK] == 0:
        nodes[node, MARK] = 1
        touched[state[TOUCHED]] = node
        state[TOUCHED] += 1


@inner
def _note_range(
    nodes: Any, root: Any, group: Any, skipped: Any, at: Any, start: Any, end: Any, sign: Any,
    touched: Any, state: Any,
) -> int:  # fmt: skip
    """Note sign x the rows at positions [start, end) of the group, not counting the copies of `skipped`.

    `skipped` stands at position `at`.
    """
    if start >= end:
        return 0
    own = nodes[skipped, OWN]
    # Positions are of the sequence without `skipped`; those behind it stand `own` further on.
    if start >= at:
        start += own
    if end > at:
        end += own
    end = min(end, below(nodes, np.int64(root[group])))
    if start >= end:
        return 0
    visited = 0
    node = np.int64(root[group])
    before = 0  # copies before the subtree of node
    while True:
        visited += 1
        left = nodes[node, LEFT]
        here = before + below(nodes, left)
        if start < here:
            node = left
        elif start < here + nodes[node, OWN]:
            before = here
            break
        else:
            before = here + nodes[node, OWN]
            node = nodes[node, RIGHT]
    while before < end:
        stop = before + nodes[node, OWN]
        if node != skipped:
            _note(nodes, touched, state, node, sign * (min(stop, end) - max(before, start)))
        before = stop
        if before >= end:
            break
        visited += 1
        if nodes[node, RIGHT] >= 0:
            node = nodes[node, RIGHT]
            while nodes[node, LEFT] >= 0:
                node = nodes[node, LEFT]
                visited += 1
        else:
            child = node
            node = nodes[node, PARENT]
            while nodes[node, RIGHT] == child:
                child = node
                node = nodes[node, PARENT]
                visited += 1
    return visited


@inner
def _overlap(a: Any, b: Any, c: Any, d: Any) -> Any:
    return max(min(b, d) - max(a, c), 0)


@inner
def _note_copies(
    nodes: Any, root: Any, group: Any, node: Any, before: Any, old: Any, new: Any,
    offset: Any, end: Any, touched: Any, state: Any,
) -> int:  # fmt: skip
    """Note how the window changes as the copies of `node`, at position `before`, go from `old` to `new`.

    Both windows are read off the sequence S without the node: with c copies at position p the window [a, b)
    shows S[a, min(p, b)) and S[max(a - c, p), b - c), so the change is the difference of two such unions,
    at either edge.
    """
    change = _overlap(before, before + new, offset, end) - _overlap(before, before + old, offset, end)
    if change != 0:
        _note(nodes, touched, state, node, change)
    # Rows behind the node: S[max(offset - c, before), max(end - c, before)) for c = old, then for c = new.
    a0, b0 = max(offset - old, before), max(end - old, before)
    a1, b1 = max(offset - new, before), max(end - new, before)
    visited = 0
    if b0 <= a1 or b1 <= a0:
        visited += _note_range(nodes, root, group, node, before, a0, b0, -1, touched, state)
        visited += _note_range(nodes, root, group, node, before, a1, b1, 1, touched, state)
    else:
        if a0 < a1:
            visited += _note_range(nodes, root, group, node, before, a0, a1, -1, touched, state)
        else:
            visited += _note_range(nodes, root, group, node, before, a1, a0, 1, touched, state)
        if b0 < b1:
            visited += _note_range(nodes, root, group, node, before, b0, b1, 1, touched, state)
        else:
            visited += _note_range(nodes, root, group, node, before, b1, b0, -1, touched, state)
    return visited


@inner
def _last(nodes: Any, root: Any, group: Any) -> Any:
    """(the last row of a group or -1, nodes visited)."""
    node = np.int64(root[group])
    visited = 0
    if node >= 0:
        while nodes[node, RIGHT] >= 0:
            node = nodes[node, RIGHT]
            visited += 1
    return node, visited


@inner
def _is_behind(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    nodes: Any, root: Any, group: Any, row: Any, end: Any, state: Any,
) -> Any:  # fmt: skip
    """Whether `row`, in no tree, stands behind `end` copies of its group."""
    if below(nodes, np.int64(root[group])) < end:
        return False
    last, visited = _last(nodes, root, group)
    state[VISITED] += visited
    return last < 0 or is_before(lanes, lo, hi, text, kinds, flips, last, row)


@inner
def _evict(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, nodes: Any, root: Any, group: Any, end: Any, evicted: Any, state: Any,
) -> None:  # fmt: skip
    """Take the rows that stand behind `end` copies out of their tree."""
    while below(nodes, np.int64(root[group])) > end:
        last, visited = _last(nodes, root, group)
        state[VISITED] += visited
        if below(nodes, np.int64(root[group])) - nodes[last, OWN] < end:
            return
        state[VISITED] += set_weight(lanes, lo, hi, text, kinds, flips, nodes, root, group, last, np.int64(0))
        s_words[last, 0] = _ZERO
        s_words[last, 1] = _ZERO
        evicted[state[EVICTED]] = last
        state[EVICTED] += 1


@inner
def _build(
    order: Any, p_slot: Any, p_time: Any, p_words: Any,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, nodes: Any, root: Any, group: Any,
    offset: Any, end: Any, kept: Any, most: Any, allowed: Any, grows: Any, touched: Any,
    fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> None:  # fmt: skip
    """Apply the partials of a group without rows from state[POSITION] on, at least one.

    As long as they are of one time and ascend in the order of rows, each goes behind all before it, and the
    window fills as they come.
    """
    start = state[POSITION]
    time = p_time[order[start]]
    last, copies = np.int64(-1), np.int64(0)
    k = start
    while k < min(order.shape[0], start + _MOST_BUILT):
        p = order[k]
        row = p_slot[p]
        if p_time[p] != time or np.int64(lanes[row, 0]) != group or state[FAULTS] + 2 > fault_rows.shape[0]:
            break
        if last >= 0 and is_before_node(
            lanes, lo, hi, text, kinds, flips, nodes, order_key(lanes, kinds, flips, row), row, last
        ):  # fmt: skip
            break
        k += 1
        state[VISITED] += 1
        if grows != 0 and np.int64(p_words[p, 1]) < 0:
            note_fault(
                row, time, _ZERO, _ZERO, p_words[p, 0], p_words[p, 1],
                fault_rows, fault_times, fault_words, state,
            )  # fmt: skip
            continue
        apply_count(p_words, p, s_words, row, p_time, allowed, fault_rows, fault_times, fault_words, state)
        weight = weight_of(s_words[row, 0], s_words[row, 1], min(kept, most))
        if grows != 0 and copies >= kept:
            s_words[row, 0] = _ZERO
            s_words[row, 1] = _ZERO
        elif weight > 0:
            state[VISITED] += append(lanes, kinds, flips, nodes, root, group, last, row, weight)
            last = np.int64(row)
            shown = _overlap(copies, copies + weight, offset, end)
            if shown > 0:
                _note(nodes, touched, state, row, shown)
            copies += weight
    close(nodes, last)
    state[POSITION] = k


@inner
def _begins(order: Any, p_slot: Any, p_time: Any, lanes: Any, k: Any) -> Any:
    """Whether another group, or another time of one, begins at `k`."""
    p, q = order[k - 1], order[k]
    return p_time[p] != p_time[q] or lanes[p_slot[p], 0] != lanes[p_slot[q], 0]


@kernel(
    I64, I64, U64, U64_2D, I64_2D, i64, i64, i64,
    U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_U64_2D, OUT_I64_2D, OUT_I32, OUT_I64, OUT_I64, OUT_I64_2D,
    OUT_I64, OUT_U64, OUT_I64, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64,
)  # fmt: skip
def top_k(
    order: Any, p_slot: Any, p_time: Any, p_words: Any, bounds: Any, most: int, grows: int, budget: int,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, nodes: Any, root: Any, touched: Any, evicted: Any, ahead: Any,
    out_rows: Any, out_times: Any, out_diffs: Any,
    fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> int:  # fmt: skip
    """Apply the partials `order`, emit how the windows change; of neighbours of one group and time, the net.

    order: of a group, times ascend. The answer is the same if groups are not together and rows do not ascend,
    but takes more time, and is not net.
    bounds: (groups, 3), or (1, 3) for all of them. most: copies of a row that are counted; more of them are a
    fault, unless the window ends before. grows: 1 if no row is taken away; one that is, is a fault and stays.
    budget: nodes to visit in this call, about. touched: (slots,). ahead: (AHEAD, 3).
    evicted: (slots,) the first state[EVICTED] are rows that the round let go.
    Returns 1 when all is done, else 0: call again after taking state[EMITTED] rows and state[FAULTS] faults.
    A fault of row -1 - g says that group g, which has an error for a window, begins or ends to have rows.
    """
    n = order.shape[0]
    every = 0 if bounds.shape[0] == 1 else -1
    state[EMITTED] = 0
    state[FAULTS] = 0
    stop = state[VISITED] + budget
    while True:
        k = state[POSITION]
        if state[TOUCHED] > 0 and (
            state[FLUSHED] > 0 or k == n or (k > 0 and _begins(order, p_slot, p_time, lanes, k))
        ):
            time = p_time[order[k - 1]]
            while state[FLUSHED] < state[TOUCHED]:
                if state[EMITTED] == out_rows.shape[0]:
                    return 0
                row = touched[state[FLUSHED]]
                state[FLUSHED] += 1
                nodes[row, MARK] = 0
                if nodes[row, PENDING] != 0:
                    e = state[EMITTED]
                    out_rows[e] = row
                    out_times[e] = time
                    out_diffs[e] = nodes[row, PENDING]
                    nodes[row, PENDING] = 0
                    state[EMITTED] += 1
                    state[VISITED] += 1
            state[TOUCHED] = 0
            state[FLUSHED] = 0
        if k == n:
            return 1
        if state[VISITED] >= stop or state[FAULTS] + 2 > fault_rows.shape[0]:
            return 0
        if k >= state[LOOKED]:
            state[LOOKED] = min(k + AHEAD, n)
            look_for_rows(
                order, k, state[LOOKED], p_slot, p_time, p_words, lanes, kinds, flips, s_words, nodes, root,
                ahead,
            )  # fmt: skip
            look_for_edges(order, k, state[LOOKED], p_slot, bounds, END, lanes, nodes, root, ahead)
        p = order[k]
        row = p_slot[p]
        group = np.int64(lanes[row, 0])
        at = group & every
        offset, end, code = bounds[at, OFFSET], bounds[at, END], bounds[at, CODE]
        # Copies beyond the end of the window are never seen, so they need not be counted.
        kept = 1 if code != 0 else end
        allowed = most if end > most else -1
        was = root[group] >= 0
        if not was and k + 1 < n and not _begins(order, p_slot, p_time, lanes, k + 1):
            _build(
                order, p_slot, p_time, p_words, lanes, lo, hi, text, kinds, flips,
                s_words, nodes, root, group,
                offset, end, kept, most, allowed, grows, touched, fault_rows, fault_times, fault_words, state,
            )  # fmt: skip
        else:
            state[POSITION] += 1
            state[VISITED] += 1
            if grows != 0 and np.int64(p_words[p, 1]) < 0:
                note_fault(
                    row, p_time[p], _ZERO, _ZERO, p_words[p, 0], p_words[p, 1],
                    fault_rows, fault_times, fault_words, state,
                )  # fmt: skip
                continue
            apply_count(
                p_words, p, s_words, row, p_time, allowed, fault_rows, fault_times, fault_words, state
            )
            old = nodes[row, OWN]
            new = weight_of(s_words[row, 0], s_words[row, 1], min(kept, most))
            if grows != 0 and old == 0 and _is_behind(
                lanes, lo, hi, text, kinds, flips, nodes, root, group, row, kept, state
            ):  # fmt: skip
                s_words[row, 0] = _ZERO
                s_words[row, 1] = _ZERO
                continue
            if old == new:
                continue
            if old == 0:
                state[VISITED] += insert(lanes, lo, hi, text, kinds, flips, nodes, root, group, row, new)
            before, visited = position(nodes, row)
            state[VISITED] += visited
            if before < end:
                state[VISITED] += _note_copies(
                    nodes, root, group, row, before, old, new, offset, end, touched, state
                )
            if old != 0:
                state[VISITED] += set_weight(lanes, lo, hi, text, kinds, flips, nodes, root, group, row, new)
            if grows != 0:
                _evict(lanes, lo, hi, text, kinds, flips, s_words, nodes, root, group, kept, evicted, state)
        now = root[group] >= 0
        if code != 0 and was != now:
            note_fault(
                -1 - group, p_time[p], _ONE if was else _ZERO, _ZERO, _ONE if now else _ZERO, _ZERO,
                fault_rows, fault_times, fault_words, state,
            )  # fmt: skip


@kernel(I64, I64, U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_I64_2D, OUT_I32)
def plant(
    rows: Any, copies: Any, lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    nodes: Any, root: Any,
) -> None:  # fmt: skip
    """Put `rows` into the trees of their groups, which have none of them, with that many copies each."""
    for k in range(rows.shape[0]):
        row = rows[k]
        group = np.int64(lanes[row, 0])
        insert(lanes, lo, hi, text, kinds, flips, nodes, root, group, row, copies[k])


@kernel(I64, OUT_U8, OUT_I64, i64)
def note_groups(groups: Any, marks: Any, out: Any, count: int) -> int:
    """Add to out[:count] those of `groups` that have no mark, and mark them. Returns how many are there."""
    for k in range(groups.shape[0]):
        group = groups[k]
        if marks[group] == 0:
            marks[group] = 1
            out[count] = group
            count += 1
    return count
