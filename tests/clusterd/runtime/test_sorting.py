"""Sorting in pieces gives what sorting at once gives, in short steps, and no more than is wanted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clusterd.runtime.sorting import Rows, joined, sort_rows, sorted_parts
from controller_proto.plan import OrderBy
from shm_arrangements.columns import Column
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.types import ColumnType

PIECE = 16
TYPES = (ColumnType.INT64, ColumnType.TEXT, ColumnType.FLOAT64)


def _rows(values: Sequence[tuple[Any, ...]], counts: Sequence[int]) -> Rows:
    columns = tuple(Column.from_pylist(type_, [row[at] for row in values]) for at, type_ in enumerate(TYPES))
    return columns, np.array(counts, np.int64)


def _listed(rows: Rows) -> list[tuple[Any, ...]]:
    columns, counts = rows
    lists = [column.to_pylist() for column in columns]
    return [(*row, count) for *row, count in zip(*lists, counts.tolist(), strict=True)]


def _run(parts: Sequence[Rows], order: tuple[OrderBy, ...], **more: Any) -> tuple[list[Rows], int]:
    """The parts, and in how many steps."""
    work = sorted_parts(parts, order, piece_rows=PIECE, **more)
    steps = 1
    while True:
        try:
            next(work)
            steps += 1
        except StopIteration as end:
            return end.value, steps


def _random_parts(rng: random.Random) -> list[Rows]:
    """Few values, so that many rows are equal but for a column, and some are in all; in any sizes."""
    parts = []
    for _ in range(rng.randint(1, 8)):
        n = rng.choice([1, 2, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE])
        values = [
            (
                rng.choice([None, *range(rng.choice([1, 5, 1000]))]),
                rng.choice([None, "", "a", "ab", "b" * 20, str(rng.random())]),
                rng.choice([0.5, 1.5, float("inf")]),
            )
            for _ in range(n)
        ]
        parts.append(_rows(values, [rng.randint(1, 3) for _ in range(n)]))
    return parts


@pytest.mark.parametrize("seed", range(60))
def test_pieces_are_sorted_as_the_whole_would_be(seed: int) -> None:
    rng = random.Random(seed)
    parts = _random_parts(rng)
    columns = rng.sample(range(3), rng.randint(0, 3))
    order = tuple(OrderBy(column, rng.random() < 0.5, rng.random() < 0.5) for column in columns)
    whole = joined(parts)
    expected = whole[1].take(sort_rows(whole[0], order, len(whole[1])))
    rows = _listed((tuple(c.take(sort_rows(whole[0], order, len(whole[1]))) for c in whole[0]), expected))
    found, steps = _run(parts, order)
    got = [row for part in found for row in _listed(part)]
    assert [row[:3] for row in got] == [row[:3] for row in rows], f"seed {seed}"
    assert sorted(map(repr, got)) == sorted(map(repr, rows)), f"seed {seed}"
    assert len(rows) <= PIECE or steps > 2


@pytest.mark.parametrize("seed", range(30))
def test_equal_rows_become_one_also_where_they_are_nearly_all(seed: int) -> None:
    rng = random.Random(seed)
    parts = _random_parts(rng)
    found, _ = _run(parts, (), merge=True)
    got = [row for part in found for row in _listed(part)]
    counts: dict[Any, int] = {}
    for part in parts:
        for *row, count in _listed(part):
            counts[tuple(row)] = counts.get(tuple(row), 0) + count
    assert {tuple(row): count for *row, count in got} == counts, f"seed {seed}"
    assert len(got) == len(counts)
    keys = [tuple((value is None, value) for value in row[:3]) for row in got]
    assert all(a < b for a, b in itertools.pairwise(keys)), f"seed {seed}"


def test_no_part_is_much_longer_than_a_piece_and_what_is_not_wanted_is_not_sorted() -> None:
    rng = random.Random(7)
    values = [(k, "x", 0.5) for k in range(2000)]
    rng.shuffle(values)
    parts = [_rows(values, [2] * 2000)]
    found, _ = _run(parts, ())
    assert max(len(counts) for _, counts in found) <= 3 * PIECE
    some, _ = _run(parts, (), wanted=100)
    assert 100 <= sum(int(counts.sum()) for _, counts in some) < 100 + 6 * PIECE
    assert [row[0] for part in some for row in _listed(part)][:50] == list(range(50))


def test_counts_that_leave_64_bits_together_are_said_so() -> None:
    parts = [_rows([(1, "a", 0.5)] * 40, [1 << 61] * 40)]
    with pytest.raises(MultiplicityOverflow):
        _run(parts, (), merge=True)
