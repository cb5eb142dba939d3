"""Physical plans: what would run, as data. Nodes in arrival order; inputs are numbers of earlier nodes.

This is the whole of what rendering decides: which imports are read as streams and which are looked up in
place, by which key, what is computed before and after a join, what is fused. `build.py` makes operators of
it without deciding anything more, and `explain.py` prints it.

Does not: hold operators, shards or arrangements.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from clusterd.dataflow.operator import Columns
from clusterd.operators.mfp import StageSpec
from clusterd.render.functions import TableCall
from controller_proto.dataflow import DataflowHeader, Export
from controller_proto.expr import Expr
from controller_proto.ids import GlobalId
from controller_proto.plan import Constant, OrderBy

__all__ = [
    "AggregateSpec", "AliasNode", "ArrangeNode", "BindingNode", "ConstantNode", "DeltaInput", "DeltaJoinNode",
    "DistinctNode", "EnterNode", "ExportNode", "FeedbackNode", "FlatMapNode", "IndexNode", "IndexSide",
    "JoinNode", "LeaveNode", "LocalSide", "LookupStep", "MfpNode", "NegateNode", "Node", "PhysicalPlan",
    "ReduceNode", "ScopeNode", "Side", "SourceNode", "TemporalNode", "ThresholdNode", "TopKNode",
    "UnionNode", "indexes_of", "inputs_of",
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
class TemporalNode:
    """The input through one stage, of which some predicates compare the time."""

    input: int
    stage: StageSpec
    columns: Columns


@dataclass(frozen=True, slots=True)
class ConstantNode:
    constant: Constant
    columns: Columns


@dataclass(frozen=True, slots=True)
class FlatMapNode:
    """The columns `kept` of the input, then what `call` makes of `args`: columns, or constants."""

    input: int
    kept: tuple[int, ...]
    call: TableCall
    args: tuple[int | Expr, ...]
    columns: Columns


@dataclass(frozen=True, slots=True)
class ArrangeNode:
    """The input, kept by `key`: columns of it. Joins look it up."""

    input: int
    key: tuple[int, ...]
    columns: Columns


@dataclass(frozen=True, slots=True)
class LocalSide:
    """A side of a join that is the ArrangeNode `node`."""

    node: int
    key: tuple[int, ...]
    columns: Columns


@dataclass(frozen=True, slots=True)
class IndexSide:
    """A side of a join that is the imported index `index`, whose key is `key`; it is not copied."""

    index: GlobalId
    key: tuple[int, ...]
    columns: Columns


Side = LocalSide | IndexSide


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
class DeltaInput:
    """An input of a delta join: the same rows by one key or several.

    test: a stage over the columns `tested` and one more, the row's place, that keeps only the places of rows
    that take part; None for all rows.
    """

    sides: tuple[Side, ...]
    tested: tuple[int, ...]
    test: StageSpec | None

    @property
    def columns(self) -> Columns:
        return self.sides[0].columns


@dataclass(frozen=True, slots=True)
class LookupStep:
    """Look up `sides[side]` of `input` by `key`: an input joined before, and a column of it, a position."""

    input: int
    side: int
    key: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DeltaJoinNode:
    """Rows of the inputs side by side; paths: what the changes of each input are looked up in.

    output, closure: as of JoinNode.
    """

    inputs: tuple[DeltaInput, ...]
    paths: tuple[tuple[LookupStep, ...], ...]
    null_safe: bool
    output: tuple[int, ...] | None
    closure: tuple[StageSpec, ...]
    columns: Columns

    @property
    def joined(self) -> Columns:
        """The columns of all inputs."""
        return tuple(column for each in self.inputs for column in each.columns)


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """`column` None is count(*). Columns are the input's, those of `order` too."""

    function: str
    column: int | None
    distinct: bool = False
    args: tuple[int, ...] = ()
    order: tuple[OrderBy, ...] = ()


@dataclass(frozen=True, slots=True)
class ReduceNode:
    """The first `keys` columns of the input are the group's key. monotonic: the input only grows."""

    input: int
    keys: int
    aggregates: tuple[AggregateSpec, ...]
    monotonic: bool
    columns: Columns


@dataclass(frozen=True, slots=True)
class DistinctNode:
    input: int
    columns: Columns


@dataclass(frozen=True, slots=True)
class ThresholdNode:
    input: int
    columns: Columns


@dataclass(frozen=True, slots=True)
class TopKNode:
    """limit None: all from `offset` on. Expressions read columns of the group key alone.

    monotonic: the input only grows.
    """

    input: int
    group_key: tuple[int, ...]
    order: tuple[OrderBy, ...]
    limit: int | Expr | None
    offset: int | Expr
    monotonic: bool
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


@dataclass(frozen=True, slots=True)
class AliasNode:
    """An export that is the imported index `index` under another id: nothing is computed or kept for it."""

    index: GlobalId
    export: Export
    columns: Columns


Node = (
    SourceNode | IndexNode | ConstantNode | MfpNode | TemporalNode | FlatMapNode | ArrangeNode | JoinNode
    | DeltaJoinNode | ReduceNode | DistinctNode | ThresholdNode | TopKNode | UnionNode | NegateNode
    | EnterNode | FeedbackNode | BindingNode | ScopeNode | LeaveNode | ExportNode | AliasNode
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """A dataflow as it would run."""

    header: DataflowHeader
    nodes: tuple[Node, ...]

    @property
    def aliases(self) -> dict[GlobalId, GlobalId]:
        """The imported index that each export is, of those that are one."""
        return {node.export.id: node.index for node in self.nodes if isinstance(node, AliasNode)}

    @property
    def computes(self) -> bool:
        """Whether anything but aliases comes of it."""
        return not all(isinstance(node, AliasNode) for node in self.nodes)

    @property
    def likeness(self) -> bytes:
        """What plans share that compute the same of imports of the same names, however they name exports.

        The text of a node names every type and value in it, exactly: what differs does not look the same.
        """
        sources = [(source.id, source.shard) for source in self.header.source_imports]
        nodes = [(node.input, node.columns) if isinstance(node, ExportNode) else node for node in self.nodes]
        return hashlib.blake2b(repr((sources, nodes)).encode(), digest_size=16).digest()


def inputs_of(node: Node) -> tuple[int, ...]:
    """The nodes that `node` reads, in port order; arrangements are read in place."""
    match node:
        case SourceNode() | IndexNode() | ConstantNode() | EnterNode() | FeedbackNode() | AliasNode():
            return ()
        case JoinNode(left, right):
            return tuple(side.node for side in (left, right) if isinstance(side, LocalSide))
        case DeltaJoinNode(inputs):
            sides = (side for each in inputs for side in each.sides)
            return tuple(side.node for side in sides if isinstance(side, LocalSide))
        case UnionNode(inputs) | ScopeNode(inputs):
            return inputs
        case _:
            return (node.input,)


def indexes_of(node: Node) -> tuple[GlobalId, ...]:
    """The imported indexes that `node` reads in place, each once."""
    match node:
        case JoinNode(left, right):
            sides: tuple[Side, ...] = (left, right)
        case DeltaJoinNode(inputs):
            sides = tuple(side for each in inputs for side in each.sides)
        case _:
            sides = ()
    return tuple(dict.fromkeys(side.index for side in sides if isinstance(side, IndexSide)))
