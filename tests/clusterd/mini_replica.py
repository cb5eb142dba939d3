"""A replica in one process, without a daemon: shards in memory, real dataflows, real shared arrangements.

It decides rounds as worker 0 would, from what the inputs offer, and compacts an index no further than its
importers' holds. `drain` runs everything that can run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from clusterd.convert import arrangement_schema, column_specs
from clusterd.dataflow.graph import Graph
from clusterd.dataflow.operator import Round, Source
from clusterd.dataflow.scheduler import Scheduler
from clusterd.dataflow.sequence import plan_upper
from clusterd.operators.import_index import ImportIndex
from clusterd.operators.import_snapshot import ImportSnapshot
from clusterd.operators.import_source import ImportSource
from clusterd.render.build import ImportedIndex, build_graph
from clusterd.render.physical import PhysicalPlan
from clusterd.render.plan import plan_dataflow
from clusterd.runtime.frozen import FrozenIndex
from controller_proto.dataflow import (
    DataflowBody,
    DataflowHeader,
    Export,
    IndexImport,
    SourceImport,
    is_one_shot,
)
from controller_proto.ids import id_to_u64
from controller_proto.schema import Schema
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.read import scan_at
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates
from tests.clusterd import naive

Row = tuple[Any, ...]


class MemoryShard:
    """A ShardReader over a list."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.specs: tuple[ColumnSpec, ...] = column_specs(schema)
        self.upper = self.since = Frontier.minimum()
        self.history: list[tuple[Row, int, int]] = []

    def append(self, updates: list[tuple[Row, int, int]], upper: Frontier) -> None:
        self.history += updates
        self.upper = upper

    def briefly(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        end = None if upper.is_empty else upper.time
        part = [u for u in self.history if u[1] >= lower and (end is None or u[1] < end)]
        for start in range(0, len(part), block_rows):
            yield updates_of(self.specs, part[start : start + block_rows])

    def read_errors(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        return iter(())


def updates_of(specs: tuple[ColumnSpec, ...], changes: list[tuple[Row, int, int]]) -> Updates:
    return Updates.from_rows([spec.type for spec in specs], changes)


class Dataflow:
    """One created dataflow; it is its own render environment."""

    def __init__(self, replica: MiniReplica, header: DataflowHeader, *, snapshots: bool) -> None:
        self.header = header
        self.upper = Frontier.minimum()
        self.sources: list[ImportSource] = []
        self.imports: dict[str, ImportIndex] = {}
        self._replica = replica
        self._snapshots = snapshots
        self.plan: PhysicalPlan | None = None
        self.graph: Graph | None = None

    def source(self, imported: SourceImport) -> Source:
        source = ImportSource(self._replica.shards[imported.shard])
        self.sources.append(source)
        return source

    def index(self, imported: IndexImport) -> ImportedIndex:
        writer = self._replica.indexes[imported.id]
        if self._snapshots:
            reader = writer.reader()
            halves = Frozen(reader.oks), Frozen(reader.errs)
            return ImportSnapshot(lambda: halves)
        index = ImportIndex(writer, self.header.as_of)
        self.imports[imported.id] = index
        return index

    def export(self, export: Export) -> IndexWriter:
        schema = arrangement_schema(export.schema, export.key)
        number = self._replica.incarnation()
        index = IndexWriter(self._replica.allocator, id_to_u64(export.id), number, schema, self.header.as_of)
        self._replica.indexes[export.id] = index
        self._replica.exports[export.id] = export
        return index

    def alias(self, export: Export, index: str) -> None:
        original = self._replica.indexes[index]
        is_query = is_one_shot(self.header)
        self._replica.indexes[export.id] = Result(original, self.header.as_of) if is_query else original
        self._replica.exports[export.id] = export


class Result:
    """What a query shows that re-exports an index which is sealed beyond its `as_of`."""

    def __init__(self, original: Any, as_of: int) -> None:
        frozen = FrozenIndex(original.schema, as_of)
        frozen.fill(Frozen(original.oks.reader()), Frozen(original.errs.reader()))
        found = frozen.cut()
        self.schema, self.since, self.upper = original.schema, found.since, found.upper
        self.oks, self.errs = Half(found.oks), Half(found.errs)

    def close(self) -> None:
        """Nothing of it is published."""


class Half:
    def __init__(self, reader: Any) -> None:
        self.schema = reader.schema
        self._reader = reader

    def reader(self) -> Any:
        return self._reader


class Frozen:
    """A TraceReader that stays as it was, as a snapshot does."""

    def __init__(self, reader: Any) -> None:
        self.schema, self.since, self.upper = reader.schema, reader.since, reader.upper
        self._batches = tuple(reader.batches())

    def batches(self) -> tuple[Any, ...]:
        return self._batches


class MiniReplica:
    """Use as a context: everything it publishes is gone afterwards."""

    def __init__(self, *, chunk_s: float = 0.0) -> None:
        self._instance = Instance.create()
        self.allocator = SegmentAllocator(self._instance.token, 0)
        self.scheduler = Scheduler(chunk_s=chunk_s)
        self.shards: dict[str, MemoryShard] = {}
        self.indexes: dict[str, Any] = {}  # IndexWriter, or Result
        self.exports: dict[str, Export] = {}
        self.dataflows: dict[str, Dataflow] = {}
        self._incarnations = 0

    def __enter__(self) -> MiniReplica:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.scheduler.close()
        for index in self.indexes.values():
            index.close()
        self._instance.release()

    def incarnation(self) -> int:
        self._incarnations += 1
        return self._incarnations

    def create(self, header: DataflowHeader, body: DataflowBody, *, snapshots: bool = False) -> Dataflow:
        dataflow = Dataflow(self, header, snapshots=snapshots)
        dataflow.plan = plan_dataflow(header, body, self.exports)
        dataflow.graph = build_graph(dataflow.plan, dataflow, clock=time.perf_counter)
        self.dataflows[header.name] = dataflow
        self.scheduler.add(header.name, dataflow.graph)
        return dataflow

    def decide(self) -> None:
        """Begin every round that can begin."""
        for name, dataflow in self.dataflows.items():
            if self.scheduler.running_round(name) is not None:
                continue
            for source in dataflow.sources:
                source.refresh()
            header = dataflow.header
            assert dataflow.graph is not None
            upper = plan_upper(dataflow.graph.frontier, dataflow.upper, header.as_of, header.until)
            if upper is not None:
                self.scheduler.begin(name, Round(dataflow.upper.time, upper, header.as_of, header.until))

    def step(self) -> bool:
        """One chunk; whether there is more to do."""
        self.decide()
        step = self.scheduler.step(0.0, time.perf_counter)
        for done in step.completed:
            self.dataflows[str(done.dataflow)].upper = done.upper
        return step.more or bool(step.completed)

    def drain(self) -> None:
        while self.step():
            pass

    def drop(self, name: str) -> None:
        del self.dataflows[name]
        self.scheduler.remove(name)

    def compact(self, id: str, wanted: int) -> None:
        """Allow compaction to `wanted`, held back by the importers."""
        allowed = Frontier.at(wanted)
        for dataflow in self.dataflows.values():
            if id in dataflow.imports:
                allowed = Frontier.meet(allowed, dataflow.imports[id].hold)
        if not allowed.is_empty:
            self.indexes[id].set_compaction(Frontier.join(self.indexes[id].since, allowed))

    def read(self, id: str, at: int) -> naive.Collection:
        """What the index holds at a time it can be read at."""
        index, export = self.indexes[id], self.exports[id]
        assert index.since.less_equal(at)
        assert not index.upper.less_equal(at)
        out = naive.Collection(export.schema.types)
        for row, count in _rows(index.oks, at):
            out.add(row, count)
        for (error,), count in _rows(index.errs, at):
            out.fail(error, count)
        return out


def _rows(half: Any, at: int) -> Iterator[tuple[Row, int]]:
    columns: tuple[Column, ...]
    columns, counts = scan_at(half.reader().batches(), at, schema=half.schema)
    values = [[_hashable(value) for value in column.to_pylist()] for column in columns]
    rows = zip(*values, strict=True) if values else iter([()] * len(counts))
    yield from zip(rows, counts.tolist(), strict=True)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
