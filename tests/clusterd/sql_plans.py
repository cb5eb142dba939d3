"""Random plans that mean something in SQL, and that SQL: for a second oracle, that knows nothing of ours.

`SqlPlans` draws plans as random_plans.Plans does, of what means the same in DuckDB and cannot fail.
`Translator` writes a plan over collections, given as their rows at one time, as one SELECT.

Left out, because DuckDB differs or gives up the whole statement where here a row becomes an error:
- errors: division by a column, results out of range, constants that fail; division by zero is NULL there;
- sums and means of doubles: DuckDB adds in any order and rounds each time, and knows no sum of infinities;
- counts below zero, and Negate but as the second part of EXCEPT ALL;
- numerics (their products widen otherwise), intervals (ordered by length there), jsonb, records, lists;
- temporal filters: SQL knows no time of its own.

The same: NaN equals NaN and is the greatest, text is ordered by bytes, NULL stands where it is told to,
groups and DISTINCT and EXCEPT take NULLs for equal, integers are divided towards zero. Ties of a top-k are
broken by the whole row, NULL last, which the translation says.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.plan import (
    Aggregate,
    ArrangeBy,
    Constant,
    FlatMap,
    Get,
    Join,
    Let,
    Mfp,
    Negate,
    OrderBy,
    Plan,
    Reduce,
    Threshold,
    TopK,
    Union,
)
from controller_proto.schema import Column, Schema
from controller_proto.schema import ColumnType as T
from controller_proto.typing_rules import plan_schema
from tests.clusterd import random_plans
from tests.clusterd.random_plans import Row

__all__ = ["DOMAIN", "SqlPlans", "Translator", "schema"]

DOMAIN: dict[T, list[Any]] = {
    T.BOOL: [True, False],
    T.INT64: [0, 0, 1, 1, 2, 3, -1, -7],
    T.FLOAT64: [0.0, 1.0, 0.1, -2.5, float("nan"), float("inf"), float("-inf"), 1e300],
    T.TEXT: ["", "a", "b", "abcdefgh", "abcdefghi", "é", "'"],
    T.TIMESTAMP: [0, 1, -5],
    T.DATE: [0, -1, 18263],
    T.UINT32: [0, 1, 2**32 - 1],
    T.INT16: [0, -1, 2**15 - 1],
}
SQL_TYPES = {
    T.BOOL: "BOOLEAN", T.INT64: "BIGINT", T.FLOAT64: "DOUBLE", T.TEXT: "VARCHAR", T.TIMESTAMP: "TIMESTAMP",
    T.DATE: "DATE", T.UINT32: "UINTEGER", T.INT16: "SMALLINT", T.NUMERIC: "HUGEINT",
}  # fmt: skip


def schema(rng: random.Random) -> Schema:
    """One to four columns of types that both have."""
    columns = []
    for position in range(rng.choice([1, 2, 2, 3, 4])):
        type_ = T.INT64 if position == 0 and rng.random() < 0.7 else rng.choice(list(DOMAIN))
        columns.append(Column(f"c{position}", type_, rng.random() < 0.4))
    return Schema(tuple(columns))


class SqlPlans(random_plans.Plans):
    """As Plans, of expressions that cannot fail and of values that DuckDB has."""

    asks_time = False

    def _inside(self, env: Mapping[str, Schema]) -> random_plans.Plans:
        return SqlPlans(self._rng, env)

    def expr(self, of: Schema, type_: T, depth: int = 1) -> Expr:
        rng = self._rng
        here = [i for i, column in enumerate(of.columns) if column.type is type_]
        if here and (depth == 0 or rng.random() < 0.6):
            return ColumnRef(rng.choice(here))
        if depth == 0 or type_ not in DOMAIN or rng.random() < 0.3:
            values = DOMAIN.get(type_, [])
            return random_plans.literal(
                rng.choice([*values, None] if rng.random() < 0.2 or not values else values), type_
            )
        if type_ is T.BOOL:
            return self.predicate(of, depth)
        parts = self.expr(of, type_, depth - 1), self.expr(of, type_, 0)
        if rng.random() < 0.3:
            return Call(rng.choice(["coalesce", "nullif"]), parts)
        if type_ is T.INT64 and rng.random() < 0.7:
            if rng.random() < 0.3:
                return Call(rng.choice("/%"), (parts[0], Literal(T.INT64, rng.choice([2, 3, -2]))))
            # Of remainders, so that what is multiplied again and again stays small.
            small = tuple(Call("%", (part, Literal(T.INT64, 1000))) for part in parts)
            return Call(rng.choice("+-*"), small)
        if type_ is T.TEXT:
            return Call("||", parts)
        return Case(self.predicate(of, 1), *parts)

    def _member(self, of: Schema, type_: T, shift: int) -> Expr:
        here = [i for i, column in enumerate(of.columns) if column.type is type_]
        expr: Expr = ColumnRef(self._rng.choice(here) + shift)
        if type_ is T.INT64 and self._rng.random() < 0.2:
            expr = Call("%", (expr, Literal(T.INT64, 2)))
        return expr

    def _flat_map(self, source: Plan) -> Plan:
        rng, of = self._rng, self.schema(source)
        bounds = [Literal(T.INT64, n) for n in (-1, 0, 1, 2, 3)]
        start, stop = rng.choice(bounds), Call("%", (self.expr(of, T.INT64), Literal(T.INT64, 4)))
        steps = [Literal(T.INT64, rng.choice([1, 2, -1]))] * rng.choice([0, 0, 1])
        return FlatMap(source, "generate_series", (start, stop, *steps))

    def _top_k(self, source: Plan) -> Plan:
        rng, of = self._rng, self.schema(source)
        group = tuple(i for i in range(of.arity) if rng.random() < 0.3)
        order = tuple(
            OrderBy(i, rng.random() < 0.5, rng.random() < 0.3) for i in range(of.arity) if rng.random() < 0.4
        )
        limit = rng.choice([None, 0, 1, 1, 2, 3])
        bound = None if limit is None else Literal(T.INT64, limit)
        return TopK(source, group, order, bound, rng.choice([0, 0, 0, 1, 2]))

    def _reduce(self, source: Plan) -> Plan:
        rng, of = self._rng, self.schema(source)
        aggregates = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            type_ = self._some_type(of)
            functions = ["count", "count", "min", "max"]
            functions += ["sum"] * 2 if type_ in (T.INT64, T.INT16, T.UINT32) else []
            functions += ["bool_and", "bool_or"] if type_ is T.BOOL else []
            functions += ["string_agg"] if type_ is T.TEXT else []
            function = rng.choice(functions)
            star = function == "count" and rng.random() < 0.5
            args = (Literal(T.TEXT, ", "),) if function == "string_agg" else ()
            distinct = not star and rng.random() < 0.3
            aggregates.append(Aggregate(function, None if star else self.expr(of, type_), distinct, args))
        return Reduce(source, self._some_exprs(of, rng.choice([0, 1, 1, 2])), tuple(aggregates))

    def _beside_constant(self, source: Plan) -> Plan:
        rng, of = self._rng, self.schema(source)
        rows = []
        for _ in range(rng.choice([0, 1, 3])):
            row = tuple(
                None
                if c.type not in DOMAIN or (c.nullable and rng.random() < 0.3)
                else rng.choice(DOMAIN[c.type])
                for c in of.columns
            )
            if all(v is not None or c.nullable for v, c in zip(row, of.columns, strict=True)):
                rows.append((row, rng.choice([1, 1, 2])))
        return Union((source, Constant(tuple(rows), of)))


class Translator:
    """collections: the rows, with their counts, that the names of `env` stand for."""

    def __init__(self, env: Mapping[str, Schema], collections: Mapping[str, Mapping[Row, int]]) -> None:
        self._env = dict(env)
        self._sources = {
            id: _values([row for row, count in rows.items() for _ in range(count)], env[id])
            for id, rows in collections.items()
        }
        self._made = itertools.count()

    def select(self, plan: Plan) -> str:
        """A SELECT whose columns are c0, c1, ..; a plan without columns has one, which is NULL."""
        match plan:
            case Get(id):
                return self._sources[id]
            case Constant(rows, of, _):
                return _values([row for row, count in rows for _ in range(count)], of)
            case Let(id, value, body):
                return self._let(id, value, body)
            case Mfp(source):
                return self._mfp(plan, source)
            case ArrangeBy(source):
                return self.select(source)
            case Union(inputs):
                return self._union(inputs)
            case Threshold(Union((left, Negate(right)))):
                return f"({self.select(left)}) EXCEPT ALL ({self.select(right)})"
            case Join():
                return self._join(plan)
            case FlatMap(source, _, args):
                arity = self._schema(source).arity
                series = f"unnest(generate_series({', '.join(expression(arg) for arg in args)}))"
                return f"SELECT {_columns(arity)}{series} AS c{arity} FROM ({self.select(source)})"
            case Reduce(source, key, aggregates):
                return self._reduce(source, key, aggregates)
            case TopK(source):
                return self._top_k(plan, source)
        raise NotImplementedError(type(plan).__name__)

    def _schema(self, plan: Plan) -> Schema:
        return plan_schema(plan, self._env)

    def _let(self, id: str, value: Plan, body: Plan) -> str:
        made, name = self.select(value), f"let{next(self._made)}"
        outer = self._env, self._sources
        self._env, self._sources = (
            {**self._env, id: self._schema(value)}, {**self._sources, id: f"SELECT * FROM {name}"},
        )  # fmt: skip
        inside = self.select(body)
        self._env, self._sources = outer
        return f"SELECT * FROM (WITH {name} AS ({made}) {inside})"

    def _mfp(self, plan: Mfp, source: Plan) -> str:
        inside, arity = self.select(source), self._schema(source).arity
        for expr in plan.maps:
            inside = f"SELECT {_columns(arity)}{expression(expr)} AS c{arity} FROM ({inside})"
            arity += 1
        where = " AND ".join(f"({expression(p)})" for p in plan.predicates) or "TRUE"
        kept = range(arity) if plan.projection is None else plan.projection
        picks = ", ".join(f"c{c} AS c{n}" for n, c in enumerate(kept)) or "NULL AS c0"
        return f"SELECT {picks} FROM ({inside}) WHERE {where}"

    def _union(self, inputs: Sequence[Plan]) -> str:
        added = [each for each in inputs if not isinstance(each, Negate)]
        out = " UNION ALL ".join(f"({self.select(each)})" for each in added)
        for each in inputs:
            if isinstance(each, Negate):
                out = f"({out}) EXCEPT ALL ({self.select(each.input)})"
        return out

    def _join(self, plan: Join) -> str:
        arities = [self._schema(each).arity for each in plan.inputs]
        starts = [sum(arities[:i]) for i in range(len(arities))]
        parts = [
            f"(SELECT {', '.join(f'c{c} AS c{start + c}' for c in range(arity)) or 'NULL AS none'} "
            f"FROM ({self.select(each)})) AS s{n}"
            for n, (each, arity, start) in enumerate(zip(plan.inputs, arities, starts, strict=True))
        ]
        equal = "IS NOT DISTINCT FROM" if plan.null_safe else "="
        tests = [
            f"({expression(a)} {equal} {expression(b)})"
            for members in plan.equivalences
            for a, b in itertools.pairwise(members)
        ]
        whole = ", ".join(f"c{c}" for c in range(sum(arities))) or "NULL AS c0"
        where = " AND ".join(tests) or "TRUE"
        return f"SELECT * FROM (SELECT {whole} FROM {', '.join(parts)}) WHERE {where}"

    def _reduce(self, source: Plan, key: Sequence[Expr], aggregates: Sequence[Aggregate]) -> str:
        picks = [expression(expr) for expr in key] + [_aggregate(each) for each in aggregates]
        shown = ", ".join(f"{pick} AS c{n}" for n, pick in enumerate(picks)) or "NULL AS c0"
        inside = f"SELECT {shown} FROM ({self.select(source)})"
        if not aggregates:
            return inside.replace("SELECT", "SELECT DISTINCT", 1)
        if not key:
            return f"{inside} HAVING count(*) > 0"
        return f"{inside} GROUP BY {', '.join(str(n + 1) for n in range(len(key)))}"

    def _top_k(self, plan: TopK, source: Plan) -> str:
        arity = self._schema(source).arity
        order = [
            f"c{by.column} {'DESC' if by.descending else 'ASC'} NULLS {'FIRST' if by.nulls_first else 'LAST'}"
            for by in plan.order
        ]
        order += [f"c{c} ASC NULLS LAST" for c in range(max(arity, 1))]
        group = ", ".join(f"c{c}" for c in plan.group_key)
        part = f"PARTITION BY {group} " if group else ""
        first, bound = plan.offset, ""
        assert isinstance(first, int)
        if isinstance(plan.limit, Literal):
            bound = f" AND n <= {first + int(str(plan.limit.value))}"
        place = f"row_number() OVER ({part}ORDER BY {', '.join(order)})"
        inside = f"SELECT *, {place} AS n FROM ({self.select(source)})"
        return f"SELECT * EXCLUDE (n) FROM ({inside}) WHERE n > {first}{bound}"


def _columns(arity: int) -> str:
    return "".join(f"c{c}, " for c in range(arity))


def _values(rows: Sequence[Row], of: Schema) -> str:
    types = [SQL_TYPES[column.type] for column in of.columns]
    if not rows:
        nothing = ", ".join(f"NULL::{t} AS c{n}" for n, t in enumerate(types)) or "NULL AS c0"
        return f"SELECT {nothing} WHERE FALSE"
    if not types:
        return f"SELECT NULL AS c0 FROM range({len(rows)})"
    lines = ", ".join(
        f"({', '.join(constant(v, c.type) for v, c in zip(row, of.columns, strict=True))})" for row in rows
    )
    return f"SELECT * FROM (VALUES {lines}) AS v({', '.join(f'c{n}' for n in range(len(types)))})"


def constant(value: Any, type_: T) -> str:
    """A value of the naive interpreter, in SQL."""
    if value is None:
        return f"NULL::{SQL_TYPES[type_]}"
    if type_ is T.TIMESTAMP:
        return f"make_timestamp({value}::BIGINT)"
    if type_ is T.DATE:
        return f"(DATE '1970-01-01' + {value})"
    text = str(value).replace("'", "''")
    return f"'{text}'::{SQL_TYPES[type_]}"


def expression(expr: Expr) -> str:
    match expr:
        case ColumnRef(index):
            return f"c{index}"
        case Literal(type_, value):
            return constant(value, type_)
        case Case(condition, then, otherwise):
            parts = [expression(each) for each in (condition, then, otherwise)]
            return "CASE WHEN {} THEN {} ELSE {} END".format(*parts)
        case Call(function, args):
            parts = [expression(each) for each in args]
            return _call(function, parts)


def _call(function: str, parts: Sequence[str]) -> str:
    if function in ("coalesce", "nullif"):
        return f"{function}({', '.join(parts)})"
    if function in ("not",):
        return f"(NOT {parts[0]})"
    if function == "is_null":
        return f"({parts[0]} IS NULL)"
    if function == "between":
        return "({} BETWEEN {} AND {})".format(*parts)
    if function == "in":
        return f"({parts[0]} IN ({', '.join(parts[1:])}))"
    sign = {"and": "AND", "or": "OR", "!=": "<>", "/": "//"}.get(function, function)
    return f"({f' {sign} '.join(parts)})"


def _aggregate(aggregate: Aggregate) -> str:
    if aggregate.expr is None:
        return "count(*)"
    of = expression(aggregate.expr)
    what = f"DISTINCT {of}" if aggregate.distinct else of
    if aggregate.function == "string_agg":
        return f"string_agg({what}, ', ' ORDER BY {of})"
    return f"{aggregate.function}({what})"
