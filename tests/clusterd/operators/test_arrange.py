"""A round arranged in pieces is the batch that one sort would give; what is given up leaves nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, Round
from clusterd.operators import arrange
from clusterd.operators.arrange import Arranger
from clusterd.operators.export_index import ExportIndex
from shm_arrangements import builder
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.read import scan_at
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
from shm_arrangements.updates import Updates
from tests.clusterd.operators.test_time_steps import drained

COLUMNS: Columns = (
    ColumnSpec("k", ColumnType.INT64, True),
    ColumnSpec("v", ColumnType.TEXT, False),
)
TYPES = [ColumnType.INT64, ColumnType.TEXT]
HEAP = HeapAllocator()


@pytest.fixture
def index() -> Iterator[IndexWriter]:
    with Instance.create() as instance:
        writer = IndexWriter(SegmentAllocator(instance.token, 0), 1, 1, ArrangementSchema(COLUMNS, (0,)), 0)
        yield writer
        writer.close()


def many(seed: int, n: int, times: tuple[int, int]) -> Updates:
    rng = np.random.default_rng(seed)
    texts = Column.from_pylist(ColumnType.TEXT, [f"text {i}" for i in range(100)])
    keys = Column(ColumnType.INT64, rng.integers(0, max(n // 3, 1), n), None, rng.random(n) < 0.9).canonical()
    return Updates(
        (keys, texts.take(rng.integers(0, 100, n))),
        rng.integers(*times, n).astype(np.uint64),
        rng.choice(np.array([-1, 1, 1, 2], np.int64), n),
    )


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of some 20,000 updates, so that few of them are merged often."""
    monkeypatch.setattr(arrange, "_RUN_BYTES", 1 << 20)


@pytest.mark.slow
@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("key", [(0,), (1, 0), ()])
@pytest.mark.parametrize("n", [0, 1, 1000, BLOCK_ROWS, 3 * BLOCK_ROWS + 17])
def test_pieces_give_the_batch_that_one_sort_gives(n: int, key: tuple[int, ...]) -> None:
    schema = ArrangementSchema(COLUMNS, key)
    description = Description(Frontier.at(3), Frontier.at(9), Frontier.at(2))
    updates = many(n, n, (3, 9))
    wanted = build_batch(updates, schema, description, HEAP)
    arranger, rng, at = Arranger(schema), random.Random(n), 0
    while at < n:
        to = min(n, at + rng.choice([10, 5000, BLOCK_ROWS]))
        for _ in arranger.add(updates.slice(at, to)):
            pass
        at = to
    assert arranger.rows >= len(wanted)
    for _ in arranger.seal(description, HEAP):
        pass
    got = arranger.take()
    assert got.description == description
    got.validate_state()
    assert got.codes.tobytes() == wanted.codes.tobytes()
    assert got.times.tobytes() == wanted.times.tobytes()
    assert got.diffs.tobytes() == wanted.diffs.tobytes()
    assert [c.to_pylist() for c in got.columns] == [c.to_pylist() for c in wanted.columns]
    assert arranger.rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("key", [(0,), ()])
def test_a_key_with_most_of_the_rows_is_sorted_a_slice_at_a_time(
    key: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_at_once: list[int] = []

    def building(updates: Updates, *rest: Any) -> Any:
        sorted_at_once.append(len(updates))
        return builder.building(updates, *rest)

    monkeypatch.setattr(arrange, "building", building)
    n = 5 * BLOCK_ROWS
    updates = many(7, n, (3, 9))
    rare = np.where(np.arange(n) % 10 == 0, np.arange(n), 0)
    skewed = Updates((Column(ColumnType.INT64, rare), updates.columns[1]), updates.times, updates.diffs)
    schema = ArrangementSchema(COLUMNS, key)
    description = Description(Frontier.at(3), Frontier.at(9), Frontier.at(2))
    batches = []
    for part in (skewed, updates):
        arranger = Arranger(schema)
        for at in range(0, n, BLOCK_ROWS):
            for _ in arranger.add(part.slice(at, at + BLOCK_ROWS)):
                pass
        for _ in arranger.seal(description, HEAP):
            pass
        batches.append((arranger.take(), build_batch(part, schema, description, HEAP)))
        if part is skewed or not key:
            assert max(sorted_at_once) <= BLOCK_ROWS
        else:
            assert sorted_at_once == [n], "many keys are sorted as one run"
        sorted_at_once.clear()
    for got, wanted in batches:
        assert got.codes.tobytes() == wanted.codes.tobytes()
        assert got.diffs.tobytes() == wanted.diffs.tobytes()
        assert [c.to_pylist() for c in got.columns] == [c.to_pylist() for c in wanted.columns]


@pytest.mark.usefixtures("short_runs")
def test_what_cancels_is_gone_before_the_round_ends() -> None:
    arranger = Arranger(ArrangementSchema(COLUMNS, (0,)))
    updates = many(1, BLOCK_ROWS, (3, 4))
    for part in (updates, Updates(updates.columns, updates.times, updates.diffs), updates):
        back = Updates(part.columns, part.times, -part.diffs)
        for block in (part, back):
            for _ in arranger.add(block):
                pass
    assert arranger.rows < 2 * BLOCK_ROWS


@pytest.mark.usefixtures("short_runs")
def test_a_round_whose_sums_leave_64_bits_is_exported_and_read_once_they_fit(index: IndexWriter) -> None:
    most = (1 << 63) - 1
    one, two = (1, "a"), (2, "b")
    export = ExportIndex(COLUMNS, index)
    for time, changes in (
        (2, [(one, most), (one, most), (one, most), (two, -most - 1)]),
        (3, [(one, -most), (one, -most), (one, 3 - most), (two, most), (two, 2)]),
    ):
        export.start(Round(0 if time == 2 else time, Frontier.at(time + 1), 2))
        filler = many(5, 2 * BLOCK_ROWS, (time, time + 1))  # so that runs are made, and merged
        updates = Updates.from_rows(TYPES, [(row, time, diff) for row, diff in changes])
        for part in (filler, updates, Updates(filler.columns, filler.times, -filler.diffs)):
            for _ in export.push(0, Delta.of(part)):
                pass
        for _ in export.finish():
            pass
    for merged in (False, True):
        batches = index.oks.reader().batches()
        for batch in batches:
            batch.validate_state()
        with pytest.raises(MultiplicityOverflow):
            scan_at(batches, 2)
        columns, counts = scan_at(batches, 3)
        assert sorted(zip(*(c.to_pylist() for c in columns), strict=True)) == [one, two]
        assert sorted(counts.tolist()) == [1, 3]
        while not merged and index.exert(1 << 20):
            pass


def test_a_round_is_exported_at_its_end_and_an_empty_one_seals(index: IndexWriter) -> None:
    export = ExportIndex(COLUMNS, index)
    export.start(Round(0, Frontier.at(5), 2))
    oks = Updates.from_rows(TYPES, [((1, "a"), 2, 1), ((2, "b"), 4, 1)])
    errs = Updates.from_rows([ColumnType.TEXT], [(("eval-error: x",), 3, 1)])
    assert not [*export.push(0, Delta(oks, errs))]
    assert index.upper == Frontier.minimum(), "nothing shows before the round is over"
    assert not any(map(len, export.finish()))
    assert index.upper == Frontier.at(5)
    columns, counts = scan_at(index.oks.reader().batches(), 4)
    assert sorted(zip(*(c.to_pylist() for c in columns), strict=True)) == [(1, "a"), (2, "b")]
    assert counts.tolist() == [1, 1]
    assert scan_at(index.errs.reader().batches(), 3)[0][0].to_pylist() == ["eval-error: x"]
    for upper in (Frontier.at(9), Frontier.empty()):
        export.start(Round(index.upper.time, upper, 2))
        assert not [*export.finish()]
        assert index.upper == upper
    assert len(index.oks.reader().batches()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("run_bytes", [1 << 20, 64 << 20])
def test_an_export_given_up_at_any_piece_leaves_no_segment(
    index: IndexWriter, run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrange, "_RUN_BYTES", run_bytes)
    allocator = index.oks.allocator
    allocator.allocate(1).abandon()  # makes the arena in use
    names = {n for n in os.listdir("/dev/shm") if allocator.token in n}
    updates = many(7, 2 * BLOCK_ROWS + 5, (2, 4))
    errs = Updates.from_rows([ColumnType.TEXT], [(("eval-error: x",), 3, 1)])
    for stop in (1, 2, 3, 6, 9, 12, 1000):
        export = ExportIndex(COLUMNS, index)
        export.start(Round(0, Frontier.at(5), 2))
        for at in range(0, len(updates), BLOCK_ROWS):
            part = updates.slice(at, min(at + BLOCK_ROWS, len(updates)))
            for _ in export.push(0, Delta(part, errs)):
                pass
        work = export.finish()
        for _, _ in zip(range(stop), work, strict=False):
            pass
        if index.upper != Frontier.minimum():
            break
        work.close()  # type: ignore[attr-defined]
        export.close()
        assert {n for n in os.listdir("/dev/shm") if allocator.token in n} == names
        assert not any(arena.survivors() for arena in allocator.arenas)
    assert index.upper == Frontier.at(5), "the last one was run to its end"


def test_columns_of_every_form_are_put_in_a_row_as_concat_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrange, "_JOINED", 100)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    texts = ["", "a", "bc", "äöü"]
    inner = ListType(ColumnSpec("element", ColumnType.TEXT, True))
    pair = RecordType((ColumnSpec("n", ColumnType.INT64, False), ColumnSpec("t", ColumnType.TEXT, True)))
    kinds: list[tuple[Any, Callable[[], Any]]] = [
        (ColumnType.INT64, lambda: rng.randrange(99)),
        (ColumnType.NUMERIC, lambda: rng.randrange(1 << 90)),
        (ColumnType.TEXT, lambda: rng.choice(texts)),
        (inner, lambda: [rng.choice([*texts, None]) for _ in range(rng.randrange(4))]),
        (pair, lambda: (rng.randrange(9), rng.choice(texts))),
    ]
    for type_, value in kinds:
        for nulls in (0.0, 0.1):
            blocks = []
            for n in (70, 0, 1, 250, 80):
                values = [None if rng.random() < nulls else value() for _ in range(n + 5)]
                column = Column.from_pylist(type_, values).slice(2, n + 2)
                if n == 1:
                    column = Column.repeated(column, 3) if rng.random() < 0.5 else column
                size = len(column)
                blocks.append(Updates((column,), np.full(size, n, np.uint64), np.arange(size)))
            got, pauses = drained(arrange._joined(blocks))
            wanted = Updates.concat(blocks)
            assert got.columns[0].to_pylist() == wanted.columns[0].to_pylist()
            assert (got.times == wanted.times).all()
            assert (got.diffs == wanted.diffs).all()
            assert pauses >= 3, "at least one of each: column, times, diffs"
