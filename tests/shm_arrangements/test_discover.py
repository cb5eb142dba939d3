"""Discovery: what is published is listed as its pages say, and found by id or name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shm_arrangements import discover
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach
from shm_arrangements.discover import list_publications
from shm_arrangements.errors import AmbiguousName, PublicationClosed
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id
from shm_arrangements.page_layout import PageStatus
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

I64, TEXT = ColumnType.INT64, ColumnType.TEXT
SCHEMA = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
NO_ERRS = Updates.empty((TEXT,))


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as made:
        yield made


def _index(held: Instance, id: str, name: str = "", incarnation: int = 1, **options: int) -> IndexWriter:
    allocator = SegmentAllocator(held.token, 0)
    index = IndexWriter(allocator, collection_id(id), incarnation, SCHEMA, 0, name=name, **options)
    index.insert(Updates.from_rows((I64, I64), [((7, 70), 0, 1), ((8, 80), 1, 1)]), NO_ERRS, Frontier.at(2))
    return index


def test_a_publication_is_listed_with_what_it_is_and_holds(held: Instance) -> None:
    assert list_publications(held.token) == ()
    index = _index(held, "u1", "flights")
    (info,) = list_publications(held.token)
    assert (info.instance, info.id, info.name, info.incarnation) == (held.token, "u1", "flights", 1)
    assert (info.schema, info.key, info.shards, info.alias_of) == (SCHEMA, ("k",), 1, "")
    assert (info.status, info.since, info.upper) == (PageStatus.LIVE, Frontier.minimum(), Frontier.at(2))
    assert (info.updates, info.errors) == (2, 0)
    assert info.nbytes > 0
    assert info.batches >= 1
    message = Updates.from_rows((TEXT,), [(("eval-error: x",), 2, 1)])
    index.insert(Updates.empty((I64, I64)), message, Frontier.at(3))
    (info,) = list_publications(held.token)
    assert (info.updates, info.errors) == (3, 1)
    index.close()
    assert list_publications(held.token) == ()


def test_nothing_sealed_is_fresh_and_the_slowest_shard_decides(held: Instance) -> None:
    parts = [_index(held, "u1", shard=shard, shards=2) for shard in range(2)]
    parts[0].insert(Updates.empty((I64, I64)), NO_ERRS, Frontier.at(9))
    parts[0].set_compaction(Frontier.at(1))
    (info,) = list_publications(held.token)
    assert (info.shards, info.since, info.upper, info.updates) == (2, Frontier.at(1), Frontier.at(2), 4)
    fresh = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u2"), 1, SCHEMA, 5)
    (_, info) = list_publications(held.token)
    assert (info.status, info.since, info.upper) == (PageStatus.FRESH, Frontier.at(5), Frontier.minimum())
    for index in (*parts, fresh):
        index.close()


def test_aliases_and_incarnations_are_listed_the_newest_first(held: Instance) -> None:
    old, new = _index(held, "u1", "a"), _index(held, "u1", "a", incarnation=10)
    new.publish_as(collection_id("u2"), 3)
    listed = [(info.id, info.incarnation, info.alias_of) for info in list_publications(held.token)]
    assert listed == [("u1", 10, ""), ("u1", 1, ""), ("u2", 3, "u1")]
    old.close()
    new.close()


def test_a_name_is_attached_to_like_an_id(held: Instance) -> None:
    index = _index(held, "u7", "flights by origin")
    with attach("flights by origin", held.token) as read:
        assert (read.id, len(read.scan())) == ("u7", 2)
    index.publish_as(collection_id("u8"), 1)
    assert discover.id_of_name(held.token, "flights by origin") == "u7"
    index.withdraw(collection_id("u7"), 1)
    assert discover.id_of_name(held.token, "flights by origin") == "u8"
    with attach("flights by origin", held.token) as read:
        assert read.id == "u8"
    index.close()
    with pytest.raises(PublicationClosed, match=r"not published \(id=flights by origin.*shm-arrangements ls"):
        attach("flights by origin", held.token)


def test_a_name_of_several_is_refused_with_their_ids(held: Instance) -> None:
    indexes = [_index(held, "u1", "same"), _index(held, "t2", "same"), _index(held, "u3", "other")]
    with pytest.raises(AmbiguousName, match=r"name=same, ids=t2, u1.*use an id"):
        attach("same", held.token)
    with attach("other", held.token) as read:
        assert read.id == "u3"
    indexes[0].close()
    with attach("same", held.token) as read:
        assert read.id == "t2"
    for index in indexes:
        index.close()


def test_what_looks_like_an_id_is_one_whatever_names_there_are(held: Instance) -> None:
    index = _index(held, "u1", "u2")
    with pytest.raises(PublicationClosed):
        attach("u2", held.token)
    index.close()


def test_the_newest_page_that_is_open_is_found(held: Instance) -> None:
    old, new = _index(held, "u1"), _index(held, "u1", incarnation=2)
    assert discover.newest_page(held.token, "u1").incarnation == 2
    new.close()
    assert discover.newest_page(held.token, 1).incarnation == 1
    old.close()
    with pytest.raises(PublicationClosed):
        discover.newest_page(held.token, "1")


def test_pages_of_another_version_and_halves_alone_are_left_out(held: Instance) -> None:
    index = _index(held, "u1")
    other = _index(held, "u2")
    pages = [Path("/dev/shm") / name for name in os.listdir("/dev/shm") if f"{held.token}.p." in name]
    oks = next(path for path in pages if path.name.endswith("0000000001.1.0.oks"))
    with oks.open("r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "little"))
    errs = next(path for path in pages if path.name.endswith("0000000002.1.0.errs"))
    errs.unlink()
    assert list_publications(held.token) == ()
    index.close()
    other.close()
