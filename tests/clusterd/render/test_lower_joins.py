"""What joins, bindings, table functions and constants become: golden physical plans, always the same."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

from clusterd.render.explain import explain
from clusterd.render.plan import plan_dataflow
from tests.clusterd.dataflow_text import dataflow, index, schema

FLIGHTS = schema("carrier text", "origin text", "day bigint", "delay bigint?")
AIRLINES = schema("carrier text", "name text")
COUNTS = schema("origin text", "n bigint", "day bigint")
SHARDS = {
    "delays": schema("origin text", "day bigint", "delay bigint"),
    "airports": schema("day bigint", "code bigint"),
}
INDEXES = {
    **index("u11", "u1", FLIGHTS, 0),
    **index("u12", "u1", FLIGHTS, 2, 1),
    **index("u21", "u2", AIRLINES, 0),
    **index("u31", "u3", AIRLINES),
    **index("u51", "u5", COUNTS, 0, 2),
}


def explained(text: str) -> str:
    return explain(plan_dataflow(*dataflow(text, SHARDS, indexes=INDEXES), INDEXES))


def check(text: str, wanted: str) -> None:
    assert explained(text) == dedent(wanted).strip("\n")


def test_the_order_of_a_linear_join_begins_with_an_index_and_goes_on_where_it_is_connected() -> None:
    check(
        """
        import source=1 shard=delays upper=1
        import source=2 shard=airports upper=1
        import index=31
        import index=51
        build id=9
          Project (#0, #4, #8)
            Join on=(#1 = #3 AND #0 = #7 AND #0 = #5 AND #1 = #9)
              Get u1
              Get u2
              Get u3
              Get u5
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#0 = #4) output=(#0, #3, #2)
            Arrange key=[#0]
              Join on=(#1 = #5) output=(#0, #2, #3, #6)
                Arrange key=[#1]
                  Join on=(#0 = #2 AND #1 = #4)
                    Arrange key=[#0, #1]
                      Mfp project=(#0, #1)
                        Source u1
                    Lookup index u51 key=[#0, #2]
                Arrange key=[#0]
                  Source u2
            Arrange key=[#0]
              Mfp project=(#0)
                Stream index u31
        """,
    )


def test_indexes_with_the_key_in_other_orders_are_both_looked_up_and_neither_is_copied() -> None:
    check(
        """
        import index=12
        import index=51
        build id=9
          Join on=(#1 = #4 AND #2 = #6)
            Filter #3 > 5
              Get u1
            Get u5
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          DeltaJoin
            Input 0 filter=(#3 > 5)
              Lookup index u12 key=[#2, #1]
            Input 1
              Lookup index u51 key=[#0, #2]
            Path 0: input 1 on=(#1 = #4 AND #2 = #6)
            Path 1: input 0 on=(#6 = #2 AND #4 = #1)
        """,
    )


def test_a_delta_join_is_made_where_every_lookup_has_an_index_and_tests_an_input_before_it_looks_up() -> None:
    check(
        """
        import index=11
        import index=12
        import index=21
        import index=51
        build id=9
          Project (#5, #7)
            Filter #3 > 10
              Join on=(#0 = #4 AND #1 = #6 AND #2 = #8)
                Get u1
                Get u2
                Get u5
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          DeltaJoin output=(#5, #7)
            Input 0 filter=(#3 > 10)
              Lookup index u11 key=[#0]
              Lookup index u12 key=[#2, #1]
            Input 1
              Lookup index u21 key=[#0]
            Input 2
              Lookup index u51 key=[#0, #2]
            Path 0: input 2 on=(#1 = #6 AND #2 = #8), input 1 on=(#0 = #4)
            Path 1: input 0 on=(#4 = #0), input 2 on=(#1 = #6 AND #2 = #8)
            Path 2: input 0 on=(#8 = #2 AND #6 = #1), input 1 on=(#0 = #4)
        """,
    )


def test_a_delta_join_that_is_asked_for_arranges_what_has_no_index_by_every_key_once() -> None:
    check(
        """
        import source=1 shard=delays upper=1
        import source=2 shard=airports upper=1
        import index=51
        build id=9
          Project (#0, #4, #6)
            Join on=(#1 = #3 AND #0 = #5) type=delta
              Get u1
              Get u2
              Get u5
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          DeltaJoin output=(#0, #3, #5)
            Input 0
              Arrange key=[#1]
                n0: Mfp project=(#0, #1)
                  Source u1
              Arrange key=[#0]
                n0
            Input 1
              Arrange key=[#0]
                Source u2
            Input 2
              Arrange key=[#0]
                Stream index u51
            Path 0: input 1 on=(#1 = #2), input 2 on=(#0 = #4)
            Path 1: input 0 on=(#2 = #1), input 2 on=(#0 = #4)
            Path 2: input 0 on=(#4 = #0), input 1 on=(#1 = #2)
        """,
    )


def test_predicates_of_one_input_go_below_the_join_if_they_cannot_fail() -> None:
    check(
        """
        import source=1 shard=delays upper=1
        import source=2 shard=airports upper=1
        build id=9
          Filter #2 > 3 AND #4 = 7 AND #2 < #4 AND 1 / #2 = 1
            Join on=(#1 = #3)
              Get u1
              Get u2
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#1 = #3) then filter=(#2 < #4 AND 1 / #2 = 1)
            Arrange key=[#1]
              Mfp filter=(#2 > 3)
                Source u1
            Arrange key=[#0]
              Mfp filter=(#1 = 7)
                Source u2
        """,
    )


def test_bug10_a_self_join_reads_one_arrangement() -> None:
    check(
        """
        import source=1 shard=delays upper=1
        build id=9
          Project (#0, #5)
            Join on=(#1 = #4)
              Get u1
              Get u1
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join on=(#1 = #4) output=(#0, #5)
            n0: Arrange key=[#1]
              Source u1
            n0
        """,
    )


def test_a_binding_is_one_node_that_all_its_readers_share() -> None:
    check(
        """
        import source=1 shard=delays upper=1
        build id=9
          With
            cte l0 =
              Filter #2 > 0
                Get u1
            cte l1 =
              Reduce group_by=[#0] aggregates=[max(#2)]
                Get l0
          Return
            Union
              Join on=(#0 = #3 AND #2 = #4)
                Get l0
                Get l1
              Join on=(#0 = #3)
                Get l0
                Get l1
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Union
            Join on=(#0 = #3 AND #2 = #4)
              Arrange key=[#0, #2]
                n0: Mfp filter=(#2 > 0)
                  Source u1
              Arrange key=[#0, #1]
                n1: Reduce group_by=[#0] aggregates=[max(#1)]
                  Mfp project=(#0, #2)
                    n0
            Join on=(#0 = #3)
              Arrange key=[#0]
                n0
              Arrange key=[#0]
                n1
        """,
    )


def test_predicates_of_the_input_go_below_a_table_function_that_cannot_fail() -> None:
    check(
        """
        import source=1 shard=delays upper=1
        build id=9
          Project (#0, #3)
            Filter #1 > 0 AND #3 > 1
              FlatMap generate_series(1, #2)
                Get u1
        build id=8
          Filter #1 > 0
            FlatMap generate_series(1, #2 + 1)
              Get u1
        build id=7
          Threshold
            Union
              Constant // { types: "(bigint, text)" }
                - (1, "a")
                - ((2, "b") x -2)
              Constant <empty> // { types: "(bigint, text)" }
        export index=91 on=9 key=[]
        export index=81 on=8 key=[]
        export index=71 on=7 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Mfp filter=(#1 > 1)
            FlatMap generate_series(1, #1) keep=[#0]
              Mfp filter=(#1 > 0) project=(#0, #2)
                Source u1
        Export index u81 on=u8 key=[]
          Mfp filter=(#1 > 0)
            FlatMap generate_series(1, #3) keep=[#0, #1, #2]
              Mfp map=(#2 + 1)
                Source u1
        Export index u71 on=u7 key=[]
          Threshold
            Union
              Constant // { types: "(bigint, text)" }
                - (1, "a")
                - ((2, "b") x -2)
              Constant <empty> // { types: "(bigint, text)" }
        """,
    )


def test_a_cross_join_of_three_arranges_what_is_the_same_once() -> None:
    check(
        """
        import source=1 shard=delays upper=1
        import source=2 shard=airports upper=1
        build id=9
          Filter (#0 = "a") AND (#3 + #5) % 2 = 0
            CrossJoin
              Get u1
              Get u2
              Get u2
        export index=91 on=9 key=[]
        """,
        """
        Export index u91 on=u9 key=[]
          Join then filter=((#3 + #5) % 2 = 0)
            Arrange key=[]
              Join
                Arrange key=[]
                  Mfp filter=(#0 = "a")
                    Source u1
                n0: Arrange key=[]
                  Source u2
            n0
        """,
    )


STAR = """
    import index=11
    import index=12
    import index=21
    import index=51
    build id=9
      Filter #3 > 10
        Join on=(#0 = #4 AND #1 = #6 AND #2 = #8)
          Get u1
          Get u2
          Get u5
    build id=8
      Join on=(#0 = #3 AND #1 = #4)
        Get u5
        Get u5
    export index=91 on=9 key=[]
    export index=81 on=8 key=[]
"""


@pytest.mark.slow
def test_the_plan_is_the_same_in_every_process() -> None:
    code = "from tests.clusterd.render import test_lower_joins as t; print(t.explained(t.STAR))"
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert run.stdout == explained(STAR) + "\n"
