"""A shard's collection at one time, as batches in this process's memory, rows and errors.

It is made piece by piece, so that a worker can do other things between; who need not drains it.

Does not: wait, keep anything, judge what negative counts mean.
"""

from __future__ import annotations

from collections.abc import Generator

from clusterd.dataflow.operator import BLOCK_ROWS
from clusterd.storage.shard import Shard
from controller_proto.dataflow import MAX_TIME
from controller_proto.errors import Refusal
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, building
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["loading"]


def loading(
    name: str, shard: Shard, schema: ArrangementSchema, time: int
) -> Generator[None, None, list[list[Batch]]]:
    """The batches of rows, arranged by `schema`, and of errors, all at `time`, before the shard's upper.

    name: of the collection, for messages. Raises Refusal(`below-since`), and as `Shard.read`;
    MultiplicityOverflow; OSError.
    """
    end = Frontier.empty() if time == MAX_TIME else Frontier.at(time + 1)
    with shard.briefly():
        found = [read(0, end, block_rows=BLOCK_ROWS) for read in (shard.read, shard.read_errors)]
        since = shard.since
    if not since.less_equal(time):
        raise Refusal(
            "below-since",
            f"{name} cannot be read at {time}: the since of shard {shard.name!r} is {since}",
            "read at a later time",
        )
    halves: list[list[Batch]] = []
    description = Description(Frontier.minimum(), end, Frontier.minimum())
    for blocks, arranged in zip(found, (schema, ERRS_SCHEMA), strict=True):
        batches: list[Batch] = []
        for updates in blocks:
            batches.append((yield from building(updates, arranged, description, HeapAllocator())))
            yield
        halves.append(batches)
    return halves
