"""Random schemas, histories and plans that type-check, from one seeded generator.

Values come from small domains, so that keys meet, groups fill, and errors happen and heal. A history never
retracts what is not there, unless asked to.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
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
from controller_proto.schema import INTEGERS, Column, Schema
from controller_proto.schema import ColumnType as T
from controller_proto.temporal import asks_time
from controller_proto.typing_rules import expr_type, plan_schema
from tests.clusterd import naive

Row = tuple[Any, ...]
NUMBERS = (T.INT64, T.FLOAT64, T.NUMERIC)
TIMES = 8  # a bound of a temporal filter is often one of so many

COMMON: dict[T, list[Any]] = {
    T.BOOL: [True, False],
    T.INT64: [0, 0, 1, 1, 2, 3, -1, naive.I64_MAX],
    T.FLOAT64: [0.0, 1.0, 0.1, -2.5, naive.NAN, float("inf"), float("-inf"), 1e308],
    T.TEXT: ["", "a", "b", "abcdefgh", "abcdefghi", "é"],
    T.TIMESTAMP: [0, 1, -5],
    T.NUMERIC: [0, 1, -1, 10**37 * 9, 5],
}
OTHERS: dict[T, list[Any]] = {
    T.INT16: [0, 1, -(2**15), 2**15 - 1],
    T.INT32: [0, -1, 2**31 - 1],
    T.UINT16: [0, 1, 2**16 - 1],
    T.UINT32: [0, 1, 2**32 - 1],
    T.UINT64: [0, 1, 2**63, 2**64 - 1],
    T.FLOAT32: [0.0, -1.5, naive.NAN, float("-inf")],
    T.BYTEA: [b"", b"\x00", b"abcdefgh", b"abcdefgh\x00", b"\xff"],
    T.DATE: [0, -1, 18263],
    T.TIME: [0, 86_400_000_000],
    T.TIMESTAMPTZ: [0, 1, -5],
    T.INTERVAL: [(0, 0, 0), (0, 0, -1), (0, 1, 0), (-1, 40, 0)],
    T.UUID: [uuid.UUID(int=0), uuid.UUID(int=1), uuid.UUID(int=1 << 64), uuid.UUID(int=255 << 120)],
    T.JSONB: ["1", "[]", '{"a":1}', "null"],
    T.LIST: [(), (1,), (1, 2), (1, None), (None,)],
    T.RECORD: [(0, "a"), (0, None), (0, "b"), (-1, "abcdefghi")],
}
DOMAIN = {**COMMON, **OTHERS}
FIELDS: dict[T, tuple[Column, ...]] = {
    T.LIST: (Column("element", T.INT16, True),),
    T.RECORD: (Column("a", T.DATE), Column("b", T.TEXT, True)),
}


def schema(rng: random.Random, shared: T | None = None) -> Schema:
    """One to four columns; the first is often `shared`, or a bigint, so that joins find partners."""
    columns = []
    for position in range(rng.choice([1, 2, 2, 3, 4])):
        type_ = rng.choice(list(COMMON if rng.random() < 0.7 else OTHERS))
        if position == 0 and rng.random() < 0.8:
            type_ = shared or T.INT64
        columns.append(Column(f"c{position}", type_, rng.random() < 0.4, 0, FIELDS.get(type_, ())))
    return Schema(tuple(columns))


def value(rng: random.Random, column: Column, domain: Mapping[T, list[Any]] = DOMAIN) -> Any:
    if column.nullable and rng.random() < 0.25:
        return None
    return rng.choice(domain[column.type])


def history(
    rng: random.Random,
    of: Schema,
    changes: int,
    times: int,
    *,
    valid: bool = True,
    domain: Mapping[T, list[Any]] = DOMAIN,
) -> list[tuple[Row, int, int]]:
    """Updates in ascending time; if `valid`, no count is ever negative. In some most rows begin alike."""
    live: list[Row] = []
    out: list[tuple[Row, int, int]] = []
    skewed = value(rng, of.columns[0], domain) if of.columns and rng.random() < 0.2 else None
    for time in sorted(rng.randrange(times) for _ in range(changes)):
        if live and rng.random() < 0.45:
            out.append((live.pop(rng.randrange(len(live))), time, -1))
        else:
            row = tuple(value(rng, column, domain) for column in of.columns)
            if skewed is not None and rng.random() < 0.8:
                row = (skewed, *row[1:])
            copies = rng.choice([1, 1, 1, 2])
            live += [row] * copies
            out.append((row, time, copies if valid or rng.random() < 0.8 else -copies))
    return out


def wire_value(value: Any, type_: T) -> Any:
    """A value of the naive interpreter as scripts and plans write it."""
    return str(value) if type_ in (T.NUMERIC, T.UUID) and value is not None else value


def wire_literal(rng: random.Random, type_: T) -> Literal:
    return literal(rng.choice(DOMAIN[type_]), type_)


def literal(value: Any, type_: T) -> Literal:
    return Literal(type_, wire_value(value, type_), 0, FIELDS.get(type_, ()))


class Plans:
    """Plans over the collections of `env`. signed: counts may be negative where nothing forbids it."""

    asks_time = True

    def __init__(self, rng: random.Random, env: Mapping[str, Schema], *, signed: bool = False) -> None:
        self._rng = rng
        self._env = dict(env)
        self._signed = signed

    def schema(self, plan: Plan) -> Schema:
        return plan_schema(plan, self._env)

    def _inside(self, env: Mapping[str, Schema]) -> Plans:
        """What draws the body of a Let."""
        inner = Plans(self._rng, env, signed=self._signed)
        inner.asks_time = self.asks_time
        return inner

    def plan(self, depth: int) -> Plan:
        rng = self._rng
        if depth == 0:
            return Get(rng.choice(list(self._env)))
        kind = rng.choice(
            [
                "mfp", "mfp", "join", "join", "joins", "reduce", "reduce", "distinct", "top-k", "union",
                "arrange", "threshold", "let", "constant", "flat-map",
            ]
        )  # fmt: skip
        if kind == "mfp":
            return self.mfp(self.plan(depth - 1))
        if kind == "join":
            return self._join((self.plan(depth - 1), self.plan(rng.randrange(depth))))
        if kind == "joins":
            inputs = [
                self.plan(depth - 1),
                *(self.plan(rng.randrange(depth)) for _ in range(rng.choice([0, 2, 2, 3]))),
            ]
            rng.shuffle(inputs)
            return self._join(inputs)
        if kind == "threshold":
            source = self.plan(depth - 1)
            part = Mfp(source, (), (self.predicate(self.schema(source)),))
            return Threshold(Union((source, Negate(self.plan_like(source, part)))))
        if kind == "let":
            return self._let(depth)
        if kind == "constant":
            return self._beside_constant(self.plan(depth - 1))
        if kind == "flat-map":
            return self._flat_map(self.plan(depth - 1))
        if kind == "reduce":
            return self._reduce(self.plan(depth - 1))
        if kind == "distinct":
            source = self.plan(depth - 1)
            return Reduce(source, self._some_exprs(self.schema(source), rng.choice([0, 1, 2])))
        if kind == "top-k":
            return self._top_k(self.plan(depth - 1))
        if kind == "union":
            return self._union(self.plan(depth - 1))
        source = self.plan(depth - 1)
        return ArrangeBy(source, ((),))

    # Expressions: shallow, over whatever columns there are.

    def expr(self, of: Schema, type_: T, depth: int = 1) -> Expr:
        rng = self._rng
        here = [i for i, column in enumerate(of.columns) if column.type is type_]
        if depth == 0 or (here and rng.random() < 0.5):
            if here and rng.random() < 0.85:
                return ColumnRef(rng.choice(here))
            constant = rng.choice([*DOMAIN[type_], None] if rng.random() < 0.2 else DOMAIN[type_])
            return literal(constant, type_)
        if type_ is T.BOOL:
            return self.predicate(of, depth)
        if rng.random() < 0.1:
            return Call("coalesce", (self.expr(of, type_, depth - 1), self.expr(of, type_, 0)))
        if type_ in NUMBERS:
            quotient = "div" if type_ is T.NUMERIC else "/"  # the naive interpreter knows no scales
            return Call(
                rng.choice([*"++--**%", quotient]),
                (self.expr(of, type_, depth - 1), self.expr(of, type_, depth - 1)),
            )
        if type_ is T.TEXT:
            return Call("||", (self.expr(of, type_, depth - 1), self.expr(of, type_, depth - 1)))
        return Case(self.predicate(of, 1), self.expr(of, type_, 0), self.expr(of, type_, 0))

    def predicate(self, of: Schema, depth: int = 2) -> Expr:
        rng = self._rng
        roll = rng.random()
        if depth > 1 and roll < 0.3:
            return Call(
                rng.choice(["and", "or"]), (self.predicate(of, depth - 1), self.predicate(of, depth - 1))
            )
        type_ = self._some_type(of)
        if roll < 0.36 and depth > 1:
            values = tuple(self.expr(of, type_, depth - 1) for _ in range(3))
            return Call(rng.choice(["between", "in"]), values)
        if roll < 0.4:
            return Call("not", (Call("is_null", (self.expr(of, type_, depth - 1),)),))
        args = (self.expr(of, type_, depth - 1), self.expr(of, type_, depth - 1))
        return Call(rng.choice(["=", "!=", "<", "<=", ">", ">="]), args)

    def time_test(self, of: Schema) -> Expr:
        """A temporal filter; when a row comes and goes is often among the times tested."""
        rng = self._rng
        now: Expr = Call("now_ts", ())
        if rng.random() < 0.3:
            now = Call(rng.choice("+-"), (now, literal(rng.randrange(4), T.INT64)))
        types = [c.type for c in of.columns if c.type in (*NUMBERS, *INTEGERS)] or [T.INT64]
        bound = self.expr(of, rng.choice(types))
        if rng.random() < 0.5:
            bound = Call("+", (self.expr(of, T.INT64), literal(rng.randrange(TIMES), T.INT64)))
        if rng.random() < 0.15:
            return Call("between", (now, bound, self.expr(of, T.INT64)))
        sides = (now, bound) if rng.random() < 0.6 else (bound, now)
        return Call(rng.choice(["=", "<", "<=", ">", ">="]), sides)

    def _some_type(self, of: Schema) -> T:
        types = [column.type for column in of.columns] or [T.INT64]
        return self._rng.choice(types)

    def _some_exprs(self, of: Schema, n: int) -> tuple[Expr, ...]:
        return tuple(self.expr(of, self._some_type(of)) for _ in range(n))

    # Nodes.

    def mfp(self, source: Plan) -> Mfp:
        rng, of = self._rng, self.schema(source)
        columns = list(of.columns)
        maps: list[Expr] = []
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            wide = Schema(tuple(columns))
            maps.append(self.expr(wide, self._some_type(of)))
            columns.append(expr_type(maps[-1], wide))
        wide = Schema(tuple(columns))
        predicates = tuple(self.predicate(wide) for _ in range(rng.choice([0, 0, 1, 1, 2])))
        if self.asks_time and rng.random() < 0.25:
            predicates = (*predicates, *(self.time_test(wide) for _ in range(rng.choice([1, 1, 2]))))
            predicates = tuple(rng.sample(predicates, len(predicates)))
        projection = None
        if rng.random() < 0.6 and columns:
            most = min(len(columns), 4)
            projection = tuple(rng.randrange(len(columns)) for _ in range(rng.randint(0, most)))
        return Mfp(source, tuple(maps), predicates, projection)

    def plan_like(self, source: Plan, part: Plan) -> Plan:
        """A part of `source`, sometimes more than once."""
        return Union((part, part)) if self._rng.random() < 0.3 else part

    def _let(self, depth: int) -> Plan:
        """A binding that the body may use several times; names are used again by inner ones."""
        rng = self._rng
        value = self.plan(rng.randrange(depth))
        name = rng.choice(["l0", "l0", "l1"])
        inner = self._inside({**self._env, name: self.schema(value)})
        return Let(name, value, inner.plan(depth - 1))

    def _beside_constant(self, source: Plan) -> Plan:
        rng, of = self._rng, self.schema(source)
        rows = []
        for _ in range(rng.choice([0, 1, 3])):
            row = tuple(wire_value(value(rng, column), column.type) for column in of.columns)
            rows.append((row, rng.choice([1, 1, 2, -1] if self._signed else [1, 1, 2])))
        error = "made up" if rng.random() < 0.1 else ""
        constant = Constant(() if error else tuple(rows), of, error)
        return Union((source, constant)) if rng.random() < 0.7 else self._join((source, constant))

    def _flat_map(self, source: Plan) -> Plan:
        rng, of = self._rng, self.schema(source)
        counted = rng.random() < 0.3
        if rng.random() < 0.5:
            type_ = rng.choice([T.LIST, T.JSONB, T.TEXT, T.TIMESTAMP])
            # A list in a plan is one of smallints, as columns are.
            there = [
                ColumnRef(i)
                for i, c in enumerate(of.columns)
                if c.type is type_ and c.fields == FIELDS.get(type_, ())
            ]
            subject = rng.choice(there) if there and rng.random() < 0.8 else wire_literal(rng, type_)
            function, args = self._table_function(subject, type_)
            return FlatMap(source, function, args, counted)
        small = [Literal(T.INT64, n) for n in (-1, 0, 1, 2, 3)]
        args: list[Expr] = [rng.choice(small), rng.choice(small)]
        args += [rng.choice(small)] * rng.choice([0, 0, 1])
        if rng.random() < 0.6:
            at = rng.randrange(len(args))
            args[at] = Call("%", (self.expr(of, T.INT64), Literal(T.INT64, rng.choice([3, 3, 3, 0]))))
        return FlatMap(source, "generate_series", tuple(args), counted)

    def _table_function(self, subject: Expr, type_: T) -> tuple[str, tuple[Expr, ...]]:
        rng = self._rng
        match type_:
            case T.LIST if rng.random() < 0.3:
                return "generate_subscripts", (subject, Literal(T.INT64, rng.choice([1, 1, 2])))
            case T.LIST:
                return "unnest", (subject,)
            case T.JSONB:
                functions = ["jsonb_array_elements", "jsonb_each_text", "jsonb_object_keys"]
                return rng.choice(functions), (subject,)
            case T.TEXT:
                return "string_to_table", (subject, Literal(T.TEXT, rng.choice(["b", "cd", ""])))
        step = rng.choice([(0, 0, 1000), (0, 1, 0), (0, 0, -2000), (0, 0, 0), (0, -1, 0)])
        return "generate_series", (subject, wire_literal(rng, type_), Literal(T.INTERVAL, step))

    def _join(self, inputs: Sequence[Plan]) -> Plan:
        rng = self._rng
        sides = [self.schema(each) for each in inputs]
        wide = Schema(tuple(column for side in sides for column in side.columns))
        starts = [sum(side.arity for side in sides[:i]) for i in range(len(sides))]
        classes: list[tuple[Expr, ...]] = []
        for _ in range(rng.choice([0, *([len(sides) - 1] * 4), len(sides)])):
            some = rng.sample(range(len(sides)), min(len(sides), rng.choice([2, 2, 2, 3])))
            shared = sorted(set.intersection(*({c.type for c in sides[i].columns} for i in some)), key=str)
            if not shared:
                continue
            type_ = rng.choice(shared)
            members = [
                *(self._member(sides[i], type_, starts[i]) for i in some),
                *(self._member(wide, type_, 0) for _ in range(rng.choice([0, 0, 0, 1]))),
            ]
            if type_ in NUMBERS and rng.random() < 0.1:
                both = self._member(wide, type_, 0), self._member(wide, type_, 0)
                members[-1] = Call(rng.choice("+-"), both)
            if rng.random() < 0.1:
                members.append(wire_literal(rng, type_))
            if len(members) < 2:
                continue
            rng.shuffle(members)
            classes.append(tuple(members))
        kind = rng.choice(["differential", "delta"])
        plan = Join(tuple(inputs), tuple(classes), null_safe=rng.random() < 0.25, kind=kind)
        # Products are kept narrow, or deep plans explode.
        keep = tuple(rng.randrange(wide.arity) for _ in range(min(wide.arity, 4)))
        return Mfp(plan, (), (), keep) if wide.arity > 5 or rng.random() < 0.3 else plan

    def _member(self, of: Schema, type_: T, shift: int) -> Expr:
        here = [i for i, column in enumerate(of.columns) if column.type is type_]
        expr: Expr = ColumnRef(self._rng.choice(here) + shift)
        if self._rng.random() < 0.2 and type_ in NUMBERS:
            ones: dict[T, Any] = {T.NUMERIC: "1", T.FLOAT64: 1.0}
            one = Literal(type_, ones.get(type_, 1))
            expr = Call(self._rng.choice(["+", "div" if type_ is T.NUMERIC else "/"]), (one, expr))
        return expr

    def _reduce(self, source: Plan) -> Plan:
        rng, of = self._rng, self.schema(source)
        aggregates = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            type_ = self._some_type(of)
            functions = ["count", *(["sum"] * 2 if type_ in (*NUMBERS, *INTEGERS) else [])]
            if type_ is T.FLOAT64:
                functions += ["avg"]
            if not self._signed:
                functions += self._unsigned(type_)
            function = rng.choice(functions)
            star = function == "count" and rng.random() < 0.6
            distinct = not star and not self._signed and rng.random() < 0.3
            args = (Literal(T.TEXT, ", "),) if function == "string_agg" else ()
            aggregates.append(Aggregate(function, None if star else self.expr(of, type_), distinct, args))
        return Reduce(source, self._some_exprs(of, rng.choice([0, 1, 1, 2])), tuple(aggregates))

    def _unsigned(self, type_: T) -> list[str]:
        """Aggregates that take no count below zero."""
        functions = ["min", "max"]
        if type_ in (*NUMBERS, *INTEGERS):
            functions += [self._rng.choice(naive.SPREADS)]
        if type_ is T.BOOL:
            functions += ["bool_and", "bool_or"]
        if type_ is T.TEXT:
            functions += ["string_agg"]
        if type_ in (T.BOOL, T.INT64, T.TEXT):
            functions += ["jsonb_agg"]
        return functions

    def _top_k(self, source: Plan) -> Plan:
        rng, of = self._rng, self.schema(source)
        group = tuple(i for i in range(of.arity) if rng.random() < 0.3)
        order = tuple(
            OrderBy(i, rng.random() < 0.5, rng.random() < 0.3) for i in range(of.arity) if rng.random() < 0.4
        )
        limit = rng.choice([None, 0, 1, 1, 2, 3])
        bound: Expr | None = None if limit is None else Literal(T.INT64, limit)
        offset: int | Expr = rng.choice([0, 0, 0, 1, 2])
        numbers = [i for i in group if of.columns[i].type is T.INT64]
        if numbers and rng.random() < 0.5:
            bound = self._bound(rng.choice(numbers))
        if numbers and rng.random() < 0.2:
            offset = self._bound(rng.choice(numbers))
        return TopK(source, group, order, bound, offset)

    def _bound(self, column: int) -> Expr:
        """A number of rows by group: often small, negative or NULL; now and then it fails."""
        three = Literal(T.INT64, 3)
        ways = [(ColumnRef(column), three), (three, ColumnRef(column))]
        return self._rng.choice(
            [ColumnRef(column), Call("%", ways[0]), Call("/", ways[1]), Call("+", ways[0])]
        )

    def _union(self, source: Plan) -> Plan:
        """With itself, a filtered part of itself added, or (signed) taken away."""
        rng = self._rng
        part = Mfp(source, (), (self.predicate(self.schema(source)),))
        if self._signed and rng.random() < 0.5:
            return Union((source, Negate(part)))
        if rng.random() < 0.2:
            return Union((source, part, Negate(part)))
        return Union((source, part))


def said_to_grow(rng: random.Random, plan: Plan, growing: frozenset[str]) -> Plan:
    """`plan`, its TopKs and Reduces often called monotonic, if they are. growing: ids that only get rows."""
    match plan:
        case Get() | Constant():
            return plan
        case Join() | Union():
            inputs = tuple(said_to_grow(rng, each, growing) for each in plan.inputs)
            return msgspec.structs.replace(plan, inputs=inputs)
        case Let():
            inner = growing - {plan.id} | ({plan.id} if _grows(plan.value, growing) else frozenset())
            value = said_to_grow(rng, plan.value, growing)
            return msgspec.structs.replace(plan, value=value, body=said_to_grow(rng, plan.body, inner))
        case LetRec():
            return plan
    input = said_to_grow(rng, plan.input, growing)
    if isinstance(plan, TopK | Reduce) and _grows(plan.input, growing) and rng.random() < 0.8:
        return msgspec.structs.replace(plan, input=input, monotonic=True)
    return msgspec.structs.replace(plan, input=input)


def _grows(plan: Plan, growing: frozenset[str]) -> bool:
    """Whether no row of `plan` ever goes, if none of `growing` does."""
    match plan:
        case Get(id):
            return id in growing
        case Constant(rows):
            return all(diff > 0 for _, diff in rows)
        case Mfp():
            return not any(map(asks_time, plan.predicates)) and _grows(plan.input, growing)
        case Join(inputs) | Union(inputs):
            return all(_grows(each, growing) for each in inputs)
        case Reduce(_, _, ()) | FlatMap() | ArrangeBy() | Threshold():
            return _grows(plan.input, growing)
        case _:
            return False
