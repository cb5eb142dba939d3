"""Reports: what the controller is to hear of the frontiers of own collections, until there is room to say it.

Of all that happened meanwhile the newest of each kind is sent, one message a collection. Nothing is kept for
a session that is over: nobody listens (P13).

Does not: judge what is news (hydration.py), say statuses (statuses.py).
"""

from __future__ import annotations

from clusterd import internal
from clusterd.runtime import effects as fx
from clusterd.runtime.hydration import KINDS, Hydration
from clusterd.runtime.peeks import Key
from clusterd.runtime.state import RuntimeState
from shm_arrangements.frontier import Frontier

__all__ = ["Reports"]


class Reports:
    """Of the collections that a runtime owns; each is expected, advances, and is closed."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._hydration = Hydration()
        self._unsent: dict[Key, dict[str, Frontier]] = {}  # newest by kind

    def expect(self, key: Key, as_of: int) -> None:
        """Report on a new collection."""
        self._hydration.expect(key, as_of)

    def restart(self, key: Key, as_of: int) -> None:
        """It goes on in a new session, which is told everything anew."""
        self._hydration.restart(key, as_of)

    def advance(self, key: Key, upper: Frontier, kinds: tuple[str, ...] = KINDS) -> None:
        """These kinds of its frontiers stand at `upper`."""
        self._note(key, self._hydration.advance(key, upper, kinds))

    def close(self, key: Key) -> None:
        """All its frontiers are empty."""
        self._note(key, self._hydration.close(key))

    def forget(self, key: Key) -> None:
        """It is gone; what was not sent yet still is."""
        self._hydration.forget(key)

    def _note(self, key: Key, news: dict[str, Frontier]) -> None:
        collection = self._state.collections[key]
        if news and not collection.is_told and collection.session == self._state.session:  # P13
            self._unsent.setdefault(key, {}).update(news)

    @property
    def has_news(self) -> bool:
        return bool(self._unsent)

    def clear(self) -> None:
        """The session is over."""
        self._unsent.clear()

    def send(self) -> None:
        """Everything that was not sent yet."""
        for key, news in self._unsent.items():
            write, input, output = (news[kind].to_wire() if kind in news else None for kind in KINDS)
            report = internal.FrontierReport(self._state.session, *key, write, input, output)
            self._state.emit(fx.Send(report))
        self._unsent.clear()
