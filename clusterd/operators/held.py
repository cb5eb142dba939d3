"""Held updates: those of times that have not come yet, until they come.

They lie in runs, each sorted by (time, mark) in pieces of at most a block; the mark is a part of the row's
hash. A new run is merged with the one before it while that is not more than twice as long, so an update is
merged a logarithmic number of times, and what is released is the front of each run: nothing is sorted again.
Where two runs meet, equal updates become one and those that cancel go, so a row that is gone before its time
leaves nothing behind. Merging goes piece by piece.

That equal updates meet is for memory alone: the sum of what is released is that of what was held, also if
rows of one mark lie on two sides of a cut, or a sum does not fit and is left as it was.

Does not: know what the updates are for, or which times have come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, types_of
from clusterd.operators.kernels.held import merge_order
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.updates import Updates

__all__ = ["HeldUpdates"]

Ints = NDArray[np.int64]
Marks = NDArray[np.uint32]

_S32: Final = np.uint64(32)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some updates of a run. marks: (n,) uint32."""

    updates: Updates
    marks: Marks

    def __len__(self) -> int:
        return len(self.marks)

    @property
    def last(self) -> tuple[int, int]:
        return int(self.updates.times[-1]), int(self.marks[-1])

    def through(self, time: int, mark: int) -> int:
        """How many are not beyond (time, mark)."""
        lo, hi = (int(np.searchsorted(self.updates.times, np.uint64(time), side)) for side in _SIDES)
        return lo + int(np.searchsorted(self.marks[lo:hi], np.uint32(mark), "right"))

    def slice(self, lo: int, hi: int) -> _Piece:
        return _Piece(self.updates.slice(lo, hi), self.marks[lo:hi])

    def take(self, rows: Ints) -> _Piece:
        return _Piece(self.updates.take(rows), self.marks.take(rows))


_SIDES: Final = ("left", "right")
_Run = deque[_Piece]


class HeldUpdates:
    """Updates of rows of `columns`."""

    def __init__(self, columns: Columns) -> None:
        self._types = types_of(columns)
        self._spec = RowSpec.of(columns)
        self._runs: list[_Run] = []  # the longest first
        self.touched = 0  # updates looked at, ever: sorted, merged or released

    def __len__(self) -> int:
        return sum(map(_count, self._runs))

    @property
    def nbytes(self) -> int:
        return sum(piece.updates.nbytes + piece.marks.nbytes for run in self._runs for piece in run)

    def insert(self, updates: Updates) -> Iterator[None]:
        """Hold `updates`, of any number, in any order; yields after each piece of work."""
        for lo in range(0, len(updates), BLOCK_ROWS):
            block = updates.slice(lo, min(lo + BLOCK_ROWS, len(updates)))
            if len(piece := self._sorted(block)):
                self._runs.append(deque([piece]))
            yield
            while (place := self._crowded()) is not None:
                yield from self._merge(place)

    def release(self, limit: Frontier) -> Iterator[Updates]:
        """Let go of those before `limit`, in blocks."""
        parts: list[Updates] = []
        count = 0
        for run in self._runs:
            while run:
                piece = run.popleft()
                n = len(piece)
                if not limit.is_empty:
                    n = int(np.searchsorted(piece.updates.times, np.uint64(limit.time)))
                if n < len(piece):
                    run.appendleft(piece.slice(n, len(piece)))
                if n and count + n > BLOCK_ROWS:
                    yield Updates.concat(parts)
                    parts, count = [], 0
                if n:
                    self.touched += n
                    count += n
                    parts.append(piece.updates.slice(0, n))
                if n < len(piece):
                    break
        self._runs = [run for run in self._runs if run]
        if parts:
            yield Updates.concat(parts)

    def clear(self) -> None:
        self._runs = []

    def _sorted(self, updates: Updates) -> _Piece:
        n = len(updates)
        self.touched += n
        times = updates.times
        marks = (encode(updates.columns, self._spec, n).hash() >> _S32).astype(np.uint32)
        span = times - times.min()
        far = int(span.max()) >> 32
        order = np.lexsort((marks, times)) if far else np.argsort(span << _S32 | marks)
        piece = _Piece(updates, marks).take(order)
        # What is held outlives the round: it is to share no memory with what came.
        columns = tuple(column.plain() for column in piece.updates.columns)
        return self._consolidated(
            _Piece(Updates(columns, piece.updates.times, piece.updates.diffs), piece.marks)
        )

    def _crowded(self) -> int | None:
        """The last run that is not twice as long as the one behind it."""
        counts = list(map(_count, self._runs))
        for place in reversed(range(len(counts) - 1)):
            if counts[place] < 2 * counts[place + 1]:
                return place
        return None

    def _merge(self, place: int) -> Iterator[None]:
        """Make one of the runs at `place` and behind it."""
        one, other = self._runs[place : place + 2]
        made = _Maker()
        # Both stay where they are until the end, so that nothing is lost of what is counted.
        one, other = one.copy(), other.copy()
        while one and other:
            last = min(one[0].last, other[0].last)
            made.add(self._merged(_cut(one, *last), _cut(other, *last)))
            yield
        for piece in (*one, *other):
            made.add(piece)
        self._runs[place : place + 2] = filter(None, (made.run(),))

    def _merged(self, one: _Piece, other: _Piece) -> _Piece:
        if not len(one) or not len(other):
            return one if len(one) else other
        n = len(one) + len(other)
        self.touched += n
        order = np.empty(n, np.int64)
        merge_order(one.updates.times, one.marks, other.updates.times, other.marks, order)
        return self._consolidated(_joined([one, other]).take(order))

    def _consolidated(self, piece: _Piece) -> _Piece:
        """A sorted piece, its equal updates as one, without those that cancel."""
        times, marks = piece.updates.times, piece.marks
        same = (times[1:] == times[:-1]) & (marks[1:] == marks[:-1])
        if not same.any():
            return piece
        alike = np.zeros(len(piece), np.bool_)
        alike[1:] = same
        alike[:-1] |= same
        few = np.flatnonzero(alike)
        some = piece.updates.take(few)
        image = encode(some.columns, self._spec, len(few))
        try:
            rows, sums = image.consolidate(image.sort_order(times=some.times), some.diffs, some.times)
        except MultiplicityOverflow:
            return piece
        diffs = piece.updates.diffs.copy()
        diffs[few.take(rows)] = sums
        alike[few.take(rows)] = False
        updates = Updates(piece.updates.columns, times, diffs)
        return _Piece(updates, marks).take(np.flatnonzero(~alike))


class _Maker:
    """Makes a run of pieces that come in order: small ones are joined."""

    def __init__(self) -> None:
        self._run: _Run = deque()
        self._small: list[_Piece] = []
        self._count = 0

    def add(self, piece: _Piece) -> None:
        for lo in range(0, len(piece), BLOCK_ROWS):
            part = piece if len(piece) <= BLOCK_ROWS else piece.slice(lo, min(lo + BLOCK_ROWS, len(piece)))
            if self._count + len(part) > BLOCK_ROWS:
                self._flush()
            self._small.append(part)
            self._count += len(part)

    def _flush(self) -> None:
        if self._small:
            self._run.append(_joined(self._small))
        self._small, self._count = [], 0

    def run(self) -> _Run:
        self._flush()
        return self._run


def _count(run: _Run) -> int:
    return sum(map(len, run))


def _cut(run: _Run, time: int, mark: int) -> _Piece:
    """Take what is not beyond (time, mark) off the first piece of `run`."""
    piece = run.popleft()
    n = piece.through(time, mark)
    if n < len(piece):
        run.appendleft(piece.slice(n, len(piece)))
    return piece.slice(0, n)


def _joined(pieces: list[_Piece]) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]
    return _Piece(
        Updates.concat([piece.updates for piece in pieces]), np.concatenate([p.marks for p in pieces])
    )
