"""Clock: the uppers of idle publications, where moving one costs a store, and the bells that tell of it.

A process that publishes has clocks: segments of cells, each a u64 upper and a bell (kernels/bells.py). A page
*follows* one cell. As long as it is not CLOSED, it is sealed up to the later of what its slot says and what
its cell says, and the last batch of its chain reaches as far. So time passes over an index at which nothing
happens without a page being turned, and over many of them with one call.

Writer rule: before a cell is set to v, every page that follows it was turned to all it has before v. `holds`
counts what forbids it: pages at which nothing was ever sealed, that are sealed for ever, or whose last turn
failed.

Why a reader is right that loads the generation, copies the slot, loads the cell, and finds the generation
unmoved: the cell is stored with release, so who sees v there and then loads the generation sees that of a
turn with all before v, or a later one. As it did not move, the slot copied is of that turn. If it did, the
reader starts again. This holds for each page by itself, so pages may share a cell: the halves of an index do.

A cell is given back when the last page that follows it says CLOSED, and its next owner sets it to 0 before
its page is made. A reader that still takes the old page for live, and reads what the next owner stored, finds
the generation moved, for CLOSED was stored before; and a CLOSED page follows nothing. Bells are never set
back. The last cell given back takes the clock with it; names do not return.

A ring cannot be missed: who waits reads the bell first, then page and cell, and sleeps only while the bell
still says what it read.

Does not: say what is sealed (writer.py), wait (wait.py).
"""

from __future__ import annotations

import itertools
import struct
import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import failpoints, segment
from shm_arrangements.errors import FormatMismatch, InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels import bells
from shm_arrangements.kernels.atomics import load_acquire
from shm_arrangements.kernels.bells import BELL_WORD, CELL_WORDS
from shm_arrangements.names import clock_name

MAGIC: Final = b"CLSTRCLK"
FORMAT_VERSION: Final = 1
CELLS: Final = 255  # in a clock, beside the header, which is as long as a cell: 16 KiB in all

_HEADER: Final = struct.Struct("<8sII12sIQ")  # magic, version, cells, token, writer, seq
_CELL_BYTES: Final = CELL_WORDS * 8
_BELL_MASK: Final = (1 << 32) - 1
_NO_WORDS: Final[NDArray[np.uint64]] = np.empty(0, np.uint64)

_seq = itertools.count(1)
# Of this process, by token, writer and seq; those in use. Their cells keep them.
_clocks: weakref.WeakValueDictionary[tuple[str, int, int], _Clock] = weakref.WeakValueDictionary()
_mapped: weakref.WeakValueDictionary[str, ClockReader] = weakref.WeakValueDictionary()


class _Clock:
    """One segment of cells, and which of them are free."""

    __slots__ = ("__weakref__", "free", "key", "words")

    def __init__(self, token: str, writer: int) -> None:
        failpoints.hit("clock.create")
        self.key = token, writer, next(_seq)
        made = segment.create(clock_name(*self.key), (CELLS + 1) * _CELL_BYTES)
        told = (MAGIC, FORMAT_VERSION, CELLS, token.encode(), *self.key[1:])
        made.buf[: _HEADER.size] = _HEADER.pack(*told)
        self.words: NDArray[np.uint64] = np.frombuffer(made.buf, np.uint64)
        self.free = list(range(CELLS, 0, -1))


class Cell:
    """The writer's side of one cell. One process, one thread.

    holds: how many reasons there are that the cell must not move; a page that follows it adds its own.
    """

    __slots__ = ("_at", "_clock", "_followers", "holds", "number")

    def __init__(self, clock: _Clock, number: int) -> None:
        self._clock = clock
        self._at = number * CELL_WORDS
        self._followers = 0
        self.number = number
        self.holds = 0
        clock.words[self._at] = 0

    @classmethod
    def take(cls, token: str, writer: int) -> Cell:
        """A cell at 0 that nobody follows. Raises: ShmExhausted, RegistryFull."""
        for clock in _clocks.values():
            if clock.free and clock.key[:2] == (token, writer):
                break
        else:
            clock = _Clock(token, writer)
            _clocks[clock.key] = clock
        return cls(clock, clock.free.pop())

    @property
    def clock(self) -> int:
        """The number of the segment among its writer's clocks."""
        return self._clock.key[2]

    @property
    def upper(self) -> int:
        return self._clock.words.item(self._at)

    def later(self, frontier: Frontier) -> Frontier:
        """`frontier`, or what the cell says if that is later."""
        upper = self._clock.words.item(self._at)
        if not frontier.less_equal(upper) or frontier.time == upper:
            return frontier
        return Frontier.at(upper)

    def advance(self, upper: int) -> None:
        """Set the cell to `upper` and ring; by the writer rule, which the caller keeps.

        Raises: InvariantViolation if it regresses, or while it is held.
        """
        if self.holds or upper < self._clock.words.item(self._at):
            raise InvariantViolation("a cell must not move so", holds=self.holds, now=self.upper, to=upper)
        failpoints.hit("clock.advance")
        bells.advance(self._clock.words, self._at, upper)

    def tell(self, upper: Frontier) -> None:
        """After the pages were turned up to `upper`: set the cell to it, if it may be, and ring."""
        if self.holds or upper.is_empty or upper.time < self.upper:
            self.ring()
        else:
            self.advance(upper.time)

    def ring(self) -> None:
        """Wake who waits for the pages that follow: they say something else. No effect if there are none."""
        if self._followers:
            bells.ring(self._clock.words, self._at)

    def follow(self) -> None:
        """One more page follows."""
        self._followers += 1

    def leave(self) -> None:
        """A page that followed is CLOSED. With the last one the cell is given back."""
        self._followers -= 1
        if self._followers:
            return
        clock = self._clock
        clock.free.append(self.number)
        if len(clock.free) == CELLS:
            del _clocks[clock.key]
            failpoints.hit("clock.unlink")
            segment.unlink(clock_name(*clock.key))
            clock.words = _NO_WORDS  # with it goes the mapping


def advance_cells(cells: Sequence[Cell], upper: int) -> None:
    """`Cell.advance` of many, at the cost of one for each clock and half a microsecond a cell.

    No effect on a cell that is there already. Raises: as `Cell.advance`; other clocks may have moved then.
    """
    failpoints.hit("clock.advance")
    by_clock: dict[_Clock, list[int]] = {}
    for cell in cells:
        if cell.holds:
            raise InvariantViolation("a cell must not move so", holds=cell.holds, now=cell.upper, to=upper)
        by_clock.setdefault(cell._clock, []).append(cell._at)
    for clock, ats in by_clock.items():
        refused = bells.advance_many(clock.words, np.array(ats, np.int64), upper)
        if refused >= 0:
            raise InvariantViolation("a cell regresses", now=clock.words.item(ats[refused]), to=upper)


class ClockReader:
    """A clock of another process, mapped read-only; shared by all readers of this process."""

    __slots__ = ("__weakref__", "cells", "words")

    def __init__(self, name: str) -> None:
        buf = segment.attach(name).buf
        if buf.nbytes < _HEADER.size:
            raise FormatMismatch("too short for a clock", name=name, nbytes=buf.nbytes)
        magic, version, self.cells, *_ = _HEADER.unpack_from(buf)
        if magic != MAGIC:
            raise FormatMismatch("not a clock", name=name, magic=magic)
        if version != FORMAT_VERSION:
            raise FormatMismatch("clock of another version", version=version, ours=FORMAT_VERSION)
        if (self.cells + 1) * _CELL_BYTES > buf.nbytes:
            raise FormatMismatch("damaged clock", name=name, cells=self.cells, nbytes=buf.nbytes)
        self.words: Any = np.frombuffer(buf[: (self.cells + 1) * _CELL_BYTES], np.uint64)

    @staticmethod
    def of(token: str, writer: int, seq: int) -> ClockReader:
        """The clock, mapped now or before. Raises: FileNotFoundError if its name is gone; FormatMismatch."""
        name = clock_name(token, writer, seq)
        found = _mapped.get(name)
        if found is None:
            found = ClockReader(name)
            _mapped[name] = found
        return found


class CellReader:
    """The reader's side of one cell."""

    __slots__ = ("_at", "_clock", "_words")

    def __init__(self, clock: ClockReader, number: int) -> None:
        """Raises: FormatMismatch if the clock has no such cell."""
        if not 1 <= number <= clock.cells:
            raise FormatMismatch("no such cell", cell=number, cells=clock.cells)
        self._clock = clock
        self._words = clock.words
        self._at = number * CELL_WORDS

    def upper(self) -> int:
        """What the cell says; what is read afterwards is at least as new."""
        return int(load_acquire(self._words, self._at))

    @property
    def upper_at(self) -> int:
        """The address of the word, as long as the clock is mapped."""
        return int(self._words.ctypes.data) + 8 * self._at

    def bell(self) -> int:
        """To be read before what one waits for is looked at."""
        return int(load_acquire(self._words, self._at + BELL_WORD)) & _BELL_MASK

    def sleep(self, seen: int, timeout_s: float) -> None:
        """Sleep until the bell says other than `seen`, a signal comes, or time is over. Releases the GIL."""
        whole = int(timeout_s)
        timespec = np.array((whole, int((timeout_s - whole) * 1e9)), np.int64)
        bells.sleep(self._words, self._at, seen, timespec)
