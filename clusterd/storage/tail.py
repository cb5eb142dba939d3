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

import ctypes
import os
import struct
from types import TracebackType

from clusterd.storage import catalog
from clusterd.storage.store import Store

__all__ = ["ShardTail"]

_IN_DELETE = 0x00000200
_IN_Q_OVERFLOW = 0x00004000
_IN_IGNORED = 0x00008000
_IN_ONLYDIR = 0x01000000
_EVENT = struct.Struct("iIII")  # wd, mask, cookie, length of the name that follows
_READ_BYTES = 1 << 16  # some 1,300 events

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} ({what})")
    return result


class ShardTail:
    """The shards of `store` that are watched. Register `fileno()` for reading, then call `drain()`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        self._names: dict[int, str] = {}
        self._watches: dict[str, int] = {}

    def fileno(self) -> int:
        return self._fd

    def watch(self, name: str) -> None:
        """Notice appends to the shard from here on. Raises Refusal(`unknown-shard`); OSError at a kernel
        limit.
        """
        if name in self._watches:
            return
        directory = os.fsencode(self._store.shard(name).directory)
        watch = _checked(
            _libc.inotify_add_watch(self._fd, directory, _IN_DELETE | _IN_ONLYDIR), "inotify_add_watch"
        )
        self._names[watch] = name
        self._watches[name] = watch

    def unwatch(self, name: str) -> None:
        """Stop noticing; what is queued already may still be told."""
        watch = self._watches.pop(name, None)
        if watch is not None:
            del self._names[watch]
            _libc.inotify_rm_watch(self._fd, watch)

    def drain(self) -> set[str]:
        """The watched shards that may have moved since the last call; never blocks."""
        journal = catalog.JOURNAL.encode()
        moved: set[str] = set()
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return moved
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                if mask & _IN_Q_OVERFLOW:
                    moved.update(self._watches)
                elif watch in self._names and (name == journal or mask & _IN_IGNORED):
                    moved.add(self._names[watch])

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ShardTail:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
