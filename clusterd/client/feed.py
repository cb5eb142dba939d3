"""Feed: what was told of one subscription, put together to batches, until somebody takes them.

Batches tile time: each begins where the one before ended, so once one is there everything before its `upper`
is known. The sum of all changes is the collection at that time. Who does not take them is bounded: it ends
when another batch comes while more than LIMIT_BYTES wait.

Does not: wait (subscription.py and aio's do).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from clusterd.client.operation import Operation, Wait
from clusterd.convert import column_from_scalars, column_specs
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.response import DroppedAt, SubscribeError, SubscribeResponse, SubscribeUpdates
from shm_arrangements.columns import Column, Ints
from shm_arrangements.result import Changes
from shm_arrangements.rows import Words

__all__ = ["Batch", "Feed", "SubscriptionEnded"]

LIMIT_BYTES = 128 << 20  # as much as a daemon keeps for a client that does not read

_Part: TypeAlias = tuple[list[Column], Words, Ints]  # columns, times, diffs


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
        self.nbytes = 0  # of batches that wait to be taken
        self._parts: list[_Part] = []  # of the batch that comes
        self._batches: deque[tuple[Batch, int]] = deque()
        self._end: SubscriptionEnded | None = None
        self._over = False

    @property
    def ready(self) -> bool:
        """Whether `take` has something to say at once."""
        return bool(self._batches) or self._end is not None or self._over

    def take(self) -> Batch | None:
        """The next batch of one that is ready; None if nothing can follow. Raises SubscriptionEnded."""
        if self._batches:
            batch, nbytes = self._batches.popleft()
            self.nbytes -= nbytes
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

    def hear(self, response: SubscribeResponse) -> bool:
        """Take in what was told. Returns False when no more is wanted: too much waits to be taken."""
        said = response.said
        if isinstance(said, DroppedAt):
            self._parts.clear()
            self.end(SubscriptionEnded(said.code, said.message, _time(said.upper), said.hint))
            return True
        upper, error = _time(said.upper), ""
        if isinstance(said.contents, SubscribeError):
            error = f"{said.contents.code}: {said.contents.message}"
        else:
            self._parts.append(self._part(said.contents))
            if said.contents.more:
                return True
        if self.nbytes > LIMIT_BYTES:
            self._parts.clear()
            why = f"{self.nbytes} bytes of batches were not taken"
            self.end(SubscriptionEnded("limit", why, said.lower, "take them, or subscribe anew from there"))
            return False
        changes, nbytes = self._changes()
        self._batches.append((Batch(said.lower, upper, changes, error), nbytes))
        self.nbytes += nbytes
        self._over = upper is None
        return True

    def end(self, why: SubscriptionEnded) -> None:
        """Nothing more comes: what is there may still be taken, then `why` is raised."""
        if self._end is None and not self._over:
            self._end = why

    def close(self) -> None:
        """What was told and not taken is forgotten; it ends, if it has not."""
        self._batches.clear()
        self.nbytes = 0
        self.end(SubscriptionEnded("dropped", f"{self.export.id} was closed", self.upper))

    def _part(self, said: SubscribeUpdates) -> _Part:
        columns = [
            column_from_scalars(spec, values) for spec, values in zip(self._specs, said.columns, strict=True)
        ]
        return columns, np.array(said.times, dtype=np.uint64), np.array(said.diffs, dtype=np.int64)

    def _changes(self) -> tuple[Changes, int]:
        """What the parts say together, and how many bytes that is."""
        parts = self._parts or [self._part(SubscribeUpdates(((),) * len(self._specs), (), ()))]
        self._parts = []
        columns = tuple(
            Column.concat(spec.type, [part[0][i] for part in parts]) for i, spec in enumerate(self._specs)
        )
        times, diffs = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        nbytes = sum(column.nbytes for column in columns) + times.nbytes + diffs.nbytes
        return Changes(self._specs, columns, times, diffs, ()), nbytes

    def __repr__(self) -> str:
        names = ", ".join(column.name for column in self.export.schema.columns)
        told = "its end" if self.upper is None else self.upper
        return f"Subscription({self.export.id}: {names}; told up to {told})"


def _time(frontier: WireFrontier) -> int | None:
    return frontier[0] if frontier else None
