"""Steps: everything that a round has gathered, in the order of time, in pieces."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pytest

from clusterd.operators.row_table import Partials
from clusterd.operators.time_steps import PIECE_ROWS, Steps, Work, time_order

T = TypeVar("T")
MANY = 2 * PIECE_ROWS + 77


def drained(work: Work[T]) -> tuple[T, int]:
    """What the work returns, and how often it paused."""
    pauses = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


@pytest.mark.slow
def test_any_number_of_times_is_sorted_in_pieces() -> None:
    for rows in (0, 1, 1000, PIECE_ROWS, PIECE_ROWS + 1, MANY):
        for spread in (1, 7, 5000, 1 << 40, 1 << 64):
            times = np.random.default_rng(rows).integers(0, spread - 1, rows, np.uint64, endpoint=True)
            if spread < 1 << 40:
                times += np.uint64(1 << 63)
            order, pauses = drained(time_order(times))
            assert (np.sort(order) == np.arange(rows)).all(), (rows, spread)
            found = times.take(order)
            assert (found[1:] >= found[:-1]).all(), (rows, spread)
            assert (pauses == 0) == (rows <= PIECE_ROWS), (rows, spread)


@pytest.mark.parametrize("shuffled", [False, True])
def test_times_that_ascend_up_to_the_edge_of_a_piece_are_sorted_beyond_it(shuffled: bool) -> None:
    times = np.arange(MANY, dtype=np.uint64)
    if shuffled:
        times[PIECE_ROWS] = 0
    order, _ = drained(time_order(times))
    found = times.take(order)
    assert (found[1:] >= found[:-1]).all()
    assert (order == np.arange(MANY)).all() == (not shuffled)


@pytest.mark.slow
def test_partials_of_rows_stand_by_the_step_of_their_group() -> None:
    rng = np.random.default_rng(3)
    groups, rows = Partials(2), Partials(2)
    slots = rng.integers(0, PIECE_ROWS, MANY)
    times = rng.integers(5, 9, MANY).astype(np.uint64)
    ones = np.ones(MANY, np.int64)
    owners = groups.add(slots, times, ones, PIECE_ROWS)
    rows.add(np.arange(MANY), times, ones, MANY, owners)
    steps, pauses = drained(Steps.of(groups))
    assert pauses > 0
    by_group = np.argsort(steps.groups, kind="stable")
    same = np.diff(steps.groups[by_group]) == 0
    assert (np.diff(steps.times[by_group].astype(np.int64))[same] > 0).all()
    split, pauses = drained(steps.split(rows))
    found, starts = split
    assert pauses > 2
    assert (starts[0], starts[-1], len(starts)) == (0, MANY, len(steps) + 1)
    step_of = np.repeat(np.arange(len(steps)), np.diff(starts))
    assert (steps.groups.take(step_of) == slots.take(found)).all()
    assert (steps.times.take(step_of) == times.take(found)).all()
    assert (np.sort(found) == np.arange(MANY)).all()
