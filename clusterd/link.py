"""Frames over a non-blocking descriptor: between processes over pipes, and to clients over sockets.

Nothing here ever waits. What cannot be written stays queued, in order, and `wants_write` says so; a reader
that stops reading costs its queue and nothing else, and whoever queues looks at `out_bytes` and decides.
Frames go out by `writev`, and large ones come in straight into memory of their own, so a large answer is
passed on in many small steps and without a copy; nobody else waits for one long one. Small frames come in
through a buffer that the links of one loop may share: one read and one copy.

Does not: own the descriptor, wait for it, know what is inside a frame.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import deque
from collections.abc import Sequence

from controller_proto.errors import FrameTooLarge
from controller_proto.framing import HEADER_BYTES

__all__ = ["LARGE_BYTES", "MAX_PIPE_FRAME_BYTES", "READ_BYTES", "Frame", "FrameLink"]

MAX_PIPE_FRAME_BYTES = (1 << 32) - 1  # between our own processes: what the header can say

READ_BYTES = 256 << 10  # a unix socket's buffer holds about as much
LARGE_BYTES = 128 << 10  # a frame from here on is read into memory of its own; a smaller one fits the buffer
_WRITE_BYTES = 1 << 20  # handed to one writev: no socket buffer takes more
_WRITE_PARTS = 512  # below IOV_MAX
_HEADER = struct.Struct(">I")

Buffer = bytes | bytearray | memoryview
Frame = bytes | memoryview  # received: a memoryview if it is large


class FrameLink:
    """One end of a stream of frames. The descriptor must be non-blocking (`os.set_blocking`)."""

    __slots__ = (
        "_large",
        "_large_filled",
        "_out",
        "_rest",
        "_view",
        "broken",
        "ended",
        "fd",
        "held",
        "limit_bytes",
        "out_bytes",
    )

    def __init__(
        self, fd: int, *, limit_bytes: int = MAX_PIPE_FRAME_BYTES, buffer: bytearray | None = None
    ) -> None:
        """limit_bytes: of a received frame.

        buffer: to read into, READ_BYTES long; links of one thread may share one.
        """
        self._view = memoryview(bytearray(READ_BYTES) if buffer is None else buffer)
        self.fd = fd
        self.limit_bytes = limit_bytes
        self.held = False  # while set nothing is written
        self.ended = False  # the other end is gone, or was found to be when writing
        self.broken: FrameTooLarge | None = None  # framing is lost; nothing more comes
        self.out_bytes = 0  # queued and not written
        self._rest = b""  # the beginning of a frame, shorter than LARGE_BYTES
        self._large: memoryview | None = None  # a large frame, partly there
        self._large_filled = 0
        self._out: deque[Buffer] = deque()  # header and head, payload, header, ...; the first may be a rest

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the descriptor to become writable."""
        return self.out_bytes > 0 and not self.held

    def fileno(self) -> int:
        return self.fd

    def queue(self, payload: Buffer, head: bytes = b"") -> None:
        """Queue one frame, of `head` and then `payload`; `flush` writes it. The payload, which may be that of
        other frames too, is kept by reference: it must not change.
        """
        if self.ended:
            return
        length = len(head) + len(payload)
        self._out.append(_HEADER.pack(length) + head)
        self._out.append(payload)
        self.out_bytes += HEADER_BYTES + length

    def send(self, payload: Buffer) -> None:
        """Queue one frame, and write what can be written."""
        self.queue(payload)
        self.flush()

    def flush(self) -> None:
        """Write what can be written now. Sets `ended` if there is nobody to read it."""
        while self.out_bytes and not self.held:
            parts, size = self._next_parts()
            try:
                written = os.writev(self.fd, parts)
            except BlockingIOError:
                return
            except OSError:
                self.ended = True
                self._out.clear()
                self.out_bytes = 0
                return
            self._written(written)
            if written < size:
                return

    def drop_unsent(self) -> None:
        """Forget the frames of which nothing was written yet."""
        keep = self._parts_begun()
        while len(self._out) > keep:
            self.out_bytes -= len(self._out.pop())

    def on_readable(self) -> list[Frame]:
        """Read once; return the frames now whole. Sets `ended` at EOF, `broken` at an illegal length."""
        if self._large is not None:
            return self._read_large(self._large)
        kept = len(self._rest)
        if kept:
            self._view[:kept] = self._rest
        try:
            count = os.readv(self.fd, (self._view[kept:],))
        except BlockingIOError:
            return []
        except OSError:
            count = 0
        if not count:
            self.ended = True
            return []
        return [] if self.broken is not None else self._split(kept + count)

    def _split(self, count: int) -> list[Frame]:
        """The frames in the first `count` bytes of the buffer; keeps what is not whole."""
        frames: list[Frame] = []
        view = self._view
        at = 0
        while count - at >= HEADER_BYTES:
            (length,) = _HEADER.unpack_from(view, at)
            if length > self.limit_bytes:
                self.broken = FrameTooLarge(length, self.limit_bytes)
                self._rest = b""
                return frames
            end = at + HEADER_BYTES + length
            if end <= count:
                frames.append(bytes(view[at + HEADER_BYTES : end]))
                at = end
                continue
            if length >= LARGE_BYTES:
                # An anonymous map costs nothing until it is filled, and is handed on as it is.
                self._large = memoryview(mmap.mmap(-1, length))
                self._large_filled = count - at - HEADER_BYTES
                self._large[: self._large_filled] = view[at + HEADER_BYTES : count]
                at = count
            break
        self._rest = bytes(view[at:count])
        return frames

    def _read_large(self, large: memoryview) -> list[Frame]:
        filled = self._large_filled
        try:
            count = os.readv(self.fd, (large[filled : filled + _WRITE_BYTES],))
        except BlockingIOError:
            return []
        except OSError:
            count = 0
        if not count:
            self.ended = True
            self._large = None
            return []
        self._large_filled += count
        if self._large_filled < len(large):
            return []
        self._large = None
        return [large]

    def _next_parts(self) -> tuple[Sequence[Buffer], int]:
        out = self._out
        if self.out_bytes <= _WRITE_BYTES and len(out) <= _WRITE_PARTS:
            return out, self.out_bytes
        parts: list[Buffer] = []
        size = 0
        for part in out:
            parts.append(part)
            size += len(part)
            if size >= _WRITE_BYTES or len(parts) == _WRITE_PARTS:
                break
        return parts, size

    def _written(self, count: int) -> None:
        self.out_bytes -= count
        out = self._out
        while count and count >= len(out[0]):
            count -= len(out.popleft())
        if count:
            out[0] = memoryview(out[0])[count:]
        while out and not len(out[0]):
            out.popleft()  # an empty payload

    def _parts_begun(self) -> int:
        """Items of `_out` of a frame partly written; an odd number of items begins with a bare payload, and
        what is left of a header is a view.
        """
        if len(self._out) % 2:
            return 1
        return 2 if self._out and isinstance(self._out[0], memoryview) else 0
