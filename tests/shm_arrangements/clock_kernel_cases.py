"""How arguments are drawn of the kernels of what processes share: words, and the bells of clocks."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.shm_arrangements.kernel_cases import InOut, case, i64, u64, words

KEPT: deque[Any] = deque(maxlen=8)  # what addresses that were drawn are of


def _words(draw: Any) -> tuple[Any, int]:
    array = u64(draw(st.lists(words, min_size=1, max_size=4)))
    return array, draw(st.integers(0, len(array) - 1))


@case("atomics.load_acquire")
@case("atomics.fence_then_load")
def _load(draw: Any) -> list[Any]:
    return list(_words(draw))


@case("atomics.all_stand")
def _all_stand(draw: Any) -> list[Any]:
    array = u64(draw(st.lists(words, min_size=1, max_size=4)))
    KEPT.append(array)
    ats = draw(st.lists(st.integers(0, len(array) - 1), max_size=4))
    seen = array[ats] if draw(st.booleans()) else u64([draw(words) for _ in ats])
    return [i64([array.ctypes.data + 8 * at for at in ats]), seen]


@case("atomics.store_release")
def _store(draw: Any) -> list[Any]:
    array, at = _words(draw)
    return [InOut(array), at, np.uint64(draw(words))]


@case("atomics.fence")
def _fence(draw: Any) -> list[Any]:
    return []


CELL_WORDS, BELL_WORD = 8, 1  # of a clock


def _clock(draw: Any) -> tuple[Any, list[int]]:
    clock = np.zeros(4 * CELL_WORDS, np.uint64)
    ats = list(range(0, len(clock), CELL_WORDS))
    for at in ats:
        clock[at], clock[at + BELL_WORD] = draw(words), draw(st.integers(0, 9))
    return clock, ats


@case("bells.ring")
def _ring(draw: Any) -> list[Any]:
    clock, ats = _clock(draw)
    return [InOut(clock), draw(st.sampled_from(ats))]


@case("bells.advance")
def _advance(draw: Any) -> list[Any]:
    return [*_ring(draw), np.uint64(draw(words))]


@case("bells.advance_many")
def _advance_many(draw: Any) -> list[Any]:
    clock, ats = _clock(draw)
    return [InOut(clock), i64(draw(st.lists(st.sampled_from(ats), unique=True))), np.uint64(draw(words))]


@case("bells.sleep")
def _sleep(draw: Any) -> list[Any]:
    clock, ats = _clock(draw)
    at, rang = draw(st.sampled_from(ats)), draw(st.booleans())
    return [clock, at, int(clock[at + BELL_WORD]) + rang, InOut(i64([0, draw(st.integers(0, 1000))]))]
