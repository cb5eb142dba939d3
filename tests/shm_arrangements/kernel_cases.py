"""How arguments of kernels are drawn, and how a kernel and its reference are run on them.

`CASES` says how the arguments of a kernel are drawn: in its order, with what it only writes to as `Out` (and
`Scratch`), what it changes as `InOut`, and what the reference takes in another form as `Both`. `TOGETHER`
draws for kernels that share a reference, runs them in turn, and returns what came of it and what should.

Does not: draw for the kernels of images (image_kernel_cases.py), of batches (batch_kernel_cases.py) and of
chains (chain_kernel_cases.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numba import config

from shm_arrangements.columns import Column
from shm_arrangements.kernels import cells, merge, seek, sort
from shm_arrangements.kernels.refs import ROW_BITS, ROW_MASK
from shm_arrangements.table import Table
from shm_arrangements.testing import reference, strategies
from shm_arrangements.testing.meaning import Relation, hash_row, parts_of, row_key
from shm_arrangements.types import VARIABLE, ColumnSpec, ColumnType, ListType, RecordType

EXAMPLES = 12 if config.DISABLE_JIT else 60
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


def draw_codes(draw: Any, max_size: int = 20) -> Any:
    """Ascending, with duplicates."""
    pool = draw(st.lists(words, min_size=1, max_size=6))
    return u64(sorted(draw(st.lists(st.sampled_from(pool) | words, max_size=max_size))))


def draw_texts(draw: Any, min_size: int = 0) -> tuple[Any, Any]:
    """Bytes and offsets of texts, not from 0."""
    texts = draw(st.lists(st.binary(max_size=11), min_size=min_size, max_size=8))
    before = draw(st.binary(max_size=3))
    offsets = np.cumsum([len(before), *map(len, texts)]).astype(np.int64)
    return np.frombuffer(before + b"".join(texts) + b"\xee", np.uint8).copy(), offsets


def _rows(draw: Any, n: int) -> Any:
    return i64(draw(st.lists(st.integers(0, n - 1), max_size=12)) if n else [])


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


# cells


@case("cells.hash_table")
def _hash_table(draw: Any) -> list[Any]:
    specs, rows, table = drawn_table(draw)
    first = draw(st.integers(0, len(specs)))
    return [table, first, draw(st.integers(first, len(specs))), Out(len(rows), np.uint64)]


@case("cells.ordered_codes")
def _ordered_codes(draw: Any) -> list[Any]:
    specs, rows, table = drawn_table(draw)
    return [table, draw(st.integers(0, len(specs))), Out(len(rows), np.uint64)]


@case("cells.equal_pairs")
def _equal_pairs(draw: Any) -> list[Any]:
    specs = draw_specs(draw)
    pool = st.sampled_from(draw_pool(draw, specs))
    a, b = draw(st.lists(pool, max_size=6)), draw(st.lists(pool, max_size=6))
    index = st.tuples(st.integers(0, max(len(a) - 1, 0)), st.integers(0, max(len(b) - 1, 0)))
    pairs = draw(st.lists(index, max_size=12)) if a and b else []
    rows_a, rows_b = i64([i for i, _ in pairs]), i64([j for _, j in pairs])
    columns = draw(st.integers(0, len(specs)))
    return [
        draw_table(draw, specs, a), rows_a, draw_table(draw, specs, b), rows_b, columns,
        Out(len(pairs), np.bool_),
    ]  # fmt: skip


@case("cells.order_lane")
def _order_lane(draw: Any) -> list[Any]:
    spec = ColumnSpec("c", draw_scalar(draw), draw(st.booleans()))
    rows = draw(st.lists(strategies.rows([spec]), max_size=8))
    lanes = draw(st.integers(1, 3))
    before = InOut(np.full((len(rows), lanes), 7, np.uint64))
    wide = spec.type in (ColumnType.NUMERIC, ColumnType.UUID, ColumnType.INTERVAL)
    return [
        draw_table(draw, [spec], rows), 0, draw(st.integers(0, int(wide))), before,
        draw(st.integers(0, lanes - 1)),
    ]  # fmt: skip


# seek


@case("seek.find_runs")
def _find_runs(draw: Any) -> list[Any]:
    codes = draw_codes(draw, 60)
    near = st.sampled_from(codes.tolist()) if len(codes) else words
    keys = draw(st.lists(near | words, max_size=12))
    keys = sorted(keys) if draw(st.booleans()) else keys
    return [
        codes, u64(keys), Out(len(keys), np.int64), Out(len(keys), np.int64), Scratch(seek.SCRATCH, np.int64),
    ]  # fmt: skip


# hashing


@case("hashing.checksum")
def _checksum(draw: Any) -> list[Any]:
    return [u64(draw(st.lists(words, max_size=9))), np.uint64(draw(words)), np.uint64(draw(words))]


# gather


@case("gather.text_offsets")
def _text_offsets(draw: Any) -> list[Any]:
    _, offsets = draw_texts(draw)
    rows = _rows(draw, len(offsets) - 1)
    return [offsets, rows, Out(len(rows) + 1, np.int64)]


def _gathered(draw: Any) -> tuple[Any, Any, Any, Any]:
    data, offsets = draw_texts(draw)
    rows = _rows(draw, len(offsets) - 1)
    return data, offsets, rows, reference.text_offsets(offsets, rows)[0].astype(np.int64)


@case("gather.gather_text")
def _gather_text(draw: Any) -> list[Any]:
    data, offsets, rows, out_offsets = _gathered(draw)
    return [data, offsets, rows, out_offsets, Out(out_offsets[-1], np.uint8)]


@case("gather.list_elements")
def _list_elements(draw: Any) -> list[Any]:
    _, offsets, rows, out_offsets = _gathered(draw)
    return [offsets, rows, out_offsets, Out(out_offsets[-1], np.int64)]


def _spans(draw: Any) -> tuple[Any, Any, Any]:
    data, offsets = draw_texts(draw)
    rows = _rows(draw, len(offsets) - 1)
    return data, offsets[:-1][rows], offsets[1:][rows]


@case("gather.span_offsets")
def _span_offsets(draw: Any) -> list[Any]:
    _, lo, hi = _spans(draw)
    return [lo, hi, Out(len(lo) + 1, np.int64)]


@case("gather.gather_spans")
def _gather_spans(draw: Any) -> list[Any]:
    data, lo, hi = _spans(draw)
    out_offsets = reference.span_offsets(lo, hi)[0].astype(np.int64)
    return [data, lo, out_offsets, Out(out_offsets[-1], np.uint8)]


def _bitmap(draw: Any, n: int, first: int) -> Any:
    size = (first + n + 7) // 8
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()


@case("gather.gather_bits")
def _gather_bits(draw: Any) -> list[Any]:
    n, first = draw(st.integers(0, 20)), draw(st.integers(0, 17))
    rows = _rows(draw, n)
    return [_bitmap(draw, n, first), first, rows, Out(len(rows), np.bool_)]


# atomics and bells


def _words(draw: Any) -> tuple[Any, int]:
    array = u64(draw(st.lists(words, min_size=1, max_size=4)))
    return array, draw(st.integers(0, len(array) - 1))


@case("atomics.load_acquire")
@case("atomics.fence_then_load")
def _load(draw: Any) -> list[Any]:
    return list(_words(draw))


@case("atomics.store_release")
def _store(draw: Any) -> list[Any]:
    array, at = _words(draw)
    return [InOut(array), at, np.uint64(draw(words))]


@case("atomics.fence")
def _fence(draw: Any) -> list[Any]:
    return []


CELL_WORDS, BELL_WORD = 8, 1  # of a clock


def _clock(draw: Any) -> tuple[Any, list[int]]:
    clock = np.zeros(4 * CELL_WORDS, np.uint64)
    ats = list(range(0, len(clock), CELL_WORDS))
    for at in ats:
        clock[at], clock[at + BELL_WORD] = draw(words), draw(st.integers(0, 9))
    return clock, ats


@case("bells.ring")
def _ring(draw: Any) -> list[Any]:
    clock, ats = _clock(draw)
    return [InOut(clock), draw(st.sampled_from(ats))]


@case("bells.advance")
def _advance(draw: Any) -> list[Any]:
    return [*_ring(draw), np.uint64(draw(words))]


@case("bells.advance_many")
def _advance_many(draw: Any) -> list[Any]:
    clock, ats = _clock(draw)
    return [InOut(clock), i64(draw(st.lists(st.sampled_from(ats), unique=True))), np.uint64(draw(words))]


@case("bells.sleep")
def _sleep(draw: Any) -> list[Any]:
    clock, ats = _clock(draw)
    at, rang = draw(st.sampled_from(ats)), draw(st.booleans())
    return [clock, at, int(clock[at + BELL_WORD]) + rang, InOut(i64([0, draw(st.integers(0, 1000))]))]


# Sorted codes and updates


diff_values = st.sampled_from([1, 1, -1, 2, (1 << 63) - 1, -(1 << 63)])


@together("sort.spread_codes", "sort.sort_buckets")
def _sort_codes(draw: Any) -> tuple[Any, Any]:
    pool = draw(st.lists(words, min_size=1, max_size=40))
    picks = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(pool), draw(st.integers(0, 300)))
    codes = u64(pool)[picks]
    return (
        [part.tolist() for part in sort.sort_codes(codes)],
        [part.tolist() for part in reference.sort_codes(codes)],
    )


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


@case("merge.count_folded")
def _count_folded(draw: Any) -> list[Any]:
    specs = draw_specs(draw)
    (arrays, table), updates = draw_updates(draw, specs, draw_pool(draw, specs))
    rows = len(updates.codes)
    starts = i64(sorted(draw(st.lists(st.integers(0, max(rows - 1, 0)), max_size=3))) if rows else [])
    return [
        Both((i64(source_of(arrays)), table.kernel[0]), (updates,), (arrays, table)),
        len(specs), np.uint64(draw(st.integers(0, 6))), starts, draw(st.integers(0, 5)),
    ]  # fmt: skip


@together("merge.merge_sources", "merge.replay_merge")
def _merge(draw: Any) -> tuple[Any, Any]:
    specs = draw_specs(draw)
    pool = draw_pool(draw, specs)
    drawn = [draw_updates(draw, specs, pool) for _ in range(draw(st.integers(1, merge.MAX_SOURCES)))]
    since = draw(st.integers(0, 6))
    sources = np.zeros((len(drawn), merge.SOURCE_FIELDS), np.int64)
    tables = [table.kernel[0] for (_, table), _ in drawn]
    height = max(len(table) for table in tables)
    stacked = np.zeros((len(drawn), height, cells.FIELDS), np.int64)
    for at, ((arrays, _), _) in enumerate(drawn):
        stacked[at, : len(tables[at])] = tables[at]
        sources[at] = source_of(arrays)
    total = sum(len(updates.codes) for _, updates in drawn)
    state, noted = np.zeros(merge.STATE_FIELDS, np.int64), np.zeros(merge.WORD_FIELDS, np.uint64)
    state[merge.ALIVE], noted[merge.LEAST_TIME] = -1, merge.LAST_CODE
    ops, odds = np.zeros(total, np.uint8), np.zeros(total + total // 2 + 2, np.int64)
    idle, scratch = np.full(1, merge.LAST_CODE, np.uint64), np.zeros(merge.MAX_SOURCES, np.int64)
    while state[merge.ALIVE] != 0:
        merge.merge_sources(
            sources, stacked, len(specs), np.uint64(since), draw(st.integers(1, 9)), idle.ctypes.data,
            state, noted, ops, odds, scratch,
        )  # fmt: skip
    should = reference.merge([updates for _, updates in drawn], since)
    n = int(state[merge.WRITTEN])
    assert n == len(should)
    assert (state[merge.NOT_ONE] > 0) == any(diff != 1 for _, _, diff in should)
    cursor = np.zeros(merge.CURSOR_FIELDS, np.int64)
    came: list[Any] = []
    while len(came) < n:
        room = draw(st.integers(1, n - len(came)))
        refs, sums = np.empty(room, np.int64), np.empty(room, np.int64)
        merge.replay_merge(sources, ops, odds, cursor, refs, sums)
        came += [
            (ref >> ROW_BITS, ref & ROW_MASK, diff)
            for ref, diff in zip(refs.tolist(), sums.tolist(), strict=True)
        ]
    return came, should
