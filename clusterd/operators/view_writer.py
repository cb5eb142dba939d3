"""ViewWriter: keeps a shard equal to a collection, by writing the difference between the two.

It knows two things: what should be in the shard, up to how far the dataflow has computed (`offer`), and what
is in it, up to how far the shard was read back. The difference (corrections.py) is appended, from the shard's
upper to what is computed, by comparing and setting that upper. Why the shard is right whoever wrote: an
append is made only of a difference taken when the shard was known up to exactly the upper that the append
expects; who loses learns of it, reads what the other wrote, and takes the difference anew. After a restart
the difference is empty for what was written before, so nothing is there twice. Writers that compute the same
write the same; of others each corrects the one before.

Nothing is written without permission, which is given once; without it what is stored is followed all the
same. An upper moves even if nothing has changed. Times between the shard's upper and `as_of`, of which the
collection knows nothing, hold an error that says so.

Work goes in pieces (`step`); an append ends with the commit of the catalog, which waits for the disk. Where
the shard cannot be read or written (no room, a lock of others) a step says so and has lost nothing: what it
took is put back, and the next looks anew what is stored. So it is right as well if nobody knows whether a
commit took place. What a failed append left, or a writer that was killed, is swept before the next one.

Does not: wait for news (`moved` tells it), decide when to compute or when to try again, hold the shard's
since: what is compacted beyond what it has read cannot be told apart any more, and ends the view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import numpy as np

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, OperatorStatistics
from clusterd.operators.corrections import Corrections
from controller_proto.errors import Refusal
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["PiecewiseAppend", "StoredCollection", "Unwritable", "ViewWriter"]


class Unwritable(Refusal):
    """What is in the shard cannot be told any more: no later step can do better."""


class PiecewiseAppend(Protocol):
    """One append, as storage/appending.py has it."""

    def add(self, updates: Updates) -> None: ...

    def add_errors(self, updates: Updates) -> None: ...

    def commit(self, expected_upper: Frontier, new_upper: Frontier) -> None:
        """Raises Refusal: `upper-mismatch` if another writer was faster; OSError."""

    def abandon(self) -> None: ...


class StoredCollection(Protocol):
    """What a writer needs of a shard (storage/shard.py). All raise Refusal, OSError."""

    @property
    def specs(self) -> Columns: ...

    @property
    def upper(self) -> Frontier:
        """As of now."""

    @property
    def since(self) -> Frontier:
        """As of now."""

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]: ...

    def read_errors(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]: ...

    def begin(self) -> PiecewiseAppend: ...

    def sweep(self) -> object:
        """Remove what failed appends left."""


class ViewWriter:
    """One view's. name: for messages. as_of: of the dataflow that computes it."""

    def __init__(self, name: str, shard: StoredCollection, as_of: int) -> None:
        self.name = name
        self.columns: Columns = shard.specs
        self._shard = shard
        self._as_of = as_of
        self._oks = Corrections(shard.specs)
        self._errs = Corrections(ERRS_SCHEMA.columns)
        self._offered: deque[tuple[Frontier, Sequence[Delta]]] = deque()
        self._wanted = Frontier.minimum()  # how far what should be there is known
        self._stored: Frontier | None = None  # how far what is there is known
        self._may_write = False
        self._look = True  # the shard may have moved since it was read
        self._is_swept = False
        self._work: Generator[None, None, None] | None = None
        self._closed = False

    def permit(self) -> None:
        """Writing is allowed from now on."""
        self._may_write = True

    def moved(self) -> None:
        """The shard may have a new upper."""
        self._look = True

    def offer(self, upper: Frontier, deltas: Sequence[Delta]) -> None:
        """The collection changes by `deltas`, at times since the last offer, and is known up to `upper`."""
        if not self._closed:
            self._offered.append((upper, deltas))

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something. Nothing is to do before the first offer."""
        if self._work is not None or self._offered:
            return True
        return not self._closed and self._wanted != Frontier.minimum() and (self._look or self._can_write)

    @property
    def is_busy(self) -> bool:
        """Whether the last step began what is not over."""
        return self._work is not None

    def step(self) -> None:
        """A piece of work: some milliseconds, or a commit.

        Raises Refusal, OSError: of the shard. A later step tries again, but after Unwritable.
        """
        if self._work is None:
            self._work = self._round()
        try:
            if next(self._work, self) is self:
                self._work = None
        except (Refusal, OSError):
            self._work = None
            self._look = True
            raise

    def statistics(self) -> OperatorStatistics:
        """What is kept: corrections, and what was offered and is not among them yet."""
        waiting = [delta for _, deltas in self._offered for delta in deltas]
        rows = len(self._oks) + len(self._errs) + sum(map(len, waiting))
        nbytes = self._oks.nbytes + self._errs.nbytes
        return OperatorStatistics(rows, nbytes + sum(d.oks.nbytes + d.errs.nbytes for d in waiting))

    def close(self) -> None:
        """Write no more, and let go of everything."""
        self._closed = True
        if self._work is not None:
            self._work.close()  # abandons an append that was begun
        self._work = None
        self._offered.clear()
        self._oks.clear()
        self._errs.clear()

    @property
    def _can_write(self) -> bool:
        return self._may_write and self._stored is not None and self._stored.precedes(self._wanted)

    def _round(self) -> Generator[None, None, None]:
        if self._look:
            self._look = False
            try:
                yield from self._read_back()
            except (Refusal, OSError):
                yield from self._absorb()  # it may last, and what is held takes less memory
                raise
        yield from self._absorb()
        if self._can_write:
            yield from self._write()

    def _absorb(self) -> Iterator[None]:
        while self._offered:
            upper, deltas = self._offered.popleft()
            for delta in deltas:
                yield from self._oks.want(delta.oks)
                yield from self._errs.want(delta.errs)
            self._wanted = upper

    def _read_back(self) -> Iterator[None]:
        """Take off what others wrote since the shard was read; at first, all that is there."""
        before, found = self._stored, self._shard.upper
        if found == before:
            return
        if before is not None and before.time and not self._shard.since.precedes(before):
            raise Unwritable(
                "below-since",
                f"the shard was compacted to {self._shard.since}, and {self.name} had read it up to {before}",
                "drop the view and create it anew; keep a hold on the shards of views",
            )
        floor = found if found.is_empty else Frontier.at(max(found.time, self._as_of))
        lower = 0 if before is None else before.time
        halves = (self._oks, self._shard.read), (self._errs, self._shard.read_errors)
        opened: list[tuple[Corrections, Iterator[Updates]]] = []
        if not floor.is_empty:  # a shard that has ended is as it is
            opened = [
                (corrections, read(lower, found, block_rows=BLOCK_ROWS)) for corrections, read in halves
            ]
        for corrections in (self._oks, self._errs):
            yield from corrections.raise_floor(floor)
        try:
            for corrections, blocks in opened:
                for updates in blocks:
                    yield
                    yield from corrections.stored(updates)
        except OSError as error:  # half is taken off: opened files of a directory do not fail
            message = f"the shard could not be read to its end: {error}"
            raise Unwritable("limit", message, "drop the view and create it anew") from error
        self._stored = found

    def _write(self) -> Iterator[None]:
        """Append the difference up to what is wanted, or learn that the shard has moved."""
        lower, upper = self._stored, self._wanted
        assert lower is not None
        if not self._is_swept:
            self._shard.sweep()
            self._is_swept = True
        oks = yield from self._oks.take(upper)
        errs = yield from self._errs.take(upper)
        problem = yield from self._append(lower, upper, oks, errs)
        if problem is None:
            self._stored = upper
            for corrections in (self._oks, self._errs):
                yield from corrections.raise_floor(upper)
            return
        self._look = True
        yield from self._oks.put_back(oks)
        yield from self._errs.put_back(errs)
        if not isinstance(problem, Refusal) or problem.code != "upper-mismatch":
            self._is_swept = False
            raise problem

    def _append(
        self, lower: Frontier, upper: Frontier, oks: Sequence[Updates], errs: Sequence[Updates]
    ) -> Generator[None, None, Refusal | OSError | None]:
        """Why it did not take place, or perhaps did not; None if it did."""
        append = self._shard.begin()
        try:
            for updates in oks:
                append.add(updates)
                yield
            for updates in errs:
                append.add_errors(updates)
                yield
            if lower.time < self._as_of:
                append.add_errors(self._gap(lower.time))
            append.commit(lower, upper)
        except (Refusal, OSError) as problem:
            return problem
        finally:
            append.abandon()
        return None

    def _gap(self, start: int) -> Updates:
        """The error that stands from `start` up to `as_of`."""
        text = f"below-since: {self.name} was begun at {self._as_of} and tells nothing before"
        column = Column.from_pylist(ColumnType.TEXT, [text, text])
        return Updates((column,), np.array([start, self._as_of], np.uint64), np.array([1, -1], np.int64))
