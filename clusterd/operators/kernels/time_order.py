"""Passes over everything that a round has gathered: by time, by step, by row. Each is cut by who calls it.

A pass does rows [lo, hi) and can stop there, so a round of any size is sorted and split in pieces of a few
milliseconds (R11). Sorting is by digits from the lowest up, so that each pass is one walk; and times of one
round differ in few bits.

Does not: allocate, or say what a step is (operators/time_steps.py).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.kernels.hashing import NULL_FLAG
from shm_arrangements.kernels.jit import I64, OUT_I64, OUT_U64, U8, U64, U64_2D, i64, inner, kernel, u64
from shm_arrangements.kernels.sort import bit_length

DIGIT_BITS: Final = 12  # 4096 places written to in turn: they stay in the second cache
_ONE, _S63 = np.uint64(1), np.uint64(63)
_DIGIT = np.uint64((1 << DIGIT_BITS) - 1)


@kernel(U64, u64, u64, i64, i64, OUT_I64)
def count_digits(times: Any, least: Any, shift: Any, lo: int, hi: int, ends: Any) -> None:
    """Add to ends[d + 1] how many of the times lo .. hi have digit d of (time - least)."""
    for k in range(lo, hi):
        ends[np.int64((times[k] - least) >> shift & _DIGIT) + 1] += 1


@kernel(U64, u64, u64, I64, i64, i64, OUT_I64, OUT_I64)
def place_by_digit(
    times: Any, least: Any, shift: Any, order: Any, lo: int, hi: int, starts: Any, out: Any
) -> None:
    """Move order[lo:hi] to where the digit of its time begins; starts[d] goes up with each. Stable."""
    for k in range(lo, hi):
        at = order[k]
        digit = np.int64((times[at] - least) >> shift & _DIGIT)
        out[starts[digit]] = at
        starts[digit] += 1


@kernel(I64, I64, i64, i64, OUT_I64)
def count_by_step(owners: Any, steps: Any, lo: int, hi: int, starts: Any) -> None:
    """Add to starts[k + 2] how many of the partials lo .. hi have an owner at step k.

    owners: of each partial, a partial of its group; steps: of each of those.
    """
    for p in range(lo, hi):
        starts[steps[owners[p]] + 2] += 1


@kernel(i64, i64, OUT_I64)
def sum_up(lo: int, hi: int, starts: Any) -> None:
    """Make counts lo .. hi sums of all before them, those before lo being so already; lo > 0."""
    for k in range(lo, hi):
        starts[k] += starts[k - 1]


@kernel(I64, I64, i64, i64, OUT_I64, OUT_I64)
def place_by_step(owners: Any, steps: Any, lo: int, hi: int, starts: Any, rows: Any) -> None:
    """Put the partials lo .. hi where starts[k + 1] says that the next of their step k goes. Stable."""
    for p in range(lo, hi):
        k = steps[owners[p]] + 1
        rows[starts[k]] = p
        starts[k] += 1


@inner
def _first_word(lanes: Any, kinds: Any, inverting: Any, row: Any) -> Any:
    """A number that ascends, not strictly, as the rows of a group do: of their first column, what fits."""
    if kinds.shape[0] == 0:
        return np.uint64(0)
    word = lanes[row, 0] ^ inverting[0]
    if kinds[0] == NULL_FLAG:
        word = (word << _S63) | ((lanes[row, 1] ^ inverting[1]) >> _ONE)
    return word


@kernel(U64, U64_2D, U8, U64, OUT_U64, OUT_U64)
def group_codes(groups: Any, lanes: Any, kinds: Any, inverting: Any, spans: Any, codes: Any) -> None:
    """codes (n,) ascend, not strictly, as rows do by group, and in it as they are ordered; n > 0.

    lanes, kinds: of the rows, without the group; inverting: (L,) what is reversed. spans: (4,) scratch.
    """
    n = codes.shape[0]
    spans[0], spans[1] = groups[0], groups[0]
    spans[2] = _first_word(lanes, kinds, inverting, 0)
    spans[3] = spans[2]
    for k in range(n):
        word = _first_word(lanes, kinds, inverting, k)
        codes[k] = word
        spans[0] = min(spans[0], groups[k])
        spans[1] = max(spans[1], groups[k])
        spans[2] = min(spans[2], word)
        spans[3] = max(spans[3], word)
    room = 64 - bit_length(spans[1] - spans[0])
    bits = bit_length(spans[3] - spans[2])
    drop = np.uint64(max(bits - room, 0))
    shift = np.uint64(min(bits, room))
    least, first = spans[0], spans[2]
    for k in range(n):
        high = (groups[k] - least) << shift if shift < 64 else np.uint64(0)
        codes[k] = high | (codes[k] - first) >> drop
