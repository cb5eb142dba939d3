"""Place: where all shards of a store are: their catalogs, their parts, and how news of them comes.

| location                                   | catalogs   | parts                    | news           |
|--------------------------------------------|------------|--------------------------|----------------|
| a directory, `file:///DIR`                 | SQLite     | in it                    | inotify        |
| `postgres://HOST/DB?parts=s3://BUCKET/DIR` | PostgreSQL | wherever Arrow can write | LISTEN, NOTIFY |

Does not: know what shards hold (shard.py); keep names of shards legal (store.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from clusterd.storage.catalog import Catalog
from clusterd.storage.parts import Parts
from controller_proto.schema import Schema

__all__ = ["Fill", "Notices", "Place"]

Fill = Callable[[Catalog, Parts], None]


class Notices(Protocol):
    """News of appends, from `watch` on. Register `fileno()` for reading, then call `drain()`."""

    def fileno(self) -> int: ...

    def watch(self, name: str) -> None:
        """A second time has no effect. Raises OSError."""

    def unwatch(self, name: str) -> None:
        """What is queued already may still be told."""

    def drain(self) -> set[str]:
        """The watched shards that may have moved since the last call; never blocks."""

    def close(self) -> None: ...


class Place(Protocol):
    """One process's access. location: its name, for people and for others to open it by."""

    location: str

    def names(self) -> list[str]:
        """Of all shards, sorted."""

    def has(self, name: str) -> bool: ...

    def open_shard(self, name: str, *, lock_wait_s: float) -> tuple[Catalog, Parts]:
        """Of a shard that is there. lock_wait_s: of the catalog, from now on."""

    def create(self, name: str, schema: Schema, fill: Fill | None) -> bool:
        """Make the shard with what `fill` appends, or not at all if that raises; False if it is there."""

    def sweep(self) -> list[str]:
        """Remove what creations of shards that were killed left. Returns the names."""

    def notices(self) -> Notices: ...

    def close(self) -> None: ...
