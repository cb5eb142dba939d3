"""Portions: how many rows go into one message, by what each of them takes.

Rows are cut, never a row: a message of one long row is as long as that.

Does not: convert, encode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shm_arrangements.columns import Column, Ints

__all__ = ["portions"]

_ROWS = 1 << 14  # of a message: some milliseconds to convert


def portions(
    columns: Sequence[Column], n: int, *, row_bytes: int, limit_bytes: int
) -> Iterator[tuple[int, int]]:
    """The intervals [lo, hi) of the `n` rows that go into a message each, in order.

    row_bytes: what a row takes beside its columns. limit_bytes: of a message, as values are kept; on the wire
    it may be up to thrice as long.
    """
    for start in range(0, n, _ROWS):
        rows = min(_ROWS, n - start)
        taken = [_row_bytes(column.slice(start, start + rows)) for column in columns]
        ends = np.cumsum(sum(taken, np.full(rows, row_bytes)))
        lo = 0
        while lo < rows:
            whole = (ends[lo - 1] if lo else 0) + limit_bytes
            hi = max(lo + 1, int(np.searchsorted(ends, whole, "right")))
            yield start + lo, start + hi
            lo = hi


def _row_bytes(column: Column) -> Ints:
    """What each value takes, an empty text or list 1: (n,) int64. Nothing is decoded."""
    stored, indices = column.stored, column.indices
    if stored is not None and indices is None:
        return np.repeat(_row_bytes(stored), len(column))
    if stored is not None and indices is not None:
        offsets = stored.offsets
        assert offsets is not None
        lengths: Ints = offsets.take(indices.astype(np.int64) + 1) - offsets.take(indices) + 1
        return lengths
    offsets, children = column.offsets, column.children
    if offsets is None:
        width = column.values.itemsize * (column.values.shape[1] if column.values.ndim == 2 else 1)
        return sum(map(_row_bytes, children), np.full(len(column), 0 if children else width))
    if not children:
        return np.diff(offsets) + 1
    first = int(offsets[0])
    ends = np.zeros(int(offsets[-1]) - first + 1, np.int64)
    np.cumsum(_row_bytes(children[0].slice(first, int(offsets[-1]))), out=ends[1:])
    return np.diff(ends[offsets - first]) + 1
