"""What random plans have of each kind: so a run can say what it tested, and fails if that is too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.plan import (
    Constant,
    FlatMap,
    Get,
    Join,
    Let,
    LetRec,
    Mfp,
    Negate,
    Plan,
    Reduce,
    Threshold,
    TopK,
    Union,
)
from controller_proto.schema import Schema
from controller_proto.typing_rules import expr_type, plan_schema
from tests.clusterd import naive
from tests.clusterd.random_plans import DOMAIN

KINDS = {
    "join differential", "join delta", "join null-safe", "join of 1", "join of 2", "join of 3 or more",
    "cross join", "join by an expression", "join with a literal", "join by both sides together",
    "join of more in a class", "distinct", "distinct of expressions", "reduce", "reduce without key",
    "reduce by an expression", "reduce of several", "reduce monotonic", "aggregate of distinct values",
    "count(*)", "count", "sum", "avg", "min", "max", "bool_and", "bool_or", "string_agg", "jsonb_agg",
    *naive.SPREADS, "top-k", "top-k in groups", "top-k without limit", "top-k of none", "top-k with offset",
    "top-k monotonic", "top-k descending", "top-k nulls first", "threshold", "negate", "union", "let",
    "flat-map", "flat-map counted", "generate_series", "generate_subscripts", "unnest", "string_to_table",
    "jsonb_array_elements", "jsonb_each_text", "jsonb_object_keys", "constant", "constant error", "arrange",
    "map", "filter", "project", "case", "coalesce", "and", "or", "not", "between", "in", "is_null", "now_ts",
    *(f"{what} {type_.value}" for what in ("join by", "grouped by", "min or max of")
      for type_ in DOMAIN),
}  # fmt: skip


def kinds(plan: Plan, env: Mapping[str, Schema]) -> set[str]:
    """Those of KINDS that the plan has."""
    match plan:
        case Get():
            return set()
        case Constant(_, _, error):
            return {"constant error" if error else "constant"}
        case Let(id, value, body):
            return {"let"} | kinds(value, env) | kinds(body, {**env, id: plan_schema(value, env)})
        case Union(inputs):
            return {"union"}.union(*(kinds(each, env) for each in inputs))
        case LetRec(bindings, body):
            within = {**env, **{id: schema for id, schema, _ in bindings}}
            return kinds(body, within).union(*(kinds(value, within) for _, _, value in bindings))
        case Join(inputs):
            sides = [plan_schema(each, env) for each in inputs]
            return _of_join(plan, sides).union(*(kinds(each, env) for each in inputs))
    source = plan.input
    of, found = plan_schema(source, env), kinds(source, env)
    match plan:
        case Mfp(_, maps, predicates, projection):
            parts = (("map", maps), ("filter", predicates), ("project", projection))
            return found | {name for name, part in parts if part} | _calls((*maps, *predicates))
        case Reduce(_, key):
            return found | _of_reduce(plan, of) | _calls(key)
        case TopK():
            return found | _of_top_k(plan)
        case Negate():
            return found | {"negate"}
        case Threshold():
            return found | {"threshold"}
        case FlatMap(_, function, _, with_ordinality):
            return found | {"flat-map", function} | ({"flat-map counted"} if with_ordinality else set())
        case _:
            return found | {"arrange"}


def _of_join(plan: Join, sides: Sequence[Schema]) -> set[str]:
    wide = Schema(tuple(column for side in sides for column in side.columns))
    starts = [sum(side.arity for side in sides[:i]) for i in range(len(sides))]
    found = {
        f"join {plan.kind}",
        "join of 3 or more" if len(sides) > 2 else f"join of {len(sides)}",
        *(["join null-safe"] if plan.null_safe else []),
        *(["cross join"] if not plan.equivalences else []),
    }
    for members in plan.equivalences:
        found.add(f"join by {expr_type(members[0], wide).type.value}")
        found |= {"join of more in a class"} if len(members) > 2 else set()
        for member in members:
            of = {max(i for i, start in enumerate(starts) if start <= c) for c in naive.columns_of(member)}
            found |= {"join by both sides together"} if len(of) > 1 else set()
            found |= {"join with a literal"} if isinstance(member, Literal) else set()
            found |= {"join by an expression"} if isinstance(member, Call) else set()
    return found


def _of_reduce(plan: Reduce, of: Schema) -> set[str]:
    found = {f"grouped by {expr_type(key, of).type.value}" for key in plan.group_key}
    computed = not all(isinstance(key, ColumnRef) for key in plan.group_key)
    if not plan.aggregates:
        return found | {"distinct"} | ({"distinct of expressions"} if computed else set())
    found |= {
        "reduce",
        *(["reduce without key"] if not plan.group_key else []),
        *(["reduce by an expression"] if computed else []),
        *(["reduce monotonic"] if plan.monotonic else []),
        *(["reduce of several"] if len(plan.aggregates) > 1 else []),
    }
    for each in plan.aggregates:
        found.add(each.function if each.expr is not None else "count(*)")
        found |= {"aggregate of distinct values"} if each.distinct else set()
        if each.function in ("min", "max") and each.expr is not None:
            found.add(f"min or max of {expr_type(each.expr, of).type.value}")
    return found


def _of_top_k(plan: TopK) -> set[str]:
    limit = plan.limit.value if isinstance(plan.limit, Literal) else None
    says = {
        "top-k": True,
        "top-k in groups": bool(plan.group_key),
        "top-k without limit": plan.limit is None,
        "top-k of none": limit == 0,
        "top-k with offset": plan.offset != 0,
        "top-k monotonic": plan.monotonic,
        "top-k descending": any(by.descending for by in plan.order),
        "top-k nulls first": any(by.nulls_first for by in plan.order),
    }
    return {name for name, so in says.items() if so}


def _calls(exprs: Sequence[Expr]) -> set[str]:
    found: set[str] = set()
    for expr in exprs:
        match expr:
            case Call(function, args):
                found |= ({function} & KINDS) | _calls(args)
            case Case(condition, then, otherwise):
                found |= {"case"} | _calls((condition, then, otherwise))
    return found
