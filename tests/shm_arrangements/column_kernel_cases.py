"""How arguments are drawn of the kernels that compare, look up and gather values of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shm_arrangements.kernels import seek
from shm_arrangements.testing import reference, strategies
from shm_arrangements.types import ColumnSpec, ColumnType
from tests.shm_arrangements.kernel_cases import (
    InOut,
    Out,
    Scratch,
    case,
    draw_pool,
    draw_scalar,
    draw_specs,
    draw_table,
    draw_texts,
    drawn_table,
    i64,
    u64,
    words,
)


def _codes(draw: Any) -> Any:
    """Ascending, with duplicates."""
    pool = draw(st.lists(words, min_size=1, max_size=6))
    return u64(sorted(draw(st.lists(st.sampled_from(pool) | words, max_size=60))))


def _rows(draw: Any, n: int) -> Any:
    return i64(draw(st.lists(st.integers(0, n - 1), max_size=12)) if n else [])


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


@case("seek.find_runs")
def _find_runs(draw: Any) -> list[Any]:
    codes = _codes(draw)
    near = st.sampled_from(codes.tolist()) if len(codes) else words
    keys = draw(st.lists(near | words, max_size=12))
    keys = sorted(keys) if draw(st.booleans()) else keys
    return [
        codes, u64(keys), Out(len(keys), np.int64), Out(len(keys), np.int64), Scratch(seek.SCRATCH, np.int64),
    ]  # fmt: skip


@case("hashing.checksum")
def _checksum(draw: Any) -> list[Any]:
    return [u64(draw(st.lists(words, max_size=9))), np.uint64(draw(words)), np.uint64(draw(words))]


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
