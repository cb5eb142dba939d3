"""Subscription: the changes of a collection, as they come, for a user of the blocking client.

    for batch in client.subscribe(fruit):
        for row, time, diff in batch.changes.rows():
            ...

Does not: own a thread; a call to `next` reads for the whole client, and what it reads is for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from clusterd.client.feed import Batch, Feed
from clusterd.client.operation import DEADLINE_S
from controller_proto.ids import GlobalId
from controller_proto.schema import Schema

if TYPE_CHECKING:
    from clusterd.client.session import Client

__all__ = ["Subscription"]


class Subscription:
    """Iterate over it, or call `next`. Closed at its end, by `close`, or as a context manager."""

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

    def __iter__(self) -> Iterator[Batch]:
        """Batches until nothing can follow; waits for each as long as it takes.

        Raises SubscriptionEnded, Disconnected.
        """
        while (batch := self.next(None)) is not None:
            yield batch

    def next(self, timeout_s: float | None = DEADLINE_S) -> Batch | None:
        """The next batch, None if nothing can follow.

        Raises TimeoutError, SubscriptionEnded, Disconnected.
        """
        return self._client.run(self._feed.next(timeout_s))

    def close(self) -> None:
        """End it. What was told and not taken is forgotten."""
        self._client.forget(self._feed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._feed)
