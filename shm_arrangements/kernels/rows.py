"""Everything that compares rows of one image: equality, sorting, runs.

A row is compared lane by lane, left to right, as unsigned numbers; a text lane that ties falls to the bytes
of the text. So one compiled function serves all schemas. `order` is always a permutation, or a choice, of
row numbers.

Sorting is by levels: the code (if any), each lane, the time (if any). A large range is radix-sorted by its
first level that is not constant, and the ranges of equal values go on to the next level; a small range, or
one whose texts tie, is merge-sorted by whole comparisons. So the cost is O(n log n), whatever ties, and near
linear in the usual case. It is stable.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import (
    I64,
    I64_2D,
    OUT_BOOL,
    OUT_I64,
    OUT_U64,
    U8,
    U64,
    U64_2D,
    inner,
    kernel,
)

_TEXT = 2  # the lane kind; see hashing.py
_SMALL = 192  # below it, comparing is cheaper than 8 histograms of 256
_INSERTION = 12
_BYTE = np.uint64(255)


@inner
def compare_text(a_text: Any, a_lo: Any, a_hi: Any, b_text: Any, b_lo: Any, b_hi: Any) -> int:
    """Order of two texts whose first 8 bytes tie."""
    common = min(a_hi - a_lo, b_hi - b_lo)
    for k in range(min(common, 8), common):
        x, y = a_text[a_lo + k], b_text[b_lo + k]
        if x != y:
            return -1 if x < y else 1
    if a_hi - a_lo == b_hi - b_lo:
        return 0
    return -1 if a_hi - a_lo < b_hi - b_lo else 1


@inner
def compare_rows(
    a_lanes: Any, a_lo: Any, a_hi: Any, a_text: Any, i: Any,
    b_lanes: Any, b_lo: Any, b_hi: Any, b_text: Any, j: Any,
    kinds: Any, lane: Any, slot: Any,
) -> int:  # fmt: skip
    """-1, 0, 1: order of row i of a and row j of b from `lane` (and text slot `slot`) on."""
    for at in range(lane, kinds.shape[0]):
        x, y = a_lanes[i, at], b_lanes[j, at]
        if x != y:
            return -1 if x < y else 1
        if kinds[at] == _TEXT:
            c = compare_text(a_text, a_lo[i, slot], a_hi[i, slot], b_text, b_lo[j, slot], b_hi[j, slot])
            if c != 0:
                return c
            slot += 1
    return 0


@inner
def _level_key(code: Any, lanes: Any, times: Any, level: Any, row: Any) -> Any:
    if level < 0:
        return code[row]
    if level < lanes.shape[1]:
        return lanes[row, level]
    return times[row]


@inner
def _slots_before(kinds: Any, level: Any) -> int:
    slots = 0
    for at in range(min(level, kinds.shape[0])):
        if kinds[at] == _TEXT:
            slots += 1
    return slots


@inner
def _is_after(
    code: Any,
    lanes: Any,
    kinds: Any,
    lo: Any,
    hi: Any,
    text: Any,
    times: Any,
    level: Any,
    slot: Any,
    i: Any,
    j: Any,
) -> bool:
    """Whether row i sorts strictly after row j, from `level` on."""
    if level < 0:
        if code[i] != code[j]:
            return code[i] > code[j]  # type: ignore[no-any-return]
        level = 0
    if level < kinds.shape[0]:
        c = compare_rows(lanes, lo, hi, text, i, lanes, lo, hi, text, j, kinds, level, slot)
        if c != 0:
            return c > 0
    return times.shape[0] > 0 and times[i] > times[j]  # type: ignore[no-any-return]


@inner
def _sort_small(
    code: Any, lanes: Any, kinds: Any, lo: Any, hi: Any, text: Any, times: Any, level: Any,
    order: Any, spare: Any, first: Any, last: Any,
) -> None:  # fmt: skip
    """Stable merge sort of order[first:last] by comparisons, bottom up from insertion-sorted pieces."""
    slot = _slots_before(kinds, level)
    for start in range(first, last, _INSERTION):
        for k in range(start + 1, min(start + _INSERTION, last)):
            row = order[k]
            at = k
            while at > start and _is_after(
                code, lanes, kinds, lo, hi, text, times, level, slot, order[at - 1], row
            ):
                order[at] = order[at - 1]
                at -= 1
            order[at] = row
    width = _INSERTION
    while width < last - first:
        for start in range(first, last - width, 2 * width):
            middle, end = start + width, min(start + 2 * width, last)
            if not _is_after(
                code, lanes, kinds, lo, hi, text, times, level, slot, order[middle - 1], order[middle]
            ):
                continue
            for k in range(start, middle):
                spare[k] = order[k]
            a, b, at = start, middle, start
            while a < middle and b < end:
                if _is_after(code, lanes, kinds, lo, hi, text, times, level, slot, spare[a], order[b]):
                    order[at] = order[b]
                    b += 1
                else:
                    order[at] = spare[a]
                    a += 1
                at += 1
            while a < middle:
                order[at] = spare[a]
                a += 1
                at += 1
        width *= 2


@inner
def _radix(keys: Any, order: Any, spare_keys: Any, spare: Any, counts: Any, first: Any, last: Any) -> None:
    """Stable sort of keys[first:last] and order with it, a byte at a time, constant bytes skipped."""
    counts[:] = 0
    for k in range(first, last):
        key = keys[k]
        for byte in range(8):
            counts[256 * byte + np.int64((key >> np.uint64(8 * byte)) & _BYTE)] += 1
    for byte in range(8):
        shift = np.uint64(8 * byte)
        base = 256 * byte
        if counts[base + np.int64((keys[first] >> shift) & _BYTE)] == last - first:
            continue
        at = first
        for value in range(base, base + 256):
            count = counts[value]
            counts[value] = at
            at += count
        for k in range(first, last):
            bucket = base + np.int64((keys[k] >> shift) & _BYTE)
            at = counts[bucket]
            counts[bucket] = at + 1
            spare_keys[at] = keys[k]
            spare[at] = order[k]
        for k in range(first, last):
            keys[k] = spare_keys[k]
            order[k] = spare[k]


@kernel(
    U64, U64_2D, U8, I64_2D, I64_2D, U8, U64, OUT_I64, OUT_I64, OUT_U64, OUT_U64, OUT_I64, OUT_I64
)  # fmt: skip
def sort_rows(
    code: Any, lanes: Any, kinds: Any, lo: Any, hi: Any, text: Any, times: Any,
    order: Any, spare: Any, keys: Any, spare_keys: Any, counts: Any, stack: Any,
) -> None:  # fmt: skip
    """Permute order (n,) so that its rows ascend by (code, row, time).

    code, times: (rows,), or empty to leave that level out.
    spare, keys, spare_keys: (n,) scratch. counts: (2048,). stack: (3 * (n // 192 + 2),).
    """
    n = order.shape[0]
    start_level = -1 if code.shape[0] > 0 else 0
    end_level = kinds.shape[0] + (1 if times.shape[0] > 0 else 0)
    sorted_already = True
    for k in range(1, n):
        if _is_after(code, lanes, kinds, lo, hi, text, times, start_level, 0, order[k - 1], order[k]):
            sorted_already = False
            break
    if sorted_already:
        return
    stack[0], stack[1], stack[2] = 0, n, start_level
    top = 1
    while top > 0:
        top -= 1
        first, last, level = stack[3 * top], stack[3 * top + 1], stack[3 * top + 2]
        if last - first <= _SMALL:
            _sort_small(code, lanes, kinds, lo, hi, text, times, level, order, spare, first, last)
            continue
        finished = False
        while True:
            if level >= end_level:
                finished = True
                break
            head = _level_key(code, lanes, times, level, order[first])
            constant = True
            for k in range(first, last):
                key = _level_key(code, lanes, times, level, order[k])
                keys[k] = key
                if key != head:
                    constant = False
            if not constant:
                break
            if 0 <= level < kinds.shape[0] and kinds[level] == _TEXT:
                slot = _slots_before(kinds, level)
                row = order[first]
                for k in range(first + 1, last):
                    other = order[k]
                    if compare_text(
                        text, lo[row, slot], hi[row, slot], text, lo[other, slot], hi[other, slot]
                    ):
                        finished = True
                        break
                if finished:
                    _sort_small(code, lanes, kinds, lo, hi, text, times, level, order, spare, first, last)
                    break
            level += 1
        if finished:
            continue
        _radix(keys, order, spare_keys, spare, counts, first, last)
        # Ties of a text lane stay at their level: the texts themselves are not compared yet.
        below = level if 0 <= level < kinds.shape[0] and kinds[level] == _TEXT else level + 1
        if below >= end_level:
            continue
        start = first
        for k in range(first + 1, last + 1):
            if k == last or keys[k] != keys[start]:
                if k - start > _SMALL:
                    stack[3 * top], stack[3 * top + 1], stack[3 * top + 2] = start, k, below
                    top += 1
                elif k - start > 1:
                    _sort_small(code, lanes, kinds, lo, hi, text, times, below, order, spare, start, k)
                start = k


@kernel(U64, U64_2D, U8, I64_2D, I64_2D, U8, OUT_I64, OUT_I64)
def sort_ties(keys: Any, lanes: Any, kinds: Any, lo: Any, hi: Any, text: Any, order: Any, spare: Any) -> None:
    """Permute order (n,), by which keys (n,) ascend, so that the rows of equal keys ascend. spare: (n,)."""
    start = 0
    for k in range(1, order.shape[0] + 1):
        if k == order.shape[0] or keys[k] != keys[start]:
            if k - start > 1:
                _sort_small(keys, lanes, kinds, lo, hi, text, keys[:0], 0, order, spare, start, k)
            start = k


@kernel(
    U64_2D, I64_2D, I64_2D, U8, I64, U64_2D, I64_2D, I64_2D, U8, I64, U8, OUT_BOOL
)  # fmt: skip
def equal_rows(
    a_lanes: Any, a_lo: Any, a_hi: Any, a_text: Any, a_rows: Any,
    b_lanes: Any, b_lo: Any, b_hi: Any, b_text: Any, b_rows: Any, kinds: Any, out: Any,
) -> None:  # fmt: skip
    """out[k] = whether row a_rows[k] of a and row b_rows[k] of b are equal."""
    for k in range(out.shape[0]):
        i, j = a_rows[k], b_rows[k]
        out[k] = (
            compare_rows(a_lanes, a_lo, a_hi, a_text, i, b_lanes, b_lo, b_hi, b_text, j, kinds, 0, 0) == 0
        )


@kernel(U64_2D, U8, I64_2D, I64_2D, U8, I64, OUT_I64)
def run_starts(lanes: Any, kinds: Any, lo: Any, hi: Any, text: Any, order: Any, out: Any) -> int:
    """out gets the positions in `order` where a run of equal rows begins. Returns how many."""
    runs = 0
    for k in range(order.shape[0]):
        if k == 0 or compare_rows(
            lanes, lo, hi, text, order[k - 1], lanes, lo, hi, text, order[k], kinds, 0, 0
        ):
            out[runs] = k
            runs += 1
    return runs
