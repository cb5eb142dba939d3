"""Assembler: the rows of a plan become the bytes of a batch, each moved once to its final place.

A settled plan (batch_plan.py) knows the size and where everything will be; so memory is allocated once, and
filled in pieces, from the runs in place, in whatever encoding (kernels/assemble.py). What does not depend on
the rows is written when the memory is first touched.

Does not: decide which rows, or their order (builder.py, merger.py), or what is stored how (batch_plan.py).
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import layout as layouts
from shm_arrangements.batch import Batch
from shm_arrangements.batch_plan import Plan, children_of
from shm_arrangements.columns import Ints
from shm_arrangements.contracts import Allocation, Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels import assemble as kernels
from shm_arrangements.kernels import nodes as fields
from shm_arrangements.layout import FORMS
from shm_arrangements.rows import Words
from shm_arrangements.schema import CodeKind

_LEAST_COPIED: Final = 1024  # codes that are worth a call of their own to be copied as they are
_UNSIGNED: Final = struct.Struct("<Q")
_SIGNED: Final = struct.Struct("<q")


class Assembler:
    """Fills the batch that a settled plan is of, with the plan's rows in batch order."""

    __slots__ = (
        "_address", "_allocation", "_bytes", "_codes", "_description", "_filled", "_plan", "_times", "layout",
    )  # fmt: skip

    def __init__(self, plan: Plan, allocator: Allocator, *, deferred: bool = False) -> None:
        """deferred: as `Allocator.allocate`; all must be reserved before the first `fill`.

        Raises: what the allocator raises; the plan is as good as before then.
        """
        self._plan = plan
        self.layout = plan.settled
        self._allocation: Allocation = allocator.allocate(self.layout.nbytes, deferred=deferred)
        self._codes: NDArray[np.int64] | None = None
        self._times: NDArray[np.int64] | None = None
        self._bytes: NDArray[np.uint8] | None = None
        self._address = 0
        self._filled = 0
        self._description: Description | None = None

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def reserved(self) -> int:
        """As `Allocation.reserved`."""
        return self._allocation.reserved

    def reserve(self, upto_bytes: int) -> None:
        """As `Allocation.reserve`."""
        self._allocation.reserve(upto_bytes)

    def fill(self, refs: Ints, diffs: Ints, *, codes: Words | None = None) -> None:
        """Write the next rows, refs (m,), in batch order.

        diffs: (m,), not looked at if the plan has one for all. codes: (m,), if they are at hand.
        """
        plan, buffer = self._plan, self._buffer
        lo, hi = self._filled, self._filled + len(refs)
        codes_at, _, times_at, _, diffs_at, _ = self.layout.extents.tolist()
        begin = 0
        if plan.schema.code is not CodeKind.IDENTITY:
            out = layouts.array_at(buffer, codes_at + 8 * lo, 8 * len(refs), np.uint64)
            if codes is None:
                if self._codes is None:
                    self._codes = _word_sources([run.codes for run in plan.runs])
                kernels.fill_words(self._codes, refs, np.uint64(0), out)
            else:
                out[:] = codes
        elif codes is not None and len(refs) >= _LEAST_COPIED and not self.layout.nodes[0, fields.NULLS]:
            layouts.array_at(buffer, codes_at + 8 * lo, 8 * len(refs), np.uint64)[:] = codes
            plan.facts[0, kernels.DONE] = hi
            begin = 1
        if plan.time is None:
            out = layouts.array_at(buffer, times_at + 8 * lo, 8 * len(refs), np.uint64)
            if self._times is None:
                self._times = _word_sources([run.time_cells for run in plan.runs])
            kernels.fill_words(self._times, refs, np.uint64(plan.since), out)
        if plan.diff is None:
            layouts.array_at(buffer, diffs_at + 8 * lo, 8 * len(refs), np.int64)[:] = diffs
        schema = plan.schema
        nested = schema.nested_columns
        sizes = [int(plan.facts[root, kernels.AT]) for root in nested]
        self._fill_nodes(begin, len(schema.columns), refs)
        for root, size in zip(nested, sizes, strict=True):
            self._fill_children(root, self._refs_of(root, refs, lo), size)
        for each in plan.dictionaries:
            each.fill(plan.tables, refs, self.layout.nodes, lo, self._address)
        self._filled = hi

    def write_header(self, description: Description) -> None:
        """After the last `fill`, before any checksum."""
        if self._filled != self.layout.rows:
            raise InvariantViolation("not all rows are there", rows=self._filled, wanted=self.layout.rows)
        self._description = description
        layouts.write_header(self._buffer, self.layout, self._plan.schema, description)

    def checksum(self, start: int, stop: int, state: int) -> int:
        """Continue the checksum over bytes [start, stop), multiples of 8; it begins at CHECKSUM_FROM."""
        return layouts.checksum_words(self._buffer, start, stop, state)

    def seal(self, checksum: int | None) -> Batch:
        """The finished batch. `checksum`: of everything from CHECKSUM_FROM on, or None for none."""
        if checksum is not None:
            layouts.write_checksum(self._buffer, checksum)
        assert self._description is not None
        self._bytes = None
        return Batch(
            self._plan.schema,
            self._description,
            self.layout,
            self._allocation.seal()[: self.layout.nbytes],
            locator=self._allocation.locator,
        )

    def abandon(self) -> None:
        """Give the memory back unsealed."""
        self._bytes = None
        self._allocation.abandon()

    @property
    def _buffer(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            self._bytes = buffer = self._allocation.buffer[: self.layout.nbytes]
            self._address = layouts.address_of(buffer)
            if self._filled == 0:
                self._begin(buffer)
        return self._bytes

    def _begin(self, buffer: NDArray[np.uint8]) -> None:
        """Write what does not depend on the rows."""
        plan = self._plan
        _, _, times_at, _, diffs_at, diffs = self.layout.extents.tolist()
        if plan.time is not None:
            _UNSIGNED.pack_into(buffer.data, times_at, plan.time)
        if plan.diff is not None and diffs:
            _SIGNED.pack_into(buffer.data, diffs_at, plan.diff)
        if plan.begun:  # by another assembler, which was abandoned
            plan.facts[:, kernels.DONE :] = 0
        plan.begun = True
        for each in plan.dictionaries:
            self._fill_nodes(each.node, each.node + 1, each.entries[: each.count])

    def _fill_nodes(self, first: int, last: int, refs: Ints) -> None:
        plan = self._plan
        kernels.fill(
            plan.tables,
            plan.node_rows,
            first,
            last,
            refs,
            self.layout.nodes,
            FORMS,
            self._address,
            plan.facts,
        )

    def _refs_of(self, root: int, refs: Ints, done: int) -> Ints:
        """What of the next rows is to be written of a list or record."""
        encoding = (int(self.layout.nodes[root, fields.TYPE]) >> fields.ENCODING_BIT) & 0xFF
        return refs if encoding == fields.PLAIN else refs[: 1 if done == 0 else 0]

    def _fill_children(self, node: int, refs: Ints, before: int) -> None:
        """before: the elements that a list had before `refs` were filled in."""
        plan = self._plan
        first, count, is_list = children_of(plan.schema, node)
        if count == 0 or len(refs) == 0:
            return
        elements = int(plan.facts[node, kernels.AT]) - before
        parts = plan.child_refs(node, refs, elements if is_list else len(refs))
        for child in range(first, first + count):
            size = int(plan.facts[child, kernels.AT])
            self._fill_nodes(child, child + 1, parts)
            self._fill_children(child, parts, size)


def _word_sources(arrays: list[Words]) -> NDArray[np.int64]:
    """As `fill_words` takes them."""
    return np.array([(layouts.address_of(a), 8 if len(a) > 1 else 0) for a in arrays], np.int64)
