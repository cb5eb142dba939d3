"""The hash of a row image: the same that cells.py gives for the columns it was made of.

Each column is folded in turn: a NULL as one constant, a value as its lanes, a text as its length and its
bytes. The NULL flag of a column that may be NULL is not folded, so the hash does not depend on whether it
may be. Only of lists and records it is another: here the hash of the bytes of their images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.cells import NULL_WORD, ODD_A, ODD_B, SEED, mix
from shm_arrangements.kernels.jit import (
    I64_2D,
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

VALUE, NULL_FLAG, TEXT, VALUE_HIGH = 0, 1, 2, 3  # VALUE_HIGH: more lanes of the value follow

_S8, _S32 = np.uint64(8), np.uint64(32)
_ZERO = np.uint64(0)


@inner
def _mix_text(h: Any, text: Any, lo: Any, hi: Any) -> Any:
    h = mix(h, np.uint64(hi - lo))
    while lo < hi:
        end = min(lo + 8, hi)
        word = _ZERO
        for at in range(end - 1, lo - 1, -1):
            word = (word << _S8) | np.uint64(text[at])
        h = mix(h, word)
        lo = end
    return h


@kernel(U64_2D, U8, I64_2D, I64_2D, U8, OUT_U64)
def hash_rows(lanes: Any, kinds: Any, text_lo: Any, text_hi: Any, text: Any, out: Any) -> None:
    """out[i] = hash of the first len(kinds) lanes of row i."""
    n_lanes = kinds.shape[0]
    for i in range(out.shape[0]):
        h = SEED
        slot = 0
        lane = 0
        while lane < n_lanes:
            kind = kinds[lane]
            if kind == NULL_FLAG and lanes[i, lane] != _ZERO:
                h = mix(h, NULL_WORD)
                lane += 1
                while kinds[lane] == VALUE_HIGH:
                    lane += 1
                if kinds[lane] == TEXT:
                    slot += 1
            elif kind == TEXT:
                h = _mix_text(h, text, text_lo[i, slot], text_hi[i, slot])
                slot += 1
            elif kind != NULL_FLAG:
                h = mix(h, lanes[i, lane])
            lane += 1
        out[i] = mix(h, np.uint64(n_lanes == 0))


@kernel(U8, I64_2D, I64_2D, i64, OUT_U64_2D, i64)
def text_lanes(text: Any, text_lo: Any, text_hi: Any, slot: int, out: Any, lane: int) -> None:
    """out[i, lane] = first 8 bytes of text (i, slot) as a big-endian number, zero-padded."""
    for i in range(out.shape[0]):
        lo = text_lo[i, slot]
        hi = min(text_hi[i, slot], lo + 8)
        word = _ZERO
        for at in range(lo, lo + 8):
            word = word << _S8
            if at < hi:
                word = word | np.uint64(text[at])
        out[i, lane] = word


@kernel(U64, u64, u64)
def checksum(words: Any, first: Any, state: Any) -> Any:
    """Continue a checksum over words that stand at `first` and on; pieces in any order give the same.

    Each word is mixed with its position and the results are added, so pieces can be summed as they are made.
    """
    total = state
    position = first
    for i in range(words.shape[0]):
        x = (words[i] ^ (position * ODD_A)) * ODD_B
        total += x ^ (x >> _S32)
        position += np.uint64(1)
    return total
