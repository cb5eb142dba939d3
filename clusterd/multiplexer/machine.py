"""The state machine: takes events, returns effects, with a part for each kind of thing that is said.

What clients say goes through the session's stage first (`controller_proto.stage`), and from there to the part
that knows the command; what workers say goes to the part that knows the report. Barriers and test hooks are
here: Syncs are answered in their order, each when no worker can refuse a command from before it any more.

Does not: keep what the parts share (state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from clusterd import internal
from clusterd.config import SETTINGS, Setting
from clusterd.multiplexer.dataflows import Dataflows
from clusterd.multiplexer.events import (
    Backlog,
    Closed,
    Effects,
    Event,
    Forward,
    Hold,
    Opened,
    Received,
    Rejected,
    Reply,
    Tell,
    Unread,
    WorkerSaid,
)
from clusterd.multiplexer.iterations import Iterations
from clusterd.multiplexer.notices import NoticeStatistics
from clusterd.multiplexer.peeks import Peeks
from clusterd.multiplexer.placement import Placement
from clusterd.multiplexer.reports import Reports
from clusterd.multiplexer.sessions import Session, SettingsInForce, refuse
from clusterd.multiplexer.state import State
from controller_proto.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
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
from controller_proto.dataflow import Export
from controller_proto.errors import Refusal
from controller_proto.response import Frontiers, Refused, Status

__all__ = ["Multiplexer", "MuxStatistics"]


class MuxStatistics(msgspec.Struct, frozen=True):
    """Counts of what is held now, but for `stale_answers` and `reconciled`, which only grow.

    answers_stashed: those of the peeks in flight that go out in parts. notices: by interactive worker, ever.
    reconciled: dataflows by what became of them when a controller came back (`reconcile.tally`).
    """

    sessions: int
    peeks_in_flight: int
    answers_stashed: int
    declared: int
    syncs_pending: int
    notice_entries: int
    notices: dict[str, NoticeStatistics]
    frontiers_pending: int
    stale_answers: int
    reconciled: dict[str, int]


class Multiplexer:
    """The way in is `handle`; the shell pulls `take_notices`, `take_news` and `fetch`."""

    def __init__(
        self,
        *,
        interactive_workers: int,
        test_hooks: bool = False,
        settings: Mapping[str, Setting] = SETTINGS,
        introspection: tuple[Export, ...] = (),
    ) -> None:
        """interactive_workers: M; 0 is Solo. introspection: what the observer has, if there is one."""
        placement = Placement(interactive_workers, observed=bool(introspection))
        self._state = State(placement, SettingsInForce(settings), introspection)
        self._peeks = Peeks(self._state)
        self._dataflows = Dataflows(self._state)
        self._reports = Reports(self._state)
        self._iterations = Iterations(self._state, self._peeks)
        self._test_hooks = test_hooks
        names = ["solo/0" if placement.is_solo else "maintenance/0"]
        names += (f"interactive/{worker - 1}" for worker in placement.interactive)
        names += ["introspection/0"] if introspection else []
        self._names = {name: worker for worker, name in enumerate(names)}
        self._held: set[int] = set()
        self._of_command: dict[type, Callable[[Session, Any, bytes], Effects]] = {
            Peek: self._peeks.on_peek,
            CancelPeek: self._peeks.on_cancel,
            Hello: self._iterations.on_hello,
            CreateInstance: self._iterations.on_create_instance,
            UpdateConfiguration: self._iterations.on_configuration,
            InitializationComplete: self._iterations.on_initialization_complete,
            CreateDataflow: self._dataflows.on_create,
            Schedule: self._dataflows.on_owner_command,
            AllowWrites: self._dataflows.on_owner_command,
            AllowCompaction: self._dataflows.on_allow_compaction,
            Sync: self._on_sync,
            TestHook: self._on_test_hook,
        }
        self._of_report: dict[type, Callable[[int, Any], Effects]] = {
            internal.Answer: self._peeks.on_answer,
            internal.Stashed: self._peeks.on_stashed,
            internal.Part: self._peeks.on_part,
            internal.Telling: self._reports.on_telling,
            internal.FrontierReport: self._reports.on_frontiers,
            internal.StatusReport: self._reports.on_status,
            internal.Looks: self._reports.on_looks,
            internal.Applied: self._reports.on_applied,
            internal.Refusal: self._dataflows.on_refusal,
            internal.SyncDone: self._on_sync_done,
            internal.Ready: lambda worker, ready: [],
        }

    # -- for the shell -------------------------------------------------------------------------------------

    def handle(self, event: Event) -> Effects:
        """Take one event; what is returned is to be performed in order, before the next event."""
        kind = type(event)
        if kind is Received:
            return self._on_command(event)  # type: ignore[arg-type]
        if kind is WorkerSaid:
            return self._of_report[type(event.message)](event.worker, event.message)  # type: ignore[union-attr]
        if isinstance(event, Opened):
            self._state.sessions[event.session] = Session(event.session)
        elif isinstance(event, Closed):
            session = self._state.sessions.get(event.session)
            return [] if session is None else self._iterations.end(session)
        elif isinstance(event, Rejected):
            return [Reply(event.session, Refused(event.seq, event.code, event.message, event.hint))]
        elif isinstance(event, Unread):
            return self._reports.on_unread(event)
        elif isinstance(event, Backlog):
            (self._state.full.add if event.full else self._state.full.discard)(event.worker)
        return []

    @property
    def workers_with_notices(self) -> list[int]:
        return [worker for worker, board in self._state.boards.items() if board.has_ready]

    def take_notices(self, worker: int) -> list[internal.Look]:
        """What `worker` is to be told now. Call only when it has read all that was written to it before."""
        return [internal.Look(*key) for key in self._state.boards[worker].take()]

    @property
    def session_with_news(self) -> int | None:
        """The session for which `take_news` has something."""
        return self._reports.session_with_news

    def take_news(self) -> list[Frontiers | Status]:
        """The newest status and frontiers of each id that the controller has not been told. Call when it has
        room.
        """
        return self._reports.take_news()

    def is_ahead(self, session: int) -> bool:
        """Whether a session's commands are to wait till some of its reads are answered."""
        return self._peeks.is_ahead(session)

    @property
    def sessions_to_fetch(self) -> list[int]:
        """The sessions for which `fetch` has something."""
        return self._peeks.sessions_to_fetch

    def fetch(self, session: int) -> Effects:
        """Have the next part of a large answer sent. Call when the client has room."""
        return self._peeks.fetch(session)

    @property
    def settings(self) -> Mapping[str, bool | int | float | str]:
        """Those in force."""
        return self._state.settings.values

    def statistics(self) -> MuxStatistics:
        sessions = self._state.sessions.values()
        return MuxStatistics(
            sessions=len(sessions),
            peeks_in_flight=sum(len(s.peeks) for s in sessions),
            answers_stashed=sum(len(s.stashed) for s in sessions),
            declared=sum(len(catalog) for catalog in self._state.catalogs(*sessions)),
            syncs_pending=sum(s.syncs_pending for s in sessions),
            notice_entries=sum(board.size for board in self._state.boards.values()),
            notices={f"interactive/{n - 1}": board.statistics() for n, board in self._state.boards.items()},
            frontiers_pending=sum(len(s.frontiers) for s in sessions),
            stale_answers=self._peeks.stale_answers,
            reconciled=dict(self._iterations.reconciled),
        )

    def validate_state(self) -> None:
        """Whole-structure checks, for tests. Raises InvariantViolation."""
        self._state.validate()

    # -- commands ------------------------------------------------------------------------------------------

    def _on_command(self, event: Received) -> Effects:
        session = self._state.sessions.get(event.session)
        if session is None:
            return []  # closed or fenced; none of its commands has effect any more
        command = event.command
        problem = session.machine.command(command)
        if problem is not None:
            return [Reply(session.number, Refused(command.seq, *problem))]
        try:
            return self._of_command[type(command)](session, command, event.payload)
        except Refusal as refusal:
            return [refuse(session, command, refusal)]

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

    def _on_sync_done(self, worker: int, done: internal.SyncDone) -> Effects:
        session = self._state.sessions.get(done.session)
        if session is None:
            return []
        session.sync_done(done.seq, worker)
        return [Reply(session.number, synced) for synced in session.finish_syncs()]

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
