"""Temporal filters: what of a plan around one becomes part of its operator, and what goes below it.

A temporal filter stays where the plan has it: it is neither moved into a join nor looked through to an index,
for rows must come and go at their times before anything counts on them. Stages around it are merged with it
by the rules of any stage, since at each time it is a predicate like others. Where it stands on a join or a
table function, predicates that read no time go to that, and columns that nobody reads are not made.

Does not: make nodes (lower.py does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterd.dataflow.operator import Columns
from clusterd.operators.mfp import Stage, StageSpec
from clusterd.render.expr import compile_expr
from clusterd.render.relations import PendingFilter, Relation
from clusterd.render.stages import merged, narrowed
from controller_proto.expr import Expr, references
from controller_proto.temporal import asks_time

__all__ = ["plan_filter"]


def plan_filter(
    filter: PendingFilter, stages: Sequence[StageSpec]
) -> tuple[Relation, StageSpec, tuple[StageSpec, ...]]:
    """What the operator reads, its stage, and what is left of `stages`, which stand on the filter."""
    source = filter.source
    if source.pending is None:
        below = replace(source, stages=(), columns=source.base, streamed=None)
        chain = merged((*source.stages, filter.stage, *stages), source.base)
    else:
        moved, rest = _split(filter.stage, source.columns)
        output, chain = narrowed(merged((rest, *stages), source.columns), len(source.columns))
        below = source.then(StageSpec((), moved, output))
    at = next(place for place, stage in enumerate(chain) if stage.is_temporal)
    return below.then(*chain[:at]), chain[at], chain[at + 1 :]


def _split(stage: StageSpec, columns: Columns) -> tuple[tuple[Expr, ...], StageSpec]:
    """The predicates that may be tested before all others of the stage, and the stage without them.

    They read columns of the input alone and cannot fail, and are not NULL if another can: NULL and an error
    are an error.
    """
    fails = Stage(replace(stage, projection=()), columns).fallible
    moved = [
        predicate
        for predicate in stage.predicates
        if not asks_time(predicate)
        and max(references(predicate), default=0) < len(columns)
        and not Stage(StageSpec((), (predicate,), ()), columns).fallible
        and not (fails and compile_expr(predicate, columns).nullable)
    ]
    return tuple(moved), replace(stage, predicates=tuple(p for p in stage.predicates if p not in moved))
