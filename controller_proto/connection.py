"""One end of a connection, without the connection: bytes in, events out; messages in, bytes out.

Framing, codec and stage put together, for either role. What a peer does wrong comes out as an event and not
as an exception, so that a loop over `next_event` ends at NEED_DATA or at an event that nothing follows:

- `Rejected`: a whole frame that is no message, or a command not legal now. A replica answers `refused()`; the
  conversation goes on.
- `Broken`: the framing is lost. A replica answers `closing()` and closes; every later event is the same one.
- `Ended`: the peer sent EOF; `cut_bytes` says how much of a frame never came.

An answer in parts is put together: a PeekPart is no event, the PeekResponse has all rows.

Does not: open, read or write anything; keep a clock; know what a command means.
Form: h11's Connection.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from controller_proto.codec import append_frame, decode_command, decode_response
from controller_proto.command import Command
from controller_proto.errors import CodecError, LocalProtocolError, RemoteProtocolError
from controller_proto.framing import MAX_FRAME_BYTES, FrameDecoder
from controller_proto.parts import Parts
from controller_proto.response import Closing, PeekPart, PeekResponse, Refused, Response
from controller_proto.stage import Stage, StageMachine

__all__ = ["NEED_DATA", "Broken", "Connection", "Ended", "Event", "NeedData", "Rejected", "Role"]


class Role(enum.Enum):
    """Which end of a connection this is."""

    CONTROLLER = "controller"  # says commands, hears responses; also for readers
    REPLICA = "replica"


class NeedData(enum.Enum):
    """The type of `NEED_DATA`: no event is whole yet."""

    NEED_DATA = "need-data"


NEED_DATA = NeedData.NEED_DATA


@dataclass(frozen=True, slots=True)
class Rejected:
    """What came had no effect. `seq` is 0 where it could not be read."""

    seq: int
    code: str
    message: str
    hint: str = ""

    def refused(self) -> Refused:
        return Refused(self.seq, self.code, self.message, self.hint)


@dataclass(frozen=True, slots=True)
class Broken:
    """The peer broke the framing; nothing more can be read from it."""

    code: str
    message: str
    hint: str = ""

    def closing(self) -> Closing:
        return Closing(self.code, self.message, self.hint)


@dataclass(frozen=True, slots=True)
class Ended:
    """EOF. `cut_bytes` > 0: in the middle of a frame."""

    cut_bytes: int


Event = Command | Response | Rejected | Broken | Ended | NeedData


class Connection:
    """One end. `send` may be called at any time; `next_event` until NEED_DATA, Broken or Ended."""

    __slots__ = ("_decoder", "_end", "_eof", "_machine", "_parts", "limit_bytes", "role")

    def __init__(self, role: Role, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self.role = role
        self.limit_bytes = limit_bytes
        self._decoder = FrameDecoder(limit_bytes)
        self._machine = StageMachine()
        self._parts = Parts()
        self._eof = False
        self._end: Broken | Ended | None = None

    @property
    def stage(self) -> Stage:
        return self._machine.stage

    @property
    def last_seq(self) -> int:
        """The greatest `seq` said (CONTROLLER) or heard (REPLICA)."""
        return self._machine.last_seq

    def receive_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes from the peer; none at all is EOF."""
        if len(data):
            self._decoder.receive(data)
        else:
            self._eof = True

    def next_event(self) -> Event:
        """The next thing the peer said, or NEED_DATA. Raises nothing."""
        while True:
            event = self._next()
            whole = self._parts.take(event) if isinstance(event, PeekPart | PeekResponse) else event
            if whole is not None:
                return whole

    def _next(self) -> Event:
        if self._end is not None:
            return self._end
        try:
            payload = self._decoder.next_frame()
            if payload is None:
                if not self._eof:
                    return NEED_DATA
                self._end = Ended(self._decoder.pending_bytes)
                self._machine.close()
                return self._end
            if self.role is Role.REPLICA:
                command = decode_command(payload)
                problem = self._machine.command(command)
                return command if problem is None else Rejected(command.seq, *problem)
            response = decode_response(payload)
            problem = self._machine.response(response)
            return response if problem is None else Rejected(getattr(response, "seq", 0), *problem)
        except CodecError as error:
            return Rejected(error.seq or 0, error.code, error.message, error.hint)
        except RemoteProtocolError as error:
            self._end = Broken(error.code, error.message, error.hint)
            return self._end

    def send(self, message: Command | Response) -> bytes:
        """The bytes of `message`, which is now said. Raises LocalProtocolError, FrameTooLarge: it is not."""
        buffer = bytearray()
        self.send_into(buffer, message)
        return bytes(buffer)

    def send_into(self, buffer: bytearray, message: Command | Response) -> None:
        """As `send`, appending to `buffer`, which is left as it was when this raises."""
        start = len(buffer)
        append_frame(buffer, message, self.limit_bytes)
        if self.role is Role.CONTROLLER:
            problem = self._machine.command(message)  # type: ignore[arg-type]
        else:
            problem = self._machine.response(message)  # type: ignore[arg-type]
        if problem is not None:
            del buffer[start:]
            raise LocalProtocolError(*problem)
