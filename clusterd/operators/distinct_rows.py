"""DistinctRows: the values of each group, each once, for aggregates over distinct values.

A value is there while its count is positive. So a round says, step by step, which values come and which go,
and an accumulable aggregate adds those instead of the rows. A value whose count is negative is not there, and
is a fault that names it as long as that lasts.

Does not: order values, add them up (reduce_tactic.py does).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.growable import Growable
from clusterd.operators.kernels import table as kernels
from clusterd.operators.ordered import NOTHING, Ints, Tell, fault_arrays
from clusterd.operators.row_table import Partials, RowTable, count_holders
from clusterd.operators.time_steps import Steps, Work
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowImage, RowSpec

__all__ = ["DistinctRows"]

_PIECE = 65_536


class DistinctRows:
    """Values of a `spec` of one column, by group."""

    def __init__(self, spec: RowSpec) -> None:
        self.table = RowTable(spec, grouped=True)
        self.partials = Partials(2)
        self._counts = Growable(np.uint64, (2,))
        self._counted = Growable(np.uint8)
        self._no_holders = Growable(np.int32)
        self._order = NOTHING
        self.visited = 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self.partials.nbytes + self._counts.nbytes

    def add(
        self, image: RowImage, groups: Ints, times: NDArray[np.uint64], diffs: Ints, owners: Ints
    ) -> None:
        """Take updates into the round. owners: the partials of their groups."""
        slots = self.table.assign(image, groups)
        self.partials.add(slots, times, diffs, self.table.capacity, owners)

    def open(self, steps: Steps) -> Work[None]:
        """Put the round's updates in the order of the steps."""
        self._order, _ = yield from steps.split(self.partials)

    def flips(self, tell: Tell) -> Iterator[tuple[Column, Ints, Ints]]:
        """Apply the round's updates; (values, signs, partials of their groups) of what comes and goes."""
        self._counts.grow(self.table.capacity)
        order, self._order = self._order, NOTHING
        room = min(len(order), _PIECE)
        out, signs = np.empty(room, np.int64), np.empty(room, np.int64)
        faults = fault_arrays()
        found = np.zeros(2, np.int64)
        at = 0
        while at < len(order):
            at = kernels.flips(
                order, at, len(order), self.partials.slots, self.partials.times, self.partials.words,
                self._counts.a, out, signs, *faults, found,
            )  # fmt: skip
            flipped, wrong = found.tolist()
            if wrong:
                tell(faults[0][:wrong], faults[1][:wrong], faults[2][:wrong])
            mine = out[:flipped]
            values = self.table.columns(self.partials.slots.take(mine))[0]
            yield values, signs[:flipped].copy(), self.partials.owners.take(mine)
        self.visited += len(order)

    def retire(self, holders: NDArray[np.int32]) -> Work[None]:
        """End of the round: keep `holders` (by group) right and free the values whose count is zero."""
        for sized in (self._counts, self._counted, self._no_holders):
            sized.grow(self.table.capacity)
        changed = self.partials.slots[: len(self.partials)]
        yield from count_holders(changed, self._counts.a, self.table.lanes, self._counted.a, holders)
        gone = yield from self.partials.retire(self._counts.a, self._no_holders.a)
        yield from self.table.freeing(gone)
