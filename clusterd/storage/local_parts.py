"""The parts of a shard in a directory, read by mapping them.

Until the catalog lists a part its writer holds an flock on it: a sweep takes what it can lock, so it takes
what a dead writer left and never what a living one is about to commit. What is mapped stays readable after
its name is gone, so parts that were merged are removed at once.

Does not: keep descriptors of what is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from clusterd.storage.data_dir import sync_directory
from clusterd.storage.parts import PREFIXES, Listing, open_part, updates_of
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = ["LocalParts"]

_TEMPORARY = ".writing"
_SYNC_BYTES = 4 << 20  # written between two syncs of a long part: none of them waits for much


class LocalParts:
    """The Parts in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sink(self, kind: str) -> LocalSink:
        return LocalSink(self._directory, kind)

    def read(
        self, file: str, specs: tuple[ColumnSpec, ...], lower: int, upper: int | None
    ) -> Iterator[Updates]:
        path = str(self._directory / file)
        with pa.memory_map(path) as source:
            reader = open_part(source, path, specs)
            batches = [reader.get_batch(at) for at in range(reader.num_record_batches)]
        return updates_of(batches, specs, lower, upper)

    def retire(self, files: Iterable[str]) -> None:
        for file in files:
            (self._directory / file).unlink(missing_ok=True)

    def sweep(self, catalog: Listing) -> list[str]:
        removed = []
        listed = catalog.files()
        for path in sorted(self._directory.iterdir()):
            if not path.name.startswith(PREFIXES) or path.name in listed:
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # its writer renamed or removed it
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever held it may have committed it meanwhile: look again, now that nobody can.
                if path.name not in catalog.files():
                    path.unlink()
                    removed.append(path.name)
            except (BlockingIOError, FileNotFoundError):
                continue  # a writer is about to commit it, or it has its final name by now
            finally:
                os.close(fd)
        return removed


class LocalSink:
    """A Sink: a file of a temporary name, then of its own; locked until `release`."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._path = directory / f"{kind}{secrets.token_hex(8)}{_TEMPORARY}"
        self._fd = _create(self._path)
        self._file = _Syncing(self._fd)

    def stream(self) -> Any:
        return self._file

    def finish(self, file: str) -> tuple[str, int]:
        self._file.flush()
        os.fsync(self._fd)
        size = os.fstat(self._fd).st_size
        self._path = self._path.rename(self._path.with_name(file))
        sync_directory(self._path.parent)
        return file, size

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # a sweep has it when it may be removed again
            self._path.unlink()

    def release(self) -> None:
        with contextlib.suppress(OSError):  # of a part that was abandoned for want of room
            self._file.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Syncing:
    """A file for Arrow to write to, that goes to the disk as it grows."""

    closed = False

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._file = os.fdopen(os.dup(fd), "wb")
        self._synced = 0

    def write(self, data: Any) -> int:
        written = self._file.write(data)
        if self._file.tell() - self._synced >= _SYNC_BYTES:
            self._synced = self._file.tell()
            self._file.flush()
            os.fdatasync(self._fd)
        return written

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True
        self._file.close()


def _create(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # a sweep locked and removed it between its creation and our lock
