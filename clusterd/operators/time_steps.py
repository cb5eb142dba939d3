"""Steps: what a round changes, of each group ascending in time; and how work over a whole round is cut.

A round gathers partials by (row, time). When it has all, those of the groups are put in the order of time:
these are its steps, which every kind of aggregate walks together, many times in one pass. Where they are
many, groups that are near in memory stay together, each with all of its times: nothing asks for more, and a
walk in the order of time alone would find each group at random. A hydration has millions of steps, so what
looks at all of them does so a piece at a time (R11): such work is a generator that yields between its pieces
and returns its result.

Does not: know what a partial adds (row_table.py gathers them), or judge one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.kernels import time_order as kernels

__all__ = ["PIECE_ROWS", "Steps", "Work", "by_digit", "pausing", "pieces", "time_order"]

T = TypeVar("T")
P = TypeVar("P")
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Work = Generator[None, None, T]  # yields between pieces, returns a T

PIECE_ROWS: Final = 1 << 17  # of one pass: up to 15 ms where each misses the caches


def pieces(rows: int, size: int = PIECE_ROWS) -> Iterator[tuple[int, int]]:
    """[lo, hi) from 0 to `rows`, each at most `size`."""
    for lo in range(0, rows, size):
        yield lo, min(lo + size, rows)


def pausing(work: Work[T], pause: P) -> Generator[P, None, T]:
    """The same work for somebody who yields `pause` between pieces."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        yield pause


def time_order(times: Words) -> Work[Ints]:
    """(n,) an order in which the times ascend; equal times in any order."""
    n = len(times)
    if n <= PIECE_ROWS:
        if n == 0 or bool((times[1:] >= times[:-1]).all()):
            return np.arange(n, dtype=np.int64)
        return np.argsort(times).astype(np.int64, copy=False)
    order, ascends, least, most = np.empty(n, np.int64), True, times[0], times[0]
    for lo, hi in pieces(n):
        part, last = times[lo:hi], times[max(lo - 1, 0)]
        ascends = ascends and bool(last <= part[0]) and bool((part[1:] >= part[:-1]).all())
        least, most = min(least, part.min()), max(most, part.max())
        order[lo:hi] = np.arange(lo, hi)
        yield
    if ascends:
        return order
    other = np.empty(n, np.int64)
    for shift in range(0, int(most - least).bit_length(), kernels.DIGIT_BITS):
        starts = np.zeros((1 << kernels.DIGIT_BITS) + 1, np.int64)
        for lo, hi in pieces(n):
            kernels.count_digits(times, least, np.uint64(shift), lo, hi, starts)
            yield
        starts = np.cumsum(starts)
        for lo, hi in pieces(n):
            kernels.place_by_digit(times, least, np.uint64(shift), order, lo, hi, starts, other)
            yield
        order, other = other, order
    return order


def by_digit(codes: Words, most: int, order: Ints) -> Work[tuple[Ints, Ints]]:
    """`order` (n,) by the highest digit of the codes below `most`, stable; and (digits,) where each ends."""
    n, shift = len(order), np.uint64(max(most.bit_length() - kernels.DIGIT_BITS, 0))
    starts = np.zeros((1 << kernels.DIGIT_BITS) + 1, np.int64)
    for lo, hi in pieces(n):
        kernels.count_digits(codes, np.uint64(0), shift, lo, hi, starts)
        yield
    ends, out = np.cumsum(starts), np.empty(n, np.int64)
    for lo, hi in pieces(n):
        kernels.place_by_digit(codes, np.uint64(0), shift, order, lo, hi, ends, out)
        yield
    return out, ends[:-1]


class _Gathered(Protocol):
    """What `Steps` needs of partials (row_table.Partials)."""

    @property
    def slots(self) -> Ints: ...

    @property
    def times(self) -> Words: ...

    @property
    def owners(self) -> Ints: ...

    def __len__(self) -> int: ...


class Steps:
    """What a round changes: steps (group, time), of a group ascending in time; `groups` (n,), `times` (n,).

    order: (n,) the partial that each step is. Made by `of`.
    """

    def __init__(self, order: Ints, groups: Ints, times: Words) -> None:
        self.order, self.groups, self.times = order, groups, times
        self._numbers: Ints | None = None

    @staticmethod
    def of(partials: _Gathered) -> Work[Steps]:
        """The steps of a round that has gathered all of the groups' partials."""
        n = len(partials)
        order = yield from time_order(partials.times[:n])
        if n > PIECE_ROWS and partials.times[order[0]] != partials.times[order[-1]]:
            slots = partials.slots[:n]
            order, _ = yield from by_digit(slots.view(np.uint64), int(slots.max()) + 1, order)
        groups, times = np.empty(n, np.int64), np.empty(n, np.uint64)
        for lo, hi in pieces(n):
            if lo:
                yield
            mine = order[lo:hi]
            groups[lo:hi], times[lo:hi] = partials.slots.take(mine), partials.times.take(mine)
        return Steps(order, groups, times)

    def __len__(self) -> int:
        return len(self.order)

    def numbers(self) -> Work[Ints]:
        """(n,) the step that each partial is."""
        if self._numbers is None:
            numbers = np.empty(len(self), np.int64)
            for lo, hi in pieces(len(self)):
                if lo:
                    yield
                numbers[self.order[lo:hi]] = np.arange(lo, hi)
            self._numbers = numbers
        return self._numbers

    def split(self, partials: _Gathered) -> Work[tuple[Ints, Ints]]:
        """The partials of rows by step: (rows (m,), starts (n + 1,)); those of step k begin at starts[k]."""
        numbers = yield from self.numbers()
        owners, m = partials.owners, len(partials)
        rows, starts = np.empty(m, np.int64), np.zeros(len(self) + 2, np.int64)
        for lo, hi in pieces(m):
            kernels.count_by_step(owners, numbers, lo, hi, starts)
            if hi < m:
                yield
        for lo, hi in pieces(len(starts)):
            kernels.sum_up(max(lo, 1), hi, starts)
            if hi < len(starts):
                yield
        for lo, hi in pieces(m):
            kernels.place_by_step(owners, numbers, lo, hi, starts, rows)
            if hi < m:
                yield
        return rows, starts[:-1]
