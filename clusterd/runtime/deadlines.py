"""Deadlines: until when each parked peek may wait. The least of them is the worker's time-out, so an idle
worker with parked peeks sleeps until one is due, and without a limit for ever.

A peek that waits no more stays in the heap until it surfaces or the heap has doubled, so nobody has to say
that it left. The limit that a setting gives is kept apart from when the peek was parked: a change counts for
what is parked already.

Does not: read a clock (`now_s` is of any that rises), answer.
"""

from __future__ import annotations

import heapq
import math

from clusterd.runtime.peeks import PeekState, PendingPeek

__all__ = ["Deadlines"]

_TRIM_AT = 64


class Deadlines:
    """limit_s: what every peek may wait at most; 0 is no limit."""

    def __init__(self, limit_s: float = 0.0) -> None:
        self._limit_s = limit_s
        self._parked: list[tuple[PendingPeek, float]] = []  # and since when; some wait no more
        self._heap: list[tuple[float, int, PendingPeek]] = []
        self._count = 0  # breaks ties in arrival order
        self._trim_at = _TRIM_AT

    def __len__(self) -> int:
        """Entries kept, some of them perhaps of peeks that wait no more."""
        return len(self._parked)

    def add(self, pending: PendingPeek, now_s: float) -> None:
        """The peek is parked from `now_s` on."""
        self._parked.append((pending, now_s))
        self._push(pending, now_s)
        if len(self._parked) > self._trim_at:
            self._trim()

    def set_limit(self, limit_s: float) -> None:
        """Another limit, also for what is parked."""
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            self._trim()

    def next_s(self) -> float | None:
        """When the first peek is due; None if none is ever."""
        while self._heap and self._heap[0][2].state is not PeekState.PARKED:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_s: float) -> list[tuple[PendingPeek, float]]:
        """The peeks that have waited too long, and the limit of each; they are given once."""
        due = []
        while (next_s := self.next_s()) is not None and next_s <= now_s:
            pending = heapq.heappop(self._heap)[2]
            due.append((pending, self._limit_of(pending)))
        return due

    def _limit_of(self, pending: PendingPeek) -> float:
        own = pending.peek.wait_s
        return min(math.inf if own is None else own, self._limit_s or math.inf)

    def _push(self, pending: PendingPeek, since_s: float) -> None:
        limit_s = self._limit_of(pending)
        if limit_s < math.inf:
            self._count += 1
            heapq.heappush(self._heap, (since_s + limit_s, self._count, pending))

    def _trim(self) -> None:
        """Forget what waits no more."""
        self._parked = [entry for entry in self._parked if entry[0].state is PeekState.PARKED]
        self._trim_at = max(_TRIM_AT, 2 * len(self._parked))
        self._heap.clear()
        for pending, since_s in self._parked:
            self._push(pending, since_s)
