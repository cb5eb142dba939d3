"""Shards as what can be read at one time, beside indexes: from their files, rows and errors.

Does not: speak to the replica, wait, keep what it read.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterd.storage.collection import loading
from clusterd.storage.shard import Shard
from shm_arrangements.batch import Batch
from shm_arrangements.errors import NotReadable, NotSealed
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import require_readable
from shm_arrangements.view import ReadView

__all__ = ["newest_of_shards", "stored_view"]


def newest_of_shards(shards: Iterable[Shard]) -> int:
    """The newest time that all of them have sealed. Raises: NotSealed naming one that has sealed none."""
    times = []
    for shard in shards:
        upper = shard.upper
        if upper == Frontier.minimum():
            raise NotSealed("no time is sealed yet", shard=shard.name, hint="write to it, or advance it")
        times.append(MAX_TIME if upper.is_empty else upper.time - 1)
    return min(times)


def stored_view(shard: Shard, time: int) -> ReadView:
    """The shard at `time`. Raises: NotReadable, NotSealed; Refusal as `Shard.read`; OSError."""
    schema = ArrangementSchema(shard.specs, ())
    since, upper = shard.since, shard.upper
    try:
        require_readable(since, upper, time)
    except (NotReadable, NotSealed) as error:
        raise type(error)(error.message, shard=shard.name, **error.facts, hint=error.hint) from error
    made = loading(shard.name, shard, schema, time)
    while True:
        try:
            next(made)
        except StopIteration as end:
            halves: list[list[Batch]] = end.value
            break
    oks, errs = halves
    return ReadView(shard.name, schema, oks, errs, time, since=since, upper=upper)
