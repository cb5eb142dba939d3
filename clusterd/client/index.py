"""Index: a maintained collection, as its creator holds it. Every call goes through its Client.

Does not: own anything; letting go of it leaves the index where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clusterd.client.answer import Answer
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.expr import Expr
from controller_proto.plan import Get, OrderBy
from controller_proto.schema import type_name
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

    def peek(
        self,
        *,
        at: int | None = None,
        keys: Sequence[Any] | None = None,
        where: Sequence[Expr | str] = (),
        order_by: Sequence[str | OrderBy] = (),
        limit: int | None = None,
        offset: int = 0,
        select: Sequence[str] | None = None,
        timeout_s: float = DEADLINE_S,
    ) -> Answer:
        """As `Client.peek`."""
        return self._client.peek(
            self,
            at=at,
            keys=keys,
            where=where,
            order_by=order_by,
            limit=limit,
            offset=offset,
            select=select,
            timeout_s=timeout_s,
        )

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

    def __repr__(self) -> str:
        columns = self.schema.columns
        told = ", ".join(f"{c.name} {type_name(c)}{'?' if c.nullable else ''}" for c in columns)
        key = ", ".join(columns[position].name for position in self.key)
        return f"Index({self.id}: {told}; key=[{key}], since={self.since})"
