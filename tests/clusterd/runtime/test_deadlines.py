"""Parked peeks are due when their limit or the setting's has passed, and only while they are parked."""

from __future__ import annotations

import random

from clusterd.runtime.deadlines import Deadlines
from clusterd.runtime.peeks import PeekState, PendingPeek
from controller_proto.command import Peek


def _deadlines(limit_s: float = 0.0) -> Deadlines:
    return Deadlines(lambda p: p.state is PeekState.PARKED, lambda p: p.peek.wait_s, limit_s)


def _peek(name: str, wait_s: float | None = None) -> PendingPeek:
    return PendingPeek(1, Peek(1, name, "u1", 5, wait_s=wait_s), ("u1", 1), 5, latest=False)


def _due(deadlines: Deadlines, now_s: float) -> list[tuple[str, float]]:
    """What is due, which is answered then."""
    found = deadlines.take_due(now_s)
    for pending, _ in found:
        pending.state = PeekState.ENDED
    return [(pending.uuid, limit_s) for pending, limit_s in found]


def test_without_a_limit_nothing_is_ever_due() -> None:
    deadlines = _deadlines()
    deadlines.add(_peek("a"), 1.0)
    assert deadlines.next_s() is None
    assert _due(deadlines, 1e9) == []


def test_the_lesser_of_the_two_limits_counts_and_the_earliest_is_first() -> None:
    deadlines = _deadlines(10.0)
    peeks = [_peek("setting"), _peek("own", 3.0), _peek("longer", 60.0), _peek("at once", 0.0)]
    for pending in peeks:
        deadlines.add(pending, 100.0)
    assert deadlines.next_s() == 100.0
    assert _due(deadlines, 100.0) == [("at once", 0.0)]
    assert deadlines.next_s() == 103.0
    assert _due(deadlines, 102.999) == []
    assert _due(deadlines, 200.0) == [("own", 3.0), ("setting", 10.0), ("longer", 10.0)]
    assert deadlines.next_s() is None


def test_what_waits_no_more_is_not_due_and_wakes_nobody() -> None:
    deadlines = _deadlines(1.0)
    first, second = _peek("a"), _peek("b")
    deadlines.add(first, 0.0)
    deadlines.add(second, 5.0)
    first.state = PeekState.READY
    assert deadlines.next_s() == 6.0
    second.state = PeekState.ENDED
    assert deadlines.next_s() is None


def test_another_setting_counts_for_what_is_parked_from_when_it_was() -> None:
    deadlines = _deadlines()
    deadlines.add(_peek("a"), 100.0)
    deadlines.add(_peek("b", 2.0), 100.0)
    deadlines.set_limit(5.0)
    assert deadlines.next_s() == 102.0
    deadlines.set_limit(1.0)
    assert _due(deadlines, 101.0) == [("a", 1.0), ("b", 1.0)]
    deadlines.add(_peek("c"), 200.0)
    deadlines.set_limit(0.0)
    assert deadlines.next_s() is None


def test_what_is_kept_is_bounded_by_what_is_parked() -> None:
    deadlines, rng = _deadlines(3600.0), random.Random(1)
    parked: list[PendingPeek] = []
    for number in range(5000):
        parked.append(_peek(str(number)))
        deadlines.add(parked[-1], float(number))
        if len(parked) > 20:
            parked.pop(rng.randrange(len(parked))).state = PeekState.ENDED
    assert len(deadlines) <= 100
    assert _due(deadlines, 1e9) == [(pending.uuid, 3600.0) for pending in parked]
