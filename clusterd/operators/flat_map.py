"""FlatMap: each row once for every row that a table function gives for it. Stateless.

The arguments are columns that were computed before, or constants. Results come a piece at a time, whatever a
single row yields, so a series of any length needs the memory of a piece, and a dataflow with one can be
dropped between pieces; a piece is also cut where the kept columns of its rows are large. A row for which the
function fails is an error in data instead, with the row's own count, so it retracts as the row does.

Does not: evaluate expressions, filter (a Mfp behind it does), implement a table function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round, types_of
from clusterd.render.functions import TableCall, error_texts, table_function
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

__all__ = ["FlatMapOperator"]

Ints = NDArray[np.int64]

_MOST_BYTES = 1 << 24  # of kept columns in a piece: a large row is not repeated 65,536 times at once


class FlatMapOperator:
    """The columns `kept` of the input, then what `call` makes of the arguments: columns, or one constant."""

    def __init__(
        self, columns: Columns, kept: Sequence[int], call: TableCall, args: Sequence[int | Column]
    ) -> None:
        self.schema: Columns = (*(columns[k] for k in kept), *call.columns)
        self._types = types_of(self.schema)
        self._kept = tuple(kept)
        self._call = call
        self._expand = table_function(call)
        self._args = tuple(args)

    def start(self, round: Round) -> None:
        """Nothing depends on the round."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        oks = delta.oks
        if len(delta.errs):
            yield Delta(Updates.empty(self._types), delta.errs)
        if not len(oks):
            return
        args = [oks.columns[each] if isinstance(each, int) else each for each in self._args]
        kept = [oks.columns[k] for k in self._kept]
        sizes = np.zeros(len(oks), np.int64)
        for column in kept:
            sizes += _sizes(column)
        last = (-1, 0)
        for rows, made in self._expand(self._call, args, len(oks)):
            if not isinstance(made, tuple):
                failed = Updates((error_texts(made),), oks.times.take(rows), oks.diffs.take(rows))
                yield Delta(Updates.empty(self._types), failed)
                continue
            if self._call.with_ordinality:
                numbers, last = _numbered(rows, last)
                made = (*made, Column(ColumnType.INT64, numbers))
            for lo, hi in _cuts(sizes, rows):
                here = rows[lo:hi]
                columns = (*(column.take(here) for column in kept), *(each.slice(lo, hi) for each in made))
                yield Delta.of(Updates(columns, oks.times.take(here), oks.diffs.take(here)))

    def finish(self) -> Iterator[Delta]:
        return iter(())

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics()

    def close(self) -> None:
        """Nothing is held."""


def _numbered(rows: Ints, last: tuple[int, int]) -> tuple[Ints, tuple[int, int]]:
    """Which one of its row each is, from 1. last: the row before, and how many it had; returned likewise."""
    at = np.arange(len(rows), dtype=np.int64)
    starts = np.concatenate(([True], rows[1:] != rows[:-1]))
    numbers = at - np.maximum.accumulate(np.where(starts, at, 0)) + 1
    if len(rows) and rows[0] == last[0]:
        first = int(np.argmin(rows == rows[0])) or len(rows)
        numbers[:first] += last[1]
    return numbers, (int(rows[-1]), int(numbers[-1])) if len(rows) else last


def _sizes(column: Column) -> Ints | int:
    """(n,) bytes of each value of variable size."""
    if not isinstance(column.type, ColumnType) or column.type in (
        ColumnType.TEXT, ColumnType.BYTEA, ColumnType.JSONB,
    ):  # fmt: skip
        plain = column.plain()
        if plain.offsets is None:
            return sum((_sizes(child) for child in plain.children), 0)
        if not plain.children:
            return np.diff(plain.offsets)
        each = _sizes(plain.children[0])
        if isinstance(each, int):
            return np.diff(plain.offsets) * 8
        total = np.concatenate(([0], np.cumsum(each + 8)))
        return np.diff(total[plain.offsets])
    return 0


def _cuts(sizes: Ints, rows: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of a piece of which the kept columns take no more than _MOST_BYTES, or which is one row."""
    ends = np.cumsum(sizes.take(rows))
    lo = 0
    while lo < len(rows):
        before = int(ends[lo - 1]) if lo else 0
        hi = max(lo + 1, int(np.searchsorted(ends, before + _MOST_BYTES, side="right")))
        yield lo, hi
        lo = hi
