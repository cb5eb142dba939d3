"""A trace assumed perfect: a dict of Python values, against which every real one is judged.

It keeps every update as it came and sums from scratch at each question, so there is nothing in it to be
wrong.

Does not: compact, bound, or hurry.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType, ListType, RecordType
from shm_arrangements.updates import Updates

Row = tuple[Any, ...]
Update = tuple[Row, int, int]

FLOATS = frozenset({ColumnType.FLOAT32, ColumnType.FLOAT64})
NAN = "NaN"  # stands for the one NaN, which does not equal itself


def normal_value(value: Any) -> Any:
    """A value that equals exactly the values that are the same to us: one NaN, one zero; hashable."""
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return tuple(map(normal_value, value))
    return value


def some_value(type_: AnyType, normal: Any) -> Any:
    """A value of the type whose normal form is `normal`."""
    if normal is None:
        return None
    if isinstance(type_, ListType):
        return [some_value(type_.element.type, item) for item in normal]
    if isinstance(type_, RecordType):
        return tuple(some_value(f.type, item) for f, item in zip(type_.fields, normal, strict=True))
    return math.nan if normal == NAN and type_ in FLOATS else normal


def normal_row(row: Sequence[Any]) -> Row:
    """The row with each value in its one form."""
    return tuple(normal_value(value) for value in row)


class Model:
    """All updates of a collection, as (row, time, diff)."""

    def __init__(self) -> None:
        self.updates: list[Update] = []

    def insert(self, updates: Iterable[tuple[Sequence[Any], int, int]]) -> None:
        self.updates += [(normal_row(row), time, diff) for row, time, diff in updates]

    def at(self, t: int) -> dict[Row, int]:
        """Row -> count at time t, zero counts left out."""
        counts: Counter[Row] = Counter()
        for row, time, diff in self.updates:
            if time <= t:
                counts[row] += diff
        return {row: count for row, count in counts.items() if count}

    def lookup(self, t: int, key: Sequence[int], values: Sequence[Any]) -> dict[Row, int]:
        """The rows at t whose columns `key` are `values`."""
        wanted = normal_row(values)
        return {row: count for row, count in self.at(t).items() if tuple(row[i] for i in key) == wanted}

    def between(self, t1: int, t2: int) -> dict[tuple[Row, int], int]:
        """(row, time) -> diff for t1 < time <= t2, zero diffs left out."""
        diffs: Counter[tuple[Row, int]] = Counter()
        for row, time, diff in self.updates:
            if t1 < time <= t2:
                diffs[row, time] += diff
        return {update: diff for update, diff in diffs.items() if diff}


def rows_of(columns: Sequence[Column], counts: Iterable[int]) -> dict[Row, int]:
    """Columns and counts as row -> count.

    Raises: AssertionError if a row comes twice or has count zero.
    """
    numbers = [int(count) for count in counts]
    values = [c.to_pylist() for c in columns]
    rows = zip(*values, strict=True) if values else iter([()] * len(numbers))
    found: dict[Row, int] = {}
    for row, count in zip(rows, numbers, strict=True):
        normal = normal_row(row)
        assert normal not in found, f"row {normal} comes twice"
        assert count != 0, f"row {normal} has count 0"
        found[normal] = count
    return found


def updates_of(updates: Updates) -> dict[tuple[Row, int], int]:
    """Updates as (row, time) -> diff.

    Raises: AssertionError if they are not consolidated.
    """
    found: dict[tuple[Row, int], int] = {}
    for row, time, diff in updates.to_rows():
        update = normal_row(row), time
        assert update not in found, f"update {update} comes twice"
        assert diff != 0, f"update {update} has diff 0"
        found[update] = diff
    return found
