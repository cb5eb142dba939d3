"""Reads over a chain of batches: scans and lookups at one time, and the changes between two.

The collection at `t` is the sum of all updates up to `t`, over all batches; so reading is finding the
updates that count, and summing those of equal rows. Most rows need no comparison at all. A lookup touches
only the runs of equal codes that its keys hash to, and compares their keys. A scan takes the largest
batch's earliest updates as they are (rows of one time are distinct), except where another update has the
same code; only those are compared and summed.

Callers have checked `since <= t < upper` (R4). Rows come in no particular order. Counts that are zero are
dropped, negative ones are kept: what they mean is the caller's to judge.

Does not: keep anything between calls, or copy a batch that can be handed out as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column, Ints
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels import rows as row_kernels
from shm_arrangements.kernels import seek
from shm_arrangements.rows import Words, encode
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.updates import Updates

Rows = tuple[tuple[Column, ...], Ints]

_NO_ROWS: Final[Ints] = np.empty(0, np.int64)
_MOST: Final = (1 << 63) - 1
_LEAST: Final = -(1 << 63)


class _Part:
    """Some updates of a batch, in its order: all arrays sliced alike, columns in stored order."""

    __slots__ = ("codes", "columns", "diffs", "times")

    def __init__(self, codes: Words, columns: tuple[Column, ...], times: Words, diffs: Ints) -> None:
        self.codes, self.columns, self.times, self.diffs = codes, columns, times, diffs

    def __len__(self) -> int:
        return len(self.times)

    def slice(self, lo: int, hi: int) -> _Part:
        columns = tuple(c.slice(lo, hi) for c in self.columns)
        return _Part(self.codes[lo:hi], columns, self.times[lo:hi], self.diffs[lo:hi])

    def take(self, rows: Ints) -> _Part:
        columns = tuple(c.take(rows) for c in self.columns)
        return _Part(self.codes.take(rows), columns, self.times.take(rows), self.diffs.take(rows))


def scan_at(batches: Sequence[Batch], t: int, *, schema: ArrangementSchema | None = None) -> Rows:
    """All rows of the collection at `t`: columns in ROW order and counts (n,) int64, none zero.

    Without a copy if the chain is one batch whose updates are all of one time. `schema` is needed only for a
    chain of no batches.
    Raises: MultiplicityOverflow.
    """
    schema = _schema_of(batches, schema)
    columns, counts = _scan(_parts(batches, t), schema)
    return tuple(columns[i] for i in schema.row_order), counts


def scan_pieces_at(
    batches: Sequence[Batch], t: int, max_rows: int, *, schema: ArrangementSchema | None = None
) -> Iterator[Rows]:
    """As `scan_at`, in pieces of about `max_rows` work each; all rows of a key are in one piece.

    A single key of more rows is one piece, however large.
    """
    schema = _schema_of(batches, schema)
    parts = _parts(batches, t)
    if not parts:
        return
    largest = max(parts, key=len)
    pieces = max(1, -(-sum(map(len, parts)) // max_rows))
    step = -(-len(largest) // pieces)
    ends = [0] * len(parts)
    for at in range(step, len(largest) + step, step):
        starts = ends
        if at >= len(largest):
            ends = [len(part) for part in parts]
        else:
            ends = [int(np.searchsorted(part.codes, largest.codes[at])) for part in parts]
        spans = zip(parts, starts, ends, strict=True)
        columns, counts = _scan([p.slice(lo, hi) for p, lo, hi in spans if lo < hi], schema)
        if len(counts):
            yield tuple(columns[i] for i in schema.row_order), counts


def lookup_at(
    batches: Sequence[Batch],
    t: int,
    key_columns: tuple[Column, ...],
    *,
    schema: ArrangementSchema | None = None,
) -> tuple[tuple[Column, ...], Ints, Ints]:
    """The rows at `t` of k keys: columns in ROW order, counts (n,), and which key (n,) int64, ascending.

    key_columns: in key order, (k,) each, of the key's types; keys may repeat. NULL finds NULL.
    Raises: MultiplicityOverflow; InvariantViolation if the columns are not of the key's types.
    """
    schema = _schema_of(batches, schema)
    if len(key_columns) != len(schema.key):
        raise InvariantViolation("wrong number of key columns", given=len(key_columns), key=schema.key)
    asked: Ints | None = None
    for column, spec in zip(key_columns, schema.key_specs, strict=True):
        if column.has_validity and not spec.nullable and column.null_count:
            # No row has such a key; what is left has no NULL where the schema has none.
            asked = _not_null(key_columns, schema)
            key_columns = tuple(c.take(asked) for c in key_columns)
            break
    keys = encode(key_columns, schema.key_image, rows=None if key_columns else 1)
    columns, counts, index = _find(batches, t, schema.codes_of(key_columns, rows=1))
    if not len(index):
        return tuple(Column.empty(c.type) for c in schema.columns), counts, index
    image = encode(columns, schema.stored_image, rows=len(index))
    same = np.empty(len(index), np.bool_)
    row_kernels.equal_rows(
        image.lanes, image.text_lo, image.text_hi, image.text, np.arange(len(index), dtype=np.int64),
        keys.lanes, keys.text_lo, keys.text_hi, keys.text, index, keys.spec.kinds, same,
    )  # fmt: skip
    if len(index) > 1 or not same[0]:
        numbers = index.view(np.uint64)
        order = image.sort_order(numbers)
        if not same.all():  # equal codes of other keys
            order = order[same[order]]
        rows, counts = image.consolidate(order, counts, numbers)
        columns = tuple(c.take(rows) for c in columns)
        index = index.take(rows)
    return tuple(columns[i] for i in schema.row_order), counts, index if asked is None else asked.take(index)


def updates_between(
    batches: Sequence[Batch], t1: int, t2: int, *, schema: ArrangementSchema | None = None
) -> Updates:
    """The updates with `t1 < time <= t2`, columns in ROW order, consolidated. `t1` must not precede since.

    Raises: MultiplicityOverflow.
    """
    schema = _schema_of(batches, schema)
    found = [Updates.empty([c.type for c in schema.columns])]
    for batch in batches:
        upper = batch.description.upper
        if not len(batch) or (not upper.is_empty and upper.time <= t1 and _exact_at(batch, t1)):
            continue
        rows = np.flatnonzero((batch.times > np.uint64(t1)) & (batch.times <= np.uint64(t2)))
        if len(rows):
            columns = tuple(c.take(rows) for c in batch.row_columns())
            found.append(Updates(columns, batch.times.take(rows), batch.diffs_of(rows)))
    return Updates.concat(found).consolidate()


def _schema_of(batches: Sequence[Batch], schema: ArrangementSchema | None) -> ArrangementSchema:
    if batches:
        return batches[0].schema
    if schema is None:
        raise InvariantViolation("a chain of no batches is read without a schema")
    return schema


def _exact_at(batch: Batch, t: int) -> bool:
    """Whether no time of the batch was rounded up beyond `t`."""
    return batch.description.since.less_equal(t)


def _parts(batches: Sequence[Batch], t: int) -> list[_Part]:
    """The updates of each batch at or before `t`, without a copy where that is all of them."""
    parts = []
    for batch in batches:
        if not len(batch):
            continue
        part = _Part(batch.codes, batch.columns, batch.times, batch.diffs)
        upper = batch.description.upper
        if upper.is_empty or upper.time > t + 1 or not _exact_at(batch, t):
            counts = batch.times <= np.uint64(t)
            if not counts.all():
                part = part.take(np.flatnonzero(counts))
        if len(part):
            parts.append(part)
    return parts


def _join_parts(parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    columns = tuple(Column.concat(cs[0].type, cs) for cs in zip(*(p.columns for p in parts), strict=True))
    codes, times, diffs = (
        np.concatenate(arrays) for arrays in zip(*((p.codes, p.times, p.diffs) for p in parts), strict=True)
    )
    return _Part(codes, columns, times, diffs)


def _scan(parts: list[_Part], schema: ArrangementSchema) -> Rows:
    """Columns in stored order, and counts."""
    if not parts:
        return tuple(Column.empty(c.type) for c in schema.stored), _NO_ROWS
    at = max(range(len(parts)), key=lambda i: len(parts[i]))
    base = parts[at]
    others = parts[:at] + parts[at + 1 :]
    if base.diffs.max() == _MOST or base.diffs.min() == _LEAST:  # perhaps a sum in parts (batch.py)
        return _fold(parts, schema)
    early = base.times == base.times.min()
    late = np.flatnonzero(~early)
    if not len(late) and not others:
        return base.columns, base.diffs
    if (len(late) + sum(map(len, others))) * 4 > len(base):
        return _fold(parts, schema)
    touched = np.unique(np.concatenate([base.codes.take(late), *(p.codes for p in others)]))
    lo, hi = np.empty(len(touched), np.int64), np.empty(len(touched), np.int64)
    found = seek.find_runs(base.codes, touched, lo, hi)
    rows, keys = np.empty(found, np.int64), np.empty(found, np.int64)
    seek.expand_runs(lo, hi, base.times, np.uint64((1 << 64) - 1), rows, keys)
    early[rows] = False
    plain = np.flatnonzero(early)
    compared = [base.take(rows)] if found else []
    columns, counts = _fold(compared + others, schema)
    joined = tuple(
        Column.concat(a.type, (a.take(plain), b)) for a, b in zip(base.columns, columns, strict=True)
    )
    return joined, np.concatenate((base.diffs.take(plain), counts))


def _fold(parts: list[_Part], schema: ArrangementSchema) -> Rows:
    """Sum all updates of equal rows, whatever their times."""
    parts = sorted(parts, key=len, reverse=True)
    whole = _join_parts(parts)
    image = encode(whole.columns, schema.stored_image, rows=len(whole))
    starts = np.cumsum([0] + [len(p) for p in parts[:-1]], dtype=np.int64)
    rows, counts = image.consolidate(image.merge_order(whole.codes, starts), whole.diffs)
    return tuple(c.take(rows) for c in whole.columns), counts


def _find(batches: Sequence[Batch], t: int, codes: Words) -> tuple[tuple[Column, ...], Ints, Ints]:
    """The updates up to `t` whose codes are `codes`: stored columns, diffs, and which of the codes."""
    n = len(codes)
    lo, hi = np.empty(n, np.int64), np.empty(n, np.int64)
    last = np.uint64(t)
    columns: list[list[Column]] = []
    diffs: list[Ints] = []
    indexes: list[Ints] = []
    for batch in batches:
        found = seek.find_runs(batch.codes, codes, lo, hi)
        if not found:
            continue
        rows, index = np.empty(found, np.int64), np.empty(found, np.int64)
        count = seek.expand_runs(lo, hi, batch.time_cells, last, rows, index)
        if count:
            rows = rows[:count]
            columns.append([c.take(rows) for c in batch.columns])
            diffs.append(batch.diffs_of(rows))
            indexes.append(index[:count])
    if not diffs:
        return (), _NO_ROWS, _NO_ROWS
    if len(diffs) == 1:
        return tuple(columns[0]), diffs[0], indexes[0]
    joined = tuple(Column.concat(cs[0].type, cs) for cs in zip(*columns, strict=True))
    return joined, np.concatenate(diffs), np.concatenate(indexes)


def _not_null(key_columns: tuple[Column, ...], schema: ArrangementSchema) -> Ints:
    """The keys without a NULL where the schema has none."""
    possible = np.ones(len(key_columns[0]), np.bool_)
    for column, spec in zip(key_columns, schema.key_specs, strict=True):
        validity = column.validity
        if validity is not None and not spec.nullable:
            possible &= validity
    return np.flatnonzero(possible)
