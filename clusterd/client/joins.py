"""Plans of outer, semi and anti joins, which have no node of their own: built of joins, distinct and union.

    plan = outer_join(Side(Get("u1"), people), Side(Get("u2"), cities), [(0, 0)], kind="left")

A row has a partner if the other side has a row with the same keys, however many: so the other side's keys are
taken once each, and what is left over is the side less those of its rows that join them. A NULL key matches
nothing, so its row is left over; with `null_safe` NULL matches NULL. Sides are bound by Let, by names that
mean nothing else to them, so each is computed once however deep such joins are nested. An expression that
fails in a key is an error of the collection, whether or not its row finds a partner.

Does not: send anything, check types (the replica does, and names the node).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal as OneOf

from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.plan import Get, Join, Let, Mfp, Negate, Plan, Reduce, Threshold, Union, free_ids
from controller_proto.schema import Schema

__all__ = ["Pair", "Side", "anti_join", "except_all", "intersect_all", "outer_join", "semi_join"]

Pair = tuple[int | Expr, int | Expr]
"""What has to be equal: a column or an expression of each side, over its own columns."""


@dataclass(frozen=True, slots=True)
class Side:
    """A plan, and the schema of its rows."""

    plan: Plan
    schema: Schema


def semi_join(left: Side, right: Side, on: Sequence[Pair], *, null_safe: bool = False) -> Plan:
    """The rows of `left` that have a partner, each as often as it is there.

    >>> from controller_proto.print_plan import print_plan
    >>> of = Schema(())
    >>> print("\\n".join(print_plan(semi_join(Side(Get("u1"), of), Side(Get("u2"), of), []))))
    With
      cte l0 =
        Get u1
      cte l1 =
        Get u2
    Return
      Project ()
        CrossJoin
          Get l0
          Distinct project=[]
            Get l1
    """
    names, (a, b) = _names(left, right)
    return _bound(names, (left, right), _matched(a, left, _keys(b, on, 1), on, 0, null_safe))


def anti_join(left: Side, right: Side, on: Sequence[Pair], *, null_safe: bool = False) -> Plan:
    """The rows of `left` that have no partner, each as often as it is there."""
    names, (a, b) = _names(left, right)
    return _bound(names, (left, right), _unmatched(a, left, _keys(b, on, 1), on, 0, null_safe))


def outer_join(
    left: Side,
    right: Side,
    on: Sequence[Pair],
    *,
    kind: OneOf["left", "right", "full"],
    null_safe: bool = False,
) -> Plan:
    """The pairs, and the rows without a partner of the sides that `kind` names, the other's columns NULL."""
    names, (a, b) = _names(left, right)
    arity = left.schema.arity
    classes = tuple((_expr(x), _shifted(_expr(y), arity)) for x, y in on)
    parts: list[Plan] = [Join((a, b), classes, null_safe)]
    if kind in ("left", "full"):
        alone = _unmatched(a, left, _keys(b, on, 1), on, 0, null_safe)
        parts.append(Mfp(alone, _nulls(right.schema)))
    if kind in ("right", "full"):
        alone = _unmatched(b, right, _keys(a, on, 0), on, 1, null_safe)
        count = right.schema.arity
        order = (*range(count, count + arity), *range(count))
        parts.append(Mfp(alone, _nulls(left.schema), (), order))
    return _bound(names, (left, right), Union(tuple(parts)))


def except_all(left: Plan, right: Plan) -> Plan:
    """Every row of `left` as many times as it is there more often than in `right`."""
    return Threshold(Union((left, Negate(right))))


def intersect_all(left: Plan, right: Plan) -> Plan:
    """Every row as often as it is in both."""
    (name,) = _fresh((left, right), 1)
    return Let(name, left, Union((Get(name), Negate(except_all(Get(name), right)))))


def _keys(side: Get, on: Sequence[Pair], which: int) -> Plan:
    """The keys of a side, each once."""
    return Reduce(side, tuple(_expr(pair[which]) for pair in on))


def _matched(side: Get, of: Side, keys: Plan, on: Sequence[Pair], which: int, null_safe: bool) -> Plan:
    arity = of.schema.arity
    classes = tuple((_expr(pair[which]), ColumnRef(arity + n)) for n, pair in enumerate(on))
    return Mfp(Join((side, keys), classes, null_safe), (), (), tuple(range(arity)))


def _unmatched(side: Get, of: Side, keys: Plan, on: Sequence[Pair], which: int, null_safe: bool) -> Plan:
    return Union((side, Negate(_matched(side, of, keys, on, which, null_safe))))


def _expr(of: int | Expr) -> Expr:
    return ColumnRef(of) if isinstance(of, int) else of


def _shifted(expr: Expr, by: int) -> Expr:
    match expr:
        case ColumnRef(index):
            return ColumnRef(index + by)
        case Literal():
            return expr
        case Case(condition, then, otherwise):
            return Case(_shifted(condition, by), _shifted(then, by), _shifted(otherwise, by))
        case Call(function, args):
            return Call(function, tuple(_shifted(each, by) for each in args))


def _nulls(schema: Schema) -> tuple[Expr, ...]:
    return tuple(Literal(c.type, None, c.scale, c.fields) for c in schema.columns)


def _names(left: Side, right: Side) -> tuple[tuple[str, str], tuple[Get, Get]]:
    a, b = _fresh((left.plan, right.plan), 2)
    return (a, b), (Get(a), Get(b))


def _fresh(plans: Sequence[Plan], count: int) -> tuple[str, ...]:
    """Names of bindings that mean nothing else in the plans."""
    used: frozenset[str] = frozenset().union(*map(free_ids, plans))
    free = (name for n in range(len(used) + count) if (name := f"l{n}") not in used)
    return tuple(next(free) for _ in range(count))


def _bound(names: Sequence[str], sides: Sequence[Side], body: Plan) -> Plan:
    for name, side in reversed(list(zip(names, sides, strict=True))):
        body = Let(name, side.plan, body)
    return body
