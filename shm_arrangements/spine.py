"""Spine: the chain of batches of one arrangement shard, kept short and small by merging a little at a time.

Neighbours are merged when the older is less than twice the newer, so sizes fall by halves along the chain,
there are at most about two batches a level (a merge in progress shows both its inputs), and the chain is as
long as the logarithm of the updates. Each insertion pays `_FUEL_PER_UPDATE` for each of its updates to
every merge in progress. A merge of s updates costs under 3.5 s, so it is over before s / 2 updates have
followed it: before anything behind it has grown to half its size. Hence merges never pile up, and inserting
costs a constant times the logarithm an update, amortized.

No call does more than its fuel, and an insertion pays at most `_INSERT_FUEL_LIMIT` in all, smallest merges
first, so that what is put off is the largest and the chain grows by few batches for it. Who inserts large
batches without pause exerts in between; only a chain of `MAX_BATCHES` is shortened at once.

Merging rounds times up to `since` and drops what cancels: with `since` following, the updates kept are at
most a few times those needed to tell the present apart. An empty batch only extends the description of its
neighbour, so time passing costs no memory.

Does not: publish, unlink, or read a clock. `drain_retired` says what was superseded; whoever holds a batch
keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shm_arrangements import failpoints
from shm_arrangements.batch import Batch
from shm_arrangements.contracts import Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.merger import Merger
from shm_arrangements.schema import ArrangementSchema

MAX_BATCHES: Final = 48  # shown at once; a publication page has room for 64
_FUEL_PER_UPDATE: Final = 8
_LEAST_FUEL: Final = 256  # an insertion of one update: less would cost more in calls than in work
_INSERT_FUEL_LIMIT: Final = 250_000  # tens of milliseconds, so that an insertion stays within a chunk (R11)
_RATIO: Final = 2
_IDLE_RATIO: Final = 8  # exerted without input, merging goes on until the chain is this steep


@dataclass(frozen=True, slots=True)
class SpineStatistics:
    """Of the batches shown; merges in progress; merged_updates: the fuel used so far."""

    batches: int
    updates: int
    nbytes: int
    merges: int
    merged_updates: int


class _Merge:
    """Two neighbours on their way to become one; both are shown until then."""

    __slots__ = ("merger", "newer", "older")

    def __init__(self, older: Batch, newer: Batch, merger: Merger) -> None:
        self.older, self.newer, self.merger = older, newer, merger

    @property
    def description(self) -> Description:
        return self.older.description.through(self.newer.description)

    def __len__(self) -> int:
        return len(self.older) + len(self.newer)


class Spine:
    """A `Trace`; see contracts.py. One thread."""

    def __init__(
        self,
        schema: ArrangementSchema,
        allocator: Allocator,
        *,
        physical: Frontier | None = None,
    ) -> None:
        """physical: as `set_physical_compaction`; None (empty) lets all batches be merged."""
        self.schema = schema
        self._allocator = allocator
        self._since = self._upper = Frontier.minimum()
        self._physical = Frontier.empty() if physical is None else physical
        self._chain: list[Batch | _Merge] = []
        self._shown: tuple[Batch, ...] | None = ()
        self._retired: list[Batch] = []
        self._merged_updates = 0

    @property
    def since(self) -> Frontier:
        return self._since

    @property
    def upper(self) -> Frontier:
        return self._upper

    def batches(self) -> tuple[Batch, ...]:
        """The chain, oldest first; a merge in progress shows its two inputs."""
        if self._shown is None:
            shown: list[Batch] = []
            for link in self._chain:
                shown.extend((link.older, link.newer) if isinstance(link, _Merge) else (link,))
            self._shown = tuple(shown)
        return self._shown

    def insert(self, batch: Batch) -> None:
        """Append `batch`, and merge with fuel in proportion to it.

        Raises: InvariantViolation if it does not abut `upper`; what the allocator raises while merging: the
        batch is then in, and the merge can go on later.
        """
        if batch.description.lower != self._upper:
            raise InvariantViolation(
                "batch does not abut its trace", lower=batch.description.lower, upper=self._upper
            )
        if batch.schema != self.schema:
            raise InvariantViolation("batch of another schema", batch=batch.schema, trace=self.schema)
        self._upper = batch.description.upper
        self._shown = None
        if self._since.is_empty and len(batch):
            self._retired.append(batch)
            batch = Batch.empty(self.schema, batch.description)
        self._append(batch)
        if len(batch):
            self._begin(_RATIO)
            self._pay(max(len(batch) * _FUEL_PER_UPDATE, _LEAST_FUEL))
        self._shorten()

    def exert(self, fuel_updates: int) -> bool:
        """Merge with at most `fuel_updates` of work; whether more is to do.

        Raises: as `insert`.
        """
        while True:
            merges = self._merges()
            if not merges:
                self._begin(_IDLE_RATIO, most=1)
                merges = self._merges()
            if not merges:
                return False
            if fuel_updates <= 0:
                return True
            fuel_updates -= self._work(merges[0], fuel_updates)

    def set_logical_compaction(self, frontier: Frontier) -> None:
        """Make `frontier` the since: reads before it are given up, for good. Empty: all reads are.

        Raises: InvariantViolation if it regresses.
        """
        if not self._since.precedes_or_equal(frontier):
            raise InvariantViolation("since regresses", since=self._since, given=frontier)
        self._since = frontier
        if frontier.is_empty:
            self.close()

    def set_physical_compaction(self, frontier: Frontier) -> None:
        """Let batches be merged whose upper is at or before `frontier`; others keep their boundaries.

        Raises: InvariantViolation if it regresses.
        """
        if not self._physical.precedes_or_equal(frontier):
            raise InvariantViolation("physical compaction regresses", physical=self._physical, given=frontier)
        self._physical = frontier

    def drain_retired(self) -> list[Batch]:
        """The batches superseded since the last call, each once, whether it was ever shown or not."""
        retired, self._retired = self._retired, []
        return retired

    def replace(self, old: Batch, new: Batch) -> None:
        """Put `new`, the same updates in another place, where `old` is shown.

        A merge in progress reads on in `old`. Raises: InvariantViolation if that is not shown, or differs.
        """
        if len(old) != len(new) or old.description != new.description:
            raise InvariantViolation("replaced by another batch", old=old, new=new)
        for at, link in enumerate(self._chain):
            if link is old:
                self._chain[at] = new
            elif isinstance(link, _Merge) and link.older is old:
                link.older = new
            elif isinstance(link, _Merge) and link.newer is old:
                link.newer = new
            else:
                continue
            self._retired.append(old)
            self._shown = None
            return
        raise InvariantViolation("batch to be replaced is not shown", old=old)

    def close(self) -> None:
        """Let go of all updates, and of memory for merges in progress; the chain becomes one empty batch."""
        for link in self._chain:
            if isinstance(link, _Merge):
                link.merger.abandon()
        self._retired += [batch for batch in self.batches() if len(batch)]
        if self._chain:
            lower = self._chain[0].description.lower
            description = Description(lower, self._upper, self._since)
            self._chain = [Batch.empty(self.schema, description)]
        self._shown = None

    def statistics(self) -> SpineStatistics:
        batches = self.batches()
        return SpineStatistics(
            len(batches),
            sum(map(len, batches)),
            sum(batch.nbytes for batch in batches),
            sum(isinstance(link, _Merge) for link in self._chain),
            self._merged_updates,
        )

    def validate_state(self) -> None:
        """Check the chain: that it abuts, and what `Batch.validate_state` checks. For tests.

        Raises: AssertionError saying what does not hold.
        """
        at = Frontier.minimum()
        for batch in self.batches():
            assert batch.description.lower == at, f"gap before {batch}"
            at = batch.description.upper
            batch.validate_state()
        assert at == self._upper, f"chain ends at {at}, not at {self._upper}"

    def _may_merge(self, newer: Description) -> bool:
        return newer.upper.precedes_or_equal(self._physical)

    def _append(self, batch: Batch) -> None:
        """Append, unless the batch or the end of the chain is empty and only a description need grow."""
        if self._chain and self._may_merge(batch.description):
            last = self._chain[-1]
            if len(batch) == 0:
                self._extend(len(self._chain) - 1, batch.description.upper)
                return
            if isinstance(last, Batch) and len(last) == 0:
                self._chain[-1] = batch.with_description(_from(last.description.lower, batch.description))
                return
        self._chain.append(batch)

    def _extend(self, at: int, upper: Frontier) -> None:
        link = self._chain[at]
        last = link.newer if isinstance(link, _Merge) else link
        description = Description(last.description.lower, upper, last.description.since)
        if isinstance(link, _Merge):
            link.newer = link.newer.with_description(description)
        else:
            self._chain[at] = link.with_description(description)
        self._shown = None

    def _begin(self, ratio: int, most: int | None = None) -> None:
        """Begin the merges that are due, smallest first; empty batches are absorbed before."""
        self._absorb()
        while most != 0:
            due = [
                (len(older) + len(newer), at)
                for at, (older, newer) in enumerate(pairwise(self._chain))
                if isinstance(older, Batch)
                and isinstance(newer, Batch)
                and len(older) < ratio * len(newer)
                and self._may_merge(newer.description)
            ]
            if not due:
                return
            _, at = min(due)
            older, newer = self._chain[at], self._chain[at + 1]
            assert isinstance(older, Batch)
            assert isinstance(newer, Batch)
            merger = Merger(older, newer, self._since, self._allocator)
            self._chain[at : at + 2] = [_Merge(older, newer, merger)]
            most = None if most is None else most - 1

    def _absorb(self) -> None:
        """Let empty batches become part of a neighbour's description."""
        for at in range(len(self._chain) - 2, -1, -1):
            older, newer = self._chain[at], self._chain[at + 1]
            if not self._may_merge(newer.description):
                continue
            if len(newer) == 0:
                self._extend(at, newer.description.upper)
                del self._chain[at + 1]
            elif len(older) == 0 and isinstance(newer, Batch):
                joined = _from(older.description.lower, newer.description)
                self._chain[at : at + 2] = [newer.with_description(joined)]
                self._shown = None

    def _pay(self, fuel: int) -> None:
        """Give `fuel` to every merge in progress, smallest first, and to those that begin thereby."""
        budget = _INSERT_FUEL_LIMIT
        paid: list[_Merge] = []
        while budget > 0:
            unpaid = [link for link in self._merges() if link not in paid]
            if not unpaid:
                return
            paid.append(unpaid[0])
            budget -= self._work(unpaid[0], min(fuel, budget))

    def _merges(self) -> list[_Merge]:
        """The merges in progress, the one that needs least first."""
        merges = [link for link in self._chain if isinstance(link, _Merge)]
        return sorted(merges, key=lambda link: link.merger.remaining())

    def _work(self, link: _Merge, fuel: int) -> int:
        """Spend at most `fuel` on a merge; returns what was spent. If it is done, begin what is then due."""
        failpoints.hit("spine.merge")
        used = link.merger.work(fuel)
        self._merged_updates += used
        result = link.merger.result()
        if result is not None:
            # The description may have grown while the merge was on its way.
            both = link.description
            description = Description(both.lower, both.upper, result.description.since)
            self._chain[self._chain.index(link)] = result.with_description(description)
            self._retired += (link.older, link.newer)
            self._shown = None
            self._begin(_RATIO)
        return used

    def _shorten(self) -> None:
        """Keep the chain within what a page can show, whatever it costs."""
        while len(self.batches()) > MAX_BATCHES:
            merges = self._merges()
            if not merges:
                self._begin(MAX_BATCHES, most=1)
                merges = self._merges()
            if not merges:
                return  # physical compaction forbids it
            self._work(merges[0], _INSERT_FUEL_LIMIT)


def _from(lower: Frontier, description: Description) -> Description:
    return Description(lower, description.upper, description.since)
