"""Rows of a group in order: one treap a group, over the slots of a row table, copies summed below each.

A node is the slot of a row; its priority is a hash of the slot, so the shape depends on no input order.
Every change costs O(log n) expected nodes, and `state[VISITED]` counts them. Nodes hold parents, so the
position of a row that is there already is found without comparing rows. Rows compare by lanes, each flipped
or not (descending, NULLs first), a tied text by its bytes; the first lane is the group and is skipped.

A row stands in its tree with `weight` > 0 copies: its count, cut to [0, cap]. So a net-negative row is no
row, and what the tree shows is a function of the counts alone, whatever order they came in.

`top_k` keeps the difference of the windows [offset, offset + limit) around each time: inserting or removing
copies at one position moves the rows behind it, so the change is the copies themselves and the rows that
cross an edge of the window. `extremes` gives the first and last row around each step of a group,
`sequences` all of them; `best` does what `extremes` does without trees, where rows are only added. All stop
at a budget and go on where they stopped.

Does not: allocate, free slots (the caller does at the end of the round), or know what a column is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from shm_arrangements.kernels.jit import (
    I64,
    OUT_BOOL,
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
POSITION, VISITED, FAULTS, EMITTED, TOUCHED, FLUSHED, PHASE, STEP, USED, NEEDED = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
STATE_SIZE = 10

# columns of the spans of `sequences`: elements [LO, HI) and how many there are, before and after
LO, HI, COUNT = 0, 1, 2
SPAN = 3

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


# A step is a group and a time; those of a group ascend in time. `rows` holds the partials of rows by step:
# those of step k in [starts[k], starts[k + 1]). state[STEP] is the step to go on with.


@kernel(
    I64, I64, I64, i64, I64, U64, U64_2D, i64,
    U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_U64_2D, OUT_I32_2D, OUT_I64_2D, OUT_I32,
    OUT_I32_2D, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64,
)  # fmt: skip
def extremes(
    groups: Any, starts: Any, rows: Any, end: int, p_slot: Any, p_time: Any, p_words: Any, budget: int,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, links: Any, weights: Any, root: Any,
    out: Any, fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> int:  # fmt: skip
    """Apply the steps up to `end`; note the group's first and last row before and after each.

    groups: (steps,). out: (>= end - first step, 4) int32, of this and earlier calls: first and last before,
    first and last after; -1 is none. out[0] is of the step `end - out.shape[0]`.
    Returns 1 when all is done, else 0: call again after taking state[FAULTS] faults.
    """
    state[FAULTS] = 0
    stop = state[VISITED] + budget
    first = end - out.shape[0]
    while state[STEP] < end:
        k = state[STEP]
        group = groups[k]
        if state[PHASE] == 0:
            for side in range(2):
                node, visited = _edge(links, root, group, side)
                out[k - first, side] = node
                state[VISITED] += visited + 1
            state[PHASE] = 1
        while state[POSITION] < starts[k + 1]:
            if state[VISITED] >= stop or state[FAULTS] == fault_rows.shape[0]:
                return 0
            p = rows[state[POSITION]]
            state[POSITION] += 1
            row = p_slot[p]
            _apply_count(p_words, p, s_words, row, p_time, -1, fault_rows, fault_times, fault_words, state)
            new = _weight_of(s_words[row, 0], s_words[row, 1], 1)
            state[VISITED] += 1 + _set_weight(
                lanes, lo, hi, text, kinds, flips, links, weights, root, group, row, new
            )
        for side in range(2):
            node, visited = _edge(links, root, group, side)
            out[k - first, side + 2] = node
            state[VISITED] += visited + 1
        state[PHASE] = 0
        state[STEP] += 1
    return 1


@inner
def _write_rows(links: Any, weights: Any, root: Any, group: Any, out: Any, at: Any) -> Any:
    """out[at:] = the rows of a group in order, each as often as its copies. Returns where they end."""
    node = np.int64(root[group])
    if node < 0:
        return at
    while links[node, LEFT] >= 0:
        node = np.int64(links[node, LEFT])
    while True:
        for _ in range(weights[node, OWN]):
            out[at] = node
            at += 1
        if links[node, RIGHT] >= 0:
            node = np.int64(links[node, RIGHT])
            while links[node, LEFT] >= 0:
                node = np.int64(links[node, LEFT])
            continue
        child = node
        node = np.int64(links[node, PARENT])
        while node >= 0 and links[node, RIGHT] == child:
            child = node
            node = np.int64(links[node, PARENT])
        if node < 0:
            return at


@kernel(
    I64, I64, I64, i64, I64, U64, U64_2D, i64, i64, i64,
    U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_U64_2D, OUT_I32_2D, OUT_I64_2D, OUT_I32,
    OUT_I32, OUT_I64_2D, OUT_BOOL, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64,
)  # fmt: skip
def sequences(
    groups: Any, starts: Any, rows: Any, end: int, p_slot: Any, p_time: Any, p_words: Any,
    budget: int, cap: int, most: int,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, links: Any, weights: Any, root: Any,
    elements: Any, spans: Any, changed: Any, fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> int:  # fmt: skip
    """Apply the steps up to `end`; write all rows of the group before and after each, in order.

    elements: the rows, from state[USED] on. spans: (steps, 2 x SPAN), of `end - steps` first: where they are,
    and how many the group has; if those are more than `most`, none are written. changed: (steps,) whether
    they differ. cap: copies of a row that count at most, beyond `most` or 1.
    Returns 1 when all is done; 0 to be called again after taking state[FAULTS] faults; 2 if the next step
    needs state[NEEDED] elements more than there is room for.
    """
    state[FAULTS] = 0
    stop = state[VISITED] + budget
    first = end - spans.shape[0]
    while state[STEP] < end:
        k = state[STEP]
        at = k - first
        group = groups[k]
        if state[PHASE] == 0:
            if state[VISITED] >= stop:
                return 0
            count = _below(weights, np.int64(root[group]))
            more = np.int64(0)
            for r in range(starts[k], starts[k + 1]):
                more += _weight_of(p_words[rows[r], 0], p_words[rows[r], 1], cap)
            needed = min(count, most) + min(count + more, most)
            if state[USED] + needed > elements.shape[0]:
                state[NEEDED] = needed
                return 2
            spans[at, LO] = state[USED]
            spans[at, COUNT] = count
            if 0 < count <= most:
                state[USED] = _write_rows(links, weights, root, group, elements, state[USED])
                state[VISITED] += count
            spans[at, HI] = state[USED]
            changed[at] = False
            state[PHASE] = 1
        while state[POSITION] < starts[k + 1]:
            if state[VISITED] >= stop or state[FAULTS] == fault_rows.shape[0]:
                return 0
            p = rows[state[POSITION]]
            state[POSITION] += 1
            row = p_slot[p]
            _apply_count(p_words, p, s_words, row, p_time, -1, fault_rows, fault_times, fault_words, state)
            new = _weight_of(s_words[row, 0], s_words[row, 1], cap)
            changed[at] = changed[at] or new != weights[row, OWN]
            state[VISITED] += 1 + _set_weight(
                lanes, lo, hi, text, kinds, flips, links, weights, root, group, row, new
            )
        count = _below(weights, np.int64(root[group]))
        spans[at, SPAN + COUNT] = count
        spans[at, SPAN + LO] = spans[at, LO]
        spans[at, SPAN + HI] = spans[at, HI]
        if changed[at]:
            spans[at, SPAN + LO] = state[USED]
            if 0 < count <= most:
                state[USED] = _write_rows(links, weights, root, group, elements, state[USED])
                state[VISITED] += count
            spans[at, SPAN + HI] = state[USED]
        state[PHASE] = 0
        state[STEP] += 1
    return 1


@kernel(
    I64, I64, I64, i64, I64, U64, U64_2D, i64,
    U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_I32_2D,
    OUT_I32_2D, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64,
)  # fmt: skip
def best(
    groups: Any, starts: Any, rows: Any, end: int, p_slot: Any, p_time: Any, p_words: Any, budget: int,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any, kept: Any,
    out: Any, fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> int:  # fmt: skip
    """As `extremes`, of groups that only get more rows.

    kept: (groups, 2) int32, the first and the last row, -1 for none. A step that takes rows
    away is a fault, and takes none.
    """
    state[FAULTS] = 0
    stop = state[VISITED] + budget
    first = end - out.shape[0]
    while state[STEP] < end:
        k = state[STEP]
        group = groups[k]
        if state[PHASE] == 0:
            out[k - first, 0] = kept[group, 0]
            out[k - first, 1] = kept[group, 1]
            state[PHASE] = 1
        while state[POSITION] < starts[k + 1]:
            if state[VISITED] >= stop or state[FAULTS] == fault_rows.shape[0]:
                return 0
            p = rows[state[POSITION]]
            state[POSITION] += 1
            state[VISITED] += 1
            row = p_slot[p]
            if np.int64(p_words[p, 1]) < 0:
                at = state[FAULTS]
                state[FAULTS] += 1
                fault_rows[at] = row
                fault_times[at] = p_time[p]
                fault_words[at, 0] = _ZERO
                fault_words[at, 1] = _ZERO
                fault_words[at, 2] = p_words[p, 0]
                fault_words[at, 3] = p_words[p, 1]
            elif p_words[p, 0] != _ZERO or p_words[p, 1] != _ZERO:
                old = np.int64(kept[group, 0])
                if old < 0 or (old != row and _is_before(lanes, lo, hi, text, kinds, flips, row, old)):
                    kept[group, 0] = row
                old = np.int64(kept[group, 1])
                if old < 0 or (old != row and _is_before(lanes, lo, hi, text, kinds, flips, old, row)):
                    kept[group, 1] = row
        out[k - first, 2] = kept[group, 0]
        out[k - first, 3] = kept[group, 1]
        state[PHASE] = 0
        state[STEP] += 1
    return 1


@kernel(I64, I64, OUT_I32_2D, OUT_I32_2D, OUT_I32, OUT_I32, OUT_I64)
def retire_best(rows: Any, groups: Any, kept: Any, held: Any, holders: Any, marks: Any, out: Any) -> int:
    """End of the round: out gets the rows that no group keeps any more. Returns how many.

    rows: seen in the round; groups: touched in it; either may name one twice. held: (groups, 2), what `kept`
    was at the end of the last round. marks: (rows of the table,), zero before and after. holders: of the
    groups, raised where a group begins to keep rows.
    """
    freed = 0
    for k in range(groups.shape[0]):
        group = groups[k]
        for side in range(2):
            row = kept[group, side]
            if row >= 0:
                marks[row] = 1
    for k in range(groups.shape[0]):
        group = groups[k]
        for side in range(2):
            row = held[group, side]
            if row >= 0 and marks[row] == 0:
                marks[row] = 2
                out[freed] = row
                freed += 1
    for k in range(rows.shape[0]):
        if marks[rows[k]] == 0:
            marks[rows[k]] = 2
            out[freed] = rows[k]
            freed += 1
    for k in range(freed):
        marks[out[k]] = 0
    for k in range(groups.shape[0]):
        group = groups[k]
        if kept[group, 0] >= 0 and held[group, 0] < 0:
            holders[group] += np.int32(1)
        for side in range(2):
            if kept[group, side] >= 0:
                marks[kept[group, side]] = 0
            held[group, side] = kept[group, side]
    return freed
