"""Held: a collection that the replica keeps up, as a user of the blocking client holds it.

Every call goes through its Client.

Does not: own anything; letting go of it leaves the collection where it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from clusterd.client.answer import Answer
from clusterd.client.handle import Handle, Standing
from clusterd.client.operation import DEADLINE_S
from clusterd.client.peeks import At, PeekOptions
from controller_proto.dataflow import WireFrontier
from controller_proto.response import Status

if TYPE_CHECKING:
    from clusterd.client.session import Client

__all__ = ["Held"]


class Held(Handle):
    """What an Index and a View have in common."""

    def __init__(self, client: Client, standing: Standing) -> None:
        super().__init__(standing)
        self._client = client

    @property
    def frontier(self) -> WireFrontier | None:
        """First time not sealed, of a view in its shard, as last heard; None before the first report, `()`
        when closed.
        """
        return self._client.frontier(self.id)

    @property
    def status(self) -> Status | None:
        """As `Client.status`."""
        return self._client.status(self.id)

    def wait(self, time: int, timeout_s: float | None = DEADLINE_S) -> None:
        """Wait until everything at `time` is there, of a view in its shard. Raises TimeoutError."""
        self._client.wait_frontier(self.id, time + 1, timeout_s)

    def wait_hydrated(self, timeout_s: float | None = DEADLINE_S) -> Status:
        """As `Client.wait_hydrated`."""
        return self._client.wait_hydrated(self.id, timeout_s)

    def peek(self, *, timeout_s: float | None = DEADLINE_S, **options: Unpack[PeekOptions]) -> Answer:
        """As `Client.peek`."""
        return self._client.peek(self, timeout_s=timeout_s, **options)

    def count(self, at: At = "latest") -> int:
        """How many rows there are at `at`, as `peek` takes it."""
        return self.peek(at=at).total

    def allow_compaction(self, since: int) -> None:
        """Promise not to read before `since` any more; the shard of a view stays as it is."""
        self._client.allow_compaction(self, since)

    def drop(self) -> None:
        """End it; what waits for it is answered `dropped`. The shard of a view stays as it is."""
        self._client.drop(self)
