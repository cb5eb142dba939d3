"""Work follows the change, not the state: a join looks up a shared index in place and keeps no copy of it."""

from __future__ import annotations

import pytest

from clusterd.dataflow.graph import NodeStatistics
from shm_arrangements.frontier import Frontier
from tests.clusterd.dataflow_text import dataflow, schema
from tests.clusterd.mini_replica import Dataflow, MemoryShard, MiniReplica

FACTS = schema("id bigint", "group_id bigint", "amount bigint")
KEYS = schema("id bigint")
SHARDS = {"facts": FACTS, "keys": KEYS}
GROUP_ROWS = 4

INDEX = """
    import source=1 shard=facts upper=1
    export index=11 on=1 key=[0]
"""
VIEW = """
    import source=2 shard=keys upper=1
    import index=11
    build id=9
      Reduce group_by=[#1] aggregates=[count(*), sum(#2), max(#2)]
        Join on=(#0 = #3)
          Get u1
          Get u2
    export index=12 on=9 key=[0]
"""


def node(of: Dataflow, name: str) -> NodeStatistics:
    assert of.graph is not None
    return next(n for n in of.graph.statistics() if n.name == name)


def touched_by_one_change(rows: int) -> dict[str, int]:
    """State rows that each operator looks at for one new key and one retracted fact, over `rows` facts."""
    with MiniReplica() as replica:
        for name, columns in SHARDS.items():
            replica.shards[name] = MemoryShard(columns)
        facts, keys = replica.shards["facts"], replica.shards["keys"]
        facts.append([((n, n // GROUP_ROWS, n % 7), 0, 1) for n in range(rows)], Frontier.at(1))
        keys.append([((n,), 0, 1) for n in range(0, rows, 2)], Frontier.at(1))
        replica.create(*dataflow(INDEX, SHARDS, name="index"))
        view = replica.create(*dataflow(VIEW, SHARDS, name="view", indexes=replica.exports))
        replica.drain()
        assert replica.read("u12", 0).rows[1, 2, 10, 6] == 1
        assert node(view, "join").state.state_rows == 0
        assert node(view, "arrange").state.state_rows == len(range(0, rows, 2)), "the index was copied"
        assert node(view, "index u11").rows_out == 0, "the index was read as a stream"
        before = {name: node(view, name) for name in ("join", "reduce")}
        keys.append([((5,), 1, 1)], Frontier.at(2))
        facts.append([((6, 1, 6), 1, -1)], Frontier.at(2))
        replica.drain()
        assert replica.read("u12", 1).rows[1, 2, 9, 5] == 1
        assert replica.read("u12", 0).rows[1, 2, 10, 6] == 1
        after = {name: node(view, name) for name in before}
        assert after["reduce"].rows_in - before["reduce"].rows_in == 2
        return {name: after[name].state.touched_rows - before[name].state.touched_rows for name in before}


@pytest.mark.slow
def test_a_change_costs_the_same_over_ten_times_the_state() -> None:
    small, large = touched_by_one_change(2_000), touched_by_one_change(20_000)
    for name in small:
        # A search is a few steps longer.
        assert large[name] <= 2 * small[name] + 64, (name, small, large)


@pytest.mark.slow
def test_a_query_over_snapshots_keeps_no_row_of_what_it_looks_up() -> None:
    with MiniReplica() as replica:
        replica.shards["facts"] = MemoryShard(FACTS)
        rows = [((n, n % 5, 1), n % 3, 1) for n in range(1000)]
        replica.shards["facts"].append(rows, Frontier.at(3))
        replica.create(*dataflow(INDEX, SHARDS, name="index"))
        replica.drain()
        text = """
            import index=11
            build id=t9
              Reduce group_by=[#1] aggregates=[count(*)]
                Join on=(#0 = #3)
                  Get u1
                  Get u1
            export index=t12 on=t9 key=[0]
        """
        header, body = dataflow(text, SHARDS, name="q", as_of=1, until=2, indexes=replica.exports)
        query = replica.create(header, body, snapshots=True)
        replica.drain()
        answer = replica.read("t12", 1).rows
        assert sum(count for _, count in answer) == sum(1 for _, time, _ in rows if time <= 1)
        assert node(query, "join").state.state_rows == 0
