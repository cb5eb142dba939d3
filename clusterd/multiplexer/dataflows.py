"""Commands about dataflows: judged by what is declared, entered in a catalog, sent to who runs them.

The judgement rests on nothing but the commands before (R5); what only the owner can see, such as a plan that
makes no sense, comes back as its refusal, which takes the declaration back. Interactive workers are told of
what they may read of maintenance's with the command that declares it, so before any read of it; of an index
their hold on it starts there (R6).

Does not: choose the owner (placement.py), judge what goes on (reconcile.py).
"""

from __future__ import annotations

from clusterd import internal
from clusterd.multiplexer.declared import READABLE_KINDS, Catalog, Collection, Dataflow
from clusterd.multiplexer.events import Effects, Forward, Reply, Tell
from clusterd.multiplexer.placement import OWNER
from clusterd.multiplexer.reconcile import digest_of, judge
from clusterd.multiplexer.sessions import Session
from clusterd.multiplexer.state import State
from controller_proto.command import AllowCompaction, AllowWrites, CreateDataflow, Schedule
from controller_proto.dataflow import MAX_TIME, DataflowHeader
from controller_proto.errors import Refusal
from controller_proto.response import Refused

__all__ = ["Dataflows"]


class Dataflows:
    """What becomes of dataflows and collections by command."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    # -- clients

    def on_create(self, session: Session, command: CreateDataflow, payload: bytes) -> Effects:
        state, header = self._state, command.header
        catalog = session.own_catalog
        if session.is_reader:
            imports = self._check_reader(header, catalog)
        else:
            imports = catalog.check(header, system=state.system)
        owner, query = state.placement.dataflow(header, imports)
        state.refuse_if_full((owner,))
        digest = digest_of(command)
        old, outcome = judge(state.older_than(session), header, digest, imports)
        dataflow = Dataflow(command.seq, owner, query=query, imports=imports, digest=digest, outcome=outcome)
        kept = {} if old is None else {entry.id: entry.incarnation for entry in old.exports}
        catalog.declare(
            dataflow,
            [(export, kept.get(export.id) or state.next_incarnation()) for export in header.exports],
            header.as_of,
        )
        session.unvalidated.add(owner)
        named = (*dataflow.exports, *imports)
        incarnations = {entry.id: entry.incarnation for entry in named}
        effects: Effects = [Forward((owner,), session.number, command, payload, incarnations)]
        state.gain_imports(dataflow)
        if owner == OWNER:
            for entry in dataflow.exports:
                effects += self.announce(session, entry)
        return effects

    def _check_reader(self, header: DataflowHeader, subscriptions: Catalog) -> tuple[Collection, ...]:
        """As `Catalog.check`, for a reader: it may subscribe to indexes that stand, and nothing else."""
        if header.source_imports or any(export.kind != "subscribe" for export in header.exports):
            hint = "subscribe to an index, or connect as the controller"
            raise Refusal("unauthorized", f"a reader cannot create dataflow {header.name!r}", hint)
        standing, system = self._state.standing, self._state.system
        if standing is None and any(system.get(item.id) is None for item in header.index_imports):
            raise Refusal("unknown-id", "there is nothing to subscribe to: no controller has come yet")
        return subscriptions.check(header, system=system, standing=standing)

    def on_owner_command(self, session: Session, command: Schedule | AllowWrites, payload: bytes) -> Effects:
        entry = session.own_catalog.find(command.id)
        self._state.refuse_if_full((entry.owner,))
        session.unvalidated.add(entry.owner)
        return [Forward((entry.owner,), session.number, command, payload, {entry.id: entry.incarnation})]

    def on_allow_compaction(self, session: Session, command: AllowCompaction, payload: bytes) -> Effects:
        if len(command.frontier) > 1 or any(not 0 <= t <= MAX_TIME for t in command.frontier):
            raise Refusal("bad-message", f"{list(command.frontier)} is no frontier", "write [] or [TIME]")
        state, catalog = self._state, session.own_catalog
        if state.system.get(command.id) is not None:
            return self._keep(command)
        entry = catalog.find(command.id)
        workers = state.placement.hears_compaction(entry)
        if command.frontier:
            state.refuse_if_full(workers)  # a drop is never refused: it frees
        catalog.compact(command.id, command.frontier)
        session.unvalidated.add(entry.owner)
        for board in state.boards.values():
            board.ride(entry.key)
        if entry.dropped:
            if entry.dataflow.live == 0:
                state.lose_imports(entry.dataflow)
            if entry.is_finished:
                state.forget_notices(entry)
        forward = Forward(workers, session.number, command, payload, {entry.id: entry.incarnation})
        if entry.dropped and entry.export.kind == "materialized-view":
            forward.workers = (entry.owner,)
            return [forward, *self._undeclare(session.number, entry, "dropped")]
        return [forward]

    def _keep(self, command: AllowCompaction) -> Effects:
        """Of an introspection relation: its owner keeps as much as it keeps, whoever allows what."""
        if not command.frontier:
            raise Refusal("invalid-plan", f"{command.id} is an introspection relation: it cannot be dropped")
        return []

    # -- workers

    def on_refusal(self, worker: int, refusal: internal.Refusal) -> Effects:
        state = self._state
        effects: Effects = []
        session = state.sessions.get(refusal.session)
        for catalog in state.catalogs(session):
            dataflow = catalog.undeclare(refusal.seq) if catalog.session == refusal.session else None
            if dataflow is None:
                continue
            state.lose_imports(dataflow)
            for entry in dataflow.exports:
                if state.is_declared(entry):
                    continue  # told again by a newer session: it is judged anew
                state.forget_notices(entry)
                if dataflow.owner == OWNER:
                    effects += self._undeclare(refusal.session, entry, "unknown-id")
        if session is not None:
            refused = Refused(refusal.seq, refusal.code, refusal.message, refusal.hint)
            session.machine.response(refused)
            effects.append(Reply(refusal.session, refused))
        return effects

    # -- interactive workers

    def announce(self, session: Session, entry: Collection) -> Effects:
        """Tell the interactive workers of a collection of maintenance's, if it is to be read."""
        if entry.export.kind not in READABLE_KINDS or self._state.placement.is_solo:
            return []
        declare = internal.Declare(session.number, entry.export, entry.incarnation, entry.as_of)
        return [Tell(self._state.placement.interactive, declare)]

    def _undeclare(self, session: int, entry: Collection, code: str) -> Effects:
        """Tell the interactive workers, who were told of it, that nothing of it will be read any more."""
        if entry.export.kind not in READABLE_KINDS or self._state.placement.is_solo:
            return []
        gone = internal.Undeclare(session, entry.id, entry.incarnation, code)
        return [Tell(self._state.placement.interactive, gone)]
