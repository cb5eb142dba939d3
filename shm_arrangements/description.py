"""Description: which part of a collection's history a batch holds, and how exactly.

A batch with `(lower, upper, since)` holds, for every time `t` with `since <= t`, the updates at times `s`
with `lower <= s < upper`, so that the sum of the diffs of a row over `s <= t` is the true one. It follows
that times before `since` may have been rounded up to it, even beyond `upper`. It does not follow that a
batch holds any update, nor that two batches with one description hold the same updates.

Does not: say where the updates are.
"""

from __future__ import annotations

from dataclasses import dataclass

from shm_arrangements.frontier import Frontier


@dataclass(frozen=True, slots=True)
class Description:
    """`lower` and `upper` bound the times, `since` the exactness. lower never passes upper."""

    lower: Frontier
    upper: Frontier
    since: Frontier

    def __post_init__(self) -> None:
        if not self.lower.precedes_or_equal(self.upper):
            raise ValueError(f"lower {self.lower} is beyond upper {self.upper}")

    def abuts(self, later: Description) -> bool:
        """Whether `later` begins exactly where this one ends."""
        return self.upper == later.lower

    def through(self, later: Description) -> Description:
        """The description of both together.

        Raises: ValueError if they do not abut.
        """
        if not self.abuts(later):
            raise ValueError(f"{self} does not abut {later}")
        return Description(self.lower, later.upper, Frontier.join(self.since, later.since))

    def __repr__(self) -> str:
        return f"[{self.lower}, {self.upper}) since {self.since}"
