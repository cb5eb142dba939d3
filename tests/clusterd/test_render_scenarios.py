"""Scenarios of operators whose point is in the updates: what is told at each time, and what is not.

The same dataflows by both kinds of join must tell the same, and a change that does not show must tell
nothing; an answer read at a time, as scripts read it, would hide updates that cancel. No daemon.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from controller_proto.schema import Schema
from shm_arrangements.frontier import Frontier
from shm_arrangements.read import updates_between
from tests.clusterd import naive
from tests.clusterd.dataflow_text import dataflow, schema
from tests.clusterd.mini_replica import MemoryShard, MiniReplica

Row = tuple[Any, ...]
History = Sequence[tuple[Row, int, int]]
Told = list[dict[Row, int]]
KV = schema("k bigint", "v bigint?")
KEYS = schema("k bigint?", "v text")


class Played:
    """What a dataflow told at each time, by export, and what it is read as."""

    def __init__(self) -> None:
        self.told: dict[str, Told] = {}
        self.batched: dict[str, int] = {}
        self.read: dict[str, list[naive.Collection]] = {}


def play(
    text: str,
    schemas: Mapping[str, Schema],
    histories: Mapping[str, History],
    *,
    last: int,
    cut: bool,
    over: str = "",
) -> Played:
    """One dataflow, from the start. cut: a round a time, else all in one. over: what makes its indexes."""
    played = Played()
    with MiniReplica() as replica:
        for name, of in schemas.items():
            replica.shards[name] = MemoryShard(of)
        if over:
            replica.create(*dataflow(over, schemas, name="d1"))
        header, body = dataflow(text, schemas, name="d2", indexes=replica.exports)
        replica.create(header, body)
        uppers = range(1, last + 2) if cut else [last + 1]
        for lower, upper in itertools.pairwise([0, *uppers]):
            for name, history in histories.items():
                ready = [u for u in history if lower <= u[1] < upper]
                replica.shards[name].append(ready, Frontier.at(upper))
            replica.drain()
        for export in header.exports:
            half = replica.indexes[export.id].oks
            batches = half.reader().batches()
            updates = updates_between(batches, -1, last, schema=half.schema)
            told: Told = [{} for _ in range(last + 1)]
            columns = [column.to_pylist() for column in updates.columns]
            rows = zip(*columns, strict=True) if columns else iter([()] * len(updates))
            for row, time, diff in zip(rows, updates.times.tolist(), updates.diffs.tolist(), strict=True):
                told[time][row] = told[time].get(row, 0) + diff
            played.told[export.id] = told
            played.batched[export.id] = sum(len(batch) for batch in batches)
            played.read[export.id] = [replica.read(export.id, time) for time in range(last + 1)]
    return played


def both_cuts(*args: Any, **kwargs: Any) -> Played:
    """Played in rounds of one time and in one round: the same is told."""
    ticks, whole = (play(*args, cut=cut, **kwargs) for cut in (True, False))
    assert ticks.told == whole.told
    assert ticks.read == whole.read
    return ticks


CHAIN = "#0 = #2 AND #1 = #4 AND #5 = #6"
STAR = "#0 = #2 = #4 = #6"
FOUR = """
import source=1 shard=a upper=1
import source=2 shard=b upper=1
import source=3 shard=c upper=1
import source=4 shard=d upper=1
build id=90
  Join on=({on}) type={kind}
    Get u1
    Get u2
    Get u3
    Get u4
export index=100 on=90 key=[0]
"""


def joined(histories: Sequence[History], on: Sequence[tuple[int, int]], time: int) -> Counter[Row]:
    """The join by its definition. on: pairs of columns of the joined row."""
    sides = []
    for history in histories:
        counts: Counter[Row] = Counter()
        for row, when, diff in history:
            counts[row] += diff if when <= time else 0
        sides.append([(row, count) for row, count in counts.items() if count])
    out: Counter[Row] = Counter()
    for parts in itertools.product(*sides):
        row = tuple(cell for part, _ in parts for cell in part)
        if all(row[a] == row[b] is not None for a, b in on):
            product = 1
            for _, count in parts:
                product *= count
            out[row] += product
    return out


FOUR_HISTORIES: dict[str, History] = {
    "a": [((1, 2), 0, 1), ((1, 3), 0, 1), ((2, 2), 0, 1), ((2, 3), 1, 1), ((5, 5), 2, 1)],
    "b": [((1, 9), 0, 1), ((2, 8), 0, 1), ((1, 9), 1, -1), ((5, 1), 2, 1)],
    "c": [((2, 5), 0, 1), ((3, 6), 0, 1), ((2, 7), 1, 1), ((5, 5), 2, 1)],
    "d": [((5, 50), 0, 1), ((6, 60), 0, 1), ((7, 70), 0, 1), ((5, 51), 2, 1), ((1, 1), 3, 1)],
}


@pytest.mark.parametrize("shape", ["chain", "star"])
def test_c4_c5_chains_and_stars_tell_the_same_by_both_kinds_of_join(shape: str) -> None:
    on = {"chain": [(0, 2), (1, 4), (5, 6)], "star": [(0, 2), (2, 4), (4, 6)]}[shape]
    schemas = dict.fromkeys("abcd", schema("x bigint", "y bigint"))
    told = {}
    for kind in ("differential", "delta"):
        text = FOUR.format(on=CHAIN if shape == "chain" else STAR, kind=kind)
        played = both_cuts(text, schemas, FOUR_HISTORIES, last=3)
        told[kind] = played.told["u100"]
        for time in range(4):
            wanted = joined(list(FOUR_HISTORIES.values()), on, time)
            assert played.read["u100"][time].rows == dict(wanted), (kind, time)
    assert told["differential"] == told["delta"]
    if shape == "chain":
        shown = [Counter(row[7] for row in told["delta"][0])]
        assert shown == [Counter({50: 2, 60: 1})]


def test_c6_matching_rows_that_come_to_every_input_of_a_star_at_once_make_one_row() -> None:
    schemas = dict.fromkeys("abcd", schema("x bigint", "y bigint"))
    histories: dict[str, History] = {name: [((1, n), 1, 1)] for n, name in enumerate("abcd")}
    for kind in ("differential", "delta"):
        told = both_cuts(FOUR.format(on=STAR, kind=kind), schemas, histories, last=2).told["u100"]
        assert told == [{}, {(1, 0, 1, 1, 1, 2, 1, 3): 1}, {}]


OVER = """
import source=1 shard=a upper=1
import source=2 shard=b upper=1
export index=11 on=1 key=[0]
export index=12 on=2 key=[0]
"""
NULLS = """
{imports}
build id=90
  Join on=(#0 = #2){how}
    Get u1
    Get u2
build id=91
  Join on=(#0 = #2 = #4) type=delta{how}
    Get u1
    Get u2
    Get u1
export index=100 on=90 key=[0]
export index=101 on=91 key=[0]
"""
SHARDS = "import source=1 shard=a upper=1\nimport source=2 shard=b upper=1"
INDEXES = "import index=11\nimport index=12"


@pytest.mark.parametrize("inputs", ["local", "shared", "one shared"])
@pytest.mark.parametrize("null_safe", [False, True])
def test_c10_null_keys_match_only_if_asked_by_local_and_shared_arrangements(
    null_safe: bool, inputs: str
) -> None:
    histories: dict[str, History] = {
        "a": [((None, "a"), 0, 1), ((1, "b"), 0, 1)],
        "b": [((None, "x"), 0, 1), ((1, "y"), 0, 1), ((None, "x"), 1, -1)],
    }
    imports = {
        "local": SHARDS, "shared": INDEXES, "one shared": "import index=11\nimport source=2 shard=b upper=1",
    }[inputs]  # fmt: skip
    text = NULLS.format(imports=imports, how=" null_safe" if null_safe else "")
    over = "" if inputs == "local" else OVER
    played = both_cuts(text, {"a": KEYS, "b": KEYS}, histories, last=1, over=over)
    plain, null = (1, "b", 1, "y"), (None, "a", None, "x")
    assert played.told["u100"] == [
        {plain: 1} | ({null: 1} if null_safe else {}),
        {null: -1} if null_safe else {},
    ]
    three = [row + row[:2] for row in (plain, null)]
    assert played.told["u101"] == [
        {three[0]: 1} | ({three[1]: 1} if null_safe else {}), {three[1]: -1} if null_safe else {},
    ]  # fmt: skip


def one(plan: str) -> str:
    lines = "\n".join("  " + line for line in plan.strip("\n").splitlines())
    return f"import source=1 shard=s upper=1\nbuild id=90\n{lines}\nexport index=100 on=90 key=[]"


def told(plan: str, history: History, last: int, of: Schema = KV) -> Told:
    return both_cuts(one(plan), {"s": of}, {"s": history}, last=last).told["u100"]


@pytest.mark.parametrize("monotonic", ["", " monotonic"])
def test_c17_a_value_below_the_greatest_tells_nothing(monotonic: str) -> None:
    plan = f"Reduce group_by=[#0] aggregates=[max(#1)]{monotonic}\n  Get u1"
    history: History = [((1, 5), 0, 1), ((1, 3), 1, 1), ((1, None), 1, 1), ((1, 8), 2, 1)]
    assert told(plan, history, 2) == [{(1, 5): 1}, {}, {(1, 5): -1, (1, 8): 1}]


def test_c21_a_copy_of_a_distinct_value_that_goes_tells_nothing() -> None:
    history: History = [((1, 5), 0, 3), ((1, 6), 0, 1), ((1, 5), 1, -2), ((1, 5), 2, -1)]
    alone = "Reduce group_by=[#0] aggregates=[count(distinct #1), sum(distinct #1)]\n  Get u1"
    assert told(alone, history, 2) == [{(1, 2, 11): 1}, {}, {(1, 2, 11): -1, (1, 1, 6): 1}]
    mixed = "Reduce group_by=[#0] aggregates=[sum(#1), sum(distinct #1)]\n  Get u1"
    steps = [(1, 21, 11), (1, 11, 11), (1, 6, 6)]
    assert told(mixed, history, 2) == [
        {steps[0]: 1}, {steps[0]: -1, steps[1]: 1}, {steps[1]: -1, steps[2]: 1},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "plan",
    [
        "Distinct project=[#0]\n  Get u1",
        "Reduce group_by=[#0] aggregates=[min(#0)]\n  Get u1",
        "TopK group_by=[#0] limit=1\n  Project (#0)\n    Get u1",
        "Distinct project=[#0]\n  Threshold\n    Get u1",
    ],
)
def test_c22_a_copy_that_goes_tells_nothing(plan: str) -> None:
    history: History = [((1, 0), 0, 2), ((2, 0), 0, 1), ((1, 0), 1, -1), ((1, 0), 2, -1)]
    found = told(plan, history, 2)
    assert [sum(map(abs, each.values())) for each in found] == [2, 0, 1]
    assert [next(iter(each))[0] for each in found if len(each) == 1] == [1]


def test_c31_a_union_with_its_own_negation_keeps_no_update() -> None:
    plan = "Union\n  Get u1\n  Negate\n    Get u1"
    history: History = [((n % 7, n), n % 4, 1) for n in range(50)] + [((3, 3), 3, -1)]
    for cut in (True, False):
        played = play(one(plan), {"s": KV}, {"s": history}, last=4, cut=cut)
        assert played.batched == {"u100": 0}
        assert all(not each.rows for each in played.read["u100"])


def test_c23_a_number_that_comes_and_goes_a_thousand_times_leaves_no_update() -> None:
    of = schema("k bigint", "x double precision")
    plan = "Reduce group_by=[#0] aggregates=[sum(#1)]\n  Get u1"
    history: History = [((1, 0.1), n % 2, 1 if n % 2 == 0 else -1) for n in range(2000)]
    found = told(plan, history, 1, of)
    assert found[1] == {row: -1 for row in found[0]}
    assert list(found[0]) == [(1, 100.0)]


CLASSES = ["#3 = #5", "#5 = 0", "1 = 1 + #0", "#3 = 1"]


@pytest.mark.parametrize("kind", ["differential", "delta"])
def test_a_column_of_an_index_that_is_shown_twice_may_be_in_two_classes(kind: str) -> None:
    text = f"""
import index=11
import index=12
build id=90
  Join on=(#0 = #2 AND #1 = #3 = #4) type={kind}
    Project (#0, #0)
      Get u1
    Get u2
    Project (#1)
      Get u2
export index=100 on=90 key=[0]
"""
    rows: dict[str, History] = {
        "a": [((1, 1), 0, 1), ((2, 1), 0, 1)],
        "b": [((1, 1), 0, 1), ((2, 1), 0, 1), ((2, 2), 1, 1)],
    }
    found = both_cuts(text, {"a": KV, "b": KV}, rows, last=1, over=OVER).read["u100"]
    assert [each.rows for each in found] == [{(1, 1, 1, 1, 1): 2}, {(1, 1, 1, 1, 1): 2, (2, 2, 2, 2, 2): 1}]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
@pytest.mark.parametrize("kind", ["differential", "delta"])
def test_equalities_that_contradict_each_other_hide_what_fails_beside_them(
    kind: str, order: tuple[int, ...]
) -> None:
    """Two literals in one class: no row has both, so whether a third member fails is not asked."""
    on = " AND ".join(CLASSES[n] for n in order) + " AND #3 = 1 + #0"
    text = f"""
import source=1 shard=a upper=1
import source=2 shard=b upper=1
import source=3 shard=c upper=1
build id=90
  Join on=({on}) type={kind}
    Get u1
    Get u2
    Get u3
export index=100 on=90 key=[0]
"""
    of = schema("x bigint", "y bigint?")
    histories: dict[str, History] = {
        "a": [((naive.I64_MAX, 1), 0, 1), ((0, 1), 0, 1)],
        "b": [((0, 1), 0, 1), ((0, None), 0, 1)],
        "c": [((0, 0), 0, 1), ((0, 1), 0, 1), ((0, None), 1, 1)],
    }
    played = both_cuts(text, dict.fromkeys("abc", of), histories, last=1)
    for found in played.read["u100"]:
        assert (found.rows, found.errs) == ({}, {})


def test_of_three_expressions_two_that_differ_hide_the_third_that_fails_in_any_order() -> None:
    members = ["1 / #0", "#0 + 1", "#0 * 3"]
    of = schema("x bigint", "y bigint")
    histories: dict[str, History] = {"s": [((0, 1), 0, 1), ((naive.I64_MAX, 1), 1, 1)]}
    for order in itertools.permutations(members):
        plan = f"Join on=({' = '.join(order)})\n  Get u1\n  Get u1"
        found = both_cuts(one(plan), {"s": of}, histories, last=1).read["u100"]
        # 0: division by zero beside 1 and 0. The greatest: 0 beside two that are out of range.
        assert [set(each.errs) for each in found] == [set(), {"eval-error: bigint out of range"}]
