"""N4: what must not matter does not: every way of computing a plan gives the same rows, errors and counts.

A random plan over random histories is computed in each setting of a matrix: joins linear or delta; the whole
history in one round or a round for every time; inputs in large or small blocks, in one go or pausing
wherever it can; over indexes of the inputs or over the inputs; maintained, or as a query of one time over
snapshots. Solo and two runtimes are compared by the scripts and by test_random_histories.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import pytest

from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.plan import Join, Let, Plan, Union
from controller_proto.print_plan import print_plan
from controller_proto.schema import Schema
from controller_proto.typing_rules import plan_schema
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates
from tests.clusterd import naive, random_plans
from tests.clusterd.mini_replica import MemoryShard, MiniReplica
from tests.clusterd.naive import Collection
from tests.clusterd.test_render_random import PAIRS, compare

TIMES = 5


class Setting(NamedTuple):
    join: str  # the kind that is asked for
    cut: str  # `whole` history, or `ticks`
    block_rows: int | None  # of what a shard gives at once; None: as it is asked for
    chunk_s: float  # how long a step may take
    inputs: str  # `shards`, or `indexes` of them


# Of the two inputs, each meets every other setting.
SETTINGS = [
    Setting(join, cut, block_rows, chunk_s, "indexes" if (number + (join == "delta")) % 2 else "shards")
    for join in ("differential", "delta")
    for number, (cut, block_rows, chunk_s) in enumerate(
        (("whole", None, 1.0), ("ticks", None, 0.0), ("whole", 3, 0.0), ("ticks", 1, 1.0))
    )
]


class SmallBlocks(MemoryShard):
    """A shard that gives its rows in blocks of its own size."""

    def __init__(self, schema: Schema, block_rows: int | None) -> None:
        super().__init__(schema)
        self._block_rows = block_rows

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        yield from super().read(lower, upper, block_rows=self._block_rows or block_rows)


def joined_as(plan: Plan, kind: str) -> Plan:
    """The plan with all its joins of a kind."""
    match plan:
        case Join(inputs):
            inputs = tuple(joined_as(each, kind) for each in inputs)
            return msgspec.structs.replace(plan, inputs=inputs, kind=kind)
        case Union(inputs):
            return Union(tuple(joined_as(each, kind) for each in inputs))
        case Let(id, value, body):
            return Let(id, joined_as(value, kind), joined_as(body, kind))
    if hasattr(plan, "input"):
        return msgspec.structs.replace(plan, input=joined_as(plan.input, kind))
    return plan


class Problem:
    """A plan, and the histories of what it reads."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.env = {f"u{n}": random_plans.schema(rng) for n in (1, 2)}
        signed = rng.random() < 0.2
        self.histories = {
            id: random_plans.history(rng, of, 20, TIMES, valid=not signed) for id, of in self.env.items()
        }
        self.plan = random_plans.Plans(rng, self.env, signed=signed).plan(rng.choice([2, 3]))

    def naive(self, at: int) -> Collection:
        inputs = {id: naive.at(of.types, self.histories[id], at) for id, of in self.env.items()}
        return naive.Interpreter(inputs, PAIRS, at).plan(self.plan)

    def key(self, of: Schema) -> tuple[int, ...]:
        return tuple(range(min(1, of.arity)))

    def answers(self, setting: Setting) -> list[Collection]:
        """What a setting gives at each time, and then as a query of the last."""
        plan = joined_as(self.plan, setting.join)
        made = plan_schema(plan, self.env)
        with MiniReplica(chunk_s=setting.chunk_s) as replica:
            for id, of in self.env.items():
                replica.shards[id] = SmallBlocks(of, setting.block_rows)
                index = Export(f"u5{id[1:]}", "index", id, of, self.key(of))
                source = (SourceImport(id, id, of, ()),)
                replica.create(DataflowHeader(index.id, 0, None, source, (), (index,)), DataflowBody(()))
            shards = tuple(SourceImport(id, id, of, ()) for id, of in self.env.items())
            indexes = tuple(IndexImport(f"u5{id[1:]}") for id in self.env)
            body = DataflowBody((Build("u90", plan),))
            export = Export("u100", "index", "u90", made, self.key(made))
            over_shards = setting.inputs == "shards"
            header = DataflowHeader(
                "u100", 0, None, shards if over_shards else (), () if over_shards else indexes, (export,)
            )
            replica.create(header, body)
            uppers = [TIMES] if setting.cut == "whole" else list(range(1, TIMES + 1))
            for lower, upper in itertools.pairwise([0, *uppers]):
                for id, history in self.histories.items():
                    ready = [u for u in history if lower <= u[1] < upper]
                    replica.shards[id].append(ready, Frontier.at(upper))
                replica.drain()
            found = [replica.read("u100", time) for time in range(TIMES)]
            last = TIMES - 1
            query = DataflowHeader(
                "t1", last, last + 1, (), indexes, (Export("t1", "index", "u90", made, ()),)
            )
            replica.create(query, body, snapshots=True)
            replica.drain()
            return [*found, replica.read("t1", last)]


def all_agree(seeds: Iterable[int]) -> int:
    """How many of the plans had joins."""
    joins = 0
    for seed in seeds:
        problem = Problem(seed)
        print(f"seed {seed}", *print_plan(problem.plan), sep="\n")
        try:
            wanted = [problem.naive(time) for time in [*range(TIMES), TIMES - 1]]
        except naive.TooLarge:
            continue
        joins += joined_as(problem.plan, "delta") != joined_as(problem.plan, "differential")
        for setting in SETTINGS:
            for time, (got, want) in enumerate(zip(problem.answers(setting), wanted, strict=True)):
                compare(got, want, f"{setting} at {time}")
    return joins


@pytest.mark.slow
@pytest.mark.parametrize("block", range(2))
def test_n4_every_strategy_gives_the_same_at_every_time(block: int) -> None:
    assert all_agree(range(block * 10, block * 10 + 10)) >= 3


@pytest.mark.soak
@pytest.mark.parametrize("block", range(2))
def test_n4_every_strategy_gives_the_same_for_many_plans(block: int) -> None:
    assert all_agree(range(1_000 + block * 100, 1_100 + block * 100)) >= 30
