"""`monotonic` above what takes rows away by itself is refused, and nowhere else."""

from __future__ import annotations

import pytest

from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, SourceImport
from controller_proto.errors import Refusal
from controller_proto.parse_plan import parse_plan
from controller_proto.schema import Column, ColumnType, Schema
from controller_proto.validate import validate

PAIR = Schema((Column("k", ColumnType.INT64), Column("v", ColumnType.INT64)))
ABOVE = {
    "Reduce": "Reduce group_by=[#0] aggregates=[max(#1)] monotonic",
    "TopK": "TopK group_by=[#0] order_by=[#1] limit=1 monotonic",
}


def check(*plans: str, until: int | None = None) -> None:
    """Raises: Refusal, but for what an export says that is not so."""
    builds = [Build(f"u{9 + at}", parse_plan(plan.split("\n"))) for at, plan in enumerate(plans)]
    header = DataflowHeader(
        "d", 7, until, (SourceImport("u1", "s", PAIR),), (), (Export("u30", "index", "u1", PAIR, (0,)),)
    )
    validate(header, DataflowBody(tuple(builds)), {})


def under(operator: str, plan: str) -> str:
    lines = plan.split("\n")
    return "\n".join([ABOVE[operator], *(f"  {line}" for line in lines)])


TAKES_AWAY = {
    "a Negate": "Union\n  Get u1\n  Negate\n    Get u1",
    "a temporal filter that lets rows go": "Filter now_ts() BETWEEN #1 AND #1 + 10\n  Get u1",
    "a TopK": "TopK group_by=[#0] order_by=[#1] limit=1\n  Get u1",
    "a Reduce with aggregates": "Map (1)\n  Reduce aggregates=[count(*)]\n    Get u1",
}
GROWS = [
    "Get u1",
    "Threshold\n  Distinct project=[#0, #1]\n    Get u1",
    "Filter (now_ts() > #1) AND (#0 > 1)\n  Get u1",
    "Project (#0, #1)\n  Join on=(#0 = #2)\n    Get u1\n    FlatMap generate_series(1, 3, 1)\n      Get u1",
    "Union\n  Get u1\n  Get u1",
]


@pytest.mark.parametrize("operator", ABOVE)
@pytest.mark.parametrize("what", TAKES_AWAY)
def test_monotonic_above_what_takes_rows_away_is_refused_by_name(operator: str, what: str) -> None:
    with pytest.raises(Refusal) as refused:
        check(under(operator, TAKES_AWAY[what]))
    assert refused.value.code == "invalid-plan"
    said = f"build u9: a monotonic {operator} stands on {what}, which takes rows away"
    assert said in str(refused.value)
    check(under(operator, TAKES_AWAY[what]).replace(" monotonic", ""))
    check(under(operator, TAKES_AWAY[what]), until=8)  # of one time: nothing goes


@pytest.mark.parametrize("operator", ABOVE)
@pytest.mark.parametrize("plan", GROWS)
def test_monotonic_above_what_makes_more_of_more_is_accepted(operator: str, plan: str) -> None:
    check(under(operator, plan))
