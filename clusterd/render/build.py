"""Building: a physical plan to a graph of operators. Decides nothing; takes imports and exports as they come.

The environment is where effects are: it opens what the dataflow reads and creates what it writes. If it
fails, or an operator's making does, what was made of the graph is closed again; what the environment handed
out is the environment's to take back.

Does not: validate, plan, run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.graph import Clock, Graph
from clusterd.dataflow.operator import ArrangedInput, Columns, Delta, Operator, Source
from clusterd.dataflow.scope import Scope, ScopeOutput
from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.constant import ConstantSource
from clusterd.operators.distinct import DistinctOperator
from clusterd.operators.export_copy_to import ExportCopyTo
from clusterd.operators.export_index import ExportIndex
from clusterd.operators.export_subscribe import ExportSubscribe
from clusterd.operators.export_view import ExportView
from clusterd.operators.flat_map import FlatMapOperator
from clusterd.operators.iterative_join import IterativeJoin
from clusterd.operators.join import Closure, JoinOperator
from clusterd.operators.join_arrange import ArrangeOperator
from clusterd.operators.join_delta import DeltaInput as DeltaArrangements
from clusterd.operators.join_delta import DeltaJoinOperator, Lookup
from clusterd.operators.mfp import MfpOperator, Stage, StageSpec, apply_stages, compile_stages
from clusterd.operators.negate import NegateOperator
from clusterd.operators.ordered import OrderColumn
from clusterd.operators.reduce import ReduceOperator
from clusterd.operators.temporal import TemporalOperator
from clusterd.operators.threshold import ThresholdOperator
from clusterd.operators.top_k import TopKOperator
from clusterd.operators.union import UnionOperator
from clusterd.operators.view_writer import ViewWriter
from clusterd.render.expr import compile_expr
from clusterd.render.physical import (
    AliasNode,
    ArrangeNode,
    ConstantNode,
    DeltaInput,
    DeltaJoinNode,
    DistinctNode,
    ExportNode,
    FlatMapNode,
    IndexNode,
    IndexSide,
    JoinNode,
    LeaveNode,
    MfpNode,
    NegateNode,
    Node,
    PhysicalPlan,
    ReduceNode,
    ScopeNode,
    Side,
    SourceNode,
    TemporalNode,
    ThresholdNode,
    TopKNode,
    UnionNode,
    indexes_of,
    inputs_of,
)
from clusterd.render.recursion import build_scope
from controller_proto.dataflow import Export, IndexImport, SourceImport
from controller_proto.ids import GlobalId
from controller_proto.plan import OrderBy
from shm_arrangements.columns import Column
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["Environment", "ImportedIndex", "build_graph", "operators_of"]

_NO_NODE: Final = -1  # of what no node reads


class ImportedIndex(Source, Protocol):
    """An index as a source, and as the arrangement it is."""

    @property
    def arranged(self) -> ArrangedInput: ...


class Environment(Protocol):
    """Where a dataflow's imports come from and its exports go to. Each is asked for once."""

    def source(self, imported: SourceImport) -> Source: ...

    def index(self, imported: IndexImport) -> ImportedIndex: ...

    def export(self, export: Export) -> IndexWriter:
        """An index that is sealed up to nothing yet, of the rows and the key of `export`."""

    def alias(self, export: Export, index: GlobalId) -> None:
        """`export` is the imported `index` under another id."""


def build_graph(
    plan: PhysicalPlan,
    environment: Environment,
    *,
    clock: Clock,
    subscribed: Callable[[Export, ExportSubscribe], None] | None = None,
    view: Callable[[Export], ViewWriter] | None = None,
    copy: Callable[[Export, Columns], ExportCopyTo] | None = None,
    expires_at: int | None = None,
) -> Graph:
    """Raises: what the environment raises; nothing else for a plan that `lower` made.

    subscribed: called with each subscription that is made; what it has to tell is to be taken after each
    round. view: makes what writes a view. copy: makes what writes a copy of rows of these columns.
    expires_at: from when on temporal filters keep nothing.
    """
    graph = Graph(clock=clock)
    try:
        _Building(plan, environment, graph, subscribed, view, copy, expires_at).run()
    except BaseException:
        graph.close()
        raise
    return graph


def operators_of(plan: PhysicalPlan) -> tuple[int, ...]:
    """The node of the graph that carries out each node of the plan; -1 for what none does."""
    indexes = [imported.id for imported in plan.header.index_imports] if plan.computes else []
    found: list[int] = []
    following = len(indexes)
    for node in plan.nodes:
        if isinstance(node, AliasNode):
            found.append(_NO_NODE)
        elif isinstance(node, IndexNode):
            found.append(indexes.index(node.id))
        else:
            found.append(following)
            following += 1
    return tuple(found)


class _Building:
    def __init__(
        self,
        plan: PhysicalPlan,
        environment: Environment,
        graph: Graph,
        subscribed: Callable[[Export, ExportSubscribe], None] | None = None,
        view: Callable[[Export], ViewWriter] | None = None,
        copy: Callable[[Export, Columns], ExportCopyTo] | None = None,
        expires_at: int | None = None,
    ) -> None:
        self._plan = plan
        self._environment = environment
        self._graph = graph
        self._subscribed = subscribed
        self._view = view
        self._copy = copy
        self._expires_at = expires_at
        self._numbers: list[int] = []  # of the graph's nodes, by the plan's
        self._sources = {imported.id: imported for imported in plan.header.source_imports}
        self._indexes: dict[GlobalId, tuple[int, ArrangedInput]] = {}
        self._arrangements: dict[int, ArrangedInput] = {}  # by the plan's number
        self._scopes: dict[int, Scope] = {}  # by the same

    def run(self) -> None:
        # Also an index that no node streams is a source: it has rounds to follow. An alias follows none.
        for imported in self._plan.header.index_imports if self._plan.computes else ():
            index = self._environment.index(imported)
            number = self._graph.add_source(index, f"index {imported.id}")
            self._indexes[imported.id] = number, index.arranged
        for node in self._plan.nodes:
            self._numbers.append(self._add(node))

    def _add(self, node: Node) -> int:
        if isinstance(node, AliasNode):
            self._environment.alias(node.export, node.index)
            return _NO_NODE
        if isinstance(node, SourceNode):
            source = self._environment.source(self._sources[node.id])
            return self._graph.add_source(source, f"source {node.id}")
        if isinstance(node, IndexNode):
            return self._indexes[node.id][0]
        if isinstance(node, ConstantNode):
            return self._graph.add_source(ConstantSource(node.constant), "constant")
        operator, name, arranges = self._operator(node)
        inputs = [self._numbers[number] for number in inputs_of(node)]
        reads = [self._indexes[id][0] for id in indexes_of(node)]
        return self._graph.add_operator(operator, inputs, name, exchange_on=arranges, reads=reads)

    def _operator(self, node: Node) -> tuple[Operator, str, dict[int, tuple[int, ...]]]:
        """The operator, its name, and by which columns each port's rows find their worker, if they must."""
        match node:
            case MfpNode():
                return MfpOperator(node.stages, self._columns(node.input)), "mfp", {}
            case TemporalNode(input):
                temporal = TemporalOperator(node.stage, self._columns(input), self._expires_at)
                return temporal, "temporal-filter", {}
            case FlatMapNode(input):
                args = [
                    arg if isinstance(arg, int) else compile_expr(arg, ()).run((), 1).column
                    for arg in node.args
                ]
                flat_map = FlatMapOperator(self._columns(input), node.kept, node.call, args)
                return flat_map, f"flat-map {node.call.function}", {}
            case ThresholdNode(input):
                columns = self._columns(input)
                return ThresholdOperator(columns), "threshold", {0: tuple(range(len(columns)))}
            case ArrangeNode(input, key):
                arrange = ArrangeOperator(self._columns(input), key)
                self._arrangements[len(self._numbers)] = arrange.arranged
                return arrange, "arrange", {0: key}
            case NegateNode(input):
                return NegateOperator(self._columns(input)), "negate", {}
            case UnionNode(inputs):
                return UnionOperator([self._columns(each) for each in inputs]), "union", {}
            case DistinctNode(input):
                columns = self._columns(input)
                return DistinctOperator(columns), "distinct", {0: tuple(range(len(columns)))}
            case ReduceNode(input, keys, aggregates):
                key = tuple(range(keys))
                names = [column.name for column in node.columns[keys:]]
                calls = [
                    AggregateCall(a.function, a.column, name, a.distinct, a.args, _order(a.order))
                    for a, name in zip(aggregates, names, strict=True)
                ]
                reduce = ReduceOperator(self._columns(input), key, calls, monotonic=node.monotonic)
                return reduce, "reduce", {0: key}
            case TopKNode(input):
                order = _order(node.order)
                columns = self._columns(input)
                top_k = TopKOperator(
                    columns, node.group_key, order, node.limit, node.offset, monotonic=node.monotonic
                )
                return top_k, "top-k", {0: node.group_key}
            case JoinNode(left, right):
                joined = left.columns + right.columns
                sides = self._arranged(left), self._arranged(right)
                return JoinOperator(*sides, null_safe=node.null_safe, **self._shape(node, joined)), "join", {}
            case DeltaJoinNode(inputs):
                arrangements = [self._delta_input(each) for each in inputs]
                paths = [[Lookup(step.input, step.side, step.key) for step in path] for path in node.paths]
                delta_join = DeltaJoinOperator(
                    arrangements, paths, null_safe=node.null_safe, **self._shape(node, node.joined)
                )
                return delta_join, "delta-join", {}
            case ScopeNode():
                inside = _Building(
                    PhysicalPlan(self._plan.header, node.nodes), self._environment, self._graph
                )
                scope = build_scope(node, inside._operator, inside._iterative_join)
                self._scopes[len(self._numbers)] = scope
                return scope, "recursion", {}
            case LeaveNode(input, binding, id):
                return ScopeOutput(self._scopes[input], binding), f"leave {id}", {}
            case ExportNode(input, export) if export.kind == "subscribe":
                subscription = ExportSubscribe(self._columns(input), snapshot=export.snapshot)
                if self._subscribed is None:
                    raise InvariantViolation("a subscription that nobody takes", id=export.id)
                self._subscribed(export, subscription)
                return subscription, f"subscribe {export.id}", {}
            case ExportNode(input, export) if export.kind == "materialized-view":
                if self._view is None:
                    raise InvariantViolation("a view that nobody writes", id=export.id)
                return ExportView(self._columns(input), self._view(export)), f"view {export.id}", {}
            case ExportNode(input, export) if export.kind == "copy-to":
                if self._copy is None:
                    raise InvariantViolation("a copy that nobody takes", id=export.id)
                return self._copy(export, self._columns(input)), f"copy-to {export.id}", {}
            case ExportNode(input, export):
                index = self._environment.export(export)
                return ExportIndex(self._columns(input), index), f"export {export.id}", {0: export.key}
            case _:
                raise InvariantViolation("not an operator", node=node)

    def _columns(self, number: int) -> Columns:
        return self._plan.nodes[number].columns

    def _arranged(self, side: Side) -> ArrangedInput:
        if isinstance(side, IndexSide):
            return self._indexes[side.index][1]
        return self._arrangements[side.node]

    def _iterative_join(self, node: JoinNode) -> IterativeJoin:
        left, right = node.left, node.right
        shape = self._shape(node, left.columns + right.columns)
        return IterativeJoin(
            (left.columns, right.columns), (left.key, right.key), null_safe=node.null_safe, **shape
        )

    def _shape(self, node: JoinNode | DeltaJoinNode, joined: Columns) -> _Shape:
        """What becomes of the joined row."""
        shape = _Shape(output_columns=node.output, closure=None, closure_columns=None)
        if node.closure:
            columns = joined if node.output is None else tuple(joined[column] for column in node.output)
            stages = compile_stages(node.closure, columns)
            shape["closure"] = lambda updates: apply_stages(stages, Delta.of(updates))
            shape["closure_columns"] = node.columns
        return shape

    def _delta_input(self, each: DeltaInput) -> DeltaArrangements:
        arranged = tuple(map(self._arranged, each.sides))
        if each.test is None:
            return DeltaArrangements(arranged)
        tested = tuple(each.columns[column] for column in each.tested)
        return DeltaArrangements(arranged, each.tested, _keeping(each.test, tested))


class _Shape(TypedDict):
    """The arguments of a join operator that say what becomes of the joined row."""

    output_columns: tuple[int, ...] | None
    closure: Closure | None
    closure_columns: Columns | None


def _keeping(test: StageSpec, columns: Columns) -> Callable[[Sequence[Column], int], NDArray[np.int64]]:
    """Which of n rows of `columns` the test of a DeltaInput keeps."""
    stage = Stage(test, (*columns, ColumnSpec("place", ColumnType.INT64, False)))

    def keep(values: Sequence[Column], n: int) -> NDArray[np.int64]:
        places = Column(ColumnType.INT64, np.arange(n, dtype=np.int64))
        rows = Updates((*values, places), np.zeros(n, np.uint64), np.ones(n, np.int64))
        kept, _ = stage.apply(rows)
        return np.ascontiguousarray(kept.columns[0].values)

    return keep


def _order(items: Iterable[OrderBy]) -> tuple[OrderColumn, ...]:
    return tuple(OrderColumn(by.column, by.descending, by.nulls_first) for by in items)
