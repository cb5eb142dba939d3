"""A worker that only talks: validates everything, and answers every peek at once with one row.

Entry for the supervisor's and the endpoint's tests; runs in a process or in a thread. Peeks at time 99 stay
parked. A peek of key `boom` raises, `full` is out of shared memory, `hang` makes it deaf to Stop.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import Any

import msgspec

from clusterd import internal
from clusterd.link import FrameLink
from clusterd.process import WorkerSpec
from controller_proto.command import CancelPeek, CreateDataflow, Peek, Sync
from controller_proto.response import PeekCanceled, PeekResponse, PeekRows
from shm_arrangements.errors import ShmExhausted

PARKED = 99


class FakeWorker:
    def __init__(self, fd: int, role: str) -> None:
        self.link = FrameLink(fd)
        self.role = role
        self.got: list[Any] = []
        self.parked: dict[tuple[int, str], int] = {}
        self.value_bytes = 0
        self.stopped = False
        self._decode = msgspec.msgpack.Decoder(internal.ToWorker).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def say(self, message: internal.FromWorker) -> None:
        self.link.queue(self._encode(message))

    def answer(self, session: int, uuid: str, result: Any = None, time: int = 0) -> None:
        value = "x" * self.value_bytes if self.value_bytes else 1
        response = PeekResponse(uuid, result or PeekRows(((value,),), (1,)), time=time, served_by=self.role)
        self.say(internal.Answer(session, uuid, msgspec.Raw(self._encode(response))))

    def take(self, message: internal.ToWorker) -> None:
        self.got.append(message)
        if isinstance(message, internal.Stop):
            self.stopped = True
        elif isinstance(message, internal.SessionEnd):
            self.parked = {at: t for at, t in self.parked.items() if at[0] != message.session}
        elif isinstance(message, internal.Run):
            self._run(message)

    def _run(self, run: internal.Run) -> None:
        command = run.command
        if isinstance(command, Sync):
            self.say(internal.SyncDone(run.session, command.seq))
        elif isinstance(command, CancelPeek):
            if self.parked.pop((run.session, command.uuid), None) is not None:
                self.answer(run.session, command.uuid, PeekCanceled())
        elif isinstance(command, CreateDataflow) and command.header.name == "refuse":
            self.say(internal.Refusal(run.session, command.seq, "invalid-plan", "as asked"))
        elif isinstance(command, Peek):
            self._peek(run.session, command)

    def _peek(self, session: int, peek: Peek) -> None:
        word = peek.keys[0][0] if peek.keys else None
        if word == "boom":
            raise ValueError("as asked")
        if word == "full":
            raise ShmExhausted("no room in shared memory", asked_bytes=4096, free_bytes=17)
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(word, str) and word.startswith("bytes:"):
            self.value_bytes = int(word.removeprefix("bytes:"))
        if peek.time == PARKED:
            self.parked[session, peek.uuid] = PARKED
        else:
            self.answer(session, peek.uuid, time=peek.time or 0)

    def loop(self) -> None:
        """Until told to stop, or the other end is gone."""
        os.set_blocking(self.link.fd, False)
        poll = select.poll()
        while not self.stopped and not self.link.ended:
            self.link.flush()
            poll.register(self.link.fd, select.POLLIN | (select.POLLOUT if self.link.wants_write else 0))
            poll.poll()
            for frame in self.link.on_readable():
                self.take(self._decode(frame))


def run_worker(spec: WorkerSpec) -> None:
    worker = FakeWorker(spec.mux.fileno(), spec.role.value)
    worker.say(internal.Ready())
    worker.link.flush()
    spec.control.send_bytes(b"ready")
    worker.loop()


def run_deaf_worker(spec: WorkerSpec) -> None:
    """Never leaves by itself."""
    with contextlib.suppress(BaseException):
        run_worker(spec)
    while True:
        signal.pause()


def run_failing_worker(spec: WorkerSpec) -> None:
    raise RuntimeError("cannot start")


class FormatMismatch(Exception):
    code = "format-mismatch"


def run_mismatched_worker(spec: WorkerSpec) -> None:
    raise FormatMismatch("data directory is of format 999, this is 1")
