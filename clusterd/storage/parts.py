"""Parts: the immutable files that hold a shard's updates, as Arrow IPC, read by mapping them.

A part is the updates of one append: the shard's columns, then `time` (uint64) and `diff` (int64), in record
batches of at most `BATCH_ROWS`, each sorted by time, so that an interval of times is a slice of each batch
and nothing outside it is touched. Errors of a collection are parts too, told by their names, of one column
of text. A part gets its name only when it is whole and on the disk. Until the
catalog lists it the writer holds an flock on it: a sweep takes what it can lock, so it takes what a dead
writer left and never what a living one is about to commit.

Does not: decide which parts belong to the shard (catalog.py); check what it reads beyond magic and schema.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from clusterd.storage.arrow import arrow_schema, column_from_arrow, column_to_arrow
from clusterd.storage.data_dir import sync_directory
from controller_proto.errors import Refusal
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = [
    "BATCH_ROWS", "ERRORS", "ERROR_SPECS", "PREFIXES", "ROWS", "PartInfo", "PartWriter", "WrittenPart",
    "read_part", "sort_by_time", "write_part",
]  # fmt: skip

ROWS: Final = "part-"
ERRORS: Final = "errs-"
PREFIXES: Final = (ROWS, ERRORS)
ERROR_SPECS: Final = ERRS_SCHEMA.columns
_TEMPORARY = ".writing"
_FORMAT_KEY = b"clusterd.part"
_FORMAT = b"1"
BATCH_ROWS = 65_536  # one block of the dataflow layer
_SYNC_BYTES = 4 << 20  # written between two syncs of a long part: none of them waits for much


class PartInfo(msgspec.Struct, frozen=True):
    """What the catalog keeps of a part; times are the least and the greatest in it."""

    file: str
    min_time: int
    max_time: int
    rows: int
    nbytes: int

    @property
    def is_errors(self) -> bool:
        return self.file.startswith(ERRORS)


class WrittenPart:
    """A part that is on the disk and not yet in the catalog. The lock is held until `release` or
    `discard`.
    """

    def __init__(self, info: PartInfo, path: Path, fd: int) -> None:
        self.info = info
        self._path = path
        self._fd = fd

    def discard(self) -> None:
        """Remove it: the catalog does not list it and will not."""
        self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Let go of the lock: the catalog lists it, or a sweep may have it."""
        os.close(self._fd)


def sort_by_time(updates: Updates) -> Updates:
    """The same updates, times ascending; the same object if they are."""
    times = updates.times
    if len(times) < 2 or bool((times[1:] >= times[:-1]).all()):
        return updates
    return updates.take(np.argsort(times, kind="stable"))


class PartWriter:
    """A part that is written piece by piece. Ends with `finish` or `abandon`.

    kind: `ROWS`, whose columns are `specs`, or `ERRORS`, which has `ERROR_SPECS`.
    """

    def __init__(self, directory: Path, specs: tuple[ColumnSpec, ...], kind: str = ROWS) -> None:
        self._directory = directory
        self._specs = specs
        self._schema = _part_schema(specs)
        self._kind = kind
        self._token = secrets.token_hex(8)
        self._temporary, self._fd = _create(directory / f"{kind}{self._token}.arrow")
        self._file = os.fdopen(os.dup(self._fd), "wb")
        self._writer: Any = pa.ipc.new_file(self._file, self._schema)
        self._synced = self._rows = 0
        self._least: int | None = None
        self._most = 0

    def add(self, updates: Updates) -> None:
        """At most `BATCH_ROWS` updates, at least one, sorted by time."""
        times = updates.times
        arrays = [column_to_arrow(s, column) for s, column in zip(self._specs, updates.columns, strict=True)]
        arrays += [pa.array(times), pa.array(updates.diffs)]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        least = int(times[0])
        self._least = least if self._least is None else min(self._least, least)
        self._most = max(self._most, int(times[-1]))
        self._rows += len(times)
        if self._file.tell() - self._synced >= _SYNC_BYTES:
            self._synced = self._file.tell()
            self._file.flush()
            os.fdatasync(self._fd)

    def finish(self) -> WrittenPart:
        """Put the whole, with at least one update, on the disk under its name."""
        assert self._least is not None
        path = self._directory / f"{self._kind}{self._least:020d}-{self._token}.arrow"
        try:
            self._writer.close()
            self._file.close()
            os.fsync(self._fd)
            size = os.fstat(self._fd).st_size
            self._temporary.rename(path)
            sync_directory(self._directory)
        except BaseException:
            self.abandon()
            raise
        return WrittenPart(PartInfo(path.name, self._least, self._most, self._rows, size), path, self._fd)

    def abandon(self) -> None:
        """Remove what there is of it."""
        self._temporary.unlink(missing_ok=True)
        self._file.close()
        os.close(self._fd)


def write_part(
    directory: Path, specs: tuple[ColumnSpec, ...], updates: Updates, kind: str = ROWS
) -> WrittenPart:
    """Write `updates`, at least one and sorted by time, to a new part in `directory`, and put it on the
    disk.
    """
    writer = PartWriter(directory, specs, kind)
    try:
        for start in range(0, len(updates), BATCH_ROWS):
            writer.add(updates.slice(start, min(start + BATCH_ROWS, len(updates))))
    except BaseException:
        writer.abandon()
        raise
    return writer.finish()


def _create(path: Path) -> tuple[Path, int]:
    temporary = path.with_name(path.name + _TEMPORARY)
    while True:
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return temporary, fd
        os.close(fd)  # a sweep locked and removed it between its creation and our lock


def _part_schema(specs: tuple[ColumnSpec, ...]) -> Any:
    # Columns of the shard may have any name, so these two are known by their place, not by theirs.
    fields = [*arrow_schema(specs), pa.field("time", pa.uint64(), False), pa.field("diff", pa.int64(), False)]
    return pa.schema(fields, metadata={_FORMAT_KEY: _FORMAT})


def read_part(path: Path, specs: tuple[ColumnSpec, ...], lower: int, upper: int | None) -> Iterator[Updates]:
    """The updates with lower <= time (< upper, unless None), at most `BATCH_ROWS` at a time, times ascending.

    The columns are views of the mapped file, which stays mapped as long as one of them lives.
    Raises Refusal(`format-mismatch`) if the file is no part of this format and schema.
    """
    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            _check(path, reader.schema, specs)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    except pa.ArrowInvalid as error:
        raise Refusal("format-mismatch", f"{path} is not readable as a part: {error}") from error
    for batch in batches:
        times = _lane(batch.column(len(specs)), np.uint64)
        first = int(np.searchsorted(times, np.uint64(lower)))
        last = len(times) if upper is None else int(np.searchsorted(times, np.uint64(upper)))
        if first >= last:
            continue
        columns = tuple(
            column_from_arrow(batch.column(i), spec, trusted=True) for i, spec in enumerate(specs)
        )
        updates = Updates(columns, times, _lane(batch.column(len(specs) + 1), np.int64))
        yield updates if last - first == len(times) else updates.slice(first, last)


def _lane(array: Any, dtype: Any) -> Any:
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * 8)


def _check(path: Path, found: Any, specs: tuple[ColumnSpec, ...]) -> None:
    if (found.metadata or {}).get(_FORMAT_KEY) != _FORMAT or not found.equals(_part_schema(specs)):
        raise Refusal("format-mismatch", f"{path} is not a part of format {_FORMAT.decode()} of this shard")
