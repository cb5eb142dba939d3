"""ArrangementSharingRegistry: which shared arrangements a process knows, by (id, incarnation).

Either side may be first. Who reads an id before it is published gets a placeholder, which owns no memory;
the publication later fills that very entry, so nobody is left holding an orphan (Z9, Z14). Several ids may
share one publication: an alias joins the share of its original, in either order, and the share lives until
its last id is closed (R8, Z13). A placeholder that nothing has filled can be evicted (Z10). An id that
returns has a new incarnation, hence another entry; what is said of an old one never touches it (R9).

A publication is an opaque handle; what `close` returns is to be released.

Does not: open, map, wait or notify; know who reads, or what a frontier is. One thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from shm_arrangements.errors import InvariantViolation

H = TypeVar("H")


class CollectionKey(NamedTuple):
    """One incarnation of a collection."""

    id: int
    incarnation: int


@dataclass(eq=False)
class _Share(Generic[H]):
    """What ids that are aliases of each other have in common: at most one publication."""

    handle: H | None = None
    members: list[CollectionKey] = field(default_factory=list)


class Entry(Generic[H]):
    """One key's entry: read-only to all but the registry. The same object from placeholder to the end."""

    __slots__ = ("_share", "key")

    def __init__(self, key: CollectionKey, share: _Share[H]) -> None:
        self.key = key
        self._share = share

    @property
    def handle(self) -> H | None:
        """The publication, shared by all aliases; None for a placeholder."""
        return self._share.handle

    def __repr__(self) -> str:
        state = "placeholder" if self.handle is None else "published"
        return f"Entry({self.key}, {state}, ids={len(self._share.members)})"


@dataclass(frozen=True)
class RegistryStatistics:
    """placeholders, published: ids; publications: what these share."""

    placeholders: int
    published: int
    publications: int


class ArrangementSharingRegistry(Generic[H]):
    """The entries of one process. `H` is whatever reads a publication, or writes it."""

    def __init__(self) -> None:
        self._entries: dict[CollectionKey, Entry[H]] = {}

    def get(self, key: CollectionKey) -> Entry[H] | None:
        return self._entries.get(key)

    def get_or_create(self, key: CollectionKey) -> Entry[H]:
        """Return the entry of `key`, a placeholder if it was not known."""
        entry = self._entries.get(key)
        if entry is None:
            share: _Share[H] = _Share(members=[key])
            entry = self._entries[key] = Entry(key, share)
        return entry

    def publish(self, key: CollectionKey, handle: H) -> None:
        """Fill the entry in place, and with it every alias. No effect if it has that very handle.

        Raises: InvariantViolation if it is published with another one.
        """
        share = self.get_or_create(key)._share
        if share.handle is not None and share.handle is not handle:
            raise InvariantViolation("id published twice", key=key)
        share.handle = handle

    def alias(self, key: CollectionKey, original: CollectionKey) -> None:
        """Make `key` share what `original` has, or will have; a placeholder is filled in place.

        Raises: InvariantViolation if `key` has a publication of its own.
        """
        source, entry = self.get_or_create(original), self.get_or_create(key)
        if entry._share is source._share:
            return
        if entry.handle is not None:
            raise InvariantViolation("alias under an id that is published", key=key, original=original)
        # Aliases of `key` made before it became one itself come along: sharing is transitive.
        moved, share = entry._share.members, source._share
        for member in moved:
            self._entries[member]._share = share
        share.members += moved

    def close(self, key: CollectionKey) -> H | None:
        """The id is gone: other ids of its share live on. With the last of them, what is to be released.

        No effect if it is not known.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        share = entry._share
        share.members.remove(key)
        return None if share.members else share.handle

    def evict(self, key: CollectionKey) -> bool:
        """Forget a placeholder that no publication has filled; whether it was one.

        An alias, or the original of one, is none: its publication will come.
        """
        entry = self._entries.get(key)
        if entry is None or entry.handle is not None or len(entry._share.members) > 1:
            return False
        del self._entries[key]
        return True

    def __iter__(self) -> Iterator[Entry[H]]:
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def statistics(self) -> RegistryStatistics:
        published = [entry for entry in self._entries.values() if entry.handle is not None]
        shares = {id(entry._share) for entry in published}
        return RegistryStatistics(len(self._entries) - len(published), len(published), len(shares))

    def validate_state(self) -> None:
        """Check that entries and shares agree. For tests.

        Raises: AssertionError saying what does not hold.
        """
        for key, entry in self._entries.items():
            assert entry.key == key, "entry under another key"
            assert entry._share.members.count(key) == 1, "entry not once a member of its share"
            for member in entry._share.members:
                assert self._entries[member]._share is entry._share, "member of two shares"
