"""Reconciliation: what InitializationComplete does to the dataflows that stand.

P12 allows anything that ends as if all had been dropped and the new commands run. So far nothing is kept;
the caller carries out a plan and need not know that.

Does not: drop or build, compare plans.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Reconciliation", "plan_reconciliation"]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Numbers of dataflows: `keep` (standing -> wanted), `drop` (standing), `build` (wanted), in order."""

    keep: dict[int, int]
    drop: tuple[int, ...]
    build: tuple[int, ...]


def plan_reconciliation(standing: Collection[int], wanted: Collection[int]) -> Reconciliation:
    """Drop every standing dataflow, the latest first (an importer before what it imports), and build anew."""
    return Reconciliation({}, tuple(sorted(standing, reverse=True)), tuple(sorted(wanted)))
