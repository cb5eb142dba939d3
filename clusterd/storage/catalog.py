"""Catalog: which parts a shard has and how far it is sealed; one row of it decides who appended.

An append is one transaction: the shard's row gets its new upper where the old one is the expected one and, if
that changed the row, its parts are listed, and positions of what was loaded (positions.py) are set with it.
So of two appends with the same expectation exactly one takes place. Where parts were merged, one takes the
place of several in one transaction too.

Frontiers are text, 20 digits, so that they sort as numbers do (SQL's integers end at 2^63); `[]` is the empty
one, and sorts after all of them.

Does not: write or remove parts, wait for news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from clusterd.storage.parts import PartInfo
from controller_proto.schema import Schema
from shm_arrangements.frontier import Frontier

__all__ = [
    "LOCK_BRIEFLY_S", "LOCK_WAIT_S", "Catalog", "ShardState", "frontier_of", "frontier_text", "time_text",
]  # fmt: skip

LOCK_WAIT_S = 30.0  # a commit holds the lock for the few syncs of one transaction
LOCK_BRIEFLY_S = 0.05  # of who has other things to do: as long as a piece of work may take


class ShardState(msgspec.Struct, frozen=True):
    """How far a shard may be read: `since` <= t < `upper`."""

    since: Frontier
    upper: Frontier


class Catalog(Protocol):
    """What is known of one shard; as of now, each time.

    Raises Refusal: `timeout` if a lock is not to be had, `format-mismatch` if the database is damaged;
    OSError if it is lost, may not be written or has no room: an append may have taken place then or not.
    """

    def wait_for_locks(self, wait_s: float) -> None:
        """How long locks of others are waited for from now on; at first it is `LOCK_WAIT_S`."""

    def schema(self) -> Schema: ...

    def state(self) -> ShardState: ...

    def parts(self, lower: int, upper: Frontier) -> list[PartInfo]:
        """The parts with a time in [lower, upper), in the order of their appends."""

    def files(self) -> set[str]:
        """The file names of all parts."""

    def dropped(self) -> set[str]:
        """Files that were parts until a while ago: who listed them then may still read them."""

    def totals(self) -> tuple[int, int, int]:
        """How many parts, updates and bytes there are."""

    def positions(self) -> dict[str, str]:
        """What `compare_and_append` was told, by name."""

    def compare_and_append(
        self,
        expected: Frontier,
        new: Frontier,
        parts: Sequence[PartInfo],
        positions: Mapping[str, str | None],
    ) -> Frontier:
        """Move upper from `expected` to `new`, list `parts` and set `positions` (None: forget that name), in
        one step, or do nothing.

        Returns the upper found; the append took place exactly if that is `expected`.
        """

    def replace_parts(self, old: Sequence[str], new: Sequence[PartInfo]) -> bool:
        """List `new` in place of the files `old`, in one step; False, and nothing done, if one of those is
        not listed.
        """

    def advance_since(self, since: Frontier) -> Frontier:
        """Raise since to at least `since`. Returns what it is then."""

    def close(self) -> None: ...


def frontier_text(frontier: Frontier) -> str:
    """A frontier as catalogs have it."""
    return "[]" if frontier.is_empty else time_text(frontier.time)


def time_text(time: int) -> str:
    """The text of the frontier at `time`."""
    return f"{time:020d}"


def frontier_of(text: str) -> Frontier:
    """The frontier that a catalog has as `text`."""
    return Frontier.empty() if text == "[]" else Frontier.at(int(text))
