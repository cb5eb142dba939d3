"""Courses: what happens to a trace, event by event, in any order and granularity, and drawn at random.

Updates come in many pieces, with retractions, duplicates and times still to come; a seal makes one batch of
those before its upper; since and the physical frontier move when they like, and merging is exerted with any
fuel. All draws are from one `random.Random`: a number tells a course again, and Hypothesis can shrink one.

Does not: know what the course is run on (suite.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing.edges import random_spec, random_value

Row = tuple[Any, ...]
Update = tuple[Row, int, int]  # row, time, diff


@dataclass(frozen=True)
class Insert:
    """Updates at times that are not sealed yet."""

    updates: tuple[Update, ...]


@dataclass(frozen=True)
class Seal:
    """All inserted updates before `upper` become a batch."""

    upper: int


@dataclass(frozen=True)
class Compact:
    """Times before `since` need not be told apart."""

    since: int


@dataclass(frozen=True)
class CompactPhysically:
    """Batches that end at or before `frontier` may be merged."""

    frontier: int


@dataclass(frozen=True)
class Exert:
    """Merging without input."""

    fuel: int


Event = Insert | Seal | Compact | CompactPhysically | Exert


@dataclass(frozen=True)
class Course:
    """`held`: no batch may be merged but for what `CompactPhysically` allows; else all may."""

    schema: ArrangementSchema
    held: bool
    events: tuple[Event, ...]


def course_of(seed: int) -> Course:
    """The course that a number stands for."""
    return random_course(random.Random(seed))


def random_course(draws: random.Random, max_events: int = 14) -> Course:
    """A schema, a small pool of rows with few distinct values, and events; the last one seals."""
    schema = random_schema(draws)
    pool = _random_pool(draws, schema)
    held = draws.random() < 0.3
    upper = since = physical = 0
    events: list[Event] = []
    for _ in range(draws.randint(1, max_events)):
        kind = draws.random()
        if kind < 0.40:
            events.append(Insert(tuple(_random_updates(draws, pool, upper))))
        elif kind < 0.70:
            upper += draws.choice([1, 1, 1, 2, 4])
            events.append(Seal(upper))
        elif kind < 0.82:
            since = max(since, draws.choice([since, since + 1, max(upper - 1, 0), upper, upper + 1]))
            events.append(Compact(since))
        elif kind < 0.90 and held:
            physical = max(physical, draws.choice([physical + 1, max(upper - 1, 0), upper]))
            events.append(CompactPhysically(physical))
        else:
            events.append(Exert(draws.choice([0, 1, 2, 7, 40, 10_000])))
    return Course(schema, held, (*events, Seal(max(upper, since) + 1)))


def random_schema(draws: random.Random, max_columns: int = 4) -> ArrangementSchema:
    """Any columns with any key, the empty one and the whole row among them; ordered or not."""
    n = draws.choice([0, *range(1, max_columns + 1), *range(1, max_columns + 1)])
    columns = tuple(random_spec(draws, f"c{i}") for i in range(n))
    positions = draws.sample(range(n), n)
    key = tuple(positions[: draws.randint(0, n)])
    return ArrangementSchema(columns, key, ordered=draws.random() < 0.3)


def _random_pool(draws: random.Random, schema: ArrangementSchema) -> list[Row]:
    """Rows that share values, so that keys have several rows and rows of different keys the same values."""
    few = [
        [random_value(draws, spec.type, spec.nullable) for _ in range(draws.randint(1, 3))]
        for spec in schema.columns
    ]
    return [tuple(draws.choice(values) for values in few) for _ in range(draws.randint(1, 6))]


def _random_updates(draws: random.Random, pool: list[Row], upper: int) -> Iterator[Update]:
    last: Update | None = None
    for _ in range(draws.choice([0, 1, 2, 3, 5, 8, 20])):
        if last is not None and draws.random() < 0.25:  # the same again, or taken back
            row, time, diff = last
            last = row, time, draws.choice([diff, -diff])
        else:
            diff = draws.choice([1, 1, 1, -1, -1, 2, -3, draws.randint(-(1 << 40), 1 << 40) or 1])
            last = draws.choice(pool), upper + draws.choice([0, 0, 0, 1, 2, 5]), diff
        yield last


def smaller(course: Course) -> Iterator[Course]:
    """Courses with one event less, or with fewer updates in one: to find the least that still fails.

    Times stay as they are; a course whose events no longer fit together is not among them.
    """
    events = course.events
    for at in reversed(range(len(events) - 1)):
        yield replace(course, events=events[:at] + events[at + 1 :])
    for at, event in enumerate(events):
        if isinstance(event, Insert) and len(event.updates) > 1:
            for i in range(len(event.updates)):
                fewer = Insert(event.updates[:i] + event.updates[i + 1 :])
                yield replace(course, events=(*events[:at], fewer, *events[at + 1 :]))
