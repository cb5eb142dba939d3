"""What a binding changed: nothing is lost, and what cancels does not pile up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.gathered import MOST_LOOSE, Gathered
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

COLUMNS = (ColumnSpec("n", ColumnType.INT64, True),)
BLOCK = MOST_LOOSE // 8


def block(time: int, diff: int) -> Updates:
    """BLOCK updates of 100 rows, one of them NULL."""
    rows: list[tuple[tuple[Any], int, int]] = [((n or None,), time, diff) for n in range(100)]
    places = np.arange(BLOCK, dtype=np.int64) % 100
    return Updates.from_rows([ColumnType.INT64], rows).take(places)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [3, 31])
def test_what_is_taken_back_is_not_kept_and_nothing_else_is_lost(blocks: int) -> None:
    gathered = Gathered(COLUMNS)
    for number in range(blocks):
        for _ in gathered.add(block(number // 20, -1 if number % 2 else 1)):
            pass
    found: Counter[tuple[Any, int]] = Counter()
    given = 0
    for delta in gathered.take():
        given += len(delta)
        for (n,), time, diff in delta.oks.to_rows():
            found[n, time] += diff
    last = (blocks - 1) // 20
    assert {place: n for place, n in found.items() if n} == {
        (n or None, last): len(range(n, BLOCK, 100)) for n in range(100)
    }
    assert given <= (200 if blocks > 8 else blocks * BLOCK)
    assert not list(gathered.take())


def test_one_time_can_be_dropped_and_the_others_stay() -> None:
    gathered = Gathered(COLUMNS)
    for time in (3, 4):
        for _ in gathered.add(Updates.from_rows([ColumnType.INT64], [((time,), time, 1)])):
            pass
    gathered.drop(4)
    assert [delta.oks.to_rows() for delta in gathered.take()] == [[((3,), 3, 1)]]
