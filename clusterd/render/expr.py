"""Scalar expressions as functions of whole columns.

An expression is compiled once, against the columns it sees, into a tree of closures; evaluating it on a block
costs a few numpy or kernel calls a node and no Python a row. Errors are data (functions/evaluated.py says how
they combine), so a row that fails leaves its neighbours alone, and what AND, OR, COALESCE or CASE guards has
no effect. An arm of CASE is computed on the rows that take it alone, so that a guard also saves work.

Which overload a call is, and to what its arguments are widened, the one table of functions says; widening is
a cast. What reads no column is computed once, when it is compiled, by the same code: a constant that fails
fails as a row's value would.

Does not: validate a plan as a whole (controller_proto/typing_rules.py does); hold state; do I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

import clusterd.render.functions as functions
from clusterd.convert import column_from_scalars, from_wire, to_wire
from clusterd.render.functions import CallSite, Evaluated, filled
from controller_proto.errors import Refusal
from controller_proto.expr import Case, ColumnRef, Expr, Literal, is_told
from controller_proto.functions import COMPARED, Mismatch, common_type, resolve
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import Scalar, same_type, type_name
from controller_proto.temporal import NOT_HERE
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType

__all__ = ["CompiledExpr", "compile_expr", "conjunction"]

_Run = Callable[[Sequence[Evaluated], int], Evaluated]
_EXACT_NUMBERS: Final = frozenset({
    ColumnType.INT16, ColumnType.INT32, ColumnType.INT64, ColumnType.UINT16, ColumnType.UINT32,
    ColumnType.UINT64, ColumnType.NUMERIC,
})  # fmt: skip
# They do not hold every date.
_SHORTER: Final = (ColumnType.TIMESTAMP, ColumnType.TIMESTAMPTZ)


@dataclass(frozen=True, slots=True)
class CompiledExpr:
    """`run(columns, n)` evaluates on n rows; its result may have one row that stands for all.

    nullable: NULL may come out. fallible: an error may. references: the columns read. scale: of a numeric.
    """

    type: AnyType
    nullable: bool
    fallible: bool
    references: frozenset[int]
    run: _Run
    scale: int = 0

    @property
    def spec(self) -> ColumnSpec:
        return ColumnSpec("", self.type, self.nullable, self.scale)

    @property
    def wire(self) -> WireColumn:
        """The column it makes, in the words of typing_rules.py."""
        return to_wire(self.spec)

    def __call__(self, columns: Sequence[Evaluated], n: int) -> Evaluated:
        """n rows exactly."""
        return filled(self.run(columns, n), n)


def compile_expr(expr: Expr, columns: Sequence[ColumnSpec]) -> CompiledExpr:
    """Compile `expr` over rows of `columns`.

    Raises Refusal(`invalid-plan`) naming the function and the types, or the column, that do not fit.
    """
    if isinstance(expr, ColumnRef):
        return _column(expr.index, columns)
    if isinstance(expr, Literal):
        return _literal(expr)
    if isinstance(expr, Case):
        condition = compile_expr(expr.condition, columns)
        then, otherwise = (compile_expr(arm, columns) for arm in (expr.then, expr.otherwise))
        if is_told(expr.then):
            then = _told_as(then, otherwise)
        elif is_told(expr.otherwise):
            otherwise = _told_as(otherwise, then)
        return _folded(_case(condition, then, otherwise))
    constants = tuple(arg.value if isinstance(arg, Literal) else None for arg in expr.args)
    return _call(expr.function, [compile_expr(argument, columns) for argument in expr.args], constants)


def conjunction(predicates: Sequence[CompiledExpr]) -> CompiledExpr | None:
    """All of them, as one AND; None if there are none. Raises Refusal if one is not boolean."""
    return _call("and", list(predicates), (None,) * len(predicates)) if predicates else None


def _refuse(message: str) -> Refusal:
    return Refusal("invalid-plan", message)


def _column(index: int, columns: Sequence[ColumnSpec]) -> CompiledExpr:
    if not 0 <= index < len(columns):
        raise _refuse(f"column #{index} of {len(columns)} columns")
    spec = columns[index]
    return CompiledExpr(
        spec.type, spec.nullable, False, frozenset((index,)), lambda inputs, n: inputs[index], spec.scale
    )


def _literal(literal: Literal) -> CompiledExpr:
    try:
        column = column_from_scalars(from_wire(literal.column), [literal.value])
    except ValueError as error:
        raise _refuse(f"literal {literal.value!r}: {error}") from error
    value = Evaluated(column)
    nullable = column.has_validity
    return CompiledExpr(column.type, nullable, False, frozenset(), lambda inputs, n: value, literal.scale)


def _folded(expr: CompiledExpr) -> CompiledExpr:
    """The same, computed once if it reads no column."""
    if expr.references:
        return expr
    value = expr.run((), 1)
    return replace(expr, run=lambda inputs, n: value)


def _call(name: str, args: list[CompiledExpr], constants: tuple[Scalar, ...]) -> CompiledExpr:
    try:
        resolved = resolve(name, [each.wire for each in args], constants)
    except Mismatch as error:
        raise _refuse(str(error)) from error
    function, signature = resolved.function, resolved.signature
    if function.name == "now_ts":
        raise _refuse(NOT_HERE)
    widen = _widened_for_comparison if name in COMPARED else _widened
    args = [widen(each, to) for each, to in zip(args, resolved.args, strict=True)]
    run = functions.implementation(function.name, signature.text)
    result = from_wire(resolved.result)
    call = CallSite(tuple(each.spec for each in args), result, constants)
    runs = [each.run for each in args]
    return _folded(
        CompiledExpr(
            result.type,
            result.nullable,
            bool(function.errors) or any(each.fallible for each in args),
            frozenset().union(*(each.references for each in args)),
            lambda inputs, n: run(call, [each(inputs, n) for each in runs], n),
            result.scale,
        )
    )


def _widened(expr: CompiledExpr, to: WireColumn) -> CompiledExpr:
    """`expr` cast to the type of `to`, if it has another."""
    if same_type(expr.wire, to):
        return expr
    spec = from_wire(to)
    if isinstance(spec.type, ColumnType):
        cast = _call(f"cast {type_name(to)}", [expr], (None,))
        may_not_fit = spec.scale > expr.scale or spec.type in _SHORTER
        return replace(cast, fallible=expr.fallible or may_not_fit)
    return _relisted(expr, to)


def _relisted(expr: CompiledExpr, to: WireColumn) -> CompiledExpr:
    """A list with its elements cast; a list with an element that fails is that error."""
    element = from_wire(expr.wire.fields[0])
    cast = _widened(_column(0, (element,)), to.fields[0])
    type_ = from_wire(to).type

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        value = expr.run(inputs, n)
        column = value.column.plain()
        offsets = column.offsets
        assert offsets is not None
        elements = column.children[0].slice(int(offsets[0]), int(offsets[-1]))
        made = cast([Evaluated(elements)], len(elements))
        ends = offsets - offsets[0]
        again = Column(type_, column.values, ends, column.validity, children=(made.column,))
        if made.errors is None:
            return Evaluated(again, value.errors)
        failed = np.flatnonzero(made.errors)
        codes = np.zeros(len(again), np.uint32)
        codes[np.searchsorted(ends, failed, side="right") - 1] = made.errors[failed]
        return functions.with_nulls(again, None, value.errors, codes)

    return replace(expr, type=type_, run=run, fallible=expr.fallible or cast.fallible)


def _widened_for_comparison(expr: CompiledExpr, to: WireColumn) -> CompiledExpr:
    """As `_widened`; but a numeric is never out of range because another has more digits."""
    spec = from_wire(to)
    if spec.type is not ColumnType.NUMERIC or expr.type not in _EXACT_NUMBERS or same_type(expr.wire, to):
        return _widened(expr, to)
    from clusterd.render.functions.casts import widened_for_comparison

    digits = spec.scale - expr.scale

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        value = expr.run(inputs, n)
        return Evaluated(widened_for_comparison(value.column, digits), value.errors)

    return replace(expr, type=spec.type, run=run, scale=spec.scale)


def _told_as(expr: CompiledExpr, other: CompiledExpr) -> CompiledExpr:
    """`error("...")` where a value of another type is wanted."""

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        value = expr.run(inputs, n)
        return Evaluated(Column.nulls(other.type, len(value.column)), value.errors)

    return replace(expr, type=other.type, scale=other.scale, run=run)


def _case(condition: CompiledExpr, then: CompiledExpr, otherwise: CompiledExpr) -> CompiledExpr:
    if condition.type is not ColumnType.BOOL:
        raise _refuse(f"case condition of {type_name(condition.wire)}, boolean expected")
    common = common_type(then.wire, otherwise.wire)
    if common is None:
        raise _refuse(f"case of {type_name(then.wire)} and {type_name(otherwise.wire)}")
    then, otherwise = _widened(then, common), _widened(otherwise, common)

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        verdict = filled(condition.run(inputs, n), n)
        yes = verdict.column.values  # false where it is NULL or an error
        taken = _on(then, inputs, yes, n)
        chosen = functions.either(yes, taken, _on(otherwise, inputs, ~yes, n))
        return functions.with_nulls(chosen.column, None, verdict.errors, chosen.errors)

    return CompiledExpr(
        then.type,
        then.nullable or otherwise.nullable,
        condition.fallible or then.fallible or otherwise.fallible,
        condition.references | then.references | otherwise.references,
        run,
        then.scale,
    )


class _Rows(Sequence[Evaluated]):
    """Some rows of the columns of `inputs`, taken when asked for."""

    __slots__ = ("_inputs", "_rows", "_taken")

    def __init__(self, inputs: Sequence[Evaluated], rows: NDArray[np.int64]) -> None:
        self._inputs, self._rows = inputs, rows
        self._taken: dict[int, Evaluated] = {}

    def __getitem__(self, index: int) -> Evaluated:  # type: ignore[override]
        if index not in self._taken:
            whole = self._inputs[index]
            errors = None if whole.errors is None else whole.errors.take(self._rows)
            self._taken[index] = Evaluated(whole.column.take(self._rows), errors)
        return self._taken[index]

    def __len__(self) -> int:
        return len(self._inputs)


def _on(arm: CompiledExpr, inputs: Sequence[Evaluated], mask: NDArray[np.bool_], n: int) -> Evaluated:
    """The arm on the rows of n where `mask` is true, and on no other."""
    if not arm.references or mask.all():
        return arm.run(inputs, n)
    rows = np.flatnonzero(mask)
    return arm.run(_Rows(inputs, rows), len(rows))
