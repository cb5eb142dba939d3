"""Where a ^C may strike: while something is waited for, and never between bytes that were read and their use.

A handler that raises anywhere could lose what a socket had just given, and with it the connection. So a ^C
is raised only inside `may_strike`, and kept until then; a second one that finds the first still kept is
raised at once, for whatever waits elsewhere.

Does not: install itself (shell.py does). Nobody who does not is changed: then a ^C is Python's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts"]


class Interrupts:
    """A signal handler (`strike`) and the waits that it may end by KeyboardInterrupt."""

    def __init__(self) -> None:
        self._armed = False
        self._kept = False

    def strike(self, number: int, frame: FrameType | None) -> None:
        """A ^C has come. Raises KeyboardInterrupt where one may strike; else it is kept."""
        if self._armed or self._kept:
            self._kept = False
            raise KeyboardInterrupt
        self._kept = True

    def forget(self) -> None:
        """What it was meant for is over."""
        self._kept = False

    @contextmanager
    def may_strike(self) -> Iterator[None]:
        """Inside, a ^C ends the wait by KeyboardInterrupt, one that was kept too."""
        self._armed = True
        try:
            if self._kept:
                self._kept = False
                raise KeyboardInterrupt
            yield
        finally:
            self._armed = False
