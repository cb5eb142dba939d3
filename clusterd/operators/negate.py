"""Negate: every row as often as it was missing. Stateless. Errors stay as they are: no error cancels another.

The one diff without a negative, -2^63, becomes two of 2^62: whether their sum is too large is for whoever
adds them up to say, or the answer would depend on how the input was cut.

Does not: judge negative counts (a read, or an operator that needs a multiset, does).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round
from shm_arrangements.updates import Updates

__all__ = ["NegateOperator"]

_LEAST: Final = np.int64(-(1 << 63))  # the one diff whose negative is none
_HALF: Final = np.int64(1 << 62)


class NegateOperator:
    """One input, any columns."""

    def __init__(self, columns: Columns) -> None:
        self.schema = columns

    def start(self, round: Round) -> None:
        """Nothing depends on the round."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        oks = delta.oks
        beyond = oks.diffs == _LEAST
        if beyond.any():
            half = oks.filter(beyond)
            yield Delta.of(Updates(half.columns, half.times, np.full(len(half), _HALF)))
            diffs = np.where(beyond, _HALF, -oks.diffs)
        else:
            diffs = -oks.diffs
        yield Delta(Updates(oks.columns, oks.times, diffs), delta.errs)

    def finish(self) -> Iterator[Delta]:
        return iter(())

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics()

    def close(self) -> None:
        """Nothing is held."""
