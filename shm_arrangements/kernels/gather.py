"""Taking rows out of columns: text bytes and validity bits by row index.

Fixed-width values need no kernel (`numpy.take` writes straight to its destination); text and bits do. Each
byte is moved once, from its source to its final place: a caller first asks for the offsets, sizes the
destination, and then gathers into it. Batches are assembled by kernels of their own (assemble.py).
"""

from __future__ import annotations

from typing import Any

from shm_arrangements.kernels.jit import (
    I64,
    OUT_BOOL,
    OUT_I64,
    OUT_U8,
    U8,
    i64,
    inner,
    kernel,
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
