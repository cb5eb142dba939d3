"""Recursive dataflows by hand: graphs that grow, shrink and have cycles; limits; errors; what a change costs.

Every answer is compared, at every time, with the naive fixed point of naive.py, which begins from nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from textwrap import dedent
from typing import Any

import pytest

from clusterd.render.explain import explain
from clusterd.render.plan import plan_dataflow
from controller_proto.dataflow import DataflowBody, DataflowHeader
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive
from tests.clusterd.dataflow_text import dataflow, schema
from tests.clusterd.mini_replica import MemoryShard, MiniReplica
from tests.clusterd.test_render_random import compare

Change = tuple[tuple[Any, ...], int, int]

EDGES = schema("a bigint", "b bigint")
WEIGHTED = schema("a bigint", "b bigint", "w bigint")
NODES = schema("n bigint?")
SCHEMAS = {"edges": EDGES, "weighted": WEIGHTED, "nodes": NODES}

CLOSURE = """
With Mutually Recursive{limit}
  cte l0 = // {{ types: "(bigint, bigint)" }}
    Distinct project=[#0, #1]
      Union
        Get u1
        Project (#0, #3)
          Join on=(#1 = #2)
            Get l0
            Get u1
Return
  Get l0
"""
SQUARED = CLOSURE.replace("            Get u1\nReturn", "            Get l0\nReturn")
REACHED = """
With Mutually Recursive
  cte l0 = // { types: "(bigint?)" }
    Distinct project=[#0]
      Union
        Get u3
        Project (#2)
          Join on=(#0 = #1)
            Get l0
            Get u1
Return
  Get l0
"""
SHORTEST = """
With Mutually Recursive
  cte l0 = // { types: "(bigint?, bigint?)" }
    Reduce group_by=[#0] aggregates=[min(#1)]
      Union
        Map (0)
          Get u3
        Project (#3, #5)
          Filter #5 < 60
            Map (#1 + #4)
              Join on=(#0 = #2)
                Get l0
                Get u2
Return
  Get l0
"""
COMPONENTS = """
With Mutually Recursive
  cte l0 = // { types: "(bigint, bigint)" }
    Reduce group_by=[#0] aggregates=[min(#1)]
      Union
        Project (#0, #0)
          Get u1
        Project (#1, #1)
          Get u1
        Project (#1, #3)
          Join on=(#0 = #2)
            Union
              Get u1
              Project (#1, #0)
                Get u1
            Get l0
Return
  Reduce group_by=[#1] aggregates=[count(*)]
    Get l0
"""
EVEN_AND_ODD = """
With Mutually Recursive{limit}
  cte l0 = // {{ types: "(bigint, bigint)" }}
    Distinct project=[#0, #1]
      Union
        Get u1
        Project (#0, #3)
          Join on=(#1 = #2)
            Get l1
            Get u1
  cte l1 = // {{ types: "(bigint, bigint)" }}
    Distinct project=[#0, #1]
      Project (#0, #3)
        Join on=(#1 = #2)
          Get l0
          Get u1
Return
  Union
    Get l0
    Get l1
"""
BEST_TWO = """
With Mutually Recursive [recursion_limit=12, return_at_limit]
  cte l0 = // { types: "(bigint, bigint)" }
    TopK group_by=[#0] order_by=[#1 desc] limit=2
      Union
        Get u1
        Project (#0, #3)
          Join on=(#1 = #2)
            Get l0
            Get u1
Return
  Get l0
"""
COUNTED = """
With Mutually Recursive [recursion_limit=6, return_at_limit]
  cte l0 = // { types: "(bigint, bigint, numeric, bigint)" }
    Reduce group_by=[#0] aggregates=[count(*), sum(#1), max(#1)]
      Union
        Get u1
        Project (#5, #1)
          Filter #1 < 40
            Join on=(#0 = #4)
              Get l0
              Get u1
Return
  Get l0
"""
# The unreached among the targets of what is reached: not monotone, so it may swing for ever.
SWINGING = """
With Mutually Recursive [recursion_limit=7, return_at_limit]
  cte l0 = // { types: "(bigint)" }
    Distinct project=[#0]
      Union
        Project (#0)
          Get u1
        Negate
          Distinct project=[#1]
            Join on=(#0 = #2)
              Get u1
              Get l0
Return
  Get l0
"""


FAILING = """
With Mutually Recursive
  cte l0 = // { types: "(bigint, bigint)" }
    Distinct project=[#0, #1]
      Union
        Get u1
        Project (#0, #4)
          Map (#3 + 0 / (#3 - 7))
            Join on=(#1 = #2)
              Get l0
              Get u1
Return
  Get l0
"""
DOUBLING = """
With Mutually Recursive
  cte l0 = // { types: "(bigint?)" }
    Union
      Get u3
      Get l0
      Get l0
Return
  Get l0
"""
ENDLESS = DOUBLING.replace("      Get l0\n      Get l0\n", "      Get l0\n")
COUNTING = ENDLESS.replace("      Get l0\n", "      Project (#1)\n        Map (#0 + 1)\n          Get l0\n")
TOGGLING = ENDLESS.replace("      Get l0\n", "      Negate\n        Get l0\n")
EXPLAINED = """
Export index u10 on=u9 key=[#0]
  Union
    Leave l0
      n0: Recursion recursion_limit=5
        cte l0 =
          Distinct
            Union
              n0r0: Enter
                Source u1
              Join on=(#1 = #2) output=(#0, #3)
                Arrange key=[#1]
                  Feedback l1
                n0r1: Arrange key=[#0]
                  n0r0
        cte l1 =
          Distinct
            Join on=(#1 = #2) output=(#0, #3)
              Arrange key=[#1]
                Binding l0
              n0r1
    Leave l1
      n0
"""


def made(plan: str, *, as_of: int = 0) -> tuple[DataflowHeader, DataflowBody]:
    indented = "\n".join("  " + line for line in plan.strip("\n").splitlines())
    imports = [f"import source=u{n} shard={name} upper=1" for n, name in enumerate(SCHEMAS, 1)]
    used = [line for n, line in enumerate(imports, 1) if f"Get u{n}" in plan]
    text = "\n".join([*used, "build id=u9", indented, "export kind=index index=u10 on=u9 key=[0]"])
    return dataflow(text, SCHEMAS, as_of=as_of)


def check(
    plan: str, changes: Mapping[str, Sequence[Change]], times: int, *, rng: random.Random | None = None
) -> MiniReplica:
    """Run it, cut into rounds at random, and compare at every time; the replica is closed by the caller."""
    header, body = made(plan)
    replica = MiniReplica()
    replica.__enter__()
    try:
        for name, of in SCHEMAS.items():
            replica.shards[name] = MemoryShard(of)
        replica.create(header, body)
        upper = 0
        while upper < times:
            to = times if rng is None else rng.randint(upper + 1, times)
            for name, shard in replica.shards.items():
                shard.append([c for c in changes.get(name, ()) if upper <= c[1] < to], Frontier.at(to))
            replica.drain()
            upper = to
        for at in range(times):
            inputs = {
                f"u{n}": naive.at(of.types, changes.get(name, ()), at)
                for n, (name, of) in enumerate(SCHEMAS.items(), 1)
            }
            wanted = naive.Interpreter(inputs).plan(body.builds[0].plan)
            compare(replica.read("u10", at), wanted, f"at {at}")
    except BaseException:
        replica.__exit__(None, None, None)
        raise
    return replica


def checked(plan: str, changes: Mapping[str, Sequence[Change]], times: int, **options: Any) -> list[set[Any]]:
    """As `check`; the rows at each time."""
    with check(plan, changes, times, **options) as replica:
        return [set(replica.read("u10", at).rows) for at in range(times)]


def edges(time: int, diff: int, *pairs: tuple[int, int]) -> list[Change]:
    return [(pair, time, diff) for pair in pairs]


def churn(rng: random.Random, nodes: int, live: int, times: int, *, weighted: bool = False) -> list[Change]:
    """A graph of about `live` edges; at each time some come and some go."""
    out: list[Change] = []
    have: list[tuple[int, ...]] = []
    for time in range(times):
        for _ in range(live if time == 0 else rng.choice([1, 1, 2, 3])):
            if time and have and rng.random() < 0.55:
                out.append((have.pop(rng.randrange(len(have))), time, -1))
            else:
                pair = rng.randrange(nodes), rng.randrange(nodes)
                edge = (*pair, rng.randrange(1, 9)) if weighted else pair
                have.append(edge)
                out.append((edge, time, 1))
    return out


def roots(rng: random.Random, nodes: int, times: int) -> list[Change]:
    out: list[Change] = [((0,), 0, 1), ((None,), 0, 1)]
    for time in range(1, times):
        if rng.random() < 0.2:
            node = rng.randrange(nodes)
            out += [((node,), time, 1), ((node,), min(time + 2, times - 1), -1)]
    return out


def test_e1_what_only_supports_itself_goes() -> None:
    plan = """
        With Mutually Recursive
          cte l0 = // { types: "(bigint?)" }
            Distinct project=[#0]
              Union
                Get u3
                Get l0
        Return
          Get l0
    """
    changes: list[Change] = [((1,), 0, 1), ((2,), 0, 1), ((3,), 1, 1), ((1,), 2, -1)]
    assert checked(dedent(plan), {"nodes": changes}, 3) == [{(1,), (2,)}, {(1,), (2,), (3,)}, {(2,), (3,)}]


def test_e2_a_closure_grows_and_shrinks() -> None:
    changes = [*edges(0, 1, (0, 1), (1, 2)), *edges(1, 1, (2, 3)), *edges(2, -1, (1, 2))]
    sizes = [len(rows) for rows in checked(CLOSURE.format(limit=""), {"edges": changes}, 3)]
    assert sizes == [3, 6, 2]


@pytest.mark.parametrize("limit", [" [recursion_limit=100]", " [recursion_limit=100, return_at_limit]"])
def test_e4_a_limit_that_is_not_reached_changes_nothing(limit: str) -> None:
    changes = [*edges(0, 1, (0, 1), (1, 2)), *edges(1, 1, (2, 3)), *edges(2, -1, (1, 2))]
    sizes = [len(rows) for rows in checked(CLOSURE.format(limit=limit), {"edges": changes}, 3)]
    assert sizes == [3, 6, 2]


def test_e5_a_limit_that_is_reached_is_an_error_that_names_it_and_heals() -> None:
    changes = [*edges(0, 1, (0, 1), (1, 2), (2, 3), (3, 4)), *edges(1, -1, (2, 3), (3, 4))]
    with check(CLOSURE.format(limit=" [recursion_limit=3]"), {"edges": changes}, 2) as replica:
        (error,) = replica.read("u10", 0).errs
        assert error.startswith("recursion-limit: ")
        assert " 3 " in error
        assert not replica.read("u10", 1).errs
        assert set(replica.read("u10", 1).rows) == {(0, 1), (1, 2), (0, 2)}


@pytest.mark.parametrize(("limit", "is_error"), [(1, True), (2, True), (3, False)])
def test_a_change_in_the_last_iteration_is_an_error(limit: int, is_error: bool) -> None:
    changes = edges(0, 1, (0, 1), (1, 2))
    with check(CLOSURE.format(limit=f" [recursion_limit={limit}]"), {"edges": changes}, 1) as replica:
        assert bool(replica.read("u10", 0).errs) is is_error


def test_e7_bindings_are_updated_in_sequence() -> None:
    changes = [*edges(0, 1, (0, 1), (1, 2), (2, 3)), *edges(1, 1, (3, 4))]
    sizes = [len(rows) for rows in checked(EVEN_AND_ODD.format(limit=""), {"edges": changes}, 2)]
    assert sizes == [6, 10]
    once = EVEN_AND_ODD.format(limit=" [recursion_limit=1, return_at_limit]")
    # In its first iteration the second binding sees what the first has just become.
    assert (0, 2) in checked(once, {"edges": changes}, 1)[0]


def test_e11_an_error_inside_is_counted_once_and_goes_with_its_cause() -> None:
    changes = [*edges(0, 1, (0, 1), (1, 2), (2, 0)), *edges(1, 1, (2, 7), (9, 2)), *edges(2, -1, (2, 7))]
    with check(FAILING, {"edges": changes}, 3) as replica:
        assert not replica.read("u10", 0).errs
        assert replica.read("u10", 1).errs == {"eval-error: division by zero": 1}
        assert not replica.read("u10", 2).errs


def test_a_row_whose_count_is_negative_is_an_error_as_long_as_it_is() -> None:
    changes = [*edges(0, 1, (0, 1), (1, 2)), *edges(1, -1, (5, 6)), *edges(2, 1, (5, 6))]
    with check(CLOSURE.format(limit=""), {"edges": changes}, 3) as replica:
        assert list(replica.read("u10", 1).errs) == ["invalid-data: distinct: row (5, 6) has multiplicity -1"]
        assert not replica.read("u10", 2).errs


def test_a_multiplicity_that_leaves_64_bits_ends_the_recursion_with_an_error() -> None:
    header, body = made(DOUBLING)
    with MiniReplica() as replica:
        for name, of in SCHEMAS.items():
            replica.shards[name] = MemoryShard(of)
        replica.create(header, body)
        replica.shards["nodes"].append([((1,), 1, 1), ((2,), 2, 1)], Frontier.at(3))
        replica.drain()
        assert not replica.read("u10", 0).errs
        for at in (1, 2):
            assert list(replica.read("u10", at).errs) == [
                "multiplicity-overflow: a multiplicity in a recursion leaves 64 bits"
            ]
            assert not replica.read("u10", at).rows


def test_a_recursion_that_depends_on_no_other_may_stand_inside_one() -> None:
    inner = CLOSURE.format(limit="").replace("l0", "l1")
    plan = """
With Mutually Recursive
  cte l0 = // { types: "(bigint?)" }
    Distinct project=[#0]
      Union
        Get u3
        Project (#2)
          Join on=(#0 = #1)
            Get l0
{inner}
Return
  Get l0
""".replace("{inner}", "\n".join(" " * 12 + line for line in inner.strip().splitlines()))
    changes: dict[str, Sequence[Change]] = {
        "edges": [*edges(0, 1, (0, 1), (1, 2)), *edges(1, -1, (0, 1))],
        "nodes": [((0,), 0, 1)],
    }
    assert checked(plan, changes, 2) == [{(0,), (1,), (2,)}, {(0,)}]


def test_a_recursion_explains_itself() -> None:
    header, body = made(EVEN_AND_ODD.format(limit=" [recursion_limit=5]"))
    assert explain(plan_dataflow(header, body, {})) == EXPLAINED.strip("\n")


def test_a_query_of_a_shared_index_recurses_over_a_snapshot_of_it() -> None:
    text = """
        import source=u1 shard=edges upper=1
        export kind=index index=u5 on=u1 key=[0]
    """
    first = dataflow(text, SCHEMAS)
    with MiniReplica() as replica:
        shard = replica.shards["edges"] = MemoryShard(EDGES)
        replica.create(*first)
        shard.append(
            [*edges(0, 1, (0, 1), (1, 2)), *edges(1, 1, (2, 3)), *edges(2, -1, (0, 1))], Frontier.at(3)
        )
        replica.drain()
        indented = "\n".join("  " + line for line in CLOSURE.format(limit="").strip("\n").splitlines())
        text = f"import index=u5\nbuild id=t9\n{indented}\nexport kind=index index=t10 on=t9 key=[0]"
        replica.create(
            *dataflow(text, {}, name="t10", as_of=1, until=2, indexes=replica.exports), snapshots=True
        )
        replica.drain()
        assert len(replica.read("t10", 1).rows) == 6
        assert len(replica.read("u5", 2).rows) == 2


@pytest.mark.parametrize("plan", ["ENDLESS", "COUNTING", "TOGGLING"])
def test_e8_a_recursion_without_an_end_pauses_needs_no_more_than_it_makes_and_is_dropped(plan: str) -> None:
    header, body = made(globals()[plan])
    with MiniReplica() as replica:
        for name, of in SCHEMAS.items():
            replica.shards[name] = MemoryShard(of)
        made_dataflow = replica.create(header, body)
        replica.shards["nodes"].append([((1,), 0, 1), ((2,), 0, 1)], Frontier.at(1))
        for _ in range(3000):  # each a piece of work, after which others have their turn
            assert replica.step()
        assert made_dataflow.graph is not None
        (scope,) = [n.state for n in made_dataflow.graph.statistics() if n.name == "recursion"]
        assert scope.state_rows < 5000
        replica.drop(header.name)
        assert not replica.scheduler.has_work


@pytest.mark.slow
def test_a_changed_edge_costs_what_it_changes_whatever_the_graph_holds() -> None:
    touched = [_touched_a_change(nodes) for nodes in (1_000, 10_000)]
    print(touched)
    assert touched[1] < 2 * touched[0] + 50


def _touched_a_change(nodes: int) -> float:
    """State rows looked at for one edge that comes or goes, on average."""
    rng = random.Random(5)
    header, body = made(REACHED)
    live = [(rng.randrange(nodes), rng.randrange(nodes)) for _ in range(2 * nodes)]
    with MiniReplica() as replica:
        for name, of in SCHEMAS.items():
            replica.shards[name] = MemoryShard(of)
        graph = replica.create(header, body).graph
        assert graph is not None
        counts = []
        for time in range(201):
            shard = replica.shards["edges"]
            if time == 0:
                changes = edges(0, 1, *live)
            elif time % 2:
                changes = edges(time, -1, live.pop(rng.randrange(len(live))))
            else:
                live.append((rng.randrange(nodes), rng.randrange(nodes)))
                changes = edges(time, 1, live[-1])
            shard.history.clear()
            shard.append(changes, Frontier.at(time + 1))
            replica.shards["nodes"].append([((0,), 0, 1)] if time == 0 else [], Frontier.at(time + 1))
            replica.drain()
            (state,) = [n.state for n in graph.statistics() if n.name == "recursion"]
            counts.append(state.touched_rows)
    return (counts[-1] - counts[0]) / 200


@pytest.mark.slow
@pytest.mark.parametrize("function", ["min", "max"])
def test_a_large_group_is_not_read_again_where_a_change_comes_before_what_it_holds(function: str) -> None:
    plan = SHORTEST.replace("min(#1)", f"{function}(#1)")
    touched = [_touched_beside(plan, size) for size in (200, 2_000)]
    print(touched)
    assert touched[1] < 1.5 * touched[0] + 20


def _touched_beside(plan: str, size: int) -> float:
    """State rows looked at for an edge from the root to a node that `size` longer ways lead to."""
    header, body = made(plan)
    hub = size + 1
    ways: list[Change] = [((0, k, k % 7), 0, 1) for k in range(1, hub)]
    ways += [((k, hub, k % 5 + 1), 0, 1) for k in range(1, hub)]
    times = 41
    changes: list[Change] = [*ways, *(((0, hub, 3), time, 1 if time % 2 else -1) for time in range(1, times))]
    with MiniReplica() as replica:
        for name, of in SCHEMAS.items():
            replica.shards[name] = MemoryShard(of)
        graph = replica.create(header, body).graph
        assert graph is not None
        counts = []
        for time in range(times):
            shard = replica.shards["weighted"]
            shard.history.clear()
            shard.append([change for change in changes if change[1] == time], Frontier.at(time + 1))
            replica.shards["nodes"].append([((0,), 0, 1)] if time == 0 else [], Frontier.at(time + 1))
            replica.drain()
            (state,) = [n.state for n in graph.statistics() if n.name == "recursion"]
            counts.append(state.touched_rows)
    return (counts[-1] - counts[0]) / (times - 1)


PLANS = {
    "closure": (CLOSURE.format(limit=""), 9, 12),
    "cut closure": (CLOSURE.format(limit=" [recursion_limit=3]"), 9, 10),
    "cut and returned": (CLOSURE.format(limit=" [recursion_limit=3, return_at_limit]"), 9, 10),
    "squared": (SQUARED.format(limit=""), 9, 12),
    "reached": (REACHED, 20, 24),
    "shortest": (SHORTEST, 12, 20),
    "components": (COMPONENTS, 14, 11),
    "even and odd": (EVEN_AND_ODD.format(limit=""), 8, 10),
    "best two": (BEST_TWO, 8, 12),
    "counted": (COUNTED, 6, 9),
    "swinging": (SWINGING, 8, 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_graphs_that_change_have_the_fixed_point_of_every_time(name: str) -> None:
    plan, nodes, live = PLANS[name]
    for seed in range(12):
        rng = random.Random(seed)
        print(f"seed {seed}")
        times = rng.choice([2, 8, 25])
        changes = {
            "edges": churn(rng, nodes, live, times),
            "weighted": churn(rng, nodes, live, times, weighted=True),
            "nodes": roots(rng, nodes, times),
        }
        check(plan, changes, times, rng=rng).__exit__(None, None, None)
