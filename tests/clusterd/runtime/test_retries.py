"""What failed is tried again later each time, and anew once it was done."""

from __future__ import annotations

import itertools

from clusterd.runtime.retries import FIRST_S, LONGEST_S, Retries


def test_waits_double_up_to_the_longest_and_begin_anew_when_it_is_over() -> None:
    retries: Retries[str] = Retries()
    assert (retries.may("a", 0.0), retries.next_s(), retries.due(9.0)) == (True, None, [])
    now, waits = 0.0, []
    for tries in range(9):
        assert retries.failed("a", now) == (tries == 0)
        assert not retries.may("a", now)
        due = retries.next_s()
        assert due is not None
        waits.append(due - now)
        now = due
        assert retries.may("a", now)
        assert retries.due(now) == ["a"]
    assert abs(waits[0] - FIRST_S) < 1e-9
    assert all(abs(after - min(2 * before, LONGEST_S)) < 1e-9 for before, after in itertools.pairwise(waits))
    retries.over("a")
    retries.over("b")
    assert (len(retries), retries.next_s()) == (0, None)
    assert retries.failed("a", 100.0)
