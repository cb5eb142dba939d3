"""Characters of UTF-8 texts: where they begin, and where one text stands in another.

Operands have a step of 0 or 1, as in scalar.py. Spans are of bytes; a caller gathers them.

Does not: check that a text is UTF-8 (every column of texts is), know NULL, allocate.
"""

from __future__ import annotations

from typing import Any

from shm_arrangements.kernels.jit import I64, OUT_I64, U8, i64, inner, kernel

__all__ = ["character_spans", "count_characters", "find_text"]


@inner
def _continues(byte: Any) -> Any:
    """Whether a byte is not the first of its character."""
    return byte & 0xC0 == 0x80


@kernel(U8, I64, OUT_I64)
def count_characters(data: Any, offsets: Any, out: Any) -> None:
    """out (n,) gets how many characters each text has."""
    for i in range(out.shape[0]):
        count = 0
        for at in range(offsets[i], offsets[i + 1]):
            if not _continues(data[at]):
                count += 1
        out[i] = count


@kernel(U8, I64, i64, I64, i64, I64, i64, OUT_I64, OUT_I64)
def character_spans(
    data: Any, offsets: Any, step: int, first: Any, first_step: int, last: Any, last_step: int, lo: Any,
    hi: Any,
) -> None:  # fmt: skip
    """lo, hi (n,) get the bytes of characters first..last, from 0, the last not included, of each text."""
    for i in range(lo.shape[0]):
        at = offsets[i * step]
        end = offsets[i * step + 1]
        begin = first[i * first_step]
        stop = last[i * last_step]
        seen = 0
        while at < end and seen < begin:
            seen += 1
            at += 1
            while at < end and _continues(data[at]):
                at += 1
        lo[i] = at
        while at < end and seen < stop:
            seen += 1
            at += 1
            while at < end and _continues(data[at]):
                at += 1
        hi[i] = at


@kernel(U8, I64, i64, U8, I64, i64, OUT_I64)
def find_text(a: Any, a_offsets: Any, a_step: int, b: Any, b_offsets: Any, b_step: int, out: Any) -> None:
    """out (n,) gets the position, in characters from 1, of text b in text a; 0 if it is nowhere."""
    for i in range(out.shape[0]):
        start = a_offsets[i * a_step]
        b_start = b_offsets[i * b_step]
        size = b_offsets[i * b_step + 1] - b_start
        last = a_offsets[i * a_step + 1] - size
        position = 1
        found = 0
        at = start
        while at <= last and found == 0:
            same = 0
            while same < size and a[at + same] == b[b_start + same]:
                same += 1
            if same == size:
                found = position
            at += 1
            if at <= last and not _continues(a[at]):
                position += 1
        out[i] = found
