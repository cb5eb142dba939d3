"""The registry: either side may be first, and nothing is released twice, too early, or never."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shm_arrangements.errors import InvariantViolation
from shm_arrangements.registry import ArrangementSharingRegistry, CollectionKey, Entry

U1, U2, U3 = (CollectionKey(i, 1) for i in (1, 2, 3))


class Handle:
    """Stands for a publication; compared by identity."""


Registry = ArrangementSharingRegistry[Handle]


def test_a_placeholder_is_filled_in_place() -> None:
    registry, handle = Registry(), Handle()
    entry = registry.get_or_create(U1)
    assert entry.handle is None
    registry.publish(U1, handle)
    assert registry.get_or_create(U1) is registry.get(U1) is entry
    assert entry.handle is handle
    registry.publish(U1, handle)
    with pytest.raises(InvariantViolation, match="twice"):
        registry.publish(U1, Handle())


def test_l16_a_placeholder_whose_publication_never_comes_leaves_nothing() -> None:
    registry = Registry()
    registry.get_or_create(U1)
    assert registry.evict(U1)
    assert not registry.evict(U1)
    registry.get_or_create(U1)
    assert registry.close(U1) is None
    assert len(registry) == 0


def test_a_placeholder_whose_publication_will_come_is_not_evicted() -> None:
    registry, handle = Registry(), Handle()
    registry.alias(U2, U1)
    assert not registry.evict(U1)
    assert not registry.evict(U2)
    registry.publish(U1, handle)
    assert not registry.evict(U2)
    assert registry.close(U1) is None
    assert registry.close(U2) is handle


@pytest.mark.parametrize("order", list(itertools.permutations(["publish", "2=1", "3=2"])))
def test_aliases_and_publication_may_come_in_any_order(order: tuple[str, ...]) -> None:
    registry, handle = Registry(), Handle()
    entries = [registry.get_or_create(key) for key in (U1, U2, U3)]
    for step in order:
        if step == "publish":
            registry.publish(U1, handle)
        else:
            registry.alias(*((U2, U1) if step == "2=1" else (U3, U2)))
        registry.validate_state()
    assert all(entry.handle is handle and registry.get(entry.key) is entry for entry in entries)
    assert registry.statistics().publications == 1


@pytest.mark.parametrize("order", list(itertools.permutations([U1, U2, U3])))
def test_l10_the_publication_goes_with_the_last_of_its_ids(order: tuple[CollectionKey, ...]) -> None:
    registry, handle = Registry(), Handle()
    registry.publish(U1, handle)
    registry.alias(U2, U1)
    registry.alias(U3, U2)
    *first, last = order
    for key in first:
        assert registry.close(key) is None
    entry = registry.get(last)
    assert entry is not None
    assert entry.handle is handle
    assert registry.close(last) is handle
    assert registry.close(last) is None
    assert len(registry) == 0


def test_incarnations_are_kept_apart() -> None:
    registry, old, new = Registry(), Handle(), Handle()
    again = CollectionKey(1, 2)
    registry.publish(U1, old)
    waiting = registry.get_or_create(again)
    assert registry.close(U1) is old
    assert waiting.handle is None
    registry.publish(again, new)
    assert registry.close(U1) is None
    assert waiting.handle is new
    assert registry.close(again) is new


def test_an_id_with_a_publication_of_its_own_is_no_alias() -> None:
    registry = Registry()
    registry.publish(U1, Handle())
    registry.publish(U2, Handle())
    with pytest.raises(InvariantViolation, match="published"):
        registry.alias(U2, U1)
    registry.alias(U2, U2)


# --- against a model ---

KEYS = [CollectionKey(id, incarnation) for id in (1, 2, 3) for incarnation in (1, 2)]
keys = st.sampled_from(KEYS)


@dataclass(eq=False)
class Group:
    handle: Handle | None = None
    members: set[CollectionKey] = field(default_factory=set)


class RegistryMachine(RuleBasedStateMachine):
    """The model: the keys that are known, in groups that have at most one handle."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.groups: dict[CollectionKey, Group] = {}
        self.entries: dict[CollectionKey, Entry[Handle]] = {}
        self.published: set[Handle] = set()
        self.released: Counter[Handle] = Counter()

    def _know(self, key: CollectionKey) -> Group:
        return self.groups.setdefault(key, Group(members={key}))

    @rule(key=keys)
    def get_or_create(self, key: CollectionKey) -> None:
        self._know(key)
        entry = self.registry.get_or_create(key)
        assert self.entries.setdefault(key, entry) is entry

    @rule(key=keys)
    def publish(self, key: CollectionKey) -> None:
        group = self._know(key)
        handle = Handle()
        if group.handle is not None:
            with pytest.raises(InvariantViolation):
                self.registry.publish(key, handle)
            self.registry.publish(key, group.handle)
            return
        group.handle = handle
        self.published.add(handle)
        self.registry.publish(key, handle)

    @rule(key=keys, original=keys)
    def alias(self, key: CollectionKey, original: CollectionKey) -> None:
        source, target = self._know(original), self._know(key)
        if source is not target and target.handle is not None:
            with pytest.raises(InvariantViolation):
                self.registry.alias(key, original)
            return
        source.members |= target.members
        for member in target.members:
            self.groups[member] = source
        self.registry.alias(key, original)

    @rule(key=keys)
    def close(self, key: CollectionKey) -> None:
        group = self.groups.pop(key, Group())
        self.entries.pop(key, None)
        group.members.discard(key)
        released = self.registry.close(key)
        assert released is (None if group.members else group.handle)
        if released is not None:
            self.released[released] += 1

    @rule(key=keys)
    def evict(self, key: CollectionKey) -> None:
        group = self.groups.get(key)
        expected = group is not None and group.handle is None and group.members == {key}
        assert self.registry.evict(key) == expected
        if expected:
            del self.groups[key]
            self.entries.pop(key, None)

    @invariant()
    def agrees(self) -> None:
        self.registry.validate_state()
        assert {entry.key for entry in self.registry} == set(self.groups)
        for entry in self.registry:
            assert entry.handle is self.groups[entry.key].handle
            assert self.entries.setdefault(entry.key, entry) is entry, "filled in place, never replaced"
        live = {group.handle for group in self.groups.values() if group.handle is not None}
        counted = self.registry.statistics()
        assert counted.publications == len(live)
        assert counted.published == sum(group.handle is not None for group in self.groups.values())
        assert counted.placeholders + counted.published == len(self.groups)
        assert set(self.released) == self.published - live
        assert all(count == 1 for count in self.released.values())

    def teardown(self) -> None:
        """Whatever happened: when all is closed nothing is left, and each was released once."""
        for key in KEYS:
            self.close(key)
        assert len(self.registry) == 0
        assert set(self.released) == self.published


TestRegistryAgainstAModel = RegistryMachine.TestCase
TestRegistryAgainstAModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
