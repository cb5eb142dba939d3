"""Reader: one connection to a daemon's socket that peeks, subscribes and cancels, with no more than that.

The user's client (clusterd.client.aio) does this too, for any type at any size, and loads numpy and
compiled kernels for it: two seconds and 150 MB, which a page and a scrape have no use for. Here answers stay
the plain values of the wire. The protocol is the same `ClientEnd`.

Does not: reconnect (source.py does), know relations by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast
from uuid import uuid4

import msgspec

from clusterd.console.tables import Row, Updates
from controller_proto.address import BACKLOG_RETRY_S, cannot_connect, parse_address
from controller_proto.client_end import ClientEnd
from controller_proto.command import AllowCompaction, CancelPeek, CreateDataflow, Hello, Peek, Schedule, Sync
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, IndexImport
from controller_proto.errors import CodecError, Disconnected
from controller_proto.ids import GlobalId
from controller_proto.response import (
    DroppedAt,
    PeekCanceled,
    PeekError,
    PeekPart,
    PeekResponse,
    Refused,
    Response,
    SubscribeError,
    SubscribeResponse,
    Synced,
)
from controller_proto.schema import Schema

__all__ = ["Answered", "Reader", "Unanswered"]

_NO_BUILDS = msgspec.Raw(msgspec.msgpack.encode(DataflowBody(())))


class Unanswered(Exception):
    """The daemon could not be asked, or what was asked has no answer. code: as the daemon says."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Answered(NamedTuple):
    """The rows of a peek, and the time they are of."""

    rows: list[Row]
    time: int


class Reader(asyncio.Protocol):
    """One session, of the loop it was opened in. `open` makes one; `lost` is done when it is over."""

    def __init__(self) -> None:
        self._end = ClientEnd()
        self._transport: asyncio.Transport | None = None
        self._answers: dict[str, asyncio.Future[PeekResponse]] = {}
        self._parts: dict[str, list[Row]] = {}
        self._asked: dict[int, asyncio.Future[PeekResponse]] = {}  # the same, by seq
        self._syncs: dict[int, asyncio.Future[None]] = {}
        self._refused: dict[int, Refused] = {}
        self._told: dict[GlobalId, Callable[[Updates], None]] = {}
        self._untold: dict[GlobalId, list[tuple[Row, int]]] = {}
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, address: str, timeout_s: float) -> Self:
        """A session that the daemon has taken in. Raises Unanswered."""
        family, where = parse_address(address)
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        reader = cls()
        try:
            sock.setblocking(False)
            async with asyncio.timeout(timeout_s):
                await _connect(sock, where)
                await asyncio.get_running_loop().create_connection(lambda: reader, sock=sock)
                await reader.settled([reader._say(Hello(0, nonce=uuid4().hex, kind="reader"))])
        except OSError as error:  # TimeoutError is one
            sock.close()
            await reader.close()
            raise Unanswered("disconnected", str(cannot_connect(address, error))) from error
        except BaseException:
            sock.close()
            await reader.close()
            raise
        return reader

    # -- what is asked

    async def settled(self, said: list[int] | None = None) -> None:
        """Until the daemon has judged all that was said. Raises Unanswered if it refused one of `said`."""
        seq = self._say(Sync(0))
        future = self._syncs[seq] = asyncio.get_running_loop().create_future()
        try:
            await future
        finally:
            self._syncs.pop(seq, None)
        for each in said or []:
            refused = self._refused.pop(each, None)
            if refused is not None:
                raise Unanswered(refused.code, refused.message)

    async def peek(self, id: GlobalId, keys: tuple[Row, ...] | None = None) -> Answered:
        """The rows of an index at its newest time. Raises Unanswered."""
        uuid = uuid4().hex
        future: asyncio.Future[PeekResponse] = asyncio.get_running_loop().create_future()
        seq = self._say(Peek(0, uuid=uuid, id=id, time=None, keys=keys))
        self._answers[uuid] = self._asked[seq] = future
        try:
            response = await future
        except asyncio.CancelledError:
            with contextlib.suppress(Unanswered):
                self._say(CancelPeek(0, uuid=uuid))
            raise
        finally:
            del self._answers[uuid], self._asked[seq]
            rows = self._parts.pop(uuid, [])
        result = response.result
        if isinstance(result, PeekError):
            raise Unanswered(result.code, result.message)
        if isinstance(result, PeekCanceled) or response.time is None:
            raise Unanswered("canceled", f"the peek of {id} was canceled")
        return Answered(rows + _rows(result.columns, result.counts), response.time)

    async def subscribe(
        self, id: GlobalId, schema: Schema, as_of: int, tell: Callable[[Updates], None]
    ) -> None:
        """Have `tell` called with what is in index `id` at `as_of`, and what changes, until the connection
        ends. Raises Unanswered.
        """
        mine = f"t{len(self._told) + 1}"
        header = DataflowHeader(
            mine, as_of, None, (), (IndexImport(id),), (Export(mine, "subscribe", id, schema),)
        )
        self._told[mine], self._untold[mine] = tell, []
        try:
            said = [self._say(CreateDataflow(0, header, _NO_BUILDS)), self._say(Schedule(0, mine))]
            await self.settled(said)
        except BaseException:
            del self._told[mine]
            with contextlib.suppress(Unanswered):
                self._say(AllowCompaction(0, mine, ()))
            raise

    def cancel(self, session: int, uuid: str) -> None:
        """Ask for the peek of any session to be canceled. Raises Unanswered."""
        self._say(CancelPeek(0, uuid=uuid, session=session))

    async def close(self) -> None:
        self._finish("closed by this end")
        if self._transport is not None:
            self._transport.abort()

    def _say(self, command: Any) -> int:
        try:
            seq = self._end.say(command)
        except Disconnected as error:
            raise Unanswered("disconnected", str(error)) from error
        if self._transport is not None:
            self._transport.write(self._end.take_outgoing())
        return seq

    # -- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._end.receive(data)
        while self._end.inbox:
            try:
                self._hear(self._end.take())
            except CodecError as error:
                self._end.end(f"what came is no message: {error}", error.code)
        if self._end.over is not None:
            self._finish(str(self._end.over))

    def eof_received(self) -> None:
        self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.end("the daemon closed the connection" if exc is None else str(exc))
        self._finish(str(self._end.over))

    def _hear(self, said: Response) -> None:
        match said:
            case PeekPart(uuid, columns, counts) if uuid in self._answers:
                self._parts.setdefault(uuid, []).extend(_rows(columns, counts))
            case PeekResponse(uuid) if uuid in self._answers:
                _done(self._answers[uuid], said)
            case Synced(seq) if seq in self._syncs:
                _done(self._syncs[seq], None)
            case Refused(seq, code, message) if seq in self._asked:
                if not self._asked[seq].done():
                    self._asked[seq].set_exception(Unanswered(code, message))
            case Refused():
                self._refused[said.seq] = said
            case SubscribeResponse(id) if id in self._told:
                self._hear_changes(said)

    def _hear_changes(self, said: SubscribeResponse) -> None:
        """A batch that is whole is told; an end, or an error, ends the session: all is read anew."""
        what = said.said
        if isinstance(what, DroppedAt):
            self._finish(f"{what.code}: {what.message}")
        elif isinstance(what.contents, SubscribeError):
            self._finish(f"{what.contents.code}: {what.contents.message}")
        else:
            waiting = self._untold[said.id]
            rows = zip(*what.contents.columns, strict=True)
            waiting += zip(rows, what.contents.diffs, strict=True)
            if not what.contents.more:
                self._untold[said.id] = []
                self._told[said.id](waiting)

    def _finish(self, why: str) -> None:
        """The session is over, for whoever waits for anything."""
        if self.lost.done():
            return
        self.lost.set_result(why)
        self._end.end(why)
        waiting: list[asyncio.Future[Any]] = [*self._answers.values(), *self._syncs.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(Unanswered("disconnected", why))
        if self._transport is not None:
            self._transport.abort()


def _done(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _rows(columns: tuple[Row, ...], counts: tuple[int, ...]) -> list[Row]:
    if not columns:
        return [()] * sum(counts)
    return [row for row, count in zip(zip(*columns, strict=True), counts, strict=True) for _ in range(count)]


async def _connect(sock: socket.socket, where: str | tuple[str, int]) -> None:
    if sock.family != socket.AF_UNIX:
        await asyncio.get_running_loop().sock_connect(sock, where)
        return
    while True:  # asyncio takes a unix socket that was turned away for one that is connected
        try:
            return sock.connect(where)
        except BlockingIOError:
            await asyncio.sleep(BACKLOG_RETRY_S)
