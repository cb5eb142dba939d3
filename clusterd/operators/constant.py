"""Constant: rows that are there at every time, or one error that is.

A source whose frontier is empty from the start: it knows all it will ever say. So it holds back no dataflow
that reads something else beside it, and one that reads nothing else is finished with its first round
(BUG44). All rows come in that round, at its `as_of`, which is where every earlier time is seen.

Does not: consolidate (whoever arranges does), keep anything but the plan's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clusterd.convert import column_specs, updates_from_rows
from clusterd.dataflow.operator import NO_ERRS, Columns, Delta, OperatorStatistics, Round, types_of
from controller_proto.plan import Constant
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates

__all__ = ["ConstantSource"]

_ROWS: Final = 4096  # converted from wire values in one piece of work: some 10 ms


class ConstantSource:
    """A Source of what a Constant of a plan says."""

    def __init__(self, constant: Constant) -> None:
        self.schema: Columns = column_specs(constant.schema)
        self.frontier = Frontier.empty()
        self._constant = constant
        self._round: Round | None = None

    def start(self, round: Round) -> None:
        self._round = round

    def blocks(self) -> Iterator[Delta]:
        round = self._round
        if round is None:
            raise InvariantViolation("a source is read within a round")
        if not round.is_first:
            return
        constant = self._constant
        if constant.error:
            message = f"eval-error: {constant.error}"
            errs = Updates.from_rows(NO_ERRS.types, [((message,), round.as_of, 1)])
            yield Delta(Updates.empty(types_of(self.schema)), errs)
            return
        for start in range(0, len(constant.rows), _ROWS):
            part = constant.rows[start : start + _ROWS]
            diffs = np.array([diff for _, diff in part], np.int64)
            oks = updates_from_rows(constant.schema, [row for row, _ in part], round.as_of)
            yield Delta.of(Updates(oks.columns, oks.times, diffs))

    def finish(self) -> None:
        self._round = None

    def statistics(self) -> OperatorStatistics:
        """Nothing is kept."""
        is_read = self._round is not None and self._round.is_first
        return OperatorStatistics(expected_rows=len(self._constant.rows) if is_read else 0)

    def close(self) -> None:
        self._round = None
