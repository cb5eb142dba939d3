"""What the introspection relations say of a replica in one process (runtime/shell.py)."""

from __future__ import annotations

from typing import Any

from clusterd.introspection.collect_outside import Lookout
from clusterd.introspection.relations import RELATIONS
from clusterd.introspection.samples import Samples
from tests.clusterd.runtime.shell import Shell

Named = dict[str, Any]


class Looking:
    """Keeps the samples, as the observer does."""

    def __init__(self, replica: Shell) -> None:
        self._replica = replica
        self.samples = Samples()
        self._lookout = Lookout(replica.instance.token)

    def look(self) -> dict[str, list[Named]]:
        """The rows of every relation now, by the names of its columns; each as it has to be."""
        for loop in self._replica.loops:
            self.samples.take(loop.sample())
            while loop._collector.has_more:
                self.samples.take(loop.sample())
        outside = self._lookout.look(self.samples)
        found: dict[str, list[Named]] = {}
        for relation in RELATIONS:
            names = [field.name for field in relation.fields]
            found[relation.name] = [
                dict(zip(names, row, strict=True)) for row in relation.rows(self.samples, outside)
            ]
        return found


def only(rows: list[Named], **wanted: Any) -> list[Named]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def one(rows: list[Named], **wanted: Any) -> Named:
    """The one row that has these values."""
    found = only(rows, **wanted)
    assert len(found) == 1, (wanted, found)
    return found[0]
