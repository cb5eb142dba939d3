"""RuntimeCore: the mind of a worker, of either role. Events in, effects out; no I/O, no clock.

Why an answer is right: a peek is served at t only when the collection is known to be sealed beyond t, and t
is not below the standing hold, for the peek itself counts in the hold from the moment it is accepted until
its snapshot is taken (effects are performed in order). Why it is answered once: `peeks` is the only place
that says an answer is owed, and who answers takes it out first. Why none is forgotten: a parked peek is
looked at whenever its collection moves, closes or is dropped, and those are all the ways in which it changes.

Commands are judged when they arrive, against what was announced before them, and carried out at once, or, in
initialisation, at InitializationComplete: then everything older is dropped, but for what the new session has
named again and goes on (the multiplexer judges; a worker knows it by its name), and the new commands are
carried out in their order (P11, P12). A refused command leaves no trace but the names it would have made, so
that what refers to them is refused too.

Its parts: state.py (the records), reads.py (peeks), flows.py (dataflows, collections, the hold). What differs
between the roles is the policy's (maintenance.py, interactive.py): who owns, who else holds, how a page of
another process is looked at.

Does not: validate plans or evaluate anything (ports do), write, read or wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from clusterd import internal
from clusterd.runtime import effects as fx
from clusterd.runtime.collection import Collection, Dataflow
from clusterd.runtime.flows import Flows
from clusterd.runtime.holds import HoldStatistics, hold_statistics
from clusterd.runtime.peeks import Key, PeeksStatistics
from clusterd.runtime.reads import Reads
from clusterd.runtime.state import LookStatistics, Policy, Ports, RuntimeState, dropped, unknown
from controller_proto.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    CreateDataflow,
    CreateInstance,
    InitializationComplete,
    Peek,
    Schedule,
    Sync,
    UpdateConfiguration,
)
from controller_proto.dataflow import Export
from controller_proto.errors import Refusal
from controller_proto.ids import GlobalId
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["CoreStatistics", "RuntimeCore", "RuntimePolicy"]


class RuntimePolicy(Policy, Protocol):
    """All that differs between the runtimes: two thin policies, maintenance.py and interactive.py."""

    def message(self, core: RuntimeCore, message: Any) -> None:
        """Carry out a message that only this role gets."""

    def owns(self, core: RuntimeCore, key: Key) -> bool:
        """Whether a command on an unknown collection is this runtime's to refuse."""

    @property
    def has_news(self) -> bool:
        """Whether `flush` would send something."""

    def flush(self, core: RuntimeCore) -> None:
        """The pipe has room: send what was held back."""

    def initialised(self, core: RuntimeCore) -> None:
        """Own dataflows of older sessions were dropped: do so with what else is of older sessions."""


class CoreStatistics(msgspec.Struct, frozen=True):
    """Counts of what is held now, but for `looks`."""

    collections: int
    placeholders: int
    dataflows: int
    deferred: int
    refused: int
    queued: int
    shards: int
    holds: HoldStatistics
    looks: LookStatistics
    peeks: PeeksStatistics


class RuntimeCore:
    """The state machine. `handle` is the only way in; policies use its parts."""

    def __init__(self, policy: RuntimePolicy, ports: Ports) -> None:
        self.policy = policy
        self.state = RuntimeState(policy, ports)
        self.reads = Reads(self.state)
        self.flows = Flows(self.state, self.reads)
        self._initialising = False
        # Of a session in initialisation.
        self._queue: list[internal.Run | internal.Declare | internal.Undeclare] = []
        self._settings: dict[str, Any] = {}
        self._last_dataflow = 0
        self._on: dict[type, Callable[[Any], None]] = {
            internal.Run: self._on_run,
            internal.SessionStart: self._on_session_start,
            internal.SessionEnd: self._on_session_end,
            internal.Hook: lambda hook: self.state.emit(fx.ArmFailpoint(hook.name, hook.action)),
            internal.Stop: lambda _: self.state.emit(fx.Leave()),
            internal.Cut: self.flows.cut,
            fx.RoundDone: self.flows.round_done,
            fx.Progressed: self.flows.progressed,
            fx.Tell: self.flows.told,
            fx.ShardMoved: self.flows.shard_moved,
            fx.Stalled: self.flows.stalled,
            fx.Unwritable: self.flows.unwritable,
            fx.Evaluated: self.reads.evaluated,
            fx.Stashed: self.reads.stashed,
            fx.PartTaken: self.reads.part_taken,
            fx.WaitedOut: self.reads.waited_out,
            internal.Fetch: self.reads.fetch,
            fx.Failed: self.flows.failed,
            fx.Flush: self._on_flush,
        }
        self._judges: dict[type, Callable[[internal.Run, Any], bool]] = {
            Peek: self._judge_peek,
            CancelPeek: self._judge_cancel,
            Sync: self._judge_sync,
            CreateDataflow: self._judge_create,
            Schedule: self._judge_named,
            AllowWrites: self._judge_named,
            AllowCompaction: self._judge_compaction,
            CreateInstance: lambda run, command: True,
            UpdateConfiguration: lambda run, command: True,
            InitializationComplete: self._on_initialization_complete,
        }
        self._appliers: dict[type, Callable[[internal.Run, Any], None]] = {
            CreateDataflow: self._apply_create,
            Schedule: self._apply_schedule,
            AllowWrites: self._apply_writes,
            AllowCompaction: self._apply_compaction,
            UpdateConfiguration: self._apply_configuration,
            Peek: lambda run, command: self.reads.resume(run.session, command.uuid),
        }

    # -- in and out ----------------------------------------------------------------------------------------

    def handle(self, event: fx.Event) -> list[fx.Effect]:
        """Take one event; what is returned is performed in order, before the next event."""
        on = self._on.get(type(event))
        if on is not None:
            on(event)
        else:
            self.policy.message(self, event)
        if self.state.touched:
            self.flows.settle()
        return self.state.take_effects()

    @property
    def has_news(self) -> bool:
        """Whether Flush would send something."""
        return self.flows.has_reports or self.policy.has_news

    def _on_flush(self, flush: fx.Flush) -> None:
        self.policy.flush(self)
        self.flows.send_reports(flush.now_us)

    def statistics(self) -> CoreStatistics:
        collections = self.state.collections.values()
        return CoreStatistics(
            collections=len(self.state.collections),
            placeholders=sum(c.is_placeholder for c in collections),
            dataflows=len(self.state.dataflows),
            deferred=sum(d.is_deferred for d in self.state.dataflows.values()),
            refused=len(self.state.refused),
            queued=len(self._queue),
            shards=self.flows.shards,
            holds=hold_statistics(collections),
            looks=LookStatistics(**self.state.looks),
            peeks=self.state.peeks.statistics(),
        )

    # -- sessions ------------------------------------------------------------------------------------------

    def _on_session_start(self, start: internal.SessionStart) -> None:
        self.reads.end_session(self.state.session)
        self._forget_proposals()
        self.state.refused.clear()
        self.flows.forget_reports()
        self.state.session = start.session
        self._initialising = True

    def _on_session_end(self, end: internal.SessionEnd) -> None:
        self.reads.end_session(end.session)
        if end.session == self.state.session and self._initialising:
            self._forget_proposals()
        for collection in list(self.state.collections.values()):
            if collection.of_reader and collection.session == end.session:
                self.flows.drop(collection)

    def _forget_proposals(self) -> None:
        """What a session collected and never put in force is as if it had not been said."""
        self._queue.clear()
        self.state.proposed.clear()
        for number in [n for n, d in self.state.dataflows.items() if not d.standing]:
            del self.state.dataflows[number]
        for collection in list(self.state.collections.values()):
            if not collection.standing and not collection.is_placeholder:
                self.flows.withdraw(collection)

    def _on_initialization_complete(self, run: internal.Run, command: InitializationComplete) -> bool:
        if run.session != self.state.session or not self._initialising:
            return False
        self._initialising = False
        queue, self._queue = self._queue, []
        self._settings = {}
        for item in queue:
            if isinstance(item, internal.Run) and isinstance(
                item.command, CreateInstance | UpdateConfiguration
            ):
                self._settings.update(item.command.config)
        self.state.expires_at = self._settings.get("expires_at", 0)
        self.state.emit(fx.Configure(dict(self._settings)))  # I13: in force before anything is built
        # The latest first: an importer before what it imports.
        for number in sorted((n for n, d in self.state.dataflows.items() if d.standing), reverse=True):
            for key in list(self.state.dataflows[number].live):
                collection = self.state.collections.get(key)
                if collection is not None and key not in self.state.proposed and not collection.of_reader:
                    self.flows.drop(collection)
        self.policy.initialised(self)
        for item in queue:
            if isinstance(item, internal.Declare | internal.Undeclare):
                self.policy.message(self, item)
            elif not isinstance(item.command, CreateInstance | UpdateConfiguration):
                self._appliers[type(item.command)](item, item.command)
        return False

    # -- commands: judged on arrival -----------------------------------------------------------------------

    def _on_run(self, run: internal.Run) -> None:
        command = run.command
        judge = self._judges.get(type(command))
        if judge is None:
            raise InvariantViolation("a command that no worker gets", command=type(command).__name__)
        try:
            apply = judge(run, command)
        except Refusal as refusal:
            self._refuse(run, refusal)
            return
        if apply:
            if self.defers(run.session):
                self._queue.append(run)
            else:
                self._appliers[type(command)](run, command)

    def defers(self, session: int) -> bool:
        """Whether effects of the session wait for InitializationComplete."""
        return self._initialising and session == self.state.session

    def enqueue(self, message: internal.Declare | internal.Undeclare) -> None:
        self._queue.append(message)

    def _refuse(self, run: internal.Run, refusal: Refusal) -> None:
        message = internal.Refusal(run.session, run.command.seq, refusal.code, refusal.message, refusal.hint)
        self.state.emit(fx.Send(message))

    def _named(self, run: internal.Run, id: GlobalId) -> Collection | None:
        """The collection a command names; None if it is another runtime's to refuse. Raises Refusal."""
        key = _key(run, id)
        found = self.state.find(key, run.session)
        if found is None or found.is_placeholder:
            if self.policy.owns(self, key):
                raise unknown(id)
            return None
        if found.gone:
            raise dropped(id) if found.gone == "dropped" else unknown(id)
        return found

    def _judge_named(self, run: internal.Run, command: Schedule | AllowWrites) -> bool:
        return self._named(run, command.id) is not None

    def _judge_compaction(self, run: internal.Run, command: AllowCompaction) -> bool:
        found = self._named(run, command.id)
        if found is None:
            return False
        frontier = Frontier.from_wire(command.frontier)
        found.announced = Frontier.join(found.announced, frontier)
        if frontier.is_empty:
            found.gone = "dropped"
        return True

    def _judge_sync(self, run: internal.Run, command: Sync) -> bool:
        self.state.emit(fx.Send(internal.SyncDone(run.session, command.seq)))
        return False

    def _judge_create(self, run: internal.Run, create: CreateDataflow) -> bool:
        header = create.header
        keys = {e.id: _key(run, e.id) for e in header.exports}
        if self.defers(run.session) and self._stands(keys.values()):
            for export in header.exports:
                self._propose(run, keys[export.id], header.as_of)
            return True
        try:
            self.policy.admit(header)
            self._require_new(keys.values())
            imports = [self._import(run, item.id, header.as_of) for item in header.index_imports]
            indexes = {c.id: c.export for c in imports if c.export is not None}
            plan = self.state.ports.plan(create, indexes, self._view_in)
        except Refusal:
            self.state.refused.update(keys.values())
            for key in keys.values():
                self.reads.turn_away(key, unknown(key[0]))
            raise
        self._last_dataflow += 1
        number = self._last_dataflow
        self.state.dataflows[number] = Dataflow(
            number, run.session, header, plan, tuple(keys.values()), tuple(c.key for c in imports)
        )
        for export in header.exports:
            made = self.state.collections[keys[export.id]] = Collection(
                keys[export.id],
                run.session,
                export,
                header.as_of,
                dataflow=number,
                # Compaction of what has no arrangement is not broadcast: nobody else holds it.
                appliers=self.policy.appliers if export.kind == "index" else 0,
            )
            made.of_reader = run.session != self.state.session
        return True

    def _view_in(self, shard: str) -> Export | None:
        for collection in self.state.collections.values():
            if collection.is_view and collection.export is not None and collection.export.shard == shard:
                return collection.export
        return None

    def _stands(self, keys: Iterable[Key]) -> bool:
        """Whether a dataflow here makes these very collections: it goes on, for it was named again."""
        found = [self.state.collections.get(key) for key in keys]
        return all(c is not None and c.standing and c.is_owned for c in found)

    def _propose(self, run: internal.Run, key: Key, as_of: int) -> None:
        stands = self.state.collections[key]
        proposed = Collection(key, run.session, stands.export, as_of, dataflow=stands.dataflow, appliers=0)
        self.state.proposed[key] = proposed

    def _require_new(self, keys: Iterable[Key]) -> None:
        for key in keys:
            found = self.state.collections.get(key)
            if found is not None and not found.is_placeholder:
                raise Refusal("duplicate-id", f"{key[0]} is in use", "use a fresh id")

    def _import(self, run: internal.Run, id: GlobalId, as_of: int) -> Collection:
        found = self.state.find(_key(run, id), run.session)
        if found is None or found.is_placeholder:
            raise Refusal("unknown-id", f"import {id} was not created in this session")
        if found.gone:
            raise Refusal(found.gone, f"import {id} was dropped")
        if found.ended is not None:
            raise Refusal("dropped", f"import {id} ended: {found.ended.message}")
        if not found.announced.less_equal(as_of):
            since = found.announced.time
            raise Refusal(
                "below-since",
                f"import {id} cannot be read at {as_of}: its since is {since}",
                f"create the dataflow with as_of {since} or later",
            )
        return found

    def _judge_peek(self, run: internal.Run, peek: Peek) -> bool:
        return self.reads.peek(run.session, peek, _key(run, peek.id))

    def _judge_cancel(self, run: internal.Run, cancel: CancelPeek) -> bool:
        self.reads.cancel(run.session, cancel)
        return False

    # -- commands: carried out -----------------------------------------------------------------------------

    def _apply_configuration(self, run: internal.Run, command: UpdateConfiguration) -> None:
        self._settings.update(command.config)
        self.state.expires_at = self._settings.get("expires_at", 0)
        self.state.emit(fx.Configure(dict(self._settings)))

    def _apply_create(self, run: internal.Run, create: CreateDataflow) -> None:
        keys = [_key(run, export.id) for export in create.header.exports]
        again = [self.state.proposed.pop(key) for key in keys if key in self.state.proposed]
        for proposed in again:
            self.flows.go_on(proposed)
        if not again:
            self.flows.create(self.flows.dataflow_of(self.state.collections[keys[0]]))

    def _apply_schedule(self, run: internal.Run, command: Schedule) -> None:
        collection = self.state.collections.get(_key(run, command.id))
        if collection is not None:
            self.flows.schedule(collection)

    def _apply_writes(self, run: internal.Run, command: AllowWrites) -> None:
        """Sinks alone are written; what was dropped meanwhile is not (P15)."""
        collection = self.state.collections.get(_key(run, command.id))
        if collection is not None and collection.is_view and not collection.applied.is_empty:
            self.state.emit(fx.PermitWrites(collection.key))

    def _apply_compaction(self, run: internal.Run, command: AllowCompaction) -> None:
        collection = self.state.collections.get(_key(run, command.id))
        if collection is not None:
            self.flows.compact(collection, Frontier.from_wire(command.frontier))

    # -- checks --------------------------------------------------------------------------------------------

    def validate_state(self) -> None:
        """Whole-structure checks, for tests and `Config.validate`. Raises: InvariantViolation."""
        self.state.peeks.validate_state()
        for key, collection in self.state.collections.items():
            if collection.is_placeholder:
                if not self.state.peeks.waits_for(key):
                    raise InvariantViolation("a placeholder kept for nobody", key=key)
                continue
            if collection.dataflow is not None and collection.dataflow not in self.state.dataflows:
                raise InvariantViolation("a collection without its dataflow", key=key)
            if collection.standing and collection.take_hold(self.state.peeks.hold(key)) != collection.hold:
                raise InvariantViolation("a hold was not settled", key=key, hold=collection.hold)
            if self.state.peeks.waits_for(key):
                if collection.applied.is_empty or collection.ended is not None:
                    raise InvariantViolation("a peek is parked on what is gone", key=key)
                if collection.standing and not self.state.peeks.hold(key).is_empty:
                    least = self.state.peeks.hold(key).time
                    if collection.is_owned and not collection.upper.less_equal(least):
                        raise InvariantViolation("a peek is parked on what is sealed", key=key, time=least)
            for number in collection.needs:
                if number not in self.state.dataflows:
                    raise InvariantViolation("a dataflow that is gone holds", key=key, number=number)
        for number, dataflow in self.state.dataflows.items():
            if dataflow.standing and not dataflow.live:
                raise InvariantViolation("a dataflow kept for nothing", number=number)


def _key(run: internal.Run, id: GlobalId) -> Key:
    """The collection that a command names by `id`."""
    return id, run.incarnations.get(id, 0)
