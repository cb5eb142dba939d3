"""A client connection as the multiplexer sees it: stage, open peeks, barriers; and who may be controller.

A controller's session carries one iteration of the protocol, with the catalog that its commands build up. At
most one is current: `Fencing` admits a controller only with an epoch not below the highest seen and a nonce
never used, so that two controllers that both believe in themselves settle it the same way everywhere.

Does not: send or route (machine.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from clusterd.config import DEFAULTS, Setting, merge_settings
from clusterd.multiplexer.declared import Catalog, Collection
from clusterd.multiplexer.events import Reply
from controller_proto.command import PROTOCOL_VERSION, Command, Hello
from controller_proto.errors import Refusal
from controller_proto.response import Refused, Status, Synced
from controller_proto.stage import StageMachine
from shm_arrangements.errors import InvariantViolation

__all__ = ["Fencing", "Pending", "Session", "SettingsInForce", "check_version", "refuse"]

MAX_EPOCH = (1 << 63) - 1  # above it nothing is left to count on from
_REMEMBERED_NONCES = 4096  # a controller that comes back by mistake repeats one of its last

Values = dict[str, Any]


class Pending:
    """A peek that was sent on and not answered. is_prompt: nothing keeps its worker from answering it."""

    __slots__ = ("collection", "is_prompt", "worker")

    def __init__(self, worker: int, collection: Collection, *, is_prompt: bool) -> None:
        self.worker = worker
        self.collection = collection
        self.is_prompt = is_prompt


class Session:
    """One client connection. `frontiers`, `statuses`: newest of each collection, not yet taken by the client.

    stashed: peeks whose answers wait at their workers, the next to fetch a part of first; `fetching`: the one
    of which a part is under way.
    prompt: of its peeks, those that are.
    catalog: what a controller declared. subscriptions: what a reader did; it reads what stands.
    """

    __slots__ = (
        "_syncs", "catalog", "config", "fetching", "frontiers", "machine", "number", "peeks", "prompt",
        "stashed", "statuses", "subscriptions", "unvalidated",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.machine = StageMachine()
        self.peeks: dict[str, Pending] = {}
        self.prompt = 0
        self.stashed: dict[str, None] = {}
        self.fetching: str | None = None
        self.unvalidated: set[int] = set()  # workers with commands of ours that they may still refuse
        self.catalog: Catalog | None = None
        self.subscriptions: Catalog | None = None
        self.config: Values = {}
        self.frontiers: dict[Collection, list[Any]] = {}
        self.statuses: dict[Collection, Status] = {}
        self._syncs: deque[tuple[int, set[int]]] = deque()  # (seq, workers that have not said SyncDone)

    @property
    def own_catalog(self) -> Catalog:
        found = self.subscriptions if self.catalog is None else self.catalog
        if found is None:
            raise InvariantViolation("only a session past Hello comes here", session=self.number)
        return found

    @property
    def is_reader(self) -> bool:
        return self.subscriptions is not None

    @property
    def may_fetch(self) -> bool:
        return bool(self.stashed) and self.fetching is None

    def fetch(self) -> str:
        """The peek of which a part is fetched now; the next time it is another's turn."""
        uuid = next(iter(self.stashed))
        del self.stashed[uuid]
        self.stashed[uuid] = None
        self.fetching = uuid
        return uuid

    def answered(self, uuid: str) -> None:
        """The peek is over, however it ended."""
        self.prompt -= self.peeks.pop(uuid).is_prompt
        self.stashed.pop(uuid, None)
        if self.fetching == uuid:
            self.fetching = None

    @property
    def syncs_pending(self) -> int:
        return len(self._syncs)

    def begin_sync(self, seq: int, waiting: set[int]) -> None:
        self._syncs.append((seq, waiting))

    def sync_done(self, seq: int, worker: int) -> None:
        for pending, waiting in self._syncs:
            if pending == seq:
                waiting.discard(worker)

    def finish_syncs(self) -> list[Synced]:
        """Barriers that nothing holds up any more, in the order they were asked for."""
        done = []
        while self._syncs and not self._syncs[0][1]:
            done.append(Synced(self._syncs.popleft()[0]))
        return done


def refuse(session: Session, command: Command, refusal: Refusal) -> Reply:
    """The answer to a command that has no effect."""
    refused = Refused(command.seq, refusal.code, refusal.message, refusal.hint)
    session.machine.response(refused)  # takes back the move of stage, if it made one
    return Reply(session.number, refused)


class Fencing:
    """Who may be the controller."""

    __slots__ = ("_highest_epoch", "_nonces")

    def __init__(self) -> None:
        self._highest_epoch = 0
        self._nonces: dict[str, None] = {}  # oldest first

    def admit(self, hello: Hello) -> None:
        """Let a controller in. Raises Refusal `fenced`, or `bad-message` for an epoch that nobody could come
        after, and remembers nothing.
        """
        if hello.epoch > MAX_EPOCH:
            why = f"epoch {hello.epoch} would lock out every later controller"
            hint = f"{MAX_EPOCH} is the greatest: microseconds since 1970 are far below"
            raise Refusal("bad-message", why, hint)
        if hello.epoch < self._highest_epoch:
            why = f"epoch {hello.epoch} is below {self._highest_epoch}, the highest seen"
            raise Refusal("fenced", why, "another controller took over; do not reconnect")
        if hello.nonce in self._nonces:
            raise Refusal(
                "fenced", f"nonce {hello.nonce!r} was used before", "use a fresh nonce a connection"
            )
        self._highest_epoch = hello.epoch
        self._nonces[hello.nonce] = None
        if len(self._nonces) > _REMEMBERED_NONCES:
            del self._nonces[next(iter(self._nonces))]


def check_version(hello: Hello) -> None:
    """Raises Refusal `format-mismatch`."""
    if hello.version != PROTOCOL_VERSION:
        why = f"protocol version {hello.version}; this replica speaks {PROTOCOL_VERSION}"
        raise Refusal("format-mismatch", why)


class SettingsInForce:
    """The values of all settings: those in force, and what a new session may not change."""

    __slots__ = ("_fixed", "_settings", "values")

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings = settings
        self._fixed: Values | None = None
        self.values: Values = self._defaults()

    def instance(self, given: Mapping[str, Any]) -> Values:
        """The values a CreateInstance asks for.

        Raises Refusal `unknown-setting`, `bad-message`, `incompatible-config`.
        """
        values = merge_settings(self._defaults(), given, settings=self._settings)
        fixed = {name: values[name] for name, setting in self._settings.items() if setting.when == "fixed"}
        if self._fixed is None:
            self._fixed = fixed
        for name, value in fixed.items():
            if value != self._fixed[name]:
                why = f"{name} = {value!r}, but the instance in force has {name} = {self._fixed[name]!r}"
                raise Refusal("incompatible-config", why, "restart the replica to change it")
        return values

    def update(self, values: Values, given: Mapping[str, Any]) -> Values:
        """`values` overlaid by `given`. Raises Refusal `unknown-setting`, `bad-message`."""
        return merge_settings(values, given, settings=self._settings)

    def _defaults(self) -> Values:
        return {**DEFAULTS, **{setting.name: setting.default for setting in self._settings.values()}}
