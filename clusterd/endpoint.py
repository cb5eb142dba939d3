"""The multiplexer process: one epoll loop over clients, workers and the supervisor's control pipe.

The loop is dull on purpose: bytes become frames (link.py), frames become events (client_links.py), the state
machine (multiplexer/) returns effects, and these are queued on links that are flushed once a turn
(turns.py), so that a burst costs one write a link. A peek crosses with two system calls and one decoding; its
payload is passed on as it came, its answer as the worker wrote it. Nothing waits but the `poll`, which has no
timeout unless a connection is being closed or a turn left frames over.

Who does not read is bounded. A client: client_links.py says how. A worker: commands are refused (`limit`)
while too many wait; notices and frontiers are pulled from the state machine only by a link that is clear.

Does not: decide anything about commands, touch row data, survive a worker (the supervisor ends all).
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable

import msgspec

from clusterd import internal
from clusterd.client_links import ClientLinks
from clusterd.events import ControllerFenced, DataflowsReconciled, emit
from clusterd.introspection.collect_mux import collect_mux
from clusterd.introspection.exports import EXPORTS
from clusterd.introspection.page import ProgressPage
from clusterd.introspection.progress import Progress
from clusterd.link import READ_BYTES, FrameLink
from clusterd.multiplexer import Multiplexer
from clusterd.multiplexer.events import (
    Backlog,
    Close,
    Effect,
    Event,
    Fenced,
    Forward,
    Hold,
    Pass,
    Reconciled,
    Reply,
    Stream,
    Tell,
    Unread,
    WorkerSaid,
)
from clusterd.process import ComputeRuntimeRole, MuxSpec
from clusterd.turns import GONE, IN, OUT, Turns
from controller_proto.codec import encode_message
from controller_proto.ids import GlobalId
from controller_proto.response import Closing, PeekError, PeekResponse, Response

__all__ = ["Endpoint", "run_mux"]


class _Run(msgspec.Struct, frozen=True, tag="run"):
    """`internal.Run`, with the command as the bytes it came in."""

    session: int
    command: msgspec.Raw
    incarnations: dict[GlobalId, int]


class _Uuid(msgspec.Struct, frozen=True):
    uuid: str


class Endpoint:
    """The loop, as an object, so that tests can drive it over real sockets: in a thread, or turn by turn."""

    def __init__(self, spec: MuxSpec) -> None:
        self._config = spec.config.mux
        roles = [link.role for link in spec.links]
        self._mux = Multiplexer(
            interactive_workers=roles.count(ComputeRuntimeRole.INTERACTIVE),
            test_hooks=spec.config.test_hooks,
            introspection=tuple(EXPORTS.values()) if ComputeRuntimeRole.INTROSPECTION in roles else (),
        )
        self._progress: Progress | None = None
        if spec.ring is not None:
            page = ProgressPage(spec.instance, "mux")
            self._progress = Progress(page, spec.ring.fileno(), self.sample, time.monotonic, time.thread_time)
        self._turns = Turns()
        self._control = spec.control
        buffer = bytearray(READ_BYTES)  # of every link
        self._clients = ClientLinks(
            spec.listener, self._config, self._turns, self._do, self._mux.is_ahead, buffer
        )
        self._pipes = [link.pipe for link in spec.links]
        self._workers = [FrameLink(pipe.fileno(), buffer=buffer) for pipe in self._pipes]
        self._worker_masks = [IN] * len(self._workers)
        self._full: set[int] = set()
        self._not_ready = set(range(len(self._workers)))
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
                self.turn(self._timeout_s())
        finally:
            self.close()

    def start(self) -> None:
        """Begin to listen to the supervisor and the workers; to clients when all workers are ready."""
        self._turns.watch(self._control.fileno(), self._on_control)
        for worker, link in enumerate(self._workers):
            os.set_blocking(link.fd, False)
            self._turns.watch(link.fd, lambda mask, worker=worker: self._on_worker(worker, mask))  # type: ignore[misc]

    def turn(self, timeout_s: float | None) -> None:
        """Wait for something, up to `timeout_s`; take it in, and do what follows: frames left over, then what
        the state machine keeps for links with room, then one write a link.

        A link has room if nothing was stuck on it when it was last written; one that has none waits for
        EPOLLOUT, or for its release, so that another turn comes. What has room only after this turn's write
        is asked for once more, since no other turn may come.
        """
        took = self._turns.take(timeout_s)
        self._clients.handle_left_over()
        self._pull()
        self._turns.flush()
        self._pull()
        self._turns.flush()
        self._clients.close_overdue()
        if self._progress is not None:
            if took:
                self._progress.note()
            self._progress.tell()

    def _timeout_s(self) -> float | None:
        due_s = None if self._progress is None else self._progress.due_s
        timeout_s = self._clients.timeout_s()
        if due_s is None:
            return timeout_s
        told_in_s = max(0.0, due_s - time.monotonic())
        return told_in_s if timeout_s is None else min(told_in_s, timeout_s)

    def sample(self) -> bytes:
        """What this process says of itself."""
        return collect_mux(self._mux)

    def is_idle(self) -> bool:
        """Whether a turn would find nothing to do."""
        return self._turns.is_idle() and not self._clients.has_unhandled

    def _do(self, event: Event) -> None:
        """Hand an event to the state machine, and do what it returns."""
        for effect in self._mux.handle(event):
            self._perform[type(effect)](effect)

    def _pull(self) -> None:
        """What the state machine keeps, to links that have room."""
        for worker in self._mux.workers_with_notices:
            if self._worker_masks[worker] == IN and not self._workers[worker].held:
                for look in self._mux.take_notices(worker):
                    self._queue_worker(worker, self._encode(look))
        session = self._mux.session_with_news
        if session is not None and self._clients.has_room(session):
            for news in self._mux.take_news():
                self._clients.queue(self._clients.by_session[session], encode_message(news))
        for session in self._mux.sessions_to_fetch:
            if self._clients.has_room(session):
                for effect in self._mux.fetch(session):
                    self._perform[type(effect)](effect)

    # -- workers

    def _on_worker(self, worker: int, mask: int) -> None:
        link = self._workers[worker]
        if mask & OUT:
            self._touch_worker(worker)
        if not mask & (IN | GONE):
            return
        for frame in link.on_readable():
            message = self._decode_worker(frame)
            if worker in self._not_ready:
                self._on_ready(worker)
            self._do(WorkerSaid(worker, message))
        if link.ended:
            # It left after Stop, or it died: then the supervisor, who knows how, ends the daemon.
            self._turns.unwatch(link.fd)
            self._turns.forget(link)
            self._stop_if_done()

    def _on_ready(self, worker: int) -> None:
        """Its first message is `Ready`; when all have said it, the daemon may be talked to."""
        self._not_ready.discard(worker)
        if not self._not_ready and not self._stopping:
            self._clients.open()
            self._control.send_bytes(b"ready")

    def _queue_worker(self, worker: int, payload: bytes) -> None:
        self._workers[worker].queue(payload)
        self._touch_worker(worker)

    def _touch_worker(self, worker: int) -> None:
        self._turns.touch(self._workers[worker], lambda: self._settle_worker(worker))

    def _settle_worker(self, worker: int) -> None:
        link = self._workers[worker]
        if link.ended:
            return  # its EOF is still to be read
        limit = self._config.worker_backlog_bytes
        if (link.out_bytes > limit) != (worker in self._full) and not limit // 2 < link.out_bytes <= limit:
            full = link.out_bytes > limit
            (self._full.add if full else self._full.discard)(worker)
            self._do(Backlog(worker, full))
        mask = IN | (OUT if link.wants_write else 0)
        if mask != self._worker_masks[worker] and self._turns.wait_for(link.fd, mask):
            self._worker_masks[worker] = mask

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
        client = self._clients.by_session[effect.session]
        answer = memoryview(effect.response)
        if len(answer) > self._config.max_frame_bytes:
            uuid = self._decode_uuid(answer).uuid
            why = f"the answer has {len(answer)} bytes, a frame {self._config.max_frame_bytes} at most"
            error = PeekError("result-too-large", why, "ask for less, or raise max_frame_bytes on both ends")
            answer = memoryview(encode_message(PeekResponse(uuid, error)))
        self._clients.queue(client, answer)

    def _stream(self, effect: Stream) -> None:
        client = self._clients.by_session.get(effect.session)
        if client is None or client.closing:
            return
        unread = client.link.out_bytes
        said = memoryview(effect.said)
        length = len(effect.head) + len(said)
        if unread > self._config.subscription_limit_bytes or length > self._config.max_frame_bytes:
            self._do(Unread(effect.session, effect.id, effect.lower, max(unread, length)))
            return
        self._clients.queue(client, said, effect.head)

    def _reply(self, effect: Reply) -> None:
        response: Response = effect.response
        client = self._clients.by_session.get(effect.session)
        if client is not None and not client.closing:
            self._clients.queue(client, encode_message(response))

    def _close_session(self, effect: Close) -> None:
        self._clients.say_goodbye(self._clients.by_session[effect.session], effect.closing)

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
        self._clients.shut()
        payload = self._encode(internal.Stop())
        for worker, link in enumerate(self._workers):
            link.held = False
            self._queue_worker(worker, payload)
        self._clients.dismiss(Closing("disconnected", "the replica is stopping"))
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self._stopping and all(link.ended for link in self._workers):
            self._stopped = True

    def close(self) -> None:
        """Close everything; answers still queued for clients get one more chance."""
        self._clients.close()
        self._turns.close()
        if self._progress is not None:
            self._progress.close()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()


def run_mux(spec: MuxSpec) -> None:
    """Entry of the multiplexer process."""
    endpoint = Endpoint(spec)
    gc.freeze()  # what is loaded stays; a collection looks only at what came after
    endpoint.run()
