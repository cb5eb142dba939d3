"""Random courses against the model: a few hundred in `make test`, 100,000 in `make test-all`.

Each course is told by a number; a failure says it, and the least course that fails alike.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
from collections.abc import Callable, Sequence

import pytest

from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.batch import Batch
from shm_arrangements.frontier import Frontier
from shm_arrangements.instance import Instance
from shm_arrangements.names import PageName
from shm_arrangements.snapshot import PublishedTrace
from shm_arrangements.testing.courses import Course, Insert, Seal, course_of, smaller
from shm_arrangements.testing.suite import HeapTrace, TraceUnderTest, heap_trace, run_courses
from shm_arrangements.updates import Updates
from shm_arrangements.writer import TraceWriter

FEW = 250
SHARED_FEW = 60
SOAK = 100_000
SHARED_SOAK = 5_000  # of them, in shared memory
SPAN = 500  # courses a task


class SharedTrace(TraceUnderTest):
    """A published trace in shared memory, read through its page as another process would."""

    def __init__(self, held: Instance, id: int, course: Course) -> None:
        self._writer = TraceWriter(SegmentAllocator(held.token, id), id, 1, course.schema, 0)
        self._reader = PublishedTrace(PageName(held.token, id, 1, "oks"))
        self._now_s = 0.0

    def insert(self, updates: Updates, upper: Frontier) -> None:
        self._writer.insert(updates, upper)
        self._now_s += 0.02
        self._writer.reclaim(self._now_s)

    def compact(self, since: Frontier) -> None:
        self._writer.set_compaction(since)

    def exert(self, fuel_updates: int) -> bool:
        return self._writer.exert(fuel_updates)

    def batches(self) -> Sequence[Batch]:
        return self._reader.snapshot().batches()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def shared_traces(held: Instance) -> Callable[[Course], TraceUnderTest]:
    ids = itertools.count(1)
    return lambda course: SharedTrace(held, next(ids), course)


def run_span(task: tuple[bool, range]) -> int:
    """One task of a worker process: courses in shared memory, or in private."""
    shared, seeds = task
    if not shared:
        return run_courses(heap_trace, seeds)
    with Instance.create() as held:
        return run_courses(shared_traces(held), seeds)


@pytest.mark.slow
def test_random_courses_give_what_the_model_gives() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    print(f"seeds from {first}")
    assert run_span((False, range(first, first + FEW))) == FEW


@pytest.mark.slow
def test_random_courses_of_published_traces_give_what_the_model_gives() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    print(f"seeds from {first}")
    assert run_span((True, range(first, first + SHARED_FEW))) == SHARED_FEW


@pytest.mark.soak
@pytest.mark.slow
def test_a_hundred_thousand_random_courses_give_what_the_model_gives() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    print(f"seeds from {first}")
    seeds = range(first, first + SOAK)
    spans = [seeds[at : at + SPAN] for at in range(0, SOAK, SPAN)]
    tasks = [(at * SPAN < SHARED_SOAK, span) for at, span in enumerate(spans)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        ran = sum(pool.imap_unordered(run_span, tasks))
        pool.close()
        pool.join()
    print(f"{ran} courses")
    assert ran == SOAK


def test_a_number_tells_the_same_course_again() -> None:
    assert course_of(7) == course_of(7)
    assert len({repr(course_of(seed)) for seed in range(50)}) > 45


def test_a_failing_course_is_made_small() -> None:
    class Forgetful(HeapTrace):
        """Loses what is inserted later than the first batch that has two updates or more."""

        full = False

        def insert(self, updates: Updates, upper: Frontier) -> None:
            super().insert(updates.slice(0, 0) if self.full else updates, upper)
            self.full = self.full or len(updates) > 1

    with pytest.raises(AssertionError, match=r"(?s)course \d+: .*; so does Course") as caught:
        run_courses(lambda course: Forgetful(course.schema, held=course.held), range(40))
    assert str(caught.value).count("Insert(") <= 2


def test_smaller_courses_are_smaller_and_keep_the_last_seal() -> None:
    course = course_of(3)
    size = sum(1 + len(e.updates) if isinstance(e, Insert) else 1 for e in course.events)
    for candidate in smaller(course):
        assert isinstance(candidate.events[-1], Seal)
        assert size > sum(1 + len(e.updates) if isinstance(e, Insert) else 1 for e in candidate.events)
