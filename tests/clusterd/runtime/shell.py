"""Real workers in one process: loops over socket pairs, real shards, shared memory and multiplexer.

A test turns the loops by hand (`settle`), so there is no thread and nothing to wait for.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from clusterd import internal
from clusterd.config import Config, WorkerConfig
from clusterd.convert import updates_from_rows
from clusterd.link import FrameLink
from clusterd.multiplexer import Multiplexer
from clusterd.multiplexer import events as mx
from clusterd.process import ComputeRuntimeRole, WorkerSpec
from clusterd.runtime.loop import WorkerLoop
from clusterd.storage.store import Store
from controller_proto.codec import encode_body, encode_message
from controller_proto.command import (
    AllowCompaction,
    Command,
    CreateDataflow,
    CreateInstance,
    Finishing,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
)
from controller_proto.dataflow import (
    MAX_TIME,
    Build,
    DataflowBody,
    DataflowHeader,
    Export,
    IndexImport,
    SourceImport,
)
from controller_proto.parts import Parts
from controller_proto.plan import Aggregate, Get, Plan, Reduce
from controller_proto.response import PeekError, PeekPart, PeekResponse, PeekRows, Response
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Row, Schema
from shm_arrangements import failpoints
from shm_arrangements.frontier import Frontier
from shm_arrangements.instance import Instance

COUNT_SCHEMA = Schema((Column("count", ColumnType.INT64),))
COUNT = Reduce(Get("u1000"), (), (Aggregate("count"),))


class Pipe:
    """What a WorkerSpec wants of a multiprocess connection."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.said: list[bytes] = []

    def fileno(self) -> int:
        return self.end.fileno()

    def send_bytes(self, data: bytes) -> None:
        self.said.append(data)


class Shell:
    """The replica, and its controller."""

    def __init__(self, tmp_path: Path, interactive_workers: int, *, chunk_s: float = 0.05) -> None:
        self.instance = Instance.create()
        self.store = Store.open(tmp_path)
        self.mux = Multiplexer(interactive_workers=interactive_workers)
        self.sockets: list[socket.socket] = []
        self.links: list[FrameLink] = []
        self.loops: list[WorkerLoop] = []
        self.responses: list[Response] = []
        self.held: set[int] = set()
        self.parts = Parts()
        self.parts_heard = 0
        self.takes_parts = True  # whether the client reads what large answers have
        self.seq = 0
        self.session = 0
        roles = [ComputeRuntimeRole.MAINTENANCE if interactive_workers else ComputeRuntimeRole.SOLO]
        roles += [ComputeRuntimeRole.INTERACTIVE] * interactive_workers
        config = Config(worker=WorkerConfig(chunk_s=chunk_s), validate=True)
        for number, role in enumerate(roles):
            ours, theirs = socket.socketpair()
            self.sockets += [ours, theirs]
            for end in (ours, theirs):
                end.setblocking(False)
            self.links.append(FrameLink(ours.fileno()))
            index = max(0, number - 1)
            spec = WorkerSpec(
                role, index, Pipe(theirs), Pipe(theirs), self.instance.token, str(tmp_path), os.getppid(),
                interactive_workers, config,
            )  # fmt: skip
            loop = WorkerLoop(spec)
            loop.start()
            self.loops.append(loop)
        self._decode = msgspec.msgpack.Decoder(internal.FromWorker).decode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        failpoints.disarm_all()
        for loop in self.loops:
            loop.close()
        for end in self.sockets:
            end.close()
        self.store.close()
        self.instance.release()

    @property
    def reader(self) -> WorkerLoop:
        return self.loops[-1]

    # -- the controller -------------------------------------------------------------------------------------

    def boot(self) -> None:
        self.connect(complete=True)

    def connect(self, *, complete: bool) -> None:
        """A controller comes, in place of the one before."""
        if self.session:
            self.to_mux(mx.Closed(self.session))
        self.session += 1
        self.to_mux(mx.Opened(self.session))
        self.send(Hello(0, f"n{self.session}", self.session), CreateInstance(0))
        if complete:
            self.send(InitializationComplete(0))

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.seq += 1
            command = msgspec.structs.replace(command, seq=self.seq)
            self.to_mux(mx.Received(self.session, command, encode_message(command)))

    def write(self, rows: Sequence[Row], time: int, diffs: int | Sequence[int] = 1, shard: str = "s") -> None:
        """Append at `time` and seal up to the next."""
        written = self.store.create_shard(shard, SAMPLE_SCHEMA)
        written.append(
            updates_from_rows(SAMPLE_SCHEMA, rows, time, diffs), written.upper, Frontier.at(time + 1)
        )

    def index(self, id: str, *, schedule: bool = True, as_of: int = 0, shard: str = "s") -> None:
        source = SourceImport("u1000", shard, SAMPLE_SCHEMA)
        header = DataflowHeader(
            id, as_of, None, (source,), (), (Export(id, "index", "u1000", SAMPLE_SCHEMA, (0,)),)
        )
        self.send(CreateDataflow(0, header, encode_body(DataflowBody(()))))
        if schedule:
            self.send(Schedule(0, id))

    def over(
        self, id: str, import_: str, plan: Plan = COUNT, schema: Schema = COUNT_SCHEMA, *, as_of: int = 0,
        query: bool = True, key: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        export = Export(id, "index", "u5000", schema, key)
        until = as_of + 1 if query and as_of < MAX_TIME else None
        header = DataflowHeader(id, as_of, until, (), (IndexImport(import_),), (export,))
        self.send(
            CreateDataflow(0, header, encode_body(DataflowBody((Build("u5000", plan),)))), Schedule(0, id)
        )

    def peek(self, uuid: str, id: str, time: int | None, keys: Any = None, **finishing: Any) -> None:
        self.send(Peek(0, uuid, id, time, keys, Finishing(**finishing)))

    def drop(self, id: str) -> None:
        self.send(AllowCompaction(0, id, ()))

    # -- what happens ---------------------------------------------------------------------------------------

    def to_mux(self, event: mx.Event) -> None:
        self._perform(self.mux.handle(event))

    def _perform(self, effects: Sequence[mx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, mx.Forward):
                for worker in effect.workers:
                    self.tell(worker, internal.Run(effect.session, effect.command, effect.incarnations))
            elif isinstance(effect, mx.Tell):
                for worker in effect.workers:
                    self.tell(worker, effect.message)
            elif isinstance(effect, mx.Reply):
                self.responses.append(effect.response)
            elif isinstance(effect, mx.Pass | mx.Stream):
                streams = isinstance(effect, mx.Stream)
                raw = effect.head + bytes(effect.said) if streams else bytes(effect.response)
                self._hear(msgspec.msgpack.decode(raw, type=Response))

    def _hear(self, said: Response) -> None:
        """What a worker told the client, large answers put together."""
        if isinstance(said, PeekPart):
            self.parts_heard += 1
        whole = self.parts.take(said) if isinstance(said, PeekPart | PeekResponse) else said
        if whole is not None:
            self.responses.append(whole)

    def tell(self, worker: int, message: internal.ToWorker) -> None:
        self.links[worker].send(msgspec.msgpack.encode(message))

    def exchange(self) -> bool:
        """Carry what the workers said, and the notices that are owed."""
        busy = False
        for worker, link in enumerate(self.links):
            for frame in link.on_readable():
                self.to_mux(mx.WorkerSaid(worker, self._decode(frame)))
                busy = True
            link.flush()
            if worker in self.mux.workers_with_notices:
                for look in self.mux.take_notices(worker):
                    self.tell(worker, look)
                    busy = True
        self.responses += self.mux.take_news()
        for session in self.mux.sessions_to_fetch if self.takes_parts else ():
            self._perform(self.mux.fetch(session))
            busy = True
        return busy

    def settle(self, *, until: Callable[[], bool] | None = None) -> None:
        """Turn all loops that are not held until nothing is left to do, or until `until`."""
        for _ in range(100_000):
            if until is not None and until():
                return
            busy = self.exchange()
            for number, loop in enumerate(self.loops):
                if number not in self.held and (loop.has_work or _readable(loop)):
                    loop.turn()
                    busy = True
            if not busy:
                return
        raise AssertionError("the replica does not come to rest")

    def answer(self, uuid: str) -> PeekResponse | None:
        found = [r for r in self.responses if isinstance(r, PeekResponse) and r.uuid == uuid]
        assert len(found) <= 1, found
        return found[0] if found else None

    def rows(self, uuid: str) -> list[tuple[Any, ...]]:
        response = self.answer(uuid)
        assert response is not None, f"{uuid} is not answered"
        assert isinstance(response.result, PeekRows), response
        columns = response.result.columns
        listed = list(zip(*columns, strict=True)) if columns else [()] * len(response.result.counts)
        return [row for row, count in zip(listed, response.result.counts, strict=True) for _ in range(count)]

    def error(self, uuid: str) -> PeekError:
        response = self.answer(uuid)
        assert response is not None, f"{uuid} is not answered"
        assert isinstance(response.result, PeekError), response
        return response.result

    def names(self) -> list[str]:
        """Segments of the instance, but for its control file."""
        mark = f"clusterd.{self.instance.token}."
        return [n for n in os.listdir("/dev/shm") if n.startswith(mark) and not n.endswith(".ctl")]


def _readable(loop: WorkerLoop) -> bool:
    """Whether a turn would find something: to read, or room for what it has to write."""
    poll = select.poll()
    for fd in loop.descriptors:
        poll.register(fd, select.POLLIN)
    if loop._link.wants_write:
        poll.modify(loop._link.fd, select.POLLIN | select.POLLOUT)
    return bool(poll.poll(0))
