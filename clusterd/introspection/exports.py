"""The introspection relations as the multiplexer and the observer declare them: indexes with system ids.

Does not: say what is in them (relations.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clusterd.introspection.relations import IDS, RELATIONS
from controller_proto.dataflow import Export
from controller_proto.suggest import not_called

__all__ = ["EXPORTS", "export_of"]

EXPORTS: Final[Mapping[str, Export]] = {
    each.name: Export(IDS[each.name], "index", IDS[each.name], each.columns, each.key) for each in RELATIONS
}


def export_of(name: str) -> Export:
    """The relation `name`. Raises: ValueError naming one that is like it."""
    if name not in EXPORTS:
        raise ValueError(not_called("introspection relation", name, EXPORTS))
    return EXPORTS[name]
