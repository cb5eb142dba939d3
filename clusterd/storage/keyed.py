"""Keyed: the current row of every key of a shard, and what rows of a key-value feed change of it.

In such a feed a row replaces the one of the same key before it, and one whose other columns are all NULL
deletes it. What is wrong with a row is an error in data in its place, which goes as a row would; a key of
NULL is wrong. A shard holds changes, so each row becomes the retraction of what its key had and the insertion
of what it has; what stays the same changes nothing. The state is read back from the shard, so it cannot
differ from it, and rows may be given twice. Which errors are whose stands with the positions of files
(load.py).

Rows lie in levels, each sorted by the hash of the key and larger than all after it, so finding m keys among n
costs O(m log n), and a row moves O(log n) times. A hash says which rows may be meant; the keys decide.

Does not: append; keep what was deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from clusterd.convert import column_from_scalars, scalars_from_column
from clusterd.storage.shard import Shard
from controller_proto.errors import Refusal
from shm_arrangements.columns import Bools, Column, Ints
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowImage, RowSpec, Words, encode
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["KeyedState"]

_BLOCK_ROWS = 65_536


def _is_null(column: Column) -> Bools:
    validity = column.validity
    return np.zeros(len(column), np.bool_) if validity is None else ~validity


class _Level:
    """Rows by the hash of their key; alive (n,) are those not replaced."""

    def __init__(self, hashes: Words, columns: Sequence[Column]) -> None:
        order = np.argsort(hashes, kind="stable")
        self.hashes = hashes[order]
        self.columns = tuple(column.take(order) for column in columns)
        self.alive = np.ones(len(order), np.bool_)

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashes: Words) -> Ints:
        """The rows alive with one of `hashes`, which are distinct."""
        first = np.searchsorted(self.hashes, hashes)
        counts = np.searchsorted(self.hashes, hashes, side="right") - first
        starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
        rows = starts + np.arange(len(starts))
        return rows[self.alive[rows]]


class KeyedState:
    """The current rows of `specs`; key: positions of the columns that tell rows apart."""

    def __init__(self, specs: tuple[ColumnSpec, ...], key: Sequence[int]) -> None:
        nullable = (ColumnSpec(s.name, s.type, True, s.scale) for s in specs)
        self._specs = (*nullable, ColumnSpec("error", ColumnType.TEXT, True))  # what is wrong with a row
        self._key = tuple(key)
        self._others = tuple(at for at in range(len(self._specs)) if at not in self._key)
        self._required = [at for at, s in enumerate(specs) if not s.nullable and at not in self._key]
        self._levels: list[_Level] = []
        self._failed: Counter[tuple[Any, ...]] = Counter()

    @property
    def failed(self) -> list[tuple[Any, ...]]:
        """The errors there are: key values as scalars, and the text."""
        return sorted(self._failed, key=repr)

    def read(self, shard: Shard, upper: Frontier, failed: Sequence[Sequence[Any]] = ()) -> None:
        """Begin with what `shard` holds before `upper`, and the errors that are `failed`.

        Raises Refusal(`invalid-data`) if a key has several rows.
        """
        if failed:
            self._failed.update(map(tuple, failed))
            columns = [Column.nulls(spec.type, len(failed)) for spec in self._specs]
            for at, values in zip((*self._key, -1), zip(*failed, strict=True), strict=True):
                columns[at] = column_from_scalars(self._specs[at], values)
            self._add(self._image(columns, self._key).hash(), tuple(columns))
        blocks = list(shard.read(0, upper, block_rows=_BLOCK_ROWS))
        if not blocks:
            return
        updates = Updates.concat(blocks)
        found = Updates(updates.columns, np.zeros(len(updates), np.uint64), updates.diffs).consolidate()
        image = self._image(found.columns, self._key)
        distinct = len(image.run_starts(image.sort_order()))
        if distinct != len(found) or bool((found.diffs != 1).any()):
            names = ", ".join(self._specs[at].name for at in self._key)
            raise Refusal(
                "invalid-data",
                f"shard {shard.name!r} has {int(found.diffs.sum())} rows of {distinct} keys ({names})",
                "a shard that is loaded with --upsert has one row a key; name the columns that tell rows "
                "apart, or load into another shard",
            )
        self._add(image.hash(), (*found.columns, Column.nulls(ColumnType.TEXT, len(found))))

    def __len__(self) -> int:
        return sum(int(level.alive.sum()) for level in self._levels)

    def replace(
        self, columns: tuple[Column, ...], times: Words, errors: Mapping[int, str] = MappingProxyType({})
    ) -> tuple[Updates, Updates]:
        """Take rows in their order; returns what they change, at their times (n,): rows, and errors.

        Rows of one time and key: the last counts. errors: what is wrong with rows, by their place.
        """
        columns = (*columns, self._errors(columns, errors))
        mine = self._image(columns, self._key).hash()
        wanted = np.unique(mine)
        found = [level.find(wanted) for level in self._levels]
        held = [
            tuple(column.take(rows) for column in level.columns)
            for level, rows in zip(self._levels, found, strict=True)
        ]
        before = sum(map(len, found))
        rows = tuple(
            Column.concat(spec.type, [*(part[at] for part in held), columns[at]])
            for at, spec in enumerate(self._specs)
        )
        moments = np.concatenate([np.zeros(before, np.uint64), times])
        image = self._image(rows, self._key)
        order = image.sort_order(times=moments)
        first = np.zeros(len(order), np.bool_)  # of its key, among the sorted
        first[image.run_starts(order)] = True
        last = np.append(first[1:], True) if len(order) else first
        # The last of a key at a time stands; of what was there before there is one a key.
        stands = last | (order < before)
        stands[:-1] |= moments[order[1:]] != moments[order[:-1]]
        begins = np.flatnonzero(first)
        group = (np.cumsum(first) - 1)[stands]
        order = order[stands]
        follows = np.zeros(len(order), np.bool_)
        follows[1:] = group[1:] == group[:-1]
        previous = np.concatenate([order[:1], order[:-1]])
        gone = self._deleted(rows, before)
        given = order >= before
        was = follows & ~gone[previous]
        full = self._image(rows, range(len(rows)))
        same = was & ~gone[order] & full.equal(previous, full, order)
        retracted = given & was & ~same
        inserted = given & ~gone[order] & ~same
        ends = np.flatnonzero(np.append(~follows[1:], True)) if len(order) else begins
        kept = order[ends]
        self._kill(found)
        kept = kept[~gone[kept]]
        self._add(image.take(kept).hash(), tuple(column.take(kept) for column in rows))
        sources = np.concatenate([previous[retracted], order[inserted]])
        at = np.concatenate([moments[order[retracted]], moments[order[inserted]]])
        diffs = np.ones(len(sources), np.int64)
        diffs[: int(retracted.sum())] = -1
        return self._halves(Updates(tuple(column.take(sources) for column in rows), at, diffs))

    def _errors(self, columns: tuple[Column, ...], errors: Mapping[int, str]) -> Column:
        """(n,) what is wrong with the rows; NULL if nothing is."""
        n = len(columns[0])
        keyless = np.zeros(n, np.bool_)
        for at in self._key:
            keyless |= _is_null(columns[at])
        texts = dict(errors)
        names = ", ".join(self._specs[at].name for at in self._key)
        empty = np.ones(n, np.bool_)
        for at in self._others[:-1]:
            empty &= _is_null(columns[at])
        wrong = {f"a row has no key ({names})": keyless}
        for at in self._required:
            wrong[f"column {self._specs[at].name!r} is not nullable, and NULL is there"] = _is_null(
                columns[at]
            )
        for problem, rows in wrong.items():
            for row in np.flatnonzero(rows & ~empty).tolist():
                texts.setdefault(row, f"invalid-data: {problem}")
        if not texts:
            return Column.nulls(ColumnType.TEXT, n)
        return Column.from_pylist(ColumnType.TEXT, [texts.get(at) for at in range(n)])

    def _halves(self, changes: Updates) -> tuple[Updates, Updates]:
        wrong = ~_is_null(changes.columns[-1])
        rows = changes if not wrong.any() else changes.filter(~wrong)
        failed = changes.filter(wrong)
        keys = [scalars_from_column(self._specs[at], failed.columns[at]) for at in (*self._key, -1)]
        for *key, diff in zip(*keys, failed.diffs.tolist(), strict=True):
            self._failed[tuple(key)] += diff
        self._failed = +self._failed
        errors = Updates(failed.columns[-1:], failed.times, failed.diffs)
        return Updates(rows.columns[:-1], rows.times, rows.diffs), errors

    def _image(self, columns: Sequence[Column], positions: Sequence[int] | range) -> RowImage:
        chosen = [columns[at] for at in positions]
        spec = RowSpec(tuple((self._specs[at].type, self._specs[at].nullable) for at in positions))
        return encode(chosen, spec, rows=len(columns[0]))

    def _deleted(self, columns: tuple[Column, ...], before: int) -> Bools:
        """(n,) whether all columns beside the key are NULL; rows that stood before are never that."""
        gone: Any = np.ones(len(columns[0]), np.bool_)
        for at in self._others:
            gone &= _is_null(columns[at])
        gone[:before] = False
        return gone if len(self._others) > 1 else np.zeros(len(gone), np.bool_)

    def _kill(self, found: list[Ints]) -> None:
        for level, rows in zip(self._levels, found, strict=True):
            level.alive[rows] = False

    def _add(self, hashes: Words, columns: tuple[Column, ...]) -> None:
        self._levels.append(_Level(hashes, columns))
        while len(self._levels) > 1 and 2 * len(self._levels[-1]) >= len(self._levels[-2]):
            upper, lower = self._levels.pop(), self._levels.pop()
            rows = [np.flatnonzero(level.alive) for level in (lower, upper)]
            both = [
                Column.concat(spec.type, [lower.columns[at].take(rows[0]), upper.columns[at].take(rows[1])])
                for at, spec in enumerate(self._specs)
            ]
            kept = np.concatenate([lower.hashes[rows[0]], upper.hashes[rows[1]]])
            self._levels.append(_Level(kept, both))
