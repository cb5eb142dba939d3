"""First and last values of groups of a recursion at any iteration: trees of values with their histories.

A value has a chain of counts, one entry an iteration at which it changed, ascending; it is there at an
iteration if its count up to that is positive. The values of a group are a treap, as in treap.py, of all
values that have an entry. A node knows its span, from the first iteration at which the value is there to the
last (LASTING: for good), and the span of all below it, so who looks for the first value that is there at an
iteration passes over what came later or had gone before. In a recursion where what came stays, that is a walk
down the tree; values that come and go in between are looked at in vain.

Does not: allocate, find slots (table.py), or add beyond 64 bits: it says that a sum would leave them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterd.operators.kernels.chains import leaves, link, unlink
from clusterd.operators.kernels.treap import LEFT, PARENT, RIGHT, is_before, priority, replace_child, rotate
from shm_arrangements.kernels.jit import (
    I32,
    I32_2D,
    I64,
    I64_2D,
    OUT_I32,
    OUT_I32_2D,
    OUT_I64,
    OUT_I64_2D,
    OUT_U8,
    U8,
    U64_2D,
    i64,
    inner,
    kernel,
)

LASTING = (1 << 62) - 1
NEVER = 1 << 62
# columns of spans, own and below
SINCE, UNTIL = 0, 1
# places in the state of apply_values and of look_up
AT, ODD, FITS, VISITED = 0, 1, 2, 3
# columns of what is found
FIRST, LAST, HIGH, LOW = 0, 1, 2, 3

_LOW_BITS = 0xFFFFFFFF


@inner
def _pull(tree: Any, spans: Any, below: Any, node: Any) -> Any:
    """Take the span below a node anew. Returns whether it is another."""
    since, until = spans[node, SINCE], spans[node, UNTIL]
    for side in (LEFT, RIGHT):
        child = np.int64(tree[node, side])
        if child >= 0:
            since = min(since, below[child, SINCE])
            until = max(until, below[child, UNTIL])
    changed = below[node, SINCE] != since or below[node, UNTIL] != until
    below[node, SINCE] = since
    below[node, UNTIL] = until
    return changed


@inner
def _rotate_up(tree: Any, spans: Any, below: Any, root: Any, group: Any, node: Any) -> None:
    """Put `node` in the place of its parent."""
    parent, _ = rotate(tree, root, group, node)
    _pull(tree, spans, below, parent)
    _pull(tree, spans, below, node)


@inner
def _pull_up(tree: Any, spans: Any, below: Any, node: Any) -> Any:
    """Take the spans of `node` and of those above it anew, as far as they change. Returns nodes visited."""
    visited = 0
    while node >= 0:
        visited += 1
        if not _pull(tree, spans, below, node):
            break
        node = np.int64(tree[node, PARENT])
    return visited


@inner
def _insert(
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    tree: Any, spans: Any, below: Any, root: Any, group: Any, node: Any,
) -> Any:  # fmt: skip
    """Hang a node into the tree of its group. Returns nodes visited."""
    visited = 1
    parent = np.int64(-1)
    side = LEFT
    at = np.int64(root[group])
    while at >= 0:
        visited += 1
        parent = at
        side = LEFT if is_before(lanes, lo, hi, text, kinds, flips, node, at) else RIGHT
        at = np.int64(tree[at, side])
    tree[node, LEFT] = -1
    tree[node, RIGHT] = -1
    tree[node, PARENT] = parent
    _pull(tree, spans, below, node)
    if parent < 0:
        root[group] = node
    else:
        tree[parent, side] = node
    while parent >= 0 and priority(node) > priority(parent):
        _rotate_up(tree, spans, below, root, group, node)
        parent = np.int64(tree[node, PARENT])
        visited += 1
    return visited + _pull_up(tree, spans, below, parent)


@inner
def _remove(tree: Any, spans: Any, below: Any, root: Any, group: Any, node: Any) -> Any:
    """Take a node out of its tree. Returns nodes visited."""
    visited = 1
    while True:
        left, right = np.int64(tree[node, LEFT]), np.int64(tree[node, RIGHT])
        if left < 0 or right < 0:
            break
        _rotate_up(tree, spans, below, root, group, left if priority(left) > priority(right) else right)
        visited += 1
    parent = np.int64(tree[node, PARENT])
    replace_child(tree, root, group, parent, node, left if left >= 0 else right)
    return visited + _pull_up(tree, spans, below, parent)


@kernel(
    I64, i64, i64, i64, OUT_I64, OUT_U8,
    U64_2D, I64_2D, I64_2D, U8, U8, U8,
    OUT_I32_2D, OUT_I32_2D, OUT_I64, OUT_I64, OUT_I64, OUT_I64,
    OUT_I32_2D, OUT_I64_2D, OUT_I64_2D, OUT_I32, OUT_I64, OUT_I64, OUT_I64,
)  # fmt: skip
def apply_values(
    changed: Any, count: int, iteration: int, budget: int, changes: Any, marks: Any,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    ends: Any, links: Any, iterations: Any, diffs: Any, free: Any, meta: Any,
    tree: Any, spans: Any, below: Any, root: Any, entries: Any, odd: Any, state: Any,
) -> None:  # fmt: skip
    """Add the changes at `iteration` of the values changed[state[AT]:count] to their chains and trees.

    entries[k]: how many entries more the chain of value k has. odd: values, and their changes, that are
    negative somewhere from `iteration` on. links, iterations, diffs: the pool of entries, with room for one
    more a value. state: AT where to go on (the budget of nodes is used up), FITS 0 if a sum left 64 bits.
    """
    visited = 0
    strange = 0
    k = state[AT]
    while k < count and visited < budget:
        slot = changed[k]
        change = changes[slot]
        changes[slot] = 0
        marks[slot] = 0
        entries[k] = 0
        k += 1
        if change == 0:
            continue
        group = np.int64(lanes[slot, 0])
        was_there = ends[slot, 0] >= 0
        later = np.int64(-1)
        at = np.int64(ends[slot, 1])
        while at >= 0 and iterations[at] > iteration:
            later = at
            at = np.int64(links[at, 1])
            visited += 1
        if at >= 0 and iterations[at] == iteration:
            if leaves(diffs[at], change):
                state[FITS] = 0
                return
            diffs[at] += change
            if diffs[at] == 0:
                unlink(ends, links, free, meta, slot, at)
                entries[k - 1] = -1
        else:
            made = link(ends, links, free, meta, slot, at, later)
            iterations[made] = iteration
            diffs[made] = change
            entries[k - 1] = 1
        # The history of the value, as it has become.
        since, until = np.int64(NEVER), np.int64(0)
        total, here = np.int64(0), np.int64(0)
        negative = False
        walk = np.int64(ends[slot, 0])
        while walk >= 0:
            visited += 1
            if leaves(total, diffs[walk]):
                state[FITS] = 0
                return
            before = total
            total += diffs[walk]
            if total > 0 and since == NEVER:
                since = iterations[walk]
            if total <= 0 and before > 0:
                until = iterations[walk]
            if iterations[walk] <= iteration:
                here = total
            elif total < 0 or total - change < 0:
                negative = True
            walk = np.int64(links[walk, 0])
        if total > 0:
            until = np.int64(LASTING)
        if negative or here < 0 or here - change < 0:
            odd[2 * strange] = slot
            odd[2 * strange + 1] = change
            strange += 1
        spans[slot, SINCE] = since
        spans[slot, UNTIL] = until
        if ends[slot, 0] < 0:
            if was_there:
                visited += _remove(tree, spans, below, root, group, slot)
        elif was_there:
            visited += _pull_up(tree, spans, below, slot)
        else:
            visited += _insert(lanes, lo, hi, text, kinds, flips, tree, spans, below, root, group, slot)
    state[AT] = k
    state[ODD] = strange
    state[VISITED] += visited


@inner
def is_positive(high: Any, low: Any) -> Any:
    """Of a count of rows."""
    carried = high + (low >> 32)
    return carried > 0 or (carried == 0 and low & _LOW_BITS != 0)


@inner
def _is_there(ends: Any, links: Any, iterations: Any, diffs: Any, slot: Any, iteration: Any) -> Any:
    """Whether a value has a positive count at an iteration."""
    total = np.int64(0)
    at = np.int64(ends[slot, 0])
    while at >= 0 and iterations[at] <= iteration:
        total += diffs[at]
        at = np.int64(links[at, 0])
    return total > 0


@inner
def _seek(
    ends: Any, links: Any, iterations: Any, diffs: Any, lanes: Any, null_lane: Any,
    tree: Any, spans: Any, below: Any, top: Any, iteration: Any, near: Any, far: Any, state: Any,
) -> Any:  # fmt: skip
    """The nearest value to the `near` end that is there at the iteration; NULL only if there is no other."""
    null = np.int64(-1)
    at = np.int64(top)
    if at < 0 or below[at, SINCE] > iteration or below[at, UNTIL] <= iteration:
        return null
    while True:
        state[VISITED] += 1
        child = np.int64(tree[at, near])
        if child >= 0 and below[child, SINCE] <= iteration and below[child, UNTIL] > iteration:
            at = child
            continue
        while True:
            if (
                spans[at, SINCE] <= iteration
                and spans[at, UNTIL] > iteration
                and _is_there(ends, links, iterations, diffs, at, iteration)
            ):
                if null_lane < 0 or lanes[at, null_lane] == 0:
                    return at
                null = at
            child = np.int64(tree[at, far])
            if child >= 0 and below[child, SINCE] <= iteration and below[child, UNTIL] > iteration:
                at = child
                break
            while True:
                parent = np.int64(tree[at, PARENT])
                if parent < 0:
                    return null
                came_from_near = tree[parent, near] == at
                at = parent
                state[VISITED] += 1
                if came_from_near:
                    break


@kernel(
    I64, I64, i64, i64, I64, I64_2D, I64_2D, i64, i64,
    I32_2D, I32_2D, I64, I64, U64_2D, i64, I32_2D, I64_2D, I64_2D, I32, OUT_I64_2D, OUT_I64,
)  # fmt: skip
def look_up(
    groups: Any, cells: Any, iteration: int, budget: int,
    cell_iterations: Any, cell_counts: Any, totals: Any, wants_first: int, wants_last: int,
    ends: Any, links: Any, iterations: Any, diffs: Any, lanes: Any, null_lane: int,
    tree: Any, spans: Any, below: Any, root: Any, found: Any, state: Any,
) -> None:  # fmt: skip
    """found[k] = first and last value (-1: none) and count of rows of groups[k] at the iteration of its cell.

    A count of rows is two numbers, HIGH x 2^32 + LOW: it may be wider than a value's.

    The steps of a group follow one another, its cells descending, then -1: `iteration` itself, which the
    cells before it are all after. state: AT where to go on, when the budget of nodes is used up.
    """
    n = groups.shape[0]
    stop = state[VISITED] + budget
    k = state[AT]
    while k < n and state[VISITED] < stop:
        group = groups[k]
        cell = cells[k]
        if k == 0 or cells[k - 1] < 0:
            high, low = totals[group, 0], totals[group, 1]
        else:
            high = found[k - 1, HIGH] - cell_counts[cells[k - 1], 0]
            low = found[k - 1, LOW] - cell_counts[cells[k - 1], 1]
        at = iteration if cell < 0 else cell_iterations[cell]
        first = last = np.int64(-1)
        if is_positive(high, low):
            if wants_first:
                first = _seek(
                    ends, links, iterations, diffs, lanes, null_lane, tree, spans, below, root[group], at,
                    LEFT, RIGHT, state,
                )  # fmt: skip
            if wants_last:
                last = _seek(
                    ends, links, iterations, diffs, lanes, null_lane, tree, spans, below, root[group], at,
                    RIGHT, LEFT, state,
                )  # fmt: skip
        found[k, FIRST] = first
        found[k, LAST] = last
        found[k, HIGH] = high
        found[k, LOW] = low
        state[VISITED] += 1
        k += 1
    state[AT] = k


@kernel(I64, I64, I64, I64, OUT_I64_2D, OUT_I64_2D, OUT_I64)
def add_by_group(
    groups: Any, diffs: Any, entries: Any, cells: Any, totals: Any, cell_counts: Any, cell_entries: Any
) -> None:
    """Add to what groups count in all, and to what their cells (by group) do: rows, and entries of values."""
    for k in range(groups.shape[0]):
        group = groups[k]
        cell = cells[group]
        high, low = diffs[k] >> 32, diffs[k] & _LOW_BITS
        totals[group, 0] += high
        totals[group, 1] += low
        cell_counts[cell, 0] += high
        cell_counts[cell, 1] += low
        cell_entries[cell] += entries[k]


@kernel(OUT_I64_2D)
def judge_counts(found: Any) -> None:
    """Let the count of rows that is found be 1 if it is positive, else 0."""
    for k in range(found.shape[0]):
        found[k, HIGH] = 1 if is_positive(found[k, HIGH], found[k, LOW]) else 0
        found[k, LOW] = 0
