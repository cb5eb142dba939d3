"""Rows of a group in order: one treap a group, over the slots of a row table, copies summed below each.

A node is the slot of a row; its priority is a hash of the slot, so the shape depends on no input order.
Every change costs O(log n) expected nodes, and who changes it counts them in `state[VISITED]`. Nodes hold
parents, so the position of a row that is there already is found without comparing rows. Rows compare by
lanes, each flipped or not (descending, NULLs first), a tied text by its bytes; the first lane is the group
and is skipped. What is mostly enough of the first column stands in the node itself: a step down a tree is
then one line of memory, and to wait for those is what walking trees costs.

A row stands in its tree with `weight` > 0 copies: its count, cut to [0, cap]. So a net-negative row is no
row, and what the tree shows is a function of the counts alone, whatever order they came in.

Does not: allocate, free slots (the caller does at the end of the round), or know what a column is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import inner

# columns of `nodes`: one row a node, which is one line of a cache
LEFT, RIGHT, PARENT, OWN, BELOW, PENDING, KEY, MARK = 0, 1, 2, 3, 4, 5, 6, 7
NODE = 8

# places in `state`
POSITION, VISITED, FAULTS, EMITTED, TOUCHED, FLUSHED, PHASE, STEP, USED, NEEDED = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
EVICTED, LOOKED = 10, 11
STATE_SIZE = 12

_NULL, _TEXT = 1, 2  # lane kinds
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_S40, _S63 = np.uint64(40), np.uint64(63)


@inner
def priority(node: Any) -> Any:
    """What puts a node above those of a lower one."""
    return (np.uint64(node) * _ODD) >> _S40


@inner
def order_key(lanes: Any, kinds: Any, flips: Any, row: Any) -> Any:
    """A number that ascends, not strictly, as rows of a group do: of their first column, as much as fits."""
    if kinds.shape[0] < 2:
        return np.int64(0)
    word = lanes[row, 1] if flips[1] == 0 else ~lanes[row, 1]
    if kinds[1] == _NULL:
        value = lanes[row, 2] if flips[2] == 0 else ~lanes[row, 2]
        word = (word << _S63) | (value >> _ONE)
    return np.int64(word ^ (_ONE << _S63))


@inner
def is_before(lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any, a: Any, b: Any) -> Any:
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
def is_before_node(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any, nodes: Any, key: Any, row: Any, node: Any
) -> Any:  # fmt: skip
    """Whether `row`, whose key is `key`, sorts before a node of a tree."""
    other = nodes[node, KEY]
    if key != other:
        return key < other
    return is_before(lanes, lo, hi, text, kinds, flips, row, node)


@inner
def below(nodes: Any, node: Any) -> Any:
    return nodes[node, BELOW] if node >= 0 else 0


@inner
def sum_below(nodes: Any, node: Any) -> None:
    """Make BELOW right from what is below."""
    nodes[node, BELOW] = nodes[node, OWN] + below(nodes, nodes[node, LEFT]) + below(nodes, nodes[node, RIGHT])


@inner
def replace_child(nodes: Any, root: Any, group: Any, parent: Any, old: Any, new: Any) -> None:
    """Let `new` (-1: none) stand below `parent` (-1: at the root) where `old` does."""
    if parent < 0:
        root[group] = new
    elif nodes[parent, LEFT] == old:
        nodes[parent, LEFT] = new
    else:
        nodes[parent, RIGHT] = new
    if new >= 0:
        nodes[new, PARENT] = parent


@inner
def rotate(nodes: Any, root: Any, group: Any, node: Any) -> Any:
    """Put `node` in the place of its parent; what is summed up is the caller's to mend.

    Returns that parent, and its new child that was the node's, or -1.
    """
    parent = np.int64(nodes[node, PARENT])
    near, far = (LEFT, RIGHT) if nodes[parent, LEFT] == node else (RIGHT, LEFT)
    between = np.int64(nodes[node, far])
    replace_child(nodes, root, group, np.int64(nodes[parent, PARENT]), parent, node)
    nodes[node, far] = parent
    nodes[parent, PARENT] = node
    nodes[parent, near] = between
    if between >= 0:
        nodes[between, PARENT] = parent
    return parent, between


@inner
def _rotate_up(nodes: Any, root: Any, group: Any, node: Any) -> None:
    """Put `node` in the place of its parent."""
    whole, mine = nodes[nodes[node, PARENT], BELOW], nodes[node, BELOW]
    parent, between = rotate(nodes, root, group, node)
    nodes[node, BELOW] = whole
    nodes[parent, BELOW] = whole - mine + below(nodes, between)  # its other child is not looked at


@inner
def start_node(lanes: Any, kinds: Any, flips: Any, nodes: Any, node: Any, weight: Any) -> Any:
    """A node without neighbours. Returns its key."""
    key = order_key(lanes, kinds, flips, node)
    nodes[node, LEFT] = -1
    nodes[node, RIGHT] = -1
    nodes[node, PARENT] = -1
    nodes[node, OWN] = weight
    nodes[node, BELOW] = weight
    nodes[node, KEY] = key
    return key


@inner
def insert(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    nodes: Any, root: Any, group: Any, node: Any, weight: Any,
) -> int:  # fmt: skip
    """Hang a new node into its tree. Returns nodes visited."""
    key = start_node(lanes, kinds, flips, nodes, node, weight)
    visited = 1
    parent = np.int64(-1)
    side = LEFT
    at = np.int64(root[group])
    while at >= 0:
        visited += 1
        nodes[at, BELOW] += weight
        parent = at
        side = LEFT if is_before_node(lanes, lo, hi, text, kinds, flips, nodes, key, node, at) else RIGHT
        at = nodes[at, side]
    nodes[node, PARENT] = parent
    if parent < 0:
        root[group] = node
    else:
        nodes[parent, side] = node
    while parent >= 0 and priority(node) > priority(parent):
        _rotate_up(nodes, root, group, node)
        parent = nodes[node, PARENT]
        visited += 1
    return visited


@inner
def append(
    lanes: Any, kinds: Any, flips: Any, nodes: Any, root: Any, group: Any, last: Any, node: Any, weight: Any
) -> int:  # fmt: skip
    """Hang a new node behind `last`, the last of its tree, or -1. Returns nodes visited.

    Until `close` is called, BELOW is right only where nothing more can come: not on the way from `last` up.
    """
    start_node(lanes, kinds, flips, nodes, node, weight)
    visited = 1
    child, at = np.int64(-1), np.int64(last)
    while at >= 0 and priority(node) > priority(at):
        sum_below(nodes, at)
        child = at
        at = nodes[at, PARENT]
        visited += 1
    nodes[node, LEFT] = child
    if child >= 0:
        nodes[child, PARENT] = node
    nodes[node, PARENT] = at
    if at >= 0:
        nodes[at, RIGHT] = node
    else:
        root[group] = node
    return visited


@inner
def close(nodes: Any, last: Any) -> None:
    """End of appending: `last` is the last node, or -1."""
    at = np.int64(last)
    while at >= 0:
        sum_below(nodes, at)
        at = nodes[at, PARENT]


@inner
def _remove(nodes: Any, root: Any, group: Any, node: Any) -> int:
    """Take a node out of its tree. Returns nodes visited."""
    visited = 1
    while True:
        left, right = nodes[node, LEFT], nodes[node, RIGHT]
        if left < 0 or right < 0:
            break
        child = left if priority(left) > priority(right) else right
        _rotate_up(nodes, root, group, child)
        visited += 1
    parent = nodes[node, PARENT]
    replace_child(nodes, root, group, parent, node, left if left >= 0 else right)
    weight = nodes[node, OWN]
    while parent >= 0:
        nodes[parent, BELOW] -= weight
        parent = nodes[parent, PARENT]
        visited += 1
    nodes[node, OWN] = 0
    return visited


@inner
def _reweigh(nodes: Any, node: Any, change: Any) -> int:
    """Change the copies of a node in its tree. Returns nodes visited."""
    visited = 0
    nodes[node, OWN] += change
    while node >= 0:
        nodes[node, BELOW] += change
        node = nodes[node, PARENT]
        visited += 1
    return visited


@inner
def position(nodes: Any, node: Any) -> Any:
    """(copies before the node, nodes visited)."""
    before = below(nodes, nodes[node, LEFT])
    visited = 1
    parent = nodes[node, PARENT]
    while parent >= 0:
        if nodes[parent, RIGHT] == node:
            before += nodes[parent, BELOW] - nodes[node, BELOW]
        node = parent
        parent = nodes[node, PARENT]
        visited += 1
    return before, visited


@inner
def set_weight(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    nodes: Any, root: Any, group: Any, node: Any, weight: Any,
) -> int:  # fmt: skip
    old = nodes[node, OWN]
    if weight == old:
        return 0
    if old == 0:
        return insert(lanes, lo, hi, text, kinds, flips, nodes, root, group, node, weight)
    if weight == 0:
        return _remove(nodes, root, group, node)
    return _reweigh(nodes, node, weight - old)


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
def note_fault(
    row: Any, time: Any, low0: Any, high0: Any, low: Any, high: Any,
    fault_rows: Any, fault_times: Any, fault_words: Any, state: Any,
) -> None:  # fmt: skip
    """Note that the count of a row went wrong, or got right."""
    k = state[FAULTS]
    state[FAULTS] += 1
    fault_rows[k] = row
    fault_times[k] = time
    fault_words[k, 0] = low0
    fault_words[k, 1] = high0
    fault_words[k, 2] = low
    fault_words[k, 3] = high


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
        note_fault(row, p_time[p], low0, high0, low, high, fault_rows, fault_times, fault_words, state)
