"""What is known of a group before and after each step: its first and last row, or all of them, in order.

A step is a group and a time; those of a group ascend in time. `rows` holds the partials of rows by step:
those of step k in [starts[k], starts[k + 1]). state[STEP] is the step to go on with. All stop at a budget,
within a step if need be, and go on where they stopped.

`extremes` and `sequences` walk trees; `best` does what `extremes` does without, where rows are only added.

Does not: keep trees (treap.py), allocate, or free slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterd.operators.kernels.treap import (
    FAULTS,
    LEFT,
    NEEDED,
    OWN,
    PARENT,
    PHASE,
    POSITION,
    RIGHT,
    STEP,
    USED,
    VISITED,
    apply_count,
    below,
    is_before,
    set_weight,
    weight_of,
)
from shm_arrangements.kernels.jit import (
    I64,
    I64_2D,
    OUT_BOOL,
    OUT_I32,
    OUT_I32_2D,
    OUT_I64,
    OUT_I64_2D,
    OUT_U64,
    OUT_U64_2D,
    U8,
    U64,
    U64_2D,
    i64,
    inner,
    kernel,
)

# columns of the spans of `sequences`: elements [LO, HI) and how many there are, before and after
LO, HI, COUNT = 0, 1, 2
SPAN = 3

_ZERO = np.uint64(0)


@inner
def _edge(nodes: Any, root: Any, group: Any, side: Any) -> Any:
    """(the first or last node of a group's tree or -1, nodes visited)."""
    node = np.int64(root[group])
    visited = 0
    if node < 0:
        return node, visited
    while nodes[node, side] >= 0:
        node = nodes[node, side]
        visited += 1
    return node, visited


@kernel(
    I64, I64, I64, i64, I64, U64, U64_2D, i64,
    U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_U64_2D, OUT_I64_2D, OUT_I32,
    OUT_I32_2D, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64,
)  # fmt: skip
def extremes(
    groups: Any, starts: Any, rows: Any, end: int, p_slot: Any, p_time: Any, p_words: Any, budget: int,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, nodes: Any, root: Any,
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
                node, visited = _edge(nodes, root, group, side)
                out[k - first, side] = node
                state[VISITED] += visited + 1
            state[PHASE] = 1
        while state[POSITION] < starts[k + 1]:
            if state[VISITED] >= stop or state[FAULTS] == fault_rows.shape[0]:
                return 0
            p = rows[state[POSITION]]
            state[POSITION] += 1
            row = p_slot[p]
            apply_count(p_words, p, s_words, row, p_time, -1, fault_rows, fault_times, fault_words, state)
            new = weight_of(s_words[row, 0], s_words[row, 1], 1)
            state[VISITED] += 1 + set_weight(lanes, lo, hi, text, kinds, flips, nodes, root, group, row, new)
        for side in range(2):
            node, visited = _edge(nodes, root, group, side)
            out[k - first, side + 2] = node
            state[VISITED] += visited + 1
        state[PHASE] = 0
        state[STEP] += 1
    return 1


@inner
def _write_rows(nodes: Any, root: Any, group: Any, out: Any, at: Any) -> Any:
    """out[at:] = the rows of a group in order, each as often as its copies. Returns where they end."""
    node = np.int64(root[group])
    if node < 0:
        return at
    while nodes[node, LEFT] >= 0:
        node = nodes[node, LEFT]
    while True:
        for _ in range(nodes[node, OWN]):
            out[at] = node
            at += 1
        if nodes[node, RIGHT] >= 0:
            node = nodes[node, RIGHT]
            while nodes[node, LEFT] >= 0:
                node = nodes[node, LEFT]
            continue
        child = node
        node = nodes[node, PARENT]
        while node >= 0 and nodes[node, RIGHT] == child:
            child = node
            node = nodes[node, PARENT]
        if node < 0:
            return at


@kernel(
    I64, I64, I64, i64, I64, U64, U64_2D, i64, i64, i64,
    U64_2D, I64_2D, I64_2D, U8, U8, U8, OUT_U64_2D, OUT_I64_2D, OUT_I32,
    OUT_I32, OUT_I64_2D, OUT_BOOL, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64,
)  # fmt: skip
def sequences(
    groups: Any, starts: Any, rows: Any, end: int, p_slot: Any, p_time: Any, p_words: Any,
    budget: int, cap: int, most: int,
    lanes: Any, lo: Any, hi: Any, text: Any, kinds: Any, flips: Any,
    s_words: Any, nodes: Any, root: Any,
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
            count = below(nodes, np.int64(root[group]))
            more = np.int64(0)
            for r in range(starts[k], starts[k + 1]):
                more += weight_of(p_words[rows[r], 0], p_words[rows[r], 1], cap)
            needed = min(count, most) + min(count + more, most)
            if state[USED] + needed > elements.shape[0]:
                state[NEEDED] = needed
                return 2
            spans[at, LO] = state[USED]
            spans[at, COUNT] = count
            if 0 < count <= most:
                state[USED] = _write_rows(nodes, root, group, elements, state[USED])
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
            apply_count(p_words, p, s_words, row, p_time, -1, fault_rows, fault_times, fault_words, state)
            new = weight_of(s_words[row, 0], s_words[row, 1], cap)
            changed[at] = changed[at] or new != nodes[row, OWN]
            state[VISITED] += 1 + set_weight(lanes, lo, hi, text, kinds, flips, nodes, root, group, row, new)
        count = below(nodes, np.int64(root[group]))
        spans[at, SPAN + COUNT] = count
        spans[at, SPAN + LO] = spans[at, LO]
        spans[at, SPAN + HI] = spans[at, HI]
        if changed[at]:
            spans[at, SPAN + LO] = state[USED]
            if 0 < count <= most:
                state[USED] = _write_rows(nodes, root, group, elements, state[USED])
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
                if old < 0 or (old != row and is_before(lanes, lo, hi, text, kinds, flips, row, old)):
                    kept[group, 0] = row
                old = np.int64(kept[group, 1])
                if old < 0 or (old != row and is_before(lanes, lo, hi, text, kinds, flips, old, row)):
                    kept[group, 1] = row
        out[k - first, 2] = kept[group, 0]
        out[k - first, 3] = kept[group, 1]
        state[PHASE] = 0
        state[STEP] += 1
    return 1


@kernel(
    i64, i64, i64, i64, I64, I64, OUT_I32_2D, OUT_I32_2D, OUT_I32, OUT_I32, OUT_I64
)  # fmt: skip
def retire_best(
    phase: int, lo: int, hi: int, freed: int,
    rows: Any, groups: Any, kept: Any, held: Any, holders: Any, marks: Any, out: Any,
) -> int:  # fmt: skip
    """End of the round: out gets the rows that no group keeps any more. Returns how many, from `freed` on.

    In phases 0 to 4, each a walk that is cut by the caller: phases 2 and 3 over rows and out, the others over
    groups, each lo .. hi.

    rows: seen in the round; groups: touched in it; either may name one twice. held: (groups, 2), what `kept`
    was at the end of the last round. marks: (rows of the table,), zero before and after. holders: of the
    groups, raised where a group begins to keep rows.
    """
    for k in range(lo, hi):
        if phase == 2:
            if marks[rows[k]] == 0:
                marks[rows[k]] = 2
                out[freed] = rows[k]
                freed += 1
        elif phase == 3:
            marks[out[k]] = 0
        else:
            group = groups[k]
            if phase == 4 and kept[group, 0] >= 0 and held[group, 0] < 0:
                holders[group] += np.int32(1)
            for side in range(2):
                row = kept[group, side]
                if phase == 0 and row >= 0:
                    marks[row] = 1
                elif phase == 1:
                    row = held[group, side]
                    if row >= 0 and marks[row] == 0:
                        marks[row] = 2
                        out[freed] = row
                        freed += 1
                elif phase == 4:
                    if row >= 0:
                        marks[row] = 0
                    held[group, side] = row
    return freed
