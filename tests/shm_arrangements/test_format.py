"""The bytes are as docs/shm-format.md says: a reader that knows only that page reads them.

`Reader`, `Batch` and `Node` use `struct` and `mmap`, nothing of the project and no numpy; everything else
here writes what is to be read, and compares.
"""

from __future__ import annotations

import mmap
import os
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from shm_arrangements.arena import SegmentAllocator, small_bytes
from shm_arrangements.columns import Encoding
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing.edges import EDGES
from shm_arrangements.testing.model import normal_row
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
from shm_arrangements.updates import Updates

MASK = (1 << 64) - 1
SIGN = 1 << 63
NUMBERS = {
    7: "h",
    8: "i",
    2: "q",
    9: "H",
    10: "I",
    11: "Q",
    12: "f",
    3: "d",
    14: "i",
    15: "q",
    5: "q",
    16: "q",
}
BYTES = {4, 13, 19}
NAN = "NaN"


class Node:
    """A column, or a part of one: `at(i)` is its value in row i, None for NULL."""

    def __init__(self, batch: Batch, number: int) -> None:
        self.batch = batch
        at = 192 + 96 * number
        (
            self.type,
            self.nullable,
            self.encoding,
            width,
            zero,
            self.scale,
            self.length,
            self.nulls,
            first,
            parts,
        ) = struct.unpack_from("<HBBBBHQQII", batch.bytes, at)
        assert zero == 0
        self.width = width
        self.parts = [Node(batch, first + k) for k in range(parts)]
        self.values, self.offsets, self.validity, self.indices = (
            batch.extent(*struct.unpack_from("<QQ", batch.bytes, at + 32 + 16 * k)) for k in range(4)
        )
        self._check_extents()

    def _check_extents(self) -> None:
        n, dictionary = self.length, self.encoding == 2
        sized = not dictionary and (self.type in BYTES or self.type == 20)
        assert len(self.offsets) == (8 * (n + 1) if sized else 0)
        assert len(self.validity) == ((n + 7) // 8 if self.nulls else 0)
        assert len(self.indices) == (n * self.width if dictionary else 0)
        assert self.nullable or not self.nulls
        if self.type in NUMBERS and not dictionary:
            assert len(self.values) == n * struct.calcsize(NUMBERS[self.type])
        assert sum(not self.has(i) for i in range(n)) == self.nulls
        if sized:
            ends = struct.unpack(f"<{n + 1}q", self.offsets)
            assert ends[0] == 0
            assert list(ends) == sorted(ends)
            assert ends[-1] == (self.parts[0].length if self.type == 20 else len(self.values))

    def has(self, i: int) -> bool:
        return not self.nulls or bool(self.validity[i >> 3] >> (i & 7) & 1)

    def at(self, i: int) -> Any:
        if self.encoding == 1:
            i = 0
        if not self.has(i):
            return None
        if self.encoding == 2:
            form = {1: "B", 2: "H", 4: "I"}[self.width]
            return self.parts[0].at(struct.unpack_from("<" + form, self.indices, i * self.width)[0])
        if self.type == 1:
            return bool(self.values[i])
        if self.type in NUMBERS:
            form = NUMBERS[self.type]
            return struct.unpack_from("<" + form, self.values, i * struct.calcsize(form))[0]
        if self.type == 6:
            low, high = struct.unpack_from("<Qq", self.values, 16 * i)
            return high << 64 | low
        if self.type == 17:
            return struct.unpack_from("<iiq", self.values, 16 * i)
        if self.type == 18:
            return uuid.UUID(bytes=bytes(self.values[16 * i : 16 * i + 16]))
        if self.type == 21:
            return tuple(part.at(i) for part in self.parts)
        lo, hi = struct.unpack_from("<qq", self.offsets, 8 * i)
        if self.type == 20:
            return [self.parts[0].at(k) for k in range(lo, hi)]
        data = bytes(self.values[lo:hi])
        return data if self.type == 13 else data.decode()

    # Words, order and hash

    def words(self, value: Any) -> list[int]:
        if self.type in (1, 9, 10, 11):
            return [int(value)]
        if self.type in (3, 12):
            wide = self.type == 3
            (bits,) = struct.unpack("<Q" if wide else "<I", struct.pack("<d" if wide else "<f", value))
            sign = SIGN if wide else 1 << 31
            return [bits ^ (2 * sign - 1) if bits & sign else bits ^ sign]
        if self.type == 6:
            return [(value >> 64) + SIGN, value & MASK]
        if self.type == 17:
            months, days, nanoseconds = value
            return [(months + (1 << 31)) << 32 | (days + (1 << 31)), nanoseconds + SIGN]
        if self.type == 18:
            return [value.int >> 64, value.int & MASK]
        if self.type in BYTES:
            return [int.from_bytes(self.data(value)[:8].ljust(8, b"\0"), "big")]
        return [value + SIGN]

    @staticmethod
    def data(value: Any) -> bytes:
        return value.encode() if isinstance(value, str) else value

    def order(self, value: Any) -> Any:
        if value is None:
            return (1,)
        if self.type == 20:
            return (0, [self.parts[0].order(element) for element in value])
        if self.type == 21:
            return (0, [part.order(field) for part, field in zip(self.parts, value, strict=True)])
        return (0, self.data(value) if self.type in BYTES else self.words(value))

    def hash(self, h: int, value: Any) -> int:
        if value is None:
            return fold(h, 0x3C6EF372FE94F82B)
        if self.type == 20:
            h = fold(h, len(value))
            for element in value:
                h = self.parts[0].hash(h, element)
        elif self.type == 21:
            for part, field in zip(self.parts, value, strict=True):
                h = part.hash(h, field)
        elif self.type in BYTES:
            data = self.data(value)
            h = fold(h, len(data))
            for at in range(0, len(data), 8):
                h = fold(h, int.from_bytes(data[at : at + 8], "little"))
        else:
            for word in self.words(value):
                h = fold(h, word)
        return h

    def ordered_bits(self, value: Any) -> str:
        width = 8 if self.type == 1 else 8 * struct.calcsize(NUMBERS.get(self.type, "q"))
        word = 0
        if value is not None and self.type < 20:
            word = self.words(value)[0] & ((1 << width) - 1)
            if self.type in (7, 8, 14):
                word ^= 1 << (width - 1)
        return f"{int(value is None)}{word:0{width}b}"


def fold(h: int, x: int) -> int:
    h = (h ^ x) * 0x9E3779B97F4A7C15 & MASK
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93 & MASK
    return h ^ h >> 29


class Batch:
    """One batch in a mapping, from its first byte on."""

    def __init__(self, mapped: memoryview) -> None:
        magic, version, checksum, stored, payload, self.rows = struct.unpack_from("<8sIIQQQ", mapped, 0)
        assert magic == b"SHMARRB\1"
        assert version == 2
        self.bytes = mapped[:payload]
        assert checksum == 1
        assert self.checksum() == stored
        columns, self.keys, self.code, self.ordered, *words = struct.unpack_from("<IIII6Q6QI", mapped, 40)
        self.lower, self.upper, self.since = (None if words[k] else words[k + 1] for k in (0, 2, 4))
        codes, times, diffs = (self.extent(*words[k : k + 2]) for k in (6, 8, 10))
        self.nodes = [Node(self, number) for number in range(columns)]
        self.codes = struct.unpack(f"<{self.rows}Q", codes)
        self.times = self.each("Q", times)
        self.diffs = self.each("q", diffs) if len(diffs) else [1] * self.rows

    def extent(self, offset: int, nbytes: int) -> memoryview:
        assert offset % 64 == 0
        assert offset + nbytes <= len(self.bytes)
        return self.bytes[offset : offset + nbytes]

    def each(self, form: str, data: memoryview) -> list[int]:
        found = list(struct.unpack(f"<{len(data) // 8}{form}", data))
        assert len(found) in (1, self.rows)
        return found * self.rows if len(found) == 1 else found

    def checksum(self) -> int:
        total = 0
        for i, word in enumerate(struct.unpack(f"<{len(self.bytes) // 8}Q", self.bytes)):
            if i >= 3:
                x = (word ^ (i * 0x9E3779B97F4A7C15 & MASK)) * 0xD6E8FEB86659FD93 & MASK
                total += x ^ x >> 32
        return total & MASK

    def row(self, i: int) -> tuple[Any, ...]:
        """Row i, in stored order."""
        return tuple(node.at(i) for node in self.nodes)

    def code_of(self, i: int) -> int:
        keys = [(node, node.at(i)) for node in self.nodes[: self.keys]]
        if self.code == 1:
            h = 0x6A09E667F3BCC908
            for node, value in keys:
                h = node.hash(h, value)
            return fold(h, int(not keys))
        if self.code == 2:
            ((node, value),) = keys
            return (
                0 if value is None else struct.unpack("<Q", struct.pack("<" + NUMBERS[node.type], value))[0]
            )
        bits = ""
        for node, value in keys:
            part = node.ordered_bits(value)
            bits += part
            if len(part) == 65:
                break
        return int(bits[:64].ljust(64, "0"), 2)

    def check(self) -> None:
        """Codes and order."""
        last: Any = None
        for i in range(self.rows):
            assert self.code_of(i) == self.codes[i], f"row {i}"
            order = [node.order(value) for node, value in zip(self.nodes, self.row(i), strict=True)]
            here = (self.codes[i], order, self.times[i])
            assert last is None or last < here, f"row {i}"
            last = here


class Reader:
    """The chain of one publication page."""

    def __init__(self, token: str, page: str) -> None:
        self.token = token
        data = self.map(page)
        magic, version, length = struct.unpack_from("<8sII", data, 0)
        assert magic == b"CLSTRPAG"
        assert version == 2
        assert bytes(data[128:140]).decode() == token
        self.writer, _, slot_bytes, first, schema_bytes, name_bytes = struct.unpack_from("<6I", data, 168)
        clock, cell = struct.unpack_from("<QI", data, 192)
        assert length == 208 + schema_bytes + name_bytes
        self.schema(data[208 : 208 + schema_bytes])
        self.name = bytes(data[208 + schema_bytes : length]).decode()
        (generation,) = struct.unpack_from("<Q", data, 64)
        slot = data[first + slot_bytes * (generation & 1) :]
        flags, turned, self.state, batches, self.since, upper = struct.unpack_from("<IQIIQQ", slot, 4)
        assert turned == generation
        assert not flags
        cells = self.map(f"clusterd.{token}.c.{self.writer}.{clock}")
        assert bytes(cells[:8]) == b"CLSTRCLK"
        self.upper = max(upper, struct.unpack_from("<Q", cells, 64 * cell)[0])
        self.batches = []
        for k in range(batches):
            writer, _, seq, offset, rows, nbytes = struct.unpack_from("<IIQQQQ", slot, 40 + 64 * k)
            if seq == 0:
                assert rows == 0
                continue
            kind = "a" if offset else "b"
            mapped = self.map(f"clusterd.{token}.{kind}.{writer}.{seq}")
            batch = Batch(mapped[offset:])
            assert (batch.rows, len(batch.bytes)) == (rows, nbytes)
            self.batches.append((offset, batch))

    @staticmethod
    def map(name: str) -> memoryview:
        with open("/dev/shm/" + name, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def schema(self, data: memoryview) -> None:
        columns, keys, self.code, self.ordered = struct.unpack_from("<IIHH", data, 0)
        self.at = 12
        self.columns = [self.column(data) for _ in range(columns)]
        self.key = struct.unpack_from(f"<{keys}I", data, self.at)
        assert self.at + 4 * keys == len(data)

    def column(self, data: memoryview) -> tuple[Any, ...]:
        """Name, type, nullable, scale, parts."""
        type_, nullable, scale, length = struct.unpack_from("<BBHH", data, self.at)
        name = bytes(data[self.at + 6 : self.at + 6 + length]).decode()
        self.at += 6 + length
        parts = int(type_ == 20)
        if type_ == 21:
            (parts,) = struct.unpack_from("<I", data, self.at)
            self.at += 4
        return (name, type_, nullable, scale, [self.column(data) for _ in range(parts)])

    def updates(self) -> list[tuple[tuple[Any, ...], int, int]]:
        """All updates, columns in row order."""
        stored = [*self.key, *(i for i in range(len(self.columns)) if i not in self.key)]
        return [
            (
                tuple(batch.nodes[stored.index(i)].at(row) for i in range(len(stored))),
                batch.times[row],
                batch.diffs[row],
            )
            for _, batch in self.batches
            for row in range(batch.rows)
        ]


def spec(name: str, type_: Any, nullable: bool = True, scale: int = 0) -> ColumnSpec:
    return ColumnSpec(name, type_, nullable, scale)


PAIR = RecordType((spec("x", ColumnType.INT16), spec("y", ListType(spec("z", ColumnType.TEXT)), False)))
EVERY = (
    *(spec(type_.name.lower(), type_, scale=3 if type_ is ColumnType.NUMERIC else 0) for type_ in ColumnType),
    spec("list", ListType(spec("e", PAIR))),
    spec("record", PAIR),
    spec("one", ColumnType.TEXT), spec("none", ColumnType.INT32),
    spec("always", ListType(spec("e", ColumnType.UUID))), spec("word", ColumnType.TEXT),
)  # fmt: skip
NAMES = [column.name for column in EVERY]


def row_of(i: int) -> tuple[Any, ...]:
    """Row i of all types: edges in turn, NULLs among them."""
    values: list[Any] = []
    for k, type_ in enumerate(ColumnType):
        edges = [*EDGES[type_], None]
        values.append(edges[(i + k * (i // len(edges))) % len(edges)])
    pair = (None if i % 3 == 0 else i % 100, [None, "é", ""][: i % 4])
    values += [[pair, None][: i % 3] if i % 5 else None, pair if i % 7 else None]
    return (
        *values,
        "the same",
        None,
        [uuid.UUID(int=5), None],
        None if i % 11 == 0 else f"word number {i % 300}",
    )


def rows(n: int, time: int) -> list[tuple[tuple[Any, ...], int, int]]:
    return [(row_of(i), time, 1) for i in range(n)]


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as made:
        yield made


def published(held: Instance, schema: ArrangementSchema, rounds: list[Any]) -> Reader:
    """What a reader finds of rounds of updates; closes the writer only afterwards."""
    allocator = SegmentAllocator(held.token, 0)
    index = IndexWriter(allocator, collection_id("u1"), 1, schema, 0)
    try:
        types = [column.type for column in schema.columns]
        for time, updates in enumerate(rounds):
            index.insert(
                Updates.from_rows(types, updates), Updates.empty((ColumnType.TEXT,)), Frontier.at(time + 1)
            )
        (page,) = [
            n
            for n in os.listdir("/dev/shm")
            if n.startswith(f"clusterd.{held.token}.p.") and n.endswith("oks")
        ]
        return Reader(held.token, page)
    finally:
        index.close()


def normal(updates: list[Any]) -> list[Any]:
    return sorted(((normal_row(row), time, diff) for row, time, diff in updates), key=repr)


@pytest.mark.parametrize(
    ("key", "ordered"),
    [((), False), (("text",), False), (("int64",), False), (("float64",), True), (("date", "text"), True),
     (("list", "record", "numeric"), False), (("bool", "int16", "float32", "list"), True), (("uuid",), True)],
)  # fmt: skip
@pytest.mark.slow
def test_a_reader_of_struct_and_mmap_reads_every_type_and_encoding(
    held: Instance, key: tuple[str, ...], ordered: bool
) -> None:
    schema = ArrangementSchema(EVERY, tuple(NAMES.index(name) for name in key), ordered)
    first, second = rows(900, 0), [(row_of(i), 1, -2) for i in range(0, 10, 3)]
    reader = published(held, schema, [first, second])
    assert reader.upper == 2
    assert [offset > 0 for offset, _ in reader.batches] == [False, True]  # a segment, and a place in an arena
    assert normal(reader.updates()) == normal([*first, *second])
    assert reader.columns[: len(ColumnType)] == [
        (type_.name.lower(), int(type_), 1, 3 if type_ is ColumnType.NUMERIC else 0, [])
        for type_ in ColumnType
    ]
    assert reader.columns[NAMES.index("record")][4][1][4] == [("z", 4, 1, 0, [])]
    large, small = (batch for _, batch in reader.batches)
    assert (large.ordered, large.code) == (int(ordered), int(schema.code))
    assert len(large.bytes) > small_bytes(0)
    assert len(small.bytes) <= small_bytes(0)
    encodings = [node.encoding for node in large.nodes]
    of = {NAMES[at]: encodings[stored] for stored, at in enumerate(schema.stored_order)}
    assert [of[name] for name in ("one", "none", "always", "word", "int32")] == [
        Encoding.CONSTANT, Encoding.CONSTANT, Encoding.CONSTANT, Encoding.DICTIONARY, Encoding.PLAIN
    ]  # fmt: skip
    assert {node.width for node in large.nodes if node.encoding == Encoding.DICTIONARY} >= {1, 2}
    for _, batch in reader.batches:
        batch.check()
        assert (batch.lower, batch.upper, batch.since) in ((0, 1, 0), (1, 2, 0))


def test_rows_without_columns_and_sums_beyond_64_bits_are_read(held: Instance) -> None:
    schema = ArrangementSchema((), ())
    most = (1 << 63) - 1
    reader = published(held, schema, [[((), 0, most)] * 2 + [((), 0, 7)]])
    assert sorted(diff for _, _, diff in reader.updates()) == [7, most, most]
    assert [row for row, _, _ in reader.updates()] == [()] * 3


def test_what_is_the_same_of_all_is_stored_once(held: Instance) -> None:
    schema = ArrangementSchema(
        (spec("k", ColumnType.UINT64, False), spec("v", ColumnType.INT64, False)), (0,)
    )
    reader = published(held, schema, [[((i, -i), 0, 1) for i in range(1000)]])
    ((_, batch),) = reader.batches
    assert len(batch.bytes) < 192 + 2 * 96 + 1000 * 16 + 4 * 64
    assert batch.codes == tuple(range(1000))
    assert reader.updates() == [((i, -i), 0, 1) for i in range(1000)]
