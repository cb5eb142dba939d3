"""Merger: abutting batches become one, a little at a time.

First it is decided what becomes of each update: sorted runs are walked by code, in place, times advanced to
`since`, equal (row, time) summed, zero sums dropped; a byte an update is kept of it. Then the size is known,
memory is allocated once, every byte is moved once to its final place, and for
shared memory the checksum is added up. Order survives the rounding because max(time, since) is monotone, and
summing equal neighbours commutes with any split into pieces, so the result is that of a single fold.

Fuel is counted in updates: one for each consumed, two for each written, and one a `_CHECKSUM_BYTES` summed.

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

_CHECKSUM_BYTES: Final = 512
_PIECE: Final = 8192  # updates replayed at once: their references stay in the cache
_IDLE: Final = np.array([kernels.LAST_CODE], np.uint64)


class Merger:
    """Merges `older` and `newer`; the inputs are only read, and stay valid."""

    def __init__(self, older: Batch, newer: Batch, since: Frontier, allocator: Allocator) -> None:
        """since: not empty; times before it are rounded up to it."""
        if not older.description.abuts(newer.description):
            raise InvariantViolation("batches do not abut", older=older, newer=newer)
        self.older, self.newer = older, newer
        self._since = Frontier.join(since, Frontier.join(older.description.since, newer.description.since))
        self._allocator = allocator
        batches = (older, newer)
        self._total = len(older) + len(newer)
        self._sources = np.array([_source(batch) for batch in batches], np.int64)
        self._tables = np.stack([batch.table.cells for batch in batches])
        self._state = np.zeros(kernels.STATE_FIELDS, np.int64)
        self._state[kernels.ALIVE] = -1
        self._words = np.zeros(kernels.WORD_FIELDS, np.uint64)
        self._words[kernels.LEAST_TIME] = kernels.LAST_CODE
        self._ops = np.empty(self._total, np.uint8)
        self._odds = np.empty(self._total + self._total // 2 + 2, np.int64)
        self._scratch = np.empty(kernels.MAX_SOURCES, np.int64)
        self._cursor = np.zeros(kernels.CURSOR_FIELDS, np.int64)
        self._written: int | None = None  # how many updates the result has, once that is decided
        self._rows = self._diffs = np.empty(0, np.int64)
        self._text_bytes: list[int] = []
        self._replayed = 0
        self._assembler: Assembler | None = None
        self._filled = 0
        self._checksum_at = layouts.CHECKSUM_FROM
        self._checksum = 0
        self._result: Batch | None = None

    def remaining(self) -> int:
        """Upper bound of the fuel still needed."""
        if self._result is not None:
            return 0
        if self._assembler is None:
            nbytes = self.older.nbytes + self.newer.nbytes
            if self._written is None:
                left = self._total - int(self._state[kernels.CONSUMED]) + 2 * self._total
            else:
                left = 2 * self._written - self._replayed
            return left + nbytes // _CHECKSUM_BYTES + 2
        left = len(self._rows) - self._filled
        return left + (self._assembler.nbytes - self._checksum_at) // _CHECKSUM_BYTES + 1

    def work(self, fuel_updates: int) -> int:
        """Do at most `fuel_updates` of work; returns what was used. `result` is there when done.

        Raises: what the allocator raises (the call can then be repeated).
        """
        fuel = fuel_updates
        while fuel > 0 and self._result is None:
            if self._written is None:
                fuel -= self._decide(fuel)
            elif self._assembler is None:
                fuel -= self._replay(fuel)
            elif self._filled < self._written:
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
        state = self._state
        done: int = kernels.merge_sources(
            self._sources, self._tables, len(self.older.columns), np.uint64(self._since.time), fuel,
            _IDLE.ctypes.data, state, self._words, self._ops, self._odds, self._scratch,
        )  # fmt: skip
        if state[kernels.ALIVE] == 0:
            self._written = int(state[kernels.WRITTEN])
            if self._written == 0:
                self._result = Batch.empty(self.older.schema, self._description())
            self._rows = np.empty(self._written, np.int64)
            self._diffs = np.empty(self._written, np.int64)
            self._text_bytes = [0] * len(self.older.schema.stored_image.text_columns)
        return max(done, 1)

    def _replay(self, fuel: int) -> int:
        assert self._written is not None
        lo, hi = self._replayed, min(self._replayed + min(fuel, _PIECE), self._written)
        rows = self._rows[lo:hi]
        kernels.replay_merge(self._sources, self._ops, self._odds, self._cursor, rows, self._diffs[lo:hi])
        if self._text_bytes:
            for i, size in enumerate(text_bytes_of(self.older, self.newer, rows)):
                self._text_bytes[i] += size
        self._replayed = hi
        if hi == self._written:
            self._assembler = Assembler(
                self.older.schema, self.older, self.newer, self._rows, self._diffs, self._text_bytes,
                self._since.time, self._allocator,
            )  # fmt: skip
        return max(hi - lo, 1)

    def _fill(self, fuel: int) -> int:
        assert self._assembler is not None
        assert self._written is not None
        end = min(self._filled + fuel, self._written)
        piece = end - self._filled
        self._assembler.fill(self._filled, end)
        self._filled = end
        if end == self._written:
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


def _source(batch: Batch) -> tuple[int, ...]:
    """A row of what kernels read."""
    times, diffs = batch.time_cells, batch.diff_cells
    return (
        batch.codes.ctypes.data, len(batch),
        times.ctypes.data, 8 if len(times) > 1 else 0,
        diffs.ctypes.data, 8 if len(diffs) > 1 else 0,
    )  # fmt: skip
