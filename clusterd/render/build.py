"""Building: a physical plan to a graph of operators. Decides nothing; takes imports and exports as they come.

The environment is where effects are: it opens what the dataflow reads and creates what it writes. If it
fails, or an operator's making does, what was made of the graph is closed again; what the environment handed
out is the environment's to take back.

Does not: validate, plan, run.
"""

from __future__ import annotations

from typing import Protocol

from clusterd.dataflow.exchange import ExchangeFactory, identity_exchange
from clusterd.dataflow.graph import Clock, Graph
from clusterd.dataflow.operator import ArrangedInput, Columns, Delta, Operator, Source
from clusterd.dataflow.scope import Scope, ScopeOutput
from clusterd.operators.distinct import DistinctOperator
from clusterd.operators.export_index import ExportIndex
from clusterd.operators.iterative_join import IterativeJoin
from clusterd.operators.join import Arranged, Closure, JoinOperator, Streamed
from clusterd.operators.mfp import MfpOperator, apply_stages, compile_stages
from clusterd.operators.negate import NegateOperator
from clusterd.operators.reduce import ReduceOperator
from clusterd.operators.reduce_tactic import AggregateCall
from clusterd.operators.top_k import OrderColumn, TopKOperator
from clusterd.operators.union import UnionOperator
from clusterd.render.physical import (
    DistinctNode,
    ExportNode,
    IndexNode,
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
    StreamSide,
    TopKNode,
    UnionNode,
    inputs_of,
)
from clusterd.render.recursion import build_scope
from controller_proto.dataflow import Export, IndexImport, SourceImport
from controller_proto.ids import GlobalId
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.index_writer import IndexWriter

__all__ = ["Environment", "ImportedIndex", "build_graph"]


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


def build_graph(
    plan: PhysicalPlan,
    environment: Environment,
    *,
    clock: Clock,
    exchange: ExchangeFactory = identity_exchange,
) -> Graph:
    """Raises: what the environment raises; nothing else for a plan that `lower` made."""
    graph = Graph(clock=clock, exchange=exchange)
    try:
        _Building(plan, environment, graph).run()
    except BaseException:
        graph.close()
        raise
    return graph


class _Building:
    def __init__(self, plan: PhysicalPlan, environment: Environment, graph: Graph) -> None:
        self._plan = plan
        self._environment = environment
        self._graph = graph
        self._numbers: list[int] = []  # of the graph's nodes, by the plan's
        self._sources = {imported.id: imported for imported in plan.header.source_imports}
        self._indexes: dict[GlobalId, tuple[int, ArrangedInput]] = {}
        self._scopes: dict[int, Scope] = {}  # by number of the node

    def run(self) -> None:
        # Also an index that no node streams is a source: it has rounds to follow.
        for imported in self._plan.header.index_imports:
            index = self._environment.index(imported)
            number = self._graph.add_source(index, f"index {imported.id}")
            self._indexes[imported.id] = number, index.arranged
        for node in self._plan.nodes:
            self._numbers.append(self._add(node))

    def _add(self, node: Node) -> int:
        if isinstance(node, SourceNode):
            source = self._environment.source(self._sources[node.id])
            return self._graph.add_source(source, f"source {node.id}")
        if isinstance(node, IndexNode):
            return self._indexes[node.id][0]
        operator, name, arranges = self._operator(node)
        inputs = [self._numbers[number] for number in inputs_of(node)]
        return self._graph.add_operator(operator, inputs, name, exchange_on=arranges)

    def _operator(self, node: Node) -> tuple[Operator, str, dict[int, tuple[int, ...]]]:
        """The operator, its name, and by which columns each port's rows find their worker, if they must."""
        match node:
            case MfpNode():
                return MfpOperator(node.stages, self._columns(node.input)), "mfp", {}
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
                    AggregateCall(aggregate.function, aggregate.column, name)
                    for aggregate, name in zip(aggregates, names, strict=True)
                ]
                return ReduceOperator(self._columns(input), key, calls), "reduce", {0: key}
            case TopKNode(input):
                order = [OrderColumn(by.column, by.descending, by.nulls_first) for by in node.order]
                operator = TopKOperator(self._columns(input), node.group_key, order, node.limit, node.offset)
                return operator, "top-k", {0: node.group_key}
            case JoinNode():
                return self._join(node)
            case ScopeNode():
                inside = _Building(
                    PhysicalPlan(self._plan.header, node.nodes), self._environment, self._graph
                )
                scope = build_scope(node, inside._operator, inside._iterative_join)
                self._scopes[len(self._numbers)] = scope
                return scope, "recursion", {}
            case LeaveNode(input, binding, id):
                return ScopeOutput(self._scopes[input], binding), f"leave {id}", {}
            case ExportNode(input, export):
                index = self._environment.export(export)
                return ExportIndex(self._columns(input), index), f"export {export.id}", {0: export.key}
            case _:
                raise InvariantViolation("not an operator", node=node)

    def _columns(self, number: int) -> Columns:
        return self._plan.nodes[number].columns

    def _join(self, node: JoinNode) -> tuple[Operator, str, dict[int, tuple[int, ...]]]:
        sides = [self._side(node.left), self._side(node.right)]
        streams = [side for side in (node.left, node.right) if isinstance(side, StreamSide)]
        operator = JoinOperator(
            *sides,
            null_safe=node.null_safe,
            output_columns=node.output,
            closure=self._closure(node),
            closure_columns=node.columns if node.closure else None,
        )
        return operator, "join", {port: side.key for port, side in enumerate(streams)}

    def _iterative_join(self, node: JoinNode) -> IterativeJoin:
        return IterativeJoin(
            (node.left.columns, node.right.columns),
            (node.left.key, node.right.key),
            null_safe=node.null_safe,
            output_columns=node.output,
            closure=self._closure(node),
            closure_columns=node.columns if node.closure else None,
        )

    def _closure(self, node: JoinNode) -> Closure | None:
        if not node.closure:
            return None
        joined = node.left.columns + node.right.columns
        columns = joined if node.output is None else tuple(joined[column] for column in node.output)
        stages = compile_stages(node.closure, columns)
        return lambda updates: apply_stages(stages, Delta.of(updates))

    def _side(self, side: Side) -> Arranged | Streamed:
        if isinstance(side, StreamSide):
            return Streamed(side.columns, side.key)
        return Arranged(self._indexes[side.index][1])
