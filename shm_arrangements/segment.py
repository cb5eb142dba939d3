"""Segment: one named block of shared memory, written once by one process, mapped read-only by many.

A block is a `multiprocessing.shared_memory.SharedMemory` whose opening is ours, for three reasons:

- Nothing is registered with the resource tracker, on create or attach, nor unregistered on unlink. Before
  Python 3.13 the tracker also registers who merely attaches, and removes the segment when that process ends
  (CPython #82300). Names here are removed by their writer, the reaper, or a sweep, and by nothing else.
- Its space is reserved before it can be written, so that a full /dev/shm is `ShmExhausted` and never a
  SIGBUS later; a large one may be reserved in pieces, each paid by whoever has the time.
- Attaching maps read-only, and closing only lets go: every view into the mapping keeps it alive, so a view
  never dangles, and closing while one lives is neither an error now nor noise at interpreter exit
  (numpy #18294, #21640). The memory is returned with the last view.

A mapping stays valid without the descriptor it came from; where Python permits (3.13), none is kept.

Does not: know what the bytes mean, nor choose names. A mapping is as long as its file; how much of that is
payload is for the header to say, so that padding is never read as data.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]  # what SharedMemory opens with
import contextlib
import errno
import mmap
import os
import resource
import sys
import weakref
from multiprocessing import shared_memory
from typing import Any, Final

from shm_arrangements import failpoints
from shm_arrangements.directory import opening_error, too_many
from shm_arrangements.errors import InvariantViolation, RegistryFull, ShmExhausted
from shm_arrangements.names import SHM_DIRECTORY

SLICE_BYTES: Final = 512 << 10  # reserved at once: a third of a millisecond, and a signal loses little of it
FULL_AT: Final = 0.9  # of the descriptor limit: the rest is for sockets, pipes and files
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EDQUOT})
# From 3.13 on mmap need not keep a duplicate of the descriptor.
_MAP_OPTIONS: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}

# Filling reserved pages one fault at a time costs 0.30 ms a MB, all at once 0.24, and then writing 0.05.
_POPULATE_WRITE: Final = 23  # madvise, from Linux 5.14 on
_shared: weakref.WeakValueDictionary[str, mmap.mmap] = weakref.WeakValueDictionary()


def free_bytes() -> int:
    """What /dev/shm still has room for."""
    room = os.statvfs(SHM_DIRECTORY)
    return room.f_bavail * room.f_frsize


class _Block(shared_memory.SharedMemory):
    """A SharedMemory that no tracker hears of, whose space is reserved, and that closes by letting go."""

    _fd = -1
    _track = False

    def __init__(self, name: str, *, create_bytes: int | None = None, deferred: bool = False) -> None:
        self._name = "/" + name
        self._mmap: mmap.mmap | None = None
        self._buf: memoryview | None = None
        self.reserved = 0
        if create_bytes is None:
            self._attach(name)
        else:
            self._create(name, create_bytes, deferred=deferred)
        self._buf = memoryview(self.mapping)

    def _attach(self, name: str) -> None:
        fd = _open(name, os.O_RDONLY)
        try:
            self._size = self.reserved = os.fstat(fd).st_size
            if self._size == 0:
                raise FileNotFoundError(errno.ENOENT, "segment is not made yet", name)
            self._mmap = mmap.mmap(fd, self._size, mmap.MAP_SHARED, mmap.PROT_READ, **_MAP_OPTIONS)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise RegistryFull("no room for another mapping", name=name) from error
            raise
        finally:
            os.close(fd)

    def _create(self, name: str, nbytes: int, *, deferred: bool) -> None:
        fd = _open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        self._size = nbytes
        try:
            failpoints.hit("segment.create")
            os.ftruncate(fd, nbytes)
            _require_room(nbytes)
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self._mmap = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, access, **_MAP_OPTIONS)
            if not deferred:
                self._reserve(fd, nbytes)
        except OSError as error:
            raise self._given_up(error) from error
        finally:
            os.close(fd)

    def reserve(self, upto_bytes: int) -> None:
        """See WritableSegment. The descriptor is taken anew: no merge in progress holds one."""
        upto_bytes = min(upto_bytes, self._size)
        if upto_bytes <= self.reserved:
            return
        fd = _open(self._name[1:], os.O_RDWR)
        try:
            failpoints.hit("segment.reserve")
            _require_room(self._size - self.reserved)
            self._reserve(fd, upto_bytes)
        except OSError as error:
            raise self._given_up(error) from error
        finally:
            os.close(fd)

    def _given_up(self, error: OSError) -> Exception:
        """The name and the memory go now: the traceback of what is raised holds this object."""
        self.unlink()
        raised = shm_error(error, asked_bytes=self._size, kept_bytes=self.reserved)
        self.close()
        return raised

    def _reserve(self, fd: int, upto_bytes: int) -> None:
        while self.reserved < upto_bytes:
            nbytes = min(SLICE_BYTES, self._size - self.reserved)
            os.posix_fallocate(fd, self.reserved, nbytes)
            with contextlib.suppress(OSError):  # a kernel that cannot: then filling it pays page by page
                self.mapping.madvise(_POPULATE_WRITE, self.reserved, nbytes)
            self.reserved += nbytes

    @property
    def mapping(self) -> mmap.mmap:
        assert self._mmap is not None  # the handles below drop the block when they close
        return self._mmap

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


def _open(name: str, flags: int) -> int:
    """A descriptor, closed on exec. Raises: RegistryFull, leaving no name that was not there."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        fd: int = _posixshmem.shm_open("/" + name, flags, mode=0o600)
    except OSError as error:
        raise opening_error(error, name) from error
    if fd >= FULL_AT * limit:  # the lowest free number: about as many are open
        os.close(fd)
        if flags & os.O_CREAT:
            unlink(name)
        raise too_many(fd, name)
    return fd


def shm_error(error: OSError, *, asked_bytes: int, kept_bytes: int = 0) -> Exception:
    """What to raise for an error of creation: ShmExhausted if it says that there is no room, else itself.

    kept_bytes: what was taken before, and goes back.
    """
    if error.errno not in _NO_ROOM:
        return error
    return ShmExhausted(
        "no room in shared memory",
        asked_bytes=asked_bytes,
        free_bytes=free_bytes() + kept_bytes,
        hint=f"enlarge {SHM_DIRECTORY}, or run `make clean-shm` after a hard kill",
    )


def _require_room(nbytes: int) -> None:
    """Fail before taking anything where all of it cannot be had."""
    if free_bytes() < nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
        """The bytes.

        Raises: InvariantViolation once sealed: what readers may map is never written again; and while not all
        is reserved: writing where there is no memory could be the end of the process.
        """
        return self._whole().view

    @property
    def reserved(self) -> int:
        """How many bytes from the first on have memory behind them."""
        return self._writable().reserved

    def reserve(self, upto_bytes: int) -> None:
        """Put memory behind at least the first `upto_bytes` bytes, or all if that is more than there are.

        Cost: slices of SLICE_BYTES, about 0.4 ms each. Raises: ShmExhausted; the name is gone then.
        """
        block = self._writable()
        try:
            block.reserve(upto_bytes)
        except ShmExhausted:
            self._block = None
            raise

    def seal(self) -> Segment:
        """Give up writing and return the same mapping as a read-only segment."""
        block, self._block = self._whole(), None
        return Segment(self.name, block)

    def _writable(self) -> _Block:
        if self._block is None:
            raise InvariantViolation("write to a sealed segment", name=self.name)
        return self._block

    def _whole(self) -> _Block:
        block = self._writable()
        if block.reserved < block.size:
            raise InvariantViolation("write to memory not reserved", name=self.name, reserved=block.reserved)
        return block

    def close(self) -> None:
        """Let go of the mapping without sealing. The name stays."""
        self._block = None


def create(name: str, nbytes: int, *, deferred: bool = False) -> WritableSegment:
    """Make a new segment of at least `nbytes` (and at least one) zero bytes, reserved unless `deferred`.

    Raises: ShmExhausted (`asked_bytes`, `free_bytes`), leaving no name; FileExistsError if the name is in
    use; RegistryFull at 90 % of the descriptor limit.
    """
    return WritableSegment(name, _Block(name, create_bytes=max(nbytes, 1), deferred=deferred))


def attach(name: str) -> Segment:
    """Map an existing segment read-only.

    Raises: FileNotFoundError if the name is gone, or has no space yet; RegistryFull at 90 % of
    the descriptor limit or when the process may have no further mapping.
    """
    return Segment(name, _Block(name))


def attach_shared(name: str) -> memoryview:
    """Map an existing segment read-only, once a process for all who ask while any view of it lives.

    Names never return, so a mapping found by its name is the right one, even if the name has gone since.
    Raises: as `attach`.
    """
    mapping = _shared.get(name)
    if mapping is None:
        mapping = _shared[name] = _Block(name).mapping
    return memoryview(mapping)


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
