"""Building a recursion: the nodes of a ScopeNode to the places of a Scope. Decides nothing.

Which operator a node is, is said once, by the building around (`operator`), which also says by which columns
a stateful one finds its rows: that is how it is told apart from those without state here.

Does not: lower (lower.py does), run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from clusterd.dataflow.operator import Operator
from clusterd.dataflow.scope import Limit, Place, Scope
from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.iterative import IterativeOperator, Linear
from clusterd.operators.iterative_binding import IterativeBinding
from clusterd.operators.iterative_counts import CountMode, IterativeCounts
from clusterd.operators.iterative_extremes import IterativeExtremes, is_of_extremes
from clusterd.operators.iterative_grouped import Grouped
from clusterd.operators.iterative_join import IterativeJoin
from clusterd.operators.mfp import MfpOperator
from clusterd.render.physical import (
    ArrangeNode,
    BindingNode,
    DistinctNode,
    EnterNode,
    FeedbackNode,
    JoinNode,
    Node,
    ReduceNode,
    ScopeNode,
    ThresholdNode,
    inputs_of,
)

__all__ = ["Made", "build_scope"]

Made = tuple[Operator, str, Mapping[int, tuple[int, ...]]]  # operator, name, columns by which ports exchange


def build_scope(
    node: ScopeNode,
    operator: Callable[[Node], Made],
    join: Callable[[JoinNode], IterativeJoin],
) -> Scope:
    """operator: of one of the node's own nodes, each call a new one. join: its sides are arranged inside."""
    places: list[Place] = []
    entries = [0] * len(node.inputs)
    feedback = [0] * len(node.bindings)
    for number, inner in enumerate(node.nodes):
        if isinstance(inner, EnterNode):
            entries[inner.port] = number
            places.append(Place(None, name="enter"))
        elif isinstance(inner, FeedbackNode):
            feedback[inner.binding] = number
            places.append(Place(None, name="feedback"))
        else:
            made = _iterative(inner, node.nodes, operator, join)
            places.append(Place(made, inputs_of(inner), _name(inner)))
    limit = None if node.limit is None else Limit(node.limit, node.return_at_limit)
    return Scope(places, entries=entries, feedback=feedback, bindings=node.bindings, limit=limit)


def _name(node: Node) -> str:
    """As an operator outside would be called: `top-k` for a TopKNode."""
    if isinstance(node, BindingNode):
        return f"binding {node.id}"
    kind = type(node).__name__.removesuffix("Node")
    return re.sub("(?<!^)(?=[A-Z])", "-", kind).lower()


def _iterative(
    node: Node,
    nodes: Sequence[Node],
    operator: Callable[[Node], Made],
    join: Callable[[JoinNode], IterativeJoin],
) -> IterativeOperator:
    match node:
        case BindingNode():
            return IterativeBinding(node.columns)
        case DistinctNode():
            return IterativeCounts(node.columns, CountMode.MULTISET)
        case ThresholdNode():
            return IterativeCounts(node.columns, CountMode.POSITIVE)
        case ArrangeNode():
            # Joins keep what they read themselves, by iteration.
            return Linear(MfpOperator((), node.columns))
        case JoinNode():
            return join(node)
        case ReduceNode(input, keys, aggregates):
            calls = [
                AggregateCall(a.function, a.column, column.name)
                for a, column in zip(aggregates, node.columns[keys:], strict=True)
            ]
            columns, key = nodes[input].columns, tuple(range(keys))
            if is_of_extremes(calls):
                return IterativeExtremes(columns, key, calls)
            # An input that grows by time may still take rows from one iteration to another.
            return Grouped(operator(replace(node, monotonic=False))[0], columns, key)
        case _:
            made, _, exchanged = operator(node)
            if not exchanged:
                return Linear(made)
            columns = nodes[inputs_of(node)[0]].columns
            return Grouped(made, columns, exchanged[0])
