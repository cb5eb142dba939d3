"""Tables: what relations hold by what was told of them, and what each watcher has not been told yet.

A relation is a multiset of rows. A watcher that falls behind costs no more than the relation: what is owed to
it is kept as a net change, in which what came and went again cancels.

Does not: read, write, wait (reader.py and events.py do).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Change", "Row", "Tables", "Updates"]

Row: TypeAlias = tuple[Any, ...]
Updates: TypeAlias = Iterable[tuple[Row, int]]


class Change(NamedTuple):
    """Net: rows that came and rows that went, each as often as it did."""

    came: list[Row]
    went: list[Row]


class Tables:
    """Relations by name, as told. Each watcher is a number that `watch` gave.

    >>> tables = Tables()
    >>> tables.change("hydration", [(("u1", "hydrating"), 1)])
    >>> first = tables.watch()
    >>> tables.take(first)
    {'hydration': Change(came=[('u1', 'hydrating')], went=[])}
    >>> tables.change("hydration", [(("u1", "hydrating"), -1), (("u1", "hydrated"), 1)])
    >>> tables.take(first)
    {'hydration': Change(came=[('u1', 'hydrated')], went=[('u1', 'hydrating')])}
    >>> tables.take(first)
    {}
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """changed: called after each change, for who tells watchers."""
        self._changed = changed
        self._counts: dict[str, dict[Row, int]] = {}
        self._owed: dict[int, dict[str, dict[Row, int]]] = {}
        self._next = 0

    @property
    def watched(self) -> bool:
        """Whether anybody watches."""
        return bool(self._owed)

    def watch(self) -> int:
        """A new watcher, who is owed all that there is."""
        number = self._next
        self._next += 1
        self._owed[number] = {name: dict(counts) for name, counts in self._counts.items() if counts}
        return number

    def leave(self, watcher: int) -> None:
        """Nothing is kept for it any more."""
        del self._owed[watcher]

    def change(self, name: str, updates: Updates) -> None:
        """Take in what changed in relation `name`: rows, and how often each came (or, negative, went)."""
        updates = list(updates)
        _add(self._counts.setdefault(name, {}), updates)
        for owed in self._owed.values():
            _add(owed.setdefault(name, {}), updates)
        self._changed()

    def clear(self) -> None:
        """Nothing is known any more, as after a lost connection; watchers are owed what comes next."""
        self._counts.clear()
        for owed in self._owed.values():
            owed.clear()

    def rows(self, name: str) -> list[Row]:
        """What relation `name` holds, as it was told."""
        return [row for row, count in self._counts.get(name, {}).items() for _ in range(count)]

    def take(self, watcher: int) -> dict[str, Change]:
        """What is owed to a watcher, which is told with that."""
        owed, self._owed[watcher] = self._owed[watcher], {}
        taken = {}
        for name, counts in owed.items():
            came = [row for row, count in counts.items() for _ in range(count)]
            went = [row for row, count in counts.items() for _ in range(-count)]
            if came or went:
                taken[name] = Change(came, went)
        return taken


def _add(counts: dict[Row, int], updates: Updates) -> None:
    for row, count in updates:
        left = counts.get(row, 0) + count
        if left:
            counts[row] = left
        else:
            counts.pop(row, None)
