"""Batches: what is one for all is given for each, views share memory, and whatever is not right is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import FormatMismatch
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from tests.shm_arrangements.test_layout import Checksummed

I64, TEXT = ColumnType.INT64, ColumnType.TEXT
SCHEMA = ArrangementSchema((ColumnSpec("v", TEXT, True), ColumnSpec("k", I64, False)), (1,))
HASHED = ArrangementSchema((ColumnSpec("k", TEXT, False), ColumnSpec("v", I64, False)), (0,))
WHOLE = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())
MOST = (1 << 63) - 1


def batch_of(n: int, diffs: Any = 1, allocator: Any = None) -> Batch:
    columns = (Column.from_pylist(TEXT, [f"v{i}" for i in range(n)]), Column(I64, np.arange(n)))
    updates = Updates(columns, np.full(n, 4, np.uint64), np.full(n, diffs, np.int64))
    return build_batch(updates, SCHEMA, WHOLE, allocator or HeapAllocator())


@pytest.mark.parametrize("diff", [1, -3])
def test_what_is_one_for_all_is_given_for_each(diff: int) -> None:
    batch = batch_of(5, diff)
    assert (batch.time_cells.tolist(), batch.diff_cells.tolist()) == ([4], [diff])
    assert (batch.times.tolist(), batch.diffs.tolist()) == ([4] * 5, [diff] * 5)
    assert batch.times_at(1, 3).tolist() == [4, 4]
    assert batch.diffs_at(2, 2).tolist() == []
    assert batch.diffs_of(np.array([3, 0])).tolist() == [diff] * 2


def test_times_and_diffs_of_each_are_slices() -> None:
    updates = Updates.from_rows([TEXT, I64], [(("a", i), i, i + 1) for i in range(4)])
    batch = build_batch(updates, SCHEMA, WHOLE, HeapAllocator())
    assert batch.times_at(1, 3).tolist() == [1, 2]
    assert np.shares_memory(batch.diffs_at(1, 3), batch.diff_cells)
    assert batch.diffs_of(np.array([3, 0])).tolist() == [4, 1]


def test_another_description_and_a_copy_hold_the_same() -> None:
    batch = batch_of(3)
    other = batch.with_description(Description(Frontier.at(0), Frontier.at(9), Frontier.at(0)))
    assert other.columns is other.columns
    assert np.shares_memory(other.codes, batch.codes)
    assert other.nbytes == batch.nbytes
    copy = other.copied(Checksummed())
    assert copy.description == other.description
    assert not np.shares_memory(copy.codes, batch.codes)
    copy.validate_state()
    assert [c.to_pylist() for c in copy.columns] == [c.to_pylist() for c in batch.columns]
    assert copy.table.cells.tolist() != batch.table.cells.tolist()
    empty = Batch.empty(SCHEMA, WHOLE)
    assert empty.copied(HeapAllocator()) is empty


def test_columns_come_in_stored_and_in_row_order() -> None:
    batch = batch_of(3)
    assert [c.type for c in batch.columns] == [I64, TEXT]
    assert [c.type for c in batch.row_columns()] == [TEXT, I64]
    assert [c.type for c in batch.key_columns()] == [I64]


def test_a_damaged_batch_does_not_verify() -> None:
    allocator = Checksummed()
    batch = batch_of(3, allocator=allocator)
    batch.verify()
    allocator.allocations[0].buffer.flags.writeable = True
    allocator.allocations[0].buffer[-1] ^= 1
    with pytest.raises(FormatMismatch, match="checksum"):
        batch.verify()


def arrays(rows: list[Any], times: list[int], diffs: list[int]) -> Batch:
    """A batch of rows of HASHED as they are."""
    columns = (Column.from_pylist(TEXT, [k for k, _ in rows]), Column.from_pylist(I64, [v for _, v in rows]))
    codes = HASHED.codes_of(columns[:1])
    return Batch.of_arrays(
        HASHED, WHOLE, codes, columns, np.array(times, np.uint64), np.array(diffs, np.int64)
    )


def test_what_is_not_right_is_told() -> None:
    keys = sorted("abcde", key=lambda k: int(HASHED.codes_of([Column.from_pylist(TEXT, [k])])[0]))
    rows = [(k, v) for k in keys for v in (1, 2)]
    n = len(rows)
    arrays(rows, [0], [1]).validate_state()
    arrays([rows[0]] * 3, [0], [MOST, MOST, 5]).validate_state()

    def wrong(batch: Batch, match: str) -> None:
        with pytest.raises(AssertionError, match=match):
            batch.validate_state()

    wrong(arrays(rows[::-1], [0], [1]), "not sorted")
    wrong(arrays([rows[1], rows[0]], [0], [1]), "not sorted")
    wrong(arrays([rows[0]] * 2, [1, 0], [1]), "not sorted")
    wrong(arrays([rows[0]] * 2, [0], [1, -1]), "not consolidated")
    wrong(arrays([rows[0]] * 2, [0], [1, 2]), "in parts")
    wrong(arrays(rows, [0], [1] * (n - 1) + [0]), "zero diff")
    wrong(arrays(rows, [0, 1], [1]), "times")
    other = arrays(rows, [0], [1])
    other.codes = other.codes + np.uint64(1)
    wrong(other, "codes")
    until = Description(Frontier.at(0), Frontier.at(3), Frontier.at(0))
    wrong(batch_of(2).with_description(until), "beyond upper")
