"""Random dataflows over random histories, cut into random rounds, against a naive fold at every time.

Each case: shards with their own histories and uppers; a maintained dataflow over them; a second one that
imports the first one's index (as a stream and as an arrangement joins look up in place), created while the
first already runs; queries over snapshots of both at random times. Rounds, chunks and compaction fall where
the seed says. What an index holds, rows, counts and errors, must be what the naive interpreter says, at every
time that can be read. No daemon.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from clusterd.render.physical import DeltaJoinNode, IndexSide, JoinNode
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.plan import Plan, free_ids
from controller_proto.print_plan import print_plan
from controller_proto.schema import ColumnType, Schema
from controller_proto.typing_rules import plan_schema
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive, plan_kinds, random_plans
from tests.clusterd.mini_replica import MemoryShard, MiniReplica
from tests.clusterd.naive import Collection

TIMES = 8
RENDERED = {
    "SourceNode", "IndexNode", "ConstantNode", "MfpNode", "FlatMapNode", "ArrangeNode", "JoinNode",
    "DeltaJoinNode", "ReduceNode", "DistinctNode", "ThresholdNode", "TopKNode", "UnionNode", "NegateNode",
    "ExportNode", "TemporalNode", "JoinNode over an index", "DeltaJoinNode over an index",
}  # fmt: skip
# What a hundred cases have, for certain.
OFTEN = RENDERED - {"DeltaJoinNode over an index"} | {
    "join differential", "join delta", "join null-safe", "join of 2", "join of 3 or more", "cross join",
    "join by an expression", "join of more in a class", "distinct", "reduce", "reduce without key",
    "reduce by an expression", "reduce of several", "aggregate of distinct values", "count", "sum", "min",
    "max", "top-k", "top-k in groups", "threshold", "negate", "union", "let", "flat-map", "constant", "map",
    "filter", "project", "case", "coalesce", "and", "or", "not", "is_null", "arrange",
}  # fmt: skip
PAIRS = 20_000  # of rows a naive join may look at, a plan and time; beyond it the case is given up


def kind_of(error: str) -> str:
    """A message without the part that names a row or a group."""
    return ": ".join(error.split(": ")[:2]) if error.startswith("eval-error") else error.split(":")[0]


def compare(got: Collection, wanted: Collection, where: str) -> None:
    errors = [Counter[str](), Counter[str]()]
    for counts, collection in zip(errors, (got, wanted), strict=True):
        for error, count in collection.errs.items():
            counts[kind_of(error)] += count
    if "invalid-data" in errors[1]:
        # Which row it names, and what else is there, is nobody's business: every read gets an error.
        assert "invalid-data" in errors[0], f"{where}: no error, naive has {wanted.errs}"
        return
    assert errors[0] == errors[1], f"{where}: errors {got.errs}, naive {wanted.errs}"
    assert got.rows == wanted.rows, f"{where}: {difference(got, wanted)}"


def difference(got: Collection, wanted: Collection) -> str:
    rows = {row: (got.rows.get(row, 0), wanted.rows.get(row, 0)) for row in {*got.rows, *wanted.rows}}
    return f"(got, naive) counts of { ({row: pair for row, pair in rows.items() if pair[0] != pair[1]}) }"


class Case:
    """One seed: everything it makes, and the naive answer to it."""

    signed_share = 0.2  # of cases in which counts may be below zero
    domain = random_plans.DOMAIN

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.signed = rng.random() < self.signed_share
        self.grows = not self.signed and rng.random() < 0.3
        self.sources = {f"u{n}": f"shard{n}" for n in range(1, rng.choice([2, 3, 3]) + 1)}
        self.replica = MiniReplica()
        self.late: dict[str, list[tuple[random_plans.Row, int, int]]] = {}
        shared = rng.choice([None, None, *random_plans.DOMAIN]) if rng.random() < 0.5 else None
        for name in self.sources.values():
            schema = self.schema(shared)
            self.replica.shards[name] = MemoryShard(schema)
            late = random_plans.history(
                rng, schema, rng.choice([0, 5, 15, 25]), TIMES,
                valid=not self.signed or rng.random() < 0.5, domain=self.domain,
            )  # fmt: skip
            self.late[name] = [each for each in late if each[2] > 0] if self.grows else late
        self.env = {id: self.replica.shards[name].schema for id, name in self.sources.items()}
        self.builds: dict[str, tuple[str, Plan, int | None]] = {}  # by export: build, plan, until
        self.answers: dict[tuple[str, int], Collection] = {}
        self.kinds: list[set[str]] = []  # of each plan that was built

    def schema(self, shared: ColumnType | None) -> Schema:
        return random_plans.schema(self.rng, shared)

    def plan(self, env: dict[str, Schema], depth: int) -> Plan:
        plans = random_plans.Plans(self.rng, env, signed=self.signed)
        return self.said_to_grow(plans.plan(depth))

    def said_to_grow(self, plan: Plan) -> Plan:
        growing = frozenset(self.sources) if self.grows else frozenset()
        return random_plans.said_to_grow(self.rng, plan, growing)

    def naive(self, id: str, at: int) -> Collection:
        """The collection `id` (a source, a build or an index) at a time."""
        if id in self.sources:
            shard = self.replica.shards[self.sources[id]]
            return naive.at(shard.schema.types, shard.history, at)
        build, plan, until = next(b for export, b in self.builds.items() if id in (export, b[0]))
        if until is not None:
            at = min(at, until - 1)  # then nothing happens any more
        if (build, at) not in self.answers:
            inputs = {name: self.naive(name, at) for name in free_ids(plan)}
            self.answers[build, at] = self.answer(plan, inputs, at)
        return self.answers[build, at]

    def answer(self, plan: Plan, inputs: dict[str, Collection], at: int) -> Collection:
        return naive.Interpreter(inputs, PAIRS, at).plan(plan)

    def header(self, name: str, build: str, plan: Plan, env: dict[str, Schema], as_of: int, until: int | None,
               sources: list[str], indexes: list[str]) -> tuple[DataflowHeader, DataflowBody]:  # fmt: skip
        schema = plan_schema(plan, env)
        positions = list(range(schema.arity))
        self.rng.shuffle(positions)
        key = tuple(positions[: self.rng.randint(0, min(2, len(positions)))])
        self.builds[name] = build, plan, until
        self.kinds.append(plan_kinds.kinds(plan, env))
        return (
            DataflowHeader(
                name,
                as_of,
                until,
                tuple(SourceImport(i, self.sources[i], self.env[i], ()) for i in sources),
                tuple(IndexImport(i) for i in indexes),
                (Export(name, "index", build, schema, key),),
            ),
            DataflowBody((Build(build, plan),)),
        )

    def advance_shards(self) -> bool:
        """Move the upper of some shards; whether there is more to come."""
        rng, more = self.rng, False
        for name, late in self.late.items():
            shard = self.replica.shards[name]
            upper = 0 if shard.upper.is_empty else shard.upper.time
            if not shard.upper.is_empty and upper <= TIMES and rng.random() < 0.7:
                to = rng.randint(upper, TIMES + 1)
                ready = [u for u in late if upper <= u[1] < to]
                rng.shuffle(ready)
                ends = to > TIMES and rng.random() < 0.3
                shard.append(ready, Frontier.empty() if ends else Frontier.at(to))
            more |= not shard.upper.is_empty and shard.upper.time <= TIMES
        return more

    def readable(self, id: str) -> list[int]:
        index = self.replica.indexes[id]
        times = range(TIMES + 3)
        return [t for t in times if index.since.less_equal(t) and not index.upper.less_equal(t)]


def play(seed: int, make: type[Case] = Case) -> list[set[str]]:
    """One random case from its seed; what was built."""
    case = make(seed)
    rng, replica = case.rng, case.replica
    with replica:
        # The naive answer needs all of a shard's updates: they are only not sealed yet.
        depth = rng.choice([1, 2, 2, 3])
        first = case.plan(case.env, depth)
        as_of, until = rng.choice([0, 0, 2, 4]), rng.choice([None, None, None, 6])
        used = sorted(free_ids(first))
        replica.create(*case.header("u100", "u90", first, case.env, as_of, until, used, []))
        print(f"seed {seed}", *print_plan(first), sep="\n")
        second_at = rng.randint(0, 3)
        made, step = False, 0
        more = True
        while more or not made:
            more = case.advance_shards()
            for _ in range(rng.choice([0, 1, 3, 30])):
                if not replica.step():
                    break
            if rng.random() < 0.3:
                replica.indexes["u100"].exert(1000)
            if not made and step >= second_at:
                made = True
                create_second(case, as_of)
            if rng.random() < 0.2 and not replica.indexes["u100"].upper.is_empty:
                replica.compact("u100", rng.randint(0, TIMES))
            step += 1
        replica.drain()
        finish(case)
        return [kinds | rendered(name, replica) for kinds, name in zip(case.kinds, case.builds, strict=True)]


def rendered(name: str, replica: MiniReplica) -> set[str]:
    """The nodes of what was built, and which joins look up indexes."""
    plan = replica.dataflows[name].plan
    assert plan is not None
    found = {type(node).__name__ for node in plan.nodes}
    for node in plan.nodes:
        if isinstance(node, JoinNode) and IndexSide in {type(node.left), type(node.right)}:
            found.add("JoinNode over an index")
        if isinstance(node, DeltaJoinNode) and any(
            isinstance(s, IndexSide) for i in node.inputs for s in i.sides
        ):
            found.add("DeltaJoinNode over an index")
    return found


def create_second(case: Case, first_as_of: int) -> None:
    """A dataflow over the first one's index, beside the sources."""
    rng, replica = case.rng, case.replica
    index = replica.indexes["u100"]
    schema = replica.exports["u100"].schema
    env = {"u100": schema, "u90": schema}
    if rng.random() < 0.6:
        env |= case.env
    plan = case.plan(env, rng.choice([1, 2, 2]))
    as_of = max(first_as_of, index.since.time) + rng.choice([0, 0, 1, 3])
    used = free_ids(plan)
    sources = sorted(used & set(case.sources))
    print("second:", *print_plan(plan), sep="\n")
    header, body = case.header(
        "u101", "u91", plan, env, as_of, rng.choice([None, None, as_of + 2]), sources, ["u100"]
    )
    replica.create(header, body)


def finish(case: Case) -> None:
    """Check everything that can be read, then query it."""
    for id in ("u100", "u101"):
        for at in case.readable(id):
            compare(case.replica.read(id, at), case.naive(id, at), f"{id} at {at}")
    for number in range(2):
        readable = [(id, at) for id in ("u100", "u101") for at in case.readable(id)]
        if readable:
            query(case, f"t{number}", *case.rng.choice(readable))


def query(case: Case, name: str, index: str, at: int) -> None:
    """A one-shot dataflow over a snapshot, at one time."""
    replica = case.replica
    export = replica.exports[index]
    env = {index: export.schema, export.on: export.schema}
    plan = case.plan(env, case.rng.choice([1, 2]))
    print(f"query of {index} at {at}:", *print_plan(plan), sep="\n")
    header, body = case.header(name, f"t9{name[1:]}", plan, env, at, at + 1, [], [index])
    replica.create(header, body, snapshots=True)
    replica.drain()
    assert replica.indexes[name].upper.is_empty
    compare(replica.read(name, at), case.naive(name, at), f"{name} at {at}")


def patiently(seed: int, make: type[Case] = Case) -> list[set[str]]:
    """Play, unless the naive answer takes too long: then nothing was built."""
    try:
        return play(seed, make)
    except naive.TooLarge:
        return []


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_no_answer_differs_from_a_naive_fold(block: int) -> None:
    built = [kinds for seed in range(block * 100, block * 100 + 100) for kinds in patiently(seed)]
    assert len(built) > 200
    assert set().union(*built) >= OFTEN, OFTEN - set().union(*built)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(4))
def test_many_plans_of_every_kind_give_no_answer_that_differs(block: int) -> None:
    """More than 10,000 plans in all."""
    first = 10_000 + block * 1_000
    built = [kinds for seed in range(first, first + 1_000) for kinds in patiently(seed)]
    counts = Counter(kind for kinds in built for kind in kinds)
    print(f"{len(built)} plans of", dict(counts.most_common()))
    assert len(built) > 3_000
    assert set(counts) >= plan_kinds.KINDS | RENDERED, (plan_kinds.KINDS | RENDERED) - set(counts)
