"""Subscription: the end of a dataflow, where its changes are told, in batches that tile time.

A round's updates are consolidated and become one batch `[lower, upper)`, the first from 0 on. As long as
there is an error in the collection, or a sum of multiplicities leaves 64 bits, a batch says so and the
updates are held; the first batch without one carries them all, at the time at which the error went. So the
sum of what was told is the collection, at every upper that was told without an error. Where errors come and
go within a round it is cut into as many batches.

Without a snapshot, what is there at `as_of` is not told; errors of it are.

Does not: encode, send, know who listens or how much he has read, judge whether a count is negative.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round, types_of
from clusterd.operators.consolidation import consolidated
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["ExportSubscribe", "Told"]

_ERRS = RowSpec.of(ERRS_SCHEMA.columns)
_PIECE_TIMES = 256  # at which errors change: some 5 ms
_OVERFLOW = "multiplicity-overflow: a multiplicity leaves 64 bits"


@dataclass(frozen=True, slots=True)
class Told:
    """One batch. parts: its updates, sorted by time. error: `code: message`, and there are no updates then;
    "" if there is none.
    """

    lower: int
    upper: Frontier
    parts: tuple[Updates, ...]
    error: str = ""


class ExportSubscribe:
    """Collects what is to be told of the rows of `columns`; puts nothing out. `take` after each round."""

    def __init__(self, columns: Columns, *, snapshot: bool = True) -> None:
        self.schema = columns
        self._spec = RowSpec.of(columns)
        self._empty = Updates.empty(types_of(columns))
        self._nothing = Delta.of(self._empty)
        self._snapshot = snapshot
        self._oks: list[Updates] = []
        self._errs: list[Updates] = []
        self._held: list[Updates] = []
        self._errors: Counter[str] = Counter()  # by text, in the collection now; none is 0
        self._told: list[Told] = []
        self._round: Round | None = None

    def start(self, round: Round) -> None:
        self._round = round

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        round, oks = self._round, delta.oks
        assert round is not None
        if round.is_first and not self._snapshot:
            oks = oks.filter(oks.times > np.uint64(round.as_of))
        if len(oks):
            self._oks.append(oks)
        if len(delta.errs):
            self._errs.append(delta.errs)
        yield self._nothing

    def finish(self) -> Iterator[Delta]:
        round = self._round
        assert round is not None
        errs, self._errs = self._errs, []
        news, self._oks = self._oks, []
        rows = yield from self._gather(news)
        if rows is None:
            self._held += news
            rows = ()
        if not (errs or self._errors or self._held):
            self._told.append(Told(round.lower, round.upper, rows))
            return
        changes: list[Updates] = []
        for part in consolidated(errs, _ERRS):
            if len(part):
                changes.append(part)
            yield self._nothing
        joined = Updates.concat(rows) if rows else self._empty
        yield from self._cut(round, Updates.concat(_by_time(changes)) if changes else None, joined)

    def take(self) -> list[Told]:
        """The batches of the rounds since the last time, in order."""
        told, self._told = self._told, []
        return told

    @property
    def owes(self) -> bool:
        """Whether updates are held until an error is gone."""
        return bool(self._held)

    def statistics(self) -> OperatorStatistics:
        """What is held while there is an error, or until a round is over."""
        held = [*self._held, *self._oks]
        return OperatorStatistics(sum(map(len, held)), sum(each.nbytes for each in held))

    def close(self) -> None:
        self._oks, self._errs, self._held, self._told = [], [], [], []

    def _gather(self, blocks: Sequence[Updates]) -> Generator[Delta, None, tuple[Updates, ...] | None]:
        """Consolidated, in pieces, sorted by time; None if a multiplicity leaves 64 bits."""
        parts: list[Updates] = []
        try:
            for part in consolidated(blocks, self._spec):
                parts.append(part)
                yield self._nothing
        except MultiplicityOverflow:
            return None
        return _by_time(parts)

    def _cut(self, round: Round, changes: Updates | None, rows: Updates) -> Iterator[Delta]:
        """Tell a round at which something is held, or errors change: cut where they do."""
        starts = sorted({round.lower, *(() if changes is None else changes.times.tolist())})
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
            if number % _PIECE_TIMES == 0:
                yield self._nothing
            if changes is not None:
                self._take_errors(changes, start)
            lo = int(np.searchsorted(rows.times, np.uint64(start), "left"))
            hi = len(rows) if end is None else int(np.searchsorted(rows.times, np.uint64(end), "left"))
            parts: tuple[Updates, ...] | None = (rows.slice(lo, hi),)
            upper = round.upper if end is None else Frontier.at(end)
            error = self._error()
            if self._held and not error:
                late = [Updates(u.columns, np.full_like(u.times, start), u.diffs) for u in self._held]
                parts = yield from self._gather([*late, rows.slice(lo, hi)])
                error = "" if parts is not None else _OVERFLOW
            if error:
                if lo < hi:
                    self._held.append(rows.slice(lo, hi))
                self._say(Told(start, upper, (), error))
            else:
                assert parts is not None
                self._held = []
                self._say(Told(start, upper, parts))

    def _say(self, told: Told) -> None:
        last = self._told[-1] if self._told else None
        if last is not None and last.error == told.error != "":
            self._told[-1] = Told(last.lower, told.upper, (), told.error)
        else:
            self._told.append(told)

    def _take_errors(self, changes: Updates, time: int) -> None:
        lo = int(np.searchsorted(changes.times, np.uint64(time), "left"))
        hi = int(np.searchsorted(changes.times, np.uint64(time), "right"))
        part = changes.slice(lo, hi)
        for text, diff in zip(part.columns[0].to_pylist(), part.diffs.tolist(), strict=True):
            self._errors[text] += diff
            if not self._errors[text]:
                del self._errors[text]

    def _error(self) -> str:
        """The error to tell now, the least, as a peek would; "" if there is none."""
        if not self._errors:
            return ""
        found = [text for text, count in self._errors.items() if count > 0]
        return min(found) if found else "invalid-data: an error was retracted more often than made"


def _by_time(parts: Sequence[Updates]) -> tuple[Updates, ...]:
    """The updates of `parts` sorted by time: as they are if they are, as those of one time, however many."""
    parts = [part for part in parts if len(part)]
    ordered = all(bool((part.times[1:] >= part.times[:-1]).all()) for part in parts)
    if ordered and all(a.times[-1] <= b.times[0] for a, b in itertools.pairwise(parts)):
        return tuple(parts)
    whole = Updates.concat(parts)
    return (whole.take(np.argsort(whole.times, kind="stable")),)
