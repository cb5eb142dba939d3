"""Finishing: from the rows of a collection at one time to the rows of an answer, by whole columns.

In the order of the protocol: maps and predicates (one Mfp stage, with its rules for errors), then order,
offset and limit, which count multiplicity, then projection. Without an order the answer is sorted by value,
column by column, NULL last, and equal rows are one; what a limit takes without an order is decided by the
same order of the rows before the projection, so both runtimes take the same rows. Ties of an order are
broken the same way.

Rows arrive in pieces, and what takes long is done in pieces (sorting.py). With a limit no more than a few
times what it wants is kept; without one, a result that has outgrown the size limit is only counted from there
on.

Does not: read batches, judge multiplicities (evaluate.py), know the wire.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.mfp import Stage, StageSpec
from clusterd.runtime.limits import Limits
from clusterd.runtime.sorting import Rows, sorted_parts
from controller_proto.command import Finishing
from controller_proto.errors import Refusal
from controller_proto.plan import OrderBy
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = [
    "PLAIN", "Finisher", "PlannedFinishing", "plan_finishing", "rows_nbytes", "split_error",
]  # fmt: skip

Ints = NDArray[np.int64]

_COUNT_BYTES = 8  # a row's own cost in an answer
_MAX_COUNT = (1 << 63) - 1
_KEEP_ROWS = 1 << 16  # rows kept for a limit before the best are picked
PLAIN = Finishing()


class PlannedFinishing:
    """A Finishing compiled for the columns of an index. Columns are those an order or the projection uses.

    projection: positions in the kept columns; None if they are the answer as they are.
    """

    __slots__ = ("columns", "limit", "offset", "order", "projection", "stage")

    def __init__(self, finishing: Finishing, columns: tuple[ColumnSpec, ...]) -> None:
        """Raises Refusal(`invalid-plan`)."""
        self.limit = finishing.limit
        self.offset = finishing.offset
        self.stage: Stage | None = None
        self.order: tuple[OrderBy, ...] = finishing.order_by
        self.projection: tuple[int, ...] | None = finishing.projection
        self.columns = columns
        width = len(columns) + len(finishing.maps)
        if finishing.projection is not None:
            kept = sorted({*finishing.projection, *(o.column for o in finishing.order_by)})
            if not finishing.order_by and (self.limit is not None or self.offset):
                kept = list(range(width))  # the rows before the projection decide
            place = {column: at for at, column in enumerate(kept)}
            self.order = tuple(OrderBy(place[o.column], o.descending, o.nulls_first) for o in self.order)
            self.projection = tuple(place[column] for column in finishing.projection)
        else:
            kept = list(range(width))
        spec = StageSpec(finishing.maps, finishing.predicates, tuple(kept))
        if not spec.is_identity(len(columns)):
            self.stage = Stage(spec, columns)
            self.columns = self.stage.columns


@lru_cache(maxsize=256)
def plan_finishing(finishing: Finishing, columns: tuple[ColumnSpec, ...]) -> PlannedFinishing:
    """Compiled once for the many peeks of one form. Raises Refusal(`invalid-plan`)."""
    return PlannedFinishing(finishing, columns)


class Finisher:
    """Takes the rows of one peek, piece by piece, and gives the finished ones. time: of the peek."""

    def __init__(self, plan: PlannedFinishing, *, time: int, limits: Limits) -> None:
        self._plan = plan
        self._time = time
        self._limits = limits
        self._parts: list[Rows] = []
        self._rows = 0
        self._total = 0  # rows counting multiplicity, if they are limited
        self._bytes = 0
        self._error = ""  # the least message of a row that failed

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """Those of the answer."""
        columns, projection = self._plan.columns, self._plan.projection
        return columns if projection is None else tuple(columns[i] for i in projection)

    def add(self, columns: tuple[Column, ...], counts: Ints) -> Iterator[None]:
        """Take rows with positive counts; equal ones are in the same piece. Yields between pieces of work."""
        plan = self._plan
        if plan.stage is not None:
            rows = Updates(columns, np.zeros(len(counts), np.uint64), counts)
            updates, failed = plan.stage.at(self._time, rows)
            columns, counts = updates.columns, updates.diffs
            if failed is not None and len(failed):
                least = min(failed.columns[0].to_pylist())
                self._error = min(self._error, least) if self._error else least
        if not len(counts) or self._error:
            return
        self._parts.append((columns, np.ascontiguousarray(counts)))  # read.py may show one cell n times
        self._rows += len(counts)
        if plan.limit is not None:
            wanted = plan.offset + plan.limit
            if self._rows > max(_KEEP_ROWS, 4 * wanted):
                best = yield from sorted_parts(self._parts, plan.order, wanted=wanted)
                self._parts = _windows(best, 0, wanted)
                self._rows = sum(len(counts) for _, counts in self._parts)
            return
        self._bytes += rows_nbytes(_projected(columns, plan.projection), len(counts))
        most = self._limits.result_rows
        if most is not None:
            self._total += _total(counts)
        over = self._bytes > self._limits.result_bytes or (most is not None and self._total > most)
        if over and not plan.offset:
            self._parts.clear()

    def finish(self) -> Generator[None, None, list[Rows]]:
        """The answer, one part or several that follow each other. Yields between pieces of work.

        Raises Refusal: the data error of a row, or `result-too-large`.
        """
        plan, parts = self._plan, self._parts
        if self._error:
            raise split_error(self._error)
        cut = plan.limit is not None or bool(plan.offset)
        if not cut:
            self._limits.require_rows(self._total)
            self._limits.require_bytes(self._bytes)
        if not parts:
            return [_projected_rows((_empty(plan.columns), np.empty(0, np.int64)), plan.projection)]
        by_value = plan.projection is not None and not plan.order  # sorted when it is projected
        if cut or not by_value:
            wanted = None if plan.limit is None else plan.offset + plan.limit
            parts = yield from sorted_parts(parts, plan.order, wanted=wanted)
        if cut:
            parts = _windows(parts, plan.offset, plan.limit)
        parts = [_projected_rows(part, plan.projection) for part in parts]
        if cut:
            if self._limits.result_rows is not None:
                self._limits.require_rows(sum(_total(counts) for _, counts in parts))
            self._limits.require_bytes(sum(rows_nbytes(columns, len(counts)) for columns, counts in parts))
        if by_value:
            parts = yield from sorted_parts(parts, (), merge=True)
        return parts


def split_error(text: str) -> Refusal:
    """A row of errs, `code: message`, as the answer it is."""
    code, _, message = text.partition(": ")
    return Refusal(code, message or text)


def _window(columns: tuple[Column, ...], counts: Ints, offset: int, limit: int | None) -> Rows:
    """The rows at positions [offset, offset + limit), each count a number of positions."""
    ends: NDArray[Any] = np.cumsum(counts)
    if len(ends) and ends.min() < 0:  # the first sum to leave 64 bits turns negative
        ends = np.cumsum(counts.astype(object))
    end = int(ends[-1]) if len(ends) else 0
    start = min(offset, end)
    stop = end if limit is None else min(end, offset + limit)
    inside = np.maximum(np.minimum(ends, stop) - np.maximum(ends - counts, start), 0).astype(np.int64)
    rows = np.flatnonzero(inside > 0)
    return tuple(column.take(rows) for column in columns), inside.take(rows)


def _windows(parts: Sequence[Rows], offset: int, limit: int | None) -> list[Rows]:
    """As `_window`, of parts that follow each other; one at least, perhaps of no rows."""
    found: list[Rows] = []
    for columns, counts in parts:
        window = _window(columns, counts, offset, limit)
        taken, size = _total(window[1]), _total(counts)
        if taken or not found:
            found = [window] if found and not len(found[0][1]) else [*found, window]
        offset = max(0, offset - size)
        limit = None if limit is None else limit - taken
    return found


def _total(counts: Ints) -> int:
    """The sum of positive counts, whatever it is."""
    if not len(counts):
        return 0
    fits = int(counts.max()) <= _MAX_COUNT // len(counts)
    return int(counts.sum()) if fits else int(counts.sum(dtype=object))


def _empty(columns: Sequence[ColumnSpec]) -> tuple[Column, ...]:
    return tuple(Column.empty(spec.type) for spec in columns)


def _projected_rows(rows: Rows, projection: tuple[int, ...] | None) -> Rows:
    return _projected(rows[0], projection), rows[1]


def _projected(columns: tuple[Column, ...], projection: tuple[int, ...] | None) -> tuple[Column, ...]:
    return columns if projection is None else tuple(columns[i] for i in projection)


def rows_nbytes(columns: Sequence[Column], n: int) -> int:
    """What the rows weigh in an answer: of a text its bytes, of anything else its values."""
    return n * _COUNT_BYTES + sum(map(_weight, columns))


def _weight(column: Column) -> int:
    offsets, children = column.offsets, column.children
    if offsets is None:
        return int(column.values.nbytes) + sum(map(_weight, children))
    first, last = int(offsets[0]), int(offsets[-1])
    return last - first + sum(_weight(child.slice(first, last)) for child in children)
