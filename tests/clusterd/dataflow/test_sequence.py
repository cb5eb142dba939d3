"""How far a dataflow may go, and the order of rounds."""

from __future__ import annotations

import pytest

from clusterd.dataflow.operator import Round
from clusterd.dataflow.sequence import RoundSequence, plan_upper
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

at, EMPTY, MINIMUM = Frontier.at, Frontier.empty(), Frontier.minimum()


@pytest.mark.parametrize(
    ("inputs", "done", "as_of", "until", "wanted"),
    [
        (at(0), MINIMUM, 0, None, None),  # nothing is sealed
        (at(5), MINIMUM, 5, None, None),  # as_of itself is not sealed
        (at(6), MINIMUM, 5, None, at(6)),
        (at(9), MINIMUM, 5, None, at(9)),  # many times in one round
        (at(9), at(9), 5, None, None),
        (at(12), at(9), 5, None, at(12)),
        (EMPTY, at(9), 5, None, EMPTY),
        (EMPTY, EMPTY, 5, None, None),
        (at(7), MINIMUM, 5, 8, at(7)),
        (at(8), MINIMUM, 5, 8, EMPTY),  # until is reached: nothing more can come
        (at(100), at(7), 5, 8, EMPTY),
        (at(6), MINIMUM, 5, 6, EMPTY),  # a query of one time
        (at(MAX_TIME), MINIMUM, MAX_TIME, None, None),
        (EMPTY, MINIMUM, MAX_TIME, None, EMPTY),
    ],
)
def test_the_upper_of_the_next_round(
    inputs: Frontier, done: Frontier, as_of: int, until: int | None, wanted: Frontier | None
) -> None:
    assert plan_upper(inputs, done, as_of, until) == wanted


def test_a_round_cuts_times_at_its_edges_and_rounds_up_in_the_first() -> None:
    updates = Updates.from_rows([ColumnType.INT64], [((t,), t, 1) for t in range(10)])
    first = Round(0, at(6), as_of=4)
    assert [t for _, t, _ in first.cut(updates).to_rows()] == [4, 4, 4, 4, 4, 5]
    later = Round(6, at(9), as_of=4)
    assert [t for _, t, _ in later.cut(updates).to_rows()] == [6, 7, 8]
    last = Round(6, EMPTY, as_of=4, until=8)
    assert last.limit == at(8)
    assert [t for _, t, _ in last.cut(updates).to_rows()] == [6, 7]
    whole = Round(0, EMPTY, as_of=0)
    assert whole.cut(updates).columns is updates.columns, "nothing to cut, nothing copied"


def test_rounds_begin_in_the_order_they_were_decided_one_a_dataflow() -> None:
    sequence = RoundSequence()
    rounds = [Round(0, at(n + 1), 0) for n in range(3)]
    entries = [sequence.append(name, round) for name, round in zip("abc", rounds, strict=True)]
    assert [entry.number for entry in entries] == [0, 1, 2]
    with pytest.raises(InvariantViolation, match="one round in waiting"):
        sequence.append("a", rounds[1])
    sequence.forget("b")
    assert [sequence.take(), sequence.take(), sequence.take()] == [entries[0], entries[2], None]
