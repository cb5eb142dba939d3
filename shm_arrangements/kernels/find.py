"""Finding and summing updates in a chain of batches, whatever their schema and encodings.

A *chain* tells kernels where m batches lie: one row of eight int64 a batch (`FIELDS`), addresses included,
and beside it `cells` (m, columns, 8), the batches' tables (cells.py). A constant time or diff has step 0, so
who reads it needs not know. An update of a chain is named by a *ref* (refs.py): its batch and its row.

Within a batch, updates are sorted by (code, columns, time). `fold` merges sorted stretches of several batches
and sums the updates of equal rows; everything else here chooses the stretches: the runs of the keys that are
looked up, and the ranges that are read in order. Those of a scan are chosen in scan.py.

Sums are kept in two parts, so a sum is right, or known to be beyond 64 bits, however it was reached.

Does not: know what a column's type is (cells.py), or take values out (collect.py).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from shm_arrangements.kernels.accumulate import LEAST_HIGH, LOW32, MOST_HIGH
from shm_arrangements.kernels.cells import (
    KIND,
    KIND_BYTES,
    KIND_I128,
    OFFSETS,
    TABLE,
    VALUES,
    bytes_at,
    compare_bytes,
    compare_cells,
    hash_cells,
    is_null,
    load_i64,
    load_u64,
    place_of,
)
from shm_arrangements.kernels.jit import I64, OUT_I64, OUT_I64_2D, i64, inner, kernel, read, u64
from shm_arrangements.kernels.refs import TABLES, ref_of
from shm_arrangements.kernels.seek import find_code, prefetch, run_end

CHAIN = read(i64, 2)

# The fields of a chain's row: addresses and rows; a step is 8, or 0 if one value stands for all.
FIELDS: Final = 8
CODES, ROWS, TIMES, TIME_STEP, DIFFS, DIFF_STEP = range(6)

OVERFLOW: Final = -1  # instead of a count: a sum is beyond 64 bits

# What `find_word` and `find_key` say instead of a ref.
NONE: Final = -1
MANY: Final = -2

_AHEAD: Final = 8  # keys, when asking the memory for them
_ZERO = np.uint64(0)


@intrinsic
def _words_at(typingctx: Any, address: Any, rows: Any) -> Any:
    array_type = types.Array(types.uint64, 1, "C", readonly=True)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made = context.make_array(array_type)(context, builder)
        data = builder.inttoptr(args[0], context.get_value_type(types.uint64).as_pointer())
        word = context.get_constant(types.intp, 8)
        arrayobj.populate_array(  # type: ignore[no-untyped-call]
            made,
            data=data,
            shape=cgutils.pack_array(builder, [args[1]]),  # type: ignore[no-untyped-call]
            strides=cgutils.pack_array(builder, [word]),  # type: ignore[no-untyped-call]
            itemsize=word,
            meminfo=None,
        )
        return made._getvalue()

    return array_type(types.int64, types.int64), codegen


words_at: Any = _words_at
if getattr(config, "DISABLE_JIT", 0):

    def words_at(address: Any, rows: Any) -> Any:
        if rows == 0:
            return np.empty(0, np.uint64)
        words: Any = (ctypes.c_uint64 * int(rows)).from_address(int(address))
        return np.frombuffer(words, np.uint64)


@inner
def time_of(chain: Any, b: Any, row: Any) -> Any:
    """The time of an update."""
    return load_u64(chain[b, TIMES] + row * chain[b, TIME_STEP])


@inner
def diff_of(chain: Any, b: Any, row: Any) -> Any:
    """The diff of an update."""
    return load_i64(chain[b, DIFFS] + row * chain[b, DIFF_STEP])


@inner
def _compare_updates(
    chain: Any, cells: Any, a: Any, i: Any, b: Any, j: Any, first: Any, last: Any, by_time: Any
) -> int:
    """-1, 0, 1: order of two updates by code, columns first..last-1, and time if asked."""
    x = load_u64(chain[a, CODES] + 8 * i)
    y = load_u64(chain[b, CODES] + 8 * j)
    if x != y:
        return -1 if x < y else 1
    c = compare_cells(cells[a], i, cells[b], j, first, last)
    if c == 0 and by_time:
        x, y = time_of(chain, a, i), time_of(chain, b, j)
        if x != y:
            return -1 if x < y else 1
    return np.int64(c)  # type: ignore[return-value]


@inner
def _next_between(chain: Any, b: Any, row: Any, end: Any, earliest: Any, latest: Any) -> Any:
    """The first update from `row` on whose time counts; `end` if there is none."""
    while row < end:
        time = time_of(chain, b, row)
        if earliest <= time and time <= latest:
            break
        row += 1
    return row


@inner
def _settle(
    heads: Any, q: Any, count: Any, chain: Any, cells: Any, first: Any, last: Any, by_time: Any
) -> None:
    """Move head q, the only one of q..count-1 that is out of order, behind those that are less."""
    b, row, end = heads[q, 0], heads[q, 1], heads[q, 2]
    while q + 1 < count and (
        _compare_updates(chain, cells, b, row, heads[q + 1, 0], heads[q + 1, 1], first, last, by_time) > 0
    ):
        heads[q, 0], heads[q, 1], heads[q, 2] = heads[q + 1, 0], heads[q + 1, 1], heads[q + 1, 2]
        q += 1
    heads[q, 0], heads[q, 1], heads[q, 2] = b, row, end


@inner
def _put(b: Any, row: Any, high: Any, low: Any, refs: Any, sums: Any, at: Any) -> Any:
    """Write the sum of a row at place `at`, unless it is 0. Returns the next place, or OVERFLOW."""
    high += low >> 32
    low &= LOW32
    if high < LEAST_HIGH or high > MOST_HIGH:
        return np.int64(OVERFLOW)
    if high != 0 or low != 0:
        refs[at] = ref_of(b, row)
        sums[at] = (high << 32) + low
        at += 1
    return np.int64(at)


@inner
def fold(
    chain: Any, cells: Any, heads: Any, count: Any, earliest: Any, latest: Any, first: Any, last: Any,
    by_time: Any, refs: Any, sums: Any, at: Any,
) -> Any:  # fmt: skip
    """Merge sorted stretches, heads[q] = (batch, row, end) for q < count, and sum the diffs of equal rows.

    Columns before `first` are known to be equal in them all, but for their codes. Writes a ref of one
    of the updates of each row, and the sum if it is not 0, from place `at` on. Returns the next place, or
    OVERFLOW. `heads` is used up.
    """
    live = np.int64(0)
    for q in range(count - 1, -1, -1):  # the sorted ones stand at the end, and grow towards the beginning
        b, end = heads[q, 0], heads[q, 2]
        row = _next_between(chain, b, heads[q, 1], end, earliest, latest)
        if row < end:
            place = count - 1 - live
            heads[place, 0], heads[place, 1], heads[place, 2] = b, row, end
            live += 1
            _settle(heads, place, count, chain, cells, first, last, by_time)
    base = count - live
    head_b, head_row = np.int64(-1), np.int64(0)
    high, low = np.int64(0), np.int64(0)
    while base < count:
        b, row = heads[base, 0], heads[base, 1]
        if head_b < 0 or (
            _compare_updates(chain, cells, head_b, head_row, b, row, first, last, by_time) != 0
        ):
            if head_b >= 0:
                at = _put(head_b, head_row, high, low, refs, sums, at)
                if at == OVERFLOW:
                    return np.int64(OVERFLOW)
            head_b, head_row = b, row
            high, low = np.int64(0), np.int64(0)
        diff = diff_of(chain, b, row)
        high += diff >> 32
        low += diff & LOW32
        row = _next_between(chain, b, row + 1, heads[base, 2], earliest, latest)
        if row < heads[base, 2]:
            heads[base, 1] = row
            _settle(heads, base, count, chain, cells, first, last, by_time)
        else:
            base += 1
    if head_b >= 0:
        at = _put(head_b, head_row, high, low, refs, sums, at)
    return np.int64(at)


@inner
def _first_not_below(table: Any, lo: Any, hi: Any, keys: Any, k: Any, columns: Any, least: Any) -> Any:
    """First row in [lo, hi] whose key is not below key k (compared: `least` 0), or is above it (1)."""
    while lo < hi:
        middle = (lo + hi) >> 1
        if compare_cells(table, middle, keys, k, 0, columns) < least:
            lo = middle + 1
        else:
            hi = middle
    return lo


@inner
def key_run(table: Any, lo: Any, hi: Any, keys: Any, k: Any, columns: Any) -> Any:
    """The part of the run [lo, hi) of equal codes whose key is row k of `keys`: its first row and its end."""
    if compare_cells(table, lo, keys, k, 0, columns) != 0:
        lo = _first_not_below(table, lo + 1, hi, keys, k, columns, 0)
        if lo == hi or compare_cells(table, lo, keys, k, 0, columns) != 0:
            return np.int64(lo), np.int64(lo)
    if hi - lo > 1 and compare_cells(table, hi - 1, keys, k, 0, columns) != 0:
        hi = _first_not_below(table, lo + 1, hi - 1, keys, k, columns, 1)
    return np.int64(lo), np.int64(hi)


@inner
def find_in_batch(codes: Any, table: Any, code: Any, keys: Any, k: Any, columns: Any) -> Any:
    """Where the updates of one key stand in a batch: first row and end; equal if it has none.

    codes: (n,) uint64 of the batch. table: its cells. code: that of row k of the cells `keys`, whose
    `columns` first columns are the key. For other kernels: a search of ten million updates takes about half a
    microsecond if none of them is in a cache.
    """
    lo = find_code(codes, code)
    if lo == codes.shape[0] or codes[lo] != code:
        return np.int64(lo), np.int64(lo)
    return key_run(table, lo, run_end(codes, lo), keys, k, columns)


@inner
def _only(chain: Any, b: Any, lo: Any, hi: Any, latest: Any, found: Any) -> Any:
    """What is known when [lo, hi) of batch b joins `found`: a ref only of one update of diff 1."""
    for row in range(lo, hi):
        if time_of(chain, b, row) > latest:
            continue
        if found != NONE or diff_of(chain, b, row) != 1:
            return np.int64(MANY)
        found = ref_of(b, row)
    return np.int64(found)


@kernel(CHAIN, i64, i64)
def find_word(chain: Any, word: int, latest: int) -> int:
    """The update of the key whose code, alone, is the key: IDENTITY, and not both NULL and 0.

    word, latest: the bits of u64. Returns its ref if it is one, of diff 1; NONE if no time up to
    `latest` has one; MANY if there is more to say.
    """
    code = np.uint64(np.int64(word))
    found: Any = np.int64(NONE)
    for b in range(chain.shape[0]):
        codes = words_at(chain[b, CODES], chain[b, ROWS])
        lo = find_code(codes, code)
        hi = lo
        while hi < codes.shape[0] and codes[hi] == code:
            hi += 1
            if hi - lo > 2:
                return MANY
        found = _only(chain, b, lo, hi, np.uint64(latest), found)
        if found == MANY:
            return MANY
    return found  # type: ignore[no-any-return]


@kernel(CHAIN, TABLES, TABLE, i64, i64, i64)
def find_key(chain: Any, cells: Any, key: Any, columns: int, ordered: int, latest: int) -> int:
    """As `find_word`, for the key that row 0 of the table `key` holds.

    ordered: whether batches are sorted by their keys; else codes are hashes.
    """
    code = hash_cells(key, 0, 0, columns) if ordered == 0 else _ZERO
    found: Any = np.int64(NONE)
    for b in range(chain.shape[0]):
        table = cells[b]
        if ordered != 0:
            n = chain[b, ROWS]
            lo = _first_not_below(table, 0, n, key, 0, columns, 0)
            hi = lo
            while hi < n and compare_cells(table, hi, key, 0, 0, columns) == 0:
                hi += 1
                if hi - lo > 2:
                    return MANY
        else:
            words = words_at(chain[b, CODES], chain[b, ROWS])
            lo, hi = find_in_batch(words, table, code, key, 0, columns)
        found = _only(chain, b, lo, hi, np.uint64(latest), found)
        if found == MANY:
            return MANY
    return found  # type: ignore[no-any-return]


@inner
def _ask_for(table: Any, row: Any, near: Any) -> None:
    """Have the memory bring the first column of a row; of texts first where they are, then (`near`) them."""
    kind = table[0, KIND]
    if kind == KIND_BYTES:
        if near:
            lo, _ = bytes_at(table, 0, place_of(table, 0, row))
            prefetch(table[0, VALUES] + lo)
        else:
            prefetch(table[0, OFFSETS] + 8 * row)
    elif not near:
        prefetch(table[0, VALUES] + row * (16 if kind >= KIND_I128 else 8))


@kernel(TABLES, TABLE, i64, OUT_I64, OUT_I64)
def narrow_runs(cells: Any, keys: Any, columns: int, lo: Any, hi: Any) -> int:
    """Narrow runs of n keys' codes to those of the keys themselves, in place. Returns the updates left.

    lo, hi: (m * n,), where the code of key k stands in batch b, at place b * n + k. keys: the table of their
    `columns` columns.
    """
    m = cells.shape[0]
    n = lo.shape[0] // max(m, 1)
    left: Any = 0
    for b in range(m):
        table = cells[b]
        for place in range(b * n, b * n + n):
            for ahead in (2 * _AHEAD, _AHEAD):
                if place + ahead < b * n + n and lo[place + ahead] < hi[place + ahead]:
                    _ask_for(table, lo[place + ahead], ahead == _AHEAD)
            if lo[place] < hi[place]:
                start, end = key_run(table, lo[place], hi[place], keys, place - b * n, columns)
                lo[place], hi[place] = start, end
                left += end - start
    return left  # type: ignore[no-any-return]


@kernel(CHAIN, TABLES, i64, i64, I64, I64, u64, OUT_I64_2D, OUT_I64, OUT_I64, OUT_I64)
def fold_runs(
    chain: Any, cells: Any, first: int, last: int, lo: Any, hi: Any, latest: Any,
    heads: Any, refs: Any, sums: Any, out_keys: Any,
) -> int:  # fmt: skip
    """The rows of n keys at a time, in the keys' order: a ref, a sum that is not 0, and which key.

    lo, hi: (m * n,), where key k stands in batch b, at place b * n + k. first: columns before it are a key's,
    and not compared; last: the number of columns. heads: (m, 3) scratch. Returns the rows, or OVERFLOW.
    """
    m = chain.shape[0]
    n = lo.shape[0] // m
    at: Any = np.int64(0)
    for k in range(n):
        count = np.int64(0)
        for b in range(m):
            start, end = lo[b * n + k], hi[b * n + k]
            if start < end:
                heads[count, 0], heads[count, 1], heads[count, 2] = b, start, end
                count += 1
        if count == 0:
            continue
        before = at
        if count == 1 and heads[0, 2] - heads[0, 1] == 1:
            b, row = heads[0, 0], heads[0, 1]
            if time_of(chain, b, row) <= latest:
                refs[at] = ref_of(b, row)
                sums[at] = diff_of(chain, b, row)
                at += 1
        else:
            at = fold(chain, cells, heads, count, np.uint64(0), latest, first, last, False, refs, sums, at)
            if at == OVERFLOW:
                return OVERFLOW
        for place in range(before, at):
            out_keys[place] = k
    return at  # type: ignore[no-any-return]


@kernel(CHAIN, TABLES, I64, I64, u64, u64, i64, i64, OUT_I64_2D, OUT_I64, OUT_I64)
def fold_ranges(
    chain: Any, cells: Any, lo: Any, hi: Any, earliest: Any, latest: Any, columns: int, by_time: int,
    heads: Any, refs: Any, sums: Any,
) -> int:  # fmt: skip
    """The rows of [lo[b], hi[b]) of each batch b, in the batches' order: a ref and a sum that is not 0.

    Of updates whose time is in [earliest, latest]; by_time: equal rows are summed only if of one time.
    heads: (m, 3) scratch. Returns the rows, or OVERFLOW.
    """
    count = np.int64(0)
    for b in range(chain.shape[0]):
        if lo[b] < hi[b]:
            heads[count, 0], heads[count, 1], heads[count, 2] = b, lo[b], hi[b]
            count += 1
    at: Any = fold(
        chain, cells, heads, count, earliest, latest, 0, columns, by_time != 0, refs, sums, np.int64(0)
    )
    return at  # type: ignore[no-any-return]


@inner
def _compare_beginning(table: Any, column: Any, row: Any, key: Any) -> int:
    """Order of the beginning of a text to that of the key, which is not NULL, and 0 if it begins with it."""
    if is_null(table, column, row):
        return 1
    lo, hi = bytes_at(table, column, place_of(table, column, row))
    key_lo, key_hi = bytes_at(key, column, place_of(key, column, 0))
    size = min(hi - lo, key_hi - key_lo)
    return compare_bytes(table[column, VALUES] + lo, size, key[column, VALUES] + key_lo, key_hi - key_lo)


@kernel(TABLE, i64, TABLE, i64, i64, i64)
def bound(table: Any, rows: int, key: Any, columns: int, prefix: int, above: int) -> int:
    """Position in a batch sorted by its columns: its first row whose key is not below that of `key`'s row 0.

    columns: of the key, those compared. prefix: of the last one, texts or bytes, only as many bytes as the
    key has. above: the first row whose key is above it. NULL is above every value.
    """
    lo, hi = 0, rows
    while lo < hi:
        middle = (lo + hi) >> 1
        c = compare_cells(table, middle, key, 0, 0, columns - prefix)
        if c == 0 and prefix != 0:
            c = _compare_beginning(table, columns - 1, middle, key)
        if c < above:
            lo = middle + 1
        else:
            hi = middle
    return lo
