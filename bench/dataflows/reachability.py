"""What does a recursion cost that begins, and one of which an edge changes?

Nodes that are reached from one root along random directed edges, maintained in an index: the whole round of
the hydration, then rounds of one tick each, which take `changed` edges away or add as many. The dataflow runs
in this process, without a daemon, as a worker runs it; the shard is arrays.

The answer is compared with a search by levels in numpy: after the hydration, and within the ticks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.arrangements.common import require
from clusterd.convert import arrangement_schema, column_specs
from clusterd.dataflow.operator import Round, Source
from clusterd.operators.import_source import ImportSource
from clusterd.render.build import ImportedIndex, build_graph
from clusterd.render.plan import plan_dataflow
from controller_proto.dataflow import Export, IndexImport, SourceImport
from controller_proto.ids import id_to_u64
from controller_proto.parse_dataflow import parse_dataflow, resolve
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from controller_proto.schema import Schema
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.read import scan_at
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["run"]

Ints = NDArray[np.int64]

NODES = 1_000_000
EDGES = 2_000_000
TICKS = 400
CHECKS = 4  # within the ticks
SEED = 11

_BODY = """
import source=u1 shard=edges upper=1
import source=u2 shard=roots upper=1
build id=u9
  With Mutually Recursive
    cte l0 = // { types: "(bigint)" }
      Distinct project=[#0]
        Union
          Get u2
          Project (#2)
            Join on=(#0 = #1)
              Get l0
              Get u1
  Return
    Get l0
export kind=index index=u10 on=u9 key=[0]
"""
_SCHEMAS = {
    "edges": Schema((WireColumn("a", WireType.INT64, False), WireColumn("b", WireType.INT64, False))),
    "roots": Schema((WireColumn("n", WireType.INT64, False),)),
}


class _Arrays:
    """A shard of bigint columns, of which only the part is kept that the next round reads."""

    def __init__(self, specs: tuple[ColumnSpec, ...]) -> None:
        self.specs = specs
        self.upper = self.since = Frontier.minimum()
        self._part = Updates.empty(tuple(spec.type for spec in specs))

    def append(self, columns: tuple[Ints, ...], diff: int) -> None:
        """Rows at the time that is its upper, which moves on."""
        at, n = self.upper.time, len(columns[0])
        taken = tuple(Column(ColumnType.INT64, np.ascontiguousarray(values)) for values in columns)
        self._part = Updates(taken, np.full(n, at, np.uint64), np.full(n, diff, np.int64))
        self.upper = Frontier.at(at + 1)

    def briefly(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        for start in range(0, len(self._part), block_rows):
            yield self._part.slice(start, min(start + block_rows, len(self._part)))

    def read_errors(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        return iter(())


class _Environment:
    """Where the dataflow reads and writes."""

    def __init__(self, shards: dict[str, _Arrays], allocator: SegmentAllocator) -> None:
        self._shards = shards
        self._allocator = allocator
        self.sources: list[ImportSource] = []
        self.index_writer: IndexWriter | None = None

    def source(self, imported: SourceImport) -> Source:
        self.sources.append(ImportSource(self._shards[imported.shard]))
        return self.sources[-1]

    def index(self, imported: IndexImport) -> ImportedIndex:
        raise NotImplementedError

    def alias(self, export: Export, index: str) -> None:
        raise NotImplementedError

    def export(self, export: Export) -> IndexWriter:
        schema = arrangement_schema(export.schema, export.key)
        self.index_writer = IndexWriter(self._allocator, id_to_u64(export.id), 1, schema, 0)
        return self.index_writer


class _Reachability:
    """The dataflow, round by round."""

    def __init__(self) -> None:
        self._held = Instance.create()
        self.shards = {name: _Arrays(column_specs(schema)) for name, schema in _SCHEMAS.items()}
        parsed = parse_dataflow(_BODY.strip("\n").splitlines())
        header, body = resolve(
            parsed, name="reachability", as_of=0, until=None,
            schema_of=lambda source: _SCHEMAS[source.shard], indexes={},
        )  # fmt: skip
        self._environment = _Environment(self.shards, SegmentAllocator(self._held.token, 0))
        self.graph = build_graph(plan_dataflow(header, body, {}), self._environment, clock=time.perf_counter)
        self.longest_piece_s = 0.0

    def tick(self, edges: tuple[Ints, Ints], diff: int, roots: Ints) -> float:
        """One round; the seconds it took."""
        at = self.shards["edges"].upper.time
        self.shards["edges"].append(edges, diff)
        self.shards["roots"].append((roots,), 1)
        began = before = time.perf_counter()
        for source in self._environment.sources:
            source.refresh()
        for _ in self.graph.run(Round(at, Frontier.at(at + 1), 0)):
            now = time.perf_counter()
            self.longest_piece_s = max(self.longest_piece_s, now - before)
            before = now
        return time.perf_counter() - began

    def reached(self) -> Ints:
        """What the index holds now, ascending."""
        index = self._environment.index_writer
        assert index is not None
        at = self.shards["edges"].upper.time - 1
        columns, counts = scan_at(index.oks.reader().batches(), at, schema=index.oks.schema)
        require(bool((counts == 1).all()), "each node once")
        return np.sort(columns[0].values.astype(np.int64))

    @property
    def touched(self) -> int:
        """State rows that the recursion has looked at, ever."""
        return sum(n.state.touched_rows for n in self.graph.statistics() if n.name == "recursion")

    @property
    def state_bytes(self) -> int:
        return sum(n.state.state_bytes for n in self.graph.statistics() if n.name == "recursion")

    def close(self) -> None:
        self.graph.close()
        if self._environment.index_writer is not None:
            self._environment.index_writer.close()
        self._held.release()


def search(nodes: int, sources: Ints, targets: Ints, root: int) -> Ints:
    """What is reached from `root`, ascending: level by level, over edges sorted by source."""
    order = np.argsort(sources, kind="stable")
    targets = targets[order]
    starts = np.searchsorted(sources[order], np.arange(nodes + 1))
    seen = np.zeros(nodes, np.bool_)
    level = np.array([root], np.int64)
    seen[level] = True
    while len(level):
        counts = starts[level + 1] - starts[level]
        offsets = np.repeat(starts[level] - (np.cumsum(counts) - counts), counts)
        found = np.unique(targets[offsets + np.arange(int(counts.sum()))])
        level = found[~seen[found]]
        seen[level] = True
    return np.flatnonzero(seen)


def run(nodes: int = NODES, edges: int = EDGES, *, ticks: int = TICKS, changed: int = 1) -> dict[str, Any]:
    """Figures of one run, its answers checked. Units are in the names.

    ticks: rounds after the hydration, by turns `changed` random edges less and as many new ones more.
    Raises: RuntimeError if an answer is wrong.
    """
    rng = np.random.default_rng(SEED)
    _warm_up()
    dataflow = _Reachability()
    try:
        sources, targets = rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)
        root, nothing = int(sources[0]), np.zeros(0, np.int64)
        initial_s = dataflow.tick((sources, targets), 1, np.array([root], np.int64))
        reached = search(nodes, sources, targets, root)
        require(np.array_equal(dataflow.reached(), reached), "nodes reached at first")
        hydration_piece_s, dataflow.longest_piece_s = dataflow.longest_piece_s, 0.0
        spent: list[float] = []
        touched, state_bytes = dataflow.touched, dataflow.state_bytes
        for number in range(ticks):
            if number % 2 == 0:
                chosen = rng.choice(len(sources), changed, replace=False)
                gone = sources[chosen], targets[chosen]
                spent.append(dataflow.tick(gone, -1, nothing))
                sources, targets = np.delete(sources, chosen), np.delete(targets, chosen)
            else:
                new = rng.integers(0, nodes, changed), rng.integers(0, nodes, changed)
                spent.append(dataflow.tick(new, 1, nothing))
                sources, targets = np.append(sources, new[0]), np.append(targets, new[1])
            if number % max(1, ticks // CHECKS) == 0 or number == ticks - 1:
                wanted = search(nodes, sources, targets, root)
                require(np.array_equal(dataflow.reached(), wanted), f"nodes reached after tick {number}")
        touched = dataflow.touched - touched
        took = 1e3 * np.array(spent)
        return {
            "nodes": nodes, "edges": edges, "changed": changed, "ticks": ticks, "reached": len(reached),
            "initial_s": initial_s,
            "tick_p50_ms": float(statistics.median(took)),
            "delete_p50_ms": float(statistics.median(took[::2])),
            "insert_p50_ms": float(statistics.median(took[1::2])),
            "tick_mean_ms": float(took.mean()),
            "tick_p99_ms": float(np.percentile(took, 99)),
            "tick_max_ms": float(took.max()),
            "touched_per_tick": touched / ticks,
            "state_bytes": state_bytes,
            "longest_piece_hydrating_ms": 1e3 * hydration_piece_s,
            "longest_piece_ms": 1e3 * dataflow.longest_piece_s,
        }  # fmt: skip
    finally:
        dataflow.close()


def _warm_up() -> None:
    """Once through everything, with a few rows: it is compiled then."""
    warm = _Reachability()
    ones = np.ones(3, np.int64)
    for diff in (1, -1):
        warm.tick((ones, 2 * ones), diff, ones if diff > 0 else ones[:0])
    warm.close()
