"""Clocks: a cell says how far its pages are sealed, never too much, whoever has had it before."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from shm_arrangements import clock as clocks
from shm_arrangements import failpoints, segment
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach
from shm_arrangements.clock import CELLS, Cell, CellReader, ClockReader
from shm_arrangements.errors import FormatMismatch, InvariantViolation, NotReadable, NotSealed
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.index_writer import IndexWriter, advance_idle
from shm_arrangements.instance import Instance
from shm_arrangements.names import PageName, clock_name
from shm_arrangements.page_layout import PageStatus
from shm_arrangements.publication import PageReader
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import PublishedTrace, snapshot_together
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import TraceWriter

I64, TEXT = ColumnType.INT64, ColumnType.TEXT
SCHEMA = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
NOTHING, NO_ERRS = Updates.empty((I64, I64)), Updates.empty((TEXT,))


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance
    failpoints.disarm_all()


def _rows(*rows: tuple[tuple[int, int], int, int]) -> Updates:
    return Updates.from_rows((I64, I64), rows)


def _errs(time: int) -> Updates:
    return Updates.from_rows((TEXT,), [(("eval-error: x",), time, 1)])


def _index(held: Instance, id: int = 7, *, upper: int = 1) -> IndexWriter:
    index = IndexWriter(SegmentAllocator(held.token, 0), id, 1, SCHEMA, 0)
    if upper:
        index.insert(_rows(((1, 2), 0, 1)), NO_ERRS, Frontier.at(upper))
    return index


def _pages(held: Instance, id: int = 7) -> list[PageReader]:
    return [PageReader(PageName(held.token, id, 1, half)) for half in ("oks", "errs")]


def _clocks(held: Instance) -> list[str]:
    return sorted(name for name in os.listdir("/dev/shm") if f"{held.token}.c." in name)


def test_time_that_passes_turns_no_page_and_readers_see_it(held: Instance) -> None:
    index = _index(held)
    pages = _pages(held)
    generation = index.generation
    before = [page.read() for page in pages]
    assert [page.read() for page in pages] == before
    for t in (5, 9, MAX_TIME):
        index.insert(NOTHING, NO_ERRS, Frontier.at(t))
        assert index.upper == index.oks.upper == index.errs.upper == Frontier.at(t)
        for page in pages:
            state = page.read()
            assert (state.upper, state.chain[-1].upper) == (Frontier.at(t), Frontier.at(t))
            assert page.read() is state
    assert index.generation == generation
    index.close()


def test_the_batch_that_follows_abuts_the_time_that_passed(held: Instance) -> None:
    index = _index(held)
    index.advance(Frontier.at(5))
    index.insert(_rows(((3, 4), 5, 1)), NO_ERRS, Frontier.at(7))
    trace = PublishedTrace(PageName(held.token, 7, 1, "oks"))
    chain = trace.snapshot().batches()
    assert chain[-1].description.upper == Frontier.at(7)
    index.oks._spine.validate_state()
    assert index.oks.upper == index.errs.upper == Frontier.at(7)
    queue, _ = index.listen()
    index.advance(Frontier.at(9))
    assert queue.upper == Frontier.at(9)
    index.insert(_rows(((3, 4), 9, 1)), NO_ERRS, Frontier.at(10))
    (came,) = queue.drain()
    assert (came.description.lower, came.description.upper) == (Frontier.at(9), Frontier.at(10))
    index.close()
    assert queue.upper == Frontier.at(10)


def test_rows_for_one_half_turn_one_page(held: Instance) -> None:
    index = _index(held)
    oks, errs = _pages(held)
    before = oks.generation(), errs.generation()
    index.insert(_rows(((3, 4), 1, 1)), NO_ERRS, Frontier.at(2))
    assert (oks.generation(), errs.generation()) == (before[0] + 1, before[1])
    index.insert(NOTHING, _errs(2), Frontier.at(3))
    assert (oks.generation(), errs.generation()) == (before[0] + 1, before[1] + 1)
    assert [page.read().upper for page in (oks, errs)] == [Frontier.at(3)] * 2
    index.close()


def test_what_was_never_sealed_and_what_is_sealed_for_ever_is_said_by_a_turn(held: Instance) -> None:
    index = _index(held, upper=0)
    pages = _pages(held)
    assert [page.read().status for page in pages] == [PageStatus.FRESH] * 2
    index.advance(Frontier.at(4))
    assert [page.read().status for page in pages] == [PageStatus.LIVE] * 2
    index.advance(Frontier.at(6))
    index.advance(Frontier.empty())
    assert [page.read().upper.is_empty for page in pages] == [True] * 2
    index.advance(Frontier.empty())
    with pytest.raises(InvariantViolation):
        index.advance(Frontier.at(8))
    index.close()


def test_an_upper_that_regresses_is_refused_without_effect(held: Instance) -> None:
    index, other = _index(held, upper=5), _index(held, 8, upper=5)
    with pytest.raises(InvariantViolation):
        index.advance(Frontier.at(4))
    with pytest.raises(InvariantViolation):
        index.insert(NOTHING, NO_ERRS, Frontier.at(4))
    with pytest.raises(InvariantViolation):
        advance_idle([other, index], Frontier.at(4))
    index.advance(Frontier.at(5))
    assert index.upper == other.upper == Frontier.at(5)
    index.close()
    other.close()


def test_a_half_that_was_moved_alone_is_never_taken_back(held: Instance) -> None:
    index = _index(held)
    index.oks.insert(_rows(((5, 5), 1, 1)), Frontier.at(9))
    oks, errs = _pages(held)
    assert (oks.read().upper, errs.read().upper, index.upper) == (
        Frontier.at(9),
        Frontier.at(1),
        Frontier.at(1),
    )
    with pytest.raises(InvariantViolation):
        index.advance(Frontier.at(3))
    advance_idle([index], Frontier.at(3))
    assert (oks.read().upper, errs.read().upper, index.upper) == (
        Frontier.at(9),
        Frontier.at(3),
        Frontier.at(3),
    )
    index.advance(Frontier.at(12))
    assert oks.read().upper == errs.read().upper == Frontier.at(12)
    index.close()


@pytest.mark.parametrize("half", ["oks", "errs"])
def test_a_turn_that_failed_holds_the_cell_until_it_was_made_up_for(held: Instance, half: str) -> None:
    index = _index(held)
    pages = _pages(held)
    failpoints.arm("publication.before-flip", "error", times=1)
    oks, errs = (_rows(((3, 4), 1, 1)), NO_ERRS) if half == "oks" else (NOTHING, _errs(1))
    with pytest.raises(OSError, match="failpoint"):
        index.insert(oks, errs, Frontier.at(2))
    assert min(page.read().upper.time for page in pages) == 1, "sealed, and the row is not there"
    index.advance(Frontier.at(3))
    for page, told in zip(pages, (half == "oks", half == "errs"), strict=True):
        state = page.read()
        assert state.upper == Frontier.at(3)
        assert sum(entry.rows for entry in state.chain) == told + (page is pages[0])
    index.close()


def test_a_trace_alone_has_a_cell_of_its_own(held: Instance) -> None:
    writer = TraceWriter(SegmentAllocator(held.token, 0), 7, 1, SCHEMA, 0)
    page = PageReader(PageName(held.token, 7, 1, "oks"))
    writer.insert(_rows(((1, 1), 0, 1)), Frontier.at(1))
    generation = page.generation()
    assert writer.insert(NOTHING, Frontier.at(6)).description.upper == Frontier.at(6)
    assert (page.read().upper, page.generation(), writer.upper) == (
        Frontier.at(6),
        generation,
        Frontier.at(6),
    )
    writer.insert(_rows(((1, 1), 6, 1)), Frontier.at(7))
    assert page.read().upper == Frontier.at(7)
    writer.close()
    assert (page.read().status, page.read().upper, writer.upper) == (
        PageStatus.CLOSED, Frontier.at(7), Frontier.at(7),
    )  # fmt: skip


def test_a_page_that_closes_keeps_the_upper_of_its_cell_and_follows_it_no_more(held: Instance) -> None:
    index = _index(held)
    index.advance(Frontier.at(8))
    pages = _pages(held)
    index.close()
    assert not _clocks(held)
    other = _index(held, 8)
    other.advance(Frontier.at(100))
    for page in pages:
        assert (page.read().status, page.read().upper) == (PageStatus.CLOSED, Frontier.at(8))
    assert index.upper == Frontier.at(8)
    other.close()


def test_a_cell_that_had_another_page_starts_at_nothing(held: Instance) -> None:
    keeper, first = _index(held, 8), _index(held)
    first.advance(Frontier.at(50))
    old = _pages(held)
    assert old[0].header.cell != PageReader(PageName(held.token, 8, 1, "oks")).header.cell
    first.close()
    second = _index(held, 9, upper=0)
    fresh = _pages(held, 9)
    assert (fresh[0].header.clock, fresh[0].header.cell) == (old[0].header.clock, old[0].header.cell)
    assert [page.read().upper for page in fresh] == [Frontier.minimum()] * 2
    second.advance(Frontier.at(70))
    assert [page.read().upper for page in old] == [Frontier.at(50)] * 2
    for index in (second, keeper):
        index.close()
    assert not _clocks(held)


def test_more_indexes_than_a_clock_has_cells_take_a_further_clock(held: Instance) -> None:
    cells = [Cell.take(held.token, 5) for _ in range(2 * CELLS + 1)]
    assert len(_clocks(held)) == 3
    assert len({(cell.clock, cell.number) for cell in cells}) == len(cells)
    for cell in cells:
        cell.follow()
    clocks.advance_cells(cells, 9)
    last = CellReader(ClockReader.of(held.token, 5, cells[-1].clock), cells[-1].number)
    assert (last.upper(), last.bell() > 0) == (9, True)
    for cell in cells:
        cell.leave()
        cell.ring()  # nobody follows: no effect
    assert not _clocks(held)


def test_many_idle_indexes_move_together_and_new_ones_along(held: Instance) -> None:
    indexes = [_index(held, id, upper=id % 3) for id in range(20)]
    generations = [index.generation for index in indexes]
    advance_idle(indexes, Frontier.at(5))
    advance_idle(indexes, Frontier.at(6))
    advance_idle([], Frontier.at(6))
    assert [index.upper for index in indexes] == [Frontier.at(6)] * 20
    moved = [now != before for now, before in zip((i.generation for i in indexes), generations, strict=True)]
    assert moved == [id % 3 == 0 for id in range(20)]
    advance_idle(indexes, Frontier.empty())
    assert all(index.upper.is_empty for index in indexes)
    for index in indexes:
        index.close()


def test_a_snapshot_of_before_maps_nothing_anew_when_time_passed(held: Instance) -> None:
    index = _index(held)
    traces = [PublishedTrace(PageName(held.token, 7, 1, half)) for half in ("oks", "errs")]
    first = snapshot_together(traces)
    index.advance(Frontier.at(9))
    second = snapshot_together(traces)
    assert [one.upper for one in second] == [Frontier.at(9)] * 2
    assert [one.upper for one in first] == [Frontier.at(1)] * 2
    assert second[0].batches()[-1].codes is first[0].batches()[-1].codes
    assert second[0].batches()[-1].description.upper == Frontier.at(9)
    with attach("u7", held.token) as read:
        assert (read.snapshot().at, read.scan(at=8).rows()) == (8, [(1, 2)])
        with pytest.raises(NotSealed):
            read.snapshot(9)
        index.set_compaction(Frontier.at(5))
        with pytest.raises(NotReadable):
            read.snapshot(4)
        assert read.upper == Frontier.at(9)
    index.close()


def test_bytes_that_are_no_clock_are_told(held: Instance) -> None:
    cell = Cell.take(held.token, 0)
    cell.follow()
    image = bytes(segment.attach(clock_name(held.token, 0, cell.clock)).buf)
    wrongs = {
        "not a clock": b"X" + image[1:],
        "another version": image[:8] + b"\x09" + image[9:],
        "damaged": image[:12] + b"\xff\xff" + image[14:],
    }
    for number, (message, wrong) in enumerate(wrongs.items()):
        name = clock_name(held.token, 9, number)
        segment.create(name, len(wrong)).buf[: len(wrong)] = wrong
        with pytest.raises(FormatMismatch, match=message):
            ClockReader.of(held.token, 9, number)
        segment.unlink(name)
    with pytest.raises(FormatMismatch, match="no such cell"):
        CellReader(ClockReader.of(held.token, 0, cell.clock), CELLS + 1)
    cell.leave()


def test_a_random_history_of_rows_and_passing_time_reads_as_a_naive_fold(held: Instance) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    index = _index(held, upper=0)
    queue, _ = index.listen()
    rows: list[tuple[tuple[int, int], int, int]] = []
    failed = 0
    upper = since = 0
    with attach("u7", held.token) as read:
        for _ in range(120):
            lower, upper = upper, upper + draw.randrange(1, 4)
            fresh = [
                ((draw.randrange(4), draw.randrange(3)), draw.randrange(lower, upper), 1)
                for _ in range(draw.choice([0, 0, 0, 3]))
            ]
            if draw.random() < 0.1:
                failpoints.arm("publication.before-flip", "error", times=1)
            try:
                index.insert(_rows(*fresh), NO_ERRS, Frontier.at(upper))
            except OSError:
                failed += 1
                index.advance(Frontier.at(upper))
            failpoints.disarm_all()
            rows += fresh
            if draw.random() < 0.2:
                since = draw.randrange(since, upper)
                index.set_compaction(Frontier.at(since))
                index.exert(100)
                index.reclaim(float(upper))
            assert read.upper == index.upper == queue.upper == Frontier.at(upper)
            at = draw.randrange(since, upper)
            assert sorted(read.scan(at).rows()) == sorted(row for row, time, _ in rows if time <= at)
            index.oks._spine.validate_state()
    assert sum(map(len, queue.drain())) <= len(rows)
    index.close()


@pytest.mark.slow
def test_two_hundred_idle_indexes_move_in_a_fraction_of_a_tick_and_leave_no_memory(held: Instance) -> None:
    import tracemalloc

    indexes = [_index(held, id) for id in range(200)]
    for t in range(2, 10):
        advance_idle(indexes, Frontier.at(t))
    names = sorted(name for name in os.listdir("/dev/shm") if held.token in name)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for t in range(10, 110):
        advance_idle(indexes, Frontier.at(t))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    took = []
    for t in range(110, 160):
        began = time.perf_counter()
        advance_idle(indexes, Frontier.at(t))
        took.append(time.perf_counter() - began)
    print(f"best of 50: {min(took) * 1e6:.0f} us for 200, {grown} bytes kept after 100 advances")
    assert grown < 4096
    assert names == sorted(name for name in os.listdir("/dev/shm") if held.token in name)
    assert min(took) < 1e-3
    for index in indexes:
        index.close()
