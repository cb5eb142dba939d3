"""Feed: what was told of one subscription, put together to batches, until somebody takes them.

Batches tile time: each begins where the one before ended, so once one is there everything before its `upper`
is known. The sum of all changes is the collection at that time.

Does not: wait (subscription.py and aio's do).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from clusterd.client.operation import Operation, Wait
from clusterd.convert import column_from_scalars, column_specs
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.response import DroppedAt, SubscribeError, SubscribeResponse, SubscribeUpdates
from shm_arrangements.columns import Column
from shm_arrangements.result import Changes

__all__ = ["Batch", "Feed", "SubscriptionEnded"]


class SubscriptionEnded(Exception):
    """The subscription ended before its time; everything before `upper` was told."""

    def __init__(self, code: str, message: str, upper: int | None, hint: str = "") -> None:
        super().__init__(f"{code}: {message}; {hint}" if hint else f"{code}: {message}")
        self.code = code
        self.upper = upper


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything that changed in `[lower, upper)`; upper None: nothing can follow.

    error: `code: message` while there is an error in the collection; there are no changes then, and those
    of that while come with the first batch without one.
    """

    lower: int
    upper: int | None
    changes: Changes
    error: str = ""


class Feed:
    """One subscription. upper: up to where it was taken; None when nothing can follow."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.upper: int | None = 0
        self._specs = column_specs(export.schema)
        self._parts: list[SubscribeUpdates] = []
        self._batches: deque[Batch] = deque()
        self._end: SubscriptionEnded | None = None
        self._over = False

    @property
    def ready(self) -> bool:
        """Whether `take` has something to say at once."""
        return bool(self._batches) or self._end is not None or self._over

    def take(self) -> Batch | None:
        """The next batch of one that is ready; None if nothing can follow. Raises SubscriptionEnded."""
        if self._batches:
            batch = self._batches.popleft()
            self.upper = batch.upper
            return batch
        if self._end is not None:
            raise self._end
        return None

    def next(self, timeout_s: float | None) -> Operation[Batch | None]:
        """As `take`, when it is ready. Raises TimeoutError, Disconnected as well."""
        try:
            yield Wait(("subscription", self.export.id), lambda: self.ready, timeout_s)
        except TimeoutError:
            told = f"{self.export.id}: nothing was told after {timeout_s:g} s, up to {self.upper}"
            raise TimeoutError(told) from None
        return self.take()

    def hear(self, response: SubscribeResponse) -> None:
        """Take in what was told."""
        said = response.said
        if isinstance(said, DroppedAt):
            self._parts.clear()
            self.end(SubscriptionEnded(said.code, said.message, _time(said.upper), said.hint))
            return
        upper = _time(said.upper)
        if isinstance(said.contents, SubscribeError):
            error = f"{said.contents.code}: {said.contents.message}"
            self._batches.append(Batch(said.lower, upper, self._changes([]), error))
        else:
            self._parts.append(said.contents)
            if said.contents.more:
                return
            self._batches.append(Batch(said.lower, upper, self._changes(self._parts)))
            self._parts = []
        self._over = upper is None

    def end(self, why: SubscriptionEnded) -> None:
        """Nothing more comes: what is there may still be taken, then `why` is raised."""
        if self._end is None and not self._over:
            self._end = why

    def close(self) -> None:
        """What was told and not taken is forgotten; it ends, if it has not."""
        self._batches.clear()
        self.end(SubscriptionEnded("dropped", f"{self.export.id} was closed", self.upper))

    def _changes(self, parts: list[SubscribeUpdates]) -> Changes:
        columns = tuple(
            Column.concat(spec.type, [column_from_scalars(spec, part.columns[i]) for part in parts])
            if parts
            else Column.empty(spec.type)
            for i, spec in enumerate(self._specs)
        )
        times = np.array([time for part in parts for time in part.times], dtype=np.uint64)
        diffs = np.array([diff for part in parts for diff in part.diffs], dtype=np.int64)
        return Changes(self._specs, columns, times, diffs, ())

    def __repr__(self) -> str:
        names = ", ".join(column.name for column in self.export.schema.columns)
        told = "its end" if self.upper is None else self.upper
        return f"Subscription({self.export.id}: {names}; told up to {told})"


def _time(frontier: WireFrontier) -> int | None:
    return frontier[0] if frontier else None
