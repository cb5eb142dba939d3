"""Copy: the end of a dataflow of one time, where its rows are written out, each as often as it is there.

In the one round all rows are collected and consolidated; then, if the collection has no error and no row a
negative count, they go to the destination in pieces and it is told that they are all. Whatever else happens,
a drop in the middle included, it is told to leave nothing.

Does not: know what a destination is, send the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, OperatorStatistics, Round, types_of
from clusterd.operators.consolidation import consolidated
from clusterd.operators.faults import show_row
from controller_proto.errors import Refusal
from shm_arrangements.columns import Column
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates

__all__ = ["Destination", "ExportCopyTo"]

_PIECE_BYTES = 4 << 20  # of rows that are written in one go
_MOST_ROWS = 2.0**62


class Destination(Protocol):
    """Where rows go. All raise Refusal, after which it has left nothing, but for `abort`."""

    def write(self, columns: Sequence[Column]) -> None:
        """Append rows."""

    def commit(self) -> None:
        """These were all."""

    def abort(self) -> None:
        """Leave nothing. No effect after the end."""


class ExportCopyTo:
    """Writes rows of `columns` to `destination`; puts nothing out. `take` after the round."""

    def __init__(self, columns: Columns, destination: Destination) -> None:
        self.schema = columns
        self._destination = destination
        self._nothing = Delta.empty(types_of(columns))
        self._spec = RowSpec.of(columns)
        self._oks: list[Updates] = []
        self._errors: Counter[str] = Counter()
        self._rows = 0
        self._failed: Refusal | None = None

    def start(self, round: Round) -> None:
        return

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        if len(delta.oks):
            self._oks.append(delta.oks)
        for text, diff in zip(delta.errs.columns[0].to_pylist(), delta.errs.diffs.tolist(), strict=True):
            self._errors[text] += diff
        yield self._nothing

    def finish(self) -> Iterator[Delta]:
        try:
            self._require_no_errors()
            parts: list[Updates] = []
            blocks, self._oks = self._oks, []
            for part in consolidated(blocks, self._spec):
                parts.append(part)
                yield self._nothing
            blocks.clear()
            _require_counts(parts)
            for part in parts:
                for piece in _expanded(part):
                    self._destination.write(piece)
                    self._rows += len(piece[0])
                    yield self._nothing
            self._destination.commit()
        except MultiplicityOverflow:
            self._failed = Refusal("multiplicity-overflow", "a multiplicity leaves 64 bits")
        except Refusal as refusal:  # itself it holds the frames it came through, and what they hold
            self._failed = Refusal(refusal.code, refusal.message, refusal.hint)
        if self._failed is not None:
            self._destination.abort()

    def take(self) -> int | Refusal:
        """How many rows were written, or why there is no file."""
        return self._rows if self._failed is None else self._failed

    def statistics(self) -> OperatorStatistics:
        """What waits for the end of the round."""
        return OperatorStatistics(sum(map(len, self._oks)), sum(each.nbytes for each in self._oks))

    def close(self) -> None:
        self._oks = []
        self._destination.abort()

    def _require_no_errors(self) -> None:
        """Errors as a peek tells them: the least."""
        found = [text for text, count in self._errors.items() if count > 0]
        if found:
            code, _, message = min(found).partition(": ")
            raise Refusal(code, message or min(found))
        if any(self._errors.values()):
            raise Refusal("invalid-data", "an error was retracted more often than made")


def _require_counts(parts: Sequence[Updates]) -> None:
    """Raises Refusal: a row with a negative count (the one that reads least), or too many rows."""
    negative: list[tuple[str, int]] = []
    for part in parts:
        for row in np.flatnonzero(part.diffs < 0).tolist():
            values = (column.slice(row, row + 1).to_pylist()[0] for column in part.columns)
            negative.append((show_row(values), int(part.diffs[row])))
    if negative:
        row_text, count = min(negative)
        hint = "the source retracts a row more often than it inserted it"
        raise Refusal("invalid-data", f"row {row_text} has multiplicity {count}", hint)
    if sum(float(part.diffs.sum(dtype=np.float64)) for part in parts) > _MOST_ROWS:
        raise Refusal("limit", "there are more rows than a file can hold")


def _expanded(part: Updates) -> Iterator[tuple[Column, ...]]:
    """The rows, each as often as it is there, in pieces."""
    if not len(part):
        return
    ends = np.cumsum(part.diffs)
    total = int(ends[-1])
    step = max(1, min(BLOCK_ROWS, len(part) * _PIECE_BYTES // max(1, part.nbytes)))
    for start in range(0, total, step):
        rows = np.searchsorted(ends, np.arange(start, min(start + step, total)), side="right")
        yield tuple(column.take(rows) for column in part.columns)
