"""Rewriting the stages of fused Mfps: pure, and never changing an answer, errors included.

Columns of an expression can be renumbered; neighbouring stages can be merged where nothing fails that would
not have failed; stages of a join's side can be put behind the join, so that the side can be an arrangement
that is looked up in place; and a column can be traced back through stages to where it came from.

Does not: evaluate, or decide what is worth doing (lower.py does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from clusterd.dataflow.operator import Columns
from clusterd.operators.mfp import Stage, StageSpec
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal, references

__all__ = [
    "behind_join", "columns_after", "infallible", "merged", "narrowed", "placed", "renumbered", "traced",
]  # fmt: skip


def renumbered(expr: Expr, to: Callable[[int], int]) -> Expr:
    """`expr` with every column `i` replaced by `to(i)`."""
    match expr:
        case ColumnRef(index):
            return ColumnRef(to(index))
        case Literal():
            return expr
        case Case(condition, then, otherwise):
            return Case(renumbered(condition, to), renumbered(then, to), renumbered(otherwise, to))
        case Call(function, args):
            return Call(function, tuple(renumbered(argument, to) for argument in args))


def placed(exprs: Sequence[Expr], arity: int) -> tuple[tuple[int, ...], tuple[Expr, ...]]:
    """Where each of `exprs` over `arity` columns stands, once those that are no columns are appended; and
    those.
    """
    maps: list[Expr] = []
    places = []
    for expr in exprs:
        if isinstance(expr, ColumnRef):
            places.append(expr.index)
        else:
            places.append(arity + len(maps))
            maps.append(expr)
    return tuple(places), tuple(maps)


def columns_after(stages: Sequence[StageSpec], columns: Columns) -> Columns:
    """The columns that `stages` make of `columns`. Raises Refusal(`invalid-plan`)."""
    for spec in stages:
        columns = Stage(spec, columns).columns
    return columns


def infallible(stages: Sequence[StageSpec], columns: Columns) -> bool:
    """Whether no row can become an error in `stages` over `columns`."""
    for spec in stages:
        stage = Stage(spec, columns)
        if stage.fallible:
            return False
        columns = stage.columns
    return True


def _projection(spec: StageSpec, arity: int) -> tuple[int, ...]:
    return tuple(range(arity + len(spec.maps))) if spec.projection is None else spec.projection


def merged(stages: Sequence[StageSpec], columns: Columns) -> tuple[StageSpec, ...]:
    """The same as fewer stages, none of them the identity.

    A stage that only projects joins the one before it, if it keeps every column that can fail. Else two
    become one if the first cannot fail, and either drops no row or is followed by predicates that cannot
    fail: or a row that the first drops for a NULL could fail in the second's predicates.
    """
    done: list[StageSpec] = []
    before: list[Columns] = []  # the input columns of each of `done`
    for at, spec in enumerate(stages):
        if spec.is_identity(len(columns)):
            continue
        if done and _joins(Stage(done[-1], before[-1]), spec, len(before[-1]), columns):
            done[-1] = _composed(done[-1], spec, len(before[-1]))
        else:
            done.append(spec)
            before.append(columns)
        if at + 1 < len(stages):
            columns = Stage(spec, columns).columns
    return tuple(_plain(spec, len(columns)) for spec, columns in zip(done, before, strict=True))


def _plain(spec: StageSpec, arity: int) -> StageSpec:
    """The same without a projection that keeps everything as it is."""
    everything = tuple(range(arity + len(spec.maps)))
    return replace(spec, projection=None) if spec.projection == everything else spec


def _joins(first: Stage, second: StageSpec, arity: int, columns: Columns) -> bool:
    """Whether `second`, over `columns`, may become one with `first`, over `arity` columns."""
    if not second.maps and not second.predicates:
        together = _composed(first.spec, second, arity).projection
        return together is not None and set(first.judged) <= set(together)
    if first.fallible:
        return False
    return not first.spec.predicates or not Stage(replace(second, projection=()), columns).fallible


def _composed(first: StageSpec, second: StageSpec, arity: int) -> StageSpec:
    kept = _projection(first, arity)
    wide = arity + len(first.maps)

    def to(index: int) -> int:
        return kept[index] if index < len(kept) else wide + index - len(kept)

    return StageSpec(
        first.maps + tuple(renumbered(expr, to) for expr in second.maps),
        first.predicates + tuple(renumbered(expr, to) for expr in second.predicates),
        tuple(to(index) for index in _projection(second, len(kept))),
    )


def narrowed(stages: Sequence[StageSpec], arity: int) -> tuple[tuple[int, ...] | None, tuple[StageSpec, ...]]:
    """Which of `arity` columns `stages` read, None for all, and the stages over just these.

    A first stage that only projects needs no stage: the columns are the projection.
    """
    if not stages or stages[0].projection is None:
        return None, tuple(stages)
    first, kept = stages[0], stages[0].projection
    if not first.maps and not first.predicates:
        return kept, tuple(stages[1:])
    used = frozenset(kept).union(*map(references, (*first.maps, *first.predicates)))
    output = tuple(column for column in sorted(used) if column < arity)
    places = {column: place for place, column in enumerate(output)}

    def to(index: int) -> int:
        return places[index] if index < arity else len(output) + index - arity

    stage = StageSpec(
        tuple(renumbered(expr, to) for expr in first.maps),
        tuple(renumbered(expr, to) for expr in first.predicates),
        tuple(map(to, kept)),
    )
    return output, (stage, *stages[1:])


def traced(stages: Sequence[StageSpec], arity: int, column: int) -> int | None:
    """The input column, of `arity`, that comes out unchanged as `column`; None if it is computed."""
    arities = [arity]
    for spec in stages:
        arities.append(len(_projection(spec, arities[-1])))
    for spec, before in zip(reversed(stages), reversed(arities[:-1]), strict=True):
        column = _projection(spec, before)[column]
        while column >= before:
            expr = spec.maps[column - before]
            if not isinstance(expr, ColumnRef):
                return None
            column = expr.index
    return column


def behind_join(stages: Sequence[StageSpec], arity: int, *, left: int, right: int) -> list[StageSpec]:
    """Stages of one side, of `arity` columns, as stages over the rows of a join.

    left, right: the columns that stand before and after the side's own, which pass through unchanged.
    """
    out = []
    for spec in stages:
        beyond = left + arity + right

        def to(index: int, arity: int = arity, beyond: int = beyond) -> int:
            return left + index if index < arity else beyond + index - arity

        kept = tuple(to(index) for index in _projection(spec, arity))
        out.append(
            StageSpec(
                tuple(renumbered(expr, to) for expr in spec.maps),
                tuple(renumbered(expr, to) for expr in spec.predicates),
                (*range(left), *kept, *range(left + arity, beyond)),
            )
        )
        arity = len(kept)
    return out
