"""Verify: whether what is published is what was written.

Of a page: that it can be read, and that its chain tiles the times up to its upper. Of a batch: the checksum,
that it is what the page says of it, and then order, consolidation and codes, which reads all of it. It works
beside the writer: what is superseded while it is looked at is looked for again in the newer chain.

Does not: repair, write, or compare a batch with what it was made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from shm_arrangements.batch import Batch
from shm_arrangements.description import Description
from shm_arrangements.discover import page_names
from shm_arrangements.errors import FormatMismatch, PublicationClosed
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import HALVES, Locator, PageName
from shm_arrangements.page_layout import BatchEntry, PageState, PageStatus
from shm_arrangements.publication import PageReader
from shm_arrangements.snapshot import attach_batch

_ATTEMPTS: Final = 100  # each failed one means that the page turned, and a batch of the old chain went


@dataclass(slots=True)
class PageVerdict:
    """What was found in one page: `damages` says in words what is wrong, nothing if it is whole.

    batches, updates, nbytes: what was read to find that.
    """

    page: PageName
    damages: list[str] = field(default_factory=list)
    batches: int = 0
    updates: int = 0
    nbytes: int = 0


def verify_pages(token: str, id: int | None = None) -> Iterator[PageVerdict]:
    """Verify every page of an instance, or of one collection in it; aliases of a page once.

    Pages that close meanwhile are left out.
    """
    names = page_names(token, id)
    there, seen = set(names), set()
    for name in names:
        verdict = PageVerdict(name)
        try:
            reader = PageReader(name)
            page = reader.header.page
            if page in seen:
                continue
            seen.add(page)
            for missing in _missing_siblings(reader, name, there):
                verdict.damages.append(f"page {missing.name} is missing")
            _verify(reader, verdict)
        except PublicationClosed:
            continue
        except FormatMismatch as error:
            verdict.damages.append(str(error))
        yield verdict


def _missing_siblings(reader: PageReader, name: PageName, there: set[PageName]) -> list[PageName]:
    """Pages of the same publication that are not there, though this one is made and not closed."""
    if name.half != HALVES[0] or name.shard != 0:
        return []
    wanted = [
        name._replace(shard=shard, half=half) for shard in range(reader.header.shards) for half in HALVES
    ]
    missing = [one for one in wanted if one not in there]
    if not missing or reader.read().status is PageStatus.CLOSED:
        return []
    return [one for one in missing if one not in set(page_names(name.token, name.id))]


def _verify(reader: PageReader, verdict: PageVerdict) -> None:
    whole: set[Locator] = set()
    for _ in range(_ATTEMPTS):
        state = reader.read()
        if state.status is PageStatus.CLOSED:
            raise PublicationClosed("arrangement was dropped", page=verdict.page.name)
        damages = _tiling(state)
        gone = None
        for entry in state.chain:
            locator = entry.locator(verdict.page.token)
            if locator is None or locator in whole:
                continue
            try:
                batch = attach_batch(
                    locator, reader.header.schema, Description(entry.lower, entry.upper, entry.since)
                )
            except FileNotFoundError:
                gone = locator
                break
            except FormatMismatch as error:
                damages.append(f"batch {_place(locator)}: {error}")
                continue
            found = _damages(batch, entry)
            damages += [f"batch {_place(locator)}: {damage}" for damage in found]
            if not found:
                whole.add(locator)
            verdict.batches += 1
            verdict.updates += len(batch)
            verdict.nbytes += batch.nbytes
        if gone is None:
            verdict.damages += damages
            return
        if reader.generation() == state.generation:
            verdict.damages += [*damages, f"batch {_place(gone)} is named and not there"]
            return
    verdict.damages.append("the page turns faster than its batches can be read")


def _tiling(state: PageState) -> list[str]:
    damages = []
    reached = Frontier.minimum()
    for entry in state.chain:
        if entry.lower != reached:
            damages.append(f"the chain has a gap: {reached} to {entry.lower}")
        if not entry.since.precedes_or_equal(state.since):
            damages.append(f"a batch is compacted to {entry.since}, beyond the page's since {state.since}")
        reached = entry.upper
    if reached != state.upper:
        damages.append(f"the chain ends at {reached}, the page's upper is {state.upper}")
    return damages


def _damages(batch: Batch, entry: BatchEntry) -> list[str]:
    damages = []
    if (len(batch), batch.nbytes) != (entry.rows, entry.nbytes):
        told = f"{entry.rows} updates in {entry.nbytes} bytes"
        damages.append(f"it has {len(batch)} updates in {batch.nbytes} bytes, the page says {told}")
    try:
        batch.validate_state()
    except (AssertionError, FormatMismatch) as error:
        damages.append(str(error))
    return damages


def _place(locator: Locator) -> str:
    return f"{locator.name}+{locator.offset}" if locator.offset else locator.name
