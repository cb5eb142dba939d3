"""Searches over sorted codes against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shm_arrangements.kernels import seek
from shm_arrangements.kernels.jit import OUT_I64, U64, kernel

Words = NDArray[np.uint64]
word = st.one_of(st.integers(0, 6), st.integers(0, (1 << 64) - 1), st.sampled_from([1 << 63, (1 << 64) - 1]))
codes = st.lists(word, max_size=40).map(lambda ws: np.array(sorted(ws), np.uint64))


def find(array: Words, keys: Words) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    lo, hi = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    return lo, hi, seek.find_runs(array, keys, lo, hi, np.empty(seek.SCRATCH, np.int64))


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


@kernel(U64, U64, OUT_I64)
def _find_each(codes: Any, keys: Any, out: Any) -> None:
    for k in range(keys.shape[0]):
        out[k] = seek.find_code(codes, keys[k])


def find_each(array: Words, keys: Words) -> NDArray[np.int64]:
    out = np.empty(len(keys), np.int64)
    _find_each(array, keys, out)
    return out


@given(codes, st.lists(word, max_size=20))
def test_one_code_is_found_wherever_it_stands(array: Words, keys: list[int]) -> None:
    asked = np.array(keys, np.uint64)
    assert (find_each(array, asked) == np.searchsorted(array, asked)).all()
    assert (find_each(array, array) == np.searchsorted(array, array)).all()


@pytest.mark.parametrize("seed", range(2))
def test_codes_of_every_shape_are_found_one_by_one_and_together(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    n = 5000
    shapes = {
        "even": rng.integers(0, 1 << 64, n, dtype=np.uint64),
        "dense": np.arange(7, n + 7, dtype=np.uint64),
        "few": rng.integers(0, 9, n, dtype=np.uint64),
        "exponential": np.exp2(rng.random(n) * 64).astype(np.uint64),
        "one far away": np.append(np.arange(n - 1, dtype=np.uint64), np.uint64((1 << 64) - 1)),
        "floats": np.abs(rng.normal(size=n)).view(np.uint64),
        "equal": np.full(n, 5, np.uint64),
    }
    for name, shape in shapes.items():
        array = np.sort(shape)
        keys = np.concatenate([array, array + np.uint64(1), array - np.uint64(1)])
        wanted = np.searchsorted(array, keys)
        assert (find_each(array, keys) == wanted).all(), name
        check_find(array, rng.permutation(keys))
        check_find(array, np.sort(keys))
