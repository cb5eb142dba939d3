"""Expressions on columns say what naive evaluation says row by row, and what DuckDB says where it agrees."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pytest

from clusterd.render.expr import CompiledExpr, compile_expr, conjunction
from clusterd.render.functions import MESSAGES, Evaluated
from controller_proto.errors import Refusal
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.schema import ColumnType as T
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec, ColumnType
from tests.clusterd import naive

VALUES: dict[T, list[Any]] = {
    T.BOOL: [True, False, None],
    T.INT64: [0, 1, -1, 2, 7, -7, 3037000500, naive.I64_MAX, naive.I64_MIN, None],
    T.FLOAT64: [0.0, 1.0, -1.5, 0.1, 1e300, -1e300, 1e-300, float("inf"), float("-inf"), naive.NAN, None],
    T.TEXT: ["", "a", "b", "ab", "abcdefghij", "abcdefghik", "é", "\x7f", None],
    T.TIMESTAMP: [0, -1, 1_700_000_000_000_000, None],
    T.NUMERIC: [0, 1, -1, 3, 10**19, -(10**19), 10**38 - 1, 1 - 10**38, 2**64, None],
}
TYPES = tuple(VALUES)
SPECS = tuple(ColumnSpec(f"c{i}", ColumnType[t.name], True) for i, t in enumerate(TYPES * 2))
WIRE_TYPES = TYPES * 2


def literal(type_: T, value: Any) -> Literal:
    return Literal(type_, str(value) if type_ is T.NUMERIC and value is not None else value)


def random_expr(rng: random.Random, type_: T, depth: int) -> Expr:
    """An expression of `type_` over the columns of SPECS."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.3:
            return literal(type_, rng.choice(VALUES[type_]))
        return ColumnRef(rng.choice([i for i, t in enumerate(WIRE_TYPES) if t is type_]))
    if rng.random() < 0.12:
        then, otherwise = random_expr(rng, type_, depth - 1), random_expr(rng, type_, depth - 1)
        return Case(random_expr(rng, T.BOOL, depth - 1), then, otherwise)
    if rng.random() < 0.1:
        parts = (random_expr(rng, type_, depth - 1), random_expr(rng, type_, depth - 1))
        return Call(rng.choice(["coalesce", "coalesce", "nullif"]), parts)
    if type_ is T.BOOL:
        return random_predicate(rng, depth)
    if type_ in (T.INT64, T.FLOAT64, T.NUMERIC):
        if rng.random() < 0.1:
            return Call("neg", (random_expr(rng, type_, depth - 1),))
        other = T.INT64 if rng.random() < 0.2 else type_
        quotient = "div" if type_ is T.NUMERIC else "/"
        return Call(
            rng.choice([*"+-*%", quotient]),
            (random_expr(rng, type_, depth - 1), random_expr(rng, other, depth - 1)),
        )
    if type_ is T.TEXT:
        return Call("||", (random_expr(rng, type_, depth - 1), random_expr(rng, type_, depth - 1)))
    return random_expr(rng, type_, 0)


def random_predicate(rng: random.Random, depth: int) -> Expr:
    function = rng.choice(["and", "or", "not", "is_null", "is_true", "is_false", *(["compare"] * 4)])
    if function in ("and", "or"):
        return Call(
            function, tuple(random_expr(rng, T.BOOL, depth - 1) for _ in range(rng.choice((2, 2, 3))))
        )
    if function in ("not", "is_true", "is_false"):
        return Call(function, (random_expr(rng, T.BOOL, depth - 1),))
    of = rng.choice(TYPES)
    if function == "is_null":
        return Call(function, (random_expr(rng, of, depth - 1),))
    other = T.INT64 if of in (T.FLOAT64, T.NUMERIC) and rng.random() < 0.2 else of
    args = (random_expr(rng, of, depth - 1), random_expr(rng, other, depth - 1))
    if rng.random() < 0.15:
        return Call(rng.choice(["between", "in"]), (*args, random_expr(rng, of, depth - 1)))
    return Call(rng.choice(["=", "!=", "<", "<=", ">", ">=", "is_distinct_from"]), args)


def random_rows(rng: random.Random, n: int) -> list[tuple[Any, ...]]:
    return [tuple(rng.choice(VALUES[t]) for t in WIRE_TYPES) for _ in range(n)]


def columns_of(rows: Sequence[Sequence[Any]], specs: Sequence[ColumnSpec] = SPECS) -> list[Evaluated]:
    return [Evaluated(Column.from_pylist(s.type, [r[i] for r in rows])) for i, s in enumerate(specs)]


def results(compiled: CompiledExpr, inputs: Sequence[Evaluated], n: int) -> list[Any]:
    """Values, None, or Err, one a row; checks the promises of the result on the way."""
    out = compiled(inputs, n)
    assert len(out.column) == n
    assert out.column.type is compiled.type
    values = out.column.to_pylist()
    valid = out.column.validity
    if valid is not None:
        zero = (
            out.column.values[~valid] if out.column.offsets is None else np.diff(out.column.offsets)[~valid]
        )
        assert not np.any(zero), "a NULL holds something"
    if out.errors is not None:
        assert compiled.fallible
        for i in np.flatnonzero(out.errors):
            assert values[i] is None, "an error has a value"
            values[i] = naive.Err(MESSAGES[out.errors[i] - 1])
    assert compiled.nullable or None not in values
    return values


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return a == b and str(a) == str(b) if a == a else b != b
    return bool(a == b)


def check(expr: Expr, rows: Sequence[tuple[Any, ...]], inputs: Sequence[Evaluated]) -> None:
    compiled = compile_expr(expr, SPECS)
    for row, got in zip(rows, results(compiled, inputs, len(rows)), strict=True):
        wanted = naive.evaluate(expr, row, WIRE_TYPES)
        assert same(got, wanted), f"{expr} over {row}: {got!r}, naive {wanted!r}"


@pytest.mark.slow
def test_random_expressions_are_what_each_row_alone_would_give() -> None:
    for seed in range(8):
        print(f"seed {seed}")
        rng = random.Random(seed)
        rows = random_rows(rng, 60)
        inputs = columns_of(rows)
        for number in range(150):
            check(random_expr(rng, TYPES[number % len(TYPES)], 1 + number % 4), rows, inputs)


def test_every_function_over_every_pair_of_special_values() -> None:
    for type_ in TYPES:
        position = WIRE_TYPES.index(type_)
        pairs = [(a, b) for a in VALUES[type_] for b in VALUES[type_]]
        rows = []
        for a, b in pairs:
            row: list[Any] = [None] * len(WIRE_TYPES)
            row[position], row[position + len(TYPES)] = a, b
            rows.append(tuple(row))
        inputs = columns_of(rows)
        functions = ["=", "!=", "<", "<=", ">", ">="]
        functions += {
            T.BOOL: ["and", "or"],
            T.TEXT: ["||"],
            T.TIMESTAMP: [],
            T.NUMERIC: [*"+-*%", "div"],
        }.get(type_, list("+-*/%"))
        for function in functions:
            check(Call(function, (ColumnRef(position), ColumnRef(position + len(TYPES)))), rows, inputs)
            for constant in VALUES[type_]:
                check(Call(function, (ColumnRef(position), literal(type_, constant))), rows, inputs)
                check(Call(function, (literal(type_, constant), ColumnRef(position))), rows, inputs)


def test_no_rows_are_no_problem() -> None:
    inputs = columns_of([])
    rng = random.Random(5)
    for number in range(100):
        expr = random_expr(rng, TYPES[number % len(TYPES)], 3)
        assert results(compile_expr(expr, SPECS), inputs, 0) == []


def test_guards_keep_errors_out_on_either_side() -> None:
    spec = (ColumnSpec("x", ColumnType.INT64, True),)
    inputs = columns_of([(0,), (2,), (None,)], spec)
    x, zero = ColumnRef(0), Literal(T.INT64, 0)
    quotient = Call("/", (Literal(T.INT64, 10), x))
    big, not_zero = Call(">", (quotient, zero)), Call("!=", (x, zero))
    failed = naive.Err(naive.DIVISION)
    for expr, wanted in [
        (Call("and", (not_zero, big)), [False, True, None]),
        (Call("and", (big, not_zero)), [False, True, None]),
        (Call("or", (Call("=", (x, zero)), big)), [True, True, None]),
        (Call("or", (big, Call("=", (x, zero)))), [True, True, None]),
        (Case(Call("=", (x, zero)), Literal(T.INT64, None), quotient), [None, 5, None]),
        (Case(big, x, zero), [failed, 2, 0]),
        (Call("is_null", (quotient,)), [failed, False, True]),
        (Call("and", (big, Literal(T.BOOL, None))), [failed, None, None]),
    ]:
        assert results(compile_expr(expr, spec), inputs, 3) == wanted, expr


def test_errors_of_earlier_columns_pass_through_and_the_first_is_told() -> None:
    spec = (ColumnSpec("x", ColumnType.INT64, True),) * 2
    column = Column.from_pylist(ColumnType.INT64, [None, 1])
    inputs = [Evaluated(column, np.array([2, 0], np.uint8)), columns_of([(0,), (0,)], spec[:1])[0]]
    total = Call("+", (ColumnRef(0), Call("/", (ColumnRef(0), ColumnRef(1)))))
    assert results_with(total, spec, inputs) == [naive.Err(naive.BIGINT), naive.Err(naive.DIVISION)]


def results_with(expr: Expr, spec: Sequence[ColumnSpec], inputs: Sequence[Evaluated]) -> list[Any]:
    compiled = compile_expr(expr, spec)
    out = compiled(inputs, 2)
    assert out.errors is not None
    return [naive.Err(MESSAGES[code - 1]) for code in out.errors]


def test_a_conjunction_of_nothing_is_none_and_of_a_number_is_refused() -> None:
    assert conjunction([]) is None
    with pytest.raises(Refusal, match="and of bigint"):
        conjunction([compile_expr(ColumnRef(0), (ColumnSpec("x", ColumnType.INT64, False),))])


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (ColumnRef(99), "column #99 of 12 columns"),
        (Call("+", (ColumnRef(3), ColumnRef(3))), r"\+ of text"),
        (Call("=", (ColumnRef(1), ColumnRef(3))), "= of bigint and text"),
        (Call("=", (ColumnRef(3), ColumnRef(5))), "= of text and numeric"),
        (Call("neg", (ColumnRef(0),)), "neg of boolean"),
        (Call("||", (ColumnRef(1), ColumnRef(1))), "|| of bigint and bigint"),
        (Call("not", ()), "not takes 1 argument, 0 given"),
        (Call("sqroot", (ColumnRef(2), ColumnRef(2))), "function 'sqroot' is not known"),
        (Literal(T.INT64, 1 << 63), "literal 9223372036854775808"),
        (Literal(T.TEXT, 5), "literal 5"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name(expr: Expr, message: str) -> None:
    with pytest.raises(Refusal) as caught:
        compile_expr(expr, SPECS)
    assert caught.value.code == "invalid-plan"
    assert message.replace("\\", "") in caught.value.message


SQL_TYPES = {
    T.BOOL: "BOOLEAN",
    T.INT64: "BIGINT",
    T.FLOAT64: "DOUBLE",
    T.TEXT: "VARCHAR",
    T.TIMESTAMP: "BIGINT",
}
SMALL: dict[T, list[Any]] = {
    **{t: VALUES[t] for t in (T.BOOL, T.TEXT, T.TIMESTAMP)},
    T.INT64: [0, 1, -1, 2, 7, -7, 1000, None],
    T.FLOAT64: [0.0, 1.0, -1.5, 0.25, 1e10, float("inf"), naive.NAN, None],
}


def to_sql(expr: Expr) -> str:
    if isinstance(expr, ColumnRef):
        return f"c{expr.index}"
    if isinstance(expr, Literal):
        if expr.value is None:
            return f"NULL::{SQL_TYPES[expr.type]}"
        text = str(expr.value).replace("'", "''")
        return f"'{text}'::{SQL_TYPES[expr.type]}"
    if isinstance(expr, Case):
        parts = (expr.condition, expr.then, expr.otherwise)
        return "(CASE WHEN {} THEN {} ELSE {} END)".format(*map(to_sql, parts))
    args = [to_sql(a) for a in expr.args]
    if expr.function in ("coalesce", "nullif"):
        return f"{expr.function}({', '.join(args)})"
    if expr.function == "between":
        return f"({args[0]} BETWEEN {args[1]} AND {args[2]})"
    if expr.function == "in":
        return f"({args[0]} IN ({', '.join(args[1:])}))"
    if expr.function == "neg":
        return f"(-{args[0]})"
    if expr.function == "not":
        return f"(NOT {args[0]})"
    if expr.function in ("is_null", "is_true", "is_false"):
        return f"({args[0]} {expr.function.upper().replace('_', ' ')})"
    word = {"is_distinct_from": "IS DISTINCT FROM"}.get(expr.function, expr.function.upper())
    return "(" + f" {word} ".join(args) + ")"


def divides(expr: Expr) -> bool:
    if isinstance(expr, Case):
        return any(map(divides, (expr.condition, expr.then, expr.otherwise)))
    return isinstance(expr, Call) and (expr.function in ("/", "%") or any(map(divides, expr.args)))


def uses(expr: Expr, type_: T) -> bool:
    """Whether `type_` occurs: DuckDB's numerics widen differently."""
    if isinstance(expr, ColumnRef):
        return WIRE_TYPES[expr.index] is type_
    if isinstance(expr, Literal):
        return expr.type is type_
    parts = (expr.condition, expr.then, expr.otherwise) if isinstance(expr, Case) else expr.args
    return any(uses(e, type_) for e in parts)


@pytest.mark.slow
def test_duckdb_agrees_where_it_has_the_same_meaning() -> None:
    seed = 11
    print(f"seed {seed}")
    rng = random.Random(seed)
    rows = [tuple(rng.choice(SMALL.get(t, [None])) for t in WIRE_TYPES) for _ in range(40)]
    inputs = columns_of(rows)
    db = duckdb.connect()
    kept = [i for i, t in enumerate(WIRE_TYPES) if t is not T.NUMERIC]
    names = ", ".join(f"c{i} {SQL_TYPES[WIRE_TYPES[i]]}" for i in kept)
    db.execute(f"CREATE TABLE t (n INTEGER, {names})")
    marks = ", ".join("?" * (len(kept) + 1))
    for n, row in enumerate(rows):
        db.execute(f"INSERT INTO t VALUES ({marks})", [n, *(row[i] for i in kept)])
    asked = 0
    while asked < 150:
        expr = random_expr(rng, rng.choice([T.BOOL, T.INT64, T.TEXT, T.BOOL]), rng.choice((2, 3)))
        if divides(expr) or uses(expr, T.NUMERIC):
            continue
        got = results(compile_expr(expr, SPECS), inputs, len(rows))
        if any(isinstance(value, naive.Err) for value in got):
            continue  # one error fails a whole query there
        wanted = [v for (v,) in db.execute(f"SELECT {to_sql(expr)} FROM t ORDER BY n").fetchall()]
        assert all(map(same, got, wanted)), f"{to_sql(expr)}: {got} {wanted}"
        asked += 1
