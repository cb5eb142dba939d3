"""Sorting codes: a stable radix sort of u64 that yields the order (uint32 row numbers) and the sorted codes.

The first level spreads the rows by the top bits of (code - least code) straight from the input, so no array
of row numbers is filled first; each bucket then fits a cache, is spread once more in it, and ends by
insertion, which meets rows that are nearly in place. A piece of which many rows still share a bucket is
taken up again: every level takes at least 5 bits off what a piece spans, so there are at most 13, each of
them linear in the piece, and insertion moves a row by `_SMALL` places at most. So no input is quadratic: the
worst costs 13 levels, and one that only fools the scaling (a far outlier) one or two more than even codes.
Codes that ascend already are known in one pass.

Does not: compare rows. Rows of equal codes keep the order they came in; who wants them ordered by their
columns does that within the runs.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.kernels.jit import OUT_U32, OUT_U64, OUT_U64_2D, U32, U64, i64, inner, kernel

_SMALL = 24  # rows of a bucket below which insertion is the fastest
_MOST_BITS = 12  # of one level; 4096 tallies of 4 bytes stay in the first cache beside the rows
_MOST_FIRST_BITS = 11  # more open buckets than this cost more in lost translations than they save later
_FRAMES = 14
_KEPT_ROWS = 1 << 16  # scratch kept by a thread: 12 bytes a row

TALLIES = (1 << _MOST_BITS) + 1
_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@inner
def bit_length(x: Any) -> Any:
    """Of an unsigned word."""
    bits = 0
    while x != _ZERO:
        x = x >> _ONE
        bits += 1
    return bits


@inner
def _insert(keys: Any, order: Any, first: Any, last: Any) -> None:
    """Sort [first, last) in place by insertion."""
    for k in range(first + 1, last):
        key, row = keys[k], order[k]
        at = k
        while at > first and keys[at - 1] > key:
            keys[at] = keys[at - 1]
            order[at] = order[at - 1]
            at -= 1
        keys[at] = key
        order[at] = row


@inner
def _insert_from(
    source_keys: Any, source_order: Any, begin: Any, end: Any, keys: Any, order: Any, first: Any
) -> None:
    """Move [begin, end) of the source to first + begin and on, sorted by insertion down to `first`."""
    for k in range(begin, end):
        key, row = source_keys[k], source_order[k]
        at = first + k
        while at > first and keys[at - 1] > key:
            keys[at] = keys[at - 1]
            order[at] = order[at - 1]
            at -= 1
        keys[at] = key
        order[at] = row


@inner
def _spread(
    keys: Any, order: Any, first: Any, last: Any, spare_keys: Any, spare_order: Any, tallies: Any, shift: Any,
    least: Any, buckets: Any,
) -> bool:  # fmt: skip
    """Reorder [first, last) by (key - least) >> shift, buckets of up to _SMALL rows sorted.

    Returns whether a bucket is left to sort.
    """
    for bucket in range(buckets + 1):
        tallies[bucket] = 0
    for k in range(first, last):
        tallies[np.int64((keys[k] - least) >> shift) + 1] += 1
    largest: Any = 0
    at: Any = 0
    for bucket in range(1, buckets + 1):
        size = np.int64(tallies[bucket])
        largest = max(largest, size)
        at += size
        tallies[bucket] = at
    for k in range(first, last):
        key = keys[k]
        bucket = np.int64((key - least) >> shift)  # type: ignore[assignment]
        at = np.int64(tallies[bucket])
        tallies[bucket] = at + 1
        spare_keys[at] = key
        spare_order[at] = order[k]
    rows = last - first
    if largest <= _SMALL:
        _insert_from(spare_keys, spare_order, 0, rows, keys, order, first)
        return False
    if shift == _ZERO:  # a bucket is one key
        for k in range(rows):
            keys[first + k] = spare_keys[k]
            order[first + k] = spare_order[k]
        return False
    begin: Any = 0
    for bucket in range(buckets):
        end = np.int64(tallies[bucket])
        if end - begin <= _SMALL:
            _insert_from(spare_keys, spare_order, begin, end, keys, order, first)
        else:
            for k in range(begin, end):
                keys[first + k] = spare_keys[k]
                order[first + k] = spare_order[k]
        begin = end
    return True


@inner
def sort_piece(
    keys: Any, order: Any, first: Any, last: Any, spare_keys: Any, spare_order: Any, tallies: Any, frames: Any
) -> None:
    """Sort [first, last). frames: row d holds (end, least key, shift) of the piece open at depth d."""
    depth = 0
    while True:
        open_piece = False
        least = keys[first]
        shift = _ZERO
        if last - first <= _SMALL:
            _insert(keys, order, first, last)
        else:
            most = least
            for k in range(first, last):
                least = min(least, keys[k])
                most = max(most, keys[k])
            if least != most:
                span = bit_length(most - least)
                bits = min(min(bit_length(np.uint64(last - first)), _MOST_BITS), span)
                shift = np.uint64(span - bits)
                open_piece = _spread(
                    keys, order, first, last, spare_keys, spare_order, tallies, shift, least, 1 << bits
                )
        if open_piece:
            frames[depth, 0], frames[depth, 1], frames[depth, 2] = np.uint64(last), least, shift
            depth += 1
        else:
            first = last
        while depth > 0 and np.int64(frames[depth - 1, 0]) == first:
            depth -= 1
        if depth == 0:
            return
        # The next bucket of the innermost open piece.
        end, least, shift = np.int64(frames[depth - 1, 0]), frames[depth - 1, 1], frames[depth - 1, 2]
        bucket = (keys[first] - least) >> shift
        last = first + 1
        while last < end and (keys[last] - least) >> shift == bucket:
            last += 1


@kernel(U64, i64, OUT_U64, OUT_U32, OUT_U32)
def spread_codes(codes: Any, bits: int, keys: Any, order: Any, ends: Any) -> int:
    """The first level: keys (n,) gets the codes by their top `bits` bits, order (n,) their rows; n > 0.

    The range is scaled: it is the top bits of what the codes span. ends: (2**bits + 1,) gets where each
    bucket ends in its first 2**bits places.
    Returns the rows of the largest bucket that `sort_buckets` has to sort: 0 if the codes are sorted so,
    or -1 if they came sorted and nothing was written.
    """
    n = codes.shape[0]
    k = 1
    while k < n and codes[k - 1] <= codes[k]:
        k += 1
    if k == n:
        return -1
    if n <= _SMALL:
        for k in range(n):
            keys[k] = codes[k]
            order[k] = k
        _insert(keys, order, 0, n)
        return 0
    least = codes[0]
    most = least
    for k in range(n):
        least = min(least, codes[k])
        most = max(most, codes[k])
    span = bit_length(most - least)
    shift = np.uint64(max(span - bits, 0))
    buckets = 1 << bits
    for bucket in range(buckets + 1):
        ends[bucket] = 0
    for k in range(n):
        ends[np.int64((codes[k] - least) >> shift) + 1] += 1
    largest: Any = 0
    at: Any = 0
    for bucket in range(1, buckets + 1):
        size = np.int64(ends[bucket])
        largest = max(largest, size)
        at += size
        ends[bucket] = at
    for k in range(n):
        code = codes[k]
        bucket = np.int64((code - least) >> shift)  # type: ignore[assignment]
        at = np.int64(ends[bucket])
        ends[bucket] = at + 1
        keys[at] = code
        order[at] = k
    return 0 if shift == _ZERO else largest


@kernel(U32, i64, OUT_U64, OUT_U32, OUT_U64, OUT_U32, OUT_U32, OUT_U64_2D)
def sort_buckets(
    ends: Any, bits: int, keys: Any, order: Any, spare_keys: Any, spare_order: Any, tallies: Any, frames: Any
) -> None:
    """Sort each bucket of `spread_codes` in place.

    spare_keys, spare_order: scratch of as many rows as the largest bucket has. tallies: (TALLIES,), and
    frames: (14, 3), scratch.
    """
    first: Any = 0
    for bucket in range(1 << bits):
        last = np.int64(ends[bucket])
        if last > first:
            sort_piece(keys, order, first, last, spare_keys, spare_order, tallies, frames)
        first = last


class _Scratch(threading.local):
    """What a thread keeps between calls, so that small sorts do not wait for fresh pages."""

    def __init__(self) -> None:
        self.keys = np.empty(0, np.uint64)
        self.order = np.empty(0, np.uint32)
        self.ends = np.empty((1 << _MOST_FIRST_BITS) + 1, np.uint32)
        self.tallies = np.empty(TALLIES, np.uint32)
        self.frames = np.empty((_FRAMES, 3), np.uint64)

    def rows(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Room for n rows."""
        if n <= len(self.keys):
            return self.keys, self.order
        if n > _KEPT_ROWS:
            return np.empty(n, np.uint64), np.empty(n, np.uint32)
        n = 1 << (n - 1).bit_length()
        self.keys, self.order = np.empty(n, np.uint64), np.empty(n, np.uint32)
        return self.keys, self.order


_SCRATCH = _Scratch()


def scratch(
    rows: int,
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint64]]:
    """What `sort_piece` needs for up to `rows` rows beside them; the thread's own, until its next sort."""
    return *_SCRATCH.rows(rows), _SCRATCH.tallies, _SCRATCH.frames


def sort_codes(codes: NDArray[np.uint64]) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """The stable order of codes (n,), and the codes in it: (order (n,) uint32, codes[order] (n,)).

    Codes that ascend already are given back as they are, the same array, beside the order 0 .. n - 1.
    Memory: the two results, and up to 12 bytes a row of scratch for the largest of up to 2048 buckets.
    Raises: ValueError from 2**32 rows on.
    """
    n = len(codes)
    if n >= 1 << 32:
        raise ValueError(f"{n} rows cannot be sorted at once: the order is of 32 bits")
    if n == 0:
        return np.empty(0, np.uint32), codes
    scratch = _SCRATCH
    keys, order = np.empty(n, np.uint64), np.empty(n, np.uint32)
    bits = max(1, min(_MOST_FIRST_BITS, n.bit_length() - 8))
    largest = spread_codes(codes, bits, keys, order, scratch.ends)
    if largest < 0:
        return np.arange(n, dtype=np.uint32), codes
    if largest > 0:
        spare_keys, spare_order = scratch.rows(int(largest))
        sort_buckets(
            scratch.ends, bits, keys, order, spare_keys, spare_order, scratch.tallies, scratch.frames
        )
    return order, keys


def sort_part(keys: NDArray[np.uint64], order: NDArray[np.uint32]) -> None:
    """Sort a bucket of `spread_codes`, keys (n,) and order (n,), in place; n > 0."""
    spare_keys, spare_order = _SCRATCH.rows(len(keys))
    ends = np.array([len(keys)], np.uint32)
    sort_buckets(ends, 0, keys, order, spare_keys, spare_order, _SCRATCH.tallies, _SCRATCH.frames)
