"""Publication point: how one writer shows a chain of batches to many processes.

A page has two slots and a generation word; the word's parity names the slot that counts. The writer fills
the other slot, then stores the next generation with release. A reader loads the generation with acquire,
copies that slot, and looks again: while the word still stands, the writer can only have been filling the
other slot, so the copy is whole. If it moved, the reader copies again. A writer that dies at any point
leaves the word either old or new, and with it a whole slot. The checksum is the second line: it would tell
damage, or a broken memory order, from a race.

What a stale copy costs: one retry. The segments that it names are immutable and their names never return, so
a reader attaches all of them and has a right, older answer, or finds one gone and copies the page again.

A page follows a cell, which says how far it is sealed where nothing happened since the last turn, and whose
bell rings when it says something else (clock.py).

A fresh page's upper is the minimum time, never the empty frontier, which would mean sealed for ever (Z8).
Teardown says CLOSED and leaves the upper where it was.

Does not: lock, wait, allocate after creation, ring but when it closes (who turns rings: an index once for
both halves), or decide about compaction.
Form: two meta pages, as in LMDB. Bytes: page_layout.py and docs/shm-format.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shm_arrangements import failpoints, segment
from shm_arrangements.clock import Cell, CellReader, ClockReader
from shm_arrangements.errors import AlreadyPublished, FormatMismatch, InvariantViolation, PublicationClosed
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels.atomics import fence, fence_then_load, load_acquire, store_release
from shm_arrangements.names import PageName, collection_text
from shm_arrangements.page_layout import (
    GENERATION_WORD,
    SLOT_BYTES,
    BatchEntry,
    PageHeader,
    PageState,
    PageStatus,
    decode_header,
    decode_slot,
    encode_entry,
    encode_header,
    encode_slot,
)
from shm_arrangements.schema import ArrangementSchema

_ATTEMPTS = 1_000  # of one read: each failed one means that the writer turned the page meanwhile


class PublicationPage:
    """The writer's side of a page. One process has it; `create` makes the page, `turn` publishes."""

    __slots__ = ("_cell", "_entries", "_names", "_segment", "_state", "_words", "header")

    def __init__(self, header: PageHeader, made: segment.WritableSegment, cell: Cell) -> None:
        self.header = header
        self._segment = made
        self._words: Any = np.frombuffer(made.buf, np.uint64)
        self._names: list[PageName] = [header.page]
        self._state = PageState(0, PageStatus.FRESH, Frontier.minimum(), Frontier.minimum(), ())
        self._entries: list[bytes] = []  # the images of the state's chain
        self._cell = cell

    @classmethod
    def create(
        cls,
        page: PageName,
        schema: ArrangementSchema,
        *,
        as_of: int,
        writer: int,
        shards: int = 1,
        name: str = "",
        cell: Cell | None = None,
    ) -> PublicationPage:
        """Make a page: FRESH, since `as_of`, upper the minimum, no batches.

        name: for people, at most 255 bytes of UTF-8. cell: which it follows; None is one of its own. It is
        given back with the last page that follows it, and if this fails without any other.
        Readers take a page whose generation is 0 for absent, so it may be seen before this returns.
        Raises: ShmExhausted, RegistryFull; AlreadyPublished if the page exists; ValueError for a long name.
        """
        cell = cell or Cell.take(page.token, writer)
        cell.follow()
        try:
            failpoints.hit("publication.create")
            image = encode_header(page, shards, writer, schema, name=name, clock=cell.clock, cell=cell.number)
            made = segment.create(page.name, len(image) + 2 * SLOT_BYTES)
        except FileExistsError as error:
            cell.leave()
            raise _taken(page) from error
        except BaseException:
            cell.leave()
            raise
        made.buf[: len(image)] = image
        failpoints.hit("publication.header")
        created = cls(decode_header(made.buf), made, cell)
        created._show(PageStatus.FRESH, Frontier.at(as_of), Frontier.minimum(), (), [])
        return created

    @property
    def state(self) -> PageState:
        """What the page says by itself."""
        return self._state

    @property
    def upper(self) -> Frontier:
        """How far it is sealed: what it says or its cell says. Stays when it closes."""
        if self._state.status is PageStatus.CLOSED:
            return self._state.upper
        return self._cell.later(self._state.upper)

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

        chain: oldest first, tiling [minimum, upper); at most `CAPACITY` batches. Costs less where it begins
            with the same objects as the last.
        Raises: InvariantViolation if a frontier regresses, the chain does not tile, or the page is closed.
        """
        old = self._state
        if old.status is PageStatus.CLOSED:
            raise InvariantViolation("turn of a closed page", page=self.header.page.name)
        if not (old.since.precedes_or_equal(since) and old.upper.precedes_or_equal(upper)):
            raise InvariantViolation(
                "published frontier regresses", since=(old.since, since), upper=(old.upper, upper)
            )
        same = 0
        for before, entry in zip(old.chain, chain, strict=False):
            if before is not entry:
                break
            same += 1
        entries = self._entries[:same]
        reached = chain[same - 1].upper if same else Frontier.minimum()
        for entry in chain[same:]:
            if entry.lower != reached:
                raise InvariantViolation("published chain has a gap", lower=entry.lower, reached=reached)
            reached = entry.upper
            entries.append(encode_entry(entry))
        if reached != upper:
            raise InvariantViolation("published chain does not reach upper", reached=reached, upper=upper)
        return self._show(status, since, upper, chain, entries)

    def again(self) -> int:
        """Turn the page without a change; return the new generation."""
        state = self._state
        return self._show(state.status, state.since, state.upper, state.chain, self._entries)

    def link(self, name: PageName) -> None:
        """Publish the same page under a further name.

        Raises: AlreadyPublished; InvariantViolation if the page is closed.
        """
        if self._state.status is PageStatus.CLOSED:
            raise InvariantViolation("alias of a closed page", page=self.header.page.name, alias=name.name)
        try:
            segment.link(self._names[0].name, name.name)
        except FileExistsError as error:
            raise _taken(name) from error
        self._names.append(name)

    def withdraw(self, name: PageName) -> bool:
        """Take one name back; with the last one the page is closed. Returns whether it was the last.

        Raises: InvariantViolation if the page has no such name.
        """
        if name not in self._names:
            raise InvariantViolation("page has no such name", page=self.header.page.name, name=name.name)
        if len(self._names) == 1:
            self.close()
            return True
        self._names.remove(name)
        segment.unlink(name.name)
        return False

    def close(self) -> None:
        """Say CLOSED, ring, then unlink every name. Idempotent. The upper stays: closed is not sealed."""
        if self._state.status is not PageStatus.CLOSED:
            failpoints.hit("publication.close")
            self._show(PageStatus.CLOSED, self._state.since, self.upper, (), [])
            self._cell.ring()
        while self._names:
            failpoints.hit("publication.unlink")
            segment.unlink(self._names.pop().name)
            if not self._names:
                self._cell.leave()
        self._words = None
        self._segment.close()

    def _show(
        self,
        status: PageStatus,
        since: Frontier,
        upper: Frontier,
        chain: tuple[BatchEntry, ...],
        entries: list[bytes],
    ) -> int:
        generation = self._state.generation + 1
        state = PageState(generation, status, since, upper, chain)
        image = encode_slot(state, entries)
        at = self.header.slots_at + (generation & 1) * SLOT_BYTES
        fence()  # what follows must not be seen before the word stored by the turn before
        self._segment.buf[at : at + len(image)] = image
        failpoints.hit("publication.before-flip")
        store_release(self._words, GENERATION_WORD, generation)
        self._state, self._entries = state, entries
        failpoints.hit("publication.after-flip")
        return generation


class Places(NamedTuple):
    """Addresses of words, while `owners` are referred to, and what they said when the page was in `state`."""

    addresses: tuple[int, int]
    words: tuple[int, int]
    state: PageState
    owners: tuple[Any, ...]


class PageReader:
    """A reader's side of a page and its cell: maps both read-only, and copies what they say."""

    __slots__ = ("_buf", "_cell", "_seen", "_slot", "_words", "damaged", "header", "moved")

    def __init__(self, name: PageName) -> None:
        """Map the page called `name`, which may be an alias.

        Raises: PublicationClosed if there is none, or not yet; FormatMismatch; RegistryFull.
        """
        try:
            buf = segment.attach(name.name).buf
        except FileNotFoundError as error:
            raise PublicationClosed("no such publication", page=name.name) from error
        self._buf: memoryview | None = buf
        self._words: Any = np.frombuffer(buf[: buf.nbytes & ~7], np.uint64)
        if len(self._words) <= GENERATION_WORD or self.generation() == 0:
            raise PublicationClosed("publication is not made yet", page=name.name)
        header = self.header = decode_header(buf)
        if header.page.token != name.token:
            raise FormatMismatch("page of another instance", page=name.name, says=header.page.token)
        try:
            clock = ClockReader.of(name.token, header.writer, header.clock)
        except FileNotFoundError as error:  # the clock goes after all that follow it, and with the instance
            raise PublicationClosed("publication has ended", page=name.name) from error
        self._cell = CellReader(clock, header.cell)
        self._slot: PageState | None = None  # as the slot says
        self._seen: tuple[int, int, PageState] | None = None  # generation, cell, and what both say together
        self.moved = self.damaged = 0  # copies not taken: the page turned; the checksum did not fit

    def generation(self) -> int:
        """The generation that counts; while it stands, only the upper moves. Cost: one load.

        Raises: PublicationClosed after `close`.
        """
        words = self._words
        if words is None:
            raise self._closed()
        return int(load_acquire(words, GENERATION_WORD))

    def read(self) -> PageState:
        """Return what page and cell say; the same object as long as they say the same.

        Raises: FormatMismatch if a slot that counts is damaged; PublicationClosed after `close`.
        """
        buf, words = self._buf, self._words  # of our own: another thread may close
        if buf is None or words is None:
            raise self._closed()
        for _ in range(_ATTEMPTS):
            generation = int(load_acquire(words, GENERATION_WORD))
            slot, image = self._slot, None
            if slot is None or slot.generation != generation:
                at = self.header.slots_at + (generation & 1) * SLOT_BYTES
                image = bytes(buf[at : at + SLOT_BYTES])
            upper = self._cell.upper()
            seen = self._seen
            if seen is not None and seen[0] == generation and seen[1] == upper:
                return seen[2]
            if fence_then_load(words, GENERATION_WORD) != generation:
                self.moved += 1
                continue
            if image is not None:
                slot = decode_slot(image)
                if slot is None or slot.generation != generation:
                    self.damaged += 1
                    continue
                self._slot = slot
            assert slot is not None
            state = _followed(slot, upper)
            self._seen = generation, upper, state
            return state
        raise FormatMismatch(
            "publication page cannot be copied",
            page=self.header.page.name,
            moved=self.moved,
            damaged=self.damaged,
        )

    def places(self) -> Places | None:
        """The words by which the page moves, as `read` saw them last; None before that, and once closed."""
        words, seen = self._words, self._seen
        if words is None or seen is None:
            return None
        generation, upper, state = seen
        word = int(words.ctypes.data) + 8 * GENERATION_WORD
        return Places((word, self._cell.upper_at), (generation, upper), state, (words, self._cell))

    def bell(self) -> int:
        """To be read before `read`, and given to `sleep` if what it says is not enough."""
        return self._cell.bell()

    def sleep(self, seen: int, timeout_s: float) -> None:
        """Sleep until the bell says other than `seen`, a signal comes, or time is over. Releases the GIL."""
        self._cell.sleep(seen, timeout_s)

    def close(self) -> None:
        """Let go of the page. Idempotent."""
        self._buf = self._words = None

    def _closed(self) -> PublicationClosed:
        return PublicationClosed("this process has closed it: attach anew", page=self.header.page.name)


def _followed(slot: PageState, cell: int) -> PageState:
    upper = Frontier.at(cell)
    if slot.status is PageStatus.CLOSED or not slot.upper.precedes(upper):
        return slot
    return slot.reaching(upper)


def _taken(page: PageName) -> AlreadyPublished:
    return AlreadyPublished(
        "published already", id=collection_text(page.id), incarnation=page.incarnation, half=page.half,
        shard=page.shard, instance=page.token,
        hint="close the index that has this id, or take the next incarnation of it",
    )  # fmt: skip
