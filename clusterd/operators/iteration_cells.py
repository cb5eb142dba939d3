"""IterationCells: of each group of a recursion, the iterations at which it was changed.

What is kept by cell, and when a cell is of no use any more, is its owner's affair. A cell has a small dense
number, its slot, under which the owner keeps arrays.

Does not: find groups (`Keys` of iteration_index.py does).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import BLOCK_ROWS
from clusterd.operators.growable import Growable
from clusterd.operators.kernels import cells as kernels
from clusterd.operators.kernels.chains import FIRST, FREE, LAST, USED

__all__ = ["IterationCells"]

Ints = NDArray[np.int64]


class IterationCells:
    """Cells by group, groups being slots below some capacity."""

    def __init__(self) -> None:
        self._ends = Growable(np.int32, (2,), fill=-1)
        self._links = Growable(np.int32, (2,))
        self._iterations, self._free, self._groups = (Growable(np.int64) for _ in range(3))
        self._meta: Ints = np.zeros(2, np.int64)
        self.visited = 0

    def __len__(self) -> int:
        return int(self._meta[USED] - self._meta[FREE])

    @property
    def _sized(self) -> tuple[Growable[Any], ...]:
        return self._links, self._iterations, self._free, self._groups

    @property
    def capacity(self) -> int:
        """Cells there is room for; arrays by cell have this length or more."""
        return len(self._iterations)

    @property
    def nbytes(self) -> int:
        return self._ends.nbytes + sum(a.nbytes for a in self._sized)

    @property
    def iterations(self) -> Ints:
        """(capacity,) of each cell, its iteration. Not to be kept."""
        return self._iterations.a

    def groups(self, cells: Ints) -> Ints:
        """(n,) the group of each cell."""
        return self._groups.a.take(cells)

    def is_empty(self, groups: Ints) -> NDArray[np.bool_]:
        """Which groups have no cell."""
        self._room_for(groups)
        empty: NDArray[np.bool_] = self._ends.a[groups, FIRST] < 0
        return empty

    def _room_for(self, groups: Ints) -> None:
        if len(groups):
            self._ends.grow(int(groups.max()) + 1)

    def have_after(self, groups: Ints, iteration: int) -> NDArray[np.bool_]:
        """(n,) which groups have cells after `iteration`."""
        self._room_for(groups)
        last = self._ends.a[groups, LAST]
        is_late: NDArray[np.bool_] = last >= 0
        is_late[is_late] = self._iterations.a[last[is_late]] > iteration
        return is_late

    def after(self, groups: Ints, iteration: int) -> Iterator[tuple[int, int, Ints]]:
        """The cells after `iteration`, in pieces: all of groups[start:end]."""
        self._room_for(groups)
        state = np.zeros(2, np.int64)
        room = min(BLOCK_ROWS, max(1024, 2 * len(groups)))
        start = 0
        while start < len(groups):
            cells = np.empty(room, np.int64)
            kernels.reach(groups, iteration, self._ends.a, self._links.a, self._iterations.a, cells, state)
            end, count = int(state[kernels.GROUP]), int(state[kernels.REACHED])
            if end == start:
                room *= 2  # one group may have more than there was room for
                continue
            self.visited += count
            yield start, end, cells[:count]
            start = end

    def open(self, groups: Ints, iteration: int) -> Ints:
        """(n,) the cell of each group (distinct) at an iteration, a new one where there is none."""
        self._room_for(groups)
        for sized in self._sized:
            sized.grow(int(self._meta[USED]) + len(groups))
        out = np.empty(len(groups), np.int64)
        kernels.open_cells(
            groups, iteration, self._ends.a, self._links.a, self._iterations.a, self._free.a, self._meta, out
        )
        self._groups.a[out] = groups
        return out

    def close(self, cells: Ints) -> None:
        """Let go of cells (distinct)."""
        groups = self.groups(cells)
        kernels.close_cells(groups, cells, self._ends.a, self._links.a, self._free.a, self._meta)
