"""The multiplexer's connections to clients: bytes become events of the state machine, its answers bytes.

Who does not read is bounded: its commands are not read while it has answers to take, and past a limit it is
closed. Nor are they while some that were read wait for their turn, so that who says much is bounded as well;
nor while so many of its reads by key are on their way that another's would wait behind them (`is_ahead`).
One whose session is over is told why, and closed once that was taken or `flush_s` have passed.

Does not: decide anything about commands.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable

from clusterd.config import MuxConfig
from clusterd.events import ClientClosed, emit
from clusterd.link import FrameLink
from clusterd.multiplexer.events import Closed, Event, Opened, Received, Rejected
from clusterd.turns import GONE, IN, OUT, Turns
from controller_proto.codec import decode_command, encode_message
from controller_proto.errors import CodecError, RemoteProtocolError
from controller_proto.response import Closing

__all__ = ["ClientLink", "ClientLinks"]


class ClientLink:
    """A connection. `inbox`: frames read and not yet handled; `closing` once its session is over."""

    __slots__ = ("closing", "inbox", "link", "mask", "session", "socket")

    def __init__(self, connected: socket.socket, session: int, limit_bytes: int, buffer: bytearray) -> None:
        self.socket = connected
        self.session = session
        self.link = FrameLink(connected.fileno(), limit_bytes=limit_bytes, buffer=buffer)
        self.inbox: deque[bytes] = deque()
        self.mask = IN
        self.closing = False


class ClientLinks:
    """All of them, and the listener. `by_session` has those that are not closed.

    do: hand an event to the state machine, and do what it returns. is_ahead: whether a session is to wait.
    buffer: of every link of the loop.
    """

    def __init__(
        self,
        listener: socket.socket,
        config: MuxConfig,
        turns: Turns,
        do: Callable[[Event], None],
        is_ahead: Callable[[int], bool],
        buffer: bytearray,
    ) -> None:
        self.by_session: dict[int, ClientLink] = {}
        self._listener = listener
        self._config = config
        self._turns = turns
        self._do = do
        self._is_ahead = is_ahead
        self._ahead: dict[ClientLink, None] = {}  # with frames left over until answers came
        self._buffer = buffer
        self._lingering: dict[ClientLink, float] = {}  # closing, and until when
        self._unhandled: dict[ClientLink, None] = {}  # with frames left over from their last turn
        self._last_session = 0
        self._is_open = False
        self._accepting = False
        listener.setblocking(False)

    # -- for the endpoint

    def open(self) -> None:
        """From here on take clients in."""
        self._is_open = True
        self._accept(True)

    def shut(self) -> None:
        """Take nobody in any more."""
        self._is_open = False
        self._accept(False)
        self._listener.close()

    @property
    def has_unhandled(self) -> bool:
        """Whether frames were left over that no event of a descriptor will tell of."""
        return bool(self._unhandled)

    def timeout_s(self) -> float | None:
        """How long the next turn may wait."""
        if self._unhandled:
            return 0
        if self._lingering:
            return max(0.0, min(self._lingering.values()) - time.monotonic())
        return None

    def handle_left_over(self) -> None:
        """Another turn's worth of each client that had more than one."""
        for client in list(self._unhandled):
            self._handle_inbox(client)
        for client in [client for client in self._ahead if not self._is_ahead(client.session)]:
            del self._ahead[client]
            self._touch(client)  # its frames are handled, and it is read again

    def close_overdue(self) -> None:
        """Those that did not take their last words in time."""
        if self._lingering:
            now = time.monotonic()
            for client in [client for client, until in self._lingering.items() if until <= now]:
                self._close_now(client)

    def has_room(self, session: int) -> bool:
        """Whether nothing was stuck on its link when that was last written."""
        client = self.by_session[session]
        return client.mask == (0 if client in self._ahead else IN)

    def queue(self, client: ClientLink, payload: bytes | memoryview, head: bytes = b"") -> None:
        """Have a frame of `head`, then `payload`, written at the end of the turn."""
        client.link.queue(payload, head)
        self._touch(client)

    def say_goodbye(self, client: ClientLink, closing: Closing) -> None:
        """Its session is over: say why, and close once that was taken or `flush_s` have passed."""
        if client.closing:
            return
        if client.link.out_bytes > self._config.client_pause_bytes:
            client.link.drop_unsent()
        self.queue(client, encode_message(closing))
        client.closing = True
        client.inbox.clear()
        self._unhandled.pop(client, None)
        self._ahead.pop(client, None)
        self._lingering[client] = time.monotonic() + self._config.flush_s
        if closing.code not in ("fenced", "disconnected"):  # those are told as what they come of
            emit(ClientClosed(session=client.session, code=closing.code, message=closing.message))

    def dismiss(self, closing: Closing) -> None:
        """End every session."""
        for client in list(self.by_session.values()):
            if not client.closing:
                self._end(client, closing)

    def close(self) -> None:
        """Close everything; answers still queued get one more chance."""
        for client in list(self.by_session.values()):
            client.link.flush()
            client.socket.close()
        self.by_session.clear()
        self._listener.close()

    # -- for the loop

    def _on_listener(self, mask: int) -> None:
        for _ in range(self._config.frames_per_turn):
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._accept(False)  # no descriptors left: until a client has gone
                return
            self._take_in(connected)

    def _take_in(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._last_session += 1
        client = ClientLink(connected, self._last_session, self._config.max_frame_bytes, self._buffer)
        self.by_session[client.session] = client
        self._turns.watch(client.link.fd, lambda mask: self._on_client(client, mask))
        self._do(Opened(client.session))
        if len(self.by_session) > self._config.max_connections:
            why = f"{self._config.max_connections} connections are open"
            self._end(client, Closing("limit", why, "close some, or raise max_connections"))

    def _on_client(self, client: ClientLink, mask: int) -> None:
        link = client.link
        if mask & OUT:
            self._touch(client)
        if not mask & (IN | GONE) or (self._has_left_over(client) and not mask & GONE):
            return
        frames = link.on_readable()
        if client.closing:
            if link.ended:
                self._close_now(client)
            return  # what a closed session still says has no effect
        if frames:
            client.inbox.extend(frame if isinstance(frame, bytes) else bytes(frame) for frame in frames)
            self._handle_inbox(client)
        if link.ended:
            self._turns.unwatch(link.fd)  # else its EOF would be told again and again
        self._end_if_over(client)

    def _has_left_over(self, client: ClientLink) -> bool:
        return client in self._unhandled or client in self._ahead

    def _end_if_over(self, client: ClientLink) -> None:
        """Nothing more can come: once all that came was handled, the session ends."""
        if client.inbox or client.closing:
            return
        if client.link.ended:  # nobody to say anything to
            self._do(Closed(client.session))
            self._close_now(client)
        elif client.link.broken is not None:
            self._end(client, _closing(client.link.broken))

    def _handle_inbox(self, client: ClientLink) -> None:
        """Up to a turn's worth of frames; the rest when the others had theirs."""
        self._unhandled.pop(client, None)
        inbox, session, do = client.inbox, client.session, self._do
        for _ in range(min(len(inbox), self._config.frames_per_turn)):
            if self._is_ahead(session) and not client.link.ended:
                self._ahead[client] = None
                self._touch(client)  # it is not read meanwhile
                return
            payload = inbox.popleft()
            try:
                said: Event = Received(session, decode_command(payload), payload)
            except CodecError as error:
                said = Rejected(session, error.seq or 0, error.code, error.message, error.hint)
            except RemoteProtocolError as error:
                self._end(client, _closing(error))
                return
            do(said)
            if client.closing:
                return
        if inbox and client.link.out_bytes <= self._config.client_pause_bytes:
            self._unhandled[client] = None
        self._end_if_over(client)

    def _end(self, client: ClientLink, closing: Closing) -> None:
        """End its session, and say why."""
        self._do(Closed(client.session))
        self.say_goodbye(client, closing)

    def _close_now(self, client: ClientLink) -> None:
        client.closing = True
        self._lingering.pop(client, None)
        self._unhandled.pop(client, None)
        self._ahead.pop(client, None)
        self._turns.forget(client.link)
        if self.by_session.pop(client.session, None) is not None:
            self._turns.unwatch(client.link.fd)
            client.socket.close()
        if self._is_open:
            self._accept(True)

    def _touch(self, client: ClientLink) -> None:
        self._turns.touch(client.link, lambda: self._settle(client))

    def _settle(self, client: ClientLink) -> None:
        """After a write: what to wait for next."""
        link = client.link
        if link.ended and not client.closing:
            if client.inbox:
                self._ahead.pop(client, None)  # nobody waits for its answers
                self._unhandled[client] = None
            self._end_if_over(client)
            return
        if client.closing and (link.ended or not link.out_bytes):
            self._close_now(client)
            return
        if link.out_bytes > self._config.client_limit_bytes and not client.closing:
            why = f"{link.out_bytes} bytes of answers were not read"
            self._end(client, Closing("limit", why, "read answers while sending peeks"))
            return
        paused = link.out_bytes > self._config.client_pause_bytes and not client.closing
        paused = paused or client in self._ahead
        if not paused and client.inbox:
            self._unhandled[client] = None
        mask = (0 if paused else IN) | (OUT if link.wants_write else 0)
        if mask != client.mask and self._turns.wait_for(link.fd, mask):
            client.mask = mask

    def _accept(self, accepting: bool) -> None:
        if accepting and not self._accepting:
            self._turns.watch(self._listener.fileno(), self._on_listener)
        elif self._accepting and not accepting:
            self._turns.unwatch(self._listener.fileno())
        self._accepting = accepting


def _closing(error: RemoteProtocolError) -> Closing:
    return Closing(error.code, error.message, error.hint)
