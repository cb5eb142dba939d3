"""A physical plan as text: what would run, one operator a line, inputs indented below it.

`Lookup` is an imported index read in place; `Stream` the same index read as updates; `Arrange` a side that
the join sorts for itself. A node that several read is printed once and named. Of a recursion, `Enter` stands
over what comes from outside, `Feedback` for a binding as the iteration before left it.

Does not: plan anything, know sizes or costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from clusterd.operators.mfp import StageSpec
from clusterd.render.physical import (
    AggregateSpec,
    BindingNode,
    DistinctNode,
    EnterNode,
    ExportNode,
    FeedbackNode,
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
    TopKNode,
    UnionNode,
    inputs_of,
)
from controller_proto.print_plan import format_expr, format_order

__all__ = ["explain"]


def explain(plan: PhysicalPlan) -> str:
    """The plan as lines of text, one tree an export."""
    return "\n".join(_Printer(plan.nodes).lines())


class _Printer:
    """outside: inside a recursion, gives the lines of what enters at a port, at a depth; prefix: of names."""

    def __init__(
        self,
        nodes: Sequence[Node],
        outside: Callable[[int, int], Iterator[str]] | None = None,
        prefix: str = "n",
    ) -> None:
        self._nodes = nodes
        self._outside = outside
        readers = Counter(number for node in nodes for number in inputs_of(node))
        plain = (SourceNode, IndexNode, FeedbackNode, BindingNode)
        shared = (n for n in sorted(readers) if readers[n] > 1 and not isinstance(nodes[n], plain))
        self._names = {number: f"{prefix}{position}" for position, number in enumerate(shared)}
        self._printed: set[int] = set()

    def lines(self) -> Iterator[str]:
        for number, node in enumerate(self._nodes):
            if isinstance(node, ExportNode):
                yield from self._tree(number, 0)

    def _tree(self, number: int, depth: int) -> Iterator[str]:
        node, indent = self._nodes[number], "  " * depth
        name = self._names.get(number)
        if number in self._printed and name is not None:
            yield f"{indent}{name}"
            return
        self._printed.add(number)
        yield f"{indent}{'' if name is None else name + ': '}{_line(node)}"
        if isinstance(node, JoinNode):
            inputs = iter(inputs_of(node))
            for side in (node.left, node.right):
                yield f"{indent}  {_side(side)}"
                if not isinstance(side, IndexSide):
                    yield from self._tree(next(inputs), depth + 2)
        elif isinstance(node, ScopeNode):
            yield from self._bindings(node, f"{name or 'n'}r", depth + 1)
        elif isinstance(node, EnterNode) and self._outside is not None:
            yield from self._outside(node.port, depth + 1)
        elif not isinstance(node, BindingNode):  # whose value is printed once, by the scope
            for each in inputs_of(node):
                yield from self._tree(each, depth + 1)

    def _bindings(self, scope: ScopeNode, prefix: str, depth: int) -> Iterator[str]:
        inside = _Printer(scope.nodes, lambda port, at: self._tree(scope.inputs[port], at), prefix)
        for number in scope.bindings:
            binding = scope.nodes[number]
            assert isinstance(binding, BindingNode)
            yield f"{'  ' * depth}cte {binding.id} ="
            yield from inside._tree(binding.input, depth + 1)


def _line(node: Node) -> str:
    match node:
        case SourceNode(id):
            return f"Source {id}"
        case IndexNode(id):
            return f"Stream index {id}"
        case MfpNode():
            return "Mfp " + " then ".join(map(_stage, node.stages))
        case JoinNode():
            return _join(node)
        case ReduceNode():
            calls = ", ".join(map(_aggregate, node.aggregates))
            return f"Reduce group_by={_columns(range(node.keys))} aggregates=[{calls}]"
        case DistinctNode():
            return "Distinct"
        case TopKNode():
            return _top_k(node)
        case UnionNode():
            return "Union"
        case NegateNode():
            return "Negate"
        case EnterNode():
            return "Enter"
        case FeedbackNode(_, id):
            return f"Feedback {id}"
        case BindingNode(_, id):
            return f"Binding {id}"
        case ScopeNode():
            return _scope(node)
        case LeaveNode(_, _, id):
            return f"Leave {id}"
        case ExportNode(_, export):
            return f"Export {export.kind} {export.id} on={export.on} key={_columns(export.key)}"


def _scope(node: ScopeNode) -> str:
    if node.limit is None:
        return "Recursion"
    return f"Recursion recursion_limit={node.limit}{' return_at_limit' if node.return_at_limit else ''}"


def _join(node: JoinNode) -> str:
    arity = len(node.left.columns)
    pairs = zip(node.left.key, node.right.key, strict=True)
    equal = " AND ".join(f"#{a} = #{arity + b}" for a, b in pairs)
    text = "Join" + (f" on=({equal})" if equal else "") + (" null_safe" if node.null_safe else "")
    if node.output is not None:
        text += f" output=({', '.join(f'#{column}' for column in node.output)})"
    return " then ".join((text, *map(_stage, node.closure)))


def _columns(columns: Iterable[int]) -> str:
    return "[" + ", ".join(f"#{column}" for column in columns) + "]"


def _side(side: Side) -> str:
    if isinstance(side, IndexSide):
        return f"Lookup index {side.index} key={_columns(side.key)}"
    return f"Arrange key={_columns(side.key)}"


def _aggregate(aggregate: AggregateSpec) -> str:
    of = "*" if aggregate.column is None else f"#{aggregate.column}"
    return f"{aggregate.function}({'distinct ' if aggregate.distinct else ''}{of})"


def _stage(stage: StageSpec) -> str:
    parts = []
    if stage.maps:
        parts.append(f"map=({', '.join(map(format_expr, stage.maps))})")
    if stage.predicates:
        parts.append(f"filter=({' AND '.join(format_expr(p, 3) for p in stage.predicates)})")
    if stage.projection is not None:
        parts.append(f"project=({', '.join(f'#{column}' for column in stage.projection)})")
    return " ".join(parts)


def _top_k(node: TopKNode) -> str:
    text = f"TopK group_by={_columns(node.group_key)} order_by=[{format_order(node.order)}]"
    if node.limit is not None:
        text += f" limit={node.limit}"
    return text + (f" offset={node.offset}" if node.offset else "")
