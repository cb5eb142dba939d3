"""ReadView and Result: reads of one index at one time, as numpy, Arrow or Python rows.

A view holds what was published when it was taken, so all its reads are of one exact time and see one state,
and it goes on answering when the index moves, is dropped, or its writer is gone. Any error that the index
holds at that time is the answer of every read (P7), and so is a negative multiplicity where it is read.

Does not: refresh itself (take another), wait, or project, filter and order: numpy does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import read
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column, Ints
from shm_arrangements.conversion import key_columns, to_numpy, to_python
from shm_arrangements.errors import DataError
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec


class Result:
    """Distinct rows, n of them, and how often each occurs.

    counts: (n,) int64, positive. key_index: (n,) int64 after a lookup: which of the keys a row belongs to.
    Arrays are views of the index's memory where nothing had to be computed: read-only, and valid as long as
    they are kept.
    """

    __slots__ = ("_columns", "counts", "key_index", "specs")

    def __init__(
        self, specs: Sequence[ColumnSpec], columns: tuple[Column, ...], counts: Ints, key_index: Ints | None
    ) -> None:
        self.specs = tuple(specs)
        self.counts = counts
        self.key_index = key_index
        self._columns = columns

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Every column as `column` gives it."""
        return {
            spec.name: to_numpy(spec, column) for spec, column in zip(self.specs, self._columns, strict=True)
        }

    def column(self, name: str) -> NDArray[Any]:
        """One column as numpy, as conversion.py says by type; with NULLs masked, or None among objects.

        Raises: KeyError.
        """
        for spec, column in zip(self.specs, self._columns, strict=True):
            if spec.name == name:
                return to_numpy(spec, column)
        raise KeyError(f"no column {name!r}; there are: {', '.join(spec.name for spec in self.specs)}")

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
        return self._columns

    def rows(self) -> list[tuple[Any, ...]]:
        """Every row as a tuple of Python values, as often as it occurs; NULL is None."""
        values = [to_python(*pair) for pair in zip(self.specs, self._columns, strict=True)]
        rows = list(zip(*values, strict=True)) if values else [()] * len(self.counts)
        if (self.counts == 1).all():
            return rows
        return [row for row, count in zip(rows, self.counts.tolist(), strict=True) for _ in range(count)]

    def to_arrow(self, *, counts: bool = False) -> Any:
        """A pyarrow.RecordBatch: each row as often as it occurs, or once with a last column `count`."""
        from shm_arrangements import arrow

        if counts:
            return arrow.to_record_batch(self.specs, self._columns, self.counts)
        columns = self._columns
        if not (self.counts == 1).all():
            repeated = np.repeat(np.arange(len(self.counts)), self.counts)
            columns = tuple(column.take(repeated) for column in columns)
        return arrow.to_record_batch(self.specs, columns)

    def __repr__(self) -> str:
        return f"Result({', '.join(spec.name for spec in self.specs)}; {len(self)} distinct rows)"


class ReadView:
    """One index at the time `at`: the chains of its oks and errs, of all shards."""

    __slots__ = ("__weakref__", "_clean", "_errs", "_oks", "at", "name", "schema")

    def __init__(
        self, name: str, schema: ArrangementSchema, oks: Sequence[Batch], errs: Sequence[Batch], at: int
    ) -> None:
        """oks, errs: batches whose updates at times up to `at` are all there. name: for messages."""
        self.name = name
        self.schema = schema
        self.at = at
        self._oks = oks
        self._errs = errs
        self._clean = not any(map(len, errs))

    def scan(self) -> Result:
        """All rows. Raises: DataError."""
        self._require_no_errors()
        columns, counts = read.scan_at(self._oks, self.at, schema=self.schema)
        return self._result(columns, counts, None)

    def lookup(self, key: Any) -> Result:
        """The rows of one key: a value, or a tuple of them for a key of several columns. None is NULL.

        Raises: DataError; ValueError if the key does not fit the index's key columns.
        """
        return self.lookup_many([key])

    def lookup_many(self, keys: Any) -> Result:
        """The rows of each key, in one pass; `key_index` says whose they are. Twice a key is twice its rows.

        keys: a sequence as `lookup` takes them, or for a key of one column a numpy array.
        Raises: as `lookup`.
        """
        self._require_no_errors()
        columns = key_columns(self.schema.key_specs, keys)
        found, counts, index = read.lookup_at(self._oks, self.at, columns, schema=self.schema)
        return self._result(found, counts, index)

    def _require_no_errors(self) -> None:
        if self._clean:
            return
        columns, counts = read.scan_at(self._errs, self.at)
        if len(counts):
            errors = columns[0].take(np.flatnonzero(counts > 0)).to_pylist()
            if not errors:
                raise DataError("invalid-data: an error retracted more often than made", collection=self.name)
            raise DataError(errors[0], collection=self.name, at=self.at, errors=len(errors))
        self._clean = True

    def _result(self, columns: tuple[Column, ...], counts: Ints, key_index: Ints | None) -> Result:
        if len(counts) and counts.min() < 0:
            raise DataError("invalid-data: negative multiplicity", collection=self.name, at=self.at)
        return Result(self.schema.columns, columns, counts, key_index)
