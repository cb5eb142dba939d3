"""What a worker says of itself: its parts' figures, gathered into a sample.

A sample is made several times a second by a process that has better to do. So what did not move is not looked
at: a dataflow whose graph did no piece of work since, and whose frontiers stand where they stood, is the
bytes it was; an index likewise. And of what moved no more is looked at than a moment allows: the dataflow
that is at work, then others in turn. Who was not looked at is told as it was, and has its turn in the next
sample, which is due as long as `has_more`.

Does not: decide when (progress.py), keep what its parts do not (but for when a frontier was seen to move).
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from clusterd.dataflow.graph import Graph
from clusterd.introspection.sample import (
    CollectionFigures,
    DataflowFigures,
    DataflowShape,
    ImportFigures,
    IndexFigures,
    OperatorFigures,
    OperatorShape,
    PeekFigures,
    PlanLine,
    SnapshotFigures,
    Time,
    WorkerSample,
)
from clusterd.render.build import operators_of
from clusterd.render.explain import plan_lines
from clusterd.render.physical import PhysicalPlan
from clusterd.runtime.collection import Dataflow
from clusterd.runtime.core import RuntimeCore
from clusterd.runtime.dataflows import Dataflows
from clusterd.runtime.effects import Build
from clusterd.runtime.meter import Meter
from clusterd.runtime.owned import OwnedIndexes
from clusterd.runtime.peeks import Key
from clusterd.runtime.published import PublishedIndexes
from controller_proto.ids import GlobalId
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.names import HALVES

__all__ = ["MOST_PEEKS", "Collector", "Worker"]

_MOMENT_S: Final = 0.001  # that collecting may take, of a process that has others waiting
MOST_PEEKS: Final = 200  # told one by one; of more the oldest, and how many there are
_WORST: Final = ("hydrated", "hydrating", "scheduled", "created", "stalled", "errored")
_encode = msgspec.msgpack.Encoder().encode


class Worker(Protocol):
    """The parts of a worker that are asked (runtime/loop.py)."""

    @property
    def core(self) -> RuntimeCore: ...

    @property
    def dataflows(self) -> Dataflows: ...

    @property
    def owned(self) -> OwnedIndexes: ...

    @property
    def published(self) -> PublishedIndexes | None: ...

    @property
    def meter(self) -> Meter: ...


@dataclass(slots=True)
class _Seen:
    """A dataflow as it was last told. stamp: while it stays, so does what is told."""

    shape: msgspec.Raw
    created_ms: int
    moved_ms: int
    upper: Frontier
    behind_ms: int = 0
    stamp: object = None
    figures: msgspec.Raw = field(default_factory=msgspec.Raw)


class Collector:
    """process: `maintenance/0`. has_more: the last sample left out what has moved."""

    def __init__(self, process: str, role: str) -> None:
        self._process = process
        self._role = role
        self._pid = os.getpid()
        self._dataflows: dict[int, _Seen] = {}
        self._indexes: dict[Key, tuple[object, tuple[IndexFigures, ...]]] = {}
        self._turn = 0  # the dataflow that is the first to have its turn
        self.has_more = False

    def collect(self, worker: Worker) -> bytes:
        """An encoded WorkerSample."""
        now_ms = time.time_ns() // 1_000_000
        self._offset_s = time.time() - time.perf_counter()  # of the graphs' clock to the time of day
        self._until_s = time.perf_counter() + _MOMENT_S
        self.has_more = False
        graphs = {build.number: (build, graph) for build, graph in worker.dataflows.graphs()}
        shapes: list[msgspec.Raw] = []
        figures: list[msgspec.Raw] = []
        for dataflow in self._in_turn(worker, graphs):
            seen = self._dataflow(worker, dataflow, graphs.get(dataflow.number), now_ms)
            if seen is not None:
                shapes.append(seen.shape)
                figures.append(seen.figures)
        for gone in self._dataflows.keys() - worker.core.state.dataflows.keys():
            del self._dataflows[gone]
        meter = worker.meter
        peeks = worker.core.state.peeks
        return _encode(
            WorkerSample(
                self._process,
                self._role,
                self._pid,
                now_ms,
                tuple(shapes),
                tuple(figures),
                tuple(self._collections(worker)),
                tuple(self._index_figures(worker)),
                tuple(self._snapshots(worker)),
                tuple(self._peeks(worker)),
                len(peeks),
                (*meter.totals(), *worker.core.reads.totals()),
                meter.peek_durations(worker.core.state.collections),
                meter.step_durations(),
            )
        )

    # -- dataflows

    def _in_turn(self, worker: Worker, graphs: Mapping[int, tuple[Build, Graph]]) -> Iterator[Dataflow]:
        """What is at work, then the others from `_turn` on."""
        all_ = worker.core.state.dataflows
        at_work = [number for number, (_, graph) in graphs.items() if graph.working is not None]
        later = [number for number in all_ if number >= self._turn]
        order = dict.fromkeys((*at_work, *later, *all_))
        return (all_[number] for number in order if number in all_)

    def _has_time(self, dataflow: Dataflow) -> bool:
        """Whether there is time to look at it; the first that has to wait has its turn first."""
        if self.has_more or time.perf_counter() >= self._until_s:
            if not self.has_more:
                self.has_more, self._turn = True, dataflow.number
            return False
        return True

    def _dataflow(
        self, worker: Worker, dataflow: Dataflow, built: tuple[Build, Graph] | None, now_ms: int
    ) -> _Seen | None:
        """None if there was no time to look at a new one."""
        seen = self._dataflows.get(dataflow.number)
        graph = None if built is None else built[1]
        if seen is None or (seen.stamp is not None and seen.stamp[0] is not graph):  # type: ignore[index]
            if not self._has_time(dataflow):
                return seen
            created_ms = now_ms if graph is None else self._ms(graph.history.created_s)
            seen = _Seen(_encoded(_shape(dataflow, built)), created_ms, 0, dataflow.upper)
            self._dataflows[dataflow.number] = seen
        imports = tuple(_imports(worker, dataflow))
        history = None if graph is None else graph.history
        worked = (0, 0) if history is None else (history.pieces, history.rounds)
        state = _state(worker.core, dataflow)
        stamp = (graph, worked, dataflow.upper, dataflow.running, len(dataflow.waiting), imports, state)
        if stamp == seen.stamp or (seen.stamp is not None and not self._has_time(dataflow)):
            return seen
        if dataflow.upper != seen.upper:
            seen.upper, seen.moved_ms = dataflow.upper, now_ms
        seen.stamp = stamp
        is_behind = dataflow.running is not None or _is_behind(dataflow, imports)
        seen.behind_ms = (seen.behind_ms or now_ms) if is_behind else 0
        seen.figures = _encoded(
            DataflowFigures(
                dataflow.number,
                state,
                _time(dataflow.upper),
                -1 if dataflow.running is None else _time(dataflow.running),
                "" if graph is None or graph.working is None else str(graph.working),
                len(dataflow.waiting),
                0 if history is None else history.rounds,
                *((dataflow.rows_done, dataflow.rows_expected) if graph is None else _rows(dataflow, graph)),
                seen.created_ms,
                0 if history is None else self._ms(history.first_began_s),
                0 if history is None else self._ms(history.first_ended_s),
                seen.moved_ms,
                seen.behind_ms,
                imports,
                () if graph is None else tuple(_operators(graph)),
            )
        )
        return seen

    def _ms(self, at_s: float | None) -> int:
        return 0 if at_s is None else int((at_s + self._offset_s) * 1000)

    # -- collections

    def _collections(self, worker: Worker) -> Iterator[CollectionFigures]:
        state, flows = worker.core.state, worker.core.flows
        for key, collection in state.collections.items():
            if collection.is_placeholder or not collection.standing:
                continue
            made_by = None if collection.dataflow is None else state.dataflows[collection.dataflow]
            status = code = message = ""
            if made_by is not None:
                status, (code, message, _) = flows.judge(collection)
            kind = "" if collection.export is None else collection.export.kind
            computed = collection.upper if made_by is None else made_by.upper
            parked = state.peeks.hold(key)
            yield CollectionFigures(
                *key,
                kind,
                collection.dataflow or 0,
                collection.as_of,
                status,
                _time(collection.announced),
                _time(collection.applied),
                tuple(map(_time, collection.applied_by)),
                _time(collection.hold),
                _time(collection.upper),
                _time(computed),
                _time(parked),
                state.peeks.parked_on(key),
                tuple((number, _time(need)) for number, need in collection.needs.items()),
                code,
                message,
            )

    def _index_figures(self, worker: Worker) -> Iterator[IndexFigures]:
        known, self._indexes = self._indexes, {}
        for key, index, original in worker.owned.shown():
            stamp = index, index.generation, index.since, index.upper, original
            held = known.get(key)
            if held is None or (held[0] != stamp and time.perf_counter() < self._until_s + _MOMENT_S):
                held = stamp, tuple(_halves(key, index, original))
            self.has_more |= held[0] != stamp
            self._indexes[key] = held
            yield from held[1]

    def _snapshots(self, worker: Worker) -> Iterator[SnapshotFigures]:
        if worker.published is None:
            return
        ago_s = time.time() - time.monotonic()
        for key, nbytes, used_s in worker.published.snapshots():
            yield SnapshotFigures(*key, nbytes, int((used_s + ago_s) * 1000))

    def _peeks(self, worker: Worker) -> Iterator[PeekFigures]:
        state = worker.core.state
        for pending in state.peeks.oldest(MOST_PEEKS):
            collection = state.collections.get(pending.collection)
            upper = Frontier.minimum() if collection is None else collection.upper
            yield worker.meter.figures(pending, _time(upper), self._offset_s)


def _state(core: RuntimeCore, dataflow: Dataflow) -> str:
    """That of its exports; of several the one furthest from done."""
    live = [core.state.collections[key] for key in dataflow.exports if key in dataflow.live]
    found = [core.flows.judge(collection)[0] for collection in live]
    return max(found, key=_WORST.index, default="errored")


def _encoded(message: msgspec.Struct) -> msgspec.Raw:
    return msgspec.Raw(_encode(message))


def _time(frontier: Frontier) -> Time:
    return None if frontier.is_empty else frontier.time


def _shape(dataflow: Dataflow, built: tuple[Build, Graph] | None) -> DataflowShape:
    kinds = {export.id: export.kind for export in dataflow.header.exports}
    return DataflowShape(
        dataflow.number,
        dataflow.header.name,
        dataflow.header.as_of,
        dataflow.header.until,
        tuple((*key, kinds[key[0]]) for key in dataflow.exports),
        () if built is None else tuple(_operator_shapes(built[1], kinds)),
        () if built is None else tuple(_plan(built[0].plan)),
    )


def _operator_shapes(graph: Graph, exports: Container[GlobalId]) -> Iterator[OperatorShape]:
    for node in graph.statistics():
        address = str(node.node)
        _, _, id = node.name.partition("export ")
        made = id if id in exports else ""
        reads = tuple(map(str, node.reads))
        yield OperatorShape(address, "", node.name, tuple(map(str, node.inputs)), made, reads)
        for place in node.places:
            inputs = (address,) if place.is_entry else tuple(f"{address}.{n}" for n in place.inputs)
            yield OperatorShape(f"{address}.{place.place}", address, place.name, inputs)


def _plan(plan: PhysicalPlan) -> Iterator[PlanLine]:
    numbers = operators_of(plan)
    for line in plan_lines(plan):
        operators: tuple[str, ...] = ()
        if line.node and numbers[line.node[0]] >= 0:
            operators = (".".join(map(str, (numbers[line.node[0]], *line.node[1:]))),)
        yield PlanLine(line.depth, line.text, operators)


def _imports(worker: Worker, dataflow: Dataflow) -> Iterator[ImportFigures]:
    collections, uppers = worker.core.state.collections, worker.core.flows.shard_uppers
    for key in dataflow.imports:
        imported = collections.get(key)
        upper = Frontier.empty() if imported is None else imported.upper
        yield ImportFigures(*key, "index", _time(upper))
    for name in dataflow.shards:
        yield ImportFigures(name, 0, "shard", _time(uppers.get(name, Frontier.minimum())))


def _is_behind(dataflow: Dataflow, imports: tuple[ImportFigures, ...]) -> bool:
    """Whether all inputs are further than it is."""
    if dataflow.upper.is_empty or not imports:
        return False
    return all(each.upper is None or each.upper > dataflow.upper.time for each in imports)


def _rows(dataflow: Dataflow, graph: Graph) -> tuple[int, int]:
    """What the first round has read, of how much; afterwards as it ended."""
    if graph.history.first_ended_s is None:
        progress = graph.progress()
        if progress is not None:
            return progress.rows_done, progress.rows_expected
    return dataflow.rows_done, dataflow.rows_expected


def _operators(graph: Graph) -> Iterator[OperatorFigures]:
    for node in graph.statistics():
        state = node.state
        yield OperatorFigures(
            str(node.node),
            node.rows_in,
            node.rows_out,
            node.errs_in,
            node.errs_out,
            int(node.elapsed_s * 1e9),
            int(node.longest_s * 1e9),
            0 if node.places else state.state_rows,  # told of each place by itself
            0 if node.places else state.state_bytes,
            state.touched_rows,
            state.groups,
            state.largest_group,
        )
        for place in node.places:
            rows = place.rows_in, place.rows_out, place.errs_in, place.errs_out
            inner = place.state
            yield OperatorFigures(
                f"{node.node}.{place.place}",
                *rows,
                0,
                0,
                inner.state_rows,
                inner.state_bytes,
                inner.touched_rows,
                inner.groups,
                inner.largest_group,
            )


def _halves(key: Key, index: IndexWriter, original: Key) -> Iterator[IndexFigures]:
    alias_of = "" if original == key else original[0]
    for half, each in zip(HALVES, index.statistics(), strict=True):
        yield IndexFigures(
            *key,
            half,
            _time(each.since),
            _time(each.upper),
            each.batches,
            each.updates,
            each.nbytes,
            each.superseded,
            alias_of,
        )
