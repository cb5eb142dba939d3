"""How arguments are drawn of the kernels that sort codes and merge sorted updates."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shm_arrangements.kernels import cells, merge, sort
from shm_arrangements.kernels.refs import ROW_BITS, ROW_MASK
from shm_arrangements.testing import reference
from tests.shm_arrangements.kernel_cases import (
    Both,
    case,
    draw_pool,
    draw_specs,
    draw_updates,
    i64,
    source_of,
    together,
    u64,
    words,
)


@together("sort.spread_codes", "sort.sort_buckets")
def _sort_codes(draw: Any) -> tuple[Any, Any]:
    pool = draw(st.lists(words, min_size=1, max_size=40))
    picks = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(pool), draw(st.integers(0, 300)))
    codes = u64(pool)[picks]
    return (
        [part.tolist() for part in sort.sort_codes(codes)],
        [part.tolist() for part in reference.sort_codes(codes)],
    )


@case("merge.count_folded")
def _count_folded(draw: Any) -> list[Any]:
    specs = draw_specs(draw)
    (arrays, table), updates = draw_updates(draw, specs, draw_pool(draw, specs))
    rows = len(updates.codes)
    starts = i64(sorted(draw(st.lists(st.integers(0, max(rows - 1, 0)), max_size=3))) if rows else [])
    return [
        Both((i64(source_of(arrays)), table.kernel[0]), (updates,), (arrays, table)),
        len(specs), np.uint64(draw(st.integers(0, 6))), starts, draw(st.integers(0, 5)),
    ]  # fmt: skip


@together("merge.merge_sources", "merge.replay_merge")
def _merge(draw: Any) -> tuple[Any, Any]:
    specs = draw_specs(draw)
    pool = draw_pool(draw, specs)
    drawn = [draw_updates(draw, specs, pool) for _ in range(draw(st.integers(1, merge.MAX_SOURCES)))]
    since = draw(st.integers(0, 6))
    sources = np.zeros((len(drawn), merge.SOURCE_FIELDS), np.int64)
    tables = [table.kernel[0] for (_, table), _ in drawn]
    height = max(len(table) for table in tables)
    stacked = np.zeros((len(drawn), height, cells.FIELDS), np.int64)
    for at, ((arrays, _), _) in enumerate(drawn):
        stacked[at, : len(tables[at])] = tables[at]
        sources[at] = source_of(arrays)
    total = sum(len(updates.codes) for _, updates in drawn)
    state, noted = np.zeros(merge.STATE_FIELDS, np.int64), np.zeros(merge.WORD_FIELDS, np.uint64)
    state[merge.ALIVE], noted[merge.LEAST_TIME] = -1, merge.LAST_CODE
    ops, odds = np.zeros(total, np.uint8), np.zeros(total + total // 2 + 2, np.int64)
    idle, scratch = np.full(1, merge.LAST_CODE, np.uint64), np.zeros(merge.MAX_SOURCES, np.int64)
    while state[merge.ALIVE] != 0:
        merge.merge_sources(
            sources, stacked, len(specs), np.uint64(since), draw(st.integers(1, 9)), idle.ctypes.data,
            state, noted, ops, odds, scratch,
        )  # fmt: skip
    should = reference.merge([updates for _, updates in drawn], since)
    n = int(state[merge.WRITTEN])
    assert n == len(should)
    assert (state[merge.NOT_ONE] > 0) == any(diff != 1 for _, _, diff in should)
    cursor = np.zeros(merge.CURSOR_FIELDS, np.int64)
    came: list[Any] = []
    while len(came) < n:
        room = draw(st.integers(1, n - len(came)))
        refs, sums = np.empty(room, np.int64), np.empty(room, np.int64)
        merge.replay_merge(sources, ops, odds, cursor, refs, sums)
        came += [
            (ref >> ROW_BITS, ref & ROW_MASK, diff)
            for ref, diff in zip(refs.tolist(), sums.tolist(), strict=True)
        ]
    return came, should
