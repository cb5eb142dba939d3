"""Errors of the protocol: the type says who has to act; facts are attributes.

`LocalProtocolError` is a mistake of the code that called us; `RemoteProtocolError` is a peer with broken
framing (close that connection and no other). A well-framed but illegal message is not an exception: it is
answered by `Refused` or by a `PeekError`, both of which carry a code of `CODES`.
"""

from __future__ import annotations

__all__ = [
    "CODES", "CodecError", "Disconnected", "FrameTooLarge", "LocalProtocolError", "ProtocolError", "Refusal",
    "RemoteProtocolError",
]  # fmt: skip

CODES = frozenset({
    "unknown-id", "duplicate-id", "dropped", "invalid-plan", "invalid-stage", "unknown-message",
    "bad-message", "incompatible-config", "unknown-setting", "below-since", "unauthorized",
    "limit", "duplicate-uuid",
    "invalid-data", "multiplicity-overflow", "eval-error", "recursion-limit", "non-monotonic",
    "result-too-large", "wait-limit", "timeout", "fenced", "frame-too-large", "bad-frame", "disconnected",
    "writer-gone", "upper-mismatch", "unknown-shard", "schema-mismatch", "format-mismatch",
    "write-failed",
})  # fmt: skip


class ProtocolError(Exception):
    """Abstract: something about the conversation is wrong. Its text is `CODE: MESSAGE; HINT`."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}; {hint}" if hint else f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint


class LocalProtocolError(ProtocolError):
    """Our side tried to send something that is not legal now, or that cannot be encoded."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the framing; the connection cannot go on."""


class FrameTooLarge(RemoteProtocolError):
    """A frame's announced length is over the limit; nothing was allocated for it."""

    def __init__(self, length_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            "frame-too-large",
            f"frame of {length_bytes} bytes, limit is {limit_bytes} bytes",
            "split the message, or raise max_frame_bytes on both ends",
        )
        self.length_bytes = length_bytes
        self.limit_bytes = limit_bytes


class Disconnected(ProtocolError):
    """The connection is over, and with it all that was open on it.

    `reason`: the code that the replica gave when it closed, `disconnected` if it gave none. `open_peeks`:
    uuids that will never be answered.
    """

    def __init__(
        self, message: str, reason: str = "disconnected", open_peeks: tuple[str, ...] = (), hint: str = ""
    ) -> None:
        super().__init__("disconnected", message, hint)
        self.reason = reason
        self.open_peeks = open_peeks


class CodecError(ProtocolError):
    """A whole frame that is not a message we know: answered `Refused`, the connection stays.

    code is `unknown-message` (tag not known) or `bad-message` (fields missing, mistyped or out of range).
    `seq` is the sender's sequence number if it could be read, else None.
    """

    def __init__(self, code: str, message: str, seq: int | None = None, hint: str = "") -> None:
        super().__init__(code, message, hint)
        self.seq = seq


class Refusal(ProtocolError):
    """A command was judged and refused, without effect. The judge raises it, the shell answers `Refused`."""
