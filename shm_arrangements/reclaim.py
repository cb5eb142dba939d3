"""Reclaim: when the places of superseded batches are freed.

A batch is superseded by the first turn of a page that names it no more. Its place is freed (a segment of its
own loses its name, an arena counts dead bytes) no sooner than `grace_generations` turns and `grace_s` seconds
later: a reader that copied an older slot then has either attached all it names, or finds a name gone and the
page turned. The grace only makes that second case rare; no answer depends on it, and no reader is ever waited
for. So the seconds are cut short where they would cost much memory: of what waits, no more is kept than an
eighth of what is live (or `LEAST_KEPT_BYTES`), the newest. An arena goes with the last of its batches: after
the grace of every page that named one of them.

An idle writer makes no turns, so it may repeat the last one until the first condition holds.

Does not: read a clock (`now_s` is given), free memory (the last mapping does), or know who reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.names import Locator
from shm_arrangements.publication import PublicationPage

GRACE_GENERATIONS: Final = 2
GRACE_S: Final = 0.05
FREED_BYTES: Final = 4 << 20  # in one call, if more is due: to give up memory costs 0.2 ms a MB
LEAST_KEPT_BYTES: Final = 256 << 10  # less is not worth a retry


@dataclass(frozen=True, slots=True)
class Superseded:
    """A batch of `nbytes` that the page names no more since turn `generation`, as was noticed at `at_s`."""

    locator: Locator
    nbytes: int
    generation: int
    at_s: float


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """turns: how often to repeat the last turn first; due_s: when to plan again, None if nothing is kept."""

    turns: int
    free: tuple[Superseded, ...]
    keep: tuple[Superseded, ...]
    due_s: float | None


def plan_reclaim(
    superseded: Iterable[Superseded],
    *,
    generation: int,
    now_s: float,
    grace_generations: int,
    grace_s: float,
    keep_bytes: int,
) -> ReclaimPlan:
    """Decide, for a page at `generation`, which places may be freed; pure.

    superseded: oldest first. keep_bytes: how much may be kept for the seconds' sake.
    What is old enough in time is made old enough in turns, by `turns` more of them.
    """
    free: list[Superseded] = []
    keep: list[Superseded] = []
    for one in reversed(tuple(superseded)):
        keep_bytes -= one.nbytes
        (free if one.at_s + grace_s <= now_s or keep_bytes < 0 else keep).append(one)
    free.reverse()
    keep.reverse()
    turns = max((one.generation + grace_generations - generation for one in free), default=0)
    due_s = min((one.at_s + grace_s for one in keep), default=None)
    return ReclaimPlan(max(turns, 0), tuple(free), tuple(keep), due_s)


class Reclaimer:
    """Carries the plan out for one page."""

    __slots__ = ("_allocator", "_noticed", "_waiting")

    def __init__(self, allocator: SegmentAllocator) -> None:
        """allocator: the one that the superseded batches are from."""
        self._allocator = allocator
        self._noticed: list[tuple[Locator, int, int]] = []
        self._waiting: tuple[Superseded, ...] = ()

    def __len__(self) -> int:
        return len(self._noticed) + len(self._waiting)

    def supersede(self, places: Iterable[tuple[Locator, int]], generation: int) -> None:
        """Note the places, and their bytes, that turn `generation` names no more.

        The grace begins at the next `run`.
        """
        self._noticed += [(locator, nbytes, generation) for locator, nbytes in places]

    def run(self, page: PublicationPage, now_s: float) -> float | None:
        """Free the places that are due; return when the next are, or None.

        now_s: seconds of a monotonic clock. May turn the page again; nobody need be told.
        """
        self._waiting += tuple(Superseded(*noticed, now_s) for noticed in self._noticed)
        self._noticed.clear()
        if not self._waiting:
            return None
        plan = plan_reclaim(
            self._waiting,
            generation=page.state.generation,
            now_s=now_s,
            grace_generations=GRACE_GENERATIONS,
            grace_s=GRACE_S,
            keep_bytes=max(sum(entry.nbytes for entry in page.state.chain) // 8, LEAST_KEPT_BYTES),
        )
        for _ in range(plan.turns):
            page.again()
        least = sum(one.nbytes for one in self._waiting) // 4  # so that less is left than three calls bring
        freed = _leading(plan.free, max(FREED_BYTES, least))
        self._free(plan.free[:freed], plan.free[freed:] + plan.keep)
        return plan.due_s if freed == len(plan.free) else now_s

    def finish(self) -> None:
        """Free all places at once: the page is closed, and whoever retries will find it so."""
        noticed = tuple(Superseded(*noticed, 0.0) for noticed in self._noticed)
        self._noticed.clear()
        self._free(self._waiting + noticed, ())
        self._allocator.trim()

    def _free(self, due: tuple[Superseded, ...], keep: tuple[Superseded, ...]) -> None:
        """Free what is due; what could not be is tried again."""
        freed = 0
        try:
            for one in due:
                self._allocator.free(one.locator)
                freed += 1
        finally:
            self._waiting = due[freed:] + keep


def _leading(due: tuple[Superseded, ...], nbytes: int) -> int:
    """How many of them to free at once: of so many bytes, but one at least."""
    count = 0
    for one in due:
        nbytes -= one.nbytes
        if nbytes < 0 and count:
            break
        count += 1
    return count
