"""When a process says how it is getting on: at most ten times a second, and only if it did something.

`note` marks that there is news; `tell`, called between any two pieces of work, writes the progress page and
rings the observer once the pause since the last time is over. What is left when work ends is told when the
pause is: `due_s` is the one timer for that, and there is none in a process that does nothing. The pause
stretches with what a sample costs, so that samples take a hundredth of a process at most.

Does not: collect (collect_*.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from clusterd.introspection.page import ProgressPage

__all__ = ["PAUSE_S", "Progress"]

PAUSE_S: Final = 0.1
_COST: Final = 100  # times what a sample takes, at least, until the next


class Progress:
    """One process's. ring: a pipe to the observer. collect: an encoded sample. clock: seconds. cost: seconds
    of the processor, for who has to wait for a core is not to say less for it.
    """

    def __init__(
        self,
        page: ProgressPage,
        ring: int,
        collect: Callable[[], bytes],
        clock: Callable[[], float],
        cost: Callable[[], float],
    ) -> None:
        os.set_blocking(ring, False)
        self._page = page
        self._ring = ring
        self._collect = collect
        self._clock = clock
        self._cost = cost
        self._news = True
        self._next_s = 0.0

    def note(self) -> None:
        """Something was done."""
        self._news = True

    @property
    def due_s(self) -> float | None:
        """When to call `tell`, on the clock; None without news."""
        return self._next_s if self._news else None

    def tell(self) -> None:
        """Write and ring, if there is news and it is time."""
        if not self._news:
            return
        if self._clock() < self._next_s:
            return
        began_s = self._cost()
        self._news = False  # before it is collected: what a sample leaves out is news again
        if not self._page.write(self._collect()):
            self._news = True  # without room: again, after the pause
        # It has not read the last ones; or it is gone, and we are about to be.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._ring, b"!")
        self._next_s = self._clock() + max(PAUSE_S, _COST * (self._cost() - began_s))

    def close(self) -> None:
        self._page.close()
