"""Table functions against plain Python: every one, over NULLs, errors, empty results and large ones."""

from __future__ import annotations

import datetime
import json
import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from typing import Any

import duckdb
import pytest

from controller_proto.expr import ColumnRef
from controller_proto.parse_expr import parse_expr
from controller_proto.parse_plan import parse_plan
from controller_proto.plan import Constant, FlatMap
from controller_proto.print_plan import print_plan
from controller_proto.schema import Column, ColumnType, Schema
from tests.clusterd.tables import expanded

T = ColumnType
Failed = str
TEXTS = ["", "a", "foobarbaz", "b-b_b", "née é b1 b22", "x" * 30, None, ",", "a,b,,c", "line\nbr"]
DOCUMENTS = [
    "[]", "{}", '[1,"x",null,[2,{"a":1}]]', '{"a":[1],"b":null,"c":"é\\"]"}', '"text"', "3", "null", None,
    '{"":{"":[]}}', '[{"a":"}"},"]",1.5]',
]  # fmt: skip
LISTS: list[Any] = [(), (1,), (1, None, 3), None, (None,), (5, 5)]


def made(function: str, columns: list[Column], rows: list[tuple[Any, ...]], *more: str) -> Any:
    """The rows of a call on these columns, then literals, and the errors; both with diffs 1, 2, ..."""
    constant = Constant(tuple((row, diff) for diff, row in enumerate(rows, 1)), Schema(tuple(columns)))
    args = (*(ColumnRef(k) for k in range(len(columns))), *map(parse_expr, more))
    oks, errs, _ = expanded(FlatMap(constant, function, args, with_ordinality=True))
    return oks, errs


def check(
    function: str, columns: list[Column], rows: list[tuple[Any, ...]], *more: str,
    wanted: Callable[..., Any],
) -> None:  # fmt: skip
    """wanted: of arguments without NULL the rows, or an error."""
    oks, errs = made(function, columns, rows, *more)
    found: list[Any] = []
    failed = []
    for diff, row in enumerate(rows, 1):
        if None in row:
            continue
        each = wanted(*row)
        if isinstance(each, Failed):
            failed.append((f"eval-error: {each}", diff))
        else:
            found += [((*values, number), diff) for number, values in enumerate(each, 1)]
    assert oks == found
    assert sorted(errs) == sorted(failed)


def column(type_: T, **more: Any) -> Column:
    return Column("c", type_, True, **more)


@pytest.mark.parametrize("function", ["jsonb_array_elements", "jsonb_array_elements_text"])
def test_elements_of_arrays(function: str) -> None:
    def wanted(text: str) -> Any:
        document = json.loads(text)
        if not isinstance(document, list):
            what = "an object" if isinstance(document, dict) else "a scalar"
            return f"cannot extract elements from {what}"
        return [(shown(each, function.endswith("text")),) for each in document]

    check(function, [column(T.JSONB)], [(each,) for each in DOCUMENTS], wanted=wanted)


def shown(value: Any, as_text: bool) -> Any:
    if as_text and (value is None or isinstance(value, str)):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("function", ["jsonb_each", "jsonb_each_text", "jsonb_object_keys"])
def test_members_of_objects(function: str) -> None:
    def wanted(text: str) -> Any:
        document = json.loads(text)
        if not isinstance(document, dict):
            return f"cannot call {function.removesuffix('_text')} on a non-object"
        if function == "jsonb_object_keys":
            return [(key,) for key in sorted(document)]
        return [(key, shown(document[key], function.endswith("text"))) for key in sorted(document)]

    check(function, [column(T.JSONB)], [(each,) for each in DOCUMENTS], wanted=wanted)


def test_elements_and_positions_of_lists() -> None:
    of = [column(T.LIST, fields=(Column("element", T.INT64, True),))]
    rows = [(each,) for each in LISTS]
    check("unnest", of, rows, wanted=lambda values: [(value,) for value in values])
    check("generate_subscripts", of, rows, "1", wanted=lambda values: [(k + 1,) for k in range(len(values))])
    check("generate_subscripts", of, rows, "2", wanted=lambda values: [])


def test_lists_of_lists_are_opened_one_level() -> None:
    inner = Column("element", T.LIST, True, fields=(Column("element", T.TEXT, True),))
    rows = [((("a", None), (), None),), ((),)]
    check("unnest", [column(T.LIST, fields=(inner,))], rows, wanted=lambda lists: [(each,) for each in lists])


def test_texts_are_taken_apart() -> None:
    rows = [(text,) for text in TEXTS]
    for separator in (",", "b", ""):
        check(
            "string_to_table", [column(T.TEXT)], rows, json.dumps(separator),
            wanted=lambda text, s=separator: [(p,) for p in (text.split(s) if s else [text])] if text else [],
        )  # fmt: skip
    for pattern in ("b", "[,_]", "b+[a-z]"):
        check(
            "regexp_split_to_table", [column(T.TEXT)], rows, json.dumps(pattern),
            wanted=lambda text, p=pattern: [(part,) for part in re.split(p, text)],
        )  # fmt: skip


@pytest.mark.parametrize("pattern", ["b", "(b)(.)?", "b(?:a)([rz])", "([a-z])([0-9]*)", "\\bb"])
@pytest.mark.parametrize("flags", ["", "g"])
def test_matches_of_a_pattern(pattern: str, flags: str) -> None:
    def wanted(text: str) -> list[Any]:
        matches = list(re.finditer(pattern, text, re.DOTALL))[: None if flags else 1]
        return [(tuple(g or "" for g in m.groups()) or (m[0],),) for m in matches]

    rows = [(text,) for text in TEXTS]
    check("regexp_matches", [column(T.TEXT)], rows, json.dumps(pattern), json.dumps(flags), wanted=wanted)


def test_a_pattern_that_is_none_fails_each_row() -> None:
    for pattern in ("(", "a**" * 2, "()" * 10):
        check(
            "regexp_matches", [column(T.TEXT)], [("a",), (None,), ("b",)], json.dumps(pattern),
            wanted=lambda text: "invalid regular expression",
        )  # fmt: skip


def test_patterns_may_differ_by_row() -> None:
    rows = [("ab1", "[0-9]"), ("ab1", "("), ("ab1", "[a-z]"), ("x,y", ",")]
    oks, errs = made("regexp_matches", [column(T.TEXT), column(T.TEXT)], rows, '"g"')
    assert sorted(oks) == [(((",",), 1), 4), ((("1",), 1), 1), ((("a",), 1), 3), ((("b",), 2), 3)]
    assert errs == [("eval-error: invalid regular expression", 2)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("(b)(.)", ["column1", "column2"]),
        ("(?P<first>[a-z])[^(]?(?<rest>.*)", ["first", "rest"]),
        ("[](](x)|(a)\\(?", ["column1", "column2"]),
        ("\\Q(\\E|([[:alpha:](]+)", ["column1"]),
    ],
)
def test_groups_are_columns(pattern: str, names: list[str]) -> None:
    python = pattern.replace("(?<", "(?P<").replace("[[:alpha:](]", "[^\\W\\d_(]").replace("\\Q(\\E", "\\(")
    rows = tuple(((text,), 1) for text in [*TEXTS, "(", "()x"])
    constant = Constant(rows, Schema((column(T.TEXT),)))
    call = FlatMap(constant, "regexp_extract", (parse_expr(json.dumps(pattern)), ColumnRef(0)))
    oks, errs, columns = expanded(call)
    assert not errs
    assert [each.name for each in columns] == names
    found = (re.search(python, text, re.ASCII | re.DOTALL) for (text,), _ in rows if text is not None)
    assert [row for row, _ in oks] == [tuple(g or "" for g in m.groups()) for m in found if m]


def test_an_extracting_pattern_that_is_none_fails_each_row() -> None:
    constant = Constant(((("a",), 2), ((None,), 1)), Schema((column(T.TEXT),)))
    oks, errs, _ = expanded(FlatMap(constant, "regexp_extract", (parse_expr('"(a)**"'), ColumnRef(0))))
    assert not oks
    assert errs == [("eval-error: invalid regular expression", 2)]


def series(start: Any, stop: Any, step: Any) -> Any:
    """Numbers from start to stop."""
    if step == 0:
        return "step size cannot equal zero"

    def values() -> Iterator[tuple[Any]]:
        value = start
        while value <= stop if step > 0 else value >= stop:
            yield (value,)
            value += step

    return list(values())


@pytest.mark.parametrize("type_", [T.INT32, T.INT64, T.NUMERIC])
def test_series_of_numbers(type_: T) -> None:
    rng = random.Random(3)
    scale = 2 if type_ is T.NUMERIC else 0
    columns = [column(type_, scale=scale)] * 3
    rows: list[tuple[Any, ...]] = [(1, 3, None), (1, 5, 0), (5, 1, -2), (0, 0, -1)]
    rows += [tuple(rng.randrange(-20, 20) for _ in range(3)) for _ in range(30)]
    if type_ is T.NUMERIC:
        rows = [tuple(v if v is None else str(Decimal(v) / 8 * 100 // 1 / 100) for v in row) for row in rows]
        big = str(10**35)
        rows += [("1.5", big, big), (f"-{10**34}", f"{10**34}", f"{10**34}"), ("1", "0.5", "1")]

    def wanted(*row: Any) -> Any:
        if type_ is not T.NUMERIC:
            return series(*row)
        with localcontext(prec=50):
            found = series(*map(Decimal, row))
        return found if isinstance(found, str) else [(f"{value:.2f}",) for (value,) in found]

    oks, errs = made("generate_series", columns, rows)
    if type_ is T.NUMERIC:
        oks = [((f"{Decimal(value):.2f}", number), diff) for (value, number), diff in oks]
    found: list[Any] = []
    failed = []
    for diff, row in enumerate(rows, 1):
        each = [] if None in row else wanted(*row)
        if isinstance(each, str):
            failed.append((f"eval-error: {each}", diff))
        else:
            found += [((*values, number), diff) for number, values in enumerate(each, 1)]
    assert oks == found
    assert errs == failed


def test_a_series_of_numerics_beyond_their_range_is_an_error() -> None:
    most = str(9 * 10**37)
    oks, errs = made("generate_series", [column(T.NUMERIC)] * 3, [(f"-{most}", most, most)])
    assert not oks
    assert errs == [("eval-error: numeric out of range", 1)]


DAY = 86_400_000_000
STEPS = [
    (1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -7, 0), (0, 0, 3_600_000_000_000), (13, 0, 0), (1, 1, 0),
    (0, 1, -3_600_000_000_000), (-1, -1, -1_000_000),
]  # fmt: skip


def test_series_of_timestamps_go_by_the_calendar_as_those_of_duckdb() -> None:
    db = duckdb.connect()
    rng = random.Random(5)
    columns = [column(T.TIMESTAMP), column(T.TIMESTAMP), column(T.INTERVAL)]
    starts = [0, 30 * DAY, 951_782_400_000_000, -2_208_988_800_000_000, 58 * DAY + 5]
    rows = []
    for step in STEPS:
        for _ in range(4):
            start = rng.choice(starts)
            way = step[0] * 30 + step[1] + step[2] / DAY / 1000
            rows.append((start, start + int(rng.uniform(-0.3, 12) * way * DAY), step))
    oks, errs = made("generate_series", columns, rows)
    assert not errs
    for diff, (start, stop, (months, days, nanoseconds)) in enumerate(rows, 1):
        # From each value the next, as PostgreSQL goes; DuckDB adds the interval to a timestamp alike.
        wanted, value = [], start
        micros = nanoseconds // 1000
        up = months * 30 + days + micros / DAY > 0
        while (value <= stop) if up else (value >= stop):
            wanted.append(value)
            ((value,),) = db.execute(
                "SELECT epoch_us(make_timestamp(?) + to_months(?) + to_days(?) + to_microseconds(?))",
                [value, months, days, micros],
            ).fetchall()
        assert [row[0] for row, d in oks if d == diff] == wanted


def test_series_of_timestamps_at_the_ends_of_their_range() -> None:
    most, least = (1 << 63) - 1, -(1 << 63)
    columns = [column(T.TIMESTAMPTZ), column(T.TIMESTAMPTZ), column(T.INTERVAL)]
    rows = [
        (most - 5, most, (1, 0, 0)), (least + 5, least, (-1, 0, 0)), (0, most, (2**31 - 1, 0, 0)),
        (0, most, (0, 2**31 - 1, 0)), (least, most, (0, 150_000_000, 0)), (0, least, (0, -(2**31), 0)),
        (most - DAY, most, (0, 0, 7_200_000_000_000)), (0, 5, (0, 0, 0)), (0, 5, (1, -1, 0)),
        (0, 5, (0, 1, -DAY * 1000)),
    ]  # fmt: skip
    oks, errs = made("generate_series", columns, rows)
    by_row = {diff: [row[0] for row, d in oks if d == diff] for diff in range(1, len(rows) + 1)}
    wanted = [[most - 5], [least + 5], [0], [0], [least, least + 150_000_000 * DAY], [0]]
    assert [by_row[diff] for diff in range(1, 7)] == wanted
    assert by_row[7] == list(range(most - DAY, most + 1, 7_200_000_000))
    none, mixed = "eval-error: step size cannot equal zero", "eval-error: step size must not mix signs"
    assert sorted(errs) == [(none, 8), (none, 10), (mixed, 9)]


@pytest.mark.slow
def test_what_is_large_comes_in_pieces_and_in_order() -> None:
    many = tuple(range(150_000))
    of = [column(T.LIST, fields=(Column("element", T.INT64, True),))]
    check("unnest", of, [(many,), ((7,),), (many[:70_000],)], wanted=lambda values: [(v,) for v in values])
    document = json.dumps(list(range(400_000)), separators=(",", ":"))
    rows = [(document,), ("[1]",), (document,)] * 2
    oks, errs = made("jsonb_array_elements", [column(T.JSONB)], rows)
    assert not errs
    counts = {diff: sum(1 for _, d in oks if d == diff) for diff in range(1, 7)}
    assert counts == {1: 400_000, 2: 1, 3: 400_000, 4: 400_000, 5: 1, 6: 400_000}
    assert [row for row, d in oks if d == 3] == [(str(k), k + 1) for k in range(400_000)]


def test_a_call_is_read_as_it_is_printed() -> None:
    text = 'FlatMap regexp_extract("(a)", #1) with ordinality\n  Get u1'
    plan = parse_plan(text.splitlines())
    assert isinstance(plan, FlatMap)
    assert plan.with_ordinality
    assert print_plan(plan) == text.splitlines()


def test_dates_become_timestamps() -> None:
    days = [(datetime.date(2013, 1, d) - datetime.date(1970, 1, 1)).days for d in (1, 3)]
    oks, _ = made("generate_series", [column(T.DATE)] * 2, [tuple(days)], 'interval "1 day"')
    assert [row[0] for row, _ in oks] == [(days[0] + k) * DAY for k in range(3)]
