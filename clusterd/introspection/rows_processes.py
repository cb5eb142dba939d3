"""Rows about processes: peeks, durations, what the system says of each, and what it was told to be.

Does not: say what the columns mean (relations.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterd.introspection.durations import BOUNDS_NS
from clusterd.introspection.sample import DurationFigures, Outside
from clusterd.introspection.samples import Samples
from controller_proto.schema import Row

__all__ = ["config", "peek_durations", "peeks_active", "processes", "step_durations"]


def peeks_active(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every peek that is owed an answer, as far as samples tell them."""
    for sample in samples.workers:
        for each in sample.peeks:
            waits_for = None
            if each.state == "parked":
                waits_for = f"{each.id} sealed beyond {each.time}"
            yield (
                sample.process, sample.role, each.session, each.uuid, each.id, each.lane, each.path,
                each.state, None if each.latest else each.time, waits_for, each.upper, each.rows_visited,
                each.began_ms,
            )  # fmt: skip


def peek_durations(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every count that is not 0."""
    for sample in samples.workers:
        for worker, phase, id, below, count in _counts(sample.process, sample.peek_durations):
            yield worker, id, phase, below, count


def step_durations(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every count that is not 0."""
    for sample in samples.workers:
        for worker, step, _, below, count in _counts(sample.process, sample.step_durations):
            yield worker, step, below, count


def _counts(worker: str, histograms: Iterable[DurationFigures]) -> Iterator[Row]:
    for each in histograms:
        for below, count in zip((*BOUNDS_NS, None), each.counts, strict=True):
            if count:
                yield worker, each.of, each.id, below, count


def processes(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every process of the daemon; those that say nothing of themselves have no time of a sample."""
    for each in outside.processes:
        sample = samples.by_process.get(each.process)
        yield (
            each.process, each.role, each.pid, each.cpu_seconds, each.rss_bytes, each.shared_bytes,
            each.minor_faults, each.major_faults, each.threads,
            None if sample is None else sample.sampled_at_ms,
        )  # fmt: skip


def config(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every setting, and every knob of the start."""
    for supervisor in samples.supervisors:
        for name, value in supervisor.config:
            yield name, value, "start"
    for mux in samples.muxes:
        for name, value in mux.settings:
            yield name, value, "setting"
