"""What the parts of a runtime's core share: its records, the effects of the event at hand, and its ports.

`touch` marks a collection whose hold may have risen; holds are taken anew once, when the event has been dealt
with (flows.py), so no half-done change shows in one.

Does not: decide anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from clusterd.process import ComputeRuntimeRole
from clusterd.runtime import effects as fx
from clusterd.runtime.collection import Collection, Dataflow, Planned
from clusterd.runtime.peeks import Key, PendingPeeks
from controller_proto.command import CreateDataflow, Peek
from controller_proto.dataflow import DataflowHeader, Export
from controller_proto.errors import Refusal
from controller_proto.ids import GlobalId

__all__ = ["LookStatistics", "Policy", "Ports", "RuntimeState", "dropped", "unknown"]


class LookStatistics(msgspec.Struct, frozen=True):
    """Notices that pages moved (R10), ever. moved: own pages, said: notices of that, at most one under way an
    id; heard: notices of others' pages; read: times that a page, or a view's shard, was looked at.
    """

    moved: int = 0
    said: int = 0
    heard: int = 0
    read: int = 0


class Ports(Protocol):
    """The judgements that need more than the core's state. Both raise Refusal; neither has any effect."""

    def plan(
        self,
        create: CreateDataflow,
        indexes: Mapping[GlobalId, Export],
        view_in: Callable[[str], Export | None],
    ) -> Planned:
        """Whole validation of a dataflow; what it returns is handed to Build.

        view_in: what is announced and makes the shard, if it is not there yet, before this is built.
        """

    def check_peek(self, peek: Peek, index: Export) -> None:
        """Whether keys and finishing fit the index."""


class Policy(Protocol):
    """What differs between the runtimes, as far as the parts below the core need it."""

    role: ComputeRuntimeRole
    appliers: int  # interactive workers whose applied compaction counts in a hold
    builds_at_once: bool  # a dataflow is built when created; else when its imports can be read at as_of

    def admit(self, header: DataflowHeader) -> None:
        """Raise Refusal if this runtime does not take such a dataflow."""

    def unknown(self, state: RuntimeState, key: Key, session: int) -> Collection | None:
        """A read of a collection never heard of: its placeholder, or None if it does not exist."""

    def look(self, state: RuntimeState, collection: Collection) -> None:
        """Work waits for a collection of another process: find out how far it is."""

    def moved(self, state: RuntimeState, collection: Collection) -> None:
        """An own collection's page has a new upper."""


class RuntimeState:
    """collections, dataflows: by name, both announced and standing ones. session: the controller's.

    proposed: of a controller in initialisation, for collections that stand and go on in its session: as its
    commands so far have them. looks: the counts of LookStatistics.
    """

    def __init__(self, policy: Policy, ports: Ports) -> None:
        self.policy = policy
        self.ports = ports
        self.peeks = PendingPeeks()
        self.collections: dict[Key, Collection] = {}
        self.dataflows: dict[int, Dataflow] = {}
        self.proposed: dict[Key, Collection] = {}
        self.session = 0
        self.expires_at: Any = 0  # as it was set: part of what is built from then on
        self.refused: set[Key] = set()  # what refused commands of this session would have made
        self.touched: dict[Key, None] = {}
        self.looks = msgspec.structs.asdict(LookStatistics())
        self._out: list[fx.Effect] = []

    def emit(self, effect: fx.Effect) -> None:
        self._out.append(effect)

    def take_effects(self) -> list[fx.Effect]:
        out, self._out = self._out, []
        return out

    def find(self, key: Key, session: int) -> Collection | None:
        """The collection as commands of `session` are to be judged by; None if never heard of."""
        proposed = self.proposed.get(key) if session == self.session else None
        return proposed or self.collections.get(key)

    def touch(self, key: Key) -> None:
        """The hold of the collection may have risen."""
        self.touched[key] = None


def unknown(id: GlobalId) -> Refusal:
    """What a command on an id that does not exist gets."""
    return Refusal("unknown-id", f"{id} was not created in this session")


def dropped(id: GlobalId) -> Refusal:
    """What a command on an id that is gone gets."""
    return Refusal("dropped", f"{id} was dropped", "an id does not come back within a session")
