"""Import of a shard: its updates of a round, in blocks, as they were written.

The frontier is what the shard was last seen to be sealed up to; whoever hears of news (storage/tail.py) calls
`refresh`. A round reads up to that and no further, so it never waits, but for a lock of others on the shard:
then each try is a piece of work, so that nobody else does.

A shard that was compacted beyond `as_of` before it was read tells nothing of the times up to its since: they
hold an error that says so.

Does not: poll, consolidate, keep anything between rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, OperatorStatistics, Round, types_of
from controller_proto.errors import Refusal
from shm_arrangements.columns import Column
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["ImportSource", "ShardReader"]


class ShardReader(Protocol):
    """What a source needs of a shard (storage/shard.py)."""

    @property
    def specs(self) -> tuple[ColumnSpec, ...]: ...

    @property
    def upper(self) -> Frontier:
        """As of now."""

    @property
    def since(self) -> Frontier:
        """As of now."""

    def briefly(self) -> AbstractContextManager[None]:
        """Within, what waits for a lock of others is refused after a moment (`timeout`)."""

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
        self._since = Frontier.minimum()  # of the shard, when it was read last

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
        """Raises Refusal: `below-since` if what comes after the rounds before cannot be told apart any more;
        OSError.
        """
        round = self._round
        if round is None:
            raise InvariantViolation("a source is read within a round")
        nothing = Delta.empty(types_of(self.schema))
        while (found := self._open(round)) is None:
            yield nothing
        blocks, errors = found
        for updates in blocks:
            yield Delta.of(round.cut(updates))
        for updates in errors:
            yield Delta(nothing.oks, round.cut(updates))
        if round.is_first and not self._since.less_equal(round.as_of):
            yield Delta(nothing.oks, round.cut(_untold(self._since, round.as_of)))

    def _open(self, round: Round) -> tuple[Iterator[Updates], Iterator[Updates]] | None:
        """What the shard has of the round; None if it is locked."""
        shard, lower, upper = self._shard, round.lower, round.limit
        try:
            with shard.briefly():
                blocks = shard.read(lower, upper, block_rows=BLOCK_ROWS)
                errors = shard.read_errors(lower, upper, block_rows=BLOCK_ROWS)
                self._since = shard.since  # last: what was merged meanwhile has times rounded up to it
        except Refusal as refusal:
            if refusal.code != "timeout":
                raise
            return None
        return blocks, errors

    def finish(self) -> None:
        self._round = None
        self.expected_rows = 0

    def statistics(self) -> OperatorStatistics:
        """Nothing is kept."""
        return OperatorStatistics(expected_rows=self.expected_rows)

    def close(self) -> None:
        """The shard's handle is its owner's."""
        self._round = None


def _untold(since: Frontier, as_of: int) -> Updates:
    """The error that stands from `as_of` up to `since`."""
    text = f"below-since: a shard was compacted to {since} before it was read at {as_of}"
    times = [as_of] if since.is_empty else [as_of, since.time]
    column = Column.from_pylist(ColumnType.TEXT, [text] * len(times))
    return Updates((column,), np.array(times, np.uint64), np.array([1, -1][: len(times)], np.int64))
