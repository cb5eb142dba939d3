"""The indexes of other processes, as this one reads them: pages, snapshots, and what is cached of both.

The registry (shm_arrangements.registry) knows the entries; an entry's handle is the pair of mapped pages. An
alias is known by its pages, which say under which id they were made: where those are mapped already, they are
shared, with their snapshot. That is taken when a read needs one and kept for the reads after it, as long as
the pages say the same; since it pins memory that the writer may have superseded, one that was not used for
`IDLE_S` is let go: a timer that runs only after reads, once.

Does not: decide when to look (the core does), copy rows, hold compaction back.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterd.runtime.effects import PageSeen
from clusterd.runtime.evaluate import Readable
from clusterd.runtime.peeks import Key
from controller_proto.ids import GlobalId, id_to_u64
from shm_arrangements.errors import PublicationClosed
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import HALVES, PageName, collection_text
from shm_arrangements.page_layout import PageStatus
from shm_arrangements.registry import (
    ArrangementSharingRegistry,
    CollectionKey,
    RegistryStatistics,
)
from shm_arrangements.snapshot import PublishedTrace, Snapshot, snapshot_together

__all__ = ["IDLE_S", "PublishedIndex", "PublishedIndexes"]

IDLE_S = 1.0  # after the last read: attaching again costs well under a millisecond


class PublishedIndex:
    """Both pages of one index, and its newest snapshot.

    places: its entries in the registry, which are aliases of each other. made_as: the one that its pages were
    made under. readable: what reads are given, by the id they name.
    """

    __slots__ = ("_halves", "made_as", "places", "readable", "snapshots", "used_s")

    def __init__(self, halves: list[PublishedTrace]) -> None:
        self._halves = halves
        page = halves[0].page.header.page
        self.made_as = CollectionKey(page.id, page.incarnation)
        self.places: dict[CollectionKey, None] = {}
        self.snapshots: list[Snapshot] = []
        self.readable: dict[GlobalId, Readable] = {}
        self.used_s = 0.0

    def read(self) -> tuple[bool, Frontier, Frontier]:
        """Whether it is closed; since and upper of both halves together."""
        oks, errs = (half.read() for half in self._halves)
        if self.snapshots and (
            oks.generation != self.snapshots[0].generation or errs.generation != self.snapshots[1].generation
        ):
            self.readable.clear()
        closed = PageStatus.CLOSED in (oks.status, errs.status)
        return closed, Frontier.join(oks.since, errs.since), Frontier.meet(oks.upper, errs.upper)

    def snapshot(self) -> list[Snapshot]:
        """oks and errs as they are now. Raises: as `PublishedTrace.snapshot`."""
        taken = snapshot_together(self._halves)
        if taken != self.snapshots:
            # What reads were given is of the snapshots before; `read` could not tell any more.
            self.readable.clear()
            self.snapshots = taken
        return taken

    def take(self, id: GlobalId) -> Readable:
        """For a read of `id`. The snapshot of the last `read` or a newer one."""
        found = self.readable.get(id)
        if found is None:
            oks, errs = self.snapshot()
            found = self.readable[id] = Readable.of(id, oks.schema, oks.batches(), errs.batches())
        return found

    def let_go(self) -> None:
        """Of the snapshots; readers that hold one keep it."""
        self.readable.clear()
        self.snapshots = []
        for half in self._halves:
            half.forget()

    def close(self) -> None:
        self.readable.clear()
        self.snapshots = []
        for half in self._halves:
            half.close()
        self._halves = []  # and with them the clock they follow: the registry's entries are a circle


class PublishedIndexes:
    """The pages of instance `instance` that this process has met."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._registry: ArrangementSharingRegistry[PublishedIndex] = ArrangementSharingRegistry()
        self._handles: dict[Key, PublishedIndex] = {}  # of published entries, by the wire's key
        self._made: dict[CollectionKey, PublishedIndex] = {}  # by the key that the pages were made under
        self._recent: dict[PublishedIndex, None] = {}  # have a snapshot

    def read(self, key: Key) -> PageSeen:
        """What the pages say now; `absent` leaves a placeholder that owns nothing."""
        handle = self._handles.get(key)
        if handle is None:
            handle = self._open(key)
            if handle is None:
                return PageSeen(key, "absent")
        closed, since, upper = handle.read()
        return PageSeen(key, "closed" if closed else "open", since, upper)

    def readable(self, key: Key, now_s: float) -> Readable:
        """The snapshot for a read, taken now or kept. Raises: as `PublishedTrace.snapshot`."""
        handle = self._handles[key]
        handle.used_s = now_s
        if not handle.readable:
            self._recent[handle] = None
        return handle.take(key[0])

    def snapshot(self, key: Key) -> list[Snapshot]:
        """oks and errs now, for a query. Raises: as `PublishedTrace.snapshot`."""
        handle = self._handles[key]
        self._recent[handle] = None
        return handle.snapshot()

    def forget(self, key: Key) -> None:
        """The collection is gone for this process; its pages stay mapped as long as those of an alias are."""
        place = _place(key)
        if self._registry.evict(place):
            return  # it never had a page
        handle = self._handles.pop(key, None)
        if handle is not None:
            del handle.places[place]
        released = self._registry.close(place)
        if released is not None:
            del self._made[released.made_as]
            self._recent.pop(released, None)
            released.close()

    def let_go_idle(self, now_s: float) -> float | None:
        """Let go of snapshots that were not used for a while; when to call again, None if there are none."""
        due: float | None = None
        for handle in list(self._recent):
            at = handle.used_s + IDLE_S
            if at <= now_s:
                handle.let_go()
                del self._recent[handle]
            else:
                due = at if due is None else min(due, at)
        return due

    def snapshots(self) -> Iterator[tuple[Key, int, float]]:
        """The snapshots that are kept: of which index, how many bytes they map, and when they were used."""
        for handle in self._recent:
            nbytes = sum(batch.nbytes for snapshot in handle.snapshots for batch in snapshot.batches())
            yield (collection_text(handle.made_as.id), handle.made_as.incarnation), nbytes, handle.used_s

    def statistics(self) -> RegistryStatistics:
        return self._registry.statistics()

    def close(self) -> None:
        for key in list(self._handles):
            self.forget(key)

    def _open(self, key: Key) -> PublishedIndex | None:
        entry = self._registry.get_or_create(_place(key))
        halves: list[PublishedTrace] = []
        for half in HALVES:
            try:
                halves.append(PublishedTrace(PageName(self._instance, *entry.key, half)))
            except PublicationClosed:
                for opened in halves:
                    opened.close()
                return None
        handle = PublishedIndex(halves)
        shared = self._made.get(handle.made_as)
        if shared is None:
            self._registry.publish(entry.key, handle)
            self._made[handle.made_as] = handle
        else:
            handle.close()
            handle = shared
            self._registry.alias(entry.key, next(iter(handle.places)))
        handle.places[entry.key] = None
        self._handles[key] = handle
        return handle


def _place(key: Key) -> CollectionKey:
    return CollectionKey(id_to_u64(key[0]), key[1])
