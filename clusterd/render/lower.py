"""Lowering: a validated dataflow to the physical plan that would run. Pure; refuses before any effect.

Decided here, and nowhere else:
- A Mfp is not a node yet but a pending stage of what it stands on; stages pile up, are merged where that
  changes no answer, and become one node when somebody needs the stream.
- Equal sub-plans are one (sharing.py), and what several read is a node: they are not to compute it each.
- What is pending on a join or on a table function when its stream is needed decides how it is made: columns
  that nobody reads are not gathered, rows that nobody wants not handed on. Joins: joins.py.
- A collection with several imported indexes is streamed from the first.
- A temporal filter is a node of its own (temporal.py); in a recursion there is none.
- Of a recursion, what depends on its bindings is lowered inside it, all else outside, once.

Does not: build operators (build.py), type the plan (typing_rules.py has).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from clusterd.convert import column_specs, wire_schema
from clusterd.operators.mfp import StageSpec
from clusterd.operators.union import UnionOperator
from clusterd.render.equivalences import split_equivalences
from clusterd.render.expr import compile_expr
from clusterd.render.joins import Arranged, plan_join, pushed_down
from clusterd.render.physical import (
    AggregateSpec,
    AliasNode,
    ArrangeNode,
    BindingNode,
    ConstantNode,
    DistinctNode,
    EnterNode,
    ExportNode,
    FeedbackNode,
    FlatMapNode,
    IndexNode,
    LeaveNode,
    LocalSide,
    MfpNode,
    NegateNode,
    Node,
    PhysicalPlan,
    ReduceNode,
    ScopeNode,
    SourceNode,
    TemporalNode,
    ThresholdNode,
    TopKNode,
    UnionNode,
)
from clusterd.render.relations import PendingFilter, PendingFlatMap, PendingJoin, Relation
from clusterd.render.sharing import Bindings, count_uses
from clusterd.render.stages import columns_after, infallible, merged, narrowed, placed, renumbered
from clusterd.render.tables import is_constant, may_fail, table_call
from clusterd.render.temporal import plan_filter
from clusterd.render.user_aggregates import spelt_out
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, is_one_shot
from controller_proto.errors import Refusal
from controller_proto.expr import ColumnRef, Expr, references
from controller_proto.ids import GlobalId
from controller_proto.plan import (
    Aggregate,
    ArrangeBy,
    Constant,
    FlatMap,
    Get,
    Join,
    Let,
    LetRec,
    Mfp,
    Negate,
    Plan,
    Reduce,
    Threshold,
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


class _Lowering:
    makes_delta_joins = True

    def __init__(self, header: DataflowHeader, indexes: Mapping[GlobalId, Export]) -> None:
        self._header = header
        self._nodes: list[Node] = []
        self._streams: dict[GlobalId, int] = {}  # of imported collections
        self._relations: dict[GlobalId, Relation] = {}
        for source in header.source_imports:
            columns = column_specs(source.schema)
            self._relations[source.id] = Relation(columns, self._add(SourceNode(source.id, columns)))
        imported = [indexes[index.id] for index in header.index_imports]
        for export in imported:
            columns = column_specs(export.schema)
            alike = tuple(other for other in imported if other.on == export.on)
            # By its own id it is itself alone: another of the collection may have another end or time. By the
            # collection's, whoever asks says that they are the same, and joins may use any of them.
            self._relations[export.id] = Relation(columns, arranged=(export,))
            self._relations.setdefault(export.on, Relation(columns, arranged=alike))
        for relation in self._relations.values():
            relation.columns = relation.base
        self._uses = count_uses(())
        self._where = ""
        self._start()

    def _start(self) -> None:
        """Nothing is made yet."""
        self._planned: dict[Plan, Relation] = {}
        self._made_of: dict[Hashable, int] = {}  # nodes of fused stages
        self._arrangements: defaultdict[Hashable, list[tuple[tuple[int, ...], Arranged, Relation]]]
        self._arrangements = defaultdict(list)

    def dataflow(self, body: DataflowBody) -> PhysicalPlan:
        bindings = Bindings()
        builds = [(build.id, bindings.named(build.plan)) for build in body.builds]
        self._uses = count_uses(plan for _, plan in builds)
        self._uses.update(Get(export.on) for export in self._header.exports)
        for id, plan in builds:
            self._where = f"build {id}"
            relation = self._plan(plan)
            self._relations[id] = self._shared(relation) if self._uses[Get(id)] > 1 else relation
        for export in self._header.exports:
            relation = self._relations[export.on]
            alias = self._alias(export, relation)
            self._add(alias or ExportNode(self.stream(relation), export, relation.columns))
        return PhysicalPlan(self._header, tuple(self._nodes))

    def _alias(self, export: Export, relation: Relation) -> AliasNode | None:
        """The export as an imported index under another id, if it is one: the same rows by the same key.

        One that ends while its original goes on is none: what it shows would go on too. A query is, for what
        it shows is read at its one time.
        """
        ends = self._header.until is not None and not is_one_shot(self._header)
        changed = relation.pending is not None or merged(relation.stages, relation.base)
        if ends or changed or export.kind != "index":
            return None
        for index in relation.arranged:
            if index.key == export.key and index.schema == export.schema:
                return AliasNode(index.id, export, relation.columns)
        return None

    def _add(self, node: Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _refuse(self, plan: Plan, what: str) -> Refusal:
        return Refusal("invalid-plan", f"{self._where}: node {type(plan).__name__}{what}")

    # Nodes, made when they are needed.

    def stream(self, relation: Relation) -> int:
        """The node whose output the relation is."""
        if relation.streamed is None:
            relation.streamed = self._streamed(relation)
        return relation.streamed

    def _streamed(self, relation: Relation) -> int:
        pending = relation.pending
        if isinstance(pending, PendingJoin):
            return self.stream(plan_join(pending, relation.stages, self))
        if isinstance(pending, PendingFlatMap):
            return self.stream(self._flat_map(pending, relation.stages))
        if isinstance(pending, PendingFilter):
            return self._filter(pending, relation.stages)
        stages = merged(relation.stages, relation.base)
        if pending is not None:
            output, closure = narrowed(stages, len(relation.base))
            return self._add(replace(pending, output=output, closure=closure, columns=relation.columns))
        node = relation.node
        if node is None:
            first = relation.arranged[0].id
            if first not in self._streams:
                self._streams[first] = self._add(IndexNode(first, relation.base))
            node = relation.node = self._streams[first]
        if not stages:
            return node
        made = self._made_of.get((node, stages))
        if made is None:
            made = self._made_of[node, stages] = self._add(MfpNode(node, stages, relation.columns))
        return made

    def arrange(self, relation: Relation, columns: Sequence[int], key: Sequence[int]) -> Arranged:
        """The relation by its columns `key`, with at least `columns`; what is there, if it serves."""
        here = self._arrangements[relation.identity]
        for keyed, arranged, _ in here:
            if keyed == tuple(key) and set(columns) <= set(arranged.columns):
                return arranged
        columns = tuple(columns)
        projected = relation.then(StageSpec((), (), columns))
        positions = tuple(columns.index(column) for column in key)
        node = self._add(ArrangeNode(self.stream(projected), positions, projected.columns))
        arranged = Arranged(LocalSide(node, positions, projected.columns), columns)
        here.append((tuple(key), arranged, relation))
        return arranged

    def _shared(self, relation: Relation) -> Relation:
        """The relation for several readers: what it computes it computes once."""
        computes = any(stage.maps or stage.predicates for stage in relation.stages)
        looked_up = bool(relation.arranged) and infallible(relation.stages, relation.base)
        if relation.pending is not None or (computes and not looked_up):
            return Relation(relation.columns, self.stream(relation), columns=relation.columns)
        return relation

    def _made(self, node: Node) -> Relation:
        return Relation(node.columns, self._add(node), columns=node.columns)

    def _plan(self, plan: Plan) -> Relation:
        found = self._planned.get(plan)
        if found is None:
            found = self._fresh(plan)
            if self._uses[plan] > 1:
                found = self._shared(found)
            self._planned[plan] = found
        return found

    def _fresh(self, plan: Plan) -> Relation:
        match plan:
            case Get(id):
                return self._relations[id]
            case Constant():
                return self._made(ConstantNode(plan, column_specs(plan.schema)))
            case Let(id, value, body):
                self._relations[id] = self._plan(value)
                return self._plan(body)
            case ArrangeBy(input):
                # Arrangements inside a dataflow are the consumers' affair: the node is a hint.
                return self._plan(input)
            case Mfp(input, maps, predicates, projection):
                stage = StageSpec(maps, predicates, projection)
                return self._temporal(plan) if stage.is_temporal else self._plan(input).then(stage)
            case Negate(input):
                relation = self._plan(input)
                return self._made(NegateNode(self.stream(relation), relation.columns))
            case Threshold(input):
                relation = self._plan(input)
                return self._made(ThresholdNode(self.stream(relation), relation.columns))
            case Union(inputs):
                relations = [self._plan(each) for each in inputs]
                if len(relations) == 1:
                    return relations[0]
                columns = UnionOperator([relation.columns for relation in relations]).schema
                return self._made(UnionNode(tuple(map(self.stream, relations)), columns))
            case Join(inputs):
                sides = tuple(map(self._plan, inputs))
                classes = split_equivalences(
                    plan.equivalences, [len(each.columns) for each in sides], null_safe=plan.null_safe
                )
                columns = tuple(column for each in sides for column in each.columns)
                join = PendingJoin(
                    sides, classes, plan.null_safe, self.makes_delta_joins and plan.kind == "delta"
                )
                return Relation(columns, pending=join, columns=columns)
            case FlatMap(input):
                source = self._plan(input)
                call, args = table_call(plan, source.columns)
                columns = (*source.columns, *call.columns)
                return Relation(columns, pending=PendingFlatMap(source, call, args), columns=columns)
            case Reduce():
                return self._reduce(plan)
            case TopK():
                return self._top_k(plan)
            case LetRec():
                return self._let_rec(plan)

    def _temporal(self, plan: Mfp) -> Relation:
        source, stage = self._plan(plan.input), StageSpec(plan.maps, plan.predicates, plan.projection)
        columns = columns_after((stage,), source.columns)
        return Relation(columns, pending=PendingFilter(source, stage), columns=columns)

    def _filter(self, pending: PendingFilter, stages: Sequence[StageSpec]) -> int:
        """The node of a temporal filter with `stages` upon it."""
        source, stage, after = plan_filter(pending, stages)
        node, columns = self.stream(source), columns_after((stage,), source.columns)
        made = self._made_of.get((node, stage))
        if made is None:
            made = self._made_of[node, stage] = self._add(TemporalNode(node, stage, columns))
        return self.stream(Relation(columns, made, columns=columns).then(*after))

    def _let_rec(self, plan: LetRec) -> Relation:
        inside = _ScopeLowering(self, plan)
        bindings = inside.bindings()
        scope = self._add(
            ScopeNode(tuple(inside.inputs), tuple(inside._nodes), bindings, plan.limit, plan.return_at_limit)
        )
        for binding, (id, schema, _) in enumerate(plan.bindings):
            self._relations[id] = self._made(LeaveNode(scope, binding, id, column_specs(schema)))
        return self._plan(plan.body)

    def _flat_map(self, pending: PendingFlatMap, stages: Sequence[StageSpec]) -> Relation:
        """The table function with `stages` upon it. Predicates that read the source alone go below, if no row
        can fail here.
        """
        source, args, made = pending.source, pending.args, pending.call.columns
        columns, arity = (*source.columns, *made), len(source.columns)
        stages = merged(stages, columns)
        if not may_fail(pending.call, args) and infallible([StageSpec(args)], source.columns):
            stages, below = pushed_down(stages, columns, [arity, len(made)])
            mine = tuple(predicate for part, predicate in below if part == 0)
            above = tuple(renumbered(p, lambda c: c + arity) for part, p in below if part == 1)
            if mine:
                source = source.then(StageSpec((), mine))
            if above:
                stages = merged((StageSpec((), above), *stages), columns)
        output, closure = narrowed(stages, len(columns))
        wanted = range(len(columns)) if output is None else output
        kept = sorted({c for c in wanted if c < arity})
        at = {c: place for place, c in enumerate((*kept, *range(arity, len(columns))))}
        places, maps = placed([arg for arg in args if not is_constant(arg)], arity)
        read = sorted({*kept, *places})
        taken = iter(places)
        ready = source.then(StageSpec(maps, (), tuple(read)))
        node = FlatMapNode(
            self.stream(ready),
            tuple(read.index(c) for c in kept),
            pending.call,
            tuple(arg if is_constant(arg) else read.index(next(taken)) for arg in args),
            (*(source.columns[c] for c in kept), *made),
        )
        return self._made(node).then(StageSpec((), (), tuple(at[c] for c in wanted)), *closure)

    # Grouping.

    def _reduce(self, plan: Reduce) -> Relation:
        source = self._plan(plan.input)
        spelt = spelt_out(plan, wire_schema(source.columns))
        if spelt is None:
            return self._reduced(plan, source)
        plan, maps, projection = spelt
        return self._reduced(plan, source).then(StageSpec(maps, (), projection))

    def _reduced(self, plan: Reduce, source: Relation) -> Relation:
        alone = msgspec.structs.replace(plan, input=Get("input"))
        schema = plan_schema(alone, {"input": wire_schema(source.columns)}, self._where)
        exprs = list(plan.group_key)
        places: dict[Expr, int] = {}

        def place(expr: Expr) -> int:
            if expr not in places:
                places[expr] = len(exprs)
                exprs.append(expr)
            return places[expr]

        aggregates = tuple(_aggregate(aggregate, place) for aggregate in plan.aggregates)
        kept, maps = placed(exprs, len(source.columns))
        ready = source.then(StageSpec(maps, (), kept))
        columns = column_specs(schema)
        if not aggregates:
            return self._made(DistinctNode(self.stream(ready), columns))
        keys = len(plan.group_key)
        return self._made(ReduceNode(self.stream(ready), keys, aggregates, plan.monotonic, columns))

    def _top_k(self, plan: TopK) -> Relation:
        source = self._plan(plan.input)
        limit = None if plan.limit is None else self._bound(plan, "limit", plan.limit)
        offset = plan.offset if isinstance(plan.offset, int) else self._bound(plan, "offset", plan.offset)
        window = (limit, 0 if offset is None else offset)
        return self._made(
            TopKNode(self.stream(source), plan.group_key, plan.order, *window, plan.monotonic, source.columns)
        )

    def _bound(self, plan: TopK, name: str, expr: Expr) -> int | Expr | None:
        """A bound of a TopK: the number that it is in every group, None for NULL; or as it was."""
        if references(expr):
            return expr
        value = compile_expr(expr, ())((), 1)
        number: int | None = value.column.to_pylist()[0]
        failed = value.errors is not None and bool(np.any(value.errors))
        if failed or (number is not None and number < 0):
            raise self._refuse(plan, f": {name} {'fails' if failed else number} is not a number of rows")
        return number


class _ScopeLowering(_Lowering):
    """Lowers the bindings of a recursion. What depends on none of them is lowered outside, and enters."""

    makes_delta_joins = False

    def __init__(self, outside: _Lowering, plan: LetRec) -> None:
        self._outside = outside
        self._scope = plan
        self._header = outside._header
        self._where = outside._where
        self._uses = outside._uses
        self._nodes: list[Node] = []
        self._streams = {}
        self._relations = {}
        self._entered: dict[int, int] = {}  # place of an outside node
        self.inputs: list[int] = []
        self._start()
        if isinstance(outside, _ScopeLowering):
            raise self._refuse(plan, " inside another that it depends on is not rendered by this version")
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
            made.append(self._add(BindingNode(self.stream(relation), id, columns)))
            # Those that follow see what this iteration made: the same plan is not the same any more.
            self._relations[id] = Relation(columns, made[-1], columns=columns)
            self._planned = {}
        return tuple(made)

    def _temporal(self, plan: Mfp) -> Relation:
        raise self._refuse(plan, ": now_ts() may not stand in a recursion over what depends on its bindings")

    def _plan(self, plan: Plan) -> Relation:
        if free_ids(plan) & self._relations.keys():
            return super()._plan(plan)
        relation = self._outside._plan(plan)
        number = self._outside.stream(relation)
        if number not in self._entered:
            self._entered[number] = self._add(EnterNode(len(self.inputs), relation.columns))
            self.inputs.append(number)
        return Relation(relation.columns, self._entered[number], columns=relation.columns)


def _aggregate(aggregate: Aggregate, place: Callable[[Expr], int]) -> AggregateSpec:
    """place: the column that an expression becomes."""
    return AggregateSpec(
        aggregate.function,
        None if aggregate.expr is None else place(aggregate.expr),
        aggregate.distinct,
        tuple(map(place, aggregate.args)),
        tuple(msgspec.structs.replace(by, column=place(ColumnRef(by.column))) for by in aggregate.order_by),
    )
