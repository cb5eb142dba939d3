"""View: a collection kept up in a shard, as a user of the blocking client holds it. Every call goes through
its Client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack

from clusterd.client.answer import Answer
from clusterd.client.handle import Handle, Standing
from clusterd.client.operation import DEADLINE_S
from clusterd.client.peeks import PeekOptions
from controller_proto.dataflow import WireFrontier

if TYPE_CHECKING:
    from clusterd.client.session import Client

__all__ = ["View"]


class View(Handle):
    """A materialized view. `schema` is that of its rows, `key` what peeks select by, `shard` where it is."""

    def __init__(self, client: Client, standing: Standing) -> None:
        super().__init__(standing)
        self._client = client

    @property
    def shard(self) -> str:
        return self.standing.export.shard

    @property
    def frontier(self) -> WireFrontier | None:
        """How far the shard is written, as last heard; None before the first report, `()` when closed."""
        return self._client.frontier(self.id)

    def wait(self, time: int, timeout_s: float | None = DEADLINE_S) -> None:
        """Wait until everything at `time` is written. Raises TimeoutError."""
        self._client.wait_frontier(self.id, time + 1, timeout_s)

    def peek(self, *, timeout_s: float | None = DEADLINE_S, **options: Unpack[PeekOptions]) -> Answer:
        """As `Client.peek`."""
        return self._client.peek(self, timeout_s=timeout_s, **options)

    def count(self, at: int | Literal["latest"] | None = "latest") -> int:
        """How many rows there are at `at`, as `peek` takes it."""
        return self.peek(at=at).total

    def allow_writes(self) -> None:
        """Let it be written, for good."""
        self._client.allow_writes(self)

    def allow_compaction(self, since: int) -> None:
        """Promise not to peek before `since` any more; its shard stays as it is."""
        self._client.allow_compaction(self, since)

    def drop(self) -> None:
        """Write it no more; its shard stays as it is."""
        self._client.drop(self)
