"""Writing shared arrangements: a spine, and the page that shows it.

Every change goes the same way: a batch is built in a segment of its own, the spine takes it and merges with
fuel, the page is turned to the new chain, and what the chain names no more waits for its grace. The turn is
the one moment at which readers see anything, and it comes after everything it names is complete. Where a step
fails for lack of memory before the spine has taken the batch, nothing has happened, and it can be done
again (BUG09).

How far `since` may go is not decided here: the owner calls `set_compaction` with the standing hold (R6).

Does not: read a clock, notify anyone, wait for readers, or know their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.batch import Batch
from shm_arrangements.builder import build_batch
from shm_arrangements.contracts import TraceReader
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import Locator, PageName
from shm_arrangements.page_layout import CAPACITY, BatchEntry, PageStatus
from shm_arrangements.publication import PublicationPage
from shm_arrangements.reclaim import Reclaimer
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.spine import Spine
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

# Errors in data are a collection of their own: text "code: message", no key (architecture, Errors).
ERRS_SCHEMA: Final = ArrangementSchema((ColumnSpec("error", ColumnType.TEXT, False),), ())
_FORCED_FUEL: Final = 1 << 16  # updates a call, where a full page forces merging


class BatchQueue:
    """What an importer in the writer's process gets: the chain as it stood, then each batch that follows.

    Batches and upper come from one source, so the upper is never ahead of its batches (Z7). Batches without
    updates only move the upper: a queue nobody drains does not grow while nothing happens.
    """

    __slots__ = ("_batches", "_upper", "history", "is_closed")

    def __init__(self, history: tuple[Batch, ...], upper: Frontier) -> None:
        self.history = history
        self.is_closed = False
        self._upper = upper
        self._batches: deque[Batch] = deque()

    @property
    def upper(self) -> Frontier:
        """Everything before it is in `history` or in the queue. Stays where it was when the writer closes."""
        return self._upper

    def __len__(self) -> int:
        return len(self._batches)

    def drain(self, upper: Frontier | None = None) -> list[Batch]:
        """Take the queued batches, oldest first; with `upper`, only those that end at or before it."""
        taken = []
        while self._batches and (
            upper is None or self._batches[0].description.upper.precedes_or_equal(upper)
        ):
            taken.append(self._batches.popleft())
        return taken

    def _push(self, batch: Batch) -> None:
        self._upper = batch.description.upper
        if len(batch):
            self._batches.append(batch)


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """updates, nbytes: of the chain; superseded: names that wait for their grace."""

    since: Frontier
    upper: Frontier
    generation: int
    batches: int
    updates: int
    nbytes: int
    superseded: int


class LiveTrace:
    """The TraceReader of a trace in its writer's process: the chain as it stands, mapped already."""

    __slots__ = ("_spine",)

    def __init__(self, spine: Spine) -> None:
        self._spine = spine

    @property
    def schema(self) -> ArrangementSchema:
        return self._spine.schema

    @property
    def since(self) -> Frontier:
        return self._spine.since

    @property
    def upper(self) -> Frontier:
        return self._spine.upper

    def batches(self) -> Sequence[Batch]:
        return self._spine.batches()


class TraceWriter:
    """One arrangement shard: its spine, its page, its superseded names. One process, one thread."""

    __slots__ = ("_allocator", "_page", "_queues", "_reclaimer", "_shown", "_spine", "schema")

    def __init__(
        self,
        allocator: SegmentAllocator,
        id: int,
        incarnation: int,
        schema: ArrangementSchema,
        as_of: int,
        *,
        half: str = "oks",
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        """Publish an arrangement in which nothing is sealed yet: since `as_of`, upper the minimum time.

        allocator: of this instance and writer; id: u64.
        Raises: ShmExhausted; FileExistsError if `(id, incarnation, half, shard)` is published.
        """
        self.schema = schema
        self._allocator = allocator
        self._spine = Spine(schema, allocator)
        self._spine.set_logical_compaction(Frontier.at(as_of))
        self._page = PublicationPage.create(
            PageName(allocator.token, id, incarnation, half, shard),
            schema,
            as_of=as_of,
            writer=allocator.writer,
            shards=shards,
        )
        self._reclaimer = Reclaimer()
        self._queues: list[BatchQueue] = []
        self._shown: frozenset[Locator] = frozenset()

    @property
    def since(self) -> Frontier:
        return self._spine.since

    @property
    def upper(self) -> Frontier:
        return self._spine.upper

    @property
    def page(self) -> PublicationPage:
        return self._page

    @property
    def allocator(self) -> SegmentAllocator:
        """Where a batch that is to be committed has to be built."""
        return self._allocator

    def prepare(self, updates: Updates, upper: Frontier) -> Batch:
        """Build the batch from this trace's upper to `upper`, to be `commit`ted or `discard`ed.

        updates: columns in row order, times in [self.upper, upper), or rounded up to since.
        Raises: as `build_batch`; ShmExhausted without effect.
        """
        if upper.precedes(self.upper):
            raise InvariantViolation("upper regresses", upper=self.upper, given=upper)
        description = Description(self.upper, upper, self.since)
        return build_batch(updates, self.schema, description, self._allocator)

    def discard(self, batch: Batch) -> None:
        """Give up a prepared batch."""
        if batch.locator is not None:
            self._allocator.free(batch.locator)

    def commit(self, batch: Batch) -> None:
        """Append a prepared batch, merge with fuel, and publish. No effect if it covers no time.

        Raises: InvariantViolation, without effect, if it does not abut or holds updates of no time;
        ShmExhausted from merging: the batch is in then, and published.
        """
        if batch.description.lower == batch.description.upper:
            if len(batch):
                self.discard(batch)
                raise InvariantViolation("updates for no time", upper=self.upper, updates=len(batch))
            return
        try:
            self._spine.insert(batch)
        finally:
            if self.upper == batch.description.upper:
                for queue in self._queues:
                    queue._push(batch)
                self._publish()

    def insert(self, updates: Updates, upper: Frontier) -> Batch:
        """`prepare` and `commit`: seal up to `upper`. Returns the batch as inserted."""
        batch = self.prepare(updates, upper)
        self.commit(batch)
        return batch

    def set_compaction(self, frontier: Frontier) -> None:
        """Let times before `frontier` be rounded up to it, and publish that since. Never goes back (G7).

        Raises: InvariantViolation for the empty frontier: that is a drop, and dropping is `close`.
        """
        if frontier.is_empty:
            raise InvariantViolation("compaction to the empty frontier is close()")
        if self.since.precedes(frontier):
            self._spine.set_logical_compaction(frontier)
            self._publish()

    def exert(self, fuel_updates: int) -> bool:
        """Merge without input, at most `fuel_updates` of work; whether more is to do."""
        before = self._spine.batches()
        more = self._spine.exert(fuel_updates)
        after = self._spine.batches()
        if len(before) != len(after) or any(a is not b for a, b in zip(before, after, strict=True)):
            self._publish()
        return more

    def reclaim(self, now_s: float) -> float | None:
        """Remove superseded names whose grace is over; when to call again, or None.

        now_s: seconds of a monotonic clock. Wakes nobody.
        """
        return self._reclaimer.run(self._page, now_s)

    def reader(self) -> TraceReader:
        """This trace, for reading in this process."""
        return LiveTrace(self._spine)

    def listen(self) -> BatchQueue:
        """The chain as it stands and every batch from then on, for an importer in this process."""
        queue = BatchQueue(tuple(self._spine.batches()), self.upper)
        self._queues.append(queue)
        return queue

    def forget(self, queue: BatchQueue) -> None:
        """End a `listen`. No effect if it has ended."""
        if queue in self._queues:
            self._queues.remove(queue)

    def statistics(self) -> TraceStatistics:
        batches = self._spine.batches()
        return TraceStatistics(
            self.since,
            self.upper,
            self._page.state.generation,
            len(batches),
            sum(map(len, batches)),
            sum(batch.nbytes for batch in batches),
            len(self._reclaimer),
        )

    def close(self) -> None:
        """The drop: the page says CLOSED, then every name goes. What is mapped stays. Idempotent."""
        self._page.close()
        self._spine.close()
        self._supersede(self._shown, self._page.state.generation)
        self._shown = frozenset()
        self._reclaimer.finish()
        for queue in self._queues:
            queue.is_closed = True
        self._queues.clear()

    def _publish(self) -> None:
        while len(self._spine.batches()) > CAPACITY and self._spine.exert(_FORCED_FUEL):
            pass
        batches = self._spine.batches()
        generation = self._page.turn(self.since, self.upper, tuple(map(_entry, batches)))
        now = frozenset(batch.locator for batch in batches if batch.locator is not None)
        self._supersede(self._shown - now, generation, keep=now)
        self._shown = now

    def _supersede(
        self, gone: frozenset[Locator], generation: int, keep: frozenset[Locator] = frozenset()
    ) -> None:
        """Give up what left the chain, and what was merged away without ever being in it, but for `keep`."""
        retired = {batch.locator for batch in self._spine.drain_retired() if batch.locator is not None}
        self._reclaimer.supersede(sorted((gone | retired) - keep), generation)


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Both halves of an index, for reading. A time is readable if it is in both (R4)."""

    oks: TraceReader
    errs: TraceReader

    @property
    def since(self) -> Frontier:
        """The later of both: what either has rounded cannot be told apart any more."""
        return Frontier.join(self.oks.since, self.errs.since)

    @property
    def upper(self) -> Frontier:
        """The earlier of both."""
        return Frontier.meet(self.oks.upper, self.errs.upper)


class IndexWriter:
    """An index: the rows and the errors of a collection, as two arrangements that move together."""

    __slots__ = ("errs", "oks")

    def __init__(
        self,
        allocator: SegmentAllocator,
        id: int,
        incarnation: int,
        schema: ArrangementSchema,
        as_of: int,
        *,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        """As `TraceWriter`, twice. Leaves nothing behind if it raises."""
        self.errs = TraceWriter(
            allocator, id, incarnation, ERRS_SCHEMA, as_of, half="errs", shard=shard, shards=shards
        )
        try:
            self.oks = TraceWriter(
                allocator, id, incarnation, schema, as_of, half="oks", shard=shard, shards=shards
            )
        except BaseException:
            self.errs.close()
            raise

    @property
    def schema(self) -> ArrangementSchema:
        return self.oks.schema

    @property
    def since(self) -> Frontier:
        return Frontier.join(self.oks.since, self.errs.since)

    @property
    def upper(self) -> Frontier:
        return Frontier.meet(self.oks.upper, self.errs.upper)

    @property
    def is_closed(self) -> bool:
        """Whether it was dropped: nothing can be shown any more."""
        return self.oks.page.state.status is PageStatus.CLOSED

    def insert(self, oks: Updates, errs: Updates, upper: Frontier) -> None:
        """Seal both up to `upper`. No effect if that is their upper. errs: one TEXT column "code: message".

        Raises: as `TraceWriter.prepare`, with neither half changed; as `TraceWriter.commit`, with both in.
        """
        rows = self.oks.prepare(oks, upper)
        try:
            errors = self.errs.prepare(errs, upper)
        except BaseException:
            self.oks.discard(rows)
            raise
        try:
            self.errs.commit(errors)
        finally:
            self.oks.commit(rows)

    def set_compaction(self, frontier: Frontier) -> None:
        """As `TraceWriter.set_compaction`, for both."""
        self.oks.set_compaction(frontier)
        self.errs.set_compaction(frontier)

    def exert(self, fuel_updates: int) -> bool:
        """Merge one half, at most `fuel_updates` of work; whether more is to do in either."""
        return self.oks.exert(fuel_updates) or self.errs.exert(fuel_updates)

    def reclaim(self, now_s: float) -> float | None:
        """As `TraceWriter.reclaim`, for both: when the earlier of them is due."""
        dues = [due for due in (self.oks.reclaim(now_s), self.errs.reclaim(now_s)) if due is not None]
        return min(dues, default=None)

    def publish_as(self, id: int, incarnation: int) -> None:
        """Give the index a further id: an alias, the same pages by another name. Raises: FileExistsError."""
        for half in (self.errs, self.oks):
            half.page.link(half.page.header.name._replace(id=id, incarnation=incarnation))

    def withdraw(self, id: int, incarnation: int) -> bool:
        """Take one id back; with the last, the index closes. Returns whether it was the last."""
        for half in (self.oks, self.errs):
            name = half.page.header.name._replace(id=id, incarnation=incarnation)
            if half.page.names == (name,):
                half.close()
            else:
                half.page.withdraw(name)
        return not self.oks.page.names

    def reader(self) -> IndexReader:
        return IndexReader(self.oks.reader(), self.errs.reader())

    def listen(self) -> tuple[BatchQueue, BatchQueue]:
        """The queues of oks and errs."""
        return self.oks.listen(), self.errs.listen()

    def forget(self, queues: tuple[BatchQueue, BatchQueue]) -> None:
        self.oks.forget(queues[0])
        self.errs.forget(queues[1])

    def statistics(self) -> tuple[TraceStatistics, TraceStatistics]:
        """Of oks and errs."""
        return self.oks.statistics(), self.errs.statistics()

    def close(self) -> None:
        """Drop both: pages CLOSED, names gone. Idempotent."""
        self.oks.close()
        self.errs.close()


def _entry(batch: Batch) -> BatchEntry:
    told = batch.description
    place = batch.locator
    writer, seq = (0, 0) if place is None else (place.writer, place.seq)
    return BatchEntry(writer, seq, len(batch), told.lower, told.upper, told.since, batch.nbytes)
