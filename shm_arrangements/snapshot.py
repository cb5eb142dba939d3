"""Snapshot: one published chain, mapped whole; reads of it are right for `since <= t < upper`.

A reader copies the page, attaches every batch that the copy names, and has a snapshot; if a name is gone the
page has turned since, and it copies again. Attached memory is immutable and outlives its name, so a snapshot
never changes and is never taken back, whatever writer, reclaim or reaper do. Batches that the snapshot before
already had are not mapped again.

Does not: wait, hold compaction back, or look at the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shm_arrangements import instance, readers
from shm_arrangements.arena import map_segment
from shm_arrangements.batch import Batch
from shm_arrangements.description import Description
from shm_arrangements.errors import (
    FormatMismatch,
    InvariantViolation,
    NotReadable,
    NotSealed,
    PublicationClosed,
    WriterGone,
)
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import Locator, PageName
from shm_arrangements.page_layout import BatchEntry, PageState, PageStatus
from shm_arrangements.publication import PageReader
from shm_arrangements.schema import ArrangementSchema

_ATTEMPTS = 100  # each failed one means that the page turned at least twice meanwhile


def require_readable(since: Frontier, upper: Frontier, at: int) -> None:
    """Raise unless `since <= at < upper`: NotReadable before since, NotSealed at or beyond upper (R4)."""
    if not since.less_equal(at):
        hint = "older times are told apart no more: read at since or later"
        raise NotReadable("time is before since", at=at, since=since, hint=hint)
    if upper.less_equal(at):
        hint = "the newest that can be read is upper - 1; wait(time) sleeps until a time is sealed"
        raise NotSealed("time is not sealed", at=at, upper=upper, hint=hint)


class Snapshot:
    """A TraceReader over one turn of a page. Immutable."""

    __slots__ = ("_batches", "generation", "schema", "since", "upper")

    def __init__(self, schema: ArrangementSchema, state: PageState, batches: tuple[Batch, ...]) -> None:
        self.schema = schema
        self.generation = state.generation
        self.since = state.since
        self.upper = state.upper
        self._batches = batches

    def batches(self) -> Sequence[Batch]:
        """The chain, oldest first; read-only memory that lives as long as it is referred to."""
        return self._batches

    def __repr__(self) -> str:
        return f"Snapshot({self.generation}, since {self.since}, upper {self.upper}, n={len(self._batches)})"


class PublishedTrace:
    """A page as a reader sees it, again and again; each snapshot maps only what the last one had not."""

    __slots__ = ("_page", "_snapshot")

    def __init__(self, name: PageName) -> None:
        """Raises: PublicationClosed if there is no such page, or not yet; FormatMismatch."""
        self._page = PageReader(name)
        self._snapshot: Snapshot | None = None

    @property
    def schema(self) -> ArrangementSchema:
        return self._page.header.schema

    @property
    def page(self) -> PageReader:
        return self._page

    def read(self) -> PageState:
        """What the page says; maps nothing."""
        return self._page.read()

    def snapshot(self) -> Snapshot:
        """The newest chain, every batch attached; the same object as long as the page says the same.

        Raises: PublicationClosed if the page is closed; WriterGone if the writer has ended and its names are
        gone; RegistryFull if descriptors or mappings run out.
        """
        for _ in range(_ATTEMPTS):
            state = self._page.read()
            last = self._snapshot
            if last is not None and last.generation == state.generation:
                if last.upper != state.upper:  # time went by, nothing happened
                    batches = _reaching(last.batches(), self.schema, state)
                    last = self._snapshot = Snapshot(self.schema, state, batches)
                return last
            if state.status is PageStatus.CLOSED:
                raise PublicationClosed("arrangement was dropped", page=self._page.header.page.name)
            try:
                batches = self._attach(state.chain)
            except FileNotFoundError as gone:
                if self._page.generation() == state.generation:
                    raise self._missing(gone) from gone
                continue
            self._snapshot = Snapshot(self.schema, state, _reaching(batches, self.schema, state))
            return self._snapshot
        raise InvariantViolation(
            "page turns faster than it can be attached", page=self._page.header.page.name
        )

    def forget(self) -> None:
        """Let go of the last snapshot; the next maps its chain anew. Snapshots handed out stay."""
        self._snapshot = None

    def close(self) -> None:
        """Let go of the page and of the last snapshot; snapshots handed out stay. Idempotent."""
        self._page.close()
        self._snapshot = None

    def _attach(self, chain: tuple[BatchEntry, ...]) -> tuple[Batch, ...]:
        token = self._page.header.page.token
        known: dict[Locator, Batch] = {}
        if self._snapshot is not None:
            known = {b.locator: b for b in self._snapshot.batches() if b.locator is not None}
        batches = []
        for entry in chain:
            description = Description(entry.lower, entry.upper, entry.since)
            locator = entry.locator(token)
            if locator is None:
                batches.append(Batch.empty(self.schema, description))
                continue
            batch = known.get(locator)
            if batch is None:
                batch = attach_batch(locator, self.schema, description)
                if len(batch) != entry.rows:
                    raise FormatMismatch(
                        "batch is not what the page says", rows=len(batch), expected=entry.rows
                    )
            elif batch.description != description:
                batch = batch.with_description(description)
            batches.append(batch)
        return tuple(batches)

    def _missing(self, gone: FileNotFoundError) -> Exception:
        token = self._page.header.page.token
        if instance.is_alive(token):
            return InvariantViolation("page names a segment that is gone", page=self._page.header.page.name)
        return WriterGone("the instance has ended and its segments are gone", instance=token)


def _reaching(batches: Sequence[Batch], schema: ArrangementSchema, state: PageState) -> tuple[Batch, ...]:
    """The batches, the last of them up to the state's upper; if there was none, one without updates."""
    if not batches:
        whole = Description(Frontier.minimum(), state.upper, state.since)
        return () if state.upper == Frontier.minimum() else (Batch.empty(schema, whole),)
    *others, last = batches
    told = last.description
    if told.upper == state.upper:
        return tuple(batches)
    return (*others, last.with_description(Description(told.lower, state.upper, told.since)))


def snapshot_together(traces: Sequence[PublishedTrace]) -> list[Snapshot]:
    """A snapshot of each trace, all of one moment: no page turned between the first and the last.

    Pages of one index are turned one after the other; a pair of different moments could have a since beyond
    its upper, and so no readable time. If the pages turn too fast for that, each is still right by itself.
    That only time goes by meanwhile does no harm: what is sealed in all of them is right in each.
    Raises: as `PublishedTrace.snapshot`.
    """
    taken: list[Snapshot] = []
    for _ in range(_ATTEMPTS):
        taken = [trace.snapshot() for trace in traces]
        if all(trace.page.generation() == one.generation for trace, one in zip(traces, taken, strict=True)):
            break
    return taken


def attach_batch(locator: Locator, schema: ArrangementSchema, description: Description) -> Batch:
    """Map one batch read-only.

    Raises: FileNotFoundError if its name is gone; FormatMismatch if the bytes are no batch of `schema`.
    """
    mapped = map_segment(locator)
    readers.pinned(locator.token, mapped.obj, mapped.nbytes)
    buffer = np.frombuffer(mapped, np.uint8, offset=locator.offset)
    return Batch.from_buffer(schema, buffer, description=description, locator=locator)
