"""Metrics as rows: one a series, from which the Prometheus text is made.

Series of Solo and of Maintenance have no label for the role, those of Interactive `role="interactive"`. A
label has few values, or is that of an object that is there: its series go with it.

Does not: say it over HTTP, know the text format but for how labels are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from clusterd.introspection import rows_frontiers
from clusterd.introspection.durations import BOUNDS_NS
from clusterd.introspection.sample import DurationFigures, Outside, WorkerSample
from clusterd.introspection.samples import Samples
from controller_proto.schema import Row

__all__ = ["METRICS", "Metric", "metrics"]

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of series. labels: those it may have, but for `role`."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


_ALL: Final = (
    Metric("clusterd_peeks_total", "counter", ("result", "path"), "Peeks that were answered."),
    Metric(
        "clusterd_peek_seconds",
        "histogram",
        ("phase",),
        "Where peeks that were answered spent their time.",
    ),
    Metric("clusterd_peeks_active", "gauge", (), "Peeks that are owed an answer."),
    Metric(
        "clusterd_oldest_parked_peek_seconds",
        "gauge",
        (),
        "Age of the oldest peek that waits for its time.",
    ),
    Metric("clusterd_step_seconds", "histogram", ("step",), "How long a worker was at one piece of work."),
    Metric("clusterd_compaction_gap", "gauge", (), "Most times between what may be compacted and what is."),
    Metric("clusterd_dataflows", "gauge", (), "Dataflows that run."),
    Metric("clusterd_dataflows_hydrating", "gauge", (), "Dataflows that are not hydrated yet."),
    Metric(
        "clusterd_frontier_lag",
        "gauge",
        ("id",),
        "Times between what a collection's inputs hold and it.",
    ),
    Metric(
        "clusterd_behind_seconds",
        "gauge",
        ("id",),
        "For how long a collection has been behind its inputs.",
    ),
    Metric(
        "clusterd_arrangement_bytes",
        "gauge",
        (),
        "Memory of the indexes that are shown in shared memory.",
    ),
    Metric("clusterd_arrangement_records", "gauge", (), "Updates in those indexes."),
    Metric("clusterd_operator_state_bytes", "gauge", (), "Private memory that operators keep."),
    Metric("clusterd_pinned_bytes", "gauge", (), "Shared memory that snapshots here have mapped."),
    Metric(
        "clusterd_reader_pinned_bytes",
        "gauge",
        (),
        "Shared memory that other local processes have mapped.",
    ),
    Metric("clusterd_readers", "gauge", (), "Local processes that have attached."),
    Metric("clusterd_wakes_sent_total", "counter", (), "Notices to interactive workers that a page moved."),
    Metric("clusterd_wakes_coalesced_total", "counter", (), "Notices that another one made unnecessary."),
    Metric("clusterd_sessions", "gauge", (), "Connections that have said hello."),
    Metric("clusterd_process_cpu_seconds_total", "counter", ("process",), "Processor time of a process."),
    Metric(
        "clusterd_process_resident_bytes",
        "gauge",
        ("process",),
        "Resident memory, shared memory included.",
    ),
    Metric("clusterd_process_shared_bytes", "gauge", ("process",), "Of it what is shared with others."),
    Metric(
        "clusterd_figures_age_seconds",
        "gauge",
        ("process",),
        "How old what a process says of itself is.",
    ),
)
METRICS: Final = {metric.name: metric for metric in _ALL}
_SHOWN: Final = "u"  # of ids: those that a person made, not each query's


def metrics(samples: Samples, outside: Outside) -> Iterator[Row]:
    """name, family, kind, labels, value."""
    for sample in samples.workers:
        yield from _of_worker(sample, samples, outside)
    for mux in samples.muxes:
        yield _row("clusterd_sessions", float(mux.sessions))
        for name, value in mux.counters:
            yield _row(name, float(value))
    for worker, id, _, _, _, lag, _, behind_ms in rows_frontiers.staleness(samples, outside):
        if str(id).startswith(_SHOWN) and not str(worker).startswith("interactive"):
            yield _row("clusterd_frontier_lag", float(lag), id=str(id))  # type: ignore[arg-type]
            yield _row("clusterd_behind_seconds", behind_ms / 1e3, id=str(id))  # type: ignore[operator]
    yield _row("clusterd_readers", float(len(outside.readers)))
    pinned = sum(reader.pinned_bytes for reader in outside.readers)
    yield _row("clusterd_reader_pinned_bytes", float(pinned))
    for each in outside.processes:
        yield _row("clusterd_process_cpu_seconds_total", each.cpu_seconds, process=each.process)
        yield _row("clusterd_process_resident_bytes", float(each.rss_bytes), process=each.process)
        yield _row("clusterd_process_shared_bytes", float(each.shared_bytes), process=each.process)


def _of_worker(sample: WorkerSample, samples: Samples, outside: Outside) -> Iterator[Row]:
    role = {} if sample.role in ("solo", "maintenance") else {"role": sample.role}
    if role and not sample.process.endswith("/0"):
        return  # summed up with the first
    group = [each for each in samples.workers if each.role == sample.role]
    totals: dict[tuple[str, str], int] = {}
    for each in group:
        for result, path, count in each.peeks_total:
            totals[result, path] = totals.get((result, path), 0) + count
    for (result, path), count in sorted(totals.items()):
        yield _row("clusterd_peeks_total", float(count), result=result, path=path, **role)
    phases = [each for worker in group for each in worker.peek_durations]
    yield from _histogram("clusterd_peek_seconds", "phase", phases, role)
    steps = [each for worker in group for each in worker.step_durations]
    yield from _histogram("clusterd_step_seconds", "step", steps, role)
    yield _row("clusterd_peeks_active", float(sum(each.peeks_open for each in group)), **role)
    parked = [peek.began_ms for each in group for peek in each.peeks if peek.state == "parked"]
    oldest_s = max(0.0, (outside.now_ms - min(parked)) / 1e3) if parked else 0.0
    yield _row("clusterd_oldest_parked_peek_seconds", oldest_s, **role)
    figures = [now for each in group for now in samples.figures(each.process).values()]
    yield _row("clusterd_dataflows", float(len(figures)), **role)
    yield _row("clusterd_dataflows_hydrating", float(sum(not now.hydrated_ms for now in figures)), **role)
    halves = [half for each in group for half in each.indexes if not half.alias_of]
    yield _row("clusterd_arrangement_bytes", float(sum(half.nbytes for half in halves)), **role)
    yield _row("clusterd_arrangement_records", float(sum(half.updates for half in halves)), **role)
    kept = sum(operator.state_bytes for now in figures for operator in now.operators)
    yield _row("clusterd_operator_state_bytes", float(kept), **role)
    gaps = [_gap(c.announced, c.hold) for each in group for c in each.collections]
    yield _row("clusterd_compaction_gap", float(max(gaps, default=0)), **role)
    pinned = sum(snapshot.nbytes for each in group for snapshot in each.snapshots)
    yield _row("clusterd_pinned_bytes", float(pinned), **role)


def _gap(announced: int | None, hold: int | None) -> int:
    return max(0, announced - hold) if announced is not None and hold is not None else 0


def _histogram(
    family: str, label: str, histograms: Iterable[DurationFigures], role: dict[str, str]
) -> Iterator[Row]:
    counts: dict[str, list[int]] = {}
    totals: dict[str, int] = {}
    for each in histograms:
        held = counts.setdefault(each.of, [0] * len(each.counts))
        counts[each.of] = [a + b for a, b in zip(held, each.counts, strict=True)]
        totals[each.of] = totals.get(each.of, 0) + each.total_ns
    for of, held in sorted(counts.items()):
        so_far = 0
        for below, count in zip((*BOUNDS_NS, None), held, strict=True):
            so_far += count
            le = "+Inf" if below is None else f"{below / 1e9:.9g}"
            yield _row(f"{family}_bucket", float(so_far), family, **{label: of, "le": le}, **role)
        yield _row(f"{family}_sum", totals[of] / 1e9, family, **{label: of}, **role)
        yield _row(f"{family}_count", float(so_far), family, **{label: of}, **role)


def _row(name: str, value: float, family: str = "", /, **labels: str) -> Row:
    family = family or name
    text = ",".join(f'{label}="{of}"' for label, of in labels.items())
    return name, family, METRICS[family].kind, text, value
