"""Errors are data in every operator: what is wrong with a row of any input reaches the output once, whatever
becomes of the row, and leaves with it, however the history is cut.

Each plan is maintained in one dataflow with what fails, maintained over indexes that hold the errors already,
and queried over snapshots of these. At every time rows, errors and their counts are those of the naive
interpreter. A message says which input it comes from.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from textwrap import dedent

import pytest

from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.parse_plan import parse_plan
from controller_proto.plan import Plan, free_ids
from controller_proto.typing_rules import plan_schema
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive
from tests.clusterd.dataflow_text import schema
from tests.clusterd.mini_replica import MemoryShard, MiniReplica

PAIR = schema("k bigint", "v bigint")
SOURCES = {"u1": "a", "u2": "b", "u3": "c"}
FAILING = {"u21": ("u1", "of a"), "u22": ("u2", "of b"), "u23": ("u3", "of c")}  # what fails where v is 0
TIMES = 6
SEEDS = 4
A, B, C = "Get u21", "Get u22", "Get u23"
RECURSION = """
    With Mutually Recursive
      cte l0 = // { types: "(bigint, bigint)" }
        Distinct project=[#0, #1]
          Union
            Get u21
            Project (#2, #1)
              Join on=(#0 = #3)
                Get l0
                Get u22
    Return
      Get l0
"""
RECURSION_IN_WHICH_ROWS_FAIL = """
    With Mutually Recursive
      cte l0 = // { types: "(bigint, bigint)" }
        Distinct project=[#0, #1]
          Union
            Get u21
            Filter #1 < 9 AND #1 > -9
              Project (#0, #2)
                Map (#1 + 6 / (#0 - 1))
                  Get l0
    Return
      Get l0
"""
SHARED = """
    With
      cte l0 =
        Map (6 / (#0 - 1))
          Get u21
    Return
      Union
        Get l0
        Get l0
"""


def over(head: str, *inputs: str) -> str:
    return "\n".join([head, *("  " + line for each in inputs for line in each.split("\n"))])


JOIN = "Join on=(#0 = #2)"
PLANS = {
    "map and filter": over("Filter #1 > 1", over("Map (6 / (#0 - 1))", A)),
    "filter that drops all": over("Filter false", A),
    "flat-map": over("FlatMap generate_series(#0, #1, 1)", A),
    "flat-map that fails": over("FlatMap generate_series(#0, 2, #1 - 1)", A),
    "negate": over("Negate", A),
    "union": over("Union", A, B, over("Negate", C)),
    "an input twice": over("Union", A, A),
    "threshold": over("Threshold", over("Union", A, over("Negate", B))),
    "distinct": over("Distinct project=[#0]", A),
    "count and sum": over("Reduce group_by=[#0] aggregates=[count(*), sum(#1)]", A),
    "min and distinct": over("Reduce group_by=[#0] aggregates=[min(#1), count(distinct #1)]", A),
    "a key that fails": over("Reduce group_by=[2 / (#0 - 1)] aggregates=[sum(6 / (#1 - 2))]", A),
    "reduce without key": over("Reduce aggregates=[count(*)]", A),
    "top 1": over("TopK group_by=[#0] order_by=[#1 desc nulls_last] limit=1", A),
    "top 0": over("TopK limit=0", A),
    "join": over(JOIN, A, B),
    "join of three": over("Join on=(#0 = #2 = #4) type=differential", A, B, C),
    "delta join": over("Join on=(#0 = #2 = #4) type=delta", A, B, C),
    "cross join": over("CrossJoin", A, B),
    "self join": over(JOIN, A, A),
    "join with nothing": over(JOIN, A, over("Filter false", B)),
    "map behind a join": over("Map (6 / (#1 - #3))", over(JOIN, A, B)),
    "filter behind a join": over("Filter 6 / (#1 - #3) > 0", over(JOIN, A, B)),
    "arm not taken": over("Map (CASE WHEN #1 = #3 THEN 0 ELSE 6 / (#1 - #3) END)", over(JOIN, A, B)),
    "anti join": over(
        "Threshold",
        over("Union", over("Project (#0)", A), over("Negate", over("Project (#0)", over(JOIN, A, B)))),
    ),
    "let": dedent(SHARED).strip(),
    "recursion": dedent(RECURSION).strip(),
    "recursion in which rows fail": dedent(RECURSION_IN_WHICH_ROWS_FAIL).strip(),
}


def failing(source: str, message: str) -> Plan:
    text = over(
        "Project (#0, #2)",
        over(f'Map (CASE WHEN #1 = 0 THEN error("{message}") ELSE #1 END)', f"Get {source}"),
    )
    return parse_plan(text.split("\n"))


def history(rng: random.Random) -> list[tuple[tuple[int, int], int, int]]:
    """Rows that come and go, some of them wrong, some twice; nothing goes that is not there."""
    out: list[tuple[tuple[int, int], int, int]] = []
    there: list[tuple[tuple[int, int], int]] = []
    for time in sorted(rng.randrange(TIMES) for _ in range(rng.choice([0, 6, 12, 20]))):
        if there and rng.random() < 0.45:
            row, diff = there.pop(rng.randrange(len(there)))
            out.append((row, time, -diff))
        else:
            row, diff = (rng.randrange(3), rng.choice([0, 0, 1, 2])), rng.choice([1, 1, 2])
            there.append((row, diff))
            out.append((row, time, diff))
    return out


class Case:
    """A replica over random histories, in which the inputs of plans fail."""

    def __init__(self, replica: MiniReplica, rng: random.Random) -> None:
        self.replica, self.rng = replica, rng
        self.histories = {name: history(rng) for name in SOURCES.values()}
        for name in SOURCES.values():
            replica.shards[name] = MemoryShard(PAIR)
        self.inputs = {build: failing(*of) for build, of in FAILING.items()}

    def create(self, export: str, builds: Sequence[tuple[str, Plan]], indexes: Sequence[str] = (),
               *, as_of: int = 0, until: int | None = None, snapshots: bool = False) -> None:  # fmt: skip
        """An index of the last of the builds."""
        env = {**dict.fromkeys((*SOURCES, *FAILING), PAIR)}
        of, plan = builds[-1]
        used = {id for _, each in builds for id in free_ids(each)}
        header = DataflowHeader(
            export,
            as_of,
            until,
            tuple(SourceImport(id, name, PAIR, ()) for id, name in SOURCES.items() if id in used),
            tuple(map(IndexImport, indexes)),
            (Export(export, "index", of, plan_schema(plan, env), ()),),
        )
        body = DataflowBody(tuple(Build(*build) for build in builds))
        self.replica.create(header, body, snapshots=snapshots)

    def feed(self) -> None:
        """All of the histories, cut at random, in rounds and pieces as they come."""
        upper = dict.fromkeys(self.histories, 0)
        while any(at < TIMES for at in upper.values()):
            for name, changes in self.histories.items():
                to = self.rng.randint(upper[name], TIMES)
                ready = [change for change in changes if upper[name] <= change[1] < to]
                self.rng.shuffle(ready)
                if to > upper[name]:
                    self.replica.shards[name].append(ready, Frontier.at(to))
                    upper[name] = to
            for _ in range(self.rng.choice([0, 3, 100])):
                if not self.replica.step():
                    break
        self.replica.drain()

    def wanted(self, plan: Plan, at: int) -> naive.Collection:
        sources = {id: naive.at(PAIR.types, self.histories[name], at) for id, name in SOURCES.items()}
        inputs = {id: naive.Interpreter(sources).plan(each) for id, each in self.inputs.items()}
        return naive.Interpreter(inputs).plan(plan)


def play(name: str, seed: int) -> set[str]:
    """One plan over one set of histories; the errors that were to be seen."""
    plan = parse_plan(PLANS[name].split("\n"))
    seen: set[str] = set()
    with MiniReplica() as replica:
        case = Case(replica, random.Random(f"{name} {seed}"))
        inputs = [(id, case.inputs[id]) for id in sorted(free_ids(plan) & set(FAILING))]
        indexes = [f"u1{id[1:]}" for id, _ in inputs]
        for index, each in zip(indexes, inputs, strict=True):
            case.create(index, [each])
        case.create("u100", [*inputs, ("u90", plan)])
        case.create("u101", [("u91", plan)], indexes)
        case.feed()
        at = case.rng.randrange(TIMES)
        case.create("t1", [("t91", plan)], indexes, as_of=at, until=at + 1, snapshots=True)
        replica.drain()
        for read, times in (("u100", range(TIMES)), ("u101", range(TIMES)), ("t1", [at])):
            for time in times:
                got, wanted = replica.read(read, time), case.wanted(plan, time)
                assert dict(got.errs) == dict(wanted.errs), f"{name}: errors of {read} at {time}"
                assert got.rows == wanted.rows, f"{name}: rows of {read} at {time}"
                seen |= set(wanted.errs)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("block", range(2))
def test_errors_of_every_input_reach_the_output_once_and_heal(block: int) -> None:
    for name, text in PLANS.items():
        seen: set[str] = set()
        for seed in range(block * SEEDS, block * SEEDS + SEEDS):
            print(f"{name}: seed {seed}")
            seen |= play(name, seed)
        for id, (_, message) in FAILING.items():
            assert id not in text or f"eval-error: {message}" in seen, f"{name}: no row was ever {message!r}"
