from __future__ import annotations

from time import thread_time

import pytest

from controller_proto.errors import Refusal
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.functions import resolve
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
from controller_proto.schema import Column, ColumnType, Schema
from controller_proto.typing_rules import MAX_DEPTH, expr_type, plan_schema, shown_type, types_problem

T = ColumnType
# 0 bigint, 1 bigint?, 2 double, 3 text?, 4 boolean, 5 numeric, 6 timestamp
WIDE = Schema(
    (
        Column("id", T.INT64),
        Column("n", T.INT64, nullable=True),
        Column("d", T.FLOAT64),
        Column("s", T.TEXT, nullable=True),
        Column("b", T.BOOL),
        Column("num", T.NUMERIC),
        Column("at", T.TIMESTAMP),
    )
)
PAIR = Schema((Column("k", T.INT64), Column("v", T.TEXT)))
ENV = {"u1": WIDE, "u2": PAIR}


def _c(index: int) -> ColumnRef:
    return ColumnRef(index)


def _call(function: str, *args: Expr) -> Call:
    return Call(function, args)


@pytest.mark.parametrize(
    ("expr", "type_"),
    [
        (_c(0), "bigint"),
        (_c(3), "text?"),
        (Literal(T.INT64, None), "bigint?"),
        (_call("+", _c(0), _c(1)), "bigint?"),
        (_call("+", _c(0), _c(2)), "double precision"),
        (_call("/", _c(5), _c(0)), "numeric(38,16)"),
        (_call("neg", _c(1)), "bigint?"),
        (_call("=", _c(6), _c(6)), "boolean"),
        (_call("<", _c(1), _c(5)), "boolean?"),
        (_call("and", _c(4), _c(4), _call("is_null", _c(3))), "boolean"),
        (_call("not", _call("=", _c(1), _c(0))), "boolean?"),
        (_call("is_true", _call("=", _c(1), _c(0))), "boolean"),
        (_call("||", _c(3), Literal(T.TEXT, "x")), "text?"),
        (Case(_c(4), _c(0), _c(2)), "double precision"),
        (Case(_call("=", _c(1), _c(0)), _c(0), Literal(T.INT64, None)), "bigint?"),
        (Case(_call("=", _c(1), _c(0)), _c(0), _c(0)), "bigint"),
    ],
)
def test_an_expression_has_its_type_and_nullability(expr: Expr, type_: str) -> None:
    assert shown_type(expr_type(expr, WIDE)) == type_


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        (_c(7), "column #7 of 7 columns"),
        (_c(-1), "column #-1 of 7 columns"),
        (_call("+", _c(0), _c(3)), "+ of bigint and text"),
        (_call("+", _c(3), _c(3)), "+ of text"),
        (_call("+", _c(0)), "+ takes 2 arguments, 1 given"),
        (_call("=", _c(0), _c(6)), "= of bigint and timestamp"),
        (_call("and"), "and takes 1 or more arguments, 0 given"),
        (_call("and", _c(0)), "and of bigint"),
        (_call("not", _c(0)), "not of bigint"),
        (_call("is_true", _c(0)), "is_true of bigint"),
        (_call("||", _c(0), _c(0)), "|| of bigint and bigint"),
        (_call("sqroot", _c(2)), "function 'sqroot' is not known"),
        (Case(_c(0), _c(0), _c(0)), "condition of CASE is bigint"),
        (Case(_c(4), _c(0), _c(3)), "CASE of bigint and text"),
        (Literal(T.INT64, (1 << 64) - 1), "18446744073709551615 is out of range of bigint"),
        (Literal(T.INT64, "x"), "'x' is no bigint"),
        (Literal(T.INT64, True), "True is no bigint"),
        (Literal(T.BOOL, 1), "1 is no boolean"),
        (Literal(T.FLOAT64, 1), "1 is no double precision"),
        (Literal(T.NUMERIC, "1.5"), "'1.5' is no numeric"),
        (Literal(T.NUMERIC, "9" * 39), "out of range of numeric"),
    ],
)
def test_an_expression_that_does_not_fit_is_refused_by_what_does_not(expr: Expr, says: str) -> None:
    with pytest.raises(Refusal) as caught:
        expr_type(expr, WIDE, "here")
    assert caught.value.code == "invalid-plan"
    assert caught.value.message.startswith("here: ")
    assert says in caught.value.message


def _types(plan: Plan) -> list[str]:
    return [shown_type(column) for column in plan_schema(plan, ENV).columns]


def _edges() -> Schema:
    return Schema((Column("a", T.INT64),))


@pytest.mark.parametrize(
    ("plan", "types"),
    [
        (Get("u2"), ["bigint", "text"]),
        (Mfp(Get("u2"), (_call("+", _c(0), _c(0)), _call("neg", _c(2))), (), (3, 0, 0)), ["bigint"] * 3),
        (Join((Get("u2"), Get("u2")), ((_c(0), _c(2)),)), ["bigint", "text", "bigint", "text"]),
        (
            Reduce(
                Get("u1"),
                (_c(3),),
                (
                    Aggregate("count"),
                    Aggregate("count", _c(1)),
                    Aggregate("sum", _c(0)),
                    Aggregate("sum", _c(1)),
                    Aggregate("sum", _c(2), distinct=True),
                    Aggregate("min", _c(3)),
                    Aggregate("max", _c(6)),
                ),
            ),
            ["text?", "bigint", "bigint", "numeric", "numeric?", "double precision", "text?", "timestamp"],
        ),
        (Reduce(Get("u2"), (), (Aggregate("count"),)), ["bigint"]),
        (Reduce(Get("u2"), (_c(1),)), ["text"]),
        (TopK(Get("u2"), (0,), (OrderBy(1),), Literal(T.INT64, 3)), ["bigint", "text"]),
        (Negate(Threshold(ArrangeBy(Get("u2"), ((_c(0),),)))), ["bigint", "text"]),
        (
            Union((Get("u2"), Mfp(Get("u1"), projection=(1, 3)))),
            ["bigint?", "text?"],
        ),
        (FlatMap(Get("u2"), "generate_series", (_c(0), _c(0))), ["bigint", "text", "bigint"]),
        (FlatMap(Get("u2"), "string_to_table", (_c(1), _c(1)), True), ["bigint", "text", "text", "bigint"]),
        (
            FlatMap(Get("u2"), "regexp_extract", (Literal(T.TEXT, "(a)(?:b)(?P<c>[(])"), _c(1))),
            ["bigint", "text", "text", "text"],
        ),
        (Constant((((1,), 1), ((2,), -3)), _edges()), ["bigint"]),
        (Let("l0", Get("u2"), Get("l0")), ["bigint", "text"]),
        (
            LetRec((("l0", _edges(), Union((Mfp(Get("u2"), projection=(0,)), Get("l0")))),), Get("l0")),
            ["bigint"],
        ),
    ],
)
def test_a_plan_has_its_schema(plan: Plan, types: list[str]) -> None:
    assert _types(plan) == types


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Get("u9"), "b: Get: u9 is no import"),
        (Get("l0"), "b: Get: l0 is no import"),
        (Mfp(Get("u2"), (_c(2),)), "b: Mfp, map 0: column #2 of 2 columns"),
        (Mfp(Get("u2"), (), (_c(0),)), "b: Mfp, predicate 0: it is bigint, not boolean"),
        (Mfp(Get("u2"), projection=(0, 5)), "b: Mfp, projection: column #5 of 2 columns"),
        (Join((Get("u2"), Get("u2")), ((_c(0), _c(9)),)), "b: Join, equivalence 0: column #9 of 4 columns"),
        (Join((Get("u2"), Get("u2")), ((_c(0), _c(3)),)), "b: Join, equivalence 0: = of bigint and text"),
        (Join((Get("u2"), Get("u2")), ((_c(0),),)), "b: Join, equivalence 0: 1 members"),
        (Join((), ()), "b: Join: no inputs"),
        (Union(()), "b: Union: no inputs"),
        (Union((Get("u2"), Get("u1"))), "b: Union: input 1 is (bigint, bigint"),
        (Reduce(Get("u2"), (_c(2),)), "b: Reduce, group key 0: column #2 of 2 columns"),
        (Reduce(Get("u2"), (), (Aggregate("sum", _c(1)),)), "b: Reduce, aggregate 0: sum of text"),
        (Reduce(Get("u2"), (), (Aggregate("sum"),)), "b: Reduce, aggregate 0: sum needs an argument"),
        (
            Reduce(Get("u2"), (), (Aggregate("median", _c(0)),)),
            "aggregate 0: median is not known; there are count, sum, avg, var_samp",
        ),
        (
            Reduce(Get("u2"), (), (Aggregate("string_agg", _c(1)),)),
            "aggregate 0: string_agg takes 2 arguments, not 1",
        ),
        (
            Reduce(Get("u2"), (), (Aggregate("string_agg", _c(1), args=(_c(0),)),)),
            "aggregate 0: string_agg of text and bigint",
        ),
        (
            Reduce(Get("u2"), (), (Aggregate("max", _c(0), order_by=(OrderBy(0),)),)),
            "aggregate 0: max takes no order",
        ),
        (
            Reduce(Get("u2"), (), (Aggregate("array_agg", _c(0), order_by=(OrderBy(7),)),)),
            "aggregate 0, order: column #7 of 2 columns",
        ),
        (
            Reduce(Get("u2"), (), (Aggregate("array_agg", _c(0), True, order_by=(OrderBy(1),)),)),
            "aggregate 0: array_agg(distinct) can be ordered by its arguments alone",
        ),
        (Reduce(Get("u2"), (), (Aggregate("count", None, True),)), "count(distinct) needs an argument"),
        (TopK(Get("u2"), (2,), ()), "b: TopK, group key: column #2 of 2 columns"),
        (TopK(Get("u2"), (), (OrderBy(-1),)), "b: TopK, order: column #-1 of 2 columns"),
        (TopK(Get("u2"), (), (), Literal(T.TEXT, "3")), "b: TopK, limit: it is text, not an integer"),
        (TopK(Get("u2"), (0,), (), None, _c(1)), "b: TopK, offset: it is text, not an integer"),
        (TopK(Get("u2"), (1,), (), _c(0)), "limit: it reads column #0, which is not of the group key"),
        (ArrangeBy(Get("u2"), ((_c(0),), (_c(3),))), "b: ArrangeBy, key 1: column #3 of 2 columns"),
        (FlatMap(Get("u2"), "abs", ()), "table function 'abs' is not known; there are generate_series, "),
        (FlatMap(Get("u2"), "unnest", ()), "b: FlatMap: unnest takes 1 argument, 0 given"),
        (FlatMap(Get("u2"), "unnest", (_c(1),)), "b: FlatMap: unnest of text"),
        (
            FlatMap(Get("u2"), "regexp_extract", (_c(1), _c(1))),
            "argument 1 of regexp_extract must be a constant",
        ),
        (
            FlatMap(Get("u2"), "regexp_extract", (Literal(T.TEXT, "a"), _c(1))),
            "regexp_extract needs a pattern with a group",
        ),
        (Constant((((1, 2), 1),), PAIR), "row 0, column v: 2 is no text"),
        (Constant((((1,), 1),), PAIR), "row 0 has 1 value for 2 columns"),
        (Constant((((None, "a"), 1),), PAIR), "row 0, column k: null in a column that is not nullable"),
        (Negate(Get("u9")), "b: Get: u9"),
        (LetRec((("l0", PAIR, Mfp(Get("l0"), projection=(0,))),), Get("l0")), "binding l0 was declared with"),
        (LetRec((("l0", PAIR, Get("l0")),) * 2, Get("l0")), "a binding is named twice"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_by_node_and_part(plan: Plan, says: str) -> None:
    with pytest.raises(Refusal) as caught:
        plan_schema(plan, ENV, "b")
    assert caught.value.code == "invalid-plan"
    assert says in caught.value.message


def test_nesting_beyond_the_limit_is_refused_and_below_it_is_not() -> None:
    plan: Plan = Get("u2")
    expr: Expr = _c(0)
    for _ in range(MAX_DEPTH):
        plan, expr = Negate(plan), _call("neg", expr)
    assert plan_schema(plan, ENV) == PAIR
    assert expr_type(expr, PAIR).type is T.INT64
    with pytest.raises(Refusal, match="nested deeper than 200"):
        plan_schema(Negate(plan), ENV)
    with pytest.raises(Refusal, match="nested deeper than 200"):
        expr_type(_call("neg", expr), PAIR)


def test_schemas_differ_by_arity_type_or_nullability_and_not_by_name() -> None:
    assert types_problem(PAIR, Schema((Column("x", T.INT64), Column("y", T.TEXT)))) is None
    assert types_problem(PAIR, _edges()) == "2 columns, not 1"
    other = Schema((Column("k", T.INT64), Column("v", T.TEXT, nullable=True)))
    assert types_problem(PAIR, other) == "column 1 is text, not text?"


def test_calls_of_the_same_types_are_resolved_once_whatever_their_columns_are_called() -> None:
    a, b = (Column(name, ColumnType.INT32, nullable=True) for name in "ab")
    first = resolve("+", (a, Column("c", ColumnType.INT64)), (None, 1))
    assert resolve("+", (b, Column("", ColumnType.INT64)), (None, True)) is first
    assert first.result == Column("+", ColumnType.INT64, nullable=True)
    assert not any(column.name for column in first.args)
    numerics = [resolve("*", (Column("n", ColumnType.NUMERIC, scale=s),) * 2, (None, None)) for s in (1, 2)]
    assert [each.result.scale for each in numerics] == [2, 4]


@pytest.mark.soak
def test_typing_many_maps_costs_as_much_each_as_typing_few() -> None:
    took = []
    for count in (1_000, 16_000):
        maps = tuple(Call("+", (ColumnRef(0), Literal(ColumnType.INT64, n))) for n in range(count))
        began = thread_time()
        plan_schema(Mfp(Get("u1"), maps), {"u1": WIDE})
        took.append((thread_time() - began) / count)
    print(f"{1e6 * took[0]:.1f} and {1e6 * took[1]:.1f} us a map")
    assert took[1] < 4 * took[0]
