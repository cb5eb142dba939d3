"""View: a collection kept up in a shard, as a user of the asyncio client holds it."""

from __future__ import annotations

from clusterd.client.aio.held import Held

__all__ = ["View"]


class View(Held):
    """A materialized view. `schema` is that of its rows, `key` what peeks select by, `shard` where it is."""

    @property
    def shard(self) -> str:
        return self.standing.export.shard

    async def allow_writes(self) -> None:
        """Let it be written, for good."""
        await self._client.allow_writes(self)
