"""What the introspection relations hold, and how they change: rows of samples, as differences.

Each relation is computed whole from the newest samples, and what is told is the difference to what stood:
rows that came with +1, rows that went with -1. So readers see only what changed, whatever a sample says anew.

Does not: read pages, write indexes (observer.py), know what a row means (relations.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from clusterd.introspection.relation import Relation
from clusterd.introspection.sample import Outside
from clusterd.introspection.samples import Samples
from controller_proto.schema import Row

__all__ = ["Keeper"]


class Keeper:
    """The rows of every relation, as they were last told."""

    def __init__(self, relations: Sequence[Relation]) -> None:
        self._relations = relations
        self._told: list[Counter[Row]] = [Counter() for _ in relations]

    def differences(self, samples: Samples, outside: Outside) -> Iterator[tuple[int, list[tuple[Row, int]]]]:
        """The place of each relation that changed, and its (row, diff)s: told once the next is asked for."""
        for place, relation in enumerate(self._relations):
            now = Counter(relation.rows(samples, outside))
            before = self._told[place]
            changed = [(row, n - before[row]) for row, n in now.items() if n != before[row]]
            changed += [(row, -n) for row, n in before.items() if row not in now]
            if changed:
                yield place, changed
                self._told[place] = now
