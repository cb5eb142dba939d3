"""Scans: the reads in pieces that a worker has begun or will begin, and whose turn it is.

Sessions take turns, and of one session `AT_ONCE` scans do, oldest first. The rest wait as they came, and a
scan that has not begun holds nothing but its snapshot: so what scans hold is bounded by the number of
sessions, however many peeks each has sent. A scan that rests has no turn and counts: its answer is stashed,
and not taken yet.

Does not: evaluate, answer, measure time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from clusterd.runtime.stash import Stash

__all__ = ["AT_ONCE", "Name", "Scan", "Scans"]

AT_ONCE = 4  # a short scan does not wait for a long one of its session, unless it sent many

Name = tuple[int, str]  # session, uuid
Scan = Generator[None, None, bytes | Stash]


class Scans:
    """Scans by name; each is in turn or waits."""

    def __init__(self) -> None:
        self._scans: dict[Name, Scan] = {}
        self._turns: dict[int, deque[Name]] = {}  # by session: the next to work on, first; sessions likewise
        self._waiting: dict[int, dict[Name, None]] = {}
        self._resting: dict[int, set[Name]] = {}

    def __len__(self) -> int:
        return len(self._scans)

    @property
    def has_turn(self) -> bool:
        """Whether it is the turn of any."""
        return bool(self._turns)

    def __contains__(self, name: Name) -> bool:
        return name in self._scans

    def add(self, name: Name, scan: Scan) -> None:
        self._scans[name] = scan
        if self.begins(name[0]):
            self._turns.setdefault(name[0], deque()).append(name)
        else:
            self._waiting.setdefault(name[0], {})[name] = None

    def works(self, name: Name) -> bool:
        """Whether a scan is under way or waits to be: its answer is not made yet."""
        return name in self._scans and name not in self._resting.get(name[0], ())

    def begins(self, session: int) -> bool:
        """Whether another scan of the session would have a turn at once."""
        return len(self._turns.get(session, ())) + len(self._resting.get(session, ())) < AT_ONCE

    def rest(self, name: Name) -> None:
        """A scan that had its turn has no more work, but is not at its end."""
        session = name[0]
        turns = self._turns[session]
        turns.remove(name)
        if not turns:
            del self._turns[session]
        self._resting.setdefault(session, set()).add(name)

    def next(self) -> tuple[Name, Scan]:
        """The scan whose turn it is; the turn passes on. There is one."""
        session = next(iter(self._turns))
        turns = self._turns.pop(session)
        self._turns[session] = turns
        name = turns[0]
        turns.rotate(-1)
        return name, self._scans[name]

    def end(self, name: Name) -> Scan | None:
        """Take a scan out, finished or not; None if it is not there."""
        scan = self._scans.pop(name, None)
        if scan is None:
            return None
        session = name[0]
        turns, waiting = self._turns.setdefault(session, deque()), self._waiting.get(session, {})
        resting = self._resting.get(session, set())
        if name in waiting:
            del waiting[name]
        else:
            if name in resting:
                resting.remove(name)
            else:
                turns.remove(name)
            if waiting:
                first = next(iter(waiting))
                del waiting[first]
                turns.append(first)
        if not waiting:
            self._waiting.pop(session, None)
        if not turns:
            del self._turns[session]
        if not resting:
            self._resting.pop(session, None)
        return scan

    def clear(self) -> None:
        self._scans.clear()
        self._turns.clear()
        self._waiting.clear()
        self._resting.clear()
