"""Join: the pairs of rows with equal keys, kept up to date by the changes of either side.

With A = A_old + dA and B = B_old + dB, the change of the join is dA x B_old + A_old x dB + dA x dB, each pair
of updates at the greater of its times. Old is what has a time before the round's lower; in the first round
nothing is old, and all of it is change. Batches are sorted by the hash of the key, so a small change finds
its partners in a large side by search. So every pair is met exactly once, in the round of its later update.

A side is an arrangement, imported or made by this dataflow (join_arrange.py), read in place by its times.
Pairs are found in pieces, their columns gathered at once and only those wanted, and given on in blocks: a
join that explodes needs no memory, and one that finds nothing still pauses.

Does not: compute keys or filters (`closure` does, a block at a time), consolidate its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from clusterd.dataflow.operator import (
    BLOCK_ROWS,
    ArrangedInput,
    Columns,
    Delta,
    OperatorStatistics,
    Round,
    types_of,
)
from clusterd.operators.faults import Faults
from clusterd.operators.join_overflow import OverflowWatch
from clusterd.operators.join_tactic import PIECE_STEPS, JoinTactic, KernelTactic, Pairs, Part
from shm_arrangements.batch import Batch
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.updates import Updates

__all__ = ["Closure", "JoinOperator", "new_parts", "old_parts"]

Closure = Callable[[Updates], Delta]


class JoinOperator:
    """Rows of left, then of right, where the keys are equal position by position; NULL matches nothing.

    It has no stream of its own: an edge into it says only what it reads.
    null_safe: NULL matches NULL. output_columns: which columns of the joined row to give, None for all.
    closure: turns a block of those columns into what is given on; its columns are `closure_columns`.
    Raises: ValueError if the keys differ in number or types.
    """

    def __init__(
        self,
        left: ArrangedInput,
        right: ArrangedInput,
        *,
        null_safe: bool = False,
        output_columns: Sequence[int] | None = None,
        closure: Closure | None = None,
        closure_columns: Columns | None = None,
        tactic: JoinTactic | None = None,
    ) -> None:
        self._sides = left, right
        schemas = [side.schema for side in self._sides]
        keys = [tuple(spec.type for spec in schema.key_specs) for schema in schemas]
        if keys[0] != keys[1]:
            raise ValueError(f"keys of a join differ: {keys[0]} and {keys[1]}")
        joined = (*schemas[0].columns, *schemas[1].columns)
        wanted = range(len(joined)) if output_columns is None else output_columns
        arity = len(schemas[0].columns)
        # Per output column: which side, and its place there.
        self._gather = tuple((0, k) if k < arity else (1, k - arity) for k in wanted)
        self._plain: Columns = tuple(joined[k] for k in wanted)
        if (closure is None) != (closure_columns is None):
            raise ValueError("a closure says its columns")
        self.schema: Columns = self._plain if closure_columns is None else closure_columns
        self._types = types_of(self.schema)
        self._closure = closure
        self._null_safe = null_safe
        self._tactic: JoinTactic = KernelTactic(BLOCK_ROWS) if tactic is None else tactic
        self._watch = OverflowWatch(schemas[0], schemas[1])
        self._round: Round | None = None
        self._steps = 0

    def start(self, round: Round) -> None:
        self._round = round

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        raise InvariantViolation("what a join reads is arranged", port=port, rows=len(delta))

    def finish(self) -> Iterator[Delta]:
        round = self._round
        if round is None:
            raise InvariantViolation("a round that was not started is finished")
        pause = Delta.empty(self._types)
        for side in self._sides:
            errs = side.errs_delta()
            if len(errs):
                yield Delta(pause.oks, errs)
        old = [old_parts(side, round) for side in self._sides]
        new = [new_parts(side, round) for side in self._sides]
        as_of = round.as_of if round.is_first else 0
        out = _Block(self._gather)
        spent = 0
        for left, right in _terms(old, new):
            for pairs in self._tactic.pairs(left, right, as_of, self._null_safe, out.room):
                out.add(left.batch, right.batch, pairs)
                for i, j in zip(pairs.wide[0].tolist(), pairs.wide[1].tolist(), strict=True):
                    self._watch.note(((left.batch, i), (right.batch, j)), as_of)
                spent += pairs.steps
                self._steps += pairs.steps
                if out.room() == 0:
                    yield self._give(out)
                    spent = 0
                elif spent >= PIECE_STEPS:
                    yield pause
                    spent = 0
        if len(out):
            yield self._give(out)
        yield from self._correct(old, new, as_of)
        self._round = None

    def _give(self, out: _Block) -> Delta:
        updates = out.take()
        return Delta.of(updates) if self._closure is None else self._closure(updates)

    def _correct(self, old: Sequence[list[Part]], new: Sequence[list[Part]], as_of: int) -> Iterator[Delta]:
        faults = Faults()
        for correction in self._watch.corrections(old, new, as_of, faults):
            columns = tuple(correction.rows[side][k] for side, k in self._gather)
            one = Updates(columns, np.array([correction.time], np.uint64), np.array([correction.diff]))
            yield Delta.of(one) if self._closure is None else self._closure(one)
        if len(faults):
            yield Delta(Updates.empty(self._types), faults.take())

    def statistics(self) -> OperatorStatistics:
        """Nothing is kept. touched_rows: steps of search and pairs looked at."""
        return OperatorStatistics(touched_rows=self._steps)

    def close(self) -> None:
        """What it reads is closed by whoever made it."""


def _terms(old: list[list[Part]], new: list[list[Part]]) -> Iterator[tuple[Part, Part]]:
    """Every pair of updates of which one is new, once."""
    for left in new[0]:
        for right in old[1]:
            yield left, right
    for right in new[1]:
        for left in old[0]:
            yield left, right
    for left in new[0]:
        for right in new[1]:
            yield left, right


class _Block:
    """Output rows on their way: gathered piece by piece, given on when there are BLOCK_ROWS."""

    def __init__(self, gather: tuple[tuple[int, int], ...]) -> None:
        self._gather = gather
        self._parts: list[Updates] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def room(self) -> int:
        return BLOCK_ROWS - self._rows

    def add(self, left: Batch, right: Batch, pairs: Pairs) -> None:
        if len(pairs.times) == 0:
            return
        sides = left.row_columns(), right.row_columns()
        rows = pairs.left, pairs.right
        columns = tuple(sides[side][k].take(rows[side]) for side, k in self._gather)
        self._parts.append(Updates(columns, pairs.times, pairs.diffs))
        self._rows += len(pairs.times)

    def take(self) -> Updates:
        updates = Updates.concat(self._parts)
        self._parts, self._rows = [], 0
        return updates


def old_parts(side: ArrangedInput, round: Round) -> list[Part]:
    """The updates of `side` before the round."""
    if round.is_first:
        return []
    before = Frontier.at(round.lower)
    return [
        Part(batch, 0, round.lower - 1)
        for batch in side.history()
        if len(batch) and batch.description.lower.precedes(before)
    ]


def new_parts(side: ArrangedInput, round: Round) -> list[Part]:
    """The updates of `side` in the round."""
    limit = round.limit
    last = MAX_TIME if limit.is_empty else limit.time - 1
    return [Part(batch, round.lower, last) for batch in side.delta() if len(batch)]
