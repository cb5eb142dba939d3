"""Rows of a group in order: one treap a group, over the slots of a row table, copies summed below each.

A node is the slot of a row; its priority is a hash of the slot, so the shape depends on no input order.
Every change costs O(log n) expected nodes, and who changes it counts them in `state[VISITED]`. Nodes hold
parents, so the position of a row that is there already is found without comparing rows. Rows compare by
lanes, each flipped or not (descending, NULLs first), a tied text by its bytes; the first lane is the group
and is skipped.

A row stands in its tree with `weight` > 0 copies: its count, cut to [0, cap]. So a net-negative row is no
row, and what the tree shows is a function of the counts alone, whatever order they came in.

Does not: allocate, free slots (the caller does at the end of the round), or know what a column is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import inner

# columns of `links`
LEFT, RIGHT, PARENT = 0, 1, 2
# columns of `weights`
OWN, BELOW, PENDING = 0, 1, 2

# places in `state`
POSITION, VISITED, FAULTS, EMITTED, TOUCHED, FLUSHED, PHASE, STEP, USED, NEEDED = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
STATE_SIZE = 10

_TEXT = 2  # the lane kind
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_S40 = np.uint64(40)


@inner
def _priority(node: Any) -> Any:
    return (np.uint64(node) * _ODD) >> _S40


@inner
def is_before(
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
def below(weights: Any, node: Any) -> Any:
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
        + below(weights, np.int64(links[parent, LEFT]))
        + below(weights, np.int64(links[parent, RIGHT]))
    )


@inner
def insert(
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
        side = LEFT if is_before(lanes, lo, hi, text, kinds, flips, node, at) else RIGHT
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
def position(links: Any, weights: Any, node: Any) -> Any:
    """(copies before the node, nodes visited)."""
    before = below(weights, np.int64(links[node, LEFT]))
    visited = 1
    parent = np.int64(links[node, PARENT])
    while parent >= 0:
        if links[parent, RIGHT] == node:
            before += weights[parent, OWN] + below(weights, np.int64(links[parent, LEFT]))
        node = parent
        parent = np.int64(links[node, PARENT])
        visited += 1
    return before, visited


@inner
def set_weight(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    links: Any, weights: Any, root: Any, group: Any, node: Any, weight: Any,
) -> int:  # fmt: skip
    old = weights[node, OWN]
    if weight == old:
        return 0
    if old == 0:
        return insert(lanes, lo, hi, text, kinds, flips, links, weights, root, group, node, weight)
    if weight == 0:
        return _remove(links, weights, root, group, node)
    return _reweigh(links, weights, node, weight - old)


@inner
def weight_of(low: Any, high: Any, cap: Any) -> Any:
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
def apply_count(
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
