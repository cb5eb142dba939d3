"""Finding and summing updates in a chain of batches, whatever their schema and encodings.

A *chain* tells kernels where m batches lie: one row of eight int64 a batch (`FIELDS`), addresses included,
and beside it `cells` (m, columns, 8), the batches' tables (cells.py). A constant time or diff has step 0, so
who reads it needs not know. An update of a chain is named by a *reference*: its row, and its batch from bit
`BATCH_SHIFT` on.

Within a batch, updates are sorted by (code, columns, time). `_fold` merges sorted stretches of several
batches and sums the updates of equal rows; everything else here chooses the stretches: the runs of the keys
that are looked up, the ranges that are read in order, and in a scan only those codes that stand in more than
one batch, or that a batch of several times has more than once. Codes are found to be shared by a small table
of what the batches have in a stretch of codes, so that what a scan costs beyond copying is a pass or two over
the codes.

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
from shm_arrangements.kernels.jit import (
    I64,
    OUT_I64,
    OUT_U32,
    i64,
    inner,
    kernel,
    read,
    u64,
    write,
)
from shm_arrangements.kernels.seek import find_code, prefetch, run_end

CHAIN = read(i64, 2)
CELLS = read(i64, 3)
OUT_I64_2D = write(i64, 2)

# The fields of a chain's row: addresses and rows; a step is 8, or 0 if one value stands for all.
FIELDS: Final = 8
CODES, ROWS, TIMES, TIME_STEP, DIFFS, DIFF_STEP = range(6)

BATCH_SHIFT: Final = 40
ROW_MASK: Final = (1 << BATCH_SHIFT) - 1
OVERFLOW: Final = -1  # instead of a count: a sum is beyond 64 bits

# What `find_word` and `find_key` say instead of a reference.
NONE: Final = -1
MANY: Final = -2

_AHEAD: Final = 8  # keys, when asking the memory for them
_STRETCH: Final = 256  # updates of a batch whose codes are compared with the others' at a time
_SLOT_BITS: Final = 14
SLOTS: Final = 1 << _SLOT_BITS  # of the table of codes, u32: it stays in the second cache
_MARK_BITS: Final = 16  # of a slot, who was there; above them when
_SHARED: Final = (1 << _MARK_BITS) - 1
_LAST_EPOCH: Final = (1 << 16) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SLOT_SHIFT = np.uint64(64 - _SLOT_BITS)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_LAST_CODE = np.uint64((1 << 64) - 1)
_LOW32 = (1 << 32) - 1
_MOST = (1 << 63) - 1
_LEAST = -(1 << 63)


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
def reference(b: Any, row: Any) -> Any:
    """The name of an update in its chain."""
    return (np.int64(b) << BATCH_SHIFT) | np.int64(row)


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
def _fold(
    chain: Any, cells: Any, heads: Any, count: Any, earliest: Any, latest: Any, first: Any, last: Any,
    by_time: Any, refs: Any, sums: Any, at: Any,
) -> Any:  # fmt: skip
    """Merge sorted stretches, heads[q] = (batch, row, end) for q < count, and sum the diffs of equal rows.

    Columns before `first` are known to be equal in them all, but for their codes. Writes a reference to one
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
                high += low >> 32
                low &= _LOW32
                if high < -(1 << 31) or high >= 1 << 31:
                    return np.int64(OVERFLOW)
                if high != 0 or low != 0:
                    refs[at] = reference(head_b, head_row)
                    sums[at] = (high << 32) + low
                    at += 1
            head_b, head_row = b, row
            high, low = np.int64(0), np.int64(0)
        diff = diff_of(chain, b, row)
        high += diff >> 32
        low += diff & _LOW32
        row = _next_between(chain, b, row + 1, heads[base, 2], earliest, latest)
        if row < heads[base, 2]:
            heads[base, 1] = row
            _settle(heads, base, count, chain, cells, first, last, by_time)
        else:
            base += 1
    if head_b >= 0:
        high += low >> 32
        low &= _LOW32
        if high < -(1 << 31) or high >= 1 << 31:
            return np.int64(OVERFLOW)
        if high != 0 or low != 0:
            refs[at] = reference(head_b, head_row)
            sums[at] = (high << 32) + low
            at += 1
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
    """What is known when [lo, hi) of batch b joins `found`: a reference only to one update of diff 1."""
    for row in range(lo, hi):
        if time_of(chain, b, row) > latest:
            continue
        if found != NONE or diff_of(chain, b, row) != 1:
            return np.int64(MANY)
        found = reference(b, row)
    return np.int64(found)


@kernel(CHAIN, i64, i64)
def find_word(chain: Any, word: int, latest: int) -> int:
    """The update of the key whose code, alone, is the key: IDENTITY, and not both NULL and 0.

    word, latest: the bits of u64. Returns its reference if it is one, of diff 1; NONE if no time up to
    `latest` has one; MANY if there is more to say.
    """
    code = np.uint64(word)
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


@kernel(CHAIN, CELLS, TABLE, i64, i64, i64)
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


@kernel(CELLS, TABLE, i64, OUT_I64, OUT_I64)
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


@kernel(CHAIN, CELLS, i64, i64, I64, I64, u64, OUT_I64_2D, OUT_I64, OUT_I64, OUT_I64)
def fold_runs(
    chain: Any, cells: Any, first: int, last: int, lo: Any, hi: Any, latest: Any,
    heads: Any, refs: Any, sums: Any, out_keys: Any,
) -> int:  # fmt: skip
    """The rows of n keys at a time, in the keys' order: a reference, a sum that is not 0, and which key.

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
                refs[at] = reference(b, row)
                sums[at] = diff_of(chain, b, row)
                at += 1
        else:
            at = _fold(chain, cells, heads, count, np.uint64(0), latest, first, last, False, refs, sums, at)
            if at == OVERFLOW:
                return OVERFLOW
        for place in range(before, at):
            out_keys[place] = k
    return at  # type: ignore[no-any-return]


@kernel(CHAIN, CELLS, I64, I64, u64, u64, i64, i64, OUT_I64_2D, OUT_I64, OUT_I64)
def fold_ranges(
    chain: Any, cells: Any, lo: Any, hi: Any, earliest: Any, latest: Any, columns: int, by_time: int,
    heads: Any, refs: Any, sums: Any,
) -> int:  # fmt: skip
    """The rows of [lo[b], hi[b]) of each batch b, in the batches' order: a reference and a sum that is not 0.

    Of updates whose time is in [earliest, latest]; by_time: equal rows are summed only if of one time.
    heads: (m, 3) scratch. Returns the rows, or OVERFLOW.
    """
    count = np.int64(0)
    for b in range(chain.shape[0]):
        if lo[b] < hi[b]:
            heads[count, 0], heads[count, 1], heads[count, 2] = b, lo[b], hi[b]
            count += 1
    at: Any = _fold(
        chain, cells, heads, count, earliest, latest, 0, columns, by_time != 0, refs, sums, np.int64(0)
    )
    return at  # type: ignore[no-any-return]


@inner
def _slot(code: Any) -> Any:
    return np.int64((code * _ODD) >> _SLOT_SHIFT)


@inner
def _is_special(chain: Any, b: Any, codes: Any, row: Any, lo: Any, hi: Any, latest: Any) -> bool:
    """Whether an update of a batch of several times may have to be left out or summed."""
    code = codes[row]
    if row + 1 < hi and codes[row + 1] == code:
        return True
    if row > lo and codes[row - 1] == code:
        return True
    return time_of(chain, b, row) > latest  # type: ignore[no-any-return]


@inner
def _stretch_end(chain: Any, places: Any, hi: Any) -> Any:
    """The last code of the next stretch: at most about _STRETCH updates of each batch have one up to it."""
    top = _LAST_CODE
    for b in range(chain.shape[0]):
        place = places[b, 0]
        if hi[b] - place > _STRETCH:
            ahead = load_u64(chain[b, CODES] + 8 * (place + _STRETCH))
            top = min(top, ahead - _ONE if ahead > _ZERO else ahead)
    least = _LAST_CODE
    for b in range(chain.shape[0]):
        if places[b, 0] < hi[b]:
            least = min(least, load_u64(chain[b, CODES] + 8 * places[b, 0]))
    return max(top, least)


@kernel(
    CHAIN, CELLS, I64, I64, I64, i64, u64, i64, OUT_U32, OUT_I64_2D, OUT_I64_2D, OUT_I64, OUT_I64, OUT_I64
)
def fold_shared(
    chain: Any, cells: Any, lo: Any, hi: Any, mixed: Any, largest: int, latest: Any, columns: int,
    slots: Any, places: Any, heads: Any, left_out: Any, refs: Any, sums: Any,
) -> int:  # fmt: skip
    """Of [lo[b], hi[b]) of each batch b, sum the updates that must be, and list them; the others are rows.

    mixed: (m,), of batch b whether it has several times (or parts of sums), so that its own updates may have
    to be summed; else it has only times up to `latest`. largest: the batch to be passed over just once.
    slots: (SLOTS,) scratch, zero. places: (m, 4) scratch; places[b, 1] gets the number of updates of b that
    were listed, in ascending order, in left_out from the place on that is the sum of hi - lo of the batches
    before b. heads: (m, 3) scratch. refs, sums: what they come to, as in `fold_ranges`.
    Returns the rows written, or OVERFLOW.
    """
    m = chain.shape[0]
    at: Any = np.int64(0)
    room = np.int64(0)
    for b in range(m):
        places[b, 0] = lo[b]
        places[b, 1] = 0
        places[b, 3] = room
        room += hi[b] - lo[b]
    epoch = np.int64(0)
    while True:
        active = 0
        for b in range(m):
            active += places[b, 0] < hi[b]
        if active == 0:
            return at  # type: ignore[no-any-return]
        top = _stretch_end(chain, places, hi)
        epoch += 1
        if epoch == _LAST_EPOCH:
            for slot in range(SLOTS):
                slots[slot] = 0
            epoch = np.int64(1)
        shared_mark = (epoch << _MARK_BITS) | _SHARED
        others = 0
        # Every batch but the largest leaves its mark at its codes, and sees those of others.
        for b in range(m):
            codes = words_at(chain[b, CODES], chain[b, ROWS])
            row, end = places[b, 0], hi[b]
            if b == largest:
                continue
            mark = (epoch << _MARK_BITS) | (b + 1)
            while row < end and codes[row] <= top:
                slot = _slot(codes[row])
                seen = np.int64(slots[slot])
                slots[slot] = shared_mark if seen >> _MARK_BITS == epoch and seen != mark else mark
                row += 1
            others += row > places[b, 0]
            places[b, 2] = row
        # The largest needs not be seen by itself: it only makes others' marks shared ones.
        b = largest
        codes = words_at(chain[b, CODES], chain[b, ROWS])
        row, end = places[b, 0], hi[b]
        listed = places[b, 3] + places[b, 1]
        if others == 0 and mixed[b] == 0:
            row = min(row + _STRETCH, end)
            while row < end and codes[row] <= top:
                row += 1
            while codes[row - 1] > top:
                row -= 1
        else:
            while row < end and codes[row] <= top:
                slot = _slot(codes[row])
                special = np.int64(slots[slot]) >> _MARK_BITS == epoch
                if special:
                    slots[slot] = shared_mark
                elif mixed[b] != 0:
                    special = _is_special(chain, b, codes, row, lo[b], end, latest)
                if special:
                    left_out[listed] = row
                    listed += 1
                row += 1
        places[b, 2] = listed
        places[b, 0] = row
        shared = listed > places[b, 3] + places[b, 1]
        for b in range(m):
            if b == largest:
                continue
            codes = words_at(chain[b, CODES], chain[b, ROWS])
            listed = places[b, 3] + places[b, 1]
            for row in range(places[b, 0], places[b, 2]):
                special = np.int64(slots[_slot(codes[row])]) == shared_mark
                if not special and mixed[b] != 0:
                    special = _is_special(chain, b, codes, row, lo[b], hi[b], latest)
                if special:
                    left_out[listed] = row
                    listed += 1
            shared = shared or listed > places[b, 3] + places[b, 1]
            places[b, 0] = places[b, 2]
            places[b, 2] = listed
        if shared:
            at = _fold_listed(chain, cells, mixed, latest, columns, places, heads, left_out, refs, sums, at)
            if at == OVERFLOW:
                return OVERFLOW
        for b in range(m):
            places[b, 1] = places[b, 2] - places[b, 3]


@inner
def _fold_listed(
    chain: Any, cells: Any, mixed: Any, latest: Any, columns: Any, places: Any, heads: Any, left_out: Any,
    refs: Any, sums: Any, at: Any,
) -> Any:  # fmt: skip
    """Sum what was listed of a stretch, code by code: from places[b, 3] + places[b, 1] up to places[b, 2]."""
    m = chain.shape[0]
    while True:
        least = _LAST_CODE
        any_left = False
        for b in range(m):
            listed = places[b, 3] + places[b, 1]
            if listed < places[b, 2]:
                any_left = True
                least = min(least, load_u64(chain[b, CODES] + 8 * left_out[listed]))
        if not any_left:
            return np.int64(at)
        count = np.int64(0)
        for b in range(m):
            listed = places[b, 3] + places[b, 1]
            if listed == places[b, 2]:
                continue
            row = left_out[listed]
            if load_u64(chain[b, CODES] + 8 * row) != least:
                continue
            end = row  # a run of a code is listed whole
            while listed < places[b, 2] and load_u64(chain[b, CODES] + 8 * left_out[listed]) == least:
                listed += 1
                end += 1
            places[b, 1] = listed - places[b, 3]
            heads[count, 0], heads[count, 1], heads[count, 2] = b, row, end
            count += 1
        if count == 1 and mixed[heads[0, 0]] == 0:  # only its slot was another's, too
            for row in range(heads[0, 1], heads[0, 2]):
                refs[at] = reference(heads[0, 0], row)
                sums[at] = diff_of(chain, heads[0, 0], row)
                at += 1
            continue
        at = _fold(chain, cells, heads, count, np.uint64(0), latest, 0, columns, False, refs, sums, at)
        if at == OVERFLOW:
            return np.int64(OVERFLOW)


@kernel(I64)
def has_extreme(diffs: Any) -> bool:
    """Whether a diff is 2^63 - 1 or -2^63: perhaps a part of a larger sum (batch.py)."""
    found = 0
    for i in range(diffs.shape[0]):
        found += int(diffs[i] == _MOST) + int(diffs[i] == _LEAST)
    return found != 0


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
