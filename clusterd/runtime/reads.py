"""Reads: peeks judged, parked, handed out and answered.

A peek is judged in the protocol's order: is the id known, do keys and finishing fit, is its time readable.
Then it is owed an answer. It is handed out at once if what is known suffices, and else parked, which makes it
count in the hold; for a collection of another process parking comes before looking at its page, so news that
comes in between finds it (R10; docs/models/shared_reads.pml). Of a session in initialisation, a peek of what
stands already is put off until the session's settings are in force (I13).

Does not: know why a collection moves or goes (flows.py), evaluate.
"""

from __future__ import annotations

import msgspec

from clusterd import internal
from clusterd.runtime import effects as fx
from clusterd.runtime.collection import Collection
from clusterd.runtime.peeks import Key, PeekState, PendingPeek
from clusterd.runtime.state import RuntimeState, dropped, unknown
from controller_proto.command import CancelPeek, Peek
from controller_proto.dataflow import MAX_TIME
from controller_proto.errors import Refusal
from controller_proto.response import PeekCanceled, PeekError, PeekResponse, PeekResult

__all__ = ["Reads"]


class Reads:
    """The peeks' side of a core."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._peeks = state.peeks
        self._role = state.policy.role.value
        self._put_off: dict[tuple[int, str], PendingPeek] = {}
        self._unread = dict.fromkeys(("error", "canceled"), 0)  # answers for which nothing was looked at

    def peek(self, session: int, peek: Peek, key: Key) -> bool:
        """A new peek of `key`; whether it was put off. Raises Refusal(`duplicate-uuid`)."""
        state = self._state
        name = (session, peek.uuid)
        if name in self._peeks or name in self._put_off:
            raise Refusal("duplicate-uuid", f"peek {peek.uuid!r} is still open", "use a fresh uuid a peek")
        collection = state.find(key, session)
        if collection is None and key not in state.refused:
            collection = state.policy.unknown(state, key, session)
        if collection is None:
            self._answer_error(session, peek.uuid, unknown(key[0]))
            return False
        try:
            self._check(collection, peek)
        except Refusal as refusal:
            self._answer_error(session, peek.uuid, refusal)
            return False
        least = collection.announced.time
        latest = peek.time is None
        pending = PendingPeek(session, peek, key, least if peek.time is None else peek.time, latest=latest)
        if collection is state.collections[key]:
            self._accept(collection, pending)
            return False
        self._put_off[name] = pending
        return True

    def resume(self, session: int, uuid: str) -> None:
        """Take up a peek that was put off, unless it was canceled."""
        pending = self._put_off.pop((session, uuid), None)
        if pending is None:
            return
        collection = self._state.collections.get(pending.collection)
        if collection is None or collection.applied.is_empty:
            self._answer_error(session, uuid, dropped(pending.peek.id))  # its page was closed meanwhile
            return
        if collection.ended is not None:
            self._answer_error(session, uuid, collection.ended)  # given up meanwhile
            return
        self._accept(collection, pending)

    def _accept(self, collection: Collection, pending: PendingPeek) -> None:
        if self._is_ready(collection, pending):
            self._peeks.accept(pending, ready=True)
            self._hand_out(collection, pending)
            return
        self._peeks.accept(pending)
        self._state.emit(fx.Parked(pending))
        if collection.standing and not collection.is_owned and not collection.is_placeholder:
            self._state.policy.look(self._state, collection)

    def _check(self, collection: Collection, peek: Peek) -> None:
        """The first checks of a peek, in their order (protocol decision 6). Raises Refusal."""
        if collection.gone:
            raise dropped(peek.id) if collection.gone == "dropped" else unknown(peek.id)
        if collection.ended is not None:
            raise collection.ended
        if collection.export is not None:
            self._state.ports.check_peek(peek, collection.export)
        if peek.time is not None and not collection.announced.less_equal(peek.time):
            since = collection.announced.time
            raise Refusal(
                "below-since",
                f"{peek.id} cannot be read at {peek.time}: its since is {since}",
                f"read at {since} or later",
            )

    def recheck(self, collection: Collection) -> None:
        """A placeholder was declared: judge what is parked on it."""
        for pending in self._peeks.waiting(collection.key):
            try:
                self._check(collection, pending.peek)
            except Refusal as refusal:
                self._peeks.answered(pending.session, pending.uuid)
                self._answer_error(pending.session, pending.uuid, refusal)
                continue
            if pending.latest:
                self._peeks.repark(pending, collection.announced.time)

    def _is_ready(self, collection: Collection, pending: PendingPeek) -> bool:
        """Whether what is known suffices. A page that moved is looked at; for the newest time, any page."""
        if not collection.standing or collection.is_placeholder or collection.upper.less_equal(pending.time):
            return False
        return collection.is_owned or not (collection.stale or pending.latest)

    def _hand_out(self, collection: Collection, pending: PendingPeek) -> None:
        time = pending.time
        if pending.latest:
            # Sealed for ever: every later time reads the same, so the greatest names it in either mode.
            time = MAX_TIME if collection.upper.is_empty else max(time, collection.upper.time - 1)
        self._state.emit(fx.Evaluate(pending, time))

    def wake(self, collection: Collection) -> None:
        """The collection moved: hand out what it lets go, and of nothing else."""
        woken = self._peeks.wake(collection.key, collection.upper)
        for pending in woken:
            self._hand_out(collection, pending)
        if woken:
            self._state.touch(collection.key)

    def evaluated(self, event: fx.Evaluated) -> None:
        if self._peeks.answered(event.session, event.uuid) is not None:
            answer = internal.Answer(event.session, event.uuid, msgspec.Raw(event.response))
            self._state.emit(fx.Send(answer))

    def stashed(self, event: fx.Stashed) -> None:
        """The answer is large: its parts go out as they are asked for."""
        if (event.session, event.uuid) in self._peeks:
            self._state.emit(fx.Send(internal.Stashed(event.session, event.uuid)))

    def fetch(self, fetch: internal.Fetch) -> None:
        """The multiplexer can take another part; nothing if the peek is over (Z18)."""
        if (fetch.session, fetch.uuid) in self._peeks:
            self._state.emit(fx.SendPart(fetch.session, fetch.uuid))

    def part_taken(self, event: fx.PartTaken) -> None:
        part = internal.Part(event.session, event.uuid, msgspec.Raw(event.response))
        self._state.emit(fx.Send(part))

    def waited_out(self, event: fx.WaitedOut) -> None:
        """Answer a peek that was parked for too long."""
        pending = event.pending
        if not self._peeks.expire(pending):
            return
        key, time = pending.collection, "any time" if pending.latest else str(pending.time)
        why = f"{key[0]} was not sealed at {time} within {event.limit_s:g} s"
        hint = "read an earlier time, or allow more in wait_s or wait_limit"
        self._answer_error(pending.session, pending.uuid, Refusal("wait-limit", why, hint))
        self._state.touch(key)

    def cancel(self, session: int, cancel: CancelPeek) -> None:
        """Answer at once, whatever state the peek is in; nothing if none is owed (H2, H4)."""
        if self._put_off.pop((session, cancel.uuid), None) is not None:
            self._answer(session, cancel.uuid, PeekCanceled())
            return
        found = self._peeks.cancel(session, cancel.uuid)
        if found is None:
            return
        pending, was = found
        if was is PeekState.READY:
            self._state.emit(fx.Abandon(session, cancel.uuid))
        self._answer(session, cancel.uuid, PeekCanceled())
        self._state.touch(pending.collection)

    def turn_away(self, key: Key, why: Refusal) -> None:
        """Answer whatever is parked on a collection that is gone."""
        for pending in self._peeks.withdraw(key):
            self._answer_error(pending.session, pending.uuid, why)
        self._state.touch(key)

    def end_session(self, session: int) -> None:
        """Its peeks are forgotten, and hold no more."""
        for name in [name for name in self._put_off if name[0] == session]:
            del self._put_off[name]
        for pending, was in self._peeks.end_session(session):
            if was is PeekState.READY:
                self._state.emit(fx.Abandon(session, pending.uuid))
            self._state.touch(pending.collection)

    def totals(self) -> tuple[tuple[str, str, int], ...]:
        """Answers for which nothing was looked at: result, "none", how many."""
        return tuple((result, "none", count) for result, count in self._unread.items())

    def _answer_error(self, session: int, uuid: str, refusal: Refusal) -> None:
        self._answer(session, uuid, PeekError(refusal.code, refusal.message, refusal.hint))

    def _answer(self, session: int, uuid: str, result: PeekResult) -> None:
        self._unread["canceled" if isinstance(result, PeekCanceled) else "error"] += 1
        response = PeekResponse(uuid, result, served_by=self._role)
        raw = msgspec.Raw(msgspec.msgpack.encode(response))
        self._state.emit(fx.Send(internal.Answer(session, uuid, raw)))
