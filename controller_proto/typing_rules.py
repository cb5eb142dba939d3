"""The type of every expression and the schema of every plan: one set of rules for controller and replica.

Both ends compute a schema from the same plan by the same rules, so a header's schemas can be checked and
not believed. A refusal (`invalid-plan`) names the node, the part of it, and the column or the types that do
not fit.

- Comparisons and the arms of CASE take two values of one type, `+ - * / %` two bigints, doubles or
  numerics. Before that, integers are widened to the narrowest type that holds both (uint8 beside a signed
  one: numeric), beside a numeric to it, beside a real or double to double; of two numerics the scale is the
  greater.
- A product of numerics has the sum of their scales. Their quotient is known for scale 0 alone.
- NULL can come out of a function if it can go in, but not out of `is_null`, `is_true`, `is_false`.
- Aggregates have the types of aggregates.py. A group is never empty, so most are nullable only over what is
  nullable. Of distinct values an order by something else would mean nothing: it is refused.

A plan nested deeper than MAX_DEPTH is refused: it is walked recursively, here and by who renders it.

Does not: evaluate; decide what can be rendered (clusterd does, by name).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller_proto.aggregates import AGGREGATES, aggregate_result
from controller_proto.errors import Refusal
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal, is_told, references
from controller_proto.functions import (
    USER_AGGREGATES,
    Mismatch,
    common_type,
    resolve,
    resolve_table,
    user_aggregate,
)
from controller_proto.ids import GlobalId
from controller_proto.plan import (
    Aggregate,
    ArrangeBy,
    Constant,
    FlatMap,
    Get,
    Join,
    Let,
    LetRec,
    Mfp,
    Negate,
    OrderBy,
    Plan,
    Reduce,
    Threshold,
    TopK,
    Union,
)
from controller_proto.schema import (
    INTEGERS,
    Column,
    ColumnType,
    Schema,
    counted,
    same_type,
    scalar_problem,
    type_name,
)
from controller_proto.temporal import NOT_HERE, asks_time, split_predicate

__all__ = ["MAX_DEPTH", "expr_type", "plan_schema", "shown_type", "types_problem"]

MAX_DEPTH = 200  # a level costs up to three Python frames of the usual thousand


def expr_type(expr: Expr, schema: Schema, where: str = "expression") -> Column:
    """The column that `expr` makes of rows of `schema`. Raises Refusal `invalid-plan`, naming `where`.

    >>> schema = Schema((Column("id", ColumnType.INT64, nullable=True),))
    >>> expr_type(Call("is_null", (ColumnRef(0),)), schema)
    Column(name='is_null', type=<ColumnType.BOOL: 'boolean'>, nullable=False)
    """
    return _typed(expr, schema.columns, where)


def plan_schema(plan: Plan, env: Mapping[GlobalId, Schema], where: str = "") -> Schema:
    """The schema of `plan` over the collections of `env`. Raises Refusal `invalid-plan`."""
    return _Typer(where).plan(plan, env, 0)


def types_problem(wanted: Schema, found: Schema) -> str | None:
    """Say how the types or nullabilities of two schemas differ; None if they do not. Names do not count."""
    if wanted.arity != found.arity:
        return f"{wanted.arity} columns, not {found.arity}"
    for position, (a, b) in enumerate(zip(wanted.columns, found.columns, strict=True)):
        if a.nullable != b.nullable or not same_type(a, b):
            return f"column {position} is {shown_type(a)}, not {shown_type(b)}"
    return None


def shown_type(column: Column) -> str:
    """`bigint`, or `bigint?` where NULL may stand."""
    return type_name(column) + ("?" if column.nullable else "")


def _refuse(where: str, message: str) -> Refusal:
    return Refusal("invalid-plan", f"{where}: {message}")


def _check_depth(where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _refuse(where, f"nested deeper than {MAX_DEPTH}")


def _typed(expr: Expr, columns: Sequence[Column], where: str) -> Column:
    column = _expr(expr, columns, where, 0)
    if asks_time(expr):
        raise _refuse(where, NOT_HERE)
    return column


def _expr(expr: Expr, columns: Sequence[Column], where: str, depth: int) -> Column:
    _check_depth(where, depth)
    match expr:
        case ColumnRef(index):
            return _column(index, columns, where)
        case Literal(_, value):
            column = expr.column
            problem = scalar_problem(value, column)
            if problem is not None:
                raise _refuse(where, problem.removeprefix("column "))
            return column
        case Case(condition, then, otherwise):
            found = _expr(condition, columns, where, depth + 1)
            if found.type is not ColumnType.BOOL:
                raise _refuse(where, f"condition of CASE is {type_name(found)}, not boolean")
            arms = [_expr(arm, columns, where, depth + 1) for arm in (then, otherwise)]
            if is_told(then):
                return _named(arms[1], "case", arms[1].nullable)
            if is_told(otherwise):
                return _named(arms[0], "case", arms[0].nullable)
            return _named(_common(arms, "CASE", where), "case", any(a.nullable for a in arms))
        case Call(_, args):
            return _call(expr, [_expr(a, columns, where, depth + 1) for a in args], where)


def _column(index: int, columns: Sequence[Column], where: str) -> Column:
    if not 0 <= index < len(columns):
        raise _refuse(where, f"column #{index} of {len(columns)} columns")
    return columns[index]


def _named(column: Column, name: str, nullable: bool) -> Column:
    return msgspec.structs.replace(column, name=name, nullable=nullable)


def _common(two: Sequence[Column], what: str, where: str) -> Column:
    a, b = two
    common = common_type(a, b)
    if common is None:
        raise _refuse(where, f"{what} of {type_name(a)} and {type_name(b)}")
    return common


def _call(call: Call, args: list[Column], where: str) -> Column:
    constants = tuple(arg.value if isinstance(arg, Literal) else None for arg in call.args)
    try:
        return resolve(call.function, args, constants).result
    except Mismatch as error:
        raise _refuse(where, str(error)) from error


class _Typer:
    """Walks one plan; `where` says which."""

    def __init__(self, where: str) -> None:
        self._where = where

    def plan(self, plan: Plan, env: Mapping[GlobalId, Schema], depth: int) -> Schema:
        name = type(plan).__name__
        where = f"{self._where}: {name}" if self._where else name
        _check_depth(where, depth)
        match plan:
            case Get(id):
                if id not in env:
                    raise _refuse(where, f"{id} is no import, earlier build or binding in scope")
                return env[id]
            case Constant():
                return _constant(plan, where)
            case Join(inputs) | Union(inputs):
                schemas = [self.plan(i, env, depth + 1) for i in inputs]
                return _join(plan, schemas, where) if isinstance(plan, Join) else _union(schemas, where)
            case Let(id, value, body):
                return self.plan(body, {**env, id: self.plan(value, env, depth + 1)}, depth + 1)
            case LetRec():
                return self._let_rec(plan, env, where, depth)
            case Negate(inner) | Threshold(inner):
                return self.plan(inner, env, depth + 1)
            case _:
                return _unary(plan, self.plan(plan.input, env, depth + 1), where)

    def _let_rec(self, plan: LetRec, env: Mapping[GlobalId, Schema], where: str, depth: int) -> Schema:
        if len({id for id, _, _ in plan.bindings}) != len(plan.bindings):
            raise _refuse(where, "a binding is named twice")
        inner = {**env, **{id: schema for id, schema, _ in plan.bindings}}
        for id, schema, value in plan.bindings:
            problem = types_problem(schema, self.plan(value, inner, depth + 1))
            if problem is not None:
                raise _refuse(where, f"binding {id} was declared with {problem}")
        return self.plan(plan.body, inner, depth + 1)


def _unary(plan: Mfp | FlatMap | Reduce | TopK | ArrangeBy, source: Schema, where: str) -> Schema:
    match plan:
        case Mfp():
            return _mfp(plan, source, where)
        case FlatMap():
            return _flat_map(plan, source, where)
        case Reduce():
            return _reduce(plan, source, where)
        case TopK():
            return _top_k(plan, source, where)
        case ArrangeBy(_, keys):
            for number, key in enumerate(keys):
                for expr in key:
                    expr_type(expr, source, f"{where}, key {number}")
            return source


def _constant(plan: Constant, where: str) -> Schema:
    for number, (row, _) in enumerate(plan.rows):
        if len(row) != plan.schema.arity:
            values, columns = counted(len(row), "value"), counted(plan.schema.arity, "column")
            raise _refuse(where, f"row {number} has {values} for {columns}")
        for value, column in zip(row, plan.schema.columns, strict=True):
            problem = scalar_problem(value, column)
            if problem is not None:
                raise _refuse(where, f"row {number}, {problem}")
    return plan.schema


def _mfp(plan: Mfp, source: Schema, where: str) -> Schema:
    columns = list(source.columns)
    for number, expr in enumerate(plan.maps):
        columns.append(_typed(expr, columns, f"{where}, map {number}"))
    for number, expr in enumerate(plan.predicates):
        here = f"{where}, predicate {number}"
        found = _expr(expr, columns, here, 0)
        if found.type is not ColumnType.BOOL:
            raise _refuse(here, f"it is {type_name(found)}, not boolean")
        try:
            split_predicate(expr)
        except ValueError as error:
            raise _refuse(here, str(error)) from error
    if plan.projection is None:
        return Schema(tuple(columns))
    return Schema(tuple(_column(index, columns, f"{where}, projection") for index in plan.projection))


def _flat_map(plan: FlatMap, source: Schema, where: str) -> Schema:
    args = [expr_type(arg, source, f"{where}, argument {n}") for n, arg in enumerate(plan.args)]
    constants = tuple(arg.value if isinstance(arg, Literal) else None for arg in plan.args)
    try:
        made = resolve_table(plan.function, args, constants).columns
    except Mismatch as error:
        raise _refuse(where, str(error)) from error
    if plan.with_ordinality:
        made = (*made, Column("ordinality", ColumnType.INT64))
    return Schema((*source.columns, *made))


def _join(plan: Join, inputs: Sequence[Schema], where: str) -> Schema:
    if not inputs:
        raise _refuse(where, "no inputs")
    schema = Schema(tuple(column for each in inputs for column in each.columns))
    for number, members in enumerate(plan.equivalences):
        here = f"{where}, equivalence {number}"
        if len(members) < 2:
            raise _refuse(here, f"{len(members)} members, at least 2 are needed")
        types = [expr_type(member, schema, here) for member in members]
        if not all(same_type(types[0], other) for other in types):
            raise _refuse(here, f"= of {' and '.join(map(type_name, types))}")
    return schema


def _union(inputs: Sequence[Schema], where: str) -> Schema:
    if not inputs:
        raise _refuse(where, "no inputs")
    first = inputs[0]
    for number, other in enumerate(inputs):
        if other.arity != first.arity or not all(map(same_type, other.columns, first.columns)):
            found = ", ".join(map(type_name, other.columns))
            wanted = ", ".join(map(type_name, first.columns))
            raise _refuse(where, f"input {number} is ({found}), input 0 is ({wanted})")
    return Schema(
        tuple(
            _named(column, column.name, any(each.columns[position].nullable for each in inputs))
            for position, column in enumerate(first.columns)
        )
    )


def _reduce(plan: Reduce, source: Schema, where: str) -> Schema:
    key = [expr_type(expr, source, f"{where}, group key {n}") for n, expr in enumerate(plan.group_key)]
    made = [_aggregate(a, source, f"{where}, aggregate {n}") for n, a in enumerate(plan.aggregates)]
    return Schema((*key, *made))


def _aggregate(aggregate: Aggregate, source: Schema, where: str) -> Column:
    name = aggregate.function
    exprs = () if aggregate.expr is None else (aggregate.expr, *aggregate.args)
    if name in USER_AGGREGATES:
        types = [expr_type(expr, source, where) for expr in exprs]
        _check_order(aggregate.order_by, source, where)
        try:
            columns = user_aggregate(
                name, types, distinct=aggregate.distinct, ordered=bool(aggregate.order_by)
            )
            return columns[-1]
        except Mismatch as error:
            raise _refuse(where, str(error)) from error
    try:
        made = aggregate_result(name, [expr_type(expr, source, where) for expr in exprs])
    except ValueError as error:
        raise _refuse(where, str(error)) from error
    if not exprs and aggregate.distinct:
        raise _refuse(where, f"{name}(distinct) needs an argument")
    if aggregate.order_by and not AGGREGATES[name].is_ordered:
        raise _refuse(where, f"{name} takes no order")
    _check_order(aggregate.order_by, source, where)
    if aggregate.distinct and not all(ColumnRef(by.column) in exprs for by in aggregate.order_by):
        raise _refuse(where, f"{name}(distinct) can be ordered by its arguments alone")
    return made


def _top_k(plan: TopK, source: Schema, where: str) -> Schema:
    for index in plan.group_key:
        _column(index, source.columns, f"{where}, group key")
    _check_order(plan.order, source, where)
    if plan.limit is not None:
        _check_bound(plan.limit, plan, source, f"{where}, limit")
    if not isinstance(plan.offset, int):
        _check_bound(plan.offset, plan, source, f"{where}, offset")
    return source


def _check_bound(expr: Expr, plan: TopK, source: Schema, where: str) -> None:
    found = expr_type(expr, source, where)
    if found.type not in INTEGERS:
        raise _refuse(where, f"it is {type_name(found)}, not an integer")
    for column in sorted(references(expr) - set(plan.group_key)):
        raise _refuse(where, f"it reads column #{column}, which is not of the group key")


def _check_order(order: Sequence[OrderBy], source: Schema, where: str) -> None:
    for item in order:
        _column(item.column, source.columns, f"{where}, order")
