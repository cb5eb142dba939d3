"""The multiplexer, event by event, against recording stubs (L17, L20-L23, R5, H4, I5, I7, I10-I12)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clusterd import internal
from clusterd.multiplexer.events import Backlog, Forward, Unread, WorkerSaid
from controller_proto.command import (
    AllowCompaction,
    CancelPeek,
    CreateDataflow,
    CreateInstance,
    Finishing,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
    Sync,
    UpdateConfiguration,
)
from controller_proto.command import (
    TestHook as StallHook,
)
from controller_proto.dataflow import MAX_TIME
from controller_proto.expr import Call, Case, ColumnRef
from controller_proto.response import (
    Closing,
    Frontiers,
    PeekError,
    PeekResponse,
    PeekRows,
    Refused,
    Status,
    SubscribeResponse,
    Synced,
)
from tests.clusterd.mux_bench import MAINTENANCE, MuxBench, fixed

MODES = pytest.mark.parametrize("interactive", [0, 1, 3], ids=["solo", "two-runtime", "three-interactive"])


def only(items: list[Any]) -> Any:
    assert len(items) == 1, items
    return items[0]


def refusal(bench: MuxBench, session: int, seq: int) -> Refused:
    return only([r for r in bench.heard(session, Refused) if r.seq == seq])


def test_l21_each_kind_of_dataflow_goes_to_its_owner_and_its_commands_follow() -> None:
    bench = MuxBench(introspection=("s1",))
    session = bench.controller()
    bench.create(session, "u100", shards=("s",))
    where = {
        "t1": bench.create(session, "t1", as_of=99, until=100, over=("u100",)),
        "t2": bench.create(session, "t2", as_of=MAX_TIME, over=("u100",)),
        "u3": bench.create(session, "u3", shards=("s",)),
        "u4": bench.create(session, "u4", until=100, shards=("s",)),
        "t5": bench.create(session, "t5", shards=("s",)),
        "t6": bench.create(session, "t6", shards=("s",), kind="subscribe"),
        "t16": bench.create(session, "t16", over=("u100",), kind="subscribe"),
        "t7": bench.create(session, "t7", until=100, shards=("s",), kind="copy-to"),
        "t8": bench.create(session, "t8", until=100, shards=("s",), kind="materialized-view"),
        "t9": bench.create(session, "t9", "u9", as_of=0, until=1, shards=("s",)),
    }
    interactive = {"t1", "t2", "t16"}
    for id, seq in where.items():
        owner = 1 if id in interactive else MAINTENANCE
        assert seq in [c.seq for c in bench.commands(owner, CreateDataflow)], id
        assert seq not in [c.seq for c in bench.commands(1 - owner, CreateDataflow)], id
        bench.schedule(session, id)
        assert bench.commands(owner, Schedule)[-1].id == id
        assert id not in [c.id for c in bench.commands(1 - owner, Schedule)]
    for id in (*where, "s1"):
        bench.compact(session, id, 100)
    maintenance = [c.id for c in bench.commands(MAINTENANCE, AllowCompaction)]
    reading = [c.id for c in bench.commands(1, AllowCompaction)]
    assert maintenance == ["u3", "u4", "t5", "t6", "t7", "t8", "t9"]
    assert reading == ["t1", "t2", "u3", "u4", "t5", "t16", "t8", "t9"]  # t8: a read at the newest time
    assert not bench.commands(2, AllowCompaction)  # the observer keeps what it keeps
    assert not bench.heard(session, Refused)


@pytest.mark.parametrize("interactive", [0, 2])
def test_introspection_relations_are_the_observers_and_nothing_else_is(interactive: int) -> None:
    bench = MuxBench(interactive, introspection=("s1", "s2"))
    observer = interactive + 1
    reader = bench.reader()
    bench.peek(reader, "early", "s1")  # before any controller has come
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.create(session, "t1", as_of=5, until=6, over=("s1", "s2"))
    bench.create(session, "t2", over=("s2",), kind="subscribe")
    bench.create(session, "t3", as_of=5, until=6, over=("t1",))
    bench.create(reader, "t1", over=("s1",), kind="subscribe")
    made = [c.header.exports[0].id for c in bench.commands(observer, CreateDataflow)]
    assert made == ["t1", "t2", "t3", "t1"]
    bench.peek(session, "a", "s2")
    bench.peek(session, "b", "t3", 5)
    assert [c.uuid for c in bench.commands(observer, Peek)] == ["early", "a", "b"]
    assert not bench.told(observer, internal.Declare)
    refused = {
        bench.create(session, "t5", as_of=5, until=6, over=("s1", "u1")): "invalid-plan",
        bench.create(session, "u6", over=("s1",)): "invalid-plan",
        bench.create(session, "s1", shards=("s",)): "duplicate-id",
        bench.create(session, "t7", over=("s3",), kind="subscribe"): "unknown-id",
        bench.drop(session, "s1"): "invalid-plan",
    }
    assert {seq: refusal(bench, session, seq).code for seq in refused} == refused


def test_compaction_is_passed_on_as_the_very_bytes_that_came() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.compact(session, "u1", 7)
    bench.compact(session, "u1", 3)
    for worker in bench.workers:
        forwards = [m for m in bench.to_worker[worker] if isinstance(m, Forward)]
        payloads = [m.payload for m in forwards if type(m.command) is AllowCompaction]
        assert [m.command.frontier for m in forwards if type(m.command) is AllowCompaction] == [(7,), (3,)]
        assert len(payloads) == 2


def test_a_view_that_is_dropped_is_undeclared_to_its_readers_and_not_compacted_there() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",), kind="materialized-view")
    bench.compact(session, "u1", 7)
    bench.drop(session, "u1")
    assert [c.frontier for c in bench.commands(MAINTENANCE, AllowCompaction)] == [(7,), ()]
    assert [c.frontier for c in bench.commands(1, AllowCompaction)] == [(7,)]
    assert only(bench.told(1, internal.Undeclare)).code == "dropped"


@pytest.mark.parametrize("interactive", [0, 2])
def test_what_its_owner_gives_up_is_told_to_the_readers_and_to_the_controller(interactive: int) -> None:
    bench = MuxBench(interactive)
    session = bench.controller()
    seq = bench.create(session, "u1", shards=("s",))
    (create,) = [m for m in bench.to_worker[MAINTENANCE] if isinstance(m, Forward) and m.command.seq == seq]
    incarnation = create.incarnations["u1"]
    lost = Status("u1", "errored", "maintenance", code="limit", message="no shard", hint="mend it")
    for status in (Status("u1", "hydrating", "maintenance", 1, 3), lost):
        bench.handle(WorkerSaid(MAINTENANCE, internal.StatusReport(session, incarnation, status)))
    assert bench.heard(session, Status)[-1] == lost
    ended = internal.Ended("u1", incarnation, "limit", "no shard", "mend it")
    for worker in range(1, interactive + 1):
        assert bench.told(worker, internal.Ended) == [ended]
    stale = internal.StatusReport(session, incarnation + 1, lost)
    bench.handle(WorkerSaid(MAINTENANCE, stale))
    assert len(bench.heard(session, Status)) == 2


def test_declare_follows_the_create_and_carries_as_of_and_incarnation() -> None:
    bench = MuxBench(interactive=2)
    session = bench.controller()
    bench.create(session, "u1", as_of=5, shards=("s",))
    forward = [m for m in bench.to_worker[MAINTENANCE] if isinstance(m, Forward)][-1]
    for worker in (1, 2):
        declare = only(bench.told(worker, internal.Declare))
        assert (declare.export.id, declare.as_of, declare.session) == ("u1", 5, session)
        assert forward.incarnations == {"u1": declare.incarnation}
        assert not bench.commands(worker, CreateDataflow)


def test_solo_sends_everything_to_one_worker_and_declares_nothing() -> None:
    bench = MuxBench(interactive=0)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.query(session, "t1", "u1")
    bench.peek(session, "a", "t1")
    bench.compact(session, "u1", 1)
    assert not bench.told(0, internal.Declare)
    assert len(bench.commands(0, CreateDataflow)) == 2
    assert bench.commands(0, Peek)
    assert len(bench.commands(0, AllowCompaction)) == 1


def test_l22_frontiers_come_from_the_owner_alone_and_the_last_one_is_not_lost() -> None:
    bench = MuxBench(introspection=("s1",))
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.query(session, "t1", "u1", as_of=5)
    u1, t1 = (bench.incarnation(id) for id in ("u1", "t1"))
    bench.report(MAINTENANCE, session, "u1", u1, (5,))
    bench.report(MAINTENANCE, session, "s1", 1, (7,))
    bench.report(1, session, "s1", 1, (0,))
    bench.report(1, session, "u1", u1, (0,))
    bench.report(1, session, "t1", t1, (6,))
    bench.drop(session, "t1")
    bench.terminal(1, session, "t1", t1)
    assert bench.heard(session, Frontiers) == [
        Frontiers("u1", (5,)),
        Frontiers("t1", (6,)),
        Frontiers("t1", (), (), ()),
    ]


def test_frontiers_never_go_back_and_empty_is_final() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    for write in ((5,), (4,), (5,), (6,), (), (9,), ()):
        bench.report(MAINTENANCE, session, "u1", u1, write)
    assert [f.write for f in bench.heard(session, Frontiers)] == [(5,), (6,), ()]


def test_frontiers_of_a_slow_controller_are_newest_per_id() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.create(session, "u2", shards=("s",))
    u1, u2 = bench.incarnation("u1"), bench.incarnation("u2")
    bench.reads = False
    for t in range(1000):
        bench.report(MAINTENANCE, session, "u1", u1, (t + 1,))
        bench.report(MAINTENANCE, session, "u2", u2, (t + 1,), input=(t,))
    assert bench.mux.statistics().frontiers_pending == 2
    bench.reads = True
    bench.settle()
    assert bench.heard(session, Frontiers) == [
        Frontiers("u1", (1000,)),
        Frontiers("u2", (1000,), (999,)),
    ]


def test_a_report_of_another_incarnation_or_session_is_dropped() -> None:
    bench = MuxBench()
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    old = bench.incarnation("u1")
    second = bench.controller(epoch=2)
    bench.create(second, "u1", shards=("s",))
    new = bench.incarnation("u1")
    assert new > old
    bench.report(MAINTENANCE, first, "u1", old, (9,))
    bench.report(MAINTENANCE, second, "u1", old, (9,))
    bench.report(MAINTENANCE, first, "u1", new, (9,))
    bench.report(MAINTENANCE, second, "u1", new, (10,))
    assert bench.heard(second, Frontiers) == [Frontiers("u1", (10,))]
    assert not bench.heard(first, Frontiers)


@pytest.mark.parametrize("complete", [False, True])
def test_a_late_report_of_the_last_session_takes_no_news_from_what_goes_on(complete: bool) -> None:
    bench = MuxBench()
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    stands = bench.incarnation("u1")
    second = bench.controller(epoch=2, complete=False)
    bench.create(second, "u1", shards=("s",))
    if not complete:
        bench.report(MAINTENANCE, first, "u1", stands, (5,))
    bench.send(second, InitializationComplete)
    if complete:
        bench.report(MAINTENANCE, first, "u1", stands, (5,))
    assert bench.incarnation("u1") == stands
    bench.report(MAINTENANCE, second, "u1", stands, (5,))  # told afresh
    assert bench.heard(second, Frontiers) == [Frontiers("u1", (5,))]


def test_l23_a_hello_starts_with_nothing_declared() -> None:
    bench = MuxBench()
    first = bench.controller()
    bench.create(first, "u1", shards=("s",))
    bench.query(first, "t1", "u1")
    bench.close(first)
    second = bench.controller(complete=False)
    early = bench.drop(second, "t1")
    assert refusal(bench, second, early).code == "unknown-id"
    assert not bench.commands(1, AllowCompaction)
    bench.create(second, "u1", shards=("s",))
    bench.query(second, "t1", "u1")
    bench.send(second, InitializationComplete)
    bench.drop(second, "t1")
    assert only(bench.commands(1, AllowCompaction)).id == "t1"


@MODES
def test_r5_a_read_is_judged_by_the_compactions_before_it(interactive: int) -> None:
    bench = MuxBench(interactive)
    session = bench.controller()
    bench.create(session, "u1", as_of=2, shards=("s",))
    bench.peek(session, "early", "u1", 1)
    bench.peek(session, "good", "u1", 4)
    bench.compact(session, "u1", 5)
    bench.compact(session, "u1", 3)  # lower: the floor stays
    bench.peek(session, "late", "u1", 4)
    bench.peek(session, "latest", "u1", None)
    answers = {r.uuid: r.result for r in bench.heard(session, PeekResponse)}
    assert set(answers) == {"early", "late"}
    assert answers["early"].code == answers["late"].code == "below-since"
    assert "1" in answers["early"].message
    assert "2" in answers["early"].message
    assert "4" in answers["late"].message
    assert "5" in answers["late"].message
    sent = [p.uuid for worker in bench.workers for p in bench.commands(worker, Peek)]
    assert sorted(sent) == ["good", "latest"]


@MODES
def test_l20_an_import_below_its_since_is_refused_naming_both(interactive: int) -> None:
    bench = MuxBench(interactive)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.compact(session, "u1", 5)
    refused = refusal(bench, session, bench.query(session, "t1", "u1", as_of=3))
    assert refused.code == "below-since"
    assert "3" in refused.message
    assert "5" in refused.message
    assert refusal(bench, session, bench.schedule(session, "t1")).code == "unknown-id"
    bench.peek(session, "a", "t1", 3)
    assert only(bench.heard(session, PeekResponse)).result.code == "unknown-id"


@MODES
def test_a9_ids_that_were_dropped_or_never_were(interactive: int) -> None:
    bench = MuxBench(interactive)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    bench.drop(session, "u1")
    for terminal in (False, True):
        if terminal:
            bench.terminal(MAINTENANCE, session, "u1", u1)
            assert bench.mux.statistics().declared == 0
        assert refusal(bench, session, bench.schedule(session, "u1")).code == "dropped"
        assert refusal(bench, session, bench.compact(session, "u1", 5)).code == "dropped"
        assert refusal(bench, session, bench.create(session, "u1", shards=("s",))).code == "duplicate-id"
        assert refusal(bench, session, bench.query(session, "t7", "u1")).code == "dropped"
        bench.peek(session, f"a{terminal}", "u1")
        assert bench.heard(session, PeekResponse)[-1].result.code == "dropped"
    assert refusal(bench, session, bench.schedule(session, "u2")).code == "unknown-id"
    assert refusal(bench, session, bench.schedule(session, "nonsense")).code == "unknown-id"
    assert refusal(bench, session, bench.query(session, "t7", "u2")).code == "unknown-id"
    bench.peek(session, "b", "9" * 5000)
    assert bench.heard(session, PeekResponse)[-1].result.code == "unknown-id"


def test_an_id_in_use_or_exported_twice_is_a_duplicate() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    assert refusal(bench, session, bench.create(session, "u1", shards=("s",))).code == "duplicate-id"
    assert refusal(bench, session, bench.create(session, "u2", "u2", shards=("s",))).code == "duplicate-id"
    assert refusal(bench, session, bench.create(session, "u3", "u1", shards=("s",))).code == "duplicate-id"
    assert refusal(bench, session, bench.schedule(session, "u3")).code == "unknown-id"
    assert refusal(bench, session, bench.create(session, shards=("s",))).code == "invalid-plan"
    assert refusal(bench, session, bench.create(session, "x1", shards=("s",))).code == "invalid-plan"
    assert (
        refusal(bench, session, bench.create(session, "u5", as_of=-1, shards=("s",))).code == "invalid-plan"
    )
    assert refusal(bench, session, bench.create(session, "u5", over=("u5",))).code == "unknown-id"


def test_a_frontier_of_two_times_or_out_of_range_is_no_frontier() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    for frontier in ((1, 2), (-1,)):
        assert refusal(bench, session, bench.compact(session, "u1", *frontier)).code == "bad-message"
    assert not bench.commands(MAINTENANCE, AllowCompaction)


@MODES
def test_a_refusal_by_the_owner_takes_the_ids_back(interactive: int) -> None:
    bench = MuxBench(interactive)
    session = bench.controller()
    seq = bench.create(session, "u1", "u2", shards=("s",))
    incarnations = {id: bench.incarnation(id) for id in ("u1", "u2")}
    bench.refuse(MAINTENANCE, session, seq)
    assert refusal(bench, session, seq).code == "invalid-plan"
    for worker in range(1, interactive + 1):
        undeclared = {m.id: m.incarnation for m in bench.told(worker, internal.Undeclare)}
        assert undeclared == incarnations
    assert refusal(bench, session, bench.schedule(session, "u1")).code == "unknown-id"
    bench.create(session, "u1", shards=("s",))
    assert bench.incarnation("u1") > incarnations["u1"]
    assert bench.mux.statistics().declared == 1


def test_a_query_that_its_owner_refuses_is_taken_back_without_undeclare() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    seq = bench.query(session, "t1", "u1")
    bench.refuse(1, session, seq)
    assert not bench.told(1, internal.Undeclare)
    assert refusal(bench, session, bench.schedule(session, "t1")).code == "unknown-id"


def test_only_a_query_may_import_the_result_of_a_query_in_either_mode() -> None:
    for interactive in (0, 1):
        bench = MuxBench(interactive)
        session = bench.controller()
        bench.create(session, "u1", shards=("s",))
        bench.query(session, "t1", "u1")
        assert refusal(bench, session, bench.create(session, "u2", over=("t1",))).code == "invalid-plan"
        bench.query(session, "t2", "t1")
        assert len(bench.commands(interactive, CreateDataflow)) == 2 + (interactive == 0)


def test_a_query_over_a_query_goes_to_the_same_worker() -> None:
    bench = MuxBench(interactive=4)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    for i in range(4):
        first = bench.query(session, f"t{2 * i}", "u1")
        second = bench.query(session, f"t{2 * i + 1}", f"t{2 * i}", "u1")
        owners = [w for w in bench.workers if first in [c.seq for c in bench.commands(w, CreateDataflow)]]
        assert second in [c.seq for c in bench.commands(only(owners), CreateDataflow)]
    assert refusal(bench, session, bench.query(session, "t100", "t0", "t2")).code == "invalid-plan"


def test_point_reads_and_heavy_reads_use_different_workers() -> None:
    bench = MuxBench(interactive=3)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    for i in range(8):
        bench.peek(session, f"k{i}", "u1", 0, keys=((i,),))
        bench.peek(session, f"s{i}", "u1", 0)
    lanes = {w: {p.uuid[0] for p in bench.commands(w, Peek)} for w in (1, 2, 3)}
    assert lanes == {1: {"k"}, 2: {"k"}, 3: {"s"}}
    assert [len(bench.commands(w, Peek)) for w in (1, 2)] == [4, 4]


def test_read_routing_sends_peeks_of_maintained_indexes_to_maintenance() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.query(session, "t1", "u1")
    bench.send(session, UpdateConfiguration, config={"read_routing": "maintenance"})
    bench.peek(session, "a", "u1")
    bench.peek(session, "b", "t1")
    assert [p.uuid for p in bench.commands(MAINTENANCE, Peek)] == ["a"]
    assert [p.uuid for p in bench.commands(1, Peek)] == ["b"]


def test_hinted_routing_asks_the_peek_and_then_whether_its_time_is_sealed() -> None:
    bench = MuxBench(interactive=1)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.query(session, "t1", "u1")

    uuids = (f"p{number}" for number in range(100))

    def where(id: str, time: int | None, runtime: str = "any") -> int:
        uuid = next(uuids)
        bench.send(session, Peek, uuid=uuid, id=id, time=time, runtime=runtime)
        return only([w for w in (0, 1) if uuid in [p.uuid for p in bench.commands(w, Peek)]])

    assert where("u1", 5, "maintenance") == 1  # not heard unless routing is hinted
    bench.send(session, UpdateConfiguration, config={"read_routing": "hinted"})
    assert [where("u1", 5, runtime) for runtime in ("interactive", "maintenance")] == [1, 0]
    assert [where("u1", 5), where("u1", None)] == [0, 1]  # nothing is known to be sealed yet
    bench.report(0, session, "u1", bench.incarnation("u1"), (6,))
    assert [where("u1", 5), where("u1", 6)] == [1, 0]
    assert where("u1", 5, "maintenance") == 0
    assert where("t1", 0, "maintenance") == 1  # the result of a query is its owner's
    solo = MuxBench(interactive=0)
    session = solo.controller(read_routing="hinted")
    solo.create(session, "u1", shards=("s",))
    solo.send(session, Peek, uuid="p", id="u1", time=5, runtime="interactive")
    assert [p.uuid for p in solo.commands(0, Peek)] == ["p"]


def test_each_peek_is_answered_once_and_a_second_answer_is_dropped() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.peek(session, "a", "u1")
    bench.answer(MAINTENANCE, session, "a")  # not from where it went
    assert not bench.heard(session, PeekResponse)
    bench.answer(1, session, "a")
    bench.answer(1, session, "a")
    assert [r.uuid for r in bench.heard(session, PeekResponse)] == ["a"]
    assert bench.mux.statistics().peeks_in_flight == 0
    assert bench.mux.statistics().stale_answers == 2


def test_decision_5_a_repeated_uuid_is_refused_and_the_first_is_unaffected() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.peek(session, "a", "u1", 9)
    seq = bench.peek(session, "a", "u1", 0)
    assert refusal(bench, session, seq).code == "duplicate-uuid"
    assert not bench.heard(session, PeekResponse)
    bench.answer(1, session, "a")
    assert len(bench.heard(session, PeekResponse)) == 1
    bench.peek(session, "a", "u1", 0)  # answered: the uuid is free
    assert len(bench.commands(1, Peek)) == 2


def test_uuids_are_per_session() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    reader = bench.reader()
    bench.peek(session, "a", "u1")
    bench.peek(reader, "a", "u1")
    bench.answer(1, reader, "a")
    assert bench.heard(reader, PeekResponse)
    assert not bench.heard(session, PeekResponse)


def test_h4_a_cancel_of_an_unknown_uuid_goes_nowhere() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    before = len(bench.to_client[session])
    bench.send(session, CancelPeek, uuid="zz")
    bench.peek(session, "zz", "u1")
    bench.answer(1, session, "zz")
    assert not bench.commands(1, CancelPeek)
    assert isinstance(only(bench.to_client[session][before:]).result, PeekRows)


def test_a_cancel_follows_its_peek() -> None:
    bench = MuxBench(interactive=3)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    for i in range(6):
        bench.peek(session, f"p{i}", "u1", 9, keys=((i,),))
    for i in range(6):
        bench.send(session, CancelPeek, uuid=f"p{i}")
    for worker in bench.workers:
        peeked = [p.uuid for p in bench.commands(worker, Peek)]
        assert peeked == [c.uuid for c in bench.commands(worker, CancelPeek)]


def test_a_reader_cancels_the_peek_of_another_session_by_naming_it() -> None:
    bench = MuxBench(interactive=2)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    reader = bench.reader()
    for number in (session, reader):
        bench.peek(number, "a", "u1", 9, keys=((number,),))
    bench.send(reader, CancelPeek, uuid="a", session=session)
    bench.send(reader, CancelPeek, uuid="b", session=session)
    bench.send(reader, CancelPeek, uuid="a", session=99)
    told = [
        (worker, m.session)
        for worker in bench.workers
        for m in bench.to_worker[worker]
        if isinstance(m, Forward) and isinstance(m.command, CancelPeek)
    ]
    peeked = [w for w in bench.workers if any(p.keys == ((session,),) for p in bench.commands(w, Peek))]
    assert told == [(only(peeked), session)]


def test_peeks_in_flight_are_limited_per_session() -> None:
    bench = MuxBench()
    session = bench.controller(max_peeks_in_flight=2)
    bench.create(session, "u1", shards=("s",))
    reader = bench.reader()
    for uuid in ("a", "b", "c"):
        bench.peek(session, uuid, "u1", 9)
    bench.peek(reader, "a", "u1", 9)
    error = only(bench.heard(session, PeekResponse))
    assert (error.uuid, error.result.code) == ("c", "limit")
    assert not bench.heard(reader, PeekResponse)
    bench.answer(1, session, "a")
    bench.peek(session, "d", "u1", 9)
    assert [p.uuid for p in bench.commands(1, Peek)] == ["a", "b", "a", "d"]


def test_a_peek_that_would_hold_up_others_is_answered_limit() -> None:
    bench = MuxBench()
    session = bench.controller(max_peek_keys=2, max_peek_nodes=4)
    bench.create(session, "u1", shards=("s",))
    column = ColumnRef(0)
    terms = Finishing(predicates=(Call("and", (column, column, column)),))
    bench.send(session, Peek, uuid="a", id="u1", time=9, keys=((1,), (2,)), finishing=terms)
    assert not bench.heard(session, PeekResponse)
    bench.send(session, Peek, uuid="b", id="u1", time=9, keys=((1,), (2,), (3,)))
    more = Finishing(predicates=(*terms.predicates, column))
    bench.send(session, Peek, uuid="c", id="u1", time=9, finishing=more)
    case = Finishing(maps=(Case(column, column, column),), projection=(0,))
    bench.send(session, Peek, uuid="d", id="u1", time=9, finishing=case)
    answers = bench.heard(session, PeekResponse)
    assert [(a.uuid, a.result.code) for a in answers] == [("b", "limit"), ("c", "limit"), ("d", "limit")]
    assert "max_peek_keys is 2" in answers[0].result.message
    assert "max_peek_nodes" in answers[1].result.message


def test_i7_peeks_die_with_their_session() -> None:
    bench = MuxBench()
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    bench.peek(first, "a", "u1", 9)
    bench.close(first)
    for worker in bench.workers:
        assert only(bench.told(worker, internal.SessionEnd)).session == first
    second = bench.controller(epoch=2)
    bench.create(second, "u1", shards=("s",))
    bench.answer(1, first, "a")
    assert not bench.heard(second, PeekResponse)
    bench.peek(second, "a", "u1", 9)
    bench.answer(1, second, "a")
    assert len(bench.heard(second, PeekResponse)) == 1


def test_i11_a_newer_controller_fences_the_older_one() -> None:
    bench = MuxBench()
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    second = bench.controller(epoch=2)
    assert bench.closed[first].code == "fenced"
    assert [m.session for m in bench.told(1, internal.SessionStart)] == [first, second]
    kinds = [
        type(m) for m in bench.to_worker[1] if isinstance(m, internal.SessionStart | internal.SessionEnd)
    ]
    assert kinds == [internal.SessionStart, internal.SessionEnd, internal.SessionStart]
    before = {worker: len(bench.to_worker[worker]) for worker in bench.workers}
    bench.drop(first, "u1")
    bench.peek(first, "x", "u1")
    assert before == {worker: len(bench.to_worker[worker]) for worker in bench.workers}
    assert not bench.heard(first, PeekResponse)


def test_an_epoch_that_leaves_none_for_later_controllers_is_refused_and_locks_nobody_out() -> None:
    bench = MuxBench()
    greedy = bench.open()
    bench.send(greedy, Hello, nonce="greedy", epoch=(1 << 64) - 1)
    assert only(bench.heard(greedy, Refused)).code == "bad-message"
    assert str((1 << 63) - 1) in bench.closed[greedy].hint
    last = bench.controller("last", epoch=(1 << 63) - 1)
    assert not bench.heard(last, Refused)


@pytest.mark.parametrize(("nonce", "epoch"), [("late", 4), ("n1", 5), ("n1", 6)])
def test_a_late_epoch_or_a_used_nonce_is_fenced_itself(nonce: str, epoch: int) -> None:
    bench = MuxBench()
    first = bench.controller("n1", epoch=5)
    stale = bench.open()
    bench.send(stale, Hello, nonce=nonce, epoch=epoch)
    assert only(bench.heard(stale, Refused)).code == "fenced"
    assert bench.closed[stale].code == "fenced"
    assert first not in bench.closed
    bench.create(first, "u1", shards=("s",))
    assert not bench.heard(first, Refused)


def test_the_same_epoch_with_a_fresh_nonce_takes_over() -> None:
    bench = MuxBench()
    first = bench.controller("n1", epoch=5)
    second = bench.controller("n2", epoch=5)
    assert first in bench.closed
    assert second not in bench.closed


def test_another_protocol_version_is_turned_away() -> None:
    bench = MuxBench()
    session = bench.open()
    bench.send(session, Hello, nonce="n", version=99)
    assert bench.closed[session].code == "format-mismatch"


def test_readers_fence_nobody_and_are_fenced_by_nobody() -> None:
    bench = MuxBench()
    reader = bench.reader()
    bench.peek(reader, "before", "u1")
    assert only(bench.heard(reader, PeekResponse)).result.code == "unknown-id"
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    bench.reader()
    second = bench.controller(epoch=2)
    assert reader not in bench.closed
    assert second not in bench.closed
    assert refusal(bench, reader, bench.drop(reader, "u1")).code == "unknown-id"


def test_p11_readers_see_the_standing_catalog_until_initialization_is_complete() -> None:
    bench = MuxBench()
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    old = bench.incarnation("u1")
    reader = bench.reader()
    second = bench.controller(epoch=2, complete=False)
    bench.create(second, "u1", as_of=7, shards=("s",))
    bench.peek(reader, "a", "u1", 3)
    assert [m for m in bench.to_worker[1] if isinstance(m, Forward)][-1].incarnations == {"u1": old}
    bench.send(second, InitializationComplete)
    bench.peek(reader, "b", "u1", 3)
    assert only(bench.heard(reader, PeekResponse)).result.code == "below-since"


def test_i10_a_replay_cut_short_changes_nothing() -> None:
    bench = MuxBench()
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    old = bench.incarnation("u1")
    reader = bench.reader()
    second = bench.controller(epoch=2, complete=False, max_peeks_in_flight=1)
    bench.create(second, "u2", shards=("s",))
    bench.close(second)
    bench.peek(reader, "a", "u1")
    bench.peek(reader, "b", "u1")
    forwards = [m for m in bench.to_worker[1] if isinstance(m, Forward)][-2:]
    assert [m.incarnations for m in forwards] == [{"u1": old}] * 2
    bench.peek(reader, "c", "u2")
    assert only(bench.heard(reader, PeekResponse)).result.code == "unknown-id"
    third = bench.controller(epoch=3)
    bench.create(third, "u2", shards=("s",))
    assert not bench.heard(third, Refused)


def test_i5_what_a_replay_leaves_out_is_unknown() -> None:
    bench = MuxBench()
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    second = bench.controller(epoch=2)
    bench.peek(second, "a", "u1", 4)
    assert only(bench.heard(second, PeekResponse)).result.code == "unknown-id"
    bench.create(second, "u1", shards=("s",))
    bench.peek(second, "b", "u1", 4)
    assert [p.uuid for p in bench.commands(1, Peek)] == ["b"]


def test_i12_an_incompatible_instance_is_refused_naming_both_and_closed() -> None:
    bench = MuxBench(settings=fixed("shape"))
    first = bench.controller(epoch=1, shape=3)
    bench.create(first, "u1", shards=("s",))
    second = bench.controller(epoch=2, complete=False, shape=4)
    closing = bench.closed[second]
    assert closing.code == "incompatible-config"
    assert "3" in closing.message
    assert "4" in closing.message
    third = bench.controller(epoch=3, shape=3)
    assert third not in bench.closed


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"no_such": 1}, "unknown-setting"),
        ({"max_result_bytes": -1}, "bad-message"),
        ({"max_result_bytes": True}, "bad-message"),
        ({"max_result_bytes": "1"}, "bad-message"),
        ({"read_routing": "sideways"}, "bad-message"),
        ({"max_result_bytes": 5, "no_such": 1}, "unknown-setting"),
    ],
)
def test_a_wrong_setting_is_refused_whole_and_the_connection_stays(config: dict[str, Any], code: str) -> None:
    bench = MuxBench()
    session = bench.open()
    bench.send(session, Hello, nonce="n")
    seq = bench.send(session, CreateInstance, config=config)
    assert refusal(bench, session, seq).code == code
    bench.send(session, CreateInstance, config={})
    bench.send(session, InitializationComplete)
    seq = bench.send(session, UpdateConfiguration, config=config)
    assert refusal(bench, session, seq).code == code
    assert not bench.commands(MAINTENANCE, UpdateConfiguration)
    assert session not in bench.closed


def test_configuration_goes_to_every_worker() -> None:
    bench = MuxBench(interactive=2)
    session = bench.controller(max_result_bytes=16)
    bench.send(session, UpdateConfiguration, config={"max_result_bytes": 17})
    for worker in bench.workers:
        assert only(bench.commands(worker, CreateInstance)).config == {"max_result_bytes": 16}
        assert only(bench.commands(worker, UpdateConfiguration)).config == {"max_result_bytes": 17}
        assert len(bench.commands(worker, InitializationComplete)) == 1


def test_sync_with_nothing_to_validate_is_answered_at_once() -> None:
    bench = MuxBench()
    reader = bench.reader()
    seq = bench.send(reader, Sync)
    assert bench.to_client[reader] == [Synced(seq)]


def test_sync_waits_for_every_worker_that_still_may_refuse_and_in_order() -> None:
    bench = MuxBench()
    session = bench.controller()
    first = bench.send(session, Sync)
    bench.create(session, "u1", shards=("s",))
    second = bench.send(session, Sync)
    third = bench.send(session, Sync)
    assert [c.seq for c in bench.commands(MAINTENANCE, Sync)] == [first, second]
    assert [c.seq for c in bench.commands(1, Sync)] == [first]
    bench.say(MAINTENANCE, internal.SyncDone(session, first))
    bench.say(MAINTENANCE, internal.SyncDone(session, second))
    assert not bench.heard(session, Synced)
    bench.say(1, internal.SyncDone(session, first))
    assert bench.heard(session, Synced) == [Synced(first), Synced(second), Synced(third)]


def test_a_refusal_arrives_before_the_sync_that_covers_it() -> None:
    bench = MuxBench()
    session = bench.controller()
    seq = bench.create(session, "u1", shards=("s",))
    sync = bench.send(session, Sync)
    bench.refuse(MAINTENANCE, session, seq)
    for worker in bench.workers:
        bench.say(worker, internal.SyncDone(session, sync))
    assert [type(m) for m in bench.to_client[session]][-2:] == [Refused, Synced]


def test_l17_sync_does_not_wait_for_a_worker_that_the_hook_holds() -> None:
    bench = MuxBench()
    session = bench.controller()
    first = bench.send(session, Sync)
    for worker in bench.workers:
        bench.say(worker, internal.SyncDone(session, first))
    bench.create(session, "u1", shards=("s",))
    bench.send(session, StallHook, process="interactive/0", action="stall")
    assert bench.held == {1}
    bench.query(session, "t1", "u1")
    sync = bench.send(session, Sync)
    bench.say(MAINTENANCE, internal.SyncDone(session, sync))
    assert bench.heard(session, Synced)[-1] == Synced(sync)
    bench.send(session, StallHook, process="interactive/0", action="release")
    assert bench.held == set()
    late = bench.send(session, Sync)
    assert bench.commands(1, Sync)[-1].seq == late


def test_hooks_are_refused_unless_the_daemon_was_started_with_them() -> None:
    bench = MuxBench(test_hooks=False)
    session = bench.controller()
    seq = bench.send(session, StallHook, process="interactive/0", action="stall")
    assert refusal(bench, session, seq).code == "unauthorized"
    assert not bench.held


def test_hooks_reach_the_process_they_name() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.send(session, StallHook, process="maintenance/0", action="failpoint:exit", name="segment.create")
    assert bench.told(MAINTENANCE, internal.Hook) == [internal.Hook("segment.create", "exit")]
    for process, action in (("solo/0", "stall"), ("maintenance/0", "dance"), ("mux", "stall")):
        seq = bench.send(session, StallHook, process=process, action=action)
        assert refusal(bench, session, seq).code == "bad-message"


def test_applied_frontiers_are_passed_to_maintenance_with_the_workers_number() -> None:
    bench = MuxBench(interactive=2)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    bench.say(2, internal.Applied("u1", u1, (5,)))
    assert bench.told(MAINTENANCE, internal.AppliedBy) == [internal.AppliedBy(1, "u1", u1, (5,))]


def test_a_full_worker_gets_no_more_commands_but_drops_and_others_are_served() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.handle(Backlog(MAINTENANCE, True))
    assert refusal(bench, session, bench.create(session, "u2", shards=("s",))).code == "limit"
    assert refusal(bench, session, bench.compact(session, "u1", 3)).code == "limit"
    bench.peek(session, "a", "u1", 1)
    assert bench.commands(1, Peek)
    bench.handle(Backlog(1, True))
    bench.peek(session, "b", "u1", 1)
    assert only(bench.heard(session, PeekResponse)).result.code == "limit"
    bench.drop(session, "u1")
    assert only(bench.commands(MAINTENANCE, AllowCompaction)).frontier == ()
    bench.handle(Backlog(MAINTENANCE, False))
    bench.create(session, "u2", shards=("s",))
    assert len(bench.commands(MAINTENANCE, CreateDataflow)) == 2


def test_a_command_out_of_stage_is_refused_and_the_stage_stays() -> None:
    bench = MuxBench()
    session = bench.open()
    assert refusal(bench, session, bench.create(session, "u1")).code == "invalid-stage"
    bench.send(session, Hello, nonce="n")
    assert refusal(bench, session, bench.peek(session, "a", "u1")).code == "invalid-stage"
    bench.send(session, CreateInstance)
    bench.create(session, "u1", shards=("s",))
    bench.send(session, InitializationComplete)
    assert refusal(bench, session, bench.send(session, InitializationComplete)).code == "invalid-stage"
    assert refusal(bench, session, bench.send(session, Hello, nonce="m")).code == "invalid-stage"
    assert len(bench.commands(MAINTENANCE, CreateDataflow)) == 1


# -- notices (R10)


def look(bench: MuxBench, id: str, incarnation: int) -> None:
    bench.say(MAINTENANCE, internal.Looks(((id, incarnation),)))


def test_the_first_notice_goes_out_and_later_ones_only_where_work_waits() -> None:
    bench = MuxBench(interactive=2)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    for _ in range(10):
        look(bench, "u1", u1)
    assert len(bench.told(MAINTENANCE, internal.LooksAck)) == 10
    assert [len(bench.told(w, internal.Look)) for w in (1, 2)] == [1, 1]
    bench.peek(session, "a", "u1", 99, keys=((1,),))  # goes to worker 1, and what it was not told goes along
    assert [len(bench.told(w, internal.Look)) for w in (1, 2)] == [2, 1]
    look(bench, "u1", u1)
    assert [len(bench.told(w, internal.Look)) for w in (1, 2)] == [3, 1]
    bench.answer(1, session, "a")
    look(bench, "u1", u1)
    assert [len(bench.told(w, internal.Look)) for w in (1, 2)] == [3, 1]


def test_news_without_interest_rides_with_the_next_command_about_the_id() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.create(session, "u2", shards=("s",))
    u1, u2 = bench.incarnation("u1"), bench.incarnation("u2")
    for _ in range(2):
        look(bench, "u1", u1)
        look(bench, "u2", u2)
    bench.compact(session, "u1", 1)
    assert [m.id for m in bench.told(1, internal.Look)] == ["u1", "u2", "u1"]


def test_a_deferred_query_is_told_of_its_imports_until_it_is_computed() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    look(bench, "u1", u1)
    bench.query(session, "t1", "u1")
    look(bench, "u1", u1)
    assert len(bench.told(1, internal.Look)) == 2
    bench.report(1, session, "t1", bench.incarnation("t1"), ())
    look(bench, "u1", u1)
    assert len(bench.told(1, internal.Look)) == 2


def test_a_query_that_lost_one_of_its_results_is_told_of_its_imports_for_the_other() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    bench.create(session, "t1", "t2", as_of=4, until=5, over=("u1",))
    look(bench, "u1", u1)
    bench.drop(session, "t2")
    bench.terminal(1, session, "t2", bench.incarnation("t2"))
    look(bench, "u1", u1)
    assert len(bench.told(1, internal.Look)) == 2
    bench.report(1, session, "t1", bench.incarnation("t1"), ())
    look(bench, "u1", u1)
    assert len(bench.told(1, internal.Look)) == 2


@pytest.mark.parametrize("ending", ["drop", "refusal", "replaced", "cut-short"])
def test_interest_ends_with_the_query_however_it_ends(ending: str) -> None:
    bench = MuxBench()
    session = bench.controller(complete=ending != "cut-short")
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    seq = bench.query(session, "t1", "u1")
    if ending == "drop":
        bench.drop(session, "t1")
    elif ending == "refusal":
        bench.refuse(1, session, seq)
    elif ending == "replaced":
        bench.controller(epoch=9)
    else:
        bench.close(session)
    board = bench.mux._state.boards[1]
    assert board.interest(("u1", u1)) == 0


def test_a_stalled_worker_is_owed_at_most_one_notice_an_id() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.create(session, "u7", shards=("s",))
    ids = {id: bench.incarnation(id) for id in ("u1", "u7")}
    bench.peek(session, "a", "u1", 10_000)
    bench.peek(session, "b", "u7", 10_000)
    bench.clear.discard(1)
    for _ in range(1000):
        for id, incarnation in ids.items():
            look(bench, id, incarnation)
    assert not bench.told(1, internal.Look)
    assert len(bench.told(MAINTENANCE, internal.LooksAck)) == 2000
    bench.clear.add(1)
    bench.settle()
    assert sorted(m.id for m in bench.told(1, internal.Look)) == ["u1", "u7"]


def test_news_that_comes_while_a_notice_is_written_makes_another() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.peek(session, "a", "u1", 9)
    u1 = bench.incarnation("u1")
    bench.clear.discard(1)
    look(bench, "u1", u1)
    taken = bench.mux.take_notices(1)  # the mark is cleared: the write comes now
    look(bench, "u1", u1)
    assert taken == [internal.Look("u1", u1)]
    assert bench.mux.take_notices(1) == taken


def test_a_page_that_is_torn_down_is_always_told() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    look(bench, "u1", u1)
    bench.drop(session, "u1")
    look(bench, "u1", u1)
    bench.terminal(MAINTENANCE, session, "u1", u1)
    look(bench, "u1", u1)
    assert len(bench.told(1, internal.Look)) == 3


def test_h14_a_thousand_queries_leave_nothing_behind() -> None:
    bench = MuxBench()
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    u1 = bench.incarnation("u1")
    look(bench, "u1", u1)
    start = bench.mux.statistics()
    for i in range(1, 1001):
        id = f"t{i}"
        bench.query(session, id, "u1", as_of=i)
        bench.schedule(session, id)
        bench.peek(session, id, id, i)
        look(bench, "u1", u1)
        bench.answer(1, session, id)
        bench.drop(session, id)
        bench.terminal(1, session, id, bench.incarnation(id))
        bench.compact(session, "u1", i)
        bench.to_worker = {worker: [] for worker in bench.workers}
    ended = bench.mux.statistics()
    assert msgspec.structs.replace(ended, notices=start.notices) == start
    assert ended.notices["interactive/0"].heard == 1001
    assert bench.mux._state.standing is not None
    assert bench.mux._state.standing._gone.ranges == 1
    assert refusal(bench, session, bench.query(session, "t500", "u1", as_of=2000)).code == "duplicate-id"


def test_closing_carries_no_answer_to_the_fenced() -> None:
    bench = MuxBench()
    first = bench.controller(epoch=1)
    bench.create(first, "u1", shards=("s",))
    bench.peek(first, "a", "u1", 9)
    bench.controller(epoch=2)
    bench.answer(1, first, "a")  # the bench asserts that nothing is said after the close
    assert isinstance(bench.closed[first], Closing)
    assert not [r for r in bench.heard(first, PeekResponse) if not isinstance(r.result, PeekError)]


@pytest.mark.parametrize("interactive", [0, 1])
def test_bug61_a_subscription_that_is_not_read_ends_by_itself_and_says_so_once(interactive: int) -> None:
    bench = MuxBench(interactive)
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.create(session, "t1", over=("u1",), kind="subscribe")
    bench.create(session, "t2", over=("u1",), kind="subscribe")
    owner = 1 if interactive else MAINTENANCE

    def tell(id: str, lower: int, *, ends: bool = False) -> list[Any]:
        raw = msgspec.Raw(msgspec.msgpack.encode(id))
        telling = internal.Telling([(session, id, bench.incarnation(id))], raw, (lower,), ends)
        return bench.handle(WorkerSaid(owner, telling))

    (stream,) = tell("t1", 5)
    assert (stream.session, stream.id, stream.lower) == (session, "t1", (5,))
    whole = msgspec.msgpack.decode(stream.head + bytes(stream.said))
    assert whole == {"t": "subscribe", "id": "t1", "said": "t1"}
    bench.handle(Unread(session, "t1", (5,), 1 << 30))
    (end,) = [each.said for each in bench.heard(session, SubscribeResponse)]
    assert (end.upper, end.code) == ((5,), "limit")
    assert str(1 << 30) in end.message
    assert [m for m in bench.to_worker[owner] if isinstance(m, internal.Cut)] == [
        internal.Cut("t1", bench.incarnation("t1"))
    ]
    assert tell("t1", 6) == []
    assert tell("t1", 6, ends=True) == [], "said once"
    assert bench.handle(Unread(session, "t1", (6,), 1 << 30)) == []
    assert len(tell("t2", 6)) == 1, "the other one goes on"
    bench.drop(session, "t1")
    bench.drop(session, "t2")
    assert len(tell("t2", 7, ends=True)) == 1
    assert bench.mux.statistics().declared == 1
    bench.drop(session, "u1")
    bench.terminal(MAINTENANCE, session, "u1", bench.incarnation("u1"))
    assert bench.mux.statistics().declared == 0
    bench.mux.validate_state()


@pytest.mark.parametrize("interactive", [0, 1])
def test_a_reader_subscribes_to_what_stands_and_to_nothing_else(interactive: int) -> None:
    bench = MuxBench(interactive)
    owner = 1 if interactive else MAINTENANCE
    early = bench.reader()
    assert (
        refusal(bench, early, bench.create(early, "t1", over=("u1",), kind="subscribe")).code == "unknown-id"
    )
    session = bench.controller()
    bench.create(session, "u1", shards=("s",))
    bench.create(session, "t1", over=("u1",), kind="subscribe")
    readers = [bench.reader(), bench.reader()]
    for reader in readers:
        bench.create(reader, "t1", over=("u1",), kind="subscribe")
        bench.schedule(reader, "t1")
        assert not bench.heard(reader, Refused), "its names are its own"
    made = [
        m for m in bench.to_worker[owner] if isinstance(m, Forward) and isinstance(m.command, CreateDataflow)
    ]
    found = {m.session: m.incarnations["t1"] for m in made if "t1" in m.incarnations}
    assert len(set(found.values())) == 3
    for number, reader in enumerate(readers):
        telling = internal.Telling([(reader, "t1", found[reader])], msgspec.Raw(b"\xc0"), (number,), False)
        assert [e.session for e in bench.handle(WorkerSaid(owner, telling))] == [reader]
    others = [(reader, "t1", incarnation) for reader, incarnation in found.items()]
    both = internal.Telling([*others, (99, "t1", 1)], msgspec.Raw(b"\xc0"), (2,), False)
    assert [e.session for e in bench.handle(WorkerSaid(owner, both))] == list(found), "whoever is there"
    for refused in (
        bench.create(readers[0], "u5", shards=("s",)),
        bench.query(readers[0], "t5", "u1"),
        bench.create(readers[0], "t6", shards=("s",), kind="subscribe"),
    ):
        assert refusal(bench, readers[0], refused).code == "unauthorized"
    assert refusal(bench, readers[0], bench.drop(readers[0], "u1")).code == "unknown-id"
    bench.close(readers[0])
    for worker in bench.workers:
        ended = [m.session for m in bench.to_worker[worker] if isinstance(m, internal.SessionEnd)]
        assert ended == ([readers[0]] if worker == owner else [])
    bench.drop(readers[1], "t1")
    assert bench.mux.statistics().declared == 3
    ends = internal.Telling([(readers[1], "t1", found[readers[1]])], msgspec.Raw(b"\xc0"), (1,), True)
    assert len(bench.handle(WorkerSaid(owner, ends))) == 1
    assert bench.mux.statistics().declared == 2
    bench.mux.validate_state()
