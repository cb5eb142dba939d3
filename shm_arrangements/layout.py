"""The bytes of a batch: header, nodes, then arrays aligned to 64 bytes. See docs/shm-format.md, section 3.

Little-endian throughout. The header holds the length of the payload, for a mapping is as long as its file,
and padding must not be read as data. A node says how one column is stored (kernels/nodes.py). Values are in
Arrow's layout (int64 offsets and bytes for texts, a bitmap of least significant bit first for validity,
absent if no value is NULL) except that booleans are bytes, so that numpy reads them in place.

Types, encodings and kinds of code are numbers with room to grow; a reader refuses what it does not know. What
is accepted leads nowhere outside the bytes by its extents; that offsets and indices do not either is for
`verify` to say, which reads them all. The checksum, if any, covers everything after itself.

Does not: fill the arrays (assembler.py), map or allocate (segment.py).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import FormatMismatch
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels import cells, hashing
from shm_arrangements.kernels import nodes as kernels
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.table import KINDS
from shm_arrangements.types import (
    DTYPES,
    LIST_CODE,
    RECORD_CODE,
    VARIABLE,
    WIDE,
    AnyType,
    ColumnType,
    ListType,
    RecordType,
    child_specs,
    value_bytes,
)

MAGIC: Final = b"SHMARRB\x01"
VERSION: Final = 2
ALIGNMENT: Final = 64
_CHECKSUM_NONE: Final = 0
_CHECKSUM_WORDS: Final = 1
_ORDERED: Final = 1

# magic, version, checksum kind, checksum | payload bytes, rows, columns, key columns, code kind, flags,
# 3 frontiers (is empty, time), extents of codes, times, diffs, nodes
_STAMP: Final = struct.Struct("<8sIIQ")
_BODY: Final = struct.Struct("<QQIIII6Q6QI36x")
_HEADER: Final = struct.Struct(_STAMP.format + _BODY.format[1:])
NODES_AT: Final = _STAMP.size + _BODY.size
_NODE_BYTES: Final = 8 * kernels.NODE_FIELDS
_EXTENTS_AT: Final = 104
assert NODES_AT == 192

Bytes = NDArray[np.uint8]
Nodes = NDArray[np.int64]


def _forms() -> Nodes:
    forms = np.zeros((RECORD_CODE + 1, 2), np.int64)
    for type_ in ColumnType:
        forms[type_] = KINDS[type_], value_bytes(type_)
    forms[LIST_CODE, 0], forms[RECORD_CODE, 0] = cells.KIND_LIST, cells.KIND_RECORD
    return forms


FORMS: Final = _forms()  # how values of a type lie, for kernels; see kernels/nodes.py

_REASONS: Final = {
    kernels.BAD_TYPE: "unknown column type",
    kernels.BAD_ENCODING: "unknown encoding",
    kernels.OTHER_SCHEMA: "batch of another schema",
    kernels.BAD_CHILDREN: "children are not those of the type",
    kernels.BAD_LENGTH: "length does not match the number of rows",
    kernels.BAD_NULLS: "NULLs where there can be none, or too many",
    kernels.BAD_EXTENT: "extent does not match the number of values",
    kernels.OUTSIDE: "array lies outside the batch, or in another one",
    kernels.BAD_OFFSETS: "offsets do not ascend to the end of the values",
    kernels.BAD_INDEX: "index beyond its dictionary",
    kernels.BAD_VALIDITY: "NULLs are not as many as said",
}


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where everything of a batch of `rows` updates lies within `nbytes`.

    extents: (6,) offset and bytes of codes, times, diffs. nodes: (n, NODE_FIELDS), see kernels/nodes.py.
    """

    rows: int
    nbytes: int
    extents: Nodes
    nodes: Nodes


def write_header(
    buffer: Bytes, layout: BatchLayout, schema: ArrangementSchema, description: Description
) -> None:
    """Write all but the checksum, and zero what lies between the arrays."""
    lower, upper, since = description.lower, description.upper, description.since
    nodes, data = layout.nodes, buffer.data
    _HEADER.pack_into(
        data, 0, MAGIC, VERSION, _CHECKSUM_NONE, 0,
        layout.nbytes, layout.rows, len(schema.columns), len(schema.key), schema.code, int(schema.ordered),
        *frontier_words(lower), *frontier_words(upper), *frontier_words(since),
        *layout.extents.tolist(), len(nodes),
    )  # fmt: skip
    end = NODES_AT + nodes.nbytes
    data[NODES_AT:end] = nodes.tobytes()
    kernels.zero_gaps(layout.extents, nodes, end, buffer)


def write_checksum(buffer: Bytes, checksum: int) -> None:
    """Store the checksum of `checksum_words(buffer[24:nbytes])`, the last thing written."""
    _STAMP.pack_into(buffer.data, 0, MAGIC, VERSION, _CHECKSUM_WORDS, checksum)


def read_header(buffer: Bytes, schema: ArrangementSchema) -> tuple[BatchLayout, Description]:
    """Inverse of `write_header`; proves that every extent lies within the bytes, not that they are undamaged.

    Raises: FormatMismatch naming what does not fit, be it the bytes or the schema.
    """
    if len(buffer) < NODES_AT:
        raise FormatMismatch("too short for a batch", nbytes=len(buffer))
    magic, version, checksum, _ = _STAMP.unpack_from(buffer.data, 0)
    if magic != MAGIC:
        raise FormatMismatch("not a batch", magic=bytes(magic))
    if version != VERSION:
        raise FormatMismatch("batch of another format version", version=version, expected=VERSION)
    if checksum not in (_CHECKSUM_NONE, _CHECKSUM_WORDS):
        raise FormatMismatch("unknown kind of checksum", kind=checksum)
    nbytes, rows, columns, key_columns, code, flags, *words = _BODY.unpack_from(buffer.data, _STAMP.size)
    n_nodes = words[-1]
    end = NODES_AT + n_nodes * _NODE_BYTES
    if nbytes > len(buffer) or end > nbytes or nbytes % ALIGNMENT:
        raise FormatMismatch("batch is cut short", payload_bytes=nbytes, nbytes=len(buffer))
    if code not in _CODE_KINDS or flags > _ORDERED:
        raise FormatMismatch("unknown kind of code", kind=code, flags=flags)
    if not 0 < rows < 1 << 48:
        raise FormatMismatch("impossible number of rows", rows=rows)
    found = (columns, key_columns, code, flags)
    expected = (len(schema.columns), len(schema.key), schema.code, int(schema.ordered))
    if found != expected:
        raise FormatMismatch("batch of another schema", found=found, expected=expected)
    extents = buffer[_EXTENTS_AT : _EXTENTS_AT + 48].view(np.int64)
    nodes = buffer[NODES_AT:end].view(np.int64).reshape(n_nodes, kernels.NODE_FIELDS)
    reason = kernels.check_nodes(
        nodes, FORMS, schema.node_types, columns, rows, int(code != CodeKind.IDENTITY), end, nbytes, extents,
        np.empty(n_nodes, np.int64),
    )  # fmt: skip
    if reason:
        raise _mismatch(reason)
    try:
        description = Description(*(frontier_of_words(words[i], words[i + 1]) for i in (0, 2, 4)))
    except ValueError as error:
        raise FormatMismatch("impossible description", error=str(error)) from None
    return BatchLayout(rows, nbytes, extents, nodes), description


_CODE_KINDS: Final = frozenset(map(int, CodeKind))


def _mismatch(reason: int) -> FormatMismatch:
    return FormatMismatch(_REASONS[reason & 0xFF], node=reason >> 8)


def verify(buffer: Bytes, layout: BatchLayout) -> None:
    """Read everything: that the checksum holds, and that no offset or index leads elsewhere.

    Raises: FormatMismatch.
    """
    if not checksum_holds(buffer):
        raise FormatMismatch("the checksum does not hold")
    reason = kernels.verify_nodes(layout.nodes, FORMS, address_of(buffer))
    if reason:
        raise _mismatch(reason)


def checksum_holds(buffer: Bytes) -> bool:
    """Whether the bytes are what was sealed; True without a look if they carry no checksum."""
    _, _, kind, stored = _STAMP.unpack_from(buffer.data, 0)
    if kind == _CHECKSUM_NONE:
        return True
    return bool(checksum_words(buffer, _STAMP.size, len(buffer), 0) == stored)


CHECKSUM_FROM: Final = _STAMP.size


def checksum_words(buffer: Bytes, start: int, stop: int, state: int) -> int:
    """Continue a checksum over bytes [start, stop), both multiples of 8."""
    words = buffer[start:stop].view(np.uint64)
    return int(hashing.checksum(words, np.uint64(start // 8), np.uint64(state)))


def address_of(buffer: NDArray[Any]) -> int:
    """Where an array begins."""
    address: int = buffer.__array_interface__["data"][0]
    return address


def array_at(buffer: Bytes, offset: int, nbytes: int, dtype: Any) -> NDArray[Any]:
    """The array an extent holds, a view."""
    return buffer[offset : offset + nbytes].view(dtype)


def describe(
    buffer: Bytes | None, layout: BatchLayout | None, schema: ArrangementSchema
) -> NDArray[np.int64]:
    """The cells of the table (cells.py) of the columns, its rows in the order of `schema.nodes`.

    None is no row.
    """
    table = np.empty((len(schema.nodes), cells.FIELDS), np.int64)
    if buffer is None or layout is None:
        kernels.describe_nodes(schema.nodes, FORMS, 0, table)
    else:
        kernels.describe_nodes(layout.nodes, FORMS, address_of(buffer), table)
    return table


def column_at(buffer: Bytes, layout: BatchLayout, column: int, type_: AnyType) -> Column:
    """A column, a view."""
    node = layout.nodes[column].tolist()
    encoding = (node[kernels.TYPE] >> kernels.ENCODING_BIT) & 0xFF
    bits = None
    if node[kernels.NULLS]:
        bits = _array(buffer, node, kernels.VALIDITY_AT, np.uint8)
    first = node[kernels.CHILDREN] & 0xFFFFFFFF
    if encoding == kernels.DICTIONARY:
        width = (node[kernels.TYPE] >> kernels.INDEX_BIT) & 0xFF
        indices = _array(buffer, node, kernels.INDICES_AT, _INDEX_TYPES[width])
        return Column.of_dictionary(column_at(buffer, layout, first, type_), indices, bits=bits)
    specs = child_specs(type_)
    children = tuple(column_at(buffer, layout, first + i, spec.type) for i, spec in enumerate(specs))
    offsets = None
    if type_ in VARIABLE or isinstance(type_, ListType):
        offsets = _array(buffer, node, kernels.OFFSETS_AT, np.int64)
    dtype = DTYPES[type_] if isinstance(type_, ColumnType) else np.dtype(np.uint8)
    values = _array(buffer, node, kernels.VALUES_AT, dtype)
    if type_ in WIDE:
        values = values.reshape(-1, 2)
    length = node[kernels.LENGTH] if isinstance(type_, RecordType) else None
    plain = Column.with_bits(type_, values, offsets, bits, children=children, length=length)
    return Column.repeated(plain, layout.rows) if encoding == kernels.CONSTANT_NODE else plain


_INDEX_TYPES: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def _array(buffer: Bytes, node: list[int], field: int, dtype: Any) -> NDArray[Any]:
    return array_at(buffer, node[field], node[field + 1], dtype)


def frontier_words(frontier: Frontier) -> tuple[int, int]:
    """The u64 image of a frontier: (is empty, time)."""
    return (1, 0) if frontier.is_empty else (0, frontier.time)


def frontier_of_words(is_empty: int, time: int) -> Frontier:
    """Inverse of `frontier_words`."""
    return Frontier.empty() if is_empty else Frontier.at(time)
