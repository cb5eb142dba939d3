"""The updates that a round streams into an operator, sorted into a batch, in pieces.

Blocks are kept as they come. At the end of the round a small lot is built at once; a large one is cut by the
first bits of its codes, each part sorted on its own and in a piece of work of its own, and the parts, which
follow each other in the batch's order, are moved to their places. So nothing but the copying grows with the
round, and that is cut too. A lot of one single code is not cut.

If the sum of a row's diffs at one time leaves 64 bits, the lot is built as several batches instead: what
reads them adds up in wider numbers, or judges each for itself.

Does not: keep batches, or decide their compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.batch import Batch
from shm_arrangements.builder import Assembler, HeapAllocator, build_batch, text_bytes_of
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.updates import Updates

__all__ = ["arrange"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_PIECE = 131_072  # updates sorted at once: about 20 ms


class _Run:
    """Columns in stored order, unsorted; what the assembler takes rows from."""

    def __init__(self, codes: Words, columns: tuple[Column, ...], times: Words) -> None:
        self.codes, self.columns, self.times = codes, columns, times


def arrange(
    blocks: Sequence[Updates], schema: ArrangementSchema, description: Description, piece: int = _PIECE
) -> Iterator[Batch | None]:
    """Gives None after each piece of work, and then the batches: one, or none if nothing is left."""
    total = sum(map(len, blocks))
    try:
        if total > piece:
            yield from _in_pieces(blocks, schema, description, total, piece)
            return
        if total:
            batch = build_batch(Updates.concat(blocks), schema, description, HeapAllocator())
            if len(batch):
                yield batch
    except MultiplicityOverflow:
        yield from _halves(Updates.concat(blocks), schema, description)


def _halves(updates: Updates, schema: ArrangementSchema, description: Description) -> Iterator[Batch | None]:
    """Batches of ever smaller parts, for updates that cannot be summed in one."""
    middle = len(updates) // 2
    for lo, hi in ((0, middle), (middle, len(updates))):
        part = updates.slice(lo, hi)
        try:
            batch = build_batch(part, schema, description, HeapAllocator())
        except MultiplicityOverflow:
            yield from _halves(part, schema, description)
        else:
            if len(batch):
                yield batch


def _in_pieces(
    blocks: Sequence[Updates], schema: ArrangementSchema, description: Description, total: int, piece: int
) -> Iterator[Batch | None]:
    spec = RowSpec.of(schema.stored)
    keys = len(schema.key)
    codes: Words = np.empty(total, np.uint64)
    at = 0
    for block in blocks:
        image = encode([block.columns[i] for i in schema.key], spec.prefix(keys), len(block))
        codes[at : at + len(block)] = image.hash()
        at += len(block)
        yield None
    columns = []
    for i in schema.stored_order:
        columns.append(Column.concat(schema.columns[i].type, [block.columns[i] for block in blocks]))
        yield None
    times: Words = np.concatenate([block.times for block in blocks])
    diffs: Ints = np.concatenate([block.diffs for block in blocks])
    yield None
    run = _Run(codes, tuple(columns), times)
    bits = min(16, max(1, (4 * total // piece).bit_length()))
    parts = (codes >> np.uint64(64 - bits)).astype(np.uint16)
    order = np.argsort(parts, kind="stable").astype(np.int64, copy=False)
    ends = np.cumsum(np.bincount(parts, minlength=1 << bits))
    yield None
    rows, sums = [], []
    lo = 0
    for k, hi in enumerate(ends.tolist()):
        # Parts are gathered until the next would make the piece too large.
        if hi == lo or (k + 1 < len(ends) and int(ends[k + 1]) - lo <= piece):
            continue
        mine = order[lo:hi]
        image = encode([c.take(mine) for c in columns], spec, len(mine))
        places = image.sort_order(codes.take(mine), times.take(mine))
        kept, added = image.consolidate(places, diffs.take(mine), times.take(mine))
        rows.append(mine.take(kept))
        sums.append(added)
        lo = hi
        yield None
    every = np.concatenate(rows)
    if len(every) == 0:
        return
    text_bytes = text_bytes_of(run, run, every)
    assembler = Assembler(schema, run, run, every, np.concatenate(sums), text_bytes, 0, HeapAllocator())
    for lo in range(0, len(every), piece):
        assembler.fill(lo, min(lo + piece, len(every)))
        yield None
    assembler.write_header(description)
    yield assembler.seal(None)
