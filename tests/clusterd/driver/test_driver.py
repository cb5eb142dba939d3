"""Directives against a replica that says what the test wants it to say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterd.driver.driver import DIRECTIVES, carry_out
from clusterd.driver.state import Run, Skip
from clusterd.storage.store import Store
from controller_proto.codec import decode_body
from controller_proto.command import (
    AllowCompaction,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    Finishing,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
    Sync,
    TestHook,
)
from controller_proto.dataflow import Export
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.plan import Get, OrderBy, Reduce
from controller_proto.response import (
    Closing,
    Frontiers,
    PeekCanceled,
    PeekError,
    PeekResponse,
    PeekRows,
    Refused,
    Response,
)
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Schema
from shm_arrangements.frontier import Frontier
from tests.clusterd.driver.fake import FakeReplica, Reaction, fake_replica


@contextmanager
def _driver(
    tmp_path: Path, react: Reaction = lambda command: [], *, mode: str | None = None
) -> Iterator[tuple[Run, FakeReplica]]:
    with fake_replica(tmp_path / "socket", react) as replica:
        run = Run(replica.address, store=Store.open(tmp_path / "data"), mode=mode, timeout_s=10.0)
        try:
            yield run, replica
        finally:
            run.close()


def _boot(run: Run) -> None:
    for line in ("create-instance", "initialization-complete"):
        assert carry_out(run, line) == ["ok"]


def _index(run: Run) -> None:
    line = "define-index source=1000 index=1 shard=s key=[0] as-of=0 upper=1"
    assert carry_out(run, line) == ["ok"]


def _said(replica: FakeReplica) -> list[Command]:
    return [command for command in replica.heard if not isinstance(command, Sync)]


def _answer(*rows: tuple[int, str], count: int = 1, time: int = 0, served_by: str = "") -> Reaction:
    def react(command: Command) -> list[Response]:
        if not isinstance(command, Peek):
            return []
        columns = tuple(zip(*rows, strict=True)) if rows else ((), ())
        result = PeekRows(columns, (count,) * len(rows))
        return [PeekResponse(command.uuid, result, time, served_by)]

    return react


def test_a_session_begins_with_hello_and_each_command_is_followed_by_a_barrier(tmp_path: Path) -> None:
    with _driver(tmp_path) as (run, replica):
        assert carry_out(
            run, "create-instance", ["max_result_bytes u64 1000", "peek_wait duration 50ms"]
        ) == ["ok"]
        assert carry_out(run, "initialization-complete") == ["ok"]
        assert carry_out(run, "schedule id=7") == ["ok"]
        assert carry_out(run, "allow-compaction id=t7 frontier=[] no-sync") == ["ok"]
        assert carry_out(run, "allow-compaction id=7 frontier=5") == ["ok"]
        hello, create, done, *rest = _said(replica)
        assert isinstance(hello, Hello)
        assert hello.epoch == 1
        assert isinstance(create, CreateInstance)
        assert create.config == {"max_result_bytes": 1000, "peek_wait": 0.05}
        assert isinstance(done, InitializationComplete)
        assert [type(command) for command in rest] == [Schedule, AllowCompaction, AllowCompaction]
        assert sum(isinstance(command, Sync) for command in replica.heard) == 4


def test_a_refusal_is_the_output_and_the_next_directive_goes_on(tmp_path: Path) -> None:
    def react(command: Command) -> list[Response]:
        return (
            [Refused(command.seq, "unknown-id", "u7 is not known")] if isinstance(command, Schedule) else []
        )

    with _driver(tmp_path, react) as (run, _):
        _boot(run)
        assert carry_out(run, "schedule id=7") == ["error: unknown-id: u7 is not known"]
        assert carry_out(run, "allow-compaction id=7 frontier=1") == ["ok"]


def test_a_refusal_that_nobody_waited_for_is_a_violation(tmp_path: Path) -> None:
    def react(command: Command) -> list[Response]:
        return [Refused(command.seq, "unknown-id", "no")] if isinstance(command, Schedule) else []

    with _driver(tmp_path, react) as (run, _):
        _boot(run)
        assert carry_out(run, "schedule id=7 no-sync") == ["ok"]
        assert carry_out(run, "allow-compaction id=7 frontier=1") == [
            "ok",
            "violation: refused without a question: unknown-id: no",
        ]


def test_a_dataflow_is_sent_with_schemas_computed_from_its_plans(tmp_path: Path) -> None:
    body = [
        "import source=1000 shard=flights schema=flights upper=3",
        "build id=3000",
        "  Reduce group_by=[#0] aggregates=[sum(#1)]",
        "    Get u1000",
        "export index=3001 on=3000 key=[0]",
    ]
    with _driver(tmp_path) as (run, replica):
        _boot(run)
        columns = ["carrier text", 'delay "double precision" nullable']
        assert carry_out(run, "define-schema name=flights", columns) == ["ok"]
        assert carry_out(run, "create-dataflow name=d as-of=2 until=9", body) == ["ok"]
        created = _said(replica)[-1]
        assert isinstance(created, CreateDataflow)
        assert (created.header.as_of, created.header.until) == (2, 9)
        schema = Schema(
            (Column("carrier", ColumnType.TEXT), Column("sum", ColumnType.FLOAT64, nullable=True))
        )
        assert created.header.exports == (Export("u3001", "index", "u3000", schema, (0,)),)
        (build,) = decode_body(created.body).builds
        assert isinstance(build.plan, Reduce)
        assert build.plan.input == Get("u1000")
        # Its own output can be imported, and explained.
        more = ["import index=3001", "export index=t5 on=3000 key=[]"]
        assert carry_out(run, "create-dataflow as-of=2", more) == ["ok"]
        again = _said(replica)[-1]
        assert isinstance(again, CreateDataflow)
        assert again.header.exports[0].schema == schema
        assert carry_out(run, "explain ref=d")[:2] == [
            "Export index u3001 on=u3000 key=[#0]",
            "  Reduce group_by=[#0] aggregates=[sum(#1)]",
        ]


def test_a_peek_is_sent_as_it_is_written(tmp_path: Path) -> None:
    with _driver(tmp_path, _answer((1, "a"), time=5)) as (run, replica):
        _boot(run)
        _index(run)
        line = (
            'peek id=1 ts=5 keys=[(1), (-2)] map=(#0 + 1, "x") filter=(#0 > 1 AND #1 = "a b") '
            "order-by=[#2 desc] limit=3 offset=1 project=(#0, #1)"
        )
        assert carry_out(run, line) == ['1 "a"']
        peek = _said(replica)[-1]
        assert isinstance(peek, Peek)
        assert (peek.id, peek.time, peek.keys) == ("u1", 5, ((1,), (-2,)))
        one, two = Literal(ColumnType.INT64, 1), Literal(ColumnType.TEXT, "x")
        assert peek.finishing == Finishing(
            maps=(Call("+", (ColumnRef(0), one)), two),
            predicates=(
                Call(">", (ColumnRef(0), one)),
                Call("=", (ColumnRef(1), Literal(ColumnType.TEXT, "a b"))),
            ),
            order_by=(OrderBy(2, descending=True),),
            limit=3,
            offset=1,
            projection=(0, 1),
        )


def test_rows_are_printed_as_often_as_they_are_there_and_counted(tmp_path: Path) -> None:
    with _driver(tmp_path, _answer((1, "a"), (2, "b c"), count=2)) as (run, _):
        _boot(run)
        _index(run)
        assert carry_out(run, "peek id=1 ts=0") == ['1 "a"', '1 "a"', '2 "b c"', '2 "b c"']
        assert carry_out(run, "count id=1 ts=0") == ["4"]


def test_what_an_index_does_not_fit_is_sent_for_the_replica_to_judge(tmp_path: Path) -> None:
    def react(command: Command) -> list[Response]:
        if not isinstance(command, Peek):
            return []
        return [PeekResponse(command.uuid, PeekError("invalid-plan", f"keys {command.keys}"))]

    with _driver(tmp_path, react) as (run, _):
        _boot(run)
        _index(run)
        assert carry_out(run, "peek id=1 ts=0 keys=[(abc)]") == ["error: invalid-plan: keys (('abc',),)"]
        assert carry_out(run, "peek id=99 ts=latest keys=[(1, null, 2.5, true)]") == [
            "error: invalid-plan: keys ((1, None, 2.5, True),)"
        ]
        assert carry_out(run, "count id=99 ts=0") == ["error: invalid-plan: keys None"]


def test_a_peek_is_started_cancelled_and_awaited_by_name(tmp_path: Path) -> None:
    sent: list[str] = []

    def react(command: Command) -> list[Response]:
        if isinstance(command, Peek):
            sent.append(command.uuid)
        if isinstance(command, CancelPeek):
            return [PeekResponse(command.uuid, PeekCanceled())]
        return []

    with _driver(tmp_path, react) as (run, _):
        _boot(run)
        _index(run)
        assert carry_out(run, "start-peek name=a id=1 ts=9") == ["ok"]
        assert carry_out(run, "quiet ms=1 kind=peek") == ["ok"]
        assert carry_out(run, "await-peek name=a timeout-secs=0.01") == [
            "error: timeout: u1 was never scheduled"
        ]
        assert carry_out(run, "cancel-peek name=a") == ["ok"]
        assert carry_out(run, "quiet ms=0 kind=peek") == ["peek a: PeekCanceled"]
        assert carry_out(run, "await-peek name=a") == ["canceled"]
        assert carry_out(run, "quiet ms=0 kind=peek") == ["ok"]
        assert carry_out(run, "await-peek name=b") == [
            "error: bad-message: no peek is called 'b'; there are a"
        ]
        assert carry_out(run, "cancel-peek uuid=zz") == [
            "ok",
            "violation: an answer to peek zz, which was not sent",
        ]


@pytest.mark.parametrize(
    ("mode", "served_by", "violation"),
    [
        ("solo", "solo", None),
        ("two-runtime", "interactive", None),
        ("two-runtime", "maintenance", "was served by 'maintenance', not 'interactive'"),
        ("solo", "", "was served by '', not 'solo'"),
        (None, "maintenance", None),
    ],
)
def test_who_serves_is_checked_for_every_peek(
    mode: str | None, served_by: str, violation: str | None, tmp_path: Path
) -> None:
    with _driver(tmp_path, _answer((1, "a"), served_by=served_by), mode=mode) as (run, _):
        _boot(run)
        _index(run)
        output = carry_out(run, "peek id=1 ts=0")
        assert output[0] == '1 "a"'
        assert len(output) == (1 if violation is None else 2)
        assert violation is None or violation in output[1]
        assert carry_out(run, "served-by") == [served_by or "?"]


def _reports(*reports: Frontiers) -> Reaction:
    return lambda command: list(reports) if isinstance(command, Schedule) else []


@pytest.mark.parametrize(
    ("reports", "violation"),
    [
        ([Frontiers("u1", (1,)), Frontiers("u1", (5,)), Frontiers("u1", ())], None),
        ([Frontiers("u1", None, (1,)), Frontiers("u1", (0,))], None),
        ([Frontiers("u1", (5,)), Frontiers("u1", (4,))], "write frontier of u1: [4] after [5]"),
        ([Frontiers("u1", ()), Frontiers("u1", (4,))], "write frontier of u1: [4] after []"),
    ],
)
def test_a_frontier_that_goes_back_or_returns_from_empty_is_a_violation(
    reports: list[Frontiers], violation: str | None, tmp_path: Path
) -> None:
    with _driver(tmp_path, _reports(*reports)) as (run, _):
        _boot(run)
        output = carry_out(run, "schedule id=1")
        assert output == ["ok"] if violation is None else ["ok", f"violation: {violation}"]


def test_a_first_frontier_before_the_as_of_is_a_violation(tmp_path: Path) -> None:
    with _driver(tmp_path, _reports(Frontiers("u1", (3,)))) as (run, _):
        _boot(run)
        line = "define-index source=1000 index=1 shard=s key=[0] as-of=4 upper=1"
        assert carry_out(run, line) == ["ok"]
        assert carry_out(run, "schedule id=1") == [
            "ok",
            "violation: write frontier of u1: [3] before its as_of 4",
        ]


def test_a_second_answer_and_an_answer_at_another_time_are_violations(tmp_path: Path) -> None:
    def react(command: Command) -> list[Response]:
        if not isinstance(command, Peek):
            return []
        answer = PeekResponse(command.uuid, PeekRows(((1,), ("a",)), (1,)), 4)
        return [answer, answer]

    with _driver(tmp_path, react) as (run, _):
        _boot(run)
        _index(run)
        assert carry_out(run, "peek id=1 ts=5") == [
            '1 "a"',
            "violation: an answer to peek p1: read at 4, asked for 5",
            "violation: a second answer to peek p1",
        ]


def test_frontiers_are_awaited_and_printed_as_last_reported(tmp_path: Path) -> None:
    with _driver(tmp_path, _reports(Frontiers("u1", (5,), (), None))) as (run, _):
        _boot(run)
        assert carry_out(run, "frontiers id=1") == ["write=? input=? output=?"]
        assert carry_out(run, "await-frontier id=1 ts=0 timeout-secs=0.01 allow-timeout") == ["timeout"]
        assert carry_out(run, "await-frontier id=1 ts=0 timeout-secs=0.01") == [
            "error: timeout: u1 was not created on this connection"
        ]
        assert carry_out(run, "schedule id=1") == ["ok"]
        assert carry_out(run, "await-frontier id=1 ts=5") == ["ok"]
        assert carry_out(run, "frontiers id=1") == ["write=5 input=[] output=?"]


def test_a_wait_in_vain_says_why_as_far_as_is_known(tmp_path: Path) -> None:
    def react(command: Command) -> list[Response]:
        if isinstance(command, Schedule) and command.id == "u3000":
            return [Refused(command.seq, "unknown-id", "u3000 was not created in this session")]
        return [Frontiers("u1", (1,))] if isinstance(command, Schedule) else []

    body = [
        "import source=1000 shard=s upper=1",
        "build id=3000",
        "  Get u1000",
        "export index=1 on=3000 key=[0]",
    ]
    wait = "await-frontier id=1 ts=2 timeout-secs=0.01"
    with _driver(tmp_path, react) as (run, _):
        assert carry_out(run, "create-instance") == ["ok"]
        assert carry_out(run, "create-dataflow as-of=0", body) == ["ok"]
        assert carry_out(run, wait) == [
            "error: timeout: u1 was never scheduled; initialization-complete was not sent"
        ]
        assert carry_out(run, "initialization-complete") == ["ok"]
        wanted = "u3000 is a build, the id of an export is wanted: u1"
        refused = f"error: unknown-id: u3000 was not created in this session; {wanted}"
        assert carry_out(run, "schedule id=3000") == [refused]
        assert carry_out(run, wait.replace("id=1", "id=3000")) == [f"error: timeout: {wanted}"]
        assert carry_out(run, "peek id=1 ts=0 timeout-secs=0.01") == [
            "error: timeout: u1 was never scheduled"
        ]
        assert carry_out(run, "schedule id=1") == ["ok"]
        assert carry_out(run, wait) == ["error: timeout: write=1 was last reported of u1"]
        assert carry_out(run, "connect as=r kind=reader") == ["ok"]
        assert carry_out(run, wait) == ["error: timeout: a reader hears of no frontiers"]


def test_a_lost_connection_is_an_error_of_what_waits_and_a_reconnect_takes_the_next_epoch(
    tmp_path: Path,
) -> None:
    def react(command: Command) -> list[Response]:
        return [Closing("fenced", "epoch 2 is here")] if isinstance(command, Schedule) else []

    with _driver(tmp_path, react) as (run, replica):
        assert carry_out(run, "create-instance", ["max_result_bytes u64 9"]) == ["ok"]
        assert carry_out(run, "initialization-complete") == ["ok"]
        _index(run)
        assert carry_out(run, "start-peek name=a id=1 ts=9") == ["ok"]
        assert carry_out(run, "schedule id=1") == ["error: disconnected"]
        assert carry_out(run, "await-peek name=a") == ["error: disconnected"]
        assert carry_out(run, "reconnect") == ["ok"]
        hello, create = _said(replica)[-2:]
        assert isinstance(hello, Hello)
        assert hello.epoch == 2
        assert isinstance(create, CreateInstance)
        assert create.config == {"max_result_bytes": 9}
        assert carry_out(run, "initialization-complete") == ["ok"]


def test_further_connections_have_names_and_readers_have_no_epoch(tmp_path: Path) -> None:
    with _driver(tmp_path, _answer((1, "a"))) as (run, replica):
        _boot(run)
        _index(run)
        assert carry_out(run, "connect as=r kind=reader nonce=n") == ["ok"]
        assert carry_out(run, "peek id=1 ts=0") == ['1 "a"']
        assert carry_out(run, "allow-writes id=1")[0].startswith("error: invalid-stage")
        assert carry_out(run, "on conn=main") == ["ok"]
        assert carry_out(run, "schedule id=1") == ["ok"]
        unknown = "error: bad-message: no connection is called 'x'; there are main, r"
        assert carry_out(run, "on conn=x") == [unknown]
        again = "error: bad-message: a connection called 'r' is open: disconnect it"
        assert carry_out(run, "connect as=r") == [again]
        assert carry_out(run, "on conn=r") == carry_out(run, "disconnect") == ["ok"]
        assert carry_out(run, "disconnect")[0].startswith("error: bad-message: no connection is called 'r'")
        assert carry_out(run, "connect as=r") == ["ok"]
        hellos = [command for command in replica.heard if isinstance(command, Hello)]
        assert (hellos[1].kind, hellos[1].nonce, hellos[1].epoch) == ("reader", "n", 0)


def test_raw_bytes_and_raw_messages_show_what_comes_back(tmp_path: Path) -> None:
    def react(command: Command) -> list[Response]:
        return [Refused(command.seq, "unknown-id", "no")] if isinstance(command, Schedule) else []

    with _driver(tmp_path, react) as (run, _):
        _boot(run)
        assert carry_out(run, "send-raw", ['{"t": "schedule", "id": "u1"}'])[0].endswith("unknown-id: no")
        assert "unknown-message" in carry_out(run, "send-raw", ['{"t": "what"}'])[0]
        assert "bad-message" in carry_out(run, "send-raw", ['{"t": "schedule", "seq": 100}'])[0]
        assert carry_out(run, "send-raw", ["{"])[0].startswith("error: bad-message")
        assert carry_out(run, "schedule id=1") == ["error: unknown-id: no"]
        first, second = carry_out(run, "send-raw hex=ffffffff")
        assert first.startswith("closing: frame-too-large")
        assert second == "closed"


def test_hooks_name_the_process_by_what_it_is_in_this_mode(tmp_path: Path) -> None:
    for mode, process in (("solo", "solo/0"), ("two-runtime", "maintenance/0")):
        (tmp_path / mode).mkdir()
        with _driver(tmp_path / mode, mode=mode) as (run, replica):
            _boot(run)
            assert carry_out(run, "stall process=maintenance/0") == ["ok"]
            assert carry_out(run, "release process=interactive/0") == ["ok"]
            assert carry_out(run, "failpoint process=maintenance/0 name=spine.merge action=exit") == ["ok"]
            assert [
                (hook.process, hook.action, hook.name) for hook in replica.heard if isinstance(hook, TestHook)
            ] == [
                (process, "stall", ""),
                ("interactive/0", "release", ""),
                (process, "failpoint:exit", "spine.merge"),
            ]


@pytest.mark.slow
def test_shards_are_made_written_and_advanced(tmp_path: Path) -> None:
    with _driver(tmp_path) as (run, _):
        assert carry_out(run, "write-rows shard=s ts=0", ["1 a", '2 "b c" x 3', "1 a x -1"]) == ["wrote 3"]
        assert carry_out(run, "write-single-ts shard=s ts=4 count=10 start=100 row-bytes=20") == ["wrote 10"]
        assert carry_out(run, "write-spread shard=s count=6 n-ts=3") == ["wrote 6"]
        assert run.store is not None
        shard = run.store.shard("s")
        assert (shard.schema, shard.upper) == (SAMPLE_SCHEMA, Frontier.at(8))
        found = [
            (row, int(time), int(diff))
            for updates in shard.read(0, Frontier.at(8), block_rows=100)
            for row, time, diff in zip(
                zip(*(column.to_pylist() for column in updates.columns), strict=True),
                updates.times,
                updates.diffs,
                strict=True,
            )
        ]
        assert ((2, "b c"), 0, 3) in found
        assert ((1, "a"), 0, -1) in found
        assert ((109, "000000000109"), 4, 1) in found
        assert sorted(time for _, time, _ in found if time > 4) == [5, 5, 6, 6, 7, 7]
        assert carry_out(run, "advance-shard shard=s upper=20") == ["ok"]
        assert carry_out(run, "advance-shard shard=s upper=[]") == ["ok"]
        assert shard.upper == Frontier.empty()
        assert carry_out(run, "advance-shard shard=new upper=1") == ["ok"]
        assert "upper-mismatch" in carry_out(run, "write-rows shard=new ts=0", ["1 a"])[0]


def test_synthetic_rows_fit_any_schema(tmp_path: Path) -> None:
    columns = ["a bigint", "b boolean", 'c "double precision"', "d text nullable", "e timestamp", "f numeric"]
    columns += ["g uint8", "h date", "i timestamptz", "j uuid", "k numeric(38,2) nullable"]
    with _driver(tmp_path) as (run, _):
        assert carry_out(run, "define-schema name=all", columns) == ["ok"]
        assert carry_out(run, "write-single-ts shard=s ts=0 count=5 start=7 schema=all") == ["wrote 5"]
        assert carry_out(run, "write-single-ts shard=s ts=1 count=0") == ["wrote 0"]
        assert carry_out(run, "define-schema name=odd", ["a bigint", "b date list"]) == ["ok"]
        refused = "error: bad-message: column b: no date list is made up"
        assert carry_out(run, "write-single-ts shard=o ts=0 count=5 schema=odd") == [refused]


@pytest.mark.parametrize(
    ("line", "body", "output"),
    [
        ("write-rows shard=s ts=0 schema=no", ["1 a"], "error: schema-mismatch: no schema is called 'no'"),
        ("write-rows shard=s ts=0", ["1"], "error: schema-mismatch: row 1: 1 value for 2 columns"),
        (
            "write-rows shard=s ts=0",
            ["1 a", "x a"],
            "error: schema-mismatch: row 2: column id: 'x' is no bigint",
        ),
        ("write-rows shard=s ts=-1", ["1 a"], "error: bad-message: ts=-1 is no u64"),
        ("write-rows shard=s", ["1 a"], "error: bad-message: write-rows needs ts="),
        ("write-rows shard=s ts=0", ["1 a x 1.5"], "error: bad-message: row 1: '1.5' is no multiplicity"),
        (
            "define-schema name=x",
            ["a money"],
            "error: invalid-plan: line 1: type 'money' is not known; there are "
            + ", ".join(type_.value for type_ in ColumnType),
        ),
        (
            "define-schema name=x",
            ["a bigint", "a"],
            "error: bad-message: line 2: expected `column type [nullable]`, not 'a'",
        ),
        (
            "write-rows shard=s ts=0",
            ["1 a", '2 "b'],
            "error: bad-message: row 2: quote is missing in '2 \"b'",
        ),
        (
            "peekk id=1",
            [],
            "error: bad-message: no directive is called 'peekk'; did you mean peek?",
        ),
        (
            "hop id=1",
            [],
            "error: bad-message: no directive is called 'hop'; there are " + ", ".join(DIRECTIVES),
        ),
        ("quiet ms=1", ["body"], "error: bad-message: quiet has no body"),
        ("explain ref=x", ["body"], "error: bad-message: explain has no body beside ref="),
        ("send-raw hex=00", ["{}"], "error: bad-message: send-raw has no body beside hex="),
        ("sleep ms=0 loudly", [], "error: bad-message: sleep does not take loudly; there are ms="),
        ("disconnect id=1", [], "error: bad-message: disconnect does not take id="),
        (
            "await-frontier id=1 ts=1 allow-timeout=1",
            [],
            "error: bad-message: await-frontier does not take allow-timeout=; did you mean allow-timeout?",
        ),
        ("peek id=1 ts=0 lmit=3", [], "error: bad-message: peek does not take lmit=; did you mean limit=?"),
        ("quiet ms=1 kind=peeks", [], "error: bad-message: kind=peeks: did you mean peek?"),
        ("peek id=1 ts=x", [], "error: bad-message: ts=x is no u64"),
        (
            "peek id=1 ts=0 filter=(#0 > )",
            [],
            "error: invalid-plan: filter=: expected an expression at the end of '#0 >'",
        ),
        (
            'peek id=1 ts=0 keys=[(1, "a" b)]',
            [],
            "error: invalid-plan: keys=: expected , at 'b)]' of '[(1, \"a\" b)]'",
        ),
        ("create-instance", ["x u64 1", "x u64 -1"], "error: bad-message: line 2: -1 is no u64"),
        ("create-instance", ["x u46 1"], "error: bad-message: line 1: type u46: did you mean u64?"),
        ("create-instance", ["x u64"], "error: bad-message: line 1: expected `name type value`, not 'x u64'"),
        (
            "explain",
            ["import source=1000 shrd=s upper=1"],
            "error: bad-message: line 1: import needs shard=, not shrd=",
        ),
        (
            "explain",
            ["import source=1000 shard=s upper=1", "build id=2", "  Getx u1"],
            "error: invalid-plan: line 3: no operator is called 'Getx'; did you mean Get?",
        ),
        (
            "create-dataflow as-of=0 optimize",
            [],
            "error: bad-message: create-dataflow does not take optimize; there are as-of=, until=, name=, "
            "no-sync",
        ),
        ("explain ref=x", [], "error: unknown-id: no dataflow is called 'x'"),
        (
            "allow-compaction id=1 frontier=x",
            [],
            "error: bad-message: frontier=: 'x' is no frontier",
        ),
        (
            f"write-rows shard=s ts={2**64 - 1}",
            ["1 a"],
            f"error: bad-message: ts={2**64 - 1} is the greatest time: there is no upper beyond it",
        ),
        (
            "write-single-ts shard=s ts=0 count=99999999999",
            [],
            "error: bad-message: count=99999999999 of row-bytes=64 is more than 8 GiB",
        ),
        (
            f"write-spread shard=s count=1 n-ts={2**64 - 1}",
            [],
            f"error: bad-message: n-ts={2**64 - 1} is too many times from 0 on",
        ),
        (
            "define-schema name=x",
            [""],
            "error: bad-message: line 1: expected `column type [nullable]`, not ''",
        ),
        ("send-raw", ["[1]"], "error: bad-message: the body: a message is a JSON object"),
        (
            "send-raw hex=0g",
            [],
            "error: bad-message: hex=: non-hexadecimal number found in fromhex() arg at position 1",
        ),
        (
            "send-raw",
            ['{"t": 99999999999999999999}'],
            "error: bad-message: the body: Integer value out of range",
        ),
        ("await-exit", [], "error: unauthorized: this replica was not launched by this driver"),
    ],
)
def test_a_mistake_of_the_script_is_a_typed_error(
    line: str, body: list[str], output: str, tmp_path: Path
) -> None:
    with _driver(tmp_path) as (run, _):
        assert carry_out(run, line, body) == [output]


def test_a_requirement_that_is_not_met_skips(tmp_path: Path) -> None:
    with _driver(tmp_path, mode="solo") as (run, _):
        assert carry_out(run, "require mode=solo workers=1") == ["ok"]
        with pytest.raises(Skip, match="requires mode=two-runtime"):
            carry_out(run, "require mode=two-runtime")


def test_nobody_listening_is_an_error_not_a_crash(tmp_path: Path) -> None:
    run = Run(f"unix:{tmp_path / 'none'}")
    assert carry_out(run, "create-instance")[0].startswith("error: [Errno 2]")
    run.close()


def test_every_directive_says_what_it_lacks(tmp_path: Path) -> None:
    needs_nothing = {
        "create-instance", "update-configuration", "initialization-complete", "require", "connect",
        "disconnect", "reconnect", "explain", "await-exit", "send-raw", "served-by", "create-dataflow",
        "cancel-peek", "count", "peek", "answered",
    }  # fmt: skip
    with _driver(tmp_path) as (run, _):
        _boot(run)
        run.timeout_s = 0.01
        for name in sorted(DIRECTIVES.keys() - needs_nothing):
            assert carry_out(run, name)[0].startswith(f"error: bad-message: {name} needs "), name
