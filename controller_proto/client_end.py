"""The client's end of a connection, without the socket: commands in, bytes out; bytes in, responses out.

Right in the end of a connection, which is what clients get wrong: what had arrived stays to be taken, then
there is one and the same Disconnected, with the reason that the replica gave, if it gave one, and the peeks
that stay unanswered.

Does not: read, write, wait (client.py and asyncio's do), know what answers what beyond peeks.
"""

from __future__ import annotations

from collections import deque

import msgspec

from controller_proto.command import Command, Peek
from controller_proto.connection import NEED_DATA, Broken, Connection, Ended, Rejected, Role
from controller_proto.errors import CodecError, Disconnected
from controller_proto.framing import MAX_FRAME_BYTES
from controller_proto.response import Closing, PeekResponse, Refused, Response
from controller_proto.stage import Stage

__all__ = ["ClientEnd"]

_FENCED = "another controller connected; use reader=True to read beside it"


class ClientEnd:
    """One connection's state. `outgoing`: bytes to write; `inbox`: what was heard and not taken.

    over: why nothing can be said any more, once that is so.

    >>> from controller_proto.command import Hello
    >>> end = ClientEnd()
    >>> end.say(Hello(0, nonce="n"))
    1
    >>> end.receive(b"")
    >>> end.over.reason
    'disconnected'
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self.outgoing = bytearray()
        self.inbox: deque[Response | CodecError] = deque()
        self.over: Disconnected | None = None
        self._connection = Connection(Role.CONTROLLER, limit_bytes)
        self._open: dict[str, int] = {}  # peeks sent and not answered, oldest first: uuid -> seq
        self._reason: Closing | None = None

    @property
    def stage(self) -> Stage:
        return self._connection.stage

    @property
    def last_seq(self) -> int:
        """The greatest `seq` said."""
        return self._connection.last_seq

    @property
    def open_peeks(self) -> tuple[str, ...]:
        """Peeks said and not yet answered, oldest first."""
        return tuple(self._open)

    def say(self, command: Command) -> int:
        """Append `command` to `outgoing`; with `seq` 0 it gets the next number. Returns its `seq`.

        Raises Disconnected; LocalProtocolError, FrameTooLarge if it cannot be said: then nothing was.
        """
        if self.over is not None:
            raise self.over
        if command.seq == 0:
            command = msgspec.structs.replace(command, seq=self._connection.last_seq + 1)
        self._connection.send_into(self.outgoing, command)
        if isinstance(command, Peek):
            self._open.setdefault(command.uuid, command.seq)
        return command.seq

    def take_outgoing(self) -> bytearray:
        """What is to be written, which is the caller's to write from here on."""
        taken, self.outgoing = self.outgoing, bytearray()
        return taken

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes that arrived; none at all is EOF."""
        self._connection.receive_bytes(data)
        while self.over is None and (event := self._connection.next_event()) is not NEED_DATA:
            if isinstance(event, Ended):
                cut = f", {event.cut_bytes} bytes into a message" if event.cut_bytes else ""
                self.end("the replica closed the connection" + cut)
            elif isinstance(event, Broken):
                self.end(f"{event.code}: {event.message}", event.code)
            elif isinstance(event, Rejected):
                self.inbox.append(CodecError(event.code, event.message, event.seq, event.hint))
            else:
                self._hear(event)  # type: ignore[arg-type]

    def take(self, position: int = 0) -> Response:
        """The response at `position` of the inbox. Raises CodecError if what came was no message."""
        item = self.inbox[position]
        del self.inbox[position]
        if isinstance(item, CodecError):
            raise item
        return item

    def end(self, message: str, code: str = "disconnected") -> None:
        """The connection is over; the reason that the replica gave comes before `message`."""
        if self.over is not None:
            return
        hint = ""
        if self._reason is not None:
            code, message, hint = self._reason.code, self._reason.message, self._reason.hint
            if code == "fenced":
                hint = _FENCED
            if code != "disconnected":
                message = f"{code}: {message}"
        self.over = Disconnected(message, code, tuple(self._open), hint)
        self._open.clear()
        self.outgoing.clear()

    def _hear(self, response: Response) -> None:
        if isinstance(response, PeekResponse):
            self._open.pop(response.uuid, None)
        elif isinstance(response, Refused):
            for uuid in [uuid for uuid, seq in self._open.items() if seq == response.seq]:
                del self._open[uuid]
        elif isinstance(response, Closing):
            self._reason = response
        self.inbox.append(response)
