"""Tail: learn of appends to shards from the kernel, through one inotify descriptor for a whole process.

An append commits by removing the catalog's journal (catalog.py), so the watch is on removals in the shard's
directory: the commit is itself the notice, and a writer killed between the two does not exist. A notice
says "look again" and no more. Who watches first, then reads the upper, and reads it again on each notice,
misses nothing: an append before the watch is in that first read, one after it has a notice queued.
Removals that are no append (a rolled back transaction) cost one look too many; a full queue, a look at
every shard.

Does not: read shards, block, poll; work on file systems without inotify (another machine's writes over NFS).
"""

from __future__ import annotations

from types import TracebackType

from clusterd.storage import catalog, inotify
from clusterd.storage.inotify import Inotify
from clusterd.storage.store import Store

__all__ = ["ShardTail"]


class ShardTail:
    """The shards of `store` that are watched. Register `fileno()` for reading, then call `drain()`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._inotify = Inotify()
        self._names: dict[int, str] = {}
        self._watches: dict[str, int] = {}

    def fileno(self) -> int:
        return self._inotify.fileno()

    def watch(self, name: str) -> None:
        """Notice appends to the shard from here on. Raises Refusal(`unknown-shard`); OSError at a kernel
        limit.
        """
        if name in self._watches:
            return
        watch = self._inotify.watch(self._store.shard(name).directory, inotify.DELETE)
        self._names[watch] = name
        self._watches[name] = watch

    def unwatch(self, name: str) -> None:
        """Stop noticing; what is queued already may still be told."""
        watch = self._watches.pop(name, None)
        if watch is not None:
            del self._names[watch]
            self._inotify.unwatch(watch)

    def drain(self) -> set[str]:
        """The watched shards that may have moved since the last call; never blocks."""
        moved: set[str] = set()
        for notice in self._inotify.notices():
            if notice.mask & inotify.OVERFLOW:
                moved.update(self._watches)
            elif notice.watch in self._names and (
                notice.name == catalog.JOURNAL or notice.mask & inotify.IGNORED
            ):
                moved.add(self._names[notice.watch])
        return moved

    def close(self) -> None:
        self._inotify.close()

    def __enter__(self) -> ShardTail:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
