"""The session's state and its operations, driven by hand: no socket, no loop, no clock."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clusterd.client import (
    Bounded,
    PeekCanceled,
    PeekFailed,
    SubscriptionEnded,
    TooStale,
    answer,
    arguments,
    copies,
    feed,
    modes,
    operation,
    peeks,
)
from clusterd.client.arguments import LAST_TIME
from clusterd.client.core import Core
from clusterd.client.dataflows import Dataflows
from clusterd.client.handle import Handle, Standing
from clusterd.client.operation import Operation, Wait, Work
from clusterd.client.shards import Shards
from clusterd.storage.store import Store
from controller_proto import address, client_end
from controller_proto.client_end import ClientEnd
from controller_proto.command import (
    AllowCompaction,
    CancelPeek,
    Command,
    CreateDataflow,
    Peek,
    Schedule,
    Sync,
)
from controller_proto.connection import NEED_DATA, Connection, Ended, Rejected, Role
from controller_proto.dataflow import Export
from controller_proto.errors import Disconnected, LocalProtocolError, Refusal
from controller_proto.plan import Get
from controller_proto.response import (
    DroppedAt,
    Frontiers,
    PeekError,
    PeekResponse,
    PeekRows,
    Refused,
    Status,
    SubscribeBatch,
    SubscribeResponse,
    SubscribeUpdates,
    Synced,
)
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier

INDEX = Standing(Export("u9", "index", "u1", SAMPLE_SCHEMA, (0,)), 0)
ROWS = PeekRows(((1,), ("a",)), (1,))


@pytest.mark.parametrize("module", [answer, arguments, modes, operation, address, client_end])
def test_examples_of_docstrings_are_true(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted
    assert not done.failed


class Session:
    """A core that has begun, and what its other end hears."""

    def __init__(self, epoch: int | None = 7, store: Store | None = None) -> None:
        self.core = Core(ClientEnd(), epoch)
        self.core.create_instance({})
        self.dataflows = Dataflows(self.core, Shards(store))
        self.dataflows.standing["u9"] = INDEX
        self.begin()

    def begin(self) -> list[Command]:
        self._other = Connection(Role.REPLICA)
        begin = self.core.begin(ClientEnd(), "nonce", 1)
        self.step(begin)
        said = self.said()
        self.core.hear(Synced(said[-1].seq))
        assert self.step(begin) is None
        return said

    def said(self) -> list[Command]:
        """What was said since the last look."""
        if self.core.end.outgoing:
            self._other.receive_bytes(self.core.end.take_outgoing())
        heard = []
        while (event := self._other.next_event()) is not NEED_DATA:
            assert not isinstance(event, Rejected | Ended)
            heard.append(event)
        return heard  # type: ignore[return-value]

    def step(self, operation: Operation[Any]) -> Any:
        """Go on until it waits (returns for what), or ends (returns its result)."""
        try:
            step = operation.send(None)
            while isinstance(step, Work) or step.ready():
                step = operation.send(step.do() if isinstance(step, Work) else None)
        except StopIteration as end:
            return end.value
        return step


def batch(lower: int, value: str, id: str = "t1") -> SubscribeResponse:
    updates = SubscribeUpdates(((lower,), (value,)), (lower,), (1,))
    return SubscribeResponse(id, SubscribeBatch(lower, (lower + 1,), updates))


def test_a_refusal_is_kept_only_for_who_waits_for_it() -> None:
    session = Session()
    session.dataflows.allow_compaction(INDEX, 5)
    session.dataflows.drop(INDEX)
    for said in session.said():
        session.core.hear(Refused(said.seq, "unknown-id", "no u9"))
    assert session.core._judging == {}
    schedule = session.dataflows.schedule(INDEX)
    assert isinstance(session.step(schedule), Wait)
    said, sync = session.said()
    assert (type(said), type(sync)) == (Schedule, Sync)
    session.core.hear(Refused(said.seq, "unknown-id", "no u9", "create it"))
    assert session.core.hear(Synced(sync.seq)) == ("judged", "")
    with pytest.raises(Refusal, match="unknown-id: no u9; create it"):
        session.step(schedule)
    assert session.core._judging == {}


def test_a_replica_that_does_not_answer_is_said_to_be_starting_stopped_or_busy() -> None:
    waiting = Session().core.accepted([], 2)
    waiting.send(None)
    with pytest.raises(TimeoutError, match="no answer of the replica within 2 s: it is starting"):
        waiting.throw(TimeoutError())


def test_a_view_is_read_from_its_shard_wherever_it_is_an_input(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.create_shard("kept", SAMPLE_SCHEMA)
        session = Session(store=store)
        view = Standing(Export("u7", "materialized-view", "u1", SAMPLE_SCHEMA, shard="kept"), 0)
        session.dataflows.standing["u7"] = view
        source = session.step(session.dataflows.input("kept"))
        assert session.step(session.dataflows.input(Handle(view))) == source
        text = "Union\n  Get u9\n  Filter #0 > 1\n    Get u7"
        same = f"Union\n  Get u9\n  Filter #0 > 1\n    Get {source.id}"
        assert session.step(session.dataflows.input(text)) == session.step(session.dataflows.plan(same))
        session.step(session.dataflows.create_index(Handle(view), ["id"], None, None, None, True))
        created = next(said for said in session.said() if isinstance(said, CreateDataflow))
        assert [source.shard for source in created.header.source_imports] == ["kept"]
        assert created.header.index_imports == ()


def test_a_query_over_a_shard_reads_its_newest_time(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.create_shard("fruit", SAMPLE_SCHEMA).advance_since(Frontier.at(4))
        session = Session(store=store)
        Shards(store).advance("fruit", 7)
        session.step(modes.query(session.dataflows, "fruit", "latest", None, 1))
        created = next(said for said in session.said() if isinstance(said, CreateDataflow))
        assert (created.header.as_of, created.header.until) == (6, 7)


@pytest.mark.parametrize(
    ("to", "uri"),
    [("a.csv", "{cwd}/a.csv"), (Path("b/a.csv"), "{cwd}/b/a.csv"), ("/x/a.csv", "/x/a.csv"), ("s3://b/a", "s3://b/a")],
)  # fmt: skip
def test_a_copys_path_begins_where_the_process_is(to: str | Path, uri: str) -> None:
    session = Session()
    session.step(copies.copy_to(session.core, session.dataflows, Get("u9"), to, "csv", 0, None, 1))
    created = next(said for said in session.said() if isinstance(said, CreateDataflow))
    assert created.header.exports[0].uri == uri.format(cwd=Path.cwd())


def test_what_is_heard_is_noted_under_what_it_is_about_whoever_waits() -> None:
    core = Session().core
    assert core.hear(Frontiers("u9", (4,))) == ("frontier", "u9")
    assert core.hear(Frontiers("u9", None, (6,))) == ("frontier", "u9")
    assert core.frontier("u9") == (4,)
    assert core.hear(PeekResponse("nobody's", ROWS, 3)) == ("peek", "nobody's")
    assert not core.is_answered("nobody's")


def test_a_status_is_kept_until_its_collection_is_dropped_or_the_connection_lost() -> None:
    core = Session().core
    for id in ("u8", "u9"):
        assert core.hear(Status(id, "created", "solo")) == ("status", id)
        core.hear(Status(id, "hydrated", "solo", 3, 3, 70))
    core.say(AllowCompaction(0, "u8", (4,)))
    core.say(AllowCompaction(0, "u9", ()))
    assert core.statuses == {"u8": Status("u8", "hydrated", "solo", 3, 3, 70)}
    core.lose()
    assert core.statuses == {}


def test_a_wait_for_hydration_ends_with_it_or_says_why_not() -> None:
    session = Session()
    for state, code in (("scheduled", ""), ("stalled", "limit")):
        session.core.hear(Status("u9", state, "solo", code=code, message="no room" if code else ""))
        wait = peeks.wait_hydrated(session.core, "u9", 1)
        assert not next(wait).ready()  # type: ignore[union-attr]
        why = "stalled: limit: no room" if code else "scheduled"
        with pytest.raises(TimeoutError, match=f"u9 is not hydrated after 1 s: it is {why}"):
            wait.throw(TimeoutError())
    wait = peeks.wait_hydrated(session.core, "u9", 1)
    asked = next(wait)
    session.core.hear(Status("u9", "errored", "solo", code="dropped", message="an import was"))
    assert asked.ready()  # type: ignore[union-attr]
    with pytest.raises(Refusal, match="an import was"):
        next(wait)


@pytest.mark.parametrize("why", [TimeoutError(), KeyboardInterrupt(), GeneratorExit()])
def test_a_wait_that_is_given_up_cancels_its_peek(why: BaseException) -> None:
    session = Session()
    wait = peeks.peek(session.core, INDEX, 3, {"at": 2})
    session.step(wait)
    (peek,) = session.said()
    with pytest.raises(type(why)):
        wait.throw(why)
    assert session.said() == [CancelPeek(peek.seq + 1, peek.uuid)]  # type: ignore[union-attr]
    session.core.hear(PeekResponse(peek.uuid, ROWS, 2))  # type: ignore[union-attr]
    assert (session.core.asked, session.core._answers) == ({}, {})


def test_after_a_lost_connection_only_what_somebody_still_awaits_is_said_again() -> None:
    session = Session()
    kept = peeks.start_peek(session.core, INDEX, at=1)
    canceled = peeks.start_peek(session.core, INDEX, at=2)
    session.core.say(CancelPeek(0, canceled))
    lost = peeks.peek(session.core, INDEX, None, {"at": 3})
    session.step(lost)
    with pytest.raises(Disconnected):
        lost.throw(Disconnected("gone", "disconnected", (), ""))
    subscribed = session.dataflows.subscribe(Get("u9"), None, None, True, None)
    session.step(subscribed)
    session.core.hear(Synced(session.said()[-1].seq))
    told = session.step(subscribed)
    session.core.end.end("gone")
    waiting = session.dataflows.subscribe(Get("u9"), None, None, True, None)
    with pytest.raises(Disconnected):
        session.step(waiting)
    session.core.close_feed(told)
    session.core.lose()
    again = session.begin()
    assert [each.uuid for each in again if isinstance(each, Peek)] == [kept]
    assert [each for each in again if isinstance(each, CreateDataflow)] == []
    with pytest.raises(PeekCanceled):
        session.step(peeks.wait_answer(session.core, canceled, 1))
    session.core.hear(PeekResponse(kept, ROWS, 1, "solo"))
    assert session.step(peeks.wait_answer(session.core, kept, 1)).rows() == [(1, "a")]


def test_a_query_at_the_last_time_there_is_needs_no_time_after_it() -> None:
    session = Session()
    query = session.dataflows.query(Get("u9"), LAST_TIME, None, None)
    session.step(query)
    header = session.said()[0].header  # type: ignore[union-attr]
    assert (header.as_of, header.until) == (LAST_TIME, None)
    query.close()
    assert [type(each) for each in session.said()] == [AllowCompaction]


def test_a_feed_that_nobody_takes_is_given_up_at_a_limit_but_one_large_batch_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "LIMIT_BYTES", 1000)
    session = Session()
    told = session.core.open_feed(Export("t1", "subscribe", "u9", SAMPLE_SCHEMA, ()))
    session.core.hear(batch(0, "x" * 5000))
    first = told.take()
    assert first is not None
    assert len(first.changes) == 1
    assert session.core.untaken_bytes == 0
    session.core.hear(batch(1, "x" * 5000))
    assert 5000 < session.core.untaken_bytes < 6000
    assert session.said() == []
    session.core.hear(batch(2, "x"))
    (dropped,) = session.said()
    assert isinstance(dropped, AllowCompaction)
    assert (dropped.id, dropped.frontier) == ("t1", ())
    session.core.hear(batch(3, "x"))
    session.core.hear(SubscribeResponse("t1", DroppedAt((3,), "dropped", "was dropped")))
    second = told.take()
    assert second is not None
    assert second.upper == 2
    with pytest.raises(SubscriptionEnded, match=r"limit: .* take them, or subscribe anew from there") as end:
        told.take()
    assert end.value.upper == 2


def test_a_batch_of_several_messages_is_told_once_it_is_whole() -> None:
    session = Session()
    told = session.core.open_feed(Export("t1", "subscribe", "u9", SAMPLE_SCHEMA, ()))
    part = SubscribeUpdates(((1, 2), ("a", "b")), (0, 0), (1, 1), more=True)
    session.core.hear(SubscribeResponse("t1", SubscribeBatch(0, (1,), part)))
    assert not told.ready
    last = SubscribeUpdates(((3,), ("c",)), (0,), (-1,))
    session.core.hear(SubscribeResponse("t1", SubscribeBatch(0, (), last)))
    whole = told.take()
    assert whole is not None
    assert whole.changes.rows() == [((1, "a"), 0, 1), ((2, "b"), 0, 1), ((3, "c"), 0, -1)]
    assert (whole.upper, told.take()) == (None, None)


def made_of(session: Session, on: str, id: str) -> Standing:
    """An index on a shard or index, accepted."""
    creating = session.dataflows.create_index(on, (), None, id, 0, True)
    session.step(creating)
    session.core.hear(Synced(session.said()[-1].seq))
    return session.step(creating)  # type: ignore[no-any-return]


def reading(session: Session, of: Standing, at: object) -> tuple[Operation[Any], Peek]:
    """A read that waits for its answer, and what it asked."""
    read = modes.read(session.core, session.dataflows, of, 1, {"at": at})  # type: ignore[typeddict-item]
    session.step(read)
    (asked,) = session.said()
    assert isinstance(asked, Peek)
    return read, asked


def answered(session: Session, read: tuple[Operation[Any], Peek], time: int | None) -> Any:
    """What comes of it: rows of `time`, or with None that it waited too long."""
    late = PeekError("wait-limit", "not sealed")
    session.core.hear(PeekResponse(read[1].uuid, late if time is None else ROWS, time=time))
    return session.step(read[0])


@pytest.fixture
def fruit(tmp_path: Path) -> Iterator[tuple[Session, Standing]]:
    """An index over an index over a shard that is written up to time 6."""
    with Store.open(tmp_path) as store:
        store.create_shard("fruit", SAMPLE_SCHEMA)
        session = Session(store=store)
        Shards(store).advance("fruit", 7)
        made_of(session, "fruit", "u1000")
        yield session, made_of(session, "Get u1000", "u1001")


def test_a_strict_read_reads_what_was_written_when_it_began(fruit: tuple[Session, Standing]) -> None:
    session, index = fruit
    assert index.shards == {"fruit"}
    read = reading(session, index, "strict")
    assert (read[1].time, read[1].wait_s) == (6, None)
    assert answered(session, read, 6).time == 6
    session.dataflows._shards.advance("fruit", None)
    assert reading(session, index, "strict")[1].time == LAST_TIME


def test_a_bounded_read_never_waits_and_says_what_it_is_too_far_behind_of(
    fruit: tuple[Session, Standing],
) -> None:
    session, index = fruit
    read = reading(session, index, Bounded(behind=2))
    assert (read[1].time, read[1].wait_s) == (None, 0.0)
    session.dataflows._shards.advance("fruit", 100)  # after it began: not what it is judged by
    assert answered(session, read, 4).time == 4
    read = reading(session, index, Bounded(behind=2))
    with pytest.raises(TooStale, match="u1001: 99 is written and 96 is sealed, 3 behind; 2 behind") as stale:
        answered(session, read, 96)
    assert (stale.value.time, stale.value.written, stale.value.behind) == (96, 99, 2)
    read = reading(session, index, Bounded(behind=1000))
    with pytest.raises(TooStale, match="nothing is sealed"):
        answered(session, read, None)
    assert not session.core.asked


def test_other_modes_are_as_ever_and_a_bound_does_not_hide_errors(fruit: tuple[Session, Standing]) -> None:
    session, index = fruit
    reads = [reading(session, index, at) for at in (3, "latest", None)]
    assert [(asked.time, asked.wait_s) for _, asked in reads] == [(3, None), (None, None), (None, None)]
    read = reading(session, index, Bounded(0))
    session.core.hear(PeekResponse(read[1].uuid, PeekError("eval-error", "division by zero"), time=6))
    with pytest.raises(PeekFailed, match="eval-error"):
        session.step(read[0])


def test_what_was_written_is_known_only_of_what_we_created() -> None:
    session = Session()
    for at in ("strict", Bounded(0)):
        with pytest.raises(LocalProtocolError, match="what u9 is made of is not known to this client"):
            reading(session, INDEX, at)
    for behind in (-1, True, 1.5):
        with pytest.raises(ValueError, match="behind must be a number of times"):
            Bounded(behind)  # type: ignore[arg-type]


def test_a_view_is_as_new_as_what_it_was_made_of(fruit: tuple[Session, Standing]) -> None:
    session, index = fruit
    view = Export("u7", "materialized-view", "u1", SAMPLE_SCHEMA, shard="kept")
    session.dataflows.standing["u7"] = Standing(view, 0, index.shards)
    session.dataflows._shards.create("kept", SAMPLE_SCHEMA)
    assert made_of(session, "kept", "u1002").shards == {"fruit"}
