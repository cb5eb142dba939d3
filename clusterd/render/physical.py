"""Physical plans: what would run, as data. Nodes in arrival order; inputs are numbers of earlier nodes.

This is the whole of what rendering decides: which imports are read as streams and which are looked up in
place, by which key, what is computed before and after a join, what is fused. `build.py` makes operators of
it without deciding anything more, and `explain.py` prints it.

Does not: hold operators, shards or arrangements.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterd.dataflow.operator import Columns
from clusterd.operators.mfp import StageSpec
from controller_proto.dataflow import DataflowHeader, Export
from controller_proto.ids import GlobalId
from controller_proto.plan import OrderBy

__all__ = [
    "AggregateSpec", "BindingNode", "DistinctNode", "EnterNode", "ExportNode", "FeedbackNode", "IndexNode",
    "IndexSide", "JoinNode", "LeaveNode", "MfpNode", "NegateNode", "Node", "PhysicalPlan", "ReduceNode",
    "ScopeNode", "Side", "SourceNode", "StreamSide", "TopKNode", "UnionNode", "inputs_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceNode:
    """The shard imported as `id`."""

    id: GlobalId
    columns: Columns


@dataclass(frozen=True, slots=True)
class IndexNode:
    """The imported index `id`, read as a stream."""

    id: GlobalId
    columns: Columns


@dataclass(frozen=True, slots=True)
class MfpNode:
    input: int
    stages: tuple[StageSpec, ...]
    columns: Columns


@dataclass(frozen=True, slots=True)
class StreamSide:
    """A side of a join that arranges its input by `key`, columns of the input."""

    input: int
    key: tuple[int, ...]
    columns: Columns


@dataclass(frozen=True, slots=True)
class IndexSide:
    """A side of a join that is the imported index `index`, whose key is `key`; it is not copied."""

    index: GlobalId
    key: tuple[int, ...]
    columns: Columns


Side = StreamSide | IndexSide


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Rows of left, then of right, where the keys are equal, position by position.

    Of the joined row only the columns `output` are made (None: all), and `closure` is applied to them.
    """

    left: Side
    right: Side
    null_safe: bool
    output: tuple[int, ...] | None
    closure: tuple[StageSpec, ...]
    columns: Columns


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """`column` None is count(*)."""

    function: str
    column: int | None
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class ReduceNode:
    """The first `keys` columns of the input are the group's key."""

    input: int
    keys: int
    aggregates: tuple[AggregateSpec, ...]
    columns: Columns


@dataclass(frozen=True, slots=True)
class DistinctNode:
    input: int
    columns: Columns


@dataclass(frozen=True, slots=True)
class TopKNode:
    """limit None: all from `offset` on."""

    input: int
    group_key: tuple[int, ...]
    order: tuple[OrderBy, ...]
    limit: int | None
    offset: int
    columns: Columns


@dataclass(frozen=True, slots=True)
class UnionNode:
    inputs: tuple[int, ...]
    columns: Columns


@dataclass(frozen=True, slots=True)
class NegateNode:
    input: int
    columns: Columns


@dataclass(frozen=True, slots=True)
class EnterNode:
    """Inside a recursion: input `port` of its ScopeNode, the same at every iteration."""

    port: int
    columns: Columns


@dataclass(frozen=True, slots=True)
class FeedbackNode:
    """Inside a recursion: what binding `binding`, called `id`, was at the iteration before."""

    binding: int
    id: GlobalId
    columns: Columns


@dataclass(frozen=True, slots=True)
class BindingNode:
    """Inside a recursion: what the binding `id` is at this iteration."""

    input: int
    id: GlobalId
    columns: Columns


@dataclass(frozen=True, slots=True)
class ScopeNode:
    """A recursion. `nodes` are its own, numbered by themselves; bindings: the numbers of its BindingNodes.

    limit: None, or how many iterations there may be. It gives no rows itself: its LeaveNodes do.
    """

    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    bindings: tuple[int, ...]
    limit: int | None
    return_at_limit: bool
    columns: Columns = ()


@dataclass(frozen=True, slots=True)
class LeaveNode:
    """What binding `binding` of the ScopeNode `input`, called `id`, is at its end."""

    input: int
    binding: int
    id: GlobalId
    columns: Columns


@dataclass(frozen=True, slots=True)
class ExportNode:
    input: int
    export: Export
    columns: Columns


Node = (
    SourceNode | IndexNode | MfpNode | JoinNode | ReduceNode | DistinctNode | TopKNode | UnionNode
    | NegateNode | EnterNode | FeedbackNode | BindingNode | ScopeNode | LeaveNode | ExportNode
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """A dataflow as it would run."""

    header: DataflowHeader
    nodes: tuple[Node, ...]


def inputs_of(node: Node) -> tuple[int, ...]:
    """The nodes whose streams `node` takes, in port order."""
    match node:
        case SourceNode() | IndexNode() | EnterNode() | FeedbackNode():
            return ()
        case JoinNode(left, right):
            return tuple(side.input for side in (left, right) if isinstance(side, StreamSide))
        case UnionNode(inputs) | ScopeNode(inputs):
            return inputs
        case _:
            return (node.input,)
