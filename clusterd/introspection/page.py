"""A progress page: what one process says of itself, in shared memory, for whoever wants to know.

A file among the instance's names, written and read by system calls and never mapped, so a full /dev/shm is an
error and no signal. It has two slots and the number of the newest sample. The writer fills the other slot and
then turns the number; so a reader that finds a slot whole and of the number it looked for has one sample, and
one that was overtaken looks again. A checksum tells what was half written.

Does not: know what a sample says (sample.py), wake anybody (progress.py rings).
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from typing import Final

from shm_arrangements.directory import open_name
from shm_arrangements.names import SHM_DIRECTORY, progress_name

__all__ = ["MAX_SAMPLE_BYTES", "ProgressPage", "ProgressReader"]

MAX_SAMPLE_BYTES: Final = 8 << 20  # some 50,000 operators; what was never written takes no memory
_NUMBER: Final = struct.Struct("<Q")  # of the newest sample, from 1; it is in slot number % 2
_HEAD: Final = struct.Struct("<QII")  # number, length, checksum of a slot
_TRIES: Final = 3  # a page turns ten times a second: to be overtaken twice in a row is a halted reader


def _slot_at(number: int) -> int:
    return _NUMBER.size + (number % 2) * (_HEAD.size + MAX_SAMPLE_BYTES)


class ProgressPage:
    """The writer's side, one a process. Closing it takes its name back."""

    def __init__(self, token: str, process: str) -> None:
        """token: of the instance. process: its name, as `maintenance/0`. Raises: OSError."""
        self._path = f"{SHM_DIRECTORY}/{progress_name(token, process)}"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._number = 0

    def write(self, sample: bytes) -> bool:
        """Show `sample` from now on; False, and the one before stays, where there is no room for it."""
        if len(sample) > MAX_SAMPLE_BYTES:
            return False
        number = self._number + 1
        head = _HEAD.pack(number, len(sample), zlib.crc32(sample))
        try:
            if os.pwritev(self._fd, (head, sample), _slot_at(number)) < len(head) + len(sample):
                return False
            os.pwrite(self._fd, _NUMBER.pack(number), 0)
        except OSError:  # /dev/shm is full: who looks sees how old the figures are
            return False
        self._number = number
        return True

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


class ProgressReader:
    """One reader's side of one page, which need not be there yet."""

    def __init__(self, token: str, process: str) -> None:
        self._name = progress_name(token, process)
        self._fd = -1
        self._seen = 0

    def take(self) -> bytes | None:
        """The newest sample if it was not taken before; None without a new one. Raises: OSError."""
        if self._fd < 0:
            try:
                self._fd = open_name(self._name, os.O_RDONLY)
            except FileNotFoundError:
                return None
        for _ in range(_TRIES):
            told = os.pread(self._fd, _NUMBER.size, 0)
            if len(told) < _NUMBER.size:
                return None
            (number,) = _NUMBER.unpack(told)
            if number == self._seen:
                return None
            found, nbytes, checksum = _HEAD.unpack(os.pread(self._fd, _HEAD.size, _slot_at(number)))
            sample = os.pread(self._fd, min(nbytes, MAX_SAMPLE_BYTES), _slot_at(number) + _HEAD.size)
            if found == number and zlib.crc32(sample) == checksum:
                self._seen = number
                return sample
        return None  # the next ring, or the next look, finds it

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
