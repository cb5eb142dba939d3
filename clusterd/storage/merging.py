"""Merging: several parts of a shard become one, so that their number stays small and what cancels out goes.

Parts are of levels by their size, four times as large each; where four are of a level, they become one. So a
shard has some three parts a level, plus those that are so large that they stay, and an update is merged once
a level. Merged parts have their updates consolidated and their times below `since` rounded up to it, which
nobody who keeps the promise of `since` can tell.

Whoever writes a shard merges what is small (appending.py), or, if it has nothing else to do, all (load.py);
`clusterd merge` does it for those who have. Any number of them at any time: the catalog takes the new part
for the old ones in one transaction, or not at all if one of them is gone. Readers see either.

Does not: run by itself; keep less in memory than what it merges at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from clusterd.storage.parts import PartInfo
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates

__all__ = ["LARGEST_BYTES", "LARGEST_INLINE_BYTES", "merge_updates", "plan_merge"]

FAN = 4
_SMALLEST = 64 << 10  # bytes: below this, reading a part costs what opening it does
LARGEST_BYTES = 64 << 20  # beyond this a part stays, for merging four of them takes some seconds
LARGEST_INLINE_BYTES = 1 << 20  # the same, of who has other things to do: some 20 ms


def plan_merge(parts: Sequence[PartInfo], largest_bytes: int) -> list[PartInfo]:
    """Which of a shard's parts to make one; none if it is well as it is. The smallest go first.

    largest_bytes: larger ones stay.
    """
    levels: dict[tuple[int, bool], list[PartInfo]] = defaultdict(list)
    for part in parts:
        if part.nbytes <= largest_bytes:
            levels[_level(part.nbytes), part.is_errors].append(part)
    for _, found in sorted(levels.items()):
        if len(found) >= FAN:
            return _bounded(found, FAN * largest_bytes)
    return []


def _level(nbytes: int) -> int:
    level = 0
    while nbytes > _SMALLEST * FAN**level:
        level += 1
    return level


def _bounded(parts: list[PartInfo], limit_bytes: int) -> list[PartInfo]:
    """The first ones, at least `FAN`, that are together no more than the limit."""
    total = 0
    for at, part in enumerate(parts):
        total += part.nbytes
        if at >= FAN and total > limit_bytes:
            return parts[:at]
    return parts


def merge_updates(pieces: Sequence[Updates], since: Frontier, upper: Frontier) -> Updates:
    """The same collection at every time from `since` on, consolidated, times ascending.

    upper: the shard's; no time is rounded up to it, for what is beyond it is not sealed.
    """
    updates = Updates.concat(pieces)
    least = since if upper.is_empty or since.precedes(upper) else Frontier.at(max(upper.time - 1, 0))
    if not least.is_empty and least.time:
        times = np.maximum(updates.times, np.uint64(least.time))
        updates = Updates(updates.columns, times, updates.diffs)
    return updates.consolidate()
