"""Temporal filters: what a predicate that asks for the time says about it, conjunct by conjunct.

A conjunct compares `now_ts()`, or that plus or minus a whole number, with an expression that does not ask for
the time. So a row passes it during one interval of times, whose ends the row tells; that is what lets a
dataflow know at once when the row comes and when it goes. The comparison is of values: a sum beyond the range
of bigint is that sum, and a bound that no time reaches is never reached.

Does not: type (typing_rules.py does), evaluate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controller_proto.expr import Call, Case, Expr, Literal
from controller_proto.schema import INTEGERS

__all__ = ["NOT_HERE", "TimeTest", "asks_time", "split_predicate"]

NOT_HERE: Final = "now_ts() may stand in predicates of an Mfp or a peek alone"
_ALLOWED: Final = (
    "now_ts(), or it plus or minus a whole number, may be compared by =, <, <=, >, >= and BETWEEN with what "
    "is free of it; such comparisons may be joined by AND, and by nothing else"
)
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class TimeTest:
    """`now_ts() + shift COMPARISON bound`; comparison: one of =, <, <=, >, >=."""

    comparison: str
    shift: int
    bound: Expr


def asks_time(expr: Expr) -> bool:
    """Whether `now_ts()` stands anywhere in it."""
    if isinstance(expr, Call):
        return expr.function == "now_ts" or any(map(asks_time, expr.args))
    return isinstance(expr, Case) and any(map(asks_time, (expr.condition, expr.then, expr.otherwise)))


def split_predicate(predicate: Expr) -> tuple[Expr | TimeTest, ...]:
    """The conjuncts of `predicate`, in order; whole if it does not ask for the time.

    Raises ValueError, saying what is allowed, if it asks in another way.

    >>> from controller_proto.expr import ColumnRef
    >>> split_predicate(Call(">", (ColumnRef(0), Call("now_ts", ()))))
    (TimeTest(comparison='<', shift=0, bound=ColumnRef(index=0)),)
    """
    if not asks_time(predicate):
        return (predicate,)
    if isinstance(predicate, Call):
        args = predicate.args
        if predicate.function == "and":
            return tuple(part for each in args for part in split_predicate(each))
        if predicate.function == "between" and len(args) == 3:
            value, least, most = args
            return (*split_predicate(Call(">=", (value, least))), *split_predicate(Call("<=", (value, most))))
        if predicate.function in _MIRRORED and len(args) == 2:
            here, there = map(asks_time, args)
            comparison = predicate.function if here else _MIRRORED[predicate.function]
            shift = _shift(args[0] if here else args[1])
            if not (here and there) and shift is not None:
                return (TimeTest(comparison, shift, args[1] if here else args[0]),)
    raise ValueError(_ALLOWED)


def _shift(side: Expr) -> int | None:
    """What the side of a comparison adds to the time; None if it is not that."""
    if not isinstance(side, Call):
        return None
    if side.function == "now_ts" and not side.args:
        return 0
    if side.function not in ("+", "-") or len(side.args) != 2:
        return None
    left, right = side.args
    if side.function == "+" and isinstance(left, Literal):
        left, right = right, left
    before = _shift(left)
    if before is None or not isinstance(right, Literal) or right.type not in INTEGERS:
        return None
    if not isinstance(right.value, int):
        return None
    return before + right.value if side.function == "+" else before - right.value
