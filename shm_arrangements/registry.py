"""ArrangementSharingRegistry: which shared arrangements a process knows, by (id, incarnation).

Either side may be first. Who reads an id before it is published gets a placeholder, which owns no memory;
the publication later fills that very entry, so nobody is left holding an orphan (Z9). Several ids may share
one publication: an alias joins the share of its original, in either order, and the share lives until its
last id is closed and its last holder has let go (R8, Z13). An id that returns has a new incarnation, hence
another entry; what is said of an old one never touches it (R9).

A publication is an opaque handle. Every change answers with what follows from it: the keys to look at
again, for which a wake only says "look" (Z12), and the handles to release.

Does not: open, map, wait or notify; know what a frontier is. One thread uses it.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from shm_arrangements.errors import InvariantViolation

H = TypeVar("H")


class CollectionKey(NamedTuple):
    """One incarnation of a collection."""

    id: int
    incarnation: int


class EntryState(enum.Enum):
    """PLACEHOLDER: known by name alone. PUBLISHED: can be read. CLOSED: dropped, held by who still reads."""

    PLACEHOLDER = "placeholder"
    PUBLISHED = "published"
    CLOSED = "closed"


@dataclass(eq=False)
class _Share(Generic[H]):
    """What ids that are aliases of each other have in common: at most one publication."""

    handle: H | None = None
    members: list[CollectionKey] = field(default_factory=list)


class Entry(Generic[H]):
    """One key's entry: read-only to all but the registry. The same object from placeholder to the end."""

    __slots__ = ("_holders", "_is_closed", "_share", "key")

    def __init__(self, key: CollectionKey, share: _Share[H]) -> None:
        self.key = key
        self._share = share
        self._is_closed = False
        self._holders: dict[Hashable, None] = {}

    @property
    def state(self) -> EntryState:
        if self._is_closed:
            return EntryState.CLOSED
        return EntryState.PLACEHOLDER if self._share.handle is None else EntryState.PUBLISHED

    @property
    def handle(self) -> H | None:
        """The publication, shared by all aliases; None for a placeholder. Kept for holders when closed."""
        return self._share.handle

    @property
    def holders(self) -> tuple[Hashable, ...]:
        """Who reads it or waits for it, in the order they came."""
        return tuple(self._holders)

    def __repr__(self) -> str:
        return f"Entry({self.key}, {self.state.value}, holders={len(self._holders)})"


@dataclass(frozen=True)
class Change(Generic[H]):
    """What follows: keys whose readers must look again, and handles that nobody refers to any more."""

    look: tuple[CollectionKey, ...] = ()
    release: tuple[H, ...] = ()


@dataclass(frozen=True)
class RegistryStatistics:
    placeholders: int
    published: int
    closed: int
    publications: int
    holders: int


class ArrangementSharingRegistry(Generic[H]):
    """The entries of one process. `H` is whatever reads a publication, or writes it."""

    def __init__(self) -> None:
        self._entries: dict[CollectionKey, Entry[H]] = {}
        self._newest: dict[int, list[int]] = {}

    def get(self, key: CollectionKey) -> Entry[H] | None:
        return self._entries.get(key)

    def newest(self, id: int) -> Entry[H] | None:
        """The entry of the latest incarnation that is not closed, or None."""
        for incarnation in reversed(self._newest.get(id, ())):
            entry = self._entries[CollectionKey(id, incarnation)]
            if entry.state is not EntryState.CLOSED:
                return entry
        return None

    def get_or_create(self, key: CollectionKey) -> Entry[H]:
        """Return the entry of `key`, a placeholder if it was not known."""
        entry = self._entries.get(key)
        return self._add(key, _Share()) if entry is None else entry

    def hold(self, key: CollectionKey, holder: Hashable) -> Entry[H]:
        """Keep the entry for `holder` (an import, a parked read), creating a placeholder if need be."""
        entry = self.get_or_create(key)
        entry._holders[holder] = None
        return entry

    def let_go(self, key: CollectionKey, holder: Hashable) -> Change[H]:
        """`holder` needs the entry no more. No effect if it did not hold it."""
        entry = self._entries.get(key)
        if entry is None or holder not in entry._holders:
            return Change()
        del entry._holders[holder]
        return Change(release=self._collect(entry._share))

    def publish(self, key: CollectionKey, handle: H) -> Change[H]:
        """Fill the entry in place, and with it every alias; look again at all of them.

        Raises: InvariantViolation if it is closed, or published with another handle.
        """
        entry = self.get_or_create(key)
        share = entry._share
        if entry._is_closed:
            raise InvariantViolation("publication of a closed id", key=key)
        if share.handle is not None:
            if share.handle is not handle:
                raise InvariantViolation("id published twice", key=key)
            return Change()
        share.handle = handle
        return Change(look=self._open(share))

    def alias(self, key: CollectionKey, original: CollectionKey) -> Change[H]:
        """Make `key` share what `original` has, or will have; a placeholder is filled in place (Z14).

        Raises: InvariantViolation if either is closed, or `key` has a publication of its own.
        """
        source, entry = self.get_or_create(original), self.get_or_create(key)
        if entry._share is source._share:
            return Change()
        if source._is_closed or entry._is_closed:
            raise InvariantViolation("alias of, or as, a closed id", key=key, original=original)
        if entry._share.handle is not None:
            raise InvariantViolation("alias under an id that is published", key=key, original=original)
        # Aliases of `key` made before it became one itself come along: sharing is transitive.
        moved, share = entry._share.members, source._share
        for member in moved:
            self._entries[member]._share = share
        share.members += moved
        return Change(look=self._open(share, moved) if share.handle is not None else ())

    def look(self, key: CollectionKey) -> tuple[CollectionKey, ...]:
        """Whose readers must look again if the page of `key` moved: all that share it. () if it is not known.

        Of an incarnation that is gone nothing is known, so late notices of it have no effect.
        """
        entry = self._entries.get(key)
        return () if entry is None else self._open(entry._share)

    def close(self, key: CollectionKey) -> Change[H]:
        """The id is dropped: its readers look again and find it CLOSED; other ids of the share live on.

        No effect if it is not known, or closed already.
        """
        entry = self._entries.get(key)
        if entry is None or entry._is_closed:
            return Change()
        entry._is_closed = True
        return Change(look=(key,) if entry._holders else (), release=self._collect(entry._share))

    def evict(self, key: CollectionKey) -> bool:
        """Forget a placeholder that nobody holds and no publication has filled; whether that was so."""
        entry = self._entries.get(key)
        if entry is None or entry.state is not EntryState.PLACEHOLDER or entry._holders:
            return False
        if len(entry._share.members) > 1:  # an alias, or the original of one: its publication will come
            return False
        self._remove(entry)
        return True

    def __iter__(self) -> Iterator[Entry[H]]:
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def statistics(self) -> RegistryStatistics:
        states = [entry.state for entry in self._entries.values()]
        shares = {id(e._share) for e in self._entries.values() if e.handle is not None}
        return RegistryStatistics(
            states.count(EntryState.PLACEHOLDER),
            states.count(EntryState.PUBLISHED),
            states.count(EntryState.CLOSED),
            len(shares),
            sum(len(entry._holders) for entry in self._entries.values()),
        )

    def validate_state(self) -> None:
        """Check that entries and shares agree, and that nothing is kept for nobody. For tests.

        Raises: AssertionError saying what does not hold.
        """
        for key, entry in self._entries.items():
            assert entry.key == key, "entry under another key"
            assert key in entry._share.members, "entry not a member of its share"
            assert key.incarnation in self._newest[key.id], "incarnation not listed"
            for member in entry._share.members:
                assert self._entries[member]._share is entry._share, "member of two shares"
            kept = any(
                not self._entries[m]._is_closed or self._entries[m]._holders for m in entry._share.members
            )
            assert kept, "share kept for nobody"
        assert sum(map(len, self._newest.values())) == len(self._entries), "incarnations and entries differ"
        assert all(listed == sorted(listed) for listed in self._newest.values()), "incarnations out of order"

    def _add(self, key: CollectionKey, share: _Share[H]) -> Entry[H]:
        entry: Entry[H] = Entry(key, share)
        share.members.append(key)
        self._entries[key] = entry
        listed = self._newest.setdefault(key.id, [])
        listed.append(key.incarnation)
        listed.sort()
        return entry

    def _remove(self, entry: Entry[Any]) -> None:
        entry._share.members.remove(entry.key)
        del self._entries[entry.key]
        listed = self._newest[entry.key.id]
        listed.remove(entry.key.incarnation)
        if not listed:
            del self._newest[entry.key.id]

    def _open(self, share: _Share[H], among: list[CollectionKey] | None = None) -> tuple[CollectionKey, ...]:
        keys = share.members if among is None else among
        return tuple(key for key in keys if not self._entries[key]._is_closed)

    def _collect(self, share: _Share[H]) -> tuple[H, ...]:
        """Forget closed entries that nobody holds; with the last of a share its handle is to be released."""
        for key in tuple(share.members):
            entry = self._entries[key]
            if entry._is_closed and not entry._holders:
                self._remove(entry)
        return () if share.members or share.handle is None else (share.handle,)
