"""Merging batches.

A merge goes through them twice: `merge_sources` decides, a byte an update, what becomes of each,
and `replay_merge` says it again as references, when it is known how much room all of it takes. Both go on
where they stopped. Rows are compared only where codes are equal.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.kernels.accumulate import LEAST_HIGH, LOW32, MOST_HIGH, write_parts
from shm_arrangements.kernels.cells import TABLE, compare_cells, load_i64, load_u64
from shm_arrangements.kernels.jit import (
    I64,
    I64_2D,
    OUT_I64,
    OUT_U8,
    OUT_U64,
    U8,
    i64,
    inner,
    kernel,
    u64,
)
from shm_arrangements.kernels.refs import TABLES, ref_of

LAST_CODE: Final = (1 << 64) - 1
_MOST: Final = np.uint64(LAST_CODE)


# What a merge reads: a row a source. Codes, times and diffs are found at address + step * row; a step of 0 is
# one value that stands for all.
SOURCE_FIELDS: Final = 6
CODES, ROWS, TIMES, TIME_STEP, DIFFS, DIFF_STEP = range(SOURCE_FIELDS)
MAX_SOURCES: Final = 4

# Between calls: how many sources are not at their end (-1 before the first call), what was consumed and what
# is to be written, the entries of `odds`, whether there is a diff to be written that is not 1; the open
# update: whether there is one, where it comes from, and the sum of its diffs in halves; what was before it.
(
    ALIVE, CONSUMED, WRITTEN, ODDS, NOT_ONE,
    OPEN, SOURCE, ROW, OP, OWN_DIFF, HIGH, LOW, WRITTEN_BEFORE, ODDS_BEFORE, NOT_ONE_BEFORE,
) = range(15)  # fmt: skip
_PATIENCE = 2  # updates taken one by one after a code that occurred twice: it may be so all over
SLOTS: Final = 16  # the sources that are not at their end
NEXT: Final = SLOTS + MAX_SOURCES  # the next row of each source
STATE_FIELDS: Final = NEXT + MAX_SOURCES
LEAST_TIME, MOST_TIME, OPEN_TIME, OPEN_CODE, HEADS = range(5)  # heads: the next code of each slot
WORD_FIELDS: Final = HEADS + MAX_SOURCES

# What becomes of an update consumed: its source, and whether an update is written in its place, with its own
# diff, with the next of `odds`, or as many parts as the next of `odds` says, which follow.
SOURCE_MASK: Final = 3
OWN: Final = 4
ODD: Final = 8
PARTS: Final = 16


@inner
def _time_of(sources: Any, source: Any, row: Any, since: Any) -> Any:
    return max(load_u64(sources[source, TIMES] + sources[source, TIME_STEP] * row), since)


@inner
def _diff_of(sources: Any, source: Any, row: Any) -> Any:
    return load_i64(sources[source, DIFFS] + sources[source, DIFF_STEP] * row)


@inner
def _open(source: Any, row: Any, at: Any, code: Any, time: Any, diff: Any, state: Any, words: Any) -> None:
    """Let an update be the open one: the next may be added to it."""
    state[OPEN], state[SOURCE], state[ROW], state[OP], state[OWN_DIFF] = 1, source, row, at, diff
    state[HIGH], state[LOW] = diff >> 32, diff & LOW32
    words[OPEN_CODE], words[OPEN_TIME] = code, time


@inner
def _write_open(state: Any, ops: Any, odds: Any) -> None:
    """Write the open update anew, whose sum has changed."""
    high = state[HIGH] + (state[LOW] >> 32)
    low = state[LOW] & LOW32
    state[HIGH], state[LOW] = high, low
    first = state[ODDS_BEFORE]
    at, source = state[OP], state[SOURCE]
    written, not_one, end = np.int64(0), np.int64(0), first
    if high < LEAST_HIGH or high > MOST_HIGH:
        end = write_parts(high, low, odds, first + 1)
        written = end - first - 1
        odds[first], not_one = written, np.int64(1)
        ops[at] = source | PARTS
    elif high != 0 or low != 0:
        total = (high << 32) | low
        written, not_one = np.int64(1), np.int64(total != 1)
        if total == state[OWN_DIFF]:
            ops[at] = source | OWN
        else:
            odds[first] = total
            end = first + 1
            ops[at] = source | ODD
    else:
        ops[at] = source
    state[ODDS] = end
    state[WRITTEN] = state[WRITTEN_BEFORE] + written
    state[NOT_ONE] = state[NOT_ONE_BEFORE] + not_one


@inner
def _take_distinct(
    sources: Any, idle: Any, alive: Any, end: Any, state: Any, words: Any, ops: Any
) -> Any:  # fmt: skip
    """Consume updates while each code is another than the one before and those at the head of other sources.

    Without a branch that depends on the data: who is next is arithmetic, for a guess would be wrong half the
    time. A source at its end shows its last code on, which is that of the update before, so the loop ends;
    in the place of one that is not there stands `idle`, the address of a code no other is greater than.
    Returns where it stopped.
    """
    at = state[CONSUMED]
    s0, s1, s2, s3 = state[SLOTS], state[SLOTS + 1], state[SLOTS + 2], state[SLOTS + 3]
    c0, i0, l0 = sources[s0, CODES], state[NEXT + s0], sources[s0, ROWS] - 1
    c1, i1, l1 = idle, np.int64(0), np.int64(0)
    c2, i2, l2 = idle, np.int64(0), np.int64(0)
    c3, i3, l3 = idle, np.int64(0), np.int64(0)
    x0, x1, x2, x3 = words[HEADS], _MOST, _MOST, _MOST
    if alive > 1:
        c1, i1, l1, x1 = sources[s1, CODES], state[NEXT + s1], sources[s1, ROWS] - 1, words[HEADS + 1]
    if alive > 2:
        c2, i2, l2, x2 = sources[s2, CODES], state[NEXT + s2], sources[s2, ROWS] - 1, words[HEADS + 2]
    if alive > 3:
        c3, i3, l3, x3 = sources[s3, CODES], state[NEXT + s3], sources[s3, ROWS] - 1, words[HEADS + 3]
    code = words[OPEN_CODE] if state[OPEN] != 0 else ~min(min(x0, x1), min(x2, x3))
    if alive <= 2:
        while at < end:
            second = np.int64(x1 < x0)
            low = min(x0, x1)
            if low == code or x0 == x1:
                break
            code = low
            ops[at] = (s0 | OWN) + second * (s1 - s0)
            at += 1
            i0 += 1 - second
            i1 += second
            x0 = load_u64(c0 + 8 * min(i0, l0))
            x1 = load_u64(c1 + 8 * min(i1, l1))
    else:
        while at < end:
            second, fourth = np.int64(x1 < x0), np.int64(x3 < x2)
            left, right = min(x0, x1), min(x2, x3)
            low = min(left, right)
            if low == code or left == right or max(x0, x1) == low or max(x2, x3) == low:
                break
            code = low
            later = np.int64(right < left)
            earlier = 1 - later
            ops[at] = (s0 | OWN) + earlier * second * (s1 - s0) + later * (s2 - s0 + fourth * (s3 - s2))
            at += 1
            i0 += earlier * (1 - second)
            i1 += earlier * second
            i2 += later * (1 - fourth)
            i3 += later * fourth
            x0 = load_u64(c0 + 8 * min(i0, l0))
            x1 = load_u64(c1 + 8 * min(i1, l1))
            x2 = load_u64(c2 + 8 * min(i2, l2))
            x3 = load_u64(c3 + 8 * min(i3, l3))
    state[NEXT + s0] = i0
    words[HEADS] = x0
    if alive > 1:
        state[NEXT + s1] = i1
        words[HEADS + 1] = x1
    if alive > 2:
        state[NEXT + s2] = i2
        words[HEADS + 2] = x2
    if alive > 3:
        state[NEXT + s3] = i3
        words[HEADS + 3] = x3
    return at


@inner
def _count_distinct(
    sources: Any, since: Any, before: Any, after: Any, state: Any, words: Any, ops: Any, firsts: Any
) -> None:  # fmt: skip
    """Account for the updates that `_take_distinct` consumed: rows firsts[source].. of each source."""
    least, most, not_one = words[LEAST_TIME], words[MOST_TIME], np.int64(0)
    last = np.int64(ops[after - 1] & SOURCE_MASK)
    for source in range(sources.shape[0]):
        first, end = firsts[source], state[NEXT + source]
        if first == end:
            continue
        times, diffs = sources[source, TIMES], sources[source, DIFFS]
        if sources[source, TIME_STEP] == 0:
            time = load_u64(times)
            least, most = min(least, time), max(most, time)
        else:
            for row in range(first, end):
                time = load_u64(times + 8 * row)
                least, most = min(least, time), max(most, time)
        if sources[source, DIFF_STEP] == 0:
            not_one += (end - first) * np.int64(load_i64(diffs) != 1)
        else:
            for row in range(first, end):
                not_one += np.int64(load_i64(diffs + 8 * row) != 1)
    words[LEAST_TIME], words[MOST_TIME] = max(least, since), max(most, since)
    row = state[NEXT + last] - 1
    diff = _diff_of(sources, last, row)
    state[WRITTEN] += after - before
    state[NOT_ONE] += not_one
    state[WRITTEN_BEFORE], state[ODDS_BEFORE] = state[WRITTEN] - 1, state[ODDS]
    state[NOT_ONE_BEFORE] = state[NOT_ONE] - np.int64(diff != 1)
    code = load_u64(sources[last, CODES] + 8 * row)
    _open(last, row, after - 1, code, _time_of(sources, last, row, since), diff, state, words)


@inner
def _least_slot(sources: Any, tables: Any, columns: Any, since: Any, low: Any, state: Any, words: Any) -> Any:
    """The slot whose head is first by row and time, of those whose code is `low`."""
    best = np.int64(-1)
    for slot in range(state[ALIVE]):
        if words[HEADS + slot] != low:
            continue
        if best < 0:
            best = np.int64(slot)
            continue
        s, t = state[SLOTS + best], state[SLOTS + slot]
        i, j = state[NEXT + s], state[NEXT + t]
        c = compare_cells(tables[s], i, tables[t], j, 0, columns)
        later = _time_of(sources, s, i, since) > _time_of(sources, t, j, since)
        if c > 0 or (c == 0 and later):
            best = np.int64(slot)
    return best


@inner
def _take_one(
    sources: Any, tables: Any, columns: Any, since: Any, slot: Any,
    state: Any, words: Any, ops: Any, odds: Any,
) -> None:  # fmt: skip
    """Consume the update at the head of a slot; if it is the open one again, it is added to that."""
    source, at = state[SLOTS + slot], state[CONSUMED]
    row, code = state[NEXT + source], words[HEADS + slot]
    time, diff = _time_of(sources, source, row, since), _diff_of(sources, source, row)
    if (
        state[OPEN] != 0
        and code == words[OPEN_CODE]
        and time == words[OPEN_TIME]
        and compare_cells(tables[state[SOURCE]], state[ROW], tables[source], row, 0, columns) == 0
    ):
        state[HIGH] += diff >> 32
        state[LOW] += diff & LOW32
        ops[at] = source
        _write_open(state, ops, odds)
    else:
        state[WRITTEN_BEFORE], state[ODDS_BEFORE] = state[WRITTEN], state[ODDS]
        state[NOT_ONE_BEFORE] = state[NOT_ONE]
        state[WRITTEN] += 1
        state[NOT_ONE] += np.int64(diff != 1)
        words[LEAST_TIME], words[MOST_TIME] = min(words[LEAST_TIME], time), max(words[MOST_TIME], time)
        ops[at] = source | OWN
        _open(source, row, at, code, time, diff, state, words)
    state[NEXT + source] = row + 1
    state[CONSUMED] = at + 1


@inner
def _drop_ended(sources: Any, state: Any, words: Any) -> None:
    """Take sources at their end out of the slots, and look at the heads of the others."""
    alive = np.int64(0)
    for slot in range(state[ALIVE]):
        source = state[SLOTS + slot]
        if state[NEXT + source] < sources[source, ROWS]:
            state[SLOTS + alive] = source
            words[HEADS + alive] = load_u64(sources[source, CODES] + 8 * state[NEXT + source])
            alive += 1
    state[ALIVE] = alive


@kernel(I64_2D, TABLES, i64, u64, i64, i64, OUT_I64, OUT_U64, OUT_U8, OUT_I64, OUT_I64)
def merge_sources(
    sources: Any, tables: Any, columns: int, since: Any, fuel: int, idle: Any,
    state: Any, words: Any, ops: Any, odds: Any, firsts: Any,
) -> int:  # fmt: skip
    """Decide the order of the updates of sorted sources, times advanced to `since`, equal (row, time) summed.

    sources (k, SOURCE_FIELDS), k from 1 to MAX_SOURCES; tables (k, rows, FIELDS): the `columns` of each.
    idle: the address of a word of all ones. state (STATE_FIELDS,), state[ALIVE] -1 at first, and words
    (WORD_FIELDS,), the least time all ones and the most 0 at first: what lasts between calls. ops: room for
    all updates; odds: half as much again and 2; firsts (MAX_SOURCES,): scratch.
    Consumes at most `fuel` updates. Returns how many: 0 if there is none left.

    The least and the most time are those of all updates decided, of what cancelled too.
    """
    if state[ALIVE] < 0:
        state[ALIVE] = sources.shape[0]
        for source in range(sources.shape[0]):
            state[SLOTS + source] = source
        _drop_ended(sources, state, words)
    begin = state[CONSUMED]
    end = begin + fuel
    patience = np.int64(0)
    while state[CONSUMED] < end and state[ALIVE] > 0:
        low, bound = words[HEADS], _MOST
        for slot in range(1, state[ALIVE]):
            bound = min(bound, max(low, words[HEADS + slot]))
            low = min(low, words[HEADS + slot])
        # A lone source whose code is the greatest there is, looks like one of a code shared: one by one, too.
        if low == bound or (state[OPEN] != 0 and low == words[OPEN_CODE]):
            patience = np.int64(_PATIENCE)
        if patience > 0:
            patience -= 1
            slot = _least_slot(sources, tables, columns, since, low, state, words)
            _take_one(sources, tables, columns, since, slot, state, words, ops, odds)
            source = state[SLOTS + slot]
            if state[NEXT + source] < sources[source, ROWS]:
                words[HEADS + slot] = load_u64(sources[source, CODES] + 8 * state[NEXT + source])
            else:
                _drop_ended(sources, state, words)
            continue
        for source in range(sources.shape[0]):
            firsts[source] = state[NEXT + source]
        before = state[CONSUMED]
        state[CONSUMED] = _take_distinct(sources, idle, state[ALIVE], end, state, words, ops)
        _count_distinct(sources, since, before, state[CONSUMED], state, words, ops, firsts)
        _drop_ended(sources, state, words)
    return state[CONSUMED] - begin  # type: ignore[no-any-return]


@kernel(I64, TABLE, i64, u64, I64, i64)
def count_folded(source: Any, table: Any, columns: int, since: Any, starts: Any, span: int) -> int:
    """How many updates of a source are the row and time of the one before them, times advanced to `since`.

    source (SOURCE_FIELDS,), table: its `columns`. Only rows starts[k] to starts[k] + span are looked at.
    """
    count = np.int64(0)
    codes, times, step = source[CODES], source[TIMES], source[TIME_STEP]
    for start in starts:
        for row in range(max(start, 1), min(start + span, source[ROWS])):
            if (
                load_u64(codes + 8 * row) == load_u64(codes + 8 * row - 8)
                and max(load_u64(times + step * row), since) == max(load_u64(times + step * (row - 1)), since)
                and compare_cells(table, row - 1, table, row, 0, columns) == 0
            ):
                count += 1
    return count  # type: ignore[return-value]


# Where the writing of a merge is: the next op, the next entry of `odds`, how many parts of a sum are due yet;
# then the next row of each source.
AT_OP, AT_ODD, DUE = range(3)
AT_ROW: Final = 4
CURSOR_FIELDS: Final = AT_ROW + MAX_SOURCES


@kernel(I64_2D, U8, I64, OUT_I64, OUT_I64, OUT_I64)
def replay_merge(sources: Any, ops: Any, odds: Any, cursor: Any, refs: Any, sums: Any) -> int:
    """The next updates to write, as `merge_sources` decided: as many as there is room for.

    refs, sums: (m,).
    cursor (CURSOR_FIELDS,), zeros at
    first, lasts between calls. There must be as many left. Returns the updates gone through.
    """
    first = op = cursor[AT_OP]
    odd = cursor[AT_ODD]
    at = np.int64(0)
    room = refs.shape[0]
    while at < room:
        decided = ops[op]
        source = np.int64(decided & SOURCE_MASK)
        row = cursor[AT_ROW + source]
        refs[at] = ref_of(source, row)
        if decided & PARTS:
            if cursor[DUE] == 0:
                cursor[DUE] = odds[odd]
                odd += 1
            sums[at] = odds[odd]
            odd += 1
            at += 1
            cursor[DUE] -= 1
            if cursor[DUE] > 0:
                continue
        elif decided & ODD:
            sums[at] = odds[odd]
            odd += 1
            at += 1
        elif decided & OWN:
            sums[at] = load_i64(sources[source, DIFFS] + sources[source, DIFF_STEP] * row)
            at += 1
        cursor[AT_ROW + source] = row + 1
        op += 1
    cursor[AT_OP], cursor[AT_ODD] = op, odd
    return op - first  # type: ignore[no-any-return]
