"""Subscription: the changes of a collection, as they come.

    for batch in client.subscribe(fruit):
        for row, time, diff in batch.changes.rows():
            ...

Batches tile time: each begins where the one before ended, so once one is there everything before its `upper`
is known. The sum of all changes is the collection at that time.

Does not: own a thread; a call to `next` reads for the whole client, and what it reads is for everybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from clusterd.client.index import DEADLINE_S
from clusterd.convert import column_from_scalars, column_specs
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.response import DroppedAt, SubscribeError, SubscribeResponse, SubscribeUpdates
from shm_arrangements.columns import Column
from shm_arrangements.result import Changes

if TYPE_CHECKING:
    from clusterd.client.session import Client

__all__ = ["Batch", "Subscription", "SubscriptionEnded"]


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


class Subscription:
    """Iterate over it, or call `next`. Closed at its end, by `close`, or as a context manager."""

    def __init__(self, client: Client, export: Export) -> None:
        self._client = client
        self._export = export
        self._specs = column_specs(export.schema)
        self._parts: list[SubscribeUpdates] = []
        self._batches: deque[Batch] = deque()
        self._end: SubscriptionEnded | None = None
        self._over = False
        self.id = export.id
        self.schema = export.schema
        self.upper: int | None = 0  # up to where `next` has told; None when nothing can follow

    def __iter__(self) -> Iterator[Batch]:
        """Batches until nothing can follow; waits for each as long as it takes.

        Raises SubscriptionEnded, Disconnected.
        """
        while (batch := self.next(None)) is not None:
            yield batch

    def next(self, timeout_s: float | None = DEADLINE_S) -> Batch | None:
        """The next batch, None if nothing can follow.

        Raises TimeoutError, SubscriptionEnded, Disconnected.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while not self._batches:
            if self._end is not None:
                raise self._end
            if self._over:
                return None
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if not self._client.pump(left):
                raise TimeoutError(f"{self.id}: nothing was told after {timeout_s:g} s, up to {self.upper}")
        batch = self._batches.popleft()
        self.upper = batch.upper
        return batch

    def close(self) -> None:
        """End it. What was told and not taken is forgotten."""
        self._batches.clear()
        if not self._over:
            self.end(SubscriptionEnded("dropped", f"{self.id} was closed", self.upper))
        self._client.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self, response: SubscribeResponse) -> None:
        """Take in what arrived for it; the client calls this."""
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
        names = ", ".join(column.name for column in self.schema.columns)
        return (
            f"Subscription({self.id}: {names}; told up to {'its end' if self.upper is None else self.upper})"
        )


def _time(frontier: WireFrontier) -> int | None:
    return frontier[0] if frontier else None
