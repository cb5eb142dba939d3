"""Arrays from outside: one of another form is refused, and of a value in two forms one is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.given import canonical_updates
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
from shm_arrangements.updates import Updates

I32, I64, F64, TEXT = ColumnType.INT32, ColumnType.INT64, ColumnType.FLOAT64, ColumnType.TEXT
LISTS, PAIRS = ListType(ColumnSpec("e", I64, True)), RecordType((ColumnSpec("a", I64, True),))
NO_ERRORS = Updates.empty((TEXT,))
N = 4
TIMES, DIFFS = np.zeros(N, np.uint64), np.ones(N, np.int64)
NUMBERS = np.arange(N)
FOUR_BYTES = np.frombuffer(b"abcd", np.uint8)


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance


def _index(held: Instance, *columns: ColumnSpec) -> IndexWriter:
    return IndexWriter(SegmentAllocator(held.token, 0), 1, 1, ArrangementSchema(columns, (0,)), 0)


def _insert(index: IndexWriter, column: Column, times: Any = TIMES, diffs: Any = DIFFS) -> None:
    index.insert(Updates((column,), times, diffs), NO_ERRORS, Frontier.at(1))


ENDS = np.array([0, 1, 2, 3, 4])
WRONG = [
    Column(I64, NUMBERS.astype(np.int32)),
    Column(I64, NUMBERS * 1.5),
    Column(I64, NUMBERS.astype(">i8")),
    Column(I64, NUMBERS.reshape(N, 1)),
    Column(I64, [1, 2, 3, 4]),  # type: ignore[arg-type]
    Column(I32, NUMBERS),
    Column(ColumnType.BOOL, np.array([0, 1, 2, 3], np.uint8)),
    Column(ColumnType.NUMERIC, NUMBERS.astype(np.uint64)),
    Column(I64, NUMBERS, None, np.array([1, 1, 0, 1])),
    Column(I64, NUMBERS, None, np.array([True, False])),
    Column(TEXT, FOUR_BYTES, ENDS.astype(np.int32)),
    Column(TEXT, FOUR_BYTES, ENDS + 1),
    Column(TEXT, FOUR_BYTES, ENDS - 1),
    Column(TEXT, FOUR_BYTES, np.array([0, 3, 1, 3, 4])),
    Column(TEXT, FOUR_BYTES.view(np.int8), ENDS),
    Column(LISTS, FOUR_BYTES[:0], ENDS + 1, children=(Column(I64, NUMBERS),)),
    Column(LISTS, FOUR_BYTES[:0], ENDS, children=(Column(I64, NUMBERS.astype(np.int16)),)),
    Column(LISTS, FOUR_BYTES[:0], ENDS, children=(Column(I32, NUMBERS.astype(np.int32)),)),
    Column(PAIRS, FOUR_BYTES[:0], children=(Column(I64, NUMBERS[:3]),), length=N),
    Column(PAIRS, FOUR_BYTES[:0], children=(Column(I64, NUMBERS.astype(np.uint64)),)),
    Column.of_dictionary(Column.from_pylist(TEXT, ["a", "b"]), np.array([0, 1, 2, 1], np.uint8)),
    Column.of_dictionary(Column.from_pylist(TEXT, ["a", "b"]), np.array([0, 1, 0, 1])),
    Column.repeated(Column(I64, np.array([1, 2])), N),
]


@pytest.mark.parametrize("column", WRONG, ids=range(len(WRONG)))
def test_an_array_that_is_not_what_its_column_has_is_refused_by_name(held: Instance, column: Column) -> None:
    index = _index(held, ColumnSpec("k", column.type, True))
    with pytest.raises(ValueError, match="column 0"):
        _insert(index, column)
    index.insert(Updates.empty((column.type,)), NO_ERRORS, Frontier.at(1))
    assert not len(attach(1, held.token).scan())


def test_times_and_diffs_of_another_dtype_are_refused_by_name(held: Instance) -> None:
    index = _index(held, ColumnSpec("k", I64, False))
    with pytest.raises(ValueError, match="times: an array of uint64 is wanted, not int64"):
        _insert(index, Column(I64, NUMBERS), times=np.zeros(N, np.int64))
    with pytest.raises(ValueError, match="diffs: an array of int64 is wanted, not float64"):
        _insert(index, Column(I64, NUMBERS), diffs=np.ones(N))
    assert index.upper == Frontier.minimum()


def test_what_stands_where_a_value_is_null_makes_no_second_null(held: Instance) -> None:
    """Of NULL keys with numbers below them each was a key by itself, and a lookup found none."""
    index = _index(held, ColumnSpec("k", I64, True))
    _insert(index, Column(I64, NUMBERS + 7, None, NUMBERS == 0))
    view = attach(1, held.token).snapshot()
    assert view.scan().total == N
    assert len(view.scan()) == 2
    assert view.lookup(None).counts.tolist() == [N - 1]


def test_texts_lists_and_records_under_null_are_one_null_too(held: Instance) -> None:
    valid = np.zeros(N, np.bool_)
    numbers = Column(I64, NUMBERS)
    for id, column in enumerate(
        (
            Column(TEXT, FOUR_BYTES, ENDS, valid),
            Column(LISTS, FOUR_BYTES[:0], ENDS, valid, children=(numbers,)),
            Column(PAIRS, FOUR_BYTES[:0], None, valid, children=(numbers,)),
        )
    ):
        schema = ArrangementSchema((ColumnSpec("k", column.type, True),), (0,))
        index = IndexWriter(SegmentAllocator(held.token, 0), id, 1, schema, 0)
        _insert(index, column)
        view = attach(id, held.token).snapshot()
        assert (view.scan().counts.tolist(), view.lookup(None).counts.tolist()) == ([N], [N]), column


def test_floats_of_other_bits_are_one_nan_and_one_zero(held: Instance) -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF8000000000000, 1 << 63, 0], np.uint64)
    index = _index(held, ColumnSpec("k", F64, False))
    _insert(index, Column(F64, bits.view(np.float64)))
    view = attach(1, held.token).snapshot()
    assert sorted(view.scan().counts.tolist()) == [2, 2]
    assert view.lookup(math.nan).counts.tolist() == view.lookup(-0.0).counts.tolist() == [2]


def test_arrays_of_any_layout_are_taken_and_plain_ones_as_they_are(held: Instance) -> None:
    index = _index(held, ColumnSpec("k", I64, False))
    _insert(index, Column(I64, np.arange(2 * N)[::-2]))
    assert sorted(attach(1, held.token).scan().rows()) == [(1,), (3,), (5,), (7,)]
    plain = Updates((Column(I64, NUMBERS), Column(I32, NUMBERS.astype(np.int32))), TIMES, DIFFS)
    assert canonical_updates(plain) is plain
