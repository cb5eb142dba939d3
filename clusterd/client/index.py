"""Index: a maintained collection, as its creator holds it. Every call goes through its Client.

Does not: own anything; letting go of it leaves the index where it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterd.client.answer import Answer
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.plan import Get
from shm_arrangements.attach import Attached

if TYPE_CHECKING:
    from clusterd.client.session import Client

__all__ = ["DEADLINE_S", "Index"]

DEADLINE_S = 60.0  # for answers; a peek of a time that nobody seals waits for ever otherwise


class Index:
    """A maintained collection, readable by key. `schema` is that of its rows, `key` positions in it."""

    def __init__(self, client: Client, export: Export, since: int) -> None:
        self._client = client
        self.export = export
        self.id = export.id
        self.schema = export.schema
        self.key = export.key
        self.since = since  # the least time that may still be read

    @property
    def get(self) -> Get:
        """The collection as the input of a plan."""
        return Get(self.id)

    @property
    def frontier(self) -> WireFrontier | None:
        """First time not sealed, as last heard; None before the first report, `()` when closed."""
        return self._client.frontier(self.id)

    def wait(self, time: int, timeout_s: float = DEADLINE_S) -> None:
        """Wait until everything at `time` is there. Raises TimeoutError."""
        self._client.wait_frontier(self.id, time + 1, timeout_s)

    def peek(self, **arguments: Any) -> Answer:
        """As `Client.peek`."""
        return self._client.peek(self, **arguments)

    def count(self, at: int | None = None) -> int:
        """How many rows there are at `at` (default: the newest sealed time)."""
        return self.peek(at=at).total

    def attach(self) -> Attached:
        """The index in shared memory, for reads that make no call into the daemon."""
        return self._client.attach(self)

    def allow_compaction(self, since: int) -> None:
        """Promise not to read before `since` any more."""
        self._client.allow_compaction(self, since)

    def drop(self) -> None:
        self._client.drop(self)
