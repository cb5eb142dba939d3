"""Which "look again" notices an interactive worker is owed: newest state, never a queue (R10).

One board a worker. A notice about an id is *ready* when the worker has work that waits for that id, or when
it is the first one (the page appeared); else it is *dirty*: kept until interest comes, or until a command
about the id goes to the worker anyway. So a seal that nobody waits for wakes nobody, and a stalled worker is
owed at most one notice an id however long it stalls.

No wake-up is lost: `take` clears a mark before the notice is written, so news that comes while it is being
written marks the id again; and news without interest stays dirty, so whoever gains interest later is told.
docs/models/shared_reads.pml has every interleaving of it, and what goes wrong in another order.

Does not: know what is on a page, send anything.
"""

from __future__ import annotations

import msgspec

from clusterd.multiplexer.declared import Key

__all__ = ["NoticeBoard", "NoticeStatistics"]


class NoticeStatistics(msgspec.Struct, frozen=True):
    """heard: notices of maintenance; coalesced: those among them of an id whose mark stood; put_off: those
    that nobody waited for; sent: what was written to the worker; all ever. ready, dirty: marks now.

    Each mark is one notice that was not coalesced, and goes out, waits, or goes with its collection.
    """

    heard: int
    coalesced: int
    put_off: int
    sent: int
    ready: int
    dirty: int


class NoticeBoard:
    """What one worker is owed."""

    __slots__ = ("_announced", "_coalesced", "_dirty", "_heard", "_interest", "_put_off", "_ready", "_sent")

    def __init__(self) -> None:
        self._heard = self._coalesced = self._put_off = self._sent = 0
        self._ready: dict[Key, None] = {}  # in the order they became ready
        self._dirty: set[Key] = set()
        self._announced: set[Key] = set()  # whose first notice was made ready
        self._interest: dict[Key, int] = {}

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def size(self) -> int:
        """Entries held: for the leak tests."""
        return len(self._ready) + len(self._dirty) + len(self._announced) + len(self._interest)

    def interest(self, key: Key) -> int:
        return self._interest.get(key, 0)

    def note(self, key: Key, *, standing: bool) -> None:
        """Maintenance says "look again at `key`". standing: the id is declared and not dropped.

        A page that is being torn down is always worth a notice: the worker may hold its memory.
        """
        self._heard += 1
        if key in self._ready or (key in self._dirty and standing):
            self._coalesced += 1
        elif not standing:
            self._dirty.discard(key)
            self._ready[key] = None
        elif key in self._interest or key not in self._announced:
            self._announced.add(key)
            self._ready[key] = None
        else:
            self._put_off += 1
            self._dirty.add(key)

    def gain(self, key: Key) -> None:
        """The worker was given work that waits for `key`."""
        self._interest[key] = self._interest.get(key, 0) + 1
        self.ride(key)

    def lose(self, key: Key) -> None:
        left = self._interest.get(key, 0) - 1
        if left > 0:
            self._interest[key] = left
        else:
            self._interest.pop(key, None)

    def ride(self, key: Key) -> None:
        """A command about `key` goes to the worker: what it has not been told goes along."""
        if key in self._dirty:
            self._dirty.discard(key)
            self._ready[key] = None

    def take(self) -> list[Key]:
        """What is to be written now; the marks are cleared before the caller writes."""
        keys = list(self._ready)
        self._ready.clear()
        self._sent += len(keys)
        return keys

    def forget(self, key: Key) -> None:
        """The collection is over; what is ready still goes out."""
        self._dirty.discard(key)
        self._announced.discard(key)

    def statistics(self) -> NoticeStatistics:
        return NoticeStatistics(
            self._heard, self._coalesced, self._put_off, self._sent, len(self._ready), len(self._dirty)
        )
