"""Sorting codes: stable, right for every distribution, and never quadratic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shm_arrangements.kernels.sort import sort_codes
from shm_arrangements.testing import reference

SIZES = [0, 1, 2, 3, 24, 25, 26, 100, 300, 5000]


def _uniform(n: int, rng: np.random.Generator) -> Any:
    return rng.integers(0, 1 << 64, n, dtype=np.uint64)


def _with(codes: Any, at: int, value: int) -> Any:
    codes[at : at + 1] = value
    return codes


DISTRIBUTIONS: dict[str, Any] = {
    "uniform": _uniform,
    "ascending": lambda n, rng: np.sort(_uniform(n, rng)),
    "descending": lambda n, rng: np.sort(_uniform(n, rng))[::-1].copy(),
    "nearly ascending": lambda n, rng: _with(np.sort(_uniform(n, rng)), n - 1, 0),
    "all equal": lambda n, rng: np.full(n, 1 << 63, np.uint64),
    "few": lambda n, rng: _uniform(5, rng)[rng.integers(0, 5, n)],
    "small and dense": lambda n, rng: rng.integers(0, 50, n).astype(np.uint64),
    "a permutation": lambda n, rng: rng.permutation(n).astype(np.uint64),
    "one far outlier": lambda n, rng: _with(rng.integers(0, 1 << 20, n).astype(np.uint64), n // 2, 1 << 63),
    "nine of ten equal": lambda n, rng: np.where(rng.random(n) < 0.9, np.uint64(99), _uniform(n, rng)),
    "clusters": lambda n, rng: _uniform(5, rng)[rng.integers(0, 5, n)] ^ rng.integers(0, 999, n).astype("u8"),
    "powers of two": lambda n, rng: np.uint64(1) << rng.integers(0, 64, n).astype(np.uint64),
    "extremes": lambda n, rng: np.array([0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1], "u8")[
        rng.integers(0, 5, n)
    ],
    # Each level sets only the farthest row apart: as many levels as there can be.
    "an outlier at every scale": lambda n, rng: np.concatenate(
        [np.uint64(1) << np.arange(min(n, 64), dtype="u8"), rng.integers(0, 40, max(n - 64, 0)).astype("u8")]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("n", SIZES)
def test_every_distribution_is_sorted_as_the_reference_sorts_it(name: str, n: int) -> None:
    codes = DISTRIBUTIONS[name](n, np.random.default_rng(n))
    codes.flags.writeable = False
    order, keys = sort_codes(codes)
    expected_order, expected_keys = reference.sort_codes(codes)
    assert order.dtype == np.uint32
    assert keys.dtype == np.uint64
    np.testing.assert_array_equal(order, expected_order)
    np.testing.assert_array_equal(keys, expected_keys)


@settings(deadline=None)
@given(st.data(), st.integers(0, 400), st.sampled_from([1, 3, 8, 32, 63, 64]))
def test_random_codes_are_sorted_as_the_reference_sorts_them(data: Any, n: int, bits: int) -> None:
    seed = data.draw(st.integers(0, 1 << 32))
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, n, dtype=np.uint64)
    for value in data.draw(st.lists(st.integers(0, (1 << 64) - 1), max_size=min(n, 40))):
        codes[rng.integers(0, n)] = value
    order, keys = sort_codes(codes)
    np.testing.assert_array_equal(order, reference.sort_codes(codes)[0])
    np.testing.assert_array_equal(keys, codes[order])


def test_codes_that_ascend_already_are_not_copied() -> None:
    codes = np.array([0, 4, 4, (1 << 64) - 1], np.uint64)
    order, keys = sort_codes(codes)
    assert keys is codes
    assert order.tolist() == [0, 1, 2, 3]


def test_too_many_rows_for_the_order_are_refused() -> None:
    codes = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint64), (1 << 32,), (0,))
    with pytest.raises(ValueError, match="32 bits"):
        sort_codes(codes)
