"""Taking columns out of a chain of batches: the values of references, and whole stretches but for some rows.

References (find.py) may name any batch in any order; each value is written once, to where it stays.
Stretches are copied in blocks between the rows that are left out. Columns are read where they lie and as they
are encoded (cells.py); what is written is plain, in Arrow's layout but for bits: validity is a byte a row.

Each kernel appends: `at` is the row of the output to begin with.

Does not: lists and records; columns.Column takes those.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from shm_arrangements.kernels import cells as tables
from shm_arrangements.kernels.cells import bytes_at, is_null, place_of
from shm_arrangements.kernels.find import CHAIN, diff_of, time_of
from shm_arrangements.kernels.jit import I64, OUT_BOOL, OUT_I64, OUT_U8, OUT_U64, i64, inner, kernel
from shm_arrangements.kernels.refs import ROW_BITS, ROW_MASK, TABLES, null_at, span_at, text_at


@intrinsic
def _copy_memory(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = context.get_value_type(types.uint8).as_pointer()
        target, source = (builder.inttoptr(arg, place) for arg in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


copy_memory: Any = _copy_memory
if getattr(config, "DISABLE_JIT", 0):
    copy_memory = lambda target, source, size: ctypes.memmove(int(target), int(source), int(size))  # noqa: E731


@inner
def _copy_value(target: Any, source: Any, width: Any) -> None:
    """Copy one value of 1, 2, 4, 8 or 16 bytes: sizes that are known are moves, not calls."""
    if width == 8:
        copy_memory(target, source, 8)
    elif width == 16:
        copy_memory(target, source, 16)
    elif width == 4:
        copy_memory(target, source, 4)
    elif width == 2:
        copy_memory(target, source, 2)
    else:
        copy_memory(target, source, 1)


@inner
def _copy_bytes(target: Any, source: Any, size: Any) -> None:
    """Copy a text: most are short, and then words beat a call."""
    if size > 64:
        copy_memory(target, source, size)
        return
    k = 0
    while k + 8 <= size:
        copy_memory(target + k, source + k, 8)
        k += 8
    while k < size:
        copy_memory(target + k, source + k, 1)
        k += 1


@kernel(TABLES, i64, i64, I64, OUT_U8, i64)
def gather_fixed(cells: Any, column: int, width: int, refs: Any, out: Any, at: int) -> None:
    """Values of `width` bytes each."""
    target = out.ctypes.data + at * width
    for i in range(refs.shape[0]):
        table = cells[refs[i] >> ROW_BITS]
        place = place_of(table, column, refs[i] & ROW_MASK)
        _copy_value(target + i * width, table[column, tables.VALUES] + place * width, width)


@kernel(TABLES, i64, I64, OUT_BOOL, i64)
def gather_valid(cells: Any, column: int, refs: Any, out: Any, at: int) -> int:
    """Whether each is not NULL. Returns the NULLs."""
    nulls = 0
    for i in range(refs.shape[0]):
        null = null_at(cells, column, refs[i])
        out[at + i] = not null
        nulls += int(null)
    return nulls


@kernel(TABLES, i64, I64, OUT_I64, i64)
def gather_offsets(cells: Any, column: int, refs: Any, out: Any, at: int) -> None:
    """Offsets of texts, going on from out[at], which is set."""
    end = out[at]
    for i in range(refs.shape[0]):
        lo, hi = span_at(cells, column, refs[i])
        end += hi - lo
        out[at + i + 1] = end


@kernel(TABLES, i64, I64, I64, OUT_U8, i64)
def gather_texts(cells: Any, column: int, refs: Any, offsets: Any, out: Any, at: int) -> None:
    """The bytes of texts, to where their offsets say."""
    target = out.ctypes.data
    for i in range(refs.shape[0]):
        address, size = text_at(cells, column, refs[i])
        _copy_bytes(target + offsets[at + i], address, size)


@kernel(CHAIN, I64, OUT_U64, i64)
def gather_times(chain: Any, refs: Any, out: Any, at: int) -> None:
    """The times of updates."""
    for i in range(refs.shape[0]):
        out[at + i] = time_of(chain, refs[i] >> ROW_BITS, refs[i] & ROW_MASK)


# Below, rows [lo, hi) of batch b but for those listed in `left_out`, which ascend.


@inner
def _kept_until(left_out: Any, q: Any, hi: Any) -> Any:
    """Where the q-th block of kept rows ends; the next begins behind it."""
    return left_out[q] if q < left_out.shape[0] else hi


@kernel(TABLES, i64, i64, i64, i64, i64, I64, OUT_U8, i64)
def copy_fixed(
    cells: Any, b: int, column: int, width: int, lo: int, hi: int, left_out: Any, out: Any, at: int
) -> None:
    """Values of `width` bytes each."""
    table = cells[b]
    values = table[column, tables.VALUES]
    target = out.ctypes.data + at * width
    start: Any = lo
    for q in range(left_out.shape[0] + 1):
        stop = _kept_until(left_out, q, hi)
        if table[column, tables.MODE] == tables.PLAIN:
            copy_memory(target, values + start * width, (stop - start) * width)
            target += (stop - start) * width
        else:
            for row in range(start, stop):
                _copy_value(target, values + place_of(table, column, row) * width, width)
                target += width
        start = stop + 1


@kernel(TABLES, i64, i64, i64, i64, I64, OUT_BOOL, i64)
def copy_valid(cells: Any, b: int, column: int, lo: int, hi: int, left_out: Any, out: Any, at: int) -> int:
    """Whether each is not NULL. Returns the NULLs."""
    table = cells[b]
    nulls = 0
    start: Any = lo
    for q in range(left_out.shape[0] + 1):
        stop = _kept_until(left_out, q, hi)
        for row in range(start, stop):
            null = is_null(table, column, row)
            out[at] = not null
            nulls += int(null)
            at += 1
        start = stop + 1
    return nulls


@kernel(TABLES, i64, i64, i64, i64, I64, OUT_I64, i64)
def copy_offsets(cells: Any, b: int, column: int, lo: int, hi: int, left_out: Any, out: Any, at: int) -> None:
    """Offsets of texts, going on from out[at], which is set."""
    table = cells[b]
    end = out[at]
    start: Any = lo
    for q in range(left_out.shape[0] + 1):
        stop = _kept_until(left_out, q, hi)
        for row in range(start, stop):
            first, last = bytes_at(table, column, place_of(table, column, row))
            end += last - first
            at += 1
            out[at] = end
        start = stop + 1


@kernel(TABLES, i64, i64, i64, i64, I64, I64, OUT_U8, i64)
def copy_texts(
    cells: Any, b: int, column: int, lo: int, hi: int, left_out: Any, offsets: Any, out: Any, at: int
) -> None:
    """The bytes of texts, to where their offsets say."""
    table = cells[b]
    values = table[column, tables.VALUES]
    target = out.ctypes.data + offsets[at]
    start: Any = lo
    for q in range(left_out.shape[0] + 1):
        stop = _kept_until(left_out, q, hi)
        if table[column, tables.MODE] == tables.PLAIN:
            if start < stop:
                first, _ = bytes_at(table, column, start)
                _, last = bytes_at(table, column, stop - 1)
                _copy_bytes(target, values + first, last - first)
                target += last - first
        else:
            for row in range(start, stop):
                first, last = bytes_at(table, column, place_of(table, column, row))
                _copy_bytes(target, values + first, last - first)
                target += last - first
        start = stop + 1


@kernel(CHAIN, i64, i64, i64, I64, OUT_I64, i64)
def copy_diffs(chain: Any, b: int, lo: int, hi: int, left_out: Any, out: Any, at: int) -> None:
    """The diffs of updates."""
    start: Any = lo
    for q in range(left_out.shape[0] + 1):
        stop = _kept_until(left_out, q, hi)
        for row in range(start, stop):
            out[at] = diff_of(chain, b, row)
            at += 1
        start = stop + 1
