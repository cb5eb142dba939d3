"""Lists of rows made into values: which elements, texts put together, strings of JSON.

Whoever makes texts knows their offsets first, or asks for them, and sizes the bytes.

Does not: allocate, or know where a list begins in a tree (ordered.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import I32, I64, OUT_I64, OUT_U8, U8, i64, inner, kernel

_QUOTE, _BACKSLASH, _BLANK = 0x22, 0x5C, 0x20
_U, _ZERO_DIGIT = 0x75, 0x30
_B, _F, _N, _R, _T = 0x62, 0x66, 0x6E, 0x72, 0x74


@kernel(I32, I64, I64, OUT_I64)
def take_spans(elements: Any, lo: Any, offsets: Any, out: Any) -> None:
    """out[offsets[i] : offsets[i + 1]] = the elements from lo[i] on."""
    for i in range(lo.shape[0]):
        start = lo[i] - offsets[i]
        for at in range(offsets[i], offsets[i + 1]):
            out[at] = elements[start + at]


@kernel(I64, I64, U8, I64, U8, I64, OUT_U8)
def join_texts(
    lists: Any, texts: Any, text: Any, separators: Any, separator: Any, offsets: Any, out: Any
) -> None:
    """out[offsets[i] :] = texts lists[i] .. lists[i + 1], each but the first behind its separator.

    texts, separators: (n + 1,) offsets.
    """
    for i in range(lists.shape[0] - 1):
        at = offsets[i]
        for k in range(lists[i], lists[i + 1]):
            if k > lists[i]:
                for b in range(separators[k], separators[k + 1]):
                    out[at] = separator[b]
                    at += 1
            for b in range(texts[k], texts[k + 1]):
                out[at] = text[b]
                at += 1


@kernel(I64, I64, U8, i64, i64, I64, OUT_U8)
def enclose_texts(
    lists: Any, texts: Any, text: Any, opening: int, closing: int, offsets: Any, out: Any
) -> None:
    """out[offsets[i] :] = texts lists[i] .. lists[i + 1], with commas, between two bytes."""
    for i in range(lists.shape[0] - 1):
        at = offsets[i]
        out[at] = opening
        at += 1
        for k in range(lists[i], lists[i + 1]):
            if k > lists[i]:
                out[at] = 0x2C
                at += 1
            for b in range(texts[k], texts[k + 1]):
                out[at] = text[b]
                at += 1
        out[at] = closing


@kernel(I64, U8, I64, U8, I64, OUT_U8)
def pair_texts(a_offsets: Any, a: Any, b_offsets: Any, b: Any, offsets: Any, out: Any) -> None:
    """out: each text of a, a colon, and that of b; offsets: of these, from 0."""
    for i in range(offsets.shape[0] - 1):
        at = offsets[i]
        for k in range(a_offsets[i], a_offsets[i + 1]):
            out[at] = a[k]
            at += 1
        out[at] = 0x3A
        at += 1
        for k in range(b_offsets[i], b_offsets[i + 1]):
            out[at] = b[k]
            at += 1


@inner
def _letter(byte: Any) -> int:
    """What stands for a byte behind a backslash; 0: the byte stands for itself, 1: four digits do."""
    if byte in (_QUOTE, _BACKSLASH):
        return int(byte)
    if byte >= _BLANK:
        return 0
    if byte == 8:
        return _B
    if byte == 9:
        return _T
    if byte == 10:
        return _N
    if byte == 12:
        return _F
    if byte == 13:
        return _R
    return 1


@kernel(I64, U8, OUT_I64)
def quoted_offsets(offsets: Any, text: Any, out: Any) -> int:
    """out (n + 1,): where the texts will stand as strings of JSON, from 0. Returns the end."""
    total = 0
    out[0] = 0
    for i in range(offsets.shape[0] - 1):
        total += 2 + offsets[i + 1] - offsets[i]
        for k in range(offsets[i], offsets[i + 1]):
            letter = _letter(text[k])
            if letter != 0:
                total += 5 if letter == 1 else 1
        out[i + 1] = total
    return total


@kernel(I64, U8, OUT_U8)
def quote_texts(offsets: Any, text: Any, out: Any) -> None:
    """Write what `quoted_offsets` has measured."""
    at = 0
    for i in range(offsets.shape[0] - 1):
        out[at] = _QUOTE
        at += 1
        for k in range(offsets[i], offsets[i + 1]):
            byte = text[k]
            letter = _letter(byte)
            if letter != 0:
                out[at] = _BACKSLASH
                at += 1
            if letter == 1:
                out[at] = _U
                out[at + 1] = _ZERO_DIGIT
                out[at + 2] = _ZERO_DIGIT
                out[at + 3] = _ZERO_DIGIT + (byte >> 4)
                low = byte & 15
                out[at + 4] = (_ZERO_DIGIT + low) if low < 10 else (0x57 + low)
                at += 5
            else:
                out[at] = byte if letter == 0 else letter
                at += 1
        out[at] = _QUOTE
        at += 1


@kernel(I64, OUT_I64, OUT_U8)
def write_integers(values: Any, offsets: Any, out: Any) -> None:
    """The decimal digits of integers, one after the other; offsets (n + 1,) get where. out: 20 bytes each."""
    at = 0
    for i in range(values.shape[0]):
        offsets[i] = at
        value = values[i]
        rest = np.uint64(value)
        if value < 0:
            out[at] = 0x2D
            at += 1
            rest = ~rest + np.uint64(1)
        digits = 1
        bound = np.uint64(10)
        while digits < 19 and rest >= bound:
            digits += 1
            bound = bound * np.uint64(10)
        for k in range(digits - 1, -1, -1):
            out[at + k] = _ZERO_DIGIT + np.int64(rest % np.uint64(10))
            rest = rest // np.uint64(10)
        at += digits
    offsets[values.shape[0]] = at
