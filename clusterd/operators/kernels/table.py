"""Slots for rows: an open-addressing table from a row image to a small number, and sums by (slot, time).

A table entry is one u64: the upper half of the row's hash (its tag), then slot + 1; 0 is empty. The place
of an entry is the top bits of its tag, then linear probing. So growing and removing need the table alone,
growing reads and writes it in sequence, and a probe looks at a row only if 32 bits agree already. Every hit
is verified lane by
lane and text by text: equal hashes never make two rows one.

A partial is what one round adds to one slot at one time. Its sums begin with the count of rows, 128 bits
wide. A slot finds its first and its last partial directly, others by hash, so any order of times costs O(1)
an update.

Few rows among many are looked up in groups of `_AHEAD`: a first pass asks for the memory of all of them, so
that their cache misses are waited for together. What it writes is a guess, or is written again.

Does not: allocate. A kernel that runs out of room says how far it came, the caller makes room and goes on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements.kernels.jit import (
    I32,
    I64,
    I64_2D,
    OUT_I32,
    OUT_I64,
    OUT_I64_2D,
    OUT_U8,
    OUT_U32,
    OUT_U64,
    OUT_U64_2D,
    U8,
    U64,
    U64_2D,
    i64,
    inner,
    kernel,
)

# meta of a row table
USED, FREE, TEXT_USED, TEXT_DEAD = 0, 1, 2, 3
# meta of the partials of a round
COUNT, HASHED = 0, 1

_S32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_ODD_A = np.uint64(0x9E3779B97F4A7C15)
_ODD_B = np.uint64(0xD6E8FEB86659FD93)
_AHEAD = 32  # rows: as many misses as a core has under way, and some more
_FEW = 8  # times as many places as rows: below, what is looked up is in a cache after a few rows


@inner
def _shift(table: Any) -> Any:
    """What a tag is shifted by to give its place in `table`, whose size is a power of two up to 2^32."""
    bits = 0
    size = table.shape[0]
    while size > 1:
        size >>= 1
        bits += 1
    return np.uint64(32 - bits)


@inner
def _same_row(
    lanes: Any, lo: Any, hi: Any, text: Any, i: Any, s_lanes: Any, s_lo: Any, s_hi: Any, s_text: Any, s: Any
) -> Any:
    for lane in range(lanes.shape[1]):
        if lanes[i, lane] != s_lanes[s, lane]:
            return False
    for slot in range(lo.shape[1]):
        a, b = lo[i, slot], s_lo[s, slot]
        size = hi[i, slot] - a
        if size != s_hi[s, slot] - b:
            return False
        for k in range(8, size):  # the first 8 bytes are a lane
            if text[a + k] != s_text[b + k]:
                return False
    return True


@kernel(
    U64, U64_2D, I64_2D, I64_2D, U8, i64,
    OUT_U64, OUT_U32, OUT_U64_2D, OUT_I64_2D, OUT_I64_2D, OUT_U8, OUT_I64, OUT_I64, OUT_I64,
)  # fmt: skip
def assign_slots(
    hashes: Any, lanes: Any, lo: Any, hi: Any, text: Any, start: int,
    table: Any, s_tag: Any, s_lanes: Any, s_lo: Any, s_hi: Any, s_text: Any, free: Any, meta: Any, out: Any,
) -> Any:  # fmt: skip
    """out[i] = slot of row i, for i from `start`; a row not there yet is copied to a slot of its own.

    Returns how far it came: less than n if slots, text or table (kept at most half full) ran out.
    """
    n = hashes.shape[0]
    mask = table.shape[0] - 1
    shift = _shift(table)
    room = table.shape[0] >> 1
    texts = lo.shape[1]
    are_few = table.shape[0] > _FEW * n
    ahead = start
    for i in range(start, n):
        if are_few and i == ahead:
            ahead = min(i + _AHEAD, n)
            for k in range(i, ahead):
                tag = hashes[k] >> _S32
                entry = table[np.int64(tag >> shift)]
                out[k] = -1
                if entry >> _S32 == tag and s_lanes.shape[1] > 0:
                    s = np.int64(entry & _LOW) - 1
                    if s_lanes[s, 0] == lanes[k, 0]:
                        out[k] = s
        h = hashes[i]
        if are_few and out[i] >= 0 and _same_row(lanes, lo, hi, text, i, s_lanes, s_lo, s_hi, s_text, out[i]):
            continue
        if (
            i > start
            and h == hashes[i - 1]
            and _same_row(lanes, lo, hi, text, i, s_lanes, s_lo, s_hi, s_text, out[i - 1])
        ):
            out[i] = out[i - 1]
            continue
        tag = h >> _S32
        at = np.int64(tag >> shift)
        slot = np.int64(-1)
        while True:
            entry = table[at]
            if entry == _ZERO:
                break
            if entry >> _S32 == tag:
                s = np.int64(entry & _LOW) - 1
                if _same_row(lanes, lo, hi, text, i, s_lanes, s_lo, s_hi, s_text, s):
                    slot = s
                    break
            at = (at + 1) & mask
        if slot < 0:
            if meta[USED] - meta[FREE] >= room:
                return i
            if meta[FREE] > 0:
                slot = free[meta[FREE] - 1]
            elif meta[USED] < s_tag.shape[0]:
                slot = meta[USED]
            else:
                return i
            size = 0
            for k in range(texts):
                size += hi[i, k] - lo[i, k]
            end = meta[TEXT_USED]
            if end + size > s_text.shape[0]:
                return i
            if meta[FREE] > 0:
                meta[FREE] -= 1
            else:
                meta[USED] += 1
            for lane in range(lanes.shape[1]):
                s_lanes[slot, lane] = lanes[i, lane]
            for k in range(texts):
                s_lo[slot, k] = end
                for b in range(lo[i, k], hi[i, k]):
                    s_text[end] = text[b]
                    end += 1
                s_hi[slot, k] = end
            meta[TEXT_USED] = end
            s_tag[slot] = np.uint32(tag)
            table[at] = (tag << _S32) | np.uint64(slot + 1)
        out[i] = slot
    return n


@kernel(U64, OUT_U64)
def grow(old: Any, new: Any) -> None:
    """Put every entry of `old`, a part of a table, into `new`, a larger one."""
    mask = new.shape[0] - 1
    shift = _shift(new)
    for k in range(old.shape[0]):
        entry = old[k]
        if entry != _ZERO:
            at = np.int64((entry >> _S32) >> shift)
            while new[at] != _ZERO:
                at = (at + 1) & mask
            new[at] = entry


@kernel(I64, OUT_U64, OUT_U32, OUT_I64_2D, OUT_I64_2D, OUT_I64, OUT_I64)
def free_slots(slots: Any, table: Any, s_tag: Any, s_lo: Any, s_hi: Any, free: Any, meta: Any) -> None:
    """Take `slots` (distinct, in use) out of the table, for reuse; their texts become dead bytes."""
    mask = table.shape[0] - 1
    shift = _shift(table)
    for k in range(slots.shape[0]):
        slot = slots[k]
        tag = np.uint64(s_tag[slot])
        wanted = (tag << _S32) | np.uint64(slot + 1)
        hole = np.int64(tag >> shift)
        while table[hole] != wanted:
            hole = (hole + 1) & mask
        at = hole
        while True:
            at = (at + 1) & mask
            entry = table[at]
            if entry == _ZERO:
                break
            home = np.int64((entry >> _S32) >> shift)
            if ((at - home) & mask) >= ((at - hole) & mask):  # it may stand in the hole
                table[hole] = entry
                hole = at
        table[hole] = _ZERO
        for t in range(s_lo.shape[1]):
            meta[TEXT_DEAD] += s_hi[slot, t] - s_lo[slot, t]
            s_lo[slot, t] = 0
            s_hi[slot, t] = 0
        free[meta[FREE]] = slot
        meta[FREE] += 1


@kernel(U8, i64, i64, i64, OUT_I64_2D, OUT_I64_2D, OUT_U8)
def compact_text(text: Any, first: int, last: int, end: int, s_lo: Any, s_hi: Any, out: Any) -> int:
    """Copy the live texts of slots first .. last to `out` from `end` on, and point the slots there.

    Returns where they end.
    """
    for slot in range(first, last):
        for t in range(s_lo.shape[1]):
            lo, hi = s_lo[slot, t], s_hi[slot, t]
            s_lo[slot, t] = end
            for b in range(lo, hi):
                out[end] = text[b]
                end += 1
            s_hi[slot, t] = end
    return end


@kernel(U64, U64, OUT_U64)
def mix_group(hashes: Any, groups: Any, out: Any) -> None:
    """out[i] = a hash of (group, row) from the hash of the row."""
    for i in range(out.shape[0]):
        h = (hashes[i] ^ (groups[i] * _ODD_B)) * _ODD_A
        out[i] = h ^ (h >> _S32)


@inner
def _add_count(words: Any, p: Any, diff: Any) -> None:
    """Add a signed 64-bit diff to the 128-bit count in words[p, 0:2]."""
    low = words[p, 0] + np.uint64(diff)
    carry = _ONE if low < np.uint64(diff) else _ZERO
    words[p, 0] = low
    words[p, 1] = words[p, 1] + np.uint64(diff >> 63) + carry


@kernel(
    I64, U64, I64, i64, OUT_I32, OUT_I32, OUT_I64, OUT_U64, OUT_U64_2D, OUT_U64, OUT_I64, OUT_I64
)  # fmt: skip
def assign_partials(
    slots: Any, times: Any, diffs: Any, start: int, first: Any, last: Any,
    p_slot: Any, p_time: Any, p_words: Any, table: Any, meta: Any, out: Any,
) -> Any:  # fmt: skip
    """out[i] = the partial of (slots[i], times[i]), its count raised by diffs[i]; new ones are zero before.

    first, last: (slots,) int32, -1 for a slot that has no partial in this round.
    Returns how far it came: less than n if partials or the table ran out.
    """
    n = slots.shape[0]
    mask = table.shape[0] - 1
    shift = _shift(table)
    room = table.shape[0] >> 1
    for i in range(start, n):
        slot = slots[i]
        time = times[i]
        p = np.int64(last[slot])
        if p < 0:
            p = meta[COUNT]
            if p >= p_slot.shape[0]:
                return i
            meta[COUNT] += 1
            p_slot[p] = slot
            p_time[p] = time
            first[slot] = p
            last[slot] = p
        elif p_time[p] != time:
            p = np.int64(first[slot])
            if p_time[p] != time:
                h = (np.uint64(slot) * _ODD_B + time) * _ODD_A
                tag = (h ^ (h >> _S32)) * _ODD_B >> _S32
                at = np.int64(tag >> shift)
                p = np.int64(-1)
                while table[at] != _ZERO:
                    if table[at] >> _S32 == tag:
                        q = np.int64(table[at] & _LOW) - 1
                        if p_slot[q] == slot and p_time[q] == time:
                            p = q
                            break
                    at = (at + 1) & mask
                if p < 0:
                    p = meta[COUNT]
                    if p >= p_slot.shape[0] or meta[HASHED] >= room:
                        return i
                    meta[COUNT] += 1
                    meta[HASHED] += 1
                    p_slot[p] = slot
                    p_time[p] = time
                    table[at] = (tag << _S32) | np.uint64(p + 1)
            last[slot] = p
        _add_count(p_words, p, diffs[i])
        out[i] = p
    return n


@kernel(I64, i64, i64, I64, U64_2D, OUT_U64_2D, I64_2D, OUT_U64_2D, OUT_U64_2D)
def fold(
    order: Any, start: int, end: int, p_slot: Any, p_words: Any, s_words: Any, fields: Any,
    before: Any, after: Any,
) -> None:  # fmt: skip
    """Add the partials order[start:end], in this order, to the sums of their slots.

    fields: (F, 2) offset and size in words of each two's complement number.
    before, after: (>= end - start, W), the sums of the slot around each step.
    """
    width = s_words.shape[1]
    are_few = s_words.shape[0] > _FEW * (end - start)
    ahead = start
    for k in range(start, end):
        if are_few and k == ahead:
            ahead = min(k + _AHEAD, end)
            for j in range(k, ahead):
                p = order[j]
                slot = p_slot[p]
                for w in range(width):
                    before[j - start, w] = s_words[slot, w]
                    after[j - start, w] = p_words[p, w]
        p = order[k]
        slot = p_slot[p]
        row = k - start
        for w in range(width):
            before[row, w] = s_words[slot, w]
        for f in range(fields.shape[0]):
            carry = _ZERO
            for w in range(fields[f, 0], fields[f, 0] + fields[f, 1]):
                x = s_words[slot, w]
                y = p_words[p, w]
                total = x + y
                over = total < x
                total = total + carry
                over = over or total < carry
                s_words[slot, w] = total
                carry = _ONE if over else _ZERO
        for w in range(width):
            after[row, w] = s_words[slot, w]


@kernel(I64, i64, U64_2D, OUT_I32, OUT_I32, I32, OUT_I64)
def retire(
    p_slot: Any, count: int, s_words: Any, first: Any, last: Any, holders: Any, out: Any
) -> Any:  # fmt: skip
    """End of the round: forget the partials; out gets the slots that hold nothing and that nothing holds.

    holders: (slots,) how many other rows name a slot.
    """
    freed = 0
    for p in range(count):
        slot = p_slot[p]
        if first[slot] < 0:
            continue
        first[slot] = -1
        last[slot] = -1
        empty = holders[slot] == 0
        for w in range(s_words.shape[1]):
            if s_words[slot, w] != _ZERO:
                empty = False
                break
        if empty:
            out[freed] = slot
            freed += 1
    return freed


@kernel(I64, U64_2D, U64_2D, OUT_U8, OUT_I32)
def count_holders(rows: Any, s_words: Any, s_lanes: Any, counted: Any, holders: Any) -> None:
    """Keep `holders` of the groups (first lane of a row) right after the counts of `rows` changed.

    rows may name one row twice. counted: (rows of the table,) whether the row is in `holders`.
    """
    for k in range(rows.shape[0]):
        row = rows[k]
        here = np.uint8(s_words[row, 0] != _ZERO or s_words[row, 1] != _ZERO)
        if here != counted[row]:
            group = np.int64(s_lanes[row, 0])
            holders[group] += np.int32(1) if here else np.int32(-1)
            counted[row] = here


@kernel(I64, i64, i64, I64, U64, U64_2D, OUT_U64_2D, OUT_I64, OUT_I64, OUT_I64, OUT_U64, OUT_U64_2D, OUT_I64)
def flips(
    rows: Any, start: int, end: int, p_slot: Any, p_time: Any, p_words: Any, s_words: Any,
    out: Any, signs: Any, fault_rows: Any, fault_times: Any, fault_words: Any, found: Any,
) -> int:  # fmt: skip
    """Add the partials rows[start:end] to the counts of their slots; out: those by which one comes or goes.

    It is there while its count is positive. signs: 1 where it comes, -1 where it goes. found: how many
    came or went, and how many counts were negative before or after (these are told as faults).
    Returns how far it came: less than `end` if out or the faults are full.
    """
    found[0] = 0
    found[1] = 0
    for k in range(start, end):
        if found[0] == out.shape[0] or found[1] == fault_rows.shape[0]:
            return k
        p = rows[k]
        slot = p_slot[p]
        low0, high0 = s_words[slot, 0], s_words[slot, 1]
        low = low0 + p_words[p, 0]
        high = high0 + p_words[p, 1] + (_ONE if low < low0 else _ZERO)
        s_words[slot, 0] = low
        s_words[slot, 1] = high
        was = np.int64(high0) >= 0 and (high0 != _ZERO or low0 != _ZERO)
        now = np.int64(high) >= 0 and (high != _ZERO or low != _ZERO)
        if was != now:
            out[found[0]] = p
            signs[found[0]] = 1 if now else -1
            found[0] += 1
        if np.int64(high0) < 0 or np.int64(high) < 0:
            at = found[1]
            fault_rows[at] = slot
            fault_times[at] = p_time[p]
            fault_words[at, 0] = low0
            fault_words[at, 1] = high0
            fault_words[at, 2] = low
            fault_words[at, 3] = high
            found[1] += 1
    return end
