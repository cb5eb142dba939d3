"""The operator contract: what a node of a dataflow is given in a round, and what it owes.

A dataflow advances in rounds. A round is an interval `[lower, upper)` of times; in it every input of an
operator delivers all its updates of the interval, in blocks, and the operator turns them into its output's
updates of the interval. Why that is enough: times are totally ordered, so at the end of a round everything
before `upper` is known, and nothing may be sealed earlier. A round may hold many distinct times; an
operator treats them in one pass.

The protocol of one round, kept by `graph.py`:
  `start(round)` once; then `push(port, delta)` any number of times, ports in any order, blocks of at most
  `BLOCK_ROWS` updates, unsorted and not consolidated; then `finish()` once, after every input has finished.
  What `push` and `finish` yield goes downstream before they are resumed, so memory stays bounded; an empty
  Delta only marks the end of a piece of work. A piece should stay well under 50 ms (R11): cut big work and
  yield. The iterator that `push` or `finish` returned is always run to its end, or the dataflow is closed.

Obligations of an operator: output times lie in `[lower, limit)`; oks have the types of `schema`; no
exception for anything data can cause (those are rows of errs); work proportional to the change, not to the
state.

Does not: move frontiers, decide compaction, know which runtime it serves, read a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.batch import Batch
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import AnyType, ColumnSpec
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = [
    "BLOCK_ROWS", "NO_ERRS", "ArrangedInput", "Columns", "Delta", "Operator", "OperatorStatistics", "Round",
    "Source", "types_of",
]  # fmt: skip

BLOCK_ROWS: Final = 65_536  # updates a block: 0.5 MB a lane, a few ms of any one operator
NO_ERRS: Final = Updates.empty([spec.type for spec in ERRS_SCHEMA.columns])

Columns = tuple[ColumnSpec, ...]


def types_of(columns: Columns) -> tuple[AnyType, ...]:
    """The types of a relation's columns, in order."""
    return tuple(spec.type for spec in columns)


@dataclass(frozen=True, slots=True)
class Round:
    """The interval `[lower, upper)` of one dataflow; the first begins at 0 and rounds times up to `as_of`.

    `until` cuts the future: updates at or beyond it never happen. A round whose inputs pass `until` has the
    empty frontier as its `upper`, for nothing can come any more, and `limit` says what still counts.
    """

    lower: int
    upper: Frontier
    as_of: int
    until: int | None = None

    @property
    def is_first(self) -> bool:
        # An upper is always beyond as_of >= 0, so no later round can begin at 0.
        return self.lower == 0

    @property
    def limit(self) -> Frontier:
        """The first time that is not of this round: `upper`, or `until` if that is earlier."""
        return self.upper if self.until is None else Frontier.meet(self.upper, Frontier.at(self.until))

    def advance(self, times: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The times as this round sees them: (n,) uint64, at least `as_of`. No copy in later rounds."""
        return np.maximum(times, np.uint64(self.as_of)) if self.is_first else times

    def contains(self, times: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of the (advanced) times lie in `[lower, limit)`."""
        inside: NDArray[np.bool_] = times >= np.uint64(self.lower)
        limit = self.limit
        if not limit.is_empty:
            inside &= times < np.uint64(limit.time)
        return inside

    def cut(self, updates: Updates) -> Updates:
        """The updates of this round among `updates`, times advanced. Zero copy where all of them are."""
        times = self.advance(updates.times)
        inside = self.contains(times)
        if times is not updates.times:
            updates = Updates(updates.columns, times, updates.diffs)
        return updates if inside.all() else updates.filter(inside)


@dataclass(frozen=True, slots=True)
class Delta:
    """A block of updates: rows that are, and errors in data (one text column `code: message`)."""

    oks: Updates
    errs: Updates

    @staticmethod
    def empty(types: tuple[AnyType, ...]) -> Delta:
        return Delta(Updates.empty(types), NO_ERRS)

    @staticmethod
    def of(oks: Updates) -> Delta:
        """Rows without errors."""
        return Delta(oks, NO_ERRS)

    def __len__(self) -> int:
        return len(self.oks) + len(self.errs)


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """What an operator keeps, and what it has looked at: `touched_rows` counts state rows read, ever.

    expected_rows: of a source, the updates that its round reads, or somewhat more; 0 if that is not known.
    groups, largest_group: of what keeps groups in order, how many there are and the rows of the largest, as
    counted not long ago; -1 for what has no such groups.
    """

    state_rows: int = 0
    state_bytes: int = 0
    touched_rows: int = 0
    expected_rows: int = 0
    groups: int = 0
    largest_group: int = -1


class Operator(Protocol):
    """A node with inputs. See the head for the order of calls."""

    @property
    def schema(self) -> Columns:
        """The columns of the output rows."""

    def start(self, round: Round) -> None: ...

    def push(self, port: int, delta: Delta) -> Iterator[Delta]: ...

    def finish(self) -> Iterator[Delta]: ...

    def statistics(self) -> OperatorStatistics: ...

    def close(self) -> None:
        """Let go of state and holds. May come in the middle of a round; nothing is called afterwards."""


class Source(Protocol):
    """A node without inputs: an imported collection."""

    @property
    def schema(self) -> Columns: ...

    @property
    def frontier(self) -> Frontier:
        """What a round may reach: all updates before it can be read now. Never regresses."""

    def start(self, round: Round) -> None:
        """Fix what the round reads; `round.limit` is not beyond `frontier`."""

    def blocks(self) -> Iterator[Delta]:
        """Every update of the round once, as a stream; called only if some consumer wants the stream."""

    def finish(self) -> None:
        """The round is over; what only it needed can go."""

    def statistics(self) -> OperatorStatistics: ...

    def close(self) -> None: ...


class ArrangedInput(Protocol):
    """An imported arrangement, read in place: a join looks its keys up in it and keeps no copy.

    Valid between the `start` and the `finish` of the source it belongs to. Batches of both lists may
    overlap the other part, and `limit`, in time: the reader judges each update by `Round.advance` and
    `Round.contains` (new) or `times < round.lower` (old; in the first round nothing is old).
    """

    @property
    def schema(self) -> ArrangementSchema: ...

    def history(self) -> Sequence[Batch]:
        """The whole arrangement, oldest first: holds every update with `time < round.lower`."""

    def delta(self) -> Sequence[Batch]:
        """Holds every update of the round; in steady state it is as small as the change."""

    def errs_delta(self) -> Updates:
        """The errors of the round, cut and advanced already."""
