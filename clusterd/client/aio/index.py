"""Index: a maintained collection, as a user of the asyncio client holds it."""

from __future__ import annotations

from clusterd.client.aio.held import Held
from shm_arrangements.attach import Attached

__all__ = ["Index"]


class Index(Held):
    """A maintained collection, readable by key. `schema` is that of its rows, `key` positions in it."""

    def attach(self) -> Attached:
        """The index in shared memory, for reads that make no call into the daemon."""
        return self._client.attach(self)
