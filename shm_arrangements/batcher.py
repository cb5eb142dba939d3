"""Batcher: holds updates that came early until their times are sealed.

Blocks are kept as they came, each with its least and greatest time, so sealing touches only the blocks that
have something below the new upper: one wholly below is handed on as it is, one that straddles it is split.
A block that lies in the future costs one comparison a seal.

Does not: sort or consolidate; `build_batch` does both, once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shm_arrangements.columns import ColumnType
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates


class Batcher:
    """Updates at or beyond `upper`, waiting."""

    __slots__ = ("_blocks", "_types", "_upper")

    def __init__(self, types: Sequence[ColumnType]) -> None:
        self._types = tuple(types)
        self._upper = Frontier.minimum()
        self._blocks: list[tuple[int, int, Updates]] = []  # least time, greatest time

    @property
    def upper(self) -> Frontier:
        """What has been sealed: updates before it can no longer come."""
        return self._upper

    def __len__(self) -> int:
        """Updates waiting."""
        return sum(len(block) for _, _, block in self._blocks)

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for _, _, block in self._blocks)

    def push(self, updates: Updates) -> None:
        """Take updates in any order.

        Raises: InvariantViolation if a time is sealed already.
        """
        if not len(updates):
            return
        least = int(updates.times.min())
        if not self._upper.less_equal(least):
            raise InvariantViolation("update before upper", time=least, upper=self._upper)
        self._blocks.append((least, int(updates.times.max()), updates))

    def seal(self, upper: Frontier) -> Updates:
        """All updates before `upper`, which becomes the upper; neither sorted nor consolidated.

        Raises: InvariantViolation if `upper` regresses.
        """
        if upper.precedes(self._upper):
            raise InvariantViolation("upper regresses", upper=self._upper, given=upper)
        self._upper = upper
        ready: list[Updates] = []
        waiting: list[tuple[int, int, Updates]] = []
        for least, greatest, block in self._blocks:
            if not upper.less_equal(greatest):
                ready.append(block)
            elif upper.less_equal(least):
                waiting.append((least, greatest, block))
            else:
                before = block.times < np.uint64(upper.time)
                ready.append(block.filter(before))
                rest = block.filter(~before)
                waiting.append((int(rest.times.min()), greatest, rest))
        self._blocks = waiting
        return Updates.concat(ready) if ready else Updates.empty(self._types)
