"""Random dataflows, as test_render_random plays them, against DuckDB at every time.

A second oracle: its answers owe nothing to the naive interpreter, nor to anybody's reading of a plan but the
translation to SQL in sql_plans.py, which also says where the two differ and what is left out for it.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from typing import Any

import duckdb
import pytest

from controller_proto.plan import Plan
from controller_proto.schema import ColumnType, Schema
from controller_proto.typing_rules import plan_schema
from tests.clusterd import naive, sql_plans
from tests.clusterd.test_render_random import Case, patiently

MOST_ROWS = 20_000  # of an answer; beyond it the case is given up
CLAIMED = {
    "map", "filter", "project", "join differential", "join delta", "join null-safe", "join of 3 or more",
    "cross join", "distinct", "reduce", "reduce without key", "count(*)",
    "aggregate of distinct values", "count", "sum", "min", "max", "bool_and", "bool_or", "string_agg",
    "top-k", "top-k in groups", "top-k with offset", "top-k without limit", "threshold", "union", "negate",
    "let", "flat-map", "constant", "case", "coalesce",
}  # fmt: skip
EPOCH = datetime.date(1970, 1, 1)


def plain(value: Any) -> Any:
    """What DuckDB gives, as the naive interpreter has it."""
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return (value - EPOCH).days
    if isinstance(value, float):
        return naive.NAN if math.isnan(value) else value + 0.0
    return value


class SqlCase(Case):
    """Its answers come from DuckDB."""

    signed_share = 0.0
    domain = sql_plans.DOMAIN

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.db = duckdb.connect(config={"threads": 1})
        self.schemas = dict(self.env)

    def schema(self, shared: ColumnType | None) -> Schema:
        return sql_plans.schema(self.rng)

    def plan(self, env: dict[str, Schema], depth: int) -> Plan:
        self.schemas |= env
        return self.said_to_grow(sql_plans.SqlPlans(self.rng, env).plan(depth))

    def answer(self, plan: Plan, inputs: dict[str, naive.Collection], at: int) -> naive.Collection:
        if math.prod(len(each.rows) for each in inputs.values()) > MOST_ROWS:
            raise naive.TooLarge
        env = {id: self.schemas[id] for id in inputs}
        query = sql_plans.Translator(env, {id: each.rows for id, each in inputs.items()}).select(plan)
        types = plan_schema(plan, env).types
        out = naive.Collection(types)
        cursor = self.db.execute(query)
        for row, count in Counter(cursor.fetchmany(MOST_ROWS)).items():
            out.add(tuple(map(plain, row[: len(types)])), count)
        if cursor.fetchone() is not None:
            raise naive.TooLarge
        return out


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_no_answer_differs_from_duckdbs(block: int) -> None:
    built = [kinds for seed in range(block * 25, block * 25 + 25) for kinds in patiently(seed, SqlCase)]
    assert len(built) > 60


@pytest.mark.soak
@pytest.mark.parametrize("block", range(4))
def test_many_plans_give_no_answer_that_differs_from_duckdbs(block: int) -> None:
    first = 1_000 + block * 250
    built = [kinds for seed in range(first, first + 250) for kinds in patiently(seed, SqlCase)]
    assert len(built) > 750
    found = set().union(*built)
    assert found >= CLAIMED, CLAIMED - found
