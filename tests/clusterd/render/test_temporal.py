"""Where temporal filters stand in what would run: in their place, fused with what surrounds them."""

from __future__ import annotations

from textwrap import dedent

import pytest

from clusterd.render.explain import explain
from clusterd.render.plan import plan_dataflow
from controller_proto.errors import Refusal
from tests.clusterd.dataflow_text import dataflow, index, schema

EVENTS = schema("id bigint", "kind text?", "until bigint")
KINDS = schema("name text", "weight bigint")
SHARDS = {"events": EVENTS, "kinds": KINDS}
INDEXES = {**index("u11", "u1", EVENTS, 0), **index("u21", "u2", KINDS, 0)}
HEAD = "import source=1 shard=events upper=1\nimport source=2 shard=kinds upper=1\n"


def explained(plan: str, head: str = HEAD) -> str:
    text = f"{head}build id=9\n{_indented(plan)}\nexport index=91 on=9 key=[]\n"
    return explain(plan_dataflow(*dataflow(text, SHARDS, indexes=INDEXES), INDEXES))


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in dedent(text).strip("\n").splitlines())


def check(plan: str, wanted: str, head: str = HEAD) -> None:
    assert explained(plan, head) == "Export index u91 on=u9 key=[]\n" + _indented(wanted)


def test_what_surrounds_a_filter_is_one_operator_with_it() -> None:
    check(
        """
        Project (#3)
          Filter now_ts() < #3 AND #0 > 1
            Map (#2 + 1)
              Filter #0 > 2
                Get u1
        """,
        """
        TemporalFilter filter=(now_ts() < #3 AND #0 > 1) project=(#3)
          Mfp map=(#2 + 1) filter=(#0 > 2)
            Source u1
        """,
    )


def test_over_a_join_what_asks_no_time_goes_to_the_join_and_unread_columns_are_not_made() -> None:
    check(
        """
        Project (#0)
          Filter now_ts() < #2 AND #4 > 1
            Join on=(#1 = #3)
              Get u1
              Get u2
        """,
        """
        TemporalFilter filter=(now_ts() < #1) project=(#0)
          Join on=(#1 = #3) output=(#0, #2)
            Arrange key=[#1]
              Source u1
            Arrange key=[#0]
              Mfp filter=(#1 > 1) project=(#0)
                Source u2
        """,
    )


def test_a_filtered_side_is_no_index_that_is_looked_up() -> None:
    shown = explained(
        """
        Join on=(#1 = #3)
          Filter now_ts() < #2
            Get u1
          Get u2
        """,
        "import index=11\nimport index=21\n",
    )
    assert "Lookup index u21" in shown
    assert "Lookup index u11" not in shown
    assert shown.index("Arrange") < shown.index("TemporalFilter filter=(now_ts() < #2)")


def test_nothing_moves_a_filter_through_what_looks_at_several_rows() -> None:
    for above in ("TopK group_by=[#0] order_by=[#2] limit=1", "Threshold", "Negate"):
        shown = explained(f"Filter now_ts() < #2\n  {above}\n    Get u1").splitlines()
        assert shown[1].strip() == "TemporalFilter filter=(now_ts() < #2)"
        assert shown[2].strip().startswith(above.split()[0])


def test_a_filter_that_several_read_is_made_once() -> None:
    shown = explained("Union\n  Filter now_ts() < #2\n    Get u1\n  Filter now_ts() < #2\n    Get u1")
    assert shown.count("TemporalFilter") == 1


def test_in_a_recursion_it_is_refused_where_bindings_change_and_stands_outside_else() -> None:
    text = """
        With Mutually Recursive
          cte l0 = // {{ types: "(bigint, text?, bigint)" }}
            Distinct project=[#0, #1, #2]
              Union
                Filter now_ts() < #2
                  Get {}
                Get {}
        Return
          Get l0
        """
    assert "Enter\n" in explained(text.format("u1", "l0"))
    with pytest.raises(Refusal, match=r"build u9: node Mfp: now_ts.* in a recursion"):
        explained(text.format("l0", "u1"))
