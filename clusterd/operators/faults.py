"""Errors in data, as updates of errs: a message comes with +1 when its cause appears and leaves with -1.

A message is a function of the state it complains about (which row or group, which count), and a change of
that state retracts the old message and adds the new one. So an error heals exactly when the data does.

Does not: decide what is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import NO_ERRS
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

__all__ = ["Faults", "count_of", "show_row"]

_SHOWN_CHARACTERS = 80  # of one value: a message is for reading


def show_row(values: Iterable[object]) -> str:
    """`(1, abc, NULL)`."""
    shown = ("NULL" if v is None else str(v) for v in values)
    return (
        f"({', '.join(s if len(s) <= _SHOWN_CHARACTERS else s[:_SHOWN_CHARACTERS] + '...' for s in shown)})"
    )


def count_of(low: int, high: int) -> int:
    """The signed number of two unsigned words."""
    value = (high << 64) | low
    return value - (1 << 128) if high >> 63 else value


class Faults:
    """Collects messages with times and diffs until they are taken as updates.

    Lists of what holds nothing else: millions of messages give the garbage collector nothing to walk.
    """

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._times: list[int] = []
        self._diffs: list[int] = []

    def __len__(self) -> int:
        return len(self._messages)

    def change(self, time: int, before: str | None, after: str | None) -> None:
        """At `time` the complaint about one thing goes from `before` to `after`; None is no complaint."""
        if before == after:
            return
        for message, diff in ((before, -1), (after, 1)):
            if message is not None:
                self._messages.append(message)
                self._times.append(time)
                self._diffs.append(diff)

    def changes(
        self,
        columns: Sequence[Column],
        times: NDArray[np.uint64],
        words: NDArray[np.uint64],
        message: Callable[[str, int], str | None],
    ) -> None:
        """One change per row of `columns`: its count goes from words[:, 0:2] to words[:, 2:4] at its time.

        message: of the shown row and its count; None if that count is no fault.
        """
        lists = [c.to_pylist() for c in columns]
        rows = zip(*lists, strict=True) if lists else iter([()] * len(times))
        low0, high0, low1, high1 = words.T.tolist()
        for row, time, a, b, c, d in zip(rows, times.tolist(), low0, high0, low1, high1, strict=True):
            shown = show_row(row)
            self.change(time, message(shown, count_of(a, b)), message(shown, count_of(c, d)))

    def take(self) -> Updates:
        """What was collected; the collection is empty afterwards."""
        if not self._messages:
            return NO_ERRS
        column = Column.from_pylist(ColumnType.TEXT, self._messages)
        times, diffs = np.array(self._times, np.uint64), np.array(self._diffs, np.int64)
        self._messages, self._times, self._diffs = [], [], []
        return Updates((column,), times, diffs)
