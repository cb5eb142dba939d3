"""Random recursive plans: closures that end, and arbitrary bindings that a limit ends.

A closure is distinct over a base and a join, filter or projection of itself, so its rows are made of values
that are there: it has a fixed point, if no count is negative. Anything else may oscillate or grow for ever,
and gets a limit.
"""

from __future__ import annotations

import msgspec

from controller_proto.errors import Refusal
from controller_proto.expr import Call, ColumnRef, Expr, Literal
from controller_proto.plan import (
    Aggregate,
    Get,
    Join,
    LetRec,
    Mfp,
    Negate,
    OrderBy,
    Plan,
    Reduce,
    TopK,
    Union,
)
from controller_proto.schema import Column, Schema
from controller_proto.schema import ColumnType as T
from tests.clusterd.random_plans import Plans


class RecursivePlans(Plans):
    """As `Plans`, each with a recursion in it; temporal filters stand outside alone."""

    asks_time = False

    def plan(self, depth: int) -> Plan:
        if depth == 0 or "l0" in self._env:
            return super().plan(depth)
        while True:
            try:
                made = self._closure(depth) if self._rng.random() < 0.4 else self._recursion(depth)
                self.schema(made)
            except Refusal:
                continue  # operands of numerics may differ in scale: drawn again
            return made

    # Closures.

    def _closure(self, depth: int) -> Plan:
        rng = self._rng
        base: Plan = Get(rng.choice(list(self._env)))
        of = nullable(self.schema(base))
        if rng.random() < 0.6:  # narrow rows meet more often
            kept = tuple(rng.randrange(of.arity) for _ in range(min(2, of.arity)))
            base, of = Mfp(base, (), (), kept), Schema(tuple(of.columns[k] for k in kept))
        ids = ("l0", "l1") if rng.random() < 0.4 else ("l0",)
        inner = RecursivePlans(rng, {**self._env, **dict.fromkeys(ids, of)}, signed=self._signed)
        bindings = []
        for number, id in enumerate(ids):
            steps = [inner.hop(Get(rng.choice(ids)), of) for _ in range(rng.choice([1, 1, 2]))]
            parts = [*([base] if number == 0 or rng.random() < 0.3 else []), *steps, empty("l0", of)]
            value: Plan = Reduce(Union(tuple(parts)), tuple(map(ColumnRef, range(of.arity))))
            bindings.append((id, of, value))
        limit = rng.choice([2, 4] if self._signed else [None, None, None, 2, 4])
        return LetRec(tuple(bindings), self._body(ids, of, depth), limit, rng.random() < 0.5)

    def hop(self, over: Get, of: Schema) -> Plan:
        """Rows of `over` put together with rows of something, in the columns of `of`."""
        rng = self._rng
        with_ = Get(rng.choice(list(self._env)))
        right = self.schema(with_)
        pairs = [
            (ColumnRef(a), ColumnRef(of.arity + b))
            for a, x in enumerate(of.columns)
            for b, y in enumerate(right.columns)
            if plain(x) == plain(y)
        ]
        plan: Plan = over
        columns = list(of.columns)
        if pairs:
            plan = Join((over, with_), (rng.choice(pairs),), null_safe=rng.random() < 0.2)
            columns += right.columns
        kept = tuple(
            rng.choice([k for k, column in enumerate(columns) if plain(column) == plain(wanted)])
            for wanted in of.columns
        )
        filters = (self.predicate(Schema(tuple(columns)), 1),) if rng.random() < 0.3 else ()
        return Mfp(plan, (), filters, kept)

    # Anything.

    def _recursion(self, depth: int) -> Plan:
        rng = self._rng
        ids = ("l0", "l1", "l2")[: rng.choice([1, 1, 2, 3])]
        plain_plans = Plans(rng, self._env, signed=self._signed)
        bases = [plain_plans.plan(rng.randrange(max(depth, 1))) for _ in ids]
        types = [nullable(narrow(self.schema(base))) for base in bases]
        env = {**self._env, **dict(zip(ids, types, strict=True))}
        inner = RecursivePlans(rng, env, signed=self._signed)
        bindings = []
        for id, base, of in zip(ids, bases, types, strict=True):
            parts = [inner.cast(base, of)]
            for _ in range(rng.choice([1, 1, 2])):
                step = (
                    Plans.plan(inner, rng.choice([1, 1, 2])) if rng.random() < 0.7 else Get(rng.choice(ids))
                )
                parts.append(inner.cast(step, of))
            if rng.random() < 0.15 and self._signed:
                parts.append(Negate(parts[-1]))
            bindings.append((id, of, inner.end(Union((*parts, empty(id, of))), of)))
        limit = rng.choice([1, 2, 3, 3, 4, 6])
        return LetRec(tuple(bindings), self._body(ids, types[0], depth), limit, rng.random() < 0.5)

    def cast(self, plan: Plan, of: Schema) -> Plan:
        """Rows of the types of `of`, made of the columns of `plan` where there are any."""
        have = self.schema(plan)
        exprs: list[Expr] = []
        for wanted in of.columns:
            alike = [k for k, column in enumerate(have.columns) if plain(column) == plain(wanted)]
            null = Literal(wanted.type, None, wanted.scale, wanted.fields)
            exprs.append(ColumnRef(self._rng.choice(alike)) if alike else null)
            if wanted.type is T.INT64 and self._rng.random() < 0.2:
                exprs[-1] = Call(
                    self._rng.choice("+-*/"), (exprs[-1], Literal(T.INT64, self._rng.choice([0, 1, 2])))
                )
        kept = tuple(range(have.arity, have.arity + len(exprs)))
        predicates = (self.predicate(have, 1),) if self._rng.random() < 0.2 else ()
        return Mfp(plan, tuple(exprs), predicates, kept)

    def end(self, value: Plan, of: Schema) -> Plan:
        """What makes a binding of its parts; mostly what keeps counts small."""
        rng = self._rng
        all_ = tuple(map(ColumnRef, range(of.arity)))
        kind = rng.choice(["distinct", "distinct", "distinct", "min", "top-k", "nothing"])
        if kind == "distinct" or (self._signed and kind in ("min", "top-k")):
            return Reduce(value, all_)
        if kind == "min":
            keys = rng.randrange(of.arity)
            calls = tuple(Aggregate(rng.choice(["min", "max"]), each) for each in all_[keys:])
            return Reduce(value, all_[:keys], calls) if calls else Reduce(value, all_)
        if kind == "top-k":
            order = tuple(OrderBy(k, rng.random() < 0.5) for k in range(of.arity) if rng.random() < 0.5)
            group = tuple(k for k in range(of.arity) if rng.random() < 0.3)
            return TopK(value, group, order, Literal(T.INT64, rng.choice([1, 2, 3])), rng.choice([0, 0, 1]))
        return value

    def _body(self, ids: tuple[str, ...], of: Schema, depth: int) -> Plan:
        rng = self._rng
        if rng.random() < 0.6:
            return Get(rng.choice(ids) if rng.random() < 0.5 else "l0")
        inside = RecursivePlans(rng, {**self._env, "l0": of}, signed=self._signed)
        return Plans.plan(inside, min(depth, 2))


def plain(column: Column) -> Column:
    return msgspec.structs.replace(column, name="", nullable=True)


def nullable(of: Schema) -> Schema:
    return Schema(tuple(msgspec.structs.replace(column, nullable=True) for column in of.columns))


def narrow(of: Schema) -> Schema:
    """At most three columns, at least one."""
    return Schema(of.columns[:3] or (Column("c0", T.INT64, True),))


def empty(id: str, of: Schema) -> Plan:
    """No rows, of the columns of binding `id`, which may all be NULL."""
    exprs = tuple(Literal(c.type, None, c.scale, c.fields) for c in of.columns)
    return Mfp(Get(id), exprs, (Literal(T.BOOL, False),), tuple(range(of.arity, 2 * of.arity)))
