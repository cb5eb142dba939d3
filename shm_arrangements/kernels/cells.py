"""Cells: what a value is to every kernel, whatever its type and however its column is encoded.

A *table* tells kernels where columns lie: one row of eight int64 a column (`FIELDS`), addresses included, so
one compiled kernel serves every schema, with nothing copied or converted first. The children of a list or
record have rows of their own behind those of the columns. Who makes a table keeps its arrays alive
(table.py).

Here is the one equality, order and hash of values. Each value has one or two u64 *order words* that order
as it does; texts and bytes are compared by their bytes, lists element by element, records field by field;
NULL sorts last. The hash folds the same words, so values that are equal have equal hashes by construction,
and it does not depend on whether a column may hold NULL, nor on the width of a signed or unsigned integer.

Does not: know types by name (types.py), or choose among columns: `first` and `last` bound those meant.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numba import config, types
from numba.extending import intrinsic

from shm_arrangements.kernels.jit import I64, OUT_BOOL, OUT_U64, OUT_U64_2D, i64, inner, kernel, read

TABLE = read(i64, 2)

# The fields of a table's row.
FIELDS: Final = 8
KIND, VALUES, OFFSETS, VALIDITY, BIT, MODE, INDICES, CHILD = range(FIELDS)
# MODE: how row i of the column is found among its values. Otherwise `indices` says it, in this many bytes.
PLAIN, INDEX_U8, INDEX_U16, INDEX_U32, CONSTANT = 0, 1, 2, 4, 8
# BIT: the bit at which validity begins, or that it is a byte a row.
BYTES: Final = -1
# KIND: how a value is read.
(
    KIND_U8, KIND_I16, KIND_I32, KIND_I64, KIND_U16, KIND_U32, KIND_U64, KIND_F32, KIND_F64,
    KIND_I128, KIND_UUID, KIND_INTERVAL, KIND_BYTES, KIND_LIST, KIND_RECORD,
) = range(1, 16)  # fmt: skip

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_SIGN = np.uint64(1 << 63)
_SIGN32 = np.uint64(1 << 31)
_LOW32 = np.uint64((1 << 32) - 1)
_S8, _S29, _S32, _S63 = np.uint64(8), np.uint64(29), np.uint64(32), np.uint64(63)
# Of the hash: what it begins with, what NULL folds, and what mixing multiplies by.
SEED = np.uint64(0x6A09E667F3BCC908)
NULL_WORD = np.uint64(0x3C6EF372FE94F82B)
ODD_A = np.uint64(0x9E3779B97F4A7C15)
ODD_B = np.uint64(0xD6E8FEB86659FD93)


def _loader(numba_type: Any, ctype: Any, wrap: Any) -> Any:
    """A function that reads one value at an address, aligned or not."""
    if getattr(config, "DISABLE_JIT", 0):
        return lambda address: wrap(ctype.from_address(int(address)).value)

    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = context.get_data_type(numba_type).as_pointer()
            return builder.load(builder.inttoptr(args[0], place), align=1)

        return numba_type(types.int64), codegen

    return load


load_u8: Any = _loader(types.uint8, ctypes.c_uint8, int)
load_u16: Any = _loader(types.uint16, ctypes.c_uint16, int)
load_u32: Any = _loader(types.uint32, ctypes.c_uint32, int)
load_u64: Any = _loader(types.uint64, ctypes.c_uint64, np.uint64)
load_i64: Any = _loader(types.int64, ctypes.c_int64, int)


@intrinsic
def _swap_bytes(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), codegen


swap_bytes: Any = _swap_bytes
if getattr(config, "DISABLE_JIT", 0):
    swap_bytes = lambda word: np.uint64(int.from_bytes(int(word).to_bytes(8, "little"), "big"))  # noqa: E731


@inner
def place_of(table: Any, column: Any, row: Any) -> Any:
    """Where among a column's values row `row` of it is."""
    mode = table[column, MODE]
    if mode == PLAIN:
        return np.int64(row)
    if mode == CONSTANT:
        return np.int64(0)
    at = table[column, INDICES] + row * mode
    if mode == INDEX_U8:
        return np.int64(load_u8(at))
    if mode == INDEX_U16:
        return np.int64(load_u16(at))
    return np.int64(load_u32(at))


@inner
def is_null(table: Any, column: Any, row: Any) -> bool:
    """Whether row `row` of a column is NULL."""
    address = table[column, VALIDITY]
    if address == 0:
        return False
    at = np.int64(row)
    if table[column, MODE] == CONSTANT:
        at = np.int64(0)
    bit = table[column, BIT]
    if bit == BYTES:
        return load_u8(address + at) == 0  # type: ignore[no-any-return]
    at += bit
    return (load_u8(address + (at >> 3)) >> (at & 7)) & 1 == 0  # type: ignore[no-any-return]


@inner
def cell(values: Any, row: Any) -> Any:
    """The time or diff of a row, of an array that has one a row, or one for all."""
    return values[row] if values.shape[0] > 1 else values[0]


@inner
def bytes_at(table: Any, column: Any, place: Any) -> Any:
    """Where the text (or bytes) at a place begins and ends; of a list, its elements."""
    offsets = table[column, OFFSETS] + 8 * place
    lo = load_i64(offsets)
    return lo, load_i64(offsets + 8)


@inner
def prefix_word(address: Any, size: Any) -> Any:
    """The first 8 bytes at an address as a big-endian number, zero-padded."""
    if size >= 8:
        return swap_bytes(load_u64(address))
    word = _ZERO
    for k in range(8):
        word = word << _S8
        if k < size:
            word = word | np.uint64(load_u8(address + k))
    return word


@inner
def order_word(table: Any, column: Any, place: Any, part: Any) -> Any:
    """The u64 that orders as the value at a place does; `part` 1 is the lower word of a wide value.

    Of texts and bytes the first 8 bytes; lists and records have none.
    """
    kind = table[column, KIND]
    values = table[column, VALUES]
    if kind == KIND_I64:
        return load_u64(values + 8 * place) ^ _SIGN
    if kind == KIND_U64:
        return load_u64(values + 8 * place)
    if kind == KIND_BYTES:
        lo, hi = bytes_at(table, column, place)
        return prefix_word(values + lo, hi - lo)
    if kind == KIND_F64:
        bits = load_u64(values + 8 * place)
        return bits ^ _SIGN if bits >> _S63 == _ZERO else ~bits
    if kind == KIND_U8:
        return np.uint64(load_u8(values + place))
    if kind == KIND_I32:
        half = np.uint64(load_u32(values + 4 * place)) ^ _SIGN32
        return (half - _SIGN32) ^ _SIGN
    if kind == KIND_U32:
        return np.uint64(load_u32(values + 4 * place))
    if kind == KIND_I16:
        half = np.uint64(load_u16(values + 2 * place)) ^ np.uint64(1 << 15)
        return (half - np.uint64(1 << 15)) ^ _SIGN
    if kind == KIND_U16:
        return np.uint64(load_u16(values + 2 * place))
    if kind == KIND_F32:
        bits = np.uint64(load_u32(values + 4 * place))
        return bits ^ _SIGN32 if bits & _SIGN32 == _ZERO else ~bits & _LOW32
    wide = values + 16 * place
    if kind == KIND_I128:
        return load_u64(wide + 8) ^ _SIGN if part == 0 else load_u64(wide)
    if kind == KIND_UUID:
        return swap_bytes(load_u64(wide + 8 * part))
    if part == 0:  # an interval's months and days
        word = load_u64(wide)
        return (((word & _LOW32) ^ _SIGN32) << _S32) | ((word >> _S32) ^ _SIGN32)
    return load_u64(wide + 8) ^ _SIGN


@inner
def compare_bytes(a: Any, a_size: Any, b: Any, b_size: Any) -> int:
    """-1, 0, 1: order of two runs of bytes, the shorter first where one begins the other."""
    common = min(a_size, b_size)
    k = 0
    while k + 8 <= common:
        x, y = load_u64(a + k), load_u64(b + k)
        if x != y:
            return -1 if swap_bytes(x) < swap_bytes(y) else 1
        k += 8
    while k < common:
        p, q = load_u8(a + k), load_u8(b + k)
        if p != q:
            return -1 if p < q else 1
        k += 1
    if a_size == b_size:
        return 0
    return -1 if a_size < b_size else 1


@inner
def _compare_flat(a: Any, ca: Any, pa: Any, b: Any, cb: Any, pb: Any) -> int:
    """Order of two values that are no lists or records, at their places."""
    kind = a[ca, KIND]
    if kind == KIND_BYTES:
        a_lo, a_hi = bytes_at(a, ca, pa)
        b_lo, b_hi = bytes_at(b, cb, pb)
        return compare_bytes(a[ca, VALUES] + a_lo, a_hi - a_lo, b[cb, VALUES] + b_lo, b_hi - b_lo)
    x, y = order_word(a, ca, pa, 0), order_word(b, cb, pb, 0)
    if x != y:
        return -1 if x < y else 1
    if kind >= KIND_I128:
        x, y = order_word(a, ca, pa, 1), order_word(b, cb, pb, 1)
        if x != y:
            return -1 if x < y else 1
    return 0


@inner
def _compare_deep(a: Any, ca: Any, i: Any, b: Any, cb: Any, j: Any) -> int:
    """Order of row i of a column and row j of another of its type, nested or not."""
    x, y = is_null(a, ca, i), is_null(b, cb, j)
    if x or y:
        return np.int64(x) - np.int64(y)  # type: ignore[return-value]
    pa, pb = place_of(a, ca, i), place_of(b, cb, j)
    kind = a[ca, KIND]
    if kind < KIND_LIST:
        return np.int64(_compare_flat(a, ca, pa, b, cb, pb))  # type: ignore[return-value]
    if kind == KIND_LIST:
        a_lo, a_hi = bytes_at(a, ca, pa)
        b_lo, b_hi = bytes_at(b, cb, pb)
        n, m = a_hi - a_lo, b_hi - b_lo
        for k in range(min(n, m)):
            c = _compare_deep(a, a[ca, CHILD], a_lo + k, b, b[cb, CHILD], b_lo + k)
            if c != 0:
                return c
        return np.int64(n > m) - np.int64(n < m)  # type: ignore[return-value]
    for k in range(a[ca, OFFSETS]):  # a record: the number of its fields
        c = _compare_deep(a, a[ca, CHILD] + k, pa, b, b[cb, CHILD] + k, pb)
        if c != 0:
            return c
    return np.int64(0)  # type: ignore[return-value]


@inner
def compare_cells(a: Any, i: Any, b: Any, j: Any, first: Any, last: Any) -> int:
    """-1, 0, 1: order of row i of a and row j of b, by columns first..last-1 in turn; NULL last."""
    for column in range(first, last):
        kind = a[column, KIND]
        special = a[column, VALIDITY] | b[column, VALIDITY] | a[column, MODE] | b[column, MODE]
        if special == 0 and kind in (KIND_I64, KIND_U64):  # what is most frequent, in a third of the time
            s, t = load_u64(a[column, VALUES] + 8 * i), load_u64(b[column, VALUES] + 8 * j)
            if s != t:
                sign = _SIGN if kind == KIND_I64 else _ZERO
                return -1 if s ^ sign < t ^ sign else 1
            continue
        if kind >= KIND_LIST:
            # All int64: a recursion that is entered with other types does not survive numba's cache.
            c = _compare_deep(a, np.int64(column), np.int64(i), b, np.int64(column), np.int64(j))
            if c != 0:
                return -1 if c < 0 else 1
            continue
        if a[column, VALIDITY] != 0 or b[column, VALIDITY] != 0:
            x, y = is_null(a, column, i), is_null(b, column, j)
            if x or y:
                if x and y:
                    continue
                return 1 if x else -1
        d = _compare_flat(a, column, place_of(a, column, i), b, column, place_of(b, column, j))
        if d != 0:
            return d
    return 0


@inner
def mix(h: Any, x: Any) -> Any:
    """Fold a word into a hash."""
    h = (h ^ x) * ODD_A
    h = (h ^ (h >> _S32)) * ODD_B
    return h ^ (h >> _S29)


@inner
def mix_bytes(h: Any, address: Any, size: Any) -> Any:
    """Fold a run of bytes, its length first."""
    h = mix(h, np.uint64(size))
    k = 0
    while k + 8 <= size:
        h = mix(h, load_u64(address + k))
        k += 8
    if k < size:
        word = _ZERO
        for at in range(size - 1, k - 1, -1):
            word = (word << _S8) | np.uint64(load_u8(address + at))
        h = mix(h, word)
    return h


@inner
def _mix_flat(h: Any, table: Any, column: Any, place: Any) -> Any:
    kind = table[column, KIND]
    if kind == KIND_BYTES:
        lo, hi = bytes_at(table, column, place)
        return mix_bytes(h, table[column, VALUES] + lo, hi - lo)
    h = mix(h, order_word(table, column, place, 0))
    if kind >= KIND_I128:
        h = mix(h, order_word(table, column, place, 1))
    return h


@inner
def _mix_deep(h: Any, table: Any, column: Any, row: Any) -> Any:
    if is_null(table, column, row):
        return mix(h, NULL_WORD)
    place = place_of(table, column, row)
    kind = table[column, KIND]
    if kind < KIND_LIST:
        return _mix_flat(h, table, column, place)
    if kind == KIND_LIST:
        lo, hi = bytes_at(table, column, place)
        h = mix(h, np.uint64(hi - lo))
        for k in range(lo, hi):
            h = _mix_deep(h, table, table[column, CHILD], k)
        return h
    for k in range(table[column, OFFSETS]):
        h = _mix_deep(h, table, table[column, CHILD] + k, place)
    return h


@inner
def hash_cells(table: Any, row: Any, first: Any, last: Any) -> Any:
    """The hash of columns first..last-1 of a row."""
    h = SEED
    for column in range(first, last):
        if table[column, KIND] >= KIND_LIST:
            h = _mix_deep(h, table, np.int64(column), np.int64(row))
        elif is_null(table, column, row):
            h = mix(h, NULL_WORD)
        else:
            h = _mix_flat(h, table, column, place_of(table, column, row))
    return mix(h, np.uint64(first == last))


@kernel(TABLE, i64, i64, OUT_U64)
def hash_table(table: Any, first: int, last: int, out: Any) -> None:
    """out[i] = hash of columns first..last-1 of row i."""
    for i in range(out.shape[0]):
        out[i] = hash_cells(table, i, first, last)


@kernel(TABLE, i64, OUT_U64)
def ordered_codes(table: Any, last: int, out: Any) -> None:
    """out[i] = the first 64 bits of row i's first `last` columns, laid end to end so that they order alike.

    A column's NULL flag is a bit before its value, whether it may be NULL or not. Lists and records end it.
    """
    for i in range(out.shape[0]):
        code = _ZERO
        room = np.int64(64)
        for column in range(last):
            if room <= 0:
                break
            kind = table[column, KIND]
            null = is_null(table, column, i)
            room -= 1
            if null:
                code = code | (_ONE << np.uint64(room))
            bits = np.int64(64)
            if kind == KIND_U8:
                bits = np.int64(8)
            elif kind in (KIND_I16, KIND_U16):
                bits = np.int64(16)
            elif kind in (KIND_I32, KIND_U32, KIND_F32):
                bits = np.int64(32)
            if null or kind >= KIND_LIST:
                word = _ZERO
            else:
                word = order_word(table, column, place_of(table, column, i), 0)
                if kind == KIND_I16:
                    word = word - _SIGN + np.uint64(1 << 15)
                elif kind == KIND_I32:
                    word = word - _SIGN + _SIGN32
            if bits <= room:
                room -= bits
                code = code | (word << np.uint64(room))
            else:
                code = code | (word >> np.uint64(bits - room))
                room = np.int64(0)
            if bits == 64:
                break
        out[i] = code


@kernel(TABLE, I64, TABLE, I64, i64, OUT_BOOL)
def equal_pairs(a: Any, rows_a: Any, b: Any, rows_b: Any, columns: int, out: Any) -> int:
    """out[k] = whether row rows_a[k] of a equals rows_b[k] of b in the first `columns`. Returns how many."""
    count = np.int64(0)
    for k in range(out.shape[0]):
        same = compare_cells(a, rows_a[k], b, rows_b[k], 0, columns) == 0
        out[k] = same
        count += np.int64(same)
    return count  # type: ignore[return-value]


@kernel(TABLE, i64, i64, OUT_U64_2D, i64)
def order_lane(table: Any, column: int, part: int, out: Any, lane: int) -> None:
    """out[i, lane] = order word `part` of row i of a column; 0 for NULL."""
    for i in range(out.shape[0]):
        if is_null(table, column, i):
            out[i, lane] = _ZERO
        else:
            out[i, lane] = order_word(table, column, place_of(table, column, i), part)
