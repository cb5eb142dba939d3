"""Pending peeks: who waits for what, and exactly one answer each.

A peek is PARKED until its collection is sealed beyond its time, then READY while it is evaluated and, if its
answer is large, until the last part of that was taken, then gone. Only this table says that an answer is
owed: whoever answers takes the peek out first (`cancel`, `answered`, `expire`, `withdraw`, `end_session` all
remove it), so no race can answer twice, and a peek that is in the table is in exactly one of its indexes, so
none is forgotten.

Parked peeks are kept per collection in a heap by the time they need. So news of one collection touches its
own waiters only, and of them only those that it lets go; and the least time waited for, which holds
compaction back (R6), is the top. Removed entries leave a heap when they surface, or when they are the larger
part of it.

Does not: judge a peek, read a page, know roles, send anything.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Iterator

import msgspec

from controller_proto.command import Peek
from controller_proto.ids import GlobalId
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["Key", "PeekState", "PeeksStatistics", "PendingPeek", "PendingPeeks"]

Key = tuple[GlobalId, int]  # a collection: id and incarnation (R9)


class PeekState(enum.Enum):
    """PARKED: waits for its time. READY: handed out. ENDED: no answer is owed any more."""

    PARKED = "parked"
    READY = "ready"
    ENDED = "ended"


class PendingPeek:
    """One peek that is owed an answer.

    time: what it needs sealed; for a peek at the newest time (`latest`) the least time it may be answered at.
    path, rows_visited, came_ns, ready_ns, began_ns, ended_ns: the shell's notes (meter.py); 0: not yet.
    """

    __slots__ = (
        "began_ns", "came_ns", "collection", "ended_ns", "latest", "path", "peek", "ready_ns", "rows_visited",
        "session", "state", "time",
    )  # fmt: skip

    def __init__(self, session: int, peek: Peek, collection: Key, time: int, *, latest: bool) -> None:
        self.session = session
        self.peek = peek
        self.collection = collection
        self.time = time
        self.latest = latest
        self.state = PeekState.PARKED
        self.path = "scan" if peek.keys is None else "key"
        self.rows_visited = 0
        self.came_ns = self.ready_ns = self.began_ns = self.ended_ns = 0

    @property
    def uuid(self) -> str:
        return self.peek.uuid


class PeeksStatistics(msgspec.Struct, frozen=True):
    """parked, ready, collections: now. The others: ever; looked_at: parked ones that news were held against,
    woken: those among them that they let go.
    """

    parked: int
    ready: int
    collections: int
    answered: int
    canceled: int
    expired: int
    withdrawn: int
    forgotten: int
    looked_at: int
    woken: int


class _Waiters:
    """The parked peeks of one collection."""

    __slots__ = ("heap", "live")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, PendingPeek]] = []
        self.live = 0

    def trim(self) -> None:
        """Drop dead entries from the top, or all of them if they are the larger part."""
        if len(self.heap) > 2 * self.live + 8:
            self.heap = [entry for entry in self.heap if entry[2].state is PeekState.PARKED]
            heapq.heapify(self.heap)
        while self.heap and self.heap[0][2].state is not PeekState.PARKED:
            heapq.heappop(self.heap)


class PendingPeeks:
    """The table. A peek's name is (session, uuid)."""

    def __init__(self) -> None:
        self._peeks: dict[tuple[int, str], PendingPeek] = {}
        self._parked: dict[Key, _Waiters] = {}
        self._count = 0  # breaks ties in arrival order
        self._ended = dict.fromkeys(("answered", "canceled", "expired", "withdrawn", "forgotten"), 0)
        self._looked_at = self._woken = 0

    def __len__(self) -> int:
        return len(self._peeks)

    def __contains__(self, name: tuple[int, str]) -> bool:
        return name in self._peeks

    def __getitem__(self, name: tuple[int, str]) -> PendingPeek:
        return self._peeks[name]

    def get(self, session: int, uuid: str) -> PendingPeek | None:
        return self._peeks.get((session, uuid))

    def accept(self, pending: PendingPeek, *, ready: bool = False) -> None:
        """Owe an answer; parked unless it is `ready` at once. Raises: InvariantViolation on a taken name."""
        name = (pending.session, pending.uuid)
        if name in self._peeks:
            raise InvariantViolation("a peek of this name is pending", session=name[0], uuid=name[1])
        self._peeks[name] = pending
        if ready:
            pending.state = PeekState.READY
            return
        waiters = self._parked.get(pending.collection)
        if waiters is None:
            waiters = self._parked[pending.collection] = _Waiters()
        self._count += 1
        heapq.heappush(waiters.heap, (pending.time, self._count, pending))
        waiters.live += 1

    def waits_for(self, collection: Key) -> bool:
        """Whether any peek is parked on the collection."""
        return collection in self._parked

    def hold(self, collection: Key) -> Frontier:
        """The least time a parked peek of the collection needs; empty if none does (R6)."""
        waiters = self._parked.get(collection)
        return Frontier.empty() if waiters is None else Frontier.at(waiters.heap[0][0])

    def wake(self, collection: Key, upper: Frontier) -> list[PendingPeek]:
        """Make ready, and return in order of time, the parked peeks that `upper` lets go."""
        waiters = self._parked.get(collection)
        if waiters is None:
            return []
        woken = []
        while waiters.heap and not upper.less_equal(waiters.heap[0][0]):
            pending = heapq.heappop(waiters.heap)[2]
            pending.state = PeekState.READY
            waiters.live -= 1
            woken.append(pending)
            waiters.trim()
        self._woken += len(woken)
        self._looked_at += len(woken) + bool(waiters.live)  # the next one still waits
        if not waiters.live:
            del self._parked[collection]
        return woken

    def answered(self, session: int, uuid: str) -> PendingPeek | None:
        """The peek is being answered: take it out. None if nothing is owed (any more)."""
        return self._end(session, uuid, "answered")

    def cancel(self, session: int, uuid: str) -> tuple[PendingPeek, PeekState] | None:
        """Take the peek out, whatever its state, which is returned beside it; None if nothing is owed."""
        pending = self._peeks.get((session, uuid))
        if pending is None:
            return None
        state = pending.state
        self._end(session, uuid, "canceled")
        return pending, state

    def expire(self, pending: PendingPeek) -> bool:
        """Take the peek out, which has waited too long; whether it still did."""
        return (
            pending.state is PeekState.PARKED
            and self._end(pending.session, pending.uuid, "expired") is pending
        )

    def withdraw(self, collection: Key) -> list[PendingPeek]:
        """Take out all parked peeks of a collection that is gone. Ready ones have what they need."""
        return self._end_all(self.waiting(collection), "withdrawn")

    def end_session(self, session: int) -> list[tuple[PendingPeek, PeekState]]:
        """Forget every peek of a session that is over, with the state each was in. No answer is owed."""
        mine = [p for (s, _), p in self._peeks.items() if s == session]
        states = [p.state for p in mine]
        return list(zip(self._end_all(mine, "forgotten"), states, strict=True))

    def sessions(self) -> set[int]:
        return {session for session, _ in self._peeks}

    def statistics(self) -> PeeksStatistics:
        parked = sum(w.live for w in self._parked.values())
        return PeeksStatistics(
            parked, len(self._peeks) - parked, len(self._parked), **self._ended,
            looked_at=self._looked_at, woken=self._woken,
        )  # fmt: skip

    def validate_state(self) -> None:
        """Check that table and heaps agree. Cost: all of it."""
        for collection, waiters in self._parked.items():
            live = [p for _, _, p in waiters.heap if p.state is PeekState.PARKED]
            if len(live) != waiters.live or not live:
                raise InvariantViolation("count of waiters is off", collection=collection, live=len(live))
            if waiters.heap[0][2].state is not PeekState.PARKED:
                raise InvariantViolation("a dead waiter is on top", collection=collection)
            for pending in live:
                if self._peeks.get((pending.session, pending.uuid)) is not pending:
                    raise InvariantViolation("a waiter that nobody is owed", uuid=pending.uuid)
        parked = sum(p.state is PeekState.PARKED for p in self._peeks.values())
        if parked != sum(w.live for w in self._parked.values()):
            raise InvariantViolation("a parked peek waits nowhere", parked=parked)
        if any(p.state is PeekState.ENDED for p in self._peeks.values()):
            raise InvariantViolation("an ended peek is still owed")

    def waiting(self, collection: Key) -> list[PendingPeek]:
        """The parked peeks of a collection, by time, then arrival."""
        return [entry[2] for entry in sorted(self._waiting(collection), key=lambda entry: entry[:2])]

    def repark(self, pending: PendingPeek, time: int) -> None:
        """A parked peek needs another time after all."""
        waiters = self._parked[pending.collection]
        waiters.heap = [entry for entry in waiters.heap if entry[2] is not pending]
        heapq.heapify(waiters.heap)
        pending.time = time
        self._count += 1
        heapq.heappush(waiters.heap, (time, self._count, pending))
        waiters.trim()

    def parked_on(self, collection: Key) -> int:
        """How many peeks are parked on the collection."""
        waiters = self._parked.get(collection)
        return 0 if waiters is None else waiters.live

    def oldest(self, most: int) -> list[PendingPeek]:
        """Those that came first of all that are owed an answer."""
        return list(itertools.islice(self._peeks.values(), most))

    def _waiting(self, collection: Key) -> Iterator[tuple[int, int, PendingPeek]]:
        waiters = self._parked.get(collection)
        return iter(()) if waiters is None else (e for e in waiters.heap if e[2].state is PeekState.PARKED)

    def _end(self, session: int, uuid: str, how: str) -> PendingPeek | None:
        pending = self._peeks.pop((session, uuid), None)
        if pending is None:
            return None
        self._ended[how] += 1
        if pending.state is PeekState.PARKED:
            pending.state = PeekState.ENDED
            waiters = self._parked[pending.collection]
            waiters.live -= 1
            if waiters.live:
                waiters.trim()
            else:
                del self._parked[pending.collection]
        pending.state = PeekState.ENDED
        return pending

    def _end_all(self, pendings: list[PendingPeek], how: str) -> list[PendingPeek]:
        for pending in pendings:
            self._end(pending.session, pending.uuid, how)
        return pendings
