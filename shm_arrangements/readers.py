"""Readers: who holds memory of an instance, for accounting alone.

A process that attaches makes one small file among the instance's names, and keeps it locked while it lives:
how many views it holds, how many bytes it has mapped for them, and since when the oldest. Whoever lists the
readers of an instance takes the lock of those that have ended, however they did, and removes their files; so
do the next reader that comes, the release of the instance, and its sweep.

Counting costs where something is mapped or let go, never where it is read. What is held is noticed by weak
references, whose callbacks may come at any moment, also in the midst of a count: so each is an event in a
queue, applied by whoever has the lock, and nobody waits for it.

Without room for a row, or a descriptor, a process reads on and is not listed; its next attachment tries
again. A forked child has a row of its own from its first event on.

Does not: hold compaction back, delay a merge or an unlink, or tell the writer anything.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import mmap
import os
import struct
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from shm_arrangements.directory import list_names, open_name
from shm_arrangements.errors import FormatMismatch, RegistryFull
from shm_arrangements.instance import take_lock
from shm_arrangements.names import SHM_DIRECTORY, collection_text, instance_prefix

READER_VERSION: Final = 2

_MAGIC: Final = b"CLSTRRDR"
_HEAD: Final = struct.Struct("<8sIIQ12s4xQ")  # magic, version, pid, its start, token, made at (s since 1970)
_COUNTS_AT: Final = 64
_COUNTS: Final = struct.Struct("<QQQQ")  # views, pinned bytes, time of the oldest view, since when it is held
_ROW_BYTES: Final = 4096
_PINS_AT: Final = 128
_PIN: Final = struct.Struct("<QQQQ")  # id, incarnation, views, bytes of the newest; no views: nothing
_MOST_PINS: Final = (_ROW_BYTES - _PINS_AT) // _PIN.size
_ATTACHMENT, _VIEW, _MAPPING = range(3)


Place = tuple[int, int]  # an index: id as u64, and incarnation


@dataclass(frozen=True, slots=True)
class Pin:
    """An index of which a reader holds views. nbytes: what the one that it took last has mapped."""

    id: str
    incarnation: int
    views: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """A process that has attached to an instance.

    started: clock ticks since boot, so that a pid used again is told apart. snapshots: views it holds.
    pinned_bytes: memory it has mapped, live or superseded; an arena counts whole. oldest_time: the time that
    the view it has held longest is of; oldest_age_s: for how long. None without a view. pins: by index, of
    the first 124 that it holds.
    """

    pid: int
    started: int
    snapshots: int
    pinned_bytes: int
    oldest_time: int | None
    oldest_age_s: float | None
    pins: tuple[Pin, ...] = ()


class _Held(weakref.ref[Any]):
    """Something that is held, until its end is noticed. value: of a view its time, of a mapping its bytes.
    place, nbytes: of a view, what it is of, and how much of that it has mapped.
    """

    __slots__ = ("key", "kind", "nbytes", "place", "since_ns", "value")
    key: int
    kind: int
    value: int
    since_ns: int
    place: Place
    nbytes: int


class Reader:
    """This process as a reader of one instance."""

    __slots__ = (
        "_attachments", "_events", "_fd", "_lock", "_mappings", "_may_make", "_path", "_pinned", "_pins",
        "_row", "_slots", "_views", "_words", "token",
    )  # fmt: skip

    def __init__(self, token: str) -> None:
        self.token = token
        self._events: deque[tuple[int, _Held | None]] = deque()
        self._lock = threading.Lock()
        self._attachments: dict[int, _Held] = {}
        self._views: dict[int, _Held] = {}  # the oldest first
        self._mappings: dict[int, _Held] = {}
        self._pinned = 0
        self._pins: dict[Place, list[int]] = {}  # slot, views, bytes
        self._slots: list[Place | None] = []  # of the row
        self._may_make = True
        self._path = ""
        self._fd = -1
        self._row: mmap.mmap | None = None
        self._words: memoryview | None = None

    def took(self, view: object, time: int, place: Place, nbytes: int) -> None:
        """`view`, weakly referable, holds `nbytes` of `place` at `time` from here on. Cost: about 1 us."""
        self._note(_VIEW, view, time, place, nbytes)

    def leave(self, attachment: object) -> None:
        """The attachment is closed; what it handed out may live on."""
        self._apply(id(attachment), None)

    def _note(self, kind: int, what: object, value: int, place: Place = (0, 0), nbytes: int = 0) -> None:
        held = _Held(what, self._ended)
        held.place, held.nbytes = place, nbytes
        held.key, held.kind, held.value, held.since_ns = id(what), kind, value, time.monotonic_ns()
        self._apply(held.key, held)

    def _ended(self, held: _Held) -> None:
        self._apply(held.key, None)

    def _apply(self, key: int, held: _Held | None) -> None:
        """Queue an event; then have the queue applied, by whoever is at it already or by us."""
        self._events.append((key, held))
        while self._events and self._lock.acquire(blocking=False):
            try:
                while self._events:
                    key, held = self._events.popleft()
                    if held is None:
                        self._forget(key)
                    else:
                        self._keep(key, held)
                self._show()
            finally:
                self._lock.release()

    def _keep(self, key: int, held: _Held) -> None:
        if held.kind == _MAPPING:
            if key not in self._mappings:  # an arena is mapped once and asked for often
                self._mappings[key] = held
                self._pinned += held.value
        elif held.kind == _VIEW:
            self._views[key] = held
            self._pin(held)
        else:
            self._attachments[key] = held
            self._may_make = True

    def _forget(self, key: int) -> None:
        view = self._views.pop(key, None)
        if view is not None:
            self._unpin(view.place)
        elif self._attachments.pop(key, None) is None:
            mapping = self._mappings.pop(key, None)
            if mapping is not None:
                self._pinned -= mapping.value

    def _pin(self, held: _Held) -> None:
        pin = self._pins.get(held.place)
        if pin is None:
            free = self._slots.index(None) if None in self._slots else len(self._slots)
            self._slots[free : free + 1] = [held.place]
            pin = self._pins[held.place] = [free, 0, 0]
        pin[1] += 1
        pin[2] = held.nbytes
        self._show_pin(held.place, pin)

    def _unpin(self, place: Place) -> None:
        pin = self._pins[place]
        pin[1] -= 1
        self._show_pin(place, pin)
        if not pin[1]:
            del self._pins[place]
            self._slots[pin[0]] = None

    def _show_pin(self, place: Place, pin: list[int]) -> None:
        slot, views, nbytes = pin
        if self._words is not None and slot < _MOST_PINS:
            at = (_PINS_AT - _COUNTS_AT + slot * _PIN.size) // 8
            for word, value in enumerate((*place, views, nbytes), at):
                self._words[word] = value

    def _show(self) -> None:
        if not (self._attachments or self._views or self._mappings):
            self._remove()
            if _readers.get(self.token) is self:
                del _readers[self.token]
            return
        if self._words is None:
            if not self._may_make:
                return
            self._make()
        words = self._words
        if words is not None:
            words[0] = len(self._views)
            words[1] = self._pinned
            for oldest in self._views.values():
                words[2] = oldest.value
                words[3] = oldest.since_ns
                break

    def _make(self) -> None:
        """Make the row; where there is no room, do without."""
        self._may_make = False
        with contextlib.suppress(OSError, RegistryFull):
            list_readers(self.token)  # removes what readers before us left
            self._path, self._fd = _create(self.token)
            self._row = mmap.mmap(self._fd, _ROW_BYTES)
            self._words = memoryview(self._row)[_COUNTS_AT:].cast("Q")
            for place, pin in self._pins.items():
                self._show_pin(place, pin)
        if self._words is None:
            self._remove()

    def retire(self) -> None:
        """The process ends: the row goes, and none is made again."""
        self._may_make = False
        self._remove()

    def _remove(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._let_go()

    def _let_go(self) -> None:
        if self._words is not None:
            self._words.release()
            self._words = None
        if self._row is not None:
            self._row.close()
            self._row = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def after_fork(self) -> None:
        """In a forked child: the row is the parent's, and so is whoever held the lock."""
        self._lock = threading.Lock()
        self._let_go()
        self._may_make = True


_readers: dict[str, Reader] = {}


def enter(token: str, attachment: object) -> Reader:
    """Count an attachment, weakly referable, to the instance `token`: until `Reader.leave`, or its own end.

    Raises: nothing for want of room.
    """
    reader = _readers.setdefault(token, Reader(token))
    reader._note(_ATTACHMENT, attachment, 0)
    return reader


def pinned(token: str, mapping: Any, nbytes: int) -> None:
    """Count memory of `token` that this process has mapped, as long as `mapping` (an mmap) lives.

    Again for the same mapping, or in a process that is no reader: no effect.
    """
    reader = _readers.get(token)
    if reader is not None:
        reader._note(_MAPPING, mapping, nbytes)


def list_readers(token: str) -> tuple[ReaderInfo, ...]:
    """The readers of an instance that live, by pid; the files of those that have ended are removed.

    Files of other users are left alone, and not listed. Raises: RegistryFull.
    """
    found = []
    for name in list_names(_prefix(token)):
        with contextlib.suppress(OSError, FormatMismatch):
            info = _look(name)
            if info is not None:
                found.append(info)
    return tuple(sorted(found, key=lambda info: info.pid))


def _prefix(token: str) -> str:
    return f"{instance_prefix(token)}r."


def _look(name: str) -> ReaderInfo | None:
    """What a row says, or None once it is removed because its reader has ended."""
    fd = open_name(name, os.O_RDWR)
    try:
        if take_lock(fd):
            if os.fstat(fd).st_nlink > 0:  # else another was faster, and the name may be a new reader's
                os.unlink(f"{SHM_DIRECTORY}/{name}")
            return None
        return _decode(os.pread(fd, _ROW_BYTES, 0))
    finally:
        os.close(fd)


def _decode(image: bytes) -> ReaderInfo:
    if len(image) < _COUNTS_AT + _COUNTS.size:
        raise FormatMismatch("too short for a reader", nbytes=len(image))
    magic, version, pid, started, _, _ = _HEAD.unpack_from(image)
    if magic != _MAGIC or version != READER_VERSION:
        raise FormatMismatch("not a reader, or of another version", magic=magic, version=version)
    views, pinned_bytes, at, since_ns = _COUNTS.unpack_from(image, _COUNTS_AT)
    if not views:
        return ReaderInfo(pid, started, 0, pinned_bytes, None, None)
    age_s = max(0.0, (time.monotonic_ns() - since_ns) / 1e9)
    return ReaderInfo(pid, started, views, pinned_bytes, at, age_s, _pins(image))


def _pins(image: bytes) -> tuple[Pin, ...]:
    """What views are held of; a row that is being written may be between two states."""
    slots = _PIN.iter_unpack(image[_PINS_AT : _PINS_AT + (len(image) - _PINS_AT) // _PIN.size * _PIN.size])
    found = (Pin(collection_text(id), incarnation, n, nbytes) for id, incarnation, n, nbytes in slots if n)
    return tuple(sorted(found, key=lambda pin: (pin.id, pin.incarnation)))


def _create(token: str) -> tuple[str, int]:
    """Make and lock this process's row. Raises: OSError, leaving none."""
    number = 0
    while True:
        path = f"{SHM_DIRECTORY}/{_prefix(token)}{os.getpid()}.{number}"
        number += 1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue  # a process of that number in another container, or one that ended just now
        try:
            os.posix_fallocate(fd, 0, _ROW_BYTES)
            head = (_MAGIC, READER_VERSION, os.getpid(), _started(), token.encode(), int(time.time()))
            os.pwrite(fd, _HEAD.pack(*head), 0)
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            os.unlink(path)
            os.close(fd)
            raise
        if os.fstat(fd).st_nlink > 0:
            return path, fd
        os.close(fd)  # somebody who listed came between


def _started() -> int:
    """When this process started, in clock ticks since boot."""
    with open("/proc/self/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])


def _after_fork() -> None:
    for reader in tuple(_readers.values()):
        reader.after_fork()


def _at_exit() -> None:
    for reader in tuple(_readers.values()):
        reader.retire()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
