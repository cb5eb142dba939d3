"""The stored collections of a worker: views that it keeps up in shards, and shards that it reads for peeks.

Maintenance owns the writers (operators/view_writer.py); each gets pieces of work in turn. Every runtime reads
a stored collection from its shard, as far as that is sealed, whoever wrote it: the updates up to the time are
arranged in this process, for one read, in pieces, and then read as an index is.

Where a shard is out of reach, for want of room or for a lock of others, its writer is put off and tries
again, for as long as it takes; nothing else waits for it, and nothing is lost.

Does not: decide who may write, watch shards (dataflows.py says when one has moved), keep what was read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from clusterd.convert import arrangement_schema
from clusterd.events import ShardOutOfReach, emit
from clusterd.operators import view_writer
from clusterd.operators.view_writer import ViewWriter
from clusterd.runtime.effects import PageSeen, Stalled, Unwritable
from clusterd.runtime.evaluate import Readable
from clusterd.runtime.peeks import Key
from clusterd.runtime.retries import Retries
from clusterd.runtime.scans import Scan
from clusterd.storage.collection import loading
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from controller_proto.command import Peek
from controller_proto.dataflow import Export
from controller_proto.errors import Refusal
from controller_proto.response import PeekError, PeekResponse
from shm_arrangements.errors import InvariantViolation, MultiplicityOverflow
from shm_arrangements.schema import ArrangementSchema

__all__ = ["StoredRows", "Views", "out_of_reach", "stalled"]


class StoredRows:
    """What a shard holds, for a peek. name: of the collection, for messages."""

    def __init__(self, name: str, shard: Shard, schema: ArrangementSchema) -> None:
        self._name = name
        self._shard = shard
        self._schema = schema

    def scan(self, peek: Peek, time: int, served_by: str, evaluate: Callable[[Readable], Scan]) -> Scan:
        """Answer `peek` at `time`, before the shard's upper, as `evaluate` does from what is there."""
        try:
            halves = yield from loading(self._name, self._shard, self._schema, time)
            readable = Readable.of(self._name, self._schema, *halves)
        except Refusal as refusal:
            error = PeekError(refusal.code, refusal.message, refusal.hint)
        except MultiplicityOverflow:
            error = PeekError("multiplicity-overflow", f"a multiplicity of {self._name} leaves 64 bits")
        except OSError as problem:
            error = out_of_reach(self._name, problem)
        else:
            return (yield from evaluate(readable))
        return msgspec.msgpack.encode(PeekResponse(peek.uuid, error, time, served_by))


def out_of_reach(name: str, problem: OSError) -> PeekError:
    """The answer where a shard cannot be read, for a reason of the machine."""
    return PeekError("limit", f"the shard of {name} could not be read: {problem}", "see that it can")


def stalled(where: str | Key, shard: str, problem: Refusal | OSError) -> Stalled:
    """What those who wait for the shard are told."""
    if isinstance(problem, Refusal):
        return Stalled(where, problem.code, f"shard {shard!r}: {problem.message}", problem.hint)
    return Stalled(where, "limit", f"shard {shard!r}: {problem}", "it is tried again until it can be reached")


class Views:
    """By collection. clock: seconds that rise."""

    def __init__(self, store: Store | None, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._writers: dict[Key, tuple[str, ViewWriter]] = {}  # with their shards
        self._stored: dict[Key, Export] = {}
        self._turns: deque[Key] = deque()
        self._retries: Retries[Key] = Retries()  # of writers, and of looks at pages
        self._unseen: dict[Key, Export] = {}  # a look at them failed

    def create(self, key: Key, export: Export, as_of: int) -> ViewWriter:
        """A writer of the view, without permission to write. Its shard is made if it is not there."""
        name = export.shard
        shard = self._shard(name) if self._open.has_shard(name) else self._made(export)
        writer = ViewWriter(key[0], shard, as_of)
        self._writers[key] = name, writer
        self._stored[key] = export
        self._turns.append(key)
        return writer

    def permit(self, key: Key) -> None:
        """The view may be written. No effect if it is over."""
        if key in self._writers:
            self._writers[key][1].permit()

    def moved(self, shard: str) -> None:
        """The shard may have a new upper."""
        for name, writer in self._writers.values():
            if name == shard:
                writer.moved()

    def close(self, key: Key) -> None:
        """Write no more. What is written stays. No effect if it is not there."""
        self._stored.pop(key, None)
        self._retries.over(key)
        self._unseen.pop(key, None)
        _, writer = self._writers.pop(key, ("", None))
        if writer is not None:
            self._turns.remove(key)
            writer.close()

    @property
    def has_work(self) -> bool:
        if not self._writers:
            return False
        now = self._clock()
        return any(w.has_work and self._retries.may(key, now) for key, (_, w) in self._writers.items())

    @property
    def retry_in_s(self) -> float | None:
        """How long until what failed may be tried again; None if nothing did."""
        next_s = self._retries.next_s()
        return None if next_s is None else next_s - self._clock()

    def step(self, budget_s: float) -> list[Stalled | Unwritable]:
        """Pieces of work of the writers in turn, one at least if there is any; whose shards went out of
        reach, whose can be written again, and who can go on no more.
        """
        end = self._clock() + budget_s
        idle = 0
        changed: list[Stalled | Unwritable] = []
        while idle < len(self._turns):
            key = self._turns[0]
            writer = self._writers[key][1]
            self._turns.rotate(-1)
            if not writer.has_work or not self._retries.may(key, self._clock()):
                idle += 1
                continue
            idle = 0
            if (news := self._step(key)) is not None:
                changed.append(news)
            if self._clock() >= end:
                break
        return changed

    def _step(self, key: Key) -> Stalled | Unwritable | None:
        name, writer = self._writers[key]
        try:
            with self._shard(name).briefly():
                writer.step()
        except view_writer.Unwritable as end:
            self.close(key)
            return Unwritable(key, end.code, end.message, end.hint)
        except (Refusal, OSError) as problem:
            return stalled(key, name, problem) if self._failed(key, name, problem) else None
        if writer.is_busy or not self._retries.over(key):
            return None
        return Stalled(key)

    def look(self, key: Key, export: Export) -> PageSeen:
        """How far the shard of another process's view is sealed; it can be read from now on."""
        try:
            if not self._open.has_shard(export.shard):
                return PageSeen(key, "absent")
            shard = self._shard(export.shard, briefly=True)
            with shard.briefly():
                upper = shard.upper
        except (Refusal, OSError) as problem:
            self._unseen[key] = export
            self._failed(key, export.shard, problem)
            return PageSeen(key, "absent")
        self._unseen.pop(key, None)
        self._retries.over(key)
        self._stored[key] = export
        return PageSeen(key, "open", upper=upper)

    def look_again(self) -> list[PageSeen]:
        """The looks that failed and may be tried again."""
        due = [key for key in self._retries.due(self._clock()) if key in self._unseen]
        return [self.look(key, self._unseen[key]) for key in due]

    def _failed(self, key: Key, shard: str, problem: Exception) -> bool:
        """Whether it could be reached when it was tried before."""
        is_news = self._retries.failed(key, self._clock())
        if is_news:
            emit(ShardOutOfReach(shard=shard, name=key[0], problem=str(problem)))
        return is_news

    def __contains__(self, key: Key) -> bool:
        return key in self._stored

    def readable(self, key: Key) -> StoredRows:
        export = self._stored[key]
        shard = self._shard(export.shard, briefly=True)
        return StoredRows(key[0], shard, arrangement_schema(shard.schema, export.key))

    @property
    def count(self) -> int:
        return len(self._stored)

    def close_all(self) -> None:
        for key in list(self._stored):
            self.close(key)

    @property
    def _open(self) -> Store:
        if self._store is None:
            raise InvariantViolation("a view without a data directory")
        return self._store

    def _shard(self, name: str, *, briefly: bool = False) -> Shard:
        return self._open.shard(name, briefly=briefly)

    def _made(self, export: Export) -> Shard:
        try:
            return self._open.create_shard(export.shard, export.schema)
        except Refusal:  # another writer was faster, with other names or less that may be NULL
            return self._shard(export.shard)
