"""Batch: immutable updates of one arrangement over `[lower, upper)`, sorted for reading.

Sorted by (code, key, value, time), where code is a u64 made of the key (schema.py), and consolidated: no zero
diffs, no two updates with the same row and time, but for a sum beyond 64 bits: that stands in parts, all but
one of them 2^63 - 1 or -2^63, and is an error only to who needs the sum. So all updates of a key are
neighbours, found by searching the codes. All arrays are read-only views of one piece of memory, private or
shared, which lives as long as any of them is referred to. A batch without updates owns no memory: it only
says that nothing happened.

Does not: find, merge or consolidate (read.py, merger.py); know segments (`locator` is opaque here).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import layout as layouts
from shm_arrangements.columns import Column, Ints, Table
from shm_arrangements.description import Description
from shm_arrangements.errors import FormatMismatch
from shm_arrangements.rows import Words, encode
from shm_arrangements.schema import ArrangementSchema

if TYPE_CHECKING:
    from shm_arrangements.contracts import Allocator

_NO_CODES: Final[Words] = np.empty(0, np.uint64)
_NO_DIFFS: Final[Ints] = np.empty(0, np.int64)


class Batch:
    """n updates: codes (n,) uint64, columns in STORED order, all read-only.

    time_cells: (n,) uint64, or (1,) if all updates have one time; diff_cells (n,) int64 or (1,) alike.
    """

    __slots__ = (
        "_buffer", "_table", "codes", "columns", "description", "diff_cells", "locator", "schema",
        "time_cells",
    )  # fmt: skip

    def __init__(
        self,
        schema: ArrangementSchema,
        description: Description,
        codes: Words,
        columns: tuple[Column, ...],
        time_cells: Words,
        diff_cells: Ints,
        *,
        locator: Any = None,
        buffer: NDArray[np.uint8] | None = None,
    ) -> None:
        self.schema = schema
        self.description = description
        self.codes = codes
        self.columns = columns
        self.time_cells = time_cells
        self.diff_cells = diff_cells
        self._table: Table | None = None
        self.locator = locator
        self._buffer = buffer

    @classmethod
    def empty(cls, schema: ArrangementSchema, description: Description) -> Batch:
        """No updates, no memory."""
        columns = tuple(Column.empty(c.type) for c in schema.stored)
        return cls(schema, description, _NO_CODES, columns, _NO_CODES, _NO_DIFFS)

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
        layout, written, code = layouts.read_header(buffer)
        found = tuple((c.type, c.nullable) for c in layout.columns)
        wanted = tuple((c.type, c.nullable) for c in schema.stored)
        if found != wanted or layout.key_columns != len(schema.key) or code is not schema.code:
            raise FormatMismatch("batch of another schema", found=found, expected=wanted)
        return cls(
            schema,
            description or written,
            layouts.array_at(buffer, layout.codes, np.uint64),
            tuple(layouts.column_at(buffer, c) for c in layout.columns),
            layouts.array_at(buffer, layout.times, np.uint64),
            layouts.array_at(buffer, layout.diffs, np.int64),
            locator=locator,
            buffer=buffer[: layout.nbytes],
        )

    def with_description(self, description: Description) -> Batch:
        """The same updates under another description; the memory is shared."""
        return Batch(
            self.schema,
            description,
            self.codes,
            self.columns,
            self.time_cells,
            self.diff_cells,
            locator=self.locator,
            buffer=self._buffer,
        )

    def copied(self, allocator: Allocator) -> Batch:
        """The same batch in other memory, byte for byte. Raises: what the allocator raises."""
        if self._buffer is None:
            return self
        allocation = allocator.allocate(self.nbytes)
        allocation.buffer[: self.nbytes] = self._buffer
        return Batch.from_buffer(
            self.schema,
            allocation.seal()[: self.nbytes],
            description=self.description,
            locator=allocation.locator,
        )

    def __len__(self) -> int:
        return len(self.codes)

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
    def table(self) -> Table:
        """The stored columns as kernels see them."""
        if self._table is None:
            self._table = Table(self.columns)
        return self._table

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

    def checksum_holds(self) -> bool:
        """Whether the bytes are what was sealed: reads all of them. True if they carry no checksum."""
        return self._buffer is None or layouts.verify_checksum(self._buffer)

    def validate_state(self) -> None:
        """Check order, consolidation and codes: reads everything. For tests.

        Raises: AssertionError saying what does not hold.
        """
        n = len(self)
        assert all(len(c) == n for c in self.columns), "columns differ in length"
        assert self.diffs.all(), "zero diff"
        if n == 0:
            assert self._buffer is None, "an empty batch owns memory"
            return
        image = encode(self.columns, self.schema.stored_image, rows=n)
        assert (self.schema.codes_of(self.key_columns(), n) == self.codes).all(), (
            "codes are not those of the keys"
        )
        order = image.sort_order(self.codes, self.times)
        assert (order == np.arange(n)).all(), "not sorted"
        _, sums = image.consolidate(order, self.diffs, self.times, split=True)
        assert np.array_equal(sums, self.diffs), "not consolidated"
        upper, since = self.description.upper, self.description.since
        last = int(self.times.max())
        assert upper.is_empty or last < upper.time or last <= since.time, "time beyond upper"

    def __repr__(self) -> str:
        return f"Batch({self.description}, n={len(self)})"


def _cells_at(cells: NDArray[Any], lo: int, hi: int) -> NDArray[Any]:
    if len(cells) != 1:
        return cells[lo:hi]
    out = np.repeat(cells, hi - lo)
    out.flags.writeable = False
    return out
