"""A daemon made up of rows: what the console is shown where no daemon is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

from clusterd.console.app import COMMON_HEADERS, App
from clusterd.console.http import HttpServer
from clusterd.console.reader import Unanswered
from clusterd.console.source import Watching
from clusterd.console.tables import Row, Tables, Updates
from clusterd.introspection.relations import RELATIONS
from clusterd.listening import listen_tcp

__all__ = ["MadeUp", "Served", "serving"]


class _Watched:
    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        if not self.lost.done():
            self.lost.set_result("closed")


class MadeUp:
    """`relations`: rows of those that have any. gone: why it cannot be asked, once it cannot."""

    metrics: Mapping[str, str] = MappingProxyType({"peeks_total": "answered peeks"})

    def __init__(self, relations: Mapping[str, Sequence[Row]]) -> None:
        columns = {each.name: tuple(field.name for field in each.fields) for each in RELATIONS}
        self.columns: Mapping[str, tuple[str, ...]] = columns
        self.held: dict[str, list[Row]] = {name: [] for name in columns} | {
            name: list(rows) for name, rows in relations.items()
        }
        self.gone = ""
        self.canceled: list[tuple[int, str]] = []
        self.watches = 0
        self._watching: _Watched | None = None
        self._tables: Tables | None = None

    def _require(self) -> None:
        if self.gone:
            raise Unanswered("disconnected", self.gone)

    async def ready(self) -> None:
        self._require()

    async def rows(self, name: str) -> list[Row]:
        self._require()
        return self.held[name]

    async def watch(self, tables: Tables, names: Sequence[str]) -> Watching:
        self._require()
        self.watches += 1
        self._tables, self._watching = tables, _Watched()
        for name in names:
            rows = self.held[name]
            await asyncio.sleep(0.001)  # relations come one after another
            tables.change(name, [(row, 1) for row in rows])
        return self._watching

    async def cancel(self, session: int, uuid: str) -> None:
        self._require()
        self.canceled.append((session, uuid))

    async def close(self) -> None:
        return

    @property
    def is_watched(self) -> bool:
        return self._watching is not None and not self._watching.lost.done()

    def change(self, name: str, updates: Updates) -> None:
        updates = list(updates)
        for row, count in updates:
            self.held[name].append(row) if count > 0 else self.held[name].remove(row)
        if self.is_watched and self._tables is not None:
            self._tables.change(name, updates)

    def go(self, why: str) -> None:
        """End it, for those who watch too. `come` has it back."""
        self.gone = why
        if self._watching is not None and not self._watching.lost.done():
            self._watching.lost.set_result(why)

    def come(self) -> None:
        self.gone = ""


@dataclass(frozen=True)
class Served:
    """A console that listens."""

    source: MadeUp
    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def serving(
    source: MadeUp, *, request_s: float = 10.0, max_connections: int = 64
) -> AsyncIterator[Served]:
    listener = listen_tcp("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    server = HttpServer(
        App(source, "127.0.0.1").handle,
        common=COMMON_HEADERS,
        request_s=request_s,
        max_connections=max_connections,
    )
    await server.start(listener)
    try:
        yield Served(source, port)
    finally:
        await server.close()
