"""A whole replica without processes: the real multiplexer and cores over simulated pipes, pages and shards.

Every message waits in a queue until the test lets it through, and every round and evaluation until the test
lets it end, so a test can walk any interleaving. A collection is kept as the times of its updates, one each,
so the right answer of a read at t is the number of updates at or before t; compaction really rounds times up,
so a read of rounded history shows as a wrong number.

`standing_hold=False` and `swapped=True` put back faults that the design excludes: tests that run with them
must fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from clusterd import internal
from clusterd.multiplexer import Multiplexer
from clusterd.multiplexer import events as mx
from clusterd.runtime import effects as fx
from clusterd.runtime.core import RuntimeCore, RuntimePolicy
from clusterd.runtime.interactive import Interactive
from clusterd.runtime.maintenance import Maintenance
from clusterd.runtime.peeks import Key, PendingPeek
from controller_proto.command import (
    AllowCompaction,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
)
from controller_proto.dataflow import DataflowHeader, Export, IndexImport, SourceImport, is_one_shot
from controller_proto.errors import Refusal
from controller_proto.response import Frontiers, PeekResponse, PeekRows, Response, Status
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier

MAX_TIME = (1 << 64) - 1
ALIAS = b"\xa0"  # the body of a dataflow whose exports are its first import by other ids


@dataclass
class Shard:
    times: list[int] = field(default_factory=list)
    upper: Frontier = field(default_factory=Frontier.minimum)

    def count(self, time: int) -> int:
        return sum(t <= time for t in self.times)


@dataclass
class Page:
    """A published index: what a reader may see of it."""

    times: tuple[int, ...]
    since: Frontier
    upper: Frontier
    closed: bool = False

    def count(self, time: int) -> int:
        return sum(t <= time for t in self.times)

    def copy(self) -> Page:
        return Page(self.times, self.since, self.upper, self.closed)


@dataclass
class Graph:
    header: DataflowHeader
    exports: tuple[Key, ...]
    imports: tuple[Key, ...]
    aliases: dict[Key, Key]
    snapshots: list[Page] = field(default_factory=list)
    round: fx.StartRound | None = None


@dataclass
class Evaluation:
    pending: PendingPeek
    time: int
    page: Page


@dataclass(frozen=True)
class FakePlan:
    aliases: Mapping[str, str]
    computes: bool
    likeness: bytes = b"alike"


class FakePorts:
    """Accepts whatever names shards and indexes that exist."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = shards

    def plan(self, create: CreateDataflow, indexes: Mapping[str, Export], view_in: object) -> Any:
        for source in create.header.source_imports:
            if source.shard not in self._shards:
                raise Refusal("unknown-shard", source.shard)
        if bytes(create.body) == b"\xc0":  # a plan that only the owner can tell is bad
            raise Refusal("invalid-plan", "as asked for")
        header = create.header
        if bytes(create.body) != ALIAS:
            return FakePlan({}, True)
        return FakePlan({export.id: header.index_imports[0].id for export in header.exports}, False)

    def check_peek(self, peek: Peek, index: Export) -> None:
        return


class Worker:
    """One core and what its shell would keep."""

    def __init__(self, world: World, index: int, policy: RuntimePolicy) -> None:
        self.world = world
        self.index = index
        self.core = RuntimeCore(policy, FakePorts(world.shards))
        self.inbox: deque[internal.ToWorker] = deque()
        self.outbox: deque[internal.FromWorker] = deque()
        self.graphs: dict[int, Graph] = {}
        self.evaluations: list[Evaluation] = []
        self.parked: list[PendingPeek] = []  # ever
        self.asked: list[tuple[int, str]] = []  # parts of large answers, not sent yet
        self.watched: set[str] = set()
        self.reads: list[Key] = []
        self.looked: dict[Key, int] = {}
        self.instant = True  # evaluate at once

    def take(self) -> None:
        """Read one message from the pipe."""
        self.feed(self.inbox.popleft())

    def feed(self, event: fx.Event) -> None:
        events = deque([event])
        while events:
            for effect in self.core.handle(events.popleft()):
                events.extend(self._perform(effect))
            self.core.validate_state()

    def flush(self) -> None:
        self.feed(fx.Flush())

    def work(self, number: int) -> None:
        """Run the round of a dataflow to its end."""
        graph = self.graphs[number]
        assert graph.round is not None
        round, graph.round = graph.round, None
        limit = round.upper
        until, as_of = graph.header.until, graph.header.as_of
        if until is not None:
            limit = Frontier.meet(limit, Frontier.at(until))
        found: list[int] = []
        for source in graph.header.source_imports:
            found += self.world.shards[source.shard].times
        for page in graph.snapshots or [self.world.pages[key] for key in graph.imports]:
            found += page.times
        advanced = [max(t, as_of) if round.lower == 0 else t for t in found]
        news = tuple(t for t in advanced if t >= round.lower and limit.less_equal(t) is False)
        for key in graph.exports:
            if key in graph.aliases:
                continue
            page = self.world.pages[key]
            if not page.closed:
                page.times += news
                page.upper = round.upper
        self.feed(fx.RoundDone(number, round.upper))

    def evaluate(self, at: int = 0) -> None:
        job = self.evaluations.pop(at)
        rows = PeekRows(((job.page.count(job.time),),), (1,))
        response = PeekResponse(job.pending.uuid, rows, job.time, self.core.policy.role.value)
        self.feed(fx.Evaluated(job.pending.session, job.pending.uuid, msgspec.msgpack.encode(response)))

    def see_shard(self, name: str) -> None:
        """The kernel's notice of an append."""
        self.feed(fx.ShardMoved(name, self.world.shards[name].upper))

    @property
    def rounds(self) -> list[int]:
        return [number for number, graph in self.graphs.items() if graph.round is not None]

    def see_page(self, key: Key) -> fx.PageSeen:
        page = self.world.pages.get(key)
        if page is None:
            return fx.PageSeen(key, "absent")
        return fx.PageSeen(key, "closed" if page.closed else "open", page.since, page.upper)

    def _perform(self, effect: fx.Effect) -> list[fx.Event]:
        pages = self.world.pages
        if isinstance(effect, fx.Send):
            self.outbox.append(effect.message)
        elif isinstance(effect, fx.ReadPage):
            self.looked[effect.key] = self.looked.get(effect.key, 0) + 1
            return [self.see_page(effect.key)]
        elif isinstance(effect, fx.Evaluate):
            page = pages[effect.pending.collection].copy()
            self.evaluations.append(Evaluation(effect.pending, effect.time, page))
            if self.instant:
                job = self.evaluations.pop()
                rows = PeekRows(((job.page.count(job.time),),), (1,))
                response = PeekResponse(job.pending.uuid, rows, job.time, self.core.policy.role.value)
                raw = msgspec.msgpack.encode(response)
                return [fx.Evaluated(job.pending.session, job.pending.uuid, raw)]
        elif isinstance(effect, fx.Parked):
            self.parked.append(effect.pending)
        elif isinstance(effect, fx.SendPart):
            self.asked.append((effect.session, effect.uuid))
        elif isinstance(effect, fx.Abandon):
            self.asked = [name for name in self.asked if name != (effect.session, effect.uuid)]
            self.evaluations = [
                job
                for job in self.evaluations
                if (job.pending.session, job.pending.uuid) != (effect.session, effect.uuid)
            ]
        elif isinstance(effect, fx.Build):
            names = {key[0]: key for key in effect.imports}
            aliases = {} if is_one_shot(effect.header) else effect.plan.aliases
            renamed = {key: names[aliases[key[0]]] for key in effect.exports if key[0] in aliases}
            graph = Graph(effect.header, effect.exports, effect.imports, renamed)
            if not self.core.policy.builds_at_once:
                graph.snapshots = [pages[key].copy() for key in effect.imports]
            as_of = Frontier.at(effect.header.as_of)
            for key in effect.exports:
                assert key not in pages or pages[key].closed
                if key not in renamed:
                    pages[key] = Page((), as_of, Frontier.minimum())
            self.graphs[effect.number] = graph
        elif isinstance(effect, fx.StartRound):
            graph = self.graphs[effect.number]
            assert graph.round is None
            graph.round = effect
            if effect.lower == 0:
                for key, original in graph.aliases.items():
                    if key in self.core.state.collections:
                        pages[key] = pages[original]
        elif isinstance(effect, fx.CloseGraph):
            del self.graphs[effect.number]
        elif isinstance(effect, fx.CloseIndex):
            closed = pages.pop(effect.key, None)
            if closed is not None:  # an alias that never began has no page
                assert not closed.closed
                pages[effect.key] = replace(closed, closed=True)
                closed.closed = not any(page is closed for page in pages.values())
        elif isinstance(effect, fx.SetCompaction):
            page = pages[effect.key]
            assert not page.closed
            since = effect.frontier.time
            assert page.since.precedes(effect.frontier)
            page.since = effect.frontier
            page.times = tuple(max(t, since) for t in page.times)
        elif isinstance(effect, fx.WatchShard):
            assert effect.name not in self.watched
            self.watched.add(effect.name)
            return [fx.ShardMoved(effect.name, self.world.shards[effect.name].upper)]
        elif isinstance(effect, fx.UnwatchShard):
            self.watched.remove(effect.name)
        return []


class World:
    """The replica, one controller at a time, and all that it was told."""

    def __init__(self, interactive_workers: int, *, standing_hold: bool = True) -> None:
        self.shards: dict[str, Shard] = {"S": Shard()}
        self.pages: dict[Key, Page] = {}
        self.mux = Multiplexer(interactive_workers=interactive_workers)
        policy = Maintenance(interactive_workers=interactive_workers)
        if not standing_hold:
            policy.appliers = 0
        self.workers = [Worker(self, 0, policy)]
        self.workers += [Worker(self, i + 1, Interactive()) for i in range(interactive_workers)]
        self.standing_hold = standing_hold
        self.responses: list[tuple[int, Response]] = []
        self.session = 0
        self.seq = 0
        self.epoch = 0

    @property
    def maintenance(self) -> Worker:
        return self.workers[0]

    @property
    def reader(self) -> Worker:
        """The (first) worker that answers peeks."""
        return self.workers[1 if len(self.workers) > 1 else 0]

    # -- the controller -------------------------------------------------------------------------------------

    def connect(self, *, bare: bool = False) -> None:
        """A new controller, up to the end of creation; bare: after Hello."""
        if self.session:
            self.to_mux(mx.Closed(self.session))
        self.session += 1
        self.epoch += 1
        self.to_mux(mx.Opened(self.session))
        self.send(Hello(self.next_seq(), f"n{self.epoch}", self.epoch))
        if not bare:
            self.send(CreateInstance(self.next_seq()))

    def boot(self) -> None:
        self.connect()
        self.send(InitializationComplete(self.next_seq()))

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def send(self, command: Command) -> None:
        payload = msgspec.msgpack.encode(command)
        self.to_mux(mx.Received(self.session, command, payload))

    def create(
        self,
        *ids: str,
        shard: str | None = "S",
        imports: tuple[str, ...] = (),
        as_of: int = 0,
        until: int | None = None,
        bad: bool = False,
        body: bytes = b"\x80",
    ) -> None:
        sources = () if shard is None else (SourceImport("u9000", shard, SAMPLE_SCHEMA),)
        exports = tuple(Export(id, "index", "u9001", SAMPLE_SCHEMA, (0,)) for id in ids)
        header = DataflowHeader("d", as_of, until, sources, tuple(map(IndexImport, imports)), exports)
        self.send(CreateDataflow(self.next_seq(), header, msgspec.Raw(b"\xc0" if bad else body)))

    def alias(self, id: str, original: str, as_of: int = 0) -> None:
        self.create(id, shard=None, imports=(original,), as_of=as_of, body=ALIAS)
        self.schedule(id)

    def query(self, id: str, *imports: str, as_of: int = 0, body: bytes = b"\x80") -> None:
        self.create(id, shard=None, imports=imports, as_of=as_of, until=as_of + 1, body=body)

    def schedule(self, id: str) -> None:
        self.send(Schedule(self.next_seq(), id))

    def index(self, id: str, as_of: int = 0) -> None:
        self.create(id, as_of=as_of)
        self.schedule(id)

    def compact(self, id: str, time: int) -> None:
        self.send(AllowCompaction(self.next_seq(), id, (time,)))

    def drop(self, id: str) -> None:
        self.send(AllowCompaction(self.next_seq(), id, ()))

    def peek(self, uuid: str, id: str, time: int | None) -> None:
        self.send(Peek(self.next_seq(), uuid, id, time))

    def cancel(self, uuid: str) -> None:
        self.send(CancelPeek(self.next_seq(), uuid))

    def write(self, times: list[int], upper: int, shard: str = "S") -> None:
        """Append; the notice of it comes with `see_shard`."""
        self.shards[shard].times += times
        self.shards[shard].upper = Frontier.at(upper)

    # -- the pipes ------------------------------------------------------------------------------------------

    def to_mux(self, event: mx.Event) -> None:
        for effect in self.mux.handle(event):
            if isinstance(effect, mx.Forward):
                for worker in effect.workers:
                    run = internal.Run(effect.session, effect.command, effect.incarnations)
                    self.workers[worker].inbox.append(run)
            elif isinstance(effect, mx.Tell):
                for worker in effect.workers:
                    self.workers[worker].inbox.append(effect.message)
            elif isinstance(effect, mx.Reply):
                self.responses.append((effect.session, effect.response))
            elif isinstance(effect, mx.Pass):
                response = msgspec.msgpack.decode(bytes(effect.response), type=Response)
                self.responses.append((effect.session, response))
        self.mux.validate_state()

    def forward(self, worker: Worker) -> None:
        """One message of a worker reaches the multiplexer."""
        self.to_mux(mx.WorkerSaid(worker.index, worker.outbox.popleft()))

    def notify(self, worker: Worker) -> None:
        """The multiplexer writes the notices it owes, if the worker has read all before."""
        if worker.index and not worker.inbox:
            worker.inbox.extend(self.mux.take_notices(worker.index))

    def settle(self, *, but: tuple[Worker, ...] = ()) -> None:
        """Let everything happen that can, except in the workers `but`."""
        active = [worker for worker in self.workers if worker not in but]
        for _ in range(100_000):
            busy = False
            for worker in active:
                while worker.inbox:
                    worker.take()
                    busy = True
                for name in sorted(worker.watched):
                    if worker.core.flows.shard_uppers[name] != self.shards[name].upper:
                        worker.see_shard(name)
                        busy = True
                for number in worker.rounds:
                    if number in worker.rounds:
                        worker.work(number)
                        busy = True
                while worker.evaluations:
                    worker.evaluate()
                    busy = True
                if worker.core.has_news:
                    worker.flush()
                while worker.outbox:
                    self.forward(worker)
                    busy = True
                self.notify(worker)
            if not busy and not any(worker.inbox for worker in active):
                break
        else:
            raise AssertionError("the world does not come to rest")
        frontiers = self.mux.take_news()
        self.responses += [(self.session, report) for report in frontiers]

    def answers(self, uuid: str, session: int | None = None) -> list[PeekResponse]:
        mine = self.session if session is None else session
        return [r for s, r in self.responses if s == mine and isinstance(r, PeekResponse) and r.uuid == uuid]

    def answer(self, uuid: str) -> PeekResponse:
        (found,) = self.answers(uuid)
        return found

    def refusals(self) -> list[Response]:
        return [r for s, r in self.responses if s == self.session and type(r).__name__ == "Refused"]

    def frontier(self, id: str) -> list[Any]:
        """The reports of an id to the present controller, in order."""
        return [r for s, r in self._heard(id) if isinstance(r, Frontiers)]

    def statuses(self, id: str) -> list[Status]:
        """What the present controller heard of an id, in order."""
        return [r for s, r in self._heard(id) if isinstance(r, Status)]

    def _heard(self, id: str) -> list[tuple[int, Any]]:
        return [(s, r) for s, r in self.responses if s == self.session and getattr(r, "id", None) == id]
