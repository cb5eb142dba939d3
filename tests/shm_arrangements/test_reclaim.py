"""Reclaim: a name goes after its grace, in turns and in time, and never before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm_arrangements import failpoints, segment
from shm_arrangements.arena import SMALL_BYTES, SegmentAllocator, next_locator
from shm_arrangements.instance import Instance
from shm_arrangements.names import Locator, PageName
from shm_arrangements.publication import PageReader, PublicationPage
from shm_arrangements.reclaim import GRACE_GENERATIONS, GRACE_S, Reclaimer, Superseded, plan_reclaim
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType

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
)
def test_a_plan_keeps_both_conditions_and_forgets_nothing(
    noted: list[tuple[int, float]], generation: int, now_s: float, turns: int, grace_s: float
) -> None:
    superseded = [
        Superseded(Locator("0" * 12, 0, seq), since, at_s) for seq, (since, at_s) in enumerate(noted)
    ]
    plan = plan_reclaim(
        superseded, generation=generation, now_s=now_s, grace_generations=turns, grace_s=grace_s
    )
    assert sorted(plan.free + plan.keep, key=lambda one: one.locator.seq) == superseded
    for one in plan.free:
        assert one.at_s + grace_s <= now_s
        assert generation + plan.turns >= one.generation + turns
    assert 0 <= plan.turns <= turns
    assert (plan.due_s is None) == (not plan.keep)
    if plan.due_s is not None:
        assert plan.due_s > now_s
        assert min(one.at_s + grace_s for one in plan.keep) == plan.due_s


def _made(held: Instance, n: int) -> list[Locator]:
    places = [next_locator(held.token, 0) for _ in range(n)]
    for place in places:
        segment.create(place.name, 10).close()
    return places


def _standing(places: list[Locator]) -> int:
    return sum(Path("/dev/shm", place.name).exists() for place in places)


def test_an_idle_writer_turns_the_page_again_until_the_names_may_go(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    read = PageReader(page.header.page)
    before = read.read()
    reclaimer, places = Reclaimer(SegmentAllocator(held.token, 0)), _made(held, 3)
    assert reclaimer.run(page, 0.0) is None
    reclaimer.supersede(places, page.state.generation)
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


def test_a_busy_writer_needs_no_extra_turns(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    reclaimer, places = Reclaimer(SegmentAllocator(held.token, 0)), _made(held, 1)
    reclaimer.supersede(places, page.state.generation)
    reclaimer.run(page, 0.0)
    for _ in range(GRACE_GENERATIONS):
        page.again()
    generation = page.state.generation
    assert reclaimer.run(page, 1.0) is None
    assert (page.state.generation, _standing(places)) == (generation, 0)
    page.close()


def test_a_failed_unlink_is_tried_again(held: Instance) -> None:
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)
    reclaimer, places = Reclaimer(SegmentAllocator(held.token, 0)), _made(held, 2)
    reclaimer.supersede(places, page.state.generation)
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
    reclaimer, places = Reclaimer(SegmentAllocator(held.token, 0)), _made(held, 4)
    reclaimer.supersede(places[:2], page.state.generation)
    reclaimer.run(page, 0.0)
    reclaimer.supersede(places[2:], page.state.generation)
    page.close()
    reclaimer.finish()
    assert (_standing(places), len(reclaimer)) == (0, 0)
    assert not [name for name in os.listdir("/dev/shm") if held.token in name and not name.endswith("ctl")]
