"""Scalar expressions as functions of whole columns.

An expression is compiled once, against the columns it sees, into a tree of closures; evaluating it on a block
costs a few numpy or kernel calls a node and no Python a row. Errors are data (functions.py says how they
combine), so a row that fails leaves its neighbours alone, and what AND, OR or CASE guards has no effect.

Meaning is PostgreSQL's: a division by zero, a result that leaves bigint, numeric (38 digits) or double
precision, are errors; NaN equals NaN and is greater than every number; text orders by bytes; numbers of two
types are widened to one (typing_rules.py says to which). A quotient of numerics is known for scale 0 alone,
and rounded toward zero.

Does not: validate a plan as a whole (controller_proto/typing_rules.py does); hold state; do I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import clusterd.render.functions as functions
from clusterd.convert import column_from_scalars, from_wire, to_wire
from clusterd.operators.kernels import scalar
from clusterd.render.functions import Evaluated, filled
from controller_proto.errors import Refusal
from controller_proto.expr import Case, ColumnRef, Expr, Literal
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import type_name
from controller_proto.typing_rules import common_type
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType

__all__ = ["CompiledExpr", "compile_expr", "conjunction"]

_Run = Callable[[Sequence[Evaluated], int], Evaluated]

_ARITHMETIC: Final = {
    "+": scalar.ADD, "-": scalar.SUB, "*": scalar.MUL, "/": scalar.DIV, "%": scalar.MOD,
}  # fmt: skip
_NUMBERS: Final = (ColumnType.INT64, ColumnType.FLOAT64, ColumnType.NUMERIC)
_UNARY: Final = ("neg", "not", "is_null", "is_true", "is_false")


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
    def wire(self) -> WireColumn:
        """The column it makes, in the words of typing_rules.py."""
        return to_wire(ColumnSpec("", self.type, self.nullable, self.scale))

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
        parts = (expr.condition, expr.then, expr.otherwise)
        return _case(*(compile_expr(part, columns) for part in parts))
    return _call(expr.function, [compile_expr(argument, columns) for argument in expr.args])


def conjunction(predicates: Sequence[CompiledExpr]) -> CompiledExpr | None:
    """All of them, as one AND; None if there are none. Raises Refusal if one is not boolean."""
    return _logic("and", list(predicates)) if predicates else None


def _refuse(message: str) -> Refusal:
    return Refusal("invalid-plan", message)


def _name(expr: CompiledExpr) -> str:
    return type_name(expr.wire)


def _column(index: int, columns: Sequence[ColumnSpec]) -> CompiledExpr:
    if not 0 <= index < len(columns):
        raise _refuse(f"column #{index} of {len(columns)} columns")
    spec = columns[index]
    return CompiledExpr(
        spec.type, spec.nullable, False, frozenset((index,)), lambda inputs, n: inputs[index], spec.scale
    )


def _constant(column: Column, scale: int) -> CompiledExpr:
    value = Evaluated(column)
    return CompiledExpr(column.type, column.has_validity, False, frozenset(), lambda inputs, n: value, scale)


def _literal(literal: Literal) -> CompiledExpr:
    try:
        return _constant(column_from_scalars(from_wire(literal.column), [literal.value]), literal.scale)
    except ValueError as error:
        raise _refuse(f"literal {literal.value!r}: {error}") from error


def _strict(type_: AnyType, args: Sequence[CompiledExpr], run: _Run, *, fails: bool = False) -> CompiledExpr:
    """NULL if an argument is, an error if an argument has one."""
    return CompiledExpr(
        type_,
        any(a.nullable for a in args),
        fails or any(a.fallible for a in args),
        frozenset().union(*(a.references for a in args)),
        run,
    )


def _call(function: str, args: list[CompiledExpr]) -> CompiledExpr:
    if function in ("and", "or"):
        return _logic(function, args)
    wanted = 1 if function in _UNARY else 2
    if len(args) != wanted:
        raise _refuse(f"{function} takes {wanted} arguments, {len(args)} given")
    if function in ("not", "is_null", "is_true", "is_false"):
        return _judgement(function, args[0])
    if function == "neg":
        if args[0].type not in _NUMBERS:
            raise _refuse(f"{function} of {_name(args[0])}")
        return _arithmetic("-", _constant(Column.from_pylist(args[0].type, [0]), args[0].scale), args[0])
    if function == "||":
        return _concat(*args)
    if function in functions.COMPARISONS:
        return _comparison(function, *args)
    if function in _ARITHMETIC:
        return _arithmetic(function, *args)
    raise _refuse(f"function {function!r} is not known")


def _boolean(args: Sequence[CompiledExpr], what: str) -> None:
    for argument in args:
        if argument.type is not ColumnType.BOOL:
            raise _refuse(f"{what} of {_name(argument)}, boolean expected")


def _logic(function: str, args: list[CompiledExpr]) -> CompiledExpr:
    if not args:
        raise _refuse(f"{function} of nothing")
    _boolean(args, function)
    is_and = function == "and"
    return _strict(
        ColumnType.BOOL, args, lambda inputs, n: functions.logic(is_and, [a.run(inputs, n) for a in args])
    )


def _judgement(function: str, argument: CompiledExpr) -> CompiledExpr:
    if function != "is_null":
        _boolean([argument], function)

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        value = argument.run(inputs, n)
        if function == "not":
            return functions.negation(value)
        if function == "is_null":
            return functions.is_null(value)
        return functions.is_true(value, function == "is_true")

    compiled = _strict(ColumnType.BOOL, [argument], run)
    return compiled if function == "not" else replace(compiled, nullable=False)


def _same_type(
    what: str, left: CompiledExpr, right: CompiledExpr, *, compared: bool = False
) -> tuple[CompiledExpr, CompiledExpr]:
    """Both of one type, numbers widened to it."""
    common = common_type(left.wire, right.wire)
    if common is None:
        raise _refuse(f"{what} of {_name(left)} and {_name(right)}")
    to = from_wire(common)
    return _widened(left, to.type, to.scale, compared), _widened(right, to.type, to.scale, compared)


def _widened(expr: CompiledExpr, to: AnyType, scale: int, compared: bool = False) -> CompiledExpr:
    if (expr.type, expr.scale) == (to, scale):
        return expr
    digits = scale - expr.scale

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        return functions.widened(expr.run(inputs, n), to, digits, compared=compared)

    fallible = expr.fallible or (digits > 0 and not compared)
    return replace(expr, type=to, run=run, scale=scale, fallible=fallible)


def _case(condition: CompiledExpr, then: CompiledExpr, otherwise: CompiledExpr) -> CompiledExpr:
    _boolean([condition], "case condition")
    then, otherwise = _same_type("case", then, otherwise)

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        arms = then.run(inputs, n), otherwise.run(inputs, n)
        return functions.case(condition.run(inputs, n), *arms, n)

    compiled = _strict(then.type, [condition, then, otherwise], run)
    return replace(compiled, nullable=then.nullable or otherwise.nullable, scale=then.scale)


def _comparison(function: str, left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    left, right = _same_type(function, left, right, compared=True)

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        return functions.compare(function, left.run(inputs, n), right.run(inputs, n))

    return _strict(ColumnType.BOOL, [left, right], run)


def _arithmetic(function: str, left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    scale = left.scale + right.scale  # of a product
    if function == "*" and ColumnType.NUMERIC in (left.type, right.type):
        left, right = (_widened(each, ColumnType.NUMERIC, each.scale) for each in (left, right))
    else:
        left, right = _same_type(function, left, right)
        scale = left.scale
    if left.type not in _NUMBERS or (function == "/" and scale):
        raise _refuse(f"{function} of {_name(left)}")
    op = _ARITHMETIC[function]

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        return functions.arithmetic(op, left.run(inputs, n), right.run(inputs, n))

    return replace(_strict(left.type, [left, right], run, fails=True), scale=scale)


def _concat(left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    for argument in (left, right):
        if argument.type is not ColumnType.TEXT:
            raise _refuse(f"|| of {_name(argument)}, text expected")

    def run(inputs: Sequence[Evaluated], n: int) -> Evaluated:
        return functions.concat(left.run(inputs, n), right.run(inputs, n))

    return _strict(ColumnType.TEXT, [left, right], run)
