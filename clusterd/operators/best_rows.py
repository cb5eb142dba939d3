"""BestRows: the first and the last row of each group that only gets more of them; one or two rows a group.

What OrderedRows keeps in trees, for inputs that are known to grow: no row that was passed over can come back,
so none is kept beyond the round, and a change costs O(1). An input that takes rows away all the same gives an
error in data, which stays: what would be left was not kept.

Does not: find out whether an input grows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.growable import Growable
from clusterd.operators.kernels import steps as kernels
from clusterd.operators.kernels import treap
from clusterd.operators.ordered import BUDGET_NODES, NOTHING, Edges, Ints, Tell, fault_arrays
from clusterd.operators.row_table import Partials, RowTable
from clusterd.operators.time_steps import Steps, Work, pieces
from shm_arrangements.rows import RowImage, RowSpec

__all__ = ["BestRows"]

_SPARSE = 8  # times as many slots as rows: then the rows move to a table of their own size
_LEAST_SPARSE = 4096
_PIECE_REBUILT = 65_536  # rows of a piece: some 10 ms


class BestRows:
    """Rows of `spec` by group, in the order of their columns. Walked by steps, as OrderedRows is."""

    def __init__(self, spec: RowSpec) -> None:
        self.table = RowTable(spec, grouped=True)
        self.partials = Partials(2)
        self._flips = np.zeros(len(self.table.kinds), np.uint8)
        self._kept = Growable(np.int32, (2,), fill=-1)
        self._held = Growable(np.int32, (2,), fill=-1)
        self._marks = Growable(np.int32)
        self._no_sums = Growable(np.uint64, (2,))
        self._steps: Steps | None = None
        self._order = self._starts = NOTHING
        self._state: Ints = np.zeros(treap.STATE_SIZE, np.int64)
        self._faults = fault_arrays()
        self.visited = 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self.partials.nbytes + self._kept.nbytes + self._held.nbytes

    def add(
        self, image: RowImage, groups: Ints, times: NDArray[np.uint64], diffs: Ints, owners: Ints
    ) -> None:
        """Take updates into the round. owners: the partials of their groups."""
        slots = self.table.assign(image, groups)
        self.partials.add(slots, times, diffs, self.table.capacity, owners)

    def open(self, steps: Steps, groups: int) -> Work[None]:
        """Begin to apply the round's updates, step by step. groups: slots of the groups' table."""
        for sized in (self._kept, self._held):
            yield from sized.growing(groups)
        self._order, self._starts = yield from steps.split(self.partials)
        self._steps = steps
        self._state[:] = 0

    def extremes(self, end: int, tell: Tell) -> Iterator[Edges | None]:
        """As OrderedRows.extremes."""
        steps, state, t = self._steps, self._state, self.table
        assert steps is not None
        out = np.empty((end - int(state[treap.STEP]), 4), np.int32)
        while True:
            done = kernels.best(
                steps.groups, self._starts, self._order, end,
                self.partials.slots, self.partials.times, self.partials.words, BUDGET_NODES,
                t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips, self._kept.a,
                out, *self._faults, state,
            )  # fmt: skip
            count = int(state[treap.FAULTS])
            if count:
                rows, times, words = self._faults
                tell(rows[:count], times[:count], words[:count])
            if done:
                break
            yield None
        yield out

    def retire(self, holders: NDArray[np.int32]) -> Work[None]:
        """End of the round: keep `holders` (by group) right and free the rows that no group keeps."""
        assert self._steps is not None
        groups, rows = self._steps.groups, self.partials.slots[: len(self.partials)].copy()
        self._marks.grow(self.table.capacity)
        self._no_sums.grow(self.table.capacity)
        free, count = np.empty(len(rows) + 2 * len(groups), np.int64), 0
        for phase, seen in enumerate((groups, groups, rows, None, groups)):
            for lo, hi in pieces(count if seen is None else len(seen)):
                if lo:
                    yield
                count = kernels.retire_best(
                    phase, lo, hi, count, rows, groups, self._kept.a, self._held.a, holders, self._marks.a,
                    free,
                )  # fmt: skip
        yield from self.partials.retire(self._no_sums.a, self._marks.a)
        yield from self.table.freeing(free[:count])
        if self.table.capacity > _LEAST_SPARSE and self.table.capacity > _SPARSE * len(self.table):
            yield from self._rebuild()
        self.visited += int(self._state[treap.VISITED])
        self._steps, self._order, self._starts = None, NOTHING, NOTHING

    def _rebuild(self) -> Work[None]:
        """Keep the same rows in as little memory as they need: a round may have seen many more."""
        old, kept = self.table, self._kept.a
        rows = np.unique(kept[kept >= 0]).astype(np.int64)
        self.table = RowTable(old.spec, grouped=True)
        moved = np.full(old.capacity + 1, -1, np.int32)
        for lo, hi in pieces(len(rows), _PIECE_REBUILT):
            if lo:
                yield
            part = rows[lo:hi]
            yield from self.table.make_room(hi - lo)
            moved[part] = self.table.assign(old.image(part), old.groups(part))
        for sized in (self._kept, self._held):
            sized.a[:] = moved[sized.a]  # -1 stays: it is the last
        self.partials = Partials(2)
        self._marks, self._no_sums = Growable(np.int32), Growable(np.uint64, (2,))
