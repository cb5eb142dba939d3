"""Imports: a stream and a state that agree, holds that only rise, queries that no maintenance disturbs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, NO_ERRS, Columns, Delta, Round, Source
from clusterd.operators.import_index import ImportIndex
from clusterd.operators.import_snapshot import ImportSnapshot
from clusterd.operators.import_source import ImportSource
from clusterd.storage.store import Store
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.read import scan_at
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec
from shm_arrangements.types import ColumnType as C
from shm_arrangements.updates import Updates

COLUMNS: Columns = (ColumnSpec("k", C.INT64, False),)
at, EMPTY = Frontier.at, Frontier.empty()


@pytest.fixture
def index() -> Iterator[IndexWriter]:
    with Instance.create() as instance:
        writer = IndexWriter(SegmentAllocator(instance.token, 0), 1, 1, ArrangementSchema(COLUMNS, (0,)), 0)
        yield writer
        writer.close()


def rows(*changes: tuple[int, int, int]) -> Updates:
    """(value, time, diff) each."""
    return Updates.from_rows([C.INT64], [((v,), t, d) for v, t, d in changes])


def streamed(source: Source) -> list[tuple[int, int, int]]:
    out = []
    for delta in source.blocks():
        out += [(row[0], t, d) for row, t, d in delta.oks.to_rows()]
    return sorted(out)


def errors(source: Source) -> list[str]:
    return [row[0] for delta in source.blocks() for row, _, _ in delta.errs.to_rows()]


def test_the_first_round_reads_the_chain_and_later_ones_what_came_since(index: IndexWriter) -> None:
    index.insert(rows((1, 0, 1), (2, 3, 1)), NO_ERRS, at(4))
    source = ImportIndex(index, as_of=2)
    assert source.hold == at(2)
    source.start(Round(0, at(4), 2))
    assert streamed(source) == [(1, 2, 1), (2, 3, 1)]
    assert not source.arranged.history()
    source.finish()
    assert source.hold == at(3), "a time below the next lower must stay below it"
    index.insert(rows((1, 5, -1)), NO_ERRS, at(6))
    index.insert(rows((3, 7, 1)), NO_ERRS, at(8))
    source.start(Round(4, at(8), 2))
    assert streamed(source) == [(1, 5, -1), (3, 7, 1)]
    assert sum(map(len, source.arranged.delta())) == 2, "as small as the change"
    state, counts = scan_at(source.arranged.history(), 3)
    assert sorted(zip(state[0].to_pylist(), counts.tolist(), strict=True)) == [(1, 1), (2, 1)]
    source.finish()
    assert source.statistics().state_rows == 0
    source.close()
    assert source.hold == EMPTY


def test_a_batch_across_the_end_of_a_round_is_seen_in_both_once_each(index: IndexWriter) -> None:
    source = ImportIndex(index, as_of=0)
    index.insert(rows((1, 0, 1), (2, 5, 1), (3, 9, 1)), NO_ERRS, at(10))
    seen = []
    for lower, upper in ((0, 3), (3, 6), (6, 10)):
        source.start(Round(lower, at(upper), 0))
        seen.append(streamed(source))
        source.finish()
    assert seen == [[(1, 0, 1)], [(2, 5, 1)], [(3, 9, 1)]]


def test_merging_and_compaction_up_to_the_hold_lose_nothing_the_import_still_reads(
    index: IndexWriter,
) -> None:
    source = ImportIndex(index, as_of=0)
    for time in range(20):
        index.insert(rows((time % 3, time, 1)), NO_ERRS, at(time + 1))
    source.start(Round(0, at(10), 0))
    first = streamed(source)
    source.finish()
    index.set_compaction(source.hold)
    while index.exert(1000):
        pass
    source.start(Round(10, at(20), 0))
    assert streamed(source) == [(t % 3, t, 1) for t in sorted(range(10, 20), key=lambda t: (t % 3, t))]
    old, counts = scan_at(source.arranged.history(), 9)
    assert dict(zip(old[0].to_pylist(), counts.tolist(), strict=True)) == {0: 4, 1: 3, 2: 3}
    assert len(first) == 10


def test_errors_come_with_the_stream_and_to_joins(index: IndexWriter) -> None:
    errs = Updates.from_rows([C.TEXT], [(("eval-error: a",), 1, 1), (("eval-error: b",), 7, 1)])
    index.insert(rows(), errs, at(8))
    source = ImportIndex(index, as_of=2)
    source.start(Round(0, at(5), 2))
    assert errors(source) == ["eval-error: a"]
    assert source.arranged.errs_delta().to_rows() == [(("eval-error: a",), 2, 1)]
    source.finish()
    source.start(Round(5, at(8), 2))
    assert source.arranged.errs_delta().to_rows() == [(("eval-error: b",), 7, 1)]


def test_an_index_that_is_not_scheduled_to_be_read_piles_nothing_up(index: IndexWriter) -> None:
    source = ImportIndex(index, as_of=0)
    for time in range(5):
        index.insert(rows((1, time, 1)), NO_ERRS, at(time + 1))
    assert source.statistics().state_rows == 0
    assert source.frontier == at(5)


def test_the_last_round_lets_go_of_the_index(index: IndexWriter) -> None:
    source = ImportIndex(index, as_of=0)
    index.insert(rows((1, 0, 1)), NO_ERRS, at(9))
    source.start(Round(0, EMPTY, 0, until=1))
    assert streamed(source) == [(1, 0, 1)]
    source.finish()
    assert source.hold == EMPTY
    index.insert(rows((2, 9, 1)), NO_ERRS, at(10))
    assert source.statistics().state_rows == 0


def test_a_snapshot_is_read_at_one_time_whatever_it_holds_beyond(index: IndexWriter) -> None:
    errs = Updates.from_rows([C.TEXT], [(("eval-error: late",), 6, 1)])
    index.insert(rows((1, 0, 1), (2, 5, 1), (2, 6, -1)), errs, at(9))
    reader = index.reader()
    source = ImportSnapshot(lambda: (reader.oks, reader.errs))
    assert source.frontier == at(9)
    source.start(Round(0, EMPTY, 5, until=6))
    assert streamed(source) == [(1, 5, 1), (2, 5, 1)]
    assert not errors(source)
    assert source.arranged.schema == index.schema
    source.finish()
    source.close()


def test_streams_of_large_batches_come_in_blocks(index: IndexWriter) -> None:
    n = 2 * BLOCK_ROWS + 3
    updates = rows((0, 0, 1)).take(np.zeros(n, np.int64))
    updates.columns[0].values[:] = np.arange(n)
    index.insert(updates, NO_ERRS, at(1))
    source = ImportIndex(index, as_of=0)
    source.start(Round(0, at(1), 0))
    blocks: list[Delta] = [*source.blocks()]
    assert [len(b.oks) for b in blocks] == [BLOCK_ROWS, BLOCK_ROWS, 3]
    assert NO_ERRS.types[0] is blocks[0].errs.columns[0].type


def test_a_shard_is_read_round_by_round_and_only_when_told_to_look(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", create=True)
    schema = Schema((Column("k", ColumnType.INT64),))
    shard = store.create_shard("s", schema)
    shard.append(rows((1, 0, 1), (2, 3, 1)), Frontier.minimum(), at(4))
    source = ImportSource(shard)
    assert source.frontier == at(4)
    source.start(Round(0, at(4), 2))
    assert streamed(source) == [(1, 2, 1), (2, 3, 1)]
    source.finish()
    shard.append(rows((2, 4, -1)), at(4), at(6))
    assert source.frontier == at(4)
    assert source.refresh()
    assert not source.refresh()
    source.start(Round(4, at(6), 2))
    assert streamed(source) == [(2, 4, -1)]
    source.finish()
    source.close()
    store.close()
