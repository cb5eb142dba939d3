"""IterationIndex: the rows of a recursion by key, and what each changed at which iteration.

It is what an arrangement is outside of a recursion, with iterations in the place of times. All of it is asked
for again and again at small cost, an iteration of few rows being the usual one, so it is a table with chains
(kernels/iterate.py) and not a sequence of sorted batches. An entry is found by (key, iteration, row without
its key), so what is taken away again is gone, and memory is what the recursion holds.

A key has a slot of a `Keys`, which two indexes of one join share: equal keys are then equal numbers. A slot
is let go when the last index has nothing of its key, at the end of a time (`settle`).

Does not: know times of the dataflow, judge counts, keep an order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import BLOCK_ROWS
from clusterd.operators.growable import Growable
from clusterd.operators.kernels import iterate as kernels
from clusterd.operators.row_table import RowTable
from clusterd.operators.time_steps import Work
from shm_arrangements.columns import Column
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.updates import Updates

__all__ = ["MOST_ITERATIONS", "IterationIndex", "Keys", "Partners", "distinct_slots"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

MOST_ITERATIONS = 1 << 31  # an iteration is half a word of an entry
_STEPS = 2 * BLOCK_ROWS  # of one piece: each may miss the caches
_SETTLED = 32_768  # keys of one piece


def distinct_slots(parts: Sequence[Ints], capacity: int) -> Ints:
    """Slots below `capacity`, each once, ascending."""
    if len(parts) > 1 or len(parts[0]) > 1:
        if 8 * sum(map(len, parts)) < capacity:
            return np.unique(np.concatenate(parts))
        marks = np.zeros(capacity, np.bool_)
        for part in parts:
            marks[part] = True
        return np.flatnonzero(marks)
    return parts[0]


class Slots(Protocol):
    """What an index has its entries under."""

    @property
    def capacity(self) -> int:
        """All slots are below it."""


class Keys:
    """Slots of keys of `spec`, each under a group if `grouped`; and which the time that runs has changed."""

    def __init__(self, spec: RowSpec, *, grouped: bool = False) -> None:
        self.spec = spec
        self.table = RowTable(spec, grouped=grouped)
        self._noted = Growable(np.int64)
        self._marks = Growable(np.uint8)
        self._count = 0

    @property
    def capacity(self) -> int:
        return self.table.capacity

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self._noted.nbytes + self._marks.nbytes

    def make_room(self, rows: int) -> Work[None]:
        """For an `assign` of that many: a large table is made larger in pieces."""
        yield from self.table.make_room(rows)

    def assign(self, columns: Sequence[Column], rows: int, groups: Ints | None = None) -> Ints:
        """(rows,) the slot of each key."""
        slots = self.table.assign(encode(columns, self.spec, rows), groups)
        for sized in (self._noted, self._marks):
            sized.grow(self.table.capacity)
        self._count = kernels.note(slots, self._marks.a, self._count, self._noted.a)
        return slots

    def settle(self, is_empty: Callable[[Ints], NDArray[np.bool_]]) -> Iterator[None]:
        """End of a time: free the touched slots for which `is_empty` says that nothing is kept, in pieces."""
        count, self._count = self._count, 0
        for start in range(0, count, _SETTLED):
            slots = self._noted.a[start : min(start + _SETTLED, count)]
            self._marks.a[slots] = 0
            self.table.free(slots[is_empty(slots)])
            yield


class IterationIndex:
    """Entries of rows whose columns beside the key are of `spec`, under the slots of `keys`."""

    def __init__(self, keys: Slots, spec: RowSpec) -> None:
        self._keys = keys
        self._spec = spec
        self._rows = RowTable(spec, grouped=True)  # its groups: key | iteration << 32
        self._sums = Growable(np.int64)
        self._links = Growable(np.int32, (2,))
        self._states = Growable(np.uint8)
        self._heads = Growable(np.int32, fill=-1)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + sum(a.nbytes for a in (self._sums, self._links, self._states, self._heads))

    def is_empty(self, slots: Ints) -> NDArray[np.bool_]:
        """Which keys have no entry."""
        return self._first().take(slots) < 0

    def _first(self) -> NDArray[np.int32]:
        """By slot of a key, its first entry, -1 if it has none."""
        self._heads.grow(self._keys.capacity)
        return self._heads.a

    def make_room(self, rows: int) -> Work[None]:
        """For an `add` of that many: a large table is made larger in pieces."""
        yield from self._rows.make_room(rows)

    def add(self, slots: Ints, columns: Sequence[Column], iteration: int, diffs: Ints) -> None:
        """Add rows (of the keys `slots`) at an iteration. Raises: MultiplicityOverflow."""
        image = encode(columns, self._spec, len(slots))
        entries = self._rows.assign(image, slots | np.int64(iteration << 32))
        for sized in (self._sums, self._links, self._states):
            sized.grow(self._rows.capacity)
        dead = np.empty(len(entries), np.int64)
        count = kernels.add_entries(
            entries, diffs, self._rows.lanes, self._sums.a, self._links.a, self._states.a, self._first(), dead
        )
        if count < 0:
            raise MultiplicityOverflow("a multiplicity in a recursion leaves 64 bits")
        self._rows.free(dead[:count])

    def partners(self, slots: Ints, diffs: Ints, iteration: int) -> Iterator[Partners]:
        """Each of n rows at `iteration` with every entry of its key (slot -1: none), in pieces.

        Raises: MultiplicityOverflow.
        """
        state = np.array([0, kernels.NOT_BEGUN, 0, 0], np.int64)
        heads = self._first()
        room = min(BLOCK_ROWS, max(1024, 2 * len(slots)))
        while state[kernels.ROW] < len(slots):
            rows, entries = np.empty(room, np.int64), np.empty(room, np.int64)
            times, products = np.empty(room, np.uint64), np.empty(room, np.int64)
            n = kernels.probe(
                slots, diffs, iteration, heads, self._links.a, self._rows.lanes, self._sums.a, _STEPS,
                state, rows, entries, times, products,
            )  # fmt: skip
            if state[kernels.WIDE]:
                raise MultiplicityOverflow("a multiplicity in a recursion leaves 62 bits")
            yield Partners(rows[:n], entries[:n], times[:n], products[:n], int(state[kernels.STEPS]))
            room = BLOCK_ROWS

    def columns(self, entries: Ints) -> tuple[Column, ...]:
        """The columns beside the key."""
        return self._rows.columns(entries)

    def history(self, slots: Ints) -> Iterator[tuple[Ints, Updates]]:
        """All of the keys `slots` (distinct): which slot each row has, and the rows without their keys."""
        ones = np.ones(len(slots), np.int64)
        for found in self.partners(slots, ones, 0):
            updates = Updates(self.columns(found.entries), found.times, found.diffs)
            yield slots.take(found.rows), updates


class Partners:
    """rows: (n,) positions in what was asked for; entries: (n,); times: (n,) the greater iteration; diffs."""

    __slots__ = ("diffs", "entries", "rows", "steps", "times")

    def __init__(self, rows: Ints, entries: Ints, times: Words, diffs: Ints, steps: int) -> None:
        self.rows, self.entries, self.times, self.diffs, self.steps = rows, entries, times, diffs, steps
