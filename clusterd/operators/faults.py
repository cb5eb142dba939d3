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
    """Collects messages with times and diffs until they are taken as updates."""

    def __init__(self) -> None:
        self._rows: list[tuple[tuple[str], int, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def change(self, time: int, before: str | None, after: str | None) -> None:
        """At `time` the complaint about one thing goes from `before` to `after`; None is no complaint."""
        if before == after:
            return
        if before is not None:
            self._rows.append(((before,), time, -1))
        if after is not None:
            self._rows.append(((after,), time, 1))

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
        for row, time, (low0, high0, low1, high1) in zip(rows, times.tolist(), words.tolist(), strict=True):
            shown = show_row(row)
            self.change(time, message(shown, count_of(low0, high0)), message(shown, count_of(low1, high1)))

    def take(self) -> Updates:
        """What was collected; the collection is empty afterwards."""
        rows, self._rows = self._rows, []
        return Updates.from_rows(NO_ERRS.types, rows) if rows else NO_ERRS
