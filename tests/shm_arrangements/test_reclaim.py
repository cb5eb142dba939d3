"""Reclaim: a name goes after its grace, in turns and in time, and never before."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm_arrangements import failpoints
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.frontier import Frontier
from shm_arrangements.instance import Instance
from shm_arrangements.names import Locator, PageName
from shm_arrangements.publication import PageReader, PublicationPage
from shm_arrangements.reclaim import (
    FREED_BYTES,
    GRACE_GENERATIONS,
    GRACE_S,
    LEAST_KEPT_BYTES,
    Reclaimer,
    Superseded,
    plan_reclaim,
)
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import PublishedTrace
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import TraceWriter

SCHEMA = ArrangementSchema((ColumnSpec("k", ColumnType.INT64, False),), (0,))


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance
    failpoints.disarm_all()


times = st.floats(0, 100, allow_nan=False)


@given(
    st.lists(st.tuples(st.integers(1, 20), times)),
    st.integers(20, 30),
    times,
    st.integers(0, 5),
    st.floats(0, 10),
    st.integers(0, 200),
)
def test_a_plan_keeps_both_conditions_and_forgets_nothing(
    noted: list[tuple[int, float]], generation: int, now_s: float, turns: int, grace_s: float, keep_bytes: int
) -> None:
    superseded = [
        Superseded(Locator("0" * 12, 0, seq), 10 * (seq % 4), since, at_s)
        for seq, (since, at_s) in enumerate(noted)
    ]
    plan = plan_reclaim(
        superseded,
        generation=generation,
        now_s=now_s,
        grace_generations=turns,
        grace_s=grace_s,
        keep_bytes=keep_bytes,
    )
    assert sorted(plan.free + plan.keep, key=lambda one: one.locator.seq) == superseded
    assert sum(one.nbytes for one in plan.keep) <= keep_bytes
    for one in plan.free:
        newer = sum(other.nbytes for other in superseded[one.locator.seq :])
        assert one.at_s + grace_s <= now_s or newer > keep_bytes
        assert generation + plan.turns >= one.generation + turns
    assert 0 <= plan.turns <= turns
    assert (plan.due_s is None) == (not plan.keep)
    if plan.due_s is not None:
        assert plan.due_s > now_s
        assert min(one.at_s + grace_s for one in plan.keep) == plan.due_s


def _made(held: Instance, n: int) -> tuple[Reclaimer, list[Locator]]:
    """n places that may be superseded, each a segment of its own."""
    allocator = SegmentAllocator(held.token, 0)
    places = []
    for _ in range(n):
        allocation = allocator.allocate(1 << 16)
        allocation.seal()
        assert not allocation.locator.in_arena
        places.append(allocation.locator)
    return Reclaimer(allocator), places


def _small(places: list[Locator]) -> list[tuple[Locator, int]]:
    return [(place, 10) for place in places]


def _standing(places: list[Locator]) -> int:
    return sum(Path("/dev/shm", place.name).exists() for place in places)


def test_an_idle_writer_turns_the_page_again_until_the_names_may_go(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    read = PageReader(page.header.page)
    before = read.read()
    reclaimer, places = _made(held, 3)
    assert reclaimer.run(page, 0.0) is None
    reclaimer.supersede(_small(places), page.state.generation)
    assert reclaimer.run(page, 10.0) == 10.0 + GRACE_S
    assert reclaimer.run(page, 10.0 + GRACE_S / 2) == 10.0 + GRACE_S
    assert (_standing(places), len(reclaimer), page.state.generation) == (3, 3, before.generation)
    assert reclaimer.run(page, 10.0 + GRACE_S) is None
    assert (_standing(places), len(reclaimer)) == (0, 0)
    assert page.state.generation == before.generation + GRACE_GENERATIONS
    after = read.read()
    assert (after.status, after.since, after.upper) == (before.status, before.since, before.upper)
    assert reclaimer.run(page, 20.0) is None
    assert page.state.generation == after.generation
    page.close()


def test_much_that_waits_is_not_kept_for_the_seconds_sake(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    reclaimer, places = _made(held, 3)
    reclaimer.supersede([(place, LEAST_KEPT_BYTES // 2) for place in places], page.state.generation)
    assert reclaimer.run(page, 0.0) == GRACE_S
    assert [_standing([place]) for place in places] == [0, 1, 1]
    assert page.state.generation == 1 + GRACE_GENERATIONS
    page.close()
    reclaimer.finish()


def test_much_that_is_due_is_freed_over_several_calls(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    reclaimer, places = _made(held, 9)
    reclaimer.supersede([(place, FREED_BYTES) for place in places], page.state.generation)
    left = []
    while len(reclaimer):
        due = reclaimer.run(page, 10.0)
        left.append(_standing(places))
        assert due == (10.0 if left[-1] else None)
    assert left == [7, 6, 5, 4, 3, 2, 1, 0], "a quarter of what waits, and one at least"
    page.close()


def test_a_busy_writer_needs_no_extra_turns(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    reclaimer, places = _made(held, 1)
    reclaimer.supersede(_small(places), page.state.generation)
    reclaimer.run(page, 0.0)
    for _ in range(GRACE_GENERATIONS):
        page.again()
    generation = page.state.generation
    assert reclaimer.run(page, 1.0) is None
    assert (page.state.generation, _standing(places)) == (generation, 0)
    page.close()


def test_a_failed_unlink_is_tried_again(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    reclaimer, places = _made(held, 2)
    reclaimer.supersede(_small(places), page.state.generation)
    reclaimer.run(page, 0.0)
    failpoints.arm("batch.unlink", "error", times=1)
    with pytest.raises(OSError, match="failpoint"):
        reclaimer.run(page, 1.0)
    assert len(reclaimer) == 2
    assert reclaimer.run(page, 1.0) is None
    assert _standing(places) == 0
    page.close()


def test_finish_removes_what_waits_at_once(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    reclaimer, places = _made(held, 4)
    reclaimer.supersede(_small(places[:2]), page.state.generation)
    reclaimer.run(page, 0.0)
    reclaimer.supersede(_small(places[2:]), page.state.generation)
    page.close()
    reclaimer.finish()
    assert (_standing(places), len(reclaimer)) == (0, 0)
    assert not [name for name in os.listdir("/dev/shm") if held.token in name and not name.endswith("ctl")]


def _rows(first: int, n: int, time: int, diff: int = 1) -> Updates:
    return Updates.from_rows((ColumnType.INT64,), [((k,), time, diff) for k in range(first, first + n)])


def _keys(trace: PublishedTrace) -> Counter[int]:
    """What the published chain says of its last time."""
    found: Counter[int] = Counter()
    for batch in trace.snapshot().batches():
        for key, diff in zip(batch.row_columns()[0].to_pylist(), batch.diffs.tolist(), strict=True):
            found[key] += diff
    return Counter({key: n for key, n in found.items() if n})


class Fleet:
    """Some traces of one writer that share arenas, and a clock."""

    def __init__(self, held: Instance, n: int) -> None:
        self.allocator = SegmentAllocator(held.token, 0)
        self.traces = [TraceWriter(self.allocator, id, 1, SCHEMA, 0) for id in range(n)]
        self.published = [PublishedTrace(PageName(held.token, id, 1, "oks")) for id in range(n)]
        self.now_s = 0.0

    def reclaim(self, *, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.now_s += 2 * GRACE_S
            for trace in self.traces:
                trace.reclaim(self.now_s)

    def churn(self, trace: int, until_arenas: int) -> None:
        """Insert and take back the same rows, until the writer has opened so many arenas in all."""
        seen = {arena.seq for arena in self.allocator.arenas}
        writer = self.traces[trace]
        while len(seen) < until_arenas:
            time = 0 if writer.upper == Frontier.minimum() else writer.upper.time
            writer.set_compaction(Frontier.at(time))
            writer.insert(_rows(0, 400, time, 1 if time % 2 == 0 else -1), Frontier.at(time + 1))
            seen |= {arena.seq for arena in self.allocator.arenas}
            if time % 8 == 0:
                self.reclaim()

    def close(self) -> None:
        for trace in self.traces:
            trace.close()


def test_an_arena_stays_for_the_grace_of_every_page_that_named_something_in_it(held: Instance) -> None:
    fleet = Fleet(held, 2)
    for trace in fleet.traces:
        trace.insert(_rows(0, 10, 0), Frontier.at(1))
    (arena,) = fleet.allocator.arenas
    name = Path("/dev/shm", arena.name)
    assert len(arena.survivors()) == 2
    fleet.traces[0].close()
    assert len(arena.survivors()) == 1
    assert _keys(fleet.published[1]) == Counter(range(10))
    fleet.traces[1].set_compaction(Frontier.at(1))
    fleet.traces[1].insert(_rows(0, 10, 1, -1), Frontier.at(2))
    while fleet.traces[1].exert(1000):
        pass
    fleet.traces.pop(0)
    assert len(arena.survivors()) == 2, "superseded, and in its grace"
    fleet.reclaim()
    assert len(arena.survivors()) == 2, "its grace begins when it is noticed"
    fleet.reclaim()
    assert (arena.survivors(), name.exists()) == ((), True)
    fleet.close()
    assert not name.exists()


def test_what_an_idle_trace_has_in_a_sparse_arena_is_copied_out_and_the_arena_goes(held: Instance) -> None:
    fleet = Fleet(held, 2)
    idle, busy = 1, 0
    fleet.traces[idle].insert(_rows(1000, 500, 0), Frontier.at(1))
    first = fleet.allocator.arenas[0]
    before = fleet.published[idle].snapshot()
    fleet.churn(busy, until_arenas=3)
    fleet.reclaim(rounds=4)
    assert first not in fleet.allocator.arenas
    assert not Path("/dev/shm", first.name).exists()
    after = fleet.published[idle].snapshot()
    assert (after.since, after.upper) == (before.since, before.upper)
    places = [[batch.locator for batch in one.batches()] for one in (before, after)]
    assert places[0] != places[1]
    for batch in (*before.batches(), *after.batches()):
        batch.verify()
    assert _keys(fleet.published[idle]) == Counter(range(1000, 1500))
    assert len(fleet.allocator.arenas) <= 2
    fleet.close()
    assert fleet.allocator.arenas == ()


def test_without_room_survivors_stay_and_are_copied_when_there_is_some(held: Instance) -> None:
    fleet = Fleet(held, 2)
    idle = fleet.traces.pop()
    idle.insert(_rows(1000, 500, 0), Frontier.at(1))
    first = fleet.allocator.arenas[0]
    fleet.churn(0, until_arenas=2)
    fleet.reclaim(rounds=3)
    assert fleet.allocator.sparse_count > 0
    failpoints.arm("arena.append", "error")
    generation = idle.page.state.generation
    for _ in range(2):
        idle.reclaim(fleet.now_s)
    assert idle.page.state.generation == generation
    failpoints.disarm_all()
    fleet.traces.append(idle)
    fleet.reclaim(rounds=3)
    assert first not in fleet.allocator.arenas
    assert _keys(fleet.published[1]) == Counter(range(1000, 1500))
    fleet.close()
