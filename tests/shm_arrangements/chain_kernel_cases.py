"""How arguments are drawn of the kernels that read chains of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shm_arrangements.kernels import cells, find, scan
from shm_arrangements.kernels.refs import ROW_BITS, ROW_MASK
from shm_arrangements.testing import reference_chain as reference
from shm_arrangements.testing.meaning import Relation, hash_row, row_key
from shm_arrangements.testing.reference import Updates
from shm_arrangements.types import VARIABLE, ColumnSpec, ColumnType, value_bytes
from tests.shm_arrangements.kernel_cases import (
    ALL_TYPES,
    Both,
    InOut,
    Out,
    case,
    diff_values,
    draw_pool,
    draw_specs,
    draw_table,
    draw_updates,
    edge_code,
    i64,
    source_of,
    together,
    u64,
    updates_of,
)

LAST_TIME = 5  # of drawn updates


class Chain:
    """Batches for kernels (`rows`, `cells`), and the same for the reference (`batches`)."""

    def __init__(self, drawn: list[tuple[Any, Updates]]) -> None:
        self.batches = [updates for _, updates in drawn]
        self.kept = drawn
        self.rows = np.zeros((len(drawn), find.FIELDS), np.int64)
        tables = [table.kernel[0] for (_, table), _ in drawn]
        self.cells = np.zeros((len(drawn), max(map(len, tables)), cells.FIELDS), np.int64)
        for b, ((arrays, _), _) in enumerate(drawn):
            self.rows[b, :6] = source_of(arrays)
            self.cells[b, : len(tables[b])] = tables[b]

    @property
    def heads(self) -> Any:
        return np.zeros((len(self.rows), 3), np.int64)

    @property
    def room(self) -> int:
        return sum(len(batch.codes) for batch in self.batches)

    def name(self, ref: int, *, by_time: bool = False) -> Any:
        place = (ref >> ROW_BITS, ref & ROW_MASK)
        return reference.name_of(self.batches, place, by_time=by_time)

    def shown(self, *, with_rows: bool = False) -> Both:
        kernel = (self.rows, self.cells) if with_rows else (self.cells,)
        return Both(kernel, (self.batches,), self)


def _drawn_chain(
    draw: Any, specs: Any, pool: list[Any], code_of: Callable[[Relation, int], int] = edge_code
) -> Chain:
    drawn = [draw_updates(draw, specs, pool, code_of) for _ in range(draw(st.integers(1, 4)))]
    drawn = [(parts, updates) for parts, updates in drawn if updates.codes]
    return Chain(drawn or [updates_of(draw, specs, [(pool[0], 0, 1)], code_of)])


def _wide_chain(draw: Any) -> tuple[Any, Chain]:
    """Batches of hundreds of updates, that share some of their codes; many are alone in their slot."""
    spec = ColumnSpec("c", ColumnType.UINT64, False)
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    spread = draw(st.sampled_from([1, 1 << 40]))
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        values = np.unique(rng.integers(0, 2000, draw(st.sampled_from([1, 40, 700])))) * spread
        codes = values.astype(np.uint64)
        times = rng.integers(0, LAST_TIME + 1, len(codes)).astype(np.uint64)
        times = times if draw(st.booleans()) else times[:1]
        diffs = i64(rng.choice([1, -1, 2], len(codes)))
        rows = tuple((value,) for value in codes.tolist())
        table = draw_table(draw, [spec], list(rows))
        n = len(rows)
        drawn.append(
            (
                ([codes, times, diffs], table),
                Updates(
                    Relation((spec.type,), rows),
                    tuple(codes.tolist()),
                    tuple(np.broadcast_to(times, n).tolist()),
                    tuple(diffs.tolist()),
                ),
            )
        )
    return [spec], Chain(drawn)


def _any_chain(draw: Any) -> tuple[Any, Chain]:
    if draw(st.sampled_from([False, False, True])):
        return _wide_chain(draw)
    specs = draw_specs(draw)
    return specs, _drawn_chain(draw, specs, draw_pool(draw, specs))


def _bits(code: int) -> Any:
    return np.uint64(code).view(np.int64)


def _came(found: int) -> Any:
    if found == find.NONE:
        return None
    return reference.MANY if found == find.MANY else (found >> ROW_BITS, found & ROW_MASK)


def _or_more(came: Any, should: Any, most: int) -> Any:
    """What should have come: a kernel may say MANY where a batch has more than two updates to look at."""
    return came if came == reference.MANY and most > 2 else should


@together("find.find_word")
def _find_word(draw: Any) -> tuple[Any, Any]:
    _, chain = _any_chain(draw)
    code = draw(st.sampled_from([0, 1, (1 << 64) - 1, *chain.batches[0].codes[:5]]))
    latest = draw(st.integers(0, LAST_TIME))
    came = _came(int(find.find_word(chain.rows, _bits(code), latest)))
    most = max(batch.codes.count(code) for batch in chain.batches)
    return came, _or_more(came, reference.find_word(chain.batches, code, latest), most)


@together("find.find_key")
def _find_key(draw: Any) -> tuple[Any, Any]:
    specs = draw_specs(draw)
    columns = draw(st.integers(0, len(specs)))
    pool = draw_pool(draw, specs)
    ordered = draw(st.booleans())  # then the code, the same of all, orders as the key does
    chain = _drawn_chain(
        draw, specs, pool, lambda relation, row: 0 if ordered else hash_row(relation, row, 0, columns)
    )
    row = draw(st.sampled_from(pool))
    key = draw_table(draw, specs[:columns], [row[:columns]])
    latest = draw(st.integers(0, LAST_TIME))
    with np.errstate(over="ignore"):
        came = _came(
            int(find.find_key(chain.rows, chain.cells, key.kernel[0], columns, int(ordered), latest))
        )
    should = reference.find_key(chain.batches, key.reference[0], columns, latest)
    return came, _or_more(came, should, max(len(batch.codes) for batch in chain.batches) if ordered else 0)


@together("find.narrow_runs", "find.fold_runs")
def _fold_runs(draw: Any) -> tuple[Any, Any]:
    specs = draw_specs(draw)
    columns = draw(st.integers(0, len(specs)))
    pool = draw_pool(draw, specs)

    def code_of(relation: Relation, row: int) -> int:
        return hash_row(relation, row, 0, columns) % 3

    chain = _drawn_chain(draw, specs, pool, code_of)
    keys = [row[:columns] for row in draw(st.lists(st.sampled_from(pool), max_size=4))]
    table = draw_table(draw, specs[:columns], keys)
    codes = [code_of(table.reference[0], k) for k in range(len(keys))]
    ends = [
        [np.searchsorted(u64(batch.codes), np.uint64(code), side) for side in ("left", "right")]
        for batch in chain.batches
        for code in codes
    ]
    lo, hi = (i64([pair[k] for pair in ends]) for k in (0, 1))
    latest = draw(st.integers(0, LAST_TIME))
    left = find.narrow_runs(chain.cells, table.kernel[0], columns, lo, hi)
    assert left == (hi - lo).sum()
    refs, sums, out_keys = (np.empty(left, np.int64) for _ in range(3))
    n = find.fold_runs(
        chain.rows, chain.cells, columns, len(specs), lo, hi, np.uint64(latest), chain.heads, refs, sums,
        out_keys,
    )  # fmt: skip
    should = reference.fold_runs(chain.batches, table.reference[0], columns, latest)
    if n == find.OVERFLOW:
        return reference.OVERFLOW, should
    parts = zip(refs[:n].tolist(), sums[:n].tolist(), out_keys[:n].tolist(), strict=True)
    return [(chain.name(ref), total, k) for ref, total, k in parts], should


def _parts(draw: Any, chain: Chain) -> tuple[Any, Any]:
    """A range of each batch."""
    pairs = [
        sorted(draw(st.tuples(*[st.integers(0, len(batch.codes))] * 2))) if draw(st.booleans()) else None
        for batch in chain.batches
    ]
    whole = [(0, len(batch.codes)) for batch in chain.batches]
    found = [pair or all_ for pair, all_ in zip(pairs, whole, strict=True)]
    return i64([lo for lo, _ in found]), i64([hi for _, hi in found])


def _folded(chain: Chain, n: int, refs: Any, sums: Any, *, by_time: bool = False) -> Any:
    if n == find.OVERFLOW:
        return reference.OVERFLOW
    pairs = zip(refs[:n].tolist(), sums[:n].tolist(), strict=True)
    return [(chain.name(ref, by_time=by_time), total) for ref, total in pairs]


@together("find.fold_ranges")
def _fold_ranges(draw: Any) -> tuple[Any, Any]:
    specs, chain = _any_chain(draw)
    lo, hi = _parts(draw, chain)
    earliest, latest = sorted(draw(st.tuples(*[st.integers(0, LAST_TIME)] * 2)))
    by_time = draw(st.booleans())
    refs, sums = np.empty(chain.room, np.int64), np.empty(chain.room, np.int64)
    n = find.fold_ranges(
        chain.rows, chain.cells, lo, hi, np.uint64(earliest), np.uint64(latest), len(specs), int(by_time),
        chain.heads, refs, sums,
    )  # fmt: skip
    places = [p for p in reference.places_of(chain.batches, latest, earliest) if lo[p[0]] <= p[1] < hi[p[0]]]
    should = reference.fold(chain.batches, places, by_time=by_time)
    return _folded(chain, n, refs, sums, by_time=by_time), should


@together("scan.fold_shared")
def _fold_shared(draw: Any) -> tuple[Any, Any]:
    specs, chain = _any_chain(draw)
    # What a scan gives: ranges of codes, the same for each batch.
    codes = sorted({code for batch in chain.batches for code in batch.codes})
    least, most = sorted(draw(st.tuples(*[st.sampled_from(codes)] * 2)))
    if draw(st.booleans()):
        least, most = codes[0], codes[-1]
    ends = [
        [np.searchsorted(u64(batch.codes), np.uint64(code), side) for code, side in pair]
        for batch in chain.batches
        for pair in [((least, "left"), (most, "right"))]
    ]
    lo, hi = i64([pair[0] for pair in ends]), i64([pair[1] for pair in ends])
    latest = draw(st.integers(0, LAST_TIME))
    mixed = i64([
        len(set(batch.times)) > 1
        or batch.times[0] > latest
        or bool(scan.has_extreme(i64(batch.diffs)))
        for batch in chain.batches
    ])  # fmt: skip
    m = len(chain.rows)
    places, left_out = np.zeros((m, 4), np.int64), np.empty(chain.room, np.int64)
    refs, sums = np.empty(chain.room, np.int64), np.empty(chain.room, np.int64)
    n = scan.fold_shared(
        chain.rows, chain.cells, lo, hi, mixed, draw(st.integers(0, m - 1)), np.uint64(latest), len(specs),
        np.zeros(scan.SLOTS, np.uint32), places, chain.heads, left_out, refs, sums,
    )  # fmt: skip
    mine = [p for p in reference.places_of(chain.batches, latest) if lo[p[0]] <= p[1] < hi[p[0]]]
    should = reference.fold(chain.batches, mine)
    came = _folded(chain, n, refs, sums)
    if came == reference.OVERFLOW:
        return came, should
    first = 0
    for b in range(m):
        listed = left_out[first : first + places[b, 1]].tolist()
        first += int(hi[b] - lo[b])
        for row in sorted(set(range(lo[b], hi[b])) - set(listed)):
            came.append((reference.name_of(chain.batches, (b, row)), chain.batches[b].diffs[row]))
    return sorted(came), should


@case("scan.has_extreme")
def _has_extreme(draw: Any) -> list[Any]:
    return [i64(draw(st.lists(diff_values, max_size=5)))]


@case("find.bound")
def _bound(draw: Any) -> list[Any]:
    specs = draw_specs(draw)
    pool = draw_pool(draw, specs)
    rows = draw(st.lists(st.sampled_from(pool), max_size=12))
    whole = Relation(tuple(spec.type for spec in specs), tuple(rows))
    rows = [rows[at] for at in sorted(range(len(rows)), key=lambda at: row_key(whole, at))]
    columns = draw(st.integers(0, len(specs)))
    key = draw(st.sampled_from(pool))
    prefix = columns > 0 and specs[columns - 1].type in VARIABLE and key[columns - 1] is not None
    if prefix and draw(st.booleans()):
        last = key[columns - 1]
        key = (*key[: columns - 1], last[: draw(st.integers(0, len(last)))], *key[columns:])
    table, wanted = draw_table(draw, specs, rows), draw_table(draw, specs, [key])
    return [
        table, Both((len(rows),), ()), wanted, columns, int(prefix and draw(st.booleans())),
        draw(st.integers(0, 1)),
    ]  # fmt: skip


# collect


def _column_chain(draw: Any, types: list[ColumnType]) -> tuple[Chain, ColumnType]:
    spec = ColumnSpec("c", draw(st.sampled_from(types)), draw(st.booleans()))
    return _drawn_chain(draw, [spec], draw_pool(draw, [spec])), spec.type  # type: ignore[return-value]


def _refs(draw: Any, chain: Chain) -> Both:
    """Some updates in any order: as references, and as places."""
    places = [(b, row) for b, batch in enumerate(chain.batches) for row in range(len(batch.codes))]
    picked = draw(st.lists(st.sampled_from(places), max_size=12))
    return Both((i64([(b << ROW_BITS) | row for b, row in picked]),), (picked,))


def _stretch(draw: Any, chain: Chain) -> tuple[int, Both]:
    """A part of a batch: the batch, and lo, hi, left_out, or places."""
    b = draw(st.integers(0, len(chain.batches) - 1))
    lo, hi = sorted(draw(st.tuples(*[st.integers(0, len(chain.batches[b].codes))] * 2)))
    left_out = sorted(draw(st.sets(st.integers(lo, hi - 1)))) if lo < hi else []
    places = [(b, row) for row in range(lo, hi) if row not in left_out]
    return b, Both((lo, hi, i64(left_out)), (places,))


FIXED = [type_ for type_ in ALL_TYPES if type_ not in VARIABLE]
TEXTS = sorted(VARIABLE)


def _kernel_only(*values: Any) -> Both:
    return Both(values, ())


def _reference_only(*values: Any) -> Both:
    return Both((), values)


def _selected(draw: Any, chain: Chain, how: str, *middle: Any) -> tuple[list[Any], int]:
    """Arguments of a gather or a copy kernel up to what is selected; how many rows that are."""
    if how == "gather":
        refs = _refs(draw, chain)
        n = len(refs.reference[0])
        return [chain.shown(), *middle, refs], n
    b, stretch = _stretch(draw, chain)
    return [chain.shown(), _kernel_only(b), *middle, stretch], len(stretch.reference[0])


def _case_of_both(kernel: str) -> Callable[[Callable[..., Any]], None]:
    """Register for gather_<kernel> and copy_<kernel>."""

    def register(function: Callable[..., Any]) -> None:
        for how in ("gather", "copy"):
            case(f"collect.{how}_{kernel}")(lambda draw, how=how: function(draw, how))

    return register


@_case_of_both("fixed")
def _take_fixed(draw: Any, how: str) -> list[Any]:
    chain, type_ = _column_chain(draw, FIXED)
    width, at = value_bytes(type_), draw(st.integers(0, 2))
    arguments, n = _selected(draw, chain, how, 0, _kernel_only(width))
    return [*arguments, _reference_only(width), Out((n + at) * width, np.uint8), at]


@_case_of_both("valid")
def _take_valid(draw: Any, how: str) -> list[Any]:
    chain, _ = _column_chain(draw, ALL_TYPES)
    at = draw(st.integers(0, 2))
    arguments, n = _selected(draw, chain, how, 0)
    return [*arguments, Out(n + at, np.bool_), at]


@_case_of_both("offsets")
def _take_offsets(draw: Any, how: str) -> list[Any]:
    chain, _ = _column_chain(draw, TEXTS)
    at = draw(st.integers(0, 2))
    arguments, n = _selected(draw, chain, how, 0)
    return [*arguments, InOut(np.arange(n + at + 1, dtype=np.int64)), at]


@_case_of_both("texts")
def _take_texts(draw: Any, how: str) -> list[Any]:
    chain, _ = _column_chain(draw, TEXTS)
    at = draw(st.integers(0, 2))
    arguments, n = _selected(draw, chain, how, 0)
    places = arguments[-1].reference[0]
    before = np.arange(n + at + 1, dtype=np.int64)
    offsets = reference.take_offsets(chain.batches, 0, places, before, at)[0]
    return [*arguments, offsets, Out(offsets[-1], np.uint8), at]


@case("collect.gather_times")
def _gather_times(draw: Any) -> list[Any]:
    _, chain = _any_chain(draw)
    refs, at = _refs(draw, chain), draw(st.integers(0, 2))
    n = len(refs.reference[0])
    return [Both((chain.rows,), (chain.batches,), chain), refs, Out(n + at, np.uint64), at]


@case("collect.copy_diffs")
def _copy_diffs(draw: Any) -> list[Any]:
    _, chain = _any_chain(draw)
    at = draw(st.integers(0, 2))
    b, stretch = _stretch(draw, chain)
    n = len(stretch.reference[0])
    shown = Both((chain.rows, b), (chain.batches,), chain)
    return [shown, stretch, Out(n + at, np.int64), at]
