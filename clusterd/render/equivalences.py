"""Equivalences of a join: what they ask of each input alone, of inputs together, and of the joined row.

Classes that share an expression are one, for all of them have to hold. Of each input one expression stands
for a class, a column if there is one; a class with such an expression in two or more inputs joins them.
Further expressions of one input are tests of its rows, expressions over several inputs tests of the joined
row. A literal is a test of every input that has a part in its class; another constant, which may fail, of the
first. Where something may fail, every two are compared: then two that differ settle it, in whatever order
they were told, and what fails beside them is not looked at.

Does not: compute anything, know columns' types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from clusterd.render.stages import renumbered
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal, references

__all__ = ["Equivalences", "split_equivalences"]


@dataclass(frozen=True, slots=True)
class Equivalences:
    """keys: by class, the expression of each input that has one. tests: by input. Both over the input's own
    columns; mixed: tests over the columns of all inputs.
    """

    keys: tuple[dict[int, Expr], ...]
    tests: tuple[tuple[Expr, ...], ...]
    mixed: tuple[Expr, ...]


def split_equivalences(
    equivalences: Sequence[Sequence[Expr]], arities: Sequence[int], *, null_safe: bool
) -> Equivalences:
    """arities: of the inputs, whose columns the expressions count through."""
    starts = [sum(arities[:i]) for i in range(len(arities))]
    keys: list[dict[int, Expr]] = []
    tests: list[list[Expr]] = [[] for _ in arities]
    mixed: list[Expr] = []
    classes = _classes(equivalences)
    plain = all(isinstance(member, ColumnRef | Literal) for members in classes for member in members)

    def all_equal(members: Sequence[Expr]) -> list[Expr]:
        known = next((m for m in members if isinstance(m, Literal) and m.value is not None), None)
        if known is not None:
            # Of two that differ one differs from it, for it is never NULL and never fails.
            return [_equal(member, known, null_safe) for member in members if member is not known]
        if plain:
            return [_equal(members[0], member, null_safe) for member in members[1:]]
        return [_equal(a, b, null_safe) for a, b in combinations(members, 2)]

    for members in classes:
        owned, constants, several = _sorted(members, starts)
        for number, (input, own) in enumerate(owned.items()):
            tests[input] += all_equal(
                [*own, *(c for c in constants if isinstance(c, Literal) or number == 0)]
            )
        if len(owned) > 1:
            keys.append({input: own[0] for input, own in owned.items()})
        if owned:
            mixed += all_equal([_first(owned, starts), *several])
        elif several:
            mixed += all_equal([*constants, *several])
        else:
            tests[0] += all_equal(constants)
    return Equivalences(tuple(keys), tuple(map(tuple, tests)), tuple(mixed))


def _classes(equivalences: Sequence[Sequence[Expr]]) -> list[list[Expr]]:
    """The equivalences, those with a member in common put together, members named once, columns first."""
    classes: list[list[Expr]] = []
    for members in equivalences:
        mine = list(dict.fromkeys(members))
        joined = [each for each in classes if any(member in each for member in mine)]
        for each in joined:
            classes.remove(each)
        classes.append(list(dict.fromkeys([*(m for each in joined for m in each), *mine])))
    return [sorted(each, key=lambda expr: not isinstance(expr, ColumnRef)) for each in classes]


def _sorted(
    members: Sequence[Expr], starts: Sequence[int]
) -> tuple[dict[int, list[Expr]], list[Expr], list[Expr]]:
    """Members by input, over its own columns; constants; members over several inputs."""
    owned: dict[int, list[Expr]] = {}
    constants: list[Expr] = []
    several: list[Expr] = []
    for member in members:
        inputs = {_input_of(column, starts) for column in references(member)}
        if not inputs:
            constants.append(member)
        elif len(inputs) > 1:
            several.append(member)
        else:
            (input,) = inputs
            start = starts[input]
            owned.setdefault(input, []).append(renumbered(member, lambda column, start=start: column - start))  # type: ignore[misc]
    return dict(sorted(owned.items())), constants, several


def _first(owned: dict[int, list[Expr]], starts: Sequence[int]) -> Expr:
    """What stands for the class over all columns."""
    input, own = next(iter(owned.items()))
    return renumbered(own[0], lambda column: column + starts[input])


def _input_of(column: int, starts: Sequence[int]) -> int:
    return max(i for i, start in enumerate(starts) if start <= column)


def _equal(a: Expr, b: Expr, null_safe: bool) -> Expr:
    equal = Call("=", (a, b))
    if not null_safe:
        return equal
    nulls = Call("is_null", (a,)), Call("is_null", (b,))
    return Case(Call("or", nulls), Call("and", nulls), equal)
