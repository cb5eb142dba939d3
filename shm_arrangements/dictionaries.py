"""Dictionaries in the making: which columns of texts get one, and what is in it.

A sample, or the dictionaries that the runs have, says whether one is likely to save a quarter of the bytes.
Then it is filled with the distinct texts of the rows that the batch will have, by entries and not by rows
where a run has a dictionary, up to a capacity; one that is full, or saves less in the end, was a mistake and
is given up. So a wrong guess costs time, and never a batch that is larger than a plain one.

Does not: decide in the end (batch_plan.py, which knows the rows then), or write texts (assembler.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.columns import Column, Encoding, Ints
from shm_arrangements.kernels import intern as kernels
from shm_arrangements.kernels.refs import ROW_BITS

LEAST_ROWS: Final = 64  # below which no dictionary is thought of: arrays are rounded up to 64 bytes
_LEAST_MERGED: Final = 4096  # rows below which two runs without a dictionary get none
_MERGE_SAMPLE: Final = 1024  # rows looked at in a merge; about 0.1 ms
_SAMPLE: Final = 256  # of a single run: so many, or one of so many, but not more than this
_SAMPLE_SHARE: Final = 64
_MOST_SAMPLE: Final = 1 << 16


class Dictionary:
    """The dictionary of one column in the making."""

    __slots__ = ("_hashes", "_known", "_slots", "_starts", "_state", "column", "entries", "node")

    def __init__(self, column: int, capacity: int, sizes: Sequence[int]) -> None:
        """capacity: the most entries. sizes: of the dictionary of each run; its rows if it has none."""
        self.column = column
        self.node = -1  # its number in the batch, once that is known
        self.entries = np.empty(capacity, np.int64)  # a ref of each
        self._hashes = np.empty(capacity, np.uint64)
        self._slots = np.full(1 << (2 * capacity).bit_length(), kernels.NONE, np.uint32)
        self._starts = np.array([0, *itertools.accumulate(sizes)], np.int64)
        self._known = np.full(int(self._starts[-1]), kernels.NONE, np.uint32)
        self._state = np.zeros(3, np.int64)

    @property
    def count(self) -> int:
        """Entries."""
        return int(self._state[kernels.ENTRIES])

    @property
    def nbytes(self) -> int:
        """Bytes of the texts."""
        return int(self._state[kernels.ENTRY_BYTES])

    @property
    def index_bytes(self) -> int:
        """Bytes of the index of a row."""
        return _index_bytes(self.count)

    @property
    def is_full(self) -> bool:
        """Whether a text was met for which there was no room."""
        return bool(self._state[kernels.FULL])

    def saves(self, rows: int, text_bytes: int) -> bool:
        """Whether a column of so many rows and bytes of texts takes at least a quarter less with it."""
        return _saves(self.count, self.nbytes, rows, text_bytes)

    def add(self, tables: NDArray[np.int64], refs: Ints) -> None:
        """Take in the texts of refs (m,). tables: of all runs, as in kernels/refs.py."""
        kernels.intern(
            tables, self.column, refs, self._slots, self.entries, self._hashes, self._known, self._starts,
            self._state,
        )  # fmt: skip

    def fill(
        self, tables: NDArray[np.int64], refs: Ints, nodes: NDArray[np.int64], done: int, base: int
    ) -> None:
        """Write the indices of refs (m,), all taken in before, behind `done` others.

        nodes: of the batch, which lies at address `base`.
        """
        kernels.fill_indices(
            tables, self.column, refs, self._slots, self.entries, self._hashes, self._known, self._starts,
            nodes, done, base,
        )  # fmt: skip


def begin_dictionaries(
    tables: NDArray[np.int64], columns: Mapping[int, Sequence[Column]]
) -> list[Dictionary]:
    """Empty dictionaries for those of `columns` that are likely to take less with one.

    tables: of all runs, as in kernels/refs.py. columns: of texts, by number, each as the runs have it, with
    LEAST_ROWS or more in all.
    """
    begun = []
    for column, parts in columns.items():
        is_single, rows = len(parts) == 1, sum(map(len, parts))
        if max(parts, key=len).encoding is not Encoding.PLAIN:
            # The entries, and perhaps all rows of smaller parts that have none.
            capacity = sum(map(_texts_of, parts))
        elif is_single or rows >= _LEAST_MERGED:
            share = max(_SAMPLE, min(rows // _SAMPLE_SHARE, _MOST_SAMPLE))
            capacity = _likely_entries(tables, column, parts, share if is_single else _MERGE_SAMPLE)
        else:
            continue
        if capacity:
            begun.append(Dictionary(column, capacity, list(map(_texts_of, parts))))
    return begun


def _texts_of(part: Column) -> int:
    """Texts that a run stores: its dictionary's, or all."""
    return len(part) if part.stored is None else len(part.stored)


def _likely_entries(tables: NDArray[np.int64], column: int, parts: Sequence[Column], sampled: int) -> int:
    """The most entries that a dictionary is given room for; 0 if it would not save enough."""
    rows = sum(map(len, parts))
    picked = _some_of(rows, sampled)
    size = len(picked)
    if len(parts) > 1:
        ends = np.array([0, *itertools.accumulate(map(len, parts))], np.int64)
        part = np.searchsorted(ends, picked, "right") - 1
        picked = part << ROW_BITS | (picked - ends[part])
    sample = Dictionary(column, size, [0] * len(parts))
    sample.add(tables, picked)
    entries = _distinct(sample.count, size, rows)
    entry_bytes = sample.nbytes / sample.count
    if not _saves(entries, int(entries * entry_bytes), rows, sum(map(_text_bytes, parts))):
        return 0
    return min(rows, 2 * entries + _MERGE_SAMPLE)


def _some_of(rows: int, size: int) -> Ints:
    """At most `size` row numbers, ascending, all over the rows; in no pattern, for values may come in one."""
    if rows <= size:
        return np.arange(rows, dtype=np.int64)
    mixed = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xD6E8FEB86659FD93)
    within = (mixed >> np.uint64(20)) % np.uint64(rows // size)
    return np.arange(size, dtype=np.int64) * rows // size + within.astype(np.int64)


def _text_bytes(column: Column) -> int:
    """Bytes of all texts, about."""
    plain = column if column.stored is None else column.stored
    offsets = plain.offsets
    assert offsets is not None
    return int(offsets[-1] - offsets[0]) * len(column) // max(len(plain), 1)


def _index_bytes(entries: int) -> int:
    return 1 if entries <= 1 << 8 else 2 if entries <= 1 << 16 else 4


def _saves(entries: int, entry_bytes: int, rows: int, text_bytes: int) -> bool:
    """Whether texts of `text_bytes` take at least a quarter less with a dictionary."""
    encoded = _index_bytes(entries) * rows + 8 * (entries + 1) + entry_bytes
    return 4 * encoded <= 3 * (8 * (rows + 1) + text_bytes)


def _distinct(found: int, sampled: int, rows: int) -> int:
    """How many distinct values there are likely to be, if `found` were among `sampled` of the rows.

    As many as would give so many repetitions if each were as frequent as the others: where some are more
    frequent it is too low, and the dictionary turns out too large and is given up.
    """
    if found == sampled or sampled == rows:
        return rows if found == sampled else found
    low, high = float(found), float(rows)
    while high - low > 0.01 * low:
        middle = (low + high) / 2
        if middle * -math.expm1(-sampled / middle) < found:
            low = middle
        else:
            high = middle
    return math.ceil(high)
