"""What would run: golden physical plans, and what is refused by name before anything runs."""

from __future__ import annotations

import random
from collections import Counter
from textwrap import dedent

import msgspec
import pytest

from clusterd.convert import column_specs, wire_schema
from clusterd.dataflow.operator import Columns, Delta
from clusterd.operators.mfp import MfpOperator, Stage, StageSpec
from clusterd.render.explain import explain
from clusterd.render.plan import plan_dataflow
from clusterd.render.stages import behind_join, columns_after, merged, renumbered, traced
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export
from controller_proto.errors import Refusal
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.plan import Get, LetRec, Plan, TopK
from controller_proto.schema import ColumnType as T
from controller_proto.typing_rules import plan_schema
from shm_arrangements.types import ColumnSpec
from shm_arrangements.types import ColumnType as C
from shm_arrangements.updates import Updates
from tests.clusterd import random_plans
from tests.clusterd.dataflow_text import dataflow, index, schema

FLIGHTS = schema("carrier text", "origin text", "day bigint", "delay bigint?")
AIRLINES = schema("carrier text", "name text")
SHARDS = {
    "flights": FLIGHTS,
    "airlines": AIRLINES,
    "delays": schema("origin text", "day bigint", "delay bigint"),
    "airports": schema("day bigint", "code bigint"),
}
INDEXES = {
    **index("u11", "u1", FLIGHTS, 0),
    **index("u12", "u1", FLIGHTS, 2, 1),
    **index("u21", "u2", AIRLINES, 0),
    **index("u31", "u3", AIRLINES),
}


def explained(text: str) -> str:
    return explain(plan_dataflow(*dataflow(text, SHARDS, indexes=INDEXES), INDEXES))


def check(text: str, wanted: str) -> None:
    assert explained(text) == dedent(wanted).strip("\n")


def test_neighbouring_projections_filters_and_maps_are_one_operator() -> None:
    check(
        """
        import source=1 shard=flights upper=1
        build id=9
          Project (#4, #0)
            Filter #4 AND #3 IS NOT NULL
              Map (#3 > 3)
                Get u1
        export index=91 on=9 key=[1]
        """,
        """
        Export index u91 on=u9 key=[#1]
          Mfp map=(#3 > 3) filter=(#4 AND #3 IS NOT NULL) project=(#4, #0)
            Source u1
        """,
    )


def test_what_can_fail_is_not_merged_behind_a_filter_that_may_be_null() -> None:
    check(
        """
        import source=1 shard=flights upper=1
        build id=9
          Filter 10 / #3 > 1
            Filter #3 > 0
              Get u1
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Mfp filter=(#3 > 0) then filter=(10 / #3 > 1)
            Source u1
        """,
    )


def test_a_join_arranges_streams_and_looks_up_indexes_whose_key_it_is() -> None:
    check(
        """
        import source=1 shard=flights upper=1
        import index=21
        build id=9
          Reduce group_by=[#5] aggregates=[count(*), max(#3)]
            Join on=(#0 = #4)
              Get u1
              Get u2
        export index=91 on=9 key=[0]
        """,
        """
        Export index u91 on=u9 key=[#0]
          Reduce group_by=[#0] aggregates=[count(*), max(#1)]
            Join on=(#0 = #2) output=(#3, #1)
              Arrange key=[#0]
                Mfp project=(#0, #3)
                  Source u1
              Lookup index u21 key=[#0]
        """,
    )


def test_the_pairs_of_a_key_follow_the_index() -> None:
    check(
        """
        import index=12
        build id=9
          Join on=(#1 = #5 AND #2 = #6)
            Get u1
            Get u1
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#2 = #6 AND #1 = #5)
            Lookup index u12 key=[#2, #1]
            Lookup index u12 key=[#2, #1]
        """,
    )


def test_an_index_with_another_key_is_streamed() -> None:
    check(
        """
        import index=11
        import index=21
        build id=9
          Join on=(#1 = #4)
            Get u11
            Get u2
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#1 = #4)
            Arrange key=[#1]
              Stream index u11
            Lookup index u21 key=[#0]
        """,
    )


def test_harmless_stages_of_a_side_go_behind_the_join_that_looks_it_up() -> None:
    check(
        """
        import index=11
        import index=21
        build id=9
          Join on=(#1 = #3)
            Project (#1, #0)
              Get u2
            Project (#2, #0)
              Filter #3 > 5
                Get u1
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#0 = #2) output=(#0, #1, #2, #4, #5) then filter=(#4 > 5) project=(#1, #0, #3, #2)
            Lookup index u21 key=[#0]
            Lookup index u11 key=[#0]
        """,
    )


def test_stages_that_can_fail_stay_before_the_join_so_their_errors_need_no_partner() -> None:
    check(
        """
        import index=11
        import index=21
        build id=9
          Join on=(#0 = #5)
            Map (10 / #2)
              Get u1
            Get u2
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#0 = #5)
            Arrange key=[#0]
              Mfp map=(10 / #2)
                Stream index u11
            Lookup index u21 key=[#0]
        """,
    )


def test_more_members_of_an_equivalence_filter_their_side_and_mixed_ones_the_pairs() -> None:
    check(
        """
        import source=1 shard=delays upper=1
        import source=2 shard=airports upper=1
        build id=9
          Project (#0, #1, #4)
            Join on=(#1 = #3 = #2 = #2 + #4 AND #1 + 1 = #4)
              Get u1
              Get u2
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#1 = #4 AND #3 = #5) output=(#0, #1, #2, #5) then \
filter=(#1 = #2 + #3) project=(#0, #1, #3)
            Arrange key=[#1, #3]
              Mfp map=(#1 + 1) filter=(#1 = #2)
                Source u1
            Arrange key=[#0, #1]
              Source u2
        """,
    )


def test_equivalences_that_share_a_member_are_one() -> None:
    check(
        """
        import source=1 shard=flights upper=1
        import source=2 shard=airlines upper=1
        build id=9
          Join on=(#0 = #4 AND #0 = #5)
            Get u1
            Get u2
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#0 = #4)
            Arrange key=[#0]
              Source u1
            Arrange key=[#0]
              Mfp filter=(#0 = #1)
                Source u2
        """,
    )


def test_a_cross_join_uses_an_index_without_a_key() -> None:
    check(
        """
        import source=1 shard=flights upper=1
        import index=31
        build id=9
          CrossJoin
            Get u1
            Get u3
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join
            Arrange key=[]
              Source u1
            Lookup index u31 key=[]
        """,
    )


def test_a_shared_build_is_one_node_and_printed_once() -> None:
    check(
        """
        import source=2 shard=airlines upper=1
        build id=8
          Distinct project=[#1]
            Get u2
        build id=9
          Union
            Get u8
            Negate
              Get u8
        build id=7
          TopK order_by=[#0 desc] limit=3 offset=1
            Get u8
        export index=91 on=9 key=[]
        export index=71 on=7 key=[0]
        """,
        """
        Export index u91 on=u9 key=[]
          Union
            n0: Distinct
              Mfp project=(#1)
                Source u2
            Negate
              n0
        Export index u71 on=u7 key=[#0]
          TopK group_by=[] order_by=[#0 desc] limit=3 offset=1
            n0
        """,
    )


# Refusals.


def refused(plan: Plan) -> str:
    env = {"u1": FLIGHTS, "u2": AIRLINES}
    header, _ = dataflow(
        """
        import source=1 shard=flights upper=1
        import source=2 shard=airlines upper=1
        export index=91 on=1 key=[]
        """,
        SHARDS,
    )
    export = Export("u91", "index", "u9", plan_schema(plan, env))
    header = msgspec.structs.replace(header, exports=(export,))
    with pytest.raises(Refusal) as caught:
        plan_dataflow(header, DataflowBody((Build("u9", plan),)), {})
    assert caught.value.code == "invalid-plan"
    return caught.value.message


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            LetRec((("l0", AIRLINES, LetRec((("l1", AIRLINES, Get("l0")),), Get("l1"))),), Get("l0")),
            "node LetRec inside another that it depends on is not rendered by this version",
        ),
        (
            LetRec((("l0", AIRLINES, Get("u2")),), Get("l0"), limit=0),
            "node LetRec: a recursion_limit is at least 1",
        ),
    ],
)
def test_what_is_not_rendered_is_refused_by_name(plan: Plan, message: str) -> None:
    assert refused(plan).startswith(f"build u9: {message}")


def test_a_bound_that_reads_no_column_is_a_number_of_rows() -> None:
    assert "limit -1 is not a number of rows" in refused(TopK(Get("u1"), (), (), Literal(T.INT64, -1)))
    failing = Call("/", (Literal(T.INT64, 1), Literal(T.INT64, 0)))
    assert "limit fails" in refused(TopK(Get("u1"), (), (), failing))
    assert "offset fails" in refused(TopK(Get("u1"), (), (), None, failing))
    assert "offset -1 is not" in refused(TopK(Get("u1"), (), (), None, Literal(T.INT64, -1)))


# Rewriting of stages, held to running them one by one.


def run(stages: list[StageSpec], columns: Columns, updates: Updates) -> tuple[list[str], list[str]]:
    out = [*MfpOperator(stages, columns).push(0, Delta.of(updates))]
    return sorted(map(repr, out[0].oks.to_rows())), sorted(map(repr, out[0].errs.to_rows()))


def random_stages(
    rng: random.Random, n: int, *, asks_time: bool = False
) -> tuple[list[StageSpec], Columns, Updates]:
    of = random_plans.schema(rng)
    columns = column_specs(of)
    rows = random_plans.history(rng, of, 20, 3)
    updates = Updates.from_rows([c.type for c in columns], rows)
    stages: list[StageSpec] = []
    for _ in range(n):
        now = wire_schema(columns_after(stages, columns))
        if not now.arity:
            break
        plans = random_plans.Plans(rng, {"u1": now})
        plans.asks_time = asks_time
        made = plans.mfp(Get("u1"))
        stages.append(StageSpec(made.maps, made.predicates, made.projection))
    return stages, columns, updates


@pytest.mark.slow
def test_merged_stages_do_what_they_do_one_by_one() -> None:
    fewer = 0
    for seed in range(150):
        print(f"seed {seed}")
        stages, columns, updates = random_stages(random.Random(seed), 4)
        less = list(merged(stages, columns))
        fewer += len(stages) - len(less)
        assert run(less, columns, updates) == run(stages, columns, updates)
    assert fewer > 150


def run_at(
    time: int, stages: list[StageSpec], columns: Columns, updates: Updates
) -> tuple[Counter[str], Counter[str]]:
    failed: list[object] = []
    updates = updates.filter(updates.times <= time)
    for spec in stages:
        stage = Stage(spec, columns)
        updates, errs = stage.at(time, updates)
        failed += [] if errs is None else [(row, diff) for row, _, diff in errs.to_rows()]
        columns = stage.columns
    return Counter(repr((row, diff)) for row, _, diff in updates.to_rows()), Counter(map(repr, failed))


@pytest.mark.slow
def test_merged_stages_that_ask_the_time_do_at_any_what_they_do_one_by_one() -> None:
    fewer = 0
    for seed in range(300):
        print(f"seed {seed}")
        stages, columns, updates = random_stages(random.Random(seed), 4, asks_time=True)
        less = list(merged(stages, columns))
        fewer += len(stages) - len(less) if any(stage.is_temporal for stage in stages) else 0
        for time in range(8):
            assert run_at(time, less, columns, updates) == run_at(time, stages, columns, updates)
    assert fewer > 150


@pytest.mark.slow
def test_stages_behind_a_join_leave_the_other_side_alone() -> None:
    for seed in range(80):
        print(f"seed {seed}")
        check_behind_a_join(seed)


def check_behind_a_join(seed: int) -> None:
    rng = random.Random(seed)
    stages, columns, updates = random_stages(rng, 2)
    other = (ColumnSpec("left", C.INT64, False), ColumnSpec("right", C.TEXT, False))
    wide = (other[0], *columns, other[1])
    n = len(updates)
    more = Updates.from_rows([C.INT64, C.TEXT], [((i, str(i)), 0, 1) for i in range(n)])
    joined = Updates((more.columns[0], *updates.columns, more.columns[1]), updates.times, updates.diffs)
    later = behind_join(stages, len(columns), left=1, right=1)
    got = MfpOperator(later, wide).push(0, Delta.of(joined)).__next__()
    wanted = MfpOperator(stages, columns).push(0, Delta.of(updates)).__next__()
    trimmed = Updates(got.oks.columns[1:-1], got.oks.times, got.oks.diffs)
    assert sorted(map(repr, trimmed.to_rows())) == sorted(map(repr, wanted.oks.to_rows()))
    assert sorted(map(repr, got.errs.to_rows())) == sorted(map(repr, wanted.errs.to_rows()))
    for column in range(len(wanted.oks.columns)):
        origin = traced(stages, len(columns), column)
        if origin is not None and len(wanted.oks) == n:
            shown = (updates.columns[origin], wanted.oks.columns[column])
            assert repr(shown[0].to_pylist()) == repr(shown[1].to_pylist())


def test_a_header_without_exports_has_nothing_to_plan() -> None:
    with pytest.raises(Refusal, match="nothing is exported"):
        plan_dataflow(DataflowHeader("d", 0, None, (), (), ()), DataflowBody(()), {})


def test_renumbering_reaches_every_column() -> None:
    expr = Call("and", (Call("is_null", (ColumnRef(1),)), Call("=", (ColumnRef(2), Literal(T.INT64, 1)))))
    assert renumbered(expr, lambda i: i + 1) == Call(
        "and", (Call("is_null", (ColumnRef(2),)), Call("=", (ColumnRef(3), Literal(T.INT64, 1))))
    )
