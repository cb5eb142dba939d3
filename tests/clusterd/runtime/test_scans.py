"""Scans take turns: sessions evenly, of one session a few at once, as they came; none is forgotten."""

from __future__ import annotations

import random
from collections.abc import Generator

from clusterd.runtime.scans import AT_ONCE, Name, Scans


def _scan(pieces: int) -> Generator[None, None, bytes]:
    for _ in range(pieces):
        yield
    return b"done"


def _run(scans: Scans) -> list[Name]:
    """Names in the order in which the scans end."""
    ended = []
    while len(scans):
        name, scan = scans.next()
        try:
            next(scan)
        except StopIteration:
            assert scans.end(name) is scan
            ended.append(name)
    return ended


def test_a_session_with_many_scans_has_a_few_under_way_and_others_wait_for_one_turn_of_it() -> None:
    scans = Scans()
    for number in range(100):
        scans.add((1, str(number)), _scan(3))
    scans.add((2, "other"), _scan(1))
    names = [scans.next()[0] for _ in range(20)]
    assert sum(name == (2, "other") for name in names) == 10
    assert {int(name[1]) for name in names if name[0] == 1} == set(range(AT_ONCE))
    ended = _run(scans)
    assert ended[0] == (2, "other")
    numbers = [int(uuid) for session, uuid in ended if session == 1]
    assert sorted(numbers) == list(range(100))
    assert all(abs(at - number) < 2 * AT_ONCE for at, number in enumerate(numbers))


def test_any_interleaving_of_additions_and_ends_answers_each_once() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        scans, made = Scans(), 0
        open_names: list[Name] = []
        gone: set[Name] = set()
        while made < 60 or open_names:
            if made < 60 and rng.random() < 0.5:
                name = (rng.randrange(3), str(made))
                made += 1
                scans.add(name, _scan(0))
                open_names.append(name)
            elif open_names:
                name = scans.next()[0] if rng.random() < 0.5 else rng.choice(open_names)
                assert name in scans
                assert scans.end(name) is not None
                assert scans.end(name) is None
                open_names.remove(name)
                gone.add(name)
            assert len(scans) == len(open_names)
        assert len(gone) == made, seed
        assert not scans._turns
        assert not scans._waiting
