"""Subscription: the changes of a collection, as they come, for a user of the asyncio client.

    async with client.subscribe(fruit) as changes:
        async for batch in changes:
            for row, time, diff in batch.changes.rows():
                ...

Does not: read by itself; what arrives is for everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from clusterd.client.feed import Batch, Feed
from clusterd.client.operation import DEADLINE_S
from controller_proto.ids import GlobalId
from controller_proto.schema import Schema

if TYPE_CHECKING:
    from clusterd.client.aio.session import Client

__all__ = ["Subscription"]


class Subscription:
    """Iterate over it, or call `next`; several tasks share its batches. Closed at its end, or by `close`."""

    def __init__(self, client: Client, feed: Feed) -> None:
        self._client = client
        self._feed = feed

    @property
    def id(self) -> GlobalId:
        return self._feed.export.id

    @property
    def schema(self) -> Schema:
        return self._feed.export.schema

    @property
    def upper(self) -> int | None:
        """Up to where `next` has told; None when nothing can follow."""
        return self._feed.upper

    def __aiter__(self) -> Self:
        """Batches until nothing can follow; waits for each as long as it takes."""
        return self

    async def __anext__(self) -> Batch:
        """Raises SubscriptionEnded, Disconnected."""
        batch = await self.next(None)
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next(self, timeout_s: float | None = DEADLINE_S) -> Batch | None:
        """The next batch, None if nothing can follow.

        Raises TimeoutError, SubscriptionEnded, Disconnected.
        """
        return await self._client.run(self._feed.next(timeout_s))

    async def close(self) -> None:
        """End it. What was told and not taken is forgotten."""
        await self._client.forget(self._feed)

    def __repr__(self) -> str:
        return repr(self._feed)
