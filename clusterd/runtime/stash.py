"""Stashes: answers too large for one message, kept in a file until they are taken, message by message.

The file has no name (`O_TMPFILE`, where the file system can), so it ends with the process however that ends,
and there is nothing to sweep. What a stash holds in memory is where its messages end. It is written to its
end, then read from its start, each message once.

Does not: know what is in a message, decide when one is sent.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from shm_arrangements.errors import InvariantViolation

__all__ = ["Stash", "Stashes", "StashesStatistics"]

Name = tuple[int, str]  # session, uuid


class Stash:
    """One answer: `append` each message, then `take` each."""

    __slots__ = ("_ends", "_file", "_taken", "nbytes")

    def __init__(self, directory: Path | None) -> None:
        """directory: None is the system's, for temporary files. Raises OSError."""
        self._file = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115
        self._ends: list[int] = []
        self._taken = 0
        self.nbytes = 0

    def __len__(self) -> int:
        """Messages not taken yet."""
        return len(self._ends) - self._taken

    def append(self, message: bytes) -> None:
        """Raises OSError, as for want of room."""
        view = memoryview(message)
        while view:
            view = view[os.pwrite(self._file.fileno(), view, self.nbytes + len(message) - len(view)) :]
        self.nbytes += len(message)
        self._ends.append(self.nbytes)

    def take(self) -> bytes:
        """The next message."""
        if not len(self):
            raise InvariantViolation("a stash is told to its end", messages=self._taken)
        start = self._ends[self._taken - 1] if self._taken else 0
        size = self._ends[self._taken] - start
        self._taken += 1
        message = os.pread(self._file.fileno(), size, start)
        if len(message) != size:
            raise InvariantViolation("a stash is shorter than it was made", bytes=len(message), of=size)
        return message

    def close(self) -> None:
        self._file.close()


class StashesStatistics(msgspec.Struct, frozen=True):
    """answers, nbytes: now, of those that wait to be taken. made: ever."""

    answers: int
    nbytes: int
    made: int


class Stashes:
    """The whole stashes of a worker, by peek, and of which a message is to go out, in the order asked for."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._stashes: dict[Name, Stash] = {}
        self._asked: dict[Name, None] = {}
        self._made = 0

    def create(self) -> Stash:
        """A fresh one, for `add` when it is whole. Raises OSError."""
        return Stash(self._directory)

    def add(self, name: Name, stash: Stash) -> None:
        self._stashes[name] = stash
        self._made += 1

    def ask(self, name: Name) -> None:
        """The next message of `name` is wanted; nothing if that is gone."""
        if name in self._stashes:
            self._asked[name] = None

    @property
    def has_asked(self) -> bool:
        """Whether `tell` has something."""
        return bool(self._asked)

    def tell(self) -> tuple[Name, bytes, bool]:
        """The next message that was asked for, and whether its answer ends with it, and is gone."""
        name = next(iter(self._asked))
        del self._asked[name]
        stash = self._stashes[name]
        message = stash.take()
        if len(stash):
            return name, message, False
        self.drop(name)
        return name, message, True

    def drop(self, name: Name) -> None:
        """Nobody wants it any more; nothing if it is gone."""
        self._asked.pop(name, None)
        stash = self._stashes.pop(name, None)
        if stash is not None:
            stash.close()

    def clear(self) -> None:
        for name in list(self._stashes):
            self.drop(name)

    def statistics(self) -> StashesStatistics:
        nbytes = sum(stash.nbytes for stash in self._stashes.values())
        return StashesStatistics(len(self._stashes), nbytes, self._made)
