"""Appends are all or nothing, in every order and under every kill; reads are exact intervals of times."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from clusterd.convert import updates_from_rows
from clusterd.storage.data_dir import DataDirMismatch
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from controller_proto.errors import Refusal
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Schema
from shm_arrangements import failpoints
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.updates import Updates
from tests.clusterd.columns import VALUES

DEADLINE_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def sample(times: list[int], start: int = 0) -> Updates:
    return updates_from_rows(SAMPLE_SCHEMA, [(start + i, f"p{i}") for i in range(len(times))], times)


def at(time: int) -> Frontier:
    return Frontier.at(time)


def directory(store: Store, shard: Shard) -> Path:
    return store.data_dir / "shards" / shard.name


def rows_of(store: Store, name: str, lower: int = 0, upper: Frontier | None = None) -> Counter[Any]:
    shard = store.shard(name)
    blocks = shard.read(lower, shard.upper if upper is None else upper, block_rows=65_536)
    return Counter(update for block in blocks for update in block.to_rows())


def test_an_interval_that_was_listed_before_is_read_again_after_its_parts_were_merged(store: Store) -> None:
    shard = store.create_shard("a", SAMPLE_SCHEMA)
    for t in range(12):
        shard.append(sample([t], t), at(t), at(t + 1))

    def read(lower: int, upper: int) -> Counter[Any]:
        blocks = shard.read(lower, at(upper), block_rows=100)
        return Counter(update for block in blocks for update in block.to_rows())

    before = read(3, 9)
    assert len(before) == 6
    with Store.open(store.data_dir) as other:
        assert other.shard("a").merge() > 0
    assert read(3, 9) == before
    assert list(shard.read_errors(3, at(9), block_rows=100)) == []
    shard.append(sample([12], 12), at(12), at(13))
    assert read(3, 9) == before
    assert read(12, 13).total() == 1
    with shard.briefly():
        assert read(3, 9) == before
    shard.advance_since(at(5))
    with pytest.raises(Refusal, match="below-since"):
        read(3, 9)


def test_what_was_appended_is_read_by_another_store(store: Store) -> None:
    shard = store.create_shard("a", SAMPLE_SCHEMA)
    assert (shard.since, shard.upper) == (at(0), at(0))
    shard.append(sample([3, 1, 2]), at(0), at(5))
    with Store.open(store.data_dir, create=False) as other:
        assert other.list() == ["a"]
        assert other.shard("a").schema == SAMPLE_SCHEMA
        assert other.shard("a").upper == at(5)
        assert rows_of(other, "a") == Counter([((0, "p0"), 3, 1), ((1, "p1"), 1, 1), ((2, "p2"), 2, 1)])
    stats = shard.statistics()
    assert (stats.parts, stats.updates) == (1, 3)
    assert stats.nbytes == sum(path.stat().st_size for path in directory(store, shard).glob("part-*"))


def test_a_shard_goes_from_thread_to_thread(store: Store) -> None:
    shard = store.create_shard("s", SAMPLE_SCHEMA)
    shard.append(sample([0]), at(0), at(1))
    with ThreadPoolExecutor(1) as other:
        other.submit(shard.append, sample([1], 1), at(1), at(2)).result(DEADLINE_S)
    assert shard.upper == at(2)


@pytest.mark.slow
def test_reads_of_random_intervals_and_block_sizes_equal_a_fold(store: Store) -> None:
    seed = 20_130_101
    rng = random.Random(seed)
    print("seed", seed)
    columns = [column for column, _ in VALUES.values()]
    schema = Schema(tuple(msgspec.structs.replace(column, nullable=True) for column in columns))
    shard = store.create_shard("r", schema)
    kept: list[Any] = []
    upper = 0
    for _ in range(20):
        new = upper + rng.randint(1, 5)
        n = rng.choice([0, 1, 7, 200])
        rows = [tuple(rng.choice([None, *values]) for _, values in VALUES.values()) for _ in range(n)]
        times = [rng.randrange(upper, new) for _ in range(n)]
        diffs = [rng.choice([1, -1, 3]) for _ in range(n)]
        updates = updates_from_rows(schema, rows, times, diffs)
        shard.append(updates, at(upper), at(new))
        kept += [(repr(row), *rest) for row, *rest in updates.to_rows()]  # NaN and lists are no keys
        upper = new
    for _ in range(40):
        lower = rng.randrange(upper + 1)
        end = rng.randint(lower, upper)
        block_rows = rng.choice([1, 3, 64, 65_536])
        blocks = list(shard.read(lower, at(end), block_rows=block_rows))
        assert all(len(b) <= block_rows for b in blocks)
        assert all(len(b) == block_rows for b in blocks[:-1])
        found = Counter((repr(row), *rest) for b in blocks for row, *rest in b.to_rows())
        assert found == Counter(u for u in kept if lower <= u[1] < end)


def test_an_append_larger_than_a_record_batch_is_read_back_in_time_order(store: Store) -> None:
    n = 150_000
    rng = np.random.default_rng(5)
    shard = store.create_shard("big", SAMPLE_SCHEMA)
    updates = sample([0] * 10).take(rng.integers(0, 10, n))
    updates = Updates(updates.columns, rng.integers(0, 24, n).astype(np.uint64), updates.diffs)
    shard.append(updates, at(0), at(24))
    blocks = list(shard.read(5, at(7), block_rows=4096))
    assert sum(map(len, blocks)) == int(((updates.times >= 5) & (updates.times < 7)).sum())
    times = np.concatenate([b.times for b in blocks])
    assert (np.diff(times.astype(np.int64)) >= 0).all()


def test_only_parts_that_overlap_the_interval_are_opened(store: Store) -> None:
    shard = store.create_shard("p", SAMPLE_SCHEMA)
    for t in range(10):
        shard.append(sample([t]), at(t), at(t + 1))
    wanted = sorted(
        path for path in directory(store, shard).glob("part-*") if 3 <= int(path.name.split("-")[1]) < 5
    )
    for path in set(directory(store, shard).glob("part-*")) - set(wanted):
        path.unlink()
    assert [u.times.tolist() for u in shard.read(3, at(5), block_rows=100)] == [[3, 4]]


def test_mapped_columns_outlive_the_file_and_hold_no_descriptor(store: Store) -> None:
    shard = store.create_shard("m", SAMPLE_SCHEMA)
    shard.append(sample([0, 1, 2]), at(0), at(3))
    before = len(os.listdir("/proc/self/fd"))
    (block,) = shard.read(0, at(3), block_rows=100)
    assert len(os.listdir("/proc/self/fd")) == before
    for path in directory(store, shard).glob("part-*"):
        path.unlink()
    assert block.to_rows() == sample([0, 1, 2]).to_rows()
    assert not block.times.flags.writeable


def test_the_last_time_and_the_end_of_a_shard(store: Store) -> None:
    shard = store.create_shard("e", SAMPLE_SCHEMA)
    shard.append(sample([MAX_TIME]), at(0), Frontier.empty())
    assert shard.upper.is_empty
    assert rows_of(store, "e") == Counter([((0, "p0"), MAX_TIME, 1)])
    assert rows_of(store, "e", upper=at(MAX_TIME)) == Counter()
    with pytest.raises(Refusal, match=r"upper-mismatch: shard 'e' has upper \{\}, the append expected \{5\}"):
        shard.append(sample([5]), at(5), at(6))
    with pytest.raises(Refusal, match=r"upper-mismatch: time 7 is below the expected upper \{\}"):
        shard.append(sample([7]), Frontier.empty(), Frontier.empty())


def test_an_append_that_expects_another_upper_is_refused_with_both(store: Store) -> None:
    shard = store.create_shard("u", SAMPLE_SCHEMA)
    shard.append(sample([]), at(0), at(5))
    with pytest.raises(
        Refusal, match=r"upper-mismatch: shard 'u' has upper \{5\}, the append expected \{3\}"
    ):
        shard.append(sample([3]), at(3), at(6))
    with pytest.raises(Refusal, match=r"upper-mismatch: time 4 is below the expected upper \{5\}"):
        shard.append(sample([5, 4]), at(5), at(6))
    with pytest.raises(Refusal, match=r"upper-mismatch: time 6 is not before the new upper \{6\}"):
        shard.append(sample([5, 6]), at(5), at(6))
    with pytest.raises(Refusal, match=r"upper-mismatch: new upper \{4\} is before the expected upper \{5\}"):
        shard.append(sample([]), at(5), at(4))
    assert shard.upper == at(5)
    assert shard.statistics().parts == 0
    assert list(directory(store, shard).glob("part-*")) == []


def test_columns_that_differ_from_the_schema_are_refused_by_name(store: Store) -> None:
    shard = store.create_shard("s", SAMPLE_SCHEMA)
    other = Schema((Column("id", ColumnType.INT64), Column("payload", ColumnType.INT64)))
    with pytest.raises(Refusal, match="schema-mismatch: column 'payload' is text, not bigint"):
        shard.append(updates_from_rows(other, [(1, 2)], 0), at(0), at(1))
    nullable = Schema((Column("id", ColumnType.INT64, True), Column("payload", ColumnType.TEXT)))
    with pytest.raises(Refusal, match="schema-mismatch: column 'id' is not nullable"):
        shard.append(updates_from_rows(nullable, [(None, "a")], 0), at(0), at(1))
    with pytest.raises(Refusal, match="schema-mismatch: 1 columns for shard 's', which has 2"):
        shard.append(updates_from_rows(Schema(other.columns[:1]), [(1,)], 0), at(0), at(1))
    with pytest.raises(
        Refusal, match="schema-mismatch: shard 's' exists, column 'payload' is text, not 'payload' bigint"
    ):
        store.create_shard("s", other)
    assert store.create_shard("s", SAMPLE_SCHEMA) is shard


def test_unknown_and_impossible_names_are_refused(store: Store) -> None:
    for name in ("nope", "../nope", "", ".new-1", "a/b", "é"):
        with pytest.raises(Refusal, match="unknown-shard"):
            store.shard(name)
    with pytest.raises(Refusal, match=r"unknown-shard: '\.\./x' is not a shard name"):
        store.create_shard("../x", SAMPLE_SCHEMA)
    assert store.list() == []


def test_a_data_directory_of_another_format_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path / "d").close()
    (tmp_path / "d" / "VERSION").write_text("clusterd-data 99\n")
    with pytest.raises(DataDirMismatch, match=r"format-mismatch: .* holds 'clusterd-data 99'"):
        Store.open(tmp_path / "d")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(DataDirMismatch, match=r"holds 'letter\.txt' and no VERSION file"):
        Store.open(tmp_path / "home")
    with pytest.raises(DataDirMismatch, match="holds a file"):
        Store.open(tmp_path / "home" / "letter.txt", create=False)
    with pytest.raises(FileNotFoundError):
        Store.open(tmp_path / "absent", create=False)


def test_since_only_rises(store: Store) -> None:
    shard = store.create_shard("c", SAMPLE_SCHEMA)
    assert shard.advance_since(at(4)) == at(4)
    assert shard.advance_since(at(2)) == at(4)
    assert shard.since == at(4)


def test_a_part_that_is_none_is_refused(store: Store) -> None:
    shard = store.create_shard("f", SAMPLE_SCHEMA)
    shard.append(sample([0]), at(0), at(1))
    (path,) = directory(store, shard).glob("part-*")
    path.chmod(0o600)
    path.write_bytes(b"no part at all")
    with pytest.raises(Refusal, match="format-mismatch"):
        list(shard.read(0, at(1), block_rows=10))


# -- several processes --------------------------------------------------------------------------------------

APPENDER = """
import sys
from clusterd.convert import updates_from_rows
from clusterd.storage.store import Store
from controller_proto.errors import Refusal
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements import failpoints
from shm_arrangements.frontier import Frontier

data_dir, who, target, armed, action = sys.argv[1:]
store = Store.open(data_dir)
shard = store.create_shard("x", SAMPLE_SCHEMA)
if armed:
    failpoints.arm(armed, action)
print("ready", flush=True)
sys.stdin.readline()
won = lost = 0
while not shard.upper.is_empty and shard.upper.time < int(target):
    upper = shard.upper
    updates = updates_from_rows(SAMPLE_SCHEMA, [(upper.time, who)], upper.time)
    try:
        shard.append(updates, upper, Frontier.at(upper.time + 1))
        won += 1
    except Refusal as refusal:
        assert refusal.code == "upper-mismatch", refusal
        lost += 1
print(won, lost, flush=True)
"""


def appender(
    store: Store, who: str, target: int, armed: str = "", action: str = "off"
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(store.data_dir), who, str(target), armed, action],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate("\n", timeout=DEADLINE_S)
    return out


@pytest.mark.slow
def test_of_two_racing_writers_exactly_one_wins_each_upper(store: Store) -> None:
    total = 150
    store.create_shard("x", SAMPLE_SCHEMA)
    both = [appender(store, who, total) for who in ("left", "right")]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    results = [tuple(map(int, process.communicate(timeout=DEADLINE_S)[0].split())) for process in both]
    print("won, lost:", results)
    assert sum(won for won, _ in results) == total
    assert sorted(row[0][0] for row in rows_of(store, "x").elements()) == list(range(total))
    assert store.shard("x").statistics().parts == total
    assert store.sweep() == []  # a loser's part is gone at once
    assert len(list(directory(store, store.shard("x")).glob("part-*"))) == total


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["exit", "pause"])
def test_a_writer_killed_before_the_catalog_loses_nothing_and_leaves_what_a_sweep_removes(
    store: Store, killed: str
) -> None:
    shard = store.create_shard("x", SAMPLE_SCHEMA)
    shard.append(sample([0]), at(0), at(1))
    process = appender(store, "victim", 3, "shard.part-written", killed)
    if killed == "exit":
        finish(process)
        assert process.returncode == failpoints.EXIT_STATUS
    else:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert len(list(directory(store, shard).glob("part-*"))) == 2
        assert store.sweep() == []  # it may yet go on: what it holds is left alone
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
    assert shard.upper == at(1)
    assert rows_of(store, "x") == Counter([((0, "p0"), 0, 1)])
    (left,) = store.sweep()
    assert left.startswith("x/part-")
    assert len(list(directory(store, shard).glob("part-*"))) == 1
    shard.append(sample([1]), at(1), at(2))
    assert rows_of(store, "x") == Counter([((0, "p0"), 0, 1), ((0, "p0"), 1, 1)])


@pytest.mark.slow
def test_a_writer_killed_after_the_catalog_has_appended(store: Store) -> None:
    shard = store.create_shard("x", SAMPLE_SCHEMA)
    process = appender(store, "victim", 3, "shard.catalog-committed", "exit")
    finish(process)
    assert process.returncode == failpoints.EXIT_STATUS
    assert shard.upper == at(1)
    assert rows_of(store, "x") == Counter([((0, "victim"), 0, 1)])
    assert store.sweep() == []


@pytest.mark.slow
def test_writers_killed_at_any_moment_leave_a_prefix(store: Store) -> None:
    seed = 7
    rng = random.Random(seed)
    print("seed", seed)
    shard = store.create_shard("x", SAMPLE_SCHEMA)
    for _ in range(6):
        process = appender(store, "victim", 1_000_000)
        assert process.stdin is not None
        goal = (shard.upper.time if not shard.upper.is_empty else 0) + rng.randint(1, 12)
        process.stdin.write("\n")
        process.stdin.flush()
        while shard.upper.time < goal:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
        store.sweep()
        upper = shard.upper.time
        assert upper >= goal
        assert rows_of(store, "x") == Counter(((t, "victim"), t, 1) for t in range(upper))
        listed = len(list(directory(store, shard).glob("part-*")))
        assert listed == shard.statistics().parts == upper


@pytest.mark.slow
def test_a_year_of_daily_appends_is_read_in_one_block(store: Store) -> None:
    shard = store.create_shard("y", SAMPLE_SCHEMA)
    day = sample(list(range(24)))
    for d in range(365):
        updates = Updates(day.columns, day.times + np.uint64(24 * d), day.diffs)
        shard.append(updates, at(24 * d), at(24 * d + 24))
    (block,) = shard.read(0, shard.upper, block_rows=65_536)
    assert len(block) == 24 * 365
