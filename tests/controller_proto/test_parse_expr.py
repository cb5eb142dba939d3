from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_proto.errors import LocalProtocolError
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.parse_expr import parse_aggregate, parse_expr, parse_order
from controller_proto.plan import Aggregate, OrderBy
from controller_proto.print_plan import format_expr
from controller_proto.schema import ColumnType
from controller_proto.tokens import Tokens
from tests.controller_proto.values import typed_values

T = ColumnType


def _shape(expr: Expr) -> str:
    """The expression as a Lisp would write it."""
    match expr:
        case ColumnRef(index):
            return f"#{index}"
        case Literal(_, value):
            return repr(value)
        case Case(condition, then, otherwise):
            return f"(case {_shape(condition)} {_shape(then)} {_shape(otherwise)})"
        case Call(function, args):
            return f"({' '.join([function, *map(_shape, args)])})"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("#0 + 1 * 2", "(+ #0 (* 1 2))"),
        ("#0 - 1 - 2", "(- (- #0 1) 2)"),
        ("#0 - -1", "(- #0 -1)"),
        ("-#0 * 2", "(* (neg #0) 2)"),
        ("- (1)", "(neg 1)"),
        ("#0 % 2 = 0", "(= (% #0 2) 0)"),
        ("#0 = 1 OR #1 = 2 AND #2 = 3", "(or (= #0 1) (and (= #1 2) (= #2 3)))"),
        ("#0 AND #1 AND #2", "(and #0 #1 #2)"),
        ("(#0 AND #1) AND #2", "(and (and #0 #1) #2)"),
        ("#0 AND #1 OR #2 OR #3", "(or (and #0 #1) #2 #3)"),
        ("NOT #0 = 1", "(not (= #0 1))"),
        ("NOT #0 IS NULL AND #1", "(and (not (is_null #0)) #1)"),
        ("#0 = 1 IS NULL", "(is_null (= #0 1))"),
        ("#0 is not true", "(not (is_true #0))"),
        ("#0 <> 1", "(!= #0 1)"),
        ('#1 || "a b" || "c"', "(|| (|| #1 'a b') 'c')"),
        ("#0 + 1 || #1", "(|| (+ #0 1) #1)"),
        ("1 / (#0 - 1)", "(/ 1 (- #0 1))"),
        ("CASE WHEN #0 = 0 THEN null::bigint ELSE 10 / #0 END", "(case (= #0 0) None (/ 10 #0))"),
        ("case when #0 then 1 when #1 then 2 else 3 end", "(case #0 1 (case #1 2 3))"),
        ("1.5 + 2e3", "(+ 1.5 2000.0)"),
        ("9223372036854775808", "'9223372036854775808'"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("1::double precision", "1.0"),
        ('"NaN"::float8 = #0', "(= nan #0)"),
        ("1::numeric", "'1'"),
        ("#0::text", "(cast text #0)"),
        ('timestamp "1970-01-01 00:00:01"', "1000000"),
        ("now_ts() < #1", "(< (now_ts) #1)"),
        ('error("no")', "(error 'no')"),
        ("coalesce(#0, #1, 3)", "(coalesce #0 #1 3)"),
        ("true", "True"),
        ('"abc"::bigint', "(cast bigint 'abc')"),
        ("70000::smallint", "(cast smallint 70000)"),
        ("-2.5::bigint", "(cast bigint -2.5)"),
        ("1.005::numeric(38,2)", "(cast numeric(38,2) 1.005)"),
        ("#0 BETWEEN 1 AND 3 AND #1", "(and (between #0 1 3) #1)"),
        ("#0 not between 1 + 1 and 3", "(not (between #0 (+ 1 1) 3))"),
        ("#0 IN (1, 2) = #1", "(= (in #0 1 2) #1)"),
        ("#0 NOT IN (1)", "(not (in #0 1))"),
        ('#0 || "x" LIKE "a%" ', "(like (|| #0 'x') 'a%')"),
        ('#0 NOT ILIKE "a!%" ESCAPE "!"', "(not (ilike #0 'a!%' '!'))"),
        ('#0 ~ "a" AND #0 !~* "b"', "(and (~ #0 'a') (not (~* #0 'b')))"),
        ("~#0 & 1 | 2 # 3 << 1", "(<< (# (| (& (bit_not #0) 1) 2) 3) 1)"),
        ("-#0 ^ 2 * 3", "(* (power (neg #0) 2) 3)"),
        ('#0 -> "a" ->> "b" = "c"', "(= (->> (-> #0 'a') 'b') 'c')"),
        ("#0 @> #1 OR #0 ? #2", "(or (@> #0 #1) (? #0 #2))"),
        ("#0 IS NOT DISTINCT FROM 1 + 1", "(not (is_distinct_from #0 (+ 1 1)))"),
        ("#0 IS UNKNOWN", "(is_unknown #0)"),
        ("array[1, #0][1] + 1", "(+ (subscript (array 1 #0) 1) 1)"),
        ("#0 = ANY(#1) AND #0 <> all(#1)", "(and (= any #0 #1) (not (= any #0 #1)))"),
        ("extract(year FROM #0)", "(extract 'year' #0)"),
        ('extract("year", #0)', "(extract 'year' #0)"),
        ('#0 AT TIME ZONE "UTC" + #1', "(+ (timezone 'UTC' #0) #1)"),
        ('position("a" IN #0)', "(strpos #0 'a')"),
        ("substring(#0 FROM 2 FOR 3)", "(substring #0 2 3)"),
        ("substring(#0, 2)", "(substring #0 2)"),
        ('trim(both "x" FROM #0)', "(btrim #0 'x')"),
        ("trim(leading from #0)", "(ltrim #0)"),
        ("trim(#0)", "(trim #0)"),
        ("cast(#0 AS double precision)", "(cast double precision #0)"),
    ],
)
def test_precedence_is_postgresqls(text: str, shape: str) -> None:
    assert _shape(parse_expr(text)) == shape


@pytest.mark.parametrize(
    "text",
    [
        "", "#0 +", "#0 < #1 < #2", "#0 = #1 = #2", "(#0", "#0)", "#0 #1", "null", "foo", "#0 IS 3",
        '"a', '"\\q"', "CASE WHEN #0 THEN 1 END", "#", 'date "2013-02-30"', "#0::money",
        "#0::bigint list?", "date 5", "numeric(10, 2)", "1::list", "null::record(", "date",
        "f(#0", "@", "case",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_a_typed_error_that_shows_where(text: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        parse_expr(text)
    assert caught.value.code == "invalid-plan"


@pytest.mark.parametrize("text", ["(" * 5000, "-" * 5000 + "#0", "NOT " * 5000 + "#0", "f(" * 5000])
def test_nesting_beyond_the_stack_is_an_error_not_a_crash(text: str) -> None:
    with pytest.raises(LocalProtocolError):
        parse_expr(text)


literals = typed_values.map(lambda typed: Literal(typed[0].type, typed[1], typed[0].scale, typed[0].fields))


def _calls(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    two = st.tuples(inner, inner)
    binary = st.sampled_from([
        "+", "-", "*", "/", "%", "||", "=", "!=", "<", "<=", ">", ">=", "~", "~*", "->", "->>", "#>", "#>>",
        "@>", "<@", "?", "&", "|", "#", "<<", ">>", "like", "ilike", "in", "= any", "subscript",
        "is_distinct_from",
    ])  # fmt: skip
    return st.one_of(
        st.builds(Call, binary, two),
        st.builds(Call, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(
            Call,
            st.sampled_from(["not", "neg", "bit_not", "is_null", "is_true", "is_false", "is_unknown", "f"]),
            st.tuples(inner),
        ),
        st.builds(Call, st.sampled_from(["f", "now_ts"]), st.just(()) | two),
        st.builds(
            Call,
            st.sampled_from(["cast bigint", "cast double precision"]),
            st.tuples(inner.filter(lambda e: not isinstance(e, Literal))),
        ),
        st.builds(Call, st.sampled_from(["array", "between", "like", "in"]), st.tuples(inner, inner, inner)),
        st.builds(Case, inner, inner, inner),
    )


written_exprs: st.SearchStrategy[Expr] = st.recursive(
    st.builds(ColumnRef, st.integers(0, 20)) | literals, _calls, max_leaves=6
)


@given(written_exprs)
def test_an_expression_that_is_printed_is_read_back_the_same(expr: Expr) -> None:
    assert parse_expr(format_expr(expr)) == expr


@given(st.text(max_size=20) | st.text(alphabet='#01 +-*/()[]="<>!:andortf', max_size=20))
def test_any_text_is_an_expression_or_a_typed_error(text: str) -> None:
    try:
        expr = parse_expr(text)
    except LocalProtocolError:
        return
    assert parse_expr(format_expr(expr)) == expr


@pytest.mark.parametrize(
    ("text", "aggregate"),
    [
        ("count(*)", Aggregate("count")),
        ("sum(distinct #1 + 1)", Aggregate("sum", parse_expr("#1 + 1"), distinct=True)),
        (
            'string_agg(#1, "," order by #2 desc, #0)',
            Aggregate(
                "string_agg",
                ColumnRef(1),
                args=(Literal(T.TEXT, ","),),
                order_by=(OrderBy(2, descending=True), OrderBy(0)),
            ),
        ),
    ],
)
def test_aggregates_are_read(text: str, aggregate: Aggregate) -> None:
    assert parse_aggregate(Tokens(text)) == aggregate


def test_an_order_is_ascending_and_null_last_unless_it_says_otherwise() -> None:
    assert parse_order(Tokens("[#1 desc nulls_first, #0 asc nulls_last, #2]")) == (
        OrderBy(1, descending=True, nulls_first=True),
        OrderBy(0),
        OrderBy(2),
    )
