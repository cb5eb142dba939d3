"""A copy writes each row as often as it is there, once all is known, or leaves nothing and says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import NO_ERRS, Delta, Round
from clusterd.operators.export_copy_to import ExportCopyTo
from controller_proto.errors import Refusal
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

KV = (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.TEXT, True))
ROUND = Round(0, Frontier.empty(), 5, 6)


class _Destination:
    def __init__(self, fails_at: int = -1) -> None:
        self.rows: Counter[tuple[Any, ...]] = Counter()
        self.pieces: list[int] = []
        self.said = ""
        self._fails_at = fails_at

    def write(self, columns: Sequence[Column]) -> None:
        assert not self.said
        if len(self.pieces) == self._fails_at:
            raise Refusal("write-failed", "no room")
        self.pieces.append(len(columns[0]))
        self.rows.update(zip(*(column.to_pylist() for column in columns), strict=True))

    def commit(self) -> None:
        assert not self.said
        if len(self.pieces) == self._fails_at:
            raise Refusal("write-failed", "no room")
        self.said = "committed"

    def abort(self) -> None:
        self.said = self.said or "aborted"


def _run(
    rows: Sequence[tuple[Any, int]], errs: Sequence[tuple[str, int]] = (), *, fails_at: int = -1, cut: int = 3
) -> tuple[ExportCopyTo, _Destination]:
    destination = _Destination(fails_at)
    copy = ExportCopyTo(KV, destination)
    copy.start(ROUND)
    types = [spec.type for spec in KV]
    for at in range(0, len(rows), cut):
        part = [(row, 5, diff) for row, diff in rows[at : at + cut]]
        list(copy.push(0, Delta(Updates.from_rows(types, part), NO_ERRS)))
    if errs:
        faults = Updates.from_rows([ColumnType.TEXT], [((text,), 5, diff) for text, diff in errs])
        list(copy.push(0, Delta(Updates.empty(types), faults)))
    list(copy.finish())
    return copy, destination


def test_rows_are_written_as_often_as_they_are_there() -> None:
    copy, destination = _run([((1, "a"), 2), ((2, None), 1), ((1, "a"), 3), ((3, "c"), 1), ((3, "c"), -1)])
    assert copy.take() == 6
    assert destination.rows == {(1, "a"): 5, (2, None): 1}
    assert destination.said == "committed"
    copy.close()
    assert destination.said == "committed"


def test_no_rows_are_a_file_too() -> None:
    copy, destination = _run([])
    assert copy.take() == 0
    assert destination.said == "committed"


def test_a_row_that_is_there_very_often_goes_in_pieces() -> None:
    copy, destination = _run([((1, "a"), 200_000), ((2, "b"), 1)])
    assert copy.take() == sum(destination.pieces) == 200_001
    assert max(destination.pieces) <= 65_536


@pytest.mark.parametrize(
    ("rows", "errs", "code", "says"),
    [
        ([((1, "a"), 1)], [("eval-error: late", 1), ("eval-error: division by zero", 1)], "eval-error",
         "division by zero"),
        ([((1, "a"), 1)], [("x: y", -1)], "invalid-data", "retracted more often"),
        ([((2, "b"), -1), ((1, "a"), -2), ((3, "c"), 4)], [], "invalid-data",
         "row (1, a) has multiplicity -2"),
        ([((1, "a"), 1 << 62), ((1, "a"), 1 << 62)], [], "multiplicity-overflow", "64 bits"),
        ([((1, "a"), 1 << 62), ((2, "a"), 1 << 62)], [], "limit", "more rows"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_data_is_the_answer_and_there_is_no_file(
    rows: list[tuple[Any, int]], errs: list[tuple[str, int]], code: str, says: str
) -> None:
    copy, destination = _run(rows, errs)
    assert destination.said == "aborted"
    assert not destination.pieces
    taken = copy.take()
    assert isinstance(taken, Refusal)
    assert taken.code == code
    assert says in taken.message
    assert (taken.__traceback__, taken.__context__) == (None, None)  # it holds nothing of the dataflow


def test_an_error_that_was_retracted_is_none() -> None:
    copy, destination = _run([((1, "a"), 1)], [("eval-error: x", 1), ("eval-error: x", -1)])
    assert (copy.take(), destination.said) == (1, "committed")


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_destination_that_fails_is_the_answer(fails_at: int) -> None:
    copy, destination = _run([((1, "a"), 1)], fails_at=fails_at)
    assert destination.said == "aborted"
    taken = copy.take()
    assert isinstance(taken, Refusal)
    assert "no room" in taken.message


def test_a_drop_between_any_two_pieces_leaves_nothing() -> None:
    rows = [((k, "x"), 70_000) for k in range(3)]
    whole = Updates.from_rows([spec.type for spec in KV], [(row, 5, diff) for row, diff in rows])
    pieces = 0
    while True:
        destination = _Destination()
        copy = ExportCopyTo(KV, destination)
        copy.start(ROUND)
        list(copy.push(0, Delta.of(whole)))
        steps = copy.finish()
        if sum(1 for _ in zip(range(pieces), steps, strict=False)) < pieces:
            break
        steps.close()  # type: ignore[attr-defined]
        copy.close()
        assert destination.said == "aborted"
        pieces += 1
    assert pieces >= 4
    assert np.array_equal(whole.diffs, [70_000] * 3)
