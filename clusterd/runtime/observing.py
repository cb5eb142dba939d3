"""The observer's policy: it reads the introspection relations as an interactive worker reads maintenance's
indexes, though it is their writer too, and it has queries and subscriptions over them.

Nobody declares them: they are there from the start, and no controller's coming or going ends them.

Does not: write them (introspection/observer.py does), know any other collection.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterd.process import ComputeRuntimeRole
from clusterd.runtime.collection import Collection
from clusterd.runtime.core import RuntimeCore
from clusterd.runtime.interactive import Interactive
from clusterd.runtime.peeks import Key
from clusterd.runtime.state import RuntimeState
from controller_proto.dataflow import Export

__all__ = ["Observing"]


class Observing(Interactive):
    """Policy of `introspection`."""

    role = ComputeRuntimeRole.INTROSPECTION

    def adopt(self, core: RuntimeCore, exports: Iterable[tuple[Key, Export]]) -> None:
        """Know the relations, for good. Called once, first of all."""
        for key, export in exports:
            collection = Collection(key, 0, export, 0, dataflow=None, appliers=0)
            collection.standing = True
            core.state.collections[key] = collection

    def unknown(self, state: RuntimeState, key: Key, session: int) -> Collection | None:
        return None

    def initialised(self, core: RuntimeCore) -> None:
        return
