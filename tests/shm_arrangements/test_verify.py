"""Verify: finds what is wrong, and nothing wrong in what is whole, also beside the writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import Locator, collection_id
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.verify import PageVerdict, verify_pages

DEADLINE_S = 60
I64, TEXT = ColumnType.INT64, ColumnType.TEXT
SCHEMA = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
NO_ERRS = Updates.empty((TEXT,))


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as made:
        yield made


def _updates(time: int, keys: int) -> Updates:
    return Updates.from_rows((I64, I64), [((key, time), time, 1) for key in range(keys)])


@pytest.fixture
def index(held: Instance) -> Iterator[IndexWriter]:
    """A batch of its own segment, and small ones."""
    made = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u1"), 1, SCHEMA, 0)
    for t, keys in enumerate((20_000, 100, 10)):
        made.insert(_updates(t, keys), NO_ERRS, Frontier.at(t + 1))
    yield made
    made.close()


def _verdicts(held: Instance) -> dict[str, PageVerdict]:
    return {verdict.page.half: verdict for verdict in verify_pages(held.token)}


def _path(locator: Locator | None) -> Path:
    assert locator is not None
    return Path("/dev/shm") / locator.name


def _page(held: Instance, half: str) -> Path:
    (name,) = [name for name in os.listdir("/dev/shm") if f"{held.token}.p." in name and name.endswith(half)]
    return Path("/dev/shm") / name


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes([old ^ 0x40]))


def test_what_is_whole_is_counted_and_no_damage_is_found(held: Instance, index: IndexWriter) -> None:
    found = _verdicts(held)
    assert not any(verdict.damages for verdict in found.values())
    oks = found["oks"]
    assert (oks.batches, oks.updates) == (3, 20_110)
    assert oks.nbytes == index.statistics()[0].nbytes
    index.publish_as(collection_id("u2"), 1)
    assert sum(verdict.updates for verdict in verify_pages(held.token)) == 20_110
    assert [verdict.page.id for verdict in verify_pages(held.token, 2)] == [2, 2]
    assert list(verify_pages(held.token, 3)) == []


@pytest.mark.parametrize("batch", range(3))
def test_a_flipped_bit_in_a_batch_is_found(held: Instance, index: IndexWriter, batch: int) -> None:
    entry = index.oks.page.state.chain[batch]
    locator = entry.locator(held.token)
    assert locator is not None
    _flip(_path(locator), locator.offset + entry.nbytes - 8)
    found = _verdicts(held)
    (damage,) = found["oks"].damages
    assert locator.name in damage
    assert "checksum" in damage
    assert not found["errs"].damages


def test_a_damaged_header_of_a_batch_is_found(held: Instance, index: IndexWriter) -> None:
    locator = index.oks.page.state.chain[0].locator(held.token)
    _flip(_path(locator), 0)
    assert any("batch" in damage for damage in _verdicts(held)["oks"].damages)


def test_a_batch_that_is_named_and_gone_is_found(held: Instance, index: IndexWriter) -> None:
    path = _path(index.oks.page.state.chain[0].locator(held.token))
    path.rename(path.with_suffix(".aside"))
    (damage,) = _verdicts(held)["oks"].damages
    assert damage.endswith("is named and not there")
    path.with_suffix(".aside").rename(path)


def test_damage_of_a_page_is_found(held: Instance, index: IndexWriter) -> None:
    page = _page(held, "oks")
    for at in (140, index.oks.page.header.slots_at + 20, index.oks.page.header.slots_at + 3700):
        _flip(page, at)
    assert _verdicts(held)["oks"].damages


def test_a_missing_half_is_found(held: Instance, index: IndexWriter) -> None:
    _page(held, "errs").unlink()
    (damage,) = _verdicts(held)["oks"].damages
    assert "errs is missing" in damage


@pytest.mark.slow
def test_nothing_is_found_beside_a_writer_that_merges_and_unlinks(held: Instance, index: IndexWriter) -> None:
    stop = threading.Event()
    problems: list[str] = []

    def verifying() -> None:
        while not stop.is_set():
            for verdict in verify_pages(held.token):
                problems.extend(verdict.damages)

    thread = threading.Thread(target=verifying)
    thread.start()
    try:
        for t in range(3, 150):
            index.insert(_updates(t, 300), NO_ERRS, Frontier.at(t + 1))
            index.set_compaction(Frontier.at(t))
            index.reclaim(float(t))
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    assert not problems
