"""An index: the rows and the errors of a collection, as two arrangements that move together.

The halves share a cell of a clock, so what happens to one half turns one page, and time that passes over
both is one store. Readiness and since are the meet of both, for an answer needs both (R4).

Does not: know how a half is kept (writer.py), or decide how far since may go (R6).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.batch import Batch
from shm_arrangements.clock import Cell, advance_cells
from shm_arrangements.contracts import TraceReader
from shm_arrangements.errors import InvariantViolation, RegistryFull, ShmExhausted
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import collection_text
from shm_arrangements.page_layout import PageStatus
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA, BatchQueue, TraceStatistics, TraceWriter, require_arguments


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
    """The two halves of an index, `oks` and `errs`. One process, one thread."""

    __slots__ = ("_cell", "errs", "oks")

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
        name: str = "",
    ) -> None:
        """Publish an index in which nothing is sealed yet: since `as_of`, upper the minimum time.

        allocator: of this instance and writer. id: u64, as `collection_id` makes it. incarnation: which life
        of the id, from 1; readers take the newest. name: for people and `attach`, at most 255 bytes of UTF-8.
        shard, shards: this process's part, where several write one index between them.
        Raises: as `TraceWriter`; leaves nothing behind then.
        """
        require_arguments(id, incarnation, as_of, shard, shards, name)
        self._cell = Cell.take(allocator.token, allocator.writer)
        self.errs = TraceWriter(
            allocator, id, incarnation, ERRS_SCHEMA, as_of,
            half="errs", shard=shard, shards=shards, name=name, cell=self._cell,
        )  # fmt: skip
        try:
            self.oks = TraceWriter(
                allocator, id, incarnation, schema, as_of,
                half="oks", shard=shard, shards=shards, name=name, cell=self._cell,
            )  # fmt: skip
        except BaseException:
            self.errs.close()
            raise

    def __repr__(self) -> str:
        header = self.oks.page.header
        called = f" {header.name!r}" if header.name else ""
        state = "closed" if self.is_closed else f"since={self.since}, upper={self.upper}"
        return f"IndexWriter({collection_text(header.page.id)}{called}, {state})"

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
    def generation(self) -> int:
        """Moves with every turn of a page of either half; not when time passes and nothing happens."""
        return self.oks.page.state.generation + self.errs.page.state.generation

    @property
    def is_closed(self) -> bool:
        """Whether it was dropped: nothing can be shown any more."""
        return self.oks.page.state.status is PageStatus.CLOSED

    def insert(self, oks: Updates, errs: Updates, upper: Frontier) -> None:
        """Seal both up to `upper`. No effect if that is their upper. errs: one TEXT column "code: message".

        Raises: as `TraceWriter.insert`, with neither half changed; ValueError if `oks` has not the columns of
        the index; TypeError for an upper that is no Frontier.
        """
        _require_frontier(upper)
        if len(oks) and len(oks.columns) != len(self.schema.columns):
            raise ValueError(f"{len(oks.columns)} columns, the index has {len(self.schema.columns)}")
        if not len(oks) and not len(errs):
            self.advance(upper)
            return
        rows = self.oks.prepare(oks, upper)
        try:
            errors = self.errs.prepare(errs, upper)
        except BaseException:
            self.discard(rows)
            raise
        try:
            self.commit(rows, errors)
        except (ShmExhausted, RegistryFull):
            if Frontier.meet(self.oks.page.upper, self.errs.page.upper) != upper:
                raise

    def commit(self, oks: Batch, errs: Batch) -> None:
        """Append what was prepared for both halves, up to one upper, and publish.

        Raises: as `TraceWriter.commit`, with both in where it says so.
        """
        upper = oks.description.upper
        if errs.description.upper != upper:
            raise InvariantViolation("halves of different uppers", oks=upper, errs=errs.description.upper)
        try:
            self._take(self.errs, errs)
        finally:
            try:
                self._take(self.oks, oks)
            finally:
                self._cell.tell(upper)

    def discard(self, *batches: Batch) -> None:
        """Give up batches that were prepared for either half."""
        for batch in batches:
            self.oks.discard(batch)

    def advance(self, upper: Frontier) -> None:
        """Seal both up to `upper`, before which nothing happens. No effect if that is their upper.

        Cost: a store and a system call, if something was sealed before. Raises: InvariantViolation if it
        regresses; TypeError if it is no Frontier.
        """
        _require_frontier(upper)
        cell = self._cell
        for half in (self.oks, self.errs):
            if upper.precedes(half.upper):
                raise InvariantViolation("upper regresses", upper=half.upper, given=upper)
        if cell.holds or upper.is_empty:
            self.commit(self.oks.nothing(upper), self.errs.nothing(upper))
        elif cell.upper != upper.time:
            cell.advance(upper.time)

    def set_compaction(self, frontier: Frontier) -> None:
        """As `TraceWriter.set_compaction`, for both."""
        _require_frontier(frontier)
        self.oks.set_compaction(frontier)
        self.errs.set_compaction(frontier)
        self._cell.ring()

    def exert(self, fuel_updates: int) -> bool:
        """Merge one half, at most `fuel_updates` of work; whether more is to do in either."""
        return self.oks.exert(fuel_updates) or self.errs.exert(fuel_updates)

    def reclaim(self, now_s: float) -> float | None:
        """As `TraceWriter.reclaim`, for both: when the earlier of them is due."""
        dues = [due for due in (self.oks.reclaim(now_s), self.errs.reclaim(now_s)) if due is not None]
        return min(dues, default=None)

    def publish_as(self, id: int, incarnation: int) -> None:
        """Give the index a further id: an alias, the same pages by another name.

        Raises: AlreadyPublished; ValueError or TypeError for what is no id or incarnation.
        """
        require_arguments(id, incarnation, 0, 0, 1, "")
        for half in (self.errs, self.oks):
            half.page.link(half.page.header.page._replace(id=id, incarnation=incarnation))

    def withdraw(self, id: int, incarnation: int) -> bool:
        """Take one id back; with the last, the index closes. Returns whether it was the last."""
        for half in (self.oks, self.errs):
            name = half.page.header.page._replace(id=id, incarnation=incarnation)
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

    def _take(self, half: TraceWriter, batch: Batch) -> None:
        """As `TraceWriter._take`; where nothing happened, the cell will say it."""
        if len(batch) or half._holds or batch.description.upper.is_empty:
            half._take(batch)
        elif batch.description.lower != half.upper:
            raise InvariantViolation("batch does not abut", lower=batch.description.lower, upper=half.upper)


def _require_frontier(given: Frontier) -> None:
    if not isinstance(given, Frontier):
        raise TypeError(f"a frontier is wanted, as Frontier.at(5), not {given!r}")


def advance_idle(indexes: Iterable[IndexWriter], upper: Frontier) -> None:
    """`IndexWriter.advance` of many at once: half a microsecond each, if something was sealed before.

    Raises: InvariantViolation if the upper of one regresses; others may have moved then.
    """
    cells: list[Cell] = []
    for index in indexes:
        if index._cell.holds or upper.is_empty:
            index.advance(upper)
        else:
            cells.append(index._cell)
    if cells:
        advance_cells(cells, upper.time)
