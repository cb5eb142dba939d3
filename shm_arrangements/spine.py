"""Spine: the chain of batches of one arrangement shard, kept short and small by merging a little at a time.

A batch is merged with up to `MAX_SOURCES` - 1 that follow it when these outweigh it: `_EAGER` times their
weight is more than its own. So sizes fall along the chain, an update moves into a batch `MAX_SOURCES` times
as large each time it is written, and both the chain and the times an update is written grow as the logarithm
of the updates. A retraction weighs more than its row (`_RETRACTED`), for it promises to cancel another: where
updates replace each other, what is dead stays within a third or so of what lives.

Batches all of whose times since has passed are not merged with those of which it has not: what is told apart
by time alone cancels nothing, and the times of few would have to be stored with all. So the chain has two
parts, each short.

A merge of little is done at once. Every insertion pays to a larger one as its own size is to the merge's,
`_PACE`-fold: so the merge is over before as many updates as a part in `_PACE` of it have followed, and before
these can be due to be merged with its result. Hence merges never pile up, and inserting costs a constant
times the logarithm an update, amortized. No call does more than its fuel, and an insertion pays at most
`_INSERT_FUEL_LIMIT` in all, or `_MOST_FUEL` an update, smallest merges first: what is put off is the largest,
for which the chain grows by few batches. A chain longer than `_LONG` raises the limit in proportion; only one
of `MAX_BATCHES` is shortened whatever it costs.

Merging rounds times up to `since` and drops what cancels. A batch that nothing follows is rewritten by
itself, when exerted, once `since` has passed so many of its times that it is worth it. An empty batch only
extends the description of its neighbour, so time passing costs no memory.

Does not: publish, unlink, or read a clock. `drain_retired` says what was superseded; whoever holds a batch
keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shm_arrangements import failpoints
from shm_arrangements.batch import Batch
from shm_arrangements.contracts import Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.merger import MAX_SOURCES, Merger, share_saved
from shm_arrangements.schema import ArrangementSchema

MAX_BATCHES: Final = 48  # shown at once; a publication page has room for 56
_SMALL_FUEL: Final = 16384  # a merge that costs no more is done at once
_EAGER: Final = 0.5  # of equal batches, four are merged
_IDLE_EAGER: Final = 8.0  # exerted without input, merging goes on until the chain is this steep
_WHATEVER: Final = float("inf")
_RETRACTED: Final = 16  # what a retraction weighs, beside the one of an insertion
_PACE: Final = 8
_LEAST_FUEL: Final = 1024  # for less, calling costs more than working
_LONG: Final = 16
_INSERT_FUEL_LIMIT: Final = 160_000  # under two milliseconds
_MOST_FUEL: Final = 16
_WORTH: Final = 0.2  # of a batch's bytes that rewriting it must save
_LOOK_FUEL: Final = 2048  # what it costs to estimate that


@dataclass(frozen=True, slots=True)
class SpineStatistics:
    """Of the batches shown; merges in progress; merged_updates: the fuel used so far."""

    batches: int
    updates: int
    nbytes: int
    merges: int
    merged_updates: int


class _Link:
    """A batch of the chain; or, with a merger, neighbours on their way to become one, shown until then.

    weight: of a batch at rest. looked: the since up to which it is known that rewriting it is not worth it.
    cost: all the fuel that the merge takes, about.
    """

    __slots__ = ("cost", "looked", "merger", "parts", "updates", "weight")

    def __init__(self, parts: list[Batch], merger: Merger | None = None) -> None:
        self.parts = parts
        self.merger = merger
        self.updates = sum(map(len, parts))
        self.looked = Frontier.minimum()
        if merger is None:
            self.weight, self.cost = _weight(parts[0]), 0
        else:
            self.weight, self.cost = 0, merger.remaining()

    @property
    def lower(self) -> Frontier:
        return self.parts[0].description.lower

    @property
    def upper(self) -> Frontier:
        return self.parts[-1].description.upper


class Spine:
    """A trace that grows, and whose history shrinks; a `TraceReader` (contracts.py). One thread."""

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
        self._chain: list[_Link] = []
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
        """The chain, oldest first; a merge in progress shows its inputs."""
        if self._shown is None:
            self._shown = tuple(batch for link in self._chain for batch in link.parts)
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
            self._begin()
            self._pay(len(batch))
        self._shorten()

    def exert(self, fuel_updates: int) -> bool:
        """Merge with at most `fuel_updates` of work; whether more is to do.

        Raises: as `insert`.
        """
        while True:
            merges = self._merges()
            if not merges and not self._begin(_IDLE_EAGER, most=1):
                link = self._not_looked_at()
                if link is None:
                    return False
                if fuel_updates <= 0:
                    return True
                fuel_updates -= self._look_at(link)
                continue
            if fuel_updates <= 0:
                return True
            fuel_updates -= self._work((merges or self._merges())[0], fuel_updates)

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
            raise InvariantViolation("physical compaction regresses", at=self._physical, given=frontier)
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
        for link in self._chain:
            for at, part in enumerate(link.parts):
                if part is old:
                    link.parts[at] = new
                    self._retired.append(old)
                    self._shown = None
                    return
        raise InvariantViolation("batch to be replaced is not shown", old=old)

    def close(self) -> None:
        """Let go of all updates, and of memory for merges in progress; the chain becomes one empty batch."""
        for link in self._chain:
            if link.merger is not None:
                link.merger.abandon()
        self._retired += [batch for batch in self.batches() if len(batch)]
        if self._chain:
            description = Description(self._chain[0].lower, self._upper, self._since)
            self._chain = [_Link([Batch.empty(self.schema, description)])]
        self._shown = None

    def statistics(self) -> SpineStatistics:
        batches = self.batches()
        return SpineStatistics(
            len(batches),
            sum(map(len, batches)),
            sum(batch.nbytes for batch in batches),
            sum(link.merger is not None for link in self._chain),
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

    def _append(self, batch: Batch) -> None:
        """Append, unless the batch or the end of the chain is empty and only a description need grow."""
        if self._chain and batch.description.upper.precedes_or_equal(self._physical):
            last = self._chain[-1]
            if len(batch) == 0:
                self._extend(last, batch.description.upper)
                return
            if last.updates == 0:
                batch = batch.with_description(_from(last.lower, batch.description))
                self._chain.pop()
        self._chain.append(_Link([batch]))

    def _extend(self, link: _Link, upper: Frontier) -> None:
        last = link.parts[-1]
        told = last.description
        link.parts[-1] = last.with_description(Description(told.lower, upper, told.since))
        self._shown = None

    def _absorb(self) -> None:
        """Let empty batches become part of a neighbour's description."""
        if all(link.updates for link in self._chain):
            return
        for at in range(self._mergeable() - 2, -1, -1):
            older, newer = self._chain[at], self._chain[at + 1]
            if older.updates and newer.updates:
                continue
            if newer.updates == 0:
                self._extend(older, newer.upper)
                del self._chain[at + 1]
            else:
                first = newer.parts[0]
                newer.parts[0] = first.with_description(_from(older.lower, first.description))
                self._shown = None
                del self._chain[at]

    def _begin(self, eager: float = _EAGER, most: int | None = None) -> bool:
        """Begin the merges that are due, smallest first, `most` of them; whether there was one."""
        self._absorb()
        begun = 0
        while begun != most:
            due = self._due(eager)
            if due is None:
                break
            lo, hi = due
            parts = [part for link in self._chain[lo:hi] for part in link.parts]
            self._chain[lo:hi] = [_Link(parts, Merger(parts, self._since, self._allocator))]
            begun += 1
        return begun > 0

    def _due(self, eager: float) -> tuple[int, int] | None:
        """Where in the chain the smallest merge is that is due; None if there is none."""
        chain, mergeable, passed = self._chain, self._mergeable(), self._passed()
        least, found = 0, None
        for lo in range(mergeable - 1):
            older = chain[lo]
            if older.merger is not None:
                continue
            end = min(passed, mergeable) if lo < passed and eager < _WHATEVER else mergeable
            newer, updates, hi = 0, older.updates, lo + 1
            while hi < end and hi - lo < MAX_SOURCES and chain[hi].merger is None:
                newer += chain[hi].weight
                updates += chain[hi].updates
                hi += 1
            if hi > lo + 1 and older.weight < eager * newer and (found is None or updates < least):
                least, found = updates, (lo, hi)
        return found

    def _mergeable(self) -> int:
        """How many links, from the oldest on, may be merged with each other."""
        at = len(self._chain)
        while at > 0 and not self._chain[at - 1].upper.precedes_or_equal(self._physical):
            at -= 1
        return at

    def _passed(self) -> int:
        """How many links, from the oldest on, have only times that are rounded up to since."""
        at = len(self._chain)
        if not self._since.is_empty:
            bound = Frontier.at(min(self._since.time + 1, MAX_TIME))
            while at > 0 and not self._chain[at - 1].upper.precedes_or_equal(bound):
                at -= 1
        return at

    def _not_looked_at(self) -> _Link | None:
        """A batch at rest with several times, some of which since has passed after it was last looked at."""
        for link in self._chain:
            batch = link.parts[0]
            told = batch.description
            known = Frontier.join(told.since, link.looked)
            if (
                link.merger is None
                and len(batch.time_cells) > 1
                and known.precedes(self._since)
                and known.precedes(told.upper)
            ):
                return link
        return None

    def _look_at(self, link: _Link) -> int:
        """Rewrite a batch if it is worth it; returns the fuel spent on finding out."""
        link.looked = self._since
        batch = link.parts[0]
        if share_saved(batch, self._since) >= _WORTH:
            at = self._chain.index(link)
            self._chain[at] = _Link(link.parts, Merger(link.parts, self._since, self._allocator))
        return _LOOK_FUEL

    def _pay(self, updates: int) -> None:
        """Give every merge in progress its share of an insertion, and those that begin thereby."""
        budget = max(_INSERT_FUEL_LIMIT, _MOST_FUEL * updates) * max(len(self.batches()), _LONG) // _LONG
        paid: list[_Link] = []
        while budget > 0:
            unpaid = [link for link in self._merges() if link not in paid]
            if not unpaid:
                return
            link = unpaid[0]
            paid.append(link)
            due = budget
            if link.cost > _SMALL_FUEL:
                due = max(_PACE * updates * link.cost // link.updates, _LEAST_FUEL)
            budget -= self._work(link, min(due, budget))

    def _merges(self) -> list[_Link]:
        """The merges in progress, the one that needs least first."""
        merges = [link for link in self._chain if link.merger is not None]
        if len(merges) > 1:
            merges.sort(key=_remaining)
        return merges

    def _work(self, link: _Link, fuel: int) -> int:
        """Spend at most `fuel` on a merge; returns what was spent. If it is done, begin what is then due."""
        assert link.merger is not None
        failpoints.hit("spine.merge")
        used = link.merger.work(fuel)
        self._merged_updates += used
        result = link.merger.result()
        if result is not None:
            # The description may have grown while the merge was on its way.
            description = Description(link.lower, link.upper, result.description.since)
            self._chain[self._chain.index(link)] = _Link([result.with_description(description)])
            self._retired += link.parts
            self._shown = None
            self._begin()
        return used

    def _shorten(self) -> None:
        """Keep the chain within what a page can show, whatever it costs."""
        while len(self.batches()) > MAX_BATCHES:
            if not self._merges() and not self._begin(_WHATEVER, most=1):
                return  # physical compaction forbids it
            self._work(self._merges()[0], _INSERT_FUEL_LIMIT)


def _from(lower: Frontier, description: Description) -> Description:
    return Description(lower, description.upper, description.since)


def _remaining(link: _Link) -> int:
    return 0 if link.merger is None else link.merger.remaining()


def _weight(batch: Batch) -> int:
    """How much a batch counts when it is decided what to merge."""
    diffs = batch.diff_cells
    retractions = len(batch) * int(diffs[0] < 0) if len(diffs) == 1 else int(np.count_nonzero(diffs < 0))
    return max(len(batch), _RETRACTED * retractions)
