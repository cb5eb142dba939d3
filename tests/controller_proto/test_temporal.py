"""What a predicate says about the time, and which predicates say nothing that can be kept."""

from __future__ import annotations

import pytest

from controller_proto.errors import Refusal
from controller_proto.expr import ColumnRef, Expr, Literal
from controller_proto.parse_expr import parse_expr
from controller_proto.plan import Get, Mfp, Plan, Reduce
from controller_proto.schema import Column, ColumnType, Schema
from controller_proto.temporal import TimeTest, asks_time, split_predicate
from controller_proto.typing_rules import plan_schema

X = ColumnRef(0)
ROW = Schema((Column("x", ColumnType.INT64), Column("t", ColumnType.TEXT)))


def one(n: int) -> Expr:
    return Literal(ColumnType.INT64, n)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("now_ts() < #0", (TimeTest("<", 0, X),)),
        ("#0 < now_ts()", (TimeTest(">", 0, X),)),
        ("#0 >= now_ts() - 5", (TimeTest("<=", -5, X),)),
        ("3 + now_ts() + 4 = #0", (TimeTest("=", 7, X),)),
        ("now_ts() BETWEEN #0 AND 9", (TimeTest(">=", 0, X), TimeTest("<=", 0, one(9)))),
        ("#0 BETWEEN now_ts() AND 9", (TimeTest("<=", 0, X), parse_expr("#0 <= 9"))),
        ("#0 = 1 AND (now_ts() > 2 AND #0 < 3)",
         (parse_expr("#0 = 1"), TimeTest(">", 0, one(2)), parse_expr("#0 < 3"))),
        ("#0 = 1 AND #0 < 3", (parse_expr("#0 = 1 AND #0 < 3"),)),
    ],
)  # fmt: skip
def test_a_predicate_is_its_conjuncts(text: str, parts: tuple[Expr | TimeTest, ...]) -> None:
    assert split_predicate(parse_expr(text)) == parts


@pytest.mark.parametrize(
    "text",
    [
        "now_ts() != #0", "now_ts() < #0 OR #0 = 1", "NOT now_ts() < #0", "now_ts() < now_ts() + #0",
        "now_ts() * 2 < #0", "now_ts() + #0 < 5", "5 - now_ts() < #0", "now_ts() IN (#0, 3)",
        "CASE WHEN now_ts() < 3 THEN true ELSE false END", "now_ts() + 1.5 < #0", "now_ts() IS NULL",
    ],
)  # fmt: skip
def test_what_else_a_predicate_asks_of_the_time_is_refused_and_named(text: str) -> None:
    predicate = parse_expr(text)
    assert asks_time(predicate)
    with pytest.raises(ValueError, match="joined by AND, and by nothing else"):
        split_predicate(predicate)
    with pytest.raises(Refusal, match=r"^invalid-plan: build u9: Mfp, predicate 1: "):
        plan_schema(Mfp(Get("u1"), (), (parse_expr("#0 = 1"), predicate)), {"u1": ROW}, "build u9")


@pytest.mark.parametrize(
    ("plan", "where"),
    [
        (Mfp(Get("u1"), (parse_expr("now_ts()"),)), "Mfp, map 0"),
        (Reduce(Get("u1"), (parse_expr("now_ts() + #0"),)), "Reduce, group key 0"),
    ],
)
def test_the_time_stands_in_predicates_alone(plan: Plan, where: str) -> None:
    with pytest.raises(Refusal, match=f"{where}: now_ts\\(\\) may stand in predicates"):
        plan_schema(plan, {"u1": ROW})


def test_the_time_is_compared_with_numbers() -> None:
    with pytest.raises(Refusal, match="bigint and text"):
        plan_schema(Mfp(Get("u1"), (), (parse_expr("now_ts() < #1"),)), {"u1": ROW})
