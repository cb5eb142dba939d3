"""Bytes of a publication page: an immutable header, a generation word, two slots.

    0     magic, format version, header length and checksum
    64    the generation word, alone in its line: its parity names the slot that counts; 0 is "not yet made"
    128   who and what: token, id, incarnation, shard, writer, the place of the slots, then the schema
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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from shm_arrangements.columns import ColumnSpec, ColumnType
from shm_arrangements.errors import FormatMismatch, InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import HALVES, Locator, PageName
from shm_arrangements.schema import ArrangementSchema

MAGIC: Final = b"CLSTRPAG"
FORMAT_VERSION: Final = 1
CAPACITY: Final = 64  # batches in a chain; a longer one forces a merge first
GENERATION_WORD: Final = 8  # index of the u64 at byte 64

_FRONT: Final = struct.Struct(
    "<8sIII"
)  # magic, version, length of the whole header, crc32 of its part from 128 on
_WHO: Final = struct.Struct("<12sIQQIIIIIIII")
_WHO_AT: Final = 128
_SLOT: Final = struct.Struct(
    "<IIQIIQQ"
)  # crc32 of what follows, flags, generation, state, count, since, upper
_ENTRY: Final = struct.Struct("<IIQQQQQQ")  # writer, flags, seq, rows, nbytes, lower, upper, since
_CRC_BYTES: Final = 4
SLOT_BYTES: Final = (_SLOT.size + CAPACITY * _ENTRY.size + 63) & ~63
_LOWER_EMPTY, _UPPER_EMPTY, _SINCE_EMPTY = 1, 2, 4


class PageStatus(enum.IntEnum):
    """FRESH: nothing was ever sealed. LIVE: reads as its frontiers allow. CLOSED: dropped, for ever."""

    FRESH = 1
    LIVE = 2
    CLOSED = 3


class BatchEntry(NamedTuple):
    """One batch of a chain. `seq` 0: it has no rows, and so no segment."""

    writer: int
    seq: int
    rows: int
    lower: Frontier
    upper: Frontier
    since: Frontier
    nbytes: int = 0

    def locator(self, token: str) -> Locator | None:
        return Locator(token, self.writer, self.seq) if self.seq else None


@dataclass(frozen=True, slots=True)
class PageState:
    """What one slot says: reads at `t` are right for `since <= t < upper`, from the batches of `chain`."""

    generation: int
    status: PageStatus
    since: Frontier
    upper: Frontier
    chain: tuple[BatchEntry, ...]


@dataclass(frozen=True, slots=True)
class PageHeader:
    """The immutable part. `name` is the first name of the page; an alias is a further one."""

    name: PageName
    shards: int
    writer: int
    schema: ArrangementSchema
    slots_at: int

    @property
    def nbytes(self) -> int:
        return self.slots_at + 2 * SLOT_BYTES


def encode_header(name: PageName, shards: int, writer: int, schema: ArrangementSchema) -> bytes:
    """Return the header's bytes, a multiple of 64; the slots follow."""
    told = _encode_schema(schema)
    length = _WHO_AT + _WHO.size + len(told)
    slots_at = (length + 63) & ~63
    who = _WHO.pack(
        name.token.encode(), HALVES.index(name.half), name.id, name.incarnation, name.shard, shards, writer,
        CAPACITY, SLOT_BYTES, slots_at, len(told), 0,
    )  # fmt: skip
    front = _FRONT.pack(MAGIC, FORMAT_VERSION, length, zlib.crc32(who + told))
    return (front.ljust(_WHO_AT, b"\0") + who + told).ljust(slots_at, b"\0")


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
    token, half, id, incarnation, shard, shards, writer, capacity, slot_bytes, slots_at, schema_bytes, _ = (
        _WHO.unpack_from(buf, _WHO_AT)
    )
    if (capacity, slot_bytes) != (CAPACITY, SLOT_BYTES):
        raise FormatMismatch("publication page of another shape", capacity=capacity, slot_bytes=slot_bytes)
    if half >= len(HALVES) or slots_at + 2 * SLOT_BYTES > buf.nbytes:
        raise FormatMismatch("damaged publication page", half=half, slots_at=slots_at)
    at = _WHO_AT + _WHO.size
    name = PageName(token.decode(), id, incarnation, HALVES[half], shard)
    return PageHeader(name, shards, writer, _decode_schema(bytes(buf[at : at + schema_bytes])), slots_at)


def encode_slot(state: PageState) -> bytes:
    """Return the used part of a slot. Raises: InvariantViolation if the chain is too long."""
    if len(state.chain) > CAPACITY:
        raise InvariantViolation("chain too long for a page", batches=len(state.chain), capacity=CAPACITY)
    since, since_flag = _image(state.since, _SINCE_EMPTY)
    upper, upper_flag = _image(state.upper, _UPPER_EMPTY)
    head = _SLOT.pack(
        0, since_flag | upper_flag, state.generation, state.status, len(state.chain), since, upper
    )
    body = head[_CRC_BYTES:] + b"".join([_encode_entry(entry) for entry in state.chain])
    return zlib.crc32(body).to_bytes(_CRC_BYTES, "little") + body


def decode_slot(image: bytes) -> PageState | None:
    """Inverse of `encode_slot`, given a whole slot; None if the checksum does not fit."""
    crc, flags, generation, status, count, since, upper = _SLOT.unpack_from(image)
    used = _SLOT.size + count * _ENTRY.size
    if count > CAPACITY or zlib.crc32(memoryview(image)[_CRC_BYTES:used]) != crc:
        return None
    chain = tuple(_decode_entry(image[at : at + _ENTRY.size]) for at in range(_SLOT.size, used, _ENTRY.size))
    return PageState(
        generation, PageStatus(status), _frontier(since, flags & _SINCE_EMPTY),
        _frontier(upper, flags & _UPPER_EMPTY), chain,
    )  # fmt: skip


# A turn changes a few entries of the chain; the others come back as the same bytes, both ways.
@functools.lru_cache(maxsize=4096)
def _encode_entry(entry: BatchEntry) -> bytes:
    lower, lower_flag = _image(entry.lower, _LOWER_EMPTY)
    upper, upper_flag = _image(entry.upper, _UPPER_EMPTY)
    since, since_flag = _image(entry.since, _SINCE_EMPTY)
    flags = lower_flag | upper_flag | since_flag
    return _ENTRY.pack(entry.writer, flags, entry.seq, entry.rows, entry.nbytes, lower, upper, since)


@functools.lru_cache(maxsize=4096)
def _decode_entry(image: bytes) -> BatchEntry:
    writer, flags, seq, rows, nbytes, lower, upper, since = _ENTRY.unpack(image)
    return BatchEntry(
        writer, seq, rows, _frontier(lower, flags & _LOWER_EMPTY), _frontier(upper, flags & _UPPER_EMPTY),
        _frontier(since, flags & _SINCE_EMPTY), nbytes,
    )  # fmt: skip


def _image(frontier: Frontier, flag: int) -> tuple[int, int]:
    return (0, flag) if frontier.is_empty else (frontier.time, 0)


def _frontier(time: int, empty: int) -> Frontier:
    return Frontier.empty() if empty else Frontier.at(time)


def _encode_schema(schema: ArrangementSchema) -> bytes:
    parts = [struct.pack("<II", len(schema.columns), len(schema.key))]
    for column in schema.columns:
        name = column.name.encode()
        parts += [struct.pack("<BBH", column.type, column.nullable, len(name)), name]
    parts.append(struct.pack(f"<{len(schema.key)}I", *schema.key))
    return b"".join(parts)


def _decode_schema(image: bytes) -> ArrangementSchema:
    columns: list[ColumnSpec] = []
    try:
        n_columns, n_key = struct.unpack_from("<II", image)
        at = 8
        for _ in range(n_columns):
            kind, nullable, length = struct.unpack_from("<BBH", image, at)
            name = image[at + 4 : at + 4 + length].decode()
            columns.append(ColumnSpec(name, ColumnType(kind), bool(nullable)))
            at += 4 + length
        key: Sequence[int] = struct.unpack_from(f"<{n_key}I", image, at)
        return ArrangementSchema(tuple(columns), tuple(key))
    except (struct.error, ValueError) as error:
        raise FormatMismatch("schema that cannot be read", error=str(error)) from error
