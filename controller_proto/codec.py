"""Bytes <-> messages, strictly: one kept encoder and one decoder a direction.

Three outcomes of reading: a message; CodecError, for a whole frame that is no message of ours (answered, the
conversation goes on); RemoteProtocolError `bad-frame`, for what is not MessagePack or no map. Nothing else is
ever raised, whatever the bytes. The happy path decodes once; only a failure is looked at again,
generically, to learn the tag, the `seq` and the offending value.

Does not: frame (framing.py), know what may be said when (stage.py).
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from controller_proto.command import Command
from controller_proto.dataflow import DataflowBody
from controller_proto.errors import CodecError, LocalProtocolError, RemoteProtocolError
from controller_proto.framing import MAX_FRAME_BYTES, finish_frame, start_frame
from controller_proto.response import Response

__all__ = [
    "append_frame", "decode_body", "decode_command", "decode_response", "encode_body", "encode_message",
    "raw_bytes",
]  # fmt: skip

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_RESPONSES: msgspec.msgpack.Decoder[Response] = msgspec.msgpack.Decoder(Response)
_BODIES: msgspec.msgpack.Decoder[DataflowBody] = msgspec.msgpack.Decoder(DataflowBody)
_ANY: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()

_MAX_SEQ = (1 << 64) - 1


def encode_message(message: Command | Response) -> bytes:
    """Return the payload of one frame. Raises LocalProtocolError `bad-message`: no such thing can be said."""
    try:
        return _ENCODER.encode(message)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError("bad-message", _why(error)) from error


def append_frame(buffer: bytearray, message: Command | Response, limit_bytes: int = MAX_FRAME_BYTES) -> None:
    """Append `message` to `buffer` as one frame, encoded in place.

    Raises FrameTooLarge, or LocalProtocolError as `encode_message`; `buffer` is then as before.
    """
    start = start_frame(buffer)
    try:
        _ENCODER.encode_into(message, buffer, -1)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
        del buffer[start:]
        raise LocalProtocolError("bad-message", _why(error)) from error
    finish_frame(buffer, start, limit_bytes)


def decode_command(payload: bytes) -> Command:
    """Return the command that is `payload`. Raises CodecError, RemoteProtocolError."""
    return _decode(_COMMANDS, payload)


def decode_response(payload: bytes) -> Response:
    """Return the response that is `payload`. Raises CodecError, RemoteProtocolError."""
    return _decode(_RESPONSES, payload)


def encode_body(body: DataflowBody) -> msgspec.Raw:
    """Return `body` as it travels in `CreateDataflow.body`. Raises LocalProtocolError."""
    try:
        return msgspec.Raw(_ENCODER.encode(body))
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError("bad-message", _why(error)) from error


def decode_body(raw: msgspec.Raw | bytes) -> DataflowBody:
    """Return the body of a CreateDataflow. Raises CodecError `bad-message`: the frame around it was whole."""
    payload = raw if isinstance(raw, bytes) else raw_bytes(raw)
    try:
        return _decode(_BODIES, payload, tag_field="p")
    except RemoteProtocolError as error:
        raise CodecError("bad-message", f"body of the dataflow: {error.message}") from error
    except CodecError as error:
        raise CodecError("bad-message", f"body of the dataflow: {error.message}", hint=error.hint) from error


def raw_bytes(raw: msgspec.Raw) -> bytes:
    """The bytes of an undecoded value."""
    return bytes(memoryview(raw))


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes, tag_field: str = "t") -> T:
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        raise _explain(payload, str(error), tag_field) from error
    except msgspec.DecodeError as error:
        raise RemoteProtocolError("bad-frame", f"not MessagePack: {error}") from error
    except RecursionError as error:
        raise CodecError("bad-message", "nested too deeply") from error
    except (TypeError, ValueError) as error:  # within a value; `_explain` says of what
        raise RemoteProtocolError("bad-frame", f"not MessagePack: {error}") from error


def _explain(payload: bytes, why: str, tag_field: str) -> CodecError | RemoteProtocolError:
    """Look again at a frame that is no message: is it a map at all, which tag, which seq, which value."""
    try:
        value = _ANY.decode(payload)
    except RecursionError:
        return CodecError("bad-message", "nested too deeply")
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        # TypeError: a map key that is itself a map; ValueError: a timestamp extension out of range.
        return RemoteProtocolError("bad-frame", f"not MessagePack: {error}")
    if not isinstance(value, dict):
        return RemoteProtocolError("bad-frame", f"a message is a map, not {_shown(value)}")
    seq = value.get("seq")
    if type(seq) is not int or not 0 <= seq <= _MAX_SEQ:
        seq = None
    tag = value.get(tag_field)
    if tag_field == "t" and why.endswith("at `$.t`"):
        return CodecError("unknown-message", f"no message is called {_shown(tag)}", seq)
    name = f"{tag}: " if tag_field == "t" and isinstance(tag, str) else ""
    return CodecError("bad-message", name + why + _value_at(value, why), seq)


def _value_at(value: Any, why: str) -> str:
    """`, is -1` for a message that ends in the path of the value -1; nothing where the path is not exact."""
    match = re.search(r" - at `\$([^`]*)`$", why)
    if match is None:
        return ""
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", match[1]):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            return ""
    return "" if "[...]" in match[1] else f", is {_shown(value)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _why(error: Exception) -> str:
    return f"cannot be encoded: {error}"
