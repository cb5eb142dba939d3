"""The standing hold: each race that it closes, and the gap that shows what it costs (Z1-Z4, Z31; L17, L18).

Compaction of the simulated pages really rounds times up, so a read below the hold is a wrong count; and an
interactive core that meets a page compacted beyond what it holds ends at once.
"""

from __future__ import annotations

import pytest

from controller_proto.command import InitializationComplete
from controller_proto.response import PeekError, PeekRows
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from tests.clusterd.runtime.world import World

U1 = ("u1", 1)


def with_index(workers: int, times: list[int], upper: int, *, standing_hold: bool = True) -> World:
    world = World(workers, standing_hold=standing_hold)
    world.boot()
    world.write(times, upper)
    world.index("u1")
    world.settle()
    return world


def count(world: World, uuid: str) -> int:
    result = world.answer(uuid).result
    assert isinstance(result, PeekRows), result
    found = result.columns[0][0]
    assert isinstance(found, int)
    return found


def since(world: World) -> Frontier:
    return world.pages[U1].since


@pytest.mark.parametrize("dropped", [False, True])
def test_l17_a_create_that_is_queued_holds_also_when_it_was_dropped_since(dropped: bool) -> None:
    world = with_index(1, [0, 1], 3)
    world.query("t1", "u1")
    world.schedule("t1")
    world.peek("a", "t1", 0)
    if dropped:
        world.drop("t1")
    world.compact("u1", 2)
    world.settle(but=(world.reader,))
    assert since(world) == Frontier.at(0)
    assert world.maintenance.core.statistics().holds.widest_gap == 2
    world.settle()
    if dropped:
        assert isinstance(world.answer("a").result, PeekError)
    else:
        assert count(world, "a") == 1
    assert since(world) == Frontier.at(2)


def reconnected(*, standing_hold: bool) -> World:
    """The create is queued, and never carried out: its session ends. The next one begins at 2."""
    world = with_index(1, [0, 1], 3, standing_hold=standing_hold)
    world.query("t1", "u1")
    world.schedule("t1")
    world.compact("u1", 1)
    world.settle(but=(world.reader,))
    world.connect()
    world.index("u1", as_of=2)
    world.send(InitializationComplete(world.next_seq()))
    world.settle(but=(world.reader,))
    return world


def test_a_reconnect_in_between_lets_nothing_go_that_is_still_to_be_read() -> None:
    world = reconnected(standing_hold=True)
    assert since(world) == Frontier.at(0)
    world.settle()
    assert since(world) == Frontier.at(2)
    world.query("t2", "u1", as_of=2)
    world.schedule("t2")
    world.peek("b", "t2", 2)
    world.settle()
    assert count(world, "b") == 2


def test_without_the_standing_hold_the_reconnect_lets_rounded_times_be_read() -> None:
    world = reconnected(standing_hold=False)
    assert since(world) == Frontier.at(2)
    with pytest.raises(InvariantViolation, match="compacted beyond what is held"):
        world.settle()


def test_a_query_of_the_old_session_that_waits_for_a_seal_holds_until_the_new_one_is_complete() -> None:
    world = with_index(1, [0, 1], 3)
    world.query("t1", "u1", as_of=5)
    world.schedule("t1")
    world.settle()
    world.compact("u1", 9)
    world.settle()
    assert since(world) == Frontier.at(5)
    world.connect()
    world.index("u1", as_of=9)
    world.settle()
    assert since(world) == Frontier.at(5)
    world.send(InitializationComplete(world.next_seq()))
    world.settle()
    assert since(world) == Frontier.at(9)
    assert world.maintenance.core.statistics().holds.widest_gap == 0


def test_l18_a_slow_interactive_worker_holds_compaction_back_visibly() -> None:
    world = with_index(1, [0], 1)
    for t in range(1, 101):
        world.write([t], t + 1)
        world.compact("u1", t)
        world.peek(f"p{t}", "u1", t)
        world.settle(but=(world.reader,))
        assert since(world) == Frontier.at(0)
        holds = world.maintenance.core.statistics().holds
        assert (holds.held_back, holds.widest_gap, holds.worker_gaps) == (1, t, (t,))
    world.settle()
    assert [count(world, f"p{t}") for t in range(1, 101)] == list(range(2, 102))
    assert since(world) == Frontier.at(100)
    assert world.maintenance.core.statistics().holds.widest_gap == 0


def test_l18_a_slow_maintenance_worker_compacts_when_it_comes_to_it() -> None:
    world = with_index(1, [0], 1)
    world.peek("sealed", "u1", 0)
    for t in range(1, 101):
        world.write([t], t + 1)
        world.compact("u1", t)
        world.peek(f"p{t}", "u1", t)
        world.settle(but=(world.maintenance,))
    assert count(world, "sealed") == 1
    assert since(world) == Frontier.at(0)
    # A parked read counts at its own time, so the reader has let go of nothing but what is before it.
    assert [c.hold for c in world.reader.core.state.collections.values()] == [Frontier.at(1)]
    world.settle()
    assert [count(world, f"p{t}") for t in range(1, 101)] == list(range(2, 102))
    assert since(world) == Frontier.at(100)
    assert world.maintenance.core.statistics().holds.widest_gap == 0


def test_l18_of_three_workers_at_different_positions_the_slowest_counts() -> None:
    world = with_index(3, [0], 1)
    first, second, third = world.workers[1:]
    positions = {1: (third,), 2: (second, third), 3: (first, second, third)}
    for at, held in positions.items():
        world.write([10 * at], 10 * at + 1)
        world.compact("u1", 10 * at)
        world.settle(but=held)
    assert since(world) == Frontier.at(0)
    assert world.maintenance.core.statistics().holds.worker_gaps == (10, 20, 30)
    world.settle(but=(second, third))
    assert (since(world), world.maintenance.core.statistics().holds.worker_gaps) == (
        Frontier.at(0), (0, 20, 30),
    )  # fmt: skip
    world.settle(but=(second,))
    assert (since(world), world.maintenance.core.statistics().holds.worker_gaps) == (
        Frontier.at(10), (0, 20, 0),
    )  # fmt: skip
    world.settle()
    assert since(world) == Frontier.at(30)
    assert world.maintenance.core.statistics().holds.worker_gaps == ()


def test_what_is_dropped_shows_as_held_until_the_last_worker_has_heard_it() -> None:
    world = with_index(2, [0], 1)
    world.drop("u1")
    world.settle(but=(world.workers[2],))
    holds = world.maintenance.core.statistics().holds
    assert (holds.held_back, holds.dropped, holds.widest_gap) == (1, 1, 0)
    assert not world.pages[U1].closed
    world.settle()
    assert world.pages[U1].closed
    assert world.maintenance.core.statistics().holds.held_back == 0


@pytest.mark.parametrize("read", ["u1", "u2", "u3"])
def test_l17_through_aliases_each_id_holds_for_all(read: str) -> None:
    world = with_index(1, [0, 1], 3)
    world.alias("u2", "u1")
    world.alias("u3", "u2")
    world.settle()
    world.query("t1", read)
    world.schedule("t1")
    world.peek("a", "t1", 0)
    for id in ("u1", "u2", "u3"):
        world.compact(id, 2)
    world.settle(but=(world.reader,))
    assert since(world) == Frontier.at(0)
    world.settle()
    assert count(world, "a") == 1
    assert since(world) == Frontier.at(2)


@pytest.mark.parametrize("kept", ["u1", "u2", "u3"])
def test_the_alias_that_is_compacted_least_counts(kept: str) -> None:
    world = with_index(1, list(range(10)), 10)
    world.alias("u2", "u1")
    world.alias("u3", "u2")
    for id in ("u1", "u2", "u3"):
        world.compact(id, 3 if id == kept else 8)
    world.settle()
    assert since(world) == Frontier.at(3)
    world.peek("a", kept, 4)
    world.settle()
    assert count(world, "a") == 5
    world.drop(kept)
    world.settle()
    assert since(world) == Frontier.at(8)
