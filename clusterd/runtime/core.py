"""RuntimeCore: the mind of a worker, of either role. Events in, effects out; no I/O, no clock.

Why an answer is right: a peek is served at t only when the collection is known to be sealed beyond t, and t
is not below the standing hold, for the peek itself counts in the hold from the moment it is accepted until
its snapshot is taken (effects are performed in order). Why it is answered once: `peeks` is the only place
that says an answer is owed, and who answers takes it out first. Why none is forgotten: a parked peek is looked
at whenever its collection moves, closes or is dropped, and those are all the ways in which it can change.

Commands are judged when they arrive, against what was announced before them, and carried out at once, or, in
initialisation, at InitializationComplete: then everything older is dropped and the new commands are
carried out in their order (P11, P12). A refused command leaves no trace but the names it would have made,
so that what refers to them is refused too.

What differs between the roles is the policy's (maintenance.py, interactive.py): who owns, who else holds,
how a page of another process is looked at.

Does not: validate plans or evaluate anything (ports do), write, read or wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from clusterd import internal
from clusterd.errors import InvariantViolation
from clusterd.process import ComputeRuntimeRole
from clusterd.runtime import effects as fx
from clusterd.runtime.collection import Collection, Dataflow, meet_all
from clusterd.runtime.hydration import Hydration
from clusterd.runtime.peeks import Key, PeekState, PeeksStatistics, PendingPeek, PendingPeeks
from clusterd.runtime.reconcile import plan_reconciliation
from controller_proto.command import (
    AllowCompaction, AllowWrites, CancelPeek, CreateDataflow, CreateInstance, InitializationComplete, Peek, Schedule,
    Sync, UpdateConfiguration,
)  # fmt: skip
from controller_proto.dataflow import MAX_TIME, DataflowHeader, Export
from controller_proto.errors import Refusal
from controller_proto.ids import GlobalId
from controller_proto.response import PeekCanceled, PeekError, PeekResponse, PeekResult
from shm_arrangements.frontier import Frontier

__all__ = ["CoreStatistics", "Policy", "Ports", "RuntimeCore"]


class Ports(Protocol):
    """The judgements that need more than the core's state. Both raise Refusal; neither has any effect."""

    def plan(self, create: CreateDataflow, indexes: Mapping[GlobalId, Export]) -> Any:
        """Whole validation of a dataflow; what it returns is handed to Build."""

    def check_peek(self, peek: Peek, index: Export) -> None:
        """Whether keys and finishing fit the index."""


class Policy(Protocol):
    """What differs between the runtimes."""

    role: ComputeRuntimeRole
    appliers: int  # interactive workers whose applied compaction counts in a hold
    builds_at_once: bool  # a dataflow is built when created; else when its imports can be read at as_of

    def message(self, core: RuntimeCore, message: Any) -> None:
        """Carry out a message that only this role gets."""

    def admit(self, header: DataflowHeader) -> None:
        """Raise Refusal if this runtime does not take such a dataflow."""

    def unknown(self, core: RuntimeCore, key: Key, session: int) -> Collection | None:
        """A read of a collection never heard of: its placeholder, or None if it does not exist."""

    def owns(self, core: RuntimeCore, key: Key) -> bool:
        """Whether a command on an unknown collection is this runtime's to refuse."""

    def look(self, core: RuntimeCore, collection: Collection) -> None:
        """Work waits for a collection of another process: find out how far it is."""

    def moved(self, core: RuntimeCore, collection: Collection) -> None:
        """An own collection's page has a new upper."""

    @property
    def has_news(self) -> bool:
        """Whether `flush` would send something."""

    def flush(self, core: RuntimeCore) -> None:
        """The pipe has room: send what was held back."""

    def initialised(self, core: RuntimeCore) -> None:
        """Own dataflows of older sessions were dropped: do so with what else is of older sessions."""


class CoreStatistics(msgspec.Struct, frozen=True):
    """Counts of what is held now. `widest_hold_gap`: times between what a controller allowed and the hold."""

    collections: int
    placeholders: int
    dataflows: int
    deferred: int
    refused: int
    queued: int
    shards: int
    widest_hold_gap: int
    peeks: PeeksStatistics


class RuntimeCore:
    """The state machine. `handle` is the only way in; policies use the parts below it."""

    def __init__(self, policy: Policy, ports: Ports) -> None:
        self.policy = policy
        self.ports = ports
        self.peeks = PendingPeeks()
        self.collections: dict[Key, Collection] = {}
        self.dataflows: dict[int, Dataflow] = {}
        self.session = 0  # the controller's
        self._initialising = False
        self._queue: list[internal.Run | internal.Declare] = []  # of a session in initialisation
        self.refused: set[Key] = set()  # what refused commands of this session would have made
        self._hydration = Hydration()
        self._shards: dict[str, Frontier] = {}
        self._readers: dict[str, set[int]] = {}  # shard -> dataflows
        self._reports: dict[Key, dict[str, Frontier]] = {}  # not yet sent, newest by kind
        self._settings: dict[str, Any] = {}
        self._last_dataflow = 0
        self._touched: dict[Key, None] = {}  # whose hold is to be taken anew before the event is over
        self._out: list[fx.Effect] = []
        self._on: dict[type, Callable[[Any], None]] = {
            internal.Run: self._on_run,
            internal.SessionStart: self._on_session_start,
            internal.SessionEnd: self._on_session_end,
            internal.Hook: lambda hook: self.emit(fx.ArmFailpoint(hook.name, hook.action)),
            internal.Stop: lambda _: self.emit(fx.Leave()),
            fx.RoundDone: self._on_round_done,
            fx.ShardMoved: self._on_shard_moved,
            fx.Evaluated: self._on_evaluated,
            fx.Failed: self._on_failed,
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
            AllowWrites: lambda run, command: None,
            AllowCompaction: self._apply_compaction,
            UpdateConfiguration: self._apply_configuration,
        }

    # -- in and out ----------------------------------------------------------------------------------------

    def handle(self, event: fx.Event) -> list[fx.Effect]:
        """Take one event; what is returned is performed in order, before the next event."""
        on = self._on.get(type(event))
        if on is not None:
            on(event)
        else:
            self.policy.message(self, event)
        while self._touched:
            self._settle(self.collections.get(self._touched.popitem()[0]))
        out, self._out = self._out, []
        return out

    def emit(self, effect: fx.Effect) -> None:
        self._out.append(effect)

    @property
    def has_news(self) -> bool:
        """Whether Flush would send something."""
        return bool(self._reports) or self.policy.has_news

    def statistics(self) -> CoreStatistics:
        collections = self.collections.values()
        gaps = [
            c.applied.time - c.hold.time for c in collections if not (c.applied.is_empty or c.hold.is_empty)
        ]
        return CoreStatistics(
            collections=len(self.collections),
            placeholders=sum(c.is_placeholder for c in collections),
            dataflows=len(self.dataflows),
            deferred=sum(d.is_deferred for d in self.dataflows.values()),
            refused=len(self.refused),
            queued=len(self._queue),
            shards=len(self._shards),
            widest_hold_gap=max(gaps, default=0),
            peeks=self.peeks.statistics(),
        )

    # -- sessions ------------------------------------------------------------------------------------------

    def _on_session_start(self, start: internal.SessionStart) -> None:
        self._forget_peeks(self.session)
        self._forget_proposals()
        self.refused.clear()
        self._reports.clear()  # of the session before: nobody listens (P13)
        self.session = start.session
        self._initialising = True

    def _on_session_end(self, end: internal.SessionEnd) -> None:
        self._forget_peeks(end.session)
        if end.session == self.session and self._initialising:
            self._forget_proposals()

    def _forget_peeks(self, session: int) -> None:
        for pending, state in self.peeks.end_session(session):
            if state is PeekState.READY:
                self.emit(fx.Abandon(session, pending.uuid))
            self.touch(pending.collection)

    def _forget_proposals(self) -> None:
        """What a session collected and never put in force is as if it had not been said."""
        self._queue.clear()
        for number in [n for n, d in self.dataflows.items() if not d.standing]:
            del self.dataflows[number]
        for key in [k for k, c in self.collections.items() if not c.standing and not c.is_placeholder]:
            self.withdraw_proposal(self.collections[key])

    def withdraw_proposal(self, collection: Collection) -> None:
        """Take back a collection that was announced and never stood."""
        del self.collections[collection.key]
        self._turn_away(collection.key, _unknown(collection.key))

    def _on_initialization_complete(self, run: internal.Run, command: InitializationComplete) -> bool:
        if run.session != self.session or not self._initialising:
            return False
        self._initialising = False
        queue, self._queue = self._queue, []
        self._settings = {}
        for item in queue:
            if isinstance(item, internal.Run) and isinstance(
                item.command, CreateInstance | UpdateConfiguration
            ):
                self._settings.update(item.command.config)
        self.emit(fx.Configure(dict(self._settings)))  # I13: in force before anything is built
        standing = [n for n, d in self.dataflows.items() if d.standing]
        wanted = [n for n, d in self.dataflows.items() if not d.standing]
        for number in plan_reconciliation(standing, wanted).drop:
            for key in self.dataflows[number].exports:
                if key in self.collections:
                    self.drop(self.collections[key])
        self.policy.initialised(self)
        for item in queue:
            if isinstance(item, internal.Declare):
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
        return self._initialising and session == self.session

    def enqueue(self, declare: internal.Declare) -> None:
        self._queue.append(declare)

    def _refuse(self, run: internal.Run, refusal: Refusal) -> None:
        message = internal.Refusal(run.session, run.command.seq, refusal.code, refusal.message, refusal.hint)
        self.emit(fx.Send(message))

    def _named(self, run: internal.Run, id: GlobalId) -> Collection | None:
        """The collection a command names; None if it is another runtime's to refuse. Raises Refusal."""
        key = _key(run, id)
        found = self.collections.get(key)
        if found is None or found.is_placeholder:
            if self.policy.owns(self, key):
                raise Refusal("unknown-id", f"{id} was not created in this session")
            return None
        if found.gone:
            raise Refusal(found.gone, f"{id} was dropped", "an id does not come back within a session")
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
        self.emit(fx.Send(internal.SyncDone(run.session, command.seq)))
        return False

    def _judge_create(self, run: internal.Run, create: CreateDataflow) -> bool:
        header = create.header
        keys = {e.id: _key(run, e.id) for e in header.exports}
        try:
            self.policy.admit(header)
            for id, key in keys.items():
                if key in self.collections and not self.collections[key].is_placeholder:
                    raise Refusal("duplicate-id", f"{id} is in use", "use a fresh id")
            imports = [self._import(run, item.id, header.as_of) for item in header.index_imports]
            indexes = {c.id: c.export for c in imports if c.export is not None}
            plan = self.ports.plan(create, indexes)
        except Refusal:
            self.refused.update(keys.values())
            for key in keys.values():
                self._turn_away(key, _unknown(key))
            raise
        self._last_dataflow += 1
        number = self._last_dataflow
        self.dataflows[number] = Dataflow(
            number, run.session, header, plan, tuple(keys.values()), tuple(c.key for c in imports)
        )
        for export in header.exports:
            self.collections[keys[export.id]] = Collection(
                keys[export.id],
                run.session,
                export,
                header.as_of,
                dataflow=number,
                appliers=self.policy.appliers,
            )
        return True

    def _import(self, run: internal.Run, id: GlobalId, as_of: int) -> Collection:
        found = self.collections.get(_key(run, id))
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

    # -- peeks ---------------------------------------------------------------------------------------------

    def _judge_peek(self, run: internal.Run, peek: Peek) -> bool:
        if (run.session, peek.uuid) in self.peeks:
            raise Refusal("duplicate-uuid", f"peek {peek.uuid!r} is still open", "use a fresh uuid a peek")
        key = _key(run, peek.id)
        collection = self.collections.get(key)
        if collection is None:
            collection = None if key in self.refused else self.policy.unknown(self, key, run.session)
        try:
            if collection is None:
                raise Refusal("unknown-id", f"{peek.id} was not created in this session")
            self._check_peek(collection, peek)
        except Refusal as refusal:
            self._answer_error(run.session, peek.uuid, refusal)
            return False
        since = collection.announced.time
        latest = peek.time is None
        pending = PendingPeek(
            run.session, peek, key, since if peek.time is None else peek.time, latest=latest
        )
        if self._is_ready(collection, pending):
            self.peeks.accept(pending, ready=True)
            self._evaluate(collection, pending)
        else:
            self.peeks.accept(pending)
            if collection.standing and not collection.is_owned and not collection.is_placeholder:
                self.policy.look(self, collection)
        return False

    def _check_peek(self, collection: Collection, peek: Peek) -> None:
        """The first checks of a peek, in their order (protocol decision 6). Raises Refusal."""
        if collection.gone:
            raise Refusal(collection.gone, f"{peek.id} was dropped")
        if collection.ended is not None:
            raise collection.ended
        if collection.export is not None:
            self.ports.check_peek(peek, collection.export)
        if peek.time is not None and not collection.announced.less_equal(peek.time):
            since = collection.announced.time
            raise Refusal(
                "below-since",
                f"{peek.id} cannot be read at {peek.time}: its since is {since}",
                f"read at {since} or later",
            )

    def recheck(self, collection: Collection) -> None:
        """A placeholder was declared: judge what is parked on it."""
        for pending in self.peeks.waiting(collection.key):
            try:
                self._check_peek(collection, pending.peek)
            except Refusal as refusal:
                self.peeks.answered(pending.session, pending.uuid)
                self._answer_error(pending.session, pending.uuid, refusal)
                continue
            if pending.latest:
                self.peeks.repark(pending, collection.announced.time)

    def _is_ready(self, collection: Collection, pending: PendingPeek) -> bool:
        """Whether what is known suffices. A page that may have moved is looked at first, for the newest time always."""
        if not collection.standing or collection.is_placeholder or collection.upper.less_equal(pending.time):
            return False
        return collection.is_owned or not (collection.stale or pending.latest)

    def _evaluate(self, collection: Collection, pending: PendingPeek) -> None:
        time = pending.time
        if pending.latest:
            # Sealed for ever: every later time reads the same, so the greatest names it in either mode.
            time = MAX_TIME if collection.upper.is_empty else max(time, collection.upper.time - 1)
        self.emit(fx.Evaluate(pending, time))

    def _wake(self, collection: Collection) -> None:
        """The collection moved: hand out what it lets go, and of nothing else."""
        woken = self.peeks.wake(collection.key, collection.upper)
        for pending in woken:
            self._evaluate(collection, pending)
        if woken:
            self.touch(collection.key)

    def _on_evaluated(self, event: fx.Evaluated) -> None:
        if self.peeks.answered(event.session, event.uuid) is not None:
            self.emit(fx.Send(internal.Answer(event.session, event.uuid, msgspec.Raw(event.response))))

    def _judge_cancel(self, run: internal.Run, cancel: CancelPeek) -> bool:
        found = self.peeks.cancel(run.session, cancel.uuid)
        if found is not None:
            pending, state = found
            if state is PeekState.READY:
                self.emit(fx.Abandon(run.session, cancel.uuid))
            self._answer(run.session, cancel.uuid, PeekCanceled())
            self.touch(pending.collection)
        return False

    def _turn_away(self, key: Key, why: Refusal) -> None:
        """Answer whatever is parked on a collection that is gone."""
        for pending in self.peeks.withdraw(key):
            self._answer_error(pending.session, pending.uuid, why)
        self.touch(key)

    def _answer_error(self, session: int, uuid: str, refusal: Refusal) -> None:
        self._answer(session, uuid, PeekError(refusal.code, refusal.message, refusal.hint))

    def _answer(self, session: int, uuid: str, result: PeekResult) -> None:
        response = PeekResponse(uuid, result, served_by=self.policy.role.value)
        raw = msgspec.Raw(msgspec.msgpack.encode(response))
        self.emit(fx.Send(internal.Answer(session, uuid, raw)))

    # -- commands: carried out -----------------------------------------------------------------------------

    def _apply_configuration(self, run: internal.Run, command: UpdateConfiguration) -> None:
        self._settings.update(command.config)
        self.emit(fx.Configure(dict(self._settings)))

    def _apply_create(self, run: internal.Run, create: CreateDataflow) -> None:
        dataflow = self._dataflow_of(self.collections[_key(run, create.header.exports[0].id)])
        dataflow.standing = True
        for key in dataflow.exports:
            self.collections[key].standing = True
            self._hydration.expect(key, create.header.as_of)
        imports = [self.collections.get(key) for key in dataflow.imports]
        for imported in imports:
            if (
                imported is None
                or imported.ended is not None
                or imported.gone == "unknown-id"
                or (dataflow.one_shot and imported.applied.is_empty)
            ):
                self._give_up(dataflow)  # L16: what it waits for is gone
                return
            imported.needs[dataflow.number] = dataflow.need
        if self.policy.builds_at_once:
            self._build(dataflow)
        for name in dataflow.shards:
            self._readers.setdefault(name, set()).add(dataflow.number)
            if len(self._readers[name]) == 1:
                self._shards[name] = Frontier.minimum()
                self.emit(fx.WatchShard(name))

    def _build(self, dataflow: Dataflow) -> None:
        dataflow.built = dataflow.computing = True
        exports = tuple(key for key in dataflow.exports if key in dataflow.live)
        self.emit(fx.Build(dataflow.number, dataflow.header, dataflow.plan, exports, dataflow.imports))
        for key in exports:
            collection = self.collections[key]
            if not collection.hold.is_empty and collection.hold.time > collection.as_of:
                self.emit(fx.SetCompaction(key, collection.hold))
            self.policy.moved(self, collection)

    def _apply_schedule(self, run: internal.Run, command: Schedule) -> None:
        collection = self.collections.get(_key(run, command.id))
        if collection is not None:
            dataflow = self._dataflow_of(collection)
            dataflow.waiting.discard(collection.key)
            self._start(dataflow)

    def _start(self, dataflow: Dataflow) -> None:
        """An export waits no more: if it was the last, find out how far the imports are and begin."""
        if dataflow.waiting or not dataflow.is_deferred:
            return
        for key in dataflow.imports:
            imported = self.collections[key]
            if not imported.is_owned and imported.upper.less_equal(dataflow.header.as_of):
                self.policy.look(self, imported)
        self.advance(dataflow)

    def _apply_compaction(self, run: internal.Run, command: AllowCompaction) -> None:
        collection = self.collections.get(_key(run, command.id))
        if collection is None:
            return
        frontier = Frontier.from_wire(command.frontier)
        if frontier.is_empty:
            self.drop(collection)
        else:
            collection.applied = Frontier.join(collection.applied, frontier)
            self.touch(collection.key)

    def drop(self, collection: Collection, code: str = "dropped") -> None:
        """R8, as far as it is this runtime's: answer what is parked, end what is deferred, let the hold go."""
        why = (
            Refusal("dropped", f"{collection.id} was dropped")
            if code == "dropped"
            else _unknown(collection.key)
        )
        collection.gone = collection.gone or code
        collection.announced = collection.applied = Frontier.empty()
        self._turn_away(collection.key, why)
        for number in sorted(collection.needs):
            reader = self.dataflows[number]
            if reader.one_shot and reader.is_deferred:
                self._give_up(reader)
        if collection.dataflow is not None:
            dataflow = self._dataflow_of(collection)
            if collection.key in dataflow.waiting:
                dataflow.waiting.discard(collection.key)
                self._start(dataflow)
        self.touch(collection.key)

    def _give_up(self, dataflow: Dataflow, why: Refusal | None = None) -> None:
        """End a query that can never run: its peeks are answered, its frontiers go empty, it counts no more."""
        dataflow.ended = True
        self._stop(dataflow)
        for key in dataflow.exports:
            collection = self.collections.get(key)
            if collection is None or collection.ended is not None:
                continue
            collection.ended = why or Refusal(
                "dropped", f"{key[0]} was given up: an import of it was dropped"
            )
            self._turn_away(key, collection.ended)
            if dataflow.built:
                self.emit(fx.CloseIndex(key))
            self._report(key, self._hydration.close(key))
            for number in sorted(collection.needs):  # only queries import a query's result
                self._give_up(self.dataflows[number])

    def _on_failed(self, failed: fx.Failed) -> None:
        dataflow = self.dataflows.get(failed.number)
        if dataflow is not None:
            dataflow.running = None
            self._give_up(dataflow, Refusal(failed.code, failed.message, failed.hint))

    def touch(self, key: Key) -> None:
        """The hold of the collection may have risen."""
        self._touched[key] = None

    def _settle(self, collection: Collection | None) -> None:
        if collection is None:
            return
        key = collection.key
        if collection.is_placeholder:
            if not self.peeks.waits_for(key):
                del self.collections[key]
                self.emit(fx.Forget(key))
            return
        if not collection.standing or not collection.raise_hold(self.peeks.hold(key)):
            return
        if collection.is_owned:
            if collection.hold.is_empty:
                self._close(collection)
            elif collection.ended is None and self._dataflow_of(collection).built:
                self.emit(fx.SetCompaction(key, collection.hold))
            return
        self.emit(fx.Send(internal.Applied(*key, collection.hold.to_wire())))
        if collection.hold.is_empty:
            del self.collections[key]
            self.emit(fx.Forget(key))

    def _close(self, collection: Collection) -> None:
        """Everybody has let go: inputs first, then the memory, then the report (P10)."""
        key = collection.key
        dataflow = self._dataflow_of(collection)
        dataflow.live.discard(key)
        if not dataflow.live:
            self._stop(dataflow)
            del self.dataflows[dataflow.number]
        if dataflow.built and collection.ended is None:
            self.emit(fx.CloseIndex(key))
        self._report(key, self._hydration.close(key))
        self._hydration.forget(key)
        del self.collections[key]

    def _stop(self, dataflow: Dataflow) -> None:
        """The dataflow computes and reads nothing any more. Idempotent."""
        if dataflow.computing:
            dataflow.computing = False
            self.emit(fx.CloseGraph(dataflow.number))
        for key in dataflow.imports:
            imported = self.collections.get(key)
            if imported is not None and imported.needs.pop(dataflow.number, None) is not None:
                self.touch(key)
        for name in dataflow.shards:
            readers = self._readers.get(name, set())
            readers.discard(dataflow.number)
            if not readers and self._readers.pop(name, None) is not None:
                del self._shards[name]
                self.emit(fx.UnwatchShard(name))

    # -- progress ------------------------------------------------------------------------------------------

    def advance(self, dataflow: Dataflow) -> None:
        """Begin the round that the imports allow, if any, and if anybody wants it."""
        if not any(self.collections[key].is_wanted for key in dataflow.live):
            return
        inputs = meet_all(
            [self._shards[name] for name in dataflow.shards if name in self._shards]
            + [self.collections[key].upper for key in dataflow.imports if key in self.collections]
        )
        target = dataflow.next_round(inputs)
        if target is None:
            return
        lower = dataflow.upper.time
        dataflow.running = target
        if not dataflow.built:
            self._build(dataflow)
            for key in dataflow.imports:  # R7: its snapshots are taken; it counts no more
                self.collections[key].needs.pop(dataflow.number, None)
                self.touch(key)
        self.emit(fx.StartRound(dataflow.number, lower, target))

    def sealed(self, collection: Collection, upper: Frontier) -> None:
        """The collection is known to be sealed up to `upper`: wake what waited for that."""
        if upper.precedes(collection.upper):
            raise InvariantViolation(
                "an upper regresses", key=collection.key, upper=collection.upper, to=upper
            )
        collection.upper = upper
        self._wake(collection)
        for number in sorted(collection.needs):
            self.advance(self.dataflows[number])

    def _on_round_done(self, done: fx.RoundDone) -> None:
        dataflow = self.dataflows.get(done.number)
        if dataflow is None:
            return
        if dataflow.running != done.upper:
            raise InvariantViolation("a round ends elsewhere", number=done.number, upper=done.upper)
        dataflow.running = None
        dataflow.upper = done.upper
        if done.upper.is_empty:
            self._stop(dataflow)
        else:
            for key in dataflow.imports:
                imported = self.collections[key]
                if dataflow.number in imported.needs:
                    imported.needs[dataflow.number] = dataflow.need
                    self.touch(key)
        for key in dataflow.exports:
            if key in dataflow.live:
                collection = self.collections[key]
                self._report(key, self._hydration.advance(key, done.upper))
                self.policy.moved(self, collection)
                self.sealed(collection, done.upper)
        self.advance(dataflow)

    def _on_shard_moved(self, moved: fx.ShardMoved) -> None:
        if moved.name not in self._shards:
            return
        self._shards[moved.name] = Frontier.join(self._shards[moved.name], moved.upper)
        for number in sorted(self._readers[moved.name]):
            self.advance(self.dataflows[number])

    def _report(self, key: Key, news: dict[str, Frontier]) -> None:
        if news and self.collections[key].session == self.session:  # P13
            self._reports.setdefault(key, {}).update(news)

    def _on_flush(self, _: fx.Flush) -> None:
        self.policy.flush(self)
        for key, news in self._reports.items():
            wire = {kind: frontier.to_wire() for kind, frontier in news.items()}
            self.emit(fx.Send(internal.FrontierReport(self.session, *key, **wire)))
        self._reports.clear()

    def _dataflow_of(self, collection: Collection) -> Dataflow:
        if collection.dataflow is None:
            raise InvariantViolation("not exported by a dataflow here", key=collection.key)
        return self.dataflows[collection.dataflow]

    # -- checks --------------------------------------------------------------------------------------------

    def validate_state(self) -> None:
        """Whole-structure checks, for tests and `Config.validate`. Raises: InvariantViolation."""
        self.peeks.validate_state()
        for key, collection in self.collections.items():
            if collection.is_placeholder:
                if not self.peeks.waits_for(key):
                    raise InvariantViolation("a placeholder kept for nobody", key=key)
                continue
            if collection.dataflow is not None and collection.dataflow not in self.dataflows:
                raise InvariantViolation("a collection without its dataflow", key=key)
            if collection.standing and collection.take_hold(self.peeks.hold(key)) != collection.hold:
                raise InvariantViolation("a hold was not settled", key=key, hold=collection.hold)
            if self.peeks.waits_for(key):
                if collection.applied.is_empty or collection.ended is not None:
                    raise InvariantViolation("a peek is parked on what is gone", key=key)
                if collection.standing and not self.peeks.hold(key).is_empty:
                    least = self.peeks.hold(key).time
                    if collection.is_owned and not collection.upper.less_equal(least):
                        raise InvariantViolation("a peek is parked on what is sealed", key=key, time=least)
            for number in collection.needs:
                if number not in self.dataflows:
                    raise InvariantViolation("a dataflow that is gone holds", key=key, number=number)
        for number, dataflow in self.dataflows.items():
            if dataflow.standing and not dataflow.live:
                raise InvariantViolation("a dataflow kept for nothing", number=number)


def _key(run: internal.Run, id: GlobalId) -> Key:
    """The collection that a command names by `id`."""
    return id, run.incarnations.get(id, 0)


def _unknown(key: Key) -> Refusal:
    return Refusal("unknown-id", f"{key[0]} was not created in this session")
