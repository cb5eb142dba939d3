from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterd.ingest.arrays import parse_array


def printed(elements: list[str | None]) -> str:
    """As PostgreSQL prints an array of texts."""
    texts = []
    for element in elements:
        if element is None:
            texts.append("NULL")
        elif element == "" or element.upper() == "NULL" or any(c in '{}",\\' or c.isspace() for c in element):
            escaped = element.replace("\\", "\\\\").replace('"', '\\"')
            texts.append(f'"{escaped}"')
        else:
            texts.append(element)
    return "{" + ",".join(texts) + "}"


@given(st.lists(st.none() | st.text(st.sampled_from('ab{}",\\ \n\tNULlé'), max_size=8), max_size=6))
def test_an_array_is_read_as_it_was_printed(elements: list[str | None]) -> None:
    assert parse_array(printed(elements)) == elements


def test_bounds_in_front_are_dropped() -> None:
    assert parse_array("[0:1]={a,b}") == ["a", "b"]
    assert parse_array("[-5:-5]={}") == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "}", "{{1,2},{3,4}}", "{1,}", "{,1}", '{"a}', "{a b}x", "1,2", '{"a"b}', "[0:1]", "{1}}"],
)
def test_what_is_no_array_of_one_dimension_is_told(text: str) -> None:
    assert parse_array(text) is None


@given(st.text(st.sampled_from('{}",\\ab[:]=1'), max_size=12))
def test_whatever_text_comes_it_is_an_array_or_none(text: str) -> None:
    found = parse_array(text)
    if found is not None:
        assert parse_array(printed(found)) == found
