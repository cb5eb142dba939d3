"""Snapshots: all of one published chain, or another try; never half, and never taken back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shm_arrangements import instance, segment
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.batch import Batch
from shm_arrangements.builder import build_batch
from shm_arrangements.description import Description
from shm_arrangements.errors import (
    FormatMismatch,
    InvariantViolation,
    NotReadable,
    NotSealed,
    PublicationClosed,
    WriterGone,
)  # fmt: skip
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.instance import Instance
from shm_arrangements.names import PageName
from shm_arrangements.page_layout import BatchEntry
from shm_arrangements.publication import PublicationPage
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import PublishedTrace, require_readable, snapshot_together
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import TraceWriter

SCHEMA = ArrangementSchema(
    (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.TEXT, True)), (0,)
)
TYPES = (ColumnType.INT64, ColumnType.TEXT)
MINIMUM = Frontier.minimum()


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance


def _page(held: Instance) -> PublicationPage:
    return PublicationPage.create(PageName(held.token, 7, 1, "oks"), SCHEMA, as_of=0, writer=0)


def _batch(held: Instance, lower: int, upper: int, rows: int = 3) -> Batch:
    updates = Updates.from_rows(TYPES, [((i, f"v{lower}"), lower, 1) for i in range(rows)])
    description = Description(Frontier.at(lower), Frontier.at(upper), MINIMUM)
    return build_batch(updates, SCHEMA, description, SegmentAllocator(held.token, 0))  # an arena of its own


def _entry(batch: Batch, description: Description | None = None) -> BatchEntry:
    told = description or batch.description
    place = batch.locator
    writer, seq, offset = (0, 0, 0) if place is None else (place.writer, place.seq, place.offset)
    return BatchEntry(writer, seq, len(batch), told.lower, told.upper, told.since, batch.nbytes, offset)


def _names(held: Instance) -> list[str]:
    return sorted(name for name in os.listdir("/dev/shm") if held.token in name)


def _maps() -> int:
    return Path("/proc/self/maps").read_text().count("/dev/shm/clusterd")


def test_a_snapshot_maps_the_chain_and_the_next_maps_only_what_is_new(held: Instance) -> None:
    page, trace = _page(held), PublishedTrace(PageName(held.token, 7, 1, "oks"))
    assert trace.snapshot().batches() == ()
    one, two = _batch(held, 0, 2), _batch(held, 2, 3)
    page.turn(MINIMUM, Frontier.at(2), (_entry(one),))
    first = trace.snapshot()
    assert trace.snapshot() is first
    page.turn(MINIMUM, Frontier.at(3), (_entry(one), _entry(two)))
    maps = _maps()
    second = trace.snapshot()
    assert _maps() == maps + 1
    assert second.batches()[0] is first.batches()[0]
    assert [batch.row_columns()[1].to_pylist() for batch in second.batches()] == [["v0"] * 3, ["v2"] * 3]
    assert (first.upper, second.upper) == (Frontier.at(2), Frontier.at(3))
    assert not second.batches()[0].codes.flags.writeable
    assert sum(batch.nbytes for batch in second.batches()) == one.nbytes + two.nbytes
    page.close()


def test_snapshots_taken_together_are_of_one_moment(held: Instance) -> None:
    pages = [
        PublicationPage.create(PageName(held.token, 7, 1, half), SCHEMA, as_of=0, writer=0)
        for half in ("oks", "errs")
    ]
    traces = [PublishedTrace(page.header.page) for page in pages]
    for t in range(1, 4):
        for page in pages:
            page.turn(
                Frontier.at(t - 1), Frontier.at(t), (BatchEntry(0, 0, 0, MINIMUM, Frontier.at(t), MINIMUM),)
            )
        taken = snapshot_together(traces)
        assert [one.upper for one in taken] == [Frontier.at(t)] * 2
        assert [one.generation for one in taken] == [page.state.generation for page in pages]
    pages[1].close()
    with pytest.raises(PublicationClosed):
        snapshot_together(traces)
    pages[0].close()


def test_a_batch_is_as_the_page_describes_it_not_as_it_was_built(held: Instance) -> None:
    """An empty batch may be folded into its neighbour, which then covers more time in the same memory."""
    page, trace = _page(held), PublishedTrace(PageName(held.token, 7, 1, "oks"))
    batch = _batch(held, 0, 2)
    page.turn(MINIMUM, Frontier.at(2), (_entry(batch),))
    first = trace.snapshot()
    wider = Description(MINIMUM, Frontier.at(9), Frontier.at(1))
    page.turn(Frontier.at(1), Frontier.at(9), (_entry(batch, wider),))
    maps = _maps()
    second = trace.snapshot()
    assert _maps() == maps
    assert second.batches()[0].description == wider
    assert first.batches()[0].description == batch.description
    page.close()


def test_an_empty_batch_needs_no_segment(held: Instance) -> None:
    page, trace = _page(held), PublishedTrace(PageName(held.token, 7, 1, "oks"))
    names = _names(held)
    batch = _batch(held, 0, 5, rows=0)
    page.turn(MINIMUM, Frontier.at(5), (_entry(batch),))
    assert _names(held) == names
    (found,) = trace.snapshot().batches()
    assert (len(found), found.description) == (0, batch.description)
    page.close()


def test_time_that_passes_before_anything_was_shown_makes_an_empty_chain_readable(held: Instance) -> None:
    writer = TraceWriter(SegmentAllocator(held.token, 0), 7, 1, SCHEMA, 0)
    reader = PublishedTrace(PageName(held.token, 7, 1, "oks"))
    writer.set_compaction(Frontier.at(1))
    assert reader.snapshot().batches() == ()
    writer.insert(Updates.empty(TYPES), Frontier.at(5))
    (batch,) = reader.snapshot().batches()
    assert (len(batch), batch.description.upper) == (0, Frontier.at(5))
    writer.set_compaction(Frontier.at(3))
    assert [b.description.upper for b in reader.snapshot().batches()] == [Frontier.at(5)]
    reader.close()
    writer.close()


def test_bug03_a_snapshot_and_its_columns_outlive_names_page_and_handles(held: Instance) -> None:
    page, trace = _page(held), PublishedTrace(PageName(held.token, 7, 1, "oks"))
    batch = _batch(held, 0, 2, rows=100)
    page.turn(MINIMUM, Frontier.at(2), (_entry(batch),))
    snapshot = trace.snapshot()
    column = snapshot.batches()[0].row_columns()[0].values[5:][:50]
    expected = column.copy()
    page.close()
    segment.unlink(batch.locator.name)
    trace.close()
    del snapshot, trace, batch, page
    gc.collect()
    assert (column == expected).all()
    assert _maps() == 1
    del column
    gc.collect()
    assert _maps() == 0


def test_a_closed_page_gives_no_snapshot_and_takes_none_back(held: Instance) -> None:
    page, trace = _page(held), PublishedTrace(PageName(held.token, 7, 1, "oks"))
    batch = _batch(held, 0, 2)
    page.turn(MINIMUM, Frontier.at(2), (_entry(batch),))
    snapshot = trace.snapshot()
    page.close()
    with pytest.raises(PublicationClosed):
        trace.snapshot()
    assert len(snapshot.batches()[0]) == 3


def test_a_name_gone_from_a_page_that_stands_is_never_an_answer(held: Instance) -> None:
    page = _page(held)
    batch = _batch(held, 0, 2)
    page.turn(MINIMUM, Frontier.at(2), (_entry(batch),))
    trace = PublishedTrace(page.header.page)
    segment.unlink(batch.locator.name)
    with pytest.raises(InvariantViolation, match="gone"):
        trace.snapshot()
    held.abandon()
    with pytest.raises(WriterGone):
        trace.snapshot()
    instance.unlink_all(held.token)


def test_rows_other_than_the_page_says_are_refused(held: Instance) -> None:
    page = _page(held)
    page.turn(MINIMUM, Frontier.at(2), (_entry(_batch(held, 0, 2))._replace(rows=4),))
    with pytest.raises(FormatMismatch, match="page says"):
        PublishedTrace(page.header.page).snapshot()
    page.close()


@pytest.mark.parametrize("nbytes", [0, 1, 24, 4095, 4096, 4097, 16385])
@pytest.mark.parametrize("nullable", [False, True])
def test_bug08_padding_behind_the_payload_is_never_data(held: Instance, nbytes: int, nullable: bool) -> None:
    schema = ArrangementSchema((ColumnSpec("v", ColumnType.TEXT, nullable),), ())
    texts = ["x" * nbytes, ""] + ([None] if nullable else [])
    updates = Updates.from_rows((ColumnType.TEXT,), [((text,), 0, 1) for text in texts])
    description = Description(MINIMUM, Frontier.at(1), MINIMUM)
    batch = build_batch(updates, schema, description, SegmentAllocator(held.token, 0))
    with open(Path("/dev/shm", batch.locator.name), "ab") as file:
        file.write(b"\xff" * 4096)
    page = PublicationPage.create(PageName(held.token, 7, 1, "oks"), schema, as_of=0, writer=0)
    page.turn(MINIMUM, Frontier.at(1), (_entry(batch),))
    (found,) = PublishedTrace(page.header.page).snapshot().batches()
    key = [(text is None, text or "") for text in found.row_columns()[0].to_pylist()]
    merged = {(text is None, text or "") for text in texts}
    assert sorted(key) == sorted(merged)
    assert found.nbytes == batch.nbytes
    found.verify()
    page.close()


def test_a_time_is_readable_from_since_to_before_upper() -> None:
    for since, upper, at in ((0, 1, 0), (3, 9, 3), (3, 9, 8)):
        require_readable(Frontier.at(since), Frontier.at(upper), at)
    require_readable(Frontier.at(3), Frontier.empty(), MAX_TIME)
    with pytest.raises(NotReadable) as early:
        require_readable(Frontier.at(3), Frontier.at(9), 2)
    assert (early.value.facts["at"], early.value.facts["since"]) == (2, Frontier.at(3))
    for end in (MINIMUM, Frontier.at(9)):
        with pytest.raises(NotSealed):
            require_readable(MINIMUM, end, 9)
    with pytest.raises(NotReadable):
        require_readable(Frontier.empty(), Frontier.empty(), 5)


READER = """
    import sys
    from shm_arrangements.names import PageName
    from shm_arrangements.snapshot import PublishedTrace
    trace = PublishedTrace(PageName(sys.argv[1], 7, 1, "oks"))
    last = -1
    print("up", flush=True)
    n = 0
    while True:
        snapshot = trace.snapshot()
        n += 1
        upper = snapshot.upper.time
        assert upper >= last, (upper, last)
        last = upper
        if not upper:
            continue
        batch = snapshot.batches()[-1]
        # A batch [t, t + 1) of this writer holds t alone, as often as it has rows.
        assert (batch.times == upper - 1).all() and len(batch) == 1 + (upper - 1) % 50
        batch.verify()
        if upper == int(sys.argv[2]):
            break
    print(n, flush=True)
    """


@pytest.mark.slow
def test_a_reader_follows_a_writer_that_unlinks_at_once(held: Instance) -> None:
    """Without any grace names vanish all the time: the reader tries again, and is never wrong."""
    page = _page(held)
    rounds = 3000
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(READER), held.token, str(rounds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stdout.readline() == "up\n"
    last: Batch | None = None
    for t in range(rounds):
        batch = _batch(held, t, t + 1, rows=1 + t % 50)
        chain = [BatchEntry(0, 0, 0, MINIMUM, Frontier.at(t), MINIMUM)] if t else []
        page.turn(MINIMUM, Frontier.at(t + 1), (*chain, _entry(batch)))
        if last is not None:
            segment.unlink(last.locator.name)
        last = batch
    out, err = reader.communicate(timeout=30)
    assert (reader.returncode, err) == (0, "")
    print(f"{rounds} turns, {out.strip()} snapshots")
    page.close()


def test_a_view_into_a_batch_has_no_writable_side_door(held: Instance) -> None:
    batch = _batch(held, 0, 2)
    for array in (batch.codes, batch.time_cells, batch.diff_cells, batch.columns[0].values):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    assert isinstance(batch.codes, np.ndarray)
