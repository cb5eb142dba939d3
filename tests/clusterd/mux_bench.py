"""A multiplexer with recording stubs in place of workers and clients: says things, and keeps what came out.

Right because it performs every effect in order, as the endpoint would, with links that are always clear
unless told otherwise. Not a test itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clusterd import internal
from clusterd.config import SETTINGS, Setting
from clusterd.multiplexer import Multiplexer
from clusterd.multiplexer.events import (
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
    Reply,
    Stream,
    Tell,
    WorkerSaid,
)
from controller_proto.codec import encode_body, encode_message
from controller_proto.command import (
    AllowCompaction,
    Command,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
)
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.response import PeekResponse, PeekRows
from controller_proto.schema import SAMPLE_SCHEMA

MAINTENANCE = 0
BODY = encode_body(DataflowBody(()))
_DECODE = msgspec.msgpack.Decoder(PeekResponse).decode


def rows_answer(uuid: str, value: int = 1) -> msgspec.Raw:
    response = PeekResponse(uuid, PeekRows(((value,),), (1,)), time=0, served_by="interactive")
    return msgspec.Raw(msgspec.msgpack.encode(response))


class MuxBench:
    """`to_worker[w]`, `to_client[s]`: everything said so far, in order; `take` empties one of them."""

    def __init__(
        self,
        interactive: int = 1,
        *,
        test_hooks: bool = True,
        settings: Any = SETTINGS,
        introspection: tuple[str, ...] = (),
    ) -> None:
        exports = tuple(Export(id, "index", id, SAMPLE_SCHEMA, (0,)) for id in introspection)
        self.mux = Multiplexer(
            interactive_workers=interactive, test_hooks=test_hooks, settings=settings, introspection=exports
        )
        self.workers = range(interactive + 1 + bool(introspection))
        self.to_worker: dict[int, list[Any]] = {worker: [] for worker in self.workers}
        self.to_client: dict[int, list[Any]] = {}
        self.closed: dict[int, Any] = {}
        self.held: set[int] = set()
        self.clear = set(self.workers)  # workers whose link takes notices now
        self.reads = True  # whether the controller takes frontiers now
        self._sessions = 0
        self._seqs: dict[int, int] = {}

    # -- clients

    def open(self) -> int:
        self._sessions += 1
        self.to_client[self._sessions] = []
        self._seqs[self._sessions] = 0
        self.handle(Opened(self._sessions))
        return self._sessions

    def send(self, session: int, of: type[Command], /, **fields: Any) -> int:
        self._seqs[session] += 1
        command = of(self._seqs[session], **fields)
        self.handle(Received(session, command, encode_message(command)))
        return self._seqs[session]

    def controller(self, nonce: str = "", *, epoch: int = 0, complete: bool = True, **config: Any) -> int:
        session = self.open()
        self.send(session, Hello, nonce=nonce or f"n{session}", epoch=epoch)
        if session in self.closed:
            return session
        self.send(session, CreateInstance, config=config)
        if complete:
            self.send(session, InitializationComplete)
        return session

    def reader(self) -> int:
        session = self.open()
        self.send(session, Hello, nonce=f"r{session}", kind="reader")
        return session

    def close(self, session: int) -> None:
        self.handle(Closed(session))

    def create(
        self,
        session: int,
        *exports: str,
        as_of: int = 0,
        until: int | None = None,
        over: tuple[str, ...] = (),
        shards: tuple[str, ...] = (),
        kind: str = "index",
    ) -> int:
        header = DataflowHeader(
            name="d",
            as_of=as_of,
            until=until,
            source_imports=tuple(
                SourceImport(f"u{9000 + i}", s, SAMPLE_SCHEMA) for i, s in enumerate(shards)
            ),
            index_imports=tuple(IndexImport(id) for id in over),
            exports=tuple(Export(id, kind, "u9999", SAMPLE_SCHEMA, (0,)) for id in exports),
        )
        return self.send(session, CreateDataflow, header=header, body=BODY)

    def query(self, session: int, id: str, *over: str, as_of: int = 0) -> int:
        return self.create(session, id, as_of=as_of, until=as_of + 1, over=over)

    def schedule(self, session: int, id: str) -> int:
        return self.send(session, Schedule, id=id)

    def compact(self, session: int, id: str, *frontier: int) -> int:
        return self.send(session, AllowCompaction, id=id, frontier=frontier)

    drop = compact  # with no frontier

    def peek(self, session: int, uuid: str, id: str, time: int | None = 0, keys: Any = None) -> int:
        return self.send(session, Peek, uuid=uuid, id=id, time=time, keys=keys)

    # -- workers

    def say(self, worker: int, message: internal.FromWorker) -> None:
        self.handle(WorkerSaid(worker, message))

    def answer(self, worker: int, session: int, uuid: str) -> None:
        self.say(worker, internal.Answer(session, uuid, rows_answer(uuid)))

    def report(
        self, worker: int, session: int, id: str, incarnation: int, write: tuple[int, ...], **more: Any
    ) -> None:
        self.say(worker, internal.FrontierReport(session, id, incarnation, write=write, **more))

    def terminal(self, worker: int, session: int, id: str, incarnation: int) -> None:
        self.report(worker, session, id, incarnation, (), input=(), output=())

    def refuse(self, worker: int, session: int, seq: int, code: str = "invalid-plan") -> None:
        self.say(worker, internal.Refusal(session, seq, code, "no"))

    def incarnation(self, id: str) -> int:
        """The newest incarnation of `id` that any worker was told."""
        found = 0
        for messages in self.to_worker.values():
            for message in messages:
                if isinstance(message, Forward):
                    found = max(found, message.incarnations.get(id, 0))
        return found

    # -- effects

    def handle(self, event: Any) -> list[Effect]:
        effects = self.mux.handle(event)
        for effect in effects:
            self._perform(effect)
        self.settle()
        self.mux.validate_state()
        return effects

    def settle(self) -> None:
        """What the endpoint does at the end of a turn: notices and frontiers go where there is room."""
        for worker in self.mux.workers_with_notices:
            if worker in self.clear:
                self.to_worker[worker] += self.mux.take_notices(worker)
        session = self.mux.session_with_news
        if session is not None and self.reads:
            self.to_client[session] += self.mux.take_news()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Forward):
            for worker in effect.workers:
                self.to_worker[worker].append(effect)
        elif isinstance(effect, Tell):
            for worker in effect.workers:
                self.to_worker[worker].append(effect.message)
        elif isinstance(effect, Reply):
            assert effect.session not in self.closed, f"{effect} after the close"
            self.to_client[effect.session].append(effect.response)
        elif isinstance(effect, Pass):
            assert effect.session not in self.closed, f"{effect} after the close"
            self.to_client[effect.session].append(_DECODE(effect.response))
        elif isinstance(effect, Close):
            assert effect.session not in self.closed
            self.closed[effect.session] = effect.closing
        elif isinstance(effect, Hold):
            (self.held.add if effect.held else self.held.discard)(effect.worker)
        else:
            assert isinstance(effect, Fenced | Reconciled | Stream)

    # -- looking

    def commands(self, worker: int, kind: type[Any]) -> list[Any]:
        return [
            m.command for m in self.to_worker[worker] if isinstance(m, Forward) and type(m.command) is kind
        ]

    def told(self, worker: int, kind: type[Any]) -> list[Any]:
        return [m for m in self.to_worker[worker] if type(m) is kind]

    def heard(self, session: int, kind: type[Any]) -> list[Any]:
        return [m for m in self.to_client[session] if type(m) is kind]


def fixed(name: str) -> dict[str, Setting]:
    """The registry with one more setting, that the first CreateInstance fixes."""
    return {**SETTINGS, name: Setting(name, "u64", 1, "", "for tests", when="fixed")}
