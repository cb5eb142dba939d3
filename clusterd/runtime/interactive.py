"""The interactive runtime's policy: it reads pages of the maintenance runtime, and owns queries.

No wake-up is lost (R10, Z11): whoever comes to wait is in the table of waiters first, then the page is read;
a notice that comes later finds the waiter, and one that came before is covered by that reading. A notice
about an id nobody waits for only marks it stale, which makes the next reader look first.

It holds by `Applied` (R6): for a declared id the least of the compaction it has carried out, its parked peeks
and its deferred queries. The frontier is sent when it has changed, after the effects that changed it, so the
snapshots that take over from a hold exist by then.

An id not declared yet is "not there yet": its placeholder owns nothing and goes with its last waiter.

Does not: own durable indexes, read shards for an index, keep rows.
"""

from __future__ import annotations

from typing import Any

from clusterd import internal
from clusterd.process import ComputeRuntimeRole
from clusterd.runtime import effects as fx
from clusterd.runtime.collection import Collection
from clusterd.runtime.core import RuntimeCore
from clusterd.runtime.peeks import Key
from clusterd.runtime.state import RuntimeState
from controller_proto.dataflow import DataflowHeader, is_one_shot
from controller_proto.errors import Refusal
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["Interactive"]


class Interactive:
    """Policy of `interactive`."""

    builds_at_once = False
    appliers = 0
    role = ComputeRuntimeRole.INTERACTIVE
    has_news = False

    def __init__(self) -> None:
        self._reading: set[Key] = set()  # asked for within this event: once is enough

    def message(self, core: RuntimeCore, message: Any) -> None:
        if isinstance(message, internal.Look):
            self._on_look(core, message)
        elif isinstance(message, fx.PageSeen):
            self._on_page(core, message)
        elif isinstance(message, internal.Declare):
            self._on_declare(core, message)
        elif isinstance(message, internal.Undeclare):
            self._on_undeclare(core, message)
        elif isinstance(message, internal.Ended):
            core.flows.end(
                (message.id, message.incarnation), Refusal(message.code, message.message, message.hint)
            )
        else:
            raise InvariantViolation("not a message for this runtime", got=type(message).__name__)

    def admit(self, header: DataflowHeader) -> None:
        subscription = not header.source_imports and all(e.kind == "subscribe" for e in header.exports)
        if not is_one_shot(header) and not subscription:
            raise Refusal("invalid-plan", f"dataflow {header.name!r} is no query; maintenance owns such")

    def unknown(self, state: RuntimeState, key: Key, session: int) -> Collection | None:
        placeholder = Collection(key, session, None, 0, dataflow=None, appliers=0)
        placeholder.standing = True
        state.collections[key] = placeholder
        return placeholder

    def owns(self, core: RuntimeCore, key: Key) -> bool:
        return key in core.state.refused

    def look(self, state: RuntimeState, collection: Collection) -> None:
        if collection.key not in self._reading:
            self._reading.add(collection.key)
            state.looks["read"] += 1
            stored = collection.export if collection.is_view else None
            state.emit(fx.ReadPage(collection.key, stored))

    def moved(self, state: RuntimeState, collection: Collection) -> None:
        return

    def flush(self, core: RuntimeCore) -> None:
        return

    def initialised(self, core: RuntimeCore) -> None:
        for collection in list(core.state.collections.values()):
            if collection.key in core.state.proposed:
                continue
            if collection.standing and not collection.is_owned and not collection.is_placeholder:
                core.flows.drop(collection)

    def _on_look(self, core: RuntimeCore, look: internal.Look) -> None:
        core.state.looks["heard"] += 1
        collection = core.state.collections.get((look.id, look.incarnation))
        if collection is None or collection.is_owned or collection.is_placeholder:
            return  # a declaration makes its reader look anyway
        collection.stale = True
        self._look_if_wanted(core, collection)

    def _look_if_wanted(self, core: RuntimeCore, collection: Collection) -> None:
        if collection.standing and (collection.needs or core.state.peeks.waits_for(collection.key)):
            self.look(core.state, collection)

    def _on_page(self, core: RuntimeCore, page: fx.PageSeen) -> None:
        self._reading.discard(page.key)
        collection = core.state.collections.get(page.key)
        if collection is None:
            return
        if page.state == "absent":
            return  # its first notice is still to come
        if page.state == "closed":
            core.flows.drop(collection)
            return
        if collection.hold.precedes(page.since):
            raise InvariantViolation(
                "a page was compacted beyond what is held",
                key=page.key,
                hold=collection.hold,
                since=page.since,
            )
        collection.stale = False
        core.flows.sealed(collection, Frontier.join(collection.upper, page.upper))

    def _on_declare(self, core: RuntimeCore, declare: internal.Declare) -> None:
        key = (declare.export.id, declare.incarnation)
        if key in core.state.refused:
            return
        collection = core.state.collections.get(key)
        if collection is None or collection.is_placeholder:
            collection = self._declare(core, key, declare, collection)
        elif collection.standing and core.defers(declare.session):
            core.state.proposed[key] = _declared(key, declare)
        if core.defers(declare.session):
            core.enqueue(declare)
            return
        collection.standing = True
        if key in core.state.proposed:
            core.flows.go_on(core.state.proposed.pop(key))
        self._look_if_wanted(core, collection)

    def _declare(
        self, core: RuntimeCore, key: Key, declare: internal.Declare, placeholder: Collection | None
    ) -> Collection:
        collection = core.state.collections[key] = _declared(key, declare)
        if placeholder is not None:
            core.reads.recheck(collection)
        return collection

    def _on_undeclare(self, core: RuntimeCore, undeclare: internal.Undeclare) -> None:
        key = (undeclare.id, undeclare.incarnation)
        if undeclare.code == "dropped" and core.defers(undeclare.session):
            core.enqueue(undeclare)  # what is there goes with what is not said again
            return
        if undeclare.code == "unknown-id":
            core.state.refused.add(key)
        core.state.proposed.pop(key, None)
        collection = core.state.collections.get(key)
        if collection is None:
            return
        collection.gone = undeclare.code
        if collection.standing:
            core.flows.drop(collection, undeclare.code)
        else:
            core.flows.withdraw(collection)


def _declared(key: Key, declare: internal.Declare) -> Collection:
    return Collection(key, declare.session, declare.export, declare.as_of, dataflow=None, appliers=0)
