"""View: a collection kept up in a shard, as a user of the blocking client holds it."""

from __future__ import annotations

from clusterd.client.held import Held

__all__ = ["View"]


class View(Held):
    """A materialized view. `schema` is that of its rows, `key` what peeks select by, `shard` where it is."""

    @property
    def shard(self) -> str:
        return self.standing.export.shard

    def allow_writes(self) -> None:
        """Let it be written, for good."""
        self._client.allow_writes(self)
