"""RowTable: rows to slots and back; Partials: what a round adds to each slot at each time.

All stateful operators stand on these two. A row (a group's key, a whole row of a top-k, a value of a group)
is found by hash and verified, gets a small dense number, its slot, and keeps it until it is let go; whatever
an operator knows of it lies in arrays by slot. A round collects, per (slot, time), one row of words: the
count of rows in words 0 and 1, then what the operator adds. So memory in a round is bounded by the distinct
(row, time), not by the updates, and in a hydration, where all times are one, by the rows alone.

Cost: O(1) expected an update; arrays double, so growing is amortised, and is sequential work.

Does not: order rows (kernels/treap.py), interpret words (reduce_tactic.py), or look at diffs of a round
twice.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.growable import Growable
from clusterd.operators.kernels import table as kernels
from clusterd.operators.time_steps import Work, pieces, time_order
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowImage, RowSpec, decode

__all__ = ["Partials", "RowTable", "count_holders"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_START_SLOTS = 64
_KEPT_PARTIALS = 1 << 15  # room kept from round to round: growing anew is a twentieth of a round of 10,000
_TEXT_SLACK = 1 << 16  # dead bytes that are not worth a compaction
_FOURFOLD = 1 << 19  # entries up to which a table grows fourfold: moving them is a tenth of a load else
_PIECE_ENTRIES = 1 << 18  # of a table, moved to a larger one in one piece: some 6 ms


def count_holders(
    rows: Ints, counts: Words, lanes: Words, counted: NDArray[np.uint8], holders: NDArray[np.int32]
) -> Work[None]:
    """Keep `holders` of the groups right after the `counts` of `rows` changed; arrays are the kernel's."""
    for lo, hi in pieces(len(rows)):
        if lo:
            yield
        kernels.count_holders(rows[lo:hi], counts, lanes, counted, holders)


class RowTable:
    """Slots for the rows of one spec, each under a group number if `grouped` (then the first lane)."""

    def __init__(self, spec: RowSpec, *, grouped: bool = False) -> None:
        self.spec = spec
        self.grouped = grouped
        kinds = spec.kinds
        self.kinds = np.concatenate([np.zeros(1, np.uint8), kinds]) if grouped else kinds
        texts = len(spec.text_columns)
        self._lanes = Growable(np.uint64, (len(self.kinds),))
        self._text_lo = Growable(np.int64, (texts,))
        self._text_hi = Growable(np.int64, (texts,))
        self._text = Growable(np.uint8)
        self._tags = Growable(np.uint32)
        self._free = Growable(np.int64)
        self._entries = Growable(np.uint64)
        self._entries.grow(2 * _START_SLOTS)
        self._meta: Ints = np.zeros(4, np.int64)

    @property
    def capacity(self) -> int:
        """Slots there is room for; arrays by slot have this length or more."""
        return len(self._tags)

    @property
    def lanes(self) -> Words:
        """(capacity, L), the group first if `grouped`. As every array here: not to be kept."""
        return self._lanes.a

    @property
    def text_lo(self) -> Ints:
        return self._text_lo.a

    @property
    def text_hi(self) -> Ints:
        return self._text_hi.a

    @property
    def text(self) -> NDArray[np.uint8]:
        return self._text.a

    def __len__(self) -> int:
        return int(self._meta[kernels.USED] - self._meta[kernels.FREE])

    @property
    def nbytes(self) -> int:
        sized = (self._lanes, self._text_lo, self._text_hi, self._text, self._tags, self._free, self._entries)
        return sum(a.nbytes for a in sized)

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
                self._entries.a, self._tags.a, self.lanes, self.text_lo, self.text_hi, self.text,
                self._free.a, self._meta, out,
            )  # fmt: skip
            if done == n:
                return out
            self._make_room(int((hi[done] - lo[done]).sum()))

    def _make_room(self, text_bytes: int) -> None:
        """Room for at least one more row with `text_bytes` of text."""
        used, free, text_used = (int(self._meta[k]) for k in (kernels.USED, kernels.FREE, kernels.TEXT_USED))
        if free == 0 and used == self.capacity:
            self._more_slots(used + 1)
        if 2 * (used - free + 1) > len(self._entries):
            self._entries = _regrown(self._entries)
        self._text.grow(text_used + text_bytes)

    def _more_slots(self, slots: int) -> None:
        for sized in (self._tags, self._free, self._lanes, self._text_lo, self._text_hi):
            sized.grow(slots)

    def make_room(self, rows: int) -> Work[None]:
        """For an `assign` of `rows` new rows: it then does not stop to make a large table larger."""
        wanted = 2 * (len(self) + rows)
        if wanted > max(len(self._entries), _PIECE_ENTRIES):
            self._entries = yield from _regrowing(self._entries, wanted)
        if self.capacity > _PIECE_ENTRIES:
            self._more_slots(len(self) + rows)
            for sized in (self._tags, self._lanes, self._text_lo, self._text_hi):
                yield from sized.touching(int(self._meta[kernels.USED]) + rows)

    def free(self, slots: Ints) -> None:
        """Let go of distinct slots, at the end of a round: nothing may name them any more."""
        for _ in self.freeing(slots):
            pass

    def freeing(self, slots: Ints) -> Work[None]:
        """`free` in pieces; the table is not to be used between them."""
        for lo, hi in pieces(len(slots)):
            if lo:
                yield
            kernels.free_slots(
                slots[lo:hi],
                self._entries.a, self._tags.a, self.text_lo, self.text_hi, self._free.a, self._meta,
            )  # fmt: skip
        dead, text_used = int(self._meta[kernels.TEXT_DEAD]), int(self._meta[kernels.TEXT_USED])
        if dead > _TEXT_SLACK and 2 * dead > text_used:
            text, end = Growable(np.uint8), 0
            text.grow(2 * (text_used - dead))
            for lo, hi in pieces(int(self._meta[kernels.USED])):
                if lo:
                    yield
                end = kernels.compact_text(self.text, lo, hi, end, self.text_lo, self.text_hi, text.a)
            self._text = text
            self._meta[kernels.TEXT_USED], self._meta[kernels.TEXT_DEAD] = end, 0

    def image(self, slots: Ints) -> RowImage:
        """The rows of `slots`, the group left out; texts are this table's own."""
        lanes = self.lanes.take(slots, axis=0)
        if self.grouped:
            lanes = np.ascontiguousarray(lanes[:, 1:])
        lo, hi = self.text_lo.take(slots, axis=0), self.text_hi.take(slots, axis=0)
        return RowImage(self.spec, lanes, lo, hi, self.text)

    def columns(self, slots: Ints) -> tuple[Column, ...]:
        """The rows of `slots`, as columns (the group left out)."""
        return decode(self.image(slots))

    def column(self, slots: Ints, position: int) -> Column:
        """One column of the rows of `slots`."""
        spec, first, slot = self._parts[position]
        lanes = np.ascontiguousarray(self.lanes[slots, first : first + len(spec.kinds)])
        texts = slice(slot, slot + len(spec.text_columns))
        lo, hi = self.text_lo[slots, texts], self.text_hi[slots, texts]
        return decode(RowImage(spec, lanes, lo, hi, self.text))[0]

    @cached_property
    def _parts(self) -> list[tuple[RowSpec, int, int]]:
        """Of each column, the spec of it alone, its first lane and its text slot."""
        parts, lane, slot = [], int(self.grouped), 0
        for type_ in self.spec.types:
            spec = RowSpec((type_,))
            parts.append((spec, lane, slot))
            lane, slot = lane + len(spec.kinds), slot + len(spec.text_columns)
        return parts

    def groups(self, slots: Ints) -> Ints:
        """(n,) the group of each slot."""
        assert self.grouped
        groups: Ints = self.lanes[slots, 0].view(np.int64)
        return groups


def _next_size(entries: Growable[np.uint64]) -> int:
    return (4 if len(entries) <= _FOURFOLD else 2) * len(entries)


def _regrown(entries: Growable[np.uint64]) -> Growable[np.uint64]:
    """A larger table, with the same entries."""
    out = Growable(np.uint64)
    out.grow(_next_size(entries))
    kernels.grow(entries.a, out.a)
    return out


def _regrowing(entries: Growable[np.uint64], wanted: int) -> Work[Growable[np.uint64]]:
    """A table of at least `wanted` entries, with the same ones; in pieces."""
    out = Growable(np.uint64)
    out.grow(max(1 << (wanted - 1).bit_length(), _next_size(entries)))
    for lo, hi in pieces(len(entries), _PIECE_ENTRIES):
        kernels.grow(entries.a[lo:hi], out.a)
        yield
    return out


class Partials:
    """The sums a round adds: `words` (count, W) uint64 by (slot, time); words 0 and 1 count the rows."""

    def __init__(self, width: int) -> None:
        self._first = Growable(np.int32, fill=-1)
        self._last = Growable(np.int32, fill=-1)
        self._meta: Ints = np.zeros(2, np.int64)
        self._words = Growable(np.uint64, (width,))
        self._start()

    def _start(self) -> None:
        self._slots = Growable(np.int64)
        self._times = Growable(np.uint64)
        self._words = Growable(np.uint64, self._words.a.shape[1:])
        self._owners = Growable(np.int64)
        self._entries = Growable(np.uint64)
        self._entries.grow(2 * _START_SLOTS)

    @property
    def slots(self) -> Ints:
        return self._slots.a

    @property
    def times(self) -> Words:
        return self._times.a

    @property
    def owners(self) -> Ints:
        """By partial, the one of its group at its time, if `add` was told."""
        return self._owners.a

    @property
    def words(self) -> Words:
        return self._words.a

    @words.setter
    def words(self, words: Words) -> None:
        if words is not self._words.a:
            self._words.replace(words)

    def __len__(self) -> int:
        return int(self._meta[kernels.COUNT])

    @property
    def nbytes(self) -> int:
        sized: tuple[Growable[Any], ...] = (
            self._first, self._last, self._slots, self._times, self._words, self._owners, self._entries,
        )  # fmt: skip
        return sum(a.nbytes for a in sized)

    def add(self, slots: Ints, times: Words, diffs: Ints, capacity: int, owners: Ints | None = None) -> Ints:
        """(n,) the partial of each (slot, time), its count raised by the diff. capacity: of the table.

        owners: (n,) of each, the partial of its group.
        """
        self._first.grow(capacity)
        self._last.grow(capacity)
        n = len(slots)
        out = np.empty(n, np.int64)
        done = 0
        while True:
            done = kernels.assign_partials(
                slots, times, diffs, done, self._first.a, self._last.a,
                self.slots, self.times, self.words, self._entries.a, self._meta, out,
            )  # fmt: skip
            if done == n:
                break
            count = len(self)
            if count == len(self._slots):
                for sized in (self._slots, self._times, self._words):
                    sized.grow(count + 1)
            else:
                self._entries = _regrown(self._entries)
        if owners is not None:
            self._owners.grow(len(self._slots))
            self._owners.a[out] = owners
        return out

    def make_room(self, rows: int, capacity: int) -> Work[None]:
        """For an `add` of `rows`: it then does not stop to make a large table larger.

        capacity: as of `add`.
        """
        for sized in (self._first, self._last):
            yield from sized.growing(capacity)
        if len(self._slots) > _PIECE_ENTRIES:
            upto = len(self) + rows
            for filled in (self._slots, self._times, self._words, self._owners):
                if len(filled):  # owners: if somebody tells them
                    filled.grow(upto)
                    yield from filled.touching(upto)
        wanted = 2 * (int(self._meta[kernels.HASHED]) + rows)
        if wanted > len(self._entries) > _PIECE_ENTRIES:
            self._entries = yield from _regrowing(self._entries, wanted)

    def have(self, slots: Ints) -> NDArray[np.bool_]:
        """(n,) whether the round has a partial of each slot."""
        return np.greater_equal(self._first.a[slots], 0)

    def order(self) -> Work[Ints]:
        """The partials, ascending in time."""
        return time_order(self.times[: len(self)])

    def retire(self, sums: Words, holders: NDArray[np.int32]) -> Work[Ints]:
        """End of the round: start anew. Returns the slots whose `sums` and `holders` are all zero."""
        count = len(self)
        out = np.empty(count, np.int64)
        freed = 0
        for lo, hi in pieces(count):
            if lo:
                yield
            slots = self.slots[lo:hi]
            freed += kernels.retire(slots, hi - lo, sums, self._first.a, self._last.a, holders, out[freed:])
        hashed = int(self._meta[kernels.HASHED])
        self._meta[:] = 0
        if len(self._slots) > _KEPT_PARTIALS:
            self._start()
        else:
            self.words[:count] = 0
            if hashed:
                self._entries.a[:] = 0
        return out[:freed]
