"""Functions that change jsonb, lists and intervals, against plain Python on every combination of samples."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from controller_proto.parse_expr import parse_expr
from controller_proto.schema import Column, ColumnType
from tests.clusterd.test_function_rows import evaluate

T = ColumnType
DOCUMENTS = [
    '{"a":1,"b":null}',
    '{"b":{"a":null,"c":[1,null]},"é":"x"}',
    "[]",
    '[1,"a",null,{"a":[2]}]',
    '"a"',
    "null",
    "2",
]
LISTS: list[Any] = [(), (1,), (1, 2, 1), (None, 1, None), None]
LIST = Column("l", T.LIST, True, fields=(Column("element", T.INT64, True),))


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def check(call: str, columns: list[Column], rows: list[tuple[Any, ...]], wanted: Callable[..., Any]) -> None:
    found = evaluate(parse_expr(call), columns, rows)
    assert found == [wanted(*row) for row in rows]


def test_jsonb_is_joined() -> None:
    def joined(a: str, b: str) -> str:
        x, y = json.loads(a), json.loads(b)
        if isinstance(x, dict) and isinstance(y, dict):
            return text({**x, **y})
        return text([*(x if isinstance(x, list) else [x]), *(y if isinstance(y, list) else [y])])

    columns = [Column("a", T.JSONB), Column("b", T.JSONB)]
    check("#0 || #1", columns, list(itertools.product(DOCUMENTS, DOCUMENTS)), joined)


def test_keys_and_elements_are_taken_out_of_jsonb() -> None:
    def without_key(a: str, key: str) -> str:
        value = json.loads(a)
        if isinstance(value, dict):
            return text({name: each for name, each in value.items() if name != key})
        return text([each for each in value if each != key]) if isinstance(value, list) else SCALAR

    def without_element(a: str, at: int) -> str:
        value = json.loads(a)
        if isinstance(value, dict):
            return "eval-error: cannot delete from object using integer index"
        if not isinstance(value, list):
            return SCALAR
        if -len(value) <= at < len(value):
            del value[at]
        return text(value)

    of = [Column("a", T.JSONB), Column("k", T.TEXT)]
    check("#0 - #1", of, list(itertools.product(DOCUMENTS, ["a", "b", "é", "1"])), without_key)
    of = [Column("a", T.JSONB), Column("k", T.INT64)]
    check("#0 - #1", of, list(itertools.product(DOCUMENTS, [0, 1, -1, -4, 9])), without_element)


SCALAR = "eval-error: cannot delete from scalar"


def test_nulls_are_stripped_of_objects_and_not_of_arrays() -> None:
    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: stripped(each) for key, each in value.items() if each is not None}
        return [stripped(each) for each in value] if isinstance(value, list) else value

    rows = [(each,) for each in DOCUMENTS]
    check("jsonb_strip_nulls(#0)", [Column("a", T.JSONB)], rows, lambda a: text(stripped(json.loads(a))))


@pytest.mark.parametrize(
    ("document", "path", "creates", "wanted"),
    [
        ('{"a":[1,2]}', '"a", "1"', "true", '{"a":[1,9]}'),
        ('{"a":[1,2]}', '"a", "-2"', "true", '{"a":[9,2]}'),
        ('{"a":[1,2]}', '"a", "7"', "true", '{"a":[1,2,9]}'),
        ('{"a":[1,2]}', '"a", "-7"', "true", '{"a":[9,1,2]}'),
        ('{"a":[1,2]}', '"a", "7"', "false", '{"a":[1,2]}'),
        ('{"a":1}', '"b"', "true", '{"a":1,"b":9}'),
        ('{"a":1}', '"b"', "false", '{"a":1}'),
        ('{"a":1}', '"b", "c"', "true", '{"a":1}'),
        ('{"a":1}', '"a", "c"', "true", '{"a":1}'),
        ('{"a":{"b":2}}', '"a", "b"', "true", '{"a":{"b":9}}'),
        ("[1]", '"x"', "true", "eval-error: path element is not an integer"),
        ('{"a":[[1]]}', '"a", "0", "x"', "true", "eval-error: path element is not an integer"),
        ("1", '"x"', "true", "eval-error: cannot set path in scalar"),
    ],
)
def test_a_part_of_jsonb_is_set_as_postgresql_does(
    document: str, path: str, creates: str, wanted: str
) -> None:
    expr = parse_expr(f'jsonb_set(#0, array[{path}], jsonb "9", {creates})')
    assert evaluate(expr, [Column("a", T.JSONB)], [(document,), (document,)]) == [wanted] * 2


def test_elements_are_found_and_replaced() -> None:
    wanted: list[Any] = [None, 1, 5]
    rows = [(values, value) for values in LISTS for value in wanted]
    of = [LIST, Column("v", T.INT64, True)]

    def positions(values: Any, value: Any) -> Any:
        return None if values is None else tuple(k for k, each in enumerate(values, 1) if each == value)

    def replaced(values: Any, value: Any) -> Any:
        return None if values is None else tuple(7 if each == value else each for each in values)

    check("array_positions(#0, #1)", of, rows, positions)
    check("array_replace(#0, #1, 7)", of, rows, replaced)
    check("array_upper(#0, 1)", of, rows, lambda values, _: len(values) if values else None)
    check("array_lower(#0, 1)", of, rows, lambda values, _: 1 if values else None)
    check("array_lower(#0, 2)", of, rows, lambda values, _: None)


def test_an_interval_is_justified_to_one_sign() -> None:
    hour, day = 3_600_000_000_000, 86_400_000_000_000
    parts = itertools.product((0, 1, -2), (0, 3, -3, 65, -65), (0, hour, -hour, 3 * day, -30 * day - 1000))
    rows = [(each,) for each in parts]

    def justified(interval: Any) -> Any:
        months, days, nanoseconds = interval
        total = (months * 30 + days) * day + nanoseconds
        sign = -1 if total < 0 else 1
        rest, nanoseconds = divmod(abs(total), day)
        months, days = divmod(rest, 30)
        return sign * months, sign * days, sign * nanoseconds

    check("justify_interval(#0)", [Column("i", T.INTERVAL)], rows, justified)


def test_a_path_is_given_as_arguments() -> None:
    of = [Column("a", T.JSONB), Column("k", T.TEXT, True)]
    rows = [
        ('{"a":{"b":[1,"x"]}}', "b"),
        ('{"a":{"b":[1,"x"]}}', None),
        ("[]", "b"),
        ('{"a":{"c":null}}', "c"),
    ]
    assert evaluate(parse_expr('jsonb_extract_path(#0, "a", #1)'), of, rows) == [
        '[1,"x"]', None, None, "null",
    ]  # fmt: skip
    assert evaluate(parse_expr('jsonb_extract_path_text(#0, "a", #1)'), of, rows) == [
        '[1,"x"]', None, None, None,
    ]  # fmt: skip
