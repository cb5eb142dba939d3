"""The batcher against the model: everything once, nothing early."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm_arrangements.batcher import Batcher
from shm_arrangements.columns import ColumnType
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates

TYPES = (ColumnType.INT64,)
steps = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6), st.integers(0, 4)),
    max_size=8,
)


def updates(*rows: tuple[int, int, int]) -> Updates:
    return Updates.from_rows(TYPES, [((value,), time, diff) for value, time, diff in rows])


@given(steps)
def test_what_is_sealed_is_exactly_what_lies_before_upper(drawn: list[tuple[list[Any], int]]) -> None:
    batcher = Batcher(TYPES)
    waiting: Counter[tuple[int, int]] = Counter()
    at = 0
    for rows, step in drawn:
        block = [(value, at + ahead) for value, ahead in rows]
        batcher.push(updates(*((value, time, 1) for value, time in block)))
        waiting.update(block)
        at += step
        sealed = batcher.seal(Frontier.at(at))
        wanted = Counter({update: n for update, n in waiting.items() if update[1] < at})
        assert Counter((row[0], time) for row, time, _ in sealed.to_rows()) == wanted
        waiting -= wanted
        assert len(batcher) == waiting.total()
    rest = batcher.seal(Frontier.empty())
    assert Counter((row[0], time) for row, time, _ in rest.to_rows()) == waiting
    assert (len(batcher), batcher.nbytes) == (0, 0)


def test_sealed_times_take_no_more_updates_and_upper_never_regresses() -> None:
    batcher = Batcher(TYPES)
    batcher.seal(Frontier.at(5))
    with pytest.raises(InvariantViolation):
        batcher.push(updates((1, 4, 1)))
    with pytest.raises(InvariantViolation):
        batcher.seal(Frontier.at(4))
    batcher.push(updates((1, 5, 1)))
    assert len(batcher) == 1
    batcher.seal(Frontier.empty())
    with pytest.raises(InvariantViolation):
        batcher.push(updates((1, 5, 1)))
    assert batcher.upper.is_empty
