"""Whether a plan may take rows away, and so whether `monotonic` above it is a lie that the plan tells itself.

What a monotonic operator does not keep it cannot give back, so a row taken away is an error in data that
stays. Of what is imported only its writer knows; but a Negate, a window of time or an aggregate takes rows
away as a matter of course, and is refused below `monotonic` before any effect. What remains grows if its
imports do: every other node makes more of more.

In a recursion `monotonic` is not heeded, so bindings are taken to grow. If all of them do under that
assumption, so does their fixed point.

Does not: type, or look at a dataflow of one time, in which nothing can go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller_proto.errors import Refusal
from controller_proto.expr import Expr
from controller_proto.ids import GlobalId
from controller_proto.plan import (
    Constant,
    Get,
    Join,
    Let,
    LetRec,
    Mfp,
    Negate,
    Plan,
    Reduce,
    TopK,
    Union,
)
from controller_proto.temporal import TimeTest, split_predicate

__all__ = ["what_takes_away"]

_COMES_TO_STAY: Final = (">", ">=")  # a row whose bound the time has reached


def what_takes_away(plan: Plan, env: Mapping[GlobalId, str], where: str) -> str:
    """What in a typed `plan` may take a row away; empty if nothing does. env: the same of what it reads.

    Raises: Refusal `invalid-plan` if that is below an operator called monotonic.
    """
    match plan:
        case Get(id):
            return env.get(id, "")
        case Constant(rows):
            return "" if all(diff >= 0 for _, diff in rows) else "a Constant with a negative count"
        case Join(inputs) | Union(inputs):
            return next(filter(None, [what_takes_away(each, env, where) for each in inputs]), "")
        case Let(id, value, body):
            return what_takes_away(body, {**env, id: what_takes_away(value, env, where)}, where)
        case LetRec(bindings, body):
            inner = {**env, **{id: "" for id, _, _ in bindings}}
            found = [what_takes_away(value, inner, where) for _, _, value in bindings]
            return next(filter(None, [*found, what_takes_away(body, inner, where)]), "")
    below = what_takes_away(plan.input, env, where)
    match plan:
        case Reduce(_, _, aggregates, is_monotonic):
            _check(is_monotonic, "Reduce", below, where)
            return below or ("a Reduce with aggregates" if aggregates else "")
        case TopK(monotonic=is_monotonic):
            _check(is_monotonic, "TopK", below, where)
            return below or "a TopK"
        case Negate():
            return below or "a Negate"
        case Mfp() if any(map(_lets_go, plan.predicates)):
            return below or "a temporal filter that lets rows go"
    return below


def _lets_go(predicate: Expr) -> bool:
    tests = [part for part in split_predicate(predicate) if isinstance(part, TimeTest)]
    return any(test.comparison not in _COMES_TO_STAY for test in tests)


def _check(is_monotonic: bool, name: str, below: str, where: str) -> None:
    if is_monotonic and below:
        raise Refusal(
            "invalid-plan",
            f"{where}: a monotonic {name} stands on {below}, which takes rows away",
            f"leave out monotonic: the {name} then keeps what may come back",
        )
