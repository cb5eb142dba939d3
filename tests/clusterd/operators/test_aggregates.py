"""Every aggregate of every type it takes against recomputation at every time, and where results end."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from clusterd.dataflow.operator import Columns
from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.ordered import OrderColumn
from clusterd.operators.reduce import ReduceOperator
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
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
