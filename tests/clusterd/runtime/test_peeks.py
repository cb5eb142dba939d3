"""The table of pending peeks and frontier reports: small parts by themselves."""

from __future__ import annotations

import random

import pytest

from clusterd.runtime.hydration import Hydration
from clusterd.runtime.peeks import Key, PeekState, PendingPeek, PendingPeeks
from controller_proto.command import Peek
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

U1: Key = ("u1", 1)
U2: Key = ("u2", 1)


def pending(uuid: str, time: int, key: Key = U1, session: int = 1) -> PendingPeek:
    return PendingPeek(session, Peek(1, uuid, key[0], time), key, time, latest=False)


def test_a_wake_lets_go_what_is_sealed_in_order_of_time_and_of_that_collection_only() -> None:
    peeks = PendingPeeks()
    for uuid, time, key in (("a", 5, U1), ("b", 2, U1), ("c", 9, U1), ("d", 1, U2), ("e", 2, U1)):
        peeks.accept(pending(uuid, time, key))
    assert peeks.wake(U1, Frontier.at(2)) == []
    assert [p.uuid for p in peeks.wake(U1, Frontier.at(6))] == ["b", "e", "a"]
    peeks.validate_state()
    assert peeks.hold(U1) == Frontier.at(9)
    assert peeks.hold(U2) == Frontier.at(1)
    assert [p.uuid for p in peeks.wake(U1, Frontier.empty())] == ["c"]
    assert peeks.hold(U1) == Frontier.empty()


def test_whoever_takes_a_peek_out_first_is_the_only_one_to_answer() -> None:
    peeks = PendingPeeks()
    peeks.accept(pending("a", 5))
    found = peeks.cancel(1, "a")
    assert found is not None
    assert found[1] is PeekState.PARKED
    assert peeks.cancel(1, "a") is None
    assert peeks.answered(1, "a") is None
    assert peeks.withdraw(U1) == []
    assert peeks.wake(U1, Frontier.empty()) == []
    assert len(peeks) == 0


def test_a_name_is_taken_per_session_and_free_after_the_answer() -> None:
    peeks = PendingPeeks()
    peeks.accept(pending("a", 5))
    peeks.accept(pending("a", 5, session=2))
    with pytest.raises(InvariantViolation):
        peeks.accept(pending("a", 5))
    peeks.end_session(2)
    assert peeks.answered(1, "a") is not None
    peeks.accept(pending("a", 5))


def test_canceled_peeks_of_far_times_leave_no_garbage_behind() -> None:
    peeks = PendingPeeks()
    peeks.accept(pending("keeper", 1))
    for n in range(10_000):
        peeks.accept(pending(f"p{n}", 10**12))
        peeks.cancel(1, f"p{n}")
    assert len(peeks._parked[U1].heap) < 100
    peeks.validate_state()


@pytest.mark.parametrize("seed", range(20))
def test_random_calls_keep_table_and_heaps_together(seed: int) -> None:
    rng = random.Random(seed)
    peeks = PendingPeeks()
    owed: dict[tuple[int, str], PendingPeek] = {}
    for n in range(300):
        roll = rng.random()
        key = rng.choice([U1, U2])
        if roll < 0.5:
            one = pending(f"p{n}", rng.randrange(50), key, rng.randrange(3))
            peeks.accept(one, ready=rng.random() < 0.2)
            owed[(one.session, one.uuid)] = one
        elif roll < 0.65 and owed:
            name = rng.choice(list(owed))
            assert peeks.cancel(*name) is not None
            del owed[name]
        elif roll < 0.8:
            upper = rng.randrange(50)
            woken = peeks.wake(key, Frontier.at(upper))
            assert all(p.collection == key and p.time < upper for p in woken)
        elif roll < 0.9 and owed:
            name = rng.choice(list(owed))
            assert peeks.answered(*name) is owed.pop(name)
        elif roll < 0.95:
            for gone in peeks.withdraw(key):
                del owed[(gone.session, gone.uuid)]
        else:
            for gone, _ in peeks.end_session(rng.randrange(3)):
                del owed[(gone.session, gone.uuid)]
        peeks.validate_state()
        parked = [p.time for p in owed.values() if p.collection == U1 and p.state is PeekState.PARKED]
        assert peeks.hold(U1) == (Frontier.at(min(parked)) if parked else Frontier.empty())
    assert len(peeks) == len(owed)


def test_g2_p4_a_report_is_beyond_as_of_says_what_changed_once_and_ends_with_empty() -> None:
    hydration = Hydration()
    hydration.expect(U1, 5)
    assert hydration.advance(U1, Frontier.at(5)) == {}
    kinds = hydration.advance(U1, Frontier.at(6))
    assert kinds == dict.fromkeys(("write", "input", "output"), Frontier.at(6))
    assert hydration.advance(U1, Frontier.at(6)) == {}
    hydration.advance(U1, Frontier.at(8))
    with pytest.raises(InvariantViolation):
        hydration.advance(U1, Frontier.at(7))
    assert set(hydration.close(U1).values()) == {Frontier.empty()}
    assert hydration.close(U1) == {}
    with pytest.raises(InvariantViolation):
        hydration.advance(U1, Frontier.at(9))
