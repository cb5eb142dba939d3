"""Followed: the shards that somebody here reads or writes, by whom, and how far each is sealed as last heard.

A shard is watched from its first follower to its last.

Does not: look at shards (dataflows.py does), act on what moved (flows.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterd.runtime import effects as fx
from clusterd.runtime.peeks import Key
from clusterd.runtime.state import RuntimeState
from shm_arrangements.frontier import Frontier

__all__ = ["Followed"]


class Followed:
    """Followers are the numbers of dataflows, which read a shard, and the keys of views stored in it."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._uppers: dict[str, Frontier] = {}
        self._followers: dict[str, set[int | Key]] = {}

    @property
    def uppers(self) -> Mapping[str, Frontier]:
        """Of all that are followed."""
        return self._uppers

    def follow(self, name: str, follower: int | Key) -> Frontier:
        """Returns the upper as last heard; the minimum if the shard is new here."""
        followers = self._followers.setdefault(name, set())
        followers.add(follower)
        if len(followers) == 1:
            self._uppers[name] = Frontier.minimum()
            self._state.emit(fx.WatchShard(name))
        return self._uppers[name]

    def leave(self, name: str, follower: int | Key) -> bool:
        """Whether nobody follows it any more, by this. Idempotent."""
        followers = self._followers.get(name, set())
        followers.discard(follower)
        if followers or self._followers.pop(name, None) is None:
            return False
        del self._uppers[name]
        self._state.emit(fx.UnwatchShard(name))
        return True

    def seal(self, name: str, upper: Frontier) -> Frontier:
        """A followed shard is sealed up to `upper`, or further as was heard before. Returns which."""
        self._uppers[name] = Frontier.join(self._uppers[name], upper)
        return self._uppers[name]

    def dataflows(self, name: str) -> list[int]:
        """Those that read it, in order."""
        return sorted(each for each in self._followers[name] if isinstance(each, int))

    def views(self, name: str) -> list[Key]:
        """Those that are stored in it, in order."""
        return sorted(each for each in self._followers[name] if not isinstance(each, int))
