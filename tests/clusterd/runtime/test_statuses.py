"""Statuses: what a controller hears of how far its collections are, with every message under control."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterd import internal
from clusterd.operators import import_source
from clusterd.runtime import effects as fx
from controller_proto.codec import encode_body
from controller_proto.command import CreateDataflow, InitializationComplete, Schedule
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, SourceImport
from controller_proto.response import Status
from controller_proto.schema import SAMPLE_SCHEMA
from tests.clusterd.runtime.shell import Shell
from tests.clusterd.runtime.test_core import MODES, booted, clean, with_index
from tests.clusterd.runtime.test_shards_out_of_reach import _later, _no_room, views
from tests.clusterd.runtime.test_views import Views
from tests.clusterd.runtime.world import World

__all__ = ["views"]  # a fixture


def states(world: World, id: str) -> list[str]:
    return [said.status for said in world.statuses(id)]


@MODES
def test_a_collection_is_created_then_scheduled_then_hydrated_and_no_more_is_told(workers: int) -> None:
    world = booted(workers)
    world.write([], 0)
    world.create("u1")
    world.settle()
    assert states(world, "u1") == ["created"]
    world.schedule("u1")
    world.settle()
    world.write([0, 0], 1)
    world.settle()
    world.write([1], 2)
    world.settle()
    assert states(world, "u1") == ["created", "scheduled", "hydrated"]
    assert {said.runtime for said in world.statuses("u1")} == {"maintenance" if workers else "solo"}
    world.drop("u1")
    clean(world)
    assert states(world, "u1") == ["created", "scheduled", "hydrated"]


@MODES
def test_what_is_told_before_there_is_room_is_the_latest_alone(workers: int) -> None:
    world = booted(workers)
    world.write([0], 1)
    world.create("u1")
    world.schedule("u1")
    maintenance = world.workers[0]
    while maintenance.inbox:
        maintenance.take()
    maintenance.feed(fx.Progressed(1, 1, 3))
    maintenance.feed(fx.Progressed(1, 2, 3))
    maintenance.outbox.clear()
    maintenance.feed(fx.Flush(70))
    (said,) = [m for m in maintenance.outbox if isinstance(m, internal.StatusReport)]
    runtime = "maintenance" if workers else "solo"
    assert said.status == Status("u1", "hydrating", runtime, 2, 3, 70)
    maintenance.feed(fx.Progressed(1, 3, 3))
    maintenance.feed(fx.Flush(90))
    assert maintenance.outbox[-1] == internal.StatusReport(
        said.session, said.incarnation, Status("u1", "hydrating", runtime, 3, 3, 70)
    )


@MODES
def test_a_controller_that_comes_back_is_told_anew_since_when(workers: int) -> None:
    world = with_index(workers, [0, 0], 1)
    (before,) = world.statuses("u1")[-1:]
    world.connect()
    world.index("u1")
    world.send(InitializationComplete(world.next_seq()))
    world.settle()
    assert world.statuses("u1") == [before]
    assert before.status == "hydrated"


@MODES
def test_a_query_that_is_given_up_says_why_and_one_that_is_over_says_nothing(workers: int) -> None:
    world = with_index(workers, [0, 0], 1)
    world.query("t1", "u1", as_of=0)
    world.schedule("t1")
    world.settle()
    assert states(world, "t1") == []
    world.query("t2", "u1", as_of=5)
    world.schedule("t2")
    world.settle()
    assert states(world, "t2") == ["scheduled"]
    world.drop("u1")
    world.settle()
    said = world.statuses("t2")[-1]
    assert (said.status, said.code) == ("errored", "dropped")
    assert "u1" in said.message or "t2" in said.message


@MODES
def test_a_shard_out_of_reach_stalls_its_readers_until_it_moves(workers: int) -> None:
    world = booted(workers)
    world.write([], 0)
    world.index("u1")
    world.settle()
    maintenance = world.workers[0]
    (shard,) = maintenance.watched
    maintenance.feed(fx.Stalled(shard, "limit", "no room", "make some"))
    maintenance.feed(fx.Stalled("another", "limit", "nobody reads it"))
    world.settle()
    assert world.statuses("u1")[-1].code == "limit"
    world.write([0], 1)
    world.settle()
    assert states(world, "u1")[-2:] == ["stalled", "hydrated"]
    world.drop("u1")
    clean(world)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_view_without_room_is_stalled_until_it_is_written(
    views: Callable[[int], Views], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with views(workers) as replica:
        replica.write([(4, "delta")], 1)
        with monkeypatch.context() as full:
            _no_room(full, "write")
            replica.settle()
            _later(replica)
            (said,) = heard(replica, "u5")[-1:]
            assert (said.status, said.code) == ("stalled", "limit")
            assert "'m'" in said.message
            assert errno.errorcode[errno.ENOSPC] in said.message or "no space left" in said.message
        _later(replica)
        assert [s.status for s in heard(replica, "u5")][-2:] == ["stalled", "hydrated"]
        rows = [(s.rows_done, s.rows_expected) for s in heard(replica, "u5")]
        assert rows[-1] == (3, 3)


@pytest.mark.slow
def test_a_long_hydration_tells_each_tenth_once(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, Shell(tmp_path, 0, chunk_s=0.0) as replica:
        patch.setattr(import_source, "BLOCK_ROWS", 10)
        replica.boot()
        for at in range(40):
            replica.write([(at * 10 + n, "x") for n in range(10)], at)
        source = SourceImport("u1", "s", SAMPLE_SCHEMA)
        view = Export("u2", "index", "u1", SAMPLE_SCHEMA, (0,))
        header = DataflowHeader("d", 39, None, (source,), (), (view,))
        replica.send(CreateDataflow(0, header, encode_body(DataflowBody(()))))
        replica.send(Schedule(0, "u2"))
        replica.settle()
        said = heard(replica, "u2")
        done = [s.rows_done for s in said if s.status == "hydrating"]
        assert 3 <= len(done) <= 12
        assert done == sorted(set(done))
        assert (said[-1].status, said[-1].rows_done, said[-1].rows_expected) == ("hydrated", 400, 400)
        assert {s.rows_expected for s in said if s.status == "hydrating" and s.rows_done} == {400}


def heard(replica: Shell, id: str) -> list[Status]:
    return [said for said in replica.responses if isinstance(said, Status) and said.id == id]
