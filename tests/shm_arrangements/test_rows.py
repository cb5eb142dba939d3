"""The row image: order, equality and hash against plain Python, through every lane."""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm_arrangements.columns import Column
from shm_arrangements.errors import InvariantViolation, MultiplicityOverflow
from shm_arrangements.rows import RowImage, RowSpec, decode, encode
from shm_arrangements.testing import strategies
from shm_arrangements.testing.model import NAN, Row, normal_row
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

Specs = tuple[ColumnSpec, ...]


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 24) -> tuple[Specs, list[tuple[Any, ...]]]:
    specs = draw(strategies.columns())
    pool = draw(st.lists(strategies.rows(specs), min_size=1, max_size=8))
    return specs, draw(st.lists(st.sampled_from(pool), max_size=max_rows))


def columns_of(specs: Specs, rows: list[tuple[Any, ...]]) -> list[Column]:
    return [Column.from_pylist(spec.type, [row[i] for row in rows]) for i, spec in enumerate(specs)]


def image_of(specs: Specs, rows: list[tuple[Any, ...]]) -> RowImage:
    return encode(columns_of(specs, rows), RowSpec.of(specs), rows=len(rows))


def compare_values(a: Any, b: Any) -> int:
    """NULL after everything, NaN after all numbers, texts by their bytes."""
    if a == b:
        return 0
    if a is None or b is None:
        return 1 if a is None else -1
    if NAN in (a, b) and not (isinstance(a, str) and isinstance(b, str)):
        return 1 if a == NAN else -1
    if isinstance(a, list | tuple):
        parts = (c for x, y in zip(a, b, strict=False) if (c := compare_values(x, y)))
        return next(parts, (len(a) > len(b)) - (len(a) < len(b)))
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    return -1 if a < b else 1


def compare(a: Row, b: Row) -> int:
    return next((c for x, y in zip(a, b, strict=True) if (c := compare_values(x, y))), 0)


@pytest.mark.slow
@given(tables())
def test_decode_is_the_exact_inverse_of_encode(table: tuple[Specs, list[Any]]) -> None:
    specs, rows = table
    for got, wanted in zip(decode(image_of(specs, rows)), columns_of(specs, rows), strict=True):
        assert normal_row(got.to_pylist()) == normal_row(wanted.to_pylist())
    chosen = np.arange(len(rows), dtype=np.int64)[::-2]
    for got, wanted in zip(decode(image_of(specs, rows), chosen), columns_of(specs, rows), strict=True):
        assert normal_row(got.to_pylist()) == normal_row(wanted.take(chosen).to_pylist())


@given(tables(), st.booleans(), st.booleans())
def test_order_is_that_of_comparing_values_one_by_one(
    table: tuple[Specs, list[Any]], coded: bool, timed: bool
) -> None:
    specs, rows = table
    image = image_of(specs, rows)
    n = len(rows)
    code = np.array([hash(i * 7 % 3) & 3 for i in range(n)], np.uint64) if coded else None
    times = np.array([i % 2 for i in range(n)], np.uint64) if timed else None
    order = image.sort_order(code, times)

    def by(i: int, j: int) -> int:
        if code is not None and code[i] != code[j]:
            return -1 if code[i] < code[j] else 1
        c = compare(normal_row(rows[i]), normal_row(rows[j]))
        if c == 0 and times is not None:
            return int(times[i]) - int(times[j])
        return c

    assert order.tolist() == sorted(range(n), key=cmp_to_key(by))


@pytest.mark.slow
@given(tables())
def test_equal_rows_and_only_they_are_equal_and_hash_alike(table: tuple[Specs, list[Any]]) -> None:
    specs, rows = table
    image, again = image_of(specs, rows), image_of(specs, rows[::-1])
    n = len(rows)
    i, j = (a.ravel().astype(np.int64) for a in np.meshgrid(np.arange(n), np.arange(n)))
    same = image.equal(i, again, n - 1 - j)
    normal = [normal_row(row) for row in rows]
    assert same.tolist() == [normal[a] == normal[b] for a, b in zip(i, j, strict=True)]
    hashes = image.hash().tolist()
    assert len({(row, h) for row, h in zip(normal, hashes, strict=True)}) == len(set(normal))
    assert len(set(hashes)) == len(set(normal))


@pytest.mark.slow
@given(tables())
def test_a_hash_does_not_depend_on_whether_null_was_possible(table: tuple[Specs, list[Any]]) -> None:
    specs, rows = table
    nullable = RowSpec(tuple((spec.type, True) for spec in specs))
    wide = encode(columns_of(specs, rows), nullable, rows=len(rows))
    assert (wide.hash() == image_of(specs, rows).hash()).all()


def test_null_and_no_columns_hash_to_constants() -> None:
    hashes = {
        type_: encode([Column.nulls(type_, 2)], RowSpec(((type_, True),))).hash().tolist()
        for type_ in ColumnType
    }
    assert len({h for pair in hashes.values() for h in pair}) == 1
    assert len(set(encode([], RowSpec(()), rows=3).hash().tolist())) == 1


def test_hashes_of_consecutive_numbers_spread_over_workers_and_buckets() -> None:
    n = 64_000
    codes = encode([Column(ColumnType.INT64, np.arange(n))], RowSpec(((ColumnType.INT64, False),))).hash()
    assert len(np.unique(codes)) == n
    for places in (codes % np.uint64(7), codes >> np.uint64(58)):
        counts = np.bincount(places.astype(np.int64))
        assert abs(counts - n / len(counts)).max() < 6 * (n / len(counts)) ** 0.5


@pytest.mark.slow
@given(tables(), st.data())
def test_consolidation_sums_what_a_dict_would(table: tuple[Specs, list[Any]], data: st.DataObject) -> None:
    specs, rows = table
    diffs = data.draw(st.lists(strategies.diffs, min_size=len(rows), max_size=len(rows)))
    times = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    types = [spec.type for spec in specs]
    updates = Updates.from_rows(types, list(zip(rows, times, diffs, strict=True)))
    sums: dict[tuple[Row, int], int] = {}
    for row, time, diff in zip(rows, times, diffs, strict=True):
        at = normal_row(row), time
        sums[at] = sums.get(at, 0) + diff
    got = [((normal_row(row), time), diff) for row, time, diff in updates.consolidate().to_rows()]
    assert dict(got) == {at: diff for at, diff in sums.items() if diff}
    assert len(got) == len(dict(got))


def test_only_the_total_of_a_sum_must_fit() -> None:
    most = (1 << 63) - 1
    rows = [((1,), 0, most), ((1,), 0, most), ((1,), 0, -most), ((2,), 0, -most - 1)]
    kept = Updates.from_rows([ColumnType.INT64], rows).consolidate()
    assert kept.to_rows() == [((1,), 0, most), ((2,), 0, -most - 1)]
    for extra in (((1,), 0, 1), ((2,), 0, -1)):
        with pytest.raises(MultiplicityOverflow):
            Updates.from_rows([ColumnType.INT64], [*kept.to_rows(), extra]).consolidate()


@given(tables())
def test_run_starts_are_where_the_row_changes(table: tuple[Specs, list[Any]]) -> None:
    specs, rows = table
    image = image_of(specs, rows)
    order = image.sort_order()
    normal = [normal_row(rows[i]) for i in order]
    wanted = [k for k in range(len(rows)) if k == 0 or normal[k] != normal[k - 1]]
    assert image.run_starts(order).tolist() == wanted


@pytest.mark.slow
@pytest.mark.parametrize("distinct", [1, 3, 40, 5000, 1 << 40])
@pytest.mark.parametrize("seed", range(2))
def test_large_sorts_are_exact_whatever_ties(distinct: int, seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    n = 20_000
    words = Column.from_pylist(
        ColumnType.TEXT,
        ["", "same-prefix-a", "same-prefix-b", "same-pre", "same-prf", "zz", "same-prefix-a\0"],
    )
    picks = rng.integers(0, 7, n)
    numbers = rng.integers(-distinct, distinct, n)
    nulls = rng.random(n) < 0.1
    numbers[nulls] = 0
    image = encode(
        [words.take(picks), Column(ColumnType.INT64, numbers, None, ~nulls)],
        RowSpec(((ColumnType.TEXT, False), (ColumnType.INT64, True))),
    )
    times = rng.integers(0, 3, n).astype(np.uint64)
    code = (numbers % 2).astype(np.uint64)
    rank = np.argsort(np.argsort(np.array([w.encode() for w in words.to_pylist()], object)))[picks]
    wanted = np.lexsort((times, numbers, nulls, rank, code))
    assert (image.sort_order(code, times) == wanted).all()
    wanted = np.lexsort((numbers, nulls, rank))
    assert (image.sort_order() == wanted).all()


def test_a_null_where_none_may_be_is_refused() -> None:
    with pytest.raises(ValueError, match="NULL in a column of type int64"):
        encode([Column.from_pylist(ColumnType.INT64, [1, None])], RowSpec(((ColumnType.INT64, False),)))


def test_rows_of_different_specs_are_never_compared() -> None:
    column = Column.from_pylist(ColumnType.INT64, [1])
    a = encode([column], RowSpec(((ColumnType.INT64, False),)))
    b = encode([column], RowSpec(((ColumnType.INT64, True),)))
    with pytest.raises(InvariantViolation):
        a.equal(np.array([0]), b, np.array([0]))
