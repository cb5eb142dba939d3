"""Arranging a round: its updates, in whatever blocks they come, become one sorted batch, in pieces.

Blocks are gathered until they fill a run, which is sorted in private memory, and runs of like size are merged
as they come, four at a time, so what cancels is gone early and no piece of work grows with the round (R11).
At the end of the round the runs are merged, smallest first, and the last merge writes straight to the batch's
final memory. A round that fits one run, be it a hydration of a million short rows, is one sort and nothing
else.

Until then a run covers no time: it says `[lower, lower)`, so that any two abut. The batch that comes out says
what the round was.

Does not: keep anything between rounds, insert or publish the batch, choose its memory.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, building
from shm_arrangements.columns import Column, Encoding
from shm_arrangements.contracts import Allocator
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.merger import MAX_SOURCES, Merger
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import AnyType, ListType, RecordType
from shm_arrangements.updates import Updates

__all__ = ["Arranger"]

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields between pieces of work

_RUN_BYTES: Final = 64 << 20  # of updates sorted at once: 2 M of two bigints, and as much again to sort them
_SLICE_ROWS: Final = 65_536  # of one key, sorted at once: some 10 ms
_JOINED: Final = 1 << 18  # values put together at once
_SAMPLED: Final = 1024  # of so many rows one is looked at
_FUEL: Final = 32_768  # updates a piece of merging: some 10 ms
_NO_VALUES: Final = np.zeros(0, np.uint8)
_HEAP: Final = HeapAllocator()
_ANY_TIME: Final = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())
_NOTHING: Final = Description(Frontier.minimum(), Frontier.minimum(), Frontier.minimum())


class Arranger:
    """Collects the updates of a round, columns in row order, for one arrangement."""

    def __init__(self, schema: ArrangementSchema) -> None:
        self._schema = schema
        self._blocks: list[Updates] = []
        self._pending_rows = self._pending_bytes = 0  # of _blocks
        self._runs: list[Batch] = []  # of four in a row the first is at least twice as large as the last
        self._batch: Batch | None = None

    @property
    def rows(self) -> int:
        """Updates held."""
        return self._pending_rows + sum(map(len, self._runs))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._pending_bytes + sum(run.nbytes for run in self._runs)

    def add(self, updates: Updates) -> Iterator[None]:
        """Take some updates; yields between pieces of work."""
        if not len(updates):
            return
        nbytes = updates.nbytes
        # What fills a run waits: if nothing follows, it is the whole round.
        if self._pending_rows and self._pending_bytes + nbytes > _RUN_BYTES:
            yield from self._sort_blocks()
        self._blocks.append(updates)
        self._pending_rows += len(updates)
        self._pending_bytes += nbytes

    def seal(self, description: Description, allocator: Allocator) -> Iterator[None]:
        """Make the batch of everything taken since the last one; yields between pieces. Then `take` it.

        The times of the updates lie in `description`. Raises: what the allocator raises.
        """
        if not self._runs and not self._is_skewed():
            updates = (yield from _joined(self._blocks)) if self._blocks else self._none()
            self._forget_blocks()
            self._batch = yield from building(updates, self._schema, description, allocator)
            return
        if self._pending_rows:
            yield from self._sort_blocks()
            yield
        while len(self._runs) > MAX_SOURCES:
            most = min(MAX_SOURCES, len(self._runs) - MAX_SOURCES + 1)
            yield from self._merge_last(most, _NOTHING, _HEAP)
        # Also if it is one: it still has to move to its final memory.
        yield from self._merge_last(len(self._runs), description, allocator)
        self._batch = self._runs.pop()

    def take(self) -> Batch:
        """The batch that `seal` made."""
        batch, self._batch = self._batch, None
        assert batch is not None
        return batch

    def clear(self) -> None:
        """Forget everything that was taken."""
        self._forget_blocks()
        self._runs = []
        self._batch = None

    def _none(self) -> Updates:
        return Updates.empty([spec.type for spec in self._schema.columns])

    def _forget_blocks(self) -> None:
        self._blocks = []
        self._pending_rows = self._pending_bytes = 0

    def _sort_blocks(self) -> Iterator[None]:
        most = _SLICE_ROWS if self._is_skewed() else self._pending_rows
        blocks = self._blocks
        self._forget_blocks()
        while blocks:
            yield
            ends = np.cumsum([len(block) for block in blocks])
            taken = max(int(np.searchsorted(ends, most, side="right")), 1)
            part = yield from _joined(blocks[:taken])
            blocks = blocks[taken:]
            run = yield from building(part, self._schema, _ANY_TIME, _HEAP)
            self._runs.append(run.with_description(_NOTHING))
            while len(self._runs) >= MAX_SOURCES and len(self._runs[-MAX_SOURCES]) < 2 * len(self._runs[-1]):
                yield
                yield from self._merge_last(MAX_SOURCES, _NOTHING, _HEAP)

    def _is_skewed(self) -> bool:
        """Whether some key seems to have so many of the rows that sorting them is no short piece of work.

        Rows of one key are compared with each other, all at once: then smaller runs are sorted and merged.
        """
        if self._pending_rows <= 2 * _SLICE_ROWS:
            return False
        counts: Counter[int] = Counter()
        for block in self._blocks:
            rows = np.arange(0, len(block), _SAMPLED)
            keys = [block.columns[k].take(rows) for k in self._schema.key]
            counts.update(self._schema.codes_of(keys).tolist() if keys else [0] * len(rows))
        return max(counts.values()) * _SAMPLED > _SLICE_ROWS

    def _merge_last(self, count: int, description: Description, allocator: Allocator) -> Iterator[None]:
        """Put the last `count` runs together; the result covers `description`."""
        lower, since = description.lower, description.since
        older = Description(lower, lower, since)
        runs = self._runs[-count:]
        del self._runs[-count:]
        parts = [run.with_description(older) for run in runs[:-1]]
        merger = Merger((*parts, runs[-1].with_description(description)), since, allocator)
        try:
            merger.work(_FUEL)
            while merger.result() is None:
                yield  # and not once there is a result: it would be left in its memory if this ended here
                merger.work(_FUEL)
        finally:
            merger.abandon()  # no effect on a result
        merged = merger.result()
        assert merged is not None
        self._runs.append(merged)


def _joined(blocks: Sequence[Updates]) -> Steps[Updates]:
    """All of them as one, a few MB at a time: all is fresh pages, which are half of the cost."""
    if len(blocks) <= 2:
        return Updates.concat(blocks)
    rows, columns = sum(map(len, blocks)), []
    for at, column in enumerate(blocks[0].columns):
        joined = yield from _column_in_a_row(column.type, [block.columns[at] for block in blocks])
        columns.append(joined)
    times = yield from _in_a_row((block.times for block in blocks), rows)
    diffs = yield from _in_a_row((block.diffs for block in blocks), rows)
    return Updates(tuple(columns), times, diffs)


def _column_in_a_row(type_: AnyType, parts: Sequence[Column]) -> Steps[Column]:
    """As `Column.concat`; in one piece where values are encoded, or records."""
    if isinstance(type_, RecordType) or any(part.encoding is not Encoding.PLAIN for part in parts):
        yield
        return Column.concat(type_, parts)
    rows, validity = sum(map(len, parts)), None
    if any(part.has_validity for part in parts):
        validity = yield from _in_a_row(map(_known, parts), rows)
    if parts[0].offsets is None:
        values = yield from _in_a_row((part.values for part in parts), rows)
        return Column(type_, values, None, validity)
    spans = [(int(part.offsets[0]), int(part.offsets[-1])) for part in parts if part.offsets is not None]
    ends = np.cumsum([0, *(hi - lo for lo, hi in spans)])
    shifted = (
        part.offsets[1:] + (end - lo)
        for part, end, (lo, _) in zip(parts, ends, spans, strict=False)
        if part.offsets is not None
    )
    offsets = yield from _in_a_row(itertools.chain((np.zeros(1, np.int64),), shifted), rows + 1)
    if isinstance(type_, ListType):
        inside = [part.children[0].slice(lo, hi) for part, (lo, hi) in zip(parts, spans, strict=True)]
        child = yield from _column_in_a_row(type_.element.type, inside)
        return Column(type_, _NO_VALUES, offsets, validity, children=(child,))
    pairs = zip(parts, spans, strict=True)
    data = yield from _in_a_row((part.values[lo:hi] for part, (lo, hi) in pairs), int(ends[-1]))
    return Column(type_, data, offsets, validity)


def _known(column: Column) -> NDArray[np.bool_]:
    return np.ones(len(column), np.bool_) if column.validity is None else column.validity


def _in_a_row(parts: Iterable[NDArray[Any]], rows: int) -> Steps[NDArray[Any]]:
    """At least one part, of `rows` in all."""
    out: NDArray[Any] | None = None
    at = paused = 0
    for part in parts:
        if out is None:
            out = np.empty((rows, *part.shape[1:]), part.dtype)
        out[at : at + len(part)] = part
        at += len(part)
        if at - paused >= _JOINED:
            paused = at
            yield
    assert out is not None
    return out
