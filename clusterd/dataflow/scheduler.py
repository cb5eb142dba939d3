"""Scheduler: whose chunk of work is next.

Rounds come decided (sequence.py, or the runtime's core) and get chunks (R11). A chunk ends at the first piece
of work that ends after half of `chunk_s`, so it keeps within `chunk_s` as long as no piece takes the other
half. What has just begun goes before what had a chunk already and is not over: most rounds are over in their
first, and none waits for a hydration of seconds but the one chunk that it is in. Long rounds take turns among
themselves, and one gets its chunk whenever short ones have used half a chunk's time since.

A step ends with a chunk that ends no round: what comes meanwhile waits for one, not for as many as a step has
time for. And one that has completed something ends before it goes on with a long round: what follows from it,
as the round of an importer, has then begun before, and a chain of dataflows waits for that one chunk, not for
one a link.

Does not: read a clock of its own, decide rounds, wait, publish or notify (the caller does, from
`Step.completed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from clusterd.dataflow.graph import Clock, Graph, Progress
from clusterd.dataflow.operator import Round
from clusterd.dataflow.sequence import RoundSequence
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["RoundDone", "RoundFailed", "Scheduler", "SchedulerStatistics", "Step"]


@dataclass(frozen=True, slots=True)
class RoundDone:
    """`dataflow` has finished a round: everything before `upper` is in its outputs."""

    dataflow: Hashable
    upper: Frontier


@dataclass(frozen=True, slots=True)
class RoundFailed:
    """The round of `dataflow` ended by an error that is the dataflow's alone; it is to be removed."""

    dataflow: Hashable
    error: Exception


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did. more: rounds are left that run or wait to begin."""

    completed: tuple[RoundDone, ...]
    more: bool
    failed: tuple[RoundFailed, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """rounds, chunks: ever done; longest_chunk_s: ever."""

    dataflows: int
    running: int
    rounds: int
    chunks: int
    longest_chunk_s: float


@dataclass(slots=True)
class _Standing:
    graph: Graph
    round: Round | None = None
    work: Iterator[None] | None = None


class Scheduler:
    """The dataflows of one worker. chunk_s: the longest a chunk should take.

    contained: errors that end the dataflow whose round raises them (`Step.failed`); any other is raised by
    `step`.
    """

    def __init__(self, *, chunk_s: float, contained: tuple[type[Exception], ...] = ()) -> None:
        self._contained = contained
        self._turn_s = chunk_s / 2
        self._dataflows: dict[Hashable, _Standing] = {}
        self._sequence = RoundSequence()
        self._fresh: deque[Hashable] = deque()  # begun, and had no chunk yet
        self._long: deque[Hashable] = deque()
        self._short_s = 0.0  # used by fresh ones since a long one had a chunk
        self._rounds = 0
        self._chunks = 0
        self._longest_chunk_s = 0.0

    def add(self, dataflow: Hashable, graph: Graph) -> None:
        """Take a dataflow over."""
        if dataflow in self._dataflows:
            raise InvariantViolation("dataflow is here already", dataflow=dataflow)
        self._dataflows[dataflow] = _Standing(graph)

    def begin(self, dataflow: Hashable, round: Round) -> None:
        """Run `round` from now on; the one before must be over."""
        if self._dataflows[dataflow].round is not None:
            raise InvariantViolation("one round at a time", dataflow=dataflow, round=round)
        self._dataflows[dataflow].round = round
        self._sequence.append(dataflow, round)

    def remove(self, dataflow: Hashable) -> None:
        """Drop the dataflow, in the middle of a round if need be, and close its graph."""
        standing = self._dataflows.pop(dataflow)
        self._sequence.forget(dataflow)
        if standing.work is not None:
            (self._long if dataflow in self._long else self._fresh).remove(dataflow)
        standing.work = None
        standing.graph.close()

    def graph(self, dataflow: Hashable) -> Graph:
        return self._dataflows[dataflow].graph

    def running_round(self, dataflow: Hashable) -> Round | None:
        """The round that runs or waits to begin."""
        return self._dataflows[dataflow].round

    def progress(self, dataflow: Hashable) -> Progress | None:
        """How far its round is; None if none runs."""
        return self._dataflows[dataflow].graph.progress()

    def rows_read(self, dataflow: Hashable) -> int:
        """Updates that came from its sources, in the round that runs or ran last."""
        return self._dataflows[dataflow].graph.rows_read

    @property
    def has_work(self) -> bool:
        return bool(self._fresh or self._long or len(self._sequence))

    def step(self, budget_s: float, clock: Clock) -> Step:
        """Run chunks until `budget_s` of `clock` is used, nothing is left, one did not end its round, or a
        long round would be next to what was completed; at least one if any.
        """
        end = clock() + budget_s
        completed: list[RoundDone] = []
        failed: list[RoundFailed] = []
        while self._begin_decided():
            is_fresh = bool(self._fresh) and (not self._long or self._short_s < self._turn_s)
            if not is_fresh and completed:
                break
            dataflow = (self._fresh if is_fresh else self._long).popleft()
            standing = self._dataflows[dataflow]
            began = clock()
            try:
                upper = self._chunk(standing, end, clock)
            except self._contained as error:
                standing.round = standing.work = None
                failed.append(RoundFailed(dataflow, error))
                continue
            now = clock()
            self._short_s = self._short_s + now - began if is_fresh else 0.0
            if upper is None:
                self._long.append(dataflow)
            else:
                completed.append(RoundDone(dataflow, upper))
            if now >= end or upper is None:
                break
        return Step(tuple(completed), self.has_work, tuple(failed))

    def statistics(self) -> SchedulerStatistics:
        running = len(self._fresh) + len(self._long)
        return SchedulerStatistics(
            len(self._dataflows), running, self._rounds, self._chunks, self._longest_chunk_s
        )

    def close(self) -> None:
        """Remove every dataflow."""
        for dataflow in list(self._dataflows):
            self.remove(dataflow)

    def _begin_decided(self) -> bool:
        while (entry := self._sequence.take()) is not None:
            standing = self._dataflows[entry.dataflow]
            standing.work = standing.graph.run(entry.round)
            self._fresh.append(entry.dataflow)
        return bool(self._fresh or self._long)

    def _chunk(self, standing: _Standing, end: float, clock: Clock) -> Frontier | None:
        """Run a chunk; the round's upper if that was its last."""
        assert standing.work is not None
        assert standing.round is not None
        began = clock()
        stop = min(began + self._turn_s, end)
        upper: Frontier | None = standing.round.upper
        for _ in standing.work:
            if clock() >= stop:
                upper = None
                break
        if upper is not None:
            standing.round = standing.work = None
            self._rounds += 1
        self._chunks += 1
        self._longest_chunk_s = max(self._longest_chunk_s, clock() - began)
        return upper
