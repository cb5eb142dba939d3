"""Searches over sorted codes against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shm_arrangements.kernels import seek

Words = NDArray[np.uint64]
word = st.one_of(st.integers(0, 6), st.integers(0, (1 << 64) - 1), st.sampled_from([1 << 63, (1 << 64) - 1]))
codes = st.lists(word, max_size=40).map(lambda ws: np.array(sorted(ws), np.uint64))


def find(array: Words, keys: Words) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    lo, hi = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    return lo, hi, seek.find_runs(array, keys, lo, hi)


def check_find(array: Words, keys: Words) -> None:
    lo, hi, found = find(array, keys)
    left, right = np.searchsorted(array, keys, "left"), np.searchsorted(array, keys, "right")
    assert (hi - lo == right - left).all()
    assert found == (right - left).sum()
    there = right > left
    assert (lo[there] == left[there]).all()


@given(codes, st.lists(word, max_size=20))
def test_runs_are_found_wherever_the_keys_stand(array: Words, keys: list[int]) -> None:
    asked = np.array(keys, np.uint64)
    check_find(array, asked)
    check_find(array, np.sort(asked))
    check_find(array, array)


@pytest.mark.parametrize("seed", range(3))
def test_runs_are_found_in_large_and_skewed_arrays(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    spread = rng.integers(0, 1 << 63, 50_000, dtype=np.uint64)
    skewed = np.concatenate([spread % np.uint64(100), spread[:10], np.full(30_000, spread[0])])
    for array in (np.sort(spread), np.sort(skewed)):
        check_find(array, rng.permutation(np.concatenate([array[::997], spread[:50] + np.uint64(1)])))


@given(codes, codes, st.integers(1, 5))
def test_matching_runs_are_all_found_whatever_the_room(a: Words, b: Words, room: int) -> None:
    wanted = [
        tuple(int(np.searchsorted(array, code, side)) for array in (a, b) for side in ("left", "right"))
        for code in np.intersect1d(a, b)
    ]
    got: list[tuple[int, ...]] = []
    outs = [np.empty(room, np.int64) for _ in range(4)]
    i = j = 0
    for _ in range(len(a) + len(b) + 1):
        k, i, j = seek.match_runs(a, b, i, j, *outs)
        got += zip(*(out[:k].tolist() for out in outs), strict=True)
        if k < room:
            break
    assert got == wanted


def test_a_small_side_skips_through_a_large_one() -> None:
    large = np.arange(0, 2_000_000, 2, dtype=np.uint64)
    small = np.array([0, 999_998, 999_999, 1_999_998], np.uint64)
    outs = [np.empty(8, np.int64) for _ in range(4)]
    for a, b in ((large, small), (small, large)):
        k, _, _ = seek.match_runs(a, b, 0, 0, *outs)
        assert k == 3


@given(codes, st.lists(word, max_size=8), st.data())
def test_expanding_runs_keeps_times_up_to_the_last(
    array: Words, keys: list[int], data: st.DataObject
) -> None:
    times = np.array(data.draw(st.lists(word, min_size=len(array), max_size=len(array))), np.uint64)
    last = data.draw(word)
    lo, hi, found = find(array, np.array(keys, np.uint64))
    rows, index = np.empty(found, np.int64), np.empty(found, np.int64)
    count = seek.expand_runs(lo, hi, times, np.uint64(last), rows, index)
    wanted = [(r, k) for k in range(len(keys)) for r in range(lo[k], hi[k]) if times[r] <= last]
    assert list(zip(rows[:count].tolist(), index[:count].tolist(), strict=True)) == wanted
