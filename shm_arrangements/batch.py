"""Batch: immutable updates of one arrangement over `[lower, upper)`, sorted for reading.

Sorted by (code, key, value, time), where code is a u64 made of the key (schema.py), and consolidated: no zero
diffs, no two updates with the same row and time, but for a sum beyond 64 bits: that stands in parts, all but
one of them 2^63 - 1 or -2^63, and is an error only to who needs the sum. So all updates of a key are
neighbours, found by searching the codes. Columns may be encoded, and what all updates have alike, such as one
time, or diffs of 1, is stored once or not at all.

All arrays are read-only views of one piece of memory, private or shared, which lives as long as any of them
is referred to. What is seldom asked for is made when it is. A batch without updates owns no memory: it only
says that nothing happened.

Does not: find, merge or consolidate (read.py, merger.py); know segments (`locator` is opaque here).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import layout as layouts
from shm_arrangements.columns import Column, Encoding, Ints
from shm_arrangements.description import Description
from shm_arrangements.kernels import arrange
from shm_arrangements.layout import BatchLayout
from shm_arrangements.rows import Words
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.table import Table

if TYPE_CHECKING:
    from shm_arrangements.contracts import Allocator

_NO_WORDS: Final[Words] = np.empty(0, np.uint64)
_NO_DIFFS: Final[Ints] = np.empty(0, np.int64)
_ONES: Final[Ints] = np.frombuffer(b"\1" + bytes(7), np.int64)


class Batch:
    """n updates: codes (n,) uint64, columns in STORED order, all read-only.

    time_cells: (n,) uint64, or (1,) if all updates have one time; diff_cells (n,) int64 or (1,) alike.
    """

    __slots__ = (
        "_buffer", "_columns", "_layout", "_table", "codes", "description", "diff_cells", "locator", "schema",
        "time_cells",
    )  # fmt: skip

    def __init__(
        self,
        schema: ArrangementSchema,
        description: Description,
        layout: BatchLayout | None = None,
        buffer: NDArray[np.uint8] | None = None,
        *,
        locator: Any = None,
    ) -> None:
        """layout, buffer: of sealed bytes that are a batch (see `from_buffer`); None if it has no updates."""
        self.schema = schema
        self.description = description
        self.locator = locator
        self._layout = layout
        self._buffer = buffer
        self._columns: tuple[Column, ...] | None = None
        self._table: Table | None = None
        self.codes: Words = _NO_WORDS
        self.time_cells: Words = _NO_WORDS
        self.diff_cells: Ints = _NO_DIFFS
        if layout is not None and buffer is not None:
            codes_at, codes, times_at, times, diffs_at, diffs = layout.extents.tolist()
            self.codes = layouts.array_at(buffer, codes_at, codes, np.uint64)
            self.time_cells = layouts.array_at(buffer, times_at, times, np.uint64)
            self.diff_cells = layouts.array_at(buffer, diffs_at, diffs, np.int64) if diffs else _ONES

    @classmethod
    def empty(cls, schema: ArrangementSchema, description: Description) -> Batch:
        """No updates, no memory."""
        return cls(schema, description)

    @classmethod
    def of_arrays(
        cls,
        schema: ArrangementSchema,
        description: Description,
        codes: Words,
        columns: tuple[Column, ...],
        time_cells: Words,
        diff_cells: Ints,
    ) -> Batch:
        """Of arrays as they are, whether they make sense or not: for tests."""
        batch = cls(schema, description)
        batch._columns, batch._table = columns, Table(columns)
        batch.codes, batch.time_cells, batch.diff_cells = codes, time_cells, diff_cells
        return batch

    @classmethod
    def from_buffer(
        cls,
        schema: ArrangementSchema,
        buffer: NDArray[np.uint8],
        *,
        description: Description | None = None,
        locator: Any = None,
    ) -> Batch:
        """The batch that sealed bytes hold, without a copy. `description` overrides the one written in them.

        Raises: FormatMismatch if the bytes are no batch, or one of another schema.
        """
        layout, written = layouts.read_header(buffer, schema)
        return cls(schema, description or written, layout, buffer[: layout.nbytes], locator=locator)

    def with_description(self, description: Description) -> Batch:
        """The same updates under another description; the memory is shared."""
        other = Batch(self.schema, description, locator=self.locator)
        other._layout, other._buffer = self._layout, self._buffer
        other._columns, other._table = self._columns, self._table
        other.codes, other.time_cells, other.diff_cells = self.codes, self.time_cells, self.diff_cells
        return other

    def copied(self, allocator: Allocator) -> Batch:
        """The same batch in other memory, byte for byte. Raises: what the allocator raises."""
        if self._buffer is None:
            return self
        allocation = allocator.allocate(self.nbytes)
        allocation.buffer[: self.nbytes] = self._buffer
        buffer = allocation.seal()[: self.nbytes]
        return Batch(self.schema, self.description, self._layout, buffer, locator=allocation.locator)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in stored order, zero copy, as they are encoded."""
        if self._columns is None:
            layout, buffer, specs = self._layout, self._buffer, self.schema.stored
            if layout is None or buffer is None:
                self._columns = tuple(Column.empty(spec.type) for spec in specs)
            else:
                self._columns = tuple(
                    layouts.column_at(buffer, layout, i, spec.type) for i, spec in enumerate(specs)
                )
        return self._columns

    @property
    def table(self) -> Table:
        """The columns as kernels see them; its rows are in the order of `schema.nodes`."""
        if self._table is None:
            cells = layouts.describe(self._buffer, self._layout, self.schema)
            self._table = Table.of_cells(cells, [self._buffer])
        return self._table

    @property
    def times(self) -> Words:
        """(n,) the time of each update; if they are one, made on each access."""
        return self.times_at(0, len(self))

    @property
    def diffs(self) -> Ints:
        """(n,) the diff of each update; if they are one, made on each access."""
        return self.diffs_at(0, len(self))

    def times_at(self, lo: int, hi: int) -> Words:
        """`times[lo:hi]`, without more work than that."""
        return _cells_at(self.time_cells, lo, hi)

    def diffs_at(self, lo: int, hi: int) -> Ints:
        """`diffs[lo:hi]`, without more work than that."""
        return _cells_at(self.diff_cells, lo, hi)

    def diffs_of(self, rows: Ints) -> Ints:
        """(m,) the diffs of `rows` (m,)."""
        return (
            self.diff_cells.take(rows) if len(self.diff_cells) > 1 else np.repeat(self.diff_cells, len(rows))
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, header and padding included."""
        return 0 if self._buffer is None else len(self._buffer)

    def row_columns(self) -> tuple[Column, ...]:
        """The columns in row order, zero copy."""
        return tuple(self.columns[i] for i in self.schema.row_order)

    def key_columns(self) -> tuple[Column, ...]:
        """The key columns in key order, zero copy."""
        return self.columns[: len(self.schema.key)]

    def verify(self) -> None:
        """Read everything: that the checksum holds, and that what the columns hold leads nowhere else.

        Bytes that somebody else wrote are safe to read once this returns. Raises: FormatMismatch.
        """
        if self._buffer is not None and self._layout is not None:
            layouts.verify(self._buffer, self._layout)

    def validate_state(self) -> None:
        """Check codes, order, consolidation and encodings: reads everything.

        Raises: FormatMismatch as `verify`; AssertionError saying what else does not hold.
        """
        n = len(self)
        columns = self.columns
        assert all(len(c) == n for c in columns), "columns differ in length"
        if n == 0:
            assert self._buffer is None, "an empty batch owns memory"
            return
        self.verify()
        codes = self.schema.codes_of(self.key_columns(), n)
        assert np.array_equal(codes, self.codes), "codes are not those of the keys"
        if self.schema.code is CodeKind.IDENTITY and self._buffer is not None:
            assert columns[0].encoding is Encoding.PLAIN, "codes are not the key's values"
            assert np.shares_memory(self.codes, columns[0].values), "codes are not the key's values"
        for cells, name in ((self.time_cells, "times"), (self.diff_cells, "diffs")):
            assert len(cells) in (1, n), f"{len(cells)} {name} of {n}"
        assert self.diff_cells.all(), "zero diff"
        state = np.zeros(2, np.int64)
        at = arrange.check_order(
            self.table.cells, len(columns), self.codes, self.time_cells, self.diff_cells, state
        )
        assert at == n, ("not sorted", "not consolidated", "a sum in parts where one would do")[state[0]]
        upper, since = self.description.upper, self.description.since
        last = int(self.time_cells.max())
        assert upper.is_empty or last < upper.time or last <= since.time, "time beyond upper"

    def __repr__(self) -> str:
        return f"Batch({self.description}, n={len(self)})"


def _cells_at(cells: NDArray[Any], lo: int, hi: int) -> NDArray[Any]:
    if len(cells) != 1:
        return cells[lo:hi]
    out = np.repeat(cells, hi - lo)
    out.flags.writeable = False
    return out
