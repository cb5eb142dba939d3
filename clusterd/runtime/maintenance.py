"""The maintenance runtime's policy, and Solo's: it owns every dataflow it is given and publishes its indexes.

Two things are its own. It counts what every interactive worker has applied (R6): without that, compaction it
carries out could overtake a query that an interactive worker has yet to read from its pipe. And it says
"look again" (R10): at most one notice an id is under way, the rest is a set of ids, so however far behind the
other side is, what is owed to it is bounded, and nothing blocks.

Solo is the same with no interactive worker: nobody else holds, nobody is notified, and all peeks come here.

Does not: know pages of other processes; an id it does not know does not exist.
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
from controller_proto.dataflow import DataflowHeader
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["Maintenance"]


class Maintenance:
    """Policy of `maintenance` (interactive_workers > 0) and `solo` (0)."""

    builds_at_once = True

    def __init__(self, *, interactive_workers: int) -> None:
        self.appliers = interactive_workers
        self.role = ComputeRuntimeRole.MAINTENANCE if interactive_workers else ComputeRuntimeRole.SOLO
        self._dirty: dict[Key, None] = {}  # moved since they were last said to have
        self._unacknowledged: set[Key] = set()

    def message(self, core: RuntimeCore, message: Any) -> None:
        if isinstance(message, internal.AppliedBy):
            self._applied_by(core, message)
        elif isinstance(message, internal.LooksAck):
            self._unacknowledged.difference_update(message.keys)
        else:
            raise InvariantViolation("not a message for this runtime", got=type(message).__name__)

    def admit(self, header: DataflowHeader) -> None:
        return

    def unknown(self, state: RuntimeState, key: Key, session: int) -> Collection | None:
        return None

    def owns(self, core: RuntimeCore, key: Key) -> bool:
        return True

    def look(self, state: RuntimeState, collection: Collection) -> None:
        raise InvariantViolation("maintenance owns all it knows", key=collection.key)

    def moved(self, state: RuntimeState, collection: Collection) -> None:
        if self.appliers:
            state.looks["moved"] += 1
            self._dirty[collection.key] = None

    @property
    def has_news(self) -> bool:
        return any(key not in self._unacknowledged for key in self._dirty)

    def flush(self, core: RuntimeCore) -> None:
        keys = [key for key in self._dirty if key not in self._unacknowledged]
        for key in keys:
            del self._dirty[key]
        said = tuple(key for key in keys if key in core.state.collections)  # else everybody has let go
        if said:
            self._unacknowledged.update(said)
            core.state.looks["said"] += len(said)
            core.state.emit(fx.Send(internal.Looks(said)))

    def initialised(self, core: RuntimeCore) -> None:
        return

    def _applied_by(self, core: RuntimeCore, applied: internal.AppliedBy) -> None:
        collection = core.state.collections.get((applied.id, applied.incarnation))
        if collection is None:
            return  # refused here, so never held
        frontier = Frontier.from_wire(applied.frontier)
        before = collection.applied_by[applied.worker]
        if frontier.precedes(before):
            raise InvariantViolation(
                "applied compaction goes back", key=collection.key, before=before, to=frontier
            )
        collection.applied_by[applied.worker] = frontier
        core.state.touch(collection.key)
