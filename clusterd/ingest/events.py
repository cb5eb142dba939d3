"""What `clusterd-ingest` tells its operator: lines as the daemon's (clusterd/events.py)."""

from __future__ import annotations

from clusterd.events import Event

__all__ = [
    "FeedFailed",
    "FeedStopped",
    "Retrying",
    "SlotLag",
    "SnapshotBegun",
    "SnapshotTaken",
    "Streaming",
    "TableCopied",
]


class SnapshotBegun(Event, frozen=True):
    """All tables are read; reason: why the shards cannot just go on."""

    slot: str
    reason: str


class TableCopied(Event, frozen=True):
    """A table's snapshot is in its shard: `rows` of it, by so many updates (fewer over a shard that was)."""

    table: str
    shard: str
    rows: int
    updates: int


class SnapshotTaken(Event, frozen=True):
    """All tables are in their shards as of `time`, and the slot goes on from there."""

    slot: str
    time: int
    tables: int
    rows: int


class Streaming(Event, frozen=True):
    """Changes behind time `behind` are asked for, and go to these shards."""

    slot: str
    behind: int
    shards: tuple[str, ...]


class SlotLag(Event, frozen=True):
    """How far the shards are, and how much WAL the server has that they have not, or keeps for us.

    updates, transactions: appended since the last such line.
    """

    slot: str
    sealed: int
    behind_bytes: int
    retained_bytes: int
    transactions: int
    updates: int


class Retrying(Event, frozen=True):
    """The connection was lost; the next attempt is in `delay_s`."""

    reason: str
    delay_s: float


class FeedStopped(Event, frozen=True):
    """A signal asked for the end; the shards are sealed at `sealed`, and the slot waits."""

    signal: str
    sealed: int | None


class FeedFailed(Event, frozen=True):
    """The end; code: one of clusterd/ingest/errors.py."""

    code: str
    message: str
    hint: str
