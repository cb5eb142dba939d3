"""Reads over a chain of batches: scans, lookups and ranges at one time, and the changes between two.

The collection at `t` is the sum of all updates up to `t`, over all batches; so reading is finding the
updates that count, and summing those of equal rows. Most rows need no comparison at all. A lookup touches
only the runs of equal codes that its keys have, and compares their keys. A scan compares only updates whose
code stands in more than one batch, or more than once in a batch of several times; everything else is a row as
it is, and is copied in blocks, or not at all. A range is a stretch of each batch, merged.

Callers have checked `since <= t < upper` (R4). Counts that are zero are dropped, negative ones are kept: what
they mean is the caller's to judge. Rows of a range come in the order of their keys, others in none.

Does not: keep anything between calls, or copy a batch that can be handed out as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from shm_arrangements.batch import Batch
from shm_arrangements.chain import NO_ROWS, Chain, Stretch
from shm_arrangements.columns import Column, Ints
from shm_arrangements.errors import InvariantViolation, MultiplicityOverflow, NotOrdered
from shm_arrangements.frontier import MAX_TIME
from shm_arrangements.kernels import find, scan, seek
from shm_arrangements.rows import Words
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.table import Table
from shm_arrangements.types import VARIABLE, ColumnType
from shm_arrangements.updates import Updates

Rows = tuple[tuple[Column, ...], Ints]
Key = tuple[Column, ...]
Pieces = tuple[list[Stretch], Ints, Ints]
Section = tuple[Ints, Ints, bool]  # [lo, hi) of each batch, and whether backwards

_CODES_END: Final = 1 << 64
_SIGN: Final = 1 << 63


def scan_at(batches: Sequence[Batch], t: int, *, schema: ArrangementSchema | None = None) -> Rows:
    """All rows of the collection at `t`: columns in ROW order and counts (n,) int64, none zero.

    Without a copy if the chain is one batch whose updates are all of one time; counts that are all the same
    are one cell shown n times. `schema` is needed only for a chain of no batches.
    Raises: MultiplicityOverflow.
    """
    schema = _schema_of(batches, schema)
    chain = chain_at(batches, 0, t)
    if chain is None:
        return _nothing(schema)
    stretches, refs, sums = scan_rows(chain, t)
    return _in_row_order(schema, chain.assemble(stretches, refs)), chain.counts(stretches, sums)


def scan_rows(chain: Chain, t: int) -> Pieces:
    """What `scan_at` finds: stretches that are rows as they are, and references and counts of the others."""
    lo, hi = np.zeros(len(chain), np.int64), chain.rows[:, find.ROWS].copy()
    return _scan(chain, lo, hi, t, _mixed(chain))


def scan_pieces_at(
    batches: Sequence[Batch], t: int, max_rows: int, *, schema: ArrangementSchema | None = None
) -> Iterator[Rows]:
    """As `scan_at`, in pieces of about `max_rows` work each; all rows of a key are in one piece.

    A single key of more rows is one piece, however large.
    """
    schema = _schema_of(batches, schema)
    chain = chain_at(batches, 0, t)
    if chain is None:
        return
    mixed = _mixed(chain)
    largest = max(chain.batches, key=len)
    pieces = max(1, -(-sum(map(len, chain.batches)) // max_rows))
    step = -(-len(largest) // pieces)
    hi = np.zeros(len(chain), np.int64)
    for at in range(step, len(largest) + step, step):
        lo = hi
        if at >= len(largest):
            hi = chain.rows[:, find.ROWS].copy()
        else:
            hi = _positions(chain, int(largest.codes[at]))
        if (lo < hi).any():
            stretches, refs, sums = _scan(chain, lo, hi, t, mixed)
            counts = chain.counts(stretches, sums)
            if len(counts):
                yield _in_row_order(schema, chain.assemble(stretches, refs)), counts


def lookup_at(
    batches: Sequence[Batch], t: int, key_columns: Key, *, schema: ArrangementSchema | None = None
) -> tuple[tuple[Column, ...], Ints, Ints]:
    """The rows at `t` of k keys: columns in ROW order, counts (n,), and which key (n,) int64, ascending.

    key_columns: in key order, (k,) each, of the key's types; keys may repeat. NULL finds NULL.
    Raises: MultiplicityOverflow; InvariantViolation if the columns are not of the key's types.
    """
    schema = _schema_of(batches, schema)
    _require_key(schema, key_columns, len(schema.key))
    chain = chain_at(batches, 0, t)
    if chain is None:
        return *_nothing(schema), NO_ROWS
    refs, counts, index = find_rows(chain, t, key_columns)
    return _in_row_order(schema, chain.gather(refs)), counts, index


def find_rows(chain: Chain, t: int, key_columns: Key) -> tuple[Ints, Ints, Ints]:
    """What `lookup_at` finds, by reference: (refs, counts, which key), each (n,)."""
    codes = chain.schema.codes_of(key_columns, 1)
    n = len(codes)
    lo, hi = np.empty(len(chain) * n, np.int64), np.empty(len(chain) * n, np.int64)
    scratch = np.empty(seek.SCRATCH, np.int64)
    found = 0
    for b, batch in enumerate(chain.batches):
        mine = slice(b * n, b * n + n)
        found += seek.find_runs(batch.codes, codes, lo[mine], hi[mine], scratch)
    key = len(key_columns)
    if found and not _is_told(chain.schema, key_columns):
        found = find.narrow_runs(chain.cells, Table(key_columns).cells, key, lo, hi)
    refs, sums, index = np.empty(found, np.int64), np.empty(found, np.int64), np.empty(found, np.int64)
    if not found:
        return refs, sums, index
    rows = find.fold_runs(
        chain.rows, chain.cells, key, len(chain.schema.stored), lo, hi, np.uint64(t), chain.heads(), refs,
        sums, index,
    )  # fmt: skip
    _require_sums(rows)
    return refs[:rows], sums[:rows], index[:rows]


def _is_told(schema: ArrangementSchema, key_columns: Key) -> bool:
    """Whether keys of equal codes are equal: the code is the value, and NULL, whose code is 0, is none."""
    if schema.code is not CodeKind.IDENTITY or schema.key_specs[0].nullable:
        return False
    return not (key_columns[0].has_validity and key_columns[0].null_count)


def range_at(
    batches: Sequence[Batch],
    t: int,
    lower: Key = (),
    upper: Key = (),
    *,
    include_lower: bool = True,
    include_upper: bool = False,
    nulls: bool = False,
    schema: ArrangementSchema | None = None,
) -> Rows:
    """The rows at `t` whose key lies between two, in the order of the keys: columns in ROW order, counts.

    lower, upper: key columns of one row each, all of the key's or its first ones, of which then only those
        are compared; none are no bound. nulls: whether, without an upper bound, also keys whose first column
        is NULL; they come last.
    Raises: NotOrdered if the arrangement does not keep its keys in order; MultiplicityOverflow.
    """
    schema = _schema_of(batches, schema)
    for key in (lower, upper):
        _require_key(schema, key, len(key))
    _require_ordered(schema)
    chain = chain_at(batches, 0, t)
    if chain is None:
        return _nothing(schema)
    if schema.code is CodeKind.IDENTITY:
        sections = _value_sections(chain, lower, upper, include_lower, include_upper, nulls)
    else:
        above_lower, above_upper = int(not include_lower), int(include_upper)
        first = _bounds(chain, lower, above_lower) if lower else np.zeros(len(chain), np.int64)
        last = _bounds(chain, upper, above_upper) if upper else _end_of_keys(chain, nulls)
        sections = [(first, last, False)]
    return _in_order(chain, t, sections)


def prefix_at(
    batches: Sequence[Batch], t: int, prefix: Key, *, schema: ArrangementSchema | None = None
) -> Rows:
    """The rows at `t` whose first key columns are those of `prefix`, one row; in the order of the keys.

    Of a text (bytes, JSON) in the last column of `prefix`: those that begin with it.
    Raises: NotOrdered if the arrangement does not keep its keys in order; MultiplicityOverflow.
    """
    schema = _schema_of(batches, schema)
    _require_key(schema, prefix, len(prefix))
    _require_ordered(schema)
    chain = chain_at(batches, 0, t)
    if chain is None:
        return _nothing(schema)
    if schema.code is CodeKind.IDENTITY:
        sections = _value_sections(chain, prefix, prefix, True, True, nulls=not prefix)
        if prefix and prefix[0].null_count:
            sections = sections[-1:]
    else:
        begins = int(bool(prefix) and prefix[-1].type in VARIABLE and not prefix[-1].null_count)
        sections = [(_bounds(chain, prefix, 0, begins), _bounds(chain, prefix, 1, begins), False)]
    return _in_order(chain, t, sections)


def updates_between(
    batches: Sequence[Batch], t1: int, t2: int, *, schema: ArrangementSchema | None = None
) -> Updates:
    """The updates with `t1 < time <= t2`, columns in ROW order, consolidated. `t1` must not precede since.

    Raises: MultiplicityOverflow.
    """
    schema = _schema_of(batches, schema)
    chain = chain_at(batches, t1 + 1, t2) if t1 < t2 else None
    if chain is None:
        return Updates.empty([c.type for c in schema.columns])
    lo, hi = np.zeros(len(chain), np.int64), chain.rows[:, find.ROWS].copy()
    refs, sums = _fold(chain, lo, hi, t1 + 1, t2, by_time=True)
    return Updates(_in_row_order(schema, chain.gather(refs)), chain.times(refs), sums)


def _schema_of(batches: Sequence[Batch], schema: ArrangementSchema | None) -> ArrangementSchema:
    if batches:
        return batches[0].schema
    if schema is None:
        raise InvariantViolation("a chain of no batches is read without a schema")
    return schema


def _require_key(schema: ArrangementSchema, key: Key, columns: int) -> None:
    types = [spec.type for spec in schema.key_specs[:columns]]
    if [column.type for column in key] != types:
        raise InvariantViolation(
            "columns are not the key's", given=[c.type.name for c in key], key=[t.name for t in types]
        )


def _require_ordered(schema: ArrangementSchema) -> None:
    if schema.code is CodeKind.HASH:
        key = ", ".join(spec.name for spec in schema.key_specs)
        raise NotOrdered(
            "the arrangement does not keep its keys in order",
            key=key or "none",
            hint="make it with ArrangementSchema(columns, key, ordered=True)",
        )


def _require_sums(rows: int) -> None:
    if rows == find.OVERFLOW:
        raise MultiplicityOverflow("a sum of diffs is beyond 64 bits")


def _nothing(schema: ArrangementSchema) -> Rows:
    return tuple(Column.empty(c.type) for c in schema.columns), NO_ROWS


def _in_row_order(schema: ArrangementSchema, stored: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(stored[i] for i in schema.row_order)


def chain_at(batches: Sequence[Batch], earliest: int, latest: int) -> Chain | None:
    """The batches that may have updates in [earliest, latest]; None if none has."""
    return Chain(found) if (found := [b for b in batches if _may_have(b, earliest, latest)]) else None


def _may_have(batch: Batch, earliest: int, latest: int) -> bool:
    if not len(batch):
        return False
    times = _times(batch)
    if len(times) == 1:
        return earliest <= int(times[0]) <= latest
    about = batch.description
    # Times may have been rounded up to since, even beyond upper; never below lower.
    last = MAX_TIME if about.upper.is_empty else about.upper.time - 1
    last = MAX_TIME if about.since.is_empty else max(last, about.since.time)
    return about.lower.less_equal(latest) and earliest <= last


def _times(batch: Batch) -> Words:
    times = batch.time_cells
    return times[:1] if len(times) > 1 and (times == times[0]).all() else times


def _mixed(chain: Chain) -> Ints:
    """(m,) 1 for a batch in which one row may stand several times: of several times, or in parts of a sum."""
    return np.array([_is_mixed(batch, 0, len(batch)) for batch in chain.batches], np.int64)


def _is_mixed(batch: Batch, lo: int, hi: int) -> bool:
    """As `_mixed`, of rows [lo, hi)."""
    if len(_times(batch)) > 1:
        return True
    diffs = batch.diff_cells
    return bool(scan.has_extreme(diffs[lo:hi] if len(diffs) > 1 else diffs))


def _positions(chain: Chain, code: int) -> Ints:
    """(m,) the first position in each batch whose code is not below `code`, up to 2^64."""
    if code >= _CODES_END:
        return chain.rows[:, find.ROWS].copy()
    word = np.uint64(code)
    return np.array([np.searchsorted(batch.codes, word) for batch in chain.batches], np.int64)


def _scan(chain: Chain, lo: Ints, hi: Ints, t: int, mixed: Ints) -> Pieces:
    """As `scan_rows`, of rows [lo[b], hi[b]) of each batch b: whole runs of codes."""
    sizes = hi - lo
    live = np.flatnonzero(sizes)
    if len(live) == 1 and not mixed[live[0]]:
        return [_whole(int(live[0]), lo, hi)], NO_ROWS, NO_ROWS
    total = int(sizes.sum())
    left_out, refs, sums = (np.empty(total, np.int64) for _ in range(3))
    places = np.empty((len(chain), 4), np.int64)
    rows = scan.fold_shared(
        chain.rows, chain.cells, lo, hi, mixed, int(sizes.argmax()), np.uint64(t), len(chain.schema.stored),
        np.zeros(scan.SLOTS, np.uint32), places, chain.heads(), left_out, refs, sums,
    )  # fmt: skip
    _require_sums(rows)
    stretches = []
    at = 0
    for b, size in enumerate(sizes.tolist()):
        listed = left_out[at : at + int(places[b, 1])]
        stretches.append(Stretch(b, int(lo[b]), int(hi[b]), listed))
        at += size
    return stretches, refs[:rows], sums[:rows]


def _whole(b: int, lo: Ints, hi: Ints) -> Stretch:
    return Stretch(b, int(lo[b]), int(hi[b]), NO_ROWS)


def _fold(
    chain: Chain, lo: Ints, hi: Ints, earliest: int, latest: int, *, by_time: bool
) -> tuple[Ints, Ints]:
    """References and sums of equal rows (and times), in the batches' order."""
    refs, sums = (np.empty(int((hi - lo).sum()), np.int64) for _ in range(2))
    rows = find.fold_ranges(
        chain.rows, chain.cells, lo, hi, np.uint64(earliest), np.uint64(latest), len(chain.schema.stored),
        int(by_time), chain.heads(), refs, sums,
    )  # fmt: skip
    _require_sums(rows)
    return refs[:rows], sums[:rows]


def _in_order(chain: Chain, t: int, sections: list[Section]) -> Rows:
    """The rows of sections, one after the other: columns in ROW order and counts."""
    sections = [(lo, hi, backwards) for lo, hi, backwards in sections if (lo < hi).any()]
    if len(sections) == 1 and not sections[0][2]:
        lo, hi, _ = sections[0]
        live = np.flatnonzero(lo < hi)
        if len(live) == 1 and not _is_mixed(chain.batches[live[0]], int(lo[live[0]]), int(hi[live[0]])):
            whole = [_whole(int(live[0]), lo, hi)]
            return _in_row_order(chain.schema, chain.assemble(whole, NO_ROWS)), chain.counts(whole, NO_ROWS)
    refs, sums = [NO_ROWS], [NO_ROWS]
    for lo, hi, backwards in sections:
        mine, counts = _fold(chain, lo, np.maximum(lo, hi), 0, t, by_time=False)
        refs.append(mine[::-1] if backwards else mine)
        sums.append(counts[::-1] if backwards else counts)
    return _in_row_order(chain.schema, chain.gather(np.concatenate(refs))), np.concatenate(sums)


def _bounds(chain: Chain, key: Key, above: int, begins: int = 0) -> Ints:
    """(m,) the first row of each batch whose key is not below (or `above`) that of `key`: ORDERED."""
    table = Table(key).cells
    return np.array(
        [find.bound(b.table.cells, len(b), table, len(key), begins, above) for b in chain.batches], np.int64
    )


def _end_of_keys(chain: Chain, nulls: bool) -> Ints:
    """(m,) where each batch's rows end whose first key column is not NULL."""
    first = chain.schema.key_specs[:1]
    if nulls or not first or not first[0].nullable:
        return chain.rows[:, find.ROWS].copy()
    return _bounds(chain, (Column.nulls(first[0].type, 1),), 0)


def _value_sections(
    chain: Chain, lower: Key, upper: Key, include_lower: bool, include_upper: bool, nulls: bool
) -> list[Section]:
    """The stretches of a range of IDENTITY codes, in the order of the values they are."""
    low, high = 0, _CODES_END
    if upper:
        nulls = upper[0].null_count > 0 and include_upper
        if not upper[0].null_count:
            high = _order_word(chain.schema, upper) + include_upper
    if lower:
        nulls = nulls and (not lower[0].null_count or include_lower)
        low = _CODES_END if lower[0].null_count else _order_word(chain.schema, lower) + (not include_lower)
    type_ = chain.schema.key_specs[0].type
    spans = []  # of codes
    if type_ is ColumnType.UINT64:
        spans.append((low, high, False))
    else:
        below = min(high, _SIGN)
        if type_ is ColumnType.FLOAT64:
            spans.append((_CODES_END - below, _CODES_END - low, True))
        else:
            spans.append((low + _SIGN, below + _SIGN, False))
        spans.append((max(low, _SIGN) - _SIGN, high - _SIGN, False))
    sections: list[Section] = []
    zero_nulls, zero_end = np.zeros(len(chain), np.int64), np.zeros(len(chain), np.int64)
    if chain.schema.key_specs[0].nullable:  # NULL has the code 0, and comes after the value 0
        zero_end = _positions(chain, 1)
        key = Table((Column.nulls(type_, 1),)).cells
        pairs = zip(chain.batches, zero_end.tolist(), strict=True)
        zero_nulls = np.array([find.bound(b.table.cells, n, key, 1, 0, 0) for b, n in pairs], np.int64)
    for first, last, backwards in spans:
        if first >= last:
            continue
        lo, hi = _positions(chain, first), _positions(chain, last)
        if first == 0 and (zero_nulls < zero_end).any():
            sections += [(lo, zero_nulls, backwards), (zero_end, hi, backwards)]
        else:
            sections.append((lo, hi, backwards))
    if nulls:
        sections.append((zero_nulls, zero_end, False))
    return sections


def _order_word(schema: ArrangementSchema, key: Key) -> int:
    """The u64 that orders as the value of an IDENTITY key does."""
    code = int(schema.codes_of(key)[0])
    type_ = schema.key_specs[0].type
    if type_ is ColumnType.UINT64:
        return code
    if type_ is ColumnType.FLOAT64 and code >= _SIGN:
        return _CODES_END - 1 - code
    return code ^ _SIGN
