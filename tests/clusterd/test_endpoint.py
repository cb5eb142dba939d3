"""The endpoint's loop in a thread, over real sockets, with fake workers that the tests drive step by step."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import multiprocess
import pytest

from clusterd import internal
from clusterd.config import Config, MuxConfig
from clusterd.endpoint import Endpoint
from clusterd.link import READ_BYTES
from clusterd.listening import ListeningSocket
from clusterd.process import ComputeRuntimeRole, MuxSpec, WorkerLink
from controller_proto.client import WireClient
from controller_proto.codec import encode_message
from controller_proto.command import (
    AllowCompaction,
    CancelPeek,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Sync,
)
from controller_proto.command import TestHook as StallHook
from controller_proto.errors import Disconnected
from controller_proto.framing import encode_frame
from controller_proto.response import (
    Closing,
    Frontiers,
    PeekCanceled,
    PeekError,
    PeekResponse,
    PeekRows,
    Refused,
)
from tests.clusterd.fake_worker import PARKED, FakeWorker
from tests.clusterd.mux_bench import BODY, MuxBench

pytestmark = pytest.mark.slow

DEADLINE_S = 10.0
SMALL = MuxConfig(
    max_frame_bytes=1 << 20,
    client_pause_bytes=1 << 16,
    client_limit_bytes=4 << 20,
    worker_backlog_bytes=1 << 20,
)


class Rig:
    """An endpoint in a thread; workers stand still unless `step`ped or set to run."""

    def __init__(self, path: Path, interactive: int, config: MuxConfig) -> None:
        self.path = path
        self.listening = ListeningSocket(path, lock_deadline_s=1)
        roles = [(ComputeRuntimeRole.MAINTENANCE if interactive else ComputeRuntimeRole.SOLO, 0)]
        roles += [(ComputeRuntimeRole.INTERACTIVE, i) for i in range(interactive)]
        links, self.ends, self.workers = [], [], []
        for role, index in roles:
            ours, theirs = multiprocess.Pipe()
            os.set_blocking(theirs.fileno(), False)
            links.append(WorkerLink(role, index, ours))
            self.ends.append(theirs)
            self.workers.append(FakeWorker(theirs.fileno(), role.value))
        self.control, control = multiprocess.Pipe()
        self._mux_control = control
        self.endpoint = Endpoint(
            MuxSpec(
                self.listening.socket, tuple(links), control, os.getpid(), Config(mux=config, test_hooks=True)
            )
        )
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self._stop_workers = threading.Event()
        self._wake_in, self._wake_out = os.pipe()
        self._worker_thread: threading.Thread | None = None

    def _run(self) -> None:
        try:
            self.endpoint.run()
        except BaseException as error:
            self.failed = error
            raise

    def ready(self) -> None:
        for worker in self.workers:
            worker.say(internal.Ready())
            worker.link.flush()
        assert self.control.poll(DEADLINE_S)
        assert self.control.recv_bytes() == b"ready"

    def run_workers(self) -> None:
        """From here on all workers answer by themselves."""
        self._worker_thread = threading.Thread(target=self._work, daemon=True)
        self._worker_thread.start()

    def _work(self) -> None:
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        by_fd = {worker.link.fd: worker for worker in self.workers}
        while not self._stop_workers.is_set():
            for worker in self.workers:
                worker.link.flush()
                poll.register(
                    worker.link.fd, select.POLLIN | (select.POLLOUT if worker.link.wants_write else 0)
                )
            for fd, _ in poll.poll():
                if fd in by_fd:
                    self._step(by_fd[fd])

    def _step(self, worker: FakeWorker) -> None:
        for frame in worker.link.on_readable():
            worker.take(worker._decode(frame))
        worker.link.flush()

    def step_until(self, worker: FakeWorker, condition: Callable[[], bool], what: str) -> None:
        """Let one worker read until `condition`; only without `run_workers`."""
        poll = select.poll()
        until = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < until, f"never: {what}"
            poll.register(worker.link.fd, select.POLLIN | (select.POLLOUT if worker.link.wants_write else 0))
            poll.poll(100)
            self._step(worker)

    def client(self) -> WireClient:
        return WireClient.connect(f"unix:{self.path}", timeout_s=DEADLINE_S)

    def controller(self, epoch: int = 0) -> WireClient:
        client = self.client()
        client.hello(str(uuid.uuid4()), epoch=epoch)
        client.send(CreateInstance(0))
        client.send(InitializationComplete(0))
        return client

    def raw(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(DEADLINE_S)
        connected.connect(str(self.path))
        return connected

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.control.send_bytes(b"stop")
        self._stop_workers.set()
        os.write(self._wake_out, b"x")
        if self._worker_thread is not None:
            self._worker_thread.join(DEADLINE_S)
        for end in self.ends:
            end.close()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "the endpoint did not stop"
        self.control.close()
        self._mux_control.close()
        os.close(self._wake_in)
        os.close(self._wake_out)
        self.listening.unlink()
        self.listening.close()
        assert self.failed is None, self.failed


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def build(interactive: int = 1, config: MuxConfig = SMALL, *, run: bool = True) -> Rig:
        rig = Rig(tmp_path / f"s{len(rigs)}", interactive, config)
        rigs.append(rig)
        rig.ready()
        if run:
            rig.run_workers()
        return rig

    yield build
    for rig in rigs:
        rig.close()


def create(
    client: WireClient, id: str, name: str = "d", *, over: tuple[str, ...] = (), until: int | None = None
) -> int:
    """CreateDataflow as the stub bench builds it."""
    bench = MuxBench()
    built: list[Any] = []
    bench.send = lambda session, of, **fields: built.append(of(0, **fields)) or 0  # type: ignore[method-assign, func-returns-value]
    bench.create(0, id, over=over, until=until, shards=() if over else ("s",))
    command = built[0]
    import msgspec

    header = msgspec.structs.replace(command.header, name=name)
    return client.send(msgspec.structs.replace(command, header=header, body=BODY))


def rows(client: WireClient, uid: str) -> PeekResponse:
    answer = client.wait_for(lambda r: isinstance(r, PeekResponse) and r.uuid == uid, DEADLINE_S)
    assert isinstance(answer, PeekResponse)
    return answer


def said(worker: FakeWorker, of: type[Any]) -> list[Any]:
    """The commands of one kind that a worker has read."""
    runs = (message for message in worker.got if isinstance(message, internal.Run))
    return [run.command for run in runs if isinstance(run.command, of)]


def peek(client: WireClient, uid: str, id: str = "u1", time: int = 0, word: str | None = None) -> None:
    client.send(Peek(0, uuid=uid, id=id, time=time, keys=None if word is None else ((word,),)))


@pytest.mark.parametrize("interactive", [0, 1, 2])
def test_a_session_from_hello_to_answers(make: Callable[..., Rig], interactive: int) -> None:
    rig = make(interactive)
    with rig.controller() as client:
        create(client, "u1")
        client.sync(DEADLINE_S)
        for i in range(300):
            peek(client, f"p{i}")
        for i in range(300):
            answer = rows(client, f"p{i}")
            assert isinstance(answer.result, PeekRows)
            assert answer.served_by == ("interactive" if interactive else "solo")
        create(client, "u2", "refuse")
        seq = client.send(Sync(0))
        refused = client.wait_for(lambda r: isinstance(r, Refused), DEADLINE_S)
        assert isinstance(refused, Refused)
        assert (refused.seq, refused.code) == (seq - 1, "invalid-plan")


def test_commands_reach_the_worker_as_the_bytes_that_were_sent(make: Callable[..., Rig]) -> None:
    rig = make(run=False)
    with rig.controller() as client:
        create(client, "u1")
        client.send(AllowCompaction(0, id="u1", frontier=(7,)))
        interactive = rig.workers[1]
        rig.step_until(
            interactive,
            lambda: any(isinstance(m, internal.Run) for m in interactive.got[3:]),
            "the compaction",
        )
        run = interactive.got[-1]
        assert run.command == AllowCompaction(run.command.seq, id="u1", frontier=(7,))
        assert run.incarnations == {"u1": 1}


def test_m5_garbage_ends_that_connection_alone(make: Callable[..., Rig]) -> None:
    rig = make()
    hello = encode_message(Hello(1, nonce="x", kind="reader"))
    with rig.controller() as good:
        create(good, "u1")
        good.sync(DEADLINE_S)
        hostile = {
            "frame-too-large": [
                b"\xff\xff\xff\xff",
                struct.pack(">I", 2 << 30),
                encode_frame(hello) + b"\x7f\0\0\0",
            ],
            "bad-frame": [
                encode_frame(b"\xc1\xc1"),
                encode_frame(hello) + encode_frame(b"\x93\x01"),
                encode_frame(b""),
            ],
            "": [encode_frame(hello) + b"\0\0", b"", b"\0"],
        }
        for code, inputs in hostile.items():
            for data in inputs:
                with rig.raw() as peer:
                    peer.sendall(data)
                    if not code:
                        peer.shutdown(socket.SHUT_WR)
                    came = b""
                    while part := peer.recv(1 << 16):
                        came += part
                    assert code.encode() in came
        peek(good, "a")
        assert isinstance(rows(good, "a").result, PeekRows)


def test_an_unknown_message_is_refused_and_the_connection_stays(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.controller() as client:
        client.send_bytes(encode_frame(b"\x82\xa1t\xa4what\xa3seq\x63"))  # {"t": "what", "seq": 99}
        refused = client.recv(DEADLINE_S)
        assert isinstance(refused, Refused)
        assert (refused.seq, refused.code) == (99, "unknown-message")
        client.sync(DEADLINE_S)


def test_a_slow_client_is_not_read_further_and_slows_nobody(make: Callable[..., Rig]) -> None:
    rig = make(config=replace_config(client_limit_bytes=64 << 20))
    with rig.controller() as slow, rig.client() as quick:
        create(slow, "u1")
        slow.sync(DEADLINE_S)
        quick.hello("q", kind="reader")
        slow.send(Peek(0, uuid="size", id="u1", time=0, keys=(("bytes:500",),)))
        rows(slow, "size")
        frames = b"".join(
            encode_frame(encode_message(Peek(1000 + i, uuid=f"s{i}", id="u1", time=0))) for i in range(20_000)
        )
        before = time.monotonic()
        rest = memoryview(frames)
        slow._socket.setblocking(False)
        stuck = False
        while rest and not stuck:
            try:
                rest = rest[slow._socket.send(rest) :]
            except BlockingIOError:
                stuck = not select.select([], [slow._socket], [], 0.5)[1]
        for i in range(50):
            peek(quick, f"q{i}")
            rows(quick, f"q{i}")
        assert time.monotonic() - before < DEADLINE_S
        assert rest, "all was read, though no answer was taken"
        got = 0
        while got < 20_000:  # and all of it is answered once it is read
            if rest and select.select([], [slow._socket], [], 0)[1]:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[slow._socket.send(rest) :]
            response = slow.recv(1.0)
            got += isinstance(response, PeekResponse)


def test_who_says_more_than_is_handled_is_read_no_faster(make: Callable[..., Rig]) -> None:
    # Cancels of nothing are not answered, so nothing that is unread would stop them.
    rig = make(config=replace_config(frames_per_turn=4))
    with rig.client() as flood, rig.client() as quick:
        flood.hello("", kind="reader")
        quick.hello("q", kind="reader")
        flood.sync(DEADLINE_S)
        frames = b"".join(
            encode_frame(encode_message(CancelPeek(1000 + i, uuid="none"))) for i in range(100_000)
        )
        inbox = rig.endpoint._clients.by_session[1].inbox
        most = 0
        rest = memoryview(frames)
        flood._socket.setblocking(False)
        while rest:
            with contextlib.suppress(BlockingIOError):
                rest = rest[flood._socket.send(rest) :]
            quick.sync(DEADLINE_S)
            most = max(most, len(inbox))
        assert most * len(frames) // 100_000 <= READ_BYTES


def test_a_client_that_never_reads_is_closed_past_the_limit(make: Callable[..., Rig]) -> None:
    # Answers to peeks sent before the pause add up: 2000 of 20 kB are over 4 MB.
    rig = make(config=replace_config(client_pause_bytes=64 << 20))
    with rig.controller() as slow, rig.client() as quick:
        create(slow, "u1")
        slow.sync(DEADLINE_S)
        slow.send(Peek(0, uuid="size", id="u1", time=0, keys=(("bytes:20000",),)))
        rows(slow, "size")
        slow._socket.settimeout(DEADLINE_S)
        for i in range(500):
            slow._socket.sendall(encode_frame(encode_message(Peek(1000 + i, uuid=f"s{i}", id="u1", time=0))))
        quick.hello("q", kind="reader")
        until = time.monotonic() + DEADLINE_S
        while 1 in rig.endpoint._clients.by_session and time.monotonic() < until:
            peek(quick, f"q{time.monotonic()}")
            quick.recv(DEADLINE_S)
        slow._socket.setblocking(False)
        with pytest.raises(Disconnected):
            read_to_the_end(slow)
        quick.sync(DEADLINE_S)


def read_to_the_end(client: WireClient) -> None:
    while client.recv(DEADLINE_S) is not None:
        pass


def replace_config(**changes: Any) -> MuxConfig:
    import msgspec

    return msgspec.structs.replace(SMALL, **changes)


def test_a_fenced_controller_hears_why_and_is_closed(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.controller(1) as first, rig.controller(2) as second:
        closing = first.recv(DEADLINE_S)
        assert isinstance(closing, Closing)
        assert closing.code == "fenced"
        with pytest.raises(Disconnected, match="fenced"):
            first.recv(DEADLINE_S)
        second.sync(DEADLINE_S)


def test_a_client_gone_in_mid_peek_is_forgotten(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.controller() as client:
        create(client, "u1")
        client.sync(DEADLINE_S)
        for _ in range(20):
            with rig.client() as reader:
                reader.hello("r", kind="reader")
                peek(reader, "parked", time=PARKED)
                peek(reader, "open")
        peek(client, "a")
        rows(client, "a")
        until = time.monotonic() + DEADLINE_S
        while rig.workers[1].parked or len(rig.endpoint._clients.by_session) > 1:
            assert time.monotonic() < until
            client.sync(DEADLINE_S)
        assert rig.endpoint._mux.statistics().peeks_in_flight == 0
        assert rig.endpoint._mux.statistics().sessions == 1


def test_commands_sent_right_before_the_close_still_count(make: Callable[..., Rig]) -> None:
    rig = make(run=False)
    with rig.controller() as client:
        for i in range(300):
            create(client, f"u{i + 1}")
    maintenance = rig.workers[0]
    rig.step_until(
        maintenance, lambda: any(isinstance(m, internal.SessionEnd) for m in maintenance.got), "the end"
    )
    assert sum(isinstance(m, internal.Run) for m in maintenance.got) == 302


def test_h3_a_cancel_gets_one_answer(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.controller() as client:
        create(client, "u1")
        client.sync(DEADLINE_S)
        for i in range(200):
            peek(client, f"p{i}", time=PARKED)
            client.send(CancelPeek(0, uuid=f"p{i}"))
            assert isinstance(rows(client, f"p{i}").result, PeekCanceled)
        assert client.recv(0.05) is None


def test_a_stalled_worker_is_written_nothing_until_released(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.controller() as client:
        create(client, "u1")
        client.sync(DEADLINE_S)
        client.send(StallHook(0, process="interactive/0", action="stall"))
        peek(client, "a")
        client.sync(DEADLINE_S)
        assert client.recv(0.1) is None
        client.send(StallHook(0, process="interactive/0", action="release"))
        assert isinstance(rows(client, "a").result, PeekRows)


def test_a_worker_that_takes_nothing_is_bounded_and_others_serve(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.controller() as client:
        create(client, "u1")
        client.sync(DEADLINE_S)
        client.send(StallHook(0, process="maintenance/0", action="stall"))
        codes = set()
        for i in range(20_000):
            create(client, f"u{i + 2}")
            if i % 1000 == 0:
                peek(client, f"p{i}")
                rows(client, f"p{i}")
                while (response := client.recv(0)) is not None:
                    codes.add(getattr(response, "code", ""))
            if "limit" in codes:
                break
        assert codes == {"limit"}
        client.send(StallHook(0, process="maintenance/0", action="release"))
        client.sync(DEADLINE_S)
        peek(client, "z")
        rows(client, "z")


def test_a_seal_wakes_only_who_waits_and_a_stall_bounds_what_is_owed(make: Callable[..., Rig]) -> None:
    rig = make(run=False)
    maintenance, interactive = rig.workers
    with rig.controller() as client:
        create(client, "u1")
        rig.step_until(maintenance, lambda: len(maintenance.got) >= 4, "the create")
        rig.step_until(
            interactive, lambda: any(isinstance(m, internal.Declare) for m in interactive.got), "declare"
        )
        peek(client, "a", time=PARKED)
        rig.step_until(interactive, lambda: bool(interactive.parked), "the peek")
        for i in range(3000):  # interactive reads nothing meanwhile
            maintenance.say(internal.Looks((("u1", 1),)))
            maintenance.link.flush()
            acks = sum(isinstance(m, internal.LooksAck) for m in maintenance.got)
            if i % 50 == 49:
                rig.step_until(
                    maintenance,
                    lambda want=i + 1: sum(isinstance(m, internal.LooksAck) for m in maintenance.got) >= want,
                    f"ack {acks}",
                )
        assert rig.endpoint._workers[1].out_bytes < 1000
        interactive.say(internal.Answer(1, "a", b"\x80"))  # type: ignore[arg-type]
        interactive.link.flush()


def test_an_answer_over_the_frame_limit_is_an_error_that_names_it(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.controller() as client:
        create(client, "u1")
        client.sync(DEADLINE_S)
        peek(client, "big", word=f"bytes:{2 << 20}")
        result = rows(client, "big").result
        assert isinstance(result, PeekError)
        assert result.code == "result-too-large"
        assert str(1 << 20) in result.message


def test_connections_beyond_the_limit_are_told_so(make: Callable[..., Rig]) -> None:
    rig = make(config=replace_config(max_connections=3))
    clients = [rig.client() for _ in range(3)]
    for client in clients:
        client.hello("r", kind="reader")
        client.sync(DEADLINE_S)
    with rig.client() as fourth:
        closing = fourth.recv(DEADLINE_S)
        assert isinstance(closing, Closing)
        assert closing.code == "limit"
    for client in clients:
        client.sync(DEADLINE_S)
        client.close()


def test_many_sessions_take_turns(make: Callable[..., Rig]) -> None:
    rig = make(config=MuxConfig())
    with rig.controller() as flood, rig.client() as other:
        create(flood, "u1")
        flood.sync(DEADLINE_S)
        other.hello("o", kind="reader")
        other.sync(DEADLINE_S)
        data = b"".join(
            encode_frame(encode_message(Peek(100 + i, uuid=f"f{i}", id="u1", time=0))) for i in range(5000)
        )
        sender = threading.Thread(target=lambda: flood._write(data), daemon=True)
        sender.start()
        for i in range(20):
            peek(other, f"o{i}")
            rows(other, f"o{i}")
        sender.join(DEADLINE_S)
        got = len([r for r in flood.end.inbox if isinstance(r, PeekResponse)])
        while got < 5000:
            got += isinstance(flood.recv(DEADLINE_S), PeekResponse)


def test_reads_of_one_who_sent_thousands_are_on_their_way_some_at_a_time_and_others_pass(
    make: Callable[..., Rig],
) -> None:
    rig = make(run=False)
    maintenance, interactive = rig.workers
    with rig.controller() as controller, rig.client() as other:
        create(controller, "u1")
        rig.step_until(maintenance, lambda: bool(said(maintenance, CreateDataflow)), "it")
        other.hello("o", kind="reader")
        maintenance.say(internal.FrontierReport(1, "u1", 1, (1,), (1,), (1,)))
        maintenance.link.flush()
        assert isinstance(controller.recv(DEADLINE_S), Frontiers)
        count = 2_000
        flood = [Peek(100 + i, uuid=f"f{i}", id="u1", time=0, keys=(("a",),)) for i in range(count)]
        frames = [encode_frame(encode_message(each)) for each in flood]
        sender = threading.Thread(target=lambda: controller._write(b"".join(frames)), daemon=True)
        sender.start()

        def peeks() -> list[str]:
            return [sent.uuid for sent in said(interactive, Peek)]

        rig.step_until(interactive, lambda: bool(peeks()), "the first of them")
        peek(other, "mine", word="a")
        rig.step_until(interactive, lambda: "mine" in peeks(), "the read of the other")
        assert peeks().index("mine") < 1_000
        rig.step_until(interactive, lambda: len(peeks()) == count + 1, "the rest")
        sender.join(DEADLINE_S)
        assert [uid for uid in peeks() if uid != "mine"] == [f"f{i}" for i in range(count)]


def test_stop_tells_clients_and_lets_workers_leave(make: Callable[..., Rig]) -> None:
    rig = make(run=False)
    with rig.controller() as client:
        rig.step_until(rig.workers[0], lambda: bool(rig.workers[0].got), "the hello")
        rig.control.send_bytes(b"stop")
        closing = client.recv(DEADLINE_S)
        assert isinstance(closing, Closing)
        assert closing.code == "disconnected"
        for worker in rig.workers:
            rig.step_until(worker, lambda worker=worker: worker.stopped, "stop")
        assert rig.thread.is_alive()
        for end in rig.ends:
            end.close()
        rig.thread.join(DEADLINE_S)
        assert not rig.thread.is_alive()


def test_an_idle_endpoint_makes_no_wake_ups(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.controller() as client:
        create(client, "u1")
        client.sync(DEADLINE_S)
        peek(client, "a", time=PARKED)
        client.sync(DEADLINE_S)
        polls = 0
        endpoint = rig.endpoint

        class Counting:
            def __init__(self, inner: Any) -> None:
                self.inner = inner

            def __getattr__(self, name: str) -> Any:
                return getattr(self.inner, name)

            def poll(self, timeout: float | None) -> Any:
                nonlocal polls
                polls += 1
                assert timeout is None
                return self.inner.poll(timeout)

        endpoint._turns._epoll = Counting(endpoint._turns._epoll)  # type: ignore[assignment]
        client.sync(DEADLINE_S)  # the poll under way ends; the next is counted
        until = time.monotonic() + DEADLINE_S
        while polls < 1 and time.monotonic() < until:
            client.sync(DEADLINE_S)
        before = 0
        while before != polls:  # until it is back in its poll
            before = polls
            time.sleep(0.02)
        time.sleep(0.3)  # the measurement itself
        assert polls == before
