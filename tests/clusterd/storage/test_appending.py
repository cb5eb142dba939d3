"""An append in pieces is one append: rows and errors together, or nothing of either."""

from __future__ import annotations

import errno
import gc
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterd.convert import updates_from_rows
from clusterd.storage import local_parts, parts
from clusterd.storage.appending import Appending
from clusterd.storage.shard import Shard
from clusterd.storage.sqlite_catalog import SqliteCatalog
from clusterd.storage.store import Store
from controller_proto.errors import Refusal
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    with Store.open(tmp_path / "data") as store:
        yield store.create_shard("s", SAMPLE_SCHEMA)


def rows(times: list[int]) -> Updates:
    return updates_from_rows(SAMPLE_SCHEMA, [(time, f"p{time}") for time in times], times)


def errors(text: str, *times: int) -> Updates:
    texts = Column.from_pylist(ColumnType.TEXT, [text] * len(times))
    return Updates((texts,), np.array(times, np.uint64), np.ones(len(times), np.int64))


def files(tmp_path: Path) -> list[str]:
    directory = tmp_path / "data" / "shards" / "s"
    return sorted(name for name in os.listdir(directory) if name.startswith(parts.PREFIXES))


def test_pieces_in_any_order_are_read_back_by_time_rows_and_errors_apart(
    tmp_path: Path, shard: Shard
) -> None:
    appending = shard.begin()
    appending.add(rows([3, 1]))
    appending.add_errors(errors("eval-error: division by zero", 2, 4))
    appending.add(rows([0, 4]))
    assert shard.upper == Frontier.at(0)
    appending.commit(Frontier.at(0), Frontier.at(5))
    assert shard.upper == Frontier.at(5)
    read = [u for block in shard.read(1, Frontier.at(4), block_rows=100) for u in block.to_rows()]
    assert sorted(read) == [((1, "p1"), 1, 1), ((3, "p3"), 3, 1)]
    read = [u for block in shard.read_errors(3, Frontier.at(5), block_rows=100) for u in block.to_rows()]
    assert read == [(("eval-error: division by zero",), 4, 1)]
    assert len(files(tmp_path)) == 2
    assert shard.sweep() == []


def test_who_is_slower_leaves_no_file_and_learns_the_upper(tmp_path: Path, shard: Shard) -> None:
    slower, faster = shard.begin(), shard.begin()
    slower.add(rows([0]))
    slower.add_errors(errors("x: y", 0))
    faster.add(rows([1]))
    faster.commit(Frontier.at(0), Frontier.at(2))
    with pytest.raises(Refusal) as caught:
        slower.commit(Frontier.at(0), Frontier.at(1))
    assert caught.value.code == "upper-mismatch"
    assert len(files(tmp_path)) == 1


def test_what_is_abandoned_leaves_nothing_and_nothing_moves_an_upper_as_well(
    tmp_path: Path, shard: Shard
) -> None:
    appending = shard.begin()
    appending.add(rows([0]))
    appending.abandon()
    assert files(tmp_path) == []
    shard.begin().commit(Frontier.at(0), Frontier.at(7))
    assert shard.upper == Frontier.at(7)
    assert files(tmp_path) == []


@pytest.mark.parametrize("where", ["create", "write", "finish"])
def test_an_append_that_finds_no_room_leaves_no_file_and_no_descriptor(
    tmp_path: Path, shard: Shard, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    calls = 0

    def second(*args: Any) -> Any:
        """The first of the two parts succeeds."""
        nonlocal calls
        calls += 1
        if where == "write" or calls == 2:
            raise OSError(errno.ENOSPC, "no space left")
        return kept(*args)

    owner: Any = {"create": local_parts, "write": local_parts._Syncing, "finish": local_parts.LocalSink}[
        where
    ]
    name = {"create": "_create", "write": "write", "finish": "finish"}[where]
    kept = getattr(owner, name)
    with monkeypatch.context() as full:
        full.setattr(owner, name, second)
        appending = shard.begin()
        with pytest.raises(OSError, match="no space left"):
            _append_both(appending)
        appending.abandon()
    gc.collect()
    assert files(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert shard.upper == Frontier.at(0)


def _append_both(appending: Appending) -> None:
    appending.add(rows([0]))
    appending.add_errors(errors("x: y", 0))
    appending.commit(Frontier.at(0), Frontier.at(1))


def test_a_merge_that_meets_a_lock_leaves_no_file(tmp_path: Path, shard: Shard) -> None:
    for time in range(4):
        shard.append(rows([time]), Frontier.at(time), Frontier.at(time + 1))
    other = sqlite3.connect(tmp_path / "data" / "shards" / "s" / "catalog.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Refusal, match="locked"), shard.briefly():
        shard.merge()
    other.close()
    assert len(files(tmp_path)) == 4
    assert shard.merge() == 3


def test_an_append_that_took_place_says_so_though_its_merge_fails(
    tmp_path: Path, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for time in range(4):
        appending = shard.begin()
        appending.add(rows([time]))
        with monkeypatch.context() as broken:
            broken.setattr(SqliteCatalog, "replace_parts", _no_room)
            appending.commit(Frontier.at(time), Frontier.at(time + 1))
    assert shard.upper == Frontier.at(4)
    assert shard.sweep() != []  # what the merge wrote
    assert shard.statistics().updates == 4


def _no_room(*args: object) -> bool:
    raise OSError(errno.ENOSPC, "no space left")


def test_a_part_that_is_gone_is_told_by_a_merge_which_does_not_look_for_it_for_ever(
    tmp_path: Path, shard: Shard
) -> None:
    for time in range(4):
        shard.append(rows([time]), Frontier.at(time), Frontier.at(time + 1))
    (tmp_path / "data" / "shards" / "s" / files(tmp_path)[0]).unlink()
    with pytest.raises(Refusal, match="lacks a part") as caught:
        shard.merge()
    assert caught.value.code == "format-mismatch"


def test_a_damaged_catalog_and_a_lock_are_told_as_such_wherever_the_directory_is(tmp_path: Path) -> None:
    location = tmp_path / "50% ?#x"
    with Store.open(location) as store:
        shard = store.create_shard("s", SAMPLE_SCHEMA)
        shard.append(rows([0]), Frontier.at(0), Frontier.at(1))
        other = sqlite3.connect(location / "shards" / "s" / "catalog.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Refusal) as locked, shard.briefly():
            _ = shard.upper
        other.execute("ROLLBACK")
        other.close()
        assert (locked.value.code, shard.upper) == ("timeout", Frontier.at(1))
    catalog = location / "shards" / "s" / "catalog.db"
    with Store.open(location) as store:
        shard = store.shard("s")
        with closing(sqlite3.connect(catalog)) as other:
            other.execute("DROP TABLE shard")
        with pytest.raises(Refusal, match=r"catalog of shard 's' is damaged: no such table: shard"):
            _ = shard.upper
        shard = store.create_shard("r", SAMPLE_SCHEMA)
        (location / "shards" / "r" / "catalog.db").unlink()
        with pytest.raises(FileNotFoundError, match="catalog of shard 'r' was removed, or replaced"):
            shard.advance_since(Frontier.at(1))
    catalog.write_bytes(b"no database" * 999)
    with Store.open(location) as store, pytest.raises(Refusal) as damaged:
        store.shard("s")
    assert damaged.value.code == "format-mismatch"
