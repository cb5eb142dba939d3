"""References of the kernels that read chains: what is found, summed and taken out of sorted batches.

A chain is a list of `Updates`, one a batch; a row of it is named by its batch and its place there.

Does not: say how a reference is packed (kernels/find.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from shm_arrangements.columns import Column
from shm_arrangements.testing.meaning import SIGN, Relation, bytes_of, row_key
from shm_arrangements.testing.reference import UNTOUCHED, Array, Updates, reference_of
from shm_arrangements.types import ColumnType

Chain = Sequence[Updates]
Place = tuple[int, int]  # batch, row

MANY: Final = "many"
OVERFLOW: Final = "overflow"


def places_of(chain: Chain, latest: int, earliest: int = 0) -> list[Place]:
    """Every update whose time is in [earliest, latest]."""
    return [
        (b, row)
        for b, batch in enumerate(chain)
        for row, time in enumerate(batch.times)
        if earliest <= time <= latest
    ]


def name_of(chain: Chain, place: Place, *, by_time: bool = False) -> tuple[Any, ...]:
    """What orders as the update does, equal if it is the same row (and time if asked)."""
    b, row = place
    batch = chain[b]
    return (batch.codes[row], row_key(batch.relation, row), batch.times[row] if by_time else 0)


@reference_of("find.fold_ranges")
@reference_of("scan.fold_shared")
def fold(
    chain: Chain, places: Iterable[Place], *, by_time: bool = False
) -> list[tuple[tuple[Any, ...], int]] | str:
    """The rows of these updates in order, each by name with the sum of its diffs, if it is not 0."""
    sums: dict[tuple[Any, ...], int] = {}
    for b, row in places:
        name = name_of(chain, (b, row), by_time=by_time)
        sums[name] = sums.get(name, 0) + chain[b].diffs[row]
    if any(not -SIGN <= total < SIGN for total in sums.values()):
        return OVERFLOW
    return sorted((name, total) for name, total in sums.items() if total)


@reference_of("find.narrow_runs")
@reference_of("find.fold_runs")
def fold_runs(chain: Chain, keys: Relation, columns: int, latest: int) -> Any:
    """As `fold`, of the updates of each key in turn, with the number of the key."""
    found: list[Any] = []
    for k in range(len(keys.rows)):
        key = row_key(keys, k)
        places = [
            (b, row)
            for b, row in places_of(chain, latest)
            if row_key(chain[b].relation, row, 0, columns) == key
        ]
        rows = fold(chain, places)
        if rows == OVERFLOW:
            return OVERFLOW
        found += [(*row, k) for row in rows]
    return found


def _only(chain: Chain, places: list[Place]) -> Place | str | None:
    """The one update of diff 1, None if there is none, MANY if there is more to say."""
    if not places:
        return None
    b, row = places[0]
    return places[0] if len(places) == 1 and chain[b].diffs[row] == 1 else MANY


@reference_of("find.find_word")
def find_word(chain: Chain, word: int, latest: int) -> Place | str | None:
    return _only(chain, [(b, row) for b, row in places_of(chain, latest) if chain[b].codes[row] == word])


@reference_of("find.find_key")
def find_key(chain: Chain, key: Relation, columns: int, latest: int) -> Place | str | None:
    mine = row_key(key, 0)
    places = places_of(chain, latest)
    return _only(chain, [p for p in places if row_key(chain[p[0]].relation, p[1], 0, columns) == mine])


@reference_of("scan.has_extreme")
def has_extreme(diffs: Array) -> tuple[bool]:
    return (any(diff in (SIGN - 1, -SIGN) for diff in diffs.tolist()),)


@reference_of("find.bound")
def bound(relation: Relation, key: Relation, columns: int, prefix: int, above: int) -> tuple[int]:
    def part(of: Relation, row: int) -> tuple[Any, ...]:
        whole = row_key(of, row, 0, columns)
        last = of.rows[row][columns - 1] if columns else None
        if not prefix or last is None:
            return whole
        return (*whole[:-1], (0, bytes_of(last)[: len(bytes_of(key.rows[0][columns - 1]))]))

    wanted = part(key, 0)
    rows = [part(relation, row) for row in range(len(relation.rows))]
    return (sum(row < wanted or (bool(above) and row == wanted) for row in rows),)


# collect: what is appended, behind what the array holds before


def _before(size: int) -> Any:
    return np.full(size, UNTOUCHED, np.uint8)


def _fixed(type_: ColumnType, values: list[Any], width: int, at: int) -> tuple[Array]:
    data = Column.from_pylist(type_, values).values
    return (np.concatenate([_before(at * width), np.ascontiguousarray(data).view(np.uint8).reshape(-1)]),)


def _valid(values: list[Any], at: int) -> tuple[Array, int]:
    valid = [value is not None for value in values]
    before = _before(at).view(np.bool_)
    return np.concatenate([before, np.array(valid, np.bool_)]), len(valid) - sum(valid)


def _offsets(values: list[Any], out: Array, at: int) -> tuple[Array]:
    sizes = [len(bytes_of(value or b"")) for value in values]
    return (np.concatenate([out[:at], out[at] + np.cumsum([0, *sizes])]),)


def _texts(values: list[Any], offsets: Array, at: int) -> tuple[Array]:
    data = b"".join(bytes_of(value or b"") for value in values)
    return (np.concatenate([_before(offsets[at]), np.frombuffer(data, np.uint8)]),)


def values_at(chain: Chain, column: int, places: Iterable[Place]) -> list[Any]:
    """The values of a column, of these updates."""
    return [chain[b].relation.rows[row][column] for b, row in places]


@reference_of("collect.gather_fixed")
@reference_of("collect.copy_fixed")
def take_fixed(chain: Chain, column: int, places: Sequence[Place], width: int, at: int) -> tuple[Array]:
    type_ = chain[0].relation.types[column]
    assert isinstance(type_, ColumnType)
    return _fixed(type_, values_at(chain, column, places), width, at)


@reference_of("collect.gather_valid")
@reference_of("collect.copy_valid")
def take_valid(chain: Chain, column: int, places: Sequence[Place], at: int) -> tuple[Array, int]:
    return _valid(values_at(chain, column, places), at)


@reference_of("collect.gather_offsets")
@reference_of("collect.copy_offsets")
def take_offsets(chain: Chain, column: int, places: Sequence[Place], out: Array, at: int) -> tuple[Array]:
    return _offsets(values_at(chain, column, places), out, at)


@reference_of("collect.gather_texts")
@reference_of("collect.copy_texts")
def take_texts(chain: Chain, column: int, places: Sequence[Place], offsets: Array, at: int) -> tuple[Array]:
    return _texts(values_at(chain, column, places), offsets, at)


@reference_of("collect.gather_times")
def take_times(chain: Chain, places: Sequence[Place], at: int) -> tuple[Array]:
    times = np.array([chain[b].times[row] for b, row in places], np.uint64)
    return (np.concatenate([_before(8 * at).view(np.uint64), times]),)


@reference_of("collect.copy_diffs")
def take_diffs(chain: Chain, places: Sequence[Place], at: int) -> tuple[Array]:
    diffs = np.array([chain[b].diffs[row] for b, row in places], np.int64)
    return (np.concatenate([_before(8 * at).view(np.int64), diffs]),)
