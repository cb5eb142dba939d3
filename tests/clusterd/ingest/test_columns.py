from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterd.convert import from_wire
from clusterd.ingest.columns import PgType, column_of_texts, map_type, texts_of_values
from clusterd.ingest.errors import IngestError
from controller_proto.literals import parse_type
from controller_proto.schema import type_name

INT, NUMERIC, TEXT = PgType("int4", "b", True), PgType("numeric", "b", True), PgType("text", "b", True)
TYPES = {
    1: INT, 2: NUMERIC, 3: TEXT,
    10: PgType("_numeric", "b", True, element=2),
    11: PgType("mood", "e", False),
    12: PgType("price", "d", False, base=2, modifier=((12 << 16) | 2) + 4),
    13: PgType("dear", "d", False, base=12),
    14: PgType("citext", "b", False), 15: PgType("money", "b", True), 16: PgType("int4range", "r", True),
    17: PgType("_mood", "b", False, element=11),
}  # fmt: skip


def mapped(oid: int, modifier: int = -1, *, scale: int | None = None) -> str:
    return type_name(map_type(TYPES, oid, modifier, "c", nullable=True, numeric_scale=scale))


def values_of(type_: str, texts: list[str | None]) -> list[object]:
    """What a column of this type makes of values that come over the wire."""
    spec = from_wire(parse_type(type_, "c", nullable=True))
    values = [None if text is None else text.encode() for text in texts]
    return column_of_texts(texts_of_values(values, "t.c"), spec, "t.c").to_pylist()


def test_a_numeric_has_the_scale_it_was_declared_with() -> None:
    assert mapped(2, ((12 << 16) | 2) + 4) == "numeric(38,2)"
    assert mapped(2, ((5 << 16) | (-2 & 0x7FF)) + 4) == "numeric"  # rounds to hundreds: no digits behind
    assert mapped(2, scale=9) == "numeric(38,9)"
    assert mapped(10, ((12 << 16) | 2) + 4) == "numeric(38,2)? list"
    assert mapped(12) == mapped(13) == "numeric(38,2)"
    for oid, modifier in ((2, -1), (10, -1), (2, ((50 << 16) | 40) + 4)):
        with pytest.raises(IngestError) as caught:
            mapped(oid, modifier)
        assert caught.value.code == "unmapped-type"


def test_enums_are_texts_and_what_compares_otherwise_is_refused() -> None:
    assert mapped(11) == "text"
    assert mapped(17) == "text? list"
    for oid in (14, 15, 16, 999):
        with pytest.raises(IngestError, match="leave the column out"):
            mapped(oid)


@given(st.lists(st.none() | st.binary(max_size=9), max_size=9))
def test_bytes_are_what_their_digits_say(values: list[bytes | None]) -> None:
    assert values_of("bytea", [None if v is None else "\\x" + v.hex() for v in values]) == values


@given(st.lists(st.none() | st.uuids(), max_size=9))
def test_uuids_are_what_their_digits_say(values: list[uuid.UUID | None]) -> None:
    assert values_of("uuid", [None if v is None else str(v) for v in values]) == values


@given(st.lists(st.none() | st.integers(0, 86_399_999_999), max_size=9))
def test_times_are_counted_from_midnight(values: list[int | None]) -> None:
    texts = [
        None
        if v is None
        else f"{v // 3_600_000_000:02}:{v // 60_000_000 % 60:02}:{v % 60_000_000 / 1e6:09.6f}"
        for v in values
    ]
    assert values_of("time", texts) == values
    assert values_of("time", [*texts, "24:00:00"]) == [*values, 86_400_000_000]  # which Arrow does not read


def test_what_arrow_does_not_read_is_read_one_by_one() -> None:
    assert values_of("timestamp", ["2000-01-01 00:00:00", "0001-01-01 00:00:00", None]) == [
        946_684_800_000_000, -62_135_596_800_000_000, None,
    ]  # fmt: skip
    assert values_of("interval", ["-1 years -2 mons +3 days -04:05:06.5"]) == [(-14, 3, -14_706_500_000_000)]


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("timestamp", "-infinity"),
        ("timestamptz", "20000-01-01 00:00:00+00"),
        ("numeric(38,2)", "NaN"),
        ("numeric(38,2)", "1.234"),
        ("numeric(38,2)", "1" + "0" * 37),
        ("integer", "2147483648"),
        ("integer? list", "{x}"),
        ("integer? list", "{{1},{2}}"),
        ("jsonb", "{"),
    ],
)
def test_a_value_without_a_place_is_named_with_its_column_and_nothing_is_rounded(
    type_: str, text: str
) -> None:
    with pytest.raises(IngestError, match=r"t\.c: ") as caught:
        values_of(type_, [None, text])
    assert caught.value.code == "invalid-data"
    assert text[-4:].strip("{}") in caught.value.message


def test_a_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(IngestError, match="UTF-8"):
        texts_of_values([b"\xff"], "t.c")


def test_null_where_there_may_be_none_means_that_the_table_was_altered() -> None:
    spec = from_wire(parse_type("integer", "c"))
    with pytest.raises(IngestError) as caught:
        column_of_texts(texts_of_values([None], "t.c"), spec, "t.c")
    assert caught.value.code == "schema-changed"
