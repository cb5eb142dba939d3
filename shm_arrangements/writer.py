"""Writing shared arrangements: a spine, and the page that shows it.

Every change goes the same way: a batch is built in shared memory, the spine takes it and merges with fuel,
the page is turned to the new chain, the cell it follows is set, its bell rings, and what the chain names no
more waits for its grace. Readers see nothing before the turn, and that comes after everything it names is
complete. Where a step fails for lack of memory before the spine has taken the batch, nothing has happened,
and it can be done again (BUG09).

Time that passes without an update is the cell alone (clock.py): no batch, no turn. The spine then ends before
the upper, and is told so by an empty batch when the next one comes, which abuts that. By the writer rule a
trace holds the cell from before it changes until its page shows the change; one at which nothing was ever
sealed, or that is sealed for ever, holds it always.

How far `since` may go is not decided here: the owner calls `set_compaction` with the standing hold (R6).

Does not: read the time, notify anyone but by the bell, wait for readers, or know their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, SupportsIndex

from shm_arrangements import failpoints
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.batch import Batch
from shm_arrangements.builder import build_batch
from shm_arrangements.clock import Cell
from shm_arrangements.contracts import TraceReader
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation, RegistryFull, ShmExhausted
from shm_arrangements.frontier import Frontier
from shm_arrangements.given import canonical_updates
from shm_arrangements.names import PageName
from shm_arrangements.page_layout import CAPACITY, MOST_SHARDS, BatchEntry, PageStatus
from shm_arrangements.publication import PublicationPage
from shm_arrangements.reclaim import Reclaimer
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.spine import Spine
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

# Errors in data are a collection of their own: text "code: message", no key.
ERRS_SCHEMA: Final = ArrangementSchema((ColumnSpec("error", ColumnType.TEXT, False),), ())
_FORCED_FUEL: Final = 1 << 16  # updates a call, where a full page forces merging


class BatchQueue:
    """What an importer in the writer's process gets: the chain as it stood, then each batch that follows.

    Batches and upper come from one source, so the upper is never ahead of its batches (Z7). Time that passes
    without updates only moves the upper: a queue nobody drains does not grow while nothing happens.
    """

    __slots__ = ("_batches", "_ended_at", "_trace", "history", "is_closed")

    def __init__(self, trace: TraceWriter) -> None:
        self.history = tuple(trace.reader().batches())
        self.is_closed = False
        self._trace = trace
        self._ended_at: Frontier | None = None
        self._batches: deque[Batch] = deque()

    @property
    def upper(self) -> Frontier:
        """Everything before it is in `history` or in the queue. Stays where it was when the queue ends."""
        return self._trace.upper if self._ended_at is None else self._ended_at

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
        if len(batch):
            self._batches.append(batch)

    def _end(self) -> None:
        self._ended_at = self.upper


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """updates, nbytes: of the chain; superseded: places that wait for their grace."""

    since: Frontier
    upper: Frontier
    generation: int
    batches: int
    updates: int
    nbytes: int
    superseded: int


class LiveTrace:
    """The TraceReader of a trace in its writer's process: the chain as it stands, mapped already.

    The last batch may say that it ends before `upper`: then nothing has happened since.
    """

    __slots__ = ("_spine", "_trace")

    def __init__(self, trace: TraceWriter, spine: Spine) -> None:
        self._trace = trace
        self._spine = spine

    @property
    def schema(self) -> ArrangementSchema:
        return self._spine.schema

    @property
    def since(self) -> Frontier:
        return self._spine.since

    @property
    def upper(self) -> Frontier:
        return self._trace.upper

    def batches(self) -> Sequence[Batch]:
        """As long as no batch comes or is merged, the same object."""
        return self._spine.batches()


class TraceWriter:
    """One arrangement shard: its spine, its page, its superseded places. One process, one thread."""

    __slots__ = (
        "_allocator", "_cell", "_holds", "_owns_cell", "_page", "_queues", "_reclaimer", "_shown",
        "_sparse_seen", "_spine", "schema",
    )  # fmt: skip

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
        name: str = "",
        cell: Cell | None = None,
    ) -> None:
        """Publish an arrangement in which nothing is sealed yet: since `as_of`, upper the minimum time.

        allocator: of this instance and writer; id: u64; name: for people, at most 255 bytes of UTF-8.
        cell: the one that both halves of an index follow; None if this is none.
        Raises: ShmExhausted, RegistryFull; AlreadyPublished if `(id, incarnation, half, shard)` is;
        ValueError or TypeError naming the argument that cannot be.
        """
        require_arguments(id, incarnation, as_of, shard, shards, name)
        self.schema = schema
        self._allocator = allocator
        self._spine = Spine(schema, allocator)
        self._spine.set_logical_compaction(Frontier.at(as_of))
        self._owns_cell = cell is None
        self._cell = cell or Cell.take(allocator.token, allocator.writer)
        self._page = PublicationPage.create(
            PageName(allocator.token, id, incarnation, half, shard),
            schema,
            as_of=as_of,
            writer=allocator.writer,
            shards=shards,
            name=name,
            cell=self._cell,
        )
        self._holds = False
        self._hold()
        self._reclaimer = Reclaimer(allocator)
        self._sparse_seen = 0  # of allocator.sparse_count
        self._queues: list[BatchQueue] = []
        self._shown: tuple[tuple[Batch, ...], tuple[BatchEntry, ...]] = (), ()

    @property
    def since(self) -> Frontier:
        return self._spine.since

    @property
    def upper(self) -> Frontier:
        """Stays where it was when the trace is closed."""
        page = self._page
        if page.state.status is PageStatus.CLOSED:
            return page.state.upper
        return self._cell.later(self._spine.upper)

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
        Raises: as `canonical_updates` and `build_batch`; ShmExhausted without effect.
        """
        if upper.precedes(self.upper):
            raise InvariantViolation("upper regresses", upper=self.upper, given=upper)
        description = Description(self.upper, upper, self.since)
        if not len(updates):
            return self.nothing(upper)
        return build_batch(canonical_updates(updates), self.schema, description, self._allocator)

    def nothing(self, upper: Frontier) -> Batch:
        """The batch that says that nothing happened up to `upper`."""
        return Batch.empty(self.schema, Description(self.upper, upper, self.since))

    def discard(self, batch: Batch) -> None:
        """Give up a prepared batch."""
        if batch.locator is not None:
            self._allocator.free(batch.locator)

    def commit(self, batch: Batch) -> None:
        """Append a prepared batch, merge with fuel, and publish. No effect if it covers no time.

        Raises: InvariantViolation, without effect, if it does not abut or holds updates of no time;
        ShmExhausted from merging: the batch is in then, and published.
        """
        try:
            self._take(batch)
        finally:
            if self._owns_cell:
                self._cell.tell(batch.description.upper)
            else:
                self._cell.ring()

    def insert(self, updates: Updates, upper: Frontier) -> Batch:
        """`prepare` and `commit`: seal up to `upper`. Returns the batch as inserted.

        Raises: as `prepare`. That merging has no room is no error as long as the batch is shown: a later call
        goes on with it.
        """
        batch = self.prepare(updates, upper)
        if len(batch) or not self.advance(upper):
            try:
                self.commit(batch)
            except (ShmExhausted, RegistryFull):
                if self._page.upper != upper:
                    raise
        return batch

    def advance(self, upper: Frontier) -> bool:
        """Seal up to `upper`, before which nothing happens, by the cell alone; whether that was possible.

        Raises: InvariantViolation if it regresses.
        """
        cell = self._cell
        if not self._owns_cell or cell.holds or upper.is_empty:
            return False
        if upper.precedes(self.upper):
            raise InvariantViolation("upper regresses", upper=self.upper, given=upper)
        if upper.time != cell.upper:
            cell.advance(upper.time)
        return True

    def set_compaction(self, frontier: Frontier) -> None:
        """Let times before `frontier` be rounded up to it, and publish that since. Never goes back (G7).

        Raises: InvariantViolation for the empty frontier: that is a drop, and dropping is `close`.
        """
        if frontier.is_empty:
            raise InvariantViolation("compaction to the empty frontier is close()")
        if self.since.precedes(frontier):
            self._spine.set_logical_compaction(frontier)
            self._publish()
            if self._owns_cell:
                self._cell.ring()

    def exert(self, fuel_updates: int) -> bool:
        """Merge without input, at most `fuel_updates` of work; whether more is to do."""
        before = self._spine.batches()
        more = self._spine.exert(fuel_updates)
        after = self._spine.batches()
        if len(before) != len(after) or any(a is not b for a, b in zip(before, after, strict=True)):
            self._publish()
        return more

    def reclaim(self, now_s: float) -> float | None:
        """Free superseded batches whose grace is over, and leave sparse arenas; when to call again, or None.

        now_s: seconds of a monotonic clock. Wakes nobody. Without room to go, batches stay till a later call.
        """
        self._evacuate()
        return self._reclaimer.run(self._page, now_s)

    def reader(self) -> TraceReader:
        """This trace, for reading in this process."""
        return LiveTrace(self, self._spine)

    def listen(self) -> BatchQueue:
        """The chain as it stands and every batch from then on, for an importer in this process."""
        queue = BatchQueue(self)
        self._queues.append(queue)
        return queue

    def forget(self, queue: BatchQueue) -> None:
        """End a `listen`. No effect if it has ended."""
        if queue in self._queues:
            queue._end()
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
        self._hold()
        self._page.close()
        self._spine.close()
        self._supersede(self._shown[0], ())
        self._shown = (), ()
        self._reclaimer.finish()
        for queue in self._queues:
            queue.is_closed = True
            queue._end()
        self._queues.clear()

    def _hold(self) -> None:
        """Keep the cell from moving: the page does not show all there is, or must be turned to be sealed."""
        if not self._holds:
            self._holds = True
            self._cell.holds += 1

    def _take(self, batch: Batch) -> None:
        """Append a batch and turn the page; the cell is not set."""
        told = batch.description
        if told.lower == told.upper:
            if len(batch):
                self.discard(batch)
                raise InvariantViolation("updates for no time", upper=self.upper, updates=len(batch))
            if self._page.state.upper != self._spine.upper:
                self._publish()  # the turn for the batch before failed
            return
        reached = self.upper
        if told.lower != reached:
            raise InvariantViolation("batch does not abut its trace", lower=told.lower, upper=reached)
        if self._spine.upper != reached:
            passed = Description(self._spine.upper, reached, self.since)
            self._spine.insert(Batch.empty(self.schema, passed))
        try:
            self._spine.insert(batch)
        finally:
            if self._spine.upper == told.upper:
                for queue in self._queues:
                    queue._push(batch)
                self._publish()

    def _evacuate(self) -> None:
        """Copy the batches that sparse arenas still hold, and publish the copies; without room, later."""
        allocator = self._allocator
        if self._sparse_seen == allocator.sparse_count:
            return
        self._sparse_seen = allocator.sparse_count
        moved = False
        for batch in self._spine.batches():
            if batch.locator is None or not allocator.must_move(batch.locator):
                continue
            try:
                copy = batch.copied(allocator)
            except (ShmExhausted, RegistryFull):
                self._sparse_seen = -1
                break
            self._spine.replace(batch, copy)
            moved = True
        if moved:
            failpoints.hit("arena.evacuate")
            self._publish()

    def _publish(self) -> None:
        while len(self._spine.batches()) > CAPACITY and self._spine.exert(_FORCED_FUEL):
            pass
        self._hold()
        upper = self._spine.upper
        shown, entries = self._shown
        batches = self._spine.batches()
        same = 0
        for before, batch in zip(shown, batches, strict=False):
            if before is not batch:
                break
            same += 1
        entries = entries[:same] + tuple(map(_entry, batches[same:]))
        self._page.turn(self.since, upper, entries)
        self._shown = batches, entries
        self._supersede(shown[same:], batches[same:])
        if not upper.is_empty:
            self._holds = False
            self._cell.holds -= 1

    def _supersede(self, left: Sequence[Batch], came: Sequence[Batch]) -> None:
        """Give up what left the chain, and what was merged away unseen, but not what came."""
        retired = self._spine.drain_retired()
        if left or retired:
            gone = {batch.locator: batch.nbytes for batch in (*left, *retired)}
            for batch in came:
                gone.pop(batch.locator, None)
            gone.pop(None, None)
            self._reclaimer.supersede(gone.items(), self._page.state.generation)


def require_arguments(id: int, incarnation: int, as_of: int, shard: int, shards: int, name: str) -> None:
    """Check what an arrangement is published by. Raises: ValueError or TypeError saying which cannot be."""
    for what, value in (("id", id), ("incarnation", incarnation), ("as_of", as_of)):
        if not isinstance(value, SupportsIndex):
            hint = "; collection_id('u1') makes it of text" if what == "id" else ""
            raise TypeError(f"{what} is a u64, not {value!r}{hint}")
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{what} is not a u64: {value}")
    if not 0 <= shard < shards <= MOST_SHARDS:
        raise ValueError(f"no shard {shard} of {shards}: they count from 0, and are at most {MOST_SHARDS}")
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {name!r}")


def _entry(batch: Batch) -> BatchEntry:
    told = batch.description
    place = batch.locator
    writer, seq, offset = (0, 0, 0) if place is None else (place.writer, place.seq, place.offset)
    return BatchEntry(writer, seq, len(batch), told.lower, told.upper, told.since, batch.nbytes, offset)
