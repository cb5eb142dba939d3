"""The one form of a JSON text: the same for the same value, exact, and nothing else is JSON."""

from __future__ import annotations

import decimal
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_proto.jsonb import canonical_json, json_problem


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (' { "b" : [ 1 , 2 ] , "a" : null } ', '{"a":null,"b":[1,2]}'),
        ('{"a": 1, "a": 2, "a": {"a": 3, "a": 4}}', '{"a":{"a":4}}'),
        ('{"é": 1, "z": 2, "\\u0061": 3, "\\ud83d\\ude00": 4}', '{"a":3,"z":2,"é":1,"\U0001f600":4}'),
        ('"\\u0041\\/\\n\\u0001\\u007f\\u2028"', '"A/\\n\\u0001\x7f\u2028"'),
        ("1", "1"),
        ("-0", "0"),
        ("-0.0e5", "0"),
        ("1.0", "1"),
        ("1E2", "100"),
        ("1.50e-1", "0.15"),
        ("-120.3400", "-120.34"),
        ("0.00001", "0.00001"),
        ("123456789012345678901234567890.10", "123456789012345678901234567890.1"),
        ("1e399", "1" + "0" * 399),
        ("1e400", "1e400"),
        ("12e400", "1.2e401"),
        ("0.05e-500", "5e-502"),
        ("1e99999999999", "1e99999999999"),
        ('[[],{},""]', '[[],{},""]'),
        ("[" * 256 + "]" * 256, "[" * 256 + "]" * 256),
    ],
)
def test_a_text_has_one_form_and_the_form_is_its_own(text: str, canonical: str) -> None:
    assert canonical_json(text) == canonical
    assert canonical_json(canonical) == canonical
    assert json_problem(text) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("{a: 1}", "Expecting property name"),
        ("[1,]", "Expecting value"),
        ("1 2", "Extra data"),
        ("01", "Extra data"),
        ("+1", "Expecting value"),
        (".5", "Expecting value"),
        ("NaN", "NaN is no number of JSON"),
        ("-Infinity", "-Infinity is no number of JSON"),
        ('"a\nb"', "Invalid control character"),
        ('"\\x"', "Invalid \\escape"),
        ('"\\ud800"', "half of a surrogate pair"),
        ('{"\\udc00": 1}', "half of a surrogate pair"),
        ("1e9999999999999", "beyond all bounds"),
        ("[" * 258 + "]" * 258, "nested deeper than 256"),
        ("[" * 100_000, "nested deeper than 256"),
        ("\ufeff1", ""),
    ],
)
def test_what_is_no_json_is_refused_with_its_beginning(text: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is checked below
        canonical_json(text)
    assert str(caught.value).startswith(repr(text[:60]) if len(text) > 60 else repr(text))
    assert " is no jsonb: " in str(caught.value)
    assert says in str(caught.value)
    assert json_problem(text) == str(caught.value)


decimals = st.decimals(allow_nan=False, allow_infinity=False)
values: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def _text(value: Any, escaped: bool) -> str:
    """JSON of `value` in one of many ways of writing it; numbers as they are."""
    if isinstance(value, dict):
        items = [f"{_text(k, escaped)} : {_text(v, escaped)}" for k, v in reversed(value.items())]
        return "{" + " ,".join(items) + " }"
    if isinstance(value, list):
        return "[ " + ", ".join(_text(v, escaped) for v in value) + "]"
    if isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=escaped)


@given(values)
def test_every_way_to_write_a_value_gives_one_form_that_means_it(value: Any) -> None:
    forms = {canonical_json(_text(value, escaped)) for escaped in (False, True)}
    assert len(forms) == 1
    (form,) = forms
    assert canonical_json(form) == form

    def plain(given: Any) -> Any:
        if isinstance(given, dict):
            return {k: plain(v) for k, v in given.items()}
        if isinstance(given, list):
            return [plain(v) for v in given]
        is_number = isinstance(given, int | decimal.Decimal) and not isinstance(given, bool)
        return decimal.Decimal(given) if is_number else given

    assert json.loads(form, parse_int=decimal.Decimal, parse_float=decimal.Decimal) == plain(value)


@given(st.text(max_size=20) | st.text(alphabet='{}[]",:0123456789eE+-. \\untrfals', max_size=20))
def test_any_text_is_json_or_a_value_error(text: str) -> None:
    problem = json_problem(text)
    try:
        json.loads(text)
    except ValueError:
        assert problem is not None
