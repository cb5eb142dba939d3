"""Company: subscriptions that ask for the same and are as far go on as one dataflow.

What a subscription tells from here on follows from its plan, its imports and its upper alone, if nothing is
held back for an error: where it began is of no account any more. Before its first round it follows from where
it begins, instead of the upper. So of two that meet at such a point one can be given up, and what the other
makes is told to the receivers of both: each new batch is read once, and what is told of it is made once, for
however many. One that comes later reads what is there by itself, and meets the others when it is as far as
they are.

A dataflow is at a point from the end of a round, or its schedule, until the next round begins to be told:
till then nothing that follows has been said to anybody.

Does not: give up or move anything (flows.py does), know who receives.
"""

from __future__ import annotations

from typing import Any

from clusterd.runtime.collection import Dataflow
from clusterd.runtime.peeks import Key

__all__ = ["Company"]

Point = tuple[bytes, tuple[Key, ...], int | None, Any, int | tuple[int, bool]]


class Company:
    """Which dataflow stands at which point; one at most."""

    def __init__(self) -> None:
        self._standing: dict[Point, Dataflow] = {}

    def arrive(self, dataflow: Dataflow) -> Dataflow | None:
        """The one it meets, which stands where it is. None if it is alone, and then it stands there from now
        on; if it stands somewhere already; if it cannot go with others.
        """
        point = _point(dataflow) if dataflow.point is None else None
        if point is None:
            return None
        found = self._standing.setdefault(point, dataflow)
        if found is not dataflow:
            return found
        dataflow.point = point
        return None

    def leave(self, dataflow: Dataflow) -> None:
        """It goes on from where it stands, or ends. Idempotent."""
        if dataflow.point is not None:
            del self._standing[dataflow.point]
            dataflow.point = None


def _point(dataflow: Dataflow) -> Point | None:
    ready = dataflow.standing and not dataflow.ended and not dataflow.waiting
    if not dataflow.likeness or not ready or dataflow.is_telling or dataflow.owes or dataflow.upper.is_empty:
        return None
    header, upper = dataflow.header, dataflow.upper.time
    where = upper or (header.as_of, header.exports[0].snapshot)
    return dataflow.likeness, dataflow.imports, header.until, dataflow.expires_at, where
