"""A physical plan as text: what would run, one operator a line, inputs indented below it.

`Lookup` is an imported index read in place; `Stream` the same index read as updates; `Arrange` a stream that
the dataflow keeps by key itself. Columns of a join are counted through its inputs, in the order printed. A
delta join names, for the changes of each input, what they are looked up in, and by what. A node that several
read is printed once and named. Of a recursion, `Enter` stands over what comes from outside, `Feedback` for a
binding as the iteration before left it.

Does not: plan anything, know sizes or costs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from clusterd.operators.mfp import StageSpec
from clusterd.render.physical import (
    AggregateSpec,
    AliasNode,
    ArrangeNode,
    BindingNode,
    ConstantNode,
    DeltaInput,
    DeltaJoinNode,
    DistinctNode,
    EnterNode,
    ExportNode,
    FeedbackNode,
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
    inputs_of,
)
from clusterd.render.stages import renumbered
from controller_proto.print_plan import format_expr, format_order, print_plan

__all__ = ["Line", "explain", "plan_lines"]

_ATOM: Final = 11  # the level of print_plan.py that puts parentheses around all that is not a word
_SHOWN_ROWS: Final = 20  # of a constant


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a printed plan. node: of the plan, or, inside a recursion, that and its own; () for what
    tells more of the line above, or refers to one.
    """

    depth: int
    text: str
    node: tuple[int, ...] = ()


def explain(plan: PhysicalPlan) -> str:
    """The plan as lines of text, one tree an export."""
    return "\n".join("  " * line.depth + line.text for line in plan_lines(plan))


def plan_lines(plan: PhysicalPlan) -> tuple[Line, ...]:
    """The lines of `explain`; each node that an operator carries out is that of one line."""
    return tuple(_Printer(plan.nodes).lines())


class _Printer:
    """outside: inside a recursion, gives the lines of what enters at a port, at a depth; prefix: of names;
    within: the recursion.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        outside: Callable[[int, int], Iterator[Line]] | None = None,
        prefix: str = "n",
        within: tuple[int, ...] = (),
    ) -> None:
        self._within = within
        self._nodes = nodes
        self._outside = outside
        readers = Counter(number for node in nodes for number in inputs_of(node))
        plain = (SourceNode, IndexNode, ConstantNode, FeedbackNode, BindingNode)
        shared = (n for n in sorted(readers) if readers[n] > 1 and not isinstance(nodes[n], plain))
        self._names = {number: f"{prefix}{position}" for position, number in enumerate(shared)}
        self._printed: set[int] = set()

    def lines(self) -> Iterator[Line]:
        for number, node in enumerate(self._nodes):
            if isinstance(node, ExportNode | AliasNode):
                yield from self._tree(number, 0)

    def _tree(self, number: int, depth: int) -> Iterator[Line]:
        node = self._nodes[number]
        name = self._names.get(number)
        if number in self._printed and name is not None:
            yield Line(depth, name)
            return
        place = () if number in self._printed else (*self._within, number)
        self._printed.add(number)
        yield Line(depth, f"{'' if name is None else name + ': '}{_line(node)}", place)
        if isinstance(node, JoinNode):
            for side in (node.left, node.right):
                yield from self._side(side, depth + 1)
        elif isinstance(node, DeltaJoinNode):
            yield from self._delta(node, depth + 1)
        elif isinstance(node, ConstantNode):
            rows = node.constant.rows
            for text in print_plan(replace(node.constant, rows=rows[:_SHOWN_ROWS]))[1:]:
                yield Line(depth + 1, text.strip())
            if len(rows) > _SHOWN_ROWS:
                yield Line(depth + 1, f"and {len(rows) - _SHOWN_ROWS} more")
        elif isinstance(node, ScopeNode):
            yield from self._bindings(number, node, f"{name or 'n'}r", depth + 1)
        elif isinstance(node, EnterNode) and self._outside is not None:
            yield from self._outside(node.port, depth + 1)
        elif not isinstance(node, BindingNode):  # whose value is printed once, by the scope
            for each in inputs_of(node):
                yield from self._tree(each, depth + 1)

    def _bindings(self, place: int, scope: ScopeNode, prefix: str, depth: int) -> Iterator[Line]:
        inside = _Printer(
            scope.nodes, lambda port, at: self._tree(scope.inputs[port], at), prefix, (*self._within, place)
        )
        for number in scope.bindings:
            binding = scope.nodes[number]
            assert isinstance(binding, BindingNode)
            yield Line(depth, f"cte {binding.id} =", (*self._within, place, number))
            yield from inside._tree(binding.input, depth + 1)

    def _side(self, side: Side, depth: int) -> Iterator[Line]:
        if isinstance(side, IndexSide):
            yield Line(depth, f"Lookup index {side.index} key={_columns(side.key)}")
        else:
            yield from self._tree(side.node, depth)

    def _delta(self, node: DeltaJoinNode, depth: int) -> Iterator[Line]:
        for number, each in enumerate(node.inputs):
            test = "" if each.test is None else f" {_stage(_widened(each))}"
            yield Line(depth, f"Input {number}{test}")
            for side in each.sides:
                yield from self._side(side, depth + 1)
        starts = [0, *itertools.accumulate(len(each.columns) for each in node.inputs)]
        for number, path in enumerate(node.paths):
            steps = []
            for step in path:
                side = node.inputs[step.input].sides[step.side]
                pairs = zip(step.key, side.key, strict=True)
                start = starts[step.input]
                equal = " AND ".join(f"#{starts[i] + c} = #{start + k}" for (i, c), k in pairs)
                steps.append(f"input {step.input}" + (f" on=({equal})" if equal else ""))
            yield Line(depth, f"Path {number}: {', '.join(steps)}")


def _line(node: Node) -> str:
    match node:
        case SourceNode(id):
            return f"Source {id}"
        case IndexNode(id):
            return f"Stream index {id}"
        case MfpNode():
            return "Mfp " + " then ".join(map(_stage, node.stages))
        case TemporalNode(_, stage):
            return f"TemporalFilter {_stage(stage)}"
        case ConstantNode(constant):
            return print_plan(replace(constant, rows=constant.rows[:1]))[0]
        case FlatMapNode():
            return _flat_map(node)
        case ArrangeNode():
            return f"Arrange key={_columns(node.key)}"
        case JoinNode(left, right):
            arity = len(left.columns)
            pairs = zip(left.key, right.key, strict=True)
            equal = " AND ".join(f"#{a} = #{arity + b}" for a, b in pairs)
            return _join("Join" + (f" on=({equal})" if equal else ""), node)
        case DeltaJoinNode():
            return _join("DeltaJoin", node)
        case ThresholdNode():
            return "Threshold"
        case ReduceNode():
            calls = ", ".join(map(_aggregate, node.aggregates))
            text = f"Reduce group_by={_columns(range(node.keys))} aggregates=[{calls}]"
            return text + " monotonic" * node.monotonic
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
        case AliasNode(index, export):
            return f"Alias {export.id} of {index} on={export.on} key={_columns(export.key)}"
        case ExportNode(_, export):
            shard = f" shard={export.shard}" if export.shard else ""
            return f"Export {export.kind} {export.id} on={export.on} key={_columns(export.key)}{shard}"


def _scope(node: ScopeNode) -> str:
    if node.limit is None:
        return "Recursion"
    return f"Recursion recursion_limit={node.limit}{' return_at_limit' if node.return_at_limit else ''}"


def _flat_map(node: FlatMapNode) -> str:
    args = ", ".join(f"#{arg}" if isinstance(arg, int) else format_expr(arg) for arg in node.args)
    ordinality = " with ordinality" * node.call.with_ordinality
    return f"FlatMap {node.call.function}({args}){ordinality} keep={_columns(node.kept)}"


def _join(text: str, node: JoinNode | DeltaJoinNode) -> str:
    text += " null_safe" if node.null_safe else ""
    if node.output is not None:
        text += f" output=({', '.join(f'#{column}' for column in node.output)})"
    return " then ".join((text, *map(_stage, node.closure)))


def _widened(each: DeltaInput) -> StageSpec:
    """The test of an input over its own columns."""
    assert each.test is not None
    tested, test = each.tested, each.test
    wide, first = len(each.columns), len(tested) + 1

    def to(column: int) -> int:
        return tested[column] if column < len(tested) else wide + column - first

    return StageSpec(
        tuple(renumbered(expr, to) for expr in test.maps),
        tuple(renumbered(expr, to) for expr in test.predicates),
    )


def _columns(columns: Iterable[int]) -> str:
    return "[" + ", ".join(f"#{column}" for column in columns) + "]"


def _aggregate(aggregate: AggregateSpec) -> str:
    if aggregate.column is None:
        return f"{aggregate.function}(*)"
    args = ", ".join(f"#{column}" for column in (aggregate.column, *aggregate.args))
    order = f" order by {format_order(aggregate.order)}" if aggregate.order else ""
    return f"{aggregate.function}({'distinct ' * aggregate.distinct}{args}{order})"


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
    for name, bound in (("limit", node.limit), ("offset", node.offset or None)):
        if bound is not None:
            text += f" {name}={bound if isinstance(bound, int) else format_expr(bound, _ATOM)}"
    return text + " monotonic" * node.monotonic
