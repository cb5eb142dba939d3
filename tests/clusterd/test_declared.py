"""Ids as ranges against a plain set; frontiers that only rise."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from clusterd.multiplexer.declared import IdSet, rises

IDS = st.builds(lambda kind, n: f"{kind}{n}", st.sampled_from("ust"), st.integers(0, 30))


@given(st.lists(IDS, max_size=60), st.lists(IDS, max_size=20))
def test_an_id_set_is_a_set(added: list[str], asked: list[str]) -> None:
    ids, model = IdSet(), set()
    for id in added:
        ids.add(id)
        model.add(id)
        assert id in ids
    assert [id in ids for id in asked] == [id in model for id in asked]
    numbers = {(id[0], int(id[1:])) for id in model}
    starts = sum((kind, n - 1) not in numbers for kind, n in numbers)
    assert ids.ranges == starts


def test_a_million_consecutive_ids_are_one_range() -> None:
    ids = IdSet()
    for n in range(10_000):
        ids.add(f"t{n}")
    assert ids.ranges == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, (0,), True), (None, (), True), ((0,), (1,), True), ((1,), (1,), False), ((2,), (1,), False),
        ((5,), (), True), ((), (), False), ((), (9,), False),
    ],
)  # fmt: skip
def test_a_frontier_rises_or_is_no_news(
    old: tuple[int, ...] | None, new: tuple[int, ...], expected: bool
) -> None:
    assert rises(old, new) is expected
