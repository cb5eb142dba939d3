"""Builder: updates in any order become one batch.

Codes are sorted by radix, and only rows whose codes tie are compared; what is sorted already, of one time, or
all diffs 1, is noticed on the way. Then every column is moved once, to its final place (assembler.py).

Memory beside the batch: 12 bytes a row for the order, 8 more while hashes are sorted, and 8 for diffs if
anything is summed.

Does not: decide when to build, or keep anything.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import layout as layouts
from shm_arrangements.assembler import Assembler, Plan
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column, Ints, Table
from shm_arrangements.contracts import Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels import arrange as kernels
from shm_arrangements.kernels import sort
from shm_arrangements.rows import Words
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.types import ColumnSpec, child_specs
from shm_arrangements.updates import Updates

_PIECE: Final = 1 << 14  # rows moved at once: their references stay in the second cache


class HeapAllocation:
    """Private memory."""

    __slots__ = ("buffer",)
    locator: Final = None

    def __init__(self, nbytes: int) -> None:
        memory = np.empty(nbytes + layouts.ALIGNMENT, np.uint8)
        shift = -memory.ctypes.data % layouts.ALIGNMENT
        self.buffer: NDArray[np.uint8] = memory[shift : shift + nbytes]

    @property
    def reserved(self) -> int:
        return len(self.buffer)

    def reserve(self, upto_bytes: int) -> None:
        """All of it is."""

    def seal(self) -> NDArray[np.uint8]:
        self.buffer.flags.writeable = False
        return self.buffer

    def abandon(self) -> None:
        """Memory goes with its last reference."""


class HeapAllocator:
    """Batches in private memory, for state that no other process reads."""

    checksums: Final = False

    def allocate(self, nbytes: int, *, deferred: bool = False) -> HeapAllocation:
        return HeapAllocation(nbytes)


class _Source:
    """Updates to be arranged, columns in stored order; times and diffs one a row, or one for all."""

    __slots__ = ("codes", "columns", "diff_cells", "rows", "table", "time_cells")

    def __init__(self, columns: tuple[Column, ...], updates: Updates, times: Words, diffs: Ints) -> None:
        self.columns = columns
        self.rows = len(updates)
        self.table = Table(columns)
        self.time_cells = times
        self.diff_cells = diffs
        self.codes: Words = times[:0]

    def __len__(self) -> int:
        return self.rows


class _Arranged:
    """The rows (k,) uint32 of a source in batch order, their codes, and their diffs if any were summed."""

    __slots__ = ("codes", "diffs", "order")

    def __init__(self, source: _Source, schema: ArrangementSchema, *, zeros: bool) -> None:
        """zeros: whether some diffs are 0."""
        codes = (
            schema.codes_of(source.columns[:1])
            if schema.code is CodeKind.IDENTITY
            else schema.codes_in(source.table, source.rows)
        )
        self.order, self.codes = sort.sort_codes(codes)
        self.diffs: Ints | None = None
        if zeros or kernels.has_ties(self.codes):
            if self.codes is codes:
                self.codes = codes.copy()  # perhaps not ours
            self._settle_ties(source, schema)

    def _settle_ties(self, source: _Source, schema: ArrangementSchema) -> None:
        table, times, diffs = source.table.cells, source.time_cells, source.diff_cells
        proved = schema.code is CodeKind.IDENTITY and not source.columns[0].has_validity
        span = int(proved), len(source.columns)
        state = np.zeros(2, np.int64)
        scratch = sort.scratch(0)
        while not kernels.order_ties(
            table, *span, times, self.codes, self.order, *scratch, _open_levels(), state
        ):
            scratch = sort.scratch(int(state[kernels.ROOM]))
        start = kernels.find_sum(table, *span, times, diffs, self.codes, self.order)
        if start < source.rows:
            self.diffs = np.empty(source.rows, np.int64)
            kept = kernels.sum_ties(table, *span, times, diffs, start, self.codes, self.order, self.diffs)
            self.order, self.codes, self.diffs = self.order[:kept], self.codes[:kept], self.diffs[:kept]

    def __len__(self) -> int:
        return len(self.order)


def _open_levels() -> Ints:
    return np.empty((kernels.DEPTH, 3), np.int64)


def build_batch(
    updates: Updates, schema: ArrangementSchema, description: Description, allocator: Allocator
) -> Batch:
    """Code, sort, consolidate and store `updates` (columns in ROW order, any order of updates).

    Returns an empty batch, without memory, if nothing is left. Raises: InvariantViolation if a time lies
    outside the description or a column is not of its type; ValueError if a NULL is in a column that has none,
    or from 2**32 updates on; what the allocator raises.
    """
    n = len(updates)
    if n == 0:
        return Batch.empty(schema, description)
    columns = tuple([updates.columns[i] for i in schema.stored_order])
    bounds = np.empty(2, np.uint64)
    diffs = kernels.span(updates.times, updates.diffs, bounds)
    first, last = bounds.tolist()
    _check_times(first, last, description)
    source = _Source(
        columns,
        updates,
        updates.times[:1] if first == last else updates.times,
        updates.diffs[:1] if diffs & kernels.ONE else updates.diffs,
    )
    _check_columns(source, schema)
    arranged = _Arranged(source, schema, zeros=bool(diffs & kernels.ZERO))
    if len(arranged) == 0:
        return Batch.empty(schema, description)
    return _store(source, arranged, schema, description, allocator)


def _store(
    source: _Source,
    arranged: _Arranged,
    schema: ArrangementSchema,
    description: Description,
    allocator: Allocator,
) -> Batch:
    order, codes, rows = arranged.order, arranged.codes, len(arranged)
    plan = Plan(schema, (source,))
    for lo in range(0, rows, _PIECE):
        if not plan.needs_rows:
            break
        hi = min(lo + _PIECE, rows)
        # Where all rows are there, what they need does not depend on their order.
        plan.add(np.arange(lo, hi) if rows == source.rows else order[lo:hi].astype(np.int64))
    times, diffs = source.time_cells, source.diff_cells
    time = int(times[0]) if len(times) == 1 else None
    if time is None and rows < source.rows and kernels.is_one_word(times, order):
        time = int(times[order[0]])
    if arranged.diffs is not None:
        diff = int(arranged.diffs[0]) if kernels.is_one_diff(arranged.diffs) else None
    else:
        diff = int(diffs[0]) if len(diffs) == 1 else None
    plan.settle(rows, time, diff)
    assembler = Assembler(plan, allocator)
    try:
        for lo in range(0, rows, _PIECE):
            hi = min(lo + _PIECE, rows)
            refs = order[lo:hi].astype(np.int64)
            if diff is not None:
                parts = diffs
            elif arranged.diffs is None:
                parts = diffs.take(refs)
            else:
                parts = arranged.diffs[lo:hi]
            assembler.fill(refs, parts, codes=codes[lo:hi])
        assembler.write_header(description)
    except BaseException:
        assembler.abandon()
        raise
    whole = assembler.checksum(layouts.CHECKSUM_FROM, assembler.nbytes, 0) if allocator.checksums else None
    return assembler.seal(whole)


def _check_columns(source: _Source, schema: ArrangementSchema) -> None:
    types = [column.type for column in source.columns]
    if types != schema.stored_types:
        raise InvariantViolation("columns of other types", columns=types, wanted=schema.stored_types)
    if source.table.may_have_nulls:
        for column, spec in zip(source.columns, schema.stored, strict=True):
            _check_nulls(column, spec)


def _check_nulls(column: Column, spec: ColumnSpec) -> None:
    if column.has_validity and not spec.nullable and column.null_count:
        raise ValueError(f"NULL in column {spec.name!r} of type {spec.type.name.lower()} that has none")
    specs = child_specs(spec.type)
    if specs:
        for child, child_spec in zip(column.children, specs, strict=True):
            _check_nulls(child, child_spec)


def _check_times(first: int, last: int, description: Description) -> None:
    upper, since = description.upper, description.since
    rounded = since.is_empty or last <= since.time
    if not description.lower.less_equal(first) or (upper.less_equal(last) and not rounded):
        hint = "what is inserted has times from the upper that stood up to, and not at, the one that is given"
        raise InvariantViolation(
            "update outside its batch", first=first, last=last, description=description, hint=hint
        )
