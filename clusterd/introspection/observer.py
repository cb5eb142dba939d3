"""The observer: the process that has the introspection relations, and answers whoever reads them.

It is a worker whose policy reads (runtime/observing.py), and it writes what is read itself: the relations are
indexes of its own, published like any other. Their times are milliseconds since 1970, and all are sealed
together, so that what is joined is of one moment.

Work is done for who looks. A reader's command has the pages read first, unless they just were; and when a
process rings that it has something new they are read again: ten times a second at most as long as anybody
looked lately, or subscribes, and once a second else, for who reads shared memory unasked. So figures are as
old as their page, and a replica that does nothing is not looked at either.

History is short: what is older than HISTORY_MS is let go, but for what parked reads and running queries hold.
To a peek of such a time the relation is as empty as it was before the first sample (I18).

Does not: sample other processes (they do), make rows (relations.py), wait for anybody.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import time
from typing import Final

from msgspec import Raw

from clusterd import internal
from clusterd.convert import updates_from_rows
from clusterd.dataflow.operator import NO_ERRS
from clusterd.events import IntrospectionBehind, emit
from clusterd.introspection.collect_outside import Lookout
from clusterd.introspection.exports import EXPORTS
from clusterd.introspection.keeper import Keeper
from clusterd.introspection.page import ProgressReader
from clusterd.introspection.progress import PAUSE_S
from clusterd.introspection.relations import RELATIONS
from clusterd.introspection.samples import Samples
from clusterd.operators.kernels import warm
from clusterd.process import WorkerSpec
from clusterd.runtime import effects as fx
from clusterd.runtime.loop import WorkerLoop
from clusterd.runtime.observing import Observing
from clusterd.runtime.peeks import Key
from clusterd.runtime.rehearsal import rehearse
from controller_proto.command import AllowCompaction, CreateDataflow, Peek
from controller_proto.response import PeekResponse, PeekRows
from shm_arrangements.errors import RegistryFull, ShmExhausted
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import advance_idle

__all__ = ["HISTORY_MS", "Observer", "run_observer"]

HISTORY_MS: Final = 10_000
_COMPACT_MS: Final = 1_000
_LATELY_S: Final = 10.0  # how long after a read its reader is taken to look on
_UNWATCHED_S: Final = 1.0
_FRESH_S: Final = 0.05  # so old what was read may be when it is asked for: a ring comes soon
_COST: Final = 4  # times what a reading takes, at least, until a ring has the next one made


class Observer(WorkerLoop):
    """The worker's turns, with the relations kept in between."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self._keys: list[Key] = []
        assert isinstance(self.core.policy, Observing)
        for export in EXPORTS.values():
            self._keys.append((export.id, 1))
            self.owned.create((export.id, 1), export, 0)
        self.core.policy.adopt(self.core, zip(self._keys, EXPORTS.values(), strict=True))
        names = [f"interactive/{index}" for index in range(spec.interactive_workers)]
        names += ["maintenance/0" if names else "solo/0", "mux", "supervisor"]
        self._pages = [ProgressReader(spec.instance, name) for name in names]
        self._samples = Samples()
        self._lookout = Lookout(spec.instance)
        self._keeper = Keeper(RELATIONS)
        self._bell = spec.ring.fileno()
        os.set_blocking(self._bell, False)
        self._poll.register(self._bell, select.POLLIN)
        self._rung = False
        self._read_s = 0.0  # when the pages were read last
        self._pause_s = PAUSE_S  # until a ring may have them read again
        self._looked_s = -_LATELY_S
        self._time = 0  # the newest sealed one
        self._compacted = 0
        self._is_behind = False

    def rehearse(self) -> None:
        """Read the pages that are there, as the first reader will have it done: ten times as fast then."""
        self._read_pages()

    # -- when

    def feed(self, event: fx.Event) -> None:
        if isinstance(event, internal.Run) and isinstance(event.command, Peek | CreateDataflow):
            self._looked_s = now_s = time.monotonic()
            if now_s >= self._read_s + _FRESH_S:
                self._read_pages()
            if isinstance(event.command, Peek) and self._is_before_history(event.command):
                self._answer_nothing(event.session, event.command)
                return
        super().feed(event)

    def _is_before_history(self, peek: Peek) -> bool:
        return peek.time is not None and peek.time < self._compacted and (peek.id, 1) in self._keys

    def _answer_nothing(self, session: int, peek: Peek) -> None:
        relation, finishing = RELATIONS[self._keys.index((peek.id, 1))], peek.finishing
        width = len(relation.columns.columns) + len(finishing.maps)
        if finishing.projection is not None:
            width = len(finishing.projection)
        nothing = PeekRows(((),) * width, ())
        response = PeekResponse(peek.uuid, nothing, time=peek.time, served_by=self._role)
        self._link.queue(self._encode(internal.Answer(session, peek.uuid, Raw(self._encode(response)))))

    def work(self) -> None:
        if self._rung and time.monotonic() >= self._due_s:
            self._read_pages()
        super().work()

    def timeout_ms(self) -> int | None:
        timeout = super().timeout_ms()
        if not self._rung:
            return timeout
        due = max(0, int((self._due_s - time.monotonic()) * 1000) + 1)
        return due if timeout is None else min(due, timeout)

    @property
    def _due_s(self) -> float:
        """When the pages are to be read again, if it rang."""
        is_watched = time.monotonic() < self._looked_s + _LATELY_S or any(
            dataflow.is_subscription and not dataflow.ended for dataflow in self.core.state.dataflows.values()
        )
        return self._read_s + (self._pause_s if is_watched else max(self._pause_s, _UNWATCHED_S))

    def on_other(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(fd, 4096):
                self._poll.unregister(fd)  # everybody is gone
            self._rung = True

    # -- what

    def _read_pages(self) -> None:
        """Take every new sample, and seal the relations with what they say now."""
        began_s = time.monotonic()
        self._rung = False
        try:
            self._take_samples()
            self._time = max(self._lookout.look(self._samples).now_ms, self._time + 1)
            self._tell(Frontier.at(self._time + 1))
            self._is_behind = False
        except (ShmExhausted, RegistryFull, OSError) as error:  # no memory, or no descriptor
            self._rung = True  # what was not told is told by a later reading
            if not self._is_behind:
                self._is_behind = True
                emit(IntrospectionBehind(reason=str(error)))
        for key in self._keys:
            self.feed(internal.Look(*key))
        if self._time >= self._compacted + _COMPACT_MS + HISTORY_MS:
            self._compacted = self._time - HISTORY_MS
            for id, incarnation in self._keys:
                allow = AllowCompaction(0, id, (self._compacted,))
                self.feed(internal.Run(0, allow, {id: incarnation}))
        self._read_s = time.monotonic()
        self._pause_s = max(PAUSE_S, _COST * (self._read_s - began_s))

    def _take_samples(self) -> None:
        for page in self._pages:
            sample = page.take()
            if sample is not None:
                self._samples.take(sample)
        self._samples.take(self.sample())

    def _tell(self, upper: Frontier) -> None:
        for place, changed in self._keeper.differences(self._samples, self._lookout.seen):
            key = self._keys[place]
            rows, diffs = zip(*changed, strict=True)
            updates = updates_from_rows(RELATIONS[place].columns, rows, self._time, diffs)
            self.owned[key].insert(updates, NO_ERRS, upper)
            self.owned.moved(key)
        advance_idle((self.owned[key] for key in self._keys), upper)

    def _send(self, effect: fx.Send) -> None:
        """What is applied here holds nothing back elsewhere: it is the writer's word to let go."""
        if isinstance(effect.message, internal.Applied):
            key = effect.message.id, effect.message.incarnation
            self.owned.set_compaction(key, Frontier.from_wire(effect.message.frontier))
        else:
            super()._send(effect)

    def close(self) -> None:
        for page in self._pages:
            page.close()
        super().close()


def run_observer(spec: WorkerSpec) -> int:
    """Entry of the process. Returns the exit code."""
    warm.warm()
    rehearse(has_functions=False)
    loop = Observer(spec)
    loop.rehearse()
    gc.collect()
    gc.freeze()
    return loop.run()
