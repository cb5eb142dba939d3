"""Views: one key found in one call, results made when asked for, and the forms they come in."""

from __future__ import annotations

import datetime
import gc
import math
import sys
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shm_arrangements import point
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import DataError, NotInstalled, NotOrdered, NotReadable, NotSealed
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.kernels import find
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType, ListType
from shm_arrangements.updates import Updates
from shm_arrangements.view import ReadView

I64, TEXT, F64, U64 = ColumnType.INT64, ColumnType.TEXT, ColumnType.FLOAT64, ColumnType.UINT64
NAN = float("nan")
Row = tuple[tuple[Any, ...], int, int]


def schema_of(*types: Any, key: int = 1, nullable: bool = True, ordered: bool = False) -> ArrangementSchema:
    specs = tuple(ColumnSpec(f"c{i}", type_, nullable) for i, type_ in enumerate(types))
    return ArrangementSchema(specs, tuple(range(key)), ordered)


def batch_of(schema: ArrangementSchema, rows: Sequence[Row], lower: int, upper: int) -> Batch:
    about = Description(Frontier.at(lower), Frontier.at(upper), Frontier.minimum())
    updates = Updates.from_rows([spec.type for spec in schema.columns], rows)
    return build_batch(updates, schema, about, HeapAllocator())


def view_of(schema: ArrangementSchema, rows: Sequence[Row], at: int = 0, parts: int = 1) -> ReadView:
    """Everything at time `at`, in batches dealt out in turn."""
    batches = [batch_of(schema, rows[part::parts], 0, at + 1) for part in range(parts)]
    return ReadView("u1", schema, batches, (), at)


KEYS: dict[Any, list[Any]] = {
    I64: [0, -1, 7, -(1 << 63), (1 << 63) - 1],
    U64: [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1],
    F64: [0.0, 1.5, -2.5, float("inf"), -float("inf"), 5e-324],
    TEXT: ["", "a", "abcdefgh", "é" * 100, "x" * 300],
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("type_", KEYS, ids=lambda type_: type_.name)
def test_one_key_finds_what_many_find(type_: ColumnType, nullable: bool, parts: int, ordered: bool) -> None:
    keys = [*KEYS[type_], *([None] if nullable else [])]
    schema = schema_of(type_, I64, nullable=nullable, ordered=ordered)
    rows = [((key, i), 0, 1) for i, key in enumerate(keys)]
    rows += [((keys[1], 100), 0, 1), ((keys[2], 2), 0, 1)]  # a key of two rows, and a row twice
    view = view_of(schema, rows, parts=parts)
    for key in [*keys, KEYS[type_][-1] if type_ is TEXT else 3 if type_ in (I64, U64) else KEYS[type_][0]]:
        one, many = view.lookup(key), view.lookup_many([key])
        assert sorted(one.rows()) == sorted(many.rows())
        assert (len(one), one.total) == (len(many), many.total)
        assert (one.counts.tolist(), one.key_index is not None) == (many.counts.tolist(), True)
        assert {n: c.tolist() for n, c in one.columns.items()} == {
            n: c.tolist() for n, c in many.columns.items()
        }
    assert sorted(view.lookup(keys[1]).rows()) == [(keys[1], 1), (keys[1], 100)]
    assert view.lookup(keys[2]).rows() == [(keys[2], 2)] * 2
    assert view.lookup(keys[0]).to_arrow().to_pylist() == [{"c0": keys[0], "c1": 0}]


def test_keys_that_are_not_of_the_type_are_named() -> None:
    view = view_of(schema_of(I64, I64), [((1, 1), 0, 1)])
    for key in ("1", 1.0, True, 1 << 63, -(1 << 63) - 1, (1, 2), b"1"):
        with pytest.raises(ValueError, match=r"not a int64|beyond int64|not a"):
            view.lookup(key)
    texts = view_of(schema_of(TEXT, I64), [(("1", 1), 0, 1)])
    for key in (1, b"1", ("a", "b")):
        with pytest.raises(ValueError, match="not a"):
            texts.lookup(key)
    with pytest.raises(UnicodeEncodeError):
        texts.lookup("\ud800")


def test_a_key_of_several_columns_is_found_whatever_they_are() -> None:
    schema = schema_of(TEXT, I64, ColumnType.BOOL, F64, I64, key=4)
    rows = [
        ((t, i, b, f, 9), 0, 1) for t in ("a", "b") for i in (0, 1) for b in (True, False) for f in (0.0, NAN)
    ]
    view = view_of(schema, rows)
    for row, _, _ in rows:
        assert repr(view.lookup(row[:4]).rows()) == repr([row])
    assert view.lookup(("a", 0, True, -0.0)).rows() == [("a", 0, True, 0.0, 9)]
    assert view.lookup(("c", 0, True, 0.0)).rows() == []
    assert view.lookup(("a", None, True, 0.0)).rows() == []
    with pytest.raises(ValueError, match="key"):
        view.lookup("a")


def test_bug25_equal_floats_are_one_key_whatever_their_bytes() -> None:
    other = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    negative = np.array([0xFFF8000000000000], np.uint64).view(np.float64)
    schema = schema_of(F64, I64, nullable=False)
    rows: list[Row] = [((0.0, 1), 1, 1), ((-0.0, 1), 1, 1), ((NAN, 2), 2, 1), ((float(other[0]), 2), 2, 1)]
    rows += [((0.0, 1), 3, -1), ((float(negative[0]), 2), 3, -1)]
    batches = [batch_of(schema, [row for row in rows if row[1] == t], t, t + 1) for t in range(4)]
    for at, zeros, nans in ((2, 2, 2), (3, 1, 1)):
        view = ReadView("u1", schema, batches, (), at)
        assert [view.lookup(key).total for key in (0.0, -0.0, NAN, float(other[0]))] == [zeros] * 2 + [
            nans
        ] * 2
        many = view.lookup_many(np.concatenate([np.array([0.0, -0.0, np.nan]), other, negative]))
        assert many.counts.tolist() == [zeros, zeros, nans, nans, nans]
        assert len(view.scan()) == 2


def test_bug27_rows_with_nan_are_equal_and_cancel() -> None:
    schema = schema_of(I64, F64)
    first: list[Row] = [((1, NAN), 1, 3), ((1, 2.5), 1, 1), ((None, NAN), 1, 2), ((5, NAN), 1, 1)]
    second: list[Row] = [((1, NAN), 2, -1), ((5, NAN), 2, -1)]
    batches = [batch_of(schema, first, 0, 2), batch_of(schema, second, 2, 3)]
    counts = [sorted(ReadView("u1", schema, batches, (), at).scan().counts.tolist()) for at in (1, 2)]
    assert counts == [[1, 1, 2, 3], [1, 2, 2]]
    view = ReadView("u1", schema, batches, (), 2)
    assert (view.lookup(1).total, view.lookup(5).total, view.lookup(None).total) == (3, 0, 2)


@pytest.mark.parametrize("type_", [I64, U64])
def test_bug29_integers_beyond_2_to_the_53_keep_every_bit(type_: ColumnType) -> None:
    big = 9007199254740993
    top = (1 << 64) - 1 if type_ is U64 else (1 << 63) - 1
    schema = schema_of(type_, type_, nullable=False)
    view = view_of(schema, [((k, k), big, 1) for k in (big, big - 1, top, top - 1)], at=big)
    for key in (big, big - 1, top, top - 1):
        assert view.lookup(key).rows() == [(key, key)]
        assert view.lookup_many([key]).rows() == [(key, key)]
    assert view.lookup(big + 1).rows() == []
    assert sorted(view.scan().to_pandas()["c0"].tolist()) == sorted([big, big - 1, top, top - 1])
    assert view.changes(big - 1).times.tolist() == [big] * 4
    with pytest.raises(ValueError, match="key"):
        view.lookup_many(np.array([1], np.int64 if type_ is U64 else np.uint64))


def test_bug10_keys_given_twice_are_found_twice() -> None:
    view = view_of(schema_of(TEXT, I64), [((t, i), 0, 1) for i, t in enumerate("aabc")])
    found = view.lookup_many(["b", "a", "b", "x", "a"])
    assert found.key_index is not None
    assert found.key_index.tolist() == [0, 1, 1, 2, 4, 4]
    assert sorted(found.rows()) == [("a", 0)] * 2 + [("a", 1)] * 2 + [("b", 2)] * 2


def test_a_negative_count_is_an_error_where_it_is_read_and_only_there() -> None:
    schema = schema_of(I64, I64)
    view = ReadView("u1", schema, [batch_of(schema, [((1, 1), 0, -1), ((2, 2), 0, 1)], 0, 1)], (), 0)
    assert view.lookup(2).rows() == [(2, 2)]
    for asked in (view.scan, lambda: view.lookup(1), lambda: view.range(), lambda: view.prefix(1)):
        with pytest.raises(DataError, match="invalid-data: negative multiplicity"):
            asked()
    assert view.range(2).rows() == [(2, 2)]


def test_threads_that_share_a_view_do_not_share_a_key() -> None:
    view = view_of(schema_of(TEXT, I64), [((f"key {i}", i), 0, 1) for i in range(2000)])
    wrong: list[Any] = []
    start = threading.Barrier(4)

    def work(first: int) -> None:
        start.wait()
        for i in range(first, 2000, 4):
            rows = view.lookup(f"key {i}").rows()
            if rows != [(f"key {i}", i)]:
                wrong.append((i, rows))

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(switching)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_common_keys_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(ReadView, "lookup_many", lambda self, keys: asked.append(keys))
    for type_, keys in KEYS.items():
        view = view_of(schema_of(type_, I64, nullable=False), [((key, 1), 0, 1) for key in keys])
        for key in keys:
            view.lookup(key)
    assert asked == [["x" * 300]]
    assert point.find.MANY != find.NONE


def test_columns_of_a_result_are_made_once_and_only_if_asked_for() -> None:
    view = view_of(schema_of(I64, TEXT), [((i, str(i)), 0, 1) for i in range(50)], parts=3)
    found = view.lookup_many(list(range(50)))
    made = found.raw_columns()
    assert all(a is b for a, b in zip(made, found.raw_columns(), strict=True))
    with pytest.raises(KeyError, match="no column 'x'; there are: c0, c1"):
        found.column("x")


def test_a_column_outlives_the_view_and_its_batches() -> None:
    view = view_of(schema_of(I64, TEXT), [((i, "same"), 0, 1) for i in range(5000)])
    scan = view.scan()
    numbers, texts, arrow = scan.column("c0"), scan.raw_columns()[1], scan.to_arrow()
    del view, scan
    gc.collect()
    assert int(numbers.sum()) == sum(range(5000))
    assert texts.take(np.arange(2)).to_pylist() == ["same"] * 2
    assert arrow.column("c1").to_pylist() == ["same"] * 5000


def test_ranges_and_prefixes_of_a_view_take_values_and_tuples() -> None:
    schema = schema_of(TEXT, I64, I64, key=2, ordered=True)
    rows = [((t, i, i), 0, 1) for t in ("ab", "abc", "b") for i in range(3)]
    view = view_of(schema, rows, parts=2)
    every = [row for row, _, _ in rows]
    assert view.range().rows() == every
    assert view.range("abc").rows() == every[3:]
    assert view.range("abc", "b").rows() == every[3:6]
    assert view.range(("ab", 1), ("b", 0), include_upper=True).rows() == every[1:7]
    assert view.range(("ab", 1), "ab", include_upper=True).rows() == every[1:3]
    assert view.range("abc", include_lower=False).rows() == every[6:]
    assert view.prefix("ab").rows() == every[:6]
    assert view.prefix(("ab",)).rows() == every[:6]
    assert view.prefix(("abc", 2)).rows() == every[5:6]
    with pytest.raises(ValueError, match="has more than the index's 2 values"):
        view.range(("a", 1, 2))
    with pytest.raises(ValueError, match="not a"):
        view.prefix(7)


def test_hashed_keys_have_no_range_but_a_whole_key_is_a_prefix() -> None:
    schema = schema_of(ColumnType.BOOL, I64, I64, key=2)
    view = view_of(schema, [((True, i, i), 0, 1) for i in range(4)])
    assert view.prefix((True, 2)).rows() == [(True, 2, 2)]
    for asked in (lambda: view.range(True), lambda: view.prefix(True), lambda: view.range()):
        with pytest.raises(NotOrdered, match=r"key=c0, c1.*ordered=True"):
            asked()


def test_changes_tell_rows_and_errors_between_two_times() -> None:
    schema, messages = schema_of(I64, TEXT), ArrangementSchema((ColumnSpec("error", TEXT, False),), ())
    oks = [batch_of(schema, [((1, "a"), 1, 1), ((1, "a"), 2, -1), ((2, "b"), 2, 2)], 0, 3)]
    errs = [batch_of(messages, [(("broken",), 2, 1), (("broken",), 3, -1)], 0, 4)]
    about = {"since": Frontier.at(1), "upper": Frontier.at(4)}
    view = ReadView("u1", schema, oks, errs, 3, **about)
    changes = view.changes(1)
    assert sorted(changes.rows()) == [((1, "a"), 2, -1), ((2, "b"), 2, 2)]
    assert sorted(changes.errors) == [("broken", 2, 1), ("broken", 3, -1)]
    assert (changes["c0"].tolist(), changes.columns["c1"].tolist()) == (
        [row[0] for row, _, _ in changes.rows()], [row[1] for row, _, _ in changes.rows()],
    )  # fmt: skip
    arrow = changes.to_arrow()
    assert arrow.schema.names == ["c0", "c1", "time", "diff"]
    assert sorted(arrow.column("diff").to_pylist()) == [-1, 2]
    assert changes.to_pandas()["time"].tolist() == [2, 2]
    assert (len(changes), len(view.changes(2, 2)), view.changes(2, 3).errors) == (2, 0, (("broken", 3, -1),))
    with pytest.raises(NotReadable, match=r"at=0, since=\{1\}"):
        view.changes(0)
    for t2 in (4, MAX_TIME):
        with pytest.raises(NotSealed, match=rf"at={t2}, upper=\{{4\}}"):
            view.changes(1, t2)
    with pytest.raises(ValueError, match="from 3 to 2"):
        view.changes(3, 2)


MOMENT = datetime.datetime(2013, 1, 1, 12, 30, 0, 5)


def test_frames_hold_every_type_exactly_with_null_and_without() -> None:
    types: list[Any] = [
        I64, U64, ColumnType.INT16, F64, ColumnType.FLOAT32, ColumnType.BOOL, TEXT, ColumnType.TIMESTAMP,
        ColumnType.TIMESTAMPTZ, ColumnType.TIME, ColumnType.DATE, ColumnType.NUMERIC, ColumnType.BYTEA,
        ColumnType.UUID, ListType(ColumnSpec("e", I64, True)),
    ]  # fmt: skip
    full = [
        (1 << 53) + 1, (1 << 64) - 1, -5, NAN, 0.5, True, "a", 1_357_043_400_000_005, 1_357_043_400_000_005,
        1, 3, 10**30, b"\xff", uuid.UUID(int=5), [1, None],
    ]  # fmt: skip
    specs = tuple(ColumnSpec(f"c{i}", type_, True) for i, type_ in enumerate(types))
    one = [Column.from_pylist(type_, [value, value]) for type_, value in zip(types, full, strict=True)]
    two = [Column.from_pylist(type_, [value, None]) for type_, value in zip(types, full, strict=True)]
    from shm_arrangements.frames import to_frame

    plain, nulls = to_frame(specs, one, 2), to_frame(specs, two, 2)
    for column, series in zip(one[:6], (plain[name] for name in plain), strict=False):
        assert np.shares_memory(series.to_numpy(), column.values)
    kinds = [str(dtype) for dtype in plain.dtypes]
    assert kinds[:6] == ["int64", "uint64", "int16", "float64", "float32", "bool"]
    assert kinds[7:10] == ["datetime64[us]", "datetime64[us, UTC]", "timedelta64[us]"]
    assert [str(dtype) for dtype in nulls.dtypes][:6] == [
        "Int64", "UInt64", "Int16", "Float64", "Float32", "boolean",
    ]  # fmt: skip
    for frame in (plain, nulls):
        first = frame.iloc[0]
        assert (int(first["c0"]), int(first["c1"])) == ((1 << 53) + 1, (1 << 64) - 1)
        assert [first[f"c{i}"] for i in (6, 11, 12, 13)] == ["a", 10**30, b"\xff", uuid.UUID(int=5)]
        assert first["c7"] == pd.Timestamp(MOMENT)
        assert first["c8"] == pd.Timestamp(MOMENT, tz="UTC")
        assert first["c9"] == pd.Timedelta(1, "us")
        assert first["c10"] == datetime.date(1970, 1, 4)
        assert first["c14"] == [1, None]
    assert math.isnan(nulls["c3"].to_numpy(na_value=0.0)[0])  # NaN is a value
    assert nulls["c3"].isna().tolist()[1]
    assert [nulls[f"c{i}"].tolist()[1] for i in (6, 10, 11, 12, 13, 14)] == [None] * 6
    assert [nulls[f"c{i}"].isna().tolist()[1] for i in range(6)] == [True] * 6
    assert [nulls[f"c{i}"].tolist()[1] is pd.NaT for i in (7, 8, 9)] == [True] * 3


def test_frames_repeat_rows_or_count_them_and_allow_equal_names() -> None:
    view = view_of(schema_of(I64, TEXT), [((1, "a"), 0, 2), ((2, "b"), 0, 1)])
    assert sorted(view.scan().to_pandas()["c1"].tolist()) == ["a", "a", "b"]
    counted = view.scan().to_pandas(counts=True)
    assert dict(zip(counted["c0"], counted["count"], strict=True)) == {1: 2, 2: 1}
    same = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("k", TEXT, False)), (0,))
    frame = view_of(same, [((1, "a"), 0, 1)]).scan().to_pandas()
    assert (list(frame.columns), frame.iloc[0].tolist()) == (["k", "k"], [1, "a"])
    empty = ArrangementSchema((), ())
    assert len(view_of(empty, [((), 0, 3)]).scan().to_pandas()) == 3


def test_without_pandas_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(schema_of(I64, TEXT), [((1, "a"), 0, 1)])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotInstalled, match="pip install pandas") as caught:
        view.scan().to_pandas()
    assert caught.value.facts["library"] == "pandas"
