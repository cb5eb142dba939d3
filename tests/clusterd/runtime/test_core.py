"""The core: scenarios of the catalogue, their ids in the names, with every message under control."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from clusterd import internal
from clusterd.multiplexer import events as mx
from clusterd.runtime import effects as fx
from clusterd.runtime.core import RuntimeCore
from clusterd.runtime.holds import HoldStatistics
from controller_proto.command import Command, CreateDataflow, InitializationComplete, UpdateConfiguration
from controller_proto.dataflow import DataflowHeader, Export, IndexImport
from controller_proto.history import History
from controller_proto.response import Frontiers, PeekCanceled, PeekError, PeekResponse, PeekRows
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from tests.clusterd.runtime.world import MAX_TIME, World

MODES = pytest.mark.parametrize("workers", [0, 1, 2])


def booted(workers: int, **options: Any) -> World:
    world = World(workers, **options)
    world.boot()
    return world


def rows(response: PeekResponse) -> int:
    assert isinstance(response.result, PeekRows), response
    return response.result.columns[0][0]  # type: ignore[return-value]


def code(response: PeekResponse) -> str:
    assert isinstance(response.result, PeekError), response
    return response.result.code


def with_index(workers: int, times: list[int], upper: int, **options: Any) -> World:
    world = booted(workers, **options)
    world.write(times, upper)
    world.index("u1")
    world.settle()
    return world


def clean(world: World) -> None:
    """Nothing is left of any collection."""
    world.settle()
    for worker in world.workers:
        held = worker.core.statistics()
        assert (held.collections, held.dataflows, held.shards, held.queued) == (0, 0, 0, 0), held
        assert (held.peeks.parked, held.peeks.ready) == (0, 0)
        assert not worker.graphs
        assert not worker.watched
    assert all(page.closed for page in world.pages.values())
    assert world.mux.statistics().declared == 0


@MODES
def test_a1_reads_at_each_time_after_ticks(workers: int) -> None:
    world = with_index(workers, [0, 0, 0], 1)
    for t in range(1, 4):
        world.write([t], t + 1)
        world.settle()
    for uuid, time in (("a", 3), ("b", 0), ("c", 2)):
        world.peek(uuid, "u1", time)
    world.settle()
    assert [rows(world.answer(u)) for u in "abc"] == [6, 3, 5]
    assert {world.answer(u).served_by for u in "abc"} == {"solo" if workers == 0 else "interactive"}
    assert [r.write for r in world.frontier("u1")] == [(1,), (2,), (3,), (4,)]


@MODES
def test_a4_nothing_runs_before_schedule(workers: int) -> None:
    world = booted(workers)
    world.write([0, 0], 1)
    world.create("u1")
    world.peek("a", "u1", 0)
    world.settle()
    assert not world.answers("a")
    assert not world.frontier("u1")
    world.schedule("u1")
    world.settle()
    assert rows(world.answer("a")) == 2


@MODES
@pytest.mark.parametrize("by_drop", [False, True])
def test_a5_two_exports_start_when_neither_waits_any_more(workers: int, by_drop: bool) -> None:
    world = booted(workers)
    world.write([0, 0], 1)
    world.create("u1", "u2")
    world.schedule("u1")
    world.settle()
    assert not world.frontier("u1")
    if by_drop:
        world.drop("u2")
    else:
        world.schedule("u2")
    world.settle()
    assert world.frontier("u1")[-1].write == (1,)
    assert world.frontier("u2")[-1].write == (() if by_drop else (1,))


@MODES
def test_a8_a_plan_that_the_owner_refuses_leaves_nothing(workers: int) -> None:
    world = booted(workers)
    world.write([0], 1)
    world.create("u1", "u2", bad=True)
    world.schedule("u1")
    world.peek("a", "u2", 0)
    world.query("t1", "u1")
    world.peek("b", "t1", 0)
    world.settle()
    assert next(r.code for r in world.refusals()) == "invalid-plan"  # type: ignore[union-attr]
    assert code(world.answer("a")) == "unknown-id"
    assert code(world.answer("b")) in ("unknown-id", "dropped")
    assert not world.frontier("u1")
    assert not world.frontier("u2")
    world.index("u3")
    world.peek("c", "u3", 0)
    world.settle()
    assert rows(world.answer("c")) == 1


@MODES
def test_a9_a_dropped_id_is_refused_and_can_not_come_back(workers: int) -> None:
    world = with_index(workers, [0], 1)
    world.drop("u1")
    world.settle()
    assert world.frontier("u1")[-1] == Frontiers("u1", (), (), ())
    world.schedule("u1")
    world.compact("u1", 5)
    world.peek("a", "u1", 0)
    world.create("u1")
    world.settle()
    assert [r.code for r in world.refusals()] == ["dropped", "dropped", "duplicate-id"]  # type: ignore[union-attr]
    assert code(world.answer("a")) == "dropped"
    clean(world)


@MODES
def test_b10_b11_a_parked_peek_waits_for_the_seal_and_needs_no_data(workers: int) -> None:
    world = with_index(workers, [0], 1)
    world.peek("a", "u1", 2)
    world.settle()
    world.write([1], 2)
    world.settle()
    assert not world.answers("a")
    world.write([], 3)
    world.settle()
    assert rows(world.answer("a")) == 2


@MODES
def test_b12_below_since_names_both_and_is_judged_in_the_controllers_order(workers: int) -> None:
    world = with_index(workers, [0, 1, 2, 3, 4, 5], 6)
    world.compact("u1", 5)
    world.peek("a", "u1", 1)
    world.peek("b", "u1", 5)
    world.settle()
    error = world.answer("a").result
    assert isinstance(error, PeekError)
    assert error.code == "below-since"
    assert "1" in error.message
    assert "5" in error.message
    assert rows(world.answer("b")) == 6
    assert world.pages[("u1", 1)].since == Frontier.at(5)


@MODES
def test_b14_a_parked_peek_outlives_a_compaction_sent_after_it(workers: int) -> None:
    world = with_index(workers, [0], 1)
    world.peek("a", "u1", 2)
    world.compact("u1", 8)
    world.settle()
    assert world.pages[("u1", 1)].since == Frontier.at(2)
    world.write([1], 3)
    world.settle()
    world.write([5], 9)
    world.settle()
    assert rows(world.answer("a")) == 2
    assert world.pages[("u1", 1)].since == Frontier.at(8)


@MODES
def test_g7_compaction_never_goes_back(workers: int) -> None:
    world = with_index(workers, [0], 9)
    for time in (5, 3, 5):
        world.compact("u1", time)
    world.settle()
    assert world.pages[("u1", 1)].since == Frontier.at(5)
    world.peek("a", "u1", 4)
    world.settle()
    assert code(world.answer("a")) == "below-since"


@MODES
def test_g9_an_unscheduled_importer_holds_its_import_at_its_own_need(workers: int) -> None:
    world = with_index(workers, [0, 1, 2, 3, 4, 5], 6)
    world.create("u2", shard=None, imports=("u1",))
    world.compact("u1", 5)
    world.settle()
    assert world.pages[("u1", 1)].since == Frontier.at(0)
    world.schedule("u2")
    world.peek("a", "u2", 0)
    world.peek("b", "u2", 3)
    world.settle()
    assert (rows(world.answer("a")), rows(world.answer("b"))) == (1, 4)
    assert world.pages[("u1", 1)].since == Frontier.at(5)
    world.write([6, 7], 8)
    world.compact("u1", 20)
    world.settle()
    assert world.pages[("u1", 1)].since == Frontier.at(7), "the importer needs the time before its upper"


@MODES
def test_g10_the_end_of_a_source_is_reported_once(workers: int) -> None:
    world = with_index(workers, [0], 1)
    world.shards["S"].upper = Frontier.empty()
    world.settle()
    assert [r.write for r in world.frontier("u1")] == [(1,), ()]
    world.peek("a", "u1", 10**12)
    world.peek("b", "u1", None)
    world.settle()
    assert rows(world.answer("a")) == 1
    assert world.answer("b").time == MAX_TIME
    world.drop("u1")
    world.settle()
    assert len(world.frontier("u1")) == 2
    clean(world)


@MODES
def test_a_peek_at_the_newest_time_reads_the_last_sealed_and_never_below_since(workers: int) -> None:
    world = booted(workers)
    world.create("u1", as_of=3)
    world.peek("a", "u1", None)
    world.settle()
    assert not world.answers("a"), "never sealed"
    world.schedule("u1")
    world.write([1, 4], 5)
    world.settle()
    assert (world.answer("a").time, rows(world.answer("a"))) == (4, 2)
    world.compact("u1", 7)
    world.peek("b", "u1", None)
    world.settle()
    assert not world.answers("b")
    world.write([6], 8)
    world.settle()
    assert (world.answer("b").time, rows(world.answer("b"))) == (7, 3)


@MODES
def test_h1_h2_h4_cancel_answers_what_is_owed_and_nothing_else(workers: int) -> None:
    world = with_index(workers, [0], 1)
    world.cancel("zz")
    world.peek("a", "u1", 9)
    world.peek("b", "u1", 0)
    world.settle()
    world.cancel("a")
    world.cancel("b")
    world.peek("zz", "u1", 0)
    world.settle()
    world.write([], 20)
    world.settle()
    assert isinstance(world.answer("a").result, PeekCanceled)
    assert rows(world.answer("b")) == 1
    assert rows(world.answer("zz")) == 1


@MODES
def test_cancel_reaches_a_peek_that_is_being_evaluated(workers: int) -> None:
    world = with_index(workers, [0], 1)
    for worker in world.workers:
        worker.instant = False
    world.peek("a", "u1", 0)
    world.cancel("a")
    for worker in world.workers:
        while worker.inbox:
            worker.take()
    assert not any(worker.evaluations for worker in world.workers), "given up"
    world.settle()
    assert isinstance(world.answer("a").result, PeekCanceled)


@MODES
def test_h9_a_drop_answers_what_is_parked_and_finishes_what_has_its_snapshot(workers: int) -> None:
    world = with_index(workers, [0], 3)
    for worker in world.workers:
        worker.instant = False
    world.peek("parked", "u1", 9)
    world.peek("ready", "u1", 2)
    world.drop("u1")
    world.settle()
    assert code(world.answer("parked")) == "dropped"
    assert rows(world.answer("ready")) == 1
    clean(world)


@MODES
def test_h10_an_index_lives_on_for_its_importer_and_goes_with_it(workers: int) -> None:
    world = with_index(workers, [0], 1)
    world.create("u2", shard=None, imports=("u1",))
    world.schedule("u2")
    world.drop("u1")
    world.settle()
    assert not world.pages[("u1", 1)].closed
    assert world.frontier("u1")[-1].write == (1,)
    world.write([1], 2)
    world.peek("a", "u2", 1)
    world.peek("b", "u1", 1)
    world.settle()
    assert rows(world.answer("a")) == 2
    assert code(world.answer("b")) == "dropped"
    world.drop("u2")
    world.settle()
    assert world.frontier("u1")[-1].write == ()
    clean(world)


@MODES
def test_h11_a_drop_before_schedule_reports_all_empty_and_nothing_else(workers: int) -> None:
    world = booted(workers)
    world.write([0], 1)
    world.create("u2")
    world.drop("u2")
    world.settle()
    assert world.frontier("u2") == [Frontiers("u2", (), (), ())]
    clean(world)


@MODES
def test_h14_the_life_of_queries_leaves_nothing(workers: int) -> None:
    world = with_index(workers, [0], 1)
    for n in range(1, 30):
        world.query(f"t{n}", "u1", as_of=n - 1)
        world.schedule(f"t{n}")
        world.peek(f"p{n}", f"t{n}", n - 1)
        world.settle()
        assert rows(world.answer(f"p{n}")) == n
        world.drop(f"t{n}")
        world.write([n], n + 1)
        world.compact("u1", n)
        world.settle()
    assert world.pages[("u1", 1)].since == Frontier.at(29)
    world.drop("u1")
    clean(world)


@MODES
def test_l2_l3_a_query_waits_for_its_import_and_a_fresh_page_is_not_an_empty_index(workers: int) -> None:
    world = booted(workers)
    world.write([0, 0, 0], 1)
    world.create("u1")
    world.query("t1", "u1")
    world.schedule("t1")
    world.peek("a", "t1", 0)
    world.peek("b", "u1", 0)
    world.settle()
    assert not world.answers("a")
    assert not world.answers("b")
    world.schedule("u1")
    world.settle()
    assert (rows(world.answer("a")), rows(world.answer("b"))) == (3, 3)
    assert world.answer("a").served_by == ("solo" if workers == 0 else "interactive")
    assert [r.write for r in world.frontier("t1")] == [()]
    world.write([1], 2)
    world.peek("c", "t1", 0)
    world.settle()
    assert rows(world.answer("c")) == 3, "G4: before and after later ticks"


@MODES
def test_l15_a_deferred_query_can_be_dropped(workers: int) -> None:
    world = booted(workers)
    world.write([0], 1)
    world.create("u1")
    world.query("t1", "u1")
    world.schedule("t1")
    world.peek("a", "t1", 0)
    world.settle()
    world.drop("t1")
    world.settle()
    assert code(world.answer("a")) == "dropped"
    assert world.frontier("t1") == [Frontiers("t1", (), (), ())]
    world.schedule("u1")
    world.peek("b", "u1", 0)
    world.settle()
    assert rows(world.answer("b")) == 1
    world.drop("u1")
    clean(world)


@MODES
@pytest.mark.parametrize("import_first", [False, True])
def test_l16_the_import_never_comes(workers: int, import_first: bool) -> None:
    world = booted(workers)
    world.create("u1")
    world.query("t1", "u1")
    world.schedule("t1")
    world.peek("a", "t1", 0)
    world.settle()
    for id in ("u1", "t1") if import_first else ("t1", "u1"):
        world.drop(id)
        world.settle()
        assert code(world.answer("a")) == "dropped"
    assert not world.refusals()
    clean(world)


def l17(*, standing_hold: bool) -> World:
    world = with_index(1, [0, 1], 3, standing_hold=standing_hold)
    world.query("t1", "u1")
    world.schedule("t1")
    world.peek("a", "t1", 0)
    world.compact("u1", 1)
    world.settle(but=(world.reader,))
    return world


def test_l17_compaction_waits_for_the_worker_that_has_yet_to_read_the_create() -> None:
    world = l17(standing_hold=True)
    assert world.pages[("u1", 1)].since == Frontier.at(0)
    world.settle()
    assert rows(world.answer("a")) == 1
    assert world.pages[("u1", 1)].since == Frontier.at(1)


def test_l17_without_the_standing_hold_the_query_would_read_rounded_times() -> None:
    world = l17(standing_hold=False)
    assert world.pages[("u1", 1)].since == Frontier.at(1)
    with pytest.raises(InvariantViolation, match="compacted beyond what is held"):
        world.settle()


def test_l18_the_slowest_worker_counts_and_the_gap_shows() -> None:
    world = with_index(3, [0], 1)
    slow = world.workers[2]
    for t in range(1, 20):
        world.write([t], t + 1)
        world.compact("u1", t)
        world.settle(but=(slow,))
    assert world.pages[("u1", 1)].since == Frontier.at(0)
    holds = world.maintenance.core.statistics().holds
    assert (holds.held_back, holds.widest_gap, holds.worker_gaps) == (1, 19, (0, 19, 0))
    world.settle()
    assert world.pages[("u1", 1)].since == Frontier.at(19)
    assert world.maintenance.core.statistics().holds == HoldStatistics(0, 0, 0, ())


@MODES
def test_l20_an_import_below_since_is_refused(workers: int) -> None:
    world = with_index(workers, [0], 9)
    world.compact("u1", 5)
    world.query("t1", "u1", as_of=3)
    world.schedule("t1")
    world.peek("a", "t1", 3)
    world.settle()
    assert [r.code for r in world.refusals()] == ["below-since", "unknown-id"]  # type: ignore[union-attr]
    assert code(world.answer("a")) == "unknown-id"


@MODES
def test_l24_a_query_waits_for_the_slower_of_its_imports(workers: int) -> None:
    world = booted(workers)
    world.shards["R"] = type(world.shards["S"])()
    world.write([0, 5], 9)
    world.write([2, 6], 4, "R")
    world.create("u1")
    world.create("u2", shard="R")
    world.schedule("u1")
    world.schedule("u2")
    world.query("t1", "u1", "u2", as_of=6)
    world.schedule("t1")
    world.peek("a", "t1", 6)
    world.settle()
    assert not world.answers("a")
    world.write([], 7, "R")
    world.settle()
    assert rows(world.answer("a")) == 4


@MODES
def test_l29_cancel_of_a_peek_parked_for_publication(workers: int) -> None:
    world = booted(workers)
    world.write([0], 1)
    world.create("u2")
    world.peek("a", "u2", 0)
    world.settle()
    world.cancel("a")
    world.settle()
    assert isinstance(world.answer("a").result, PeekCanceled)
    assert all(w.core.statistics().peeks.parked == 0 for w in world.workers)
    world.schedule("u2")
    world.peek("b", "u2", 0)
    world.settle()
    assert rows(world.answer("b")) == 1


def test_notices_are_one_an_id_while_unacknowledged() -> None:
    world = with_index(1, [0], 1)
    core = world.maintenance
    for t in range(1, 50):
        world.write([t], t + 1)
        core.see_shard("S")
        for number in core.rounds:
            core.work(number)
        core.flush()
    looks = [m for m in core.outbox if isinstance(m, internal.Looks)]
    assert len(looks) == 1
    reports = [m for m in core.outbox if isinstance(m, internal.FrontierReport)]
    assert len(reports) == 49, "room was there each time"


def test_however_many_indexes_move_one_frame_says_so() -> None:
    world = with_index(1, [0], 1)
    for n in range(2, 8):
        world.index(f"u{n}")
    world.settle()
    core = world.maintenance
    core.outbox.clear()
    world.write([], 5)
    core.see_shard("S")
    for number in core.rounds:
        core.work(number)
    core.flush()
    (looks,) = (m for m in core.outbox if isinstance(m, internal.Looks))
    assert sorted(id for id, _ in looks.keys) == [f"u{n}" for n in range(1, 8)]


def test_reports_are_coalesced_while_the_pipe_has_no_room() -> None:
    world = with_index(1, [0], 1)
    core = world.maintenance
    for t in range(1, 50):
        world.write([t], t + 1)
        core.see_shard("S")
        for number in core.rounds:
            core.work(number)
    assert not core.outbox
    core.flush()
    (report,) = [m for m in core.outbox if isinstance(m, internal.FrontierReport)]
    assert report.write == (50,)


@MODES
def test_i1_i2_what_is_said_again_goes_on_from_its_new_as_of(workers: int) -> None:
    world = with_index(workers, [0, 1], 2)
    world.query("t1", "u1")
    world.schedule("t1")
    world.peek("old", "u1", 9)
    world.settle()
    old = world.session
    world.connect()
    world.create("u1", as_of=1)
    world.schedule("u1")
    world.peek("a", "u1", 1)
    world.peek("b", "u1", 0)
    world.peek("c", "u1", 1)
    world.cancel("c")
    world.compact("u1", 7)
    world.settle()
    page = world.pages[("u1", 1)]
    assert page.since == Frontier.minimum(), "P11: nothing changes before"
    assert not world.answers("a"), "I13: settings may still come"
    world.write([2], 3)
    world.settle()
    assert page.upper == Frontier.at(3), "it is kept up meanwhile"
    assert not world.frontier("u1")
    world.send(InitializationComplete(world.next_seq()))
    world.settle()
    assert not page.closed
    assert ("u1", 3) not in world.pages
    assert page.since == Frontier.at(7)
    assert rows(world.answer("a")) == 2
    assert code(world.answer("b")) == "below-since"
    assert isinstance(world.answer("c").result, PeekCanceled)
    assert [r.write for r in world.frontier("u1")] == [(3,)]
    assert not world.answers("old", old)
    assert not world.answers("old")
    assert all(p.closed for key, p in world.pages.items() if key[0] == "t1"), "not named: dropped"
    assert world.mux.statistics().reconciled == {"reused": 1, "dropped": 1}
    world.peek("t", "t1", 0)
    world.settle()
    assert code(world.answer("t")) == "unknown-id"
    world.drop("u1")
    clean(world)


@MODES
def test_i_importers_go_on_with_what_they_import_and_not_without(workers: int) -> None:
    world = with_index(workers, [0, 1], 2)
    world.create("u2", shard=None, imports=("u1",))
    world.schedule("u2")
    world.settle()
    first, second = world.pages[("u1", 1)], world.pages[("u2", 2)]
    world.connect()
    world.create("u1")
    world.create("u2", shard=None, imports=("u1",), as_of=1)
    world.send(InitializationComplete(world.next_seq()))
    world.settle()
    assert not first.closed
    assert not second.closed
    assert world.mux.statistics().reconciled == {"reused": 2}
    world.connect()
    world.index("u1")
    world.compact("u1", 1)
    world.create("u2", shard=None, imports=("u1",), as_of=1, body=b"\x90")
    world.schedule("u2")
    world.send(InitializationComplete(world.next_seq()))
    world.settle()
    assert not first.closed
    assert second.closed, "another plan"
    assert first.since == Frontier.at(1)
    world.connect()
    world.create("u1", as_of=0)  # it was compacted to 1
    world.schedule("u1")
    world.create("u2", shard=None, imports=("u1",), as_of=1, body=b"\x90")
    world.schedule("u2")
    world.peek("a", "u2", 1)
    world.send(InitializationComplete(world.next_seq()))
    world.settle()
    assert first.closed
    assert rows(world.answer("a")) == 2
    assert world.mux.statistics().reconciled == {"reused": 3, "plan": 1, "compacted": 1, "imports": 1}
    world.drop("u2")
    world.drop("u1")
    clean(world)


@MODES
def test_i_a_drop_and_a_second_controller_during_the_replay_change_nothing_that_stands(workers: int) -> None:
    world = with_index(workers, [0, 1], 2)
    page = world.pages[("u1", 1)]
    world.connect()
    world.create("u1", as_of=1)
    world.drop("u1")
    world.peek("x", "u1", 1)
    world.settle()
    assert not page.closed
    assert code(world.answer("x")) == "dropped"
    world.connect()
    world.create("u1", as_of=0)
    world.schedule("u1")
    world.peek("a", "u1", 0)
    world.send(InitializationComplete(world.next_seq()))
    world.settle()
    assert rows(world.answer("a")) == 1
    assert not page.closed
    world.connect()
    world.create("u1", as_of=1)
    world.peek("b", "u1", 1)
    world.drop("u1")
    world.send(InitializationComplete(world.next_seq()))
    world.settle()
    assert page.closed
    assert rows(world.answer("b")) == 2, "asked for before the drop"
    clean(world)


@MODES
def test_i10_half_a_replay_is_as_if_it_had_not_been_said(workers: int) -> None:
    world = with_index(workers, [0], 1)
    page = world.pages[("u1", 1)]
    world.connect()
    world.create("u1", as_of=0)
    world.create("u5", as_of=0)
    world.query("t5", "u5")
    world.peek("x", "t5", 0)
    world.peek("y", "u1", 0)
    world.settle()
    world.write([1], 2)
    world.connect()
    world.index("u1")
    world.send(InitializationComplete(world.next_seq()))
    world.peek("a", "u1", 1)
    world.settle()
    assert rows(world.answer("a")) == 2
    assert not page.closed
    assert world.mux.statistics().reconciled == {"reused": 1}
    world.drop("u1")
    clean(world)


@MODES
def test_i13_configuration_in_a_replay_comes_first(workers: int) -> None:
    world = with_index(workers, [0], 1)
    world.connect()
    world.index("u1")
    world.peek("a", "u1", 0)
    world.send(UpdateConfiguration(world.next_seq(), {"max_result_bytes": 16}))
    world.send(InitializationComplete(world.next_seq()))
    seen: list[fx.Effect] = []

    def recording(core: RuntimeCore) -> Callable[[fx.Event], list[fx.Effect]]:
        handle = core.handle

        def record(event: fx.Event) -> list[fx.Effect]:
            effects = handle(event)
            seen.extend(effects)
            return effects

        return record

    for worker in world.workers[-1:] if workers < 2 else world.workers[1:]:
        worker.core.handle = recording(worker.core)  # type: ignore[method-assign]
    world.settle()
    kinds = [type(e).__name__ for e in seen if isinstance(e, fx.Configure | fx.Evaluate)]
    assert kinds[0] == "Configure"
    assert "Evaluate" in kinds


@MODES
def test_peeks_of_a_closed_connection_end_unanswered_and_hold_no_more(workers: int) -> None:
    world = with_index(workers, [0], 1)
    world.peek("a", "u1", 5)
    world.compact("u1", 9)
    world.settle()
    assert world.pages[("u1", 1)].since == Frontier.at(5)
    session = world.session
    world.to_mux(mx.Closed(session))
    world.settle()
    assert world.pages[("u1", 1)].since == Frontier.at(9)
    assert not world.answers("a", session)


def test_a_query_that_imports_a_query_reads_its_local_result() -> None:
    for workers in (0, 1):
        world = with_index(workers, [0, 0], 1)
        world.query("t1", "u1")
        world.query("t2", "t1")
        world.schedule("t2")
        world.peek("a", "t2", 0)
        world.settle()
        assert not world.answers("a")
        world.schedule("t1")
        world.settle()
        assert rows(world.answer("a")) == 2
        world.drop("t1")
        world.drop("t2")
        world.drop("u1")
        clean(world)


@MODES
@pytest.mark.parametrize("seed", range(6))
def test_i19_the_reduced_history_makes_the_replica_that_the_whole_one_made(workers: int, seed: int) -> None:
    rng = random.Random(seed)
    world = booted(workers)
    history = History()
    told: list[Command] = []
    send = world.send

    def recording(command: Command) -> None:
        told.append(command)
        history.sent(command)
        send(command)

    world.send = recording  # type: ignore[method-assign]
    world.write(list(range(10)), 10)
    floors: dict[str, int] = {}
    for number in range(1, 25):
        choice = rng.random()
        if choice < 0.35 or not floors:
            imports = tuple(rng.sample(sorted(floors), min(len(floors), rng.choice([0, 0, 1, 2]))))
            as_of = max([floors[each] for each in imports], default=0)
            world.create(f"u{number}", shard=None if imports else "S", imports=imports, as_of=as_of)
            world.schedule(f"u{number}")
            floors[f"u{number}"] = as_of
        else:
            id = rng.choice(sorted(floors))
            if choice < 0.75:
                time = rng.randint(0, 9)
                world.compact(id, time)
                floors[id] = max(floors[id], time)
            else:
                world.drop(id)
                del floors[id]
        if rng.random() < 0.5:
            world.settle()
    whole = answers_of(world, floors)
    assert len(history.commands()) <= len(told) + 2
    fresh = World(workers)
    fresh.shards.update(world.shards)
    fresh.connect(bare=True)
    for command in history.commands():
        fresh.send(msgspec.structs.replace(command, seq=fresh.next_seq()))
    assert answers_of(fresh, floors) == whole
    world.connect(bare=True)
    for command in history.commands():
        send(msgspec.structs.replace(command, seq=world.next_seq()))
    assert answers_of(world, floors) == whole, "and the same over what stands"


def answers_of(world: World, floors: dict[str, int]) -> dict[tuple[str, int], int | str]:
    """What every index says at every time, below what may be read too."""
    world.settle()
    asked = {f"{id}@{time}/{world.seq}": (id, time) for id in floors for time in range(10)}
    for uuid, (id, time) in asked.items():
        world.peek(uuid, id, time)
    world.settle()
    found: dict[tuple[str, int], int | str] = {}
    for uuid, at in asked.items():
        said = world.answer(uuid)
        found[at] = rows(said) if isinstance(said.result, PeekRows) else code(said)
    return found


def test_a_subscription_looks_at_a_page_of_which_it_was_said_before_that_it_moved() -> None:
    """A notice that came while nobody waited was the last: the subscription stayed behind for ever."""
    world = with_index(1, [1], 3)
    world.peek("p1", "u1", 1)
    world.settle()
    world.write([5], 8)
    world.settle()
    world.compact("u1", 0)  # the notice, which nobody waits for, goes along
    world.settle()
    header = DataflowHeader(
        "t1", 0, None, (), (IndexImport("u1"),), (Export("t1", "subscribe", "u1", SAMPLE_SCHEMA),)
    )
    world.send(CreateDataflow(world.next_seq(), header, msgspec.Raw(b"\x80")))
    world.schedule("t1")
    world.settle()
    (dataflow,) = world.reader.core.state.dataflows.values()
    assert dataflow.upper == Frontier.at(8)
