"""Joins: in which order, of which kind, over which arrangements. Deterministic; explain.py shows the result.

- Predicates above the join that read one input alone go to that input, and of an input that is arranged here
  only the columns are kept that somebody reads.
- An input whose pending stages cannot fail is looked up in an imported index, if one has just the columns of
  the join as its key, in whatever order; its stages go behind the lookup. (What fails must be an error
  whether or not the row finds a partner.) Any other input is arranged here, once for all that ask the same.
- Order: from each input, the next is always one that is connected, rather one that an index serves, rather
  one with more equalities, rather one that stands earlier; of these orders the one with the fewest products,
  then the most lookups, then the earliest start.
- A delta join is made where it is asked for, or where all its lookups have imported indexes, for then it
  keeps nothing at all; so also for two indexes that have the key's columns in different orders. Else a
  linear one: two by two, each intermediate result arranged once.
- Tests of the joined row come last, all at once: whether a row fails them is known of whole rows only.

Does not: make nodes (lower.py does, through `Nodes`), or look at sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from clusterd.dataflow.operator import Columns
from clusterd.operators.mfp import Stage, StageSpec
from clusterd.render.expr import compile_expr
from clusterd.render.physical import (
    DeltaInput,
    DeltaJoinNode,
    IndexSide,
    JoinNode,
    LocalSide,
    LookupStep,
    Side,
)
from clusterd.render.relations import PendingJoin, Relation
from clusterd.render.stages import (
    behind_join,
    infallible,
    merged,
    narrowed,
    placed,
    renumbered,
    traced,
)
from controller_proto.dataflow import Export
from controller_proto.expr import Expr, references

__all__ = ["Arranged", "Nodes", "plan_join", "pushed_down"]

Logical = tuple[int, int]  # an input, and a column of it: its own ones, then the keys computed for it
Fit = tuple[Export, tuple[int, ...]]  # an index, and the classes in the order of its key


class Nodes(Protocol):
    """What joins need made."""

    def stream(self, relation: Relation) -> int:
        """The node whose output the relation is."""

    def arrange(self, relation: Relation, columns: Sequence[int], key: Sequence[int]) -> Arranged:
        """The relation kept by its columns `key`, with at least `columns`."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """An arrangement made here. columns: which of the relation's it holds, in its order."""

    side: LocalSide
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Input:
    """relation: with the tests of the input and, behind its `own` columns, the computed keys.

    keys: by class, the column of the relation. origins: the same as columns of its base, where it can be
    looked up in its indexes; None if it cannot.
    """

    relation: Relation
    own: int
    keys: dict[int, int]
    origins: dict[int, int] | None


@dataclass(frozen=True, slots=True)
class _Joined:
    """Some inputs, joined: where their columns stand."""

    relation: Relation
    places: dict[Logical, int]


@dataclass(frozen=True, slots=True)
class _JoinSide:
    """A side of a two-way join, the stages that go behind the join, and where its columns then stand."""

    side: Side
    later: tuple[StageSpec, ...]
    width: int
    places: dict[Logical, int]


def plan_join(join: PendingJoin, stages: Sequence[StageSpec], nodes: Nodes) -> Relation:
    """The join with `stages` upon it, as a relation whose base is a join node or the only input."""
    arities = [len(each.columns) for each in join.inputs]
    columns = tuple(column for each in join.inputs for column in each.columns)
    stages = merged(stages, columns)
    mixed = join.equivalences.mixed
    above: Sequence[tuple[int, Expr]] = ()
    if not Stage(StageSpec((), mixed, ()), columns).fallible:
        stages, above = pushed_down(stages, columns, arities)
    inputs = [_prepared(join, i, [p for at, p in above if at == i]) for i in range(len(join.inputs))]
    output, closure = narrowed(stages, len(columns))
    logical = [(i, c) for i, arity in enumerate(arities) for c in range(arity)]
    wanted = logical if output is None else [logical[c] for c in output]
    read = {*wanted, *(logical[c] for expr in mixed for c in references(expr))}
    joined = _Planner(join, inputs, read, nodes).joined()
    found = joined.relation
    if mixed:
        places = joined.places
        found = found.then(StageSpec((), tuple(renumbered(e, lambda c: places[logical[c]]) for e in mixed)))
    return found.then(StageSpec((), (), tuple(joined.places[each] for each in wanted)), *closure)


def pushed_down(
    stages: Sequence[StageSpec], columns: Columns, arities: Sequence[int]
) -> tuple[tuple[StageSpec, ...], list[tuple[int, Expr]]]:
    """The predicates of the first stage that can be tested on one part of the columns before, and the rest.

    arities: of the parts. Predicates come with the number of their part, over its own columns. One that
    cannot fail goes, unless it can be NULL and another one can fail: NULL and an error are an error.
    """
    if not stages or not stages[0].predicates:
        return tuple(stages), []
    first = stages[0]
    fails = [Stage(StageSpec(first.maps, (p,), ()), columns).fallible for p in first.predicates]
    going: list[tuple[int, Expr]] = []
    staying: list[Expr] = []
    starts = [sum(arities[:i]) for i in range(len(arities))]
    for predicate, failing in zip(first.predicates, fails, strict=True):
        used = references(predicate)
        parts = {i for i, start in enumerate(starts) for c in used if start <= c < start + arities[i]}
        alone = len(parts) == 1 and max(used) < len(columns)
        if failing or not alone or (any(fails) and compile_expr(predicate, columns).nullable):
            staying.append(predicate)
            continue
        (part,) = parts
        start = starts[part]
        going.append((part, renumbered(predicate, lambda c, start=start: c - start)))  # type: ignore[misc]
    rest = StageSpec(first.maps, tuple(staying), first.projection)
    return merged((rest, *stages[1:]), columns), going


def _prepared(join: PendingJoin, number: int, above: Sequence[Expr]) -> _Input:
    relation = join.inputs[number]
    own = len(relation.columns)
    mine = {place: each[number] for place, each in enumerate(join.equivalences.keys) if number in each}
    columns, maps = placed(list(mine.values()), own)
    keys = dict(zip(mine, columns, strict=True))
    tests = join.equivalences.tests[number]
    if maps or tests:
        relation = relation.then(StageSpec(maps, tests))
    if above:
        relation = relation.then(StageSpec((), tuple(above)))
    return _Input(relation, own, keys, _origins(relation, keys))


def _origins(relation: Relation, keys: Mapping[int, int]) -> dict[int, int] | None:
    """By class, the column of the indexes on which the relation stands; None if it cannot be looked up so."""
    if not relation.arranged or not infallible(relation.stages, relation.base):
        return None
    origins: dict[int, int] = {}
    for place, column in keys.items():
        origin = traced(relation.stages, len(relation.base), column)
        if origin is None:
            return None
        origins[place] = origin
    # A column that is shown twice may be in two classes, but a key names it once.
    return origins if len(set(origins.values())) == len(origins) else None


class _Planner:
    def __init__(
        self, join: PendingJoin, inputs: Sequence[_Input], read: Iterable[Logical], nodes: Nodes
    ) -> None:
        self._join = join
        self._inputs = inputs
        self._nodes = nodes
        # Of each input, the columns that are read of the joined row; those that are keys come on top.
        self._read = [sorted(c for at, c in read if at == i) for i in range(len(inputs))]

    def joined(self) -> _Joined:
        everything = range(len(self._inputs))
        if len(self._inputs) == 1:
            relation = self._inputs[0].relation
            return _Joined(relation, {(0, c): c for c in range(len(relation.columns))})
        if len(self._inputs) > 2:
            paths = self._paths(everything)
            if self._join.delta or all(fit is not None for path in paths for _, fit in path):
                return self._delta(everything, paths)
        return self._linear(self._order())

    # What the arrangements offer.

    def _shared(self, joined: Iterable[int], other: int) -> tuple[int, ...]:
        """The classes that connect `other` with what is joined."""
        here = {place for i in joined for place in self._inputs[i].keys}
        return tuple(place for place in self._inputs[other].keys if place in here)

    def _fits(self, number: int, places: Sequence[int]) -> list[Fit]:
        """The indexes of an input whose key is just these classes."""
        each = self._inputs[number]
        if each.origins is None:
            return []
        columns = [each.origins[place] for place in places]
        if len(set(columns)) < len(columns):
            return []
        return [
            (index, tuple(places[columns.index(column)] for column in index.key))
            for index in each.relation.arranged
            if len(index.key) == len(columns) and set(index.key) == set(columns)
        ]

    def _next(self, joined: Sequence[int], rest: Iterable[int]) -> int:
        def rank(other: int) -> tuple[bool, bool, int, int]:
            places = self._shared(joined, other)
            return not places, not self._fits(other, places), -len(places), other

        return min(rest, key=rank)

    def _order(self) -> list[int]:
        best: tuple[tuple[int, int], list[int]] | None = None
        for start in range(len(self._inputs)):
            order, products, lookups = [start], 0, 0
            rest = [i for i in range(len(self._inputs)) if i != start]
            while rest:
                other = self._next(order, rest)
                places = self._shared(order, other)
                products += not places
                lookups += bool(self._fits(other, places))
                if len(order) == 1:
                    lookups += bool(self._fits(start, places))
                rest.remove(other)
                order.append(other)
            if best is None or (products, -lookups) < best[0]:
                best = (products, -lookups), order
        assert best is not None
        return best[1]

    # Linear joins.

    def _linear(self, order: Sequence[int]) -> _Joined:
        first, second = order[:2]
        places = self._shared([first], second)
        mine, theirs = self._fits(first, places), self._fits(second, places)
        agreed = next(((a, b) for a in mine for b in theirs if a[1] == b[1]), None)
        if mine and theirs and agreed is None:
            # Each index is looked up by the order of its own key, and neither is copied.
            found = self._delta((first, second), [[(second, theirs[0])], [(first, mine[0])]])
        else:
            fit, other = agreed or (mine[0] if mine else None, None if mine else next(iter(theirs), None))
            key = fit[1] if fit else other[1] if other else places
            left = self._side(first, fit, key, order[1:])
            found = self._pair(left, self._side(second, other, key, order[2:]))
        for step in range(2, len(order)):
            other_number, rest = order[step], order[step + 1 :]
            places = self._shared(order[:step], other_number)
            fit = next(iter(self._fits(other_number, places)), None)
            key = fit[1] if fit else places
            left = self._intermediate(found, order[:step], key, order[step:])
            found = self._pair(left, self._side(other_number, fit, key, rest))
        return found

    def _side(self, number: int, fit: Fit | None, places: Sequence[int], rest: Sequence[int]) -> _JoinSide:
        """An input by the classes `places`. rest: the inputs still to be joined."""
        each = self._inputs[number]
        if fit is not None:
            index, relation = fit[0], each.relation
            side = IndexSide(index.id, index.key, relation.base)
            width = len(relation.columns)
            later = merged(relation.stages, relation.base)
            return _JoinSide(side, later, width, {(number, c): c for c in range(width)})
        # Inputs that are the same rows may share the arrangement.
        alike = [
            i for i, other in enumerate(self._inputs) if other.relation.identity == self._identity(number)
        ]
        columns = sorted({c for i in alike for c in self._kept(i, places, rest)})
        arranged = self._nodes.arrange(each.relation, columns, [each.keys[place] for place in places])
        found = {(number, c): at for at, c in enumerate(arranged.columns)}
        return _JoinSide(arranged.side, (), len(arranged.columns), found)

    def _identity(self, number: int) -> Hashable:
        return self._inputs[number].relation.identity

    def _kept(self, number: int, places: Sequence[int], rest: Iterable[int]) -> list[int]:
        """The columns of an input that are read of the joined row, or by this or a later step."""
        keys = self._inputs[number].keys
        later = {place for other in rest for place in self._inputs[other].keys}
        return sorted(
            {*self._read[number], *(c for place, c in keys.items() if place in later or place in places)}
        )

    def _intermediate(
        self, found: _Joined, joined: Sequence[int], places: Sequence[int], rest: Sequence[int]
    ) -> _JoinSide:
        """What is joined so far, by the classes `places`."""
        kept = [(i, c) for i in sorted(joined) for c in self._kept(i, places, rest)]
        kept = [each for each in kept if each in found.places]
        columns = [found.places[each] for each in kept]
        key = [found.places[self._stands_for(place, joined)] for place in places]
        arranged = self._nodes.arrange(found.relation, sorted(set(columns)), key)
        back = {column: at for at, column in enumerate(arranged.columns)}
        return _JoinSide(arranged.side, (), len(arranged.columns), {e: back[found.places[e]] for e in kept})

    def _stands_for(self, place: int, joined: Sequence[int]) -> Logical:
        first = next(i for i in joined if place in self._inputs[i].keys)
        return first, self._inputs[first].keys[place]

    def _pair(self, left: _JoinSide, right: _JoinSide) -> _Joined:
        columns = left.side.columns + right.side.columns
        node = JoinNode(left.side, right.side, self._join.null_safe, None, (), columns)
        relation = Relation(columns, pending=node, columns=columns).then(
            *behind_join(left.later, len(left.side.columns), left=0, right=len(right.side.columns)),
            *behind_join(right.later, len(right.side.columns), left=left.width, right=0),
        )
        places = left.places | {each: left.width + at for each, at in right.places.items()}
        return _Joined(relation, places)

    # Delta joins.

    def _paths(self, numbers: Iterable[int]) -> list[list[tuple[int, Fit | None]]]:
        """For each input, the others in the order in which its changes look them up, and in which index."""
        numbers = list(numbers)
        paths = []
        for start in numbers:
            joined, path = [start], []
            while rest := [i for i in numbers if i not in joined]:
                other = self._next(joined, rest)
                fits = self._fits(other, self._shared(joined, other))
                path.append((other, next(iter(fits), None)))
                joined.append(other)
            paths.append(path)
        return paths

    def _delta(self, numbers: Sequence[int], paths: Sequence[Sequence[tuple[int, Fit | None]]]) -> _Joined:
        """paths: by position in `numbers`."""
        made = {
            number: _DeltaSides(self._inputs[number], self._read[number], self._nodes) for number in numbers
        }
        at = {number: position for position, number in enumerate(numbers)}
        steps = []
        for start, path in zip(numbers, paths, strict=True):
            joined, lookups = [start], []
            for other, fit in path:
                places = fit[1] if fit else self._shared(joined, other)
                side = made[other].by(places, None if fit is None else fit[0])
                sources = [self._stands_for(place, joined)[0] for place in places]
                key = tuple((at[i], made[i].column(place)) for i, place in zip(sources, places, strict=True))
                lookups.append(LookupStep(at[other], side, key))
                joined.append(other)
            steps.append(tuple(lookups))
        inputs = tuple(made[number].input() for number in numbers)
        joined_columns = tuple(column for each in inputs for column in each.columns)
        node = DeltaJoinNode(inputs, tuple(steps), self._join.null_safe, None, (), joined_columns)
        relation = Relation(joined_columns, pending=node, columns=joined_columns)
        widths = [len(each.columns) for each in inputs]
        found: dict[Logical, int] = {}
        for position, number in enumerate(numbers):
            later = made[number].later
            before, after = sum(widths[:position]), sum(widths[position + 1 :])
            relation = relation.then(*behind_join(later, widths[position], left=before, right=after))
            widths[position] = made[number].width
        for position, number in enumerate(numbers):
            start = sum(widths[:position])
            found |= {(number, c): start + p for c, p in made[number].places.items()}
        return _Joined(relation, found)


class _DeltaSides:
    """An input of a delta join: its rows as they lie in its arrangements, and those.

    later: what is still to be done with joined rows, behind which `width` columns stand; places: where the
    input's columns are among them.
    """

    def __init__(self, each: _Input, read: Sequence[int], nodes: Nodes) -> None:
        self._nodes = nodes
        self._sides: dict[object, Side] = {}
        self._test: tuple[tuple[int, ...], StageSpec | None] = (), None
        self.later: tuple[StageSpec, ...] = ()
        relation = each.relation
        if each.origins is None:
            kept = sorted({*read, *each.keys.values()})
            relation = relation.then(StageSpec((), (), tuple(kept)))
            self._rows = Relation(relation.columns, nodes.stream(relation), columns=relation.columns)
            self._columns = {place: kept.index(c) for place, c in each.keys.items()}
            self.width = len(kept)
            self.places = {c: p for p, c in enumerate(kept)}
            return
        self._rows = Relation(relation.base, arranged=relation.arranged, columns=relation.base)
        self._columns = each.origins
        self.width = len(relation.columns)
        self.places = {c: c for c in range(self.width)}
        stages = merged(relation.stages, relation.base)
        if stages and stages[0].predicates:
            self._test = _test_of(stages[0], len(relation.base))
            stages = (StageSpec(stages[0].maps, (), stages[0].projection), *stages[1:])
        self.later = stages

    def column(self, place: int) -> int:
        """Where the key of a class stands in the arrangements."""
        return self._columns[place]

    def by(self, places: Sequence[int], index: Export | None) -> int:
        """The number of the arrangement by these classes: the index, or one made here."""
        key = tuple(self._columns[place] for place in places)
        name: object = key if index is None else index.id
        if name not in self._sides:
            if index is None:
                arranged = self._nodes.arrange(self._rows, range(len(self._rows.columns)), key)
                self._sides[name] = arranged.side
            else:
                self._sides[name] = IndexSide(index.id, index.key, self._rows.columns)
        return list(self._sides).index(name)

    def input(self) -> DeltaInput:
        """Once all arrangements were asked for."""
        return DeltaInput(tuple(self._sides.values()), *self._test)


def _test_of(stage: StageSpec, arity: int) -> tuple[tuple[int, ...], StageSpec | None]:
    """The predicates of a stage over `arity` columns as the test of a DeltaInput."""

    def to(column: int) -> int:
        return column if column < arity else column + 1

    test = StageSpec(
        tuple(renumbered(expr, to) for expr in stage.maps),
        tuple(renumbered(expr, to) for expr in stage.predicates),
        (arity,),
    )
    tested, (narrow,) = narrowed((test,), arity + 1)
    assert tested is not None
    return tested[:-1], narrow
