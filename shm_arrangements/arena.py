"""Arena: where a writer's batches get their bytes.

A small batch shares a segment, an arena, with the small batches of all arrangements of its writer: a tick of
a few rows costs neither a file, nor a mapping in every reader, nor a page of memory. A larger batch has a
segment of its own. An arena is only ever appended to, so that a mapping of it stays right: what a reader may
find in it was complete before the page that names it turned, and is never written again, or punched out, for
nobody knows who still looks at it.

An arena knows what in it is live. Who superseded a batch frees it after its grace, so dead bytes are those
that no page has named for a grace. A sealed arena (there is a newer one) goes when all of it is dead. Below a
quarter live it is *sparse*: its survivors are to be copied elsewhere by who owns them (writer.py), and so it
is dead a grace later. Hence arenas take at most four times the live bytes, those in their grace included, and
one arena besides; and copying costs at most a third of a byte for each byte freed.

So that this is little beside what the writer has at all, an arena is made as long as a `_SHARE`-th of it, and
small is what is at most an eighth of an arena. A writer of little has small arenas then, and segments of
their own for batches of a few pages: at most eight times `_SHARE` of them until arenas are as long as they
get, for each holds that part of what there is.

Does not: know what the bytes mean, when a grace is over (reclaim.py), or where a batch is shown.
"""

from __future__ import annotations

import itertools
import struct
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import failpoints, segment
from shm_arrangements.errors import FormatMismatch, InvariantViolation
from shm_arrangements.names import Locator, is_token, segment_name

LEAST_ARENA_BYTES: Final = 64 << 10
MOST_ARENA_BYTES: Final = 512 << 10
_SHARE: Final = 32
_ALIGNMENT: Final = 64
_MAGIC: Final = b"SHMARENA"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sII")  # magic, version, writer
HEADER_BYTES: Final = _ALIGNMENT

# One counter a process, not one an allocator: a number is never used twice by its writer.
_seq = itertools.count(1)


def arena_bytes(live_bytes: int) -> int:
    """How long the next arena is made, by a writer whose batches take `live_bytes`: a power of two."""
    share = max(live_bytes // _SHARE, LEAST_ARENA_BYTES)
    return min(1 << (share.bit_length() - 1), MOST_ARENA_BYTES)


def small_bytes(live_bytes: int) -> int:
    """How long a batch may be that is put into an arena; what one leaves unused at its end is less."""
    return arena_bytes(live_bytes) // 8


def next_locator(token: str, writer: int) -> Locator:
    """The place of this process's next segment; `writer` is its number within the instance."""
    return Locator(token, writer, next(_seq))


class Arena:
    """One arena as its writer has it. Offsets and lengths are bytes."""

    __slots__ = ("_end", "_live", "_sealed", "_writable", "live_bytes", "nbytes", "seq", "token", "writer")

    def __init__(self, token: str, writer: int, nbytes: int) -> None:
        """Raises: ShmExhausted, RegistryFull."""
        self.token = token
        self.writer = writer
        self.nbytes = nbytes
        self.seq = next(_seq)
        made = segment.create(self.name, nbytes)
        _HEADER.pack_into(made.buf, 0, _MAGIC, _VERSION, writer)
        self._writable: memoryview = made.buf
        self._sealed: memoryview = made.seal().buf
        self._end = HEADER_BYTES
        self._live: dict[int, int] = {}  # length by offset
        self.live_bytes = 0

    @property
    def name(self) -> str:
        return segment_name(self.token, self.writer, self.seq, arena=True)

    @property
    def room(self) -> int:
        """What the longest batch that can be appended may have."""
        return self.nbytes - self._end

    @property
    def is_sparse(self) -> bool:
        """Whether so little is live that it is to be copied elsewhere."""
        return 4 * self.live_bytes < self.nbytes

    def append(self, nbytes: int) -> Locator:
        """Take the next `nbytes`, which are at most `room`."""
        offset = self._end
        taken = (nbytes + _ALIGNMENT - 1) & -_ALIGNMENT
        self._end = offset + taken
        self._live[offset] = taken
        self.live_bytes += taken
        return Locator(self.token, self.writer, self.seq, offset)

    def writable(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes of what was appended at `offset`, for who appended it."""
        return np.frombuffer(self._writable, np.uint8, nbytes, offset)

    def sealed(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes, read-only."""
        return np.frombuffer(self._sealed, np.uint8, nbytes, offset)

    def free(self, offset: int) -> int:
        """Count what was appended at `offset` as dead; returns its bytes.

        Raises: InvariantViolation if it is not live.
        """
        taken = self._live.pop(offset, None)
        if taken is None:
            raise InvariantViolation("free of what is not live", arena=self.name, offset=offset)
        self.live_bytes -= taken
        return taken

    def holds_only(self, offset: int) -> bool:
        """Whether what was appended at `offset` is live, and nothing else."""
        return len(self._live) == 1 and offset in self._live

    def survivors(self) -> tuple[Locator, ...]:
        """The places of what is live, ascending."""
        return tuple(Locator(self.token, self.writer, self.seq, offset) for offset in self._live)


class ArenaAllocation:
    """A piece of an arena that is to become a batch; see contracts.py."""

    __slots__ = ("_allocator", "_arena", "buffer", "locator", "reserved")

    def __init__(self, allocator: SegmentAllocator, arena: Arena, nbytes: int) -> None:
        self._allocator: SegmentAllocator | None = allocator
        self._arena = arena
        self.locator = arena.append(nbytes)
        self.buffer: NDArray[np.uint8] = arena.writable(self.locator.offset, nbytes)
        self.reserved = nbytes

    def reserve(self, upto_bytes: int) -> None:
        """All of it is."""

    def seal(self) -> NDArray[np.uint8]:
        if self._allocator is None:
            raise InvariantViolation("sealed twice, or after it was abandoned", place=self.locator)
        self._allocator = None
        return self._arena.sealed(self.locator.offset, self.reserved)

    def abandon(self) -> None:
        allocator, self._allocator = self._allocator, None
        if allocator is not None:
            allocator._give_back(self.locator)


class SegmentAllocation:
    """A segment that is to become a batch; see contracts.py."""

    __slots__ = ("_allocator", "_segment", "locator")

    def __init__(self, allocator: SegmentAllocator, locator: Locator, nbytes: int, *, deferred: bool) -> None:
        self._allocator = allocator
        self.locator = locator
        self._segment: segment.WritableSegment | None = segment.create(
            locator.name, nbytes, deferred=deferred
        )

    @property
    def buffer(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._held.buf, np.uint8)

    @property
    def reserved(self) -> int:
        return self._held.reserved

    def reserve(self, upto_bytes: int) -> None:
        self._held.reserve(upto_bytes)

    def seal(self) -> NDArray[np.uint8]:
        sealed = self._held.seal()
        self._segment = None
        self._allocator._keep(self.locator, sealed.nbytes)
        return np.frombuffer(sealed.buf, np.uint8)

    def abandon(self) -> None:
        if self._segment is not None:
            segment.unlink(self.locator.name)
            self._segment = None

    @property
    def _held(self) -> segment.WritableSegment:
        if self._segment is None:
            raise InvariantViolation("used after it was sealed or abandoned", place=self.locator)
        return self._segment


class SegmentAllocator:
    """Shared memory of one writer of instance `token`; the place of a batch is its `Locator`.

    One for all arrangements of a process, so that they share arenas.
    """

    __slots__ = (
        "_arenas", "_current", "_own", "_sparse", "live_bytes", "sparse_count", "token", "writer",
    )  # fmt: skip
    checksums: ClassVar[bool] = True

    def __init__(self, token: str, writer: int) -> None:
        """`token`: of an instance that lives. `writer`: this process's number within it, below 2**32.

        Raises: ValueError if `token` has not the form of one, or `writer` is no such number.
        """
        if not is_token(token):
            raise ValueError(f"not a token: {token!r}; Instance.open() draws one")
        if not isinstance(writer, int) or not 0 <= writer < 1 << 32:
            raise ValueError(f"the number of a writer is in 0 to 2**32 - 1, not {writer!r}")
        self.token = token
        self.writer = writer
        self._arenas: dict[int, Arena] = {}
        self._current: Arena | None = None
        self._own: dict[int, int] = {}  # length of each sealed segment that is a batch, by seq
        self.live_bytes = 0  # of these, and in arenas
        self._sparse: set[int] = set()
        self.sparse_count = 0  # arenas that have become sparse, ever: who sees it move looks at its batches

    def allocate(self, nbytes: int, *, deferred: bool = False) -> ArenaAllocation | SegmentAllocation:
        """As `Allocator.allocate`. Raises: ShmExhausted, RegistryFull; the call can be repeated."""
        if nbytes > small_bytes(self.live_bytes):
            locator = next_locator(self.token, self.writer)
            return SegmentAllocation(self, locator, nbytes, deferred=deferred)
        arena = self._current
        try:
            failpoints.hit("arena.append")
            if arena is None or arena.room < nbytes:
                arena = self._open()
        except OSError as error:
            raise segment.shm_error(error, asked_bytes=nbytes) from error
        before = arena.live_bytes
        allocation = ArenaAllocation(self, arena, nbytes)
        self.live_bytes += arena.live_bytes - before
        return allocation

    def free(self, locator: Locator) -> None:
        """Give back the place of a batch that no page has named for a grace, or that none ever did.

        Raises: OSError, without effect; InvariantViolation if it is free already or was never ours.
        """
        failpoints.hit("batch.unlink")
        if locator.in_arena:
            self._give_back(locator)
        elif locator.seq in self._own:
            segment.unlink(locator.name)
            self.live_bytes -= self._own.pop(locator.seq)
        else:
            raise InvariantViolation("free of what is not live", place=locator)

    def must_move(self, locator: Locator) -> bool:
        """Whether the batch there is to be copied elsewhere, and then freed as any other."""
        return locator.offset > 0 and locator.seq in self._sparse

    def trim(self) -> None:
        """Let go of the arena in use if nothing in it is live: its writer may be at its end."""
        if self._current is not None and self._current.live_bytes == 0:
            self._drop(self._current)
            self._current = None

    @property
    def arenas(self) -> tuple[Arena, ...]:
        """Oldest first; the last is in use, unless it was dropped."""
        return tuple(self._arenas.values())

    def _open(self) -> Arena:
        self.trim()
        failpoints.hit("arena.create")
        arena = Arena(self.token, self.writer, arena_bytes(self.live_bytes))
        full, self._current = self._current, arena
        self._arenas[arena.seq] = arena
        if full is not None:
            self._note_sparse(full)
        return arena

    def _keep(self, locator: Locator, nbytes: int) -> None:
        """A segment of its own was sealed."""
        self._own[locator.seq] = nbytes
        self.live_bytes += nbytes

    def _give_back(self, locator: Locator) -> None:
        arena = self._arenas.get(locator.seq)
        if arena is None:
            raise InvariantViolation("free in an arena that is gone", place=locator)
        if arena is self._current:
            self.live_bytes -= arena.free(locator.offset)
        elif arena.holds_only(locator.offset):
            self._drop(arena)
            self.live_bytes -= arena.live_bytes
        else:
            self.live_bytes -= arena.free(locator.offset)
            self._note_sparse(arena)

    def _drop(self, arena: Arena) -> None:
        failpoints.hit("arena.unlink")
        segment.unlink(arena.name)
        del self._arenas[arena.seq]
        self._sparse.discard(arena.seq)

    def _note_sparse(self, arena: Arena) -> None:
        if arena.is_sparse and arena.seq not in self._sparse:
            self._sparse.add(arena.seq)
            self.sparse_count += 1


def map_segment(locator: Locator) -> memoryview:
    """Map the segment of a batch read-only, an arena once a process; the batch begins at `locator.offset`.

    Raises: FileNotFoundError if its name is gone, FormatMismatch, RegistryFull.
    """
    if not locator.in_arena:
        return segment.attach(locator.name).buf
    mapped = segment.attach_shared(locator.name)
    if mapped.nbytes < HEADER_BYTES or _HEADER.unpack_from(mapped) != (_MAGIC, _VERSION, locator.writer):
        raise FormatMismatch("not an arena", name=locator.name)
    if locator.offset % _ALIGNMENT or locator.offset >= mapped.nbytes:
        raise FormatMismatch("no batch can begin there", name=locator.name, offset=locator.offset)
    return mapped
