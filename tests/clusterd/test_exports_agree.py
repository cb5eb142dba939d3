"""N1 to N4 and N7: one plan in every way it can be asked for gives the same, at every time, in both modes.

A random plan over random histories is maintained as an index, written as a view, subscribed to over the
shards and over indexes of them, made anew at each tick, and asked for as a query, in Solo and with an
interactive worker. Rows and errors of each are what a naive interpreter makes of the literal contents at that
time; so they are each other's. What the workload claims to cover is looked for in the plans that were built.

The whole daemon in one process, over real sockets.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from clusterd.convert import column_from_scalars, column_specs
from clusterd.runtime import effects as fx
from controller_proto.client import WireClient
from controller_proto.codec import encode_body
from controller_proto.command import (
    AllowCompaction,
    AllowWrites,
    CreateDataflow,
    CreateInstance,
    InitializationComplete,
    Peek,
    Schedule,
)
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.plan import Plan
from controller_proto.print_plan import print_plan
from controller_proto.response import DroppedAt, PeekError, PeekResponse, PeekRows, Refused, SubscribeResponse
from controller_proto.schema import Schema
from controller_proto.typing_rules import plan_schema
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive, random_plans
from tests.clusterd.local_daemon import LocalDaemon
from tests.clusterd.mini_replica import updates_of
from tests.clusterd.naive_answers import hashable, may_fail_with
from tests.clusterd.recursive_plans import RecursivePlans
from tests.clusterd.session_judge import TIMES, Definition, Stream

pytestmark = pytest.mark.slow

INDEXES = {"u1": "u6", "u2": "u7"}  # of what plans read
PAIRS = 5_000  # of rows a naive join may look at, a plan and time
SEEDS = (4, 24, 27, 33, 61, 68, 86, 102, 113)
# N7: nodes that these have, of every kind of export.
CLAIMED = {
    "IndexNode", "MfpNode", "JoinNode", "ArrangeNode", "ReduceNode", "DistinctNode", "UnionNode", "TopKNode",
    "ThresholdNode", "NegateNode", "FlatMapNode", "ScopeNode", "DeltaJoinNode", "TemporalNode", "ExportNode",
}  # fmt: skip
ASKED = ("index", "materialized-view", "subscribe", "query")
# Views are made of shards alone here, and of a query a temporal filter is one of rows.
NOT_CLAIMED = {("materialized-view", "IndexNode"), ("query", "TemporalNode")}


class Problem:
    """A plan, the histories of what it reads, and what it is at each time. Raises naive.TooLarge."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.env = {f"u{n}": random_plans.schema(rng) for n in (1, 2)}
        # No count below zero: a read of one is an error, while a subscription passes it on.
        self.histories = {
            id: random_plans.history(rng, of, rng.choice([8, 15]), TIMES) for id, of in self.env.items()
        }
        kind = RecursivePlans if rng.random() < 0.25 else random_plans.Plans
        self.plan: Plan = kind(rng, self.env).plan(rng.choice([1, 2, 2]))
        self.schema = plan_schema(self.plan, self.env)
        self.wanted = [self._naive(time) for time in range(TIMES)]
        cuts = sorted(rng.sample(range(1, TIMES), rng.randint(1, 4)))
        self.cuts = list(itertools.pairwise([0, *cuts, TIMES]))

    def _naive(self, at: int) -> naive.Collection:
        inputs = {id: naive.at(of.types, self.histories[id], at) for id, of in self.env.items()}
        return naive.Interpreter(inputs, PAIRS, at).plan(self.plan)


class Run:
    """One problem in one mode. `found`: what every peek was answered, for another mode to compare with."""

    built: ClassVar[Counter[tuple[str, str]]] = Counter()  # kind of export, node

    def __init__(self, problem: Problem, workers: int, data_dir: Path) -> None:
        self.problem = problem
        self.daemon = LocalDaemon(data_dir, workers)
        self.where = f"{workers} interactive workers"
        for loop in self.daemon.loops:
            build = loop._perform[fx.Build]
            loop._perform[fx.Build] = lambda effect, build=build: self._note(effect) or build(effect)
        self.shards = {id: self.daemon.store.create_shard(id, of) for id, of in problem.env.items()}
        self.found: list[Any] = []
        self.answers: dict[str, PeekResponse] = {}
        self.streams: dict[str, Stream] = {}
        self.peeks = itertools.count()

    def _note(self, build: fx.Build) -> None:
        header = build.header
        kind = "query" if header.until is not None else header.exports[0].kind
        nodes = {type(node).__name__ for node in build.plan.nodes}
        Run.built.update((kind, name) for name in nodes)

    def play(self) -> list[Any]:
        problem = self.problem
        with self.daemon:
            self.client = WireClient.connect(self.daemon.address)
            self.client.hello("controller", epoch=1)
            self.client.send(CreateInstance(0))
            self.client.send(InitializationComplete(0))
            schema = problem.schema
            for id, of in problem.env.items():
                export = Export(INDEXES[id], "index", id, of, tuple(range(min(1, of.arity))))
                self.create(export, 0, shards=[id], body=DataflowBody(()))
            self.create(Export("u10", "index", "u90", schema, tuple(range(min(1, schema.arity)))), 0)
            columns = enumerate(schema.columns)  # of a shard, which has no two of a name
            stored = Schema(tuple(msgspec.structs.replace(c, name=f"c{n}") for n, c in columns))
            self.create(Export("u11", "materialized-view", "u90", stored, shard="view"), 0)
            self.client.send(AllowWrites(0, "u11"))
            self.subscribe("t12", 0)
            self.subscribe("t13", 0, indexes=True)
            self.subscribe("t14", 2, indexes=True, snapshot=False)
            self.subscribe("t15", 0, on="u10")
            fresh: list[str] = []
            for lower, upper in problem.cuts:
                for id, shard in self.shards.items():
                    ready = [u for u in problem.histories[id] if lower <= u[1] < upper]
                    updates = updates_of(column_specs(problem.env[id]), ready)
                    shard.append(updates, Frontier.at(lower), Frontier.at(upper))
                self.settle()
                for stream in self.streams.values():  # N1
                    reached = upper if upper > stream.as_of else 0
                    assert stream.upper == reached, f"{self.where}: {stream.export.id} at {stream.upper}"
                now = upper - 1  # N2: by the shards, and by indexes; and as a query of one time
                fresh += [f"u{100 + now}", f"u{200 + now}"]
                self.create(Export(fresh[-2], "index", "u90", schema, ()), now)
                self.create(Export(fresh[-1], "index", "u90", schema, ()), now, indexes=True)
                query = Export(f"t{now + 300}", "index", "u90", schema, ())
                self.create(query, now, indexes=True, query=True)
                times = range(lower, upper)
                self.require(
                    [(id, time) for id in ("u10", "u11") for time in times]
                    + [(id, now) for id in (query.id, *fresh)]
                )
            for id in ("u10", "u11", *fresh, *INDEXES.values()):
                self.client.send(AllowCompaction(0, id, ()))
            self.settle()
            self.client.close()
            self.daemon.settle(lambda: False)
        return self.found

    def create(
        self, export: Export, as_of: int, *, shards: Iterable[str] = (), body: DataflowBody | None = None,
        indexes: bool = False, query: bool = False, on: str = "",
    ) -> None:  # fmt: skip
        """The plan over the shards, or over indexes of them; or what `body` and `shards`, or `on`, say."""
        problem = self.problem
        imports = [IndexImport(INDEXES[id]) for id in problem.env] if indexes else []
        if on:
            imports, body = [IndexImport(on)], DataflowBody(())
        names = shards if body is not None else () if indexes else problem.env
        sources = tuple(SourceImport(id, id, problem.env[id], ()) for id in names)
        if body is None:
            plan = over_indexes(problem.plan) if indexes else problem.plan
            body = DataflowBody((Build("u90", plan),))
        header = DataflowHeader(
            export.id, as_of, as_of + 1 if query else None, sources, tuple(imports), (export,)
        )
        self.client.send(CreateDataflow(0, header, encode_body(body)))
        self.client.send(Schedule(0, export.id))

    def subscribe(self, id: str, as_of: int, *, on: str = "", **more: Any) -> None:
        snapshot = more.pop("snapshot", True)
        export = Export(id, "subscribe", on or "u90", self.problem.schema, snapshot=snapshot)
        self.create(export, as_of, on=on, **more)
        self.streams[id] = Stream(export, as_of, [Definition(self.problem.schema, self.problem.wanted)])

    def settle(self) -> None:
        self.daemon.settle(self._read)

    def _read(self) -> bool:
        got = False
        while self.client.end.over is None and (said := self.client.recv(0.0)) is not None:
            got = True
            assert not isinstance(said, Refused), said
            if isinstance(said, PeekResponse):
                self.answers[said.uuid] = said
            elif isinstance(said, SubscribeResponse):
                if isinstance(said.said, DroppedAt):
                    self.streams[said.id].end(said.said)
                else:
                    self.streams[said.id].take(said.said)
        return got

    def require(self, asked: list[tuple[str, int]]) -> None:
        """N3: a collection, by id, is what the naive interpreter has at a time."""
        uuids = [f"p{next(self.peeks)}" for _ in asked]
        for uuid, (id, time) in zip(uuids, asked, strict=True):
            self.client.send(Peek(0, uuid, id, time))
        self.settle()
        for uuid, (id, time) in zip(uuids, asked, strict=True):
            self._judge(self.answers.pop(uuid), id, time)

    def _judge(self, answer: PeekResponse, id: str, time: int) -> None:
        result, wanted = answer.result, self.problem.wanted[time]
        where = f"{self.where}: {id} at {time}"
        if kinds := may_fail_with(wanted):
            assert isinstance(result, PeekError), f"{where}: {result}, naive {kinds}"
            text = f"{result.code}: {result.message}"
            assert any(text.startswith(kind) for kind in kinds), f"{where}: {text}, naive {kinds}"
            self.found.append(result.code)
            return
        assert isinstance(result, PeekRows), f"{where}: {result}, naive {wanted.rows}"
        specs = column_specs(self.problem.schema)
        columns = [
            map(hashable, column_from_scalars(spec, values).to_pylist())
            for spec, values in zip(specs, result.columns, strict=True)
        ]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(result.counts))
        counts = dict(zip(rows, result.counts, strict=True))
        assert counts == wanted.rows, f"{where}: {counts}, naive {wanted.rows}"
        self.found.append(counts)


def over_indexes(plan: Plan) -> Plan:
    """The plan with what it reads called as the indexes of that."""
    raw = msgspec.msgpack.encode(plan)
    for id, index in INDEXES.items():
        raw = raw.replace(msgspec.msgpack.encode(id), msgspec.msgpack.encode(index))
    return msgspec.msgpack.decode(raw, type=Plan)


def all_agree(seeds: Iterable[int]) -> int:
    """How many plans there were."""
    played = 0
    for seed in seeds:
        try:
            problem = Problem(seed)
        except naive.TooLarge:
            continue
        print(f"seed {seed}", *print_plan(problem.plan), sep="\n")
        found = []
        for workers in (0, 1):
            with tempfile.TemporaryDirectory(prefix="exports-", dir="/dev/shm") as data_dir:
                found.append(Run(problem, workers, Path(data_dir)).play())
        assert found[0] == found[1], "N4: Solo and two runtimes"
        played += 1
    return played


def test_n1_n2_n3_n4_every_way_to_ask_for_a_plan_gives_the_same_at_every_time() -> None:
    Run.built.clear()
    assert all_agree(SEEDS) == len(SEEDS)
    claimed = {(kind, node) for kind in ASKED for node in CLAIMED} - NOT_CLAIMED
    assert claimed <= Run.built.keys(), f"N7: {sorted(claimed - Run.built.keys())}"


@pytest.mark.soak
@pytest.mark.parametrize("block", range(4))
def test_n1_n2_n3_n4_many_plans_in_every_way(block: int) -> None:
    assert all_agree(range(1000 + 200 * block, 1200 + 200 * block)) >= 150
