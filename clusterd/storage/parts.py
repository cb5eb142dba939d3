"""Parts: the immutable files that hold a shard's updates, as Arrow IPC.

A part is the updates of one append, or of several that were merged: the shard's columns, then `time` (uint64)
and `diff` (int64), in record batches of at most `BATCH_ROWS`, each sorted by time, so that an interval of
times is a slice of each batch and nothing outside it is touched. Errors of a collection are parts too, told
by their names, of one column of text. A part gets its name only when it is whole and on the disk, and until
the catalog lists it its writer protects it from sweeps.

Where parts are is said by `Parts`: in a directory (local_parts.py) or wherever Arrow has a file system for
(object_parts.py).

Does not: decide which parts belong to the shard (catalog.py); check what it reads beyond magic and schema.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from clusterd.storage.arrow import arrow_schema, column_from_arrow, column_to_arrow
from controller_proto.errors import Refusal
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = [
    "BATCH_ROWS", "ERRORS", "ERROR_SPECS", "PREFIXES", "ROWS", "Listing", "PartInfo", "PartWriter", "Parts",
    "Sink", "WrittenPart", "open_part", "sort_by_time", "updates_of", "write_part",
]  # fmt: skip

ROWS: Final = "part-"
ERRORS: Final = "errs-"
PREFIXES: Final = (ROWS, ERRORS)
ERROR_SPECS: Final = ERRS_SCHEMA.columns
_FORMAT_KEY = b"clusterd.part"
_FORMAT = b"1"
BATCH_ROWS = 65_536  # one block of the dataflow layer


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


class Sink(Protocol):
    """Where one part is written to. It ends with `abandon`, or with `finish` and then `release`."""

    def stream(self) -> Any:
        """What Arrow can write to."""

    def finish(self, file: str) -> tuple[str, int]:
        """Put the whole on the disk, as `file` or a name like it; the name it has, and its bytes."""

    def abandon(self) -> None:
        """Remove what there is of it, also after `finish`. Never fails: a sweep has what is left."""

    def release(self) -> None:
        """Stop protecting it: the catalog lists it, or a sweep may have it."""


class Parts(Protocol):
    """The parts of one shard, wherever they are."""

    def sink(self, kind: str) -> Sink: ...

    def read(
        self, file: str, specs: tuple[ColumnSpec, ...], lower: int, upper: int | None
    ) -> Iterator[Updates]:
        """The updates with lower <= time (< upper, unless None), at most `BATCH_ROWS` at a time, times
        ascending in each. The file is opened by the call.

        Raises Refusal(`format-mismatch`) if it is no part of this format and schema; FileNotFoundError.
        """

    def retire(self, files: Iterable[str]) -> None:
        """The catalog lists these no more: remove them when nobody can be reading them."""

    def sweep(self, catalog: Listing) -> list[str]:
        """Remove what the catalog does not list, no living writer holds and nobody can be reading. Returns
        the names.
        """


class Listing(Protocol):
    """What a sweep needs of a catalog (catalog.py)."""

    def files(self) -> set[str]: ...

    def dropped(self) -> set[str]: ...


class WrittenPart:
    """A part that is on the disk and not yet in the catalog, protected from sweeps until `release`."""

    def __init__(self, info: PartInfo, sink: Sink) -> None:
        self.info = info
        self._sink = sink

    def discard(self) -> None:
        """Remove it: the catalog does not list it and will not."""
        self._sink.abandon()

    def release(self) -> None:
        """Stop protecting it: the catalog lists it, or a sweep may have it."""
        self._sink.release()


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

    def __init__(self, parts: Parts, specs: tuple[ColumnSpec, ...], kind: str = ROWS) -> None:
        self._specs = specs
        self._schema = _part_schema(specs)
        self._kind = kind
        self._sink = parts.sink(kind)
        try:
            self._writer: Any = pa.ipc.new_file(self._sink.stream(), self._schema)
        except BaseException:
            self.abandon()
            raise
        self._rows = 0
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

    def finish(self) -> WrittenPart:
        """Put the whole, with at least one update, on the disk under its name."""
        assert self._least is not None
        try:
            self._writer.close()
            file, size = self._sink.finish(f"{self._kind}{self._least:020d}-{secrets.token_hex(8)}.arrow")
        except BaseException:
            self.abandon()
            raise
        return WrittenPart(PartInfo(file, self._least, self._most, self._rows, size), self._sink)

    def abandon(self) -> None:
        """Remove what there is of it."""
        self._sink.abandon()
        self._sink.release()


def write_part(
    parts: Parts, specs: tuple[ColumnSpec, ...], updates: Updates, kind: str = ROWS
) -> WrittenPart:
    """Write `updates`, at least one and sorted by time, to a new part, and put it on the disk."""
    writer = PartWriter(parts, specs, kind)
    try:
        for start in range(0, len(updates), BATCH_ROWS):
            writer.add(updates.slice(start, min(start + BATCH_ROWS, len(updates))))
    except BaseException:
        writer.abandon()
        raise
    return writer.finish()


def _part_schema(specs: tuple[ColumnSpec, ...]) -> Any:
    # Columns of the shard may have any name, so these two are known by their place, not by theirs.
    fields = [*arrow_schema(specs), pa.field("time", pa.uint64(), False), pa.field("diff", pa.int64(), False)]
    return pa.schema(fields, metadata={_FORMAT_KEY: _FORMAT})


def open_part(source: Any, name: str, specs: tuple[ColumnSpec, ...]) -> Any:
    """The Arrow reader of an open file. Raises Refusal as `Parts.read`."""
    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid as error:
        raise Refusal("format-mismatch", f"{name} is not readable as a part: {error}") from error
    if (reader.schema.metadata or {}).get(_FORMAT_KEY) != _FORMAT or not reader.schema.equals(
        _part_schema(specs)
    ):
        raise Refusal("format-mismatch", f"{name} is not a part of format {_FORMAT.decode()} of this shard")
    return reader


def updates_of(
    batches: Iterable[Any], specs: tuple[ColumnSpec, ...], lower: int, upper: int | None
) -> Iterator[Updates]:
    """What `Parts.read` gives, of a part's batches; the columns are views of them."""
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
