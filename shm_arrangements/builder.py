"""Builder: updates in any order become one batch; and the assembling that merging shares with it.

A batch is made in two steps. First it is decided which update stands where (`rows`, references into one or
two sources, and their diffs); then its exact size is known, memory is allocated once, and every byte is
moved once, from its source to its final place. The second step can be done in pieces.

Does not: decide when to build, or keep anything.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import layout as layouts
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column, Ints
from shm_arrangements.contracts import Allocation, Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels import gather
from shm_arrangements.rows import Words, encode
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

_NO_BITS: Final = np.empty(0, np.uint8)


class Run(Protocol):
    """What a batch is assembled from: parallel arrays, columns in stored order."""

    @property
    def codes(self) -> Words: ...
    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def times(self) -> Words: ...


class _Unsorted:
    __slots__ = ("codes", "columns", "times")

    def __init__(self, codes: Words, columns: tuple[Column, ...], times: Words) -> None:
        self.codes = codes
        self.columns = columns
        self.times = times


class HeapAllocation:
    """Private memory."""

    __slots__ = ("buffer",)
    locator: Final = None

    def __init__(self, nbytes: int) -> None:
        memory = np.empty(nbytes + layouts.ALIGNMENT, np.uint8)
        shift = -memory.ctypes.data % layouts.ALIGNMENT
        self.buffer: NDArray[np.uint8] = memory[shift : shift + nbytes]

    @property
    def reserved(self) -> int:
        return len(self.buffer)

    def reserve(self, upto_bytes: int) -> None:
        """All of it is."""

    def seal(self) -> NDArray[np.uint8]:
        self.buffer.flags.writeable = False
        return self.buffer

    def abandon(self) -> None:
        """Memory goes with its last reference."""


class HeapAllocator:
    """Batches in private memory, for state that no other process reads."""

    checksums: Final = False

    def allocate(self, nbytes: int, *, deferred: bool = False) -> HeapAllocation:
        return HeapAllocation(nbytes)


class Assembler:
    """Fills one batch with chosen rows of one or two runs.

    rows: (k,), k > 0; row r >= 0 is row r of `first`, r < 0 is row ~r of `second`. In batch order.
    diffs: (k,). text_bytes: of the chosen rows, one number a TEXT column, in stored order.
    Times are advanced to `since`.
    """

    def __init__(
        self,
        schema: ArrangementSchema,
        first: Run,
        second: Run,
        rows: Ints,
        diffs: Ints,
        text_bytes: list[int],
        since: int,
        allocator: Allocator,
    ) -> None:
        self._schema = schema
        self._first, self._second = first, second
        self._rows, self._diffs = rows, diffs
        self._since = np.uint64(since)
        sizes = iter(text_bytes)
        shapes = [
            layouts.ColumnShape(
                spec.type,
                spec.nullable,
                a.has_validity or b.has_validity,
                next(sizes) if spec.type is ColumnType.TEXT else 0,
            )
            for spec, a, b in zip(schema.stored, first.columns, second.columns, strict=True)
        ]
        self._layout = layouts.plan_layout(len(rows), len(schema.key), shapes)
        self._allocation: Allocation = allocator.allocate(self._layout.nbytes)
        self._buffer = self._allocation.buffer[: self._layout.nbytes]
        self._nulls = [0] * len(shapes)
        self._bits = [
            (a.bits() or (_NO_BITS, 0), b.bits() or (_NO_BITS, 0)) if shape.has_nulls else None
            for shape, a, b in zip(shapes, first.columns, second.columns, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    def fill(self, lo: int, hi: int) -> None:
        """Write updates lo..hi; pieces go in ascending order, without gaps."""
        at, a, b = self._layout, self._first, self._second
        rows = self._rows[lo:hi]
        gather.pair_words(a.codes, b.codes, rows, self._array(at.codes, np.uint64)[lo:hi])
        gather.pair_times(a.times, b.times, rows, self._since, self._array(at.times, np.uint64)[lo:hi])
        self._array(at.diffs, np.int64)[lo:hi] = self._diffs[lo:hi]
        for i, layout in enumerate(at.columns):
            self._fill_column(layout, a.columns[i], b.columns[i], rows, lo, hi)
            bits = self._bits[i]
            if bits is not None:
                out = self._array(layout.validity, np.uint8)
                self._nulls[i] += gather.pair_bits(*bits[0], *bits[1], rows, out, lo)

    def _fill_column(
        self, layout: layouts.ColumnLayout, a: Column, b: Column, rows: Ints, lo: int, hi: int
    ) -> None:
        if layout.type is ColumnType.TEXT:
            out = self._array(layout.values, np.uint8)
            offsets = self._array(layout.offsets, np.int64)
            if lo == 0:
                offsets[0] = 0
            gather.pair_text(a.values, a.offsets, b.values, b.offsets, rows, offsets[lo : hi + 1], out)
        elif layout.type is ColumnType.NUMERIC:
            wide = self._array(layout.values, np.uint64).reshape(-1, 2)
            gather.pair_wide(a.values, b.values, rows, wide[lo:hi])
        elif layout.type is ColumnType.BOOL:
            out = self._array(layout.values, np.uint8)
            gather.pair_bytes(a.values.view(np.uint8), b.values.view(np.uint8), rows, out[lo:hi])
        else:
            words = self._array(layout.values, np.uint64)
            gather.pair_words(a.values.view(np.uint64), b.values.view(np.uint64), rows, words[lo:hi])

    def _array(self, extent: layouts.Extent, dtype: Any) -> NDArray[Any]:
        return layouts.array_at(self._buffer, extent, dtype)

    def write_header(self, description: Description) -> None:
        """After the last `fill`, before any checksum."""
        layouts.write_header(self._buffer, self._layout, description, self._nulls, self._schema.code)

    def checksum(self, start: int, stop: int, state: int) -> int:
        """Continue the checksum over bytes [start, stop), multiples of 8; it begins at CHECKSUM_FROM."""
        return layouts.checksum_words(self._buffer, start, stop, state)

    def seal(self, checksum: int | None) -> Batch:
        """The finished batch. `checksum`: of everything from CHECKSUM_FROM on, or None for none."""
        if checksum is not None:
            layouts.write_checksum(self._buffer, checksum)
        return Batch.from_buffer(
            self._schema, self._allocation.seal()[: self._layout.nbytes], locator=self._allocation.locator
        )

    def abandon(self) -> None:
        """Give the memory back unsealed."""
        self._allocation.abandon()


def build_batch(
    updates: Updates, schema: ArrangementSchema, description: Description, allocator: Allocator
) -> Batch:
    """Code, sort, consolidate and store `updates` (columns in ROW order, any order of updates).

    Returns an empty batch, without memory, if nothing is left. Raises: InvariantViolation if a time lies
    outside the description; ValueError if a NULL is in a column that has none; what the allocator raises.
    """
    n = len(updates)
    if n == 0:
        return Batch.empty(schema, description)
    _check_times(updates.times, description)
    columns = tuple(updates.columns[i] for i in schema.stored_order)
    image = encode(columns, schema.stored_image, rows=n)
    codes = schema.codes_of(columns[: len(schema.key)], n)
    order = image.sort_order(codes, updates.times)
    rows, sums = image.consolidate(order, updates.diffs, updates.times, split=True)
    if len(rows) == 0:
        return Batch.empty(schema, description)
    run = _Unsorted(codes, columns, updates.times)
    assembler = Assembler(schema, run, run, rows, sums, text_bytes_of(run, run, rows), 0, allocator)
    try:
        assembler.fill(0, len(rows))
        assembler.write_header(description)
    except BaseException:
        assembler.abandon()
        raise
    whole = assembler.checksum(layouts.CHECKSUM_FROM, assembler.nbytes, 0) if allocator.checksums else None
    return assembler.seal(whole)


def text_bytes_of(first: Run, second: Run, rows: Ints) -> list[int]:
    """Bytes of the texts of `rows`, one number a TEXT column."""
    return [
        gather.pair_text_bytes(a.offsets, b.offsets, rows)
        for a, b in zip(first.columns, second.columns, strict=True)
        if a.type is ColumnType.TEXT
    ]


def _check_times(times: Words, description: Description) -> None:
    first, last = int(times.min()), int(times.max())
    upper, since = description.upper, description.since
    rounded = since.is_empty or last <= since.time
    if not description.lower.less_equal(first) or (upper.less_equal(last) and not rounded):
        raise InvariantViolation("update outside its batch", first=first, last=last, description=description)
