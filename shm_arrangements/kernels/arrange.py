"""Batch order, once codes are sorted: rows of equal codes by columns, then time; and the sums of equal ones.

Two or three rows of one code are inserted by comparing whole rows. More, be it all rows of an empty key, are
sorted by *levels*: a column's NULLs, then its order words (cells.py), of texts 8 bytes at a time and then the
length, and the time last. A level is one radix sort of one word a row, and only what ties goes on to the
next; so the cost is linear in the rows and the bytes that tell them apart. Lists and records have no words:
rows that tie until there are merged by comparing.

The words are written over the rows' codes, which are all the same and restored afterwards.

Does not: sort codes (sort.py), or move columns (assemble.py).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.kernels.accumulate import LOW32, write_parts
from shm_arrangements.kernels.cells import (
    KIND,
    KIND_BYTES,
    KIND_I128,
    KIND_LIST,
    TABLE,
    VALIDITY,
    VALUES,
    bytes_at,
    cell,
    compare_cells,
    is_null,
    order_word,
    place_of,
    prefix_word,
)
from shm_arrangements.kernels.jit import (
    I64,
    OUT_I64,
    OUT_I64_2D,
    OUT_U32,
    OUT_U64,
    OUT_U64_2D,
    U32,
    U64,
    i64,
    inner,
    kernel,
)
from shm_arrangements.kernels.sort import sort_piece

TINY: Final = 3  # rows of one code up to which comparing is cheaper than levels
SMALL: Final = 24  # up to which no scratch is needed
DEPTH: Final = 64  # levels that may be open at once; what is still tied then is merged by comparing
# Parts of a column's levels: whether it is NULL, its order words or eights of bytes, and a text's length.
_NULLS = -1
_SIZE = 1 << 40
_MOST = (1 << 63) - 1

# What span says of diffs.
ONE, ZERO = 1, 2
# What order_ties has to say: where to go on, and the rows of scratch that takes.
NEXT, ROOM = range(2)


@inner
def _is_after(table: Any, first: Any, last: Any, times: Any, i: Any, j: Any) -> bool:
    """Whether row i sorts behind row j, by columns first..last-1, then time."""
    c = compare_cells(table, i, table, j, first, last)
    if c != 0:
        return c > 0
    return times.shape[0] > 1 and times[i] > times[j]  # type: ignore[no-any-return]


@inner
def _insert_rows(table: Any, first: Any, last: Any, times: Any, order: Any, lo: Any, hi: Any) -> None:
    """Sort order[lo:hi] by insertion, its place found by halving."""
    for k in range(lo + 1, hi):
        row = order[k]
        if not _is_after(table, first, last, times, order[k - 1], row):
            continue
        left, right = np.int64(lo), np.int64(k - 1)  # the first place behind which `row` does not belong
        while left < right:
            middle = (left + right) >> 1
            if _is_after(table, first, last, times, order[middle], row):
                right = middle
            else:
                left = middle + 1
        for at in range(k, left, -1):
            order[at] = order[at - 1]
        order[left] = row


@inner
def _merge_rows(
    table: Any, first: Any, last: Any, times: Any, order: Any, spare: Any, lo: Any, hi: Any
) -> None:
    """Sort order[lo:hi] by merging, bottom up."""
    width = np.int64(1)
    while width < hi - lo:
        for start in range(lo, hi - width, 2 * width):
            middle, end = start + width, min(start + 2 * width, hi)
            if not _is_after(table, first, last, times, order[middle - 1], order[middle]):
                continue
            for k in range(width):
                spare[k] = order[start + k]
            a, b, at = np.int64(0), middle, start
            while a < width and b < end:
                if _is_after(table, first, last, times, spare[a], order[b]):
                    order[at] = order[b]
                    b += 1
                else:
                    order[at] = spare[a]
                    a += 1
                at += 1
            while a < width:
                order[at] = spare[a]
                a += 1
                at += 1
        width *= 2


@inner
def _first_part(table: Any, column: Any, last: Any) -> int:
    return _NULLS if column < last and table[column, VALIDITY] != 0 else 0


@inner
def _fill_level(
    table: Any, column: Any, part: Any, last: Any, times: Any, keys: Any, order: Any, lo: Any, hi: Any
) -> Any:
    """Write the words of a level over keys[lo:hi].

    Returns whether they are all the same, and whether a text has bytes beyond them.
    """
    longer = False
    if column == last:
        for k in range(lo, hi):
            keys[k] = times[order[k]]
    elif part == _NULLS:
        for k in range(lo, hi):
            keys[k] = np.uint64(is_null(table, column, np.int64(order[k])))
    elif table[column, KIND] == KIND_BYTES:
        values = table[column, VALUES]
        for k in range(lo, hi):
            start, end = bytes_at(table, column, place_of(table, column, np.int64(order[k])))
            if part == _SIZE:
                keys[k] = np.uint64(end - start)
                continue
            start += 8 * part
            keys[k] = prefix_word(values + start, max(end - start, 0))
            longer = longer or end - start > 8
    else:
        for k in range(lo, hi):
            keys[k] = order_word(table, column, place_of(table, column, np.int64(order[k])), part)
    same = True
    for k in range(lo + 1, hi):
        if keys[k] != keys[lo]:
            same = False
            break
    return same, longer


@inner
def _next_level(table: Any, column: Any, part: Any, last: Any, longer: Any) -> Any:
    """The level behind one: column (`last` is the time, and then it is over) and part."""
    if column < last:
        if part == _NULLS:
            return column, np.int64(0)
        kind = table[column, KIND]
        if kind == KIND_BYTES and part != _SIZE:
            return column, np.int64(part + 1 if longer else _SIZE)
        if part == 0 and kind >= KIND_I128 and kind < KIND_BYTES:
            return column, np.int64(1)
    return column + 1, np.int64(_first_part(table, column + 1, last))


@inner
def _sort_run(
    table: Any, first: Any, last: Any, times: Any, keys: Any, order: Any, lo: Any, hi: Any, spare_keys: Any,
    spare_order: Any, tallies: Any, frames: Any, open_levels: Any,
) -> None:  # fmt: skip
    """Sort order[lo:hi], whose rows are not told apart by what is before column `first`.

    frames: of sort_piece. open_levels (DEPTH, 3): end, column and part of what is open.
    """
    depth = 0
    end_level = last + np.int64(times.shape[0] > 1)
    column, part = np.int64(first), np.int64(_first_part(table, first, last))
    at, end = np.int64(lo), np.int64(hi)
    while True:
        # [at, end) is tied before (column, part).
        opened = False
        rows = end - at
        if rows > 1 and column < end_level:
            wordless = column < last and part != _NULLS and table[column, KIND] >= KIND_LIST
            if rows <= TINY or (rows <= SMALL and (wordless or depth == DEPTH)):
                _insert_rows(table, min(column, last), last, times, order, at, end)
            elif wordless or depth == DEPTH:
                _merge_rows(table, column, last, times, order, spare_order, at, end)
            else:
                same, longer = _fill_level(table, column, part, last, times, keys, order, at, end)
                if not same:
                    sort_piece(keys, order, at, end, spare_keys, spare_order, tallies, frames)
                column, part = _next_level(table, column, part, last, longer)
                if same:
                    continue
                if column < end_level:
                    open_levels[depth, 0], open_levels[depth, 1], open_levels[depth, 2] = end, column, part
                    depth += 1
                    opened = True
        if not opened:
            at = end
        while depth > 0 and open_levels[depth - 1, 0] == at:
            depth -= 1
        if depth == 0:
            return
        last_end = open_levels[depth - 1, 0]
        column, part = open_levels[depth - 1, 1], open_levels[depth - 1, 2]
        end = at + 1
        while end < last_end and keys[end] == keys[at]:
            end += 1


@kernel(
    TABLE, i64, i64, U64, OUT_U64, OUT_U32, OUT_U64, OUT_U32, OUT_U32, OUT_U64_2D, OUT_I64_2D, OUT_I64
)  # fmt: skip
def order_ties(
    table: Any, first: int, last: int, times: Any, keys: Any, order: Any, spare_keys: Any, spare_order: Any,
    tallies: Any, frames: Any, open_levels: Any, state: Any,
) -> int:  # fmt: skip
    """Sort rows of equal codes by columns first..last-1, then time.

    keys (n,): the sorted codes; order (n,): their rows.

    times: (rows,), or (1,) if all are the same. spare_keys, spare_order: scratch, as long as the most rows of
    more than SMALL that share a code. tallies, frames: as in sort.py; open_levels (DEPTH, 3).
    Begins at row state[NEXT]. Returns 1 when done; or 0 if scratch is short: to be called again with
    state[ROOM] rows of it.
    """
    n = order.shape[0]
    lo = state[NEXT]
    while lo < n:
        code = keys[lo]
        hi = lo + 1
        while hi < n and keys[hi] == code:
            hi += 1
        if hi - lo > 1:
            if hi - lo > max(SMALL, spare_order.shape[0]):
                state[NEXT] = lo
                state[ROOM] = _longest_run(keys, lo)
                return 0
            _sort_run(
                table, first, last, times, keys, order, lo, hi, spare_keys, spare_order, tallies, frames,
                open_levels,
            )  # fmt: skip
            if hi - lo > TINY:
                for k in range(lo, hi):
                    keys[k] = code
        lo = hi
    return 1


@inner
def _longest_run(keys: Any, start: Any) -> Any:
    longest, lo = np.int64(0), start
    for k in range(start, keys.shape[0]):
        if keys[k] != keys[lo]:
            lo = k
        longest = max(longest, k + 1 - lo)
    return longest


@inner
def _is_same(table: Any, first: Any, last: Any, times: Any, keys: Any, order: Any, k: Any, j: Any) -> bool:
    """Whether places k and j of the order have the same row and time."""
    if keys[k] != keys[j]:
        return False
    x, y = np.int64(order[k]), np.int64(order[j])
    if times.shape[0] > 1 and times[x] != times[y]:
        return False
    return compare_cells(table, x, table, y, first, last) == 0


@kernel(TABLE, i64, i64, U64, I64, U64, U32)
def find_sum(table: Any, first: int, last: int, times: Any, diffs: Any, keys: Any, order: Any) -> int:
    """The first place of the order at which something is to be summed or dropped; n if there is none.

    times, diffs: (rows,), or (1,) if all are the same.
    """
    n = order.shape[0]
    one = diffs.shape[0] == 1
    if one and diffs[0] == 0:
        return 0
    for k in range(n):
        if k > 0 and keys[k] == keys[k - 1] and _is_same(table, first, last, times, keys, order, k, k - 1):
            return k - 1
        if not one and diffs[order[k]] == 0:
            return k
    return n  # type: ignore[no-any-return]


@kernel(TABLE, i64, i64, U64, I64, i64, OUT_U64, OUT_U32, OUT_I64)
def sum_ties(
    table: Any, first: int, last: int, times: Any, diffs: Any, start: int, keys: Any, order: Any, sums: Any
) -> int:
    """Sum the diffs of neighbours of the same row and time, drop zero sums; in place, from `start` on.

    sums (n,) gets the diffs, those before `start` too. A sum beyond 64 bits is written in parts, all but one
    of them 2^63 - 1 or -2^63. Returns how many are left.
    """
    for i in range(start):
        sums[i] = cell(diffs, order[i])
    n = order.shape[0]
    kept: Any = np.int64(start)
    k: Any = np.int64(start)
    while k < n:
        head = k
        code, row = keys[k], order[k]
        high: Any = np.int64(0)
        low: Any = np.int64(0)
        while k < n and (k == head or _is_same(table, first, last, times, keys, order, k, head)):
            diff = cell(diffs, order[k])
            high += diff >> 32
            low += diff & LOW32
            k += 1
        high += low >> 32
        end = write_parts(high, low & LOW32, sums, kept)
        while kept < end:
            keys[kept], order[kept] = code, row
            kept += 1
    return kept  # type: ignore[no-any-return]


@kernel(U64)
def has_ties(keys: Any) -> int:
    """Whether any two neighbours are the same."""
    for k in range(1, keys.shape[0]):
        if keys[k] == keys[k - 1]:
            return 1
    return 0


@kernel(U64, U32)
def is_one_word(words: Any, order: Any) -> int:
    """Whether the words of rows `order` (m,), m > 0, are all the same."""
    for k in range(1, order.shape[0]):
        if words[order[k]] != words[order[0]]:
            return 0
    return 1


@kernel(I64)
def is_one_diff(sums: Any) -> int:
    """Whether sums (m,), m > 0, are all the same."""
    for k in range(1, sums.shape[0]):
        if sums[k] != sums[0]:
            return 0
    return 1


@kernel(U64, I64, OUT_U64)
def span(times: Any, diffs: Any, out: Any) -> int:
    """out (2,) gets the least and the greatest of n > 0 times.

    Returns ONE if diffs are all the same, plus ZERO if one is 0.
    """
    least, most = times[0], times[0]
    for k in range(1, times.shape[0]):
        least = min(least, times[k])
        most = max(most, times[k])
    out[0], out[1] = least, most
    one, zero = True, False
    for k in range(diffs.shape[0]):
        one = one and diffs[k] == diffs[0]
        zero = zero or diffs[k] == 0
    return np.int64(one) * ONE + np.int64(zero) * ZERO  # type: ignore[return-value]


# Why check_order stops.
UNSORTED, UNSUMMED, SPLIT = range(3)


@kernel(TABLE, i64, U64, U64, I64, OUT_I64)
def check_order(table: Any, columns: int, codes: Any, times: Any, diffs: Any, state: Any) -> int:
    """The first row that is out of order, or not summed with the one before; n if there is none.

    times, diffs: (n,) or (1,). state (2,) gets why, and is scratch. Neighbours of one row and time are parts
    of a sum: of one sign, all but one of them 2^63 - 1 or -2^63.
    """
    n = codes.shape[0]
    parts = np.int64(0)  # of the sum that is open: those that are not the greatest or the least
    for k in range(n):
        diff = cell(diffs, k)
        if k > 0:
            c = np.int64(0)
            if codes[k] != codes[k - 1]:
                c = np.int64(-1) if codes[k - 1] < codes[k] else np.int64(1)
            else:
                c = np.int64(compare_cells(table, k - 1, table, k, 0, columns))
            if c == 0 and cell(times, k - 1) != cell(times, k):
                c = np.int64(-1) if cell(times, k - 1) < cell(times, k) else np.int64(1)
            if c > 0:
                state[0] = UNSORTED
                return k
            if c != 0:
                parts = np.int64(0)
            elif (diff > 0) != (cell(diffs, k - 1) > 0):
                state[0] = UNSUMMED
                return k
        parts += np.int64(diff >= -_MOST and diff < _MOST)
        if parts > 1:
            state[0] = SPLIT
            return k
    return n  # type: ignore[no-any-return]
