"""Reads: equal codes of different keys, sharing of memory, and the edges the suite does not reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shm_arrangements import read
from shm_arrangements import view as views
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column, Encoding
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation, MultiplicityOverflow, NotOrdered
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.kernels import find
from shm_arrangements.rows import RowSpec, Words, encode
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.testing import strategies
from shm_arrangements.testing.model import rows_of
from shm_arrangements.testing.suite import HeapTrace, run_history
from shm_arrangements.types import VARIABLE, ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

SCHEMA = ArrangementSchema(
    (ColumnSpec("v", ColumnType.TEXT, True), ColumnSpec("k", ColumnType.INT64, False)), (1,)
)
TYPES = (ColumnType.TEXT, ColumnType.INT64)
CODES_OF = ArrangementSchema.codes_of


def batch_of(rows: Sequence[tuple[tuple[str | None, int], int, int]], lower: int, upper: Frontier) -> Batch:
    description = Description(Frontier.at(lower), upper, Frontier.minimum())
    return build_batch(Updates.from_rows(TYPES, rows), SCHEMA, description, HeapAllocator())


def keys(*values: int | None) -> tuple[Column, ...]:
    return (Column.from_pylist(ColumnType.INT64, values),)


def few_codes(self: ArrangementSchema, key: Sequence[Column], rows: int | None = None) -> Words:
    """Codes as they are, but of hashes only two."""
    codes = CODES_OF(self, key, rows)
    return codes & np.uint64(1) if self.code is CodeKind.HASH else codes


class CollidingTrace(HeapTrace):
    """Its batches as they were if all hashes were 0 or 1."""

    def batches(self) -> Sequence[Batch]:
        return [self._colliding(batch) for batch in super().batches()]

    def _colliding(self, batch: Batch) -> Batch:
        if not len(batch) or batch.schema.code is not CodeKind.HASH:
            return batch
        codes = batch.codes & np.uint64(1)
        image = encode(batch.columns, RowSpec.of(batch.schema.stored), rows=len(batch))
        order = image.sort_order(codes, batch.times)
        columns = tuple(column.take(order) for column in batch.columns)
        return Batch.of_arrays(
            batch.schema, batch.description, codes[order], columns, batch.times[order], batch.diffs[order]
        )  # fmt: skip


def encoded(batch: Batch) -> Batch:
    """The same batch with every column, time and diff encoded that can be."""
    if not len(batch):
        return batch
    columns = tuple(_encoded(column.plain()) for column in batch.columns)
    times = batch.times[:1] if (batch.times == batch.times[0]).all() else batch.times
    diffs = batch.diffs[:1] if (batch.diffs == batch.diffs[0]).all() else batch.diffs
    return Batch.of_arrays(batch.schema, batch.description, batch.codes, columns, times, diffs)


def _encoded(column: Column) -> Column:
    values = column.to_pylist()
    if len({repr(value) for value in values}) == 1:
        return Column.repeated(column.take(np.zeros(1, np.int64)), len(values))
    if column.type not in VARIABLE:
        return column
    zero: Any = b"" if column.type is ColumnType.BYTEA else ""
    known = [zero if value is None else value for value in values]
    distinct = {value: place for place, value in enumerate(sorted({zero, *known}))}
    width = np.uint8 if len(distinct) < 200 else np.uint16
    places = np.array([distinct[value] for value in known], width)
    return Column.of_dictionary(Column.from_pylist(column.type, list(distinct)), places, column.validity)


class EncodedTrace(HeapTrace):
    """Its batches, some of them encoded."""

    def batches(self) -> Sequence[Batch]:
        return [encoded(b) if i % 3 != 1 else b for i, b in enumerate(super().batches())]


@contextmanager
def colliding() -> Iterator[None]:
    """Hashes are 0 or 1 to whoever looks one up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArrangementSchema, "codes_of", few_codes)
        patch.setattr(views, "finder", lambda chain, at: lambda key: find.MANY)
        yield
    assert ArrangementSchema.codes_of is CODES_OF


@pytest.mark.slow
@given(history=strategies.histories())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_reads_stay_right_when_most_codes_collide(history: strategies.History) -> None:
    with colliding():
        run_history(CollidingTrace(history.schema), history)


@pytest.mark.slow
@given(history=strategies.histories())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_reads_of_encoded_batches_beside_plain_ones_are_right(history: strategies.History) -> None:
    run_history(EncodedTrace(history.schema), history)


@pytest.mark.slow
@given(history=strategies.histories(), made=st.sampled_from([HeapTrace, EncodedTrace]))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_reads_of_ordered_arrangements_are_right(history: strategies.History, made: type[HeapTrace]) -> None:
    schema = dataclasses.replace(history.schema, ordered=True)
    run_history(made(schema), dataclasses.replace(history, schema=schema))


def test_one_batch_of_one_time_is_handed_out_without_a_copy() -> None:
    batch = batch_of([((f"v{i}", i), 0, 1 + i) for i in range(100)], 0, Frontier.at(1))
    columns, counts = read.scan_at([batch], 0)
    assert np.shares_memory(counts, batch.diffs)
    assert all(
        np.shares_memory(c.values, b.values) for c, b in zip(columns, batch.row_columns(), strict=True)
    )


def test_a_large_batch_with_a_few_later_changes_is_compared_only_there() -> None:
    base = batch_of([((f"v{i}", i), 0, 1) for i in range(200)], 0, Frontier.at(1))
    later = batch_of(
        [(("v7", 7), 1, -1), (("new", 7), 1, 1), (("more", 200), 1, 2), (("v9", 9), 2, -1)], 1, Frontier.at(3)
    )
    wanted = {(f"v{i}", i): 1 for i in range(200) if i != 7} | {("new", 7): 1, ("more", 200): 2}
    assert rows_of(*read.scan_at([base, later], 1)) == wanted
    del wanted["v9", 9]
    assert rows_of(*read.scan_at([base, later], 2)) == wanted


def test_a_read_at_the_last_time_of_all_sees_everything() -> None:
    batch = batch_of([(("a", 1), 0, 1), (("b", 1), MAX_TIME, 1)], 0, Frontier.empty())
    assert rows_of(*read.scan_at([batch], MAX_TIME)) == {("a", 1): 1, ("b", 1): 1}
    assert rows_of(*read.scan_at([batch], MAX_TIME - 1)) == {("a", 1): 1}
    columns, counts, index = read.lookup_at([batch], MAX_TIME, keys(1))
    assert (len(columns), len(counts), index.tolist()) == (2, 2, [0, 0])


def test_negative_counts_are_shown_and_left_to_the_caller() -> None:
    batch = batch_of([(("a", 1), 0, -3)], 0, Frontier.at(1))
    assert rows_of(*read.scan_at([batch], 0)) == {("a", 1): -3}
    assert read.lookup_at([batch], 0, keys(1))[1].tolist() == [-3]


def test_null_in_a_key_that_has_none_finds_nothing() -> None:
    batch = batch_of([(("a", 0), 0, 1), (("b", 5), 0, 1)], 0, Frontier.at(1))
    columns, counts, index = read.lookup_at([batch], 0, keys(None, 5, None, 0))
    assert index.tolist() == [1, 3]
    assert columns[0].to_pylist() == ["b", "a"]
    assert counts.tolist() == [1, 1]
    assert len(read.lookup_at([batch], 0, keys(None))[2]) == 0


def test_an_empty_key_finds_all_rows() -> None:
    schema = ArrangementSchema(SCHEMA.columns, ())
    rows = [(("a", 1), 0, 1), (("b", 2), 0, 1)]
    description = Description(Frontier.at(0), Frontier.at(1), Frontier.minimum())
    batch = build_batch(Updates.from_rows(TYPES, rows), schema, description, HeapAllocator())
    _, counts, index = read.lookup_at([batch], 0, ())
    assert counts.tolist() == [1, 1]
    assert index.tolist() == [0, 0]


def test_no_batches_are_read_with_a_schema_and_not_without() -> None:
    assert rows_of(*read.scan_at([], 0, schema=SCHEMA)) == {}
    assert read.lookup_at([], 0, keys(1), schema=SCHEMA)[2].tolist() == []
    assert len(read.updates_between([], 0, 1, schema=SCHEMA)) == 0
    with pytest.raises(InvariantViolation):
        read.scan_at([], 0)


def test_keys_of_another_shape_are_refused() -> None:
    batch = batch_of([(("a", 1), 0, 1)], 0, Frontier.at(1))
    with pytest.raises(InvariantViolation):
        read.lookup_at([batch], 0, ())
    with pytest.raises(InvariantViolation):
        read.lookup_at([batch], 0, (Column.from_pylist(ColumnType.TEXT, ["1"]),))


def test_pieces_of_a_scan_are_small_and_whole() -> None:
    batches = [
        batch_of([((f"v{i}", i % 500), t, 1) for i in range(t, 2000, t + 1)], t, Frontier.at(t + 1))
        for t in range(3)
    ]
    pieces = list(read.scan_pieces_at(batches, 2, 100))
    assert max(len(counts) for _, counts in pieces) <= 200
    joined: dict[tuple[object, ...], int] = {}
    for columns, counts in pieces:
        joined |= rows_of(columns, counts)
    assert joined == rows_of(*read.scan_at(batches, 2))


KEYED: dict[ColumnType, list[Any]] = {
    ColumnType.INT64: [-(1 << 63), -2, -1, 0, 1, 2, (1 << 63) - 1],
    ColumnType.UINT64: [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1],
    ColumnType.FLOAT64: [-float("inf"), -1e300, -2.5, -5e-324, 0.0, 5e-324, 1.5, float("inf"), float("nan")],
    ColumnType.TIMESTAMP: [-(1 << 63), -1, 0, 1, (1 << 63) - 1],
    ColumnType.TEXT: ["", "a", "ab", "abcdefgh", "abcdefgha", "abcdefghb", "abcdefgi", "b", "\U0010ffff"],
    ColumnType.NUMERIC: [-(10**30), -(1 << 64), -1, 0, 1, 1 << 64, 10**30],
}


def ordered_batches(
    type_: ColumnType, rows: list[tuple[Any, int]], parts: int
) -> tuple[ArrangementSchema, list[Batch]]:
    """(key, value) rows in several batches, dealt out in turn."""
    specs = (ColumnSpec("k", type_, True), ColumnSpec("v", ColumnType.INT64, False))
    schema = ArrangementSchema(specs, (0,), ordered=True)
    batches = []
    for t in range(parts):
        updates = Updates.from_rows((type_, ColumnType.INT64), [(row, t, 1) for row in rows[t::parts]])
        about = Description(Frontier.at(t), Frontier.at(t + 1), Frontier.minimum())
        batches.append(build_batch(updates, schema, about, HeapAllocator()))
    return schema, batches


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("type_", KEYED, ids=lambda type_: type_.name)
def test_a_range_holds_the_keys_between_its_bounds_in_their_order(type_: ColumnType, parts: int) -> None:
    values = KEYED[type_]
    schema, batches = ordered_batches(type_, [(v, i) for i, v in enumerate([None, *values])], parts)
    for lower in range(-1, len(values)):
        for upper in range(lower, len(values) + 1):
            for from_, to in ((True, False), (False, True)):
                bounds = [
                    (Column.from_pylist(type_, [values[i]]),) if 0 <= i < len(values) else ()
                    for i in (lower, upper)
                ]
                columns, counts = read.range_at(
                    batches, parts, bounds[0], bounds[1], include_lower=from_, include_upper=to, schema=schema
                )
                first = max(lower + (not from_ and lower >= 0), 0)
                wanted = values[first : min(upper + (to and upper >= 0), len(values))]
                wanted = wanted if upper >= 0 else values[first:]
                assert [repr(v) for v in columns[0].to_pylist()] == [repr(v) for v in wanted], (lower, upper)
                assert counts.tolist() == [1] * len(wanted)


@pytest.mark.parametrize("type_", KEYED, ids=lambda type_: type_.name)
def test_null_comes_last_in_a_range_and_only_if_asked_for(type_: ColumnType) -> None:
    values = KEYED[type_]
    schema, batches = ordered_batches(type_, [(v, i) for i, v in enumerate([None, *values])], 2)
    null = (Column.nulls(type_, 1),)
    keys_in = [
        (columns[0].to_pylist()[-1:], len(counts))
        for columns, counts in (
            read.range_at(batches, 2, nulls=True, schema=schema),
            read.range_at(batches, 2, null, nulls=True, schema=schema),
            read.range_at(batches, 2, (), null, include_upper=True, schema=schema),
            read.range_at(batches, 2, (), null, schema=schema),
            read.range_at(batches, 2, null, include_lower=False, nulls=True, schema=schema),
        )
    ]
    assert [(last == [None], n) for last, n in keys_in] == [
        (True, len(values) + 1), (True, 1), (True, len(values) + 1), (False, len(values)), (False, 0),
    ]  # fmt: skip
    assert len(read.prefix_at(batches, 2, null, schema=schema)[1]) == 1


def test_a_range_in_one_batch_of_one_time_is_not_copied() -> None:
    schema, (batch,) = ordered_batches(ColumnType.INT64, [(k, k) for k in range(100)], 1)
    bounds = ((Column.from_pylist(ColumnType.INT64, [v]),) for v in (10, 20))
    columns, counts = read.range_at([encoded(batch)], 0, *bounds, schema=schema)
    assert columns[0].values.tolist() == list(range(10, 20))
    assert np.shares_memory(columns[1].values, batch.columns[1].values)
    assert counts.strides == (0,)


def test_the_first_columns_of_a_key_and_the_beginning_of_a_text_select_rows() -> None:
    names = ("a", "b", "v")
    types = (ColumnType.INT64, ColumnType.TEXT, ColumnType.INT64)
    specs = tuple(ColumnSpec(n, t, True) for n, t in zip(names, types, strict=True))
    schema = ArrangementSchema(specs, (0, 1), ordered=True)
    texts = ["", "x", "xy", "xyz", "y", "abcdefgh-1", "abcdefgh-2", "abcdefgi", None]
    rows = [(a, b, i) for i, (a, b) in enumerate((a, b) for a in (-1, 0, 7, None) for b in texts)]
    batches = []
    for t in range(2):
        about = Description(Frontier.at(t), Frontier.at(t + 1), Frontier.minimum())
        updates = Updates.from_rows(types, [(row, t, 1) for row in rows[t::2]])
        batches.append(build_batch(updates, schema, about, HeapAllocator()))

    def found(*prefix: Any) -> list[tuple[Any, ...]]:
        key = tuple(Column.from_pylist(t, [v]) for t, v in zip(types, prefix, strict=False))
        columns, _ = read.prefix_at(batches, 1, key, schema=schema)
        return list(zip(*(c.to_pylist() for c in columns), strict=True))

    known = sorted(text for text in texts if text is not None)
    for a in (-1, 0, 7, None, 3):
        assert [row[1] for row in found(a)] == ([*known, None] if a != 3 else [])
        for b in ("", "x", "xy", "q", "abcdefgh", "abcdefgh-", "abcdefgh-2"):
            wanted = [text for text in known if text.startswith(b)] if a != 3 else []
            assert [row[1] for row in found(a, b)] == wanted, (a, b)
    assert [row[2] for row in found(7, None)] == [row[2] for row in rows if row[:2] == (7, None)]
    assert len(found()) == len(rows)


def test_a_range_of_hashed_keys_is_refused_with_what_to_do() -> None:
    schema = ArrangementSchema(SCHEMA.columns, (0,))
    with pytest.raises(NotOrdered, match=r"key=v.*ordered=True"):
        read.range_at([], 0, schema=schema)
    with pytest.raises(NotOrdered, match=r"key=v.*ordered=True"):
        read.prefix_at([], 0, (Column.from_pylist(ColumnType.TEXT, ["a"]),), schema=schema)


def test_keys_that_share_their_code_are_told_apart_however_many_there_are() -> None:
    schema, batches = ordered_batches(ColumnType.TEXT, [(f"customer-{i:05}", i) for i in range(3000)], 2)
    assert len(np.unique(batches[0].codes)) == 1
    asked = Column.from_pylist(
        ColumnType.TEXT, ["customer-00007", "customer-x", "customer-02999", "customer-"]
    )
    columns, counts, index = read.lookup_at(batches, 1, (asked,), schema=schema)
    assert (columns[1].to_pylist(), counts.tolist(), index.tolist()) == ([7, 2999], [1, 1], [0, 2])
    many = Column.from_pylist(ColumnType.TEXT, [f"customer-{i % 3001:05}" for i in range(20_000)])
    columns, counts, _ = read.lookup_at(batches, 1, (many,), schema=schema)  # no room for keys times runs
    assert len(counts) == 20_000 - 20_000 // 3001
    assert len(read.scan_at(batches, 1)[1]) == 3000


def test_a_sum_in_parts_is_summed_where_it_fits_and_refused_where_it_does_not() -> None:
    most = (1 << 63) - 1
    large = batch_of([(("a", 1), 0, most), (("a", 1), 0, most), (("b", 1), 0, 1)], 0, Frontier.at(1))
    assert len(large) == 3
    for asked in (
        lambda: read.scan_at([large], 0),
        lambda: read.lookup_at([large], 0, keys(1)),
        lambda: list(read.scan_pieces_at([large], 0, 1)),
    ):
        with pytest.raises(MultiplicityOverflow):
            asked()
    less = batch_of([(("a", 1), 1, -most)], 1, Frontier.at(2))
    assert rows_of(*read.scan_at([large, less], 1)) == {("a", 1): most, ("b", 1): 1}
    assert read.lookup_at([large, less], 1, keys(1))[1].tolist() == [most, 1]
    back = batch_of([(("a", 1), 2, -most)], 2, Frontier.at(3))
    assert rows_of(*read.scan_at([large, less, back], 2)) == {("b", 1): 1}


@pytest.mark.parametrize("seed", range(3))
def test_scans_of_many_batches_sum_what_they_share_and_copy_the_rest(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    wanted: dict[tuple[Any, ...], int] = {}
    batches = []
    for t, n in enumerate((5000, 3000, 600, 600, 40, 1)):
        rows = [((f"v{int(v)}", int(k)), t, 1) for k, v in rng.integers(0, 4000, (n, 2))]
        rows += [(row, t, -1) for row, _, _ in rows[: n // 3]]
        rows += [(row, t, -1) for row in list(wanted)[: n // 4]]
        for row, _, diff in rows:
            wanted[row] = wanted.get(row, 0) + diff
        made = batch_of(rows, t, Frontier.at(t + 1))
        batches.append(encoded(made) if t % 2 else made)
    wanted = {row: count for row, count in wanted.items() if count}
    assert rows_of(*read.scan_at(batches, 5)) == wanted
    pieces: dict[tuple[Any, ...], int] = {}
    for columns, counts in read.scan_pieces_at(batches, 5, 500):
        pieces |= rows_of(columns, counts)
    assert pieces == wanted


def test_constants_of_all_batches_stay_one_value() -> None:
    batches = [encoded(batch_of([(("same", k), t, 1) for k in range(t, 20, 2)], t, Frontier.at(t + 1)))
               for t in range(2)]  # fmt: skip
    columns, counts = read.scan_at(batches, 1)
    assert columns[0].encoding is Encoding.CONSTANT
    assert counts.strides == (0,)
    found, _, _ = read.lookup_at(batches, 1, keys(3, 4))
    assert found[0].encoding is Encoding.CONSTANT


def test_changes_between_two_times_leave_out_the_first_and_take_the_last() -> None:
    batches = [
        batch_of([(("a", 1), 0, 1), (("a", 1), 2, 1), (("b", 2), 2, 5)], 0, Frontier.at(3)),
        batch_of([(("a", 1), 3, -1), (("b", 2), 4, -5)], 3, Frontier.at(5)),
    ]
    found = read.updates_between(batches, 0, 3)
    assert sorted(found.to_rows()) == [(("a", 1), 2, 1), (("a", 1), 3, -1), (("b", 2), 2, 5)]
    assert len(read.updates_between(batches, 4, 4)) == 0
    assert len(read.updates_between(batches, 2, MAX_TIME)) == 2
