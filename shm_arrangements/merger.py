"""Merger: abutting batches become one, a little at a time.

First it is decided what becomes of each update: sorted runs are walked by code, in place, times advanced to
`since`, equal (row, time) summed, zero sums dropped; a byte an update is kept of it. Then the size is known,
memory is allocated and reserved slice by slice, every byte is moved once to its final place, and for shared
memory the checksum is added up. Order survives the rounding because max(time, since) is monotone, and summing
equal neighbours commutes with any split into pieces, so the result is that of a single fold.

Fuel is counted in updates, about ten nanoseconds each: one for each consumed, for what is written one for
each `_RESERVED_BYTES`, `_FILLED_BYTES` (at least one an update) and `_CHECKSUM_BYTES`, and one for each
`_LET_GO_BYTES` of the inputs, for with the result it is their memory that goes. A large update or a slice of
memory may cost more than is given: the rest is a debt, paid before the work goes on, so that no sum of fuel
buys more than it pays for.

Does not: choose what to merge, or let go of its inputs (spine.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from shm_arrangements import layout as layouts
from shm_arrangements.assembler import Assembler
from shm_arrangements.batch import Batch
from shm_arrangements.batch_plan import Plan
from shm_arrangements.columns import Ints
from shm_arrangements.contracts import Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels import merge as kernels

MAX_SOURCES: Final = kernels.MAX_SOURCES
_RESERVED_BYTES: Final = 16
_FILLED_BYTES: Final = 32
_CHECKSUM_BYTES: Final = 512
_LET_GO_BYTES: Final = 64
_PIECE: Final = 8192  # updates replayed at once: their references stay in the cache
_SPANS: Final = 16  # where a batch is looked at, and for how many updates
_SPAN: Final = 128
_WHOLE: Final = np.zeros(1, np.int64)
_IDLE: Final = np.array([kernels.LAST_CODE], np.uint64)
_IDLE_ADDRESS: Final = _IDLE.ctypes.data


class Merger:
    """Merges `batches`, oldest first; they are only read, and stay valid."""

    __slots__ = (
        "_allocator", "_assembler", "_checksum", "_checksum_at", "_cursor", "_debt", "_filled",
        "_let_go_fuel", "_nbytes", "_odds", "_ops", "_plan", "_replayed", "_result", "_scratch", "_since",
        "_sources", "_state", "_total", "_words", "_written", "batches",
    )  # fmt: skip

    def __init__(self, batches: Sequence[Batch], since: Frontier, allocator: Allocator) -> None:
        """batches: 1 to MAX_SOURCES of them. since: not empty; times before it are rounded up to it."""
        for older, newer in pairwise(batches):
            if not older.description.abuts(newer.description):
                raise InvariantViolation("batches do not abut", older=older, newer=newer)
        self.batches = tuple(batches)
        self._since = since = Frontier.join(since, *[batch.description.since for batch in batches])
        self._allocator = allocator
        self._total = total = sum(map(len, batches))
        self._nbytes = sum([batch.nbytes for batch in batches])
        self._let_go_fuel = 1 + self._nbytes // _LET_GO_BYTES
        self._sources = np.array([_source(batch) for batch in batches], np.int64)
        self._state = np.zeros(kernels.STATE_FIELDS, np.int64)
        self._state[kernels.ALIVE] = -1
        self._words = np.zeros(kernels.WORD_FIELDS, np.uint64)
        self._words[kernels.LEAST_TIME] = kernels.LAST_CODE
        self._ops = np.empty(total, np.uint8)
        self._odds = np.empty(total + total // 2 + 2, np.int64)  # memory is taken when it is touched
        self._scratch = np.empty(kernels.MAX_SOURCES, np.int64)
        self._cursor = np.zeros(kernels.CURSOR_FIELDS, np.int64)
        self._written = -1  # how many updates the result has, once that is decided
        self._plan = Plan(batches[0].schema, batches, since=since.time)
        self._replayed = 0
        self._assembler: Assembler | None = None
        self._filled = 0
        self._checksum_at = layouts.CHECKSUM_FROM
        self._checksum = 0
        self._debt = 0
        self._result: Batch | None = None

    def __len__(self) -> int:
        """The updates of all inputs."""
        return self._total

    def remaining(self) -> int:
        """Upper bound of the fuel still needed, about."""
        if self._result is not None:
            return 0
        assembler = self._assembler
        if assembler is None:
            nbytes = self._nbytes
            left = self._debt + self._total - int(self._state[kernels.CONSUMED]) + self._total + 2
            left += self._let_go_fuel
            return left + nbytes // _RESERVED_BYTES + nbytes // _FILLED_BYTES + nbytes // _CHECKSUM_BYTES
        left = self._debt + (self._written - self._filled) * self._row_fuel + self._let_go_fuel
        left += max(assembler.nbytes - assembler.reserved, 0) // _RESERVED_BYTES
        return left + max(self._checksum_end - self._checksum_at, 0) // _CHECKSUM_BYTES + 1

    def work(self, fuel_updates: int) -> int:
        """Do at most `fuel_updates` of work; returns what was used. `result` is there when done.

        Raises: what the allocator raises (the call can then be repeated).
        """
        fuel = fuel_updates
        while fuel > 0 and self._result is None:
            if self._debt > 0:
                paid = min(self._debt, fuel)
                self._debt -= paid
                fuel -= paid
                continue
            if self._written < 0:
                used = self._decide(fuel)
            elif self._assembler is None:
                used = self._replay(fuel)
            elif self._assembler.reserved < self._assembler.nbytes:
                used = self._reserve(fuel)
            elif self._filled < self._written:
                used = self._fill(fuel)
            elif self._checksum_at < self._checksum_end:
                used = self._sum_up(fuel)
            elif fuel < fuel_updates and fuel < self._let_go_fuel:
                break  # the next call can bear it better
            else:
                used = min(self._let_go_fuel, fuel)
                self._result = self._assembler.seal(self._checksum if self._allocator.checksums else None)
            self._debt = max(used - fuel, 0)
            fuel = max(fuel - used, 0)
        return fuel_updates - fuel

    def result(self) -> Batch | None:
        """The merged batch, once done; its description covers the inputs as they were given."""
        return self._result

    def abandon(self) -> None:
        """Give up; memory allocated for the result goes back."""
        if self._assembler is not None and self._result is None:
            self._assembler.abandon()

    def _decide(self, fuel: int) -> int:
        state, plan = self._state, self._plan
        done: int = kernels.merge_sources(
            self._sources, plan.tables, len(plan.schema.stored), np.uint64(plan.since), fuel,
            _IDLE_ADDRESS, state, self._words, self._ops, self._odds, self._scratch,
        )  # fmt: skip
        if state[kernels.ALIVE] == 0:
            self._written = int(state[kernels.WRITTEN])
            if self._written == 0:
                self._result = Batch.empty(plan.schema, self._description())
        return max(done, 1)

    def _replay(self, fuel: int) -> int:
        """Tell the plan of the updates to be written, if it asks."""
        plan, rows = self._plan, 0
        if plan.needs_rows and self._replayed < self._written:
            rows = min(fuel, _PIECE, self._written - self._replayed)
            plan.add(self._next_refs(rows)[0])
            self._replayed += rows
        if not plan.needs_rows or self._replayed == self._written:
            first, last = int(self._words[kernels.LEAST_TIME]), int(self._words[kernels.MOST_TIME])
            one_diff = 1 if self._state[kernels.NOT_ONE] == 0 else None
            plan.settle(self._written, first if first == last else None, one_diff)
            self._cursor[:] = 0
            self._assembler = Assembler(plan, self._allocator, deferred=True)
        return max(rows, 1)

    def _reserve(self, fuel: int) -> int:
        assembler = self._assembler
        assert assembler is not None
        before = assembler.reserved
        try:
            assembler.reserve(before + fuel * _RESERVED_BYTES)
        except BaseException:
            self._assembler = None  # what it had is given back
            raise
        return (assembler.reserved - before) // _RESERVED_BYTES + 1

    def _next_refs(self, rows: int) -> tuple[Ints, Ints]:
        refs, diffs = np.empty(rows, np.int64), np.empty(rows, np.int64)
        kernels.replay_merge(self._sources, self._ops, self._odds, self._cursor, refs, diffs)
        return refs, diffs

    @property
    def _row_fuel(self) -> int:
        """What it costs to fill in an update."""
        assert self._assembler is not None
        return max(self._assembler.nbytes // self._written // _FILLED_BYTES, 1)

    def _fill(self, fuel: int) -> int:
        assert self._assembler is not None
        each = self._row_fuel
        rows = min(max(fuel // each, 1), _PIECE, self._written - self._filled)
        self._assembler.fill(*self._next_refs(rows))
        self._filled += rows
        if self._filled == self._written:
            self._assembler.write_header(self._description())
        return rows * each

    @property
    def _checksum_end(self) -> int:
        assert self._assembler is not None
        return self._assembler.nbytes if self._allocator.checksums else 0

    def _sum_up(self, fuel: int) -> int:
        assert self._assembler is not None
        start, end = self._checksum_at, min(self._checksum_at + fuel * _CHECKSUM_BYTES, self._checksum_end)
        self._checksum = self._assembler.checksum(start, end, self._checksum)
        self._checksum_at = end
        return -(-(end - start) // _CHECKSUM_BYTES)

    def _description(self) -> Description:
        first, last = self.batches[0].description, self.batches[-1].description
        return Description(first.lower, last.upper, self._since)


def share_saved(batch: Batch, since: Frontier) -> float:
    """How much of a batch's bytes would be saved, about, if it were merged with nothing; 0 to 1.

    Some hundreds of neighbours are looked at for whether they would be summed up, all over the batch.
    """
    rows = len(batch)
    starts = (
        np.linspace(0, max(rows - _SPAN, 0), _SPANS).astype(np.int64) if rows > _SPANS * _SPAN else _WHOLE
    )
    span = _SPAN if len(starts) > 1 else rows
    source = np.array(_source(batch), np.int64)
    time = np.uint64(since.time)
    folded = kernels.count_folded(source, batch.table.cells, len(batch.columns), time, starts, span)
    share = folded / min(rows, len(starts) * span)
    upper = batch.description.upper
    if len(batch.time_cells) > 1 and not upper.is_empty and upper.time <= since.time + 1:
        share += (1 - share) * batch.time_cells.nbytes / batch.nbytes  # one time stands for all then
    return float(share)


def _source(batch: Batch) -> tuple[int, ...]:
    """A row of what kernels read."""
    times, diffs = batch.time_cells, batch.diff_cells
    return (
        layouts.address_of(batch.codes), len(batch),
        layouts.address_of(times), 8 if len(times) > 1 else 0,
        layouts.address_of(diffs), 8 if len(diffs) > 1 else 0,
    )  # fmt: skip
