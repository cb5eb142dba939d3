"""The shell of a worker: waits for descriptors, feeds the core, performs what it asks for. The only wait.

A turn: read the pipe and the shards' notices, perform; write; then one piece of each kind of work that is
there (a chunk of rounds, pieces of scans, or, if nothing else is to do, merging); then what coalesces goes
out if the pipe is clear. So a command waits for one turn at most (R11), and a read by key is answered in the
turn that reads it. With no work the wait has no timeout: an idle worker is woken by nothing. The one timer
runs while superseded names or unused snapshots wait for their time, or a parked peek for its limit, after
which it is gone.

Nothing here blocks on writing, and nothing is decided: the order of effects is the core's.

Does not: judge, know roles beyond which parts are there.
"""

from __future__ import annotations

import gc
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from clusterd import exit_codes, internal
from clusterd.config import DEFAULTS
from clusterd.events import FailpointRefused, emit
from clusterd.functions import load_functions
from clusterd.introspection.collect_worker import Collector
from clusterd.introspection.page import ProgressPage
from clusterd.introspection.progress import Progress
from clusterd.link import FrameLink
from clusterd.operators.kernels import warm
from clusterd.process import ComputeRuntimeRole, WorkerSpec
from clusterd.runtime import effects as fx
from clusterd.runtime.core import RuntimeCore, RuntimePolicy
from clusterd.runtime.dataflows import RESOURCES, Dataflows
from clusterd.runtime.deadlines import Deadlines
from clusterd.runtime.evaluate import ErrorResponse, Readable, Stashing, answer_point, evaluate_pieces
from clusterd.runtime.interactive import Interactive
from clusterd.runtime.limits import Limits
from clusterd.runtime.maintenance import Maintenance
from clusterd.runtime.meter import Meter
from clusterd.runtime.observing import Observing
from clusterd.runtime.owned import OwnedIndexes
from clusterd.runtime.peeks import PeekState, PendingPeek
from clusterd.runtime.ports import WorkerPorts
from clusterd.runtime.published import PublishedIndexes
from clusterd.runtime.rehearsal import rehearse
from clusterd.runtime.scans import Scan, Scans
from clusterd.runtime.stash import Stash, Stashes
from clusterd.runtime.views import StoredRows, out_of_reach
from clusterd.storage.copy_out import sweep_copies
from clusterd.storage.store import Store
from controller_proto.command import Peek
from controller_proto.errors import Refusal
from controller_proto.response import PeekError, PeekResponse
from shm_arrangements import failpoints
from shm_arrangements.errors import InvariantViolation

__all__ = ["WorkerLoop", "run_worker"]

_IN, _OUT = select.POLLIN, select.POLLOUT
_FRAMES_A_FLUSH = 16  # answers to a burst go out in parts, so the first need not wait for the last
_MERGE_FUEL = 1 << 17  # updates a turn of merging that nobody waits for: some 10 ms
_READ_CHUNK_S = 0.004  # a turn of the interactive runtime: what a read by key may wait for others' work
_READ_MERGE_FUEL = 1 << 15  # of it too
_SCAN_PIECE_ROWS = 1 << 15
_SCAN_PAUSE_BYTES = 1 << 20  # of answers in the pipe's queue, which a read by key has to wait behind


class WorkerLoop:
    """One worker's parts and its turns."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        config = spec.config.worker
        self._role = spec.role.value
        reads = spec.role in (ComputeRuntimeRole.INTERACTIVE, ComputeRuntimeRole.INTROSPECTION)
        store = None if spec.data_dir is None else Store.open(spec.data_dir, keep=False)
        self.core = RuntimeCore(_policy_of(spec), WorkerPorts(store))
        self.owned = OwnedIndexes(spec.instance, _writer_of(spec))
        self.published = PublishedIndexes(spec.instance) if reads else None
        chunk_s = min(config.chunk_s, _READ_CHUNK_S) if reads else config.chunk_s
        self.dataflows = Dataflows(
            self.owned, self.published, store, chunk_s=chunk_s, clock=time.perf_counter
        )
        self._chunk_s = chunk_s
        self._scan_s = chunk_s / 2
        self._view_s = chunk_s / 4
        self._merge_fuel = _READ_MERGE_FUEL if reads else _MERGE_FUEL
        self._validate = spec.config.validate
        self._scans = Scans()
        self.scan_pieces = 0  # ever
        self._stashes = Stashes(None if store is None else store.data_dir)
        self._waits = Deadlines(lambda p: p.state is PeekState.PARKED, lambda p: p.peek.wait_s)
        self._runs = Deadlines(self._is_evaluated, lambda p: p.peek.limits.run_s)
        self._message_bytes = spec.config.mux.max_frame_bytes
        self._link = FrameLink(spec.mux.fileno())
        self._poll = select.poll()
        self._tail_fd = -1
        self._mask = _IN
        self._due: float | None = None  # when something is to be reclaimed
        self._leaving = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(internal.ToWorker).decode
        self.meter = Meter(time.perf_counter_ns)
        self._collector = Collector(spec.name, self._role)
        self._progress: Progress | None = None
        if spec.ring is not None and spec.role is not ComputeRuntimeRole.INTROSPECTION:
            page = ProgressPage(spec.instance, spec.name)
            self._progress = Progress(page, spec.ring.fileno(), self.sample, time.monotonic, time.thread_time)
        self._configure(fx.Configure({}))
        self._perform: dict[type, Callable[[Any], fx.Event | None]] = {
            fx.Send: self._send,
            fx.Evaluate: self._evaluate,
            fx.ReadPage: self._read_page,
            fx.Parked: self._park,
            fx.SendPart: lambda effect: self._stashes.ask((effect.session, effect.uuid)),
            fx.Abandon: self._abandon,
            fx.Build: self.dataflows.build,
            fx.StartRound: self.dataflows.start,
            fx.CloseGraph: lambda effect: self.dataflows.close(effect.number),
            fx.CloseIndex: lambda effect: self.owned.close(effect.key),
            fx.CloseView: lambda effect: self.dataflows.views.close(effect.key),
            fx.PermitWrites: lambda effect: self.dataflows.views.permit(effect.key),
            fx.SetCompaction: self._set_compaction,
            fx.Forget: self._forget,
            fx.WatchShard: self._watch,
            fx.UnwatchShard: lambda effect: self.dataflows.unwatch(effect.name),
            fx.Configure: self._configure,
            fx.ArmFailpoint: self._arm,
            fx.Leave: self._leave,
        }

    def run(self) -> int:
        """Serve until told to stop, or until the multiplexer is gone. Returns the exit code."""
        self.start()
        while not self._leaving:
            self.turn()
            if self._link.ended:
                return exit_codes.PROCESS_DIED  # the supervisor knows who went first
        self.close()
        return exit_codes.STOPPED

    def start(self) -> None:
        """Take away what killed ones were copying or making; say that commands are welcome: to the
        multiplexer, then to the supervisor.
        """
        if self.published is None and self.dataflows.store is not None:
            sweep_copies(self.dataflows.store.data_dir)
            self.dataflows.store.place.sweep()
        os.set_blocking(self._link.fd, False)
        self._poll.register(self._link.fd, _IN)
        self._link.send(self._encode(internal.Ready()))
        self._spec.control.send_bytes(b"ready")

    def close(self) -> None:
        """Release everything: names unlinked, pages CLOSED, descriptors closed. Flushes what was said."""
        self._link.flush()
        self._scans.clear()
        self._stashes.clear()
        if self._progress is not None:
            self._progress.close()
        self.dataflows.close_all()
        self.owned.close_all()
        if self.published is not None:
            self.published.close()

    # -- a turn

    def turn(self) -> None:
        """Wait for something, unless there is work; take it in; do a piece of the work, and say so."""
        does_something = self.has_work
        does_something |= self._wait()
        if not self._link.ended and not self._leaving:
            self.work()
        if self._progress is not None:
            if does_something:
                self._progress.note()
            self._progress.tell()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What is waited for."""
        return (self._link.fd,) if self._tail_fd < 0 else (self._link.fd, self._tail_fd)

    @property
    def has_work(self) -> bool:
        return (
            self._may_scan
            or self._may_tell
            or self._may_send_part
            or self.dataflows.has_work
            or self.dataflows.views.has_work
            or self.dataflows.may_look_again
            or self.owned.can_merge
        )

    @property
    def _may_scan(self) -> bool:
        """Whether a scan can go on: its answer would not pile up behind others that nobody takes."""
        return self._scans.has_turn and self._link.out_bytes <= _SCAN_PAUSE_BYTES

    @property
    def _may_tell(self) -> bool:
        """Whether a subscription can go on: an answer of somebody else would not wait behind what it told."""
        return self.dataflows.has_told and self._link.out_bytes <= _SCAN_PAUSE_BYTES

    @property
    def _may_send_part(self) -> bool:
        """Whether a part of a large answer can go: a read by key would not wait behind many of them."""
        return self._stashes.has_asked and self._link.out_bytes <= _SCAN_PAUSE_BYTES

    def timeout_ms(self) -> int | None:
        """How long to wait: 0 with work to do, None if nothing is due."""
        if self.has_work:
            return 0
        told = None if self._progress is None else self._progress.due_s
        nexts = (self._due, self._waits.next_s(), self._runs.next_s(), told)
        due = [due for due in nexts if due is not None]
        waits_s = [] if not due else [min(due) - time.monotonic()]
        if (retry_in_s := self.dataflows.retry_in_s) is not None:
            waits_s.append(retry_in_s)
        if not waits_s:
            return None
        return max(0, int(min(waits_s) * 1000) + 1)

    def _wait(self) -> bool:
        """Whether there was anything to take in."""
        mask = _IN | (_OUT if self._link.wants_write else 0)
        if mask != self._mask:
            self._mask = mask
            self._poll.modify(self._link.fd, mask)
        self._follow_tail()
        ready = self._poll.poll(self.timeout_ms())
        for fd, seen in ready:
            if fd == self._tail_fd:
                for moved in self.dataflows.drain_tail():
                    self.feed(moved)
            elif fd != self._link.fd:
                self.on_other(fd)
            elif seen & ~_OUT:
                self.read()
        return bool(ready)

    def on_other(self, fd: int) -> None:
        """A descriptor that a kind of worker waits for of its own accord."""
        raise InvariantViolation("a descriptor that nobody waits for", fd=fd)

    def sample(self) -> bytes:
        """What this worker says of itself."""
        sample = self._collector.collect(self)
        if self._collector.has_more and self._progress is not None:
            self._progress.note()
        return sample

    def read(self) -> None:
        """Take in what the pipe has, once."""
        began_ns = self.meter.clock()
        for number, frame in enumerate(self._link.on_readable()):
            self.feed(self._decode(frame))
            if self._leaving:
                return
            if number % _FRAMES_A_FLUSH == _FRAMES_A_FLUSH - 1:
                self._flush()
        self.meter.step("read", began_ns)

    def _flush(self) -> None:
        self._link.flush()
        if not self._link.out_bytes:
            self.meter.flushed()

    def work(self) -> None:
        """One piece of each kind of work that there is, and what coalesced."""
        self._flush()
        step, clock = self.meter.step, self.meter.clock
        budget_s = self._chunk_s  # R11: of the turn, not of each kind of work
        if self._may_scan:
            began_ns = clock()
            self._scan(time.perf_counter() + self._scan_s)
            budget_s -= self._scan_s
            step("scan", began_ns)
        if self._may_tell:
            began_ns = clock()
            self.feed(self.dataflows.tell())
            step("tell", began_ns)
        if self._may_send_part:
            began_ns = clock()
            self._send_part()
            step("tell", began_ns)
        if self.dataflows.views.has_work:
            began_ns = clock()
            for stalled in self.dataflows.views.step(self._view_s):
                self.feed(stalled)
            budget_s -= self._view_s
            step("view", began_ns)
        if self.dataflows.has_work:
            began_ns = clock()
            for done in self.dataflows.step(budget_s):
                self.feed(done)
            step("round", began_ns)
        elif self.owned.can_merge and not self._scans.has_turn:
            began_ns = clock()
            self.owned.merge(self._merge_fuel)
            step("merge", began_ns)
        for seen in self.dataflows.look_again():
            self.feed(seen)
        self._reclaim()
        self._flush()  # the answers of this turn: what is left of them wakes the next one, and the news
        if self.core.has_news and not self._link.out_bytes:
            self.feed(fx.Flush(time.time_ns() // 1000))
            self._link.flush()

    def _send_part(self) -> None:
        name, message, is_last = self._stashes.tell()
        if is_last:
            self._scans.end(name)
            self.meter.answered(self.core.state.peeks[name], "rows")
        self.feed((fx.Evaluated if is_last else fx.PartTaken)(*name, message))

    def _reclaim(self) -> None:
        now = time.monotonic()
        for pending, limit_s in self._waits.take_due(now):
            self.feed(fx.WaitedOut(pending, limit_s))
        for pending, limit_s in self._runs.take_due(now):
            self._run_out(pending, limit_s)
        self._due = self.owned.reclaim(now)
        if self.published is not None:
            due = self.published.let_go_idle(now)
            if due is not None:
                self._due = due if self._due is None else min(due, self._due)

    def _scan(self, until: float) -> None:
        """Pieces of scans in turn, one at least."""
        while self._may_scan:
            name, scan = self._scans.next()
            pending = self.core.state.peeks[name]
            self.meter.began(pending)
            self.scan_pieces += 1
            try:
                next(scan)
            except StopIteration as end:
                if isinstance(end.value, Stash):
                    self._scans.rest(name)
                    self._stashes.add(name, end.value)
                    self.meter.stashed(pending)
                    self.feed(fx.Stashed(*name))
                else:
                    self._scans.end(name)
                    self.meter.answered(pending, _result(end.value))
                    self.feed(fx.Evaluated(*name, end.value))
            else:
                pending.rows_visited += _SCAN_PIECE_ROWS
            if time.perf_counter() >= until:
                return

    # -- events and effects

    def feed(self, event: fx.Event) -> None:
        """Give the core an event and perform what follows, before anything else happens."""
        perform = self._perform
        events: deque[fx.Event] | None = None
        while True:
            for effect in self.core.handle(event):
                answer = perform[type(effect)](effect)
                if answer is not None:
                    if events is None:
                        events = deque()
                    events.append(answer)
            if self._validate:
                self.core.validate_state()
            if not events:
                return
            event = events.popleft()

    def _send(self, effect: fx.Send) -> None:
        self._link.queue(self._encode(effect.message))

    def _read_page(self, effect: fx.ReadPage) -> fx.Event:
        if effect.stored is not None:
            return self.dataflows.views.look(effect.key, effect.stored)
        assert self.published is not None
        return self.published.read(effect.key)

    def _readable(self, pending: PendingPeek) -> Readable | StoredRows:
        key = pending.collection
        if key in self.dataflows.views:
            return self.dataflows.views.readable(key)
        if key in self.owned:
            return self.owned.readable(key)
        assert self.published is not None
        return self.published.readable(key, time.monotonic())

    def _park(self, effect: fx.Parked) -> None:
        self.meter.parked(effect.pending)
        self._waits.add(effect.pending, time.monotonic())

    def _evaluate(self, effect: fx.Evaluate) -> fx.Event | None:
        """A read by key at once; a scan, or what brings a large answer, later, in pieces, from the snapshot
        of now.
        """
        pending = effect.pending
        self.meter.handed_out(pending)
        response = self._read_at_once(effect)
        if response is None:
            return None
        self.meter.answered(pending, _result(response))
        return fx.Evaluated(pending.session, pending.uuid, response)

    def _read_at_once(self, effect: fx.Evaluate) -> bytes | None:
        """The encoded PeekResponse; None if it takes a scan, which is begun."""
        pending = effect.pending
        peek = pending.peek
        try:
            index = self._readable(pending)
        except RESOURCES as error:
            hint = "free shared memory, or read less at once"
            return self._unreadable(pending, PeekError("limit", str(error), hint))
        except Refusal as refusal:
            return self._unreadable(pending, PeekError(refusal.code, refusal.message, refusal.hint))
        except OSError as error:
            return self._unreadable(pending, out_of_reach(pending.collection[0], error))
        if isinstance(index, Readable):
            told = answer_point(
                peek, effect.time, index, limit_bytes=self._least_limit_bytes, served_by=self._role
            )
            if told is not None:
                return told
        else:
            pending.path = "shard"
        if peek.keys is not None and len(peek.keys) <= _SCAN_PIECE_ROWS:
            scan = self._scan_of(peek, effect.time, index)
            try:
                next(scan)
                next(scan)  # beyond the one piece of the lookup: the answer is large
            except StopIteration as end:
                response: bytes = end.value
                return response
            scan.close()
        self._scans.add((pending.session, pending.uuid), self._scan_of(peek, effect.time, index))
        self._runs.add(pending, time.monotonic())
        return None

    def _is_evaluated(self, pending: PendingPeek) -> bool:
        """Whether it is evaluated in pieces, and its answer not made."""
        return pending.state is PeekState.READY and self._scans.works((pending.session, pending.uuid))

    def _run_out(self, pending: PendingPeek, limit_s: float) -> None:
        """Answer a peek that is evaluated for too long."""
        self._abandon(fx.Abandon(pending.session, pending.uuid))
        name = "limits.run_s" if limit_s == pending.peek.limits.run_s else "run_limit"
        why = f"{pending.peek.id} was read for {limit_s:g} s, which is {name}, and there is no answer yet"
        told = self._unreadable(pending, PeekError("timeout", why, "read less, or raise the limit"))
        self.meter.answered(pending, "error")
        self.feed(fx.Evaluated(pending.session, pending.uuid, told))

    def _scan_of(self, peek: Peek, time: int, index: Readable | StoredRows) -> Scan:
        if isinstance(index, StoredRows):
            return index.scan(peek, time, self._role, lambda loaded: self._scan_of(peek, time, loaded))
        return evaluate_pieces(
            peek,
            time,
            index,
            limits=self._limits.of(peek.limits),
            served_by=self._role,
            piece_rows=_SCAN_PIECE_ROWS,
            stashing=self._stashing,
        )

    def _unreadable(self, pending: PendingPeek, problem: PeekError) -> bytes:
        """A machine's limit, or a shard that is out of reach, costs this read, not the replica."""
        return ErrorResponse(self._encode(PeekResponse(pending.uuid, problem, served_by=self._role)))

    def _abandon(self, effect: fx.Abandon) -> None:
        name = effect.session, effect.uuid
        scan = self._scans.end(name)
        if scan is not None:
            scan.close()
        self._stashes.drop(name)

    def _set_compaction(self, effect: fx.SetCompaction) -> None:
        self.owned.set_compaction(effect.key, effect.frontier)

    def _forget(self, effect: fx.Forget) -> None:
        self.dataflows.views.close(effect.key)
        if self.published is not None:
            self.published.forget(effect.key)

    def _watch(self, effect: fx.WatchShard) -> fx.Event | None:
        moved = self.dataflows.watch(effect.name)
        self._follow_tail()
        return moved

    def _follow_tail(self) -> None:
        """Wait for the tail that is there: one that was lost is closed, and another made."""
        tail = self.dataflows.tail
        fd = -1 if tail is None else tail.fileno()
        if fd != self._tail_fd:
            if self._tail_fd >= 0:
                self._poll.unregister(self._tail_fd)
            if fd >= 0:
                self._poll.register(fd, _IN)
            self._tail_fd = fd

    def _configure(self, effect: fx.Configure) -> None:
        settings = {**DEFAULTS, **effect.settings}
        self._limits = Limits(
            int(settings["max_result_bytes"]),
            int(settings["max_result_rows"]) or None,
            int(settings["max_rows_read"]) or None,
        )
        stash_bytes = int(settings["stash_result_bytes"])
        self._stashing = Stashing(stash_bytes, self._message_bytes, self._stashes.create)
        least_bytes = min(self._limits.result_bytes, stash_bytes, self._message_bytes)
        self._least_limit_bytes = 0 if self._limits.counts_rows else least_bytes
        self._waits.set_limit(float(settings["wait_limit"]))
        self._runs.set_limit(float(settings["run_limit"]))
        self.dataflows.expires_at = int(settings["expires_at"]) or None

    def _arm(self, effect: fx.ArmFailpoint) -> None:
        try:
            failpoints.arm(effect.name, effect.action)
        except ValueError as error:
            emit(FailpointRefused(name=effect.name, reason=str(error)))

    def _leave(self, effect: fx.Leave) -> None:
        self._leaving = True


def _result(response: bytes) -> str:
    return "error" if isinstance(response, ErrorResponse) else "rows"


def _policy_of(spec: WorkerSpec) -> RuntimePolicy:
    if spec.role is ComputeRuntimeRole.INTROSPECTION:
        return Observing()
    if spec.role is ComputeRuntimeRole.INTERACTIVE:
        return Interactive()
    return Maintenance(interactive_workers=spec.interactive_workers)


def _writer_of(spec: WorkerSpec) -> int:
    """The number of the process among those that write shared memory; the multiplexer counts alike."""
    if spec.role is ComputeRuntimeRole.INTROSPECTION:
        return spec.interactive_workers + 1
    return spec.index + 1 if spec.role is ComputeRuntimeRole.INTERACTIVE else 0


def run_worker(spec: WorkerSpec) -> int:
    """Entry of a worker process: warm up, serve. Returns the exit code."""
    warm.warm()
    if spec.config.functions:
        load_functions(spec.config.functions)
    rehearse(has_functions=bool(spec.config.functions))
    loop = WorkerLoop(spec)
    gc.collect()
    gc.freeze()  # what the start made lives as long as the process
    return loop.run()
