"""Deadlines: until when each peek may be in a state, parked or evaluated in pieces. The least of them is the
worker's time-out, so an idle worker with parked peeks sleeps until one is due, and without a limit for ever.

A peek that is in the state no more stays in the heap until it surfaces or the heap has doubled, so nobody has
to say that it left. The limit that a setting gives is kept apart from when the state began: a change counts
for what is in it already.

Does not: read a clock (`now_s` is of any that rises), answer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from clusterd.runtime.peeks import PendingPeek

__all__ = ["Deadlines"]

_TRIM_AT = 64


class Deadlines:
    """in_state: whether a peek still is. own_s: the limit that it says itself. limit_s: what every peek may
    take at most; 0 is no limit.
    """

    def __init__(
        self,
        in_state: Callable[[PendingPeek], bool],
        own_s: Callable[[PendingPeek], float | None],
        limit_s: float = 0.0,
    ) -> None:
        self._in_state = in_state
        self._own_s = own_s
        self._limit_s = limit_s
        self._peeks: list[tuple[PendingPeek, float]] = []  # and since when; some are in it no more
        self._heap: list[tuple[float, int, PendingPeek]] = []
        self._count = 0  # breaks ties in arrival order
        self._trim_at = _TRIM_AT

    def __len__(self) -> int:
        """Entries kept, some of them perhaps of peeks that are in the state no more."""
        return len(self._peeks)

    def add(self, pending: PendingPeek, now_s: float) -> None:
        """The peek is in the state from `now_s` on."""
        self._peeks.append((pending, now_s))
        self._push(pending, now_s)
        if len(self._peeks) > self._trim_at:
            self._trim()

    def set_limit(self, limit_s: float) -> None:
        """Another limit, also for what is in the state."""
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            self._trim()

    def next_s(self) -> float | None:
        """When the first peek is due; None if none is ever."""
        while self._heap and not self._in_state(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_s: float) -> list[tuple[PendingPeek, float]]:
        """The peeks that are in it for too long, and the limit of each; they are given once."""
        due = []
        while (next_s := self.next_s()) is not None and next_s <= now_s:
            pending = heapq.heappop(self._heap)[2]
            due.append((pending, self._limit_of(pending)))
        return due

    def _limit_of(self, pending: PendingPeek) -> float:
        own = self._own_s(pending)
        return min(math.inf if own is None else own, self._limit_s or math.inf)

    def _push(self, pending: PendingPeek, since_s: float) -> None:
        limit_s = self._limit_of(pending)
        if limit_s < math.inf:
            self._count += 1
            heapq.heappush(self._heap, (since_s + limit_s, self._count, pending))

    def _trim(self) -> None:
        """Forget what is in the state no more."""
        self._peeks = [entry for entry in self._peeks if self._in_state(entry[0])]
        self._trim_at = max(_TRIM_AT, 2 * len(self._peeks))
        self._heap.clear()
        for pending, since_s in self._peeks:
            self._push(pending, since_s)
