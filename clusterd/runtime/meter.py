"""The meter: where a worker's time goes, and that of the peeks it answers. The same in every role.

A peek is `parked` until its time is sealed, `queued` until somebody looks, `running` until its answer is
there, `sending` until that has left; a phase that did not happen is not counted. All are counted when the
answer has left, under the collection it read; of collections that are gone what was counted is kept together,
so that no count ever falls. Costs a read by key some 1.5 us.

What is answered without being looked at (refused, canceled, given up) is counted by reads.py.

Does not: take part in any decision, run a timer.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from clusterd.introspection.durations import Durations
from clusterd.introspection.sample import DurationFigures, PeekFigures, Time
from clusterd.runtime.peeks import Key, PeekState, PendingPeek

__all__ = ["Meter"]

_PHASES: Final = ("parked", "queued", "running", "sending", "total")
_GONE: Final[Key] = ("", 0)


class Meter:
    """clock: nanoseconds, of no known beginning."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._steps: dict[str, Durations] = {}
        self._results: dict[tuple[str, str], int] = {}
        self._phases: dict[Key, tuple[Durations, ...]] = {}
        self._sending: list[PendingPeek] = []

    # -- what happens to a peek

    def parked(self, pending: PendingPeek) -> None:
        pending.came_ns = self.clock()

    def handed_out(self, pending: PendingPeek) -> None:
        """Nothing is waited for any more but a turn."""
        pending.ready_ns = now_ns = self.clock()
        if not pending.came_ns:
            pending.came_ns = now_ns

    def began(self, pending: PendingPeek) -> None:
        """It has its first turn, if it had none yet."""
        if not pending.began_ns:
            pending.began_ns = self.clock()

    def stashed(self, pending: PendingPeek) -> None:
        """What it is answered is known, and goes in parts, the last of which is `answered`."""
        pending.ended_ns = self.clock()

    def answered(self, pending: PendingPeek, result: str) -> None:
        """What it is answered is known, but has not left yet."""
        if not pending.ended_ns:
            pending.ended_ns = self.clock()
        name = result, pending.path
        self._results[name] = self._results.get(name, 0) + 1
        self._sending.append(pending)

    def flushed(self) -> None:
        """All answers have left."""
        if not self._sending:
            return
        now_ns = self.clock()
        for pending in self._sending:
            phases = self._phases.get(pending.collection)
            if phases is None:
                phases = self._phases[pending.collection] = tuple(Durations() for _ in _PHASES)
            parked, queued, running, sending, total = phases
            came_ns, ready_ns, ended_ns = pending.came_ns, pending.ready_ns, pending.ended_ns
            if ready_ns > came_ns:
                parked.add(ready_ns - came_ns)
            began_ns = pending.began_ns
            if began_ns:
                queued.add(began_ns - ready_ns)
            else:
                began_ns = ready_ns
            running.add(ended_ns - began_ns)
            sending.add(now_ns - ended_ns)
            total.add(now_ns - came_ns)
        self._sending.clear()

    # -- what a worker does

    def step(self, kind: str, began_ns: int) -> None:
        """A piece of work that began then is over."""
        durations = self._steps.get(kind)
        if durations is None:
            durations = self._steps[kind] = Durations()
        durations.add(self.clock() - began_ns)

    # -- what is told

    def totals(self) -> tuple[tuple[str, str, int], ...]:
        """Results, paths and how many; ever."""
        return tuple((*name, count) for name, count in self._results.items())

    def step_durations(self) -> tuple[DurationFigures, ...]:
        return tuple(_figures(kind, "", durations) for kind, durations in self._steps.items())

    def peek_durations(self, there: Container[Key]) -> tuple[DurationFigures, ...]:
        """By phase and collection. there: the collections that are not gone."""
        for key in [key for key in self._phases if key not in there and key != _GONE]:
            gone = self._phases.setdefault(_GONE, tuple(Durations() for _ in _PHASES))
            for total, durations in zip(gone, self._phases.pop(key), strict=True):
                total.merge(durations)
        return tuple(
            _figures(phase, key[0], durations)
            for key, phases in self._phases.items()
            for phase, durations in zip(_PHASES, phases, strict=True)
            if any(durations.counts)
        )

    def figures(self, pending: PendingPeek, upper: Time, offset_s: float) -> PeekFigures:
        """A peek that is owed an answer. offset_s: from the clock to the time of day."""
        if pending.state is PeekState.PARKED:
            state = "parked"
        elif pending.ended_ns:
            state = "sending"
        else:
            state = "running" if pending.began_ns else "queued"
        return PeekFigures(
            pending.session,
            pending.uuid,
            pending.collection[0],
            "heavy" if pending.peek.keys is None else "point",
            pending.path,
            state,
            pending.time,
            pending.latest,
            upper,
            pending.rows_visited,
            int(pending.came_ns / 1e6 + offset_s * 1e3) if pending.came_ns else 0,
        )


def _figures(of: str, id: str, durations: Durations) -> DurationFigures:
    return DurationFigures(of, id, tuple(durations.counts), durations.total_ns)
