"""Temporal filter: rows that pass between two times that they tell themselves.

An update at t of a row that passes from `first` to `last` is that update at the later of t and first, and its
opposite right after last, if there is such a time; errors alike. What comes later than the round is held
(held.py) until a round reaches it. So the output is complete as far as the input is, and no row, however far
off its end, holds a frontier back. What lies at or beyond `until` never happens and is not held; when the
input has ended, the last round has no end and gives everything.

So that a replica need not hold what is due in years, it may expire: what is due at `expires_at` or later is
not held, and from then on the output is one error that says so, whatever the rows.

Does not: evaluate (mfp.py does), look again at a row when its time comes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

import numpy as np

from clusterd.dataflow.operator import (
    BLOCK_ROWS,
    NO_ERRS,
    Columns,
    Delta,
    OperatorStatistics,
    Round,
    types_of,
)
from clusterd.operators.faults import Faults
from clusterd.operators.held import HeldUpdates
from clusterd.operators.mfp import Spans, Stage, StageSpec
from clusterd.operators.time_tests import FOREVER
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["TemporalOperator"]

_ONE: Final = np.uint64(1)
_EXPIRED: Final = (
    "limit: what a temporal filter gives is not kept from time {} on (expires_at); start a new replica"
)
_LEAST: Final = np.int64(-(1 << 63))  # the one diff whose negative is none


class TemporalOperator:
    """One stage, of which some predicates compare the time, over one input."""

    def __init__(self, spec: StageSpec, columns: Columns, expires_at: int | None = None) -> None:
        """columns: of the input. expires_at: the first time that its output is not right at, if there is one.
        Raises Refusal(`invalid-plan`).
        """
        self._stage = Stage(spec, columns)
        self._expires_at = expires_at
        self.schema: Columns = self._stage.columns
        self._types = types_of(self.schema)
        self._oks = HeldUpdates(self.schema)
        self._errs = HeldUpdates(ERRS_SCHEMA.columns)
        self._round: Round | None = None

    def start(self, round: Round) -> None:
        if self._round is None and self._expires_at is not None:
            self._expire(max(self._expires_at, round.as_of), round.until)
        self._round = round

    def _expire(self, time: int, until: int | None) -> None:
        if until is not None and time >= until:
            return
        faults = Faults()
        faults.change(time, None, _EXPIRED.format(self._expires_at))
        for _ in self._errs.insert(faults.take()):
            pass

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        oks, errs = self._stage.over_time(delta.oks)
        settled = yield from self._settle(oks, self._oks)
        failed = NO_ERRS if errs is None else (yield from self._settle(errs, self._errs))
        if len(delta.errs):
            failed = Updates.concat([failed, delta.errs])
        yield from self._blocks(settled)
        yield from self._error_blocks(failed)

    def finish(self) -> Iterator[Delta]:
        limit = self._current.limit
        for updates in self._oks.release(limit):
            yield Delta.of(updates)
        for updates in self._errs.release(limit):
            yield Delta(Updates.empty(self._types), updates)

    def statistics(self) -> OperatorStatistics:
        held = self._oks, self._errs
        return OperatorStatistics(
            sum(map(len, held)), sum(each.nbytes for each in held), sum(each.touched for each in held)
        )

    def close(self) -> None:
        self._oks.clear()
        self._errs.clear()

    @property
    def _current(self) -> Round:
        if self._round is None:
            raise InvariantViolation("a temporal filter works within a round")
        return self._round

    def _settle(self, spans: Spans, held: HeldUpdates) -> Generator[Delta, None, Updates]:
        """What `spans` say of this round; what they say of later ones is held."""
        changes = _changes(spans)
        ends = [end for end in (self._current.until, self._expires_at) if end is not None]
        if ends:
            changes = changes.filter(changes.times < np.uint64(min(ends)))
        due = self._current.contains(changes.times)
        if due.all():
            return changes
        for _ in held.insert(changes.filter(~due)):
            yield Delta.empty(self._types)
        return changes.filter(due)

    def _blocks(self, updates: Updates) -> Iterator[Delta]:
        for lo in range(0, len(updates), BLOCK_ROWS):
            yield Delta.of(updates.slice(lo, min(lo + BLOCK_ROWS, len(updates))))

    def _error_blocks(self, updates: Updates) -> Iterator[Delta]:
        for lo in range(0, len(updates), BLOCK_ROWS):
            part = updates.slice(lo, min(lo + BLOCK_ROWS, len(updates)))
            yield Delta(Updates.empty(self._types), part)


def _changes(spans: Spans) -> Updates:
    """Spans as updates: each when it begins, and its opposite when it is over."""
    ending = np.flatnonzero(spans.last != FOREVER)
    begun = Updates(spans.updates.columns, spans.first, spans.updates.diffs)
    if not len(ending):
        return begun
    over = spans.updates.take(ending)
    over = Updates(over.columns, spans.last.take(ending) + _ONE, -over.diffs)
    least = np.flatnonzero(over.diffs == _LEAST)
    if not len(least):
        return Updates.concat([begun, over])
    over.diffs[least] = ~_LEAST  # and the one that is left
    rest = over.take(least)
    return Updates.concat([begun, over, Updates(rest.columns, rest.times, np.ones(len(least), np.int64))])
