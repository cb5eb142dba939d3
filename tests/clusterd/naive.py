"""A naive interpreter of plans: Python values, one time at a time, no code of the product but its data types.

A collection at one time is two dicts of counts, rows and errors. A plan at a time is a function of its inputs
at that time, so no incremental reasoning enters here: whatever the product answers at t must be this.

Values are those of the arrangements' columns (numerics are int, uuids uuid.UUID), lists as tuples. Floats are
canonical (0.0 for -0.0, one NaN), so that rows can be keys of a dict.
"""

from __future__ import annotations

import itertools
import json
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

from controller_proto.dataflow import DataflowBody
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
from controller_proto.schema import INTEGERS, ColumnType

Row = tuple[Any, ...]
Types = tuple[ColumnType, ...]

NAN = float("nan")
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
NUMERIC_LIMIT = 10**38
MOST_ROWS = 100_000  # of a table function
T = ColumnType

DIVISION = "eval-error: division by zero"
BIGINT = "eval-error: bigint out of range"
NUMERIC = "eval-error: numeric out of range"
DOUBLE = "eval-error: double precision out of range"


@dataclass(frozen=True)
class Err:
    """An error in place of a value."""

    text: str


@dataclass
class Collection:
    """What a collection is at one time; counts of zero are absent."""

    types: Types
    rows: dict[Row, int] = field(default_factory=dict)
    errs: dict[str, int] = field(default_factory=dict)

    def add(self, row: Row, count: int) -> None:
        _bump(self.rows, tuple(map(canonical, row)), count)

    def fail(self, error: str, count: int) -> None:
        _bump(self.errs, error, count)

    def take_errors(self, *others: Collection) -> None:
        for other in others:
            for error, count in other.errs.items():
                self.fail(error, count)


def _bump(counts: dict[Any, int], key: Any, count: int) -> None:
    total = counts.get(key, 0) + count
    if total:
        counts[key] = total
    else:
        counts.pop(key, None)


def canonical(value: Any) -> Any:
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    return value


def at(types: Types, history: Iterable[tuple[Row, int, int]], time: int) -> Collection:
    """The collection at `time` of a history of (row, time, diff)."""
    out = Collection(types)
    for row, when, diff in history:
        if when <= time:
            out.add(row, diff)
    return out


# Scalars.


def compare(a: Any, b: Any) -> int:
    """Order of two values that are not NULL: NaN is last, text by bytes; in a list or record NULL is last."""
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=False):
            order = int(x is None) - int(y is None) if None in (x, y) else compare(x, y)
            if order:
                return order
        return int(len(a) > len(b)) - int(len(a) < len(b))
    if isinstance(a, str):
        x, y = a.encode(), b.encode()
        return int(x > y) - int(x < y)
    a_nan, b_nan = (isinstance(v, float) and math.isnan(v) for v in (a, b))
    if a_nan or b_nan:
        return int(a_nan) - int(b_nan)
    return int(a > b) - int(a < b)


def expr_type(expr: Expr, types: Types) -> ColumnType:
    if isinstance(expr, ColumnRef):
        return types[expr.index]
    if isinstance(expr, Literal):
        return expr.type
    if isinstance(expr, Case):
        arms = [a for a in (expr.then, expr.otherwise) if not (isinstance(a, Call) and a.function == "error")]
        return _wider(*(expr_type(a, types) for a in (arms * 2)[:2]))
    if expr.function in ("+", "-", "*", "/", "%", "div"):
        return _wider(*(expr_type(a, types) for a in expr.args))
    if expr.function in ("coalesce", "nullif"):
        return _wider(*(expr_type(a, types) for a in expr.args[:2]))
    if expr.function == "neg":
        return expr_type(expr.args[0], types)
    return T.TEXT if expr.function == "||" else T.BOOL


def _wider(a: ColumnType, b: ColumnType) -> ColumnType:
    return b if a is T.INT64 else a


def widen(value: Any, to: ColumnType) -> Any:
    return float(value) if to is T.FLOAT64 and isinstance(value, int) else value


def evaluate(expr: Expr, row: Sequence[Any], types: Types) -> Any:
    """The value, None for NULL, or an Err."""
    if isinstance(expr, ColumnRef):
        return row[expr.index]
    if isinstance(expr, Literal):
        if expr.type is T.NUMERIC and expr.value is not None:
            return int(str(expr.value))
        if expr.type is T.UUID and expr.value is not None:
            return uuid.UUID(str(expr.value))
        return canonical(widen(expr.value, expr.type)) if expr.value is not None else None
    if isinstance(expr, Case):
        condition = evaluate(expr.condition, row, types)
        if isinstance(condition, Err):
            return condition
        value = evaluate(expr.then if condition is True else expr.otherwise, row, types)
        return value if value is None or isinstance(value, Err) else widen(value, expr_type(expr, types))
    if expr.function == "coalesce":
        value = next((v for v in (evaluate(a, row, types) for a in expr.args) if v is not None), None)
        return value if value is None or isinstance(value, Err) else widen(value, expr_type(expr, types))
    if expr.function in ("between", "in"):
        return evaluate(spelt_out(expr), row, types)
    if expr.function in ("and", "or"):
        return connect([evaluate(a, row, types) for a in expr.args], expr.function == "or")
    args = [evaluate(a, row, types) for a in expr.args]
    for value in args:
        if isinstance(value, Err):
            return value
    if expr.function == "error":
        return Err(f"eval-error: {args[0]}")
    if expr.function == "is_null":
        return args[0] is None
    if expr.function in ("is_distinct_from", "nullif"):
        return _apply_to_nulls(expr.function, args, [expr_type(a, types) for a in expr.args])
    if expr.function in ("is_true", "is_false"):
        return args[0] is (expr.function == "is_true")
    if any(value is None for value in args):
        return None
    return _apply(expr, args, [expr_type(a, types) for a in expr.args])


def spelt_out(expr: Call) -> Call:
    """BETWEEN and IN as what they stand for."""
    value, *others = expr.args
    if expr.function == "in":
        return Call("or", tuple(Call("=", (value, other)) for other in others))
    return Call("and", (Call(">=", (value, others[0])), Call("<=", (value, others[1]))))


def _apply_to_nulls(function: str, args: list[Any], types: list[ColumnType]) -> Any:
    common = _wider(*types)
    a, b = (v if v is None else widen(v, common) for v in args)
    same = (a is None) == (b is None) and (a is None or compare(a, b) == 0)
    if function == "is_distinct_from":
        return not same
    return None if same else a


def connect(values: Sequence[Any], decisive: bool) -> Any:
    """AND (False decides) or OR (True decides)."""
    if any(value is decisive for value in values):
        return decisive
    for value in values:
        if isinstance(value, Err):
            return value
    return None if None in values else not decisive


def _apply(expr: Call, args: list[Any], types: list[ColumnType]) -> Any:
    f = expr.function
    if f == "not":
        return not args[0]
    if f == "||":
        return args[0] + args[1]
    if f == "neg":
        return _arithmetic("-", 0.0 if types[0] is T.FLOAT64 else 0, args[0], types[0])
    type_ = _wider(types[0], types[1])
    a, b = (widen(value, type_) for value in args)
    if f in ("+", "-", "*", "/", "%", "div"):
        return _arithmetic("/" if f == "div" else f, a, b, type_)
    order = compare(a, b)
    return {
        "=": order == 0,
        "!=": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[f]


def _arithmetic(f: str, a: Any, b: Any, type_: ColumnType) -> Any:
    if type_ is T.FLOAT64:
        return _float_arithmetic(f, a, b)
    if f in "/%" and b == 0:
        return Err(DIVISION)
    if f in "/%":
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        value = quotient if f == "/" else a - b * quotient
    else:
        value = a + b if f == "+" else a - b if f == "-" else a * b
    if type_ is T.NUMERIC:
        return value if abs(value) < NUMERIC_LIMIT else Err(NUMERIC)
    return value if I64_MIN <= value <= I64_MAX else Err(BIGINT)


def _float_arithmetic(f: str, a: float, b: float) -> Any:
    if f in "/%" and b == 0 and not math.isnan(a):
        return Err(DIVISION)
    if math.isnan(a) or math.isnan(b):
        return NAN
    if f == "%":
        return NAN if math.isinf(a) else canonical(math.fmod(a, b))
    special = math.isinf(a) or math.isinf(b)
    if f == "/" and special:
        return NAN if math.isinf(a) and math.isinf(b) else canonical(a / b)
    if special:
        return canonical(a + b if f == "+" else a - b if f == "-" else a * b)
    exact = {
        "+": lambda: Fraction(a) + Fraction(b),
        "-": lambda: Fraction(a) - Fraction(b),
        "*": lambda: Fraction(a) * Fraction(b),
        "/": lambda: Fraction(a) / Fraction(b),
    }[f]()
    try:
        value = float(exact)
    except OverflowError:
        return Err(DOUBLE)
    return Err(DOUBLE) if value == 0 and exact != 0 else canonical(value)


def at_time(expr: Expr, now: int) -> Expr:
    """The same at one time: with a number for `now_ts()`."""
    if isinstance(expr, Call):
        if expr.function == "now_ts":
            return Literal(T.INT64, now)
        return Call(expr.function, tuple(at_time(argument, now) for argument in expr.args))
    return expr


# Plans.


class TooLarge(Exception):
    """A join would look at more combinations than `pairs`, or a series is too long."""


class Interpreter:
    """Evaluates plans over collections at one time. pairs: of rows that joins may look at, in all.

    now: the time that plans may ask for.
    """

    def __init__(self, inputs: Mapping[str, Collection], pairs: int = 1 << 62, now: int = 0) -> None:
        self.inputs = dict(inputs)
        self._now = now
        self._pairs = pairs

    def dataflow(self, body: DataflowBody) -> dict[str, Collection]:
        """Every build by its id."""
        out = {}
        for build in body.builds:
            out[build.id] = self.inputs[build.id] = self.plan(build.plan)
        return out

    def plan(self, plan: Plan) -> Collection:
        if isinstance(plan, Get):
            return self.inputs[plan.id]
        if isinstance(plan, ArrangeBy):
            return self.plan(plan.input)
        if isinstance(plan, Mfp):
            predicates = [at_time(predicate, self._now) for predicate in plan.predicates]
            return mfp(self.plan(plan.input), plan.maps, predicates, plan.projection)
        if isinstance(plan, Union):
            return _union([self.plan(each) for each in plan.inputs])
        if isinstance(plan, Negate):
            source = self.plan(plan.input)
            return Collection(source.types, {r: -n for r, n in source.rows.items()}, dict(source.errs))
        if isinstance(plan, Join):
            sides = [self.plan(each) for each in plan.inputs]
            self._pairs -= math.prod(len(side.rows) for side in sides)
            if self._pairs < 0:
                raise TooLarge
            return _join(plan, sides)
        if isinstance(plan, Constant):
            return _constant(plan)
        if isinstance(plan, FlatMap):
            return _flat_map(plan, self.plan(plan.input))
        if isinstance(plan, Threshold):
            source = self.plan(plan.input)
            rows = {row: count for row, count in source.rows.items() if count > 0}
            return Collection(source.types, rows, dict(source.errs))
        if isinstance(plan, Let):
            inputs = {**self.inputs, plan.id: self.plan(plan.value)}
            return Interpreter(inputs, self._pairs, self._now).plan(plan.body)
        if isinstance(plan, Reduce):
            return _reduce(plan, self.plan(plan.input))
        if isinstance(plan, TopK):
            return _top_k(plan, self.plan(plan.input))
        if isinstance(plan, LetRec):
            return self._let_rec(plan)
        raise NotImplementedError(type(plan).__name__)

    def _let_rec(self, plan: LetRec) -> Collection:
        """All bindings from empty, in sequence, again and again, until nothing changes."""
        hidden = dict(self.inputs)
        for id, schema, _ in plan.bindings:
            self.inputs[id] = Collection(schema.types)
        rounds = itertools.count(1) if plan.limit is None else range(1, plan.limit + 1)
        changed = True
        for _ in rounds:
            changed = False
            for id, _, value in plan.bindings:
                made = self.plan(value)
                if any(abs(count) >> 62 for count in made.rows.values()):
                    raise TooLarge  # a recursion ends there
                errs = {error: 1 for error, count in made.errs.items() if count > 0}
                changed |= (made.rows, errs) != (self.inputs[id].rows, self.inputs[id].errs)
                self.inputs[id] = Collection(made.types, made.rows, errs)
            if not changed:
                break
        if changed and not plan.return_at_limit:
            for id, _, _ in plan.bindings:
                self.inputs[id].fail(f"recursion-limit: no fixed point after {plan.limit} iterations", 1)
        out = self.plan(plan.body)
        self.inputs = hidden
        return out


def mfp(
    source: Collection,
    maps: Sequence[Expr],
    predicates: Sequence[Expr],
    projection: Sequence[int] | None,
) -> Collection:
    """A predicate that is false or NULL drops the row and its errors; errors not looked at are none."""
    types = list(source.types)
    for expr in maps:
        types.append(expr_type(expr, tuple(types)))
    kept = range(len(types)) if projection is None else projection
    out = Collection(tuple(types[i] for i in kept))
    out.take_errors(source)
    for row, count in source.rows.items():
        cells: list[Any] = list(row)
        for expr in maps:
            cells.append(_through(expr, cells, tuple(types)))
        verdict = connect([_through(p, cells, tuple(types)) for p in predicates], False)
        if isinstance(verdict, Err):
            out.fail(verdict.text, count)
        elif verdict is True:
            _emit(out, [cells[i] for i in _looked_at(kept)], [cells[i] for i in kept], count)
    return out


def _looked_at(kept: Iterable[int]) -> list[int]:
    return sorted(set(kept))


def _emit(out: Collection, looked_at: Sequence[Any], row: Sequence[Any], count: int) -> None:
    for cell in looked_at:
        if isinstance(cell, Err):
            out.fail(cell.text, count)
            return
    out.add(tuple(row), count)


def _through(expr: Expr, cells: Sequence[Any], types: Types) -> Any:
    """As evaluate, where a cell may itself be an Err."""
    return evaluate(expr, cells, types)


def _union(parts: list[Collection]) -> Collection:
    out = Collection(parts[0].types)
    out.take_errors(*parts)
    for part in parts:
        for row, count in part.rows.items():
            out.add(row, count)
    return out


def columns_of(expr: Expr) -> set[int]:
    if isinstance(expr, ColumnRef):
        return {expr.index}
    if isinstance(expr, Literal):
        return set()
    parts = (expr.condition, expr.then, expr.otherwise) if isinstance(expr, Case) else expr.args
    return set().union(*map(columns_of, parts))


def _shift(expr: Expr, by: int) -> Expr:
    if isinstance(expr, ColumnRef):
        return ColumnRef(expr.index - by)
    if isinstance(expr, Literal):
        return expr
    if isinstance(expr, Case):
        return Case(*(_shift(e, by) for e in (expr.condition, expr.then, expr.otherwise)))
    return Call(expr.function, tuple(_shift(e, by) for e in expr.args))


def _equal(a: Any, b: Any, null_safe: bool) -> bool | None:
    if a is None or b is None:
        return (a is None and b is None) if null_safe else None
    if type(a) is not type(b) and not isinstance(a, bool):
        a, b = float(a), float(b)
    return compare(a, b) == 0


def _classes(plan: Join) -> list[list[Expr]]:
    """Equivalences that share a member are one, each member named once."""
    classes: list[list[Expr]] = []
    for members in plan.equivalences:
        whole = list(members)
        for other in [c for c in classes if set(map(repr, c)) & set(map(repr, members))]:
            classes.remove(other)
            whole = other + whole
        classes.append(whole)
    return [[m for n, m in enumerate(c) if repr(m) not in map(repr, c[:n])] for c in classes]


def _join(plan: Join, sides: list[Collection]) -> Collection:
    """All members of a class are equal, every two of them. Those of one side are a test of it, whose errors
    need no partner, as those of what it is joined by need none; those over several sides are tests of the
    joined row. A constant belongs to the first side with a member in its class, a literal to all of them.
    """
    arities = [len(side.types) for side in sides]
    starts = [sum(arities[:i]) for i in range(len(arities))]
    types = tuple(t for side in sides for t in side.types)
    out = Collection(types)
    out.take_errors(*sides)
    mixed: list[list[Expr]] = []
    classes: list[list[list[Expr]]] = [[] for _ in sides]  # by side, by class: its members there
    for members in _classes(plan):
        owners = [_owner(member, starts) for member in members]
        homes = {owner for owner in owners if isinstance(owner, int)}
        several = [m for m, owner in zip(members, owners, strict=True) if owner == "mixed"]
        first = min(homes) if homes else 0
        for number, start in enumerate(starts):
            mine = [
                m
                for m, owner in zip(members, owners, strict=True)
                if owner == number
                or (owner is None and number == first and (homes or not several))
                or (owner is None and isinstance(m, Literal) and number in homes)
            ]
            together = len(homes) > 1 or len(mine) > 1  # else there is nothing to compare it with, there
            classes[number].append([_shift(m, start) for m in mine] if together else [])
        mixed.append([m for m, owner in zip(members, owners, strict=True) if owner in homes][:1] + several)
        if not homes and several:
            mixed[-1] += [m for m, owner in zip(members, owners, strict=True) if owner is None]
    keyed = [_keyed(side, mine, plan.null_safe, out) for side, mine in zip(sides, classes, strict=True)]
    for parts in itertools.product(*keyed):
        if not all(
            _equal(values[0], value, plan.null_safe)
            for values in _by_class(parts, len(classes[0]))
            for value in values[1:]
        ):
            continue
        row = tuple(cell for part in parts for cell in part[0])
        count = math.prod(part[2] for part in parts)
        values = [[evaluate(m, row, types) for m in members] for members in mixed]
        verdict = _all_equal(values, plan.null_safe)
        if isinstance(verdict, Err):
            out.fail(verdict.text, count)
        elif verdict is True:
            out.add(row, count)
    return out


def _all_equal(classes: Iterable[Sequence[Any]], null_safe: bool) -> Any:
    """Whether every two values of each class are equal: False if two differ, whatever else fails."""
    return connect(
        [_same(a, b, null_safe) for vs in classes for a, b in itertools.combinations(vs, 2)], False
    )


def _by_class(parts: Sequence[Any], classes: int) -> list[list[Any]]:
    return [[part[1][c][0] for part in parts if part[1][c]] for c in range(classes)]


def _owner(expr: Expr, starts: Sequence[int]) -> int | str | None:
    """The side of all columns of an expression, `mixed`, or None if it has no column."""
    sides = {max(i for i, start in enumerate(starts) if start <= column) for column in columns_of(expr)}
    return None if not sides else "mixed" if len(sides) > 1 else sides.pop()


def _constant(plan: Constant) -> Collection:
    out = Collection(plan.schema.types)
    if plan.error:
        out.fail(f"eval-error: {plan.error}", 1)
        return out
    for row, count in plan.rows:
        cells = zip(row, plan.schema.columns, strict=True)
        out.add(tuple(evaluate(Literal(c.type, cell, c.scale, c.fields), (), ()) for cell, c in cells), count)
    return out


def _flat_map(plan: FlatMap, source: Collection) -> Collection:
    made = _TABLE_TYPES[plan.function]
    if plan.function == "generate_series":
        made = (expr_type(plan.args[0], source.types),)
    out = Collection((*source.types, *made, *[T.INT64] * plan.with_ordinality))
    out.take_errors(source)
    for row, count in source.rows.items():
        args = [evaluate(arg, row, source.types) for arg in plan.args]
        failed = [arg for arg in args if isinstance(arg, Err)]
        rows = failed[0] if failed else [] if None in args else _table_rows(plan.function, args)
        if isinstance(rows, Err):
            out.fail(rows.text, count)
            continue
        for number, each in enumerate(rows, 1):
            if len(out.rows) > MOST_ROWS:
                raise TooLarge
            out.add((*row, *each, *[number] * plan.with_ordinality), count)
    return out


_TABLE_TYPES: dict[str, Types] = {
    "generate_series": (T.INT64,), "generate_subscripts": (T.INT64,), "unnest": (T.INT16,),
    "jsonb_array_elements": (T.JSONB,), "jsonb_each_text": (T.TEXT, T.TEXT),
    "jsonb_object_keys": (T.TEXT,), "string_to_table": (T.TEXT,),
}  # fmt: skip


def _table_rows(function: str, args: list[Any]) -> Iterable[Row] | Err:
    """The rows that a table function gives for arguments that are not NULL."""
    first = args[0]
    if function == "generate_series":
        start, stop, step = (*args, 1)[:3]
        if isinstance(step, tuple):  # an interval without months
            step = step[1] * 86_400_000_000 + step[2] // 1000
        if step == 0:
            return Err("eval-error: step size cannot equal zero")
        return ((value,) for value in range(start, stop + (1 if step > 0 else -1), step))
    if function == "generate_subscripts":
        return [(at,) for at in range(1, len(first) + 1)] if args[1] == 1 else []
    if function == "unnest":
        return [(element,) for element in first]
    if function == "string_to_table":
        return [(part,) for part in (first.split(args[1]) if args[1] else [first])] if first else []
    parsed = json.loads(first)
    if function == "jsonb_array_elements":
        if isinstance(parsed, list):
            return [(json.dumps(each, separators=(",", ":")),) for each in parsed]
        what = "an object" if isinstance(parsed, dict) else "a scalar"
        return Err(f"eval-error: cannot extract elements from {what}")
    if not isinstance(parsed, dict):
        return Err(f"eval-error: cannot call {function.removesuffix('_text')} on a non-object")
    if function == "jsonb_object_keys":
        return [(key,) for key in sorted(parsed)]
    return [(key, None if parsed[key] is None else str(parsed[key])) for key in sorted(parsed)]


def _keyed(
    side: Collection, classes: list[list[Expr]], null_safe: bool, out: Collection
) -> list[tuple[Row, list[tuple[Any, ...]], int]]:
    """Rows of one side with, per class, `(value,)` or `()` if the side has no member in it."""
    kept = []
    for row, count in side.rows.items():
        values = [[evaluate(m, row, side.types) for m in members] for members in classes]
        verdict = _all_equal(values, null_safe)
        if isinstance(verdict, Err):
            out.fail(verdict.text, count)
        elif verdict is True:
            failed = [v[0] for v in values if v and isinstance(v[0], Err)]
            if failed:
                out.fail(failed[0].text, count)
            else:
                kept.append((row, [(v[0],) if v else () for v in values], count))
    return kept


def _same(a: Any, b: Any, null_safe: bool) -> Any:
    for value in (a, b):
        if isinstance(value, Err):
            return value
    return _equal(a, b, null_safe)


def _reduce(plan: Reduce, source: Collection) -> Collection:
    keys = len(plan.group_key)
    exprs = [*plan.group_key, *(a.expr for a in plan.aggregates if a.expr is not None)]
    types = tuple(expr_type(e, source.types) for e in exprs)
    result = tuple(_aggregate_type(a, source.types) for a in plan.aggregates)
    out = Collection(types[:keys] + result)
    out.take_errors(source)
    groups: dict[Row, dict[Row, int]] = {}
    for row, count in source.rows.items():
        cells = [evaluate(e, row, source.types) for e in exprs]
        failed = [c for c in cells if isinstance(c, Err)]
        if failed:
            out.fail(failed[0].text, count)
        else:
            values = tuple(map(canonical, cells))
            _bump(groups.setdefault(values[:keys], {}), values[keys:], count)
    for key, members in groups.items():
        _reduce_group(plan, key, members, types[keys:], out)
    return out


def _reduce_group(
    plan: Reduce, key: Row, members: dict[Row, int], types: Sequence[ColumnType], out: Collection
) -> None:
    if not members:
        return
    signed = plan.aggregates and all(
        a.function in ("count", "sum", "avg") and not a.distinct for a in plan.aggregates
    )
    if not signed and any(count < 0 for count in members.values()):
        out.fail("invalid-data", 1)
        return
    is_present = sum(members.values()) != 0  # with negative counts: the group is there as often as its rows
    cells: list[Any] = []
    at_column = 0
    for aggregate in plan.aggregates:
        if aggregate.expr is None:
            cells.append(sum(members.values()))
            continue
        counts: dict[Any, int] = {}
        for values, count in members.items():
            _bump(counts, values[at_column], count)
        cells.append(_aggregate(aggregate, counts, types[at_column]))
        at_column += 1
    failed = [
        (a, c)
        for a, c in zip(plan.aggregates, cells, strict=True)
        if isinstance(c, Err) and (is_present or c.text == BELOW_ZERO)
    ]
    for aggregate, error in failed:  # each speaks for itself
        out.fail(f"{error.text}: {aggregate.function} of group {key}", 1)
    if is_present and not failed:
        out.add(key + tuple(cells), 1)


def _aggregate_type(aggregate: Aggregate, types: Types) -> ColumnType:
    if aggregate.function == "count" or aggregate.expr is None:
        return T.INT64
    of = expr_type(aggregate.expr, types)
    if aggregate.function in ("avg", *SPREADS):
        return T.FLOAT64
    if aggregate.function in ("string_agg", "jsonb_agg"):
        return T.TEXT if aggregate.function == "string_agg" else T.JSONB
    return T.NUMERIC if aggregate.function == "sum" and of in INTEGERS else of


SPREADS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
UNSIGNED = (T.UINT16, T.UINT32, T.UINT64)
BELOW_ZERO = "invalid-data"


def _aggregate(aggregate: Aggregate, counts: dict[Any, int], type_: ColumnType) -> Any:
    known = {v: 1 if aggregate.distinct else n for v, n in counts.items() if v is not None}
    if aggregate.function == "count":
        return sum(known.values())
    if aggregate.function == "jsonb_agg":
        values = _listed(aggregate, known) + ["null"] * _copies(aggregate, counts.get(None, 0))
        return f"[{','.join(values)}]"
    if type_ in UNSIGNED and aggregate.function in ("sum", "avg"):
        count, total = sum(known.values()), sum(v * n for v, n in known.items())
        if count < 0 or total < 0 or (total and not count):
            return Err(BELOW_ZERO)
    if sum(known.values()) == 0:
        return None  # no values, or with negative counts as many as missing ones
    if aggregate.function in ("min", "max", "bool_and", "bool_or"):
        ranked = sorted(known, key=cmp_to_key(compare))
        return ranked[0] if aggregate.function in ("min", "bool_and") else ranked[-1]
    if aggregate.function == "string_agg":
        assert isinstance(aggregate.args[0], Literal)
        return str(aggregate.args[0].value).join(_listed(aggregate, known))
    if aggregate.function in SPREADS:
        return spread(aggregate.function, known)
    if type_ is T.FLOAT64:
        total = sum_floats(known)
        if aggregate.function == "sum" or isinstance(total, Err):
            return total
        return canonical(total / sum(known.values()))
    total = sum(v * n for v, n in known.items())
    return total if abs(total) < NUMERIC_LIMIT else Err(NUMERIC)


def _copies(aggregate: Aggregate, count: int) -> int:
    return min(count, 1) if aggregate.distinct else count


def _listed(aggregate: Aggregate, known: Mapping[Any, int]) -> list[str]:
    """The values in order, each as often as it counts; as JSON, or texts as they are."""
    out: list[str] = []
    for value in sorted(known, key=cmp_to_key(compare)):
        as_json = aggregate.function == "jsonb_agg"
        shown = json.dumps(value, ensure_ascii=False) if as_json else value
        out += [shown] * known[value]
    return out


def spread(function: str, counts: Mapping[Any, int]) -> Any:
    """Variance or its root: what stands above the line is exact, and rounded once."""
    n = sum(counts.values())
    of_sample = function.endswith("_samp")
    if n == 1 and of_sample:
        return None
    if any(isinstance(v, float) and not math.isfinite(v) for v in counts):
        return NAN
    squares = sum((Fraction(v) ** 2 * count for v, count in counts.items()), Fraction(0))
    total = sum((Fraction(v) * count for v, count in counts.items()), Fraction(0))
    try:
        above = float(n * squares - total**2)
    except OverflowError:
        return Err(DOUBLE)
    value = above / (float(n) * float(n - 1 if of_sample else n))
    return math.sqrt(value) if function.startswith("stddev") else value


def sum_floats(counts: Mapping[float, int]) -> Any:
    """The exact sum, rounded once."""
    up, down, nan = (
        sum(n for v, n in counts.items() if test(v))
        for test in (lambda v: v == math.inf, lambda v: v == -math.inf, math.isnan)
    )
    if nan:
        return NAN
    if up or down:
        # A negative count of infinity is minus infinity.
        return canonical(sum(math.copysign(math.inf, n) for n in (up, -down) if n))
    try:
        return canonical(float(sum(Fraction(v) * n for v, n in counts.items())))
    except OverflowError:
        return Err(DOUBLE)


def ordering(order: Sequence[OrderBy], arity: int) -> Callable[[Row], Any]:
    """A sort key: the order, then the whole row ascending, NULL last."""

    def one(a: Any, b: Any, by: OrderBy) -> int:
        if a is None or b is None:
            nulls = (a is None) - (b is None)
            return -nulls if by.nulls_first else nulls
        return -compare(a, b) if by.descending else compare(a, b)

    steps = [*order, *(OrderBy(i) for i in range(arity))]

    def rows(a: Row, b: Row) -> int:
        return next((c for by in steps if (c := one(a[by.column], b[by.column], by))), 0)

    return cmp_to_key(rows)


def _top_k(plan: TopK, source: Collection) -> Collection:
    out = Collection(source.types)
    out.take_errors(source)
    groups: dict[Row, dict[Row, int]] = {}
    for row, count in source.rows.items():
        groups.setdefault(tuple(row[i] for i in plan.group_key), {})[row] = count
    for members in groups.values():
        if any(count < 0 for count in members.values()):
            out.fail("invalid-data", 1)
            continue
        bounds = [_bound(plan, name, next(iter(members)), source.types) for name in ("limit", "offset")]
        if any(isinstance(bound, Err) for bound in bounds):
            out.fail(next(bound.text for bound in bounds if isinstance(bound, Err)), 1)
            continue
        limit, offset = bounds[0], bounds[1] or 0
        position = 0
        for row in sorted(members, key=ordering(plan.order, len(source.types))):
            count = members[row]
            first = max(position, offset)
            last = position + count if limit is None else min(position + count, offset + limit)
            if last > first:
                out.add(row, last - first)
            position += count
    return out


def _bound(plan: TopK, name: str, row: Row, types: Types) -> Any:
    """Limit or offset of the group that `row` is in, None if it has none, or an Err."""
    bound = plan.limit if name == "limit" else plan.offset
    if bound is None or isinstance(bound, int):
        return bound
    value = evaluate(bound, row, types)
    negative = isinstance(value, int) and value < 0
    return Err(f"eval-error: {name} must not be negative") if negative else value
