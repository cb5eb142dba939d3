"""Updates made of Python values: as the columns say, and what is no update is refused by name."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

from shm_arrangements.conversion import to_python
from shm_arrangements.types import ColumnSpec, ColumnType, ListType
from shm_arrangements.updates import Updates

MONEY = ColumnSpec("price", ColumnType.NUMERIC, True, scale=2)
COLUMNS = (MONEY, ColumnSpec("day", ColumnType.DATE, False), ColumnSpec("all", ListType(MONEY), False))


def test_rows_as_reads_give_them_go_in_where_columns_are_given() -> None:
    row = (decimal.Decimal("12.50"), datetime.date(2013, 1, 2), [decimal.Decimal("0.01"), None])
    made = Updates.from_rows(COLUMNS, [(row, 3, -1)])
    assert made.to_rows() == [((1250, 15707, [1, None]), 3, -1)]
    given = [to_python(spec, column)[0] for spec, column in zip(COLUMNS, made.columns, strict=True)]
    assert tuple(given) == row


def test_a_bare_type_says_what_it_takes() -> None:
    day = datetime.date(2013, 1, 2)
    with pytest.raises(ValueError, match=r"not a date: datetime.* \(wanted: int days since 1970, or a date"):
        Updates.from_rows((ColumnType.DATE,), [((day,), 0, 1)])
    with pytest.raises(ValueError, match=r"wanted: uuid.UUID"):
        Updates.from_rows((ColumnType.UUID,), [(("7",), 0, 1)])


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (("a", 0, 1), "not a row of 1 values: 'a'"),
        (((), 0, 1), "not a row of 1 values"),
        ((("a", "b"), 0, 1), "not a row of 1 values"),
        ((("a",), 0), "not a \\(row, time, diff\\)"),
        ((("a",), -1, 1), "beyond uint64: -1"),
        ((("a",), 0.5, 1), "not a uint64: 0.5"),
        ((("a",), 0, 1.5), "not a int64: 1.5"),
        ((("a",), None, 1), "neither a time nor a diff is None"),
    ],
)
def test_what_is_no_update_is_refused_by_name(update: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Updates.from_rows((ColumnType.TEXT,), [update])
