"""Receivers: whom a subscription or a copy tells, and that each hears once that nothing follows.

What is told goes to the sessions that still listen: a reader's, or the present controller's (P13). Until
where each was told is kept with its collection, so the last message says where that is.

Does not: make what is told (subscriptions.py, copies.py), know which dataflow tells (flows.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from clusterd import internal
from clusterd.runtime import effects as fx
from clusterd.runtime.collection import Collection
from clusterd.runtime.copies import encode_copy_error
from clusterd.runtime.state import RuntimeState
from controller_proto.errors import Refusal
from controller_proto.response import DroppedAt
from shm_arrangements.frontier import Frontier

__all__ = ["Receivers"]


class Receivers:
    """Of what one worker tells."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state

    def tell(
        self, to: Iterable[Collection], said: bytes, lower: Frontier, upper: Frontier, *, ends: bool
    ) -> None:
        """Pass on an encoded body over `[lower, upper)`. ends: whether nothing follows."""
        heard = []
        for collection in to:
            if collection.of_reader or collection.session == self._state.session:  # P13
                collection.told = upper
                heard.append((collection.session, *collection.key))
        if heard:
            self._state.emit(fx.Send(internal.Telling(heard, msgspec.Raw(said), lower.to_wire(), ends)))

    def tell_end(self, collection: Collection, why: Refusal) -> None:
        """The one message that says that nothing follows, unless the last one said so."""
        upper = collection.told
        if upper.is_empty:
            return
        if collection.export is not None and collection.export.kind == "copy-to":
            said = encode_copy_error(why)
        else:
            said = msgspec.msgpack.encode(DroppedAt(upper.to_wire(), why.code, why.message, why.hint))
        self.tell([collection], said, upper, Frontier.empty(), ends=True)
