"""Many subscriptions of one index, as one: counters show what is shared, a naive model judges each of them.

The whole daemon in one process, over real sockets. A subscriber that comes, goes or is cut off at any moment
leaves the others right, and the last leaves nothing.
"""

from __future__ import annotations

import random
import socket
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterd.convert import updates_from_rows
from clusterd.multiplexer.events import Unread
from controller_proto.client import WireClient
from controller_proto.codec import encode_body
from controller_proto.command import (
    AllowCompaction,
    CreateDataflow,
    CreateInstance,
    InitializationComplete,
    Schedule,
    UpdateConfiguration,
)
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.plan import Aggregate, Mfp, Plan, Reduce
from controller_proto.plan import Get as GetPlan
from controller_proto.response import DroppedAt, SubscribeResponse, SubscribeUpdates
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive
from tests.clusterd.local_daemon import LocalDaemon
from tests.clusterd.session_judge import TIMES, Definition, Stream

pytestmark = pytest.mark.slow

WORKERS = pytest.mark.parametrize("workers", [0, 1])
BIGINT = ColumnType.INT64
PAIRS = Schema((Column("k", BIGINT), Column("v", BIGINT)))
TEN = Literal(BIGINT, 10)
# Over the index u1, by name: the plan, none for all of it, and what it gives.
PLANS: dict[str, tuple[Plan | None, Schema]] = {
    "all": (None, PAIRS),
    "counts": (
        Reduce(GetPlan("u1"), (ColumnRef(1),), (Aggregate("count"),)),
        Schema((Column("v", BIGINT), Column("n", BIGINT))),
    ),
    "quotients": (
        Mfp(GetPlan("u1"), (Call("/", (TEN, ColumnRef(1))),), (), (0, 2)),
        Schema((Column("k", BIGINT), Column("q", BIGINT))),
    ),
}
History = list[tuple[tuple[int, int], int, int]]


def definitions(history: History) -> dict[str, Definition]:
    """What each plan is at each time, naively."""
    found = {}
    for name, (plan, schema) in PLANS.items():
        answers = []
        for time in range(TIMES):
            whole = naive.at(PAIRS.types, history, time)
            of = naive.Interpreter({"u1": whole}, 10_000, time)
            answers.append(whole if plan is None else of.plan(plan))
        found[name] = Definition(schema, answers)
    return found


@dataclass
class Reader:
    """A connection with its subscriptions, by id. session: the daemon's number for it."""

    client: WireClient
    session: int
    streams: dict[str, Stream] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    told: int = 0
    count: int = 0

    def subscribe(self, name: str, definition: Definition, as_of: int, **more: Any) -> str:
        plan, schema = PLANS[name]
        self.count += 1
        id, on = f"t{self.count}", f"u{100 + self.count}"  # another in each, though the plans are the same
        builds = () if plan is None else (Build(on, plan),)
        export = Export(id, "subscribe", on if builds else "u1", schema, **more)
        header = DataflowHeader(id, as_of, None, (), (IndexImport("u1"),), (export,))
        self.client.send(CreateDataflow(0, header, encode_body(DataflowBody(builds))))
        self.client.send(Schedule(0, id))
        self.streams[id], self.plans[id] = Stream(export, as_of, [definition]), name
        return id

    def drop(self, id: str) -> None:
        self.dropped.add(id)
        self.client.send(AllowCompaction(0, id, ()))

    def read(self) -> bool:
        got = False
        while (said := self.client.recv(0.0)) is not None:
            got = True
            assert isinstance(said, SubscribeResponse), said
            if isinstance(said.said, DroppedAt):
                self.streams[said.id].end(said.said)
            else:
                self.streams[said.id].take(said.said)
                self.told += isinstance(said.said.contents, SubscribeUpdates)
        return got

    @property
    def live(self) -> list[str]:
        over = {id for id, stream in self.streams.items() if stream.ended or stream.upper is None}
        return [id for id in self.streams if id not in over | self.dropped]


class Replica:
    """A LocalDaemon with an index u1 over a shard of `history`, sealed time by time."""

    def __init__(self, data_dir: Path, workers: int, history: History) -> None:
        self.daemon = LocalDaemon(data_dir, workers)
        self.history = history
        self.known = definitions(history)
        self.readers: list[Reader] = []
        self.upper = self.floor = 0
        self.shard = self.daemon.store.create_shard("s", PAIRS)
        self.tick()
        self.controller = WireClient.connect(self.daemon.address)
        self.controller.hello("controller", epoch=1)
        source = SourceImport("u1000", "s", PAIRS)
        export = Export("u1", "index", "u1000", PAIRS, (0,))
        header = DataflowHeader("u1", 0, None, (source,), (), (export,))
        self.controller.send(CreateInstance(0))
        self.controller.send(CreateDataflow(0, header, encode_body(DataflowBody(()))))
        self.controller.send(Schedule(0, "u1"))
        self.controller.send(InitializationComplete(0))
        self.settle()

    def tick(self) -> None:
        ready = [u for u in self.history if u[1] == self.upper]
        updates = updates_from_rows(PAIRS, [u[0] for u in ready], self.upper, [u[2] for u in ready])
        self.shard.append(updates, Frontier.at(self.upper), Frontier.at(self.upper + 1))
        self.upper += 1

    def reader(self) -> Reader:
        client = WireClient.connect(self.daemon.address)
        client.hello(f"reader-{len(self.readers)}-{id(client)}", kind="reader")
        self.settle()
        self.readers.append(Reader(client, max(self.daemon.endpoint._clients.by_session)))
        return self.readers[-1]

    def read(self) -> bool:
        while self.controller.end.over is None and self.controller.recv(0.0) is not None:
            pass
        return any([reader.read() for reader in self.readers])

    def settle(self) -> None:
        self.daemon.settle(self.read)

    @property
    def of_subscriptions(self) -> Any:
        return self.daemon.loops[-1].dataflows

    @property
    def standing(self) -> int:
        """Dataflows of subscriptions."""
        return self.of_subscriptions.statistics().dataflows - (len(self.daemon.loops) == 1)

    def close(self) -> None:
        """Everybody goes; nothing is left."""
        for reader in self.readers:
            reader.client.close()
        self.readers.clear()
        self.settle()
        assert self.standing == 0
        self.controller.send(AllowCompaction(0, "u1", (self.upper,)))
        self.settle()
        holds = [c.hold for loop in self.daemon.loops for c in loop.core.state.collections.values()]
        assert set(holds) == {Frontier.at(self.upper)}, "nobody holds it back"
        self.controller.send(AllowCompaction(0, "u1", ()))
        self.settle()
        self.controller.close()
        self.settle()
        self.daemon.require_nothing_held()


def test_what_a_thousand_could_read_is_read_once_and_encoded_once() -> None:
    for workers in (0, 1):
        history: History = [((k, k % 3 + 1), k % TIMES, 1) for k in range(200)]
        with tempfile.TemporaryDirectory(prefix="shared-", dir="/dev/shm") as data_dir:
            replica = Replica(Path(data_dir), workers, history)
            with replica.daemon:
                readers = [replica.reader() for _ in range(3)]
                for number in range(120):
                    name = ("all", "counts")[number % 2]
                    readers[number % 3].subscribe(name, replica.known[name], 0)
                    if number == 20:
                        replica.settle()  # the others come too late for the snapshot of these
                replica.settle()
                assert replica.standing == 2, "as many as there are plans"
                began = replica.of_subscriptions.statistics()
                assert began.blocks <= 12 < sum(reader.told for reader in readers)
                late = readers[0].subscribe("all", replica.known["all"], 0, snapshot=False)
                replica.settle()
                assert replica.standing == 2
                for _ in range(3):
                    before, told = replica.of_subscriptions.statistics(), sum(r.told for r in readers)
                    replica.tick()
                    replica.settle()
                    after = replica.of_subscriptions.statistics()
                    assert after.blocks - before.blocks == 2, "one of each plan"
                    assert after.rounds - before.rounds == 2 + (workers == 0), "and the index, in Solo"
                    assert sum(r.told for r in readers) - told == 121, "each was told"
                for reader in readers:
                    for id in reader.live[:-1]:
                        reader.drop(id)
                replica.settle()
                assert replica.standing <= 2
                assert readers[0].live == [late]
                replica.tick()
                replica.settle()
                uppers = {reader.streams[id].upper for reader in readers for id in reader.live}
                assert uppers == {replica.upper}
                replica.close()


@WORKERS
def test_one_that_does_not_read_is_cut_off_alone(tmp_path: Path, workers: int) -> None:
    history: History = [((k, k % 3 + 1), k % TIMES, 1) for k in range(2000)]
    replica = Replica(tmp_path, workers, history)
    with replica.daemon:
        endpoint = replica.daemon.endpoint
        endpoint._config = msgspec.structs.replace(endpoint._config, subscription_limit_bytes=16 << 10)
        slow, *others = (replica.reader() for _ in range(3))
        pipe = endpoint._clients.by_session[slow.session].socket
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for reader in (slow, *others):
            for _ in range(3):
                reader.subscribe("all", replica.known["all"], 0)
        replica.settle()
        assert replica.standing == 1
        replica.readers.remove(slow)
        while replica.upper < TIMES:
            replica.tick()
            replica.settle()
        replica.readers.append(slow)
        replica.settle()
        assert slow.live == [], "more than its limit"
        assert {stream.upper for reader in others for stream in reader.streams.values()} == {TIMES}
        assert replica.standing == 1
        replica.close()


@WORKERS
def test_subscribers_come_and_go_at_any_moment_and_each_is_told_what_it_asked_for(workers: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(100 * workers, 100 * workers + 12):
        with tempfile.TemporaryDirectory(prefix="shared-", dir="/dev/shm") as data_dir:
            play(seed, workers, Path(data_dir), met)
    assert met["subscribe"] > 100 < met["cut"] + met["drop"] + met["leave"], met


@pytest.mark.soak
@WORKERS
def test_subscribers_come_and_go_many_more_times(workers: int) -> None:
    for seed in range(10_000 * (workers + 1), 10_000 * (workers + 1) + 400):
        with tempfile.TemporaryDirectory(prefix="shared-", dir="/dev/shm") as data_dir:
            play(seed, workers, Path(data_dir), Counter())


def play(seed: int, workers: int, data_dir: Path, met: Counter[str]) -> None:
    print(f"seed {seed}, {workers} interactive workers")
    rng = random.Random(seed)
    rows: list[tuple[int, int]] = []
    history: History = []
    for time in range(TIMES):
        for _ in range(rng.randint(0, 6)):
            if rows and rng.random() < 0.4:
                history.append((rows.pop(rng.randrange(len(rows))), time, -1))
            else:  # a zero fails a quotient
                rows.append((rng.randint(0, 5), rng.choice([0, 1, 2, 3, 5])))
                history.append((rows[-1], time, 1))
    replica = Replica(data_dir, workers, history)
    with replica.daemon:
        for _ in range(90):
            act(rng, replica, met)
            replica.daemon.step(rng, rng.choice([0, 0, 3, 30]))
            if rng.random() < 0.3:
                replica.read()
        while replica.upper < TIMES:
            replica.tick()
        replica.settle()
        asked = [(reader, id) for reader in replica.readers for id in reader.live]
        for reader, id in asked:
            assert reader.streams[id].upper == TIMES, f"seed {seed}: {id} was not told all"
        ends = [reader.streams[id].export.up_to for reader, id in asked]
        kinds = {(r.plans[id], end) for (r, id), end in zip(asked, ends, strict=True)}
        owing = sum(reader.plans[id] == "quotients" for reader, id in asked)
        assert replica.standing <= len({k for k in kinds if k[0] != "quotients"}) + owing, f"seed {seed}"
        replica.close()


def act(rng: random.Random, replica: Replica, met: Counter[str]) -> None:
    kind = rng.choice(["subscribe"] * 8 + ["drop"] * 3 + ["cut", "leave", "tick", "tick", "compact", "set"])
    able = [(reader, id) for reader in replica.readers for id in reader.live]
    if kind == "subscribe":
        reader = replica.reader() if len(replica.readers) < 4 else rng.choice(replica.readers)
        name = rng.choice(list(PLANS))
        as_of = rng.choice([replica.floor, replica.floor, rng.randint(replica.floor, TIMES - 1)])
        up_to = rng.choice([None, None, None, as_of + 2])
        more = {"snapshot": rng.random() < 0.8, "up_to": up_to}
        reader.subscribe(name, replica.known[name], as_of, **more)
    elif kind == "drop" and able:
        reader, id = rng.choice(able)
        reader.drop(id)
    elif kind == "cut" and able:
        replica.settle()
        reader, id = rng.choice(able)
        upper = reader.streams[id].upper
        if upper is None or reader.streams[id].ended:
            return
        replica.daemon.endpoint._do(Unread(reader.session, id, (upper,), 1 << 30))
    elif kind == "leave" and len(replica.readers) > 1 and rng.random() < 0.5:
        replica.readers.pop(rng.randrange(len(replica.readers))).client.close()
    elif kind == "tick" and replica.upper < TIMES:
        replica.tick()
    elif kind == "compact":
        replica.settle()  # what readers have asked for, and will, is still there
        replica.floor = rng.randint(replica.floor, min(replica.upper, TIMES - 1))
        replica.controller.send(AllowCompaction(0, "u1", (replica.floor,)))
        replica.settle()
    elif kind == "set":
        replica.controller.send(UpdateConfiguration(0, {"max_result_bytes": rng.randint(10_000, 20_000)}))
    else:
        return
    met[kind] += 1
