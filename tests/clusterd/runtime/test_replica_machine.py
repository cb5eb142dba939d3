"""Exactly one answer a peek, and the right one, whatever the order in which anything happens.

A state machine drives the real multiplexer and runtime cores over simulated pipes: a controller that creates,
queries, peeks, cancels, compacts, drops, reconnects and replays at will, while messages, rounds, evaluations
and notices move one small step at a time in any order. The model knows only what was said, and the source.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clusterd.multiplexer import events as mx
from controller_proto.command import InitializationComplete
from controller_proto.response import PeekCanceled, PeekError, PeekResponse, PeekRows, Refused
from tests.clusterd.runtime.world import ALIAS, World

TIMES = st.integers(0, 12)
FAR = 1000
PLAIN, CHANGED = b"\x80", b"\x90"


@dataclass
class Said:
    """What the controller said of one id."""

    floor: int
    as_of: int
    query: bool
    imports: tuple[str, ...]
    twins: tuple[str, ...] = ()  # all that its dataflow exports
    scheduled: bool = False
    dropped: bool = False
    bad: bool = False
    body: bytes = PLAIN


@dataclass
class Asked:
    """One peek, and the answers it may get besides rows."""

    session: int
    uuid: str
    id: str
    time: int | None
    floor: int
    said: Said | None
    must: tuple[str, ...] = ()
    canceled: bool = False


@dataclass
class Model:
    ids: dict[str, Said] = field(default_factory=dict)
    complete: bool = False


class ReplicaMachine(RuleBasedStateMachine):
    workers = 1

    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(self.workers)
        for worker in self.world.workers:
            worker.instant = False
        self.asked: dict[tuple[int, str], Asked] = {}
        self.ended: set[int] = set()
        self.older: dict[str, Said] = {}
        self.count = 0
        self.connect()

    # -- what a controller may do ---------------------------------------------------------------------------

    def connect(self) -> None:
        if self.world.session:
            self.ended.add(self.world.session)
            self.older = {**self.older, **self.model.ids}
        self.world.connect()
        self.model = Model()

    @precondition(lambda self: self.count % 4 == 3)
    @rule(data=st.data(), again=st.integers(0, 4))
    def reconnect(self, data: st.DataObject, again: int) -> None:
        self.count += 1
        self.connect()
        for _ in range(again):
            self.replay_one(data, 0, False, True)

    @precondition(lambda self: not self.model.complete)
    @rule()
    def complete(self) -> None:
        self.model.complete = True
        self.world.send(InitializationComplete(self.world.next_seq()))

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def live(self) -> list[str]:
        return [id for id, said in self.model.ids.items() if not said.dropped and not said.bad]

    @rule(as_of=TIMES, bad=st.booleans(), early=st.booleans(), twin=st.booleans())
    def create_index(self, as_of: int, bad: bool, early: bool, twin: bool) -> None:
        bad = bad and self.random.random() < 0.3
        ids = [self.fresh("u") for _ in range(2 if twin else 1)]
        self.world.create(*ids, as_of=as_of, bad=bad)
        for id in ids:
            self.model.ids[id] = Said(as_of, as_of, False, (), tuple(ids), bad=bad)
        for id in ids if early else ():
            self.schedule_one(id)

    @rule(data=st.data(), query=st.booleans(), early=st.booleans(), later=st.integers(0, 3))
    def create_over(self, data: st.DataObject, query: bool, early: bool, later: int) -> None:
        importable = [id for id in self.live() if query or not self.model.ids[id].query]
        if not importable:
            return
        imports = tuple(data.draw(st.lists(st.sampled_from(importable), min_size=1, max_size=2, unique=True)))
        if self.workers > 1 and sum(self.model.ids[i].query for i in imports) > 1:
            return  # results of queries may live on different workers
        as_of = max(self.model.ids[i].floor for i in imports) + later
        self.create_importer(imports, as_of, query, early)

    @rule(data=st.data(), early=st.booleans(), later=st.integers(0, 3), twin=st.booleans())
    def create_alias(self, data: st.DataObject, early: bool, later: int, twin: bool) -> None:
        originals = [id for id in self.live() if not self.model.ids[id].query]
        if not originals:
            return
        original = data.draw(st.sampled_from(originals))
        as_of = self.model.ids[original].floor + later
        ids = tuple(self.fresh("u") for _ in range(2 if twin else 1))
        self.world.create(*ids, shard=None, imports=(original,), as_of=as_of, body=ALIAS)
        for id in ids:
            self.model.ids[id] = Said(as_of, as_of, False, (original,), ids, body=ALIAS)
        for id in ids if early else ():
            self.schedule_one(id)

    def create_importer(self, imports: tuple[str, ...], as_of: int, query: bool, early: bool) -> None:
        id = self.fresh("t" if query else "u")
        if query:
            self.world.query(id, *imports, as_of=as_of)
        else:
            self.world.create(id, shard=None, imports=imports, as_of=as_of)
        self.model.ids[id] = Said(as_of, as_of, query, imports, (id,))
        if early:
            self.schedule_one(id)

    @precondition(lambda self: not self.model.complete and self.older)
    @rule(data=st.data(), later=st.integers(-2, 2), changed=st.booleans(), early=st.booleans())
    def replay(self, data: st.DataObject, later: int, changed: bool, early: bool) -> None:
        self.replay_one(data, later, changed, early)

    def replay_one(self, data: st.DataObject, later: int, changed: bool, early: bool) -> None:
        """Say again, in initialisation, what an older session said: it goes on, if it can."""
        ids = self.model.ids
        again = sorted(
            {
                said.twins
                for said in self.older.values()
                if not any(id in ids for id in said.twins) and all(i in self.live() for i in said.imports)
            }
        )
        if not again:
            return
        twins = data.draw(st.sampled_from(again))
        said = self.older[twins[0]]
        floors = [self.older[id].floor for id in twins]
        as_of = max(0, max(floors) + later, *(ids[i].floor for i in said.imports), 0)
        body = CHANGED if changed and self.random.random() < 0.3 else said.body
        if said.query:
            self.world.query(twins[0], *said.imports, as_of=as_of, body=body)
        else:
            shard = None if said.imports else "S"
            self.world.create(*twins, shard=shard, imports=said.imports, as_of=as_of, body=body)
        for id in twins:
            ids[id] = Said(as_of, as_of, said.query, said.imports, twins, body=body)
        for id in twins if early else ():
            self.schedule_one(id)

    def schedule_one(self, id: str) -> None:
        self.world.schedule(id)
        self.model.ids[id].scheduled = True

    @rule(data=st.data())
    def schedule(self, data: st.DataObject) -> None:
        if ids := self.live():
            self.schedule_one(data.draw(st.sampled_from(ids)))

    @rule(data=st.data(), time=TIMES)
    def compact(self, data: st.DataObject, time: int) -> None:
        if ids := self.live():
            id = data.draw(st.sampled_from(ids))
            self.world.compact(id, time)
            said = self.model.ids[id]
            said.floor = max(said.floor, time)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if ids := self.live():
            id = data.draw(st.sampled_from(ids))
            self.world.drop(id)
            self.model.ids[id].dropped = True

    @rule(data=st.data(), time=st.one_of(st.none(), TIMES), later=st.booleans())
    def peek(self, data: st.DataObject, time: int | None, later: bool) -> None:
        id = data.draw(st.sampled_from([*self.model.ids, "u999999"]))
        said = self.model.ids.get(id)
        if later and said is not None and time is not None:
            time += said.floor
        uuid = self.fresh("p")
        asked = Asked(self.world.session, uuid, id, time, said.floor if said else 0, said)
        if said is None:
            asked.must = ("unknown-id",)
        elif said.dropped:
            asked.must = ("dropped", "unknown-id") if said.bad else ("dropped",)
        else:
            if time is not None and time < said.floor:
                asked.must += ("below-since",)
            if said.bad:
                asked.must += ("unknown-id",)
        self.asked[(asked.session, uuid)] = asked
        self.world.peek(uuid, id, time)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        mine = [uuid for session, uuid in self.asked if session == self.world.session]
        if mine:
            uuid = data.draw(st.sampled_from(mine))
            self.asked[(self.world.session, uuid)].canceled = True
            self.world.cancel(uuid)

    # -- what happens on its own ----------------------------------------------------------------------------

    @rule(steps=st.integers(0, 2), data=st.lists(st.integers(0, 1), max_size=3))
    def write(self, steps: int, data: list[int]) -> None:
        upper = self.world.shards["S"].upper.time
        self.world.write([upper + d for d in data if d <= steps], upper + steps + 1)

    @rule(count=st.integers(1, 25))
    def happen(self, count: int) -> None:
        """Small steps, each any that can be taken."""
        for _ in range(count):
            steps = []
            for worker in self.world.workers:
                if worker.inbox:
                    steps += [worker.take] * 3
                if worker.outbox:
                    steps += [lambda w=worker: self.world.forward(w)] * 3
                if worker.evaluations:
                    at = self.random.randrange(len(worker.evaluations))
                    steps.append(lambda w=worker, at=at: w.evaluate(at))
                for number in worker.rounds:
                    steps.append(lambda w=worker, n=number: w.work(n))
                for name in worker.watched:
                    steps.append(lambda w=worker, n=name: w.see_shard(n))
                if worker.core.has_news:
                    steps.append(worker.flush)
                if worker.index and not worker.inbox:
                    steps.append(lambda w=worker: self.world.notify(w))
            if not steps:
                return
            self.random.choice(steps)()

    # -- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def no_answer_is_wrong(self) -> None:
        if not hasattr(self, "world"):
            return
        seen: dict[tuple[int, str], PeekResponse] = {}
        for session, response in self.world.responses:
            if isinstance(response, PeekResponse):
                assert (session, response.uuid) not in seen, f"answered twice: {response}"
                seen[(session, response.uuid)] = response
                self.judge(self.asked[(session, response.uuid)], response)
        self.answered = seen

    def judge(self, asked: Asked, response: PeekResponse) -> None:
        result = response.result
        if isinstance(result, PeekRows):
            assert not asked.must, (asked, response)
            assert asked.said is not None
            time = response.time
            assert time is not None
            assert time >= asked.floor if asked.time is None else time == asked.time
            assert result.columns[0][0] == self.truth(asked, time), (asked, response)
        elif isinstance(result, PeekCanceled):
            assert asked.canceled, asked
        else:
            assert isinstance(result, PeekError)
            if result.code == "dropped":
                assert "dropped" in asked.must or self.may_be_gone(asked), (asked, response)
            elif result.code == "unknown-id":
                assert "unknown-id" in asked.must or self.imports_gone(asked.said), (asked, response)
            else:
                assert result.code in asked.must, (asked, response)

    def may_be_gone(self, asked: Asked) -> bool:
        said = asked.said
        assert said is not None
        if said.dropped or asked.session in self.ended or asked.session != self.world.session:
            return True
        return any(self.model.ids[i].dropped or self.model.ids[i].bad for i in self.sources(said))

    def sources(self, said: Said) -> set[str]:
        found = set(said.imports)
        for id in said.imports:
            found |= self.sources(self.model.ids[id])
        return found

    def imports_gone(self, said: Said | None) -> bool:
        """Whether the owner may have refused to create it."""
        if said is None or any(i not in self.model.ids for i in said.imports):
            return True
        return any(self.model.ids[i].bad or self.model.ids[i].dropped for i in self.sources(said))

    def truth(self, asked: Asked, time: int) -> int:
        said = asked.said
        assert said is not None
        return self.count_at(said, time, self.models(asked))

    def models(self, asked: Asked) -> dict[str, Said]:
        return self.history.setdefault(asked.session, self.model.ids)

    def count_at(self, said: Said, time: int, ids: dict[str, Said]) -> int:
        if said.query:
            time = said.as_of
        if not said.imports:
            return self.world.shards["S"].count(time)
        return sum(self.count_at(ids[i], time, ids) for i in said.imports)

    @property
    def history(self) -> dict[int, dict[str, Said]]:
        found: dict[int, dict[str, Said]] = self.__dict__.setdefault("_history", {})
        found[self.world.session] = self.model.ids
        return found

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        _ = self.history
        if not self.model.complete:
            self.complete()
        for id in self.live():
            self.schedule_one(id)
        upper = self.world.shards["S"].upper.time
        self.world.write([upper], max(upper + 1, FAR))
        self.world.settle()
        self.no_answer_is_wrong()
        for (session, uuid), asked in self.asked.items():
            if session == self.world.session:
                assert (session, uuid) in self.answered, f"never answered: {asked}"
        for _, response in self.world.responses:
            assert not isinstance(response, Refused) or response.code in (
                "invalid-plan", "unknown-id", "dropped",
            ), response  # fmt: skip
        for id in self.live():
            self.world.drop(id)
        self.world.to_mux(mx.Closed(self.world.session))
        self.world.settle()
        for worker in self.world.workers:
            held = worker.core.statistics()
            assert (held.collections, held.dataflows, held.shards) == (0, 0, 0), held
            assert (held.peeks.parked, held.peeks.ready, held.queued) == (0, 0, 0), held
        assert all(page.closed for page in self.world.pages.values())


class SoloMachine(ReplicaMachine):
    workers = 0


class TwoReadersMachine(ReplicaMachine):
    workers = 2


_SETTINGS = settings(max_examples=50, stateful_step_count=30, deadline=None, report_multiple_bugs=False)
TestTwoRuntimes = ReplicaMachine.TestCase
TestTwoRuntimes.settings = _SETTINGS
TestSolo = SoloMachine.TestCase
TestSolo.settings = _SETTINGS
TestTwoReaders = TwoReadersMachine.TestCase
TestTwoReaders.settings = _SETTINGS
