"""The calendar: days as years, months and days, whole columns at a time, proleptic Gregorian.

Years count astronomically here: 0 is 1 before Christ. numpy's dates do the work; they reach further than any
timestamp.

Does not: know columns, NULL or errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.render.functions.evaluated import Bools, Ints

__all__ = ["add_months", "civil", "days_of", "first_of_month", "is_date", "iso_year_and_week", "month_number"]


def month_number(days: Ints) -> Ints:
    """Months since January 1970."""
    months: Ints = days.view("M8[D]").astype("M8[M]").astype(np.int64)
    return months


def first_of_month(months: NDArray[Any]) -> Ints:
    """The first day of months since January 1970."""
    days: Ints = np.ascontiguousarray(months, np.int64).view("M8[M]").astype("M8[D]").astype(np.int64)
    return days


def civil(days: Ints) -> tuple[Ints, Ints, Ints]:
    """Year, month from 1 and day from 1."""
    months = month_number(days)
    return months // 12 + 1970, months % 12 + 1, days - first_of_month(months) + 1


def days_of(years: Ints, months: Ints, days: Ints) -> Ints:
    """The inverse of `civil`."""
    return first_of_month((years - 1970) * 12 + months - 1) + days - 1


def is_date(years: Ints, months: Ints, days: Ints) -> Bools:
    """Whether there is such a day."""
    month = (years - 1970) * 12 + np.clip(months, 1, 12) - 1
    size = first_of_month(month + 1) - first_of_month(month)
    found: Bools = (months >= 1) & (months <= 12) & (days >= 1) & (days <= size)
    return found


def add_months(days: Ints, count: Ints) -> Ints:
    """So many months later, on the same day of the month, or its last if it is shorter."""
    months = month_number(days)
    day = days - first_of_month(months)
    start = first_of_month(months + count)
    size = first_of_month(months + count + 1) - start
    later: Ints = start + np.minimum(day, size - 1)
    return later


def iso_year_and_week(days: Ints) -> tuple[Ints, Ints]:
    """The year and the week that ISO 8601 counts a day to: those of its Thursday."""
    thursday = days - (days + 3) % 7 + 3
    years = month_number(thursday) // 12 + 1970
    first = first_of_month((years - 1970) * 12)
    return years, (thursday - first) // 7 + 1
