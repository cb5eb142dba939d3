"""The keeper: what relations hold, told as differences."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from clusterd.introspection.keeper import Keeper
from clusterd.introspection.relation import relation
from clusterd.introspection.sample import Outside
from clusterd.introspection.samples import Samples
from controller_proto.schema import Row

_ROWS = st.lists(st.tuples(st.integers(0, 3), st.text("ab", max_size=1)), max_size=6)


def _keeper(rows: list[list[Row]]) -> Keeper:
    fields = (("a", "bigint", ""), ("b", "text", ""))
    return Keeper(
        [relation(f"r{at}", "", lambda _s, _o, at=at: rows[at], key=("a",), fields=fields) for at in (0, 1)]  # type: ignore[misc]
    )


@given(st.lists(st.tuples(_ROWS, _ROWS), max_size=5))
def test_what_was_told_adds_up_to_the_rows_whatever_they_do(moments: Any) -> None:
    rows: list[list[Row]] = [[], []]
    keeper = _keeper(rows)
    sums: list[dict[Row, int]] = [{}, {}]
    for moment in moments:
        rows[:] = moment
        for place, changed in keeper.differences(Samples(), Outside(0)):
            assert changed
            for row, diff in changed:
                assert diff
                sums[place][row] = sums[place].get(row, 0) + diff
        for place in (0, 1):
            assert {row: n for row, n in sums[place].items() if n} == {
                row: rows[place].count(row) for row in rows[place]
            }
        assert not list(keeper.differences(Samples(), Outside(0)))


def test_what_could_not_be_told_is_told_again() -> None:
    rows: list[list[Row]] = [[(1, "a")], [(2, "b")]]
    keeper = _keeper(rows)
    for place, changed in keeper.differences(Samples(), Outside(0)):
        assert (place, changed) == (0, [((1, "a"), 1)])
        break  # the writer failed
    assert list(keeper.differences(Samples(), Outside(0))) == [(0, [((1, "a"), 1)]), (1, [((2, "b"), 1)])]
