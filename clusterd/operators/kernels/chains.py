"""Chains of a pool: entries of many owners, those of one linked both ways; what is taken out is used again.

An owner is a group, a key or a value; `ends` has its first and last entry, `links` of each entry the one
after it and the one before it, -1 for none. Where an entry belongs the caller has found by walking, so it
says between which two. Adding and removing cost O(1), however long a chain is.

Does not: allocate (the pool has room for what is added), keep an order, or know what an entry is.
"""

from __future__ import annotations

from typing import Any

from shm_arrangements.kernels.jit import inner

# columns of `links`, and of `ends` (by owner)
AFTER, BEFORE = 0, 1
FIRST, LAST = 0, 1
# places in `meta`: how many entries stand in `free`, and how many were ever used
FREE, USED = 0, 1


@inner
def leaves(a: Any, b: Any) -> Any:
    """Whether a + b leaves 64 bits."""
    total = a + b
    return (a >= 0) == (b >= 0) and (total >= 0) != (a >= 0)


@inner
def link(ends: Any, links: Any, free: Any, meta: Any, owner: Any, before: Any, after: Any) -> Any:
    """Put an entry of the pool between two of a chain, -1 for its ends. Returns it."""
    if meta[FREE] > 0:
        meta[FREE] -= 1
        made = free[meta[FREE]]
    else:
        made = meta[USED]
        meta[USED] += 1
    links[made, AFTER] = after
    links[made, BEFORE] = before
    if before >= 0:
        links[before, AFTER] = made
    else:
        ends[owner, FIRST] = made
    if after >= 0:
        links[after, BEFORE] = made
    else:
        ends[owner, LAST] = made
    return made


@inner
def unlink(ends: Any, links: Any, free: Any, meta: Any, owner: Any, entry: Any) -> None:
    """Take an entry out of its chain, back to the pool."""
    after, before = links[entry, AFTER], links[entry, BEFORE]
    if before >= 0:
        links[before, AFTER] = after
    else:
        ends[owner, FIRST] = after
    if after >= 0:
        links[after, BEFORE] = before
    else:
        ends[owner, LAST] = before
    free[meta[FREE]] = entry
    meta[FREE] += 1
