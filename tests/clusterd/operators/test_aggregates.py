"""Every aggregate of every type it takes against recomputation at every time, and where results end."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clusterd.convert import from_wire
from clusterd.dataflow.operator import Columns
from clusterd.operators import best_rows, distinct_rows, lists, ordered, reduce, waiting
from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.ordered import OrderColumn
from clusterd.operators.reduce import ReduceOperator
from controller_proto.aggregates import AGGREGATES
from controller_proto.jsonb import canonical_json
from shm_arrangements.rows import RowImage
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
from tests.clusterd.columns import VALUES
from tests.clusterd.operators.aggregates_naive import SPREADS, frozen, reduce_naively
from tests.clusterd.operators.histories import Change, Row, accumulate, random_uppers, run

T = ColumnType
INF = float("inf")
NUMBERS: dict[str, tuple[ColumnSpec, list[Any]]] = {
    "smallint": (ColumnSpec("v", T.INT16, True), [-(2**15), 2**15 - 1, 0, -1, 7]),
    "integer": (ColumnSpec("v", T.INT32, True), [-(2**31), 2**31 - 1, 0, -1, 7]),
    "bigint": (ColumnSpec("v", T.INT64, True), [-(2**63), 2**63 - 1, 0, -1, 7, 7]),
    "uint2": (ColumnSpec("v", T.UINT16, True), [0, 1, 2**16 - 1]),
    "uint4": (ColumnSpec("v", T.UINT32, True), [0, 1, 2**32 - 1]),
    "uint8": (ColumnSpec("v", T.UINT64, True), [0, 1, 2**64 - 1, 2**63]),
    "numeric": (ColumnSpec("v", T.NUMERIC, True), [0, 1, -1, 10**38 - 1, -(10**38) + 1, 10**21, 3]),
    "numeric(38,2)": (ColumnSpec("v", T.NUMERIC, True, 2), [0, 1, -150, 10**20, -(10**38) + 1]),
    "numeric(38,38)": (ColumnSpec("v", T.NUMERIC, True, 38), [0, 1, -1, 10**38 - 1]),
    "real": (
        ColumnSpec("v", T.FLOAT32, True),
        [0.0, -0.0, 1.0, 0.25, -1.5, 2.0**-149, 3.4028234663852886e38, INF, -INF, float("nan"), 16777216.0],
    ),
    "double precision": (
        ColumnSpec("v", T.FLOAT64, True),
        [0.0, -0.0, 0.1, -0.1, 1e308, -1e308, 5e-324, 1e-200, 1e16, 1.0, INF, -INF, float("nan")],
    ),
    "tame double precision": (ColumnSpec("v", T.FLOAT64, True), [0.1, 0.2, -3.5, 1e10, 1e-10, 2.0**-600]),
}
WORDS = ["", "a", "b", 'q"\\\n\x01', "abcdefgh", "abcdefghi", "äöü"]
LISTS: list[Any] = [[], [1], [1, 2], [1, None], [None], [2]]
EDGES: dict[str, tuple[ColumnSpec, list[Any]]] = {
    **NUMBERS,
    "boolean": (ColumnSpec("v", T.BOOL, True), [True, False]),
    "text": (ColumnSpec("v", T.TEXT, True), WORDS),
    "bytea": (ColumnSpec("v", T.BYTEA, True), [b"", b"\x00", b"\xff", b"abcdefghij"]),
    "date": (ColumnSpec("v", T.DATE, True), [-(2**31), 0, 5, 2**31 - 1]),
    "interval": (ColumnSpec("v", T.INTERVAL, True), [(0, 0, 0), (-1, 40, 0), (0, 1, -5), (1, -2, 3)]),
    "jsonb": (ColumnSpec("v", T.JSONB, True), ["1", "null", "[]", '{"a":1}']),
    "list": (ColumnSpec("v", ListType(ColumnSpec("element", T.INT64, True)), True), LISTS),
    "record": (
        ColumnSpec("v", RecordType((ColumnSpec("a", T.TEXT, True), ColumnSpec("b", T.FLOAT64, False))), True),
        [("a", 1.0), (None, 0.0), ("abcdefghij", -1.0), ("a", float("nan"))],
    ),
}  # fmt: skip
KEY = ColumnSpec("k", T.INT64, True)


def history(
    rng: random.Random, domains: Sequence[list[Any]], changes: int, times: int, *, valid: bool
) -> list[Change]:
    """As histories.history, over given values."""
    live: list[tuple[Row, int]] = []
    out: list[Change] = []
    for time in sorted(rng.randrange(times) for _ in range(changes)):
        if live and rng.random() < 0.45:
            row, diff = live.pop(rng.randrange(len(live)))
            out.append((0, row, time, -diff))
            continue
        row = tuple(None if rng.random() < 0.15 else rng.choice(domain) for domain in domains)
        diff = rng.choice([1, 1, 1, 2, 3]) * (-1 if not valid and rng.random() < 0.3 else 1)
        live.append((row, diff))
        out.append((0, row, time, diff))
    return out


def check(
    seed: int, types: Columns, domains: Sequence[list[Any]], key: Sequence[int],
    calls: Sequence[AggregateCall], *, valid: bool, changes: int = 50, grows: bool = False,
) -> None:  # fmt: skip
    rng = random.Random(seed)
    print(f"seed {seed}")
    times = rng.choice([1, 3, 8, 30])
    as_of = rng.choice([0, 0, min(2, times - 1)])
    past = history(rng, domains, changes, times, valid=valid)
    if grows:
        past = [change for change in past if change[3] > 0]
    operator = ReduceOperator(types, key, calls, monotonic=grows)
    oks, errs = run(operator, [types], past, random_uppers(rng, times, as_of), as_of=as_of, rng=rng)
    flat = [(row, time, diff) for _, row, time, diff in past]
    oks = [(frozen(row), time, diff) for row, time, diff in oks]
    for time in range(as_of, times + 1):
        want_oks, want_errs = reduce_naively(types, key, calls, _at(flat, time))
        assert accumulate(oks, time) == want_oks, f"seed {seed} time {time}"
        assert bare(accumulate(errs, time)) == bare(want_errs), f"seed {seed} time {time}"
    if not _at(flat, times) and not grows:
        assert operator.statistics().state_rows == 0


def bare(errors: Counter[str]) -> dict[str, int]:
    """Messages without the signs by which Python tells lists from tuples."""
    out: dict[str, int] = {}
    for error, count in errors.items():
        key = re.sub(r"[\[\](),']", "", error)
        out[key] = out.get(key, 0) + count
    return {key: count for key, count in out.items() if count}


def _at(changes: Sequence[tuple[Row, int, int]], time: int) -> Counter[Row]:
    out: Counter[Row] = Counter()
    for row, at, diff in changes:
        if at <= time:
            out[frozen(row)] += diff
    return Counter({row: n for row, n in out.items() if n})


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("name", NUMBERS)
def test_sums_means_and_spreads_equal_recomputation_at_every_time(name: str, valid: bool) -> None:
    spec, domain = NUMBERS[name]
    types, domains = (KEY, spec), ([1, 2], domain)
    for seed in range(10):
        calls = [AggregateCall(f, 1, distinct=d) for f in ("sum", "avg", "count") for d in (False, True)]
        check(seed, types, domains, (0,), calls, valid=valid)
        check(seed, types, domains, (0,), calls[::2], valid=valid)
        spreads = [AggregateCall(f, 1) for f in SPREADS]
        check(seed, types, domains, (0,), spreads, valid=valid)
        check(seed, types, domains, (), [AggregateCall("stddev", 1, distinct=True)], valid=valid)


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("name", EDGES)
def test_min_max_and_lists_of_every_type_equal_recomputation(name: str, valid: bool) -> None:
    spec, domain = EDGES[name]
    types, domains = (KEY, spec), ([1, 2], domain)
    for seed in range(6):
        calls = [AggregateCall(f, 1) for f in ("min", "max")]
        check(seed, types, domains, (0,), calls, valid=valid)
        calls = [
            AggregateCall("array_agg", 1),
            AggregateCall("array_agg", 1, distinct=True, order=(OrderColumn(1, True, True),)),
            AggregateCall("count", 1, distinct=True),
        ]
        check(seed, types, domains, (0,), calls, valid=valid)


@pytest.mark.slow
@pytest.mark.parametrize("name", EDGES)
def test_an_input_that_grows_keeps_one_value_a_group_and_gives_the_same(name: str) -> None:
    spec, domain = EDGES[name]
    for seed in range(4):
        calls = [AggregateCall("min", 1), AggregateCall("max", 1), AggregateCall("count")]
        check(seed, (KEY, spec), ([1, 2, 3], domain), (0,), calls, valid=True, grows=True)


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
def test_booleans_equal_recomputation_at_every_time(valid: bool) -> None:
    for seed in range(20):
        calls = [AggregateCall(f, 1, distinct=d) for f in ("bool_and", "bool_or") for d in (False, True)]
        check(seed, (KEY, EDGES["boolean"][0]), ([1, 2], [True, False]), (0,), calls[::2], valid=valid)
        check(seed, (KEY, EDGES["boolean"][0]), ([1, 2], [True, False]), (), calls[:1], valid=valid)


MIXED = (
    KEY, ColumnSpec("n", T.INT64, True), ColumnSpec("t", T.TEXT, True), ColumnSpec("s", T.TEXT, True),
    ColumnSpec("f", T.FLOAT64, False),
)  # fmt: skip
MIXED_DOMAINS = ([1, 2], [1, 2, 3, -(2**63)], WORDS, [",", "; ", ""], [0.5, -0.0, 1.0, float("nan"), INF])


def mixed_calls(rng: random.Random) -> list[AggregateCall]:
    order = tuple(
        OrderColumn(k, rng.random() < 0.5, rng.random() < 0.5) for k in rng.sample(range(5), rng.randrange(3))
    )
    of_n = (OrderColumn(1, rng.random() < 0.5),)
    every = [
        AggregateCall("count"),
        AggregateCall("count", 2, distinct=True),
        AggregateCall("sum", 1, distinct=True),
        AggregateCall("sum", 1),
        AggregateCall("min", 2),
        AggregateCall("max", 1),
        AggregateCall("stddev", 1),
        AggregateCall("array_agg", 1, order=order),
        AggregateCall("array_agg", 1, distinct=True, order=of_n),
        AggregateCall("array_agg", 4, order=order),
        AggregateCall("string_agg", 2, args=(3,), order=order),
        AggregateCall("string_agg", 2, args=(3,), distinct=True),
        AggregateCall("jsonb_agg", 1, order=order),
        AggregateCall("jsonb_agg", 2, distinct=True),
        AggregateCall("jsonb_object_agg", 2, args=(1,), order=order),
    ]
    return rng.sample(every, rng.choice([1, 2, 4, 6]))


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("block", range(4))
def test_aggregates_of_all_kinds_share_one_row_a_group(block: int, valid: bool) -> None:
    for seed in range(block * 25, block * 25 + 25):
        rng = random.Random(seed)
        key = rng.choice([(), (0,), (3, 0)])
        domains = [d if k else [1, 2] for k, d in enumerate(MIXED_DOMAINS)]
        types = (*MIXED[:4], ColumnSpec("f", T.FLOAT64, True))
        check(seed, types, domains, key, mixed_calls(rng), valid=valid)


@pytest.mark.slow
def test_pieces_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every budget so small that work is cut within a step, and results are taken one by one."""
    monkeypatch.setattr(ordered, "BUDGET_NODES", 3)
    monkeypatch.setattr(best_rows, "BUDGET_NODES", 3)
    monkeypatch.setattr(best_rows, "_SPARSE", 1)
    monkeypatch.setattr(best_rows, "_LEAST_SPARSE", 0)
    monkeypatch.setattr(ordered, "_FAULTS", 2)
    monkeypatch.setattr(ordered, "SWEPT_FROM", 4)
    monkeypatch.setattr(waiting, "SWEPT", 6)
    monkeypatch.setattr(distinct_rows, "_PIECE", 3)
    monkeypatch.setattr(lists, "_START_ELEMENTS", 4)
    monkeypatch.setattr(lists, "_KEPT_ELEMENTS", 8)
    monkeypatch.setattr(reduce, "_LEAST_STEPS", 2)
    monkeypatch.setattr(reduce, "_CHUNK_WORDS", 1)
    domains = [d if k else [1, 2] for k, d in enumerate(MIXED_DOMAINS)]
    types = (*MIXED[:4], ColumnSpec("f", T.FLOAT64, True))
    for seed in range(20):
        check(seed, types, domains, (0,), mixed_calls(random.Random(seed)), valid=seed % 2 == 0)
        check(seed, types, domains, (0,), [AggregateCall("max", 2)], valid=True, grows=True)


@pytest.mark.slow
def test_colliding_hashes_never_join_values_of_two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowImage, "hash", lambda self, columns=None: np.zeros(len(self), np.uint64))
    domains = [d if k else [1, 2] for k, d in enumerate(MIXED_DOMAINS)]
    types = (*MIXED[:4], ColumnSpec("f", T.FLOAT64, True))
    for seed in range(6):
        check(seed, types, domains, (0, 3), mixed_calls(random.Random(seed)), valid=seed % 2 == 0)


@pytest.mark.slow
def test_several_thousand_groups_and_a_huge_one_at_many_times() -> None:
    """Every change at a time of its own, in two rounds; every kind of aggregate."""
    rng = random.Random(11)
    types = (KEY, ColumnSpec("n", T.INT64, False), ColumnSpec("t", T.TEXT, True))
    rows = [((key, rng.randrange(50), rng.choice(["x", "yy", None])), 1) for key in range(4000)]
    rows += [((-1, rng.randrange(10**9), "z"), 1) for _ in range(20_000)]
    history = [(0, row, 0, diff) for row, diff in rows]
    for time in range(1, 200):
        (row, _), key = rows[rng.randrange(len(rows))], rng.choice([-1, time])
        history += [(0, row, time, -1), (0, (key, 7, "new"), time, 1), (0, row, time + 1, 1)]
    calls = [
        AggregateCall("count"), AggregateCall("avg", 1), AggregateCall("max", 1), AggregateCall("min", 2),
        AggregateCall("count", 2, distinct=True), AggregateCall("array_agg", 2, distinct=True),
        AggregateCall("var_pop", 1),
    ]  # fmt: skip
    operator = ReduceOperator(types, (0,), calls)
    oks, errs = run(operator, [types], history, [1, 120, None])
    assert not errs
    flat = [(row, time, diff) for _, row, time, diff in history]
    oks = [(frozen(row), time, diff) for row, time, diff in oks]
    for time in (0, 1, 63, 119, 120, 199, 200):
        want, _ = reduce_naively(types, (0,), calls, _at(flat, time))
        assert accumulate(oks, time) == want, time


def at_times(types: Columns, calls: Sequence[AggregateCall], *ticks: list[tuple[Row, int]]) -> list[Any]:
    """Rows and errors of groups by the first column at each tick; each tick a round, and all one round."""
    changes = [(0, row, t, diff) for t, tick in enumerate(ticks) for row, diff in tick]
    uppers: list[int | None] = [t + 1 for t in range(len(ticks))]
    answers = []
    for cut in (uppers, [None]):
        oks, errs = run(ReduceOperator(types, (0,), calls), [types], changes, cut)
        oks = [(frozen(row), time, diff) for row, time, diff in oks]
        answers.append([(set(accumulate(oks, t)), set(accumulate(errs, t))) for t in range(len(ticks))])
    assert answers[0] == answers[1]
    return answers[0]


def test_bug30_means_and_sums_beyond_64_bits_are_exact_and_come_back() -> None:
    big, one = 9223372036854775000, 10**16
    calls = [AggregateCall("sum", 1), AggregateCall("avg", 1)]
    got = at_times(
        (KEY, ColumnSpec("v", T.INT64, False)), calls,
        [((1, big), 1), ((2, 1), 1)], [((1, 9000), 1)], [((1, 9000), -1)],
    )  # fmt: skip
    small = (2, 1, one)
    first = ({(1, big, big * one), small}, set())
    assert got == [first, ({(1, big + 9000, (big + 9000) * one // 2), small}, set()), first]
    most = 2**64 - 1
    got = at_times((KEY, ColumnSpec("v", T.UINT64, False)), calls, [((1, most), 2)], [((1, most), -1)])
    assert got == [({(1, 2 * most, most * one)}, set()), ({(1, most, most * one)}, set())]


def test_a_sum_of_more_than_38_digits_is_an_error_that_heals() -> None:
    most = 10**38 - 1
    types = (KEY, ColumnSpec("v", T.NUMERIC, False, 2))
    calls = [AggregateCall("sum", 1), AggregateCall("avg", 1)]
    got = at_times(types, calls[:1], [((1, most), 1)], [((1, 1), 1)], [((1, 1), -1)])
    error = "eval-error: numeric out of range: sum of group (1)"
    assert got == [({(1, most)}, set()), (set(), {error}), ({(1, most)}, set())]
    got = at_times(types, calls[1:], [((1, 10**24 - 1), 1)], [((1, 10**24 + 1), 1)], [((1, 10**24 + 1), -1)])
    mean = (10**24 - 1) * 10**14
    error = "eval-error: numeric out of range: avg of group (1)"
    assert got == [({(1, mean)}, set()), (set(), {error}), ({(1, mean)}, set())]


def test_a_mean_over_more_rows_than_64_bits_count_is_an_error_that_heals() -> None:
    most = (1 << 63) - 1
    calls = [AggregateCall("avg", 1), AggregateCall("stddev", 1)]
    got = at_times(
        (KEY, ColumnSpec("v", T.INT64, False)), calls, [((1, 2), most)], [((1, 2), 1)], [((1, 2), -9)]
    )
    fine = ({(1, 2 * 10**16, 0.0)}, set())
    wrong = {f"multiplicity-overflow: {f} of group (1) is of {most + 1}" for f in ("avg", "stddev")}
    assert got == [fine, (set(), wrong), fine]


def test_half_a_unit_is_rounded_away_from_zero() -> None:
    types = (KEY, ColumnSpec("v", T.NUMERIC, False, 38))
    rows = [[((1, 1), 1), ((1, 2), 1)], [((1, 1), -1), ((1, 2), -1), ((1, -1), 1), ((1, -2), 1)]]
    assert [oks for oks, _ in at_times(types, [AggregateCall("avg", 1)], *rows)] == [{(1, 2)}, {(1, -2)}]
    thirds = at_times(
        (KEY, ColumnSpec("v", T.INT16, False)), [AggregateCall("avg", 1)], [((1, 1), 1), ((1, 0), 2)]
    )
    assert thirds[0][0] == {(1, 3333333333333333)}


def test_bug34_one_retraction_too_many_is_an_error_of_all_that_look_at_values() -> None:
    types = (KEY, ColumnSpec("v", T.UINT32, False))
    ticks: list[list[tuple[Row, int]]] = [[((3, 5), 1), ((4, 1), 1)], [((3, 5), -2)], [((3, 5), 1)]]
    signed = [AggregateCall("count"), AggregateCall("sum", 1)]
    fine: set[Any] = {(4, 1, 1)}
    has_sign = (KEY, ColumnSpec("v", T.INT32, False))
    assert at_times(has_sign, signed, *ticks)[1:] == [({(3, -1, -5), *fine}, set()), (fine, set())]
    for call in (
        AggregateCall("min", 1), AggregateCall("count", 1, distinct=True), AggregateCall("array_agg", 1),
        AggregateCall("jsonb_agg", 1, distinct=True), AggregateCall("sum", 1), AggregateCall("avg", 1),
    ):  # fmt: skip
        before, wrong, after = at_times(types, [call], *ticks)
        assert len(wrong[0]) == 1, "group 4 answers on"
        assert {error.split(":")[0] for error in wrong[1]} == {"invalid-data"}
        assert before[1] == after[1] == set()
        assert after[0] == wrong[0]


def test_an_unsigned_sum_below_zero_is_an_error_of_its_group_however_many_rows_are_there() -> None:
    what = "invalid-data: sum: values of group (3) have negative multiplicity"
    for type_ in (T.UINT16, T.UINT32, T.UINT64):
        ticks: list[list[tuple[Row, int]]] = [
            [((3, 5), 1), ((3, 6), -1), ((4, 1), 1)],  # no row, and a sum of -1
            [((3, 0), 2)],  # two rows, and a sum of -1
            [((3, 6), 2), ((3, 0), -3)],  # two rows, and a sum of 11: it does not show
            [((3, 0), 1)],
        ]
        fine: set[Any] = {(4, 1)}
        got = at_times((KEY, ColumnSpec("v", type_, True)), [AggregateCall("sum", 1)], *ticks)
        assert got[:2] == [(fine, {what})] * 2
        assert got[2:] == [({(3, 11), *fine}, set())] * 2


def test_a_change_that_does_not_show_emits_nothing() -> None:
    types = (KEY, ColumnSpec("v", T.INT64, True))
    for call in (
        AggregateCall("count", 1, distinct=True), AggregateCall("array_agg", 1, distinct=True),
        AggregateCall("avg", 1, distinct=True),
    ):  # fmt: skip
        history: list[Change] = [(0, (1, 5), 0, 1), (0, (1, 5), 1, 1), (0, (1, 5), 2, -1)]
        oks, _ = run(ReduceOperator(types, (0,), [call]), [types], history, [1, 2, 3])
        assert len(oks) == 1, call


def test_a_list_of_too_many_values_is_an_error_that_heals() -> None:
    types = (KEY, ColumnSpec("v", T.INT64, False))
    calls = [AggregateCall("array_agg", 1), AggregateCall("count")]
    got = at_times(types, calls, [((1, 5), 2)], [((1, 7), 1 << 40)], [((1, 7), -(1 << 40))])
    most = lists.MOST_ELEMENTS
    wrong = f"eval-error: array_agg of group (1) is of {most + 3} values, beyond {most}"
    fine = ({(1, (5, 5), 2)}, set())
    assert got == [fine, (set(), {wrong}), fine]


def test_an_input_that_does_not_grow_after_all_gives_an_error() -> None:
    types = (KEY, ColumnSpec("v", T.INT64, False))
    operator = ReduceOperator(types, (0,), [AggregateCall("max", 1)], monotonic=True)
    oks, errs = run(operator, [types], [(0, (1, 5), 0, 2), (0, (1, 5), 1, -1)], [1, 2])
    assert oks == [((1, 5), 0, 1)]
    assert [error for error, _, _ in errs] == [
        "invalid-data: max: group and value (1, 5) has multiplicity -1"
    ]


PAIR = RecordType((ColumnSpec("b", T.TEXT, True), ColumnSpec("a", T.BOOL, False)))
JSON_VALUES = [
    (T.BOOL, [True, False, None], "[false,true,null]"),
    (T.INT16, [-5, 32767], "[-5,32767]"),
    (T.UINT64, [2**64 - 1, 0], "[0,18446744073709551615]"),
    (T.INT64, [-(2**63), 10**18, 9, 10], "[-9223372036854775808,9,10,1000000000000000000]"),
    (T.FLOAT64, [0.1, 1e22, -0.0], "[0,0.1,10000000000000000000000]"),
    (T.FLOAT64, [INF, -INF, float("nan")], '["-Infinity","Infinity","NaN"]'),
    (T.FLOAT32, [np.float32(0.1).item(), 1.5], "[0.1,1.5]"),
    (T.TEXT, ['a"b\\\n\x01\u2028', ""], '["","a\\"b\\\\\\n\\u0001\u2028"]'),
    (T.JSONB, ['{"a":1}', "null"], '[null,{"a":1}]'),
    (T.BYTEA, [b"\x00\xff"], '["\\\\x00ff"]'),
    (T.DATE, [0, 15706], '["1970-01-01","2013-01-01"]'),
    (T.TIMESTAMP, [1_356_998_400_000_000], '["2013-01-01T00:00:00"]'),
    (T.TIMESTAMPTZ, [1_356_998_400_500_000], '["2013-01-01T00:00:00.5+00:00"]'),
    (T.INTERVAL, [(14, -3, 4 * 3600 * 10**9)], '["1 year 2 mons -3 days +04:00:00"]'),
    (ListType(ColumnSpec("element", T.INT64, True)), [[1, None], []], "[[],[1,null]]"),
    (PAIR, [("x", True)], '[{"a":true,"b":"x"}]'),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "values", "json"), JSON_VALUES, ids=lambda v: str(v)[:12])
def test_values_of_every_type_become_the_json_that_postgresql_makes(
    type_: Any, values: list[Any], json: str
) -> None:
    types = (KEY, ColumnSpec("v", type_, True))
    ((oks, errs),) = at_times(types, [AggregateCall("jsonb_agg", 1)], [((1, value), 1) for value in values])
    assert (oks, errs) == ({(1, json)}, set())
    assert canonical_json(json) == json


def test_each_aggregate_takes_the_types_that_it_declares_and_is_rendered_for_them() -> None:
    """And no other: whatever the rule lets through has an operator."""
    for function, rule in AGGREGATES.items():
        for column, _ in VALUES.values():
            args = [column, *[column] * (rule.arguments - 1)]
            types = tuple(from_wire(each) for each in args)
            call = AggregateCall(function, 0, args=tuple(range(1, len(args))))
            if rule.takes is not None and column.type not in rule.takes:
                with pytest.raises(ValueError, match=rf"{function} of"):
                    ReduceOperator(types, (), [call])
                continue
            for distinct in (False, True):
                each = AggregateCall(function, 0, "made", distinct, tuple(range(1, len(args))))
                assert ReduceOperator(types, (), [each]).schema[0].name == "made"


def test_a_square_taken_back_borrows_nothing_from_its_neighbours() -> None:
    """The window of small squares ends with the last word that is written: behind it rows are counted."""
    types = (ColumnSpec("k", T.INT16, False), ColumnSpec("v", T.FLOAT64, False))
    calls = [AggregateCall("stddev_pop", 1), AggregateCall("count"), AggregateCall("sum", 1)]
    history = [(10.0, 2, 1), (0.0, 2, 1), (1.0, 4, 2), (1.0, 5, -1)]
    changes: list[Change] = [(0, (0, value), time, diff) for value, time, diff in history]
    oks, _ = run(ReduceOperator(types, (0,), calls), [types], changes, [None])
    assert accumulate(oks, 5) == Counter({(0, math.sqrt(182 / 9), 3, 11.0): 1})
