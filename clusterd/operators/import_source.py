"""Import of a shard: its updates of a round, in blocks, as they were written.

The frontier is what the shard was last seen to be sealed up to; whoever hears of news (storage/tail.py) calls
`refresh`. A round reads up to that and no further, so it never waits.

Does not: poll, consolidate, keep anything between rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, OperatorStatistics, Round, types_of
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = ["ImportSource", "ShardReader"]


class ShardReader(Protocol):
    """What a source needs of a shard (storage/shard.py)."""

    @property
    def specs(self) -> tuple[ColumnSpec, ...]: ...

    @property
    def upper(self) -> Frontier:
        """As of now."""

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        """Updates with lower <= time < upper, in any order."""

    def read_errors(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        """As `read`, of errors in data: a shard that a view is written into may hold some."""


class ImportSource:
    """A Source over a shard.

    expected_rows: of the round that runs, for statistics; set by whoever knows, 0 again at the round's end.
    """

    def __init__(self, shard: ShardReader) -> None:
        self._shard = shard
        self._round: Round | None = None
        self.frontier = shard.upper
        self.expected_rows = 0

    @property
    def schema(self) -> Columns:
        return self._shard.specs

    def refresh(self) -> bool:
        """Look at the shard's upper again; whether it has moved."""
        found = self._shard.upper
        moved = self.frontier.precedes(found)
        self.frontier = Frontier.join(self.frontier, found)
        return moved

    def start(self, round: Round) -> None:
        self._round = round

    def blocks(self) -> Iterator[Delta]:
        round = self._round
        if round is None:
            raise InvariantViolation("a source is read within a round")
        for updates in self._shard.read(round.lower, round.limit, block_rows=BLOCK_ROWS):
            yield Delta.of(round.cut(updates))
        for errors in self._shard.read_errors(round.lower, round.limit, block_rows=BLOCK_ROWS):
            yield Delta(Updates.empty(types_of(self.schema)), round.cut(errors))

    def finish(self) -> None:
        self._round = None
        self.expected_rows = 0

    def statistics(self) -> OperatorStatistics:
        """Nothing is kept."""
        return OperatorStatistics(expected_rows=self.expected_rows)

    def close(self) -> None:
        """The shard's handle is its owner's."""
        self._round = None
