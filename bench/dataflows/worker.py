"""A worker in this process: dataflows rendered and scheduled as a replica's worker does, over arrays.

A view is a dataflow from its text. It ends either in a probe, which takes every block that the last operator
gives and counts it, or in an index in shared memory. What is appended to a shard becomes one round of every
view that reads it; `run` steps the scheduler until nothing is left to do.

Does not: read a socket or a disk. What those cost is bench-isolation's and bench-peeks'.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterd.config import WorkerConfig
from clusterd.convert import arrangement_schema, column_specs
from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round, Source
from clusterd.dataflow.scheduler import Scheduler
from clusterd.dataflow.sequence import plan_upper
from clusterd.operators.import_source import ImportSource
from clusterd.render.build import ImportedIndex, build_graph
from clusterd.render.physical import ExportNode, PhysicalPlan
from clusterd.render.plan import plan_dataflow
from controller_proto.dataflow import Export, IndexImport, SourceImport
from controller_proto.ids import id_to_u64
from controller_proto.parse_dataflow import parse_dataflow, resolve
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from controller_proto.schema import Schema
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.columns import Column
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

__all__ = ["Changes", "Ints", "Shard", "View", "Worker"]

Ints = NDArray[np.int64]
Changes = tuple[tuple[Ints, ...], Ints]  # columns and diffs, of one length

CHUNK_S: Final = WorkerConfig().chunk_s


class Shard:
    """Bigint columns without NULL; of what was appended, only the last part is kept."""

    def __init__(self, names: Sequence[str]) -> None:
        self.schema = Schema(tuple(WireColumn(name, WireType.INT64, False) for name in names))
        self.specs = column_specs(self.schema)
        self.upper = self.since = Frontier.minimum()
        self._part = Updates.empty([spec.type for spec in self.specs])
        self._lower = 0

    def append(self, changes: Changes, *, times: NDArray[np.uint64] | None = None, steps: int = 1) -> None:
        """Rows at the times from `upper` on, which moves on by `steps`; all at the first unless `times`."""
        columns, diffs = changes
        self._lower = self.upper.time
        at = np.full(len(diffs), self._lower, np.uint64) if times is None else times
        self._part = Updates(tuple(Column(ColumnType.INT64, each) for each in columns), at, diffs)
        self.upper = Frontier.at(self._lower + steps)

    def advance(self) -> None:
        """Nothing happens at the time that is its upper."""
        self.append((tuple(np.zeros(0, np.int64) for _ in self.specs), np.zeros(0, np.int64)))

    def briefly(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        if lower != self._lower:
            raise InvariantViolation("of a shard only the last part is kept", lower=lower, kept=self._lower)
        for start in range(0, len(self._part), block_rows):
            yield self._part.slice(start, min(start + block_rows, len(self._part)))

    def read_errors(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        return iter(())


class _Probe:
    """The end of a view: counts what comes, and keeps it if asked to."""

    def __init__(self, columns: Columns) -> None:
        self.schema = columns
        self.rows = 0
        self.errs = 0
        self.kept: list[Updates] | None = None

    def start(self, round: Round) -> None:
        """Nothing depends on the round."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        self.rows += len(delta.oks)
        self.errs += len(delta.errs)
        if self.kept is not None and len(delta.oks):
            self.kept.append(delta.oks)
        return iter(())

    def finish(self) -> Iterator[Delta]:
        return iter(())

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics()

    def close(self) -> None:
        """What was kept is the reader's."""


class View:
    """A dataflow that runs; it is its own render environment."""

    def __init__(
        self, worker: Worker, name: str, text: str, shards: Mapping[str, Shard], *, index: bool
    ) -> None:
        self._worker = worker
        self._shards = shards
        self.name = name
        self.sources: list[ImportSource] = []
        self.upper = Frontier.minimum()
        self.index_writer: IndexWriter | None = None
        self.probe: _Probe | None = None
        parsed = parse_dataflow(text.strip("\n").splitlines())
        header, body = resolve(
            parsed, name=name, as_of=0, until=None,
            schema_of=lambda source: shards[source.shard].schema, indexes={},
        )  # fmt: skip
        plan = plan_dataflow(header, body, {})
        if index:
            self.graph = build_graph(plan, self, clock=time.perf_counter)
            return
        # Without imported indexes, the nodes of the graph have the numbers of the plan's.
        (end,) = (node for node in plan.nodes if isinstance(node, ExportNode))
        rest = tuple(node for node in plan.nodes if node is not end)
        self.graph = build_graph(PhysicalPlan(header, rest), self, clock=time.perf_counter)
        self.probe = _Probe(self.graph.schema(end.input))
        self.graph.add_operator(self.probe, [end.input], "probe")

    def source(self, imported: SourceImport) -> Source:
        self.sources.append(ImportSource(self._shards[imported.shard]))
        return self.sources[-1]

    def index(self, imported: IndexImport) -> ImportedIndex:
        raise NotImplementedError

    def alias(self, export: Export, index: str) -> None:
        raise NotImplementedError

    def export(self, export: Export) -> IndexWriter:
        self.index_writer = self._worker.new_index(export)
        return self.index_writer

    @property
    def touched(self) -> int:
        """State rows looked at, by all operators, ever."""
        return sum(node.state.touched_rows for node in self.graph.statistics())

    @property
    def state_bytes(self) -> int:
        return sum(node.state.state_bytes for node in self.graph.statistics())

    def costs(self) -> list[tuple[str, float]]:
        """Each node's own time, seconds, the greatest first."""
        spent = [(f"{node.name} {node.node}", node.elapsed_s) for node in self.graph.statistics()]
        return sorted(spent, key=lambda each: -each[1])


class Worker:
    """Use as a context: what it published is gone afterwards."""

    def __init__(self) -> None:
        self._instance = Instance.create()
        self._allocator = SegmentAllocator(self._instance.token, 0)
        self.scheduler = Scheduler(chunk_s=CHUNK_S)
        self._views: dict[str, View] = {}
        self._indexes: list[IndexWriter] = []

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.scheduler.close()
        for index in self._indexes:
            index.close()
        self._instance.release()

    def new_index(self, export: Export) -> IndexWriter:
        schema = arrangement_schema(export.schema, export.key)
        number = len(self._indexes) + 1
        self._indexes.append(IndexWriter(self._allocator, id_to_u64(export.id), number, schema, 0))
        return self._indexes[-1]

    def add(self, text: str, shards: Mapping[str, Shard], *, index: bool = False) -> View:
        """A dataflow, to be run from the beginning."""
        view = View(self, f"view {len(self._views)}", text, shards, index=index)
        self._views[view.name] = view
        self.scheduler.add(view.name, view.graph)
        return view

    def run(self) -> float:
        """Every round that the shards offer, to its end, chunk by chunk; the seconds it took."""
        start = time.perf_counter()
        self._decide()
        more = True
        while more:
            step = self.scheduler.step(CHUNK_S, time.perf_counter)
            for done in step.completed:
                view = self._views[str(done.dataflow)]
                view.upper = done.upper
                if view.index_writer is not None:
                    view.index_writer.set_compaction(Frontier.at(done.upper.time - 1))
                    view.index_writer.reclaim(time.monotonic())
            more = step.more
        return time.perf_counter() - start

    def _decide(self) -> None:
        for name, view in self._views.items():
            for source in view.sources:
                source.refresh()
            upper = plan_upper(view.graph.frontier, view.upper, 0, None)
            if upper is not None:
                self.scheduler.begin(name, Round(view.upper.time, upper, 0))
