"""Series of integers, and of moments by the calendar: which values, from a start by a step to a stop.

`series_ends` says, once a block, what the last position of each row's series is; `expand_series` writes (row,
value) pairs until the room is used, and goes on where it stopped, so a series of any length is cut into
blocks. Positions are unsigned, values are made modulo 2^64, and as the last value lies between start and
stop no value wraps.

`expand_calendar` does the same of moments and steps that have months, each from where the one before led,
with the day and the time of day kept apart, so that what lies beyond all timestamps is still compared.

Does not: allocate, look at NULLs, or know a block's rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import BOOL, I64, OUT_BOOL, OUT_I64, OUT_U64, U64, inner, kernel

ROW, POSITION = 0, 1  # places in the state of expand_series
DAY_AT, TIME_AT, STARTED = 1, 2, 3  # and, behind ROW, in that of expand_calendar
DAY = 86_400_000_000  # microseconds


@kernel(I64, I64, I64, OUT_U64, OUT_BOOL)
def series_ends(starts: Any, stops: Any, steps: Any, out: Any, some: Any) -> None:
    """out[i] = the position of the last value of row i, where some[i]; else the series is empty.

    A step of 0 has no series.
    """
    for i in range(starts.shape[0]):
        start, stop, step = starts[i], stops[i], steps[i]
        some[i] = False
        out[i] = np.uint64(0)
        if step > 0 and stop >= start:
            out[i] = (np.uint64(stop) - np.uint64(start)) // np.uint64(step)
            some[i] = True
        elif step < 0 and stop <= start:
            out[i] = (np.uint64(start) - np.uint64(stop)) // (~np.uint64(step) + np.uint64(1))
            some[i] = True


@kernel(I64, I64, U64, BOOL, OUT_U64, OUT_I64, OUT_I64)
def expand_series(
    starts: Any, steps: Any, ends: Any, some: Any, state: Any, out_rows: Any, out_values: Any
) -> int:
    """Fill out_rows and out_values with the next values; returns how many. All is done when
    state[ROW] == n.
    """
    n = starts.shape[0]
    i = np.int64(state[ROW])
    at = state[POSITION]
    room = out_rows.shape[0]
    made = 0
    while i < n and made < room:
        if not some[i]:
            i += 1
            continue
        start, step = np.uint64(starts[i]), np.uint64(steps[i])
        left = ends[i] - at
        take = np.int64(room - made)
        whole = left < np.uint64(take)
        if whole:
            take = np.int64(left) + 1
        value = start + step * at
        for _ in range(take):
            out_rows[made] = i
            out_values[made] = np.int64(value)
            value += step
            made += 1
        if whole:
            i += 1
            at = np.uint64(0)
        else:
            at += np.uint64(take)
    state[ROW] = np.uint64(i)
    state[POSITION] = at
    return made


@inner
def _civil(days: Any) -> Any:
    """Months since March of the year 0, and the day of the month from 0, of days since 1970."""
    shifted = days + 719_468
    era = shifted // 146_097
    day = shifted - era * 146_097
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    return (era * 400 + year) * 12 + month, of_year - (153 * month + 2) // 5


@inner
def _first_day(months: Any) -> Any:
    """Days since 1970 of the first of a month, as `_civil` counts months."""
    year = months // 12
    month = months - year * 12
    era = year // 400
    of_era = year - era * 400
    day = of_era * 365 + of_era // 4 - of_era // 100 + (153 * month + 2) // 5
    return era * 146_097 + day - 719_468


@inner
def _later(days: Any, months: Any) -> Any:
    """So many months later, on the same day of the month, or its last if it is shorter."""
    month, day = _civil(days)
    start = _first_day(month + months)
    size = _first_day(month + months + 1) - start
    return start + min(day, size - 1)


@kernel(I64, I64, I64, I64, I64, BOOL, OUT_I64, OUT_I64, OUT_I64)
def expand_calendar(
    starts: Any, stops: Any, months: Any, days: Any, times: Any, up: Any, state: Any, out_rows: Any,
    out_values: Any,
) -> int:  # fmt: skip
    """As `expand_series`, of microseconds, by months, days and microseconds. up: whether it is forward."""
    n = starts.shape[0]
    i, day, time, started = state[ROW], state[DAY_AT], state[TIME_AT], state[STARTED]
    room = out_rows.shape[0]
    made = 0
    while i < n and made < room:
        if started == 0:
            day = starts[i] // DAY
            time = starts[i] - day * DAY
            started = 1
        last_day = stops[i] // DAY
        last_time = stops[i] - last_day * DAY
        beyond = (day > last_day or (day == last_day and time > last_time)) == up[i]
        if beyond and (day != last_day or time != last_time):
            i += 1
            started = 0
            continue
        out_rows[made] = i
        out_values[made] = day * DAY + time
        made += 1
        time += times[i]
        day = _later(day, months[i]) + days[i] + time // DAY
        time -= time // DAY * DAY
    state[ROW], state[DAY_AT], state[TIME_AT], state[STARTED] = i, day, time, started
    return made
