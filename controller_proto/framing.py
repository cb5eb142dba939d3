"""Frames: a u32 length, big-endian, then that many bytes.

Right because the decoder believes a length only after comparing it with the limit, and holds no more than
what arrived: a peer that announces 2 GiB costs four bytes. A decoder that met an illegal length is spent; it
raises the same error ever after, since where the next frame begins is unknown.

Does not: know what is inside a frame, read or write anything.
"""

from __future__ import annotations

import struct

from controller_proto.errors import FrameTooLarge

__all__ = ["HEADER_BYTES", "MAX_FRAME_BYTES", "FrameDecoder", "encode_frame", "finish_frame", "start_frame"]

HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 << 20  # default of both ends: the largest answer, held whole by its receiver

_HEADER = struct.Struct(">I")
_COMPACT_BYTES = 64 << 10  # consumed bytes kept before the rest is moved down: one move a 64 KiB


def encode_frame(payload: bytes | bytearray | memoryview, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return `payload` as one frame. Raises FrameTooLarge."""
    if len(payload) > limit_bytes:
        raise FrameTooLarge(len(payload), limit_bytes)
    return _HEADER.pack(len(payload)) + payload


def start_frame(buffer: bytearray) -> int:
    """Reserve the length of a frame whose payload will be appended to `buffer`; returns where it begins."""
    start = len(buffer)
    buffer += b"\0\0\0\0"
    return start


def finish_frame(buffer: bytearray, start: int, limit_bytes: int = MAX_FRAME_BYTES) -> None:
    """Write the length of the frame begun at `start`. Raises FrameTooLarge, and takes the frame off again."""
    length = len(buffer) - start - HEADER_BYTES
    if length > limit_bytes:
        del buffer[start:]
        raise FrameTooLarge(length, limit_bytes)
    _HEADER.pack_into(buffer, start, length)


class FrameDecoder:
    """Bytes in, in pieces of any size; whole payloads out, in order.

    >>> decoder = FrameDecoder(limit_bytes=100)
    >>> decoder.receive(encode_frame(b"ab") + bytes(2))
    >>> decoder.next_frame(), decoder.next_frame(), decoder.pending_bytes
    (b'ab', None, 2)
    """

    __slots__ = ("_buffer", "_consumed", "_error", "limit_bytes")

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._consumed = 0
        self._error: FrameTooLarge | None = None

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take what arrived. Nothing is kept once an illegal length was met."""
        if self._error is None:
            self._buffer += data

    def next_frame(self) -> bytes | None:
        """Return the next whole payload, None when more bytes are needed. Raises FrameTooLarge, for good."""
        if self._error is not None:
            raise self._error
        buffer, start = self._buffer, self._consumed
        if len(buffer) - start < HEADER_BYTES:
            return None
        (length,) = _HEADER.unpack_from(buffer, start)
        if length > self.limit_bytes:
            self._error = FrameTooLarge(length, self.limit_bytes)
            self._buffer = bytearray()
            self._consumed = 0
            raise self._error
        end = start + HEADER_BYTES + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            payload = bytes(view[start + HEADER_BYTES : end])
        if end == len(buffer):
            buffer.clear()
            self._consumed = 0
        elif end >= _COMPACT_BYTES:
            del buffer[:end]
            self._consumed = 0
        else:
            self._consumed = end
        return payload

    @property
    def pending_bytes(self) -> int:
        """Bytes of frames not yet whole, or not yet taken."""
        return len(self._buffer) - self._consumed
