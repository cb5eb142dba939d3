"""Standing: a maintained collection as the core knows it. Handle: the same for a user, in either client.

Does not: own anything; letting go of a handle leaves the index where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller_proto.dataflow import Export
from controller_proto.ids import GlobalId
from controller_proto.plan import Get
from controller_proto.schema import Schema, type_name

__all__ = ["Handle", "Standing", "standing_of"]


@dataclass(eq=False, slots=True)
class Standing:
    """An index or view. since: the least time that may still be read, as far as this client said or was told.
    shards: what it is made of in the end; None if somebody else made it.
    """

    export: Export
    since: int
    shards: frozenset[str] | None = None


class Handle:
    """What an index or view is: `schema` of its rows, `key` positions in it."""

    def __init__(self, standing: Standing) -> None:
        self.standing = standing

    @property
    def id(self) -> GlobalId:
        return self.standing.export.id

    @property
    def schema(self) -> Schema:
        return self.standing.export.schema

    @property
    def key(self) -> tuple[int, ...]:
        return self.standing.export.key

    @property
    def since(self) -> int:
        """The least time that may still be read."""
        return self.standing.since

    @property
    def get(self) -> Get:
        """The collection as the input of a plan."""
        return Get(self.id)

    def __repr__(self) -> str:
        columns = self.schema.columns
        told = ", ".join(f"{c.name} {type_name(c)}{'?' if c.nullable else ''}" for c in columns)
        key = ", ".join(columns[position].name for position in self.key)
        return f"{type(self).__name__}({self.id}: {told}; key=[{key}], since={self.since})"


def standing_of(given: Handle) -> Standing:
    """What a user passes as an index or view. Raises TypeError."""
    if not isinstance(given, Handle):
        raise TypeError(f"{given!r} is no index or view: give what created it returned, or client.index(ID)")
    return given.standing
