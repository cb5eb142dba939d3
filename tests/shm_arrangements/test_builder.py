"""Building: any updates become the one batch that holds them, whatever their order, keys and size."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shm_arrangements import builder
from shm_arrangements import instance as instances
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column, Encoding
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.instance import Instance
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing import strategies
from shm_arrangements.testing.model import Model, normal_row
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
from shm_arrangements.updates import Updates
from tests.shm_arrangements.test_layout import Checksummed

I64, TEXT, U64 = ColumnType.INT64, ColumnType.TEXT, ColumnType.UINT64
WHOLE = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())
MOST = (1 << 63) - 1


def schema_of(*types: Any, key: tuple[int, ...] = (0,), nullable: bool = False) -> ArrangementSchema:
    return ArrangementSchema(tuple(ColumnSpec(f"c{i}", t, nullable) for i, t in enumerate(types)), key)


def build(schema: ArrangementSchema, rows: Any, description: Description = WHOLE) -> Batch:
    types = [spec.type for spec in schema.columns]
    return build_batch(Updates.from_rows(types, rows), schema, description, HeapAllocator())


def updates_of(batch: Batch) -> list[Any]:
    rows = Updates(batch.row_columns(), batch.times, batch.diffs).to_rows()
    return [(normal_row(row), time, diff) for row, time, diff in rows]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    strategies.histories(max_steps=1, max_updates=40), st.booleans(), st.booleans(), st.sampled_from([1, 40])
)
def test_any_updates_become_a_sorted_batch_that_holds_the_same(
    history: strategies.History, checksums: bool, ordered: bool, repeat: int
) -> None:
    model = Model()
    updates = history.steps[0].updates if history.steps else ()
    updates = tuple((row, time + k % 3, diff) for row, time, diff in updates for k in range(repeat))
    model.insert(updates)
    schema = ArrangementSchema(history.schema.columns, history.schema.key, ordered)
    types = [c.type for c in schema.columns]
    allocator = Checksummed() if checksums else HeapAllocator()
    batch = build_batch(Updates.from_rows(types, updates), schema, WHOLE, allocator)
    batch.validate_state()
    batch.verify()
    assert {(row, time): diff for row, time, diff in updates_of(batch)} == model.between(-1, 1 << 62)
    keys = [spec.name for spec in schema.stored][: len(schema.key)]
    assert keys == [schema.columns[i].name for i in schema.key]
    if len(batch):
        again = Batch.from_buffer(schema, batch._buffer.copy())  # type: ignore[union-attr]
        assert repr(updates_of(again)) == repr(updates_of(batch))


@pytest.mark.parametrize("time", [1, 4])
def test_an_update_outside_its_batch_is_refused(time: int) -> None:
    description = Description(Frontier.at(2), Frontier.at(4), Frontier.at(2))
    with pytest.raises(InvariantViolation, match="outside its batch"):
        build(schema_of(I64), [((1,), time, 1)], description)


def test_a_column_that_is_not_of_its_type_or_has_a_null_it_may_not_have_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="other types"):
        build_batch(Updates.from_rows([TEXT], [(("a",), 0, 1)]), schema_of(I64), WHOLE, HeapAllocator())
    with pytest.raises(ValueError, match="NULL in column 'c1' of type text"):
        build(schema_of(I64, TEXT), [((1, "a"), 0, 1), ((1, None), 0, 1)])
    inside = RecordType((ColumnSpec("f", I64, False),))
    field = Column.nulls(I64, 1)
    record = Column(inside, np.empty(0, np.uint8), children=(field,))
    updates = Updates((record,), np.zeros(1, np.uint64), np.ones(1, np.int64))
    with pytest.raises(ValueError, match="NULL in column 'f' of type int64"):
        build_batch(updates, schema_of(inside), WHOLE, HeapAllocator())
    assert len(build(schema_of(ListType(ColumnSpec("e", inside, True))), [(([None],), 0, 1)])) == 1


@pytest.mark.parametrize("key", [(), (0,), (1,), (0, 1)])
def test_what_comes_sorted_or_backwards_or_in_no_order_gives_the_same_bytes(key: tuple[int, ...]) -> None:
    schema = schema_of(U64, TEXT, key=key)
    rows = [((i // 3, f"text {i % 7}"), i % 2, 1) for i in range(300)]
    first = build(schema, rows)
    first.validate_state()
    in_order = Updates(first.row_columns(), first.times, first.diffs)
    for updates in (in_order, Updates.from_rows([U64, TEXT], rows[::-1])):
        again = build_batch(updates, schema, WHOLE, HeapAllocator())
        again.validate_state()
        assert again.nbytes == first.nbytes
        assert updates_of(again) == updates_of(first)


def _many(n: int, codes: str, rng: np.random.Generator) -> Updates:
    keys = {
        "few": rng.integers(0, 50, n), "many": rng.integers(0, n, n), "one": np.full(n, 7),
        "ascending": np.sort(rng.integers(0, n // 4, n)),
        "outlier": np.where(np.arange(n) == n // 2, (1 << 62), rng.integers(0, n // 4, n)),
    }[codes]  # fmt: skip
    values = rng.integers(0, 3, n)
    return Updates(
        (Column(I64, keys), Column(I64, values)),
        rng.integers(0, 2, n).astype(np.uint64),
        rng.choice(np.array([-1, 0, 1, 1], np.int64), n),
    )


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("one_time", [False, True])
@pytest.mark.parametrize("codes", ["few", "many", "one", "ascending", "outlier"])
def test_many_updates_are_settled_in_parts_and_give_what_a_sort_gives(
    codes: str, one_time: bool, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "_PART_BITS", 7)
    monkeypatch.setattr(builder, "_PART", 1 << 7)
    updates = _many(3000, codes, np.random.default_rng(3))
    if one_time:
        updates = Updates(updates.columns, np.zeros(3000, np.uint64), np.ones(3000, np.int64))
    types = [I64, I64]
    if text:
        types[1] = TEXT
        shown = Column.from_pylist(TEXT, [str(v) for v in updates.columns[1].to_pylist()])
        updates = Updates((updates.columns[0], shown), updates.times, updates.diffs)
    model: dict[Any, int] = {}
    for row, time, diff in updates.to_rows():
        model[row, time] = model.get((row, time), 0) + diff
    for key in ((0,), (0, 1), ()):
        batch = build_batch(updates, schema_of(*types, key=key), WHOLE, HeapAllocator())
        batch.validate_state()
        rows = zip(
            zip(*(c.to_pylist() for c in batch.row_columns()), strict=True),
            batch.times.tolist(), batch.diffs.tolist(), strict=True,
        )  # fmt: skip
        assert {(row, time): diff for row, time, diff in rows} == {k: d for k, d in model.items() if d}


@pytest.mark.parametrize("rows", [2500, 4000])
def test_building_given_up_at_any_piece_gives_its_memory_back(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "_PART_BITS", 9)
    monkeypatch.setattr(builder, "_PART", 1 << 9)
    monkeypatch.setattr(builder, "_PIECE", 1 << 8)
    monkeypatch.setattr(builder, "_RESERVED_BYTES", 1 << 12)
    updates = _many(rows, "many", np.random.default_rng(4))
    schema, given_up = schema_of(I64, I64), 0
    for stop in range(1000):
        with Instance.create() as held:
            allocator = SegmentAllocator(held.token, 0)
            allocator.allocate(1).abandon()  # makes the arena in use
            names = instances.names_of(held.token)
            work = builder.building(updates, schema, WHOLE, allocator)
            steps = sum(1 for _ in itertools.islice(work, stop))
            work.close()
            if steps < stop:
                break
            given_up += 1
            assert instances.names_of(held.token) == names
            assert not any(arena.survivors() for arena in allocator.arenas)
    assert given_up > 10


def test_a_piece_moves_no_more_rows_for_there_being_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_PART_BITS", 12)
    monkeypatch.setattr(builder, "_PART", 1 << 12)
    monkeypatch.setattr(builder, "_MOVED", 1 << 10)
    rng, nullable = np.random.default_rng(5), schema_of(I64, I64, nullable=True)
    for rows, each in ((16_000, 2), (32_000, 2), (32_000, 1)):
        keys, values = rng.permutation(rows) // each, rng.permutation(rows)
        known = rng.random(rows) < 0.9
        values[~known] = 0
        columns = (Column(ColumnType.INT64, keys), Column(ColumnType.INT64, values, None, known))
        times, diffs = rng.integers(0, 5, rows).astype(np.uint64), rng.choice([1, 2], rows)
        batch = None
        work = builder.building(Updates(columns, times, diffs), nullable, WHOLE, HeapAllocator())
        moved, code = 0, builder._taken.__code__
        while batch is None:
            try:
                next(work)
            except StopIteration as end:
                batch = end.value
            moved += _innermost(work) is code
        if each == 1:
            assert moved == 0, "nothing is compared: rows are moved once, into the batch"
        else:
            assert moved >= 5 * rows // (1 << 10), "two columns, what is known of one, times and diffs"
        wanted: Counter[Any] = Counter()
        told = zip(
            keys.tolist(), values.tolist(), known.tolist(), times.tolist(), diffs.tolist(), strict=True
        )
        for k, v, is_known, t, d in told:
            wanted[(k, v if is_known else None), t] += d
        assert {(row, t): d for row, t, d in updates_of(batch)} == wanted


def _innermost(work: Any) -> Any:
    """The code of the generator that paused."""
    while getattr(work, "gi_yieldfrom", None) is not None:
        work = work.gi_yieldfrom
    return work.gi_code if work.gi_frame is not None else None


def test_what_is_given_is_only_read() -> None:
    values = np.array([5, 5, 5, 3, 3] * 20, np.uint64)
    values.sort()
    times, diffs = np.zeros(100, np.uint64), np.ones(100, np.int64)
    for array in (values, times, diffs):
        array.flags.writeable = False
    batch = build_batch(Updates((Column(U64, values),), times, diffs), schema_of(U64), WHOLE, HeapAllocator())
    assert updates_of(batch) == [((3,), 0, 40), ((5,), 0, 60)]
    assert values.tolist() == [3] * 40 + [5] * 60


def test_neighbours_are_summed_around_a_zero() -> None:
    rows = [((1, "a"), 0, diff) for diff in (1, 0, 1)] + [
        ((2, "b"), 0, 0),
        ((3, "c"), 0, 4),
        ((3, "c"), 1, 4),
    ]
    assert updates_of(build(schema_of(I64, TEXT), rows)) == [
        ((1, "a"), 0, 2),
        ((3, "c"), 0, 4),
        ((3, "c"), 1, 4),
    ]


def test_a_sum_beyond_64_bits_stands_in_parts() -> None:
    batch = build(schema_of(I64), [((1,), 0, MOST)] * 3 + [((2,), 0, -MOST - 1)] * 2 + [((3,), 0, 1)])
    batch.validate_state()
    assert [diff for row, _, diff in updates_of(batch) if row == (1,)].count(MOST) == 3
    assert [diff for row, _, diff in updates_of(batch) if row == (2,)] == [-MOST - 1] * 2


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["empty key", "hot key", "few keys", "long prefixes", "nested", "times"])
def test_many_rows_of_one_code_are_put_in_order(shape: str) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    n = 20_000
    pair = RecordType((ColumnSpec("x", I64, False), ColumnSpec("y", TEXT, True)))
    value: Any = lambda: rng.randrange(-n, n)  # noqa: E731
    if shape == "empty key":
        schema, row = schema_of(I64, TEXT, key=()), lambda: (value(), f"{value():x}")
    elif shape == "hot key":
        schema, row = schema_of(TEXT, I64), lambda: ("hot" if rng.random() < 0.9 else f"{value()}", value())
    elif shape == "few keys":
        schema, row = schema_of(U64, ColumnType.NUMERIC), lambda: (rng.randrange(9), value() << 60)
    elif shape == "long prefixes":
        schema, row = schema_of(TEXT, I64, key=()), lambda: ("a" * rng.randrange(99) + "b" * (value() % 3), 1)
    elif shape == "nested":
        schema, row = schema_of(pair, I64, key=()), lambda: ((value() % 50, f"{value() % 9}"), value())
    else:
        schema, row = schema_of(I64), lambda: (rng.randrange(2),)
    rows = [(row(), rng.randrange(n) if shape == "times" else 0, 1) for _ in range(n)]
    batch = build(schema, rows)
    batch.validate_state()
    model = Model()
    model.insert(rows)
    assert {(r, t): d for r, t, d in updates_of(batch)} == model.between(-1, 1 << 62)


def test_rows_without_columns_are_counted_by_time() -> None:
    batch = build(schema_of(key=()), [((), 3, 1), ((), 1, 2), ((), 3, 4)])
    batch.validate_state()
    assert updates_of(batch) == [((), 1, 2), ((), 3, 5)]


@pytest.mark.slow
def test_a_thousand_columns_are_held() -> None:
    types = [list(ColumnType)[i % len(ColumnType)] for i in range(1000)]
    schema = schema_of(*types, key=(999, 0, 500), nullable=True)
    updates = Updates(
        tuple(Column.concat(t, [Column.zeros(t, 3), Column.nulls(t, 3)]) for t in types),
        np.arange(6, dtype=np.uint64), np.ones(6, np.int64),
    )  # fmt: skip
    batch = build_batch(updates, schema, WHOLE, HeapAllocator())
    batch.validate_state()
    assert len(batch.columns) == 1000
    assert sum(column.null_count for column in batch.columns) == 3000
    again = Batch.from_buffer(schema, batch._buffer.copy())  # type: ignore[union-attr]
    again.validate_state()


@pytest.mark.slow
def test_rows_of_16_mib_are_held() -> None:
    texts = ["x" * (16 << 20), "x" * (16 << 20) + "y", ""]
    batch = build(schema_of(TEXT, I64), [((text, i), 0, 1) for i, text in enumerate(texts)] * 2)
    batch.validate_state()
    assert {row[1]: len(row[0]) for row, _, _ in updates_of(batch)} == {0: 16 << 20, 1: (16 << 20) + 1, 2: 0}


def test_columns_of_one_value_are_stored_once_but_not_the_key_that_is_the_code() -> None:
    schema = schema_of(I64, TEXT, ListType(ColumnSpec("e", I64, False)), I64, nullable=True)
    rows: list[Any] = [((7, "same", [1, 2], None), i, 1) for i in range(50)]
    batch = build(schema, rows)
    batch.validate_state()
    assert [c.encoding for c in batch.columns] == [Encoding.PLAIN] + [Encoding.CONSTANT] * 3
    assert updates_of(batch) == [(normal_row(row), time, diff) for row, time, diff in rows]
    assert len(batch.time_cells) == 50
    assert batch.nbytes <= 192 + 5 * 96 + 50 * 16 + 8 * 64


@pytest.mark.parametrize(
    ("distinct", "encoding", "index"),
    [(3, Encoding.DICTIONARY, 1), (300, Encoding.DICTIONARY, 2), (2000, Encoding.DICTIONARY, 2),
     (5000, Encoding.PLAIN, 0)],
)  # fmt: skip
def test_texts_are_in_a_dictionary_if_that_saves_a_quarter(
    distinct: int, encoding: Encoding, index: int
) -> None:
    rows = [((i, None if i % 9 == 0 else f"a text of no length {i % distinct}"), 0, 1) for i in range(5000)]
    schema = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", TEXT, True)), (0,))
    batch = build(schema, rows)
    batch.validate_state()
    column = batch.columns[1]
    assert column.encoding is encoding
    if column.indices is not None and column.stored is not None:
        assert column.indices.itemsize == index
        assert column.nbytes <= 0.75 * column.plain().nbytes
    assert updates_of(batch) == rows


def test_encoded_columns_are_taken_as_they_are() -> None:
    schema = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", TEXT, True)), (0,))
    words = Column.from_pylist(TEXT, ["", "a", "b"])
    indices = np.arange(200, dtype=np.uint8) % 3
    columns = (Column.constant(I64, 4, 200), Column.of_dictionary(words, indices, indices != 0))
    times = np.arange(200, dtype=np.uint64)
    batch = build_batch(Updates(columns, times, np.ones(200, np.int64)), schema, WHOLE, HeapAllocator())
    batch.validate_state()
    assert [c.encoding for c in batch.columns] == [Encoding.PLAIN, Encoding.DICTIONARY]
    assert sorted(updates_of(batch), key=lambda update: update[1]) == [
        ((4, [None, "a", "b"][i % 3]), i, 1) for i in range(200)
    ]


def test_large_private_memory_is_had_from_the_machine_a_piece_at_a_time() -> None:
    allocator = HeapAllocator()
    nbytes = 5 * builder._RESERVED_BYTES // 2
    assert allocator.allocate(nbytes).reserved == nbytes
    assert allocator.allocate(1000, deferred=True).reserved == 1000
    allocation = allocator.allocate(nbytes, deferred=True)
    found = [allocation.reserved]
    while allocation.reserved < nbytes:
        allocation.reserve(allocation.reserved + builder._RESERVED_BYTES)
        found.append(allocation.reserved)
    assert found == [0, builder._RESERVED_BYTES, 2 * builder._RESERVED_BYTES, nbytes]
    assert len(allocation.buffer) == nbytes
