"""L13, by counters: however often a page moves, a reader is told once, and looks at what waited for it."""

from __future__ import annotations

import pytest

from controller_proto.response import PeekRows
from tests.clusterd.runtime.world import Shard, World

SEALS = 10_000
FAR = 10**9


def booted(workers: int = 1) -> World:
    """u1 over S, which moves; u7 over R, which does not."""
    world = World(workers)
    world.boot()
    world.shards["R"] = Shard()
    for shard in ("S", "R"):
        world.write([0], 1, shard)
    world.index("u1")
    world.create("u7", shard="R")
    world.schedule("u7")
    world.settle()
    return world


def seal(world: World, upper: int, *, but_reader: bool = True) -> None:
    world.write([], upper)
    world.settle(but=(world.reader,) if but_reader else ())


@pytest.mark.slow
def test_l13_ten_thousand_seals_are_one_wake_which_looks_at_its_own_waiters() -> None:
    world = booted()
    reader = world.reader
    world.peek("a", "u1", SEALS)
    for n in range(50):
        world.peek(f"later{n}", "u1", FAR + n)
        world.peek(f"other{n}", "u7", FAR + n)
    world.settle()
    before, notices = reader.core.statistics(), world.mux.statistics().notices["interactive/0"]
    pages, queued = sum(reader.looked.values()), len(reader.inbox)
    for upper in range(2, SEALS + 2):
        seal(world, upper)
        assert len(reader.inbox) == queued, "a stalled reader is owed a mark, not a queue"
    stalled = world.mux.statistics().notices["interactive/0"]
    assert stalled.heard - notices.heard == SEALS
    assert (stalled.sent - notices.sent, stalled.ready, stalled.dirty) == (0, 1, 0)
    assert stalled.coalesced - notices.coalesced == SEALS - 1
    world.settle()
    released = world.mux.statistics().notices["interactive/0"]
    assert (released.sent - notices.sent, released.ready) == (1, 0)
    after = reader.core.statistics()
    assert after.looks.heard - before.looks.heard == 1
    assert after.looks.read - before.looks.read == sum(reader.looked.values()) - pages == 1
    assert after.peeks.woken - before.peeks.woken == 1
    assert after.peeks.looked_at - before.peeks.looked_at == 2  # it, and the next of u1's 50; none of u7's
    assert isinstance(world.answer("a").result, PeekRows)
    said = world.maintenance.core.statistics().looks
    assert said.moved >= said.said >= SEALS


def test_l13_seals_that_nobody_waits_for_wake_nobody() -> None:
    world = booted()
    reader = world.reader
    world.peek("b", "u7", FAR)
    world.settle()
    before, notices = reader.core.statistics(), world.mux.statistics().notices["interactive/0"]
    for upper in range(2, 1002):
        seal(world, upper, but_reader=False)
    after, noticed = reader.core.statistics(), world.mux.statistics().notices["interactive/0"]
    assert (after.looks, after.peeks) == (before.looks, before.peeks)
    assert (noticed.sent - notices.sent, noticed.put_off - notices.put_off, noticed.dirty) == (0, 1, 1)
    world.peek("late", "u1", 900)  # who comes now is told what was put off
    world.settle()
    assert isinstance(world.answer("late").result, PeekRows)
    assert world.mux.statistics().notices["interactive/0"].dirty == 0


@pytest.mark.parametrize("through", ["u1", "u2", "u3"])
def test_l9_each_alias_is_told_of_by_its_own_id(through: str) -> None:
    world = booted()
    world.alias("u2", "u1")
    world.alias("u3", "u2")
    world.settle()
    world.peek("a", through, 5)
    world.settle()
    before = world.reader.core.statistics()
    seal(world, 6, but_reader=False)
    after = world.reader.core.statistics()
    assert after.looks.heard - before.looks.heard == 1
    assert after.peeks.woken - before.peeks.woken == 1
    assert isinstance(world.answer("a").result, PeekRows)


def test_a_dirty_mark_goes_with_its_collection_and_every_notice_is_accounted_for() -> None:
    world = booted()
    seal(world, 2, but_reader=False)
    world.drop("u1")
    world.settle()
    notices = world.mux.statistics().notices["interactive/0"]
    assert (notices.ready, notices.dirty) == (0, 0)
    assert notices.heard >= notices.sent + notices.coalesced
