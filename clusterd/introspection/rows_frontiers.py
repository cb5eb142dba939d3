"""Rows about frontiers: how far collections are, what holds them back, what can still be read, and who reads.

Does not: say what the columns mean (relations.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterd.introspection.sample import CollectionFigures, DataflowFigures, DataflowShape, Outside, Time
from clusterd.introspection.samples import Samples
from controller_proto.schema import Row

__all__ = ["errors", "frontiers", "import_frontiers", "publications", "staleness"]


def least(frontiers: Iterable[Time]) -> Time:
    """The meet: the least of them, None (the empty frontier) for none."""
    return min((each for each in frontiers if each is not None), default=None)


def frontiers(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every collection that is made here."""
    for sample in samples.workers:
        for each in sample.collections:
            if each.dataflow:
                until = each.hold, each.upper, each.computed
                yield sample.process, each.id, each.incarnation, each.kind, *until


def import_frontiers(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every input of every dataflow."""
    for worker, shape, now in samples.dataflows():
        for each in now.imports:
            behind = _holds_back(shape, now, each.upper)
            yield worker, shape.dataflow, each.id, each.incarnation, each.kind, each.upper, now.upper, behind


def _holds_back(shape: DataflowShape, now: DataflowFigures, upper: Time) -> bool:
    """Whether the next round cannot begin before this import is further."""
    if now.running != -1 or now.upper is None or upper is None:
        return False
    return upper <= (now.upper or shape.as_of)


def staleness(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every collection, against its inputs."""
    for sample in samples.workers:
        figures = samples.figures(sample.process)
        for each in sample.collections:
            now = figures.get(each.dataflow)
            if now is None:
                continue
            inputs = least(item.upper for item in now.imports)
            is_behind = now.running != -1 or _lag(inputs, now.upper) > 0
            behind_ms = max(0, outside.now_ms - now.behind_ms) if is_behind and now.behind_ms else 0
            yield (
                sample.process, each.id, each.incarnation, now.upper, inputs, _lag(inputs, now.upper),
                now.moved_ms or None, behind_ms,
            )  # fmt: skip


def _lag(inputs: Time, upper: Time) -> int:
    return max(0, inputs - upper) if inputs is not None and upper is not None else 0


def publications(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every index, by the worker that writes it."""
    readers: dict[tuple[str, int], list[CollectionFigures]] = {}
    for sample in samples.workers:
        for each in sample.collections:
            if not each.dataflow:
                readers.setdefault((each.id, each.incarnation), []).append(each)
    for sample in samples.workers:
        collections = {(each.id, each.incarnation): each for each in sample.collections}
        halves: dict[tuple[str, int], list[int]] = {}
        aliases: dict[tuple[str, int], str] = {}
        for half in sample.indexes:
            key = half.id, half.incarnation
            held = halves.setdefault(key, [0, 0, 0])
            held[0] += half.batches
            held[1] += half.nbytes
            held[2] += half.superseded
            aliases[key] = half.alias_of
        for key, (batches, nbytes, superseded) in halves.items():
            at = collections.get(key)
            if at is None or not at.dataflow:  # the observer's own are not of interest
                continue
            elsewhere = readers.get(key, [])
            state = "closed" if at.hold is None else "fresh" if at.upper == 0 else "live"
            yield (
                sample.process, *key, state, at.hold, at.upper, at.announced, at.applied,
                least(at.applied_by), _held_by(at), batches, nbytes, superseded,
                at.parked_peeks + sum(each.parked_peeks for each in elsewhere), aliases[key] or None,
            )  # fmt: skip


def _held_by(at: CollectionFigures) -> str | None:
    """Who keeps the hold where it is, though the controller allows more."""
    if at.hold == at.announced:
        return None
    if at.parked == at.hold:
        return "a peek"
    for number, time in at.needs:
        if time == at.hold:
            return f"dataflow {number}"
    for number, time in enumerate(at.applied_by):
        if time == at.hold:
            return f"interactive/{number}"
    return None


def errors(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every index that has errors in data."""
    for each in outside.errors:
        yield each.worker, each.id, each.incarnation, each.count, each.sample, each.first, each.last
