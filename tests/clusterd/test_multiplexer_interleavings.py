"""The multiplexer between clients and workers that go at any speed: what must hold in every interleaving.

Model: each worker is a queue of what it was sent and a set of parked peeks; a published page is a version
number, and a worker knows the version it last looked at. Whatever order things happen in: one answer a
peek, refusals by the controller's order alone, frontiers only upwards, barriers in order, no wake-up lost.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from clusterd import internal
from clusterd.multiplexer.events import Forward
from controller_proto.command import AllowCompaction, CancelPeek, CreateDataflow, Peek, Sync
from controller_proto.response import Frontiers, PeekCanceled, PeekError, PeekResponse, Refused, Synced
from tests.clusterd.mux_bench import MAINTENANCE, MuxBench, rows_answer

TIMES = st.integers(0, 6)
INDEXES = st.sampled_from(["u1", "u2", "u3"])
QUERIES = st.sampled_from(["t1", "t2", "t3"])
IDS = st.sampled_from(["u1", "u1", "u1", "u2", "u3", "t1", "t1", "t2", "t3"])
SELDOM = st.sampled_from([False] * 5 + [True])
UUIDS = st.sampled_from(["a", "b", "c", "d"])


class Worker:
    """Takes its messages one by one, whenever it is told to."""

    def __init__(self, bench: MuxBench, number: int) -> None:
        self.bench = bench
        self.number = number
        self.read = 0
        self.parked: dict[tuple[int, str], tuple[str, int]] = {}
        self.seen: dict[tuple[str, int], int] = {}
        self.owned: dict[str, tuple[int, int]] = {}

    @property
    def behind(self) -> int:
        return len(self.bench.to_worker[self.number]) - self.read

    def step(self, pages: dict[tuple[str, int], int], *, accept: bool) -> None:
        message = self.bench.to_worker[self.number][self.read]
        self.read += 1
        if isinstance(message, internal.SessionEnd):
            self.parked = {at: key for at, key in self.parked.items() if at[0] != message.session}
        elif isinstance(message, internal.Look):
            key = (message.id, message.incarnation)
            self.seen[key] = pages.get(key, 0)
        elif isinstance(message, Forward):
            self._run(message, pages, accept)

    def _run(self, message: Forward, pages: dict[tuple[str, int], int], accept: bool) -> None:
        command, session = message.command, message.session
        if isinstance(command, Peek):
            key = (command.id, message.incarnations[command.id])
            self.parked[session, command.uuid] = key
            self.seen[key] = pages.get(key, 0)  # drain, then re-read the page, then park
        elif isinstance(command, CancelPeek) and (session, command.uuid) in self.parked:
            self.answer((session, command.uuid), PeekCanceled())
        elif isinstance(command, Sync):
            self.bench.say(self.number, internal.SyncDone(session, command.seq))
        elif isinstance(command, CreateDataflow):
            if not accept:
                self.bench.refuse(self.number, session, command.seq)
                return
            for export in command.header.exports:
                self.owned[export.id] = (session, message.incarnations[export.id])
        elif isinstance(command, AllowCompaction) and command.frontier == ():
            incarnation = message.incarnations[command.id]
            for at in [at for at, key in self.parked.items() if key == (command.id, incarnation)]:
                self.answer(at, PeekError("dropped", "dropped"))
            if self.owned.get(command.id) == (session, incarnation):
                del self.owned[command.id]
                self.bench.terminal(self.number, session, command.id, incarnation)

    def answer(self, at: tuple[int, str], result: Any = None) -> None:
        del self.parked[at]
        raw = rows_answer(at[1])
        if result is not None:
            import msgspec

            raw = msgspec.Raw(msgspec.msgpack.encode(PeekResponse(at[1], result)))
        self.bench.say(self.number, internal.Answer(at[0], at[1], raw))


class Interleavings(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    @initialize(target=sessions, interactive=st.sampled_from([0, 1, 1, 2]), as_of=TIMES)
    def start(self, interactive: int, as_of: int) -> Any:
        self.bench = MuxBench(interactive)
        self.workers = [Worker(self.bench, number) for number in self.bench.workers]
        self.epoch = 0
        self.open: set[int] = set()
        self.controller: int | None = None
        self.standing: dict[str, Any] = {}  # id -> floor, None dropped; of the session in force
        self.peeked: dict[tuple[int, str], int] = {}  # accepted as a peek
        self.canceled: set[tuple[int, str]] = set()
        self.answered: dict[tuple[int, str], int] = {}  # answers of the session when the peek was sent
        self.syncs: dict[int, list[int]] = {}
        self.creates: dict[int, tuple[int, tuple[str, ...]]] = {}
        self.pages: dict[tuple[str, int], int] = {}
        self.unacked: set[tuple[str, int]] = set()
        self.dirty: set[tuple[str, int]] = set()
        self.acks_seen = 0
        first = self._connect()
        self._create(self.bench.create(first, "u1", as_of=as_of, shards=("s",)), ("u1",), as_of, ())
        reader = self.bench.reader()
        self.open.add(reader)
        return multiple(first, reader)

    # -- the model of what is declared

    def _forget_refused(self) -> None:
        """What an owner refused is as if it had never been said."""
        if self.controller is None:
            return
        for seq in {r.seq for r in self.bench.heard(self.controller, Refused)} & set(self.creates):
            for id in self.creates.pop(seq)[1]:
                self.standing.pop(id, None)

    def _create(self, seq: int, ids: tuple[str, ...], as_of: int, over: tuple[str, ...]) -> None:
        assert self.controller is not None
        refused = [r for r in self.bench.heard(self.controller, Refused) if r.seq == seq]
        legal = all(id not in self.standing for id in ids) and all(
            self.standing.get(id) is not None and self.standing[id] <= as_of for id in over
        )
        assert bool(refused) != legal, (refused, self.standing)
        if legal:
            self.standing.update(dict.fromkeys(ids, as_of))
            self.creates[seq] = (self.controller, ids)

    # -- clients

    @rule(target=sessions, chance=SELDOM)
    def controller_connects(self, chance: bool) -> Any:
        return self._connect() if chance else multiple()

    def _connect(self) -> int:
        self.epoch += 1
        if self.controller is not None:
            self.open.discard(self.controller)
        self.controller = self.bench.controller(epoch=self.epoch)
        self.open.add(self.controller)
        self.standing, self.creates = {}, {}
        return self.controller

    @rule(target=sessions, chance=SELDOM)
    def reader_connects(self, chance: bool) -> Any:
        if not chance:
            return multiple()
        session = self.bench.reader()
        self.open.add(session)
        return session

    @rule(session=sessions, chance=SELDOM)
    def closes(self, session: int, chance: bool) -> None:
        if session in self.open and chance:
            self.open.discard(session)
            if session == self.controller:
                self.controller = None
            self.bench.close(session)

    @precondition(lambda self: self.controller is not None)
    @rule(id=INDEXES, as_of=TIMES)
    def creates_an_index(self, id: str, as_of: int) -> None:
        self._create(self.bench.create(self.controller, id, as_of=as_of, shards=("s",)), (id,), as_of, ())

    @precondition(lambda self: self.controller is not None)
    @rule(id=QUERIES, as_of=TIMES, over=st.lists(INDEXES, unique=True, min_size=1, max_size=2))
    def creates_a_query(self, id: str, as_of: int, over: list[str]) -> None:
        seq = self.bench.query(self.controller, id, *over, as_of=as_of)
        self._create(seq, (id,), as_of, tuple(over))

    @precondition(lambda self: self.controller is not None)
    @rule(id=IDS, frontier=st.none() | TIMES)
    def compacts_or_drops(self, id: str, frontier: int | None) -> None:
        seq = self.bench.compact(self.controller, id, *(() if frontier is None else (frontier,)))
        refused = [r for r in self.bench.heard(self.controller, Refused) if r.seq == seq]
        assert bool(refused) == (self.standing.get(id) is None)
        if not refused:
            self.standing[id] = None if frontier is None else max(self.standing[id], frontier)

    @rule(session=sessions, uuid=UUIDS, id=IDS, time=st.none() | TIMES, keyed=st.booleans())
    def peeks(self, session: int, uuid: str, id: str, time: int | None, keyed: bool) -> None:
        if session not in self.open:
            return
        before = len(self.bench.to_client[session])
        in_flight = self._in_flight(session, uuid)
        seq = self.bench.peek(session, uuid, id, time, ((1,),) if keyed else None)
        said = self.bench.to_client[session][before:]
        if in_flight:
            assert [(r.seq, r.code) for r in said] == [(seq, "duplicate-uuid")]
            return
        self.peeked[session, uuid] = self.peeked.get((session, uuid), 0) + 1
        self.canceled.discard((session, uuid))
        self.answered[session, uuid] = len(self.bench.heard(session, PeekResponse))
        floor = self.standing.get(id)
        if floor is None or (time is not None and time < floor):
            code = "below-since" if floor is not None else "dropped" if id in self.standing else "unknown-id"
            assert [(r.uuid, r.result.code) for r in said] == [(uuid, code)]
        else:
            assert said == []

    @rule(session=sessions, uuid=UUIDS)
    def cancels(self, session: int, uuid: str) -> None:
        if session in self.open:
            self.canceled.add((session, uuid))
            self.bench.send(session, CancelPeek, uuid=uuid)

    @rule(session=sessions)
    def syncs_up(self, session: int) -> None:
        if session in self.open:
            self.syncs.setdefault(session, []).append(self.bench.send(session, Sync))

    # -- workers

    @rule(data=st.data(), accept=st.sampled_from([True, True, True, False]), steps=st.integers(1, 6))
    def a_worker_goes_on(self, data: st.DataObject, accept: bool, steps: int) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        accept = accept or self.controller is None  # a refusal nobody hears is one the model cannot follow
        for _ in range(steps):
            if worker.behind:
                worker.step(self.pages, accept=accept)
        self._maintenance_reads_acks()

    @rule(data=st.data())
    def a_worker_answers(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        if worker.parked:
            worker.answer(data.draw(st.sampled_from(sorted(worker.parked))))

    @rule(data=st.data(), frontier=TIMES)
    def a_worker_reports(self, data: st.DataObject, frontier: int) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        if worker.owned:
            id = data.draw(st.sampled_from(sorted(worker.owned)))
            self.bench.report(worker.number, worker.owned[id][0], id, worker.owned[id][1], (frontier,))

    @rule(data=st.data())
    def maintenance_publishes(self, data: st.DataObject) -> None:
        owned = self.workers[MAINTENANCE].owned
        if not owned or len(self.workers) == 1:
            return
        id = data.draw(st.sampled_from(sorted(owned)))
        key = (id, owned[id][1])
        self.pages[key] = self.pages.get(key, 0) + 1  # the page first,
        self.dirty.add(key)  # then the mark
        self._maintenance_notifies()

    @rule(data=st.data())
    def a_link_clogs_or_clears(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers)).number
        (self.bench.clear.discard if worker in self.bench.clear else self.bench.clear.add)(worker)
        self.bench.settle()

    @rule()
    def the_controller_reads_or_not(self) -> None:
        self.bench.reads = not self.bench.reads
        self.bench.settle()

    def _maintenance_notifies(self) -> None:
        keys = tuple(sorted(self.dirty - self.unacked))
        self.dirty.difference_update(keys)
        self.unacked.update(keys)
        if keys:
            self.bench.say(MAINTENANCE, internal.Looks(keys))

    def _maintenance_reads_acks(self) -> None:
        acks = self.bench.told(MAINTENANCE, internal.LooksAck)
        for ack in acks[self.acks_seen :]:
            self.unacked.difference_update(ack.keys)
        self.acks_seen = len(acks)
        self._maintenance_notifies()

    # -- what must hold

    def _answers(self, session: int, uuid: str) -> int:
        return sum(r.uuid == uuid for r in self.bench.heard(session, PeekResponse))

    def _in_flight(self, session: int, uuid: str) -> bool:
        return self.peeked.get((session, uuid), 0) > self._answers(session, uuid)

    @invariant()
    def model_follows_refusals(self) -> None:
        if hasattr(self, "bench"):
            self._forget_refused()

    @invariant()
    def answers_never_exceed_peeks_and_canceled_needs_a_cancel(self) -> None:
        for (session, uuid), count in getattr(self, "peeked", {}).items():
            assert self._answers(session, uuid) <= count
        for session in getattr(self, "open", ()):
            heard = self.bench.heard(session, PeekResponse)
            for response in heard[-1:]:
                is_new = len(heard) > self.answered.get((session, response.uuid), 0)  # else of its last life
                if is_new and isinstance(response.result, PeekCanceled):
                    assert (session, response.uuid) in self.canceled

    @invariant()
    def frontiers_only_rise_and_barriers_are_in_order(self) -> None:
        for session in getattr(self, "open", ()):
            last: dict[str, Any] = {}
            for report in self.bench.heard(session, Frontiers):
                if report.write is not None:
                    before = last.get(report.id)
                    if before is not None and before != ():
                        assert report.write == () or report.write > before
                    # After an empty one, only the same name in a new declaration (the first was refused).
                    last[report.id] = report.write
            synced = [s.seq for s in self.bench.heard(session, Synced)]
            assert synced == self.syncs.get(session, [])[: len(synced)]

    def teardown(self) -> None:
        """Let everything drain: now each open peek has its one answer, and every barrier is through."""
        if not hasattr(self, "bench"):
            return
        self.bench.clear = set(self.bench.workers)
        self.bench.reads = True
        self.bench.settle()
        while any(worker.behind for worker in self.workers):
            for worker in self.workers:
                while worker.behind:
                    worker.step(self.pages, accept=True)
            self._maintenance_reads_acks()
        for worker in self.workers[1:]:
            for key in worker.parked.values():
                if key[0].startswith("u"):
                    assert worker.seen[key] == self.pages.get(key, 0), f"{key}: a wake-up was lost"
        for worker in self.workers:
            for at in list(worker.parked):
                worker.answer(at)
        for session in self.open:
            assert [s.seq for s in self.bench.heard(session, Synced)] == self.syncs.get(session, [])
        for (session, uuid), count in self.peeked.items():
            if session in self.open:
                assert self._answers(session, uuid) == count
        assert self.bench.mux.statistics().peeks_in_flight == 0
        assert self.bench.mux.statistics().syncs_pending == 0


Interleavings.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
test_interleavings = pytest.mark.slow(Interleavings.TestCase)
