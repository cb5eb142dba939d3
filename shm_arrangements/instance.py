"""Instance: whose names are whose, and who is alive.

An instance lives as long as somebody holds the `flock` of its control file (R2). The kernel drops a lock
with its holder, however that ends, so there is no pid to compare and no clock to trust; what the file says
about its owner is for people.

A program opens its instance (`Instance.open`), writes under its token, and releases it; the reaper stands by
for the case that it is killed first. A process that is forked has no part in it: the copies of lock and pipe
that it was born with are closed, so that the instance neither outlives its owner nor is released by a child.

Why a sweep removes no live name: the control file is made and locked before any other name of the instance,
and goes last. Who finds the lock free takes it, and then looks whether the file still has its name; the
creator does the same, so one of the two sees the other. A name whose token has no control file is dead, for
the look at the control file comes after the listing that found the name.

Does not: import numpy or numba (the reaper lives through the whole run and must be small), know what is in
a segment, or decide when to sweep but in `open`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shm_arrangements.bells import open_bells, ring_bells
from shm_arrangements.directory import list_names, open_name
from shm_arrangements.errors import InvariantViolation, ShmExhausted
from shm_arrangements.names import SHM_DIRECTORY, control_name, instance_prefix, is_token, new_token, token_of

if TYPE_CHECKING:
    from shm_arrangements.reaper import Reaper

CONTROL_VERSION: Final = 1

_CONTROL: Final = struct.Struct("<8sII12s4xQ")  # magic, version, pid, token, created at (s since 1970)
_MAGIC: Final = b"CLUSTRLD"
_CONTROL_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """One instance as its names show it.

    pid, created_s: what its control file says, seconds since 1970; 0 if there is none to ask. nbytes: memory
    behind its names; what is mapped without a name comes on top.
    """

    token: str
    alive: bool
    pid: int
    created_s: int
    names: int
    nbytes: int


class Instance:
    """The one who holds the lock of a token: while this object is open the instance is alive.

    The lock belongs to the open file, so a child that is handed `fileno()` keeps it alive as well; children
    that are spawned are not, for it is closed on exec.
    """

    __slots__ = ("__weakref__", "_fd", "_reaper", "token")

    def __init__(self, token: str, fd: int) -> None:
        self.token = token
        self._fd = fd
        self._reaper: Reaper | None = None
        _held.add(self)

    @classmethod
    def open(cls) -> Instance:
        """Begin an instance as a program does: sweep what the dead left, `create`, start the reaper.

        Cost: about 2 ms here, of which the reaper is one; its own start goes on beside the caller's work.
        Raises: ShmExhausted, RegistryFull; OSError if no process can be started.
        """
        from shm_arrangements.reaper import Reaper  # which imports this module: its process needs the sweep

        sweep()
        held = cls.create()
        try:
            held._reaper = Reaper.start(held.token)
        except BaseException:
            held.release()
            raise
        return held

    @classmethod
    def create(cls) -> Instance:
        """Begin an instance: its control file is made, then locked, before any other name.

        Raises: ShmExhausted if there is no room even for that; RegistryFull.
        """
        while True:
            token = new_token()
            try:
                fd = open_name(control_name(token), os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            try:
                os.posix_fallocate(fd, 0, _CONTROL_BYTES)
                told = (_MAGIC, CONTROL_VERSION, os.getpid(), token.encode(), int(time.time()))
                os.pwrite(fd, _CONTROL.pack(*told), 0)
                fcntl.flock(fd, fcntl.LOCK_EX)
            except OSError as error:
                _unlink(control_name(token))
                os.close(fd)
                raise ShmExhausted(
                    "no room in shared memory", asked_bytes=_CONTROL_BYTES, free_bytes=_free_bytes()
                ) from error
            if os.fstat(fd).st_nlink > 0:
                return cls(token, fd)
            os.close(fd)  # a sweep came between: this token never lived

    def fileno(self) -> int:
        """The descriptor that carries the lock. Raises: InvariantViolation if released."""
        if self._fd < 0:
            raise InvariantViolation("instance released", token=self.token)
        return self._fd

    def watch(self, pid: int) -> None:
        """Tell the reaper of a process that writes to this instance too: it must have ended before names go.

        No effect without a reaper.
        """
        if self._reaper is not None:
            self._reaper.watch(pid)

    def release(self) -> None:
        """Unlink every name of the instance and give up the lock. Idempotent."""
        if self._fd < 0:
            return
        bells = open_bells(self.token)
        unlink_all(self.token)
        self.abandon()
        ring_bells(bells)

    def abandon(self) -> None:
        """Give up the lock and leave the names, as a kill would: to the reaper, or else to the next sweep."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Instance({self.token}, {'live' if self._fd >= 0 else 'released'})"

    def _disown(self) -> None:
        """In a forked child: let go of the parent's lock and reaper without a word."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._reaper is not None:
            self._reaper.disown()
            self._reaper = None


_held: weakref.WeakSet[Instance] = weakref.WeakSet()


def _after_fork() -> None:
    for held in tuple(_held):
        held._disown()


os.register_at_fork(after_in_child=_after_fork)


class LivenessProbe:
    """Tells again and again whether an instance lives; a few system calls a time, one descriptor.

    The probe takes the lock shared for a moment; sweep and creation know to try again.
    """

    __slots__ = ("_fd", "token")

    def __init__(self, token: str) -> None:
        """Raises: FileNotFoundError if there is no such instance; PermissionError if it is another user's;
        RegistryFull.
        """
        self.token = token
        self._fd = -1
        self._fd = open_name(control_name(token), os.O_RDONLY)

    def is_alive(self) -> bool:
        """Whether somebody holds the lock, and the names stand; for a moment that may be a sweep of the dead.

        A process that was killed gives its lock up some moments later than the pipe to its reaper.
        """
        return self._fd >= 0 and _is_held(self._fd) and os.fstat(self._fd).st_nlink > 0

    def is_held(self) -> bool:
        """As `is_alive`, in half the time; an instance that is being swept is held until that ends."""
        return self._fd >= 0 and _is_held(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def is_alive(token: str) -> bool:
    """Whether somebody holds the lock of `token`. Another user's instance counts as alive."""
    try:
        fd = open_name(control_name(token), os.O_RDONLY)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        return _is_held(fd) and os.fstat(fd).st_nlink > 0
    finally:
        os.close(fd)


def list_instances() -> tuple[InstanceInfo, ...]:
    """Every instance that has a name in shared memory, by token."""
    found = []
    for token, names in sorted(_names_by_token().items()):
        blocks: dict[int, int] = {}  # by inode: an alias is no more memory
        for name in names:
            with contextlib.suppress(OSError):
                told = os.stat(f"{SHM_DIRECTORY}/{name}")
                blocks[told.st_ino] = told.st_blocks
        pid, created_s = _owner(token)
        nbytes = 512 * sum(blocks.values())
        found.append(InstanceInfo(token, is_alive(token), pid, created_s, len(names), nbytes))
    return tuple(found)


def live_tokens() -> tuple[str, ...]:
    """Tokens of the instances that live, and that this user may read."""
    return tuple(
        token
        for token in sorted(_names_by_token())
        if os.access(_control_path(token), os.R_OK) and is_alive(token)
    )


def sweep() -> tuple[str, ...]:
    """Remove every name of every instance whose lock can be taken, and no other name.

    Returns the tokens swept. Instances of other users are left alone.
    """
    swept = []
    for token, names in sorted(_names_by_token().items()):
        try:
            fd = open_name(control_name(token), os.O_RDWR)
        except FileNotFoundError:
            if any(_unlink(name) for name in names):
                swept.append(token)
            continue
        except PermissionError:
            continue
        try:
            # A lock on a file that has lost its name guards nothing: another sweep was faster.
            if take_lock(fd) and os.fstat(fd).st_nlink > 0:
                unlink_all(token)
                swept.append(token)
        finally:
            os.close(fd)
    return tuple(swept)


def names_of(token: str) -> tuple[str, ...]:
    """Every name of the instance, the control file last."""
    control = control_name(token)
    names = list_names(instance_prefix(token))
    return tuple(sorted(names, key=lambda name: (name == control, name)))


def take_lock(fd: int) -> bool:
    """Take a file's lock, unless somebody holds it: whether that worked.

    Who only asks (`LivenessProbe`) holds it shared for a moment, and is not taken for a holder.
    """
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.sched_yield()
            continue
        return True


def unlink_all(token: str) -> int:
    """Remove every name of the instance, the control file last. Returns how many were there.

    For the supervisor, the reaper, or who has taken the lock: the writers must have ended.
    """
    if not is_token(token):
        raise InvariantViolation("not a token", token=token)
    return sum(_unlink(name) for name in names_of(token))


def _control_path(token: str) -> str:
    return f"{SHM_DIRECTORY}/{control_name(token)}"


def _names_by_token() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in list_names(""):
        token = token_of(name)
        if token is not None:
            found.setdefault(token, []).append(name)
    return found


def _is_held(fd: int) -> bool:
    """Whether another open file holds the lock exclusively."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _owner(token: str) -> tuple[int, int]:
    """Pid and time of creation as the control file says; 0, 0 if it says nothing."""
    try:
        with open(_control_path(token), "rb") as file:
            magic, version, pid, _, created_s = _CONTROL.unpack(file.read(_CONTROL.size))
    except (OSError, struct.error):
        return 0, 0
    return (int(pid), int(created_s)) if magic == _MAGIC and version == CONTROL_VERSION else (0, 0)


def _unlink(name: str) -> bool:
    """Remove a name; whether it was there and ours to remove."""
    try:
        os.unlink(f"{SHM_DIRECTORY}/{name}")
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return False
    return True


def _free_bytes() -> int:
    room = os.statvfs(SHM_DIRECTORY)
    return room.f_bavail * room.f_frsize
