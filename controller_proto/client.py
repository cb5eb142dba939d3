"""The wire client: one blocking socket and the client's end of a connection (client_end.py). The only I/O
of this package.

Sending reads as well, so two ends that both have much to say cannot block each other.

Does not: reconnect by itself (a fenced controller must not), start threads, know what answers what.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from controller_proto.address import BACKLOG_RETRY_S, cannot_connect, parse_address, peer_pid
from controller_proto.client_end import ClientEnd
from controller_proto.command import CancelPeek, Command, Hello, Sync
from controller_proto.errors import CodecError, LocalProtocolError
from controller_proto.framing import MAX_FRAME_BYTES
from controller_proto.response import Refused, Response, Synced
from controller_proto.stage import Stage

__all__ = ["WireClient"]

_READ_BYTES = 256 << 10


class WireClient:
    """One connection to a replica, as controller or as reader. Not for use by two threads at once."""

    def __init__(self, connected: socket.socket, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        connected.setblocking(False)
        self._socket = connected
        self.end = ClientEnd(limit_bytes)

    @classmethod
    def connect(cls, address: str, *, timeout_s: float = 10.0, limit_bytes: int = MAX_FRAME_BYTES) -> Self:
        """Connect to `address`. Raises OSError if nobody listens or takes us in, naming the address;
        LocalProtocolError if it is no address.
        """
        family, where = parse_address(address)
        connected = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connected.settimeout(timeout_s)
            _connect(connected, where, time.monotonic() + timeout_s)
            if family != socket.AF_UNIX:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connected.close()
            raise cannot_connect(address, error) from error
        except BaseException:
            connected.close()
            raise
        return cls(connected, limit_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def peer_pid(self) -> int | None:
        """The process that listens at the other end of a unix socket; None if that cannot be told."""
        return peer_pid(self._socket)

    @property
    def stage(self) -> Stage:
        return self.end.stage

    @property
    def last_seq(self) -> int:
        """The greatest `seq` sent."""
        return self.end.last_seq

    @property
    def open_peeks(self) -> tuple[str, ...]:
        """Peeks sent and not yet answered, oldest first."""
        return self.end.open_peeks

    def hello(self, nonce: str, *, kind: str = "controller", epoch: int = 0, token: str = "") -> int:
        return self.send(Hello(0, nonce=nonce, kind=kind, epoch=epoch, token=token))

    def send(self, command: Command) -> int:
        """Send `command`; with `seq` 0 it gets the next number. Returns its `seq`.

        Raises Disconnected; LocalProtocolError, FrameTooLarge if it cannot be said: then nothing was sent.
        """
        seq = self.end.say(command)
        self.flush()
        return seq

    def flush(self) -> None:
        """Write what was said to `end`; what arrives meanwhile is read. Raises Disconnected."""
        if self.end.outgoing:
            self._write(self.end.take_outgoing())

    def send_bytes(self, data: bytes) -> None:
        """Send `data` as it is, past every check: for tests of the other end."""
        if self.end.over is not None:
            raise self.end.over
        self._write(data)

    def recv(self, timeout_s: float | None = None) -> Response | None:
        """The next response, in order; None when `timeout_s` have passed without one (None: wait for ever).

        Raises Disconnected once all that arrived was handed out, CodecError for an answer that is no message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.end.inbox:
            if self.end.over is not None:
                raise self.end.over
            if not self._wait(select.POLLIN, deadline):
                return None
            self._read()
        return self.end.take()

    def wait_for(self, wanted: Callable[[Response], bool], timeout_s: float) -> Response:
        """The first response that is `wanted`; those before it stay, in order, for `recv`.

        Raises TimeoutError, Disconnected, CodecError.
        """
        deadline = time.monotonic() + timeout_s
        seen = 0
        while True:
            while seen < len(self.end.inbox):
                item = self.end.inbox[seen]
                if isinstance(item, CodecError) or wanted(item):
                    return self.end.take(seen)
                seen += 1
            if self.end.over is not None:
                raise self.end.over
            if not self._wait(select.POLLIN, deadline):
                raise TimeoutError(f"no such answer within {timeout_s} s")
            self._read()

    def sync(self, timeout_s: float = 60.0) -> Synced:
        """Wait until every command sent so far was validated. Raises as `wait_for`."""
        seq = self.send(Sync(0))
        answer = self.wait_for(lambda r: isinstance(r, Synced | Refused) and r.seq == seq, timeout_s)
        if isinstance(answer, Refused):
            raise LocalProtocolError(answer.code, answer.message, answer.hint)
        return Synced(seq)

    def cancel(self, uuid: str) -> int:
        return self.send(CancelPeek(0, uuid=uuid))

    def close(self) -> None:
        """End the connection. What was open stays unanswered."""
        self.end.end("closed by this end")
        self._socket.close()

    def _wait(self, events: int, deadline: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        return bool(poll.poll(left_ms))

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._wait(select.POLLIN | select.POLLOUT, None)
                self._read()
            except OSError as error:
                self._drain_after(error)
            if self.end.over is not None:
                raise self.end.over

    def _drain_after(self, error: OSError) -> None:
        """The other end is gone for writing; it may have said why."""
        while self.end.over is None:
            before = len(self.end.inbox)
            self._read()
            if len(self.end.inbox) == before:
                self.end.end(str(error))

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.end.end(str(error))
            return
        self.end.receive(data)
        if data and self.end.over is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # its framing is broken: nothing more can be read


def _connect(connecting: socket.socket, where: str | tuple[str, int], deadline: float) -> None:
    while True:
        try:
            return connecting.connect(where)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("it takes in no connections") from None
            time.sleep(BACKLOG_RETRY_S)
