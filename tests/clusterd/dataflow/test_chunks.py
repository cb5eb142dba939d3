"""R11: no piece of work grows with the round, nothing piles up between operators, and a round says how far it
is.

What `make test` counts is work: rows that pass in one piece. The soak test takes the CPU time of every piece
of larger rounds, with a key that has all rows, and of clearing everything again; it prints the longest of
each operator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from clusterd.convert import column_specs
from clusterd.dataflow.graph import Graph
from clusterd.dataflow.operator import BLOCK_ROWS, Round
from clusterd.operators.kernels.warm import warm
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates
from tests.clusterd.dataflow_text import dataflow, schema
from tests.clusterd.mini_replica import Dataflow, MemoryShard, MiniReplica

PAIR = schema("k bigint", "v bigint")
ROWS = 5 * BLOCK_ROWS // 2
SOAK_ROWS = 3_000_000
# What a chunk may take; the longest is some 30 ms, also on a loaded machine.
SOAK_PIECE_S = 0.05


class ArrayShard(MemoryShard):
    """A shard of columns of integers."""

    def __init__(self) -> None:
        super().__init__(PAIR)
        self._parts: list[Updates] = []
        self.specs = column_specs(PAIR)

    def add(self, keys: np.ndarray, values: np.ndarray, at: int, diff: int = 1) -> None:
        n = len(keys)
        columns = (Column(ColumnType.INT64, keys), Column(ColumnType.INT64, values))
        self._parts.append(Updates(columns, np.full(n, at, np.uint64), np.full(n, diff, np.int64)))
        self.upper = Frontier.at(at + 1)

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        for part in self._parts:
            at = int(part.times[0])
            if at >= lower and not upper.less_equal(at):
                for start in range(0, len(part), block_rows):
                    yield part.slice(start, min(start + block_rows, len(part)))


def view(replica: MiniReplica, plan: str, key: str = "[0]") -> Dataflow:
    body = "\n".join("        " + line for line in plan.strip("\n").split("\n"))
    text = f"""
    import source=1 shard=a upper=1
    build id=9
{body}
    export index=12 on=9 key={key}
    """
    return replica.create(*dataflow(text, {"a": PAIR}))


def begun(made: Dataflow) -> tuple[Graph, Iterator[None]]:
    """The round that the sources allow, begun."""
    graph = made.graph
    assert graph is not None
    for source in made.sources:
        source.refresh()
    upper = graph.frontier
    work = graph.run(Round(made.upper.time, upper, 0))
    made.upper = upper
    return graph, work


PLANS = {
    "export": "Get u1",
    "map": "Map (#0 + 1)\n  Get u1",
    "flat-map": "FlatMap generate_series(1, 3, 1)\n  Get u1",
    "union": "Union\n  Get u1\n  Negate\n    Get u1",
    "threshold": "Threshold\n  Get u1",
    "distinct": "Distinct project=[#0, #1]\n  Get u1",
    "count and sum": "Reduce group_by=[#1] aggregates=[count(*), sum(#0)]\n  Get u1",
    "count distinct": "Reduce group_by=[#0] aggregates=[count(distinct #1)]\n  Get u1",
    "min and max": "Reduce group_by=[#0] aggregates=[min(#1), max(#1)]\n  Get u1",
    "min and max of many": "Reduce group_by=[#1] aggregates=[min(#0), max(#0)]\n  Get u1",
    "monotonic": "Reduce group_by=[#1] aggregates=[max(#0)] monotonic\n  Get u1",
    "list": "Reduce group_by=[#1] aggregates=[array_agg(#0)]\n  Get u1",
    "top-k": "TopK group_by=[#0] order_by=[#1 desc nulls_last] limit=10\n  Get u1",
    "join": "Project (#0, #1)\n  Join on=(#1 = #3)\n    Get u1\n    Get u1",
}


@pytest.mark.slow
def test_no_piece_of_a_hydration_passes_more_rows_than_a_few_blocks() -> None:
    rng = np.random.default_rng(1)
    for name, plan in PLANS.items():
        with MiniReplica() as replica:
            shard = replica.shards["a"] = ArrayShard()
            shard.add(np.zeros(ROWS, np.int64), rng.permutation(ROWS), 0)
            made = view(replica, plan)
            for at in range(2):
                graph, work = begun(made)
                nodes = graph.statistics()
                before = [node.rows_in + node.rows_out for node in nodes]
                for _ in work:
                    after = [node.rows_in + node.rows_out for node in graph.statistics()]
                    for node, old, new in zip(nodes, before, after, strict=True):
                        assert new - old <= 2 * BLOCK_ROWS, f"{name}: {node.name} in one piece, round {at}"
                    before = after
                part = shard.read(0, Frontier.at(1), block_rows=ROWS)
                if at == 0:
                    [everything] = part
                    keys, values = (column.values for column in everything.columns)
                    shard.add(keys, values, 1, -1)
            assert replica.read("u12", 1).rows == {}, name


@pytest.mark.slow
def test_bug55_what_a_join_that_explodes_makes_does_not_pile_up() -> None:
    rows = 2000
    with MiniReplica() as replica:
        shard = replica.shards["a"] = ArrayShard()
        shard.add(np.zeros(rows, np.int64), np.arange(rows), 0)
        made = view(replica, "Project (#4)\n  Map ((#1 + #3) % 2)\n    CrossJoin\n      Get u1\n      Get u1")
        graph, work = begun(made)
        pieces = most_held = 0
        for _ in work:
            pieces += 1
            held = [node for node in graph.statistics() if node.name != "join"]
            most_held = max(most_held, sum(node.state.state_bytes for node in held))
        join = next(node for node in graph.statistics() if node.name == "join")
        assert join.rows_out == rows * rows
        assert pieces >= rows * rows // BLOCK_ROWS
        # All of it would be 96 MB in three columns; the export sorts when it has 64.
        assert most_held < 72 << 20, f"{most_held} bytes were held"
        assert replica.read("u12", 0).rows == {(0,): rows * rows // 2, (1,): rows * rows // 2}


@pytest.mark.slow
def test_a_round_says_how_far_it_is() -> None:
    with MiniReplica() as replica:
        shard = replica.shards["a"] = ArrayShard()
        shard.add(np.arange(ROWS), np.arange(ROWS), 0)
        index = "import source=1 shard=a upper=1\nexport index=11 on=1 key=[0]"
        first = replica.create(*dataflow(index, {"a": PAIR}, name="index"))
        first.sources[0].expected_rows = ROWS  # as the runtime, which can ask the shard
        count = "import index=11\nbuild id=9\n  Reduce aggregates=[count(*)]\n    Get u1\n"
        text = count + "export index=12 on=9 key=[]"
        schemas = {"a": PAIR}
        second = replica.create(*dataflow(text, schemas, name="view", indexes=replica.exports))
        for made in (first, second):
            graph, work = begun(made)
            seen = []
            for _ in work:
                progress = graph.progress()
                assert progress is not None
                assert progress.rows_expected == ROWS
                seen.append((progress.node, progress.rows_done, progress.name))
            assert seen == sorted(seen)
            assert [done for _, done, _ in seen][-1] == ROWS
            assert len({done for _, done, _ in seen}) >= 3, "it moves"
            assert {name for _, _, name in seen} & {"export u11", "reduce"}, "and beyond the source"
            assert graph.progress() is None


def pieces(made: Dataflow) -> dict[str, float]:
    """Run a round; the longest piece of CPU time of each operator, seconds."""
    graph, work = begun(made)
    longest: dict[str, float] = {}
    before = {node.node: node.elapsed_s for node in graph.statistics()}
    began = time.thread_time()
    more = True
    while more:
        more = next(work, work) is None
        took = time.thread_time() - began
        nodes = graph.statistics()
        busiest = max(nodes, key=lambda node: node.elapsed_s - before[node.node])
        longest[busiest.name] = max(longest.get(busiest.name, 0.0), took)
        before = {node.node: node.elapsed_s for node in nodes}
        began = time.thread_time()
    return longest


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANS)
def test_every_piece_of_a_large_round_is_short(name: str) -> None:
    warm()  # as a worker is before it begins
    rng = np.random.default_rng(2)
    keys: Sequence[np.ndarray] = (np.zeros(SOAK_ROWS, np.int64), rng.permutation(SOAK_ROWS))
    with MiniReplica() as replica:
        shard = replica.shards["a"] = ArrayShard()
        shard.add(*keys, 0)
        made = view(replica, PLANS[name])
        for at in range(3):
            longest = pieces(made)
            print(f"{name}, round {at}:", {k: f"{1000 * v:.1f} ms" for k, v in longest.items()})
            assert max(longest.values()) < SOAK_PIECE_S
            if at == 0:
                shard.add(*keys, 1, -1)  # all of it goes
            else:
                shard.add(rng.permutation(BLOCK_ROWS), rng.permutation(BLOCK_ROWS), 2)
