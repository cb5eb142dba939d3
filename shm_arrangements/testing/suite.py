"""TraceTests: what every trace must do, to be subclassed by the tests of each implementation.

A subclass makes a trace and adapts a few calls; the suite drives it through histories and courses beside the
model, and compares every kind of read at every readable time, after every step, with merges in progress and
without. `run_courses` does that for very many courses, each told by a number.

Does not: test durability, publication or concurrency.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Sequence
from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.spine import Spine
from shm_arrangements.testing import strategies
from shm_arrangements.testing.check import check_trace
from shm_arrangements.testing.courses import (
    Compact,
    CompactPhysically,
    Course,
    Event,
    Exert,
    Insert,
    Seal,
    Update,
    course_of,
    random_course,
    smaller,
)
from shm_arrangements.testing.model import Model
from shm_arrangements.updates import Updates

_SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow, HealthCheck.data_too_large],
)


class TraceUnderTest(abc.ABC):
    """One trace, adapted. `close` is called once, whatever happened."""

    can_hold: ClassVar[bool] = False  # whether its user says which batches may be merged

    @abc.abstractmethod
    def insert(self, updates: Updates, upper: Frontier) -> None: ...

    @abc.abstractmethod
    def compact(self, since: Frontier) -> None: ...

    def compact_physically(self, frontier: Frontier) -> None:  # noqa: B027  # most let all batches be merged
        """Let batches that end at or before `frontier` be merged. Called only for a trace made `held`."""

    @abc.abstractmethod
    def exert(self, fuel_updates: int) -> bool: ...

    @abc.abstractmethod
    def batches(self) -> Sequence[Batch]: ...

    def close(self) -> None:  # noqa: B027  # most have nothing to let go of
        """Let go of what the trace holds."""


class HeapTrace(TraceUnderTest):
    """A spine in private memory."""

    can_hold = True

    def __init__(self, schema: ArrangementSchema, *, held: bool = False) -> None:
        self.spine = Spine(schema, HeapAllocator(), physical=Frontier.minimum() if held else None)

    def insert(self, updates: Updates, upper: Frontier) -> None:
        description = Description(self.spine.upper, upper, self.spine.since)
        self.spine.insert(build_batch(updates, self.spine.schema, description, HeapAllocator()))

    def compact(self, since: Frontier) -> None:
        self.spine.set_logical_compaction(since)

    def compact_physically(self, frontier: Frontier) -> None:
        self.spine.set_physical_compaction(frontier)

    def exert(self, fuel_updates: int) -> bool:
        return self.spine.exert(fuel_updates)

    def batches(self) -> Sequence[Batch]:
        return self.spine.batches()


class TraceTests(abc.ABC):
    """Subclass, and name the subclass `Test...`."""

    @abc.abstractmethod
    def make(self, schema: ArrangementSchema, *, held: bool = False) -> TraceUnderTest:
        """A fresh trace; `held`: no batch may be merged but for what `compact_physically` allows."""

    @given(history=strategies.histories())
    @_SETTINGS
    def test_reads_at_every_time_equal_a_fold_from_scratch(self, history: strategies.History) -> None:
        trace = self.make(history.schema)
        try:
            run_history(trace, history)
        finally:
            trace.close()

    @given(draws=st.randoms(use_true_random=False))
    @_SETTINGS
    def test_events_in_any_order_give_what_the_model_gives(self, draws: random.Random) -> None:
        course = random_course(draws)
        trace = self.make(course.schema, held=course.held)
        try:
            run_course(trace, course)
        finally:
            trace.close()


def run_history(trace: TraceUnderTest, history: strategies.History) -> None:
    """Drive `trace` through `history`, comparing it to the model after every step."""
    events: list[Event] = []
    for step in history.steps:
        events += [Insert(step.updates), Seal(step.upper), Compact(step.since), Exert(step.fuel)]
    run_course(trace, Course(history.schema, False, tuple(events)))


def run_course(trace: TraceUnderTest, course: Course) -> None:
    """Drive `trace` through `course`, comparing it to the model whenever its chain is another.

    Moving since alone leaves the chain, and fewer times to read, all compared before.
    """
    schema = course.schema
    types = [spec.type for spec in schema.columns]
    model = Model()
    pending: list[Update] = []
    rows = [row for event in course.events if isinstance(event, Insert) for row, _, _ in event.updates]
    seals: list[int] = []
    since = upper = physical = 0
    compared: Sequence[Batch] = ()
    for event in course.events:
        if isinstance(event, Insert):
            pending += event.updates
            continue
        if isinstance(event, Seal):
            upper = event.upper
            ready = [update for update in pending if update[1] < upper]
            pending = [update for update in pending if update[1] >= upper]
            trace.insert(Updates.from_rows(types, ready), Frontier.at(upper))
            model.insert(ready)
            seals.append(upper)
        elif isinstance(event, Compact):
            since = event.since
            trace.compact(Frontier.at(since))
        elif isinstance(event, CompactPhysically):
            physical = event.frontier
            trace.compact_physically(Frontier.at(physical))
        else:
            trace.exert(event.fuel)
        batches = trace.batches()
        if len(batches) != len(compared) or any(a is not b for a, b in zip(batches, compared, strict=True)):
            check_trace(batches, schema, model, since, upper, rows=rows)
            compared = batches
        if course.held and trace.can_hold:
            ends = {batch.description.upper for batch in batches}
            lost = [seal for seal in seals if seal > physical and Frontier.at(seal) not in ends]
            assert not lost, f"boundaries {lost} are gone, and only those up to {physical} may be"
    if seals:
        while trace.exert(64):
            pass
        check_trace(trace.batches(), schema, model, since, upper, rows=rows)


Maker = Callable[[Course], TraceUnderTest]


def heap_trace(course: Course) -> TraceUnderTest:
    """A spine in private memory for the course."""
    return HeapTrace(course.schema, held=course.held)


def run_courses(make: Maker, seeds: range) -> int:
    """Run the courses of all `seeds`; returns how many ran.

    Raises: AssertionError with the seed and the least course that fails alike, found by leaving out.
    """
    for seed in seeds:
        course = course_of(seed)
        failure = _failure(make, course)
        if failure is not None:
            least = _least(make, course, failure)
            raise AssertionError(f"course {seed}: {failure!r}; so does {least}") from failure
    return len(seeds)


def _failure(make: Maker, course: Course) -> Exception | None:
    trace = make(course)
    try:
        run_course(trace, course)
    except Exception as error:  # whatever it is, it is a finding
        return error
    finally:
        trace.close()
    return None


def _least(make: Maker, course: Course, failure: Exception) -> Course:
    for candidate in smaller(course):
        found = _failure(make, candidate)
        if found is not None and type(found) is type(failure):
            return _least(make, candidate, found)
    return course
