"""The lives of sessions: each controller's is one iteration of the protocol, from its Hello on.

A Hello begins a new catalog, which replaces the standing one at InitializationComplete: until then nothing
that runs changes (P11). A controller that comes ends the session of the one before, whose dataflows run on.

Does not: say who may be controller (`sessions.Fencing`), judge what goes on (reconcile.py).
"""

from __future__ import annotations

from clusterd import internal
from clusterd.multiplexer.declared import Catalog
from clusterd.multiplexer.events import Close, Effects, Fenced, Forward, Reconciled, Tell
from clusterd.multiplexer.peeks import Peeks
from clusterd.multiplexer.reconcile import tally
from clusterd.multiplexer.sessions import Fencing, Session, check_version, refuse
from clusterd.multiplexer.state import State
from controller_proto.command import (
    Command,
    CreateInstance,
    Hello,
    InitializationComplete,
    UpdateConfiguration,
)
from controller_proto.errors import Refusal
from controller_proto.response import Closing
from controller_proto.stage import Stage

__all__ = ["Iterations"]


class Iterations:
    """How sessions begin and end. reconciled: dataflows, by what became of them so far (`tally`)."""

    __slots__ = ("_fencing", "_peeks", "_state", "reconciled")

    def __init__(self, state: State, peeks: Peeks) -> None:
        self._state = state
        self._peeks = peeks
        self._fencing = Fencing()
        self.reconciled: dict[str, int] = {}

    def on_hello(self, session: Session, hello: Hello, payload: bytes) -> Effects:
        try:
            check_version(hello)
            if hello.kind == "reader":
                session.subscriptions = Catalog(session.number)
                return []
            self._fencing.admit(hello)
        except Refusal as refusal:
            return self._turn_away(session, hello, refusal)
        state = self._state
        effects: Effects = []
        older = state.controller
        if older is not None:
            effects += self.end(older)
            closing = Closing(
                "fenced", f"a controller with epoch {hello.epoch} took over", "do not reconnect"
            )
            effects += [Close(older.number, closing), Fenced(older.number, session.number)]
        state.controller = session
        session.catalog = Catalog(session.number)
        effects.append(Tell(state.placement.everyone, internal.SessionStart(session.number)))
        return effects

    def _turn_away(self, session: Session, command: Command, refusal: Refusal) -> Effects:
        """Refuse `command` and close its connection."""
        refused = refuse(session, command, refusal)
        closing = Closing(refusal.code, refusal.message, refusal.hint)
        return [refused, *self.end(session), Close(session.number, closing)]

    def on_create_instance(self, session: Session, command: CreateInstance, payload: bytes) -> Effects:
        try:
            session.config = self._state.settings.instance(command.config)
        except Refusal as refusal:
            if refusal.code == "incompatible-config":
                return self._turn_away(session, command, refusal)
            raise
        everyone = self._state.placement.everyone
        session.unvalidated.update(everyone)
        return [Forward(everyone, session.number, command, payload, {})]

    def on_configuration(self, session: Session, command: UpdateConfiguration, payload: bytes) -> Effects:
        session.config = self._state.settings.update(session.config, command.config)
        if session.machine.stage is Stage.COMPUTATION:
            self._state.settings.values = session.config
        return [Forward(self._state.placement.everyone, session.number, command, payload, {})]

    def on_initialization_complete(
        self, session: Session, command: InitializationComplete, payload: bytes
    ) -> Effects:
        state, catalog = self._state, session.own_catalog
        counts = tally(state.standing, catalog)
        for outcome, count in counts.items():
            self.reconciled[outcome] = self.reconciled.get(outcome, 0) + count
        for entry in state.standing or ():
            if catalog.get(entry.id) is not entry:
                state.abandon(entry, to=catalog)
        state.standing = catalog
        state.settings.values = session.config
        everyone = state.placement.everyone
        session.unvalidated.update(everyone)  # what was collected is validated by now
        effects: Effects = [Reconciled(session.number, counts)] if counts else []
        return [*effects, Forward(everyone, session.number, command, payload, {})]

    def end(self, session: Session) -> Effects:
        """The session is over: its peeks are forgotten; a controller's dataflows run on."""
        state = self._state
        del state.sessions[session.number]
        session.machine.close()
        workers = self._peeks.end(session)
        for entry in session.subscriptions or ():
            workers.add(entry.owner)
            state.abandon(entry, to=None)
        if session is state.controller:
            state.controller = None
            catalog = session.catalog
            if catalog is not None and catalog is not state.standing:
                # Collected, never in force: as if it had not been said.
                for entry in catalog:
                    state.abandon(entry, to=state.standing)
            workers.update(state.placement.everyone)
        if not workers:
            return []
        return [Tell(tuple(sorted(workers)), internal.SessionEnd(session.number))]
