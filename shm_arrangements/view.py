"""ReadView: reads of one index at one time.

A view holds what was published when it was taken, so all its reads are of one exact time and see one state,
and it goes on answering when the index moves, is dropped, or its writer is gone. Any error that the index
holds at that time is the answer of every read (P7), and so is a negative multiplicity where it is read.

Does not: refresh itself (take another), wait, or project, filter and order: numpy does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from shm_arrangements import read
from shm_arrangements.batch import Batch
from shm_arrangements.chain import NO_ROWS, Chain, Stretch
from shm_arrangements.columns import Column, Ints
from shm_arrangements.conversion import column_of_values, key_columns
from shm_arrangements.errors import DataError, NotOrdered
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels import find
from shm_arrangements.kernels.refs import ROW_BITS, ROW_MASK
from shm_arrangements.point import Finder, finder, row_reader
from shm_arrangements.result import Changes, LazyColumns, Result
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import require_readable
from shm_arrangements.types import VARIABLE, ColumnType

_ONE: Final[Ints] = np.ones(1, np.int64)
_FIRST: Final[Ints] = np.zeros(1, np.int64)
for _constant in (_ONE, _FIRST):
    _constant.flags.writeable = False


class ReadView:
    """One index at the time `at`: the chains of its oks and errs, of all shards."""

    __slots__ = (
        "__weakref__", "_chain", "_clean", "_errs", "_find", "_oks", "_readers", "at", "name", "schema",
        "since", "upper",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        schema: ArrangementSchema,
        oks: Sequence[Batch],
        errs: Sequence[Batch],
        at: int,
        *,
        since: Frontier | None = None,
        upper: Frontier | None = None,
    ) -> None:
        """oks, errs: batches whose updates at times up to `at` are all there. name: for messages.

        since, upper: between which they can be told apart; None is what the batches say.
        """
        self.name = name
        self.schema = schema
        self.at = at
        self.since = _since(oks, errs) if since is None else since
        self.upper = _upper(oks, errs) if upper is None else upper
        self._oks = oks
        self._errs = errs
        self._clean = not any(map(len, errs))
        self._chain: Chain | None = None
        self._find: Finder | None = None
        self._readers: list[Callable[[int], tuple[Any, ...]] | None] = []

    def __repr__(self) -> str:
        return f"ReadView({self.name}, at={self.at}, since={self.since}, upper={self.upper})"

    def scan(self) -> Result:
        """All rows. Raises: DataError."""
        self._require_no_errors()
        chain = self._whole()
        if chain is None:
            return self._nothing(None)
        stretches, refs, sums = read.scan_rows(chain, self.at)
        return self._rows(chain, stretches, refs, chain.counts(stretches, sums), None)

    def lookup(self, key: Any) -> Result:
        """The rows of one key: a value, or a tuple of them for a key of several columns. None is NULL.

        Raises: DataError; ValueError if the key does not fit the index's key columns.
        """
        if not self._clean:
            self._require_no_errors()
        find_one = self._find
        if find_one is None:
            find_one = self._prepare()
        found = find_one(key)
        return _OneRow(self, found) if found >= 0 else self.lookup_many([key])

    def only_row(self, key: Any) -> tuple[Any, ...] | None:
        """The one row of a key, as Python values; `()` if it has none; None where `lookup` has to be asked.

        key: as the library gives it. None is said of several rows, of several updates, and wherever it takes
        longer to know. Errors of the index are not looked at.
        """
        find_one = self._find
        if find_one is None:
            find_one = self._prepare()
        found = find_one(key)
        if found >= 0:
            return self._row(found)
        return () if found == find.NONE else None

    def lookup_many(self, keys: Any) -> Result:
        """The rows of each key, in one pass; `key_index` says whose they are. Twice a key is twice its rows.

        keys: a sequence as `lookup` takes them, or for a key of one column a numpy array.
        Raises: as `lookup`.
        """
        self._require_no_errors()
        columns = key_columns(self.schema.key_specs, keys)
        chain = self._whole()
        if chain is None:
            return self._nothing(NO_ROWS)
        refs, counts, index = read.find_rows(chain, self.at, columns)
        return self._rows(chain, (), refs, counts, index)

    def range(
        self,
        lower: Any = None,
        upper: Any = None,
        *,
        include_lower: bool = True,
        include_upper: bool = False,
        nulls: bool = False,
    ) -> Result:
        """The rows whose key lies between two, in the order of the keys; None is no bound.

        lower, upper: a value, or a tuple of the key's first values; only those are compared. nulls: whether,
        without an upper bound, also keys whose first value is NULL; they come last, and `(None,)` is a bound
        of NULL.
        Raises: NotOrdered if the index was not made with ordered keys; DataError; ValueError as `lookup`.
        """
        self._require_no_errors()
        columns, counts = read.range_at(
            self._oks,
            self.at,
            () if lower is None else self._first_columns(lower),
            () if upper is None else self._first_columns(upper),
            include_lower=include_lower,
            include_upper=include_upper,
            nulls=nulls,
            schema=self.schema,
        )
        return self._result(columns, counts)

    def prefix(self, key: Any) -> Result:
        """The rows whose key begins with a value, or a tuple of the first values; in the order of the keys.

        The last value may be the beginning of a text (bytes, JSON); for the text as a whole and no other, use
        `range(key, key, include_upper=True)`.
        Raises: as `range`.
        """
        self._require_no_errors()
        first = self._first_columns(key)
        try:
            columns, counts = read.prefix_at(self._oks, self.at, first, schema=self.schema)
        except NotOrdered:
            if len(first) < len(self.schema.key) or not first or first[-1].type in VARIABLE:
                raise
            return self.lookup(key)
        return self._result(columns, counts)

    def changes(self, t1: int, t2: int | None = None) -> Changes:
        """What happened after `t1` and up to `t2` (None: the view's time), rows and errors.

        Raises: NotReadable if `t1` is before since, NotSealed if `t2` is at or beyond upper; ValueError if
        `t2` is before `t1`.
        """
        last = self.at if t2 is None else t2
        for time in (t1, last):
            require_readable(self.since, self.upper, time)
        if last < t1:
            raise ValueError(f"changes end before they begin: from {t1} to {last}")
        found = read.updates_between(self._oks, t1, last, schema=self.schema)
        errors: tuple[tuple[str, int, int], ...] = ()
        if self._errs:
            updates = read.updates_between(self._errs, t1, last)
            errors = tuple((row[0], time, diff) for row, time, diff in updates.to_rows())
        return Changes(self.schema.columns, found.columns, found.times, found.diffs, errors)

    def _prepare(self) -> Finder:
        chain = self._whole()
        self._find = find_one = finder(chain, self.at) if chain is not None else _in_many
        return find_one

    def _whole(self) -> Chain | None:
        """The batches that count, as kernels read them; None if no update does."""
        if self._chain is None:
            self._chain = read.chain_at(self._oks, 0, self.at)
        return self._chain

    def _row(self, found: int) -> tuple[Any, ...]:
        """The row of a reference, as Python values."""
        chain = self._chain
        assert chain is not None
        if not self._readers:
            self._readers = [None] * len(chain)
        b = found >> ROW_BITS
        reader = self._readers[b]
        if reader is None:
            reader = self._readers[b] = row_reader(self.schema, chain.batches[b])
        return reader(found & ROW_MASK)

    def _first_columns(self, key: Any) -> tuple[Column, ...]:
        """A value, or a tuple of the first values of a key, as columns of one row."""
        specs = self.schema.key_specs
        values = key if isinstance(key, tuple) and not self._is_one_record() else (key,)
        if len(values) > len(specs):
            raise ValueError(f"key {key!r} has more than the index's {len(specs)} values")
        return tuple(column_of_values(spec, [v]) for spec, v in zip(specs, values, strict=False))

    def _is_one_record(self) -> bool:
        specs = self.schema.key_specs
        return len(specs) == 1 and not isinstance(specs[0].type, ColumnType)

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

    def _nothing(self, key_index: Ints | None) -> Result:
        columns = tuple(Column.empty(spec.type) for spec in self.schema.columns)
        return Result(self.schema.columns, columns, NO_ROWS, key_index)

    def _rows(
        self, chain: Chain, stretches: Sequence[Stretch], refs: Ints, counts: Ints, key_index: Ints | None
    ) -> Result:
        """A result whose columns are made when asked for."""
        self._require_positive(counts)
        order = self.schema.row_order
        columns = LazyColumns(len(order), lambda i: chain.column(order[i], stretches, refs))
        return Result(self.schema.columns, columns, counts, key_index)

    def _result(self, columns: tuple[Column, ...], counts: Ints) -> Result:
        self._require_positive(counts)
        return Result(self.schema.columns, columns, counts, None)

    def _require_positive(self, counts: Ints) -> None:
        if len(counts) and (counts[:1] if counts.strides == (0,) else counts).min() < 0:
            raise DataError("invalid-data: negative multiplicity", collection=self.name, at=self.at)


class _OneRow(Result):
    """The one row of one key, by reference."""

    __slots__ = ("_found", "_view")

    def __init__(self, view: ReadView, found: int) -> None:
        self._view = view
        self._found = found

    specs = property(lambda self: self._view.schema.columns)
    counts = property(lambda self: _ONE)
    key_index = property(lambda self: _FIRST)

    @property
    def _columns(self) -> Sequence[Column]:  # type: ignore[override]
        view = self._view
        chain = view._whole()
        assert chain is not None
        stored = chain.gather(np.array([self._found], np.int64))
        return tuple(stored[i] for i in view.schema.row_order)

    def __len__(self) -> int:
        return 1

    def rows(self) -> list[tuple[Any, ...]]:
        return [self._view._row(self._found)]


def _in_many(key: Any) -> int:
    return find.MANY


def _since(oks: Sequence[Batch], errs: Sequence[Batch]) -> Frontier:
    return Frontier.join(*[batch.description.since for batch in (*oks, *errs)])


def _upper(oks: Sequence[Batch], errs: Sequence[Batch]) -> Frontier:
    return Frontier.meet(*[chain[-1].description.upper for chain in (oks, errs) if chain])
