"""Exchange: where updates change workers, so that every worker arranges the keys it owns.

There is one on every edge into an arranging operator, also in a replica of one worker, where it is the
identity: the graph has the same shape at every N, and no operator knows N. Which worker owns a row is a
function of the row alone (`RowImage.hash` of the key columns, modulo N), the same that batches are coded by.

What an exchange over N > 1 workers owes, by edge and round: every worker sends exactly one message to every
worker, possibly empty, so that "all have come" can be told without a clock or a count of updates; messages
are received while sending, so that no two workers wait for each other's buffers; and rounds come in the
order of `sequence.py`, the same on all workers. While a peer's message is outstanding `finish` yields empty
Deltas, so that the chunk ends and another dataflow has its turn.

Does not: sort, consolidate, or keep anything beyond a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from clusterd.dataflow.operator import Delta, Round

__all__ = ["ExchangeEdge", "ExchangeFactory", "IdentityExchange", "identity_exchange"]


class ExchangeEdge(Protocol):
    """One edge of one dataflow, on one worker."""

    def start(self, round: Round) -> None: ...

    def send(self, delta: Delta) -> Iterator[Delta]:
        """Take a block from upstream; yield what this worker owns of it, and what has arrived meanwhile."""

    def finish(self) -> Iterator[Delta]:
        """Upstream has finished the round: send what is left, and yield until every peer's message is in."""

    def close(self) -> None: ...


class ExchangeFactory(Protocol):
    """Makes the edges of a graph, in arrival order: the same number names the same edge on every worker."""

    def __call__(self, edge: int, key: tuple[int, ...]) -> ExchangeEdge:
        """key: columns of the rows on the edge that decide their owner; () sends all rows to one worker."""


class IdentityExchange:
    """The exchange among one worker: everything stays, in order, without a copy."""

    def start(self, round: Round) -> None:
        """Nothing to expect from anybody."""

    def send(self, delta: Delta) -> Iterator[Delta]:
        yield delta

    def finish(self) -> Iterator[Delta]:
        return iter(())

    def close(self) -> None:
        """Nothing is held."""


def identity_exchange(edge: int, key: tuple[int, ...]) -> ExchangeEdge:
    """The factory of one worker."""
    return IdentityExchange()
