"""How arguments of kernels are drawn, and how a kernel and its reference are run on them.

`CASES` says how the arguments of a kernel are drawn: in its order, with what it only writes to as `Out` (and
`Scratch`), what it changes as `InOut`, and what the reference takes in another form as `Both`. `TOGETHER`
draws for kernels that share a reference, runs them in turn, and returns what came of it and what should.

Does not: draw for any kernel; the modules `*_kernel_cases.py` do, and add to CASES and TOGETHER when they are
imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shm_arrangements.columns import Column
from shm_arrangements.table import Table
from shm_arrangements.testing import reference, strategies
from shm_arrangements.testing.meaning import Relation, hash_row, parts_of, row_key
from shm_arrangements.types import VARIABLE, ColumnSpec, ColumnType, ListType, RecordType

CASES: dict[str, Callable[..., Any]] = {}
TOGETHER: dict[str, Callable[..., Any]] = {}


@dataclass
class Out:
    shape: Any
    dtype: Any


@dataclass
class InOut:
    array: Any
    shown: bool = True  # to the reference


@dataclass
class Scratch:
    shape: Any
    dtype: Any


@dataclass
class Both:
    """Arguments of the kernel, and those of the reference that say the same."""

    kernel: tuple[Any, ...]
    reference: tuple[Any, ...]
    kept: Any = None


def case(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[name] = function
        return function

    return register


def together(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TOGETHER.update(dict.fromkeys(names, function))
        return function

    return register


def untouched(shape: Any, dtype: Any) -> Any:
    array = np.empty(shape, dtype)
    array.view(np.uint8)[...] = reference.UNTOUCHED
    return array


def check(kernel: Any, expected_of: Any, arguments: list[Any]) -> None:
    mine: list[Any] = []
    others: list[Any] = []
    written: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Out | Scratch):
            array = untouched(argument.shape, argument.dtype)
            mine.append(array)
            if isinstance(argument, Out):
                written.append(array)
        elif isinstance(argument, InOut):
            mine.append(argument.array.copy())
            written.append(mine[-1])
            if argument.shown:
                others.append(argument.array.copy())
        elif isinstance(argument, Both):
            mine += argument.kernel
            others += argument.reference
        else:
            if isinstance(argument, np.ndarray):
                argument.flags.writeable = False
            mine.append(argument)
            others.append(argument)
    returned = kernel(*mine)
    *arrays, value = (*expected_of(*others), None)[: len(written) + 1]
    assert len(arrays) == len(written)
    assert returned == value
    for array, expected in zip(written, arrays, strict=True):
        np.testing.assert_array_equal(array[: len(expected)], expected)


# What arguments are made of

EDGES = [0, 1, 2, 3, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]
words = st.sampled_from(EDGES) | st.integers(0, (1 << 64) - 1)
ALL_TYPES = list(ColumnType)


def u64(values: Any) -> Any:
    return np.array(values, np.uint64)


def i64(values: Any) -> Any:
    return np.array(values, np.int64)


def draw_texts(draw: Any, min_size: int = 0) -> tuple[Any, Any]:
    """Bytes and offsets of texts, not from 0."""
    texts = draw(st.lists(st.binary(max_size=11), min_size=min_size, max_size=8))
    before = draw(st.binary(max_size=3))
    offsets = np.cumsum([len(before), *map(len, texts)]).astype(np.int64)
    return np.frombuffer(before + b"".join(texts) + b"\xee", np.uint8).copy(), offsets


def draw_scalar(draw: Any) -> Any:
    return draw(st.sampled_from(ALL_TYPES))


def draw_type(draw: Any, nested: int) -> Any:
    kind = draw(st.sampled_from(["scalar"] * 4 + ["list", "record"])) if nested else "scalar"
    if kind == "list":
        return ListType(ColumnSpec("e", draw_type(draw, nested - 1), draw(st.booleans())))
    if kind == "record":
        types = [draw_type(draw, nested - 1) for _ in range(draw(st.integers(0, 2)))]
        return RecordType(
            tuple(ColumnSpec(f"f{i}", type_, draw(st.booleans())) for i, type_ in enumerate(types))
        )
    return draw_scalar(draw)


def draw_specs(draw: Any, nested: int = 2, min_size: int = 0) -> tuple[ColumnSpec, ...]:
    n = draw(st.integers(min_size, 3))
    return tuple(ColumnSpec(f"c{i}", draw_type(draw, nested), draw(st.booleans())) for i in range(n))


def draw_pool(draw: Any, specs: Any) -> list[Any]:
    return draw(st.lists(strategies.rows(specs), min_size=1, max_size=5))


def draw_column(draw: Any, spec: ColumnSpec, values: list[Any]) -> Column:
    """The values, encoded in any way that can hold them; many are plain."""
    column = Column.from_pylist(spec.type, values)
    if len(values) > 50:
        return column
    distinct = [value for i, value in enumerate(values) if value not in values[:i]]
    if len(values) and len(distinct) == 1 and draw(st.booleans()):
        return Column.constant(spec.type, values[0], len(values))
    if spec.type in VARIABLE and draw(st.booleans()):
        empty = b"" if spec.type is ColumnType.BYTEA else ""
        entries = [empty, *(value for value in distinct if value is not None)]
        indices = np.array(
            [entries.index(empty if value is None else value) for value in values],
            draw(st.sampled_from([np.uint8, np.uint16, np.uint32])),
        )
        return Column.of_dictionary(Column.from_pylist(spec.type, entries), indices, column.validity)
    bits = column.bits()
    if column.validity is not None and bits is not None and draw(st.booleans()):
        return Column.with_bits(
            spec.type, column.values, column.offsets, bits[0], children=column.children, length=len(column)
        )
    return column


def relation_of(specs: Any, rows: list[Any]) -> Relation:
    return Relation(tuple(spec.type for spec in specs), tuple(rows))


def draw_table(draw: Any, specs: Any, rows: list[Any]) -> Both:
    """A table of a slice of columns, in any encoding."""
    extra = draw(st.integers(0, min(2, len(rows))))
    padded = rows[:extra] + rows
    columns = [
        draw_column(draw, spec, [row[at] for row in padded]).slice(extra, len(padded))
        for at, spec in enumerate(specs)
    ]
    table = Table(columns)
    return Both((table.cells,), (relation_of(specs, rows),), (table, columns))


def drawn_table(draw: Any, min_columns: int = 0, max_rows: int = 8) -> tuple[Any, list[Any], Both]:
    specs = draw_specs(draw, min_size=min_columns)
    rows = draw(st.lists(st.sampled_from(draw_pool(draw, specs)), max_size=max_rows))
    return specs, rows, draw_table(draw, specs, rows)


diff_values = st.sampled_from([1, 1, -1, 2, (1 << 63) - 1, -(1 << 63)])


def edge_code(relation: Relation, row: int) -> int:
    """A code that many rows share, the extreme ones among them."""
    return [0, 1, (1 << 64) - 1][hash_row(relation, row, 0, len(relation.types)) % 3]


def draw_updates(
    draw: Any, specs: Any, pool: list[Any], code_of: Callable[[Relation, int], int] = edge_code
) -> tuple[Any, Any]:
    """Updates as a batch holds them, sorted and consolidated: for the kernel, and for the reference."""
    drawn = draw(st.lists(st.tuples(st.sampled_from(pool), st.integers(0, 5), diff_values), max_size=10))
    drawn = [(row, 3, diff) for row, _, diff in drawn] if draw(st.booleans()) else drawn
    return updates_of(draw, specs, drawn, code_of)


def updates_of(
    draw: Any, specs: Any, drawn: list[Any], code_of: Callable[[Relation, int], int]
) -> tuple[Any, Any]:
    """As `draw_updates`, of these (row, time, diff)."""
    types = tuple(spec.type for spec in specs)
    whole = Relation(types, tuple(row for row, _, _ in drawn))
    codes = [code_of(whole, at) for at in range(len(drawn))]
    at_once = [
        (codes[at], row_key(whole, at), time, at, diff) for at, (_, time, diff) in enumerate(drawn)
    ]  # fmt: skip
    found = []
    for (code, _, time), equal in itertools.groupby(sorted(at_once), lambda update: update[:3]):
        rows = list(equal)
        found += [(code, drawn[rows[0][3]][0], time, part) for part in parts_of(sum(row[4] for row in rows))]
    rows = [row for _, row, _, _ in found]
    code, time, diff = (tuple(update[k] for update in found) for k in (0, 2, 3))
    arrays = [u64(code), u64(time), i64(diff)]
    for k in (1, 2):  # one that stands for all
        if len(found) and len(set(arrays[k].tolist())) == 1 and draw(st.booleans()):
            arrays[k] = arrays[k][:1].copy()
    table = draw_table(draw, specs, rows)
    return (arrays, table), reference.Updates(Relation(types, tuple(rows)), code, time, diff)


def source_of(arrays: list[Any]) -> tuple[int, ...]:
    """What merges read of updates: where they are."""
    codes, times, diffs = arrays
    return (
        codes.ctypes.data, len(codes), times.ctypes.data, 8 * (len(times) > 1), diffs.ctypes.data,
        8 * (len(diffs) > 1),
    )  # fmt: skip
