"""What the cases share: sizes, rows that come and go, S beside each timing, what a probe has kept.

S is the rows/s of numpy's stable argsort on 1 M random u64, measured right before each timing, so that a bad
minute of the machine meets both; a figure is the median of these relations. With other sizes than those of
the bars S is that of as many rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bench.arrangements.common import require, sort_rate
from bench.arrangements.updates import RETRACTED
from bench.dataflows.worker import Changes, Ints
from bench.harness import Recorder, spread
from shm_arrangements.columns import Column
from shm_arrangements.updates import Updates

FULL_ROWS: Final = 1_000_000
SEED: Final = 5


@dataclass(frozen=True)
class Sizes:
    """Everything in proportion to `rows`, which is 1 M where the bars hold."""

    rows: int
    runs: int
    batches: int
    larger: int  # how many times the state, and the change, where that is compared

    @property
    def keys(self) -> int:
        return self.rows // 10

    @property
    def batch(self) -> int:
        return self.rows // 100


@dataclass(frozen=True)
class Bench:
    """What a case is given."""

    recorder: Recorder
    sizes: Sizes

    def sort_rate(self) -> float:
        """S, once, now."""
        return sort_rate(self.sizes.rows)

    def median(
        self, case: str, values: Sequence[float], unit: str, *, bar: float | None = None,
        at_most: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        """Record the median of the runs."""
        self.recorder.record(
            case, statistics.median(values), unit, bar=bar, at_most=at_most, **spread(values), **more
        )

    def rates(
        self, case: str, rates: Sequence[float], sorts: Sequence[float], *, bar: float | None, **more: Any
    ) -> None:
        """Record rows/s, and their relation to the S of the same run."""
        ratios = [rate / sorted_per_s for rate, sorted_per_s in zip(rates, sorts, strict=True)]
        self.median(f"{case}, rate", rates, "rows/s", **more)
        s_rows_per_s = round(statistics.median(sorts))
        self.median(
            f"{case}, rate / S", ratios, "ratio", bar=bar, at_most=False, s_rows_per_s=s_rows_per_s, **more
        )


class Facts:
    """Rows (k, v), k below `keys` and v below `values`, that come and go; `room` more than `rows` at most."""

    def __init__(self, rows: int, keys: int, values: int, room: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._bounds = keys, values
        self._count = rows
        self._columns = tuple(np.empty(rows + room, np.int64) for _ in range(2))
        for column, fresh in zip(self._columns, self._fresh(rows), strict=True):
            column[:rows] = fresh

    def _fresh(self, n: int) -> tuple[Ints, Ints]:
        keys, values = self._bounds
        return self._rng.integers(0, keys, n), self._rng.integers(0, values, n)

    @property
    def live(self) -> tuple[Ints, ...]:
        """The rows that are there now; copies."""
        return tuple(column[: self._count].copy() for column in self._columns)

    def load(self) -> Changes:
        """All of them, as insertions."""
        return self.live, np.ones(self._count, np.int64)

    def batch(self, n: int) -> Changes:
        """n updates in random order, a share of RETRACTED of them retractions of rows that are there."""
        gone = self._rng.choice(self._count, round(n * RETRACTED), replace=False, shuffle=False)
        m = n - len(gone)
        order = self._rng.permutation(n)
        diffs = np.concatenate((np.full(len(gone), -1, np.int64), np.ones(m, np.int64)))
        out = []
        for column, fresh in zip(self._columns, self._fresh(m), strict=True):
            out.append(np.concatenate((column[gone], fresh))[order])
            column[gone] = fresh[: len(gone)]
            column[self._count : self._count + m - len(gone)] = fresh[len(gone) :]
        self._count += m - len(gone)
        return tuple(out), diffs[order]


def consolidated(columns: Sequence[Ints], diffs: Ints) -> tuple[list[Ints], Ints]:
    """The rows whose diffs do not cancel, ascending, and their sums."""
    order = np.lexsort(tuple(reversed(columns)))
    sorted_columns = [column[order] for column in columns]
    differs = np.ones(len(diffs), np.bool_)
    differs[1:] = False
    for column in sorted_columns:
        differs[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(differs)
    sums = np.add.reduceat(diffs[order], starts) if len(starts) else diffs
    kept = starts[sums != 0]
    return [column[kept] for column in sorted_columns], sums[sums != 0]


def gathered(blocks: Sequence[Updates]) -> tuple[list[Ints], Ints]:
    """What a probe has kept, consolidated."""
    whole = Updates.concat(list(blocks))
    return consolidated([_integers(column) for column in whole.columns], whole.diffs)


def _integers(column: Column) -> Ints:
    """The values; those of a numeric must fit."""
    values = column.plain().values
    if values.ndim == 1:
        return values.astype(np.int64)
    low = np.ascontiguousarray(values[:, 0]).view(np.int64)
    require(bool((values[:, 1].view(np.int64) == low >> 63).all()), "a sum of 64 bits")
    return low


def require_same(found: tuple[list[Ints], Ints], wanted: tuple[Sequence[Ints], Ints], what: str) -> None:
    """Both consolidated. Raises: RuntimeError."""
    pairs = zip((*found[0], found[1]), (*wanted[0], wanted[1]), strict=True)
    require(all(np.array_equal(mine, other) for mine, other in pairs), what)
