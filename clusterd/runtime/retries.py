"""Retries: when what failed, for a reason that may go, is tried again.

A full disk or a lock of another process tells nobody when it ends, so what met one is put off, for longer
each time it fails, and is tried again by itself. It is a time-out of the one wait that a worker has.

Does not: read a clock (`now_s` is of any that rises), try, tell why.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["FIRST_S", "LONGEST_S", "Retries"]

Name = TypeVar("Name", bound=Hashable)
FIRST_S = 0.1
LONGEST_S = 5.0


class Retries(Generic[Name]):
    """By name."""

    def __init__(self) -> None:
        self._waits: dict[Name, tuple[float, float]] = {}  # until when, and for how long

    def __len__(self) -> int:
        return len(self._waits)

    def failed(self, name: Name, now_s: float) -> bool:
        """Put it off; whether it had not failed before, or not since it was `over`."""
        _, waited_s = self._waits.get(name, (0.0, 0.0))
        wait_s = min(2 * waited_s or FIRST_S, LONGEST_S)
        self._waits[name] = now_s + wait_s, wait_s
        return not waited_s

    def over(self, name: Name) -> bool:
        """It was done, or nobody wants it any more. Whether it had failed."""
        return self._waits.pop(name, None) is not None

    def may(self, name: Name, now_s: float) -> bool:
        """Whether it is not put off."""
        return name not in self._waits or self._waits[name][0] <= now_s

    def due(self, now_s: float) -> list[Name]:
        """What failed and may be tried now."""
        if not self._waits:
            return []
        return [name for name, (until_s, _) in self._waits.items() if until_s <= now_s]

    def next_s(self) -> float | None:
        """When the first may be tried; None if there is none."""
        if not self._waits:
            return None
        return min(until_s for until_s, _ in self._waits.values())
