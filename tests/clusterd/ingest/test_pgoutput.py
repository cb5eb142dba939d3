from __future__ import annotations

import struct
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterd.ingest.errors import IngestError
from clusterd.ingest.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Ignored,
    Insert,
    Keepalive,
    Message,
    Relation,
    RelationColumn,
    Truncate,
    Tuple,
    Unchanged,
    Update,
    XLogData,
    decode_frame,
    decode_message,
    status_update,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.none() | st.just(UNCHANGED) | st.binary(max_size=40)
TUPLES = st.lists(VALUES, max_size=6).map(tuple)
COLUMNS = st.builds(RelationColumn, NAMES, U32, st.integers(-(2**31), 2**31 - 1))
MESSAGES = st.one_of(
    st.builds(Begin, U64, U32),
    st.builds(Commit, U64, U64),
    st.builds(Relation, U32, NAMES, NAMES, st.sampled_from("dnfi"), st.lists(COLUMNS, max_size=5).map(tuple)),
    st.builds(Insert, U32, TUPLES),
    st.builds(Update, U32, st.none() | TUPLES, TUPLES),
    st.builds(Delete, U32, st.none() | TUPLES),
    st.builds(Truncate, st.lists(U32, max_size=5).map(tuple)),
)


def _tuple(values: Tuple) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unchanged):
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
    return b"".join(parts)


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def encoded(message: Message) -> bytes:
    """As the server's plugin writes it."""
    match message:
        case Begin(final_lsn, xid):
            return b"B" + struct.pack(">QqI", final_lsn, 7, xid)
        case Commit(commit_lsn, end_lsn):
            return b"C\0" + struct.pack(">QQq", commit_lsn, end_lsn, 7)
        case Relation(oid, schema, name, identity, columns):
            head = b"R" + struct.pack(">I", oid) + _text(schema) + _text(name) + identity.encode()
            body = [b"\1" + _text(c.name) + struct.pack(">Ii", c.type, c.modifier) for c in columns]
            return head + struct.pack(">H", len(columns)) + b"".join(body)
        case Insert(oid, new):
            return b"I" + struct.pack(">I", oid) + b"N" + _tuple(new)
        case Update(oid, old, new):
            before = b"" if old is None else b"O" + _tuple(old)
            return b"U" + struct.pack(">I", oid) + before + b"N" + _tuple(new)
        case Delete(oid, old):
            return b"D" + struct.pack(">I", oid) + (b"K" + _tuple(()) if old is None else b"O" + _tuple(old))
        case Truncate(oids):
            return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 0, *oids)
    raise AssertionError(message)


@given(MESSAGES)
def test_a_message_is_decoded_as_what_was_encoded(message: Message) -> None:
    assert decode_message(encoded(message)) == message


@given(MESSAGES, st.data())
def test_a_message_that_is_cut_or_longer_is_refused_and_nothing_else_is_raised(
    message: Message, data: st.DataObject
) -> None:
    whole = encoded(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for broken in (whole[:cut], whole + b"x"):
        with pytest.raises(IngestError) as caught:
            decode_message(broken)
        assert caught.value.code == "bad-stream"


@given(st.binary(max_size=80) | st.tuples(MESSAGES, st.integers(0, 200), st.integers(0, 255)))
def test_whatever_bytes_come_they_are_a_message_or_refused(case: bytes | tuple[Message, int, int]) -> None:
    if isinstance(case, bytes):
        data = case
    else:
        message, at, byte = case
        changed = bytearray(encoded(message))
        changed[at % len(changed)] = byte
        data = bytes(changed)
    for decode in (decode_message, decode_frame):
        try:
            decode(data)
        except IngestError as error:
            assert error.code == "bad-stream"  # noqa: PT017 (it need not be raised)


def test_a_key_alone_is_no_old_row() -> None:
    key = b"K" + _tuple((b"1", None))
    assert decode_message(b"U" + struct.pack(">I", 5) + key + b"N" + _tuple((b"2", b"x"))) == Update(
        5, None, (b"2", b"x")
    )
    assert decode_message(b"D" + struct.pack(">I", 5) + key) == Delete(5, None)


def test_what_changes_nothing_is_told_apart_from_what_is_unknown() -> None:
    assert decode_message(b"Y" + struct.pack(">I", 5) + b"public\0mood\0") == Ignored("Y")
    assert decode_message(b"O" + struct.pack(">Q", 5) + b"origin\0") == Ignored("O")
    for kind in (b"S", b"Z", b"", b"\0"):  # S begins a stream of a transaction that goes on: not asked for
        with pytest.raises(IngestError, match="bad-stream"):
            decode_message(kind)


def test_values_in_binary_are_refused_for_they_were_not_asked_for() -> None:
    with pytest.raises(IngestError, match="bad-stream"):
        decode_message(b"I" + struct.pack(">I", 5) + b"N\0\1b" + struct.pack(">I", 1) + b"x")


def test_frames_are_keepalives_or_data() -> None:
    assert decode_frame(b"k" + struct.pack(">QQB", 77, 0, 1)) == Keepalive(77, True)
    assert decode_frame(b"w" + struct.pack(">QQQ", 1, 2, 3) + b"B..") == XLogData(b"B..")
    for broken in (b"", b"k", b"w" + bytes(23), b"k" + bytes(18), b"p" + bytes(40)):
        with pytest.raises(IngestError, match="bad-stream"):
            decode_frame(broken)


def test_a_status_confirms_one_place_in_all_its_fields() -> None:
    kind, *places, _, reply = struct.unpack(">cQQQqB", status_update(99))
    assert (kind, cast("list[int]", places), reply) == (b"r", [99, 99, 99], 0)
