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
from shm_arrangements.testing.edges import EDGES, NESTED, TYPES, bounds, json_text
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType

_BETWEEN: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.INT16: st.integers(*bounds(16)),
    ColumnType.INT32: st.integers(*bounds(32)),
    ColumnType.INT64: st.integers(*bounds(64)),
    ColumnType.UINT16: st.integers(*bounds(16, signed=False)),
    ColumnType.UINT32: st.integers(*bounds(32, signed=False)),
    ColumnType.UINT64: st.integers(*bounds(64, signed=False)),
    ColumnType.FLOAT32: st.floats(width=32),
    ColumnType.FLOAT64: st.floats(),
    ColumnType.NUMERIC: st.integers(*bounds(128)),
    ColumnType.TEXT: st.text(st.characters(codec="utf-8"), max_size=20),
    ColumnType.BYTEA: st.binary(max_size=20),
    ColumnType.DATE: st.integers(*bounds(32)),
    ColumnType.TIME: st.integers(0, 86_400_000_000),
    ColumnType.TIMESTAMP: st.integers(*bounds(64)),
    ColumnType.TIMESTAMPTZ: st.integers(*bounds(64)),
    ColumnType.INTERVAL: st.tuples(
        st.integers(*bounds(32)), st.integers(*bounds(32)), st.integers(*bounds(64))
    ),
    ColumnType.UUID: st.uuids(allow_nil=True),
    ColumnType.JSONB: st.dictionaries(st.text("ab", max_size=2), st.integers(-9, 9), max_size=3).map(
        json_text
    ),
}


def values(type_: AnyType, nullable: bool) -> st.SearchStrategy[Any]:
    """A Python value of the type, or None."""
    known: st.SearchStrategy[Any]
    if isinstance(type_, ListType):
        known = st.lists(values(type_.element.type, type_.element.nullable), max_size=3)
    elif isinstance(type_, RecordType):
        known = st.tuples(*(values(field.type, field.nullable) for field in type_.fields))
    else:
        known = st.one_of(st.sampled_from(EDGES[type_]), _BETWEEN[type_])
    return st.one_of(st.none(), known) if nullable else known


def rows(columns: Sequence[ColumnSpec]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Rows that fit `columns`."""
    return st.tuples(*(values(c.type, c.nullable) for c in columns))


@st.composite
def specs(draw: st.DrawFn, name: str, nested: int = NESTED) -> ColumnSpec:
    """A column of any type, with NULL or without: scalar, or a list or record at most `nested` deep."""
    kind = draw(st.sampled_from(["scalar"] * 8 + ["list", "record"])) if nested else "scalar"
    type_: AnyType
    if kind == "list":
        type_ = ListType(draw(specs("item", nested - 1)))
    elif kind == "record":
        type_ = RecordType(tuple(draw(specs(f"f{i}", nested - 1)) for i in range(draw(st.integers(0, 3)))))
    else:
        type_ = draw(st.sampled_from(TYPES))
    scale = draw(st.sampled_from([0, 2, 38])) if type_ is ColumnType.NUMERIC else 0
    return ColumnSpec(name, type_, draw(st.booleans()), scale)


@st.composite
def columns(draw: st.DrawFn, max_columns: int = 4) -> tuple[ColumnSpec, ...]:
    """The columns of a relation; sometimes none."""
    return tuple(draw(specs(f"c{i}")) for i in range(draw(st.integers(0, max_columns))))


@st.composite
def schemas(draw: st.DrawFn, max_columns: int = 4) -> ArrangementSchema:
    """A schema with any key, the empty one and the whole row among them; ordered or not."""
    specs = draw(columns(max_columns))
    positions = draw(st.permutations(range(len(specs))))
    key = tuple(positions[: draw(st.integers(0, len(specs)))])
    return ArrangementSchema(specs, key, ordered=draw(st.booleans()))


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
