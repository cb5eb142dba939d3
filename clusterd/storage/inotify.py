"""Inotify: the kernel's notices of what happens in directories, as one descriptor that can be waited on.

Whoever watches first and looks then misses nothing: what happened before is in the look, what happens after
is in the queue. A full queue says so (`OVERFLOW`), and then everything may have happened.

Does not: block, poll, watch what is inside of subdirectories.
"""

from __future__ import annotations

import ctypes
import os
import struct

import msgspec

__all__ = [
    "CLOSE_WRITE", "CREATE", "DELETE", "IGNORED", "MODIFY", "MOVED_FROM", "MOVED_TO", "OVERFLOW", "Inotify",
    "Notice",
]  # fmt: skip

MODIFY = 0x00000002
CLOSE_WRITE = 0x00000008
MOVED_FROM = 0x00000040
MOVED_TO = 0x00000080
CREATE = 0x00000100
DELETE = 0x00000200
OVERFLOW = 0x00004000
IGNORED = 0x00008000  # the watch is over: it was removed, or its directory was
_ONLYDIR = 0x01000000
_EVENT = struct.Struct("iIII")  # wd, mask, cookie, length of the name that follows
_READ_BYTES = 1 << 16  # some 1,300 events

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


class Notice(msgspec.Struct, frozen=True):
    """watch: the number that `watch` gave, -1 of an overflow. name: of a file in the directory, or empty."""

    watch: int
    mask: int
    name: str


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} ({what})")
    return result


class Inotify:
    """Register `fileno()` for reading, then call `notices()`."""

    def __init__(self) -> None:
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def fileno(self) -> int:
        return self._fd

    def watch(self, directory: str | os.PathLike[str], mask: int) -> int:
        """Notice what `mask` names in `directory`, from here on. Raises OSError, also at a kernel limit."""
        path = os.fsencode(directory)
        return _checked(_libc.inotify_add_watch(self._fd, path, mask | _ONLYDIR), "inotify_add_watch")

    def unwatch(self, watch: int) -> None:
        """Stop noticing; what is queued already is still told."""
        _libc.inotify_rm_watch(self._fd, watch)

    def notices(self) -> list[Notice]:
        """What was queued since the last call; never blocks."""
        found: list[Notice] = []
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                found.append(Notice(watch, mask, os.fsdecode(data[at - length : at].rstrip(b"\0"))))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
