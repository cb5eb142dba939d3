"""The multiplexer: one protocol endpoint over several workers. Events in, effects out; no I/O, no clock.

Splitting a replica in two loses one invariant: that a read and the compaction of what it reads are seen in
the controller's order by whoever executes them. What restores it: all commands pass here in one order; a new
read is judged here, against the compactions before it (R5); AllowCompaction of whatever can have an
arrangement goes, unmodified, to all who may read it, and each reports what it has applied (R6). Nothing is
queued, capped or delayed here.

Exactly one answer a peek: (session, uuid) stands in `Session.peeks` from the moment it was sent on until the
first answer takes it out. A collection's frontiers are passed on only from its owner, and only upwards; they
are kept newest per id until the client has room (`take_frontiers`). A large answer stays with its worker,
which sends a part when the client has room (`fetch`), one at a time a session, so that no other answer waits
behind more. A Hello begins a new catalog, which replaces the standing one at InitializationComplete: until
then nothing that runs changes (P11).

Does not: decode a dataflow's body or any row, touch a descriptor, know how far a worker is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from clusterd import internal
from clusterd.config import SETTINGS, Setting
from clusterd.declared import READABLE_KINDS, Catalog, Collection, Dataflow
from clusterd.multiplexer_events import (
    Backlog,
    Close,
    Closed,
    Effect,
    Event,
    Fenced,
    Forward,
    Hold,
    Opened,
    Pass,
    Received,
    Reconciled,
    Rejected,
    Reply,
    Stream,
    Tell,
    Unread,
    WorkerSaid,
)
from clusterd.notices import NoticeBoard
from clusterd.placement import OWNER, Placement
from clusterd.reconcile import digest_of, judge, tally
from clusterd.sessions import Fencing, Pending, Session, SettingsInForce, check_version
from controller_proto.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
    Sync,
    TestHook,
    UpdateConfiguration,
)
from controller_proto.dataflow import MAX_TIME, TOLD_KINDS, DataflowHeader, Export
from controller_proto.errors import Refusal
from controller_proto.ids import GlobalId
from controller_proto.response import (
    Closing,
    DroppedAt,
    Frontiers,
    PeekError,
    PeekResponse,
    Refused,
    SubscribeResponse,
)
from controller_proto.stage import Stage
from controller_proto.validate import check_peek_size
from shm_arrangements.errors import InvariantViolation

__all__ = ["Multiplexer", "MuxStatistics"]


Effects = list[Effect]


class MuxStatistics(msgspec.Struct, frozen=True):
    """Counts of what is held now, but for `stale_answers` and `reconciled`, which only grow.

    answers_stashed: those of the peeks in flight that go out in parts.
    reconciled: dataflows by what became of them when a controller came back (`reconcile.tally`).
    """

    sessions: int
    peeks_in_flight: int
    answers_stashed: int
    declared: int
    syncs_pending: int
    notice_entries: int
    frontiers_pending: int
    stale_answers: int
    reconciled: dict[str, int]


class Multiplexer:
    """The state machine. `handle` is the way in; the shell pulls `take_notices` and `take_frontiers`."""

    def __init__(
        self,
        *,
        interactive_workers: int,
        test_hooks: bool = False,
        settings: Mapping[str, Setting] = SETTINGS,
        introspection: tuple[Export, ...] = (),
    ) -> None:
        """interactive_workers: M; 0 is Solo. introspection: indexes maintenance has without being told."""
        self._placement = Placement(interactive_workers)
        names = ["solo/0" if self._placement.is_solo else "maintenance/0"]
        names += (f"interactive/{worker - 1}" for worker in self._placement.interactive)
        self._names = {name: worker for worker, name in enumerate(names)}
        self._test_hooks = test_hooks
        self._settings = SettingsInForce(settings)
        self._fencing = Fencing()
        self._sessions: dict[int, Session] = {}
        self._controller: Session | None = None
        self._standing: Catalog | None = None  # in force since the last InitializationComplete
        self._boards = {worker: NoticeBoard() for worker in self._placement.interactive}
        self._last_incarnation = 0
        self._introspection = self._declare_introspection(introspection)
        self._introspection_announced = False
        self._full: set[int] = set()
        self._held: set[int] = set()
        self._stale_answers = 0
        self._reconciled: dict[str, int] = {}
        self._to_fetch: dict[int, None] = {}  # sessions
        self._commands: dict[type, Callable[[Session, Any, bytes], Effects]] = {
            Peek: self._on_peek,
            CancelPeek: self._on_cancel,
            Hello: self._on_hello,
            CreateInstance: self._on_create_instance,
            UpdateConfiguration: self._on_configuration,
            InitializationComplete: self._on_initialization_complete,
            CreateDataflow: self._on_create_dataflow,
            Schedule: self._on_owner_command,
            AllowWrites: self._on_owner_command,
            AllowCompaction: self._on_allow_compaction,
            Sync: self._on_sync,
            TestHook: self._on_test_hook,
        }
        self._reports: dict[type, Callable[[int, Any], Effects]] = {
            internal.Answer: self._on_answer,
            internal.Stashed: self._on_stashed,
            internal.Part: self._on_part,
            internal.Telling: self._on_telling,
            internal.FrontierReport: self._on_frontier_report,
            internal.Look: self._on_look,
            internal.Applied: self._on_applied,
            internal.Refusal: self._on_refusal,
            internal.SyncDone: self._on_sync_done,
            internal.Ready: self._on_ready,
        }

    # -- in and out ----------------------------------------------------------------------------------------

    def handle(self, event: Event) -> Effects:
        """Take one event; what is returned is to be performed in order, before the next event."""
        kind = type(event)
        if kind is Received:
            return self._on_command(event)  # type: ignore[arg-type]
        if kind is WorkerSaid:
            return self._reports[type(event.message)](event.worker, event.message)  # type: ignore[union-attr]
        if isinstance(event, Opened):
            self._sessions[event.session] = Session(event.session)
        elif isinstance(event, Closed):
            session = self._sessions.get(event.session)
            return [] if session is None else self._end(session)
        elif isinstance(event, Rejected):
            return [Reply(event.session, Refused(event.seq, event.code, event.message, event.hint))]
        elif isinstance(event, Unread):
            return self._on_unread(event)
        elif isinstance(event, Backlog):
            (self._full.add if event.full else self._full.discard)(event.worker)
        return []

    @property
    def workers_with_notices(self) -> list[int]:
        return [worker for worker, board in self._boards.items() if board.has_ready]

    def take_notices(self, worker: int) -> list[internal.Look]:
        """What `worker` is to be told now. Call only when it has read all that was written to it before."""
        return [internal.Look(*key) for key in self._boards[worker].take()]

    @property
    def session_with_frontiers(self) -> int | None:
        """The session for which `take_frontiers` has something."""
        return self._controller.number if self._controller and self._controller.frontiers else None

    def take_frontiers(self) -> list[Frontiers]:
        """The newest frontiers of each id that the controller has not been told. Call when it has room."""
        if self._controller is None:
            return []
        pending = self._controller.frontiers
        self._controller.frontiers = {}
        return [Frontiers(entry.id, *news) for entry, news in pending.items()]

    @property
    def sessions_to_fetch(self) -> list[int]:
        """The sessions for which `fetch` has something."""
        return list(self._to_fetch)

    def fetch(self, session: int) -> Effects:
        """Have the next part of a large answer sent. Call when the client has room."""
        del self._to_fetch[session]
        peeks = self._sessions[session]
        uuid = peeks.fetch()
        return [Tell((peeks.peeks[uuid].worker,), internal.Fetch(session, uuid))]

    def statistics(self) -> MuxStatistics:
        sessions = self._sessions.values()
        catalogs = self._catalogs(*self._sessions.values())
        return MuxStatistics(
            sessions=len(self._sessions),
            peeks_in_flight=sum(len(s.peeks) for s in sessions),
            answers_stashed=sum(len(s.stashed) for s in sessions),
            declared=sum(len(c) for c in catalogs),
            syncs_pending=sum(s.syncs_pending for s in sessions),
            notice_entries=sum(board.size for board in self._boards.values()),
            frontiers_pending=sum(len(s.frontiers) for s in sessions),
            stale_answers=self._stale_answers,
            reconciled=dict(self._reconciled),
        )

    # -- clients -------------------------------------------------------------------------------------------

    def _on_command(self, event: Received) -> Effects:
        session = self._sessions.get(event.session)
        if session is None:
            return []  # closed or fenced; none of its commands has effect any more
        command = event.command
        problem = session.machine.command(command)
        if problem is not None:
            return [Reply(session.number, Refused(command.seq, *problem))]
        try:
            return self._commands[type(command)](session, command, event.payload)
        except Refusal as refusal:
            return [self._refuse(session, command, refusal)]

    def _refuse(self, session: Session, command: Command, refusal: Refusal) -> Reply:
        refused = Refused(command.seq, refusal.code, refusal.message, refusal.hint)
        session.machine.response(refused)  # takes back the move of stage, if it made one
        return Reply(session.number, refused)

    def _on_peek(self, session: Session, peek: Peek, payload: bytes) -> Effects:
        uuid = peek.uuid
        if uuid in session.peeks:
            raise Refusal("duplicate-uuid", f"peek {uuid!r} is still open", "use a fresh uuid a peek")
        try:
            entry, worker = self._judge_peek(session, peek)
        except Refusal as refusal:
            error = PeekError(refusal.code, refusal.message, refusal.hint)
            return [Reply(session.number, PeekResponse(uuid, error))]
        session.peeks[uuid] = Pending(worker, entry)
        if worker and not entry.dataflow.query:
            self._boards[worker].gain(entry.key)
        return [Forward((worker,), session.number, peek, payload, {entry.id: entry.incarnation})]

    def _judge_peek(self, session: Session, peek: Peek) -> tuple[Collection, int]:
        """Return what is read and who reads it. Raises Refusal, which becomes the peek's answer."""
        catalog = session.catalog if session.catalog is not None else self._standing
        if catalog is None:
            raise Refusal("unknown-id", f"{peek.id} was not created: no controller has come yet")
        entry = catalog.find_readable(peek.id, peek.time)
        in_force = self._settings.values
        limit = in_force["max_peeks_in_flight"]
        if len(session.peeks) >= limit:
            why = f"{len(session.peeks)} peeks in flight, max_peeks_in_flight is {limit}"
            raise Refusal("limit", why, "wait for answers, or raise the setting")
        check_peek_size(peek, max_keys=in_force["max_peek_keys"], max_nodes=in_force["max_peek_nodes"])
        by_key = peek.keys is not None
        worker = self._placement.reader(entry, by_key=by_key, routing=in_force["read_routing"])
        self._refuse_if_full((worker,))
        return entry, worker

    def _on_cancel(self, session: Session, cancel: CancelPeek, payload: bytes) -> Effects:
        pending = session.peeks.get(cancel.uuid)
        if pending is None:
            return []  # answered already, or never sent: the canceller has, or is owed, nothing
        return [Forward((pending.worker,), session.number, cancel, payload, {})]

    def _on_hello(self, session: Session, hello: Hello, payload: bytes) -> Effects:
        try:
            check_version(hello)
            if hello.kind == "reader":
                session.subscriptions = Catalog(session.number)
                return []
            self._fencing.admit(hello)
        except Refusal as refusal:
            return self._turn_away(session, hello, refusal)
        effects: Effects = []
        older = self._controller
        if older is not None:
            effects += self._end(older)
            closing = Closing(
                "fenced", f"a controller with epoch {hello.epoch} took over", "do not reconnect"
            )
            effects += [Close(older.number, closing), Fenced(older.number, session.number)]
        self._controller = session
        session.catalog = Catalog(session.number)
        effects.append(Tell(self._placement.everyone, internal.SessionStart(session.number)))
        return effects

    def _turn_away(self, session: Session, command: Command, refusal: Refusal) -> Effects:
        """Refuse `command` and close its connection."""
        refused = self._refuse(session, command, refusal)
        closing = Closing(refusal.code, refusal.message, refusal.hint)
        return [refused, *self._end(session), Close(session.number, closing)]

    def _on_create_instance(self, session: Session, command: CreateInstance, payload: bytes) -> Effects:
        try:
            session.config = self._settings.instance(command.config)
        except Refusal as refusal:
            if refusal.code == "incompatible-config":
                return self._turn_away(session, command, refusal)
            raise
        catalog = session.own_catalog
        incarnations = {}
        for entry in self._introspection:
            catalog.adopt(entry)
            incarnations[entry.id] = entry.incarnation
        session.unvalidated.update(self._placement.everyone)
        effects: Effects = [Forward(self._placement.everyone, session.number, command, payload, incarnations)]
        if not self._introspection_announced:
            self._introspection_announced = True
            for entry in self._introspection:
                effects += self._announce(session, entry)
        return effects

    def _on_configuration(self, session: Session, command: UpdateConfiguration, payload: bytes) -> Effects:
        session.config = self._settings.update(session.config, command.config)
        if session.machine.stage is Stage.COMPUTATION:
            self._settings.values = session.config
        return [Forward(self._placement.everyone, session.number, command, payload, {})]

    def _on_initialization_complete(
        self, session: Session, command: InitializationComplete, payload: bytes
    ) -> Effects:
        catalog = session.own_catalog
        counts = tally(self._standing, catalog)
        for outcome, count in counts.items():
            self._reconciled[outcome] = self._reconciled.get(outcome, 0) + count
        for entry in self._standing or ():
            if catalog.get(entry.id) is not entry:
                self._abandon(entry, to=catalog)
        self._standing = catalog
        self._settings.values = session.config
        session.unvalidated.update(self._placement.everyone)  # what was collected is validated by now
        effects: Effects = [Reconciled(session.number, counts)] if counts else []
        return [*effects, Forward(self._placement.everyone, session.number, command, payload, {})]

    def _on_create_dataflow(self, session: Session, command: CreateDataflow, payload: bytes) -> Effects:
        header = command.header
        catalog = session.own_catalog
        imports = self._check_reader(header, catalog) if session.is_reader else catalog.check(header)
        owner, query = self._placement.dataflow(header, imports)
        self._refuse_if_full((owner,))
        digest = digest_of(command)
        old, outcome = judge(self._older_than(session), header, digest, imports)
        dataflow = Dataflow(command.seq, owner, query=query, imports=imports, digest=digest, outcome=outcome)
        kept = {} if old is None else {entry.id: entry.incarnation for entry in old.exports}
        catalog.declare(
            dataflow,
            [(export, kept.get(export.id) or self._next_incarnation()) for export in header.exports],
            header.as_of,
        )
        session.unvalidated.add(owner)
        named = (*dataflow.exports, *imports)
        incarnations = {entry.id: entry.incarnation for entry in named}
        effects: Effects = [Forward((owner,), session.number, command, payload, incarnations)]
        if owner:
            for entry in imports:
                if not entry.dataflow.query:
                    self._boards[owner].gain(entry.key)
        else:
            for entry in dataflow.exports:
                effects += self._announce(session, entry)
        return effects

    def _check_reader(self, header: DataflowHeader, subscriptions: Catalog) -> tuple[Collection, ...]:
        """As `Catalog.check`, for a reader: it may subscribe to indexes that stand, and nothing else."""
        if header.source_imports or any(export.kind != "subscribe" for export in header.exports):
            hint = "subscribe to an index, or connect as the controller"
            raise Refusal("unauthorized", f"a reader cannot create dataflow {header.name!r}", hint)
        if self._standing is None:
            raise Refusal("unknown-id", "there is nothing to subscribe to: no controller has come yet")
        return subscriptions.check(header, self._standing)

    def _announce(self, session: Session, entry: Collection) -> Effects:
        """Tell the interactive workers of what they may read of maintenance's; of an index their hold on it
        starts here (R6).
        """
        if entry.export.kind not in READABLE_KINDS or self._placement.is_solo:
            return []
        declare = internal.Declare(session.number, entry.export, entry.incarnation, entry.as_of)
        return [Tell(self._placement.interactive, declare)]

    def _undeclare(self, session: int, entry: Collection, code: str) -> Effects:
        """Tell the interactive workers, who were told of it, that nothing of it will be read any more."""
        if entry.export.kind not in READABLE_KINDS or self._placement.is_solo:
            return []
        gone = internal.Undeclare(session, entry.id, entry.incarnation, code)
        return [Tell(self._placement.interactive, gone)]

    def _on_owner_command(self, session: Session, command: Schedule | AllowWrites, payload: bytes) -> Effects:
        entry = session.own_catalog.find(command.id)
        self._refuse_if_full((entry.owner,))
        session.unvalidated.add(entry.owner)
        return [Forward((entry.owner,), session.number, command, payload, {entry.id: entry.incarnation})]

    def _on_allow_compaction(self, session: Session, command: AllowCompaction, payload: bytes) -> Effects:
        if len(command.frontier) > 1 or any(not 0 <= t <= MAX_TIME for t in command.frontier):
            raise Refusal("bad-message", f"{list(command.frontier)} is no frontier", "write [] or [TIME]")
        catalog = session.own_catalog
        entry = catalog.find(command.id)
        workers = self._placement.hears_compaction(entry)
        if command.frontier:
            self._refuse_if_full(workers)  # a drop is never refused: it frees
        catalog.compact(command.id, command.frontier)
        session.unvalidated.add(entry.owner)
        for board in self._boards.values():
            board.ride(entry.key)
        if entry.dropped:
            if entry.dataflow.live == 0:
                self._lose_imports(entry.dataflow)
            if entry.is_finished:
                self._forget_notices(entry)
        forward = Forward(workers, session.number, command, payload, {entry.id: entry.incarnation})
        if entry.dropped and entry.export.kind == "materialized-view":
            return [forward, *self._undeclare(session.number, entry, "dropped")]
        return [forward]

    def _on_sync(self, session: Session, sync: Sync, payload: bytes) -> Effects:
        # A worker held by the test hook is left out: its validation cannot come before the release.
        waiting = session.unvalidated - self._held
        session.unvalidated -= waiting
        session.begin_sync(sync.seq, waiting)
        effects: Effects = []
        if waiting:
            effects.append(Forward(tuple(sorted(waiting)), session.number, sync, payload, {}))
        effects += (Reply(session.number, done) for done in session.finish_syncs())
        return effects

    def _on_test_hook(self, session: Session, hook: TestHook, payload: bytes) -> Effects:
        if not self._test_hooks:
            raise Refusal("unauthorized", "test hooks are off", "start the daemon with --test-hooks")
        worker = self._names.get(hook.process)
        if worker is None:
            raise Refusal("bad-message", f"no process {hook.process!r}", "one of " + ", ".join(self._names))
        if hook.action in ("stall", "release"):
            held = hook.action == "stall"
            (self._held.add if held else self._held.discard)(worker)
            return [Hold(worker, held)]
        word, _, action = hook.action.partition(":")
        if word != "failpoint" or not action:
            raise Refusal("bad-message", f"action {hook.action!r}", "stall, release or failpoint:ACTION")
        session.unvalidated.add(worker)
        return [Tell((worker,), internal.Hook(hook.name, action))]

    def _end(self, session: Session) -> Effects:
        """The session is over: its peeks are forgotten; a controller's dataflows run on."""
        del self._sessions[session.number]
        self._to_fetch.pop(session.number, None)
        session.machine.close()
        workers = {pending.worker for pending in session.peeks.values()}
        for pending in session.peeks.values():
            self._lose(pending)
        session.peeks.clear()
        for entry in session.subscriptions or ():
            workers.add(entry.owner)
            self._abandon(entry, to=None)
        if session is self._controller:
            self._controller = None
            catalog = session.catalog
            if catalog is not None and catalog is not self._standing:
                # Collected, never in force: as if it had not been said.
                for entry in catalog:
                    if entry not in self._introspection:
                        self._abandon(entry, to=self._standing)
            workers.update(self._placement.everyone)
        if not workers:
            return []
        return [Tell(tuple(sorted(workers)), internal.SessionEnd(session.number))]

    # -- workers -------------------------------------------------------------------------------------------

    def _on_answer(self, worker: int, answer: internal.Answer) -> Effects:
        session = self._sessions.get(answer.session)
        pending = None if session is None else session.peeks.get(answer.uuid)
        if session is None or pending is None or pending.worker != worker:
            self._stale_answers += 1  # of a session that is over, or a second one
            return []
        session.answered(answer.uuid)
        self._note_fetch(session)
        self._lose(pending)
        return [Pass(answer.session, answer.response)]

    def _on_stashed(self, worker: int, stashed: internal.Stashed) -> Effects:
        session = self._sessions.get(stashed.session)
        if session is not None and stashed.uuid in session.peeks:
            session.stashed[stashed.uuid] = None
            self._note_fetch(session)
        return []

    def _on_part(self, worker: int, part: internal.Part) -> Effects:
        session = self._sessions.get(part.session)
        if session is None or session.fetching != part.uuid:
            return []  # of a session that is over
        session.fetching = None
        self._note_fetch(session)
        return [Pass(part.session, part.response)]

    def _note_fetch(self, session: Session) -> None:
        if session.may_fetch:
            self._to_fetch[session.number] = None
        else:
            self._to_fetch.pop(session.number, None)

    def _on_telling(self, worker: int, telling: internal.Telling) -> Effects:
        session, entry = self._told(telling.session, telling.id)
        if session is None or entry is None or entry.incarnation != telling.incarnation:
            return []
        if entry.owner != worker or entry.told_all:
            return []
        if telling.ends:
            session.own_catalog.end_telling(entry)
            self._lose_imports(entry.dataflow)
        if entry.export.kind != "subscribe":
            return [Pass(session.number, telling.response)]
        return [Stream(session.number, telling.id, telling.response, telling.lower)]

    def _on_unread(self, unread: Unread) -> Effects:
        """The client does not take what a subscription tells it: end that one, and nothing else."""
        session, entry = self._told(unread.session, unread.id)
        if session is None or entry is None or entry.told_all:
            return []
        session.own_catalog.end_telling(entry)
        self._lose_imports(entry.dataflow)
        why = f"{unread.backlog_bytes} bytes were not read"
        end = DroppedAt(unread.lower, "limit", why, "read what is told, or subscribe to less")
        cut = internal.Cut(entry.id, entry.incarnation)
        return [Reply(session.number, SubscribeResponse(entry.id, end)), Tell((entry.owner,), cut)]

    def _told(self, number: int, id: GlobalId) -> tuple[Session | None, Collection | None]:
        """The subscription or copy `id` of an open session."""
        session = self._sessions.get(number)
        entry = None if session is None else session.own_catalog.get(id)
        return session, entry if entry is not None and entry.export.kind in TOLD_KINDS else None

    def _on_frontier_report(self, worker: int, report: internal.FrontierReport) -> Effects:
        controller = self._controller
        entry = catalog = None
        for catalog in self._catalogs():
            if (
                controller is not None
                and catalog is controller.catalog
                and report.session != controller.number
            ):
                continue  # of an older session: what goes on is told afresh, and that must be news
            found = catalog.get(report.id)
            if found is not None and found.incarnation == report.incarnation and found.owner == worker:
                entry = found
                break
        if entry is None or catalog is None:
            return []  # another's copy, session or incarnation, or a collection that was taken back
        news = catalog.report(entry, (report.write, report.input, report.output))
        if entry.reported[0] == ():
            self._lose_imports(entry.dataflow)  # computed for good: it looks no more
        if entry.is_finished:
            self._forget_notices(entry)
        if controller is None or catalog is not controller.catalog:
            return []
        if any(frontier is not None for frontier in news):
            waiting = controller.frontiers.setdefault(entry, [None, None, None])
            for kind, frontier in enumerate(news):
                if frontier is not None:
                    waiting[kind] = frontier
        return []

    def _on_look(self, worker: int, look: internal.Look) -> Effects:
        if worker != OWNER or self._placement.is_solo:
            return []
        standing = False
        for catalog in self._catalogs():
            entry = catalog.get(look.id)
            if entry is not None and entry.incarnation == look.incarnation:
                standing = not entry.dropped
        for board in self._boards.values():
            board.note((look.id, look.incarnation), standing=standing)
        return [Tell((OWNER,), internal.LookAck(look.id, look.incarnation))]

    def _on_applied(self, worker: int, applied: internal.Applied) -> Effects:
        if worker == OWNER:
            return []
        said = internal.AppliedBy(worker - 1, applied.id, applied.incarnation, applied.frontier)
        return [Tell((OWNER,), said)]

    def _on_refusal(self, worker: int, refusal: internal.Refusal) -> Effects:
        effects: Effects = []
        session = self._sessions.get(refusal.session)
        for catalog in self._catalogs(session):
            dataflow = catalog.undeclare(refusal.seq) if catalog.session == refusal.session else None
            if dataflow is None:
                continue
            self._lose_imports(dataflow)
            for entry in dataflow.exports:
                if self._stands_in(entry, self._standing) or self._stands_in(entry, self._collecting()):
                    continue  # told again by a newer session: it is judged anew
                self._forget_notices(entry)
                if dataflow.owner == OWNER:
                    effects += self._undeclare(refusal.session, entry, "unknown-id")
        if session is not None:
            refused = Refused(refusal.seq, refusal.code, refusal.message, refusal.hint)
            session.machine.response(refused)
            effects.append(Reply(refusal.session, refused))
        return effects

    def _on_sync_done(self, worker: int, done: internal.SyncDone) -> Effects:
        session = self._sessions.get(done.session)
        if session is None:
            return []
        session.sync_done(done.seq, worker)
        return [Reply(session.number, synced) for synced in session.finish_syncs()]

    def _on_ready(self, worker: int, ready: internal.Ready) -> Effects:
        return []

    # -- small parts ---------------------------------------------------------------------------------------

    def _catalogs(self, *readers: Session | None) -> list[Catalog]:
        """The catalog being collected, if any, the standing one, and those of these readers."""
        found = [self._collecting(), self._standing]
        found += [None if session is None else session.subscriptions for session in readers]
        return [catalog for catalog in found if catalog is not None]

    def _collecting(self) -> Catalog | None:
        """The catalog of a controller in initialisation."""
        catalog = None if self._controller is None else self._controller.catalog
        return None if catalog is self._standing else catalog

    def _older_than(self, session: Session) -> Catalog | None:
        """What stands while `session` is in initialisation, and may go on in it."""
        return None if session.is_reader or session.catalog is self._standing else self._standing

    @staticmethod
    def _stands_in(entry: Collection, catalog: Catalog | None) -> bool:
        """Whether the catalog declares the very collection, as the same entry or another."""
        found = None if catalog is None else catalog.get(entry.id)
        return found is not None and found.incarnation == entry.incarnation

    def _declare_introspection(self, exports: tuple[Export, ...]) -> tuple[Collection, ...]:
        dataflow = Dataflow(0, OWNER, query=False, imports=())
        dataflow.live = len(exports)
        dataflow.exports = tuple(Collection(e, self._next_incarnation(), 0, 0, dataflow) for e in exports)
        return dataflow.exports

    def _next_incarnation(self) -> int:
        self._last_incarnation += 1
        return self._last_incarnation

    def _refuse_if_full(self, workers: tuple[int, ...]) -> None:
        if self._full and not self._full.isdisjoint(workers):
            raise Refusal("limit", "a worker has too many commands it did not take yet", "send fewer at once")

    def _lose(self, pending: Pending) -> None:
        if pending.worker and not pending.collection.dataflow.query:
            self._boards[pending.worker].lose(pending.collection.key)

    def _lose_imports(self, dataflow: Dataflow) -> None:
        """The dataflow waits for its imports no more. Once only: it lets go of them."""
        if dataflow.owner:
            for entry in dataflow.imports:
                if not entry.dataflow.query:
                    self._boards[dataflow.owner].lose(entry.key)
        dataflow.imports = ()

    def _abandon(self, entry: Collection, *, to: Catalog | None) -> None:
        """Its catalog is not, or no longer, in force: `to` is, where the collection may go on."""
        self._lose_imports(entry.dataflow)
        if not self._stands_in(entry, to):
            self._forget_notices(entry)

    def _forget_notices(self, entry: Collection) -> None:
        for board in self._boards.values():
            board.forget(entry.key)

    def validate_state(self) -> None:
        """Whole-structure checks, for tests. Raises InvariantViolation."""
        interest: dict[tuple[int, Any], int] = {}
        for session in self._sessions.values():
            for pending in session.peeks.values():
                if pending.worker and not pending.collection.dataflow.query:
                    at = (pending.worker, pending.collection.key)
                    interest[at] = interest.get(at, 0) + 1
        for catalog in self._catalogs(*self._sessions.values()):
            for dataflow in {entry.dataflow for entry in catalog}:
                for imported in dataflow.imports:
                    if dataflow.owner and not imported.dataflow.query:
                        at = (dataflow.owner, imported.key)
                        interest[at] = interest.get(at, 0) + 1
        for (worker, key), count in interest.items():
            if self._boards[worker].interest(key) != count:
                held = self._boards[worker].interest(key)
                raise InvariantViolation("interest miscounted", worker=worker, key=key, held=held, owed=count)
        if (
            self._controller is not None
            and self._sessions.get(self._controller.number) is not self._controller
        ):
            raise InvariantViolation("controller is no session", session=self._controller.number)
