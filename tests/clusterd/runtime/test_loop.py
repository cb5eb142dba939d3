"""The shell of a worker, on real shards and shared memory, turned by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterd import internal
from clusterd.convert import updates_from_rows
from clusterd.runtime import published
from controller_proto.codec import encode_body
from controller_proto.command import (
    AllowCompaction,
    CancelPeek,
    CreateDataflow,
    InitializationComplete,
    Schedule,
    UpdateConfiguration,
)
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, SourceImport
from controller_proto.expr import ColumnRef
from controller_proto.plan import Get, Join, Negate, OrderBy, Plan
from controller_proto.response import Frontiers, PeekCanceled, Refused
from controller_proto.schema import SAMPLE_SCHEMA, Schema
from shm_arrangements import failpoints
from shm_arrangements.errors import ShmExhausted
from shm_arrangements.frontier import Frontier
from tests.clusterd.runtime.shell import Shell

MODES = pytest.mark.parametrize("workers", [0, 1, 2])
ABC = [(1, "alpha"), (2, "beta"), (3, "gamma")]


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[int], Shell]:
    def make(workers: int) -> Shell:
        made = Shell(tmp_path, workers)
        made.boot()
        return made

    return make


@MODES
def test_a_read_by_key_and_a_scan_follow_the_shard(shell: Callable[[int], Shell], workers: int) -> None:
    with shell(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        replica.settle()
        replica.write([(4, "delta"), (1, "alpha")], 1, [1, -1])
        replica.settle()
        replica.peek("old", "u1", 0)
        replica.peek("new", "u1", 1)
        replica.peek("key", "u1", 1, ((2,), (1,)))
        replica.peek("latest", "u1", None, limit=1, order_by=(OrderBy(0, descending=True),))
        replica.settle()
        assert replica.rows("old") == ABC
        assert replica.rows("new") == [*ABC[1:], (4, "delta")]
        assert replica.rows("key") == [ABC[1]]
        assert replica.rows("latest") == [(4, "delta")]
        answer = replica.answer("latest")
        assert answer is not None
        assert (answer.time, answer.served_by) == (1, "interactive" if workers else "solo")


@MODES
def test_a_parked_peek_is_woken_by_the_shards_notice_alone(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        replica.peek("a", "u1", 1)
        replica.settle()
        assert replica.answer("a") is None
        replica.write([], 1)
        replica.settle()
        assert replica.rows("a") == ABC


@MODES
def test_l2_a_query_over_an_import_that_does_not_exist_yet(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u1", schedule=False)
        replica.over("t1", "u1")
        replica.peek("a", "t1", 0)
        replica.settle()
        assert replica.answer("a") is None
        replica.send(Schedule(0, "u1"))
        replica.settle()
        assert replica.rows("a") == [(3,)]
        assert [r.write for r in replica.responses if isinstance(r, Frontiers) and r.id == "t1"] == [()]
        replica.drop("t1")
        replica.drop("u1")
        replica.settle()
        assert not replica.names()
        for loop in replica.loops:
            held = loop.core.statistics()
            assert (held.collections, held.dataflows, held.shards) == (0, 0, 0)
            assert loop.owned.count == 0


@MODES
def test_a_maintained_index_over_an_index_and_a_join_query_over_both(
    shell: Callable[[int], Shell], workers: int
) -> None:
    joined = Schema(SAMPLE_SCHEMA.columns * 2)
    plan: Plan = Join((Get("u1"), Get("u1")), ((ColumnRef(0), ColumnRef(2)),))
    with shell(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        replica.over("u2", "u1", query=False)
        replica.over("t1", "u1", plan, joined, key=(0,))
        replica.peek("a", "t1", 0, ((2,),))
        replica.settle()
        assert replica.rows("a") == [(2, "beta", 2, "beta")]
        for t in range(1, 5):
            replica.write([(t * 10, "x")], t)
            replica.settle()
        replica.peek("b", "u2", 4)
        replica.peek("c", "u2", 0)
        replica.settle()
        assert (replica.rows("b"), replica.rows("c")) == ([(7,)], [(3,)])


@MODES
def test_a_drop_of_one_export_leaves_the_other(shell: Callable[[int], Shell], workers: int) -> None:
    with shell(workers) as replica:
        replica.write(ABC, 0)
        exports = tuple(Export(id, "index", "u1000", SAMPLE_SCHEMA, (0,)) for id in ("u1", "u2"))
        header = DataflowHeader("d", 0, None, (SourceImport("u1000", "s", SAMPLE_SCHEMA),), (), exports)
        replica.send(CreateDataflow(0, header, encode_body(DataflowBody(()))))
        replica.send(Schedule(0, "u1"), Schedule(0, "u2"))
        replica.settle()
        replica.drop("u1")
        replica.settle()
        replica.write([(4, "delta")], 1)
        replica.settle()
        replica.peek("a", "u2", 1, ((4,),))
        replica.settle()
        assert replica.rows("a") == [(4, "delta")]
        replica.drop("u2")
        replica.settle()
        assert not replica.names()


@MODES
def test_a_point_read_is_answered_while_a_scan_is_under_way_and_a_cancel_stops_it(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.write([(i, "x") for i in range(200_000)], 0)
        replica.index("u1")
        replica.settle()
        replica.peek("scan", "u1", 0, limit=5)
        replica.peek("doomed", "u1", 0, limit=5)
        replica.peek("point", "u1", 0, ((7,),))
        readers = replica.loops[1:] or replica.loops
        for loop in readers:
            loop._scan_s = 0.0  # one piece a turn
            loop.turn()
        replica.exchange()
        assert replica.rows("point") == [(7, "x")]
        assert replica.answer("scan") is None
        replica.send(CancelPeek(0, "doomed"))
        replica.settle()
        doomed = replica.answer("doomed")
        assert doomed is not None
        assert isinstance(doomed.result, PeekCanceled)
        assert len(replica.rows("scan")) == 5
        assert not any(loop.core.statistics().peeks.ready for loop in replica.loops)


@pytest.mark.slow
@MODES
def test_a_hydration_says_between_its_chunks_how_far_it_is(tmp_path: Path, workers: int) -> None:
    rows = 200_000
    with Shell(tmp_path, workers, chunk_s=0.0) as replica:  # a chunk is one piece
        replica.boot()
        replica.write([(i, "x") for i in range(rows)], 0)
        replica.index("u1")
        seen: list[tuple[int, int]] = []

        def look() -> bool:
            progress = replica.loops[0].dataflows.progress().values()
            seen.extend((each.rows_done, each.rows_expected) for each in progress)
            return False

        replica.settle(until=look)
        assert seen == sorted(seen)
        assert len(set(seen)) >= 3, "it moves"
        assert {expected for _, expected in seen} == {rows}
        assert seen[-1][0] == rows
        assert not replica.loops[0].dataflows.progress()


def test_a_scan_reads_the_snapshot_of_its_time_whatever_happens_meanwhile(
    shell: Callable[[int], Shell],
) -> None:
    with shell(1) as replica:
        replica.write([(i, "x") for i in range(100_000)], 0)
        replica.index("u1")
        replica.settle()
        replica.peek("scan", "u1", 0)
        replica.reader._scan_s = 0.0
        replica.reader.turn()
        replica.exchange()
        assert replica.answer("scan") is None
        replica.held.add(1)
        replica.write([(i, "x") for i in range(100_000)], 1, -1)
        replica.send(AllowCompaction(0, "u1", (1,)))
        replica.settle()
        replica.drop("u1")
        replica.settle()
        replica.held.clear()
        replica.settle()
        assert len(replica.rows("scan")) == 100_000
        assert not replica.names()


@MODES
def test_what_a_reconnect_names_again_keeps_its_pages_and_the_rest_goes(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        replica.index("u2")
        replica.over("t1", "u1")
        replica.peek("parked", "u1", 50)
        replica.settle()
        before = set(replica.names())
        replica.connect(complete=False)
        replica.index("u1")
        replica.peek("a", "u1", 0, ((2,),))
        replica.settle()
        assert set(replica.names()) == before, "P11: nothing changes before"
        replica.send(InitializationComplete(0))
        replica.settle()
        assert replica.rows("a") == [ABC[1]]
        assert replica.answer("parked") is None
        left = [name.split(".")[3:5] for name in before & set(replica.names()) if ".p." in name]
        assert left == [["0000000000000001", "1"]] * 2, "oks and errs of u1"
        replica.drop("u1")
        replica.settle()
        assert not replica.names()


@MODES
def test_a_worker_does_not_rest_on_news_that_came_with_an_answer(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        replica.settle()
        replica.connect(complete=False)
        replica.index("u1")
        replica.peek("a", "u1", 0)
        replica.settle()
        replica.responses.clear()
        replica.send(InitializationComplete(0))
        replica.settle()
        assert replica.rows("a") == ABC
        assert Frontiers("u1", (1,), (1,), (1,)) in replica.responses
        assert not any(loop.core.has_news for loop in replica.loops)


@MODES
def test_nothing_to_do_is_no_timeout_and_every_timer_ends(
    shell: Callable[[int], Shell], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr("clusterd.runtime.loop.time.monotonic", lambda: now)
    with shell(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        for t in range(1, 20):
            replica.write([(t, "x")], t)
            replica.settle()
        replica.peek("a", "u1", 5, ((1,),))
        replica.peek("parked", "u1", 99)
        replica.settle()
        waits = {loop.timeout_ms() for loop in replica.loops}
        assert waits != {None}, "superseded names, or a snapshot, wait for their time"
        assert 0 not in waits
        for _ in range(4):
            now += published.IDLE_S
            for loop in replica.loops:
                loop.work()
            replica.settle()
        assert [loop.timeout_ms() for loop in replica.loops] == [None] * len(replica.loops)
        replica.write([(1000, "y")], 99)
        replica.peek("b", "u1", 6, ((1,),))
        replica.settle()
        assert replica.rows("b") == [(1, "alpha"), (1, "x")]
        assert len(replica.rows("parked")) == 23


def test_a_query_that_finds_no_room_ends_alone_with_limit(shell: Callable[[int], Shell]) -> None:
    with shell(1) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        replica.settle()
        replica.over("t1", "u1")
        replica.peek("a", "t1", 0)
        failpoints.arm("segment.create", "error")
        replica.settle()
        failpoints.disarm_all()
        assert replica.error("a").code == "limit"
        replica.peek("b", "t1", 0)
        replica.peek("c", "u1", 0, ((1,),))
        replica.settle()
        assert replica.error("b").code == "limit"
        assert replica.rows("c") == [ABC[0]]
        replica.drop("t1")
        replica.over("t2", "u1")
        replica.peek("d", "t2", 0)
        replica.settle()
        assert replica.rows("d") == [(3,)]


def test_a_query_whose_round_finds_no_room_ends_alone_too(shell: Callable[[int], Shell]) -> None:
    with shell(1) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        replica.settle()
        replica.over("t1", "u1", Negate(Get("u1000")), SAMPLE_SCHEMA)
        replica.peek("a", "t1", 0)
        replica.exchange()
        loop = replica.reader
        loop.read()  # built, its round is to run
        failpoints.arm("segment.create", "error")
        replica.settle()
        failpoints.disarm_all()
        assert replica.error("a").code == "limit"
        replica.drop("t1")
        replica.drop("u1")
        replica.settle()
        assert not replica.names()


def test_maintenance_without_room_ends_the_replica(shell: Callable[[int], Shell]) -> None:
    with shell(1) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        failpoints.arm("segment.create", "error")
        with pytest.raises(ShmExhausted):
            replica.settle()


@MODES
def test_b16_the_result_limit_is_a_setting_in_force_at_once(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.write([(i, "x" * 100) for i in range(100)], 0)
        replica.index("u1")
        replica.settle()
        replica.send(UpdateConfiguration(0, {"max_result_bytes": 1000}))
        replica.peek("a", "u1", 0)
        replica.peek("b", "u1", 0, limit=3)
        replica.settle()
        assert replica.error("a").code == "result-too-large"
        assert "max_result_bytes is 1000" in replica.error("a").message
        assert len(replica.rows("b")) == 3


@MODES
def test_a_shard_that_is_not_there_or_of_another_schema_is_refused(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.index("u1", shard="nowhere")
        replica.settle()
        refused = [r for r in replica.responses if isinstance(r, Refused)]
        assert refused[0].code == "unknown-shard"
        assert "nowhere" in refused[0].message
        assert all(loop.core.statistics().collections == 0 for loop in replica.loops)


@MODES
def test_an_unknown_failpoint_is_told_and_harms_nothing(
    shell: Callable[[int], Shell], workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with shell(workers) as replica:
        replica.tell(0, internal.Hook("no.such", "error"))
        replica.settle()
    assert "no.such" in capfd.readouterr().err


@MODES
def test_compaction_bounds_what_churn_leaves(shell: Callable[[int], Shell], workers: int) -> None:
    """G6 in small: keys overwritten at each tick, compaction close behind."""
    with shell(workers) as replica:
        replica.write([(k, "0") for k in range(10)], 0)
        replica.index("u1")
        replica.settle()
        for t in range(1, 120):
            rows = [(k, str(t - 1)) for k in range(10)] + [(k, str(t)) for k in range(10)]
            replica.write(rows, t, [-1] * 10 + [1] * 10)
            replica.send(AllowCompaction(0, "u1", (t - 1,)))
            replica.settle()
        index = replica.loops[0].owned[("u1", 1)]
        oks, _ = index.statistics()
        assert oks.updates <= 100
        assert oks.batches <= 8
        replica.peek("a", "u1", 119)
        replica.settle()
        assert replica.rows("a") == [(k, "119") for k in range(10)]


@MODES
def test_a_query_may_read_a_shard_and_waits_for_its_seal(shell: Callable[[int], Shell], workers: int) -> None:
    with shell(workers) as replica:
        replica.write(ABC, 0)
        export = Export("t1", "index", "u1000", SAMPLE_SCHEMA, (0,))
        header = DataflowHeader("q", 1, 2, (SourceImport("u1000", "s", SAMPLE_SCHEMA),), (), (export,))
        replica.send(CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, "t1"))
        replica.peek("a", "t1", 1)
        replica.settle()
        assert replica.answer("a") is None
        replica.write([(4, "delta")], 1)
        replica.write([(5, "late")], 2)
        replica.settle()
        assert replica.rows("a") == [*ABC, (4, "delta")]
        answer = replica.answer("a")
        assert answer is not None
        assert answer.served_by == ("interactive" if workers else "solo")
        replica.drop("t1")
        replica.settle()
        assert not replica.names()
        assert all(loop.core.statistics().shards == 0 for loop in replica.loops)


@MODES
def test_the_end_of_a_shard_seals_its_indexes_for_ever(shell: Callable[[int], Shell], workers: int) -> None:
    with shell(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u1")
        replica.settle()
        shard = replica.store.shard("s")
        replica.peek("far", "u1", 10**15)
        replica.settle()
        assert replica.answer("far") is None
        shard.append(updates_from_rows(SAMPLE_SCHEMA, [], 1), shard.upper, Frontier.empty())
        replica.settle()
        assert replica.rows("far") == ABC
        replica.over("t1", "u1", as_of=(1 << 64) - 1)
        replica.peek("a", "t1", (1 << 64) - 1)
        replica.peek("latest", "u1", None)
        replica.settle()
        assert replica.rows("latest") == ABC
        assert replica.rows("a") == [(3,)]
