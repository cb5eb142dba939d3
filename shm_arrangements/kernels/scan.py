"""Scanning a chain: which updates have to be summed; the others are rows as they are.

To be summed are those whose code stands in more than one batch, or more than once in one of several times.
Codes are found to be shared by a small table of what the batches have in a stretch of codes, so that what a
scan costs beyond copying is a pass or two over the codes. Two codes that only share a slot of the table are
looked at in vain, and come out as they are.

Does not: take values out (collect.py).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.kernels.cells import load_u64
from shm_arrangements.kernels.find import (
    CHAIN,
    CODES,
    OVERFLOW,
    ROWS,
    diff_of,
    fold,
    time_of,
    words_at,
)
from shm_arrangements.kernels.jit import I64, OUT_I64, OUT_I64_2D, OUT_U32, i64, inner, kernel, u64
from shm_arrangements.kernels.refs import TABLES, ref_of

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
_MOST = (1 << 63) - 1
_LEAST = -(1 << 63)


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
    CHAIN, TABLES, I64, I64, I64, i64, u64, i64, OUT_U32, OUT_I64_2D, OUT_I64_2D, OUT_I64, OUT_I64, OUT_I64
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
                refs[at] = ref_of(heads[0, 0], row)
                sums[at] = diff_of(chain, heads[0, 0], row)
                at += 1
            continue
        at = fold(chain, cells, heads, count, np.uint64(0), latest, 0, columns, False, refs, sums, at)
        if at == OVERFLOW:
            return np.int64(OVERFLOW)


@kernel(I64)
def has_extreme(diffs: Any) -> bool:
    """Whether a diff is 2^63 - 1 or -2^63: perhaps a part of a larger sum (batch.py)."""
    found = 0
    for i in range(diffs.shape[0]):
        found += int(diffs[i] == _MOST) + int(diffs[i] == _LEAST)
    return found != 0
