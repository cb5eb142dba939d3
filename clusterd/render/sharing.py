"""Common sub-plans: every binding gets a name of its own, and equal plans are counted.

With names that are never used twice, a plan means the same wherever it stands, so equal plans are one: the
walk of lowering renders each once. How often a plan is used by plans that differ tells whether it has to be
a node that several read, or may be fused into its one consumer.

Does not: render, compare plans by anything but their structure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from controller_proto.ids import GlobalId
from controller_proto.plan import Constant, Get, Join, Let, LetRec, Plan, Union

__all__ = ["Bindings", "count_uses"]


class Bindings:
    """Names for the bindings of a dataflow: their own, or if that was met before one that no script has."""

    def __init__(self) -> None:
        self._met: Counter[GlobalId] = Counter()

    def named(self, plan: Plan, scope: Mapping[GlobalId, GlobalId] | None = None) -> Plan:
        """`plan`, every binding with a name of its own."""
        scope = {} if scope is None else scope
        match plan:
            case Get(id):
                return Get(scope[id]) if id in scope else plan
            case Constant():
                return plan
            case Let(id, value, body):
                value = self.named(value, scope)
                name = self._name(id)
                return Let(name, value, self.named(body, {**scope, id: name}))
            case LetRec(bindings, body):
                inner = {**scope, **{id: self._name(id) for id, _, _ in bindings}}
                named = tuple((inner[id], schema, self.named(value, inner)) for id, schema, value in bindings)
                return replace(plan, bindings=named, body=self.named(body, inner))
            case Join(inputs) | Union(inputs):
                return replace(plan, inputs=tuple(self.named(each, scope) for each in inputs))
            case _:
                return replace(plan, input=self.named(plan.input, scope))

    def _name(self, id: GlobalId) -> GlobalId:
        self._met[id] += 1
        return id if self._met[id] == 1 else f"{id}.{self._met[id]}"


def count_uses(plans: Iterable[Plan]) -> Counter[Plan]:
    """How many times each plan stands in plans that differ. A Get of a binding counts for its value."""
    uses: Counter[Plan] = Counter()
    values: dict[GlobalId, Plan] = {}
    seen: set[Plan] = set()
    waiting = list(plans)
    while waiting:
        plan = waiting.pop()
        if plan in seen:
            continue
        seen.add(plan)
        if isinstance(plan, Let):
            values[plan.id] = plan.value
        for each in _inputs(plan):
            uses[each] += 1
            waiting.append(each)
    for plan, count in list(uses.items()):
        if isinstance(plan, Get) and plan.id in values:
            uses[values[plan.id]] += count
    for value in values.values():
        uses[value] -= 1  # the Let itself does not read it
    return uses


def _inputs(plan: Plan) -> tuple[Plan, ...]:
    match plan:
        case Get() | Constant():
            return ()
        case LetRec(bindings, body):
            return (*(value for _, _, value in bindings), body)
        case Let(_, value, body):
            return value, body
        case Join(inputs) | Union(inputs):
            return inputs
        case _:
            return (plan.input,)
