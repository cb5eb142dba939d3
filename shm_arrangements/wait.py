"""Waiting until publications are sealed beyond a time: asleep, and awake only when their writers ring.

No ring is missed: the bell is read first, then page and cell, and sleep ends at once if the bell says
something else by then (clock.py). A writer that was killed rings no more, so sleep is cut into slices, and
between them, as after each ring, the instance is asked whether it lives. Who removes the names of a dead
instance rings for it (bells.py), so that normally nobody sleeps to the end of a slice.

Several publications are waited for one after the other, each looked at whenever something wakes: that one of
them ended is noticed by the end of a slice at the latest.

Does not: spin, hold anything back, map a batch.
"""

from __future__ import annotations

import operator
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, SupportsIndex

from shm_arrangements.errors import PublicationClosed, WaitTimeout, WriterGone
from shm_arrangements.frontier import Frontier
from shm_arrangements.instance import LivenessProbe
from shm_arrangements.page_layout import PageStatus
from shm_arrangements.publication import PageReader

SLICE_S: Final = 1.0  # the longest that an instance is dead and nobody notices


@dataclass(frozen=True, slots=True)
class Waited:
    """One publication: the pages of all its halves and shards, and how to ask whether its writer lives."""

    id: str
    pages: Sequence[PageReader]
    probe: LivenessProbe


def wait_sealed(
    waited: Sequence[Waited], time: SupportsIndex, timeout_s: float | None = None
) -> list[Frontier]:
    """Return the upper of each publication once all are beyond `time`. The GIL is released meanwhile.

    timeout_s: None is for ever. Raises: PublicationClosed if one is dropped, or was; WriterGone if the
    instance of one that is not there yet has ended; WaitTimeout; ValueError if `time` is no u64.
    """
    wanted = Frontier.at(operator.index(time)).time
    deadline_s = None if timeout_s is None else clock.monotonic() + timeout_s
    reached: list[Frontier | None] = [None] * len(waited)
    uppers = [Frontier.minimum()] * len(waited)
    while True:
        sleeper: tuple[PageReader, int] | None = None
        for i, one in enumerate(waited):
            if reached[i] is not None:
                continue
            behind, upper = _look(one, wanted)
            uppers[i] = upper
            if behind is None:
                reached[i] = upper
                continue
            if not one.probe.is_alive():
                raise WriterGone("the instance has ended", id=one.id, instance=one.probe.token)
            sleeper = sleeper or behind
        if sleeper is None:
            return [upper for upper in reached if upper is not None]
        slice_s = SLICE_S
        if deadline_s is not None:
            slice_s = min(slice_s, deadline_s - clock.monotonic())
            if slice_s <= 0:
                late = [i for i, upper in enumerate(reached) if upper is None]
                raise WaitTimeout(
                    "not sealed in time", time=wanted, ids=[waited[i].id for i in late],
                    uppers=[uppers[i] for i in late], timeout_s=timeout_s,
                )  # fmt: skip
        page, seen = sleeper
        page.sleep(seen, slice_s)


def _look(one: Waited, time: int) -> tuple[tuple[PageReader, int] | None, Frontier]:
    """A page that is not sealed beyond `time`, if there is one, with its bell from before; and the upper."""
    behind: tuple[PageReader, int] | None = None
    upper = Frontier.empty()
    for page in one.pages:
        seen = page.bell()
        state = page.read()
        if state.status is PageStatus.CLOSED:
            raise PublicationClosed("arrangement was dropped", id=one.id)
        upper = Frontier.meet(upper, state.upper)
        if behind is None and state.upper.less_equal(time):
            behind = page, seen
    return behind, upper
