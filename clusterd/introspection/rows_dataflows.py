"""Rows about dataflows: what they are made of, how far they are, what an operator costs and keeps.

Does not: say what the columns mean (relations.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clusterd.introspection.sample import DataflowShape, Outside
from clusterd.introspection.samples import Samples
from controller_proto.schema import Row

__all__ = [
    "channels", "dataflows", "exports", "group_sizes", "hydration", "hydration_operators", "operator_elapsed",
    "operators", "plan_mapping",
]  # fmt: skip

_SKEWED: Final = 10.0  # times the average group
_LARGE: Final = 1_000  # rows; a smaller one is no trouble


def dataflows(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every dataflow, with where it is."""
    for worker, shape, now in samples.dataflows():
        elapsed_ns = sum(each.elapsed_ns for each in now.operators)
        yield (
            worker, now.dataflow, shape.name, now.state, shape.as_of, shape.until, now.upper,
            now.running != -1, now.working or None, now.rounds, elapsed_ns, now.created_ms,
        )  # fmt: skip


def operators(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every operator, those within recursions too."""
    for worker, shape, _ in samples.dataflows():
        for each in shape.operators:
            address = f"{shape.dataflow}/{each.operator}"
            yield worker, shape.dataflow, each.operator, each.parent or None, address, each.name


def channels(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every edge, by its two ends."""
    for worker, shape, _ in samples.dataflows():
        for each in shape.operators:
            for port, source in enumerate(each.inputs):
                yield worker, shape.dataflow, source, each.operator, port
            for source in each.reads:
                yield worker, shape.dataflow, source, each.operator, None


def exports(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every collection that a dataflow makes."""
    for worker, shape, _ in samples.dataflows():
        for id, incarnation, kind in shape.exports:
            yield worker, shape.dataflow, id, incarnation, kind


def hydration(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every collection that a dataflow makes, on its way to its `as_of`."""
    for sample in samples.workers:
        figures = samples.figures(sample.process)
        for each in sample.collections:
            now = figures.get(each.dataflow)
            if now is None:
                continue
            # Of a hydration that is over nothing is left to do, whatever was expected of it.
            progress = 1.0 if now.hydrated_ms else _part(now.rows_done, now.rows_expected)
            yield (
                sample.process, each.id, each.incarnation, now.dataflow, each.status, progress, now.rows_done,
                now.rows_expected or None, now.created_ms, now.began_ms or None, now.hydrated_ms or None,
                each.code or None, each.message or None,
            )  # fmt: skip


def _part(done: int, expected: int) -> float | None:
    """Of what its sources have; what follows from that may still be at work when all of it was read."""
    return min(0.99, round(done / expected, 4)) if expected else None


def hydration_operators(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every operator, in the first round of its dataflow."""
    for worker, shape, now in samples.dataflows():
        at = _position(shape, now.working)
        for position, (made, each) in enumerate(zip(shape.operators, now.operators, strict=True)):
            if now.hydrated_ms or (at is not None and position < at):
                state = "hydrated"
            elif at is not None and (each.elapsed_ns or position == at):
                state = "hydrating"
            else:
                state = "waiting"
            yield worker, shape.dataflow, each.operator, made.name, state, each.rows_in, each.rows_out


def _position(shape: DataflowShape, working: str) -> int | None:
    for position, each in enumerate(shape.operators):
        if each.operator == working:
            return position
    return None


def operator_elapsed(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every operator, with what it has done."""
    for worker, shape, now in samples.dataflows():
        for made, each in zip(shape.operators, now.operators, strict=True):
            yield (
                worker, shape.dataflow, each.operator, made.name, each.elapsed_ns, each.longest_ns,
                each.rows_in, each.rows_out, each.errs_in, each.errs_out, each.touched_rows,
            )  # fmt: skip


def plan_mapping(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every line of every plan, once for each operator that carries it out."""
    for worker, shape, _ in samples.dataflows():
        for line, each in enumerate(shape.plan):
            for operator in each.operators or (None,):
                yield worker, shape.dataflow, line, each.depth, each.text, operator


def group_sizes(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every operator that says how large its groups are."""
    for worker, shape, now in samples.dataflows():
        for made, each in zip(shape.operators, now.operators, strict=True):
            if each.largest_group < 0 or not each.groups:
                continue
            skew = round(each.largest_group * each.groups / max(1, each.state_rows), 2)
            advice = None
            if skew >= _SKEWED and each.largest_group >= _LARGE:
                advice = "a larger group key, or a filter or limit before it, makes its largest group smaller"
            yield (
                worker, shape.dataflow, each.operator, made.name, each.groups, each.state_rows,
                each.largest_group, skew, advice,
            )  # fmt: skip
