"""Outer, semi and anti joins and multiset operations, as plans of the client, against their definitions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from clusterd.client.joins import (
    Side,
    anti_join,
    except_all,
    intersect_all,
    outer_join,
    semi_join,
)
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, SourceImport
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.plan import Get, Let, Plan
from controller_proto.schema import ColumnType as T
from controller_proto.schema import Schema
from controller_proto.typing_rules import plan_schema
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive, random_plans
from tests.clusterd.dataflow_text import schema
from tests.clusterd.mini_replica import MemoryShard, MiniReplica

Row = tuple[Any, ...]
History = list[tuple[Row, int, int]]

LEFT = schema("id bigint?", "name text")
RIGHT = schema("id bigint?", "score double precision", "more bigint?")
A, B = Side(Get("u1"), LEFT), Side(Get("u2"), RIGHT)
ON = [(0, 0)]
KINDS: dict[str, Callable[[bool], Plan]] = {
    "left": lambda null_safe: outer_join(A, B, ON, kind="left", null_safe=null_safe),
    "right": lambda null_safe: outer_join(A, B, ON, kind="right", null_safe=null_safe),
    "full": lambda null_safe: outer_join(A, B, ON, kind="full", null_safe=null_safe),
    "semi": lambda null_safe: semi_join(A, B, ON, null_safe=null_safe),
    "anti": lambda null_safe: anti_join(A, B, ON, null_safe=null_safe),
}


def defined(kind: str, null_safe: bool, left: Counter[Row], right: Counter[Row]) -> Counter[Row]:
    """What the kind of join means, row by row."""

    def meet(x: Row, y: Row) -> bool:
        return x[0] == y[0] and (null_safe or x[0] is not None)

    out: Counter[Row] = Counter()
    for x, n in left.items():
        partners = [(y, m) for y, m in right.items() if meet(x, y)]
        if kind in ("left", "right", "full"):
            for y, m in partners:
                out[x + y] += n * m
            if not partners and kind != "right":
                out[x + (None,) * RIGHT.arity] += n
        elif bool(partners) == (kind == "semi"):
            out[x] += n
    if kind in ("right", "full"):
        for y, m in right.items():
            if not any(meet(x, y) for x in left):
                out[(None,) * LEFT.arity + y] += m
    return out


def answers(
    plan: Plan, schemas: Sequence[Schema], histories: Sequence[History], uppers: Sequence[int], last: int
) -> list[naive.Collection]:
    """The plan over u1, u2, .. at times 0..last, its rounds cut at `uppers`."""
    ids = [f"u{n + 1}" for n in range(len(schemas))]
    env = dict(zip(ids, schemas, strict=True))
    with MiniReplica() as replica:
        for id, of in env.items():
            replica.shards[id] = MemoryShard(of)
        header = DataflowHeader(
            "d",
            0,
            None,
            tuple(SourceImport(id, id, of) for id, of in env.items()),
            (),
            (Export("u100", "index", "u90", plan_schema(plan, env), ()),),
        )
        replica.create(header, DataflowBody((Build("u90", plan),)))
        lower = 0
        for upper in uppers:
            for id, history in zip(ids, histories, strict=True):
                replica.shards[id].append([u for u in history if lower <= u[1] < upper], Frontier.at(upper))
            replica.drain()
            lower = upper
        return [replica.read("u100", time) for time in range(last + 1)]


def rows_at(history: History, time: int) -> Counter[Row]:
    counts: Counter[Row] = Counter()
    for row, when, diff in history:
        if when <= time:
            counts[tuple(map(naive.canonical, row))] += diff
    return Counter({row: n for row, n in counts.items() if n})


@pytest.mark.slow
@pytest.mark.parametrize("null_safe", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_time_equals_the_definition(kind: str, null_safe: bool) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        histories = [random_plans.history(rng, of, 25, 6) for of in (LEFT, RIGHT)]
        uppers = sorted({7, *(rng.randrange(1, 7) for _ in range(rng.randrange(4)))})
        got = answers(KINDS[kind](null_safe), (LEFT, RIGHT), histories, uppers, 6)
        for time in range(7):
            left, right = (rows_at(history, time) for history in histories)
            wanted = defined(kind, null_safe, left, right)
            assert got[time].rows == dict(wanted), f"seed {seed} time {time}"
            assert not got[time].errs


@pytest.mark.parametrize("uppers", [[1, 2, 3, 4, 5, 6, 7], [7], [4, 7]])
def test_bug35_a_key_that_lost_its_partner_is_seen_as_unmatched(uppers: list[int]) -> None:
    one = schema("k bigint")
    left: History = [((3,), 3, 1), ((3,), 4, 1), ((3,), 6, -2)]
    right: History = [((3,), 1, 1), ((3,), 2, -1), ((3,), 5, 1)]
    plan = outer_join(Side(Get("u1"), one), Side(Get("u2"), one), ON, kind="full")
    got = answers(plan, (one, one), (left, right), uppers, 6)
    assert [c.rows for c in got] == [
        {}, {(None, 3): 1}, {}, {(3, None): 1}, {(3, None): 2}, {(3, 3): 2}, {(None, 3): 1},
    ]  # fmt: skip


@pytest.mark.parametrize("uppers", [[1, 2, 3], [3]])
def test_bug36_a_full_self_join_over_a_null_key(uppers: list[int]) -> None:
    of = schema("id bigint", "a bigint?")
    t: History = [((1, None), 1, 1), ((2, 8), 1, 1), ((1, None), 2, -1)]
    me, on = Side(Get("u1"), of), [(1, 1)]
    kinds: dict[str, tuple[Plan, dict[Row, int]]] = {
        "full": (
            outer_join(me, me, on, kind="full"),
            {(1, None, None, None): 1, (None, None, 1, None): 1, (2, 8, 2, 8): 1},
        ),
        "left": (outer_join(me, me, on, kind="left"), {(1, None, None, None): 1, (2, 8, 2, 8): 1}),
        "right": (outer_join(me, me, on, kind="right"), {(None, None, 1, None): 1, (2, 8, 2, 8): 1}),
        "semi": (semi_join(me, me, on), {(2, 8): 1}),
        "anti": (anti_join(me, me, on), {(1, None): 1}),
    }
    for name, (plan, wanted) in kinds.items():
        got = answers(plan, (of,), (t,), uppers, 2)
        assert got[1].rows == wanted, name
        assert got[2].rows == {row: n for row, n in wanted.items() if 8 in row}, name


def test_bug77_a_key_that_fails_is_an_error_whatever_its_row_would_find() -> None:
    of = schema("k bigint", "v bigint")
    ten = Call("/", (Literal(T.INT64, 10), ColumnRef(1)))
    left: History = [((1, 0), 1, 1), ((1, 0), 2, -1), ((1, 5), 2, 1)]
    right: History = [((2, 2), 0, 1)]
    plan = outer_join(Side(Get("u1"), of), Side(Get("u2"), of), [(ten, 1)], kind="left")
    got = answers(plan, (of, of), (left, right), [3], 2)
    assert set(got[1].errs) == {"eval-error: division by zero"}
    assert not got[2].errs
    assert got[2].rows == {(1, 5, 2, 2): 1}


def test_a_side_may_use_the_names_that_a_join_would_bind() -> None:
    one = schema("k bigint")
    inner = outer_join(Side(Get("l0"), one), Side(Get("l1"), one), ON, kind="full")
    plan = Let("l0", Get("u1"), Let("l1", Get("u2"), inner))
    got = answers(plan, (one, one), ([((1,), 0, 1)], [((2,), 0, 1)]), [1], 0)
    assert got[0].rows == {(1, None): 1, (None, 2): 1}


def test_bug38_except_all_and_intersect_all() -> None:
    one = schema("x bigint")
    a: History = [((7,), 1, 3)]
    b: History = [((7,), 1, 1), ((7,), 2, 3), ((7,), 3, -2), ((7,), 4, -2)]
    for uppers in ([1, 2, 3, 4, 5], [5]):
        for plan, wanted in (
            (except_all(Get("u1"), Get("u2")), [0, 2, 0, 1, 3]),
            (intersect_all(Get("u1"), Get("u2")), [0, 1, 3, 2, 0]),
        ):
            got = answers(plan, (one, one), (a, b), uppers, 4)
            assert [c.rows.get((7,), 0) for c in got] == wanted
