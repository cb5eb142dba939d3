"""Frontier: the times that may still come.

Times are one u64 and totally ordered, so a frontier is one time, or empty (closed: nothing can come). The
words are those of partial orders, so that nothing else changes if times become products: code outside this
file compares frontiers with these methods, never with `<`.

Does not: hold an "unknown" state; unknown is `minimum()`, which promises nothing.
"""

from __future__ import annotations

from operator import index
from typing import Final

MAX_TIME: Final = (1 << 64) - 1


class Frontier:
    """An immutable antichain of at most one u64 time.

    >>> Frontier.at(5).less_equal(5), Frontier.at(5).less_equal(4), Frontier.empty().less_equal(5)
    (True, False, False)
    """

    __slots__ = ("_time",)
    _time: int  # -1 when empty

    def __init__(self, time: int | None) -> None:
        try:
            value = -1 if time is None else index(time)
        except TypeError:
            raise TypeError(f"a time is a u64, not {time!r}") from None
        if time is not None and not 0 <= value <= MAX_TIME:
            raise ValueError(f"not a u64 time: {time}")
        object.__setattr__(self, "_time", value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Frontier is immutable")

    def __reduce__(self) -> tuple[type[Frontier], tuple[int | None]]:
        return Frontier, (None if self.is_empty else self._time,)

    @staticmethod
    def at(time: int) -> Frontier:
        """The frontier of exactly `time`."""
        return Frontier(time)

    @staticmethod
    def minimum() -> Frontier:
        """The frontier that promises nothing: any time may come."""
        return _MINIMUM

    @staticmethod
    def empty() -> Frontier:
        """The closed frontier: no time may come."""
        return _EMPTY

    @property
    def is_empty(self) -> bool:
        return self._time < 0

    @property
    def time(self) -> int:
        """The one element. Raises: ValueError if empty."""
        if self._time < 0:
            raise ValueError("the empty frontier has no time")
        return self._time

    def less_equal(self, time: int) -> bool:
        """Whether some element is at or before `time`; the empty frontier never is.

        As `since`: `time` is readable. As `upper`: `time` may still change.
        """
        return 0 <= self._time <= time

    def precedes(self, other: Frontier) -> bool:
        """Strictly earlier: `other` promises more. Empty is the latest."""
        return self != other and self.precedes_or_equal(other)

    def precedes_or_equal(self, other: Frontier) -> bool:
        """Earlier or the same."""
        return other._time < 0 or 0 <= self._time <= other._time

    @staticmethod
    def meet(*frontiers: Frontier) -> Frontier:
        """The earliest of them; of none the empty one."""
        found = _EMPTY
        for frontier in frontiers:
            if frontier.precedes_or_equal(found):
                found = frontier
        return found

    @staticmethod
    def join(*frontiers: Frontier) -> Frontier:
        """The latest of them; of none the minimum."""
        found = _MINIMUM
        for frontier in frontiers:
            if found.precedes_or_equal(frontier):
                found = frontier
        return found

    def advance(self, time: int) -> int:
        """`time` rounded up to this frontier.

        Raises: ValueError if empty, for nothing is there to round up to.
        """
        return max(self.time, time)

    def to_wire(self) -> tuple[int, ...]:
        """`(time,)`, or `()` when empty."""
        return () if self._time < 0 else (self._time,)

    @staticmethod
    def from_wire(elements: tuple[int, ...] | list[int]) -> Frontier:
        """Inverse of `to_wire`. Raises: ValueError for more than one element or no u64."""
        if len(elements) > 1:
            raise ValueError(f"times are totally ordered, a frontier has at most one: {elements}")
        return Frontier(elements[0]) if elements else _EMPTY

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frontier) and self._time == other._time

    def __hash__(self) -> int:
        return hash(self._time)

    def __repr__(self) -> str:
        return "{}" if self._time < 0 else f"{{{self._time}}}"


_MINIMUM: Final = Frontier(0)
_EMPTY: Final = Frontier(None)
