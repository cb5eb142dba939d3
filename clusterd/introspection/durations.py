"""Durations, counted by powers of two: what histograms of every process are made of.

The k-th count is of durations below `BOUNDS_NS[k]` and not below the bound before; the last is of all others.
A bound is a power of two of nanoseconds, so the place of a duration is the number of its bits.

Does not: take the time.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BOUNDS_NS", "Durations"]

_FIRST_BITS: Final = 13
_PLACES: Final = 24
BOUNDS_NS: Final = tuple(1 << bits for bits in range(_FIRST_BITS, _FIRST_BITS + _PLACES - 1))  # 8 us to 34 s
_PLACE: Final = tuple(min(max(bits - _FIRST_BITS, 0), _PLACES - 1) for bits in range(65))


class Durations:
    """One histogram. counts: by place. total_ns: of all durations together."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * _PLACES
        self.total_ns = 0

    def add(self, ns: int) -> None:
        """Count a duration of less than 2^64 ns. Costs some 150 ns."""
        self.counts[_PLACE[ns.bit_length()]] += 1
        self.total_ns += ns

    def merge(self, other: Durations) -> None:
        """Count what `other` has counted, too."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total_ns += other.total_ns
