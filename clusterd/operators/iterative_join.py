"""Join inside a recursion: the pairs of rows with equal keys, each at the greater of their iterations.

What came before, at whatever time and iteration, is in an index a side. A change of one side meets all of the
other's, then goes into its own: so every pair of changes is met once, by its later one, and a change at an
early iteration that meets an old one at a later iteration is given there.

Both sides share their keys' slots, so a pair is found without comparing keys. Rows whose key has a NULL match
nothing and are not kept, unless `null_safe`.

Does not: consolidate, compute keys or filters (`closure` does, a block at a time).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, OperatorStatistics, types_of
from clusterd.operators.iteration_index import IterationIndex, Keys, Partners
from clusterd.operators.iterative import Blocks
from clusterd.operators.join import Closure
from clusterd.operators.time_steps import pausing
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates

__all__ = ["IterativeJoin"]

Ints = NDArray[np.int64]


class IterativeJoin:
    """Rows of left, then of right, where the keys are equal position by position.

    columns, keys: of the two sides; the types of the keys are the same. output_columns, closure,
    closure_columns: as of JoinOperator.
    """

    def __init__(
        self,
        columns: tuple[Columns, Columns],
        keys: tuple[tuple[int, ...], tuple[int, ...]],
        *,
        null_safe: bool,
        output_columns: Sequence[int] | None,
        closure: Closure | None,
        closure_columns: Columns | None,
    ) -> None:
        joined = (*columns[0], *columns[1])
        wanted = range(len(joined)) if output_columns is None else output_columns
        arity = len(columns[0])
        # Per output column: which side, and its place there.
        self._gather = tuple((0, k) if k < arity else (1, k - arity) for k in wanted)
        plain: Columns = tuple(joined[k] for k in wanted)
        self.schema: Columns = plain if closure_columns is None else closure_columns
        self._types = types_of(self.schema)
        self._closure = closure
        self._null_safe = null_safe
        self._key = keys
        self._rest = tuple(
            tuple(k for k in range(len(columns[side])) if k not in keys[side]) for side in (0, 1)
        )
        nullable = [columns[0][a].nullable or columns[1][b].nullable for a, b in zip(*keys, strict=True)]
        types = [columns[0][a].type for a in keys[0]]
        self._may_be_null = any(nullable)
        self._key_spec = RowSpec(tuple(zip(types, nullable, strict=True)))
        self._rest_specs = tuple(RowSpec.of([columns[side][k] for k in self._rest[side]]) for side in (0, 1))
        self._steps = 0
        self._reset()

    def _reset(self) -> None:
        self._keys = Keys(self._key_spec)
        left, right = self._rest_specs
        self._sides = IterationIndex(self._keys, left), IterationIndex(self._keys, right)

    def step(self, iteration: int, inputs: Sequence[Blocks]) -> Iterator[Delta]:
        pause = Delta.empty(self._types)
        for side, blocks in enumerate(inputs):
            to_come = sum(len(delta.oks) for delta in blocks)
            for delta in blocks:
                if len(delta.errs):
                    yield Delta(pause.oks, delta.errs)
                if len(delta.oks):
                    # Rows are mostly distinct: the table becomes as large as it must at once.
                    yield from pausing(self._sides[side].make_room(to_come), pause)
                    yield from self._meet(side, delta.oks, iteration)
                    to_come -= len(delta.oks)

    def _meet(self, side: int, updates: Updates, iteration: int) -> Iterator[Delta]:
        """Pair `updates` with what the other side has, and keep them, for which there is room."""
        if self._may_be_null and not self._null_safe:
            updates = _without_nulls(updates, self._key[side])
        pause = Delta.empty(self._types)
        yield from pausing(self._keys.make_room(len(updates)), pause)
        slots = self._keys.assign([updates.columns[k] for k in self._key[side]], len(updates))
        other = self._sides[1 - side]
        parts: list[Updates] = []
        rows = spent = 0
        for found in other.partners(slots, updates.diffs, iteration):
            self._steps += found.steps
            spent += found.steps
            if len(found.rows):
                parts.append(self._pairs(side, updates, found))
                rows += len(found.rows)
            if rows >= BLOCK_ROWS or spent >= BLOCK_ROWS:
                yield self._give(parts)
                parts, rows, spent = [], 0, 0
        if parts:
            yield self._give(parts)
        rest = [updates.columns[k] for k in self._rest[side]]
        self._sides[side].add(slots, rest, iteration, updates.diffs)
        yield pause

    def _pairs(self, side: int, updates: Updates, found: Partners) -> Updates:
        # The key is the same on both sides, so only what is beside it is read from the other.
        beside: tuple[Column, ...] | None = None
        columns = []
        for of, k in self._gather:
            if of == side:
                columns.append(updates.columns[k].take(found.rows))
            elif k in self._key[of]:
                mine = self._key[side][self._key[of].index(k)]
                columns.append(updates.columns[mine].take(found.rows))
            else:
                if beside is None:
                    beside = self._sides[of].columns(found.entries)
                columns.append(beside[self._rest[of].index(k)])
        return Updates(tuple(columns), found.times, found.diffs)

    def _give(self, parts: Sequence[Updates]) -> Delta:
        if not parts:
            return Delta.empty(self._types)
        updates = Updates.concat(parts)
        return Delta.of(updates) if self._closure is None else self._closure(updates)

    def settle(self) -> Iterator[None]:
        left, right = self._sides
        yield from self._keys.settle(lambda slots: left.is_empty(slots) & right.is_empty(slots))

    def statistics(self) -> OperatorStatistics:
        """touched_rows: steps along the rows of keys."""
        rows = sum(map(len, self._sides))
        held = self._keys.nbytes + sum(side.nbytes for side in self._sides)
        return OperatorStatistics(rows, held, self._steps)

    def close(self) -> None:
        self._reset()


def _without_nulls(updates: Updates, key: Sequence[int]) -> Updates:
    known = np.ones(len(updates), np.bool_)
    for k in key:
        validity = updates.columns[k].validity
        if validity is not None:
            known &= validity
    return updates if known.all() else updates.filter(known)
