"""Indexes of another process, as a worker reads them: no read is given a state older than the page it saw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterd.runtime.evaluate import Readable
from clusterd.runtime.published import PublishedIndexes
from shm_arrangements import read
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA, TraceWriter

SCHEMA = ArrangementSchema((ColumnSpec("k", ColumnType.INT64, False),), (0,))
KEY = ("u7", 1)
NO_ERRS = Updates.empty((ColumnType.TEXT,))


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance


def _row(k: int, time: int) -> Updates:
    return Updates.from_rows((ColumnType.INT64,), [((k,), time, 1)])


def _seen(readable: Readable, at: int) -> list[int]:
    columns, _ = read.scan_at(readable.oks, at, schema=SCHEMA)
    return sorted(columns[0].to_pylist())


def test_a_query_that_takes_a_newer_snapshot_leaves_no_older_one_to_reads(held: Instance) -> None:
    writer = IndexWriter(SegmentAllocator(held.token, 0), 7, 1, SCHEMA, 0)
    indexes = PublishedIndexes(held.token)
    writer.insert(_row(10, 0), NO_ERRS, Frontier.at(1))
    assert indexes.read(KEY).upper == Frontier.at(1)
    assert _seen(indexes.readable(KEY, 0.0), 0) == [10]
    writer.insert(_row(11, 1), NO_ERRS, Frontier.at(2))
    indexes.snapshot(KEY)
    assert indexes.read(KEY).upper == Frontier.at(2)
    assert _seen(indexes.readable(KEY, 0.0), 1) == [10, 11]
    indexes.close()
    writer.close()


def test_reads_keep_one_snapshot_as_long_as_the_page_says_the_same(held: Instance) -> None:
    writer = IndexWriter(SegmentAllocator(held.token, 0), 7, 1, SCHEMA, 0)
    indexes = PublishedIndexes(held.token)
    writer.insert(_row(10, 0), NO_ERRS, Frontier.at(1))
    indexes.read(KEY)
    first = indexes.readable(KEY, 0.0)
    indexes.snapshot(KEY)
    indexes.read(KEY)
    assert indexes.readable(KEY, 0.5) is first
    indexes.close()
    writer.close()


def test_d10_an_index_is_sealed_as_far_as_both_of_its_halves_and_readable_from_the_later_since(
    held: Instance,
) -> None:
    allocator = SegmentAllocator(held.token, 0)
    errs = TraceWriter(allocator, 7, 1, ERRS_SCHEMA, 0, half="errs")
    oks = TraceWriter(allocator, 7, 1, SCHEMA, 0, half="oks")
    indexes = PublishedIndexes(held.token)
    oks.insert(_row(10, 0), Frontier.at(5))
    assert indexes.read(KEY).upper == Frontier.minimum()  # an error at 0 may still come
    error = Updates.from_rows((ColumnType.TEXT,), [(("eval-error: division by zero",), 2, 1)])
    errs.insert(error, Frontier.at(3))
    seen = indexes.read(KEY)
    assert (seen.since, seen.upper) == (Frontier.at(0), Frontier.at(3))
    errs.set_compaction(Frontier.at(2))
    assert indexes.read(KEY).since == Frontier.at(2)
    indexes.close()
    oks.close()
    errs.close()
