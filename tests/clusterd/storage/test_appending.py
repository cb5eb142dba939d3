"""An append in pieces is one append: rows and errors together, or nothing of either."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clusterd.convert import updates_from_rows
from clusterd.storage import parts
from clusterd.storage.shard import Shard
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
