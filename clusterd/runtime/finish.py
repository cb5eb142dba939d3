"""Finishing: from the rows of a collection at one time to the rows of an answer, by whole columns.

In the order of the protocol: maps and predicates (one Mfp stage, with its rules for errors), then order,
offset and limit, which count multiplicity, then projection. Without an order the answer is sorted by value,
column by column, NULL last, and equal rows are one; what a limit takes without an order is decided by the
same order of the rows before the projection, so both runtimes take the same rows. Ties of an order are
broken the same way.

Rows arrive in pieces. With a limit no more than a few times what it wants is kept; without one, a result that
has outgrown the size limit is only counted from there on.

Does not: read batches, judge multiplicities (evaluate.py), know the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.mfp import Stage, StageSpec
from controller_proto.command import Finishing
from controller_proto.errors import Refusal
from controller_proto.plan import OrderBy
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = [
    "PLAIN", "Finisher", "PlannedFinishing", "plan_finishing", "rows_nbytes", "sort_rows", "split_error",
]  # fmt: skip

Ints = NDArray[np.int64]
Rows = tuple[tuple[Column, ...], Ints]  # columns, and counts (n,) int64

_COUNT_BYTES = 8  # a row's own cost in an answer
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

    def __init__(self, plan: PlannedFinishing, *, time: int, max_result_bytes: int) -> None:
        self._plan = plan
        self._time = time
        self._max_bytes = max_result_bytes
        self._parts: list[Rows] = []
        self._rows = 0
        self._bytes = 0
        self._error = ""  # the least message of a row that failed

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """Those of the answer."""
        columns, projection = self._plan.columns, self._plan.projection
        return columns if projection is None else tuple(columns[i] for i in projection)

    def add(self, columns: tuple[Column, ...], counts: Ints) -> None:
        """Rows with positive counts; equal ones are in the same piece."""
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
                columns, counts = self._sorted()
                self._hold(_window(columns, counts, 0, wanted))
            return
        self._bytes += rows_nbytes(_projected(columns, plan.projection), len(counts))
        if self._bytes > self._max_bytes and not plan.offset:
            self._parts.clear()

    def finish(self) -> Rows:
        """The answer. Raises Refusal: the data error of a row, or `result-too-large`."""
        plan = self._plan
        if self._error:
            raise split_error(self._error)
        if not (plan.limit is not None or plan.offset):
            self._require_small(self._bytes)
        columns, counts = self._sorted()
        if plan.limit is not None or plan.offset:
            columns, counts = _window(columns, counts, plan.offset, plan.limit)
            self._require_small(rows_nbytes(_projected(columns, plan.projection), len(counts)))
        columns = _projected(columns, plan.projection)
        if plan.projection is not None and not plan.order and len(counts) > 1:
            image = encode(columns, _spec_of(columns), len(counts))
            rows, counts = image.consolidate(image.sort_order(), counts)
            columns = tuple(column.take(rows) for column in columns)
        return columns, counts

    def _hold(self, rows: Rows) -> None:
        self._parts = [rows]
        self._rows = len(rows[1])

    def _sorted(self) -> Rows:
        """All rows so far in the order that offset and limit go by."""
        parts, plan = self._parts, self._plan
        if not parts:
            return tuple(Column.empty(spec.type) for spec in plan.columns), np.empty(0, np.int64)
        columns, counts = parts[0]
        if len(parts) > 1:
            columns = tuple(
                Column.concat(cs[0].type, cs) for cs in zip(*(part[0] for part in parts), strict=True)
            )
            counts = np.concatenate([part[1] for part in parts])
        cut = plan.limit is not None or plan.offset
        if len(counts) < 2 or (plan.projection is not None and not plan.order and not cut):
            return columns, counts  # the projection is sorted afterwards
        order = sort_rows(columns, plan.order, len(counts))
        return tuple(column.take(order) for column in columns), counts.take(order)

    def _require_small(self, nbytes: int) -> None:
        if nbytes > self._max_bytes:
            raise Refusal(
                "result-too-large",
                f"the answer has {nbytes} bytes, max_result_bytes is {self._max_bytes}",
                "read fewer rows or columns, or raise max_result_bytes",
            )


def split_error(text: str) -> Refusal:
    """A row of errs, `code: message`, as the answer it is."""
    code, _, message = text.partition(": ")
    return Refusal(code, message or text)


def sort_rows(columns: Sequence[Column], order: Sequence[OrderBy], n: int) -> Ints:
    """(n,) the permutation that sorts by `order`, then by all columns ascending, NULL last."""
    whole = encode(columns, _spec_of(columns), n).sort_order()
    if not order:
        return whole
    lanes: list[NDArray[np.uint64]] = []
    for by in order:
        column = columns[by.column].take(whole)
        validity = column.validity
        if validity is not None:
            lanes.append((validity if by.nulls_first else ~validity).astype(np.uint64))
        rank = _rank(column, n)
        lanes.append(~rank if by.descending else rank)
        if validity is not None:
            lanes[-1][~validity] = 0
    result: Ints = whole.take(np.lexsort(lanes[::-1]))
    return result


def _rank(column: Column, n: int) -> NDArray[np.uint64]:
    """(n,) numbers that order as the values do."""
    image = encode([column], _spec_of([column]), n)
    order = image.sort_order()
    ranks = np.empty(n, np.uint64)
    first = np.zeros(n, np.uint64)
    first[image.run_starts(order)] = 1
    ranks[order] = np.cumsum(first, dtype=np.uint64)
    return ranks


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


def _spec_of(columns: Sequence[Column]) -> RowSpec:
    return RowSpec(tuple((column.type, column.has_validity) for column in columns))
