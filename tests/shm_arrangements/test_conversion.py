"""What users get and give: numpy and Python values of every type, and keys of them."""

from __future__ import annotations

import datetime
import decimal
import random
import uuid
from typing import Any

import numpy as np
import pytest

from shm_arrangements.columns import Column
from shm_arrangements.conversion import column_of_values, key_columns, to_numpy, to_python
from shm_arrangements.testing import edges
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType

T = ColumnType
_MONEY = ColumnSpec("m", T.NUMERIC, True, 2)
_RECORD = RecordType((ColumnSpec("at", T.TIMESTAMPTZ, True), ColumnSpec("m", T.NUMERIC, False, 2)))
_NOON = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.UTC)

CASES: list[tuple[ColumnSpec, list[Any], list[Any]]] = [
    (ColumnSpec("c", T.UINT64, True), [(1 << 64) - 1, None], [(1 << 64) - 1, None]),
    (ColumnSpec("c", T.DATE, True), [-1, None], [datetime.date(1969, 12, 31), None]),
    (ColumnSpec("c", T.TIME, True), [1, 86_400_000_000], [datetime.time(microsecond=1), 86_400_000_000]),
    (ColumnSpec("c", T.TIMESTAMP, True), [1, None], [datetime.datetime(1970, 1, 1, microsecond=1), None]),
    (ColumnSpec("c", T.TIMESTAMP, False), [-(1 << 63), (1 << 63) - 1], [-(1 << 63), (1 << 63) - 1]),
    (ColumnSpec("c", T.TIMESTAMPTZ, True), [1_357_041_600_000_000, None], [_NOON, None]),
    (ColumnSpec("c", T.NUMERIC, True), [7, None, -(10**30)], [7, None, -(10**30)]),
    (_MONEY, [1999, None, -5], [decimal.Decimal("19.99"), None, decimal.Decimal("-0.05")]),
    (ColumnSpec("c", T.INTERVAL, True), [(1, 2, 3), None], [(1, 2, 3), None]),
    (ColumnSpec("c", T.UUID, True), [uuid.UUID(int=5), None], [uuid.UUID(int=5), None]),
    (ColumnSpec("c", T.BYTEA, True), [b"\0a", None], [b"\0a", None]),
    (ColumnSpec("c", ListType(_MONEY), True), [[100, None], None], [[decimal.Decimal(1), None], None]),
    (
        ColumnSpec("c", _RECORD, True),
        [(1_357_041_600_000_000, 150), None, (None, 0)],
        [(_NOON, decimal.Decimal("1.50")), None, (None, decimal.Decimal(0))],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "stored", "told"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_values_come_out_as_the_page_says_and_go_back(
    spec: ColumnSpec, stored: list[Any], told: list[Any]
) -> None:
    column = Column.from_pylist(spec.type, stored)
    assert to_python(spec, column) == told
    assert column_of_values(spec, told).to_pylist() == stored
    array = to_numpy(spec, column)
    for i, value in enumerate(told):
        if value is None:
            assert np.ma.getmaskarray(array)[i] or array[i] is None


@pytest.mark.parametrize("type_", ColumnType, ids=lambda t: t.name)
def test_every_value_of_every_type_comes_out_of_both_doors(type_: ColumnType) -> None:
    draws = random.Random(5)
    spec = ColumnSpec("c", type_, True)
    column = Column.from_pylist(type_, [edges.random_value(draws, type_, True) for _ in range(40)])
    assert len(to_python(spec, column)) == len(to_numpy(spec, column)) == 40


@pytest.mark.parametrize(
    "spec", [ColumnSpec("c", t, False) for t in ColumnType if t not in (T.BOOL,)], ids=lambda s: s.name
)
def test_arrays_are_keys_where_they_fit(spec: ColumnSpec) -> None:
    column = Column.from_pylist(spec.type, [edges.EDGES[spec.type][0], edges.EDGES[spec.type][1]])
    (keys,) = key_columns([spec], to_numpy(spec, column))
    assert keys.to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (_MONEY, decimal.Decimal("0.001")),
        (_MONEY, 1.5),
        (_MONEY, True),
        (_MONEY, decimal.Decimal("NaN")),
        (ColumnSpec("c", T.NUMERIC, True), decimal.Decimal("0.5")),
        (ColumnSpec("c", T.INT16, True), 1 << 15),
        (ColumnSpec("c", T.UINT16, True), -1),
        (ColumnSpec("c", T.DATE, True), _NOON),
        (ColumnSpec("c", T.TIMESTAMP, True), _NOON),
        (ColumnSpec("c", T.UUID, True), "00000000-0000-0000-0000-000000000000"),
        (ColumnSpec("c", T.INTERVAL, True), (1, 2)),
        (ColumnSpec("c", T.BYTEA, True), "text"),
        (ColumnSpec("c", ListType(ColumnSpec("e", T.INT64, False)), True), [None]),
        (ColumnSpec("c", _RECORD, True), (None, None)),
        (ColumnSpec("c", _RECORD, True), (None,)),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_refused_by_its_value(spec: ColumnSpec, value: Any) -> None:
    with pytest.raises(ValueError, match=r"not a|beyond|may not be NULL"):
        column_of_values(spec, [value])


def test_arrays_that_do_not_fit_are_refused() -> None:
    spec = ColumnSpec("c", T.INT64, False)
    with pytest.raises(ValueError, match="keys of float64 do not fit"):
        key_columns([spec], np.array([1.5]))
    with pytest.raises(ValueError, match="keys of uint64 do not fit"):
        key_columns([spec], np.array([1], np.uint64))  # BUG29: never by way of a float
    with pytest.raises(ValueError, match="the index has 2"):
        key_columns([spec, spec], np.array([1]))
