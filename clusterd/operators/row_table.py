"""RowTable: rows to slots and back; Partials: what a round adds to each slot at each time.

All stateful operators stand on these two. A row (a group's key, a whole row of a top-k, a value of a group)
is found by hash and verified, gets a small dense number, its slot, and keeps it until it is let go; whatever
an operator knows of it lies in arrays by slot. A round collects, per (slot, time), one row of words: the
count of rows in words 0 and 1, then what the operator adds. So memory in a round is bounded by the distinct
(row, time), not by the updates, and in a hydration, where all times are one, by the rows alone.

Cost: O(1) expected an update; arrays double, so growing is amortised, and is sequential work.

Does not: order rows (kernels/ordered.py), interpret words (reduce_tactic.py), or look at diffs of a round
twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.kernels import table as kernels
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowImage, RowSpec, decode

__all__ = ["Partials", "RowTable", "grown", "sorted_by_time"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
T = TypeVar("T", bound=np.generic)

_START_SLOTS = 64
_TEXT_SLACK = 1 << 16  # dead bytes that are not worth a compaction


def grown(array: NDArray[T], rows: int, fill: int = 0) -> NDArray[T]:
    """`array` with at least `rows` rows, new ones holding `fill`; the array itself if it has them."""
    if len(array) >= rows:
        return array
    size = max(rows, 2 * len(array), _START_SLOTS)
    out = np.zeros((size, *array.shape[1:]), array.dtype)
    if fill:
        out[len(array) :] = fill
    out[: len(array)] = array
    return out


def sorted_by_time(times: Words) -> Ints:
    """(n,) an order in which the times ascend; equal times in any order."""
    n = len(times)
    if n == 0 or bool((times[1:] >= times[:-1]).all()):
        return np.arange(n, dtype=np.int64)
    return np.argsort(times).astype(np.int64, copy=False)


class RowTable:
    """Slots for the rows of one spec, each under a group number if `grouped` (then the first lane)."""

    def __init__(self, spec: RowSpec, *, grouped: bool = False) -> None:
        self.spec = spec
        self.grouped = grouped
        kinds = spec.kinds
        self.kinds = np.concatenate([np.zeros(1, np.uint8), kinds]) if grouped else kinds
        texts = len(spec.text_columns)
        self.lanes: Words = np.zeros((0, len(self.kinds)), np.uint64)
        self.text_lo: Ints = np.zeros((0, texts), np.int64)
        self.text_hi: Ints = np.zeros((0, texts), np.int64)
        self.text = np.zeros(0, np.uint8)
        self._tags = np.zeros(0, np.uint32)
        self._free: Ints = np.zeros(0, np.int64)
        self._entries: Words = np.zeros(2 * _START_SLOTS, np.uint64)
        self._meta: Ints = np.zeros(4, np.int64)

    @property
    def capacity(self) -> int:
        """Slots there is room for; arrays by slot have this length or more."""
        return len(self._tags)

    def __len__(self) -> int:
        return int(self._meta[kernels.USED] - self._meta[kernels.FREE])

    @property
    def nbytes(self) -> int:
        arrays = (self.lanes, self.text_lo, self.text_hi, self.text, self._tags, self._free, self._entries)
        return sum(a.nbytes for a in arrays)

    def assign(self, image: RowImage, groups: Ints | None = None) -> Ints:
        """(n,) slot of each row, a new one for a row that is not there. groups: (n,), if `grouped`."""
        n = len(image)
        lanes, hashes = image.lanes, image.hash()
        if self.grouped:
            assert groups is not None
            unsigned = groups.view(np.uint64)
            lanes = np.empty((n, len(self.kinds)), np.uint64)
            lanes[:, 0] = unsigned
            lanes[:, 1:] = image.lanes
            mixed = np.empty(n, np.uint64)
            kernels.mix_group(hashes, unsigned, mixed)
            hashes = mixed
        lo, hi = np.ascontiguousarray(image.text_lo), np.ascontiguousarray(image.text_hi)
        out = np.empty(n, np.int64)
        done = 0
        while True:
            done = kernels.assign_slots(
                hashes, lanes, lo, hi, image.text, done,
                self._entries, self._tags, self.lanes, self.text_lo, self.text_hi, self.text,
                self._free, self._meta, out,
            )  # fmt: skip
            if done == n:
                return out
            self._make_room(int((hi[done] - lo[done]).sum()))

    def _make_room(self, text_bytes: int) -> None:
        """Room for at least one more row with `text_bytes` of text."""
        used, free, text_used = (int(self._meta[k]) for k in (kernels.USED, kernels.FREE, kernels.TEXT_USED))
        if free == 0 and used == self.capacity:
            size = max(_START_SLOTS, 2 * self.capacity)
            self._tags = grown(self._tags, size)
            self._free = grown(self._free, size)
            self.lanes = grown(self.lanes, size)
            self.text_lo = grown(self.text_lo, size)
            self.text_hi = grown(self.text_hi, size)
        if 2 * (used - free + 1) > len(self._entries):
            entries: Words = np.zeros(2 * len(self._entries), np.uint64)
            kernels.grow(self._entries, entries)
            self._entries = entries
        if text_used + text_bytes > len(self.text):
            self.text = grown(self.text, text_used + text_bytes)

    def free(self, slots: Ints) -> None:
        """Let go of distinct slots, at the end of a round: nothing may name them any more."""
        kernels.free_slots(
            slots, self._entries, self._tags, self.text_lo, self.text_hi, self._free, self._meta
        )
        dead, text_used = int(self._meta[kernels.TEXT_DEAD]), int(self._meta[kernels.TEXT_USED])
        if dead > _TEXT_SLACK and 2 * dead > text_used:
            text = np.empty(2 * (text_used - dead), np.uint8)
            kernels.compact_text(self.text, self.text_lo, self.text_hi, text, self._meta)
            self.text = text

    def columns(self, slots: Ints) -> tuple[Column, ...]:
        """The rows of `slots`, as columns (the group left out)."""
        lanes = self.lanes.take(slots, axis=0)
        if self.grouped:
            lanes = np.ascontiguousarray(lanes[:, 1:])
        lo, hi = self.text_lo.take(slots, axis=0), self.text_hi.take(slots, axis=0)
        return decode(RowImage(self.spec, lanes, lo, hi, self.text))

    def groups(self, slots: Ints) -> Ints:
        """(n,) the group of each slot."""
        assert self.grouped
        groups: Ints = self.lanes[slots, 0].view(np.int64)
        return groups


class Partials:
    """The sums a round adds: `words` (count, W) uint64 by (slot, time); words 0 and 1 count the rows."""

    def __init__(self, width: int) -> None:
        self._first = np.zeros(0, np.int32)
        self._last = np.zeros(0, np.int32)
        self._meta: Ints = np.zeros(2, np.int64)
        self.slots: Ints = np.zeros(0, np.int64)
        self.times: Words = np.zeros(0, np.uint64)
        self.words: Words = np.zeros((0, width), np.uint64)
        self._entries: Words = np.zeros(2 * _START_SLOTS, np.uint64)

    def __len__(self) -> int:
        return int(self._meta[kernels.COUNT])

    @property
    def nbytes(self) -> int:
        arrays: tuple[NDArray[Any], ...] = (
            self._first, self._last, self.slots, self.times, self.words, self._entries,
        )  # fmt: skip
        return sum(a.nbytes for a in arrays)

    def add(self, slots: Ints, times: Words, diffs: Ints, capacity: int) -> Ints:
        """(n,) the partial of each (slot, time), its count raised by the diff. capacity: of the table."""
        self._first = grown(self._first, capacity, -1)
        self._last = grown(self._last, capacity, -1)
        n = len(slots)
        out = np.empty(n, np.int64)
        done = 0
        while True:
            done = kernels.assign_partials(
                slots, times, diffs, done, self._first, self._last,
                self.slots, self.times, self.words, self._entries, self._meta, out,
            )  # fmt: skip
            if done == n:
                return out
            if len(self) == len(self.slots):
                size = max(_START_SLOTS, 2 * len(self))
                self.slots = grown(self.slots, size)
                self.times = grown(self.times, size)
                self.words = grown(self.words, size)
            else:
                entries: Words = np.zeros(2 * len(self._entries), np.uint64)
                kernels.grow(self._entries, entries)
                self._entries = entries

    def order(self) -> Ints:
        """The partials, ascending in time."""
        return sorted_by_time(self.times[: len(self)])

    def retire(self, sums: Words, holders: NDArray[np.int32]) -> Ints:
        """End of the round: start anew. Returns the slots whose `sums` and `holders` are all zero."""
        count = len(self)
        out = np.empty(count, np.int64)
        freed = kernels.retire(self.slots, count, sums, self._first, self._last, holders, out)
        self._meta[:] = 0
        if count > _START_SLOTS:
            self.slots, self.times = np.zeros(0, np.int64), np.zeros(0, np.uint64)
            self.words = np.zeros((0, self.words.shape[1]), np.uint64)
            self._entries = np.zeros(2 * _START_SLOTS, np.uint64)
        else:
            self.words[:count] = 0
            self._entries[:] = 0
        return out[:freed]

    def chunks(self, rows: int) -> Iterator[tuple[int, int]]:
        """[start, end) pieces of the partials of at most `rows`."""
        count = len(self)
        for start in range(0, count, rows):
            yield start, min(start + rows, count)
