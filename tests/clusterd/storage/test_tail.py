"""The kernel's notices: every append of a real writer is seen, by a reader that blocks and never polls."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterd.convert import updates_from_rows
from clusterd.storage.store import Store
from clusterd.storage.tail import ShardTail
from controller_proto.errors import Refusal
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier

DEADLINE_MS = 30_000
APPENDS = 200

WRITER = """
import sys
from clusterd.convert import updates_from_rows
from clusterd.storage.store import Store
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier

data_dir, appends, lockstep = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "lockstep"
shard = Store.open(data_dir).shard("x")
for t in range(appends):
    if lockstep:
        sys.stdin.readline()
    updates = updates_from_rows(SAMPLE_SCHEMA, [(t, "p")], t)
    shard.append(updates, Frontier.at(t), Frontier.at(t + 1))
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def writer(store: Store, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store.data_dir), str(APPENDS), how],
        stdin=subprocess.PIPE, text=True,
    )  # fmt: skip


def block_on(tail: ShardTail) -> set[str]:
    poll = select.poll()
    poll.register(tail.fileno(), select.POLLIN)
    assert poll.poll(DEADLINE_MS), "no notice within the deadline"
    return tail.drain()


@pytest.mark.slow
def test_a_reader_that_blocks_sees_every_upper_of_a_writer(store: Store) -> None:
    shard = store.create_shard("x", SAMPLE_SCHEMA)
    with ShardTail(store) as tail:
        tail.watch("x")
        process = writer(store, "lockstep")
        assert process.stdin is not None
        seen = [shard.upper.time]
        for _ in range(APPENDS):
            process.stdin.write("\n")
            process.stdin.flush()
            before = seen[-1]
            while seen[-1] == before:
                assert block_on(tail) == {"x"}
                seen.append(shard.upper.time)
        process.communicate(timeout=30)
        assert sorted(set(seen)) == list(range(APPENDS + 1))
        assert process.returncode == 0


@pytest.mark.slow
def test_a_reader_that_blocks_loses_no_append_of_a_writer_that_does_not_wait(store: Store) -> None:
    shard = store.create_shard("x", SAMPLE_SCHEMA)
    with ShardTail(store) as tail:
        tail.watch("x")
        process = writer(store, "free")
        got: list[int] = []
        upper = 0
        while upper < APPENDS:  # ends only if the last append's notice is never the one that is lost
            new = shard.upper.time
            if new == upper:
                block_on(tail)
                continue
            for block in shard.read(upper, Frontier.at(new), block_rows=1000):
                got += block.times.tolist()
            upper = new
        assert got == list(range(APPENDS))
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_one_descriptor_tells_the_shards_apart(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.create_shard(name, SAMPLE_SCHEMA)
    none = updates_from_rows(SAMPLE_SCHEMA, [], 0)
    with ShardTail(store) as tail:
        tail.watch("a")
        tail.watch("b")
        tail.watch("b")
        assert tail.drain() == set()
        store.shard("c").append(none, Frontier.at(0), Frontier.at(1))
        assert tail.drain() == set()
        store.shard("b").append(none, Frontier.at(0), Frontier.at(1))
        assert tail.drain() == {"b"}
        store.shard("a").append(none, Frontier.at(0), Frontier.at(1))
        store.shard("b").append(none, Frontier.at(1), Frontier.empty())
        assert tail.drain() == {"a", "b"}
        tail.unwatch("a")
        tail.drain()
        store.shard("a").append(none, Frontier.at(1), Frontier.at(2))
        assert tail.drain() == set()


def test_reading_and_lost_races_are_no_news(store: Store) -> None:
    shard = store.create_shard("a", SAMPLE_SCHEMA)
    shard.append(updates_from_rows(SAMPLE_SCHEMA, [(1, "a")], 0), Frontier.at(0), Frontier.at(1))
    with ShardTail(store) as tail:
        tail.watch("a")
        assert list(shard.read(0, Frontier.at(1), block_rows=10))
        assert shard.upper == Frontier.at(1)
        with pytest.raises(Refusal, match="upper-mismatch"):
            shard.append(updates_from_rows(SAMPLE_SCHEMA, [(1, "a")], 0), Frontier.at(0), Frontier.at(1))
        assert shard.sweep() == []
        assert tail.drain() == set()


def test_the_descriptor_is_closed_and_not_inherited(store: Store) -> None:
    tail = ShardTail(store)
    assert not os.get_inheritable(tail.fileno())
    tail.close()
    tail.close()
    with pytest.raises(Refusal, match="unknown-shard"), ShardTail(store) as other:
        other.watch("nope")
