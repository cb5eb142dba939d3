"""The sequence of rounds: which dataflow advances to where, in one order for all workers.

Worker 0 decides each round `(dataflow, upper)` and appends it; every worker runs the rounds of the sequence
in that order, so that the exchange messages of a round meet their counterparts (architecture, N > 1). Uppers
are decided from worker 0's view of the inputs; another worker that has not seen as much yet waits, it never
decides. At N = 1 the one worker appends and runs.

`plan_upper` says how far a dataflow may go: as far as its inputs, in one round, however many times that is.

Does not: run rounds (scheduler.py), carry the sequence to other workers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from clusterd.dataflow.operator import Round
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["RoundEntry", "RoundSequence", "plan_upper"]


@dataclass(frozen=True, slots=True)
class RoundEntry:
    """`number` counts rounds, the same on all workers."""

    number: int
    dataflow: Hashable
    round: Round


def plan_upper(inputs: Frontier, done: Frontier, as_of: int, until: int | None) -> Frontier | None:
    """The upper of the next round of a dataflow, or None if there is none to run yet.

    inputs: the meet of its inputs. done: the upper of its last round, the minimum before the first.
    Nothing runs before the inputs are beyond `as_of`, since the first round rounds times up to it. Where they
    reach `until` the upper is empty: nothing can come any more.
    """
    if inputs.less_equal(as_of) or done.is_empty:
        return None
    reached = until is not None and not inputs.less_equal(until - 1)
    upper = Frontier.empty() if reached else inputs
    return upper if done.precedes(upper) else None


class RoundSequence:
    """Rounds that were decided and have not begun, in order; at most one a dataflow."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, RoundEntry] = {}  # by dataflow
        self._next = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, dataflow: Hashable, round: Round) -> RoundEntry:
        """Decide a round. Worker 0 alone."""
        if dataflow in self._waiting:
            raise InvariantViolation("a dataflow has one round in waiting", dataflow=dataflow, round=round)
        entry = RoundEntry(self._next, dataflow, round)
        self._next += 1
        self._waiting[dataflow] = entry
        return entry

    def take(self) -> RoundEntry | None:
        """The next round to begin."""
        return self._waiting.pop(next(iter(self._waiting))) if self._waiting else None

    def forget(self, dataflow: Hashable) -> None:
        """The dataflow is gone: so is its round."""
        self._waiting.pop(dataflow, None)
