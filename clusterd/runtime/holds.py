"""How far compaction stays behind what the controller allows, and by whom it is held back (R6).

The gap of a collection is the distance in times from what was allowed to the standing hold: it is 0 where
nobody is behind, and grows while an interactive worker is slow, a peek is parked, or an importer lags. It is
memory that could have been given back, and never an error.

Does not: decide anything.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from clusterd.runtime.collection import Collection
from shm_arrangements.frontier import Frontier

__all__ = ["HoldStatistics", "hold_gap", "hold_statistics"]


class HoldStatistics(msgspec.Struct, frozen=True):
    """held_back: collections whose hold is behind what was allowed; dropped: those among them that may go.

    widest_gap: the greatest gap in times, of those that are not dropped. worker_gaps: of each interactive
    worker, the greatest distance from what was allowed to what it has applied (maintenance only).
    """

    held_back: int
    dropped: int
    widest_gap: int
    worker_gaps: tuple[int, ...]


def hold_gap(collection: Collection) -> int:
    """Times between what was allowed and the hold; 0 of what is dropped, for that has no distance."""
    return _distance(collection.applied, collection.hold)


def hold_statistics(collections: Iterable[Collection]) -> HoldStatistics:
    """Cost: a look at each."""
    behind = [each for each in collections if each.hold.precedes(each.applied)]
    workers = max((len(each.applied_by) for each in behind), default=0)
    return HoldStatistics(
        len(behind),
        sum(each.applied.is_empty for each in behind),
        max(map(hold_gap, behind), default=0),
        tuple(
            max(_distance(each.applied, each.applied_by[n]) for each in behind if each.applied_by)
            for n in range(workers)
        ),
    )


def _distance(allowed: Frontier, reached: Frontier) -> int:
    return 0 if allowed.is_empty or reached.is_empty else max(allowed.time - reached.time, 0)
