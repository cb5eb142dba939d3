"""Statuses: how far each own collection is on its way to its `as_of`, told when that changes.

A status is taken from what the core's records say at the moment it goes out, so none is out of date:
whatever may change it `mark`s the collection, and of all that happened until there is room the latest is
told, one message a collection. A state that goes on keeps the time it began, in a new session too. Only the
present controller is told.

A query that was over before anything of it was told says nothing: its answer does.

Does not: keep frontiers (hydration.py), sample: rows are those of the last mark.
"""

from __future__ import annotations

from clusterd.internal import StatusReport
from clusterd.runtime import effects as fx
from clusterd.runtime.collection import Collection, Dataflow
from clusterd.runtime.peeks import Key
from clusterd.runtime.state import RuntimeState
from controller_proto.response import State, Status

__all__ = ["Statuses"]

Trouble = tuple[str, str, str]  # code, message, hint
_NONE: Trouble = ("", "", "")


class Statuses:
    """Of the collections that a runtime owns."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._marked: dict[Key, None] = {}
        self._told: dict[Key, tuple[int, Status]] = {}  # with the session
        self._stalls: dict[str | Key, Trouble] = {}  # of shards that are read, of views that are written

    def mark(self, dataflow: Dataflow) -> None:
        """What it makes may be in another state."""
        self._marked.update(dataflow.live)

    def stalled(self, event: fx.Stalled) -> None:
        """What is in the way there; an empty code: nothing is."""
        if event.code:
            self._stalls[event.where] = event.code, event.message, event.hint
        else:
            self._stalls.pop(event.where, None)

    def passable(self, where: str | Key) -> bool:
        """Nothing is in the way there, or nobody goes there. Whether something was."""
        return self._stalls.pop(where, None) is not None

    def forget(self, key: Key) -> None:
        """The collection is closed: its frontiers say so."""
        self._marked.pop(key, None)
        self._told.pop(key, None)
        self._stalls.pop(key, None)

    @property
    def has_news(self) -> bool:
        return bool(self._marked)

    def take(self, now_us: int) -> list[StatusReport]:
        """What is to be told. now_us: microseconds since 1970."""
        reports = []
        for key in self._marked:
            collection = self._state.collections.get(key)
            if collection is not None and (status := self._status(collection, now_us)) is not None:
                self._told[key] = collection.session, status
                reports.append(StatusReport(collection.session, key[1], status))
        self._marked.clear()
        return reports

    def _status(self, collection: Collection, now_us: int) -> Status | None:
        """None if there is nothing to tell."""
        if collection.dataflow is None or collection.of_reader or collection.applied.is_empty:
            return None
        if not collection.standing:
            return None
        if collection.session != self._state.session and collection.ended is None:  # P13
            return None  # else readers wait for it, whose controller hears nothing of it
        dataflow = self._state.dataflows[collection.dataflow]
        state, trouble = self.judge(collection, dataflow)
        session, told = self._told.get(collection.key, (0, None))
        if told is None and dataflow.one_shot and state == "hydrated":
            return None
        since = told.since if told is not None and told.status == state else now_us
        runtime = self._state.policy.role.value
        rows = dataflow.rows_done, dataflow.rows_expected
        status = Status(collection.id, state, runtime, *rows, since, *trouble)
        return None if status == told and session == collection.session else status

    def judge(self, collection: Collection, dataflow: Dataflow) -> tuple[State, Trouble]:
        """The state of a collection that `dataflow` makes, and what is in its way."""
        if (ended := collection.ended) is not None:
            return "errored", (ended.code, ended.message, ended.hint)
        for where in (collection.key, *dataflow.shards):
            if where in self._stalls:
                return "stalled", self._stalls[where]
        if not dataflow.upper.less_equal(collection.as_of):
            return "hydrated", _NONE
        if not dataflow.is_deferred:
            return "hydrating", _NONE
        return ("created" if dataflow.waiting else "scheduled"), _NONE
