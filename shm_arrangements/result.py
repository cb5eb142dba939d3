"""Result and Changes: what was read, as numpy, Arrow, pandas or Python rows.

Columns are made when they are asked for, each once: a lookup knows where its rows stand, a scan which
stretches it is made of, and neither takes out a value that nobody wants.

Does not: read, or know where the columns come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.columns import Column, Ints
from shm_arrangements.conversion import to_numpy, to_python
from shm_arrangements.errors import AmbiguousName
from shm_arrangements.rows import Words
from shm_arrangements.types import ColumnSpec, ColumnType

_COUNT: Final = ColumnSpec("count", ColumnType.INT64, False)
_TIME: Final = ColumnSpec("time", ColumnType.UINT64, False)
_DIFF: Final = ColumnSpec("diff", ColumnType.INT64, False)


class LazyColumns(Sequence[Column]):
    """Columns in row order; each is made on first access, by its position."""

    __slots__ = ("_made", "_make")

    def __init__(self, count: int, make: Callable[[int], Column]) -> None:
        self._make = make
        self._made: list[Column | None] = [None] * count

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, at: int) -> Column: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Column]: ...
    def __getitem__(self, at: int | slice) -> Column | Sequence[Column]:
        if isinstance(at, slice):
            return tuple(self)[at]
        column = self._made[at]
        if column is None:
            column = self._made[at] = self._make(at)
        return column

    def __iter__(self) -> Iterator[Column]:
        return (self[at] for at in range(len(self._made)))


class Result:
    """Distinct rows, n of them, and how often each occurs.

    counts: (n,) int64, positive; read-only, perhaps one cell shown n times. key_index: (n,) int64 after a
    lookup: which of the keys a row belongs to. Arrays are views of the index's memory where nothing had to be
    computed: read-only, and valid as long as they are kept.
    """

    __slots__ = ("_columns", "counts", "key_index", "specs")

    def __init__(
        self, specs: Sequence[ColumnSpec], columns: Sequence[Column], counts: Ints, key_index: Ints | None
    ) -> None:
        self.specs = tuple(specs)
        self.counts = counts
        self.key_index = key_index
        self._columns = columns

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Every column as `column` gives it. Raises: AmbiguousName if two have one name."""
        return {spec.name: self.column(spec.name) for spec in self.specs}

    def column(self, name: str | int) -> NDArray[Any]:
        """One column as numpy, as conversion.py says by type; with NULLs masked, or None among objects.

        name: or the position, from 0. Raises: KeyError; AmbiguousName (`positions`) if several have the name.
        """
        at = [i for i, spec in enumerate(self.specs) if name in (i, spec.name)]
        if not at:
            raise KeyError(f"no column {name!r}; there are: {', '.join(spec.name for spec in self.specs)}")
        if len(at) > 1:
            raise AmbiguousName(
                "several columns have this name",
                name=name,
                positions=at,
                hint=f"take one by position: [{at[0]}]",
            )
        return to_numpy(self.specs[at[0]], self._columns[at[0]])

    __getitem__ = column

    def __len__(self) -> int:
        """The number of distinct rows."""
        return len(self.counts)

    @property
    def total(self) -> int:
        """The number of rows, each as often as it occurs."""
        return int(self.counts.sum())

    def raw_columns(self) -> tuple[Column, ...]:
        """The columns in row order, as the index stores them."""
        return tuple(self._columns)

    def rows(self) -> list[tuple[Any, ...]]:
        """Every row as a tuple of Python values, as often as it occurs; NULL is None."""
        rows = _tuples(self.specs, self._columns, len(self))
        if (self.counts == 1).all():
            return rows
        return [row for row, count in zip(rows, self.counts.tolist(), strict=True) for _ in range(count)]

    def to_arrow(self, *, counts: bool = False) -> Any:
        """A pyarrow.RecordBatch: each row as often as it occurs, or once with a last column `count`."""
        from shm_arrangements import arrow

        if counts:
            return arrow.to_record_batch(self.specs, self._columns, self.counts)
        return arrow.to_record_batch(self.specs, self.repeated())

    def to_pandas(self, *, counts: bool = False) -> Any:
        """A pandas.DataFrame: each row as often as it occurs, or once with a last column `count`.

        Columns are those of frames.py, without a copy where numpy has none. Raises: NotInstalled.
        """
        from shm_arrangements import frames

        if not counts:
            return frames.to_frame(self.specs, self.repeated(), self.total)
        more = Column(ColumnType.INT64, self.counts)
        return frames.to_frame([*self.specs, _COUNT], [*self._columns, more], len(self))

    def repeated(self) -> tuple[Column, ...]:
        """The columns in row order, each row as often as it occurs."""
        if (self.counts == 1).all():
            return self.raw_columns()
        repeated = np.repeat(np.arange(len(self.counts)), self.counts)
        return tuple(column.take(repeated) for column in self._columns)

    def __repr__(self) -> str:
        return f"Result({', '.join(spec.name for spec in self.specs)}; {len(self)} distinct rows)"


class Changes:
    """What happened to an index after one time and up to another, consolidated: n updates.

    times (n,) uint64, diffs (n,) int64, in no particular order. errors: (message, time, diff) of each change
    of the index's errors; while there are any at a time, they are the answer of every read at it.
    """

    __slots__ = ("_columns", "diffs", "errors", "specs", "times")

    def __init__(
        self,
        specs: Sequence[ColumnSpec],
        columns: Sequence[Column],
        times: Words,
        diffs: Ints,
        errors: tuple[tuple[str, int, int], ...],
    ) -> None:
        self.specs = tuple(specs)
        self.times = times
        self.diffs = diffs
        self.errors = errors
        self._columns = columns

    def column(self, name: str | int) -> NDArray[Any]:
        """As `Result.column`. Raises: KeyError, AmbiguousName."""
        return Result(self.specs, self._columns, self.diffs, None).column(name)

    __getitem__ = column

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Every column as `column` gives it."""
        return Result(self.specs, self._columns, self.diffs, None).columns

    def __len__(self) -> int:
        """The number of updates of rows."""
        return len(self.times)

    def raw_columns(self) -> tuple[Column, ...]:
        """The columns in row order, as the index stores them."""
        return tuple(self._columns)

    def rows(self) -> list[tuple[tuple[Any, ...], int, int]]:
        """(row, time, diff) of every update, in Python values."""
        rows = _tuples(self.specs, self._columns, len(self))
        return list(zip(rows, self.times.tolist(), self.diffs.tolist(), strict=True))

    def to_arrow(self) -> Any:
        """A pyarrow.RecordBatch with two more columns, uint64 `time` and int64 `diff`."""
        from shm_arrangements import arrow

        return arrow.to_record_batch(*self.whole())

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with two more columns, `time` and `diff`. Raises: NotInstalled."""
        from shm_arrangements import frames

        return frames.to_frame(*self.whole(), len(self))

    def whole(self) -> tuple[list[ColumnSpec], list[Column]]:
        """What the columns are called, and they, in row order, with two more: uint64 `time`, int64 `diff`."""
        more = Column(ColumnType.UINT64, self.times), Column(ColumnType.INT64, self.diffs)
        return [*self.specs, _TIME, _DIFF], [*self._columns, *more]

    def __repr__(self) -> str:
        names = ", ".join(spec.name for spec in self.specs)
        return f"Changes({names}; {len(self)} updates, {len(self.errors)} of errors)"


def _tuples(specs: Sequence[ColumnSpec], columns: Sequence[Column], n: int) -> list[tuple[Any, ...]]:
    values = [to_python(spec, column) for spec, column in zip(specs, columns, strict=True)]
    return list(zip(*values, strict=True)) if values else [()] * n
