"""A replica in the test's own event loop: says what the test tells it to, and remembers what it heard.

It answers Sync by itself, as every replica does once it has judged what came before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from controller_proto.command import Command, CreateDataflow, Sync
from controller_proto.connection import NEED_DATA, Connection, Ended, Role
from controller_proto.response import Refused, Response, Synced

C = TypeVar("C")
WITHIN_S = 10.0


class FakeReplica:
    """One listener. `refuse`: (code, message) for the next dataflow; `deaf`: bytes are not read."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.heard: list[Command] = []
        self.refuse: tuple[str, str] | None = None
        self.answers_sync = True
        self.reads = asyncio.Event()
        self.reads.set()
        self.connections = 0
        self._changed = asyncio.Condition()
        self._writer: asyncio.StreamWriter | None = None
        self._connection = Connection(Role.REPLICA)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The latest connection is the one that `say` speaks to."""
        self._writer, self._connection = writer, Connection(Role.REPLICA)
        connection = self._connection
        self.connections += 1
        ended = False
        while not ended:
            await self.reads.wait()
            connection.receive_bytes(await reader.read(1 << 16))
            while (event := connection.next_event()) is not NEED_DATA:
                if isinstance(event, Ended):
                    ended = True
                    break
                async with self._changed:
                    self.heard.append(event)  # type: ignore[arg-type]
                    self._changed.notify_all()
                if isinstance(event, CreateDataflow) and self.refuse is not None:
                    await self.say(Refused(event.seq, *self.refuse))
                    self.refuse = None
                elif isinstance(event, Sync) and self.answers_sync:
                    await self.say(Synced(event.seq))
        writer.close()

    async def say(self, *responses: Response) -> None:
        await self.say_bytes(b"".join(map(self._connection.send, responses)))

    async def say_bytes(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()

    def all(self, kind: type[C], wanted: Callable[[C], bool] = lambda _: True) -> list[C]:
        return [each for each in self.heard if isinstance(each, kind) and wanted(each)]

    async def hear(self, kind: type[C], count: int = 1) -> list[C]:
        """The first `count` of a kind, once they were heard."""
        async with asyncio.timeout(WITHIN_S), self._changed:
            await self._changed.wait_for(lambda: len(self.all(kind)) >= count)
        return self.all(kind)[:count]


@asynccontextmanager
async def fake_replica(path: Path) -> AsyncIterator[FakeReplica]:
    replica = FakeReplica(path)
    tasks: set[asyncio.Task[Any]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(replica.serve(reader, writer)))

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield replica
    finally:
        server.close()
        replica.reads.set()
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*tasks)
        await server.wait_closed()
