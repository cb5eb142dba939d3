"""Arena: where a writer's batches get their bytes.

Does not: know what the bytes mean, or when they may go (reclaim.py).
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.names import Locator
from shm_arrangements.segment import create, unlink

# One counter a process, not one an allocator: a number is never used twice by its writer.
_seq = itertools.count(1)


def next_locator(token: str, writer: int) -> Locator:
    """Return the place of this process's next batch; `writer` is its number within the instance."""
    return Locator(token, writer, next(_seq))


class SegmentAllocation:
    """One new segment that is to become a batch."""

    __slots__ = ("_segment", "buffer", "locator", "reserved")

    def __init__(self, locator: Locator, nbytes: int) -> None:
        self.locator = locator
        self._segment = create(locator.name, nbytes)
        self.buffer: NDArray[np.uint8] = np.frombuffer(self._segment.buf, np.uint8)
        self.reserved = nbytes

    def reserve(self, upto_bytes: int) -> None:
        """All of it is."""

    def seal(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._segment.seal().buf, np.uint8)

    def abandon(self) -> None:
        unlink(self.locator.name)
        self._segment.close()


class SegmentAllocator:
    """One new segment of instance `token` for each batch; the place of a batch is its `Locator`."""

    __slots__ = ("token", "writer")
    checksums: ClassVar[bool] = True

    def __init__(self, token: str, writer: int) -> None:
        """`writer`: the number of this process within the instance, below 2**32."""
        self.token = token
        self.writer = writer

    def allocate(self, nbytes: int, *, deferred: bool = False) -> SegmentAllocation:
        """Raises: ShmExhausted, RegistryFull."""
        return SegmentAllocation(next_locator(self.token, self.writer), nbytes)

    def free(self, locator: Locator) -> None:
        """Let go of the bytes of a batch that nobody is told of any more."""
        unlink(locator.name)
