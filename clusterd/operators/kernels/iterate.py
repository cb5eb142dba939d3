"""State of a recursion: what a key holds, iteration by iteration, as chains of entries.

An entry is what one row of one key changed at one iteration, summed up over everything that came so far. The
entries of a key are a doubly linked chain, so that adding, removing and walking cost O(1) an entry, however
many other keys there are; an entry whose sum is zero is in no chain. Two kinds stand here: chains of rows, in
any order, for operators that look at the rows of a key; and chains of counts (chains.py), ascending in
iteration, for keys that are the whole row.

Does not: allocate, find slots (kernels/table.py), or add beyond 64 bits: it says that a sum would leave them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterd.operators.kernels.chains import leaves, link, unlink
from shm_arrangements.kernels.jit import (
    I32,
    I32_2D,
    I64,
    OUT_I32,
    OUT_I32_2D,
    OUT_I64,
    OUT_U8,
    OUT_U64,
    U64_2D,
    i64,
    inner,
    kernel,
)

# places in the state of probe and gather
ROW, AT, STEPS, WIDE = 0, 1, 2, 3
NOT_BEGUN = -2  # AT: the chain of the row was not begun
# links of an entry of rows
NEXT, BEFORE = 0, 1
# what an entry of rows is: not in a chain, in one, found to be zero
LOOSE, LINKED, ZERO = 0, 1, 2
# places in the state of change_counts
KEY, EMITTED, ODD, FITS = 0, 1, 2, 3
# what a count of rows shows: distinct, distinct of what complains when negative, threshold
SET, MULTISET, POSITIVE = 0, 1, 2

_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_SMALL = 2147483647  # the product of two such diffs is below 2^62
_WIDE = 4.611686018427388e18  # 2^62


@kernel(I64, I64, U64_2D, OUT_I64, OUT_I32_2D, OUT_U8, OUT_I32, OUT_I64)
def add_entries(
    entries: Any, diffs: Any, lanes: Any, sums: Any, links: Any, states: Any, heads: Any, dead: Any
) -> int:
    """Add diffs to the sums of entries (which may repeat), link what is not zero, unlink what is.

    lanes: (slots, L), of which the first is the key in the lower and the iteration in the upper half.
    Returns how many entries are of no use any more, in `dead`; -1 if a sum leaves 64 bits.
    """
    n = entries.shape[0]
    for i in range(n):
        e = entries[i]
        if leaves(sums[e], diffs[i]):
            return -1
        sums[e] += diffs[i]
    gone = 0
    for i in range(n):
        e = entries[i]
        key = np.int64(lanes[e, 0] & _LOW)
        if sums[e] != 0:
            if states[e] == LOOSE:
                head = heads[key]
                links[e, NEXT] = head
                links[e, BEFORE] = -1
                if head >= 0:
                    links[head, BEFORE] = e
                heads[key] = e
                states[e] = LINKED
        elif states[e] != ZERO:
            if states[e] == LINKED:
                after, before = links[e, NEXT], links[e, BEFORE]
                if before >= 0:
                    links[before, NEXT] = after
                else:
                    heads[key] = after
                if after >= 0:
                    links[after, BEFORE] = before
            states[e] = ZERO
            dead[gone] = e
            gone += 1
    for k in range(gone):
        states[dead[k]] = LOOSE
    return gone


@kernel(
    I64, I64, i64, I32, I32_2D, U64_2D, I64, i64, OUT_I64, OUT_I64, OUT_I64, OUT_U64, OUT_I64
)  # fmt: skip
def probe(
    slots: Any, diffs: Any, iteration: int, heads: Any, links: Any, lanes: Any, sums: Any, budget: int,
    state: Any, out_row: Any, out_entry: Any, out_times: Any, out_diffs: Any,
) -> int:  # fmt: skip
    """Pairs of row i and every entry of the key slots[i] (-1: no key), at the greater of their iterations.

    Returns how many pairs; all is done when state[ROW] == n. state[WIDE]: whether a product left 62 bits.
    """
    n = slots.shape[0]
    room = out_row.shape[0]
    i, e = state[ROW], state[AT]
    pairs = 0
    steps = 0
    while i < n:
        if e == NOT_BEGUN:
            slot = slots[i]
            e = np.int64(heads[slot]) if slot >= 0 else np.int64(-1)
            steps += 1
        diff = diffs[i]
        small = -_SMALL <= diff <= _SMALL
        while e >= 0:
            if pairs == room or steps >= budget:
                state[ROW], state[AT], state[STEPS] = i, e, steps
                return pairs
            steps += 1
            other = sums[e]
            if not (small and -_SMALL <= other <= _SMALL):
                product = float(diff) * float(other)
                if product >= _WIDE or product <= -_WIDE:
                    state[WIDE] = 1
            out_row[pairs] = i
            out_entry[pairs] = e
            out_times[pairs] = np.uint64(max(np.int64(lanes[e, 0] >> _S32), np.int64(iteration)))
            out_diffs[pairs] = diff * other
            pairs += 1
            e = np.int64(links[e, NEXT])
        i += 1
        e = np.int64(NOT_BEGUN)
    state[ROW], state[AT], state[STEPS] = i, e, steps
    return pairs


@kernel(I64, OUT_U8, i64, OUT_I64)
def note(slots: Any, marks: Any, count: int, noted: Any) -> int:
    """Append slots without a mark to `noted` from `count` on, and mark them. Returns how many there are."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        if not marks[slot]:
            marks[slot] = 1
            noted[count] = slot
            count += 1
    return count


@kernel(I64, I64, OUT_I64, OUT_U8, i64, OUT_I64)
def gather_changes(slots: Any, diffs: Any, changes: Any, marks: Any, count: int, changed: Any) -> int:
    """Sum the diffs up by slot; slots met for the first time are appended to `changed` from `count` on.

    Returns how many there are then; -1 if a sum leaves 64 bits.
    """
    for i in range(slots.shape[0]):
        slot = slots[i]
        if not marks[slot]:
            marks[slot] = 1
            changed[count] = slot
            count += 1
        if leaves(changes[slot], diffs[i]):
            return -1
        changes[slot] += diffs[i]
    return count


@inner
def _shown(count: Any, mode: Any) -> Any:
    if count <= 0:
        return np.int64(0)
    return count if mode == POSITIVE else np.int64(1)


@kernel(
    I64, i64, i64, i64, i64, OUT_I64, OUT_U8, OUT_I64, OUT_I32_2D,
    OUT_I32_2D, OUT_I64, OUT_I64, OUT_I64, OUT_I64,
    OUT_I64, OUT_I64, OUT_U64, OUT_I64, OUT_I64,
)  # fmt: skip
def change_counts(
    changed: Any, count: int, iteration: int, mode: int, budget: int,
    changes: Any, marks: Any, totals: Any, ends: Any,
    links: Any, iterations: Any, diffs: Any, free: Any, meta: Any,
    state: Any, out_slot: Any, out_times: Any, out_diffs: Any, odd: Any,
) -> int:  # fmt: skip
    """Add the changes at `iteration` of the keys changed[state[KEY]:count] to their chains; say what shows.

    A key's chain has one entry an iteration, ascending; ends: its first and last, totals: their sum. out_*:
    how what the key shows changes, at `iteration` and at every later one of its chain. In mode MULTISET a key
    that is negative somewhere from `iteration` on shows nothing here, but is given in `odd` with its change.
    links, iterations, diffs: the pool of entries, with room for one more a key; free, meta: those not in use.
    state: KEY where to go on, EMITTED how many outputs, ODD how many odd keys, FITS 0 if a sum left 64 bits.
    Returns how many chain entries were looked at. Stops before a key whose outputs have no room, and after
    one with which the entries looked at reach the budget.
    """
    room = out_slot.shape[0]
    emitted = 0
    strange = 0
    steps = 0
    k = state[KEY]
    while k < count and steps < budget:
        slot = changed[k]
        change = changes[slot]
        if change == 0:
            changes[slot] = 0
            marks[slot] = 0
            k += 1
            continue
        if leaves(totals[slot], change):
            state[FITS] = 0
            break
        # The entries from `iteration` on, and what stands before them.
        before = totals[slot]
        at = np.int64(ends[slot, 1])
        later = np.int64(-1)
        while at >= 0 and iterations[at] >= iteration:
            before -= diffs[at]
            later = at
            at = np.int64(links[at, 1])
            steps += 1
        last = at  # the last entry before `iteration`
        here = np.int64(-1)
        if later >= 0 and iterations[later] == iteration:
            here = later
            later = np.int64(links[here, 0])
        start = emitted
        old, new = before, before + change
        if here >= 0:
            old += diffs[here]
            new += diffs[here]
        negative = old < 0 or new < 0
        full = False
        shift = _shown(new, mode) - _shown(old, mode)  # how much more the new history shows than the old
        if shift != 0:
            if emitted == room:
                full = True
            else:
                out_slot[emitted] = slot
                out_times[emitted] = np.uint64(iteration)
                out_diffs[emitted] = shift
                emitted += 1
        prior = shift
        walk = later
        while walk >= 0 and not full:
            steps += 1
            if leaves(new, diffs[walk]) or leaves(old, diffs[walk]):
                state[FITS] = 0
                break
            old += diffs[walk]
            new += diffs[walk]
            negative = negative or old < 0 or new < 0
            shift = _shown(new, mode) - _shown(old, mode)
            if shift != prior:
                if emitted == room:
                    full = True
                    break
                out_slot[emitted] = slot
                out_times[emitted] = np.uint64(iterations[walk])
                out_diffs[emitted] = shift - prior
                emitted += 1
                prior = shift
            walk = np.int64(links[walk, 0])
        if state[FITS] == 0:
            break
        if full:
            emitted = start
            break
        if negative and mode == MULTISET:
            emitted = start
            odd[2 * strange] = slot
            odd[2 * strange + 1] = change
            strange += 1
        # Then the chain itself.
        totals[slot] += change
        if here >= 0:
            diffs[here] += change
            if diffs[here] == 0:
                unlink(ends, links, free, meta, slot, here)
        else:
            here = link(ends, links, free, meta, slot, last, later)
            iterations[here] = iteration
            diffs[here] = change
        changes[slot] = 0
        marks[slot] = 0
        k += 1
    state[KEY] = k
    state[EMITTED] = emitted
    state[ODD] = strange
    return steps
