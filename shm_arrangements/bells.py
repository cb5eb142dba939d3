"""The last ring: whoever removes the names of a dead instance wakes those who wait for it.

A process that was killed rings no bell. Its clocks are opened while they still have names, and when the names
are gone and the lock is free, every bell of every cell is rung: who wakes finds the instance dead (wait.py).

Does not: import numpy or numba (the reaper uses it), ring for a process that lives: a bell has one writer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterable
from typing import Final

from shm_arrangements.directory import list_names
from shm_arrangements.names import SHM_DIRECTORY, clock_prefix

FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]  # the number of the system call
FUTEX_WAIT: Final = 0  # both without FUTEX_PRIVATE_FLAG: between processes
FUTEX_WAKE: Final = 1
EVERYONE: Final = (1 << 31) - 1

_CELL_BYTES: Final = 64
_BELL_AT: Final = 8  # of a u32 within a cell
_BELL: Final = struct.Struct("<I")


def open_bells(token: str) -> list[mmap.mmap]:
    """The clocks of an instance, mapped; those that cannot be are left out."""
    found = []
    prefix = clock_prefix(token)
    for name in list_names(prefix):
        try:
            fd = os.open(f"{SHM_DIRECTORY}/{name}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found.append(mmap.mmap(fd, 0))
        except (OSError, ValueError):  # no bytes yet
            continue
        finally:
            os.close(fd)
    return found


def ring_bells(clocks: Iterable[mmap.mmap]) -> None:
    """Ring every bell of the clocks, and let go of them. Their writers have ended."""
    call = ctypes.CDLL(None).syscall
    for clock in clocks:
        for at in range(_CELL_BYTES + _BELL_AT, len(clock), _CELL_BYTES):
            (rung,) = _BELL.unpack_from(clock, at)
            _BELL.pack_into(clock, at, (rung + 1) & 0xFFFFFFFF)
            bell = ctypes.c_uint32.from_buffer(clock, at)
            call(
                ctypes.c_long(FUTEX), ctypes.byref(bell), ctypes.c_long(FUTEX_WAKE),
                ctypes.c_long(EVERYONE), None, None, ctypes.c_long(0),
            )  # fmt: skip
            del bell  # it keeps the mapping from being closed
        clock.close()
