"""Source: where relations come from, by name. `Daemon` is the one there is; tests make up others.

Two connections at most: one for questions, which is opened when there is one and kept, and one for those who
watch, which ends with them. So a daemon whose page nobody looks at has nothing to tell.

Does not: wait for a daemon that is not there; who asks is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from clusterd.console.reader import Reader, Unanswered
from clusterd.console.tables import Row, Tables
from controller_proto.ids import GlobalId
from controller_proto.schema import Schema

__all__ = ["Daemon", "Known", "Source", "Watching"]

T = TypeVar("T")

DEADLINE_S = 5.0  # for an answer; Prometheus gives a scrape ten seconds


class Known(NamedTuple):
    """A relation, as its readers know it."""

    id: GlobalId
    schema: Schema


class Watching(Protocol):
    """Relations being told to `Tables`, until `lost` says why no more, or `close`."""

    @property
    def lost(self) -> asyncio.Future[str]: ...
    async def close(self) -> None: ...


class Source(Protocol):
    """All of these raise Unanswered."""

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """The relations there are, with the names of their columns."""

    @property
    def metrics(self) -> Mapping[str, str]:
        """What metrics mean, by name."""

    async def ready(self) -> None:
        """Returns if the daemon takes questions."""

    async def rows(self, name: str) -> list[Row]:
        """What relation `name` holds, with figures as new as there are."""

    async def watch(self, tables: Tables, names: Sequence[str]) -> Watching:
        """Have these relations told to `tables`, from what they hold on."""

    async def cancel(self, session: int, uuid: str) -> None:
        """Ask for a peek of a session to be canceled; it is answered all the same, once."""

    async def close(self) -> None: ...


class Daemon:
    """The daemon that listens at `address`, of which `relations` are known."""

    def __init__(
        self,
        address: str,
        relations: Mapping[str, Known],
        metrics: Mapping[str, str],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.metrics = metrics
        self._address = address
        self._relations = relations
        self._deadline_s = deadline_s
        self._reader: Reader | None = None
        self._opening = asyncio.Lock()

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return {name: tuple(c.name for c in known.schema.columns) for name, known in self._relations.items()}

    async def ready(self) -> None:
        await self._within(self._settled())

    async def rows(self, name: str) -> list[Row]:
        return await self._within(self._peeked(self._relations[name].id))

    async def cancel(self, session: int, uuid: str) -> None:
        await self._within(self._canceled(session, uuid))

    async def watch(self, tables: Tables, names: Sequence[str]) -> Watching:
        reader = await Reader.open(self._address, self._deadline_s)
        try:
            await self._within(self._subscribed(reader, tables, names))
        except BaseException:
            await reader.close()
            raise
        return reader

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    async def _subscribed(self, reader: Reader, tables: Tables, names: Sequence[str]) -> None:
        """All relations are sealed together: one newest time is a time of all."""
        as_of = (await reader.peek(self._relations[names[0]].id, keys=())).time
        for name in names:
            id, schema = self._relations[name]
            await reader.subscribe(id, schema, as_of, partial(tables.change, name))

    async def _settled(self) -> None:
        await (await self._asked()).settled()

    async def _peeked(self, id: GlobalId) -> list[Row]:
        return (await (await self._asked()).peek(id)).rows

    async def _canceled(self, session: int, uuid: str) -> None:
        reader = await self._asked()
        reader.cancel(session, uuid)
        await reader.settled()

    async def _asked(self) -> Reader:
        async with self._opening:
            if self._reader is None or self._reader.lost.done():
                self._reader = await Reader.open(self._address, self._deadline_s)
            return self._reader

    async def _within(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await answer
        except TimeoutError:
            raise Unanswered("timeout", f"the daemon has not answered for {self._deadline_s:g} s") from None
