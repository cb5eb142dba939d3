"""Mfp: append computed columns, keep the rows where all predicates are true, project. Stateless.

Within one stage errors are looked at as late as possible: a row that the predicates drop has none, and of a
row that stays only the projected columns count. So a predicate guards the expressions beside it, and an
unused expression does no harm. Between stages nothing is lifted: what an earlier stage says is an error
stays one, whatever a later one filters. Therefore fusing neighbours into one operator changes no answer.

A stage evaluates what its predicates need on all rows, and the rest on the rows that survive.

A predicate that compares `now_ts()` says from when and until when a row passes (time_tests.py), so such a
stage gives rows with their times: outside them the row is dropped as by any predicate that is false, inside
them an error is one, and a bound that is NULL or fails is as a comparison with it.

Does not: keep state, reorder stages, make rows come and go at their times (temporal.py does).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round
from clusterd.operators.time_tests import FOREVER, End, Times, ends_of, narrow, passed
from clusterd.render.expr import CompiledExpr, compile_expr, conjunction
from clusterd.render.functions import Codes, Evaluated, error_texts
from controller_proto.errors import Refusal
from controller_proto.expr import Call, ColumnRef, Expr
from controller_proto.temporal import TimeTest, asks_time, split_predicate
from shm_arrangements.columns import Column
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = ["MfpOperator", "Spans", "Stage", "StageSpec", "apply_stages", "compile_stages"]

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

    @property
    def is_temporal(self) -> bool:
        """Whether a predicate asks for the time."""
        return any(map(asks_time, self.predicates))


@dataclass(frozen=True, slots=True)
class Spans:
    """Updates that count from `first` to `last` (n,) alone, both included, and none of them never.

    first: not before the update's own time. last: FOREVER for no end.
    """

    updates: Updates
    first: Times
    last: Times

    def at(self, time: int) -> Updates:
        """Those that count at `time`."""
        return self.updates.filter(passed(self.first, self.last, time))


class Stage:
    """A StageSpec compiled for its input's columns.

    columns: of its output. fallible: whether a row can become an error here. judged: the computed columns,
    counted before the projection, whose errors are a row's because they are projected. is_temporal: whether
    it is `over_time` or `at` a time, and not `apply` that says what becomes of a row.

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
        width = len(wide)
        self._ends: list[tuple[int, End]] = []  # by the column, behind all others, that their bound is
        self._predicate = self._conjunction(wide, failing)
        self.is_temporal = bool(self._ends)
        kept = tuple(range(width)) if spec.projection is None else spec.projection
        for index in kept:
            if not 0 <= index < width:
                raise Refusal("invalid-plan", f"Mfp projects column #{index} of {width} columns")
        self._kept = kept
        used = () if self._predicate is None else self._predicate.references
        self._early = self._closure((*used, *(column for column, _ in self._ends)))
        self._late = self._closure(kept)
        self.judged: list[int] = sorted(failing.intersection(kept))
        judging = self._predicate is not None and self._predicate.fallible
        self.fallible = judging or bool(failing.intersection(self._early)) or bool(self.judged)
        self.columns: Columns = tuple(wide[i] for i in kept)

    def _conjunction(self, wide: list[ColumnSpec], failing: set[int]) -> CompiledExpr | None:
        """All predicates but what the time says, for a time at which every temporal one holds or cannot be
        told; adds the bounds of those to the columns.
        """
        parts: list[CompiledExpr] = []
        for predicate in self.spec.predicates:
            for part in split_predicate(predicate):
                if not isinstance(part, TimeTest):
                    parts.append(compile_expr(part, wide))
                    continue
                of = compile_expr(part.bound, wide).type
                for end in ends_of(part, of):
                    column = len(wide)
                    bound = compile_expr(end.bound, wide)
                    self._maps.append(bound)
                    self._ends.append((column, end))
                    wide.append(ColumnSpec("bound", bound.type, bound.nullable, bound.scale))
                    if bound.fallible or bound.references & failing:
                        failing.add(column)
                    if bound.nullable or column in failing:
                        # NULL or the error of the bound, else true.
                        parts.append(compile_expr(Call("=", (ColumnRef(column), ColumnRef(column))), wide))
        return conjunction(parts)

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
        """The rows that stay, and the errors if there are any. Of a stage that is not temporal."""
        if self.is_temporal:
            raise InvariantViolation("a temporal filter is asked what holds at no time", spec=self.spec)
        return self._judge(updates, self._cells(updates))

    def over_time(self, updates: Updates) -> tuple[Spans, Spans | None]:
        """The rows that stay, and the errors if there are any, each while it does."""
        cells, n = self._cells(updates), len(updates)
        first, last = updates.times, np.full(n, FOREVER)
        alive = np.ones(n, np.bool_)
        for column, end in self._ends:
            first, last, reached = narrow(first, last, cells[column].column, end)
            alive &= reached
        alive &= first <= last
        rows = np.arange(n, dtype=np.uint64)  # in place of times: which row of `updates` it is
        numbered = Updates((), rows, updates.diffs)
        if not alive.all():
            kept = np.flatnonzero(alive)
            numbered = numbered.take(kept)
            cells = {i: _take(cell, kept) for i, cell in cells.items()}

        def spans(found: Updates) -> Spans:
            at = found.times.view(np.int64)
            again = Updates(found.columns, updates.times.take(at), found.diffs)
            return Spans(again, first.take(at), last.take(at))

        oks, errs = self._judge(numbered, cells)
        return spans(oks), None if errs is None else spans(errs)

    def at(self, time: int, updates: Updates) -> tuple[Updates, Updates | None]:
        """As `apply`, of any stage, at `time`, which is not before any of `updates`."""
        if not self.is_temporal:
            return self.apply(updates)
        oks, errs = self.over_time(updates)
        return oks.at(time), None if errs is None else errs.at(time)

    def _cells(self, updates: Updates) -> dict[int, Evaluated]:
        """The columns, and what the predicates need."""
        cells = {i: Evaluated(column) for i, column in enumerate(updates.columns)}
        self._compute(cells, self._early, len(updates))
        return cells

    def _judge(self, updates: Updates, cells: dict[int, Evaluated]) -> tuple[Updates, Updates | None]:
        """What becomes of rows whose early columns are known; of `updates` times and diffs are looked at."""
        n = len(updates)
        failed: list[Updates] = []
        if self._predicate is not None:
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
