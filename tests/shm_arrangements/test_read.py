"""Reads: equal codes of different keys, sharing of memory, and the edges the suite does not reach."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from shm_arrangements import read
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.kernels import hashing
from shm_arrangements.rows import RowImage, Words
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing import strategies
from shm_arrangements.testing.model import rows_of
from shm_arrangements.testing.suite import HeapTrace, run_history
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

SCHEMA = ArrangementSchema(
    (ColumnSpec("v", ColumnType.TEXT, True), ColumnSpec("k", ColumnType.INT64, False)), (1,)
)
TYPES = (ColumnType.TEXT, ColumnType.INT64)


def batch_of(rows: list[tuple[tuple[str | None, int], int, int]], lower: int, upper: Frontier) -> Batch:
    description = Description(Frontier.at(lower), upper, Frontier.minimum())
    return build_batch(Updates.from_rows(TYPES, rows), SCHEMA, description, HeapAllocator())


def keys(*values: int | None) -> tuple[Column, ...]:
    return (Column.from_pylist(ColumnType.INT64, values),)


@pytest.mark.slow
@given(history=strategies.histories())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_reads_stay_right_when_most_codes_collide(history: strategies.History) -> None:
    whole = RowImage.hash

    def colliding(self: RowImage, columns: int | None = None) -> Words:
        spec = self.spec if columns is None else self.spec.prefix(columns)
        out = np.empty(len(self.lanes), np.uint64)
        hashing.hash_rows(self.lanes, spec.kinds, self.text_lo, self.text_hi, self.text, out)
        return out & np.uint64(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowImage, "hash", colliding)
        run_history(HeapTrace(history.schema), history)
    assert RowImage.hash is whole


def test_one_batch_of_one_time_is_handed_out_without_a_copy() -> None:
    batch = batch_of([((f"v{i}", i), 0, 1 + i) for i in range(100)], 0, Frontier.at(1))
    columns, counts = read.scan_at([batch], 0)
    assert np.shares_memory(counts, batch.diffs)
    assert all(
        np.shares_memory(c.values, b.values) for c, b in zip(columns, batch.row_columns(), strict=True)
    )


def test_a_large_batch_with_a_few_later_changes_is_compared_only_there() -> None:
    base = batch_of([((f"v{i}", i), 0, 1) for i in range(200)], 0, Frontier.at(1))
    later = batch_of(
        [(("v7", 7), 1, -1), (("new", 7), 1, 1), (("more", 200), 1, 2), (("v9", 9), 2, -1)], 1, Frontier.at(3)
    )
    wanted = {(f"v{i}", i): 1 for i in range(200) if i != 7} | {("new", 7): 1, ("more", 200): 2}
    assert rows_of(*read.scan_at([base, later], 1)) == wanted
    del wanted["v9", 9]
    assert rows_of(*read.scan_at([base, later], 2)) == wanted


def test_a_read_at_the_last_time_of_all_sees_everything() -> None:
    batch = batch_of([(("a", 1), 0, 1), (("b", 1), MAX_TIME, 1)], 0, Frontier.empty())
    assert rows_of(*read.scan_at([batch], MAX_TIME)) == {("a", 1): 1, ("b", 1): 1}
    assert rows_of(*read.scan_at([batch], MAX_TIME - 1)) == {("a", 1): 1}
    columns, counts, index = read.lookup_at([batch], MAX_TIME, keys(1))
    assert (len(columns), len(counts), index.tolist()) == (2, 2, [0, 0])


def test_negative_counts_are_shown_and_left_to_the_caller() -> None:
    batch = batch_of([(("a", 1), 0, -3)], 0, Frontier.at(1))
    assert rows_of(*read.scan_at([batch], 0)) == {("a", 1): -3}
    assert read.lookup_at([batch], 0, keys(1))[1].tolist() == [-3]


def test_null_in_a_key_that_has_none_finds_nothing() -> None:
    batch = batch_of([(("a", 0), 0, 1), (("b", 5), 0, 1)], 0, Frontier.at(1))
    columns, counts, index = read.lookup_at([batch], 0, keys(None, 5, None, 0))
    assert index.tolist() == [1, 3]
    assert columns[0].to_pylist() == ["b", "a"]
    assert counts.tolist() == [1, 1]
    assert len(read.lookup_at([batch], 0, keys(None))[2]) == 0


def test_an_empty_key_finds_all_rows() -> None:
    schema = ArrangementSchema(SCHEMA.columns, ())
    rows = [(("a", 1), 0, 1), (("b", 2), 0, 1)]
    description = Description(Frontier.at(0), Frontier.at(1), Frontier.minimum())
    batch = build_batch(Updates.from_rows(TYPES, rows), schema, description, HeapAllocator())
    _, counts, index = read.lookup_at([batch], 0, ())
    assert counts.tolist() == [1, 1]
    assert index.tolist() == [0, 0]


def test_no_batches_are_read_with_a_schema_and_not_without() -> None:
    assert rows_of(*read.scan_at([], 0, schema=SCHEMA)) == {}
    assert read.lookup_at([], 0, keys(1), schema=SCHEMA)[2].tolist() == []
    assert len(read.updates_between([], 0, 1, schema=SCHEMA)) == 0
    with pytest.raises(InvariantViolation):
        read.scan_at([], 0)


def test_keys_of_another_shape_are_refused() -> None:
    batch = batch_of([(("a", 1), 0, 1)], 0, Frontier.at(1))
    with pytest.raises(InvariantViolation):
        read.lookup_at([batch], 0, ())
    with pytest.raises(InvariantViolation):
        read.lookup_at([batch], 0, (Column.from_pylist(ColumnType.TEXT, ["1"]),))


def test_pieces_of_a_scan_are_small_and_whole() -> None:
    batches = [
        batch_of([((f"v{i}", i % 500), t, 1) for i in range(t, 2000, t + 1)], t, Frontier.at(t + 1))
        for t in range(3)
    ]
    pieces = list(read.scan_pieces_at(batches, 2, 100))
    assert max(len(counts) for _, counts in pieces) <= 200
    joined: dict[tuple[object, ...], int] = {}
    for columns, counts in pieces:
        joined |= rows_of(columns, counts)
    assert joined == rows_of(*read.scan_at(batches, 2))
