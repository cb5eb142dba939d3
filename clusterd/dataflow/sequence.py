"""The sequence of rounds: which dataflow advances to where, in one order for all workers.

Worker 0 decides each round `(dataflow, upper)` and appends it; every worker runs the rounds of the sequence
in that order, so that the exchange messages of a round meet their counterparts (architecture, N > 1). Uppers
are decided from worker 0's view of the inputs; another worker that has not seen as much yet waits, it never
decides. At N = 1 the one worker appends and runs.

`plan_upper` says how far a dataflow may go. It takes everything the inputs offer in one round, however many
times that is; it never passes `as_of` by less than a whole hydration, because the first round rounds times up
to `as_of` and so has to reach beyond it; and where the inputs reach `until` the frontier becomes empty, since
nothing can come any more.

Does not: run rounds (scheduler.py), carry the sequence to other workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["RoundEntry", "RoundSequence", "plan_upper"]


@dataclass(frozen=True, slots=True)
class RoundEntry:
    """`number` counts rounds, the same on all workers."""

    number: int
    dataflow: Hashable
    upper: Frontier


def plan_upper(inputs: Frontier, done: Frontier, as_of: int, until: int | None) -> Frontier | None:
    """The upper of the next round of a dataflow, or None if there is none to run yet.

    inputs: the meet of its inputs. done: the upper of its last round, the minimum before the first.
    """
    if inputs.less_equal(as_of) or done.is_empty:
        return None
    upper = inputs
    if until is not None and not inputs.less_equal(until - 1):
        upper = Frontier.empty()
    return upper if done.precedes(upper) else None


class RoundSequence:
    """Rounds that were decided and not begun yet, at most one a dataflow.

    One is enough: as long as it has not begun, there is nothing to tell apart, and what the inputs have
    gained since goes into the round after it.
    """

    def __init__(self) -> None:
        self._waiting: deque[RoundEntry] = deque()
        self._dataflows: set[Hashable] = set()
        self._next = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, dataflow: Hashable) -> bool:
        return dataflow in self._dataflows

    def append(self, dataflow: Hashable, upper: Frontier) -> RoundEntry:
        """Decide a round. Worker 0 alone."""
        if dataflow in self._dataflows:
            raise InvariantViolation("a dataflow has one round in waiting", dataflow=dataflow, upper=upper)
        entry = RoundEntry(self._next, dataflow, upper)
        self._next += 1
        self._dataflows.add(dataflow)
        self._waiting.append(entry)
        return entry

    def take(self) -> RoundEntry | None:
        """The next round to begin."""
        if not self._waiting:
            return None
        entry = self._waiting.popleft()
        self._dataflows.discard(entry.dataflow)
        return entry

    def forget(self, dataflow: Hashable) -> None:
        """The dataflow is gone: so is its round."""
        if dataflow in self._dataflows:
            self._dataflows.discard(dataflow)
            self._waiting = deque(entry for entry in self._waiting if entry.dataflow != dataflow)
