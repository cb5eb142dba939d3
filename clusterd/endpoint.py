"""The multiplexer process: one epoll loop over clients, workers and the supervisor's control pipe.

The loop is dull on purpose: bytes become frames (link.py), frames become events, the state machine
(multiplexer.py) returns effects, and these are queued on links that are flushed once a turn, so that a burst
costs one write a link. A peek crosses with two system calls and one decoding; its payload is passed on as it
came, its answer as the worker wrote it. Nothing waits but the `poll`, which has no timeout unless a
connection is being closed or a turn left frames over.

Who does not read is bounded. A client: its commands are not read while it has answers to take, and past a
limit it is closed. A worker: commands are refused (`limit`) while too many wait; notices and frontiers are
pulled from the state machine only by a link that is clear.

Does not: decide anything about commands, touch row data, survive a worker (the supervisor ends all).
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable

import msgspec

from clusterd import internal
from clusterd.events import ClientClosed, ControllerFenced, DataflowsReconciled, emit
from clusterd.link import READ_BYTES, FrameLink
from clusterd.multiplexer import Multiplexer
from clusterd.multiplexer_events import (
    Backlog,
    Close,
    Closed,
    Effect,
    Fenced,
    Forward,
    Hold,
    Opened,
    Pass,
    Received,
    Reconciled,
    Rejected,
    Reply,
    Stream,
    Tell,
    Unread,
    WorkerSaid,
)
from clusterd.process import ComputeRuntimeRole, MuxSpec
from controller_proto.codec import decode_command, encode_message
from controller_proto.errors import CodecError, RemoteProtocolError
from controller_proto.ids import GlobalId
from controller_proto.response import Closing, PeekError, PeekResponse, Response

__all__ = ["Endpoint", "run_mux"]

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_GONE = select.EPOLLHUP | select.EPOLLERR


class _Run(msgspec.Struct, frozen=True, tag="run"):
    """`internal.Run`, with the command as the bytes it came in."""

    session: int
    command: msgspec.Raw
    incarnations: dict[GlobalId, int]


class _Uuid(msgspec.Struct, frozen=True):
    uuid: str


class _Client:
    """A connection. `inbox`: frames read and not yet handled; `closing` once its session is over."""

    __slots__ = ("closing", "inbox", "link", "mask", "session", "socket")

    def __init__(self, connected: socket.socket, session: int, limit_bytes: int, buffer: bytearray) -> None:
        self.socket = connected
        self.session = session
        self.link = FrameLink(connected.fileno(), limit_bytes=limit_bytes, buffer=buffer)
        self.inbox: deque[bytes] = deque()
        self.mask = _IN
        self.closing = False


class Endpoint:
    """The loop, as an object, so that tests can drive it over real sockets: in a thread, or turn by turn."""

    def __init__(self, spec: MuxSpec) -> None:
        self._config = spec.config.mux
        solo = spec.links[0].role is ComputeRuntimeRole.SOLO
        self._mux = Multiplexer(
            interactive_workers=0 if solo else len(spec.links) - 1, test_hooks=spec.config.test_hooks
        )
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._listener: socket.socket = spec.listener
        self._control = spec.control
        self._buffer = bytearray(READ_BYTES)  # of every link
        self._pipes = [link.pipe for link in spec.links]
        self._workers = [FrameLink(pipe.fileno(), buffer=self._buffer) for pipe in self._pipes]
        self._worker_masks = [_IN] * len(self._workers)
        self._full: set[int] = set()
        self._not_ready = set(range(len(self._workers)))
        self._clients: dict[int, _Client] = {}  # by session
        self._lingering: dict[_Client, float] = {}  # closing, and until when
        self._unhandled: dict[_Client, None] = {}  # with frames left over from their last turn
        self._touched: dict[FrameLink, Callable[[], None]] = {}  # queued on since the last flush
        self._last_session = 0
        self._accepting = False
        self._stopping = False
        self._stopped = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_worker = msgspec.msgpack.Decoder(internal.FromWorker).decode
        self._decode_uuid = msgspec.msgpack.Decoder(_Uuid).decode
        self._perform: dict[type, Callable[[Effect], None]] = {
            Forward: self._forward,  # type: ignore[dict-item]
            Pass: self._pass,  # type: ignore[dict-item]
            Stream: self._stream,  # type: ignore[dict-item]
            Tell: self._tell,  # type: ignore[dict-item]
            Reply: self._reply,  # type: ignore[dict-item]
            Close: self._close_session,  # type: ignore[dict-item]
            Hold: self._hold,  # type: ignore[dict-item]
            Fenced: self._fenced,  # type: ignore[dict-item]
            Reconciled: self._reconciled,  # type: ignore[dict-item]
        }

    def run(self) -> None:
        """Serve until the supervisor says stop, or is gone."""
        self.start()
        try:
            while not self._stopped:
                self.turn(self._timeout())
        finally:
            self.close()

    def start(self) -> None:
        """Begin to listen to the supervisor and the workers; to clients when all workers are ready."""
        self._listener.setblocking(False)
        self._watch(self._control.fileno(), self._on_control)
        for worker, link in enumerate(self._workers):
            os.set_blocking(link.fd, False)
            self._watch(link.fd, lambda mask, worker=worker: self._on_worker(worker, mask))  # type: ignore[misc]

    def turn(self, timeout_s: float | None) -> None:
        """Wait for something, up to `timeout_s`; take it in, and do what follows."""
        for fd, mask in self._epoll.poll(timeout_s):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(mask)
        self._finish_turn()

    def _timeout(self) -> float | None:
        if self._unhandled:
            return 0
        if self._lingering:
            return max(0.0, min(self._lingering.values()) - time.monotonic())
        return None

    def _finish_turn(self) -> None:
        """Frames left over, then what the state machine keeps for links with room, then one write a link.

        A link has room if nothing was stuck on it when it was last written; one that has none waits for
        EPOLLOUT, or for its release, so that another turn comes. What has room only after this turn's write
        is asked for once more, since no other turn may come.
        """
        if self._unhandled:
            for client in list(self._unhandled):
                self._handle_inbox(client)
        self._pull()
        self._flush_touched()
        self._pull()
        self._flush_touched()
        if self._lingering:
            now = time.monotonic()
            for client in [client for client, until in self._lingering.items() if until <= now]:
                self._close_now(client)

    def _pull(self) -> None:
        """What the state machine keeps, to links that have room."""
        for worker in self._mux.workers_with_notices:
            if self._worker_masks[worker] == _IN and not self._workers[worker].held:
                for look in self._mux.take_notices(worker):
                    self._queue_worker(worker, self._encode(look))
        session = self._mux.session_with_frontiers
        if session is not None and self._clients[session].mask == _IN:
            for frontiers in self._mux.take_frontiers():
                self._queue_client(self._clients[session], encode_message(frontiers))
        for session in self._mux.sessions_to_fetch:
            if self._clients[session].mask == _IN:
                for effect in self._mux.fetch(session):
                    self._perform[type(effect)](effect)

    def _flush_touched(self) -> None:
        while self._touched:
            link, settle = self._touched.popitem()
            link.flush()
            settle()

    # -- clients

    def _on_listener(self, mask: int) -> None:
        for _ in range(self._config.frames_per_turn):
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._accept(False)  # no descriptors left: until a client has gone
                return
            self._open(connected)

    def _open(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._last_session += 1
        client = _Client(connected, self._last_session, self._config.max_frame_bytes, self._buffer)
        self._clients[client.session] = client
        self._watch(client.link.fd, lambda mask: self._on_client(client, mask))
        self._mux.handle(Opened(client.session))
        if len(self._clients) > self._config.max_connections:
            why = f"{self._config.max_connections} connections are open"
            self._close(client, Closing("limit", why, "close some, or raise max_connections"))

    def _on_client(self, client: _Client, mask: int) -> None:
        link = client.link
        if mask & _OUT:
            self._touch_client(client)
        if not mask & (_IN | _GONE):
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
            self._unwatch(link.fd)  # else its EOF would be told again and again
        self._end_if_over(client)

    def _end_if_over(self, client: _Client) -> None:
        """Nothing more can come: once all that came was handled, the session ends."""
        if client.inbox or client.closing:
            return
        if client.link.ended:
            self._vanish(client)
        elif client.link.broken is not None:
            self._close(client, _closing(client.link.broken))

    def _handle_inbox(self, client: _Client) -> None:
        """Up to a turn's worth of frames; the rest when the others had theirs."""
        self._unhandled.pop(client, None)
        inbox, session, handle, perform = client.inbox, client.session, self._mux.handle, self._perform
        for _ in range(min(len(inbox), self._config.frames_per_turn)):
            payload = inbox.popleft()
            try:
                effects = handle(Received(session, decode_command(payload), payload))
            except CodecError as error:
                effects = handle(Rejected(session, error.seq or 0, error.code, error.message, error.hint))
            except RemoteProtocolError as error:
                self._close(client, _closing(error))
                return
            for effect in effects:
                perform[type(effect)](effect)
            if client.closing:
                return
        if inbox and client.link.out_bytes <= self._config.client_pause_bytes:
            self._unhandled[client] = None
        self._end_if_over(client)

    def _vanish(self, client: _Client) -> None:
        """The client is gone: nobody to say anything to."""
        for effect in self._mux.handle(Closed(client.session)):
            self._perform[type(effect)](effect)
        self._close_now(client)

    def _close(self, client: _Client, closing: Closing) -> None:
        """End the session, say why, and close once that was taken or `flush_s` have passed."""
        for effect in self._mux.handle(Closed(client.session)):
            self._perform[type(effect)](effect)
        self._say_goodbye(client, closing)

    def _say_goodbye(self, client: _Client, closing: Closing) -> None:
        if client.closing:
            return
        if client.link.out_bytes > self._config.client_pause_bytes:
            client.link.drop_unsent()
        self._queue_client(client, encode_message(closing))
        client.closing = True
        client.inbox.clear()
        self._unhandled.pop(client, None)
        self._lingering[client] = time.monotonic() + self._config.flush_s
        if closing.code not in ("fenced", "disconnected"):  # those are told as what they come of
            emit(ClientClosed(session=client.session, code=closing.code, message=closing.message))

    def _close_now(self, client: _Client) -> None:
        client.closing = True
        self._lingering.pop(client, None)
        self._unhandled.pop(client, None)
        self._touched.pop(client.link, None)
        if self._clients.pop(client.session, None) is not None:
            self._unwatch(client.link.fd)
            client.socket.close()
        if not self._accepting and not self._stopping and not self._not_ready:
            self._accept(True)

    def _queue_client(self, client: _Client, payload: bytes | memoryview) -> None:
        client.link.queue(payload)
        self._touch_client(client)

    def _touch_client(self, client: _Client) -> None:
        if client.link not in self._touched:
            self._touched[client.link] = lambda: self._settle_client(client)

    def _settle_client(self, client: _Client) -> None:
        """After a flush: what to wait for next."""
        link = client.link
        if link.ended and not client.closing:
            if client.inbox:
                self._unhandled[client] = None
            self._end_if_over(client)
            return
        if client.closing and (link.ended or not link.out_bytes):
            self._close_now(client)
            return
        if link.out_bytes > self._config.client_limit_bytes and not client.closing:
            why = f"{link.out_bytes} bytes of answers were not read"
            self._close(client, Closing("limit", why, "read answers while sending peeks"))
            return
        paused = link.out_bytes > self._config.client_pause_bytes and not client.closing
        if not paused and client.inbox:
            self._unhandled[client] = None
        mask = (0 if paused else _IN) | (_OUT if link.wants_write else 0)
        if mask != client.mask and link.fd in self._handlers:
            client.mask = mask
            self._epoll.modify(link.fd, mask)

    # -- workers

    def _on_worker(self, worker: int, mask: int) -> None:
        link = self._workers[worker]
        if mask & _OUT:
            self._touch_worker(worker)
        if not mask & (_IN | _GONE):
            return
        handle, perform = self._mux.handle, self._perform
        for frame in link.on_readable():
            message = self._decode_worker(frame)
            if worker in self._not_ready:
                self._on_ready(worker)
            for effect in handle(WorkerSaid(worker, message)):
                perform[type(effect)](effect)
        if link.ended:
            # It left after Stop, or it died: then the supervisor, who knows how, ends the daemon.
            self._unwatch(link.fd)
            self._touched.pop(link, None)
            self._stop_if_done()

    def _on_ready(self, worker: int) -> None:
        """Its first message is `Ready`; when all have said it, the daemon may be talked to."""
        self._not_ready.discard(worker)
        if not self._not_ready and not self._stopping:
            self._accept(True)
            self._control.send_bytes(b"ready")

    def _queue_worker(self, worker: int, payload: bytes) -> None:
        self._workers[worker].queue(payload)
        self._touch_worker(worker)

    def _touch_worker(self, worker: int) -> None:
        link = self._workers[worker]
        if link not in self._touched:
            self._touched[link] = lambda: self._settle_worker(worker)

    def _settle_worker(self, worker: int) -> None:
        link = self._workers[worker]
        if link.ended:
            return  # its EOF is still to be read
        limit = self._config.worker_backlog_bytes
        if (link.out_bytes > limit) != (worker in self._full) and not limit // 2 < link.out_bytes <= limit:
            full = link.out_bytes > limit
            (self._full.add if full else self._full.discard)(worker)
            self._mux.handle(Backlog(worker, full))
        mask = _IN | (_OUT if link.wants_write else 0)
        if mask != self._worker_masks[worker] and link.fd in self._handlers:
            self._worker_masks[worker] = mask
            self._epoll.modify(link.fd, mask)

    # -- effects

    def _forward(self, effect: Forward) -> None:
        run = _Run(effect.session, msgspec.Raw(effect.payload), effect.incarnations)
        payload = self._encode(run)
        for worker in effect.workers:
            self._queue_worker(worker, payload)

    def _tell(self, effect: Tell) -> None:
        payload = self._encode(effect.message)
        for worker in effect.workers:
            self._queue_worker(worker, payload)

    def _pass(self, effect: Pass) -> None:
        client = self._clients[effect.session]
        answer = memoryview(effect.response)
        if len(answer) > self._config.max_frame_bytes:
            uuid = self._decode_uuid(answer).uuid
            why = f"the answer has {len(answer)} bytes, a frame {self._config.max_frame_bytes} at most"
            error = PeekError("result-too-large", why, "ask for less, or raise max_frame_bytes on both ends")
            answer = memoryview(encode_message(PeekResponse(uuid, error)))
        self._queue_client(client, answer)

    def _stream(self, effect: Stream) -> None:
        client = self._clients.get(effect.session)
        if client is None or client.closing:
            return
        unread = client.link.out_bytes
        response = memoryview(effect.response)
        if unread > self._config.subscription_limit_bytes or len(response) > self._config.max_frame_bytes:
            event = Unread(effect.session, effect.id, effect.lower, max(unread, len(response)))
            for following in self._mux.handle(event):
                self._perform[type(following)](following)
            return
        self._queue_client(client, response)

    def _reply(self, effect: Reply) -> None:
        response: Response = effect.response
        client = self._clients.get(effect.session)
        if client is not None and not client.closing:
            self._queue_client(client, encode_message(response))

    def _close_session(self, effect: Close) -> None:
        self._say_goodbye(self._clients[effect.session], effect.closing)

    def _hold(self, effect: Hold) -> None:
        self._workers[effect.worker].held = effect.held
        self._touch_worker(effect.worker)

    def _fenced(self, effect: Fenced) -> None:
        emit(ControllerFenced(older=effect.older, newer=effect.newer))

    def _reconciled(self, effect: Reconciled) -> None:
        emit(DataflowsReconciled(session=effect.session, counts=effect.counts))

    # -- start and stop

    def _on_control(self, mask: int) -> None:
        try:
            said = self._control.recv_bytes()
        except (EOFError, OSError):
            self._stopped = True  # the supervisor is gone; the kernel is about to end us as well
            return
        if said == b"stop" and not self._stopping:
            self._stop()

    def _stop(self) -> None:
        """In order: take nobody in, let workers leave, tell clients; then wait for both."""
        self._stopping = True
        self._accept(False)
        self._listener.close()
        payload = self._encode(internal.Stop())
        for worker, link in enumerate(self._workers):
            link.held = False
            self._queue_worker(worker, payload)
        for client in list(self._clients.values()):
            if not client.closing:
                self._close(client, Closing("disconnected", "the replica is stopping"))
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self._stopping and all(link.ended for link in self._workers):
            self._stopped = True

    def _accept(self, accepting: bool) -> None:
        if accepting and not self._accepting:
            self._watch(self._listener.fileno(), self._on_listener)
        elif self._accepting and not accepting:
            self._unwatch(self._listener.fileno())
        self._accepting = accepting

    def _watch(self, fd: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, _IN)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Close everything; answers still queued for clients get one more chance."""
        for client in list(self._clients.values()):
            client.link.flush()
            client.socket.close()
        self._clients.clear()
        self._epoll.close()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        self._listener.close()


def _closing(error: RemoteProtocolError) -> Closing:
    return Closing(error.code, error.message, error.hint)


def run_mux(spec: MuxSpec) -> None:
    """Entry of the multiplexer process."""
    endpoint = Endpoint(spec)
    gc.freeze()  # what is loaded stays; a collection looks only at what came after
    endpoint.run()
