"""What the parts of the multiplexer share: who is connected, what is declared, what each worker is owed.

At most one session is the controller. Of its collections there are up to two catalogs: the one that stands,
in force since the last InitializationComplete, and the one that a controller in initialisation collects,
which will take its place. Readers have one of their subscriptions each. `system` has the introspection
relations, which are there for everybody from the start.

Interest, by which a worker's notices go out or wait (notices.py), is counted here: one for each peek that a
worker was sent and has not answered, and one for each import that a dataflow of its still waits for.
`validate` counts anew.

Does not: judge a command, make an effect.
"""

from __future__ import annotations

from collections import Counter

from clusterd.multiplexer.declared import Catalog, Collection, Dataflow, Key, system_catalog
from clusterd.multiplexer.notices import NoticeBoard
from clusterd.multiplexer.placement import Placement
from clusterd.multiplexer.sessions import Pending, Session, SettingsInForce
from controller_proto.dataflow import Export
from controller_proto.errors import Refusal
from shm_arrangements.errors import InvariantViolation

__all__ = ["State"]


class State:
    """The shared state. full: workers that have left too much unread."""

    __slots__ = (
        "_last_incarnation", "boards", "controller", "full", "placement", "sessions", "settings", "standing",
        "system",
    )  # fmt: skip

    def __init__(
        self, placement: Placement, settings: SettingsInForce, introspection: tuple[Export, ...]
    ) -> None:
        self.placement = placement
        self.system = system_catalog(introspection, placement.observer)
        self.settings = settings
        self.sessions: dict[int, Session] = {}
        self.controller: Session | None = None
        self.standing: Catalog | None = None
        self.boards = {worker: NoticeBoard() for worker in placement.interactive}
        self.full: set[int] = set()
        self._last_incarnation = 0

    # -- what is declared

    def next_incarnation(self) -> int:
        self._last_incarnation += 1
        return self._last_incarnation

    @property
    def collecting(self) -> Catalog | None:
        """The catalog of a controller in initialisation."""
        catalog = None if self.controller is None else self.controller.catalog
        return None if catalog is self.standing else catalog

    def catalogs(self, *readers: Session | None) -> list[Catalog]:
        """The catalog being collected, if any, the standing one, and those of these readers."""
        found = [self.collecting, self.standing]
        found += [None if session is None else session.subscriptions for session in readers]
        return [catalog for catalog in found if catalog is not None]

    def older_than(self, session: Session) -> Catalog | None:
        """What stands while `session` is in initialisation, and may go on in it."""
        return None if session.is_reader or session.catalog is self.standing else self.standing

    def is_declared(self, entry: Collection) -> bool:
        """Whether a controller's catalog has the very collection, as the same entry or another."""
        return any(_has(catalog, entry) for catalog in self.catalogs())

    # -- what workers take, and are owed

    def refuse_if_full(self, workers: tuple[int, ...]) -> None:
        """Raises Refusal `limit` if one of them has left too much unread."""
        if self.full and not self.full.isdisjoint(workers):
            raise Refusal("limit", "a worker has too many commands it did not take yet", "send fewer at once")

    def gain(self, pending: Pending) -> None:
        """The peek is on its way to its worker."""
        if pending.worker and not pending.collection.dataflow.query:
            self.boards[pending.worker].gain(pending.collection.key)

    def lose(self, pending: Pending) -> None:
        """The peek is over."""
        if pending.worker and not pending.collection.dataflow.query:
            self.boards[pending.worker].lose(pending.collection.key)

    def gain_imports(self, dataflow: Dataflow) -> None:
        """The dataflow is on its way to its owner, and waits for its imports."""
        for key in _awaited(dataflow):
            self.boards[dataflow.owner].gain(key)

    def lose_imports(self, dataflow: Dataflow) -> None:
        """The dataflow waits for its imports no more. Once only: it lets go of them."""
        for key in _awaited(dataflow):
            self.boards[dataflow.owner].lose(key)
        dataflow.imports = ()

    def abandon(self, entry: Collection, *, to: Catalog | None) -> None:
        """Its catalog is not, or no longer, in force: `to` is, where the collection may go on."""
        self.lose_imports(entry.dataflow)
        if not _has(to, entry):
            self.forget_notices(entry)

    def forget_notices(self, entry: Collection) -> None:
        """Nothing is owed for the collection any more."""
        for board in self.boards.values():
            board.forget(entry.key)

    def validate(self) -> None:
        """Whole-structure checks, for tests. Raises InvariantViolation."""
        owed: Counter[tuple[int, Key]] = Counter()
        for session in self.sessions.values():
            for pending in session.peeks.values():
                if pending.worker and not pending.collection.dataflow.query:
                    owed[pending.worker, pending.collection.key] += 1
        for catalog in self.catalogs(*self.sessions.values()):
            for dataflow in catalog.dataflows():
                owed.update((dataflow.owner, key) for key in _awaited(dataflow))
        for (worker, key), count in owed.items():
            held = self.boards[worker].interest(key)
            if held != count:
                raise InvariantViolation("interest miscounted", worker=worker, key=key, held=held, owed=count)
        controller = self.controller
        if controller is not None and self.sessions.get(controller.number) is not controller:
            raise InvariantViolation("controller is no session", session=controller.number)


def _has(catalog: Catalog | None, entry: Collection) -> bool:
    found = None if catalog is None else catalog.get(entry.id)
    return found is not None and found.incarnation == entry.incarnation


def _awaited(dataflow: Dataflow) -> list[Key]:
    """What its owner is told notices of on its behalf: nothing in maintenance, where all is at hand."""
    return [entry.key for entry in dataflow.imports if dataflow.owner and not entry.dataflow.query]
