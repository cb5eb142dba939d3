"""Bytes of a publication page: an immutable header, a generation word, two slots.

    0     magic, format version, header length and checksum
    64    the generation word, alone in its line: its parity names the slot that counts; 0 is "not yet made"
    128   who and what: token, id, incarnation, shard, writer, the cell it follows, the place of the slots,
          then the schema and the name
    ...   slot 0, slot 1, each: checksum, generation, state, frontiers, and up to `CAPACITY` batch entries

Everything is little-endian. A frontier is a u64 and a flag for the empty one. Lengths come from here and
never from the size of the mapping, which is rounded up to pages.

Does not: read or write memory that another process may be changing (publication.py); decide what is legal.
"""

from __future__ import annotations

import enum
import functools
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from shm_arrangements.errors import FormatMismatch, InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import HALVES, Locator, PageName
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import (
    LIST_CODE,
    RECORD_CODE,
    AnyType,
    ColumnSpec,
    ColumnType,
    ListType,
    RecordType,
    child_specs,
    type_code,
)

MAGIC: Final = b"CLSTRPAG"
FORMAT_VERSION: Final = 2
CAPACITY: Final = 56  # batches in a chain; a longer one forces a merge first. With a header: 8 KiB
GENERATION_WORD: Final = 8  # index of the u64 at byte 64
MAX_NAME_BYTES: Final = 255
MOST_SHARDS: Final = 1 << 12  # more would be damage: who attaches makes a name of each

# magic, version, length of the whole header, crc32 of its part from 128 on
_FRONT: Final = struct.Struct("<8sIII")
# token, half, id, incarnation, shard, shards, writer, capacity, slot bytes, where slots begin, schema bytes,
# name bytes, clock, cell, 0
_WHO: Final = struct.Struct("<12sIQQIIIIIIIIQII")
_WHO_AT: Final = 128
# crc32 of what follows, flags, generation, state, count, since, upper
_SLOT: Final = struct.Struct("<IIQIIQQ")
# writer, flags, seq, offset, rows, nbytes, lower, upper, since
_ENTRY: Final = struct.Struct("<IIQQQQQQQ")
_CRC_BYTES: Final = 4
SLOT_BYTES: Final = (_SLOT.size + CAPACITY * _ENTRY.size + 63) & ~63
_LOWER_EMPTY, _UPPER_EMPTY, _SINCE_EMPTY = 1, 2, 4
_COLUMN: Final = struct.Struct("<BBHH")  # type, nullable, scale, bytes of the name
_COUNTS: Final = struct.Struct("<IIHH")  # columns, key columns, kind of code, ordered


class PageStatus(enum.IntEnum):
    """FRESH: nothing was ever sealed. LIVE: reads as its frontiers allow. CLOSED: dropped, for ever."""

    FRESH = 1
    LIVE = 2
    CLOSED = 3


class BatchEntry(NamedTuple):
    """One batch of a chain. `seq` 0: it has no rows, and so no memory; offset: as in `Locator`."""

    writer: int
    seq: int
    rows: int
    lower: Frontier
    upper: Frontier
    since: Frontier
    nbytes: int = 0
    offset: int = 0

    def locator(self, token: str) -> Locator | None:
        return Locator(token, self.writer, self.seq, self.offset) if self.seq else None


class PageState(NamedTuple):
    """What a page says: reads at `t` are right for `since <= t < upper`, from the batches of `chain`.

    Of what a reader was given, `upper` and the end of the chain are the later of slot and cell (clock.py).
    """

    generation: int
    status: PageStatus
    since: Frontier
    upper: Frontier
    chain: tuple[BatchEntry, ...]

    def reaching(self, upper: Frontier) -> PageState:
        """The same, sealed up to `upper`, before which nothing more has happened."""
        chain = self.chain
        if chain:
            chain = (*chain[:-1], chain[-1]._replace(upper=upper))
        return self._replace(upper=upper, chain=chain)


@dataclass(frozen=True, slots=True)
class PageHeader:
    """The immutable part. `page` is its first name in shared memory, an alias is a further one.

    name: what people call it, perhaps nothing; clock, cell: what it follows.
    """

    page: PageName
    shards: int
    writer: int
    schema: ArrangementSchema
    slots_at: int
    name: str
    clock: int
    cell: int


def encode_header(
    page: PageName, shards: int, writer: int, schema: ArrangementSchema, *, name: str, clock: int, cell: int
) -> bytes:
    """Return the header's bytes, a multiple of 64; the slots follow. Raises: ValueError for a long name."""
    told, called = _encode_schema(schema), name.encode()
    if len(called) > MAX_NAME_BYTES:
        raise ValueError(f"a name has at most {MAX_NAME_BYTES} bytes of UTF-8: {name!r}")
    length = _WHO_AT + _WHO.size + len(told) + len(called)
    slots_at = (length + 63) & ~63
    who = _WHO.pack(
        page.token.encode(), HALVES.index(page.half), page.id, page.incarnation, page.shard, shards, writer,
        CAPACITY, SLOT_BYTES, slots_at, len(told), len(called), clock, cell, 0,
    )  # fmt: skip
    body = who + told + called
    front = _FRONT.pack(MAGIC, FORMAT_VERSION, length, zlib.crc32(body))
    return (front.ljust(_WHO_AT, b"\0") + body).ljust(slots_at, b"\0")


def decode_header(buf: memoryview) -> PageHeader:
    """Inverse of `encode_header`. Raises: FormatMismatch saying what is wrong."""
    if buf.nbytes < _WHO_AT + _WHO.size:
        raise FormatMismatch("too short for a page", nbytes=buf.nbytes)
    magic, version, length, crc = _FRONT.unpack_from(buf)
    if magic != MAGIC:
        raise FormatMismatch("not a publication page", magic=magic)
    if version != FORMAT_VERSION:
        raise FormatMismatch("publication page of another version", version=version, ours=FORMAT_VERSION)
    if not _WHO_AT + _WHO.size <= length <= buf.nbytes or zlib.crc32(buf[_WHO_AT:length]) != crc:
        raise FormatMismatch("damaged publication page", header_bytes=length)
    (
        token, half, id, incarnation, shard, shards, writer, capacity, slot_bytes, slots_at, schema_bytes,
        name_bytes, clock, cell, _,
    ) = _WHO.unpack_from(buf, _WHO_AT)  # fmt: skip
    if (capacity, slot_bytes) != (CAPACITY, SLOT_BYTES):
        raise FormatMismatch("publication page of another shape", capacity=capacity, slot_bytes=slot_bytes)
    if half >= len(HALVES) or slots_at + 2 * SLOT_BYTES > buf.nbytes:
        raise FormatMismatch("damaged publication page", half=half, slots_at=slots_at)
    if not shard < shards <= MOST_SHARDS:
        raise FormatMismatch("damaged publication page", shard=shard, shards=shards)
    at = _WHO_AT + _WHO.size
    schema = _decode_schema(bytes(buf[at : at + schema_bytes]))
    at += schema_bytes
    try:
        page = PageName(token.decode("ascii"), id, incarnation, HALVES[half], shard)
        name = bytes(buf[at : at + name_bytes]).decode()
    except UnicodeDecodeError as error:
        raise FormatMismatch("damaged publication page", error=str(error)) from error
    return PageHeader(page, shards, writer, schema, slots_at, name, clock, cell)


def encode_slot(state: PageState, entries: Iterable[bytes] | None = None) -> bytes:
    """Return the used part of a slot.

    entries: the images of its chain, if there are some from before.
    Raises: InvariantViolation if the chain is too long.
    """
    if len(state.chain) > CAPACITY:
        raise InvariantViolation("chain too long for a page", batches=len(state.chain), capacity=CAPACITY)
    since, since_flag = _image(state.since, _SINCE_EMPTY)
    upper, upper_flag = _image(state.upper, _UPPER_EMPTY)
    flags = since_flag | upper_flag
    head = _SLOT.pack(0, flags, state.generation, state.status, len(state.chain), since, upper)
    body = head[_CRC_BYTES:] + b"".join(map(encode_entry, state.chain) if entries is None else entries)
    return zlib.crc32(body).to_bytes(_CRC_BYTES, "little") + body


def decode_slot(image: bytes) -> PageState | None:
    """Inverse of `encode_slot`, given a whole slot; None if the checksum, or what it says, cannot be."""
    crc, flags, generation, status, count, since, upper = _SLOT.unpack_from(image)
    used = _SLOT.size + count * _ENTRY.size
    if count > CAPACITY or zlib.crc32(memoryview(image)[_CRC_BYTES:used]) != crc:
        return None
    ats = range(_SLOT.size, used, _ENTRY.size)
    try:
        chain = tuple(_decode_entry(image[at : at + _ENTRY.size]) for at in ats)
        return PageState(
            generation, PageStatus(status), _frontier(since, flags & _SINCE_EMPTY),
            _frontier(upper, flags & _UPPER_EMPTY), chain,
        )  # fmt: skip
    except ValueError:
        return None


def encode_entry(entry: BatchEntry) -> bytes:
    """The image of one batch in a slot."""
    lower, lower_flag = _image(entry.lower, _LOWER_EMPTY)
    upper, upper_flag = _image(entry.upper, _UPPER_EMPTY)
    since, since_flag = _image(entry.since, _SINCE_EMPTY)
    flags = lower_flag | upper_flag | since_flag
    return _ENTRY.pack(
        entry.writer, flags, entry.seq, entry.offset, entry.rows, entry.nbytes, lower, upper, since
    )


# A turn changes a few entries of the chain; the others come back as the same bytes.
@functools.lru_cache(maxsize=4096)
def _decode_entry(image: bytes) -> BatchEntry:
    writer, flags, seq, offset, rows, nbytes, from_time, to_time, since = _ENTRY.unpack(image)
    lower, upper = _frontier(from_time, flags & _LOWER_EMPTY), _frontier(to_time, flags & _UPPER_EMPTY)
    if upper.precedes(lower):
        raise ValueError(f"lower {lower} is beyond upper {upper}")
    return BatchEntry(writer, seq, rows, lower, upper, _frontier(since, flags & _SINCE_EMPTY), nbytes, offset)


def _image(frontier: Frontier, flag: int) -> tuple[int, int]:
    return (0, flag) if frontier.is_empty else (frontier.time, 0)


def _frontier(time: int, empty: int) -> Frontier:
    return Frontier.empty() if empty else Frontier.at(time)


def _encode_schema(schema: ArrangementSchema) -> bytes:
    parts = [_COUNTS.pack(len(schema.columns), len(schema.key), schema.code, schema.ordered)]
    for column in schema.columns:
        _encode_column(column, parts)
    parts.append(struct.pack(f"<{len(schema.key)}I", *schema.key))
    return b"".join(parts)


def _encode_column(column: ColumnSpec, parts: list[bytes]) -> None:
    """Append a column, and after it those that its type is made of; of a record, their number before."""
    name = column.name.encode()
    parts += [_COLUMN.pack(type_code(column.type), column.nullable, column.scale, len(name)), name]
    if isinstance(column.type, RecordType):
        parts.append(struct.pack("<I", len(column.type.fields)))
    for child in child_specs(column.type):
        _encode_column(child, parts)


def _decode_schema(image: bytes) -> ArrangementSchema:
    columns: list[ColumnSpec] = []
    try:
        n_columns, n_key, code, ordered = _COUNTS.unpack_from(image)
        at = _COUNTS.size
        for _ in range(n_columns):
            column, at = _decode_column(image, at)
            columns.append(column)
        key: Sequence[int] = struct.unpack_from(f"<{n_key}I", image, at)
        schema = ArrangementSchema(tuple(columns), tuple(key), ordered=bool(ordered))
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise FormatMismatch("schema that cannot be read", error=str(error)) from error
    if schema.code != code:
        raise FormatMismatch("codes of another kind", code=code, ours=schema.code)
    return schema


def _decode_column(image: bytes, at: int) -> tuple[ColumnSpec, int]:
    """The column at byte `at`, and where the next begins."""
    code, nullable, scale, length = _COLUMN.unpack_from(image, at)
    at += _COLUMN.size
    name = image[at : at + length].decode()
    at += length
    type_: AnyType
    if code == LIST_CODE:
        element, at = _decode_column(image, at)
        type_ = ListType(element)
    elif code == RECORD_CODE:
        (count,) = struct.unpack_from("<I", image, at)
        at += 4
        fields = []
        for _ in range(count):
            field, at = _decode_column(image, at)
            fields.append(field)
        type_ = RecordType(tuple(fields))
    else:
        type_ = ColumnType(code)
    return ColumnSpec(name, type_, bool(nullable), scale), at
