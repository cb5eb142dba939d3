from __future__ import annotations

import textwrap

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_proto import plan as p
from controller_proto.errors import LocalProtocolError
from controller_proto.expr import ColumnRef, Expr
from controller_proto.parse_plan import parse_plan
from controller_proto.plan import Plan
from controller_proto.print_plan import print_plan
from controller_proto.schema import Column, Row, Schema
from tests.controller_proto.test_parse_expr import written_exprs
from tests.controller_proto.values import every_type, values_of

# Each as the page of the language writes it; printing gives it back.
CANONICAL = [
    """
    Constant // { types: "(bigint, text)" }
      - (1, "a")
      - ((-1, "a b") x 2)
      - ((2, "x") x -1)
    """,
    """
    Constant <empty> // { types: "(bigint?)" }
    """,
    """
    Constant error("division by zero") // { types: "(bigint)" }
    """,
    """
    Constant // { types: "()" }
      - ()
    """,
    """
    Project (#0, #2)
      Filter #0 > 3 AND #1 IS NOT NULL
        Map (#0 + 1, #1 || "x")
          Get u1000
    """,
    """
    FlatMap generate_series(#0, #1, 1)
      Get u1000
    """,
    """
    Join on=(#0 = #2 AND #1 = #3 = #5)
      Get u1
      Get u2
      Get u3
    """,
    """
    Join on=(#0 + 1 = #2) type=delta null_safe
      Get u1
      Get u2
    """,
    """
    CrossJoin
      Get u1
      Get u2
    """,
    """
    Distinct project=[#0]
      Get u1
    """,
    """
    Reduce group_by=[#0, #1 + 1] aggregates=[count(*), sum(distinct #1)] monotonic exp_group_size=5
      Get u1
    """,
    """
    Reduce aggregates=[string_agg(#1, "," order by #2 desc)]
      Get u1
    """,
    """
    TopK group_by=[#0] order_by=[#1 desc nulls_first, #2] limit=3 offset=1 monotonic
      Get u1
    """,
    """
    TopK limit=(#0 + 1)
      Get u1
    """,
    """
    TopK group_by=[#1] limit=#1 offset=(#1 / 2) monotonic
      Get u1
    """,
    """
    Union
      Get u1
      Negate
        Threshold
          ArrangeBy keys=[[#0], [#1, #0]]
            Get u2
    """,
    """
    With
      cte l0 =
        Get u1
      cte l1 =
        Get l0
    Return
      Union
        Get l0
        Get l1
    """,
    """
    With Mutually Recursive [recursion_limit=2, return_at_limit]
      cte l0 = // { types: "(bigint, text?)" }
        Get u1
    Return
      Get l0
    """,
]


def _lines(text: str) -> list[str]:
    return textwrap.dedent(text).strip().split("\n")


@pytest.mark.parametrize("text", CANONICAL)
def test_every_node_of_the_language_is_read_and_printed_as_written(text: str) -> None:
    assert print_plan(parse_plan(_lines(text))) == _lines(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("get 1000", "Get u1000"),
        ("join ON=( #0=#1 ) type=differential\n get u1\n get t2", "Join on=(#0 = #1)\n  Get u1\n  Get t2"),
        (
            "TopK order_by=[#1 asc nulls_last] limit=2 // note\n  Get u1",
            "TopK order_by=[#1] limit=2\n  Get u1",
        ),
        (
            'Constant // {types: "(timestamp, float8)"}\n    - ("2013-01-01", 1)',
            'Constant // { types: "(timestamp, double precision)" }\n  - ("2013-01-01 00:00:00", 1.0)',
        ),
    ],
)
def test_looser_spellings_are_read(text: str, canonical: str) -> None:
    assert print_plan(parse_plan(text.split("\n"))) == canonical.split("\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a plan is missing"),
        ("Gett u1", "line 1: no operator is called 'Gett'; did you mean Get?"),
        ("Scan u1", "line 1: no operator is called 'Scan'; there are Get, Constant, "),
        ("Negate", "line 1: Negate has one input, 0 are given"),
        ("Negate\n  Get u1\n  Get u2", "line 1: Negate has one input, 2 are given"),
        ("Get u1\nGet u2", "line 1: 2 plans stand where one is expected"),
        ("Get u1\n  Get u2", "line 1: Get has no input"),
        ("Negate\n  Filter #0 >\n    Get u1", "line 2: expected an expression at the end"),
        ("Project (#0, x)\n  Get u1", "line 1: expected a column"),
        ("Join\n  Get u1\n  Get u2", "line 1: Join needs on="),
        ("Join on=(#0) kind=x\n  Get u1", "line 1: expected on="),
        ("Reduce aggregate=[count(*)]\n  Get u1", "line 1: expected group_by"),
        ("TopK group_by=[#0 + 1]\n  Get u1", "line 1: TopK groups by columns"),
        ("Constant\n  - (1)", "line 1: expected // { types"),
        ('Constant // { types: "(bigint)" }\n  - (a)', "'a' is no bigint"),
        ('Constant <empty> // { types: "(bigint)" }\n  - (1)', "line 1: <empty> has no rows"),
        ("With\n  cte l0 =\n    Get u1", "line 1: With is followed by Return"),
        ("With\n  l0 =\n    Get u1\nReturn\n  Get l0", "line 2: expected cte"),
        ("With Mutually Recursive\n  cte l0 =\n    Get u1\nReturn\n  Get l0", "line 2: a recursive binding"),
        ("Negate extra\n  Get u1", "line 1: expected nothing more"),
    ],
)
def test_what_is_no_plan_is_a_typed_error_that_names_the_line(text: str, says: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        parse_plan(text.split("\n"))
    assert says in caught.value.message


def test_nesting_beyond_the_stack_is_an_error_not_a_crash() -> None:
    with pytest.raises(LocalProtocolError, match="nested too deeply"):
        parse_plan([" " * depth + "Negate" for depth in range(5000)])


def _named(types: list[Column]) -> Schema:
    return Schema(tuple(msgspec.structs.replace(c, name=f"c{n}") for n, c in enumerate(types)))


schemas = st.lists(every_type, max_size=3).map(_named)
columns = st.lists(st.integers(0, 9), max_size=3).map(tuple)
exprs = st.lists(written_exprs, max_size=2).map(tuple)
some_exprs = st.lists(written_exprs, min_size=1, max_size=2).map(tuple)
orders = st.lists(st.builds(p.OrderBy, st.integers(0, 9), st.booleans(), st.booleans()), max_size=2).map(
    tuple
)


@st.composite
def constants(draw: st.DrawFn) -> Plan:
    schema = draw(schemas)
    row: st.SearchStrategy[Row] = st.tuples(*map(values_of, schema.columns))
    counts = st.integers(-(1 << 63), (1 << 63) - 1)
    return p.Constant(tuple(draw(st.lists(st.tuples(row, counts), max_size=3))), schema)


def _predicates(exprs_: tuple[Expr, ...]) -> bool:
    """What `Filter` prints for these is read as these: a lone AND would be taken apart."""
    first = exprs_[0]
    return len(exprs_) > 1 or getattr(first, "function", "") != "and"


written_plans: st.SearchStrategy[Plan] = st.recursive(
    st.builds(p.Get, st.sampled_from(["u1", "s2", "t3", "l0"])) | constants(),
    lambda inner: st.one_of(
        st.builds(lambda i, c: p.Mfp(i, projection=c), inner, columns),
        st.builds(lambda i, m: p.Mfp(i, maps=m), inner, exprs),
        st.builds(lambda i, f: p.Mfp(i, predicates=f), inner, some_exprs.filter(_predicates)),
        st.builds(p.FlatMap, inner, st.sampled_from(["generate_series", "unnest"]), exprs),
        st.builds(
            p.Join,
            st.lists(inner, max_size=3).map(tuple),
            st.lists(st.lists(written_exprs, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
        ),
        st.builds(
            p.Reduce,
            inner,
            exprs,
            st.lists(
                st.builds(
                    p.Aggregate,
                    st.sampled_from(["sum", "string_agg"]),
                    written_exprs,
                    st.booleans(),
                    exprs,
                    orders,
                )
                | st.just(p.Aggregate("count")),
                max_size=2,
            ).map(tuple),
            st.booleans(),
            st.none() | st.integers(0, 9),
        ),
        st.builds(
            p.TopK, inner, columns, orders, st.none() | written_exprs, st.integers(0, 9), st.booleans()
        ),
        st.builds(p.Negate, inner),
        st.builds(p.Threshold, inner),
        st.builds(p.Union, st.lists(inner, max_size=3).map(tuple)),
        st.builds(p.ArrangeBy, inner, st.lists(exprs, max_size=2).map(tuple)),
        st.builds(p.Let, st.just("l0"), inner, inner),
        st.builds(
            p.LetRec,
            st.lists(st.tuples(st.sampled_from(["l0", "l1"]), schemas, inner), min_size=1, max_size=2).map(
                tuple
            ),
            inner,
            st.none(),
            st.just(False),
        ),
    ),
    max_leaves=4,
)


@pytest.mark.slow
@given(written_plans)
def test_a_plan_that_is_printed_is_read_back_the_same(plan: Plan) -> None:
    assert parse_plan(print_plan(plan)) == plan


def test_an_mfp_of_several_parts_is_printed_in_the_order_they_apply() -> None:
    plan = p.Mfp(p.Get("u1"), (ColumnRef(0),), (ColumnRef(1),), (2,))
    assert print_plan(plan) == ["Project (#2)", "  Filter #1", "    Map (#0)", "      Get u1"]
