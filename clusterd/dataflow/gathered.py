"""What a binding of a recursion changed at the times of a round, gathered until the round's end.

A recursion may take many iterations, or have no end, and what it makes and takes back must not pile up: so
beyond some rows they are sorted, in pieces, and what cancels goes. Fewer are kept as they came, since whoever
arranges them sorts them once more.

Does not: decide when a time is over, or judge rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, types_of
from clusterd.operators.arrange import Arranger
from shm_arrangements.builder import HeapAllocator
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.updates import Updates

__all__ = ["MOST_LOOSE", "Gathered"]

MOST_LOOSE: Final = 1 << 20  # rows that are not sorted
_ANY_TIME: Final = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())


class Gathered:
    """Updates of `columns`, and `errs`, which are few."""

    def __init__(self, columns: Columns) -> None:
        self._nothing = Updates.empty(types_of(columns))
        self._schema = ArrangementSchema(columns, ())
        self._loose: list[Updates] = []
        self._loose_rows = 0
        self._sorted: Arranger | None = None
        self.errs: list[Updates] = []

    def add(self, updates: Updates) -> Iterator[None]:
        """Take rows, in pieces."""
        if self._sorted is not None:
            yield from self._sorted.add(updates)
            return
        self._loose.append(updates)
        self._loose_rows += len(updates)
        if self._loose_rows > MOST_LOOSE:
            self._sorted = Arranger(self._schema)
            loose, self._loose = self._loose, []
            for each in loose:
                yield from self._sorted.add(each)
                yield

    def take(self) -> Iterator[Delta]:
        """All of it, in blocks, and forget it."""
        errs, oks, arranger = self.errs, self._loose, self._sorted
        self.errs, self._loose, self._loose_rows, self._sorted = [], [], 0, None
        for updates in errs:
            yield Delta(self._nothing, updates)
        if arranger is not None:
            for _ in arranger.seal(_ANY_TIME, HeapAllocator()):
                yield Delta.of(self._nothing)
            batch = arranger.take()
            every = batch.times_at(0, len(batch)), batch.diffs_at(0, len(batch))
            oks = [Updates(batch.row_columns(), *every)]
        for updates in oks:
            for lo in range(0, len(updates), BLOCK_ROWS):
                yield Delta.of(updates.slice(lo, min(lo + BLOCK_ROWS, len(updates))))

    def drop(self, time: int) -> None:
        """Forget what there is of `time`."""
        for delta in list(self.take()):
            for kept, updates in ((self._loose, delta.oks), (self.errs, delta.errs)):
                rest = updates.filter(updates.times != np.uint64(time))
                if len(rest):
                    kept.append(rest)
        self._loose_rows = sum(map(len, self._loose))

    def clear(self) -> None:
        self.errs, self._loose, self._loose_rows, self._sorted = [], [], 0, None
