"""Growable arrays, and the table from rows to slots on top of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from clusterd.operators.growable import Growable
from clusterd.operators.row_table import Partials, RowTable
from clusterd.operators.time_steps import PIECE_ROWS
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowImage, RowSpec, encode
from shm_arrangements.types import ColumnType
from tests.clusterd.operators.test_time_steps import drained

I64, TEXT = ColumnType.INT64, ColumnType.TEXT
SPEC = RowSpec(((TEXT, True), (I64, False)))


def test_what_is_in_an_array_stays_as_it_grows() -> None:
    array = Growable(np.int64, (3,), fill=-1)
    for rows in (1, 70, 5_000, 60_000, 700_000):
        at = len(array)
        array.grow(rows)
        assert len(array) >= rows
        assert (array.a[at:] == -1).all()
        array.a[at:] = np.arange(at, len(array))[:, None]
        assert (array.a == np.arange(len(array))[:, None]).all()


@pytest.mark.parametrize("rows", [10, 3_000_000])
def test_a_large_array_is_filled_and_had_from_the_machine_in_pieces(rows: int) -> None:
    array = Growable(np.int32, (2,), fill=-1)
    _, pauses = drained(array.growing(rows))
    assert len(array) >= rows
    assert (array.a == -1).all()
    assert pauses == (0 if rows == 10 else -(-array.nbytes // (4 << 20)) - 1)
    array.a[:] = 5
    _, pauses = drained(array.growing(rows))
    assert pauses == 0, "it is long enough"
    for part in (rows // 2, rows):
        _, pauses = drained(array.touching(part))
        assert pauses == (0 if rows == 10 else pytest.approx(array.a[: rows // 2].nbytes >> 21, abs=1))
    assert (array.a == 5).all()


def test_what_is_not_filled_yet_is_not_to_be_seen() -> None:
    held = Growable(np.int32, fill=-1)
    held.grow(10)
    held.a[:10] = np.arange(10)
    lengths = []
    for _ in held.growing(3_000_000):
        lengths.append(len(held))
        assert held.a[:10].tolist() == list(range(10))
        assert (held.a[10:] == -1).all()
    assert lengths == sorted(set(lengths))  # it took some pieces
    assert len(lengths) >= 2
    assert len(held) >= 3_000_000
    assert (held.a[10:] == -1).all()
    held.grow(len(held) + 1)  # no view is left that keeps the old memory
    assert held.a[9] == 9


def test_a_view_that_is_kept_stays_valid() -> None:
    array = Growable(np.uint8)
    array.grow(2 << 20)
    view = array.a[:10]
    view[:] = 7
    array.grow(9 << 20)
    array.a[0] = 1
    assert (view == 7).all()
    assert array.a[:3].tolist() == [1, 7, 7]
    array.grow(40 << 20)
    assert array.a[:3].tolist() == [1, 7, 7]


def image_of(rows: list[tuple[Any, ...]]) -> RowImage:
    columns = [Column.from_pylist(type_, [row[i] for row in rows]) for i, (type_, _) in enumerate(SPEC.types)]
    return encode(columns, SPEC, len(rows))


@pytest.mark.parametrize("collide", [False, True])
def test_slots_are_found_freed_and_reused(collide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if collide:
        monkeypatch.setattr(
            RowImage, "hash", lambda self, columns=None: np.full(len(self), 3 << 60, np.uint64)
        )
    rng = random.Random(4)
    table = RowTable(SPEC)
    known: dict[tuple[Any, ...], int] = {}
    for _ in range(120):
        rows = [
            (
                rng.choice([None, "", "text of more than a word " * rng.randrange(3), str(rng.random())]),
                rng.randrange(9),
            )
            for _ in range(rng.randrange(1, 30))
        ]
        slots = table.assign(image_of(rows)).tolist()
        for row, slot in zip(rows, slots, strict=True):
            assert known.setdefault(row, slot) == slot
        assert len(set(known.values())) == len(known) == len(table)
        gone = rng.sample(sorted(known, key=str), len(known) // 2)
        table.free(np.array([known.pop(row) for row in gone], np.int64))
        assert len(table) == len(known)
        texts, numbers = table.columns(np.array(list(known.values()), np.int64))
        assert list(zip(texts.to_pylist(), numbers.to_pylist(), strict=True)) == list(known)
    assert table.capacity <= 256
    assert table.text.nbytes < 1 << 20


@pytest.mark.slow
def test_texts_of_a_large_table_are_moved_in_pieces() -> None:
    rows = 2 * PIECE_ROWS
    table = RowTable(SPEC)
    names, numbers = Column.from_pylist(TEXT, ["some text, beyond a word"] * rows), np.arange(rows)
    slots = table.assign(encode([names, Column(I64, numbers)], SPEC, rows))
    used = table.text.nbytes
    kept = np.flatnonzero(numbers % 3 == 0)
    _, pauses = drained(table.freeing(slots[numbers % 3 != 0]))
    assert pauses == 2, "one in letting go, one in moving"
    assert table.text.nbytes < used
    texts, values = table.columns(slots.take(kept))
    assert set(texts.to_pylist()) == {"some text, beyond a word"}
    assert (values.values == kept).all()


@pytest.mark.slow
def test_texts_of_freed_rows_are_given_back() -> None:
    table = RowTable(SPEC)
    for k in range(60):
        slots = table.assign(image_of([(f"{k} {i} " * 20, i) for i in range(200)]))
        table.free(slots)
    assert len(table) == 0
    assert table.text.nbytes < 1 << 20


@pytest.mark.slow
def test_a_large_table_grows_and_gives_back_in_pieces() -> None:
    block = 1 << 16
    spec = RowSpec(((I64, False),))
    table, partials = RowTable(spec), Partials(2)
    pauses, lengths = [], set()
    for k in range(0, 8 * block, block):
        values = np.arange(k, k + block)
        work = [drained(table.make_room(block))[1], drained(partials.make_room(block, table.capacity))[1]]
        places = len(table._entries), len(partials._entries)
        slots = table.assign(encode([Column(I64, values)], spec, block))
        for time in (7, 8, 9):  # the second and third of a slot are found by hash
            partials.add(slots, np.full(block, time, np.uint64), np.ones(block, np.int64), table.capacity)
            if time == 8:
                work[1] += drained(partials.make_room(block, table.capacity))[1]
                places = places[0], len(partials._entries)
        pauses.append(max(work))
        lengths.add(len(table._entries))
        if k >= 4 * block:
            assert len(table._entries) == places[0], "it grew in the middle of a block"
            assert len(partials._entries) == places[1], "it grew in the middle of a block"
    assert max(pauses) >= 2
    assert len(lengths) <= 4, "it grows each time"
    every = np.arange(8 * block)
    assert (
        table.columns(table.assign(encode([Column(I64, every)], spec, len(every))))[0].values == every
    ).all()
    counts = np.zeros((table.capacity, 2), np.uint64)
    gone, paused = drained(partials.retire(counts, np.zeros(table.capacity, np.int32)))
    assert sorted(gone.tolist()) == every.tolist()
    assert paused >= 3 * 8 * block // PIECE_ROWS - 1
    _, paused = drained(table.freeing(gone))
    assert (len(table), len(partials), paused) == (0, 0, 8 * block // PIECE_ROWS - 1)


def test_partials_are_found_in_any_order_of_times() -> None:
    rng = random.Random(5)
    partials = Partials(2)
    expected: dict[tuple[int, int], int] = {}
    for _ in range(40):
        n = rng.randrange(1, 50)
        slots = np.array([rng.randrange(5) for _ in range(n)], np.int64)
        times = np.array(
            [rng.choice([0, 1, 2, 1 << 63, (1 << 64) - 1, rng.randrange(100)]) for _ in range(n)], np.uint64
        )
        diffs = np.array([rng.randrange(-(1 << 62), 1 << 62) for _ in range(n)], np.int64)
        found = partials.add(slots, times, diffs, 8)
        for p, s, t, d in zip(found.tolist(), slots.tolist(), times.tolist(), diffs.tolist(), strict=True):
            assert (partials.slots[p], partials.times[p]) == (s, t)
            expected[s, t] = expected.get((s, t), 0) + d
    assert len(partials) == len(expected)
    for p in range(len(partials)):
        low, high = partials.words[p].tolist()
        value = expected[int(partials.slots[p]), int(partials.times[p])]
        assert (high << 64) | low == value % (1 << 128)
    times = partials.times.take(drained(partials.order())[0])
    assert (times[1:] >= times[:-1]).all()
