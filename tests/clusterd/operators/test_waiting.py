"""Updates that wait for the order their trees take them best in: nothing is lost, and it is that order."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from clusterd.operators import waiting
from clusterd.operators.kernels.time_order import group_codes
from clusterd.operators.ordered import OrderColumn, lane_flips
from clusterd.operators.waiting import RowUpdates, WaitingRows, cuts, sorted_at_once
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, decode, encode
from shm_arrangements.types import ColumnSpec, ColumnType
from tests.clusterd.operators.test_top_k import ORDERS, check

I64, TEXT = ColumnType.INT64, ColumnType.TEXT
NUMBERS = (ColumnSpec("a", I64, True), ColumnSpec("b", I64, False))
ONE_TEXT = (ColumnSpec("a", TEXT, False),)
_FEW_GROUPS = 40


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is put in order, a few rows a piece."""
    monkeypatch.setattr(waiting, "SWEPT_FROM", 1)
    monkeypatch.setattr(waiting, "SWEPT", 7)
    monkeypatch.setattr(waiting, "_JOINED_BYTES", 7)


def inverting(specs: tuple[ColumnSpec, ...], items: list[OrderColumn]) -> np.ndarray:
    flips = lane_flips(list(zip(specs, items, strict=True)))
    return np.where(np.array(flips) != 0, ~np.uint64(0), np.uint64(0))


def blocks(rng: random.Random, specs: tuple[ColumnSpec, ...], *, same: bool) -> list[list[tuple[Any, ...]]]:
    """Of each update group, row, time and diff."""
    out = []
    for _ in range(rng.randrange(1, 6)):
        block = []
        for _ in range(rng.choice([1, 2, 30])):
            row: tuple[Any, ...] = (
                (rng.choice(["", "a", "ab", "long enough to tie"]),)
                if specs is ONE_TEXT
                else (rng.choice([None, -5, 0, 3]), rng.choice([-(1 << 63), 7, (1 << 63) - 1]))
            )
            time, diff = (4, 1) if same else (rng.randrange(3), rng.choice([-1, 2]))
            block.append((rng.randrange(_FEW_GROUPS), row, time, diff))
        out.append(block)
    return out


def updates_of(specs: tuple[ColumnSpec, ...], block: list[tuple[Any, ...]]) -> RowUpdates:
    groups, rows, times, diffs = zip(*block, strict=True)
    columns = [Column.from_pylist(s.type, [row[i] for row in rows]) for i, s in enumerate(specs)]
    image = encode(columns, RowSpec.of(specs), len(rows))
    return RowUpdates(image, np.array(groups), np.array(times, np.uint64), np.array(diffs))


def told(updates: RowUpdates) -> list[tuple[Any, ...]]:
    each = updates.slice(0, len(updates))
    rows = zip(*(column.to_pylist() for column in decode(each.image)), strict=True)
    return list(zip(each.groups.tolist(), rows, each.times.tolist(), each.diffs.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("specs", [NUMBERS, ONE_TEXT])
def test_all_updates_are_given_and_in_order_within_a_piece(specs: tuple[ColumnSpec, ...], same: bool) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        items = [OrderColumn(k, rng.random() < 0.5, rng.random() < 0.5) for k in range(len(specs))]
        kept, given = WaitingRows(inverting(specs, items)), []
        whole = blocks(rng, specs, same=same)
        for block in whole:
            kept.add(updates_of(specs, block))
        assert len(kept) == sum(map(len, whole))
        assert kept.nbytes > 0
        for part in kept.take(_FEW_GROUPS):
            if part is None:
                continue
            mine = told(part)
            given += mine
            keys = [(group, *_placed(row, items)) for group, row, _, _ in mine]
            if specs is NUMBERS:
                assert keys == sorted(keys), f"seed {seed}"
            assert [key[0] for key in keys] == sorted(key[0] for key in keys), f"seed {seed}"
        assert Counter(given) == Counter(each for block in whole for each in block), f"seed {seed}"
        assert (len(kept), kept.nbytes) == (0, 0)


def _placed(row: tuple[Any, ...], items: list[OrderColumn]) -> list[tuple[bool, int]]:
    """What sorts as the order says, of numbers."""
    out = []
    for value, item in zip(row, items, strict=True):
        if value is None or isinstance(value, str):
            out.append((value is None and not item.nulls_first, 0))
        else:
            out.append((item.nulls_first, -value if item.descending else value))
    return out


@pytest.mark.usefixtures("tiny")
def test_top_k_is_the_same_in_whatever_order_rows_get_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SWEPT", 1000)  # a group in several pieces has no net changes
    monkeypatch.setattr(waiting, "_MOST_ROWS", 25)
    for seed in range(2 * len(ORDERS)):
        check(seed, valid=seed % 2 == 0, limit=3, offset=seed % 3)


def test_a_piece_ends_where_a_digit_does_if_there_is_an_end_in_reach() -> None:
    assert list(cuts(np.array([3, 9, 9, 30, 34]), 34, 10)) == [(0, 9), (9, 19), (19, 29), (29, 34)]
    assert list(cuts(np.array([4]), 4, 10)) == [(0, 4)]
    assert sorted_at_once(RowSpec.of(ONE_TEXT)) < sorted_at_once(RowSpec.of(NUMBERS))


@pytest.mark.parametrize("room", [0, 40, 63])
def test_codes_ascend_as_groups_do_and_then_as_much_of_rows_as_fits(room: int) -> None:
    rng = np.random.default_rng(room)
    groups = rng.integers(0, 1 << room, 500, dtype=np.uint64) + np.uint64(9)
    lanes = rng.integers(0, 1 << 63, (500, 1), dtype=np.uint64)
    codes = np.empty(500, np.uint64)
    flip = np.array([~np.uint64(0)])
    group_codes(groups, lanes, np.zeros(1, np.uint8), flip, np.empty(4, np.uint64), codes)
    order = np.lexsort((~lanes[:, 0], groups))
    assert (codes[order][1:] >= codes[order][:-1]).all()
    if room == 0:
        assert len(np.unique(codes)) == len(np.unique(lanes))
