"""What workers report of collections: frontiers, notices, applied compactions, and what is told to a session.

A collection's frontiers are passed on only from its owner, and only upwards; they, and its status, are kept
newest per id until the client has room (`take_news`). A message that names another incarnation, or comes of
another session or worker than the collection has, is dropped (R9).

Does not: hold back what a subscription tells (the endpoint does, and says `Unread`).
"""

from __future__ import annotations

import msgspec

from clusterd import internal
from clusterd.multiplexer.declared import Catalog, Collection, Key
from clusterd.multiplexer.events import Effects, Pass, Reply, Stream, Tell, Unread
from clusterd.multiplexer.placement import OWNER
from clusterd.multiplexer.sessions import Session
from clusterd.multiplexer.state import State
from controller_proto.dataflow import TOLD_KINDS
from controller_proto.ids import GlobalId
from controller_proto.response import DroppedAt, Frontiers, Status, SubscribeResponse

__all__ = ["Reports"]

_encode = msgspec.msgpack.Encoder().encode
_NOTHING = msgspec.Raw(b"\xc0")  # of one byte, in place of what is said


class _Subscribe(msgspec.Struct, frozen=True, tag="subscribe", tag_field="t"):
    """SubscribeResponse, with what it says as the bytes it came in, which are its last."""

    id: GlobalId
    said: msgspec.Raw


class _CopyTo(msgspec.Struct, frozen=True, tag="copy-to", tag_field="t"):
    """CopyToResponse, with its result as the bytes it came in."""

    id: GlobalId
    result: msgspec.Raw


class Reports:
    """Reports of workers, for clients and for other workers."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    # -- frontiers

    def on_frontiers(self, worker: int, report: internal.FrontierReport) -> Effects:
        state = self._state
        found = self._reported(worker, report)
        if found is None:
            return []  # another's copy, session or incarnation, or a collection that was taken back
        catalog, entry = found
        news = catalog.report(entry, (report.write, report.input, report.output))
        if entry.reported[0] == () and not entry.dropped:
            state.lose_imports(entry.dataflow)  # computed for good: it looks no more
        if entry.is_finished:
            state.forget_notices(entry)
        controller = state.controller
        if controller is None or catalog is not controller.catalog:
            return []
        if any(frontier is not None for frontier in news):
            waiting = controller.frontiers.setdefault(entry, [None, None, None])
            for kind, frontier in enumerate(news):
                if frontier is not None:
                    waiting[kind] = frontier
        return []

    def _reported(
        self, worker: int, report: internal.FrontierReport | internal.StatusReport
    ) -> tuple[Catalog, Collection] | None:
        controller = self._state.controller
        for catalog in self._state.catalogs():
            if (
                controller is not None
                and catalog is controller.catalog
                and report.session != controller.number
            ):
                continue  # of an older session: what goes on is told afresh, and that must be news
            entry = catalog.get(report.id)
            if entry is not None and entry.incarnation == report.incarnation and entry.owner == worker:
                return catalog, entry
        return None

    def on_status(self, worker: int, report: internal.StatusReport) -> Effects:
        found = self._reported(worker, report)
        if found is None:
            return []
        (catalog, entry), status, state = found, report.status, self._state
        entry.dataflow.is_errored |= status.status == "errored"
        if state.controller is not None and catalog is state.controller.catalog:
            state.controller.statuses[entry] = status
        if status.status != "errored" or worker != OWNER or state.placement.is_solo:
            return []
        ended = internal.Ended(*entry.key, status.code, status.message, status.hint)
        return [Tell(tuple(state.placement.interactive), ended)]

    @property
    def session_with_news(self) -> int | None:
        """The session for which `take_news` has something."""
        controller = self._state.controller
        if controller is None or not (controller.frontiers or controller.statuses):
            return None
        return controller.number

    def take_news(self) -> list[Frontiers | Status]:
        """The newest of each id that the controller has not been told; who hears a frontier has heard before
        what it came of.
        """
        controller = self._state.controller
        if controller is None:
            return []
        statuses, controller.statuses = controller.statuses, {}
        pending, controller.frontiers = controller.frontiers, {}
        return [*statuses.values(), *(Frontiers(entry.id, *news) for entry, news in pending.items())]

    # -- between workers

    def on_looks(self, worker: int, looks: internal.Looks) -> Effects:
        if worker != OWNER or self._state.placement.is_solo:
            return []
        for key in looks.keys:
            self._on_look(key)
        return [Tell((OWNER,), internal.LooksAck(looks.keys))]

    def _on_look(self, key: Key) -> None:
        state = self._state
        standing = False
        for catalog in state.catalogs():
            entry = catalog.get(key[0])
            if entry is not None and entry.incarnation == key[1]:
                standing = not entry.dropped
        for board in state.boards.values():
            board.note(key, standing=standing)

    def on_applied(self, worker: int, applied: internal.Applied) -> Effects:
        if worker == OWNER:
            return []
        said = internal.AppliedBy(worker - 1, applied.id, applied.incarnation, applied.frontier)
        return [Tell((OWNER,), said)]

    # -- subscriptions and copies

    def on_telling(self, worker: int, telling: internal.Telling) -> Effects:
        effects: Effects = []
        for number, id, incarnation in telling.to:
            session, entry = self._told(number, id)
            if session is None or entry is None or entry.incarnation != incarnation:
                continue
            if entry.owner != worker or entry.told_all:
                continue
            if telling.ends:
                self._end_telling(session, entry)
            if entry.export.kind == "subscribe":
                head = _encode(_Subscribe(id, _NOTHING))[:-1]
                effects.append(Stream(number, id, head, telling.said, telling.lower))
            else:
                effects.append(Pass(number, msgspec.Raw(_encode(_CopyTo(id, telling.said)))))
        return effects

    def on_unread(self, unread: Unread) -> Effects:
        """The client does not take what a subscription tells it: end that one, and nothing else."""
        session, entry = self._told(unread.session, unread.id)
        if session is None or entry is None or entry.told_all:
            return []
        self._end_telling(session, entry)
        why = f"{unread.backlog_bytes} bytes were not read"
        end = DroppedAt(unread.lower, "limit", why, "read what is told, or subscribe to less")
        cut = internal.Cut(entry.id, entry.incarnation)
        return [Reply(session.number, SubscribeResponse(entry.id, end)), Tell((entry.owner,), cut)]

    def _told(self, number: int, id: GlobalId) -> tuple[Session | None, Collection | None]:
        """The subscription or copy `id` of an open session."""
        session = self._state.sessions.get(number)
        entry = None if session is None else session.own_catalog.get(id)
        return session, entry if entry is not None and entry.export.kind in TOLD_KINDS else None

    def _end_telling(self, session: Session, entry: Collection) -> None:
        session.own_catalog.end_telling(entry)
        self._state.lose_imports(entry.dataflow)
