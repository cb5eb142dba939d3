"""Peeks: judged and sent to one worker each, and answered once, whole or in parts.

Exactly one answer a peek: (session, uuid) stands in `Session.peeks` from the moment it was sent on until the
first answer takes it out. A large answer stays with its worker, which sends a part when the client has room
(`fetch`), one at a time a session, so that no other answer waits behind more.

Does not: choose the worker (placement.py).
"""

from __future__ import annotations

from clusterd import internal
from clusterd.multiplexer.declared import Collection
from clusterd.multiplexer.events import Effects, Forward, Pass, Reply, Tell
from clusterd.multiplexer.sessions import Pending, Session
from clusterd.multiplexer.state import State
from controller_proto.command import CancelPeek, Peek
from controller_proto.errors import Refusal
from controller_proto.response import PeekError, PeekResponse
from controller_proto.validate import check_peek_size

__all__ = ["Peeks"]

_AHEAD = 128  # reads by key of a session on their way: some 5 ms of work, two turns of the endpoint


class Peeks:
    """Peeks in flight. stale_answers: how many came of sessions that were over, or a second time."""

    __slots__ = ("_state", "_to_fetch", "stale_answers")

    def __init__(self, state: State) -> None:
        self._state = state
        self._to_fetch: dict[int, None] = {}  # sessions
        self.stale_answers = 0

    # -- clients

    def on_peek(self, session: Session, peek: Peek, payload: bytes) -> Effects:
        uuid = peek.uuid
        if uuid in session.peeks:
            raise Refusal("duplicate-uuid", f"peek {uuid!r} is still open", "use a fresh uuid a peek")
        try:
            entry, worker = self._judge(session, peek)
        except Refusal as refusal:
            error = PeekError(refusal.code, refusal.message, refusal.hint)
            return [Reply(session.number, PeekResponse(uuid, error))]
        is_prompt = peek.keys is not None and entry.is_sealed(entry.floor if peek.time is None else peek.time)
        session.peeks[uuid] = pending = Pending(worker, entry, is_prompt=is_prompt)
        session.prompt += is_prompt
        self._state.gain(pending)
        return [Forward((worker,), session.number, peek, payload, {entry.id: entry.incarnation})]

    def _judge(self, session: Session, peek: Peek) -> tuple[Collection, int]:
        """Return what is read and who reads it. Raises Refusal, which becomes the peek's answer."""
        state = self._state
        catalog = session.catalog if session.catalog is not None else state.standing
        if state.system.get(peek.id) is not None:
            catalog = state.system
        if catalog is None:
            raise Refusal("unknown-id", f"{peek.id} was not created: no controller has come yet")
        entry = catalog.find_readable(peek.id, peek.time)
        in_force = state.settings.values
        limit = in_force["max_peeks_in_flight"]
        if len(session.peeks) >= limit:
            why = f"{len(session.peeks)} peeks in flight, max_peeks_in_flight is {limit}"
            raise Refusal("limit", why, "wait for answers, or raise the setting")
        check_peek_size(peek, max_keys=in_force["max_peek_keys"], max_nodes=in_force["max_peek_nodes"])
        worker = state.placement.reader(entry, peek, routing=in_force["read_routing"])
        state.refuse_if_full((worker,))
        return entry, worker

    def on_cancel(self, session: Session, cancel: CancelPeek, payload: bytes) -> Effects:
        owner = self._state.sessions.get(cancel.session) if cancel.session else session
        pending = None if owner is None else owner.peeks.get(cancel.uuid)
        if owner is None or pending is None:
            return []  # answered already, or never sent: the canceller has, or is owed, nothing
        return [Forward((pending.worker,), owner.number, cancel, payload, {})]

    def end(self, session: Session) -> set[int]:
        """The session is over: its peeks are forgotten. Returns the workers that have some of them."""
        self._to_fetch.pop(session.number, None)
        for pending in session.peeks.values():
            self._state.lose(pending)
        workers = {pending.worker for pending in session.peeks.values()}
        session.peeks.clear()
        session.prompt = 0
        return workers

    def is_ahead(self, number: int) -> bool:
        """Whether the session has said so many reads by key that another's would wait behind them. It is read
        again when some were answered, which nothing but their worker's pace keeps from happening.
        """
        session = self._state.sessions.get(number)
        return session is not None and session.prompt >= _AHEAD

    @property
    def sessions_to_fetch(self) -> list[int]:
        """The sessions for which `fetch` has something."""
        return list(self._to_fetch)

    def fetch(self, number: int) -> Effects:
        """Have the next part of a large answer sent to the session."""
        del self._to_fetch[number]
        session = self._state.sessions[number]
        uuid = session.fetch()
        return [Tell((session.peeks[uuid].worker,), internal.Fetch(number, uuid))]

    # -- workers

    def on_answer(self, worker: int, answer: internal.Answer) -> Effects:
        session = self._state.sessions.get(answer.session)
        pending = None if session is None else session.peeks.get(answer.uuid)
        if session is None or pending is None or pending.worker != worker:
            self.stale_answers += 1  # of a session that is over, or a second one
            return []
        session.answered(answer.uuid)
        self._note_fetch(session)
        self._state.lose(pending)
        return [Pass(answer.session, answer.response)]

    def on_stashed(self, worker: int, stashed: internal.Stashed) -> Effects:
        session = self._state.sessions.get(stashed.session)
        if session is not None and stashed.uuid in session.peeks:
            session.stashed[stashed.uuid] = None
            self._note_fetch(session)
        return []

    def on_part(self, worker: int, part: internal.Part) -> Effects:
        session = self._state.sessions.get(part.session)
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
