"""Consolidation of many updates without a long sort: in pieces, by a table.

Few are sorted, which is fast and one piece of work. Of many each block goes into a table of rows by time, and
what is not zero there is given in blocks. The order is any.

Does not: keep anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from clusterd.dataflow.operator import BLOCK_ROWS
from clusterd.operators.growable import Growable
from clusterd.operators.kernels.iterate import gather_changes
from clusterd.operators.row_table import RowTable
from clusterd.operators.time_steps import pausing
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.updates import Updates

__all__ = ["consolidated"]


def consolidated(blocks: Sequence[Updates], spec: RowSpec) -> Iterator[Updates]:
    """The updates of `blocks`, none empty, each row once a time; an empty one ends a piece of work.

    Raises: MultiplicityOverflow.
    """
    rows = sum(map(len, blocks))
    if rows <= BLOCK_ROWS:
        if blocks:
            yield Updates.concat(blocks).consolidate()
        return
    table = RowTable(spec, grouped=True)
    sums, marks = Growable(np.int64), Growable(np.uint8)
    changed = np.empty(rows, np.int64)
    count = 0
    nothing = blocks[0].slice(0, 0)
    for updates in blocks:
        yield from pausing(table.make_room(len(updates)), nothing)
        image = encode(updates.columns, spec, len(updates))
        slots = table.assign(image, updates.times.view(np.int64))
        sums.grow(table.capacity)
        marks.grow(table.capacity)
        count = gather_changes(slots, updates.diffs, sums.a, marks.a, count, changed)
        if count < 0:
            raise MultiplicityOverflow("a multiplicity in a recursion leaves 64 bits")
        yield nothing
    for start in range(0, count, BLOCK_ROWS):
        slots = changed[start : min(start + BLOCK_ROWS, count)]
        slots = slots[sums.a.take(slots) != 0]
        times = table.groups(slots).view(np.uint64)
        yield Updates(table.columns(slots), times, sums.a.take(slots))
