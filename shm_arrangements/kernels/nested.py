"""Lists and records as bytes that order as they do, and back.

A value inside another is a byte 1 if it is NULL, else a byte 0 and its image: a number is its order words,
big-endian; a text its bytes, each 0 followed by 255, and then 0 0; a list an 1 before each element and a 0
behind the last; a record its fields. No image begins another of its type, so images laid end to end order
as their values in turn.

`program` says what the bytes hold: a row (kind, children, first child) for each node of a type, as in
cells.py.

Does not: know types by name (nested.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.cells import (
    CHILD,
    KIND,
    KIND_BYTES,
    KIND_I128,
    KIND_LIST,
    OFFSETS,
    TABLE,
    VALUES,
    bytes_at,
    is_null,
    load_u8,
    order_word,
    place_of,
)
from shm_arrangements.kernels.jit import (
    I64,
    OUT_BOOL,
    OUT_I64,
    OUT_U8,
    OUT_U64,
    U8,
    i64,
    inner,
    kernel,
    read,
)

PROGRAM = read(i64, 2)
_S8 = np.uint64(8)
_BYTE = np.uint64(255)


@inner
def _write_word(word: Any, out: Any, at: Any) -> Any:
    for k in range(8):
        out[at + k] = np.uint8((word >> np.uint64(56 - 8 * k)) & _BYTE)
    return at + 8


@inner
def _image_size(table: Any, column: Any, row: Any) -> Any:
    """Bytes of a value's image, the byte that says NULL included."""
    if is_null(table, column, row):
        return np.int64(1)
    place = place_of(table, column, row)
    kind = table[column, KIND]
    if kind < KIND_BYTES:
        return np.int64(17) if kind >= KIND_I128 else np.int64(9)
    size = np.int64(1)
    if kind == KIND_BYTES:
        lo, hi = bytes_at(table, column, place)
        for at in range(lo, hi):
            size += 1 + np.int64(load_u8(table[column, VALUES] + at) == 0)
        return size + 2
    if kind == KIND_LIST:
        lo, hi = bytes_at(table, column, place)
        for at in range(lo, hi):
            size += 1 + _image_size(table, table[column, CHILD], at)
        return size + 1
    for k in range(table[column, OFFSETS]):
        size += _image_size(table, table[column, CHILD] + k, place)
    return size


@inner
def _write_image(table: Any, column: Any, row: Any, out: Any, at: Any) -> Any:
    """Write a value's image; returns where it ends."""
    if is_null(table, column, row):
        out[at] = 1
        return at + np.int64(1)
    out[at] = 0
    at += np.int64(1)
    place = place_of(table, column, row)
    kind = table[column, KIND]
    if kind < KIND_BYTES:
        at = _write_word(order_word(table, column, place, 0), out, at)
        if kind >= KIND_I128:
            at = _write_word(order_word(table, column, place, 1), out, at)
        return at
    if kind == KIND_BYTES:
        lo, hi = bytes_at(table, column, place)
        for k in range(lo, hi):
            byte = load_u8(table[column, VALUES] + k)
            out[at] = byte
            at += np.int64(1)
            if byte == 0:
                out[at] = 255
                at += np.int64(1)
        out[at] = 0
        out[at + 1] = 0
        return at + np.int64(2)
    if kind == KIND_LIST:
        lo, hi = bytes_at(table, column, place)
        for k in range(lo, hi):
            out[at] = 1
            at = np.int64(_write_image(table, table[column, CHILD], k, out, at + np.int64(1)))
        out[at] = 0
        return at + np.int64(1)
    for k in range(table[column, OFFSETS]):
        at = np.int64(_write_image(table, table[column, CHILD] + k, place, out, at))
    return at


@kernel(TABLE, i64, OUT_I64)
def image_offsets(table: Any, column: int, out: Any) -> int:
    """out (n + 1,) = where the images of the n values of a column begin, from 0. Returns their bytes."""
    total = np.int64(0)
    out[0] = 0
    for i in range(out.shape[0] - 1):
        total += _image_size(table, column, i)
        out[i + 1] = total
    return total  # type: ignore[return-value]


@kernel(TABLE, i64, I64, OUT_U8)
def write_images(table: Any, column: int, offsets: Any, out: Any) -> None:
    """Write the images where `image_offsets` says."""
    for i in range(offsets.shape[0] - 1):
        _write_image(table, column, i, out, offsets[i])


@inner
def _skip(program: Any, node: Any, data: Any, at: Any) -> Any:
    """Where the image that begins at `at` ends."""
    null = data[at] == 1
    at += np.int64(1)
    if null:
        return at
    kind = program[node, 0]
    if kind < KIND_BYTES:
        return at + (np.int64(16) if kind >= KIND_I128 else np.int64(8))
    if kind == KIND_BYTES:
        while data[at] != 0 or data[at + 1] != 0:
            at += np.int64(2) if data[at] == 0 else np.int64(1)
        return at + np.int64(2)
    if kind == KIND_LIST:
        while data[at] == 1:
            at = np.int64(_skip(program, program[node, 2], data, at + np.int64(1)))
        return at + np.int64(1)
    for k in range(program[node, 1]):
        at = np.int64(_skip(program, program[node, 2] + k, data, at))
    return at


@kernel(U8, OUT_I64, OUT_BOOL)
def read_nulls(data: Any, at: Any, valid: Any) -> int:
    """Whether each value at `at` is valid; `at` moves behind the byte that says so. Returns the NULLs."""
    nulls = np.int64(0)
    for i in range(at.shape[0]):
        valid[i] = data[at[i]] == 0
        nulls += 1 - np.int64(valid[i])
        at[i] += 1
    return nulls  # type: ignore[return-value]


@kernel(U8, OUT_I64, read(OUT_BOOL.dtype), OUT_U64)
def read_words(data: Any, at: Any, valid: Any, out: Any) -> None:
    """out[i] = the big-endian word at at[i], 0 for NULL; `at` moves behind it."""
    for i in range(at.shape[0]):
        word = np.uint64(0)
        if valid[i]:
            for k in range(8):
                word = (word << _S8) | np.uint64(data[at[i] + k])
            at[i] += 8
        out[i] = word


@kernel(U8, I64, read(OUT_BOOL.dtype), OUT_I64)
def text_sizes(data: Any, at: Any, valid: Any, offsets: Any) -> int:
    """offsets (n + 1,) of the texts at `at`, from 0; NULL is empty. Returns their bytes."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(at.shape[0]):
        if valid[i]:
            p = at[i]
            while data[p] != 0 or data[p + 1] != 0:
                p += np.int64(2) if data[p] == 0 else np.int64(1)
                total += 1
        offsets[i + 1] = total
    return total  # type: ignore[return-value]


@kernel(U8, OUT_I64, read(OUT_BOOL.dtype), I64, OUT_U8)
def read_texts(data: Any, at: Any, valid: Any, offsets: Any, out: Any) -> None:
    """Copy the texts to where `text_sizes` says; `at` moves behind them."""
    for i in range(at.shape[0]):
        if not valid[i]:
            continue
        p = at[i]
        for k in range(offsets[i], offsets[i + 1]):
            out[k] = data[p]
            p += np.int64(2) if data[p] == 0 else np.int64(1)
        at[i] = p + 2


@kernel(PROGRAM, i64, U8, I64, read(OUT_BOOL.dtype), OUT_I64)
def list_sizes(program: Any, node: int, data: Any, at: Any, valid: Any, offsets: Any) -> int:
    """offsets (n + 1,) of the elements of the lists at `at`, from 0; NULL is empty. Returns how many."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(at.shape[0]):
        if valid[i]:
            p = at[i]
            while data[p] == 1:
                p = np.int64(_skip(program, program[node, 2], data, p + np.int64(1)))
                total += 1
        offsets[i + 1] = total
    return total  # type: ignore[return-value]


@kernel(PROGRAM, i64, U8, OUT_I64, read(OUT_BOOL.dtype), OUT_I64)
def list_starts(program: Any, node: int, data: Any, at: Any, valid: Any, out: Any) -> None:
    """Where the image of each element begins; `at` moves behind the lists."""
    count = 0
    for i in range(at.shape[0]):
        if not valid[i]:
            continue
        p = at[i]
        while data[p] == 1:
            out[count] = p + 1
            count += 1
            p = np.int64(_skip(program, program[node, 2], data, p + np.int64(1)))
        at[i] = p + 1
