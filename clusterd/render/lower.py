"""Lowering: a validated dataflow to the physical plan that would run. Pure; refuses before any effect.

Decided here, and nowhere else:
- A Mfp is not a node yet but a pending stage of what it stands on; stages pile up, are merged where that
  changes no answer, and become one node when somebody needs the stream.
- A join takes, per equivalence, one expression of each side as a pair of key columns. Further expressions of
  one side become a filter of that side; expressions over both, a filter of the joined rows. Equivalences that
  share an expression are one, for all of them have to hold.
- A side that is an imported collection is looked up in place if an index of it has just the join's key
  columns, in whatever order: the pairs follow the index. Stages pending on that side go behind the join, if
  they cannot fail (what fails there must be an error whether or not the row finds a partner). Any other side
  is streamed and arranged by the join.
- What is pending on a join when its stream is needed becomes its closure: columns that nobody reads are not
  gathered, rows that nobody wants not handed on.
- A collection with several imported indexes is streamed from the first.
- Of a recursion, what depends on its bindings is lowered inside it, all else outside, once.

Does not: build operators (build.py), type the plan (typing_rules.py has).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from clusterd.convert import column_specs, wire_schema
from clusterd.dataflow.operator import Columns
from clusterd.operators.mfp import StageSpec
from clusterd.operators.union import UnionOperator
from clusterd.render.expr import compile_expr
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
    StreamSide,
    TopKNode,
    UnionNode,
)
from clusterd.render.stages import (
    behind_join,
    columns_after,
    infallible,
    merged,
    narrowed,
    references,
    renumbered,
    traced,
)
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export
from controller_proto.errors import Refusal
from controller_proto.expr import Call, Case, ColumnRef, Expr
from controller_proto.ids import GlobalId
from controller_proto.plan import (
    ArrangeBy,
    Get,
    Join,
    LetRec,
    Mfp,
    Negate,
    Plan,
    Reduce,
    TopK,
    Union,
    free_ids,
)
from controller_proto.typing_rules import plan_schema

__all__ = ["lower"]


def lower(
    header: DataflowHeader,
    body: DataflowBody,
    indexes: Mapping[GlobalId, Export],
) -> PhysicalPlan:
    """The physical plan of a dataflow that `controller_proto.validate` accepts.

    indexes: exports of the indexes that may be imported.
    Raises Refusal(`invalid-plan`) naming what this version does not render.
    """
    return _Lowering(header, indexes).dataflow(body)


@dataclass(slots=True)
class _Relation:
    """A collection: `columns` as they come out of the pending `stages` over `base` columns of a node.

    arranged: the indexes of the collection at the base, if it is imported by index. join: the base, if it is
    a join that is no node yet. Nodes are made when first needed: the base, and that with the stages applied.
    """

    base: Columns
    node: int | None = None
    join: JoinNode | None = None
    arranged: tuple[Export, ...] = ()
    stages: tuple[StageSpec, ...] = ()
    columns: Columns = ()
    streamed: int | None = None

    def then(self, *stages: StageSpec) -> _Relation:
        """This with further stages pending."""
        columns = columns_after(stages, self.columns)
        return replace(self, stages=self.stages + stages, columns=columns, streamed=None)


@dataclass(slots=True)
class _Split:
    """What the equivalences of a join ask of each side, by its own columns, and of both."""

    pairs: list[tuple[Expr, Expr]] = field(default_factory=list)
    tests: tuple[list[Expr], list[Expr]] = field(default_factory=lambda: ([], []))
    mixed: list[Expr] = field(default_factory=list)


class _Lowering:
    def __init__(self, header: DataflowHeader, indexes: Mapping[GlobalId, Export]) -> None:
        self._header = header
        self._nodes: list[Node] = []
        self._streams: dict[GlobalId, int] = {}  # of imported collections
        self._relations: dict[GlobalId, _Relation] = {}
        for source in header.source_imports:
            columns = column_specs(source.schema)
            self._relations[source.id] = _Relation(columns, self._add(SourceNode(source.id, columns)))
        imported = [indexes[index.id] for index in header.index_imports]
        for export in imported:
            columns = column_specs(export.schema)
            alike = tuple(other for other in imported if other.on == export.on)
            # By its own id the index itself is the stream; joins may use any index of the collection.
            self._relations[export.id] = _Relation(
                columns, arranged=(export, *(other for other in alike if other is not export))
            )
            self._relations.setdefault(export.on, _Relation(columns, arranged=alike))
        for relation in self._relations.values():
            relation.columns = relation.base
        self._where = ""

    def dataflow(self, body: DataflowBody) -> PhysicalPlan:
        for build in body.builds:
            self._where = f"build {build.id}"
            relation = self._plan(build.plan)
            if relation.join is not None:
                # Others may read the build: there is to be one join, whatever they do with it.
                relation = _Relation(relation.columns, self._stream(relation), columns=relation.columns)
            self._relations[build.id] = relation
        for export in self._header.exports:
            relation = self._relations[export.on]
            self._add(ExportNode(self._stream(relation), export, relation.columns))
        return PhysicalPlan(self._header, tuple(self._nodes))

    def _add(self, node: Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _refuse(self, plan: Plan, what: str) -> Refusal:
        return Refusal("invalid-plan", f"{self._where}: node {type(plan).__name__}{what}")

    def _stream(self, relation: _Relation) -> int:
        """The node whose output the relation is."""
        if relation.streamed is None and relation.join is not None:
            join = relation.join
            output, closure = narrowed(merged(relation.stages, relation.base), len(relation.base))
            relation.streamed = self._add(
                replace(join, output=output, closure=closure, columns=relation.columns)
            )
        if relation.streamed is None:
            node = relation.node
            if node is None:
                first = relation.arranged[0].id
                if first not in self._streams:
                    self._streams[first] = self._add(IndexNode(first, relation.base))
                node = relation.node = self._streams[first]
            stages = merged(relation.stages, relation.base)
            relation.streamed = self._add(MfpNode(node, stages, relation.columns)) if stages else node
        return relation.streamed

    def _made(self, node: Node) -> _Relation:
        return _Relation(node.columns, self._add(node), columns=node.columns)

    def _plan(self, plan: Plan) -> _Relation:
        match plan:
            case Get(id):
                return self._relations[id]
            case ArrangeBy(input):
                # Arrangements inside a dataflow are the consumers' affair: the node is a hint.
                return self._plan(input)
            case Mfp(input, maps, predicates, projection):
                return self._plan(input).then(StageSpec(maps, predicates, projection))
            case Negate(input):
                relation = self._plan(input)
                return self._made(NegateNode(self._stream(relation), relation.columns))
            case Union(inputs):
                relations = [self._plan(each) for each in inputs]
                if len(relations) == 1:
                    return relations[0]
                columns = UnionOperator([relation.columns for relation in relations]).schema
                return self._made(UnionNode(tuple(map(self._stream, relations)), columns))
            case Join():
                return self._join(plan)
            case Reduce():
                return self._reduce(plan)
            case TopK():
                return self._top_k(plan)
            case LetRec():
                return self._let_rec(plan)
            case _:
                raise self._refuse(plan, " is not rendered by this version")

    def _let_rec(self, plan: LetRec) -> _Relation:
        inside = _ScopeLowering(self, plan)
        bindings = inside.bindings()
        scope = self._add(
            ScopeNode(tuple(inside.inputs), tuple(inside._nodes), bindings, plan.limit, plan.return_at_limit)
        )
        hidden = dict(self._relations)
        for binding, (id, schema, _) in enumerate(plan.bindings):
            self._relations[id] = self._made(LeaveNode(scope, binding, id, column_specs(schema)))
        relation = self._plan(plan.body)
        self._relations = hidden
        return relation

    # Grouping.

    def _reduce(self, plan: Reduce) -> _Relation:
        source = self._plan(plan.input)
        alone = msgspec.structs.replace(plan, input=Get("input"))
        schema = plan_schema(alone, {"input": wire_schema(source.columns)}, self._where)
        arity = len(source.columns)
        maps: list[Expr] = []
        kept: list[int] = []
        for expr in (*plan.group_key, *(a.expr for a in plan.aggregates if a.expr is not None)):
            if isinstance(expr, ColumnRef):
                kept.append(expr.index)
            else:
                kept.append(arity + len(maps))
                maps.append(expr)
        ready = source.then(StageSpec(tuple(maps), (), tuple(kept)))
        columns = column_specs(schema)
        if not plan.aggregates:
            return self._made(DistinctNode(self._stream(ready), columns))
        aggregates, at = [], len(plan.group_key)
        for aggregate in plan.aggregates:
            if aggregate.distinct:
                raise self._refuse(
                    plan, f" with {aggregate.function}(distinct) is not rendered by this version"
                )
            column = None if aggregate.expr is None else at
            at += column is not None
            aggregates.append(AggregateSpec(aggregate.function, column, aggregate.distinct))
        return self._made(ReduceNode(self._stream(ready), len(plan.group_key), tuple(aggregates), columns))

    def _top_k(self, plan: TopK) -> _Relation:
        source = self._plan(plan.input)
        limit = None
        if plan.limit is not None:
            if references(plan.limit):
                raise self._refuse(plan, " with a limit that is not constant is not rendered by this version")
            value = compile_expr(plan.limit, ())((), 1)
            limit = value.column.to_pylist()[0]
            failed = value.errors is not None and bool(np.any(value.errors))
            if failed or (limit is not None and limit < 0):
                raise self._refuse(plan, f": limit {'fails' if failed else limit} is not a number of rows")
        return self._made(
            TopKNode(self._stream(source), plan.group_key, plan.order, limit, plan.offset, source.columns)
        )

    # Joins.

    def _join(self, plan: Join) -> _Relation:
        if len(plan.inputs) != 2:
            raise self._refuse(plan, f" with {len(plan.inputs)} inputs is not rendered by this version")
        sides = [self._plan(each) for each in plan.inputs]
        split = _split(plan, len(sides[0].columns))
        left, right = self._choose(sides, split)
        columns = left.side.columns + right.side.columns
        join = JoinNode(left.side, right.side, plan.null_safe, None, (), columns)
        stages: list[StageSpec] = []
        widths = [len(left.side.columns), len(right.side.columns)]
        for which, prepared in enumerate((left, right)):
            before, after = (0, widths[1]) if which == 0 else (widths[0], 0)
            stages += behind_join(prepared.later, widths[which], left=before, right=after)
            widths[which] = prepared.width
        # Each side now has its own columns first, then the computed parts of its key.
        own = [len(relation.columns) for relation in sides]
        kept = (*range(own[0]), *range(widths[0], widths[0] + own[1]))
        stages.append(StageSpec((), (), kept))
        if split.mixed:
            stages.append(StageSpec((), tuple(split.mixed)))
        return _Relation(columns, join=join, columns=columns).then(*stages)

    def _choose(self, sides: Sequence[_Relation], split: _Split) -> tuple[_Prepared, _Prepared]:
        """How each side takes part. An index orders the pairs; two serve together if they agree on it."""
        fitting = [_fitting(sides[i], [pair[i] for pair in split.pairs], split.tests[i]) for i in (0, 1)]
        both = [
            (mine, theirs)
            for mine, by_mine in fitting[0]
            for theirs, by_theirs in fitting[1]
            if by_mine == by_theirs
        ]
        if both:
            return _looked_up(sides[0], both[0][0]), _looked_up(sides[1], both[0][1])
        for which in (0, 1):
            if fitting[which]:
                index, order = fitting[which][0]
                split.pairs = [split.pairs[position] for position in order]
                mine = _looked_up(sides[which], index)
                other = self._streamed(sides[1 - which], 1 - which, split)
                return (mine, other) if which == 0 else (other, mine)
        return self._streamed(sides[0], 0, split), self._streamed(sides[1], 1, split)

    def _streamed(self, relation: _Relation, which: int, split: _Split) -> _Prepared:
        arity = len(relation.columns)
        maps: list[Expr] = []
        key: list[int] = []
        for pair in split.pairs:
            expr = pair[which]
            if isinstance(expr, ColumnRef):
                key.append(expr.index)
            else:
                key.append(arity + len(maps))
                maps.append(expr)
        ready = relation
        if maps or split.tests[which]:
            ready = relation.then(StageSpec(tuple(maps), tuple(split.tests[which])))
        return _Prepared(StreamSide(self._stream(ready), tuple(key), ready.columns), (), len(ready.columns))


class _ScopeLowering(_Lowering):
    """Lowers the bindings of a recursion. What depends on none of them is lowered outside, and enters."""

    def __init__(self, outside: _Lowering, plan: LetRec) -> None:
        self._outside = outside
        self._scope = plan
        self._header = outside._header
        self._where = outside._where
        self._nodes: list[Node] = []
        self._streams = {}
        self._relations = {}
        self._entered: dict[int, int] = {}  # place of an outside node
        self.inputs: list[int] = []
        if isinstance(outside, _ScopeLowering):
            raise self._refuse(
                plan, " inside another that it depends on is not rendered by this version"
            )
        if plan.limit == 0:
            raise self._refuse(plan, ": a recursion_limit is at least 1")

    def bindings(self) -> tuple[int, ...]:
        """Lower all bindings; the nodes of their values."""
        for binding, (id, schema, _) in enumerate(self._scope.bindings):
            self._relations[id] = self._made(FeedbackNode(binding, id, column_specs(schema)))
        made = []
        for id, schema, value in self._scope.bindings:
            relation = self._plan(value)
            columns = column_specs(schema)
            made.append(self._add(BindingNode(self._stream(relation), id, columns)))
            # Those that follow see what this iteration made.
            self._relations[id] = _Relation(columns, made[-1], columns=columns)
        return tuple(made)

    def _plan(self, plan: Plan) -> _Relation:
        if free_ids(plan) & self._relations.keys():
            return super()._plan(plan)
        relation = self._outside._plan(plan)
        number = self._outside._stream(relation)
        if number not in self._entered:
            self._entered[number] = self._add(EnterNode(len(self.inputs), relation.columns))
            self.inputs.append(number)
        return _Relation(relation.columns, self._entered[number], columns=relation.columns)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A side, the stages that go behind the join, and the side's width after them."""

    side: Side
    later: tuple[StageSpec, ...]
    width: int


def _looked_up(relation: _Relation, index: Export) -> _Prepared:
    side = IndexSide(index.id, index.key, relation.base)
    return _Prepared(side, merged(relation.stages, relation.base), len(relation.columns))


def _fitting(
    relation: _Relation, key: Sequence[Expr], tests: Sequence[Expr]
) -> list[tuple[Export, tuple[int, ...]]]:
    """The indexes of `relation` whose key is `key`, each with the order of the pairs that makes it so."""
    if not relation.arranged or tests or not infallible(relation.stages, relation.base):
        return []
    columns: list[int] = []
    for expr in key:
        if not isinstance(expr, ColumnRef):
            return []
        column = traced(relation.stages, len(relation.base), expr.index)
        if column is None or column in columns:
            return []
        columns.append(column)
    return [
        (index, tuple(columns.index(column) for column in index.key))
        for index in relation.arranged
        if len(index.key) == len(columns) and set(index.key) == set(columns)
    ]


def _split(plan: Join, arity: int) -> _Split:
    """arity: columns of the left side."""
    split = _Split()
    for members in _classes(plan.equivalences):
        parts: tuple[list[Expr], list[Expr], list[Expr]] = ([], [], [])
        for member in sorted(members, key=lambda expr: not isinstance(expr, ColumnRef)):
            used = references(member)
            side = 0 if not used or max(used) < arity else 1 if min(used) >= arity else 2
            parts[side].append(member)
        left, right, both = parts
        right_own = [renumbered(expr, lambda column: column - arity) for expr in right]
        for own, tests in ((left, split.tests[0]), (right_own, split.tests[1])):
            tests += [_equal(own[0], other, plan.null_safe) for other in own[1:]]
        if left and right:
            split.pairs.append((left[0], right_own[0]))
        first = (left or right or both)[0]
        split.mixed += [_equal(first, expr, plan.null_safe) for expr in both if expr is not first]
    return split


def _classes(equivalences: Sequence[Sequence[Expr]]) -> list[list[Expr]]:
    """The equivalences, those with a member in common put together, members named once."""
    classes: list[list[Expr]] = []
    for members in equivalences:
        mine = list(dict.fromkeys(members))
        joined = [each for each in classes if any(member in each for member in mine)]
        for each in joined:
            classes.remove(each)
        classes.append(list(dict.fromkeys([*(m for each in joined for m in each), *mine])))
    return classes


def _equal(a: Expr, b: Expr, null_safe: bool) -> Expr:
    equal = Call("=", (a, b))
    if not null_safe:
        return equal
    nulls = Call("is_null", (a,)), Call("is_null", (b,))
    return Case(Call("or", nulls), Call("and", nulls), equal)
