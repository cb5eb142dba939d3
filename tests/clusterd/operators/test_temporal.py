"""Temporal filters against a naive fold at every time, in any batching; what they hold, and what it costs."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import Columns, Delta, Round
from clusterd.operators.held import HeldUpdates
from clusterd.operators.mfp import StageSpec
from clusterd.operators.temporal import TemporalOperator
from controller_proto.expr import Call, ColumnRef, Expr, Literal
from controller_proto.schema import ColumnType as T
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from tests.clusterd import naive
from tests.clusterd.operators.histories import Change, accumulate, random_uppers, run, updates_of

NOW: Expr = Call("now_ts", ())
I64, F64, NUMERIC, U64, TEXT = (
    ColumnType.INT64, ColumnType.FLOAT64, ColumnType.NUMERIC, ColumnType.UINT64, ColumnType.TEXT,
)  # fmt: skip
WIRE = {I64: T.INT64, F64: T.FLOAT64, NUMERIC: T.NUMERIC, U64: T.UINT64, TEXT: T.TEXT}
ROW: Columns = (
    ColumnSpec("i", I64, True), ColumnSpec("f", F64, True), ColumnSpec("n", NUMERIC, True),
    ColumnSpec("u", U64, False), ColumnSpec("t", TEXT, True),
)  # fmt: skip
ONE: Columns = (ColumnSpec("name", TEXT, False), ColumnSpec("until", I64, False))
DOMAIN: dict[Any, list[Any]] = {
    I64: [*range(-1, 12), -(1 << 63), (1 << 63) - 1, 0, 3, 5, 6],
    F64: [naive.NAN, float("inf"), float("-inf"), 1e300, -1e300, 2.5, -0.5, 4.0, 7.000001, 0.0, 2.0**63],
    NUMERIC: [0, 4, 7, -1, 10**37, -(10**37), (1 << 64) + 3, 9],
    U64: [0, 2, 6, (1 << 64) - 1, (1 << 64) - 2, 1 << 63, 9],
    TEXT: ["", "a", "a long one"],
}


def number(n: int) -> Literal:
    return Literal(T.INT64, n)


def random_row(rng: random.Random) -> tuple[Any, ...]:
    return tuple(None if c.nullable and rng.random() < 0.15 else rng.choice(DOMAIN[c.type]) for c in ROW)


def bound(rng: random.Random) -> Expr:
    column = ColumnRef(rng.choice([0, 0, 0, 1, 2, 3]))
    if column.index or rng.random() < 0.4:
        return column
    other = rng.choice([number(rng.randrange(-1, 12)), ColumnRef(0)])
    return Call(rng.choice(["+", "-", "/", "*"]), (number(rng.randrange(8)), other))


EXPIRED = "limit: what a temporal filter gives is not kept from time {} on (expires_at); start a new replica"


def timed(rng: random.Random) -> Expr:
    now = NOW if rng.random() < 0.7 else Call(rng.choice("+-"), (NOW, number(rng.randrange(3))))
    if rng.random() < 0.15:
        return Call("between", (now, bound(rng), bound(rng)))
    sides = (now, bound(rng))
    return Call(
        rng.choice(["<", "<=", ">", ">=", "=", "<", ">="]), sides if rng.random() < 0.6 else sides[::-1]
    )


def random_stage(rng: random.Random) -> StageSpec:
    predicates: list[Expr] = [timed(rng) for _ in range(rng.choice([1, 1, 2]))]
    others: list[Expr] = [
        Call(">", (Call("/", (number(10), ColumnRef(0))), number(1))),
        Call("=", (ColumnRef(4), Literal(T.TEXT, "a"))),
        Call("<", (ColumnRef(0), number(3))),
    ]
    predicates += rng.sample(others, rng.choice([0, 0, 1, 2]))
    rng.shuffle(predicates)
    if rng.random() < 0.3:
        predicates = [Call("and", tuple(predicates))]
    maps: tuple[Expr, ...] = (Call("/", (number(7), ColumnRef(0))),) if rng.random() < 0.4 else ()
    kept = tuple(rng.sample(range(5 + len(maps)), rng.randrange(1, 5)))
    return StageSpec(maps, tuple(predicates), None if rng.random() < 0.2 else kept)


def wanted(spec: StageSpec, past: list[Change], time: int) -> tuple[Counter[Any], Counter[Any]]:
    there = naive.at(tuple(WIRE[c.type] for c in ROW), [(row, t, d) for _, row, t, d in past], time)
    predicates = [naive.at_time(predicate, time) for predicate in spec.predicates]
    made = naive.mfp(there, spec.maps, predicates, spec.projection)
    rows = accumulate([(row, 0, count) for row, count in made.rows.items()], 0)
    return rows, Counter(made.errs)


def random_past(rng: random.Random, times: int) -> list[Change]:
    past: list[Change] = []
    live: list[tuple[Any, ...]] = []
    for time in sorted(rng.randrange(times) for _ in range(60)):
        if live and rng.random() < 0.45:
            past.append((0, live.pop(rng.randrange(len(live))), time, -1))
        else:
            live.append(random_row(rng))
            past.append((0, live[-1], time, rng.choice([1, 1, 2])))
    return past


@pytest.mark.slow
def test_every_time_equals_recomputation() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        times, as_of = rng.choice([3, 12]), rng.choice([0, 2])
        past, spec = random_past(rng, times), random_stage(rng)
        expires_at = rng.choice([None, None, 1, times - 1, times + 1])
        operator = TemporalOperator(spec, ROW, expires_at)
        uppers = random_uppers(rng, times, as_of)
        if uppers[-1] is not None and rng.random() < 0.5:
            uppers.append(None)
        oks, errs = run(operator, [ROW], past, uppers, as_of=as_of, rng=rng)
        end = times + 3 if uppers[-1] is None else times + 1
        for time in range(as_of, end):
            rows, failed = wanted(spec, past, time)
            if expires_at is not None and time >= expires_at:
                assert accumulate(errs, time)[EXPIRED.format(expires_at)] == 1, f"seed {seed} time {time}"
                continue
            assert accumulate(oks, time) == rows, f"seed {seed} time {time} {spec}"
            assert accumulate(errs, time) == failed, f"seed {seed} time {time} {spec}"
        if uppers[-1] is None:
            assert operator.statistics().state_rows == 0


def expiring() -> TemporalOperator:
    return TemporalOperator(StageSpec((), (Call("<", (NOW, ColumnRef(1))),)), ONE)


def one_round(operator: TemporalOperator, round: Round, *changes: tuple[Any, int, int]) -> list[Any]:
    operator.start(round)
    out: list[Delta] = []
    if changes:
        out += operator.push(0, Delta.of(updates_of(ONE, changes)))
    out += operator.finish()
    assert not any(len(delta.errs) for delta in out)
    return [row for delta in out for row in delta.oks.to_rows()]


def test_f1_one_round_over_many_times_gives_each_end_at_its_time() -> None:
    operator = expiring()
    a, b = ("a", 3), ("b", 5)
    assert one_round(operator, Round(0, Frontier.at(1), 0), (a, 0, 1), (b, 0, 1)) == [(a, 0, 1), (b, 0, 1)]
    assert operator.statistics().state_rows == 2
    assert sorted(one_round(operator, Round(1, Frontier.at(10), 0))) == [(a, 3, -1), (b, 5, -1)]
    assert operator.statistics().state_rows == 0


def test_f4_a_row_that_is_gone_before_its_end_leaves_nothing() -> None:
    operator = expiring()
    a = ("a", 7)
    one_round(operator, Round(0, Frontier.at(1), 0), (a, 0, 1))
    assert one_round(operator, Round(1, Frontier.at(3), 0), (a, 2, -1)) == [(a, 2, -1)]
    assert operator.statistics().state_rows == 0
    assert one_round(operator, Round(3, Frontier.at(10), 0)) == []


def test_f6_what_lies_beyond_until_is_not_held() -> None:
    operator = expiring()
    a, b = ("a", 3), ("b", 5)
    made = one_round(operator, Round(0, Frontier.at(1), 0, 4), (a, 0, 1), (b, 0, 1), (("c", 4), 0, 1))
    assert [row for row, _, _ in made] == [a, b, ("c", 4)]
    assert operator.statistics().state_rows == 1
    assert one_round(operator, Round(1, Frontier.empty(), 0, 4)) == [(a, 3, -1)]


def test_what_is_due_after_a_replica_expires_is_not_held_and_one_error_from_then_on() -> None:
    operator = TemporalOperator(StageSpec((), (Call("<", (NOW, ColumnRef(1))),)), ONE, 5)
    rows = [(("a", 3), 0, 1), (("b", 7), 0, 1), (("c", 1 << 60), 0, 1)]
    assert len(one_round(operator, Round(0, Frontier.at(2), 0), *rows)) == 3
    assert operator.statistics().state_rows == 2  # the end of the first row, and the error
    assert one_round(operator, Round(2, Frontier.at(5), 0)) == [(("a", 3), 3, -1)]
    operator.start(Round(5, Frontier.at(6), 0))
    (delta,) = operator.finish()
    assert delta.errs.to_rows() == [((EXPIRED.format(5),), 5, 1)]
    assert operator.statistics().state_rows == 0


def test_a_diff_without_an_opposite_is_taken_back_in_two() -> None:
    a, least = ("a", 3), -(1 << 63)
    made = one_round(expiring(), Round(0, Frontier.at(10), 0), (a, 0, least))
    assert sum(diff for _, time, diff in made if time == 3) == -least
    assert accumulate(made, 3) == Counter()


@pytest.mark.parametrize("shift", [1 << 62, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("comparison", ["<", "<=", "=", ">=", ">"])
def test_a_shift_is_added_to_the_value_and_never_wraps(shift: int, comparison: str) -> None:
    spec = StageSpec((), (Call(comparison, (Call("+", (NOW, number(shift))), ColumnRef(1))),))
    for value in (-(1 << 63), -1, 0, 4, (1 << 62) + 2, (1 << 63) - 1):
        made = one_round(TemporalOperator(spec, ONE), Round(0, Frontier.empty(), 0), (("a", value), 0, 1))
        for time in (0, 1, 2, 3, (1 << 62) + 2, 1 << 63, (1 << 63) + 4, (1 << 64) - 1):
            left = time + shift
            holds = {
                "<": left < value, "<=": left <= value, "=": left == value, ">=": left >= value,
                ">": left > value,
            }[comparison]  # fmt: skip
            assert sum(diff for _, at, diff in made if at <= time) == holds, (value, time)


def far_off(n: int, first: int) -> Updates:
    rows = [((f"{i % 7}", i), first + i * 7919 % n, 1) for i in range(n)]
    return Updates.from_rows([TEXT, I64], rows)


def test_what_is_held_is_merged_a_logarithm_of_times_and_comes_in_its_time() -> None:
    held, n, step = HeldUpdates(ONE), 20_000, 100
    updates = far_off(n, 1)
    for lo in range(0, n, step):
        for _ in held.insert(updates.slice(lo, lo + step)):
            pass
    assert len(held) == n
    assert held.touched < n * 12  # sorted once, and merged with each of log2(n / step) sizes
    before = held.touched
    out = [update for limit in range(500, 20_501, 500) for part in held.release(Frontier.at(limit))
           for update in part.to_rows()]  # fmt: skip
    assert held.touched - before == n
    assert len(held) == 0
    assert Counter(out) == Counter(updates.to_rows())


@pytest.mark.slow
def test_a_change_costs_the_same_whatever_is_held() -> None:
    touched = []
    for size in (1_000, 10_000, 100_000):
        held = HeldUpdates(ONE)
        for _ in held.insert(far_off(size, 1 << 40)):
            pass
        before = held.touched
        for tick in range(50):
            for _ in held.insert(far_off(10, 1000 + 10 * tick)):
                pass
            for _ in held.release(Frontier.at(1000 + 10 * tick)):
                pass
        touched.append(held.touched - before)
    assert max(touched) < 2 * min(touched)


def test_updates_that_cancel_go_where_they_meet_and_sums_that_do_not_fit_stay() -> None:
    rng = random.Random(5)
    held = HeldUpdates(ONE)
    rows = [(("a" * rng.randrange(9), rng.randrange(50)), rng.randrange(1, 40), 1) for _ in range(3000)]
    for sign in (1, -1):
        rng.shuffle(rows)
        signed = [(row, time, sign) for row, time, _ in rows]
        for lo in range(0, len(rows), 250):
            for _ in held.insert(Updates.from_rows([TEXT, I64], signed[lo : lo + 250])):
                pass
    for _ in held.insert(Updates.from_rows([TEXT, I64], [(("x", 1), 90, 1)])):
        pass
    total: Counter[Any] = Counter()
    for part in held.release(Frontier.empty()):
        for row, time, diff in part.to_rows():
            total[row, time] += diff
    assert {key: count for key, count in total.items() if count} == {(("x", 1), 90): 1}

    most = (1 << 63) - 1
    for _ in range(2):
        for _ in held.insert(Updates.from_rows([TEXT, I64], [(("x", 1), 90, most)])):
            pass
    assert sorted(d for part in held.release(Frontier.empty()) for _, _, d in part.to_rows()) == [most, most]


@pytest.mark.slow
def test_long_runs_are_merged_in_pieces() -> None:
    held, n = HeldUpdates(ONE), 300_000
    times = np.arange(n, dtype=np.uint64) // np.uint64(100_000) + np.uint64(5)
    whole = far_off(n, 1)
    updates = Updates(whole.columns, times, whole.diffs)
    steps = sum(1 for _ in held.insert(updates))
    assert steps > 8
    again = Updates(updates.columns, times, -updates.diffs)
    for _ in held.insert(again.slice(0, n - 10)):
        pass
    assert len(held) < n
    parts = [part for limit in (6, 7, 8) for part in held.release(Frontier.at(limit))]
    assert max(map(len, parts)) <= 65_536
    assert sum(int(part.diffs.sum()) for part in parts) == 10
