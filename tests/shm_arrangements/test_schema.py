"""Which code a key has: by its types alone, and the same for equal keys however they lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.testing.edges import EDGES, TYPES
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType


def schema_of(*types: AnyType, ordered: bool = False, nullable: bool = True) -> ArrangementSchema:
    """All columns are the key."""
    columns = tuple(ColumnSpec(f"c{i}", type_, nullable) for i, type_ in enumerate(types))
    return ArrangementSchema(columns, tuple(range(len(types))), ordered)


def test_a_key_of_one_column_of_8_bytes_is_its_own_code() -> None:
    eight = {"INT64", "UINT64", "FLOAT64", "TIMESTAMP", "TIMESTAMPTZ", "TIME"}
    for type_ in TYPES:
        for ordered in (False, True):
            expected = CodeKind.ORDERED if ordered else CodeKind.HASH
            code = schema_of(type_, ordered=ordered).code
            assert code is (CodeKind.IDENTITY if type_.name in eight else expected), type_
    assert schema_of(ColumnType.INT64, ColumnType.INT64).code is CodeKind.HASH
    assert schema_of().code is CodeKind.HASH
    assert schema_of(ordered=True).code is CodeKind.ORDERED


def test_an_identity_is_no_copy_and_zero_for_null() -> None:
    column = Column(ColumnType.INT64, np.array([3, -1, 0]))
    codes = schema_of(ColumnType.INT64).codes_of([column])
    assert codes.tolist() == [3, (1 << 64) - 1, 0]
    assert np.shares_memory(codes, column.values)
    nulls = Column.from_pylist(ColumnType.FLOAT64, [None, 0.0, -0.0, 1.0])
    assert schema_of(ColumnType.FLOAT64).codes_of([nulls]).tolist() == [0, 0, 0, 0x3FF << 52]


def test_what_is_no_schema_is_refused_where_it_is_made() -> None:
    column = ColumnSpec("a", ColumnType.INT64, False)
    wrong: Any = [
        (lambda: ArrangementSchema([column], (0,)), "are tuples"),  # type: ignore[arg-type]
        (lambda: ArrangementSchema((column,), ("a",)), "a key is positions"),  # type: ignore[arg-type]
        (lambda: ColumnSpec("a", "bigint", False), "column 'a': a ColumnType"),  # type: ignore[arg-type]
        (lambda: ListType(ColumnType.TEXT), "is a ColumnSpec"),  # type: ignore[arg-type]
        (lambda: RecordType([column]), "a tuple of them"),  # type: ignore[arg-type]
    ]
    for make, told in wrong:
        with pytest.raises(TypeError, match=told):
            make()
    for scale in (-1, 39, 1 << 15):
        with pytest.raises(ValueError, match=f"scale {scale} is not in 0 to 38"):
            ColumnSpec("a", ColumnType.NUMERIC, False, scale)
    with pytest.raises(ValueError, match="only NUMERIC has a scale, not TEXT"):
        ColumnSpec("a", ColumnType.TEXT, False, 2)
    assert ArrangementSchema((ColumnSpec("a", ColumnType.NUMERIC, False, 38),), ()).nodes.shape == (1, 12)


@pytest.mark.parametrize("ordered", [False, True])
def test_equal_keys_have_equal_codes_whether_encoded_or_not(ordered: bool) -> None:
    for type_ in TYPES:
        schema = schema_of(type_, ordered=ordered)
        for value in (*EDGES[type_], None):
            constant = Column.constant(type_, value, 3)
            plain = Column.from_pylist(type_, [value])
            assert schema.codes_of([constant]).tolist() == schema.codes_of([plain]).tolist() * 3


def test_ordered_codes_order_as_their_keys() -> None:
    for type_ in TYPES:
        schema = ArrangementSchema(
            (ColumnSpec("a", type_, True), ColumnSpec("b", ColumnType.INT32, True)), (0, 1), ordered=True
        )
        first = Column.from_pylist(type_, [*EDGES[type_], None] * 2)
        keys = (first, Column.from_pylist(ColumnType.INT32, list(range(len(first)))))
        order = encode(keys, RowSpec.of(schema.key_specs)).sort_order()
        codes = schema.codes_of(keys)[order].tolist()
        assert codes == sorted(codes), type_


def test_the_empty_key_has_one_code() -> None:
    schema = ArrangementSchema((ColumnSpec("a", ColumnType.INT64, False),), ())
    assert len(set(schema.codes_of((), rows=3).tolist())) == 1
    assert len(schema.codes_of((), rows=3)) == 3


def test_a_key_names_columns_that_there_are_each_once() -> None:
    column = (ColumnSpec("a", ColumnType.INT64, False),)
    for key in ((0, 0), (1,), (-1,)):
        with pytest.raises(ValueError, match="key"):
            ArrangementSchema(column, key)
