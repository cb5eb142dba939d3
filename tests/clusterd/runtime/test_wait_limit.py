"""A peek that is parked for too long is answered `wait-limit`, once, in either mode, and nothing polls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterd.runtime import effects as fx
from controller_proto.command import CancelPeek, Peek, UpdateConfiguration
from controller_proto.response import PeekError, PeekResponse
from tests.clusterd.runtime.shell import Shell
from tests.clusterd.runtime.world import World

MODES = pytest.mark.parametrize("workers", [0, 1])


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[int], Shell]:
    def make(workers: int) -> Shell:
        replica = Shell(tmp_path, workers)
        replica.boot()
        replica.write([(1, "a")], 0)
        replica.index("u1")
        replica.settle()
        return replica

    return make


def _ask(replica: Shell, uuid: str, time: int | None, **more: Any) -> None:
    replica.send(Peek(0, uuid, "u1", time, **more))


@MODES
def test_the_wait_of_a_peek_is_the_time_out_of_the_loop_and_without_a_limit_there_is_none(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        loop = replica.reader
        loop._due = None  # what is reclaimed is not of interest here
        _ask(replica, "for ever", 7)
        replica.settle()
        loop._due = None
        assert loop.timeout_ms() is None
        _ask(replica, "long", 7, wait_s=1000.0)
        replica.settle()
        loop._due = None
        timeout_ms = loop.timeout_ms()
        assert timeout_ms is not None
        assert 900_000 < timeout_ms <= 1_000_001
        replica.send(CancelPeek(0, "long"))
        replica.settle()
        loop._due = None
        assert loop.timeout_ms() is None


@MODES
def test_the_answer_names_what_it_waited_for_and_others_wait_on(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        _ask(replica, "impatient", 7, wait_s=0.0)
        _ask(replica, "patient", 7, wait_s=1000.0)
        _ask(replica, "sealed", 0, wait_s=0.0)
        _ask(replica, "latest", None, wait_s=0.0)
        replica.settle(until=lambda: replica.answer("impatient") is not None)
        replica.settle()
        error = replica.error("impatient")
        assert error.code == "wait-limit"
        assert error.message == "u1 was not sealed at 7 within 0 s"
        assert replica.rows("sealed") == replica.rows("latest") == [(1, "a")]
        assert replica.answer("patient") is None
        replica.write([], 7)
        replica.settle()
        assert replica.rows("patient") == [(1, "a")]
        statistics = replica.reader.core.statistics().peeks
        assert (statistics.expired, statistics.answered, statistics.parked) == (1, 3, 0)


@MODES
def test_the_setting_counts_for_what_is_parked_already(shell: Callable[[int], Shell], workers: int) -> None:
    with shell(workers) as replica:
        _ask(replica, "a", 7)
        replica.settle()
        assert replica.answer("a") is None
        replica.send(UpdateConfiguration(0, {"wait_limit": 1e-9}))
        replica.settle(until=lambda: replica.answer("a") is not None)
        assert replica.error("a").code == "wait-limit"


@pytest.mark.parametrize("workers", [0, 2])
def test_who_waits_too_long_holds_nothing_back_and_is_answered_once(workers: int) -> None:
    world = World(workers)
    world.boot()
    world.index("u1")
    world.settle()
    world.peek("a", "u1", 5)
    world.peek("b", "u1", None)
    world.settle()
    (first, *_) = [worker.parked for worker in world.workers if worker.parked]
    pending = next(p for p in first if p.uuid == "a")
    worker = next(w for w in world.workers if pending in w.parked)
    world.compact("u1", 9)
    world.settle()
    for _ in range(2):
        worker.feed(fx.WaitedOut(pending, 2.5))
        world.settle()
    answers = [r for _, r in world.responses if isinstance(r, PeekResponse) and r.uuid == "a"]
    (answer,) = answers
    assert isinstance(answer.result, PeekError)
    assert answer.result.code == "wait-limit"
    assert "within 2.5 s" in answer.result.message
    world.write([1, 2], 20)
    world.maintenance.see_shard("S")
    world.settle()
    assert sum(isinstance(r, PeekResponse) and r.uuid == "a" for _, r in world.responses) == 1
    assert world.pages[pending.collection].since.time == 9
