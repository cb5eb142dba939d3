"""Writers: what is published is whole, compaction only rises, and a failed step has not happened."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from shm_arrangements import failpoints
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.batch import Batch
from shm_arrangements.errors import InvariantViolation, PublicationClosed, ShmExhausted
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import PageName
from shm_arrangements.page_layout import CAPACITY, PageStatus
from shm_arrangements.publication import PageReader
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import PublishedTrace
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import TraceWriter

SCHEMA = ArrangementSchema(
    (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.TEXT, True)), (0,)
)
TYPES = (ColumnType.INT64, ColumnType.TEXT)
Row = tuple[int, str | None]


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance
    failpoints.disarm_all()


def _trace(held: Instance, as_of: int = 0) -> TraceWriter:
    return TraceWriter(SegmentAllocator(held.token, 0), 7, 1, SCHEMA, as_of)


def _index(held: Instance, id: int = 7) -> IndexWriter:
    return IndexWriter(SegmentAllocator(held.token, 0), id, 1, SCHEMA, 0)


def _rows(*rows: tuple[Row, int, int]) -> Updates:
    return Updates.from_rows(TYPES, rows)


def _errs(*rows: tuple[str, int, int]) -> Updates:
    return Updates.from_rows((ColumnType.TEXT,), [((text,), time, diff) for text, time, diff in rows])


NOTHING = _rows()
NO_ERRS = _errs()


def _published(held: Instance, half: str = "oks", id: int = 7) -> PublishedTrace:
    return PublishedTrace(PageName(held.token, id, 1, half))


def _fold(batches: Sequence[Batch], at: int) -> Counter[Row]:
    """What `batches` say of time `at`, one update after the other."""
    fold: Counter[Row] = Counter()
    for batch in batches:
        rows = zip(*(column.to_pylist() for column in batch.row_columns()), strict=True)
        for row, time, diff in zip(rows, batch.times.tolist(), batch.diffs.tolist(), strict=True):
            if time <= at:
                fold[row] += diff
    return Counter({row: n for row, n in fold.items() if n})


def _contents(trace: PublishedTrace, at: int) -> Counter[Row]:
    return _fold(trace.snapshot().batches(), at)


def _names(held: Instance) -> int:
    """Names of batches of this instance."""
    return sum(f".{held.token}.{kind}." in name for kind in "ab" for name in os.listdir("/dev/shm"))


def test_a_new_trace_is_published_fresh_and_promises_nothing(held: Instance) -> None:
    writer = _trace(held, as_of=5)
    state = _published(held).read()
    assert (state.status, state.since, state.upper) == (PageStatus.FRESH, Frontier.at(5), Frontier.minimum())
    assert (writer.since, writer.upper) == (Frontier.at(5), Frontier.minimum())
    with pytest.raises(FileExistsError):
        _trace(held)
    writer.close()


def test_what_is_inserted_can_be_read_at_every_time(held: Instance) -> None:
    writer, trace = _trace(held), _published(held)
    writer.insert(
        _rows(((1, "a"), 0, 1), ((2, "b"), 0, 1), ((1, "a"), 2, -1), ((3, None), 2, 2)), Frontier.at(3)
    )
    writer.insert(_rows(((2, "b"), 5, 1)), Frontier.at(6))
    writer.insert(NOTHING, Frontier.empty())
    expected = {
        0: {(1, "a"): 1, (2, "b"): 1}, 1: {(1, "a"): 1, (2, "b"): 1}, 2: {(2, "b"): 1, (3, None): 2},
        5: {(2, "b"): 2, (3, None): 2}, MAX_TIME: {(2, "b"): 2, (3, None): 2},
    }  # fmt: skip
    for at, rows in expected.items():
        assert _contents(trace, at) == Counter(rows)
    assert trace.read().upper.is_empty
    assert trace.read().status is PageStatus.LIVE
    writer.close()


@pytest.mark.slow
def test_no_answer_differs_from_a_naive_fold_while_batches_are_merged_and_names_go(held: Instance) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    writer, trace = _trace(held), _published(held)
    updates: list[tuple[Row, int, int]] = []
    now = since = t = 0
    for _ in range(150):
        span = draw.randrange(1, 4)
        fresh = [
            (
                (draw.randrange(5), draw.choice(["x", "y", None])),
                t + draw.randrange(span),
                draw.choice([1, 1, -1]),
            )
            for _ in range(draw.randrange(12))
        ]
        updates += fresh
        t += span
        if draw.random() < 0.3:
            failpoints.arm("arena.append", "error", times=1)
        try:
            writer.insert(_rows(*fresh), Frontier.at(t))
        except ShmExhausted:  # nothing has happened
            writer.insert(_rows(*fresh), Frontier.at(t))
        failpoints.disarm_all()
        if draw.random() < 0.5:
            since = draw.randrange(since, t + 2)
            writer.set_compaction(Frontier.at(since))
        writer.exert(draw.randrange(100))
        now += draw.choice([0, 1])
        writer.reclaim(now)
        state = trace.read()
        assert (state.since, state.upper) == (Frontier.at(since), Frontier.at(t))
        for at in {since, t - 1, (since + t) // 2}:
            if since <= at < t:
                fold: Counter[Row] = Counter()
                for row, time, diff in updates:
                    if time <= at:
                        fold[row] += diff
                assert _contents(trace, at) == Counter({row: n for row, n in fold.items() if n}), at
    writer.close()
    assert _names(held) == 0


def test_g6_churn_on_a_fixed_key_set_does_not_grow(held: Instance) -> None:
    writer = _trace(held)
    peak = 0
    for t in range(600):
        rows = [((k, f"{t}"), t, 1) for k in range(10)]
        if t:
            rows += [((k, f"{t - 1}"), t, -1) for k in range(10)]
        writer.insert(_rows(*rows), Frontier.at(t + 1))
        writer.set_compaction(Frontier.at(t))
        writer.reclaim(float(t))
        told = writer.statistics()
        peak = max(peak, told.updates)
        assert told.batches <= 20
    assert peak <= 400
    assert _contents(_published(held), 599) == Counter({(k, "599"): 1 for k in range(10)})
    while writer.exert(1000):
        pass
    writer.reclaim(10_000.0)
    writer.reclaim(10_001.0)
    assert writer.statistics().superseded == 0
    live = {batch.locator.seq for batch in writer.reader().batches() if batch.locator is not None}
    assert live == {arena.seq for arena in writer.allocator.arenas if arena.live_bytes}
    writer.close()


def test_bug58_sealing_without_data_leaves_the_chain_as_it_is(held: Instance) -> None:
    writer = _trace(held)
    writer.insert(_rows(((1, "a"), 0, 1)), Frontier.at(1))
    for t in range(1, 500):
        writer.insert(NOTHING, Frontier.at(t + 1))
        writer.set_compaction(Frontier.at(t))
    assert writer.statistics().batches <= 4
    assert _names(held) <= 2
    assert _contents(_published(held), 499) == Counter({(1, "a"): 1})
    writer.close()


def test_a_chain_never_outgrows_its_page(held: Instance) -> None:
    writer, read = _trace(held), PageReader(PageName(held.token, 7, 1, "oks"))
    for t in range(3 * CAPACITY):
        writer.insert(_rows(((t, "a"), t, 1)), Frontier.at(t + 1))
        assert len(read.read().chain) <= CAPACITY
    writer.close()


def test_g7_compaction_never_goes_back_and_a_drop_is_not_a_compaction(held: Instance) -> None:
    writer, trace = _trace(held), _published(held)
    writer.insert(_rows(((1, "a"), 0, 1)), Frontier.at(4))
    writer.set_compaction(Frontier.at(3))
    generation = trace.read().generation
    for earlier in (2, 3):
        writer.set_compaction(Frontier.at(earlier))
    assert (trace.read().since, trace.read().generation) == (Frontier.at(3), generation)
    with pytest.raises(InvariantViolation, match="close"):
        writer.set_compaction(Frontier.empty())
    writer.set_compaction(Frontier.at(9))
    assert (trace.read().since, trace.read().upper) == (Frontier.at(9), Frontier.at(4))
    writer.insert(_rows(((1, "a"), 9, 1)), Frontier.at(10))
    assert _contents(trace, 9) == Counter({(1, "a"): 2})
    writer.close()


def test_an_insert_that_goes_back_or_covers_no_time_is_refused_without_a_trace(held: Instance) -> None:
    writer, trace = _trace(held), _published(held)
    writer.insert(_rows(((1, "a"), 0, 1)), Frontier.at(4))
    before, names = trace.read(), _names(held)
    with pytest.raises(InvariantViolation):
        writer.insert(_rows(((1, "a"), 2, 1)), Frontier.at(3))
    with pytest.raises(InvariantViolation):
        writer.insert(_rows(((1, "a"), 9, 1)), Frontier.at(5))
    with pytest.raises(InvariantViolation):
        writer.insert(_rows(((1, "a"), 4, 1)), Frontier.at(4))
    writer.insert(NOTHING, Frontier.at(4))
    assert trace.read() is before
    assert _names(held) == names
    writer.close()


def test_bug09_an_insert_without_room_has_not_happened_and_can_be_repeated(held: Instance) -> None:
    writer, trace = _trace(held), _published(held)
    writer.insert(_rows(((1, "a"), 0, 1)), Frontier.at(5))
    before = trace.read()
    failpoints.arm("arena.append", "error", times=1)
    fresh = _rows(((2, "b"), 5, 1))
    with pytest.raises(ShmExhausted):
        writer.insert(fresh, Frontier.at(6))
    assert trace.read() is before
    assert _contents(trace, 4) == Counter({(1, "a"): 1})
    writer.insert(fresh, Frontier.at(6))
    assert _contents(trace, 5) == Counter({(1, "a"): 1, (2, "b"): 1})
    writer.close()


class _NoRoomToMerge(SegmentAllocator):
    """Room for what is inserted alone: memory of merges is the one asked for in advance."""

    full = True

    def allocate(self, nbytes: int, *, deferred: bool = False) -> Any:
        if deferred and self.full:
            raise ShmExhausted("no room in shared memory", asked_bytes=nbytes, free_bytes=0)
        return super().allocate(nbytes, deferred=deferred)


@pytest.mark.parametrize("kind", [TraceWriter, IndexWriter])
def test_an_insert_for_which_only_merging_has_no_room_has_happened(
    held: Instance, kind: type[TraceWriter] | type[IndexWriter]
) -> None:
    """It raised, and who took it at its word and repeated it was told of updates of another time."""
    allocator = _NoRoomToMerge(held.token, 0)
    writer = kind(allocator, 7, 1, SCHEMA, 0)
    trace = _published(held)
    wanted: Counter[Row] = Counter()
    for t in range(40):
        fresh: list[Row] = [(k, "x") for k in range(t, t + 20)]
        rows = _rows(*((row, t, 1) for row in fresh))
        if isinstance(writer, IndexWriter):
            writer.insert(rows, NO_ERRS, Frontier.at(t + 1))
        else:
            writer.insert(rows, Frontier.at(t + 1))
        wanted.update(fresh)
        assert trace.snapshot().upper == writer.upper == Frontier.at(t + 1)
    assert len(trace.snapshot().batches()) > 30
    with pytest.raises(ShmExhausted):
        writer.exert(1 << 20)
    allocator.full = False
    while writer.exert(1 << 20):
        pass
    assert len(trace.snapshot().batches()) < 5
    assert _contents(trace, 39) == wanted
    writer.close()


@pytest.mark.parametrize("half", ["oks", "errs"])
def test_bug09_an_index_moves_with_both_halves_or_not_at_all(held: Instance, half: str) -> None:
    index = _index(held)
    index.insert(_rows(((1, "a"), 0, 1)), NO_ERRS, Frontier.at(5))
    names = _names(held)
    failpoints.arm("arena.append", "error", times=1)
    rows = _rows(((2, "b"), 5, 1)) if half == "oks" else NOTHING
    errs = _errs(("eval-error: division by zero", 5, 1)) if half == "errs" else NO_ERRS
    with pytest.raises(ShmExhausted):
        index.insert(rows, errs, Frontier.at(6))
    assert index.oks.upper == index.errs.upper == index.upper == Frontier.at(5)
    assert _names(held) == names
    index.insert(rows, errs, Frontier.at(6))
    assert index.oks.upper == index.errs.upper == Frontier.at(6)
    index.close()


def test_a_dropped_index_says_so_and_leaves_no_name(held: Instance) -> None:
    index = _index(held)
    index.insert(_rows(((1, "a"), 0, 1)), _errs(("eval-error: x", 0, 1)), Frontier.at(1))
    oks, errs = _published(held), _published(held, "errs")
    snapshot = oks.snapshot()
    index.close()
    index.close()
    for trace in (oks, errs):
        with pytest.raises(PublicationClosed):
            trace.snapshot()
        assert trace.read().upper == Frontier.at(1)
    assert len(snapshot.batches()[0]) == 1
    assert [name for name in os.listdir("/dev/shm") if held.token in name] == [f"clusterd.{held.token}.ctl"]


def test_a_trace_dropped_in_the_middle_of_merges_leaves_no_name(held: Instance) -> None:
    writer = _trace(held)
    for t in range(40):
        writer.insert(_rows(*[((k, "a"), t, 1) for k in range(t, t + 200)]), Frontier.at(t + 1))
    writer.exert(7)
    writer.close()
    assert _names(held) == 0


def test_an_alias_serves_until_the_last_id_is_withdrawn(held: Instance) -> None:
    index = _index(held)
    index.publish_as(8, 2)
    index.insert(_rows(((1, "a"), 0, 1)), NO_ERRS, Frontier.at(1))
    alias = PublishedTrace(PageName(held.token, 8, 2, "oks"))
    assert not index.withdraw(7, 1)
    with pytest.raises(PublicationClosed):
        _published(held)
    index.insert(_rows(((2, "b"), 1, 1)), NO_ERRS, Frontier.at(2))
    assert _contents(alias, 1) == Counter({(1, "a"): 1, (2, "b"): 1})
    assert index.withdraw(8, 2)
    with pytest.raises(PublicationClosed):
        alias.snapshot()
    assert _names(held) == 0


def test_an_importer_gets_the_chain_and_then_every_batch_and_no_upper_ahead_of_them(held: Instance) -> None:
    writer = _trace(held)
    writer.insert(_rows(((1, "a"), 0, 1)), Frontier.at(1))
    queue = writer.listen()
    assert (sum(map(len, queue.history)), queue.upper, len(queue)) == (1, Frontier.at(1), 0)
    for t in range(1, 20):
        writer.insert(_rows(((t, "b"), t, 1)) if t % 2 else NOTHING, Frontier.at(t + 1))
        assert queue.upper == Frontier.at(t + 1)
    assert len(queue) == 10
    first = queue.drain(Frontier.at(6))
    assert [batch.times.tolist() for batch in first] == [[1], [3], [5]]
    rest = queue.drain()
    assert [batch.times.tolist()[0] for batch in rest] == list(range(7, 20, 2))
    assert (queue.drain(), queue.is_closed) == ([], False)
    writer.insert(_rows(((9, "c"), 20, 1)), Frontier.at(21))
    writer.close()
    assert queue.is_closed
    assert queue.upper == Frontier.at(21)
    assert len(queue.drain()) == 1


def test_a_forgotten_queue_grows_no_more(held: Instance) -> None:
    index = _index(held)
    queues = index.listen()
    index.forget(queues)
    index.forget(queues)
    index.insert(_rows(((1, "a"), 0, 1)), _errs(("e", 0, 1)), Frontier.at(1))
    assert (len(queues[0]), len(queues[1])) == (0, 0)
    index.close()


def test_readers_of_the_same_process_see_the_chain_of_the_moment(held: Instance) -> None:
    index = _index(held)
    reader = index.reader()
    assert (reader.since, reader.upper) == (Frontier.minimum(), Frontier.minimum())
    index.insert(_rows(((1, "a"), 0, 1)), NO_ERRS, Frontier.at(3))
    index.set_compaction(Frontier.at(2))
    assert (reader.since, reader.upper, reader.oks.schema) == (Frontier.at(2), Frontier.at(3), SCHEMA)
    assert _fold(reader.oks.batches(), 2) == Counter({(1, "a"): 1})
    index.oks.insert(NOTHING, Frontier.at(9))
    index.oks.set_compaction(Frontier.at(5))
    assert (reader.since, reader.upper) == (Frontier.at(5), Frontier.at(3))
    index.close()
