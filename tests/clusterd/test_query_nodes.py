"""Every node that maintenance renders is rendered in a query too, over indexes that have been merged since.

Three maintained indexes over the same times, in batches that hold times on both sides of most `as_of`s. A
query at each time must give what the same plan, maintained over the same indexes, holds at that time; and
dropped after any number of steps it must leave nothing. No daemon.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import indent
from typing import Any

import pytest

from clusterd.render import physical
from shm_arrangements.frontier import Frontier
from tests.clusterd.dataflow_text import dataflow, schema
from tests.clusterd.mini_replica import MemoryShard, MiniReplica

TIMES = 6
KV = schema("k bigint", "v bigint?")
SHARDS = {"one": KV, "two": KV, "three": KV}
CLOSURE = """
With Mutually Recursive
  cte l0 = // { types: "(bigint, bigint?)" }
    Distinct project=[#0, #1]
      Union
        Get u11
        Project (#0, #3)
          Join on=(#1 = #2)
            Get l0
            Get u12
Return
  Get l0
"""
PLANS = {
    "filter and map": "Filter #1 > 1\n  Map (#0 + #1)\n    Get u11",
    "temporal filter": "Filter now_ts() < #1 + 2\n  Get u11",
    "table function": "FlatMap generate_series(#0, #1, 1)\n  Get u11",
    "constant": 'Union\n  Constant // { types: "(bigint, bigint?)" }\n    - (1, 2)\n  Get u11',
    "union and negate": "Threshold\n  Union\n    Get u11\n    Negate\n      Get u12",
    "distinct": "Distinct project=[#0]\n  Get u11",
    "reduce": "Reduce group_by=[#0] aggregates=[count(*), sum(#1), min(#1)]\n  Get u11",
    "reduce of all": "Reduce aggregates=[count(*), max(#1)]\n  Get u11",
    "top k": "TopK group_by=[#0] order_by=[#1 desc nulls_last] limit=1\n  Get u11",
    "join": "Join on=(#0 = #2)\n  Get u11\n  Get u12",
    "join by another column": "Join on=(#1 = #3)\n  Get u11\n  Get u12",
    "delta join": "Join on=(#0 = #2 = #4) type=delta\n  Get u11\n  Get u12\n  Get u13",
    "delta join of two keys": "Join on=(#0 = #2 AND #3 = #5) type=delta\n  Get u11\n  Get u12\n  Get u13",
    "recursion": CLOSURE,
    "an error in the data": "Map (6 / #1)\n  Get u11",
}
# A query reads indexes here; a re-export has no plan (runtime/test_aliases.py).
_ELSEWHERE = {"SourceNode", "AliasNode"}


def rows(seed: int, t: int) -> list[tuple[tuple[Any, ...], int, int]]:
    """What comes and goes at time t: later times change what earlier ones gave."""
    come = [((k, (k * seed + t) % 5), t, 1) for k in range(6) if (k + t + seed) % 3]
    come += [((t % 4, None), t, 2)] if t % 2 else []
    gone = [((k, (k * seed + t - 1) % 5), t, -1) for k in range(6) if t and (k + t - 1 + seed) % 3 == 1]
    return come + gone


@contextmanager
def maintained() -> Iterator[MiniReplica]:
    """Three indexes, sealed for all times, and merged as far as merging goes."""
    with MiniReplica() as replica:
        for number, name in enumerate(SHARDS, 1):
            replica.shards[name] = MemoryShard(KV)
            text = f"""
                import source=u{number} shard={name} upper=1
                export kind=index index=u1{number} on=u{number} key=[0]
            """
            replica.create(*dataflow(text, SHARDS, name=f"d{number}"))
        for t in range(TIMES):
            for seed, name in enumerate(SHARDS, 1):
                replica.shards[name].append(rows(seed, t), Frontier.at(t + 1))
            replica.drain()
        for index in replica.indexes.values():
            while index.exert(1 << 20):
                pass
            merged = [batch.description for batch in index.oks.reader().batches() if len(batch)]
            assert any(told.upper.time - told.lower.time >= TIMES // 2 for told in merged), merged
        yield replica


def text_of(plan: str, build: str, export: str) -> str:
    imports = [f"import index={id}" for id in ("u11", "u12", "u13") if id in plan.split()]
    exported = f"export kind=index index={export} on={build} key=[0]"
    return "\n".join([*imports, f"build id={build}", indent(plan.strip(), "  "), exported])


def create(replica: MiniReplica, plan: str, name: str, at: int | None) -> Any:
    """A query at `at`, or with None a maintained dataflow; exports `name`."""
    header, body = dataflow(
        text_of(plan, f"{name}9", name), {}, name=name, as_of=at or 0,
        until=None if at is None else at + 1, indexes=replica.exports,
    )  # fmt: skip
    return replica.create(header, body, snapshots=at is not None)


def nodes(plan: physical.PhysicalPlan) -> set[str]:
    found: set[str] = set()
    left = list(plan.nodes)
    while left:
        node = left.pop()
        found.add(type(node).__name__)
        left += getattr(node, "nodes", ())
    return found


@pytest.mark.slow
def test_a_query_renders_every_node_there_is_and_is_cut_at_its_time() -> None:
    rendered: set[str] = set()
    with maintained() as replica:
        names = (f"t{number}" for number in itertools.count(100))
        for what, plan in PLANS.items():
            kept = next(names)
            create(replica, plan, kept, None)
            replica.drain()
            differ = set()
            for at in range(TIMES):
                name = next(names)
                query = create(replica, plan, name, at)
                replica.drain()
                found, wanted = replica.read(name, at), replica.read(kept, at)
                assert (found.rows, found.errs) == (wanted.rows, wanted.errs), f"{what} at {at}"
                assert replica.indexes[name].upper.is_empty, "nothing happens after its time"
                differ.add(repr(sorted(found.rows.items(), key=repr)) + repr(sorted(found.errs.items())))
                rendered |= nodes(query.plan)
            assert len(differ) > 1, f"{what} tells no time from another"
    there = {name for name, made in inspect.getmembers(physical, inspect.isclass) if name.endswith("Node")}
    assert rendered >= there - _ELSEWHERE, there - _ELSEWHERE - rendered


@pytest.mark.slow
@pytest.mark.parametrize("what", ["join", "delta join", "reduce", "recursion"])
def test_a_query_dropped_after_any_number_of_steps_leaves_nothing(what: str) -> None:
    with maintained() as replica:
        for steps in itertools.count():
            name = f"t{100 + steps}"
            create(replica, PLANS[what], name, 2)
            done = not all(replica.step() for _ in range(steps))
            replica.drop(name)
            replica.indexes.pop(name).close()
            del replica.exports[name]
            assert not replica.scheduler.has_work
            if done:
                break
        assert steps > 2
        assert replica.read("u11", TIMES - 1).rows, "what it read is still there"
