"""Publication point: how one writer shows a chain of batches to many processes.

A page has two slots and a generation word; the word's parity names the slot that counts. The writer fills
the other slot, then stores the next generation with release. A reader loads the generation with acquire,
copies that slot, and looks again: while the word still stands, the writer can only have been filling the
other slot, so the copy is whole. If it moved, the reader copies again. A writer that dies at any point
leaves the word either old or new, and with it a whole slot. The checksum is the second line: it would tell
damage, or a broken memory order, from a race.

What a stale copy costs: one retry. The segments that it names are immutable and their names never return, so
a reader attaches all of them and has a right, older answer, or finds one gone and copies the page again.

A fresh page's upper is the minimum time, never the empty frontier, which would mean sealed for ever (Z8).
Teardown says CLOSED and leaves the upper where it was.

Does not: lock, wait, wake anyone, allocate after creation, or decide about compaction.
Form: two meta pages, as in LMDB. Bytes: page_layout.py and docs/shm-format.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shm_arrangements import failpoints, segment
from shm_arrangements.errors import FormatMismatch, InvariantViolation, PublicationClosed
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels.atomics import fence, fence_then_load, load_acquire, store_release
from shm_arrangements.names import PageName
from shm_arrangements.page_layout import (
    GENERATION_WORD,
    SLOT_BYTES,
    BatchEntry,
    PageHeader,
    PageState,
    PageStatus,
    decode_header,
    decode_slot,
    encode_header,
    encode_slot,
)
from shm_arrangements.schema import ArrangementSchema

_ATTEMPTS = 1_000  # of one read: each failed one means that the writer turned the page meanwhile


class PublicationPage:
    """The writer's side of a page. One process has it; `create` makes the page, `turn` publishes."""

    __slots__ = ("_names", "_segment", "_state", "_words", "header")

    def __init__(self, header: PageHeader, made: segment.WritableSegment) -> None:
        self.header = header
        self._segment = made
        self._words: Any = np.frombuffer(made.buf, np.uint64)
        self._names: list[PageName] = [header.name]
        self._state = PageState(0, PageStatus.FRESH, Frontier.minimum(), Frontier.minimum(), ())

    @classmethod
    def create(
        cls,
        name: PageName,
        schema: ArrangementSchema,
        *,
        as_of: int,
        writer: int,
        shards: int = 1,
    ) -> PublicationPage:
        """Make the page of `name`: FRESH, since `as_of`, upper the minimum, no batches.

        Readers take a page whose generation is 0 for absent, so the name may be seen before this returns.
        Raises: ShmExhausted; FileExistsError if the page exists.
        """
        image = encode_header(name, shards, writer, schema)
        made = segment.create(name.name, len(image) + 2 * SLOT_BYTES)
        made.buf[: len(image)] = image
        page = cls(decode_header(made.buf), made)
        page._show(PageStatus.FRESH, Frontier.at(as_of), Frontier.minimum(), ())
        return page

    @property
    def state(self) -> PageState:
        """What the page says."""
        return self._state

    @property
    def names(self) -> tuple[PageName, ...]:
        """The names it is published under; the first is its own unless that was withdrawn."""
        return tuple(self._names)

    def turn(
        self,
        since: Frontier,
        upper: Frontier,
        chain: tuple[BatchEntry, ...],
        status: PageStatus = PageStatus.LIVE,
    ) -> int:
        """Publish; return the new generation.

        chain: oldest first, tiling [minimum, upper); at most `CAPACITY` batches.
        Raises: InvariantViolation if a frontier regresses, the chain does not tile, or the page is closed.
        """
        old = self._state
        if old.status is PageStatus.CLOSED:
            raise InvariantViolation("turn of a closed page", page=self.header.name.name)
        if not (old.since.precedes_or_equal(since) and old.upper.precedes_or_equal(upper)):
            raise InvariantViolation(
                "published frontier regresses", since=(old.since, since), upper=(old.upper, upper)
            )
        reached = Frontier.minimum()
        for entry in chain:
            if entry.lower != reached:
                raise InvariantViolation("published chain has a gap", lower=entry.lower, reached=reached)
            reached = entry.upper
        if reached != upper:
            raise InvariantViolation("published chain does not reach upper", reached=reached, upper=upper)
        return self._show(status, since, upper, chain)

    def again(self) -> int:
        """Turn the page without a change; return the new generation."""
        state = self._state
        return self._show(state.status, state.since, state.upper, state.chain)

    def link(self, name: PageName) -> None:
        """Publish the same page under a further name.

        Raises: FileExistsError; InvariantViolation if the page is closed.
        """
        if self._state.status is PageStatus.CLOSED:
            raise InvariantViolation("alias of a closed page", page=self.header.name.name, alias=name.name)
        segment.link(self._names[0].name, name.name)
        self._names.append(name)

    def withdraw(self, name: PageName) -> bool:
        """Take one name back; with the last one the page is closed. Returns whether it was the last.

        Raises: InvariantViolation if the page has no such name.
        """
        if name not in self._names:
            raise InvariantViolation("page has no such name", page=self.header.name.name, name=name.name)
        if len(self._names) == 1:
            self.close()
            return True
        self._names.remove(name)
        segment.unlink(name.name)
        return False

    def close(self) -> None:
        """Say CLOSED, then unlink every name. Idempotent. The upper stays: closed is not sealed."""
        if self._state.status is not PageStatus.CLOSED:
            self._show(PageStatus.CLOSED, self._state.since, self._state.upper, ())
        while self._names:
            segment.unlink(self._names.pop().name)
        self._words = None
        self._segment.close()

    def _show(
        self, status: PageStatus, since: Frontier, upper: Frontier, chain: tuple[BatchEntry, ...]
    ) -> int:
        generation = self._state.generation + 1
        state = PageState(generation, status, since, upper, chain)
        image = encode_slot(state)
        at = self.header.slots_at + (generation & 1) * SLOT_BYTES
        fence()  # what follows must not be seen before the word stored by the turn before
        self._segment.buf[at : at + len(image)] = image
        failpoints.hit("publication.before-flip")
        store_release(self._words, GENERATION_WORD, generation)
        self._state = state
        return generation


class PageReader:
    """A reader's side of a page: maps it read-only, and copies what it says."""

    __slots__ = ("_buf", "_seen", "_words", "damaged", "header", "moved")

    def __init__(self, name: PageName) -> None:
        """Map the page called `name`, which may be an alias.

        Raises: PublicationClosed if there is none, or not yet; FormatMismatch.
        """
        try:
            buf = segment.attach(name.name).buf
        except FileNotFoundError as error:
            raise PublicationClosed("no such publication", page=name.name) from error
        self._buf: memoryview | None = buf
        self._words: Any = np.frombuffer(buf[: buf.nbytes & ~7], np.uint64)
        if len(self._words) <= GENERATION_WORD or self.generation() == 0:
            raise PublicationClosed("publication is not made yet", page=name.name)
        self.header = decode_header(buf)
        if self.header.name.token != name.token:
            raise FormatMismatch("page of another instance", page=name.name, says=self.header.name.token)
        self._seen: PageState | None = None
        self.moved = self.damaged = 0  # copies not taken: the page turned; the checksum did not fit

    def generation(self) -> int:
        """The generation that counts. Cost: one load; if it stands, so does what `read` returned."""
        return int(load_acquire(self._words, GENERATION_WORD))

    def read(self) -> PageState:
        """Return what the page says; the same object as long as it says the same.

        Raises: FormatMismatch if a slot that counts is damaged; PublicationClosed after `close`.
        """
        if self._buf is None:
            raise PublicationClosed("page reader is closed", page=self.header.name.name)
        for _ in range(_ATTEMPTS):
            generation = self.generation()
            if self._seen is not None and self._seen.generation == generation:
                return self._seen
            at = self.header.slots_at + (generation & 1) * SLOT_BYTES
            image = bytes(self._buf[at : at + SLOT_BYTES])
            if fence_then_load(self._words, GENERATION_WORD) != generation:
                self.moved += 1
                continue
            state = decode_slot(image)
            if state is not None and state.generation == generation:
                self._seen = state
                return state
            self.damaged += 1
        raise FormatMismatch(
            "publication page cannot be copied",
            page=self.header.name.name,
            moved=self.moved,
            damaged=self.damaged,
        )

    def close(self) -> None:
        """Let go of the page. Idempotent."""
        self._buf = self._words = None
