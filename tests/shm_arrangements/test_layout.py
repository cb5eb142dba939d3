"""The bytes of a batch: what is written is read, and what does not fit is refused by name."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shm_arrangements import layout
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocation, HeapAllocator, build_batch
from shm_arrangements.description import Description
from shm_arrangements.errors import FormatMismatch, InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing import strategies
from shm_arrangements.testing.model import Model, normal_row
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

SCHEMA = ArrangementSchema(
    (
        ColumnSpec("i", ColumnType.INT64, False),
        ColumnSpec("t", ColumnType.TEXT, True),
        ColumnSpec("n", ColumnType.NUMERIC, True),
        ColumnSpec("b", ColumnType.BOOL, False),
    ),
    (1, 0),
)
ROWS = [((1, "one", 1 << 70, True), 0, 1), ((2, None, None, False), 3, -2), ((1, "one", -1, True), 3, 5)]
DESCRIPTION = Description(Frontier.at(0), Frontier.at(4), Frontier.at(0))


class Checksummed:
    """Private memory with the checksum that shared memory has."""

    checksums = True

    def __init__(self) -> None:
        self.allocations: list[HeapAllocation] = []

    def allocate(self, nbytes: int, *, deferred: bool = False) -> HeapAllocation:
        self.allocations.append(HeapAllocation(nbytes))
        self.allocations[-1].buffer[:] = 0xAB  # contents are undefined: nothing may depend on zeros
        return self.allocations[-1]


def built() -> tuple[Batch, NDArray[np.uint8]]:
    allocator = Checksummed()
    types = [c.type for c in SCHEMA.columns]
    batch = build_batch(Updates.from_rows(types, ROWS), SCHEMA, DESCRIPTION, allocator)
    return batch, allocator.allocations[0].buffer.copy()


def triples(batch: Batch) -> list[Any]:
    updates = Updates(batch.row_columns(), batch.times, batch.diffs)
    return sorted(((normal_row(row), t, d) for row, t, d in updates.to_rows()), key=repr)


def test_a_batch_reads_back_from_its_bytes_alone() -> None:
    batch, buffer = built()
    padded = np.concatenate([buffer, np.full(4096, 0xCD, np.uint8)])  # a mapping is longer than its payload
    again = Batch.from_buffer(SCHEMA, padded)
    again.validate_state()
    assert again.checksum_holds()
    assert again.description == DESCRIPTION
    assert triples(again) == triples(batch) == sorted(ROWS, key=repr)
    assert again.nbytes == batch.nbytes == len(buffer)
    assert not batch.times.flags.writeable


def test_arrays_are_aligned_and_share_one_memory() -> None:
    batch, _ = built()
    arrays = [batch.codes, batch.times, batch.diffs]
    for column in batch.columns:
        arrays += [column.values, *([] if column.offsets is None else [column.offsets])]
    for array in arrays:
        assert array.ctypes.data % layout.ALIGNMENT == 0
        assert np.shares_memory(array, batch._buffer)


def test_every_byte_of_the_payload_is_under_the_checksum() -> None:
    _, buffer = built()
    for at in range(layout.CHECKSUM_FROM, len(buffer)):
        damaged = buffer.copy()
        damaged[at] ^= 0x10
        assert not layout.verify_checksum(damaged), f"byte {at}"


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
    refused(24, "<Q", 1 << 40, "cut short")
    refused(32, "<Q", 9, "extents do not match")
    refused(48, "<I", 7, "unknown kind of code")
    refused(192, "<H", 77, "unknown column type")
    refused(196, "<I", 5, "unknown encoding")
    refused(192 + 16, "<Q", 1 << 40, "outside")
    with pytest.raises(FormatMismatch, match="too short"):
        Batch.from_buffer(SCHEMA, buffer[:100])
    with pytest.raises(FormatMismatch, match="another schema"):
        Batch.from_buffer(ArrangementSchema(SCHEMA.columns, (0, 1)), buffer)
    with pytest.raises(FormatMismatch, match="another schema"):
        Batch.from_buffer(ArrangementSchema(SCHEMA.columns, (1,)), buffer)


def test_an_empty_batch_owns_no_memory() -> None:
    allocator = Checksummed()
    nothing = [(row, 1, diff) for row, _, _ in ROWS[:1] for diff in (1, -1)]
    for rows in ([], nothing):
        batch = build_batch(
            Updates.from_rows([c.type for c in SCHEMA.columns], rows), SCHEMA, DESCRIPTION, allocator
        )
        assert (len(batch), batch.nbytes) == (0, 0)
        batch.validate_state()
    assert not allocator.allocations


@pytest.mark.parametrize("time", [1, 4])
def test_an_update_outside_its_batch_is_refused(time: int) -> None:
    description = Description(Frontier.at(2), Frontier.at(4), Frontier.at(2))
    updates = Updates.from_rows([c.type for c in SCHEMA.columns], [(ROWS[0][0], time, 1)])
    with pytest.raises(InvariantViolation, match="outside its batch"):
        build_batch(updates, SCHEMA, description, HeapAllocator())


@given(strategies.histories(max_steps=1, max_updates=40), st.booleans())
def test_any_updates_become_a_sorted_batch_that_holds_the_same(
    history: strategies.History, checksums: bool
) -> None:
    model = Model()
    updates = history.steps[0].updates if history.steps else ()
    model.insert(updates)
    allocator = Checksummed() if checksums else HeapAllocator()
    whole = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())
    types = [c.type for c in history.schema.columns]
    batch = build_batch(Updates.from_rows(types, updates), history.schema, whole, allocator)
    batch.validate_state()
    assert batch.checksum_holds()
    got = {(row, time): diff for row, time, diff in triples(batch)}
    assert got == model.between(-1, 1 << 62)
    names = [spec.name for spec in history.schema.stored]
    assert names[: len(history.schema.key)] == [history.schema.columns[i].name for i in history.schema.key]
