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


def touched_beside_a_finished_index(rows: int) -> int:
    """State rows that a join looks at for one new key, beside an index of `rows` facts that is finished."""
    with MiniReplica() as replica:
        for name, columns in SHARDS.items():
            replica.shards[name] = MemoryShard(columns)
        facts, keys = replica.shards["facts"], replica.shards["keys"]
        facts.append([((n, n // GROUP_ROWS, n % 7), 0, 1) for n in range(rows)], Frontier.empty())
        keys.append([((n,), 0, 1) for n in range(0, rows, 2)], Frontier.at(1))
        replica.create(*dataflow(INDEX, SHARDS, name="index"))
        view = replica.create(*dataflow(VIEW, SHARDS, name="view", indexes=replica.exports))
        replica.drain()
        before = node(view, "join").state.touched_rows
        keys.append([((5,), 1, 1)], Frontier.at(2))
        replica.drain()
        assert replica.read("u12", 0).rows[1, 2, 10, 6] == 1
        assert replica.read("u12", 1).rows[1, 3, 15, 6] == 1
        return node(view, "join").state.touched_rows - before


@pytest.mark.slow
def test_bug44_an_index_that_is_finished_is_not_read_again_at_every_change() -> None:
    small, large = touched_beside_a_finished_index(2_000), touched_beside_a_finished_index(20_000)
    assert large <= 2 * small + 64 < 1000


STAR = """
    import index=11
    import index=21
    import index=31
    build id=9
      Project (#0, #1, #4)
        Filter #1 >= 0
          Join on=(#0 = #3 = #6)
            Get u1
            Get u2
            Get u3
    export index=12 on=9 key=[0]
"""


def delta_join_of(rows: int) -> tuple[int, int]:
    """What a delta join over three indexes of `rows` rows keeps, and looks at for one change of each."""
    with MiniReplica() as replica:
        names = ("a", "b", "c")
        for number, name in enumerate(names, 1):
            shard = replica.shards[name] = MemoryShard(FACTS)
            shard.append([((n, n % 5, number), 0, 1) for n in range(rows)], Frontier.at(1))
            text = f"""
                import source={number} shard={name} upper=1
                export index={number}1 on={number} key=[0]
            """
            replica.create(*dataflow(text, dict.fromkeys(names, FACTS), name=f"index {name}"))
        view = replica.create(*dataflow(STAR, {}, name="view", indexes=replica.exports))
        replica.drain()
        join = node(view, "delta-join")
        assert join.rows_out == rows
        assert {n.name for n in view.graph.statistics()} == {  # type: ignore[union-attr]
            "index u11", "index u21", "index u31", "delta-join", "export u12",
        }  # fmt: skip
        for number, name in enumerate(names):
            replica.shards[name].append([((number, 9, 9), 1, 1)], Frontier.at(2))
        replica.drain()
        after = node(view, "delta-join")
        assert after.rows_out == rows + 3
        assert replica.read("u12", 1).rows[1, 1, 9] == 1
        return after.state.state_rows, after.state.touched_rows - join.state.touched_rows


@pytest.mark.slow
def test_a_delta_join_over_indexes_keeps_nothing_and_costs_what_changes() -> None:
    (kept, small), (_, large) = delta_join_of(2_000), delta_join_of(20_000)
    assert kept == 0
    assert large <= 2 * small + 64 < 2000


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
