"""Taking rows out of columns: text bytes and validity bits by row index.

Fixed-width values need no kernel (`numpy.take` writes straight to its destination); text and bits do. Each
byte is moved once, from its source to its final place: a caller first asks for the offsets, sizes the
destination, and then gathers into it.
"""

from __future__ import annotations

from typing import Any

from shm_arrangements.kernels.jit import (
    I64,
    OUT_BOOL,
    OUT_I64,
    OUT_U8,
    OUT_U64,
    OUT_U64_2D,
    U8,
    U64,
    U64_2D,
    i64,
    inner,
    kernel,
    u64,
)


@kernel(I64, I64, OUT_I64)
def text_offsets(offsets: Any, rows: Any, out: Any) -> int:
    """out (m + 1,) gets the offsets that texts `rows` (m,) will have, from 0. Returns their bytes."""
    total = 0
    out[0] = 0
    for i in range(rows.shape[0]):
        r = rows[i]
        total += offsets[r + 1] - offsets[r]
        out[i + 1] = total
    return total


@inner
def _copy_bytes(source: Any, start: Any, target: Any, at: Any, size: Any) -> None:
    # Texts are mostly short: a plain loop beats a call.
    for b in range(size):
        target[at + b] = source[start + b]


@kernel(U8, I64, I64, I64, OUT_U8)
def gather_text(data: Any, offsets: Any, rows: Any, out_offsets: Any, out: Any) -> None:
    """Copy texts `rows` to where `out_offsets` (of `text_offsets`) says."""
    for i in range(rows.shape[0]):
        start = offsets[rows[i]]
        at = out_offsets[i]
        _copy_bytes(data, start, out, at, out_offsets[i + 1] - at)


@kernel(I64, I64, I64, OUT_I64)
def list_elements(offsets: Any, rows: Any, out_offsets: Any, out: Any) -> None:
    """The elements of lists `rows`, one after the other; `out_offsets` are those of `text_offsets`."""
    for i in range(rows.shape[0]):
        start = offsets[rows[i]] - out_offsets[i]
        for at in range(out_offsets[i], out_offsets[i + 1]):
            out[at] = start + at


@kernel(I64, I64, OUT_I64)
def span_offsets(lo: Any, hi: Any, out: Any) -> int:
    """As `text_offsets`, for texts given as spans [lo[i], hi[i])."""
    total = 0
    out[0] = 0
    for i in range(lo.shape[0]):
        total += hi[i] - lo[i]
        out[i + 1] = total
    return total


@kernel(U8, I64, I64, OUT_U8)
def gather_spans(data: Any, lo: Any, out_offsets: Any, out: Any) -> None:
    """Copy the spans that begin at lo[i] to where `out_offsets` (of `span_offsets`) says."""
    for i in range(lo.shape[0]):
        at = out_offsets[i]
        _copy_bytes(data, lo[i], out, at, out_offsets[i + 1] - at)


@kernel(U8, i64, I64, OUT_BOOL)
def gather_bits(bits: Any, bit_offset: int, rows: Any, out: Any) -> int:
    """out[i] = bit `bit_offset + rows[i]`, least significant bit first. Returns how many are set."""
    count = 0
    for i in range(rows.shape[0]):
        at = bit_offset + rows[i]
        bit = (bits[at >> 3] >> (at & 7)) & 1
        out[i] = bit != 0
        count += bit
    return count


# Below, rows come from two sources: a row r >= 0 is row r of a, a row r < 0 is row ~r of b.


@kernel(U64, U64, I64, OUT_U64)
def pair_words(a: Any, b: Any, rows: Any, out: Any) -> None:
    """out[i] = the word of rows[i]."""
    for i in range(rows.shape[0]):
        r = rows[i]
        out[i] = a[r] if r >= 0 else b[~r]


@kernel(U64, U64, I64, u64, OUT_U64)
def pair_times(a: Any, b: Any, rows: Any, since: Any, out: Any) -> None:
    """out[i] = the time of rows[i], at least `since`."""
    for i in range(rows.shape[0]):
        r = rows[i]
        out[i] = max(a[r] if r >= 0 else b[~r], since)


@kernel(U64_2D, U64_2D, I64, OUT_U64_2D)
def pair_wide(a: Any, b: Any, rows: Any, out: Any) -> None:
    """out[i] = both words of rows[i]."""
    for i in range(rows.shape[0]):
        r = rows[i]
        if r >= 0:
            out[i, 0] = a[r, 0]
            out[i, 1] = a[r, 1]
        else:
            out[i, 0] = b[~r, 0]
            out[i, 1] = b[~r, 1]


@kernel(U8, U8, I64, OUT_U8)
def pair_bytes(a: Any, b: Any, rows: Any, out: Any) -> None:
    """out[i] = the byte of rows[i]."""
    for i in range(rows.shape[0]):
        r = rows[i]
        out[i] = a[r] if r >= 0 else b[~r]


@kernel(I64, I64, I64)
def pair_text_bytes(a_offsets: Any, b_offsets: Any, rows: Any) -> int:
    """Bytes of the texts of `rows` together."""
    total = 0
    for i in range(rows.shape[0]):
        r = rows[i]
        total += a_offsets[r + 1] - a_offsets[r] if r >= 0 else b_offsets[~r + 1] - b_offsets[~r]
    return total


@kernel(U8, I64, U8, I64, I64, OUT_I64, OUT_U8)
def pair_text(a: Any, a_offsets: Any, b: Any, b_offsets: Any, rows: Any, out_offsets: Any, out: Any) -> None:
    """Append the texts of rows (m,) to `out` from out_offsets[0] on, and set out_offsets[1:]."""
    at = out_offsets[0]
    for i in range(rows.shape[0]):
        r = rows[i]
        if r >= 0:
            size = a_offsets[r + 1] - a_offsets[r]
            _copy_bytes(a, a_offsets[r], out, at, size)
        else:
            size = b_offsets[~r + 1] - b_offsets[~r]
            _copy_bytes(b, b_offsets[~r], out, at, size)
        at += size
        out_offsets[i + 1] = at


@kernel(U8, i64, U8, i64, I64, OUT_U8, i64)
def pair_bits(a: Any, a_first: int, b: Any, b_first: int, rows: Any, out: Any, first: int) -> int:
    """Write bits `first + i` of `out` from the bits of rows; an empty bitmap is all ones. Returns the zeros.

    Bits before `first` are kept; those after, of the last byte touched, become zero.
    """
    zeros = 0
    for i in range(rows.shape[0]):
        r = rows[i]
        bit = 1
        if r >= 0:
            if a.shape[0] > 0:
                bit = (a[(a_first + r) >> 3] >> ((a_first + r) & 7)) & 1
        elif b.shape[0] > 0:
            bit = (b[(b_first + ~r) >> 3] >> ((b_first + ~r) & 7)) & 1
        at = first + i
        if at & 7 == 0:
            out[at >> 3] = 0
        out[at >> 3] |= bit << (at & 7)
        zeros += 1 - bit
    return zeros
