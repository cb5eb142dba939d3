"""Hypothesis strategies: schemas, rows and histories that look for trouble.

Values are drawn from the edges of each type (NULL, NaN, both zeros, extremes, texts that share eight bytes)
as often as from between; rows from small pools, so that they repeat, cancel and are over-retracted; times
from few and many.

Does not: know what is tested with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType

_I64 = (-(1 << 63), (1 << 63) - 1)
_I128 = (-(1 << 127), (1 << 127) - 1)
_NAN = float("nan")
_EIGHT = ["abcdefgh", "abcdefgh\0", "abcdefghi", "abcdefghj"]  # their first lanes are the same

_EDGES: dict[ColumnType, list[Any]] = {
    ColumnType.BOOL: [False, True],
    ColumnType.INT64: [0, 1, -1, 255, 256, *_I64],
    ColumnType.TIMESTAMP: [0, 1, -1, *_I64],
    ColumnType.FLOAT64: [0.0, -0.0, 1.5, -1.5, _NAN, -_NAN, float("inf"), -float("inf"), 5e-324],
    ColumnType.TEXT: ["", "\0", "a", "a\0", *_EIGHT, "z" * 40, "é", "\U0010ffff"],
    ColumnType.NUMERIC: [0, 1, -1, 1 << 63, 1 << 64, -(1 << 64), (1 << 64) - 1, *_I128],
}  # fmt: skip

_BETWEEN: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.INT64: st.integers(*_I64),
    ColumnType.TIMESTAMP: st.integers(*_I64),
    ColumnType.FLOAT64: st.floats(),
    ColumnType.TEXT: st.text(st.characters(codec="utf-8"), max_size=20),
    ColumnType.NUMERIC: st.integers(*_I128),
}


def values(type_: ColumnType, nullable: bool) -> st.SearchStrategy[Any]:
    """A Python value of the type, or None."""
    known = st.one_of(st.sampled_from(_EDGES[type_]), _BETWEEN[type_])
    return st.one_of(st.none(), known) if nullable else known


def rows(columns: Sequence[ColumnSpec]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Rows that fit `columns`."""
    return st.tuples(*(values(c.type, c.nullable) for c in columns))


@st.composite
def columns(draw: st.DrawFn, max_columns: int = 4) -> tuple[ColumnSpec, ...]:
    """The columns of a relation; sometimes none."""
    kinds = draw(st.lists(st.tuples(st.sampled_from(ColumnType), st.booleans()), max_size=max_columns))
    return tuple(ColumnSpec(f"c{i}", type_, nullable) for i, (type_, nullable) in enumerate(kinds))


@st.composite
def schemas(draw: st.DrawFn, max_columns: int = 4) -> ArrangementSchema:
    """A schema with any key, the empty one and the whole row among them."""
    specs = draw(columns(max_columns))
    positions = draw(st.permutations(range(len(specs))))
    return ArrangementSchema(specs, tuple(positions[: draw(st.integers(0, len(specs)))]))


diffs = st.one_of(st.sampled_from([1, 1, -1, -1, 2, -3]), st.integers(-(1 << 40), 1 << 40).filter(bool))


@dataclass(frozen=True)
class Step:
    """What happens to a trace: updates sealed at `upper`, then since is moved and merging exerted."""

    updates: tuple[tuple[tuple[Any, ...], int, int], ...]
    upper: int
    since: int
    fuel: int


@dataclass(frozen=True)
class History:
    schema: ArrangementSchema
    steps: tuple[Step, ...]


@st.composite
def histories(draw: st.DrawFn, max_steps: int = 12, max_updates: int = 12) -> History:
    """A schema and a sequence of steps whose intervals abut, from time 0 on."""
    schema = draw(schemas())
    pool = draw(st.lists(rows(schema.columns), min_size=1, max_size=6))
    lower = since = 0
    steps = []
    for _ in range(draw(st.integers(0, max_steps))):
        upper = lower + draw(st.sampled_from([1, 1, 1, 2, 10]))
        times = st.integers(lower, upper - 1)
        update = st.tuples(st.sampled_from(pool), times, diffs)
        updates = tuple(draw(st.lists(update, max_size=max_updates)))
        since = max(since, draw(st.sampled_from([0, since, since, max(upper - 2, 0), upper - 1])))
        steps.append(Step(updates, upper, since, draw(st.sampled_from([0, 0, 1, 7, 10_000]))))
        lower = upper
    return History(schema, tuple(steps))
