"""Columns: one canonical form, views that share memory, and values that do not fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm_arrangements.columns import Column, canonical_floats
from shm_arrangements.testing import edges, strategies
from shm_arrangements.testing.model import normal_row
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType

_NESTED = ListType(
    ColumnSpec(
        "e",
        RecordType((ColumnSpec("a", ColumnType.INT16, True), ColumnSpec("b", ColumnType.TEXT, False))),
        True,
    )
)


@st.composite
def pylists(draw: st.DrawFn) -> tuple[AnyType, list[Any]]:
    type_ = draw(st.sampled_from([*ColumnType, _NESTED]))
    return type_, draw(st.lists(strategies.values(type_, draw(st.booleans())), max_size=30))


def with_bits(column: Column) -> Column:
    """The same column as a mapped one is: validity in bits."""
    bits = column.bits()
    return Column.with_bits(
        column.type,
        column.values,
        column.offsets,
        None if bits is None else bits[0],
        children=column.children,
        length=len(column),
    )


@pytest.mark.slow
@given(pylists(), st.data())
def test_every_view_shows_what_a_list_would(drawn: tuple[AnyType, list[Any]], data: st.DataObject) -> None:
    type_, values = drawn
    wanted = list(normal_row(values))
    whole = Column.from_pylist(type_, values)
    lo = data.draw(st.integers(0, len(values)))
    hi = data.draw(st.integers(lo, len(values)))
    for column in (whole, with_bits(whole)):
        assert list(normal_row(column.to_pylist())) == wanted
        assert column.null_count == wanted.count(None)
        part = column.slice(lo, hi)
        assert list(normal_row(part.to_pylist())) == wanted[lo:hi]
        rows = data.draw(st.lists(st.integers(0, hi - lo - 1), max_size=20)) if lo < hi else []
        taken = part.take(np.array(rows, np.int64))
        assert list(normal_row(taken.to_pylist())) == [wanted[lo + row] for row in rows]
        joined = Column.concat(type_, [part, column, taken])
        assert list(normal_row(joined.to_pylist())) == wanted[lo:hi] + wanted + [wanted[lo + r] for r in rows]
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=hi - lo, max_size=hi - lo)), np.bool_)
        kept = [value for value, keep in zip(wanted[lo:hi], mask, strict=True) if keep]
        assert list(normal_row(part.filter(mask).to_pylist())) == kept
        again = part.slice(0, len(part)).bits()
        if again is not None:
            bits, first = again
            shown = [bool(bits[(first + i) >> 3] >> ((first + i) & 7) & 1) for i in range(len(part))]
            assert shown == [value is not None for value in wanted[lo:hi]]


def test_slices_share_memory() -> None:
    column = Column.from_pylist(ColumnType.TEXT, ["a", None, "ccc", "dd"])
    part = column.slice(1, 4)
    assert np.shares_memory(part.values, column.values)
    assert part.offsets is not None
    assert part.offsets[0] == 1
    assert part.to_pylist() == [None, "ccc", "dd"]


def test_floats_have_one_zero_and_one_nan() -> None:
    odd = np.array([-0.0, 0.0, np.nan, -np.nan, 1.5], np.float64)
    odd.view(np.uint64)[3] |= np.uint64(7)  # another NaN
    bits = canonical_floats(odd).view(np.uint64)
    assert bits[0] == bits[1] == 0
    assert bits[2] == bits[3]
    column = Column.from_pylist(ColumnType.FLOAT64, [-0.0, 1])
    assert math.copysign(1, column.to_pylist()[0]) == 1.0


def test_canonical_clears_what_lies_beneath_nulls() -> None:
    valid = np.array([True, False, True])
    numbers = Column(ColumnType.INT64, np.array([1, 2, 3]), None, valid).canonical()
    assert numbers.values.tolist() == [1, 0, 3]
    data = np.frombuffer(b"aabbcc", np.uint8)
    text = Column(ColumnType.TEXT, data, np.array([0, 2, 4, 6]), valid).canonical()
    assert text.to_pylist() == ["aa", None, "cc"]
    assert text.offsets is not None
    assert text.offsets.tolist() == [0, 2, 2, 4]
    whole = Column(ColumnType.INT64, np.array([1]), None, np.array([True])).canonical()
    assert not whole.has_validity


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (ColumnType.BOOL, 1),
        (ColumnType.INT64, 1 << 63),
        (ColumnType.INT64, True),
        (ColumnType.INT64, 1.0),
        (ColumnType.TIMESTAMP, "today"),
        (ColumnType.NUMERIC, 1 << 127),
        (ColumnType.FLOAT64, "1.5"),
        (ColumnType.FLOAT64, 10**400),
        (ColumnType.TEXT, b"bytes"),
        (ColumnType.TEXT, "\ud800"),
    ],
)
def test_a_value_that_does_not_fit_is_named(type_: ColumnType, value: object) -> None:
    with pytest.raises(ValueError, match=r"not a |beyond |surrogates"):
        Column.from_pylist(type_, [None, value])


@pytest.mark.parametrize("type_", ColumnType)
def test_columns_of_nulls_and_constants_have_the_length_asked_for(type_: ColumnType) -> None:
    assert Column.nulls(type_, 3).to_pylist() == [None] * 3
    assert Column.empty(type_).to_pylist() == []
    assert not Column.empty(type_).has_validity
    value = edges.EDGES[type_][1]
    assert Column.constant(type_, value, 3).to_pylist() == [value] * 3
    assert Column.constant(type_, None, 2).to_pylist() == [None] * 2
    assert Column.concat(type_, []).to_pylist() == []
