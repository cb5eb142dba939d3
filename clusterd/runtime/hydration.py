"""Hydration: which collections have passed their `as_of`, and what was reported of their frontiers.

P4 and G10 are kept here and nowhere else: the first report of each kind is beyond `as_of`, a report says
only what changed, none is lower than the one before, and after the empty frontier of a kind nothing of that
kind is said again.

The three kinds of a maintained index move together: a round reads its inputs up to the upper it then seals.
Of a view `write` is how far its shard is sealed, by whomever, and the others how far it is computed.

Does not: send, coalesce, know sessions or when a collection is dropped.
"""

from __future__ import annotations

from clusterd.runtime.peeks import Key
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["COMPUTED", "KINDS", "WRITTEN", "Hydration"]

WRITTEN = ("write",)
COMPUTED = ("input", "output")
KINDS = (*WRITTEN, *COMPUTED)


class Hydration:
    """Last reported frontiers by collection; `minimum()` is: nothing reported."""

    def __init__(self) -> None:
        self._as_of: dict[Key, int] = {}
        self._reported: dict[Key, dict[str, Frontier]] = {}

    def expect(self, key: Key, as_of: int) -> None:
        """Follow a new collection."""
        if key in self._as_of:
            raise InvariantViolation("a collection is followed twice", key=key)
        self._as_of[key] = as_of
        self._reported[key] = dict.fromkeys(KINDS, Frontier.minimum())

    def restart(self, key: Key, as_of: int) -> None:
        """The collection goes on in a new session, which is told everything anew."""
        self.forget(key)
        self.expect(key, as_of)

    def advance(self, key: Key, upper: Frontier, kinds: tuple[str, ...] = KINDS) -> dict[str, Frontier]:
        """What to report now that these kinds stand at `upper`; empty if nothing changed.

        Raises: InvariantViolation if a kind would regress.
        """
        if upper.less_equal(self._as_of[key]):
            return {}
        news = {}
        for kind in kinds:
            last = self._reported[key][kind]
            if upper.precedes(last):
                raise InvariantViolation("a frontier regresses", key=key, kind=kind, last=last, upper=upper)
            if last.precedes(upper):
                news[kind] = upper
        self._reported[key].update(news)
        return news

    def close(self, key: Key) -> dict[str, Frontier]:
        """The terminal report: the kinds that were not empty yet (P10 is the caller's)."""
        return self.advance(key, Frontier.empty())

    def forget(self, key: Key) -> None:
        del self._as_of[key], self._reported[key]

    def __len__(self) -> int:
        return len(self._as_of)
