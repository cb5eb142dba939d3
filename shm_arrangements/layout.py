"""The bytes of a batch: header, column table, then each array aligned to 64 bytes. See docs/shm-format.md.

Little-endian throughout. The header holds the length of the payload, for a mapping is as long as its file,
and padding must not be read as data. Values are in Arrow's layout (int64 offsets and bytes for text, a
bitmap of least significant bit first for validity, absent if no value is NULL, decimal128 for numerics)
except that booleans are bytes, so that numpy reads them in place.

Types and encodings are codes with room to grow; a reader refuses what it does not know. The checksum, if any,
covers everything after itself.

Does not: fill the arrays (builder.py), map or allocate (segment.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import FormatMismatch
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels import hashing
from shm_arrangements.schema import CodeKind
from shm_arrangements.types import DTYPES, ColumnType

MAGIC: Final = b"SHMARRB\x01"
VERSION: Final = 1
ALIGNMENT: Final = 64
_PLAIN: Final = 0  # the one encoding
_CHECKSUM_NONE: Final = 0
_CHECKSUM_WORDS: Final = 1

# magic, version, checksum kind, checksum | payload bytes, rows, columns, key columns, code kind, reserved,
# 3 frontiers (is empty, time), extents of codes, times, diffs
_STAMP: Final = struct.Struct("<8sIIQ")
_BODY: Final = struct.Struct("<QQIIII6Q6Q")
# type, nullable, encoding, reserved, null count, extents of values, offsets, validity
_COLUMN: Final = struct.Struct("<HHIQ6Q")
_TABLE_AT: Final = 192
assert _STAMP.size + _BODY.size <= _TABLE_AT

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Extent:
    """`nbytes` from `offset`; zero bytes are absent."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    type: ColumnType
    nullable: bool
    values: Extent
    offsets: Extent
    validity: Extent


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where everything of a batch of `rows` updates lies within `nbytes`."""

    rows: int
    key_columns: int
    nbytes: int
    codes: Extent
    times: Extent
    diffs: Extent
    columns: tuple[ColumnLayout, ...]


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """What the size of a column depends on: text_bytes counts for TEXT alone."""

    type: ColumnType
    nullable: bool
    has_nulls: bool
    text_bytes: int


def plan_layout(rows: int, key_columns: int, shapes: Sequence[ColumnShape]) -> BatchLayout:
    """Place everything; pure."""
    at = _TABLE_AT + len(shapes) * _COLUMN.size

    def place(nbytes: int) -> Extent:
        nonlocal at
        if nbytes == 0:
            return Extent(0, 0)
        start = -(-at // ALIGNMENT) * ALIGNMENT
        at = start + nbytes
        return Extent(start, nbytes)

    codes, times, diffs = place(8 * rows), place(8 * rows), place(8 * rows)
    columns = []
    for shape in shapes:
        text = shape.type is ColumnType.TEXT
        width = 16 if shape.type is ColumnType.NUMERIC else DTYPES[shape.type].itemsize
        values = place(shape.text_bytes if text else width * rows)
        offsets = place(8 * (rows + 1) if text else 0)
        validity = place((rows + 7) // 8 if shape.has_nulls else 0)
        columns.append(ColumnLayout(shape.type, shape.nullable, values, offsets, validity))
    nbytes = -(-at // ALIGNMENT) * ALIGNMENT
    return BatchLayout(rows, key_columns, nbytes, codes, times, diffs, tuple(columns))


def write_header(
    buffer: Bytes,
    layout: BatchLayout,
    description: Description,
    null_counts: Sequence[int],
    code: CodeKind,
) -> None:
    """Write all but the checksum."""
    _STAMP.pack_into(buffer.data, 0, MAGIC, VERSION, _CHECKSUM_NONE, 0)
    frontiers = (description.lower, description.upper, description.since)
    _BODY.pack_into(
        buffer.data, _STAMP.size,
        layout.nbytes, layout.rows, len(layout.columns), layout.key_columns, code, 0,
        *(word for frontier in frontiers for word in frontier_words(frontier)),
        *_pairs(layout.codes, layout.times, layout.diffs),
    )  # fmt: skip
    table_end = _TABLE_AT + len(layout.columns) * _COLUMN.size
    buffer[_STAMP.size + _BODY.size : _TABLE_AT] = 0
    _zero_padding(buffer, layout, table_end)
    for i, (column, nulls) in enumerate(zip(layout.columns, null_counts, strict=True)):
        _COLUMN.pack_into(
            buffer.data, _TABLE_AT + i * _COLUMN.size, column.type, column.nullable, _PLAIN, nulls,
            *_pairs(column.values, column.offsets, column.validity),
        )  # fmt: skip


def _zero_padding(buffer: Bytes, layout: BatchLayout, at: int) -> None:
    extents = [layout.codes, layout.times, layout.diffs]
    for column in layout.columns:
        extents += (column.values, column.offsets, column.validity)
    for extent in extents:
        if extent.nbytes:
            buffer[at : extent.offset] = 0
            at = extent.offset + extent.nbytes
    buffer[at : layout.nbytes] = 0


def write_checksum(buffer: Bytes, checksum: int) -> None:
    """Store the checksum of `checksum_words(buffer[24:nbytes])`, the last thing written."""
    _STAMP.pack_into(buffer.data, 0, MAGIC, VERSION, _CHECKSUM_WORDS, checksum)


def read_header(buffer: Bytes) -> tuple[BatchLayout, Description, CodeKind]:
    """Inverse of `write_header`; proves that every extent lies within the bytes, not that they are undamaged.

    Raises: FormatMismatch naming what does not fit.
    """
    if len(buffer) < _TABLE_AT:
        raise FormatMismatch("too short for a batch", nbytes=len(buffer))
    magic, version, _, _ = _STAMP.unpack_from(buffer.data, 0)
    if magic != MAGIC:
        raise FormatMismatch("not a batch", magic=bytes(magic))
    if version != VERSION:
        raise FormatMismatch("batch of another format version", version=version, expected=VERSION)
    nbytes, rows, n_columns, key_columns, code_kind, _, *words = _BODY.unpack_from(buffer.data, _STAMP.size)
    if code_kind not in list(CodeKind):
        raise FormatMismatch("unknown kind of code", code_kind=code_kind)
    if nbytes > len(buffer) or _TABLE_AT + n_columns * _COLUMN.size > nbytes or key_columns > n_columns:
        raise FormatMismatch("batch is cut short", payload_bytes=nbytes, nbytes=len(buffer))
    lower, upper, since = (frontier_of_words(words[i], words[i + 1]) for i in (0, 2, 4))
    codes, times, diffs = _extents(words[6:], nbytes)
    columns = []
    for i in range(n_columns):
        type_, nullable, encoding, _, *extents = _COLUMN.unpack_from(
            buffer.data, _TABLE_AT + i * _COLUMN.size
        )
        if encoding != _PLAIN:
            raise FormatMismatch("unknown encoding", column=i, encoding=encoding)
        try:
            known = ColumnType(type_)
        except ValueError:
            raise FormatMismatch("unknown column type", column=i, type=type_) from None
        columns.append(ColumnLayout(known, bool(nullable), *_extents(extents, nbytes)))
    layout = BatchLayout(rows, key_columns, nbytes, codes, times, diffs, tuple(columns))
    shapes = [ColumnShape(c.type, c.nullable, c.validity.nbytes > 0, c.values.nbytes) for c in columns]
    if layout != plan_layout(rows, key_columns, shapes):
        raise FormatMismatch("extents do not match the number of rows", rows=rows)
    return layout, Description(lower, upper, since), CodeKind(code_kind)


def verify_checksum(buffer: Bytes) -> bool:
    """Whether the bytes are what was sealed; True without a look if they carry no checksum."""
    _, _, kind, stored = _STAMP.unpack_from(buffer.data, 0)
    nbytes = _BODY.unpack_from(buffer.data, _STAMP.size)[0]
    if kind == _CHECKSUM_NONE:
        return True
    return bool(kind == _CHECKSUM_WORDS and checksum_words(buffer, _STAMP.size, nbytes, 0) == stored)


CHECKSUM_FROM: Final = _STAMP.size


def checksum_words(buffer: Bytes, start: int, stop: int, state: int) -> int:
    """Continue a checksum over bytes [start, stop), both multiples of 8."""
    words = buffer[start:stop].view(np.uint64)
    return int(hashing.checksum(words, np.uint64(start // 8), np.uint64(state)))


def array_at(buffer: Bytes, extent: Extent, dtype: Any) -> NDArray[Any]:
    """The array an extent holds, a view."""
    return buffer[extent.offset : extent.offset + extent.nbytes].view(dtype)


def column_at(buffer: Bytes, layout: ColumnLayout) -> Column:
    """The column a layout describes, a view."""
    values = array_at(buffer, layout.values, DTYPES[layout.type])
    if layout.type is ColumnType.NUMERIC:
        values = values.reshape(-1, 2)
    offsets = array_at(buffer, layout.offsets, np.int64) if layout.type is ColumnType.TEXT else None
    bits = array_at(buffer, layout.validity, np.uint8) if layout.validity.nbytes else None
    return Column.with_bits(layout.type, values, offsets, bits)


def frontier_words(frontier: Frontier) -> tuple[int, int]:
    """The u64 image of a frontier: (is empty, time)."""
    return (1, 0) if frontier.is_empty else (0, frontier.time)


def frontier_of_words(is_empty: int, time: int) -> Frontier:
    """Inverse of `frontier_words`."""
    return Frontier.empty() if is_empty else Frontier.at(time)


def _pairs(*extents: Extent) -> list[int]:
    return [word for extent in extents for word in (extent.offset, extent.nbytes)]


def _extents(words: Sequence[int], nbytes: int) -> list[Extent]:
    extents = [Extent(words[i], words[i + 1]) for i in (0, 2, 4)]
    for extent in extents:
        if extent.offset + extent.nbytes > nbytes or extent.offset % ALIGNMENT:
            raise FormatMismatch("array lies outside the batch", offset=extent.offset, nbytes=extent.nbytes)
    return extents
