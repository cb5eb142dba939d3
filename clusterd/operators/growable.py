"""Arrays that grow without a pause: state by slot, from a few rows to many millions.

Doubling an array by copying stops the worker for as long as its state is large. Here a large array is a
mapping of anonymous memory, and growing it moves page tables, not bytes: tens of microseconds a hundred
megabytes, and pages come when they are first written. A small one is an ordinary array, copied.

The memory behind `.a` may move when the array grows, so nobody keeps `.a`, or a view of it, across a `grow`.
A view that is kept all the same stays valid, and costs a copy.

Does not: shrink; whoever wants the memory back makes a new one.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Generator
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Growable"]

T = TypeVar("T", bound=np.generic)

_LEAST_ROWS = 64
_MAPPED_BYTES = 1 << 20
_FILLED_BYTES = 4 << 20  # at once: up to 10 ms
_PAGE_BYTES = 2 << 20
_HUGE_BYTES = 8 << 20  # from here on, pages of 2 MB: faults are a good part of a hydration otherwise


class Growable(Generic[T]):
    """`a`: (rows, *width) of dtype; new rows hold `fill`."""

    __slots__ = ("_dtype", "_fill", "_map", "_touched", "_width", "a")

    def __init__(self, dtype: type[T], width: tuple[int, ...] = (), fill: int = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._width = width
        self._fill = fill
        self._map: mmap.mmap | None = None
        self._touched = 0  # bytes of it that are known to have memory
        self.a: NDArray[T] = np.zeros((0, *width), self._dtype)

    def __len__(self) -> int:
        return len(self.a)

    @property
    def nbytes(self) -> int:
        return self.a.nbytes

    def grow(self, rows: int) -> None:
        """Make it at least `rows` rows long, doubling."""
        old = len(self.a)
        if rows > old:
            self._lengthen(rows)
            if self._fill:
                self.a[old:] = np.array(self._fill, self._dtype)

    def growing(self, rows: int) -> Generator[None, None, None]:
        """`grow` in pieces, where it fills what is new: that is of fresh pages, up to 2 ms a megabyte.

        Meanwhile `a` is as long as it is filled: who counts what is kept looks between two pieces.
        """
        lo = len(self.a)
        if rows > lo:
            self._lengthen(rows)
            whole = self.a
            while self._fill and lo < len(whole):
                hi = lo + max(_FILLED_BYTES * (len(whole) - lo) // whole[lo:].nbytes, 1)
                whole[lo:hi] = np.array(self._fill, self._dtype)
                lo, self.a = hi, whole[:hi]
                if lo < len(whole):
                    yield
            self.a = whole

    def touching(self, rows: int) -> Generator[None, None, None]:
        """Have the memory of the first `rows` rows, a page a piece, for who is about to fill them in order.

        A page of 2 MB is some 0.2 ms, and 4 ms where the machine is virtual and has to find it first; arrays
        of one length come to their next page together.
        """
        memory = self._map
        if memory is None or len(memory) < _HUGE_BYTES:
            return
        end = min(rows * self.a.strides[0], len(memory))
        while self._touched < end and memory is self._map:
            memory[self._touched] = memory[self._touched]
            self._touched += _PAGE_BYTES
            yield

    def _lengthen(self, rows: int) -> None:
        old = len(self.a)
        size = max(rows, 2 * old, _LEAST_ROWS)
        row_bytes = self._dtype.itemsize * int(np.prod(self._width, dtype=np.int64))
        nbytes = size * row_bytes
        if nbytes < _MAPPED_BYTES:
            array: NDArray[T] = np.zeros((size, *self._width), self._dtype)
            array[:old] = self.a
            self.a = array
        else:
            self._map_to(-(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, size)

    def replace(self, array: NDArray[T]) -> None:
        """Go on with other contents; rows may have another width."""
        self._width = array.shape[1:]
        self._map = None
        self.a = array

    def _map_to(self, nbytes: int, rows: int) -> None:
        memory, kept = self._map, len(self.a)
        if memory is not None:
            self.a = np.zeros((0, *self._width), self._dtype)
            try:
                memory.resize(nbytes)
            except BufferError:
                # Somebody holds a view, and with it the old mapping: the contents go on in a new one.
                self.a = self._view(memory, kept)
                memory = None
        if memory is None:
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._touched = 0
            self._view(memory, kept)[:] = self.a
        if nbytes >= _HUGE_BYTES:
            with contextlib.suppress(OSError):  # a kernel without large pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._map = memory
        self.a = self._view(memory, rows)

    def _view(self, memory: mmap.mmap, rows: int) -> NDArray[Any]:
        count = rows * int(np.prod(self._width, dtype=np.int64))
        return np.frombuffer(memory, self._dtype, count).reshape(rows, *self._width)
