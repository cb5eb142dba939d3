"""Merger: two abutting batches become one, a little at a time.

Three phases, each in pieces paid with fuel. First the order is decided: two sorted runs are walked slice by
slice, times advanced to `since`, equal (row, time) summed, zero sums dropped; only references and sums are
kept. Then the size is known, memory is allocated once, and every byte is moved once to its final place.
Then, for shared memory, the checksum is added up. Order survives the rounding because max(time, since) is
monotone, and summing equal neighbours commutes with any split into pieces, so the result is that of a
single fold.

Fuel is counted in updates: one for each consumed, one for each written, and one a `_CHECKSUM_BYTES` summed.
A call may encode up to a slice ahead; the image is kept, so over all calls each row is encoded once or
twice.

Does not: choose what to merge, or let go of its inputs (spine.py).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shm_arrangements import layout as layouts
from shm_arrangements.batch import Batch
from shm_arrangements.builder import Assembler, text_bytes_of
from shm_arrangements.contracts import Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels import merge as kernels
from shm_arrangements.rows import RowImage, RowSpec, encode

_SLICE: Final = 8192  # rows encoded at once: about 0.5 ms
_SMALL_SLICE: Final = 256  # when little fuel is given
_CHECKSUM_BYTES: Final = 512  # about as long as one update takes to merge
_NEXT_A, _NEXT_B, _WRITTEN, _FINISHED = 0, 1, 3, 7  # of the kernel's state


class _Slice:
    """Rows [first, end) of a batch, encoded; begins one before the next row to consume."""

    __slots__ = ("batch", "end", "first", "image")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.first = self.end = 0
        self.image: RowImage | None = None

    def advance(self, consumed: int, spec: RowSpec, size: int) -> None:
        """Make the slice begin one before row `consumed`."""
        self.first = max(consumed - 1, 0)
        self.end = min(consumed + size, len(self.batch))
        columns = tuple(c.slice(self.first, self.end) for c in self.batch.columns)
        self.image = encode(columns, spec, rows=self.end - self.first)

    @property
    def is_final(self) -> bool:
        return self.end == len(self.batch)


class Merger:
    """Merges `older` and `newer`; the inputs are only read, and stay valid."""

    def __init__(self, older: Batch, newer: Batch, since: Frontier, allocator: Allocator) -> None:
        """since: not empty; times before it are rounded up to it."""
        if not older.description.abuts(newer.description):
            raise InvariantViolation("batches do not abut", older=older, newer=newer)
        self.older, self.newer = older, newer
        self._since = Frontier.join(since, Frontier.join(older.description.since, newer.description.since))
        self._allocator = allocator
        self._spec = older.schema.stored_image
        self._a, self._b = _Slice(older), _Slice(newer)
        self._consumed_a = self._consumed_b = 0
        total = len(older) + len(newer)
        self._rows = np.empty(total, np.int64)
        self._diffs = np.empty(total, np.int64)
        self._state = np.array([0, 0, -1, 0, 0, 0, 0, 0], np.int64)
        self._text_bytes = [0] * len(self._spec.text_columns)
        self._assembler: Assembler | None = None
        self._filled = 0
        self._checksum_at = layouts.CHECKSUM_FROM
        self._checksum = 0
        self._result: Batch | None = None

    def remaining(self) -> int:
        """Upper bound of the fuel still needed."""
        if self._result is not None:
            return 0
        total = len(self._rows)
        if self._assembler is None:
            left = total - self._consumed_a - self._consumed_b
            return left + total + (self.older.nbytes + self.newer.nbytes) // _CHECKSUM_BYTES + 1
        left = int(self._state[_WRITTEN]) - self._filled
        return left + (self._assembler.nbytes - self._checksum_at) // _CHECKSUM_BYTES + 1

    def work(self, fuel_updates: int) -> int:
        """Do at most `fuel_updates` of work; returns what was used. `result` is there when done.

        Raises: what the allocator raises (the call can then be repeated).
        """
        fuel = fuel_updates
        while fuel > 0 and self._result is None:
            if self._assembler is None:
                fuel -= self._decide(fuel)
            elif self._filled < self._state[_WRITTEN]:
                fuel -= self._fill(fuel)
            else:
                fuel -= self._finish(fuel)
        return fuel_updates - fuel

    def result(self) -> Batch | None:
        """The merged batch, once done; its description covers both inputs as they were given."""
        return self._result

    def abandon(self) -> None:
        """Give up; memory allocated for the result goes back."""
        if self._assembler is not None and self._result is None:
            self._assembler.abandon()

    def _decide(self, fuel: int) -> int:
        a, b, state = self._a, self._b, self._state
        if state[_FINISHED]:  # the allocator failed before
            self._allocate(int(state[_WRITTEN]))
            return 1
        size = max(min(fuel, _SLICE), _SMALL_SLICE)
        for part, consumed in ((a, self._consumed_a), (b, self._consumed_b)):
            if part.image is None or (consumed == part.end and not part.is_final):
                part.advance(consumed, self._spec, size)
        assert a.image is not None
        assert b.image is not None
        state[_NEXT_A] = self._consumed_a - a.first
        state[_NEXT_B] = self._consumed_b - b.first
        before = int(state[_WRITTEN])
        x, y, older, newer = a.image, b.image, a.batch, b.batch
        used: int = kernels.merge_rows(
            older.codes[a.first : a.end], x.lanes, x.text_lo, x.text_hi, x.text,
            older.times[a.first : a.end], older.diffs[a.first : a.end], a.first, int(a.is_final),
            newer.codes[b.first : b.end], y.lanes, y.text_lo, y.text_hi, y.text,
            newer.times[b.first : b.end], newer.diffs[b.first : b.end], b.first, int(b.is_final),
            self._spec.kinds, np.uint64(self._since.time), fuel, state, self._rows, self._diffs,
        )  # fmt: skip
        self._consumed_a = a.first + int(state[_NEXT_A])
        self._consumed_b = b.first + int(state[_NEXT_B])
        written = int(state[_WRITTEN])
        if written > before and self._text_bytes:
            for i, size in enumerate(text_bytes_of(older, newer, self._rows[before:written])):
                self._text_bytes[i] += size
        if state[_FINISHED]:
            self._allocate(written)
        return max(used, 1)

    def _allocate(self, written: int) -> None:
        if written == 0:
            self._result = Batch.empty(self.older.schema, self._description())
            return
        self._assembler = Assembler(
            self.older.schema, self.older, self.newer, self._rows[:written], self._diffs[:written],
            self._text_bytes, self._since.time, self._allocator,
        )  # fmt: skip

    def _fill(self, fuel: int) -> int:
        assert self._assembler is not None
        end = min(self._filled + fuel, int(self._state[_WRITTEN]))
        piece = end - self._filled
        self._assembler.fill(self._filled, end)
        self._filled = end
        if end == self._state[_WRITTEN]:
            self._assembler.write_header(self._description())
        return piece

    def _finish(self, fuel: int) -> int:
        assert self._assembler is not None
        if not self._allocator.checksums:
            self._result = self._assembler.seal(None)
            return 1
        end = min(self._checksum_at + fuel * _CHECKSUM_BYTES, self._assembler.nbytes)
        start, self._checksum_at = self._checksum_at, end
        self._checksum = self._assembler.checksum(start, end, self._checksum)
        if end == self._assembler.nbytes:
            self._result = self._assembler.seal(self._checksum)
        return -(-(end - start) // _CHECKSUM_BYTES)

    def _description(self) -> Description:
        both = self.older.description.through(self.newer.description)
        return Description(both.lower, both.upper, self._since)
