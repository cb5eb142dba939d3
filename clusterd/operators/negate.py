"""Negate: every row as often as it was missing. Stateless. Errors stay as they are: no error cancels another.

Does not: judge negative counts (a read, or an operator that needs a multiset, does).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

__all__ = ["NegateOperator"]

_LEAST: Final = np.int64(-(1 << 63))  # the one diff whose negative is none
_OVERFLOW: Final = "multiplicity-overflow: a count of 2^63 does not fit"


class NegateOperator:
    """One input, any columns. A diff of -2^63 has no negative: an error in data."""

    def __init__(self, columns: Columns) -> None:
        self.schema = columns

    def start(self, round: Round) -> None:
        """Nothing depends on the round."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        oks, errs = delta.oks, delta.errs
        beyond = oks.diffs == _LEAST
        if beyond.any():
            times = oks.times[beyond]
            text = Column.constant(ColumnType.TEXT, _OVERFLOW, len(times))
            errs = Updates.concat([errs, Updates((text,), times, np.ones(len(times), np.int64))])
            oks = oks.filter(~beyond)
        yield Delta(Updates(oks.columns, oks.times, -oks.diffs), errs)

    def finish(self) -> Iterator[Delta]:
        return iter(())

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics()

    def close(self) -> None:
        """Nothing is held."""
