"""Builder: updates in any order become one batch.

Codes are sorted by radix, and only rows whose codes tie are compared; what is sorted already, of one time, or
all diffs 1, is noticed on the way. Then every column is moved once, to its final place (assembler.py).

Many updates are first spread into parts by the top bits of their codes. If there are ties in the first part,
and all columns are of fixed width, the rows are moved there too: a part fits a cache, so comparing its rows
does not miss it; of codes that hardly tie nothing is compared, and moving twice would only cost. Each part is
settled by itself, and the parts in a row are the batch. `building` pauses between them.

Memory beside the batch: 12 bytes a row for the order, 8 more while hashes are sorted, and 8 for diffs if
anything is summed; of many updates of fixed width, the columns once more.

Does not: decide when to build, or keep anything.
"""

from __future__ import annotations

import mmap
from collections.abc import Generator, Iterator
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import layout as layouts
from shm_arrangements.assembler import Assembler
from shm_arrangements.batch import Batch
from shm_arrangements.batch_plan import Plan
from shm_arrangements.columns import Column, Encoding, Ints
from shm_arrangements.contracts import Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels import arrange as kernels
from shm_arrangements.kernels import sort
from shm_arrangements.rows import Words
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.table import Table
from shm_arrangements.types import VARIABLE, ColumnSpec, child_specs, is_nested
from shm_arrangements.updates import Updates

Rows = NDArray[np.uint32]
T = TypeVar("T")
Steps = Generator[None, None, T]  # yields between pieces of work

_PIECE: Final = 1 << 14  # rows moved at once: their references stay in the second cache
_PART_BITS: Final = 15
_PART: Final = 1 << _PART_BITS  # rows settled at once, about: a few columns of them stay in the second cache
_MOST_PARTS_BITS: Final = 9
_CODED: Final = 1 << 18  # rows whose codes are computed at once: some 6 ms
_MOVED: Final = 1 << 17  # rows of a column moved at once: some ms
_RESERVED_BYTES: Final = 2 << 20  # of memory at once: 1 ms, or 10 where the machine has to find it first


class HeapAllocation:
    """Private memory; if it is deferred, and large, its pages are had from the machine as they are reserved.

    They are of 2 MB then, and each may take some ms where the machine is virtual: arrays of one length come
    to their next page all at once, and that would be one piece of whatever fills them.
    """

    __slots__ = ("_reserved", "buffer")
    locator: Final = None

    def __init__(self, nbytes: int, *, deferred: bool = False) -> None:
        memory = np.empty(nbytes + layouts.ALIGNMENT, np.uint8)
        shift = -memory.ctypes.data % layouts.ALIGNMENT
        self.buffer: NDArray[np.uint8] = memory[shift : shift + nbytes]
        self._reserved = 0 if deferred and nbytes > _RESERVED_BYTES else nbytes

    @property
    def reserved(self) -> int:
        return self._reserved

    def reserve(self, upto_bytes: int) -> None:
        upto = min(upto_bytes, len(self.buffer))
        if upto > self._reserved:
            self.buffer[self._reserved : upto : mmap.PAGESIZE] = 0
            self._reserved = upto

    def seal(self) -> NDArray[np.uint8]:
        self.buffer.flags.writeable = False
        return self.buffer

    def abandon(self) -> None:
        """Memory goes with its last reference."""


class HeapAllocator:
    """Batches in private memory, for state that no other process reads."""

    checksums: Final = False

    def allocate(self, nbytes: int, *, deferred: bool = False) -> HeapAllocation:
        return HeapAllocation(nbytes, deferred=deferred)


class _Source:
    """Updates to be arranged, columns in stored order; times and diffs one a row, or one for all."""

    __slots__ = ("codes", "columns", "diff_cells", "rows", "table", "time_cells")

    def __init__(self, columns: tuple[Column, ...], rows: int, times: Words, diffs: Ints) -> None:
        self.columns = columns
        self.rows = rows
        self.table = Table(columns)
        self.time_cells = times
        self.diff_cells = diffs
        self.codes: Words = times[:0]

    def __len__(self) -> int:
        return self.rows


class _Arranged:
    """The rows (k,) uint32 of a source in batch order, their codes, and their diffs if any were summed."""

    __slots__ = ("codes", "diffs", "order", "source")

    def __init__(self, source: _Source, order: Rows, codes: Words, diffs: Ints | None = None) -> None:
        self.source, self.order, self.codes, self.diffs = source, order, codes, diffs

    def __len__(self) -> int:
        return len(self.order)


def _arranged(source: _Source, schema: ArrangementSchema, *, zeros: bool) -> _Arranged:
    """zeros: whether some diffs are 0."""
    given = _codes_of(source, schema)
    order, codes = sort.sort_codes(given)
    if not zeros and not kernels.has_ties(codes):
        return _Arranged(source, order, codes)
    if codes is given:
        codes = codes.copy()  # perhaps not ours
    kept, diffs = _settle(source, schema, order, codes)
    return _Arranged(source, order[:kept], codes[:kept], diffs)


def _arranging(source: _Source, schema: ArrangementSchema, *, zeros: bool) -> Steps[_Arranged]:
    """The same, part by part."""
    n = source.rows
    given, key = np.empty(n, np.uint64), source.columns[: len(schema.key)]
    order, codes = np.empty(n, np.uint32), np.empty(n, np.uint64)
    for begin in range(0, n, _CODED):
        upto = min(begin + _CODED, n)
        given[begin:upto] = schema.codes_of([column.slice(begin, upto) for column in key], upto - begin)
        order[begin:upto] = codes[begin:upto] = 0  # the spreading does not have to wait for the pages
        yield
    bits = min((n >> _PART_BITS).bit_length(), _MOST_PARTS_BITS)
    ends = np.empty((1 << bits) + 1, np.uint32)
    movable = False
    if sort.spread_codes(given, bits, codes, order, ends) < 0:  # they ascend
        order, codes = np.arange(n, dtype=np.uint32), given.copy()
        bounds = list(_runs_of(codes))
    else:
        bounds = [int(end) for end in ends[: 1 << bits]]
        yield
        movable = not any(is_nested(column.type) or column.type in VARIABLE for column in source.columns)
    parts: list[tuple[int, int, Ints | None]] = []  # where the rows of each are in the end, and their sums
    at = lo = 0
    for hi in bounds:
        if lo < hi:
            mine, keys, kept, sums = order[lo:hi], codes[lo:hi], hi - lo, None
            sort.sort_part(keys, mine)
            tied = zeros or kernels.has_ties(keys)
            if tied and movable and not parts:
                yield
                source = yield from _moved(source, order)
                order = np.arange(n, dtype=np.uint32)
                mine = order[lo:hi]
            if tied:
                kept, sums = _settle(source, schema, mine, keys)
            if at < lo:
                order[at : at + kept], codes[at : at + kept] = mine[:kept], keys[:kept]
            parts.append((at, at + kept, sums))
            at, lo = at + kept, hi
            yield
    order, codes = order[:at], codes[:at]
    if all(sums is None for _, _, sums in parts):
        return _Arranged(source, order, codes)
    diffs, paused = np.empty(at, np.int64), 0
    for start, end, sums in parts:
        if sums is None:
            cells = source.diff_cells
            diffs[start:end] = cells if len(cells) == 1 else cells.take(order[start:end])
        else:
            diffs[start:end] = sums
        if end - paused >= _MOVED:
            paused = end
            yield
    return _Arranged(source, order, codes, diffs)


def _codes_of(source: _Source, schema: ArrangementSchema) -> Words:
    if schema.code is CodeKind.IDENTITY:
        return schema.codes_of(source.columns[:1])
    return schema.codes_in(source.table, source.rows)


def _runs_of(codes: Words) -> Iterator[int]:
    """Where parts of ascending codes end: equal ones are never apart."""
    at, n = 0, len(codes)
    while at < n:
        last = codes[min(at + _PART, n) - 1]
        at = int(np.searchsorted(codes, last, side="right"))
        yield at


def _moved(source: _Source, order: Rows) -> Steps[_Source]:
    """The source, of columns of fixed width, with its rows in this order; a piece of a column at a time.

    Moving misses the caches and its target is of fresh pages: a column of 2 M rows is 10 to 80 ms.
    """
    columns = []
    for column in source.columns:
        if column.encoding is not Encoding.PLAIN:
            columns.append(column.take(order.astype(np.int64)))
            continue
        validity = column.validity if column.has_validity else None
        values = yield from _taken(column.values, order)
        known = None if validity is None else (yield from _taken(validity, order))
        columns.append(Column(column.type, values, None, known))
    times, diffs = source.time_cells, source.diff_cells
    times = (yield from _taken(times, order)) if len(times) > 1 else times
    diffs = (yield from _taken(diffs, order)) if len(diffs) > 1 else diffs
    return _Source(tuple(columns), source.rows, times, diffs)


def _taken(cells: NDArray[Any], order: Rows) -> Steps[NDArray[Any]]:
    """The cells at `order`, along the first axis."""
    out = np.empty((len(order), *cells.shape[1:]), cells.dtype)
    for lo in range(0, len(order), _MOVED):
        hi = min(lo + _MOVED, len(order))
        cells.take(order[lo:hi].astype(np.int64), axis=0, out=out[lo:hi], mode="clip")
        yield
    return out


def _settle(source: _Source, schema: ArrangementSchema, order: Rows, codes: Words) -> tuple[int, Ints | None]:
    """Order the rows of equal codes, in place, and sum those that are the same.

    Returns how many are left, and the diffs of these if any were summed.
    """
    table, times, diffs = source.table.cells, source.time_cells, source.diff_cells
    proved = schema.code is CodeKind.IDENTITY and not source.columns[0].has_validity
    span = int(proved), len(source.columns)
    state = np.zeros(2, np.int64)
    scratch = sort.scratch(0)
    while not kernels.order_ties(table, *span, times, codes, order, *scratch, _open_levels(), state):
        scratch = sort.scratch(int(state[kernels.ROOM]))
    start = kernels.find_sum(table, *span, times, diffs, codes, order)
    if start == len(order):
        return start, None
    sums = np.empty(len(order), np.int64)
    kept: int = kernels.sum_ties(table, *span, times, diffs, start, codes, order, sums)
    return kept, sums[:kept]


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
    work = building(updates, schema, description, allocator)
    while True:
        try:
            next(work)
        except StopIteration as end:
            batch: Batch = end.value
            return batch


def building(
    updates: Updates, schema: ArrangementSchema, description: Description, allocator: Allocator
) -> Steps[Batch]:
    """`build_batch` in pieces of a few ms, or more where rows are long; given up, it leaves no memory.

    Up to some 65,000 updates are two pieces; of many that share a code, or nearly, one may be long.
    """
    n = len(updates)
    if n == 0:
        return Batch.empty(schema, description)
    if n >= 1 << 32:
        raise ValueError(f"{n} rows cannot be sorted at once: the order is of 32 bits")
    columns = tuple([updates.columns[i] for i in schema.stored_order])
    bounds = np.empty(2, np.uint64)
    diffs = kernels.span(updates.times, updates.diffs, bounds)
    first, last = bounds.tolist()
    _check_times(first, last, description)
    source = _Source(
        columns,
        n,
        updates.times[:1] if first == last else updates.times,
        updates.diffs[:1] if diffs & kernels.ONE else updates.diffs,
    )
    _check_columns(source, schema)
    zeros = bool(diffs & kernels.ZERO)
    if n <= 2 * _PART:
        arranged = _arranged(source, schema, zeros=zeros)
    else:
        arranged = yield from _arranging(source, schema, zeros=zeros)
    if len(arranged) == 0:
        return Batch.empty(schema, description)
    return (yield from _storing(arranged, schema, description, allocator))


def _storing(
    arranged: _Arranged, schema: ArrangementSchema, description: Description, allocator: Allocator
) -> Steps[Batch]:
    source, order, codes, rows = arranged.source, arranged.order, arranged.codes, len(arranged)
    plan = Plan(schema, (source,))
    for lo in range(0, rows, _PIECE):
        if not plan.needs_rows:
            break
        hi = min(lo + _PIECE, rows)
        # Where all rows are there, what they need does not depend on their order.
        plan.add(np.arange(lo, hi) if rows == source.rows else order[lo:hi].astype(np.int64))
        if hi % _PART == 0:
            yield
    times, diffs = source.time_cells, source.diff_cells
    time = int(times[0]) if len(times) == 1 else None
    if time is None and rows < source.rows and kernels.is_one_word(times, order):
        time = int(times[order[0]])
    if arranged.diffs is not None:
        diff = int(arranged.diffs[0]) if kernels.is_one_diff(arranged.diffs) else None
    else:
        diff = int(diffs[0]) if len(diffs) == 1 else None
    plan.settle(rows, time, diff)
    is_large = plan.nbytes > _RESERVED_BYTES
    assembler = Assembler(plan, allocator, deferred=is_large)
    try:
        while is_large and assembler.reserved < assembler.nbytes:
            assembler.reserve(assembler.reserved + _RESERVED_BYTES)
            yield
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
            if hi % _PART == 0:
                yield
        assembler.write_header(description)
        whole = (
            assembler.checksum(layouts.CHECKSUM_FROM, assembler.nbytes, 0) if allocator.checksums else None
        )
        return assembler.seal(whole)
    except BaseException:
        assembler.abandon()
        raise


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
