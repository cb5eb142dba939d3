"""Followed: a shard is watched from its first follower to its last, and its upper never falls."""

from __future__ import annotations

from clusterd.runtime import effects as fx
from clusterd.runtime.followed import Followed
from clusterd.runtime.maintenance import Maintenance
from clusterd.runtime.ports import WorkerPorts
from clusterd.runtime.state import RuntimeState
from shm_arrangements.frontier import Frontier

VIEW = ("u3", 1)


def test_a_shard_is_watched_once_and_let_go_of_with_its_last_follower() -> None:
    state = RuntimeState(Maintenance(interactive_workers=0), WorkerPorts(None))
    followed = Followed(state)
    assert followed.follow("a", 2) == Frontier.minimum()
    assert followed.seal("a", Frontier.at(5)) == Frontier.at(5)
    assert followed.follow("a", VIEW) == followed.follow("a", 1) == Frontier.at(5)
    assert state.take_effects() == [fx.WatchShard("a")]
    assert (followed.dataflows("a"), followed.views("a")) == ([1, 2], [VIEW])
    assert [followed.leave("a", follower) for follower in (2, 2, VIEW)] == [False, False, False]
    assert not state.take_effects()
    assert [followed.leave("a", 1), followed.leave("a", 1)] == [True, False]
    assert state.take_effects() == [fx.UnwatchShard("a")]
    assert not followed.uppers


def test_an_old_notice_takes_back_no_upper_but_a_new_watch_begins_anew() -> None:
    followed = Followed(RuntimeState(Maintenance(interactive_workers=0), WorkerPorts(None)))
    followed.follow("a", 1)
    followed.seal("a", Frontier.at(5))
    assert followed.seal("a", Frontier.at(3)) == followed.uppers["a"] == Frontier.at(5)
    followed.leave("a", 1)
    assert followed.follow("a", 1) == Frontier.minimum()
