"""Frontiers: at most one time, and the words of partial orders."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm_arrangements.description import Description
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.layout import frontier_of_words, frontier_words

times = st.one_of(st.integers(0, 5), st.integers(0, MAX_TIME))
frontiers = st.one_of(times.map(Frontier.at), st.just(Frontier.empty()))


def test_the_empty_frontier_is_never_less_equal_to_anything_and_is_the_latest() -> None:
    empty = Frontier.empty()
    assert not empty.less_equal(0)
    assert not empty.less_equal(MAX_TIME)
    assert Frontier.at(MAX_TIME).precedes(empty)
    assert not empty.precedes(empty)
    assert empty.precedes_or_equal(empty)
    assert repr(empty) == "{}"
    assert repr(Frontier.at(5)) == "{5}"
    with pytest.raises(ValueError, match="no time"):
        _ = empty.time


@pytest.mark.parametrize("time", [-1, MAX_TIME + 1])
def test_a_time_is_a_u64(time: int) -> None:
    with pytest.raises(ValueError, match=str(time)):
        Frontier.at(time)


def test_a_frontier_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Frontier.at(1)._time = 2
    assert pickle.loads(pickle.dumps(Frontier.at(3))) == Frontier.at(3)


def test_a_wire_frontier_has_at_most_one_time() -> None:
    with pytest.raises(ValueError, match="at most one"):
        Frontier.from_wire((1, 2))


@given(frontiers, frontiers, times)
def test_meet_is_reached_by_either_and_join_by_both(a: Frontier, b: Frontier, t: int) -> None:
    assert Frontier.meet(a, b).less_equal(t) == (a.less_equal(t) or b.less_equal(t))
    assert Frontier.join(a, b).less_equal(t) == (a.less_equal(t) and b.less_equal(t))
    assert a.precedes_or_equal(b) == (Frontier.meet(a, b) == a)
    assert a.precedes(b) == (a.precedes_or_equal(b) and a != b)


@given(frontiers)
def test_both_images_are_exact(frontier: Frontier) -> None:
    assert Frontier.from_wire(frontier.to_wire()) == frontier
    assert frontier_of_words(*frontier_words(frontier)) == frontier
    assert hash(Frontier.from_wire(frontier.to_wire())) == hash(frontier)


def test_descriptions_that_abut_join_and_others_do_not() -> None:
    first = Description(Frontier.at(0), Frontier.at(3), Frontier.at(2))
    second = Description(Frontier.at(3), Frontier.at(9), Frontier.at(1))
    assert first.through(second) == Description(Frontier.at(0), Frontier.at(9), Frontier.at(2))
    with pytest.raises(ValueError, match="abut"):
        second.through(first)
    with pytest.raises(ValueError, match="beyond"):
        Description(Frontier.at(3), Frontier.at(2), Frontier.at(0))
