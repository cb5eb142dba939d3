"""Mfp: append computed columns, keep the rows where all predicates are true, project. Stateless.

Within one stage errors are looked at as late as possible: a row that the predicates drop has none, and of a
row that stays only the projected columns count. So a predicate guards the expressions beside it, and an
unused expression does no harm. Between stages nothing is lifted: what an earlier stage says is an error
stays one, whatever a later one filters. Therefore fusing neighbours into one operator changes no answer.

A stage evaluates what its predicates need on all rows, and the rest on the rows that survive.

Does not: keep state, reorder stages, look at times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round
from clusterd.render.expr import CompiledExpr, compile_expr, conjunction
from clusterd.render.functions import Codes, Evaluated, error_texts
from controller_proto.errors import Refusal
from controller_proto.expr import ColumnRef, Expr
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = ["MfpOperator", "Stage", "StageSpec", "apply_stages", "compile_stages"]

_STATELESS: Final = OperatorStatistics()


@dataclass(frozen=True, slots=True)
class StageSpec:
    """What one Mfp of a plan does. `projection` None keeps all columns, the computed ones last."""

    maps: tuple[Expr, ...] = ()
    predicates: tuple[Expr, ...] = ()
    projection: tuple[int, ...] | None = None

    def is_identity(self, arity: int) -> bool:
        """Whether rows of `arity` columns come out as they went in."""
        kept = self.projection is None or self.projection == tuple(range(arity))
        return not self.maps and not self.predicates and kept


class Stage:
    """A StageSpec compiled for its input's columns.

    columns: of its output. fallible: whether a row can become an error here. judged: the computed columns,
    counted before the projection, whose errors are a row's because they are projected.

    Raises Refusal(`invalid-plan`) from the compiler, or for a column out of range.
    """

    def __init__(self, spec: StageSpec, columns: Columns) -> None:
        self.spec = spec
        self._arity = len(columns)
        wide = list(columns)
        self._maps: list[CompiledExpr] = []
        failing: set[int] = set()  # columns that can hold an error, their own or one that passes through
        for expr in spec.maps:
            compiled = compile_expr(expr, wide)
            self._maps.append(compiled)
            if compiled.fallible or compiled.references & failing:
                failing.add(len(wide))
            name = wide[expr.index].name if isinstance(expr, ColumnRef) else f"column{len(wide)}"
            wide.append(ColumnSpec(name, compiled.type, compiled.nullable, compiled.scale))
        self._predicate = conjunction([compile_expr(p, wide) for p in spec.predicates])
        kept = tuple(range(len(wide))) if spec.projection is None else spec.projection
        for index in kept:
            if not 0 <= index < len(wide):
                raise Refusal("invalid-plan", f"Mfp projects column #{index} of {len(wide)} columns")
        self._kept = kept
        self._early = self._closure(() if self._predicate is None else self._predicate.references)
        self._late = self._closure(kept)
        self.judged: list[int] = sorted(failing.intersection(kept))
        judging = self._predicate is not None and self._predicate.fallible
        self.fallible = judging or bool(failing.intersection(self._early)) or bool(self.judged)
        self.columns: Columns = tuple(wide[i] for i in kept)

    def _closure(self, references: Iterable[int]) -> list[int]:
        """The columns that computing `references` reads, ascending, themselves included."""
        found: set[int] = set()
        todo = list(references)
        while todo:
            index = todo.pop()
            if index not in found:
                found.add(index)
                if index >= self._arity:
                    todo += self._maps[index - self._arity].references
        return sorted(found)

    def _compute(self, cells: dict[int, Evaluated], wanted: Sequence[int], n: int) -> None:
        """Add the computed columns among `wanted` to `cells`, which has the others."""
        inputs = _Cells(cells)
        for index in wanted:
            if index not in cells:
                cells[index] = self._maps[index - self._arity](inputs, n)

    def apply(self, updates: Updates) -> tuple[Updates, Updates | None]:
        """The rows that stay, and the errors if there are any."""
        n = len(updates)
        cells = {i: Evaluated(column) for i, column in enumerate(updates.columns)}
        failed: list[Updates] = []
        if self._predicate is not None:
            self._compute(cells, self._early, n)
            verdict = self._predicate(_Cells(cells), n)
            if verdict.errors is not None:
                failed.append(_errors(updates, verdict.errors))
            # False, NULL and errors all hold False.
            keep = verdict.column.values
            if not keep.all():
                rows = np.flatnonzero(keep)
                updates = Updates((), updates.times.take(rows), updates.diffs.take(rows))
                cells = {i: _take(cells[i], rows) for i in self._late if i in cells}
                n = len(rows)
        self._compute(cells, self._late, n)
        codes = self._projected_errors(cells)
        updates = Updates(tuple(cells[i].column for i in self._kept), updates.times, updates.diffs)
        if codes is not None:
            failed.append(_errors(updates, codes))
            updates = updates.filter(codes == 0)
        return updates, Updates.concat(failed) if failed else None

    def _projected_errors(self, cells: dict[int, Evaluated]) -> Codes | None:
        codes: Codes | None = None
        for index in self.judged:
            more = cells[index].errors
            if more is not None:
                codes = more if codes is None else np.where(codes != 0, codes, more)
        return codes


class _Cells(Sequence[Evaluated]):
    """The columns known so far, by position: expressions ask only for what is there."""

    __slots__ = ("_cells",)

    def __init__(self, cells: dict[int, Evaluated]) -> None:
        self._cells = cells

    def __getitem__(self, index: int) -> Evaluated:  # type: ignore[override]
        return self._cells[index]

    def __len__(self) -> int:
        return len(self._cells)


def _take(evaluated: Evaluated, rows: NDArray[np.int64]) -> Evaluated:
    errors = None if evaluated.errors is None else evaluated.errors.take(rows)
    return Evaluated(evaluated.column.take(rows), errors)


def _errors(updates: Updates, codes: Codes) -> Updates:
    rows = np.flatnonzero(codes)
    texts: tuple[Column, ...] = (error_texts(codes.take(rows)),)
    return Updates(texts, updates.times.take(rows), updates.diffs.take(rows))


def compile_stages(specs: Sequence[StageSpec], columns: Columns) -> tuple[Stage, ...]:
    """Each over what the one before it gives. Raises Refusal(`invalid-plan`)."""
    stages: list[Stage] = []
    for spec in specs:
        stages.append(Stage(spec, columns))
        columns = stages[-1].columns
    return tuple(stages)


def apply_stages(stages: Sequence[Stage], delta: Delta) -> Delta:
    """`delta` through all stages, in order."""
    oks, errs = delta.oks, [delta.errs]
    for stage in stages:
        oks, failed = stage.apply(oks)
        if failed is not None:
            errs.append(failed)
    return Delta(oks, Updates.concat(errs))


class MfpOperator:
    """One or more fused stages over one input."""

    def __init__(self, stages: Sequence[StageSpec], columns: Columns) -> None:
        """columns: of the input. Raises Refusal(`invalid-plan`)."""
        self._stages = compile_stages(stages, columns)
        self.schema: Columns = self._stages[-1].columns if self._stages else columns

    def start(self, round: Round) -> None:
        """Nothing depends on the round."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        yield apply_stages(self._stages, delta)

    def finish(self) -> Iterator[Delta]:
        return iter(())

    def statistics(self) -> OperatorStatistics:
        return _STATELESS

    def close(self) -> None:
        """Nothing is held."""
