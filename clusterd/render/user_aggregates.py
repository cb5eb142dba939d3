"""Aggregates of the user, spelt out: as sums or lists that Reduce keeps, and a function of them behind it.

Does not: type (typing_rules.py has), reduce.
"""

from __future__ import annotations

import msgspec

from controller_proto.expr import Call, ColumnRef, Expr
from controller_proto.functions import USER_AGGREGATES, UserAggregate, user_aggregate
from controller_proto.plan import Aggregate, Reduce
from controller_proto.schema import Schema, same_type, type_name
from controller_proto.typing_rules import expr_type

__all__ = ["spelt_out"]


def spelt_out(plan: Reduce, source: Schema) -> tuple[Reduce, tuple[Expr, ...], tuple[int, ...]] | None:
    """The plan without aggregates of the user, what is computed of its rows, and which columns are its.

    None if it has none of them.
    """
    if not any(each.function in USER_AGGREGATES for each in plan.aggregates):
        return None
    keys = len(plan.group_key)
    made: list[Aggregate] = []
    maps: list[Expr] = []
    places: list[tuple[bool, int]] = []  # whether it is a map, and which
    for each in plan.aggregates:
        user = USER_AGGREGATES.get(each.function)
        if user is None:
            places.append((False, keys + len(made)))
            made.append(each)
            continue
        places.append((True, len(maps)))
        first = keys + len(made)
        made += _parts(each, user, source)
        maps.append(_finish(user, first))
    arity = keys + len(made)
    projection = (*range(keys), *(arity + at if is_map else at for is_map, at in places))
    return msgspec.structs.replace(plan, aggregates=tuple(made)), tuple(maps), projection


def _parts(each: Aggregate, user: UserAggregate, source: Schema) -> list[Aggregate]:
    exprs = [expr for expr in (each.expr, *each.args) if expr is not None]
    types = [expr_type(expr, source) for expr in exprs]
    *wanted, _ = user_aggregate(each.function, types, distinct=each.distinct, ordered=bool(each.order_by))
    args = tuple(
        expr if same_type(of, to) else Call(f"cast {type_name(to)}", (expr,))
        for expr, of, to in zip(exprs, types, wanted, strict=True)
    )
    if user.states:
        return [Aggregate("sum", Call(state.name, args)) for state in user.states]
    return [msgspec.structs.replace(each, function="array_agg", expr=args[0])]


def _finish(user: UserAggregate, first: int) -> Expr:
    """Of sums, each in the type of its state again; or of the list."""
    if not user.states:
        return Call(user.finish.name, (ColumnRef(first),))
    sums: list[Expr] = []
    for number, state in enumerate(user.states):
        result = state.signatures[0].result
        column: Expr = ColumnRef(first + number)
        if result.type is not None and result.type.value == "bigint":
            column = Call("cast bigint", (column,))  # a sum of integers is a numeric
        sums.append(column)
    return Call(user.finish.name, tuple(sums))
