"""Tail: learn of appends to shards without asking, through one descriptor for a whole process.

A notice says "look again" and no more. Who watches first, then reads the upper, and reads it again on each
notice, misses nothing: an append before the watch is in that first read, one after it has a notice queued,
for the commit itself is what is told. Where notices come from is the place's matter (place.py): of a
directory from the kernel, of a database from it.

Does not: read shards, block, poll; work on file systems without inotify (another machine's writes over NFS).
"""

from __future__ import annotations

from types import TracebackType

from clusterd.storage.store import Store

__all__ = ["ShardTail"]


class ShardTail:
    """The shards of `store` that are watched. Register `fileno()` for reading, then call `drain()`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._notices = store.place.notices()

    def fileno(self) -> int:
        return self._notices.fileno()

    def watch(self, name: str) -> None:
        """Notice appends to the shard from here on. Raises Refusal(`unknown-shard`); OSError at a kernel
        limit, or if the database is gone.
        """
        self._store.shard(name)
        self._notices.watch(name)

    def unwatch(self, name: str) -> None:
        """Stop noticing; what is queued already may still be told."""
        self._notices.unwatch(name)

    def drain(self) -> set[str]:
        """The watched shards that may have moved since the last call; never blocks."""
        return self._notices.drain()

    def close(self) -> None:
        self._notices.close()

    def __enter__(self) -> ShardTail:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
