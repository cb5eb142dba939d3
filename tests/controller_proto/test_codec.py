"""The codec against msgpack, the independent second implementation, and against anything at all."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_proto import command, response
from controller_proto.codec import (
    append_frame,
    decode_body,
    decode_command,
    decode_response,
    encode_body,
    encode_message,
)
from controller_proto.command import AllowCompaction, Command, CreateDataflow, Peek, Sync
from controller_proto.dataflow import DataflowBody
from controller_proto.errors import (
    CodecError,
    FrameTooLarge,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from controller_proto.framing import FrameDecoder
from controller_proto.response import Response
from tests.controller_proto.messages import bodies, commands, responses


def _plain(message: object) -> Any:
    """The message as maps and lists, made from its fields alone, not by the encoder under test."""
    if isinstance(message, msgspec.Raw):
        return msgpack.unpackb(bytes(message))
    if isinstance(message, msgspec.Struct):
        config = message.__struct_config__
        fields = {f: _plain(getattr(message, f)) for f in message.__struct_fields__}
        return {config.tag_field: config.tag, **fields} if config.tag_field else fields
    if isinstance(message, tuple):
        return [_plain(item) for item in message]
    if isinstance(message, dict):
        return {key: _plain(value) for key, value in message.items()}
    return getattr(message, "value", message)


@given(commands)
def test_another_implementation_reads_our_commands_and_we_read_its(sent: Command) -> None:
    assert msgpack.unpackb(encode_message(sent)) == _plain(sent)
    got = decode_command(msgpack.packb(_plain(sent)))
    if isinstance(sent, CreateDataflow):
        assert isinstance(got, CreateDataflow)
        assert (got.seq, got.header) == (sent.seq, sent.header)
        assert decode_body(got.body) == decode_body(sent.body)
    else:
        assert got == sent


@given(responses)
def test_another_implementation_reads_our_responses_and_we_read_its(sent: Response) -> None:
    assert msgpack.unpackb(encode_message(sent)) == _plain(sent)
    assert decode_response(msgpack.packb(_plain(sent))) == sent


@pytest.mark.slow
@given(bodies)
def test_a_body_is_read_back_whole(body: DataflowBody) -> None:
    assert decode_body(encode_body(body)) == body


@pytest.mark.parametrize("decode", [decode_command, decode_response, decode_body])
@given(data=st.binary(max_size=64))
def test_garbage_raises_nothing_but_protocol_errors(decode: Any, data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(data)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(commands, st.data())
def test_a_message_with_a_field_replaced_is_read_or_is_a_codec_error(
    sent: Command, data: st.DataObject
) -> None:
    fields = _plain(sent)
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(json_like)
    error = None
    try:
        decode_command(msgpack.packb(fields))
    except CodecError as caught:
        error = caught
    if error is not None:
        assert error.code in ("bad-message", "unknown-message")
        assert error.seq == sent.seq or name == "seq"


@given(commands, st.data())
def test_a_message_cut_short_is_a_bad_frame(sent: Command, data: st.DataObject) -> None:
    whole = encode_message(sent)
    with pytest.raises(RemoteProtocolError) as caught:
        decode_command(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert caught.value.code == "bad-frame"


@pytest.mark.parametrize(
    ("fields", "code", "seq", "says"),
    [
        ({"t": "snyc", "seq": 3}, "unknown-message", 3, "'snyc'"),
        ({"t": 5, "seq": 3}, "unknown-message", 3, "5"),
        ({"seq": 3}, "bad-message", 3, "missing required field `t`"),
        ({"t": "sync"}, "bad-message", None, "missing required field `seq`"),
        ({"t": "sync", "seq": -1}, "bad-message", None, ">= 0 - at `$.seq`, is -1"),
        ({"t": "sync", "seq": 1.0}, "bad-message", None, "got `float`"),
        ({"t": "schedule", "seq": 3, "id": 7}, "bad-message", 3, "at `$.id`, is 7"),
        ({"t": "allow-compaction", "seq": 3, "id": "u1", "frontier": [1, 2]}, "bad-message", 3, "[1, 2]"),
        ({"t": "allow-compaction", "seq": 3, "id": "u1", "frontier": [-1]}, "bad-message", 3, "is -1"),
        ({"t": "peek", "seq": 3, "uuid": b"a", "id": "u1", "time": 0}, "bad-message", 3, "is b'a'"),
        ({"t": "peek", "seq": 3, "uuid": "a", "id": "u1", "time": -1}, "bad-message", 3, "is -1"),
        ([1], "bad-frame", None, "a message is a map, not [1]"),
        ("x" * 100, "bad-frame", None, "..."),
    ],
)
def test_an_error_names_the_sequence_number_and_the_value(
    fields: object, code: str, seq: int | None, says: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_command(msgpack.packb(fields))
    assert caught.value.code == code
    assert says in caught.value.message
    if isinstance(caught.value, CodecError):
        assert caught.value.seq == seq


def test_integers_at_the_ends_of_their_range_survive_and_beyond_are_typed_errors() -> None:
    top = (1 << 64) - 1
    assert decode_command(encode_message(AllowCompaction(top, "u1", (top,)))) == AllowCompaction(
        top, "u1", (top,)
    )
    peek = Peek(1, "a", "u1", top, keys=((-(1 << 63),), (top,)))
    assert decode_command(encode_message(peek)) == peek
    for key in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(LocalProtocolError) as caught:
            encode_message(Peek(1, "a", "u1", 0, keys=((key,),)))
        assert caught.value.code == "bad-message"
    with pytest.raises(LocalProtocolError):
        encode_message(Peek(1, "\ud800", "u1", 0))


def test_a_message_that_cannot_be_said_leaves_the_buffer_as_it_was() -> None:
    buffer = bytearray()
    append_frame(buffer, Sync(1))
    before = bytes(buffer)
    with pytest.raises(LocalProtocolError):
        append_frame(buffer, Sync(1 << 64))
    with pytest.raises(FrameTooLarge):
        append_frame(buffer, Sync(1), limit_bytes=3)
    assert buffer == before
    append_frame(buffer, Sync(2))
    decoder = FrameDecoder()
    decoder.receive(buffer)
    frames = [decoder.next_frame(), decoder.next_frame()]
    assert [decode_command(frame) for frame in frames if frame is not None] == [Sync(1), Sync(2)]


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_nesting_beyond_the_stack_is_an_error_not_a_crash(depth: int) -> None:
    neg = b"\x83\xa1e\xa4call\xa8function\xa3neg\xa4args\x91"
    column = msgpack.packb({"e": "col", "index": 0})
    peek = msgpack.packb({"t": "peek", "seq": 4, "uuid": "a", "id": "u1", "time": 0})
    finishing = b"\xa9finishing\x81\xaapredicates\x91" + neg * depth + column
    with pytest.raises(ProtocolError) as caught:
        decode_command(bytes([peek[0] + 1]) + peek[1:] + finishing)
    assert caught.value.code in ("bad-message", "bad-frame")


def test_a_later_field_is_ignored_and_an_absent_one_has_its_default() -> None:
    assert decode_command(msgpack.packb({"t": "sync", "seq": 1, "later": [1]})) == Sync(1)
    assert decode_command(msgpack.packb({"t": "hello", "seq": 1, "nonce": "n"})) == command.Hello(1, "n")


def test_tags_are_distinct_and_every_message_is_in_its_union() -> None:
    for module, union in ((command, command.Command), (response, response.Response)):
        members = set(union.__args__)
        tags = [member.__struct_config__.tag for member in members]
        assert len(set(tags)) == len(tags)
        structs = {
            item
            for item in vars(module).values()
            if isinstance(item, type)
            and issubclass(item, msgspec.Struct)
            and item.__module__ == module.__name__
            and item.__struct_config__.tag_field == "t"
            and item.__struct_config__.tag is not None
            and not item.__name__.startswith("_")
        }
        assert structs == members
