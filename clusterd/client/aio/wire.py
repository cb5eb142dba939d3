"""Wire: one connection of an event loop, and who waits for what on it.

Bytes become responses (controller_proto.client_end), each is handed to the core in order, and the tasks that
wait for what it is about are woken; each looks for itself whether its wait is over. Reading is paused while
more than PAUSE_BYTES of batches wait to be taken and no task waits for anything: the replica then keeps what
follows, to its own limit. A task that waits has it go on, so that no answer waits behind a subscriber.

Does not: decide anything about what is said.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from clusterd.client.core import Core
from clusterd.client.operation import Topic
from controller_proto.address import BACKLOG_RETRY_S, cannot_connect, parse_address, peer_pid
from controller_proto.client_end import ClientEnd
from controller_proto.errors import CodecError

__all__ = ["PAUSE_BYTES", "Wire"]

PAUSE_BYTES = 16 << 20
_CLOSE_S = 1.0  # for the replica to take what was said last
_WRITTEN: Topic = ("written", "")


class Wire(asyncio.Protocol):
    """Of the loop that runs when it is made. `connect` makes one."""

    def __init__(self, core: Core, end: ClientEnd) -> None:
        self.end = end
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[Topic, set[asyncio.Future[None]]] = {}
        self._writable = True
        self._reading = True
        self._closed = asyncio.Event()

    @classmethod
    async def connect(cls, address: str, core: Core, end: ClientEnd, timeout_s: float) -> Wire:
        """A connection for `core`, which is to begin on `end`. Raises as `WireClient.connect`."""
        family, where = parse_address(address)
        connected = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connected.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(timeout_s):
                await _connect(connected, where)
                _, wire = await loop.create_connection(lambda: cls(core, end), sock=connected)
        except OSError as error:
            connected.close()
            raise cannot_connect(address, error) from error
        except BaseException:
            connected.close()
            raise
        return wire

    @property
    def peer_pid(self) -> int | None:
        """The process that listens at the other end of a unix socket; None if that cannot be told."""
        assert self._transport is not None
        return peer_pid(self._transport.get_extra_info("socket"))

    # -- for the client

    def require_loop(self) -> None:
        """Raises RuntimeError in another loop than ours, or in none: nothing here may be called there."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "the client belongs to the event loop it was connected in; this is another one: connect a "
                "client here, or hand the call over by asyncio.run_coroutine_threadsafe"
            )

    async def wait(self, topic: Topic, ready: Callable[[], bool]) -> None:
        """Until `ready`, looked at after each response about `topic`. Raises Disconnected."""
        while not ready():
            if self.end.over is not None:
                raise self.end.over
            future = self._loop.create_future()
            waiting = self._waiting.setdefault(topic, set())
            waiting.add(future)
            self.flow()
            try:
                await future
            finally:
                waiting.discard(future)
                if not waiting and self._waiting.get(topic) is waiting:
                    del self._waiting[topic]

    def flush(self) -> None:
        """Have what was said written."""
        if self.end.outgoing and self._transport is not None:
            self._transport.write(self.end.take_outgoing())

    async def drain(self) -> None:
        """Until there is room to say more. Raises Disconnected."""
        await self.wait(_WRITTEN, lambda: self._writable)

    def flow(self) -> None:
        """Read, or do not: see the module's head."""
        reading = bool(self._waiting) or self._core.untaken_bytes <= PAUSE_BYTES
        if reading != self._reading and self._transport is not None:
            self._reading = reading
            (self._transport.resume_reading if reading else self._transport.pause_reading)()

    async def close(self) -> None:
        """End the connection, once what was said is written or a second is over."""
        if self._transport is None:
            return
        self.end.end("closed by this end")
        self._wake_all()
        self._transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._closed.wait()
        self._transport.abort()
        await self._closed.wait()

    # -- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.end.receive(data)
        inbox = self.end.inbox
        while inbox:
            try:
                topic = self._core.hear(self.end.take())
            except CodecError as error:
                self.end.end(f"what came is no message: {error}", error.code)
                break
            if topic is not None:
                self._wake(topic)
        self.flush()  # it may have given up a subscription
        self.flow()
        if self.end.over is not None:
            self._wake_all()
            if self._transport is not None:
                self._transport.abort()

    def eof_received(self) -> None:
        self.data_received(b"")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake(_WRITTEN)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end.end("the replica closed the connection" if exc is None else str(exc))
        self._closed.set()
        self._wake_all()

    def _wake(self, topic: Topic) -> None:
        for future in self._waiting.pop(topic, ()):
            if not future.done():
                future.set_result(None)

    def _wake_all(self) -> None:
        for topic in list(self._waiting):
            self._wake(topic)


async def _connect(connecting: socket.socket, where: str | tuple[str, int]) -> None:
    """As `loop.sock_connect`, which takes a unix socket that was turned away for one that is connected."""
    if connecting.family != socket.AF_UNIX:
        return await asyncio.get_running_loop().sock_connect(connecting, where)
    while True:
        try:
            return connecting.connect(where)
        except BlockingIOError:
            await asyncio.sleep(BACKLOG_RETRY_S)
