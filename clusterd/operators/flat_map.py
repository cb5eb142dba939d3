"""FlatMap: each row once for every row that a table function gives for it. Stateless.

The arguments are columns that were computed before. Results come a block at a time, whatever a single row
yields, so a series of any length needs the memory of a block, and a dataflow with one can be dropped between
blocks. A row for which the function fails is an error in data instead, with the row's own count, so it
retracts as the row does.

Does not: evaluate expressions, filter (a Mfp behind it does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, OperatorStatistics, Round, types_of
from clusterd.operators.kernels import series as kernels
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["TABLE_FUNCTIONS", "FlatMapOperator", "Made", "TableFunction"]

Ints = NDArray[np.int64]

NO_STEP: Final = "eval-error: step size cannot equal zero"

# Rows of the input, and for each the columns made for it; or rows that fail, and the message.
Made = tuple[Ints, tuple[Column, ...]] | tuple[Ints, str]


@dataclass(frozen=True, slots=True)
class TableFunction:
    """columns: what it appends. rows: of argument columns of n rows, pieces of at most BLOCK_ROWS."""

    columns: Columns
    rows: Callable[[Sequence[Column], int], Iterator[Made]]


def _generate_series(args: Sequence[Column], n: int) -> Iterator[Made]:
    """From start to stop by step (1 if it is not given); nothing if one of them is NULL."""
    known = np.ones(n, np.bool_)
    for column in args:
        if column.validity is not None:
            known &= column.validity
    starts, stops = (np.ascontiguousarray(column.values) for column in args[:2])
    steps = np.ascontiguousarray(args[2].values) if len(args) > 2 else np.ones(n, np.int64)
    wrong = np.flatnonzero(known & (steps == 0))
    if len(wrong):
        yield wrong, NO_STEP
    ends, some = np.empty(n, np.uint64), np.empty(n, np.bool_)
    kernels.series_ends(starts, stops, steps, known, ends, some)
    state = np.zeros(2, np.uint64)
    while state[kernels.ROW] < n:
        rows, values = np.empty(BLOCK_ROWS, np.int64), np.empty(BLOCK_ROWS, np.int64)
        made = kernels.expand_series(starts, steps, ends, some, state, rows, values)
        if made:
            yield rows[:made], (Column(ColumnType.INT64, values[:made]),)


TABLE_FUNCTIONS: Final = {
    "generate_series": TableFunction(
        (ColumnSpec("generate_series", ColumnType.INT64, False),), _generate_series
    ),
}


class FlatMapOperator:
    """The columns `kept` of the input, then those of `function` for the argument columns `args`."""

    def __init__(
        self, columns: Columns, kept: Sequence[int], function: TableFunction, args: Sequence[int]
    ) -> None:
        self.schema: Columns = (*(columns[k] for k in kept), *function.columns)
        self._types = types_of(self.schema)
        self._kept = tuple(kept)
        self._function = function
        self._args = tuple(args)

    def start(self, round: Round) -> None:
        """Nothing depends on the round."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        oks = delta.oks
        if len(delta.errs):
            yield Delta(Updates.empty(self._types), delta.errs)
        for rows, made in self._function.rows([oks.columns[k] for k in self._args], len(oks)):
            times, diffs = oks.times.take(rows), oks.diffs.take(rows)
            if isinstance(made, str):
                text = Column.constant(ColumnType.TEXT, made, len(rows))
                yield Delta(Updates.empty(self._types), Updates((text,), times, diffs))
            else:
                kept = tuple(oks.columns[k].take(rows) for k in self._kept)
                yield Delta.of(Updates((*kept, *made), times, diffs))

    def finish(self) -> Iterator[Delta]:
        return iter(())

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics()

    def close(self) -> None:
        """Nothing is held."""
