"""WaitingRows: updates that wait until the order is known in which a tree of each group takes them best.

A row keeps the slot that it gets first. If rows get theirs by group, and in it as they are ordered, then what
a tree is made of lies side by side, and a load walks memory from one end to the other: a third of what it
costs with rows as they come. So a round's rows wait here, as images, and are given out in that order, a piece
at a time: spread by the groups' high digits, then sorted within. Few are given as they came.

Does not: promise the order (texts that tie in their first 8 bytes may be the other way round, and a group
larger than a piece comes in several): whoever takes the rows is right in any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.kernels import time_order as kernels
from clusterd.operators.time_steps import Work, by_digit, pausing, pieces
from shm_arrangements.kernels.sort import sort_codes
from shm_arrangements.rows import RowImage, RowSpec

__all__ = ["SWEPT_FROM", "RowUpdates", "WaitingRows", "cuts", "sorted_at_once"]

T = TypeVar("T", bound=np.generic)
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

SWEPT_FROM = 4096  # updates: below, a sort costs more than it saves
SWEPT = 131_072  # updates sorted at once: some 20 ms, without texts
_OF_TEXT = 4  # times as long as rows without are rows sorted whose texts tie in their first bytes
_MOST_ROWS = 1 << 20  # that wait
_MOST_BYTES = 64 << 20
_JOINED_BYTES = 4 << 20  # put together at once: of fresh pages, up to 10 ms


@dataclass(frozen=True, slots=True)
class RowUpdates:
    """n updates: image of n rows, their groups (n,); times, diffs (n,), or (1,) if all are the same."""

    image: RowImage
    groups: Ints
    times: Words
    diffs: Ints

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def nbytes(self) -> int:
        image = self.image
        arrays = (image.lanes, image.text_lo, image.text_hi, image.text, self.groups, self.times, self.diffs)
        return sum(array.nbytes for array in arrays)

    def slice(self, lo: int, hi: int) -> RowUpdates:
        """Those from lo to hi, times and diffs of each."""
        image = self.image
        part = RowImage(
            image.spec, image.lanes[lo:hi], image.text_lo[lo:hi], image.text_hi[lo:hi], image.text
        )
        times, diffs = _each(self.times, len(self), lo, hi), _each(self.diffs, len(self), lo, hi)
        return RowUpdates(part, self.groups[lo:hi], times, diffs)


def _each(column: NDArray[T], n: int, lo: int, hi: int) -> NDArray[T]:
    """What is of n rows, or one for all, of the rows lo .. hi."""
    return np.full(hi - lo, column[0]) if len(column) < n else column[lo:hi]


def _of_rows(column: NDArray[T], rows: Ints) -> NDArray[T]:
    return column if len(column) == 1 else column.take(rows)


def _one_if_same(column: NDArray[T]) -> NDArray[T]:
    return column[:1] if len(column) and bool((column == column[0]).all()) else column


def sorted_at_once(spec: RowSpec) -> int:
    """How many rows of a spec are sorted in one piece."""
    return max(SWEPT // _OF_TEXT, 1) if spec.text_columns else SWEPT


def cuts(ends: Ints, rows: int, most: int) -> Iterator[tuple[int, int]]:
    """[lo, hi) from 0 to `rows`, each at most `most`, at one of `ends` if there is one."""
    lo = 0
    while lo < rows:
        within = int(np.searchsorted(ends, lo + most, "right"))
        hi = int(ends[within - 1]) if within and ends[within - 1] > lo else min(lo + most, rows)
        yield lo, hi
        lo = hi


class WaitingRows:
    """Updates of rows of one spec. inverting: (L,) what is reversed in a row's lanes to order them."""

    def __init__(self, inverting: Words) -> None:
        self._inverting = inverting
        self._forget()

    def _forget(self) -> None:
        self._blocks: list[RowUpdates] = []
        self._rows = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def is_full(self) -> bool:
        """Whether what waits should be taken before there is more."""
        return self._rows >= _MOST_ROWS or self.nbytes >= _MOST_BYTES

    @property
    def are_many(self) -> bool:
        """Whether what waits is going to be put in order."""
        return self._rows >= SWEPT_FROM

    def add(self, updates: RowUpdates) -> None:
        """Take updates. Their texts are not copied."""
        times, diffs = _one_if_same(updates.times), _one_if_same(updates.diffs)
        updates = RowUpdates(updates.image, updates.groups, times, diffs)
        self._blocks.append(updates)
        self._rows += len(updates)
        self.nbytes += updates.nbytes

    def take(self, groups: int) -> Iterator[RowUpdates | None]:
        """Everything, which is then gone from here; None ends a piece of work. groups: all are below."""
        blocks, n, are_many = self._blocks, self._rows, self.are_many
        self._forget()
        if not are_many:
            yield from blocks
            return
        whole = yield from pausing(_joined(blocks), None)
        del blocks
        order, ends, most = np.arange(n), np.array([n]), sorted_at_once(whole.image.spec)
        if n > most:
            order, ends = yield from pausing(by_digit(whole.groups.view(np.uint64), groups, order), None)
        for lo, hi in cuts(ends, n, most):
            rows = order[lo:hi]
            image, mine = whole.image.take(rows), whole.groups.take(rows)
            sorted_rows = self._sorted(image, mine)
            rows = rows.take(sorted_rows)
            yield RowUpdates(
                image.take(sorted_rows), mine.take(sorted_rows),
                _of_rows(whole.times, rows), _of_rows(whole.diffs, rows),
            )  # fmt: skip

    def _sorted(self, image: RowImage, groups: Ints) -> Ints:
        """(m,) the order of rows by group, then as they are ordered in it."""
        codes = np.empty(len(groups), np.uint64)
        kinds, spans = image.spec.kinds, np.empty(4, np.uint64)
        kernels.group_codes(groups.view(np.uint64), image.lanes, kinds, self._inverting, spans, codes)
        order, codes = sort_codes(codes)
        rows: Ints = order.astype(np.int64)
        if self._inverting.any():
            lanes = image.lanes ^ self._inverting
            image = RowImage(image.spec, lanes, image.text_lo, image.text_hi, image.text)
        image.sort_ties(codes, rows)
        return rows


def _joined(blocks: Sequence[RowUpdates]) -> Work[RowUpdates]:
    """All of them as one, some at a time: all is fresh pages."""
    if len(blocks) == 1:
        return blocks[0]
    n, first = sum(map(len, blocks)), blocks[0].image
    lanes, groups = np.empty((n, first.lanes.shape[1]), np.uint64), np.empty(n, np.int64)
    text_lo, text_hi = (np.empty((n, first.text_lo.shape[1]), np.int64) for _ in range(2))
    texts: list[NDArray[np.uint8]] = []
    shift = end = lo = done = 0
    for block in blocks:
        image = block.image
        if not texts or image.text is not texts[-1]:  # blocks may share one
            texts.append(image.text)
            shift, end = end, end + len(image.text)
        hi = lo + len(block)
        lanes[lo:hi], groups[lo:hi] = image.lanes, block.groups
        np.add(image.text_lo, shift, out=text_lo[lo:hi])
        np.add(image.text_hi, shift, out=text_hi[lo:hi])
        lo = hi
        done += block.nbytes - len(image.text)
        if done >= _JOINED_BYTES:
            done = 0
            yield
    text = texts[0] if len(texts) == 1 else (yield from _joined_texts(texts, end))
    times = _in_a_row([(block.times, len(block)) for block in blocks])
    yield
    diffs = _in_a_row([(block.diffs, len(block)) for block in blocks])
    return RowUpdates(RowImage(first.spec, lanes, text_lo, text_hi, text), groups, times, diffs)


def _joined_texts(texts: Sequence[NDArray[np.uint8]], size: int) -> Work[NDArray[np.uint8]]:
    out, at, done = np.empty(size, np.uint8), 0, 0
    for text in texts:
        for lo, hi in pieces(len(text), _JOINED_BYTES):
            out[at + lo : at + hi] = text[lo:hi]
            done += hi - lo
            if done >= _JOINED_BYTES:
                done = 0
                yield
        at += len(text)
    return out


def _in_a_row(parts: Sequence[tuple[NDArray[T], int]]) -> NDArray[T]:
    """Columns of so many rows, or one for all, as one such."""
    first = parts[0][0]
    if all(len(column) == 1 and column[0] == first[0] for column, _ in parts):
        return first
    return np.concatenate([_each(column, n, 0, n) for column, n in parts])
