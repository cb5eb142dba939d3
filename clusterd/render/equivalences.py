"""Equivalences of a join: what they ask of each input alone, of inputs together, and of the joined row.

Classes that share an expression are one, for all of them have to hold. Of each input one expression stands
for a class, a column if there is one; a class with such an expression in two or more inputs joins them.
Further expressions of one input are tests of its rows, expressions over several inputs tests of the joined
row. A literal is a test of every input that has a part in its class; another constant, which may fail, of the
first.

Does not: compute anything, know columns' types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    for members in _classes(equivalences):
        owned, constants, several = _sorted(members, starts)
        first = _first(owned, constants, several, starts)
        for number, (input, own) in enumerate(owned.items()):
            own += [c for c in constants if isinstance(c, Literal) or number == 0]
            tests[input] += [_equal(own[0], other, null_safe) for other in own[1:]]
        if len(owned) > 1:
            keys.append({input: own[0] for input, own in owned.items()})
        if owned:
            mixed += [_equal(first, expr, null_safe) for expr in several]
        elif several:
            mixed += [_equal(first, expr, null_safe) for expr in (*constants, *several) if expr is not first]
        else:
            tests[0] += [_equal(first, expr, null_safe) for expr in constants[1:]]
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


def _first(
    owned: dict[int, list[Expr]], constants: Sequence[Expr], several: Sequence[Expr], starts: Sequence[int]
) -> Expr:
    """What stands for the class over all columns."""
    if owned:
        input, own = next(iter(owned.items()))
        return renumbered(own[0], lambda column: column + starts[input])
    return (*constants, *several)[0]


def _input_of(column: int, starts: Sequence[int]) -> int:
    return max(i for i, start in enumerate(starts) if start <= column)


def _equal(a: Expr, b: Expr, null_safe: bool) -> Expr:
    equal = Call("=", (a, b))
    if not null_safe:
        return equal
    nulls = Call("is_null", (a,)), Call("is_null", (b,))
    return Case(Call("or", nulls), Call("and", nulls), equal)
