"""Segment: one named block of shared memory, written once by one process, mapped read-only by many.

A block is a `multiprocessing.shared_memory.SharedMemory` whose opening is ours, for three reasons:

- Nothing is registered with the resource tracker, on create or attach, nor unregistered on unlink. Before
  Python 3.13 the tracker also registers who merely attaches, and removes the segment when that process ends
  (CPython #82300). Names here are removed by their writer, the reaper, or a sweep, and by nothing else.
- Its space is reserved at creation, so that a full /dev/shm is `ShmExhausted` and never a SIGBUS later.
- Attaching maps read-only, and closing only lets go: every view into the mapping keeps it alive, so a view
  never dangles, and closing while one lives is neither an error now nor noise at interpreter exit
  (numpy #18294, #21640). The memory is returned with the last view.

A mapping stays valid without the descriptor it came from; where Python permits (3.13), none is kept.

Does not: know what the bytes mean, nor choose names. A mapping is as long as its file; how much of that is
payload is for the header to say, so that padding is never read as data.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]  # what SharedMemory opens with
import errno
import mmap
import os
import resource
import sys
from multiprocessing import shared_memory
from typing import Any, Final

from shm_arrangements import failpoints
from shm_arrangements.errors import FormatMismatch, InvariantViolation, RegistryFull, ShmExhausted
from shm_arrangements.names import SHM_DIRECTORY

FULL_AT: Final = 0.9  # of the descriptor limit: the rest is for sockets, pipes and files
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EDQUOT})
# From 3.13 on mmap need not keep a duplicate of the descriptor.
_MAP_OPTIONS: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def free_bytes() -> int:
    """What /dev/shm still has room for."""
    room = os.statvfs(SHM_DIRECTORY)
    return room.f_bavail * room.f_frsize


class _Block(shared_memory.SharedMemory):
    """A SharedMemory that no tracker hears of, whose space is reserved, and that closes by letting go."""

    _fd = -1
    _track = False

    def __init__(self, name: str, *, create_bytes: int | None) -> None:
        self._name = "/" + name
        self._mmap: mmap.mmap | None = None
        self._buf: memoryview | None = None
        if create_bytes is None:
            self._open(name, os.O_RDONLY, mmap.PROT_READ, None)
        else:
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
            self._open(name, flags, mmap.PROT_READ | mmap.PROT_WRITE, create_bytes)

    def _open(self, name: str, flags: int, protection: int, create_bytes: int | None) -> None:
        try:
            fd = _posixshmem.shm_open(self._name, flags, mode=0o600)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise _too_many(resource.getrlimit(resource.RLIMIT_NOFILE)[0], name) from error
            raise
        try:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            if fd >= FULL_AT * limit:  # the lowest free number: about as many are open
                raise _too_many(fd, name)
            if create_bytes is not None:
                failpoints.hit("segment.create")
                os.posix_fallocate(fd, 0, create_bytes)
            self._size = os.fstat(fd).st_size
            if self._size == 0:
                raise FormatMismatch("segment of no bytes", name=name)
            self._mmap = mmap.mmap(fd, self._size, mmap.MAP_SHARED, protection, **_MAP_OPTIONS)
        except OSError as error:
            if create_bytes is None and error.errno == errno.ENOMEM:
                raise RegistryFull("no room for another mapping", name=name) from error
            if create_bytes is not None and error.errno in _NO_ROOM:
                unlink(name)
                raise ShmExhausted(
                    "no room in shared memory",
                    asked_bytes=create_bytes,
                    free_bytes=free_bytes(),
                    hint=f"enlarge {SHM_DIRECTORY}, or run `make clean-shm` after a hard kill",
                ) from error
            if create_bytes is not None:
                unlink(name)
            raise
        except RegistryFull:
            if create_bytes is not None:
                unlink(name)
            raise
        finally:
            os.close(fd)
        self._buf = memoryview(self._mmap)

    @property
    def view(self) -> memoryview:
        assert self._buf is not None  # the handles below drop the block when they close
        return self._buf

    def close(self) -> None:
        self._buf = None
        self._mmap = None  # the views into it hold it; the last one unmaps

    def unlink(self) -> None:
        unlink(self._name[1:])

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a segment is passed by name, never pickled")


def _too_many(used: int, name: str) -> RegistryFull:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return RegistryFull("too many descriptors", used=used, limit=limit, name=name, hint="raise `ulimit -n`")


class Segment:
    """A sealed segment: `.buf` is read-only. Views of `.buf` outlive this object and `close`."""

    __slots__ = ("__weakref__", "_block", "_buf", "name")

    def __init__(self, name: str, block: _Block) -> None:
        self.name = name
        self._block: _Block | None = block
        self._buf: memoryview | None = block.view.toreadonly()

    @property
    def buf(self) -> memoryview:
        """The bytes, `nbytes` of them. Raises: ValueError once closed."""
        if self._buf is None:
            raise ValueError(f"segment {self.name} is closed")
        return self._buf

    @property
    def nbytes(self) -> int:
        """How long the mapping is: at least what was asked at creation, and that is all it says."""
        return self.buf.nbytes

    def close(self) -> None:
        """Let go of the mapping; it stays as long as any view of it. Idempotent."""
        self._block = self._buf = None

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WritableSegment:
    """A segment being written: `.buf` is writable, all zeros at first."""

    __slots__ = ("__weakref__", "_block", "name")

    def __init__(self, name: str, block: _Block) -> None:
        self.name = name
        self._block: _Block | None = block

    @property
    def buf(self) -> memoryview:
        """The bytes. Raises: InvariantViolation once sealed: what readers may map is never written again."""
        if self._block is None:
            raise InvariantViolation("write to a sealed segment", name=self.name)
        return self._block.view

    def seal(self) -> Segment:
        """Give up writing and return the same mapping as a read-only segment."""
        if self._block is None:
            raise InvariantViolation("segment sealed twice", name=self.name)
        block, self._block = self._block, None
        return Segment(self.name, block)

    def close(self) -> None:
        """Let go of the mapping without sealing. The name stays."""
        self._block = None


def create(name: str, nbytes: int) -> WritableSegment:
    """Make a new segment of at least `nbytes` (and at least one) reserved zero bytes.

    Raises: ShmExhausted (`asked_bytes`, `free_bytes`), leaving no name; FileExistsError if the name is in
    use; RegistryFull at 90 % of the descriptor limit.
    """
    return WritableSegment(name, _Block(name, create_bytes=max(nbytes, 1)))


def attach(name: str) -> Segment:
    """Map an existing segment read-only.

    Raises: FileNotFoundError if the name is gone; FormatMismatch if it has no bytes; RegistryFull at 90 % of
    the descriptor limit or when the process may have no further mapping.
    """
    return Segment(name, _Block(name, create_bytes=None))


def unlink(name: str) -> bool:
    """Remove a name; standing mappings are not disturbed. Returns whether it was there."""
    try:
        _posixshmem.shm_unlink("/" + name)
    except FileNotFoundError:
        return False
    return True


def link(name: str, alias: str) -> None:
    """Give a segment a further name: the memory goes with the last of them.

    Raises: FileNotFoundError, FileExistsError.
    """
    os.link(f"{SHM_DIRECTORY}/{name}", f"{SHM_DIRECTORY}/{alias}")
