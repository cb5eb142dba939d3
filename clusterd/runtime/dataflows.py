"""The dataflows that this process runs: rendered, run in rounds and chunks, closed; and the shards they read.

What a dataflow reads of indexes depends on where it runs (environment.py); shards are read alike.

Does not: decide when a round begins (the core does), read a clock of its own, report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from clusterd.dataflow.graph import Graph, Progress
from clusterd.dataflow.operator import Round
from clusterd.dataflow.scheduler import Scheduler
from clusterd.events import ShardOutOfReach, emit
from clusterd.operators.export_copy_to import ExportCopyTo
from clusterd.operators.export_subscribe import ExportSubscribe
from clusterd.operators.import_source import ImportSource
from clusterd.render.build import build_graph
from clusterd.runtime.copies import tell_copied
from clusterd.runtime.effects import (
    Build,
    Failed,
    PageSeen,
    Progressed,
    RoundDone,
    ShardMoved,
    Stalled,
    StartRound,
    Tell,
)
from clusterd.runtime.environment import Environment, Halves
from clusterd.runtime.frozen import FrozenIndex
from clusterd.runtime.owned import OwnedIndexes
from clusterd.runtime.published import PublishedIndexes
from clusterd.runtime.retries import Retries
from clusterd.runtime.subscriptions import encode_told
from clusterd.runtime.views import Views, stalled
from clusterd.storage.store import Store
from clusterd.storage.tail import ShardTail
from controller_proto.dataflow import (
    TOLD_KINDS,
    DataflowHeader,
    is_one_shot,
)
from controller_proto.errors import Refusal
from shm_arrangements.errors import InvariantViolation, RegistryFull, ShmExhausted
from shm_arrangements.frontier import Frontier

__all__ = ["RESOURCES", "Dataflows", "DataflowsStatistics"]

Clock = Callable[[], float]
RESOURCES = (ShmExhausted, RegistryFull)  # what a machine may run out of
_OUT_OF_REACH = (Refusal, OSError)  # a shard


def _failed(number: int, error: Exception) -> Failed:
    if isinstance(error, Refusal):
        return Failed(number, error.code, error.message, error.hint)
    if isinstance(error, OSError):
        return Failed(number, "limit", f"a shard could not be read: {error}", "see that it can")
    return Failed(number, "limit", str(error), "free shared memory, or ask for less")


class DataflowsStatistics(msgspec.Struct, frozen=True):
    """dataflows: that stand. rounds, ever: each reads once what its imports got since the one before.
    blocks, ever: messages of subscriptions that were encoded, however many receive each.
    """

    dataflows: int
    rounds: int
    blocks: int


@dataclass(slots=True)
class _Running:
    build: Build
    sources: list[tuple[str, ImportSource]] = field(default_factory=list)
    subscription: ExportSubscribe | None = None
    copy: ExportCopyTo | None = None
    frozen: list[tuple[FrozenIndex, Callable[[], Halves]]] = field(default_factory=list)  # not filled yet
    is_running: bool = False
    told_tenths: int | None = None  # of the rows of the round that runs, if it is a first one


class Dataflows:
    """published: where indexes of other processes are read; None in a process that owns all it imports."""

    def __init__(
        self,
        owned: OwnedIndexes,
        published: PublishedIndexes | None,
        store: Store | None,
        *,
        chunk_s: float,
        clock: Clock,
    ) -> None:
        self._owned = owned
        self._published = published
        self._store = store
        self.views = Views(store, clock)
        self._tail: ShardTail | None = None
        self._watched: set[str] = set()
        self._clock = clock
        self.expires_at: int | None = None  # of what is built from now on; a query keeps nothing that could
        self._retries: Retries[str] = Retries()  # of looks at shards
        # A worker of maintenance without memory ends the replica (its exit code says so).
        self._contained = _OUT_OF_REACH if published is None else (*RESOURCES, *_OUT_OF_REACH)
        self._scheduler = Scheduler(chunk_s=chunk_s, contained=self._contained)
        self._running: dict[int, _Running] = {}
        self._telling: deque[tuple[int, Iterator[Tell | RoundDone]]] = deque()
        self._blocks = 0

    def build(self, build: Build) -> Failed | None:
        """Render it. One that can be given up has Failed then; else raises ShmExhausted, RegistryFull,
        Refusal, OSError. Nothing of it is left in either case.
        """
        environment = Environment(self._owned, self._published, self._store, self.views, build)
        try:
            graph = build_graph(
                build.plan,
                environment,
                clock=self._clock,
                subscribed=environment.subscribed,
                view=environment.view,
                copy=environment.copy,
                expires_at=None if is_one_shot(build.header) else self.expires_at,
            )
        except BaseException as error:
            for key in build.exports:
                self._owned.close(key)
                self.views.close(key)
            if isinstance(error, self._ends_alone(build.header)):
                return _failed(build.number, error)
            raise
        self._running[build.number] = _Running(
            build, environment.sources, environment.subscription, environment.copied, environment.frozen
        )
        self._scheduler.add(build.number, graph)
        return None

    def start(self, start: StartRound) -> None:
        """Run the round from now on. No effect if the dataflow could not be built."""
        running = self._running.get(start.number)
        if running is None:
            return
        header = running.build.header
        running.is_running = True
        if start.lower == 0:
            for frozen, halves in running.frozen:
                frozen.fill(*halves())
            running.frozen.clear()
            for key in running.build.exports:
                self._owned.publish(key)
            # A hydration takes long enough for somebody to ask how far it is.
            for name, source in running.sources:
                source.expected_rows = self._expected_rows(name)
            running.told_tenths = -1 if running.sources else None
        self._scheduler.begin(start.number, Round(start.lower, start.upper, header.as_of, header.until))

    def _expected_rows(self, name: str) -> int:
        assert self._store is not None
        shard = self._store.shard(name)
        try:
            with shard.briefly():
                return shard.statistics().updates
        except (Refusal, OSError):  # nobody asks for more than an estimate
            return 0

    def _ends_alone(self, header: DataflowHeader) -> tuple[type[Exception], ...]:
        """Errors that end such a dataflow and nothing else."""
        return _OUT_OF_REACH if _is_maintained(header) else self._contained

    def close(self, number: int) -> None:
        """Drop the graph, in the middle of a round if need be. Its indexes stay."""
        if self._running.pop(number, None) is not None:
            self._scheduler.remove(number)
            self._telling = deque(each for each in self._telling if each[0] != number)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return self._scheduler.has_work

    @property
    def has_told(self) -> bool:
        """Whether there is something to `tell`."""
        return bool(self._telling)

    def tell(self) -> Tell | RoundDone:
        """The next message of what subscriptions tell, or that a round is over that told all (R11)."""
        event = next(self._telling[0][1])
        if isinstance(event, RoundDone):
            self._telling.popleft()
        return event

    def step(self, budget_s: float) -> list[RoundDone | Failed | Progressed | Tell]:
        """Run a chunk or some; the rounds that are over with nothing to tell but what a copy answers, what
        ended alone, and the first rounds that have come another tenth. Raises as `build` does, of what is
        maintained.
        """
        step = self._scheduler.step(budget_s, self._clock)
        done: list[RoundDone | Failed | Progressed | Tell] = []
        for failed in step.failed:
            assert isinstance(failed.dataflow, int)
            running = self._running[failed.dataflow]
            running.is_running = False
            if not isinstance(failed.error, self._ends_alone(running.build.header)):
                raise failed.error
            _forget_frames(failed.error)
            done.append(_failed(failed.dataflow, failed.error))
        for completed in step.completed:
            assert isinstance(completed.dataflow, int)
            running = self._running[completed.dataflow]
            running.is_running = False
            if running.told_tenths is not None:
                running.told_tenths = None
                read = self._scheduler.rows_read(completed.dataflow)
                done.append(Progressed(completed.dataflow, read, read))
            for key in running.build.exports:
                self._owned.moved(key)
            if running.copy is not None:
                done.append(tell_copied(completed.dataflow, running.copy))
            if running.subscription is not None:
                telling = self._tell(completed.dataflow, completed.upper, running.subscription)
                self._telling.append((completed.dataflow, telling))
            else:
                done.append(RoundDone(completed.dataflow, completed.upper))
        done += self._progressed() if step.more else ()
        return done

    def _progressed(self) -> Iterator[Progressed]:
        for number, running in self._running.items():
            if not running.is_running or running.told_tenths is None:
                continue
            progress = self._scheduler.progress(number)
            if progress is None or not progress.rows_expected:
                continue
            tenths = min(10 * progress.rows_done // progress.rows_expected, 9)
            if tenths > running.told_tenths:
                running.told_tenths = tenths
                yield Progressed(number, progress.rows_done, progress.rows_expected)

    def running(self) -> Mapping[int, Build]:
        """The dataflows whose round is not over."""
        return {number: running.build for number, running in self._running.items() if running.is_running}

    def graphs(self) -> Iterator[tuple[Build, Graph]]:
        """Every dataflow that is built, and its graph."""
        for number, running in self._running.items():
            yield running.build, self._scheduler.graph(number)

    def _tell(
        self, number: int, upper: Frontier, subscription: ExportSubscribe
    ) -> Iterator[Tell | RoundDone]:
        """What a round had to tell, encoded, and that it is over."""
        for told in subscription.take():
            lower = Frontier.at(told.lower)
            part: bytes | None = None
            for following in encode_told(subscription.schema, told):
                self._blocks += 1
                if part is not None:
                    yield Tell(number, part, lower, False, lower)
                part = following
            assert part is not None
            yield Tell(number, part, lower, told.upper.is_empty, told.upper)
        yield RoundDone(number, upper, subscription.owes)

    def statistics(self) -> DataflowsStatistics:
        return DataflowsStatistics(len(self._running), self._scheduler.statistics().rounds, self._blocks)

    def progress(self) -> Mapping[int, Progress]:
        """How far the rounds are that run, by dataflow; what has not begun yet is left out."""
        found = {n: self._scheduler.progress(n) for n, running in self._running.items() if running.is_running}
        return {number: progress for number, progress in found.items() if progress is not None}

    # Shards.

    @property
    def store(self) -> Store | None:
        return self._store

    @property
    def tail(self) -> ShardTail | None:
        """Made with the first watch: its descriptor is readable when a watched shard may have moved."""
        return self._tail

    def watch(self, name: str) -> ShardMoved | Stalled | None:
        """Follow a shard: first the watch, then the look, so that nothing is missed between. If it is out of
        reach `look_again` tells when it is not.
        """
        if self._store is None:
            raise InvariantViolation("a shard is read without a data directory", shard=name)
        self._watched.add(name)
        return self._look(name, watch=True)

    def unwatch(self, name: str) -> None:
        self._watched.discard(name)
        self._retries.over(name)
        if self._tail is not None:
            self._tail.unwatch(name)

    def drain_tail(self) -> list[ShardMoved | Stalled]:
        """What the watched shards that may have moved are sealed up to now. If the notices are lost all are
        out of reach, and looked at again until another tail can be made.
        """
        if self._tail is None:
            return []
        try:
            moved = sorted(self._tail.drain())
        except OSError as problem:
            self._tail.close()
            self._tail = None
            lost = [self._out_of_reach(name, problem) for name in sorted(self._watched)]
            return [each for each in lost if each is not None]
        return [seen for name in moved if (seen := self._look(name)) is not None]

    def look_again(self) -> list[ShardMoved | Stalled | PageSeen]:
        """Of the shards that could not be looked at before and may be tried now."""
        due = sorted(self._retries.due(self._clock()))
        seen = [seen for name in due if (seen := self._look(name, watch=True)) is not None]
        return [*seen, *self.views.look_again()]

    @property
    def may_look_again(self) -> bool:
        return self.retry_in_s is not None and self.retry_in_s <= 0

    @property
    def retry_in_s(self) -> float | None:
        """How long until something is to `look_again` at, or a view to write; None if nothing failed."""
        next_s = self._retries.next_s()
        found = [self.views.retry_in_s, None if next_s is None else next_s - self._clock()]
        return min((each for each in found if each is not None), default=None)

    def _look(self, name: str, *, watch: bool = False) -> ShardMoved | Stalled | None:
        """If it is out of reach it is put off; None if that was said already."""
        assert self._store is not None
        try:
            if watch:
                self._follow(name)
            found = self._store.shard(name, briefly=True)
            with found.briefly():
                upper = found.upper
        except (Refusal, OSError) as problem:
            return self._out_of_reach(name, problem)
        self._retries.over(name)
        self.views.moved(name)
        for running in self._running.values():
            for shard, source in running.sources:
                if shard == name:
                    source.frontier = Frontier.join(source.frontier, upper)
        return ShardMoved(name, upper)

    def _follow(self, name: str) -> None:
        """Raises Refusal, OSError."""
        assert self._store is not None
        if self._tail is None:
            self._tail = ShardTail(self._store)
        self._tail.watch(name)

    def _out_of_reach(self, name: str, problem: Refusal | OSError) -> Stalled | None:
        """Put it off; None if that was said already."""
        if not self._retries.failed(name, self._clock()):
            return None
        emit(ShardOutOfReach(shard=name, name="news", problem=str(problem)))
        return stalled(name, name, problem)

    def close_all(self) -> None:
        self._scheduler.close()
        self._running.clear()
        self.views.close_all()
        if self._tail is not None:
            self._tail.close()
        if self._store is not None:
            self._store.close()


def _forget_frames(error: BaseException) -> None:
    """They hold what the dataflow held, and themselves: in a circle, until a collection of garbage."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


def _is_maintained(header: DataflowHeader) -> bool:
    return not is_one_shot(header) and header.exports[0].kind not in TOLD_KINDS
