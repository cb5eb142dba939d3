"""HTTP/1.1 for few: requests in, responses out, everything of a peer bounded. The parsing is h11's.

A peer that sends slowly, much, or nonsense costs one of `max_connections` for `request_s` at most: the head
of a request has HEAD_BYTES, its body BODY_BYTES, and it is there within `request_s`, as its response is
taken. The one response that may last is a stream, which ends when the peer goes; the kernel's keep-alive
finds one that went without a word.

Does not: know paths (app.py does), TLS, compression, name resolution.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import h11

__all__ = ["HttpServer", "Request", "Response", "said"]

HEAD_BYTES = 16 << 10
BODY_BYTES = 4 << 10
_READ_BYTES = 16 << 10
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True, slots=True)
class Request:
    """`path` as it was sent, undecoded, without the query. `headers`: lower-case names; of repeated ones the
    last.
    """

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """`stream`, if there is one, is sent after `body`, until it ends or the peer goes."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None


def said(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """A response for people: one line of text."""
    plain = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
    return Response(status, {**plain, **(headers or {})}, f"{text}\n".encode())


Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Serves `handle` on a socket that listens. common: headers of every response."""

    def __init__(
        self,
        handle: Handler,
        *,
        common: Mapping[str, str],
        max_connections: int = 64,
        request_s: float = 10.0,
        idle_s: float = 30.0,
    ) -> None:
        self._handle = handle
        self._common = common
        self._max_connections = max_connections
        self._request_s = request_s
        self._idle_s = idle_s
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=2 * HEAD_BYTES)

    async def close(self) -> None:
        """End all connections, streams too."""
        if self._server is not None:
            self._server.close()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        full = len(self._serving) >= self._max_connections
        self._serving.add(task)
        try:
            connection = _Connection(reader, writer, self._common, self._request_s)
            if full:
                why = f"{self._max_connections} connections are open, which is as many as are served"
                await connection.refuse(503, why)
            else:
                await self._serve(connection)
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # it went, or does not read
        except asyncio.CancelledError:
            pass  # we close; the task's own end, which asyncio would report as an error otherwise
        finally:
            self._serving.discard(task)
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def _serve(self, connection: _Connection) -> None:
        wait_s = self._request_s
        while True:
            try:
                request = await connection.request(wait_s, self._request_s)
            except h11.RemoteProtocolError as error:
                await connection.refuse(error.error_status_hint, str(error))
                return
            except TimeoutError:
                if connection.has_begun:
                    await connection.refuse(408, f"a request is to be there within {self._request_s:g} s")
                return
            if request is None:
                return
            response = await self._handle(request)
            if not await connection.respond(request, response):
                return
            wait_s = self._idle_s


class _Connection:
    """One peer."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        common: Mapping[str, str],
        request_s: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._common = common
        self._request_s = request_s
        self._state = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self.has_begun = False

    async def request(self, wait_s: float, request_s: float) -> Request | None:
        """The next request, None if the peer has no more. It begins within `wait_s`, and is whole `request_s`
        after that. Raises TimeoutError, h11.RemoteProtocolError.
        """
        self.has_begun = bool(self._state.trailing_data[0])
        if not self.has_begun:
            async with asyncio.timeout(wait_s):
                await self._receive()
        async with asyncio.timeout(request_s):
            head = await self._event()
            if not isinstance(head, h11.Request):
                return None
            size = 0
            while isinstance(body := await self._event(), h11.Data):
                size += len(body.data)
                if size > BODY_BYTES:
                    raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
            if not isinstance(body, h11.EndOfMessage):
                return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        path, _, _ = head.target.decode("latin-1").partition("?")
        return Request(head.method.decode("latin-1"), path, headers)

    async def respond(self, request: Request, response: Response) -> bool:
        """Send it. Returns whether the connection may be used again."""
        async with asyncio.timeout(self._request_s):
            length = {} if response.stream is not None else {"content-length": str(len(response.body))}
            await self._send_head(response.status, {**response.headers, **length})
            if request.method != "HEAD" and response.body:
                await self._send(h11.Data(data=response.body))
        if response.stream is not None and request.method != "HEAD":
            await self._stream(response.stream)
        if self._state.our_state is h11.SEND_BODY:
            await self._send(h11.EndOfMessage())
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        return True

    async def refuse(self, status: int, why: str) -> None:
        """Say so, if that can still be said; the connection is over with that."""
        if self._state.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        response = said(status, why)
        async with asyncio.timeout(self._request_s):
            length = {"content-length": str(len(response.body)), "connection": "close"}
            await self._send_head(status, {**response.headers, **length})
            await self._send(h11.Data(data=response.body))
            await self._send(h11.EndOfMessage())
            await self._linger()

    async def _linger(self) -> None:
        """Read what the peer still sends for a moment: to close over it would take our answer back."""
        self._writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while await self._reader.read(_READ_BYTES):
                    pass

    async def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        every = {**self._common, **headers}
        reason = HTTPStatus(status).phrase.encode()
        await self._send(h11.Response(status_code=status, headers=list(every.items()), reason=reason))

    async def _stream(self, stream: AsyncIterator[bytes]) -> None:
        """Until it ends or the peer goes, whatever comes first."""
        connected: socket.socket = self._writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        tasks = [asyncio.ensure_future(self._send_all(stream)), asyncio.ensure_future(self._gone())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    async def _send_all(self, stream: AsyncIterator[bytes]) -> None:
        async for piece in stream:
            async with asyncio.timeout(self._request_s):
                await self._send(h11.Data(data=piece))

    async def _gone(self) -> None:
        while await self._reader.read(_READ_BYTES):
            pass

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._state.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]  # h11 tells its sentinels apart by identity
            await self._receive()

    async def _receive(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        self.has_begun = self.has_begun or bool(data)
        self._state.receive_data(data)

    async def _send(self, event: h11.Event) -> None:
        data = self._state.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()
