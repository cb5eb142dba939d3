"""Corrections: what a stored collection lacks of what should be there, at each time still to be written.

What is wanted is added, what is stored is taken off; the sum at a time is what has to be written at it. Times
before the floor, up to which the store is sealed, can be written no more: they count at the floor. Whenever
it rises what is there is brought up to it and summed again (held.py), so what was wanted and is stored, at
whatever times, cancels and leaves nothing behind, whether anything is written or not (Z32).

Does not: read or write a shard, know how far it or the wanted collection is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

import numpy as np

from clusterd.dataflow.operator import Columns
from clusterd.operators.consolidation import consolidated
from clusterd.operators.held import HeldUpdates
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates

__all__ = ["Corrections"]

_LEAST: Final = np.int64(-(1 << 63))  # the one diff whose negative is none


class Corrections:
    """Of rows of `columns`. Everything that is much work is a generator, to be run to its end."""

    def __init__(self, columns: Columns) -> None:
        self._spec = RowSpec.of(columns)
        self._held = HeldUpdates(columns)
        self._floor = Frontier.minimum()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        return self._held.nbytes

    def want(self, updates: Updates) -> Iterator[None]:
        """These should be there."""
        yield from self._held.insert(self._raised(updates))

    def stored(self, updates: Updates) -> Iterator[None]:
        """These are there."""
        yield from self._held.insert(self._raised(_negated(updates)))

    def raise_floor(self, floor: Frontier) -> Iterator[None]:
        """What is before `floor` counts at it from now on. The empty one: nothing can be written any more."""
        self._floor = floor
        if floor.is_empty:
            self._held.clear()
            return
        for updates in (yield from self._release(floor)):
            yield from self._held.insert(self._raised(updates))

    def take(self, limit: Frontier) -> Generator[None, None, list[Updates]]:
        """Take out what is to be written before `limit`: in blocks, each row once a time.

        A row whose sum leaves 64 bits is left as the updates that it came in.
        """
        blocks = yield from self._release(limit)
        taken: list[Updates] = []
        try:
            for updates in consolidated(blocks, self._spec):
                if len(updates):
                    taken.append(updates)
                yield
        except MultiplicityOverflow:
            return blocks
        return taken

    def put_back(self, taken: Sequence[Updates]) -> Iterator[None]:
        """What was taken was not written after all."""
        for updates in taken:
            yield from self.want(updates)

    def clear(self) -> None:
        self._held.clear()

    def _release(self, limit: Frontier) -> Generator[None, None, list[Updates]]:
        released = []
        for updates in self._held.release(limit):
            released.append(updates)
            yield
        return released

    def _raised(self, updates: Updates) -> Updates:
        if self._floor.is_empty:
            return updates.slice(0, 0)
        times = np.maximum(updates.times, np.uint64(self._floor.time))
        return Updates(updates.columns, times, updates.diffs)


def _negated(updates: Updates) -> Updates:
    diffs = -updates.diffs
    least = np.flatnonzero(diffs == _LEAST)
    if not len(least):
        return Updates(updates.columns, updates.times, diffs)
    diffs[least] = ~_LEAST  # and the one that is left
    rest = updates.take(least)
    ones = Updates(rest.columns, rest.times, np.ones(len(least), np.int64))
    return Updates.concat([Updates(updates.columns, updates.times, diffs), ones])
