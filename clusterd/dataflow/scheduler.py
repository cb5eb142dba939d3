"""Scheduler: whose chunk of work is next.

A dataflow has a round to run when its inputs have moved beyond what it has done. Rounds that run take turns:
each gets a chunk, so a hydration of seconds does not make every other dataflow stale, and after each chunk
the caller gets a chance to read its pipe (R11). A chunk ends at the first piece of work that ends after half
of `chunk_s`, so it keeps within `chunk_s` as long as no piece takes the other half.

Dataflows are looked at only when something they read is said to have moved (`moved`), by the caller for
shards, by the scheduler itself for what other dataflows of the process write; so idle ones cost nothing.

Does not: read a clock of its own, wait, publish or notify (the caller does, from `Step.completed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field

from clusterd.dataflow.graph import Clock, Graph
from clusterd.dataflow.operator import Round
from clusterd.dataflow.sequence import RoundSequence, plan_upper
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["RoundDone", "Scheduler", "SchedulerStatistics", "Step"]


@dataclass(frozen=True, slots=True)
class RoundDone:
    """`dataflow` has finished a round: everything before `upper` is in its outputs."""

    dataflow: Hashable
    upper: Frontier


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did. more: there is work left that needs no news."""

    completed: tuple[RoundDone, ...]
    more: bool


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
    as_of: int
    until: int | None
    reads: frozenset[Hashable]
    writes: frozenset[Hashable]
    upper: Frontier = field(default_factory=Frontier.minimum)
    is_scheduled: bool = False
    round: Round | None = None
    work: Iterator[None] | None = None


class Scheduler:
    """The dataflows of one worker. chunk_s: the longest a chunk should take."""

    def __init__(self, *, chunk_s: float) -> None:
        self._turn_s = chunk_s / 2
        self._dataflows: dict[Hashable, _Standing] = {}
        self._readers: dict[Hashable, set[Hashable]] = {}
        self._sequence = RoundSequence()
        self._moved: dict[Hashable, None] = {}  # dataflows to look at, in order
        self._running: deque[Hashable] = deque()
        self._rounds = 0
        self._chunks = 0
        self._longest_chunk_s = 0.0

    def add(
        self,
        dataflow: Hashable,
        graph: Graph,
        *,
        as_of: int,
        until: int | None,
        reads: Collection[Hashable],
        writes: Collection[Hashable],
    ) -> None:
        """Take a dataflow over, suspended. reads, writes: names of its inputs and outputs, for `moved`."""
        if dataflow in self._dataflows:
            raise InvariantViolation("dataflow is scheduled already", dataflow=dataflow)
        standing = _Standing(graph, as_of, until, frozenset(reads), frozenset(writes))
        self._dataflows[dataflow] = standing
        for name in standing.reads:
            self._readers.setdefault(name, set()).add(dataflow)

    def schedule(self, dataflow: Hashable) -> None:
        """Permission to compute. Idempotent."""
        self._dataflows[dataflow].is_scheduled = True
        self._moved[dataflow] = None

    def remove(self, dataflow: Hashable) -> None:
        """Drop the dataflow, in the middle of a round if need be, and close its graph."""
        standing = self._dataflows.pop(dataflow)
        for name in standing.reads:
            readers = self._readers[name]
            readers.discard(dataflow)
            if not readers:
                del self._readers[name]
        self._sequence.forget(dataflow)
        self._moved.pop(dataflow, None)
        if standing.work is not None:
            self._running.remove(dataflow)
        standing.work = None
        standing.graph.close()

    def moved(self, name: Hashable) -> None:
        """Input `name` may have moved: look again at who reads it."""
        for dataflow in self._readers.get(name, ()):
            self._moved[dataflow] = None

    def upper(self, dataflow: Hashable) -> Frontier:
        """Up to where the dataflow has computed: the upper of its last round, the minimum before."""
        return self._dataflows[dataflow].upper

    def running_round(self, dataflow: Hashable) -> Round | None:
        return self._dataflows[dataflow].round

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._running or self._moved or len(self._sequence))

    def step(self, budget_s: float, clock: Clock) -> Step:
        """Run chunks, at least one if there is work, until `budget_s` of `clock` is used or nothing is left."""
        end = clock() + budget_s
        completed: list[RoundDone] = []
        while self._begin():
            dataflow = self._running.popleft()
            done = self._chunk(self._dataflows[dataflow], end, clock)
            if done is None:
                self._running.append(dataflow)
            else:
                completed.append(RoundDone(dataflow, done))
                self._complete(dataflow, done)
            if clock() >= end:
                break
        return Step(tuple(completed), self.has_work)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            len(self._dataflows), len(self._running), self._rounds, self._chunks, self._longest_chunk_s
        )

    def _begin(self) -> bool:
        """Decide and begin the rounds that can be; whether any runs."""
        for dataflow in self._moved:
            standing = self._dataflows[dataflow]
            # A dataflow in a round is looked at again when it ends.
            if standing.is_scheduled and standing.work is None and dataflow not in self._sequence:
                upper = plan_upper(standing.graph.frontier, standing.upper, standing.as_of, standing.until)
                if upper is not None:
                    self._sequence.append(dataflow, upper)
        self._moved.clear()
        while (entry := self._sequence.take()) is not None:
            standing = self._dataflows[entry.dataflow]
            standing.round = Round(standing.upper.time, entry.upper, standing.as_of, standing.until)
            standing.work = standing.graph.run(standing.round)
            self._running.append(entry.dataflow)
        return bool(self._running)

    def _chunk(self, standing: _Standing, end: float, clock: Clock) -> Frontier | None:
        """Run a chunk; the upper if the round is over."""
        assert standing.work is not None
        assert standing.round is not None
        began = clock()
        stop = min(began + self._turn_s, end)
        upper: Frontier | None = standing.round.upper
        for _ in standing.work:
            if clock() >= stop:
                upper = None
                break
        self._chunks += 1
        self._longest_chunk_s = max(self._longest_chunk_s, clock() - began)
        return upper

    def _complete(self, dataflow: Hashable, upper: Frontier) -> None:
        standing = self._dataflows[dataflow]
        standing.upper = upper
        standing.round = standing.work = None
        self._rounds += 1
        self._moved[dataflow] = None
        for name in standing.writes:
            self.moved(name)
