"""Delta join: any number of arrangements joined by lookups alone; no intermediate result is kept.

There is one path an input: its updates of the round, joined with one other input after the other by looking
keys up in an arrangement of it. So that every combination of updates is met once, path i sees of the inputs
before it what is not later than the update it follows, of those after it what is earlier: the combination is
met on the path of its latest update, the last input's among equals. This is judged for each pair by its own
times, so many times in one round are exact. What a path follows carries its time and the product of the
diffs.

A path goes depth first in pieces of at most BLOCK_ROWS, of which only the columns are gathered that a later
key or the output needs; so its memory is a piece a step, however the join explodes, and it pauses by the work
done, not by the rows found. In the first round all is new: where it has one time only, every path but the
last sees nothing and ends before its first lookup.

A combination whose product gets 48 bits goes on marked and is noted at the end (join_overflow.py).

Does not: compute keys (they are columns), arrange, consolidate; exchange rows between its lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
from clusterd.operators.join import Closure, new_parts, old_parts
from clusterd.operators.join_overflow import OverflowWatch
from clusterd.operators.join_tactic import PIECE_STEPS, KernelTactic, Pairs, Part
from clusterd.operators.kernels.join import EARLIER, NOT_LATER
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["DeltaInput", "DeltaJoinOperator", "Lookup"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Source = tuple[int, int]  # an input and a column of it

_HEAP: Final = HeapAllocator()
_ANY_TIME: Final = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())
_ROW: Final = ColumnSpec("row", ColumnType.INT64, False)
_PLACE_BITS: Final = 40  # of a row in its batch; above them the batch's number in the round


@dataclass(frozen=True, slots=True)
class DeltaInput:
    """The same rows, arranged by one key or by several.

    keep: of n rows given by the columns `tested`, the places (ascending) of those that take part; None for
    all.
    """

    arranged: tuple[ArrangedInput, ...]
    tested: tuple[int, ...] = ()
    keep: Callable[[Sequence[Column], int], Ints] | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """A step of a path: `key` says, position by position, what is looked up in an arrangement of `input`."""

    input: int
    arrangement: int
    key: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of some inputs, joined. columns: those that are still needed. places: by input, where its rows
    stand. wide: the diffs are not known, for their product has 48 bits or more.
    """

    columns: dict[Source, Column]
    places: dict[int, Ints]
    times: Words
    diffs: Ints
    wide: bool = False

    def __len__(self) -> int:
        return len(self.times)


class DeltaJoinOperator:
    """Rows of the inputs side by side, where what the paths look up is equal; NULL matches nothing.

    paths: by input, lookups of each of the others. null_safe, output_columns, closure as of JoinOperator;
    columns of the joined row are counted through the inputs.
    """

    def __init__(
        self,
        inputs: Sequence[DeltaInput],
        paths: Sequence[Sequence[Lookup]],
        *,
        null_safe: bool = False,
        output_columns: Sequence[int] | None = None,
        closure: Closure | None = None,
        closure_columns: Columns | None = None,
    ) -> None:
        self._inputs = tuple(inputs)
        self._paths = tuple(map(tuple, paths))
        firsts = [each.arranged[0] for each in self._inputs]
        joined = [(i, k) for i, side in enumerate(firsts) for k in range(len(side.schema.columns))]
        self._output = joined if output_columns is None else [joined[k] for k in output_columns]
        plain: Columns = tuple(firsts[i].schema.columns[k] for i, k in self._output)
        self.schema: Columns = plain if closure_columns is None else closure_columns
        self._types = types_of(self.schema)
        self._closure = closure
        self._null_safe = null_safe
        # What is still needed before each step of each path, and at its end.
        self._needed = [
            [
                {*self._output, *(source for later in path[step:] for source in later.key)}
                for step in range(len(path) + 1)
            ]
            for path in self._paths
        ]
        self._probes = [[self._probe_schema(lookup) for lookup in path] for path in self._paths]
        # One a step: a step's pairs are used while the next one's are found.
        self._tactics = [KernelTactic(BLOCK_ROWS) for _ in self._inputs]
        self._watch = OverflowWatch(*(side.schema for side in firsts))
        self._round: Round | None = None
        self._steps = 0
        self._paused_at = 0
        self._batches: list[Batch] = []
        self._numbers: dict[int, int] = {}

    def _probe_schema(self, lookup: Lookup) -> ArrangementSchema:
        specs = self._arrangement(lookup).schema.key_specs
        sources = [self._inputs[i].arranged[0].schema.columns[k] for i, k in lookup.key]
        if types_of(specs) != types_of(tuple(sources)):
            raise ValueError(f"keys of a join differ: {types_of(tuple(sources))} and {types_of(specs)}")
        columns = tuple(ColumnSpec(s.name, s.type, True, s.scale) for s in sources)
        return ArrangementSchema((*columns, _ROW), tuple(range(len(columns))))

    def _arrangement(self, lookup: Lookup) -> ArrangedInput:
        return self._inputs[lookup.input].arranged[lookup.arrangement]

    def start(self, round: Round) -> None:
        self._round = round

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        raise InvariantViolation("what a join reads is arranged", port=port, rows=len(delta))

    def finish(self) -> Iterator[Delta]:
        round = self._round
        if round is None:
            raise InvariantViolation("a round that was not started is finished")
        for each in self._inputs:
            errs = each.arranged[0].errs_delta()
            if len(errs):
                yield Delta(Updates.empty(self._types), errs)
        for path in range(len(self._paths)):
            for piece in self._changes(path, round):
                if self._can_match(path, piece, round):
                    yield from self._extend(path, 0, piece, round)
        yield from self._correct(round)
        self._batches, self._numbers = [], {}
        self._round = None

    def _as_of(self, round: Round) -> int:
        return round.as_of if round.is_first else 0

    def _changes(self, path: int, round: Round) -> Iterator[_Piece]:
        """What the path follows: the round's updates of its input."""
        for part in new_parts(self._inputs[path].arranged[0], round):
            batch = part.batch
            columns = batch.row_columns()
            for lo in range(0, len(batch), BLOCK_ROWS):
                hi = min(lo + BLOCK_ROWS, len(batch))
                times = round.advance(batch.times_at(lo, hi))
                rows = np.flatnonzero(round.contains(times)) + lo
                kept = self._kept(path, columns, rows)
                if kept is not None:
                    rows = rows.take(kept)
                if len(rows):
                    yield _Piece(
                        {(i, k): columns[k].take(rows) for i, k in self._needed[path][0] if i == path},
                        {path: self._place(batch, rows)},
                        times.take(rows - lo),
                        batch.diffs_of(rows),
                    )

    def _kept(self, input: int, columns: Sequence[Column], rows: Ints) -> Ints | None:
        """Which of the rows pass the input's own test; None for all."""
        keep, tested = self._inputs[input].keep, self._inputs[input].tested
        return None if keep is None else keep([columns[k].take(rows) for k in tested], len(rows))

    def _place(self, batch: Batch, rows: Ints) -> Ints:
        number = self._numbers.get(id(batch))
        if number is None:
            number = self._numbers[id(batch)] = len(self._batches)
            self._batches.append(batch)
        return rows | np.int64(number << _PLACE_BITS)

    def _parts(self, path: int, lookup: Lookup, piece: _Piece, round: Round) -> list[Part]:
        """The parts of the arrangement in which the piece can find partners."""
        side = self._arrangement(lookup)
        parts = old_parts(side, round)
        if _order(path, lookup) == EARLIER and int(piece.times.max()) <= max(round.lower, round.as_of):
            return parts  # nothing of the round is earlier
        return parts + new_parts(side, round)

    def _can_match(self, path: int, piece: _Piece, round: Round) -> bool:
        return all(self._parts(path, lookup, piece, round) for lookup in self._paths[path])

    def _extend(self, path: int, step: int, piece: _Piece, round: Round) -> Iterator[Delta]:
        """Look the piece up in what is left of its path."""
        if step == len(self._paths[path]):
            yield self._give(piece, round)
            return
        lookup = self._paths[path][step]
        probe = self._probe(path, step, piece)
        places = np.ascontiguousarray(probe.columns[-1].values)
        self._steps += len(piece)
        out = _Gathering()
        for part in self._parts(path, lookup, piece, round):
            found = self._tactics[step].pairs(
                Part(probe, round.lower, int(piece.times.max())), part, self._as_of(round), self._null_safe,
                out.room, _order(path, lookup),
            )  # fmt: skip
            for pairs in found:
                self._steps += pairs.steps
                for wide, more in self._joined(path, step, piece, places, part.batch, pairs):
                    if wide:
                        yield from self._extend(path, step + 1, more, round)
                    else:
                        out.add(more)
                if out.room() == 0:
                    yield from self._extend(path, step + 1, out.take(), round)
                elif self._steps - self._paused_at >= PIECE_STEPS:
                    self._paused_at = self._steps
                    yield Delta.empty(self._types)
        if len(out):
            yield from self._extend(path, step + 1, out.take(), round)

    def _probe(self, path: int, step: int, piece: _Piece) -> Batch:
        """The piece by the key that is looked up, with the number of each row beside it."""
        schema = self._probes[path][step]
        keys = [piece.columns[source] for source in self._paths[path][step].key]
        numbers = Column(ColumnType.INT64, np.arange(len(piece), dtype=np.int64))
        updates = Updates((*keys, numbers), piece.times, piece.diffs)
        return build_batch(updates, schema, _ANY_TIME, _HEAP)

    def _joined(
        self, path: int, step: int, piece: _Piece, places: Ints, batch: Batch, pairs: Pairs
    ) -> Iterator[tuple[bool, _Piece]]:
        """The pairs as pieces, those of unknown diffs apart."""
        found = ((pairs.left, pairs.right, pairs.diffs, piece.wide), (*pairs.wide, None, True))
        for left, right, diffs, wide in found:
            if not len(left):
                continue
            kept = self._kept(self._paths[path][step].input, batch.row_columns(), right)
            if kept is not None:
                left, right = left.take(kept), right.take(kept)
                diffs = None if diffs is None else diffs.take(kept)
            if not len(left):
                continue
            mine = places.take(left)
            if diffs is None or wide:
                diffs = np.ones(len(mine), np.int64)
            yield wide, self._gathered(path, step, piece, mine, batch, right, diffs, wide)

    def _gathered(
        self, path: int, step: int, piece: _Piece, mine: Ints, batch: Batch, right: Ints, diffs: Ints,
        wide: bool,
    ) -> _Piece:  # fmt: skip
        other = self._paths[path][step].input
        columns = {}
        theirs = batch.row_columns()
        for source in self._needed[path][step + 1]:
            if source[0] == other:
                columns[source] = theirs[source[1]].take(right)
            elif source in piece.columns:
                columns[source] = piece.columns[source].take(mine)
        places = {i: at.take(mine) for i, at in piece.places.items()}
        places[other] = self._place(batch, right)
        return _Piece(columns, places, piece.times.take(mine), diffs, wide)

    def _give(self, piece: _Piece, round: Round) -> Delta:
        if piece.wide:
            places = [piece.places[i].tolist() for i in range(len(self._inputs))]
            mask = (1 << _PLACE_BITS) - 1
            for row in zip(*places, strict=True):
                rows = [(self._batches[at >> _PLACE_BITS], at & mask) for at in row]
                self._watch.note(rows, self._as_of(round))
            return Delta.empty(self._types)
        columns = tuple(piece.columns[source] for source in self._output)
        updates = Updates(columns, piece.times, piece.diffs)
        return Delta.of(updates) if self._closure is None else self._closure(updates)

    def _correct(self, round: Round) -> Iterator[Delta]:
        faults = Faults()
        firsts = [each.arranged[0] for each in self._inputs]
        old, new = ([parts(side, round) for side in firsts] for parts in (old_parts, new_parts))
        for correction in self._watch.corrections(old, new, self._as_of(round), faults):
            columns = tuple(correction.rows[i][k] for i, k in self._output)
            one = Updates(columns, np.array([correction.time], np.uint64), np.array([correction.diff]))
            yield Delta.of(one) if self._closure is None else self._closure(one)
        if len(faults):
            yield Delta(Updates.empty(self._types), faults.take())

    def statistics(self) -> OperatorStatistics:
        """Nothing is kept. touched_rows: steps of search, pairs looked at, rows looked up."""
        return OperatorStatistics(touched_rows=self._steps)

    def close(self) -> None:
        """What it reads is closed by whoever made it."""
        self._batches, self._numbers = [], {}


def _order(path: int, lookup: Lookup) -> int:
    return NOT_LATER if lookup.input < path else EARLIER


class _Gathering:
    """Pieces of one step on their way to the next, which gets BLOCK_ROWS at a time."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def room(self) -> int:
        return BLOCK_ROWS - self._rows

    def add(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._rows += len(piece)

    def take(self) -> _Piece:
        pieces, self._pieces, self._rows = self._pieces, [], 0
        first = pieces[0]
        if len(pieces) == 1:
            return first
        return _Piece(
            {s: Column.concat(c.type, [p.columns[s] for p in pieces]) for s, c in first.columns.items()},
            {i: np.concatenate([p.places[i] for p in pieces]) for i in first.places},
            np.concatenate([p.times for p in pieces]),
            np.concatenate([p.diffs for p in pieces]),
        )
