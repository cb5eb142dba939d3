"""The bytes of a batch: what is written is read, and what does not fit is refused by name."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shm_arrangements import layout
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocation, build_batch
from shm_arrangements.columns import Encoding
from shm_arrangements.description import Description
from shm_arrangements.errors import FormatMismatch
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing.model import normal_row
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
from shm_arrangements.updates import Updates

PAIR = RecordType((ColumnSpec("x", ColumnType.INT32, True), ColumnSpec("y", ColumnType.TEXT, False)))
SCHEMA = ArrangementSchema(
    (
        ColumnSpec("i", ColumnType.INT64, False),
        ColumnSpec("t", ColumnType.TEXT, True),
        ColumnSpec("n", ColumnType.NUMERIC, True, 2),
        ColumnSpec("b", ColumnType.BOOL, False),
        ColumnSpec("l", ListType(ColumnSpec("e", PAIR, True)), True),
    ),
    (1, 0),
)
ROWS = [
    ((1, "one", 1 << 70, True, [(1, "a"), None]), 0, 1),
    ((2, None, None, False, None), 3, -2),
    ((1, "one", -1, True, []), 3, 5),
]
DESCRIPTION = Description(Frontier.at(0), Frontier.at(4), Frontier.at(0))
HEADER = 192
NODE = 96


class Checksummed:
    """Private memory with the checksum that shared memory has."""

    checksums = True

    def __init__(self) -> None:
        self.allocations: list[HeapAllocation] = []

    def allocate(self, nbytes: int, *, deferred: bool = False) -> HeapAllocation:
        self.allocations.append(HeapAllocation(nbytes))
        self.allocations[-1].buffer[:] = 0xAB  # contents are undefined: nothing may depend on zeros
        return self.allocations[-1]


def built(schema: ArrangementSchema = SCHEMA, rows: Any = ROWS) -> tuple[Batch, NDArray[np.uint8]]:
    allocator = Checksummed()
    types = [c.type for c in schema.columns]
    batch = build_batch(Updates.from_rows(types, rows), schema, DESCRIPTION, allocator)
    return batch, allocator.allocations[0].buffer.copy()


def encoded() -> tuple[ArrangementSchema, Batch, NDArray[np.uint8]]:
    """A batch with a constant column, a dictionary, and a plain one that is its codes."""
    schema = ArrangementSchema(
        (
            ColumnSpec("k", ColumnType.UINT64, False),
            ColumnSpec("c", ColumnType.TEXT, True),
            ColumnSpec("d", ColumnType.TEXT, True),
        ),
        (0,),
    )
    rows = [((i, "always", None if i % 5 == 0 else f"word {i % 4}"), 3, 1) for i in range(100)]
    return schema, *built(schema, rows)


def triples(batch: Batch) -> list[Any]:
    updates = Updates(batch.row_columns(), batch.times, batch.diffs)
    return sorted(((normal_row(row), t, d) for row, t, d in updates.to_rows()), key=repr)


def test_a_batch_reads_back_from_its_bytes_alone() -> None:
    for schema, (batch, buffer) in ((SCHEMA, built()), (encoded()[0], encoded()[1:])):
        padded = np.concatenate([buffer, np.full(4096, 0xCD, np.uint8)])  # as a mapping is
        again = Batch.from_buffer(schema, padded)
        again.validate_state()
        again.verify()
        assert again.description == DESCRIPTION
        assert triples(again) == triples(batch)
        assert again.nbytes == batch.nbytes == len(buffer)
    assert triples(built()[0]) == sorted(((normal_row(row), t, d) for row, t, d in ROWS), key=repr)


def test_what_is_alike_is_stored_once() -> None:
    _, batch, _ = encoded()
    assert [c.encoding for c in batch.columns] == [Encoding.PLAIN, Encoding.CONSTANT, Encoding.DICTIONARY]
    assert (batch.time_cells.tolist(), batch.diff_cells.tolist()) == ([3], [1])
    assert np.shares_memory(batch.codes, batch.columns[0].values)
    assert batch.columns[2].indices is not None
    assert batch.columns[2].indices.dtype == np.uint8
    assert batch.nbytes < 2000


def test_arrays_are_aligned_and_share_one_memory() -> None:
    batch, _ = built()
    arrays = [batch.codes, batch.time_cells, batch.diff_cells]
    for column in batch.columns:
        arrays += [column.values, *([] if column.offsets is None else [column.offsets])]
    for array in arrays:
        if array.nbytes:
            assert array.ctypes.data % layout.ALIGNMENT == 0
            assert np.shares_memory(array, batch._buffer)
            assert not array.flags.writeable


def test_every_byte_of_the_payload_is_under_the_checksum() -> None:
    _, buffer = built()
    for at in range(layout.CHECKSUM_FROM, len(buffer)):
        damaged = buffer.copy()
        damaged[at] ^= 0x10
        assert not layout.checksum_holds(damaged), f"byte {at}"


def test_a_checksum_does_not_depend_on_the_pieces_but_on_the_places() -> None:
    _, buffer = built()
    start, end = layout.CHECKSUM_FROM, len(buffer)
    whole = layout.checksum_words(buffer, start, end, 0)
    state = 0
    for at in range(start, end, 8):
        state = layout.checksum_words(buffer, at, at + 8, state)
    assert state == whole
    swapped = buffer.copy()
    a, b = slice(192, 200), slice(200, 208)
    assert (buffer[a] != buffer[b]).any()
    swapped[a], swapped[b] = buffer[b], buffer[a]
    assert layout.checksum_words(swapped, start, end, 0) != whole


def test_what_is_no_batch_of_ours_is_refused_saying_why() -> None:
    _, buffer = built()

    def refused(at: int, form: str, value: int, match: str) -> None:
        damaged = buffer.copy()
        struct.pack_into(form, damaged.data, at, value)
        with pytest.raises(FormatMismatch, match=match):
            Batch.from_buffer(SCHEMA, damaged)

    refused(0, "<B", 0, "not a batch")
    refused(8, "<I", 99, "another format version")
    refused(12, "<I", 2, "unknown kind of checksum")
    refused(24, "<Q", 1 << 40, "cut short")
    refused(32, "<Q", 9, "extent does not match")
    refused(32, "<Q", 0, "number of rows")
    refused(40, "<I", 9, "another schema")
    refused(48, "<I", 7, "unknown kind of code")
    refused(52, "<I", 1, "another schema")  # ordered
    refused(56, "<Q", 1, "impossible description")  # lower is closed
    refused(104, "<Q", 1 << 40, "outside")
    refused(104, "<Q", 1 << 63, "outside")
    refused(152, "<I", 3, "another schema")
    refused(152, "<I", 1 << 30, "cut short")
    refused(HEADER, "<H", 77, "unknown column type")
    refused(HEADER, "<H", int(ColumnType.BYTEA), "another schema")
    refused(HEADER + 2, "<B", 0, "NULLs where there can be none")
    refused(HEADER + 3, "<B", 5, "unknown encoding")
    refused(HEADER + 3, "<B", 2, "unknown encoding")  # a dictionary without a width
    refused(HEADER + 6, "<H", 1, "another schema")  # a scale
    refused(HEADER + 8, "<Q", 2, "length")
    refused(HEADER + 16, "<Q", 4, "NULLs")
    refused(HEADER + 32, "<Q", 1 << 40, "outside")
    refused(HEADER + 32, "<Q", 64, "outside")  # over the header
    refused(HEADER + 48 + 8, "<Q", 24, "extent does not match")
    refused(HEADER + 4 * NODE + 24, "<I", 6, "children")
    with pytest.raises(FormatMismatch, match="too short"):
        Batch.from_buffer(SCHEMA, buffer[:100])
    with pytest.raises(FormatMismatch, match="another schema"):
        Batch.from_buffer(ArrangementSchema(SCHEMA.columns, (0, 1)), buffer)
    with pytest.raises(FormatMismatch, match="another schema"):
        Batch.from_buffer(ArrangementSchema(SCHEMA.columns, (1,)), buffer)
    with pytest.raises(FormatMismatch, match="another schema"):
        Batch.from_buffer(ArrangementSchema(SCHEMA.columns, (1, 0), ordered=True), buffer)


def test_bytes_cut_anywhere_are_refused() -> None:
    for schema, (_, buffer) in ((SCHEMA, built()), (encoded()[0], encoded()[1:])):
        for end in range(len(buffer)):
            with pytest.raises(FormatMismatch):
                Batch.from_buffer(schema, buffer[:end])


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.slow
def test_a_damaged_header_is_refused_or_leads_nowhere_outside(checksums: bool) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    accepted = 0
    for schema, (_, buffer) in ((SCHEMA, built()), (encoded()[0], encoded()[1:])):
        if not checksums:
            struct.pack_into("<IQ", buffer.data, 12, 0, 0)
        end = HEADER + NODE * struct.unpack_from("<I", buffer.data, 152)[0]
        for at in range(end):
            for _ in range(4):
                damaged = buffer.copy()
                damaged[at] ^= rng.randrange(1, 256)
                if rng.random() < 0.3:
                    damaged[rng.randrange(end)] ^= 1 << rng.randrange(8)
                try:
                    batch = Batch.from_buffer(schema, damaged)
                    batch.verify()
                except FormatMismatch:
                    continue
                # Damage that nobody can tell, without a checksum.
                accepted += 1
                triples(batch)
                assert len(batch.table.cells) == len(schema.nodes)
    print("accepted", accepted)
    assert accepted == 0 or not checksums or accepted < 40  # the kind of checksum may have been damaged


def test_damage_behind_the_header_is_found_without_a_checksum_where_it_would_lead_elsewhere() -> None:
    schema, batch, buffer = encoded()
    struct.pack_into("<IQ", buffer.data, 12, 0, 0)
    dictionary = batch.columns[2].stored
    assert dictionary is not None
    (indices,) = struct.unpack_from("<Q", buffer.data, HEADER + 2 * NODE + 80)
    (offsets,) = struct.unpack_from("<Q", buffer.data, HEADER + 3 * NODE + 48)
    (validity,) = struct.unpack_from("<Q", buffer.data, HEADER + 2 * NODE + 64)

    def found(at: int, form: str, value: int, match: str) -> None:
        damaged = buffer.copy()
        struct.pack_into(form, damaged.data, at, value)
        with pytest.raises(FormatMismatch, match=match):
            Batch.from_buffer(schema, damaged).verify()

    found(indices + 7, "<B", len(dictionary), "index beyond its dictionary")
    found(offsets, "<q", 1, "offsets")
    found(offsets + 8, "<q", -1, "offsets")
    found(offsets + 16, "<q", 1 << 50, "offsets")
    found(offsets + 8 * len(dictionary), "<q", 0, "offsets")
    found(validity, "<B", 0xFF, "NULLs are not as many")


def test_an_empty_batch_owns_no_memory() -> None:
    allocator = Checksummed()
    nothing = [(row, 1, diff) for row, _, _ in ROWS[:1] for diff in (1, -1)]
    for rows in ([], nothing):
        batch = build_batch(
            Updates.from_rows([c.type for c in SCHEMA.columns], rows), SCHEMA, DESCRIPTION, allocator
        )
        assert (len(batch), batch.nbytes) == (0, 0)
        batch.validate_state()
        assert [len(c) for c in batch.columns] == [0] * 5
        assert len(batch.table.cells) == len(SCHEMA.nodes)
    assert not allocator.allocations
