"""Sorting rows of an answer in pieces, each of some milliseconds, so that other reads have their turns.

A sample of the rows gives splitters; each piece is sorted together with them, which cuts it into one run a
bucket; then the runs of each bucket are sorted, and the buckets follow each other in order. So no step sees
more than about a piece of rows, and of an answer that is cut short only the first buckets are sorted.

Equal rows are in one bucket. Where they may be many, they are made one in each piece first (`merge`).

Does not: project, count positions, know the wire.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from controller_proto.plan import OrderBy
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode

__all__ = ["Rows", "joined", "sort_rows", "sorted_parts"]

Ints = NDArray[np.int64]
Rows = tuple[tuple[Column, ...], Ints]  # columns, and counts (n,) int64

_PIECE_ROWS = 1 << 13  # some 2 ms: what a read by key waits for where it shares a worker with a scan
_PIECES = 128  # beyond a million rows pieces grow instead: a bucket takes a run of each
_SAMPLES = 16  # of rows for one splitter: a bucket is seldom twice the size that it should have


def sorted_parts(
    parts: Sequence[Rows],
    order: tuple[OrderBy, ...],
    *,
    merge: bool = False,
    wanted: int | None = None,
    piece_rows: int = 0,
) -> Generator[None, None, list[Rows]]:
    """The rows of `parts`, at least one, sorted as `sort_rows` does, cut into parts that follow each other.

    merge: equal rows become one, their counts added. wanted: positions, counting multiplicity, of which no
    more than these are needed from the front; there may be more. piece_rows: 0 is as many as suit the rows.
    Raises: MultiplicityOverflow.
    """
    piece_rows = piece_rows or max(_PIECE_ROWS, sum(len(counts) for _, counts in parts) // _PIECES)
    pieces = [piece for part in parts for piece in _sliced(part, piece_rows)]
    if len(pieces) < 2:
        return [_sorted(pieces[0] if pieces else parts[0], order, merge=merge)]
    if merge:
        for number, piece in enumerate(pieces):
            pieces[number] = _sorted(piece, order, merge=True)
            yield
    splitters = _splitters(pieces, order, 2 * sum(len(counts) for _, counts in pieces) // piece_rows)
    yield
    cuts: list[Ints] = []
    for number, piece in enumerate(pieces):
        pieces[number], bounds = _cut(splitters, piece, order)
        cuts.append(bounds)
        yield
    found: list[Rows] = []
    have = 0
    for bucket in range(len(cuts[0]) - 1):
        runs = [
            (tuple(column.slice(lo, hi) for column in columns), counts[lo:hi])
            for (columns, counts), lo, hi in (
                (piece, int(cut[bucket]), int(cut[bucket + 1]))
                for piece, cut in zip(pieces, cuts, strict=True)
            )
            if lo < hi
        ]
        if runs:
            found.append(_sorted(joined(runs), order, merge=merge))
            have += int(found[-1][1].sum(dtype=object)) if wanted is not None else 0
            yield
        if wanted is not None and have >= wanted:
            break
    return found or [_sorted(parts[0], order, merge=merge)]


def sort_rows(columns: Sequence[Column], order: Sequence[OrderBy], n: int) -> Ints:
    """(n,) the permutation that sorts by `order`, then by all columns ascending, NULL last. Stable."""
    whole = encode(columns, _spec_of(columns), n).sort_order()
    if not order:
        return whole
    lanes: list[NDArray[np.uint64]] = []
    for by in order:
        column = columns[by.column].take(whole)
        validity = column.validity
        if validity is not None:
            lanes.append((validity if by.nulls_first else ~validity).astype(np.uint64))
        rank = _rank(column, n)
        lanes.append(~rank if by.descending else rank)
        if validity is not None:
            lanes[-1][~validity] = 0
    result: Ints = whole.take(np.lexsort(lanes[::-1]))
    return result


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of `parts`, at least one, in that order."""
    columns, counts = parts[0]
    if len(parts) == 1:
        return columns, counts
    columns = tuple(
        Column.concat(found[0].type, found) for found in zip(*(part[0] for part in parts), strict=True)
    )
    return columns, np.concatenate([part[1] for part in parts])


def _sliced(part: Rows, piece_rows: int) -> list[Rows]:
    columns, counts = part
    n = len(counts)
    if n <= piece_rows:
        return [part] if n else []
    return [
        (tuple(column.slice(lo, min(lo + piece_rows, n)) for column in columns), counts[lo : lo + piece_rows])
        for lo in range(0, n, piece_rows)
    ]


def _sorted(rows: Rows, order: tuple[OrderBy, ...], *, merge: bool) -> Rows:
    columns, counts = rows
    n = len(counts)
    if n < 2:
        return rows
    if merge:
        image = encode(columns, _spec_of(columns), n)
        chosen, counts = image.consolidate(image.sort_order(), counts)
    else:
        chosen = sort_rows(columns, order, n)
        counts = counts.take(chosen)
    return tuple(column.take(chosen) for column in columns), counts


def _splitters(pieces: Sequence[Rows], order: tuple[OrderBy, ...], buckets: int) -> Rows:
    """Sorted rows that cut all rows into about `buckets` of about one size."""
    each = max(1, buckets * _SAMPLES // len(pieces))
    sample = []
    for columns, counts in pieces:
        chosen = np.linspace(0, len(counts) - 1, min(each, len(counts))).astype(np.int64)
        sample.append((tuple(column.take(chosen) for column in columns), counts.take(chosen)))
    columns, counts = _sorted(joined(sample), order, merge=False)
    chosen = np.arange(_SAMPLES, len(counts), _SAMPLES)
    return tuple(column.take(chosen) for column in columns), counts.take(chosen)


def _cut(splitters: Rows, piece: Rows, order: tuple[OrderBy, ...]) -> tuple[Rows, Ints]:
    """The piece sorted, and where each bucket begins and ends in it: rows not before its splitter."""
    columns, counts = joined([splitters, piece])
    split, n = len(splitters[1]), len(counts)
    ranked = sort_rows(columns, order, n)  # stable: a splitter is before the rows that are equal to it
    is_splitter = ranked < split
    before = np.flatnonzero(is_splitter) - np.arange(split)
    chosen = ranked[~is_splitter] - split
    rows = tuple(column.take(chosen) for column in piece[0]), piece[1].take(chosen)
    return rows, np.concatenate([[0], before, [n - split]]).astype(np.int64)


def _rank(column: Column, n: int) -> NDArray[np.uint64]:
    """(n,) numbers that order as the values do."""
    image = encode([column], _spec_of([column]), n)
    order = image.sort_order()
    ranks = np.empty(n, np.uint64)
    first = np.zeros(n, np.uint64)
    first[image.run_starts(order)] = 1
    ranks[order] = np.cumsum(first, dtype=np.uint64)
    return ranks


def _spec_of(columns: Sequence[Column]) -> RowSpec:
    return RowSpec(tuple((column.type, column.has_validity) for column in columns))
