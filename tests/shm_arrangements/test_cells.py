"""Cells: one equality, order and hash of every type, in every encoding, against plain Python."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from shm_arrangements.columns import Column
from shm_arrangements.kernels import cells
from shm_arrangements.rows import RowSpec, decode, encode
from shm_arrangements.table import Table
from shm_arrangements.testing import edges
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType

_TEXTS = ListType(ColumnSpec("e", ColumnType.TEXT, True))
_RECORD = RecordType(
    (
        ColumnSpec("a", ColumnType.INT16, False),
        ColumnSpec("b", _TEXTS, True),
        ColumnSpec("c", ColumnType.UUID, True),
        ColumnSpec("d", ColumnType.FLOAT32, False),
    )
)
TYPES: list[AnyType] = [
    *ColumnType,
    _TEXTS,
    ListType(ColumnSpec("e", ColumnType.INT64, False)),
    ListType(ColumnSpec("e", _RECORD, True)),
    _RECORD,
    RecordType(()),
]


def drawn(type_: AnyType, n: int, seed: int) -> list[Any]:
    """Values with NULLs, repeated."""
    draws = random.Random(seed)
    pool = [edges.random_value(draws, type_, nullable=True) for _ in range(max(n // 2, 1))]
    return [draws.choice(pool) for _ in range(n)]


def before(a: Any, b: Any, type_: AnyType) -> int:
    """-1, 0, 1: the order of two values, by the rules of the page."""
    if a is None or b is None:
        return (a is None) - (b is None)
    if isinstance(type_, ListType):
        for x, y in zip(a, b, strict=False):
            c = before(x, y, type_.element.type)
            if c:
                return c
        return (len(a) > len(b)) - (len(a) < len(b))
    if isinstance(type_, RecordType):
        for x, y, field in zip(a, b, type_.fields, strict=True):
            c = before(x, y, field.type)
            if c:
                return c
        return 0
    if type_ in (ColumnType.FLOAT32, ColumnType.FLOAT64):
        a, b = (np.float32(v) if type_ is ColumnType.FLOAT32 else v for v in (a, b))
        if np.isnan(a) or np.isnan(b):
            return int(np.isnan(a)) - int(np.isnan(b))
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    return int(a > b) - int(a < b)


def order_of(column: Column) -> list[int]:
    """Rows as their images sort."""
    image = encode([column], RowSpec(((column.type, True),)))
    return image.sort_order().tolist()


def hashes(columns: list[Column]) -> list[int]:
    out = np.empty(len(columns[0]), np.uint64)
    cells.hash_table(Table(columns).cells, 0, len(columns), out)
    return out.tolist()


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("seed", range(3))
def test_values_order_compare_and_hash_as_plain_python_says(type_: AnyType, seed: int) -> None:
    values = drawn(type_, 40, seed)
    column = Column.from_pylist(type_, values)
    table = Table([column]).cells
    n = len(values)
    left, right = (np.ascontiguousarray(a.ravel()) for a in np.divmod(np.arange(n * n), n))
    same = np.empty(n * n, np.bool_)
    cells.equal_pairs(table, left, table, right, 1, same)
    told = hashes([column])
    for i, j, equal in zip(left.tolist(), right.tolist(), same.tolist(), strict=True):
        assert equal == (before(values[i], values[j], type_) == 0), (values[i], values[j])
        assert (told[i] == told[j]) == equal
    wanted = sorted(range(n), key=functools.cmp_to_key(lambda i, j: before(values[i], values[j], type_)))
    assert order_of(column) == wanted


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_images_give_back_what_they_were_made_of(type_: AnyType) -> None:
    column = Column.from_pylist(type_, drawn(type_, 60, 7))
    image = encode([column, column], RowSpec(((type_, True), (type_, True))))
    rows = np.random.default_rng(1).integers(0, 60, 90)
    for back in (*decode(image), *decode(image, None)):
        assert repr(back.to_pylist()) == repr(column.to_pylist())
    for back in decode(image, rows):
        assert repr(back.to_pylist()) == repr(column.take(rows).to_pylist())


@pytest.mark.parametrize("type_", ColumnType, ids=lambda t: t.name)
def test_an_image_hashes_as_its_columns_do(type_: ColumnType) -> None:
    column = Column.from_pylist(type_, drawn(type_, 40, 3))
    image = encode([column], RowSpec(((type_, True),)))
    assert image.hash().tolist() == hashes([column])


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_an_encoded_column_is_the_plain_one_to_every_kernel(type_: AnyType) -> None:
    value = drawn(type_, 5, 11)[0]
    repeated = Column.constant(type_, value, 7)
    plain = Column.from_pylist(type_, [value] * 7)
    assert hashes([repeated]) == hashes([plain])
    assert repr(repeated.to_pylist()) == repr(plain.to_pylist())
    assert repr(repeated.slice(1, 3).take(np.array([0, 1, 1])).to_pylist()) == repr(
        [plain.to_pylist()[0]] * 3
    )
    assert repeated.null_count == plain.null_count


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_a_dictionary_column_is_the_plain_one_to_every_kernel(dtype: Any) -> None:
    dictionary = Column.from_pylist(ColumnType.TEXT, ["", "pear", "apple", "apples and pears"])
    indices = np.array([1, 0, 3, 2, 2, 1], dtype)
    validity = np.array([True, False, True, True, True, True])
    encoded = Column.of_dictionary(dictionary, indices, validity)
    values = ["pear", None, "apples and pears", "apple", "apple", "pear"]
    plain = Column.from_pylist(ColumnType.TEXT, values)
    assert encoded.to_pylist() == values
    assert hashes([encoded]) == hashes([plain])
    assert order_of(encoded) == order_of(plain)
    for view in (encoded.slice(1, 5), encoded.take(np.arange(1, 5))):
        assert view.to_pylist() == values[1:5]
        assert hashes([view]) == hashes([plain.slice(1, 5)])
    assert Column.concat(ColumnType.TEXT, [encoded, plain]).to_pylist() == values * 2


def test_an_integer_hashes_alike_in_every_width() -> None:
    for small, large in ((ColumnType.INT16, ColumnType.INT64), (ColumnType.UINT32, ColumnType.UINT64)):
        values = [0, 1, 7, 1000]
        assert hashes([Column.from_pylist(small, values)]) == hashes([Column.from_pylist(large, values)])


@pytest.mark.parametrize("seed", range(20))
def test_ordered_codes_never_contradict_the_order_of_keys(seed: int) -> None:
    draws = random.Random(seed)
    types = [draws.choice(TYPES) for _ in range(draws.randint(1, 3))]
    rows = [[edges.random_value(draws, t, nullable=True) for t in types] for _ in range(40)]
    columns = [Column.from_pylist(t, [row[i] for row in rows]) for i, t in enumerate(types)]
    codes = np.empty(len(rows), np.uint64)
    cells.ordered_codes(Table(columns).cells, len(types), codes)
    told = codes.tolist()
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            c = next((c for x, y, t in zip(a, b, types, strict=True) if (c := before(x, y, t))), 0)
            assert c == 0 or (told[i] <= told[j] if c < 0 else told[i] >= told[j]), (a, b)
            assert c != 0 or told[i] == told[j]
