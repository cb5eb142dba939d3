"""The same of every place: one of two writers wins, notices come with commits, merges show nowhere."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyarrow import fs

from clusterd import exit_codes
from clusterd.__main__ import main
from clusterd.convert import updates_from_rows
from clusterd.storage import merging
from clusterd.storage.data_dir import DataDirMismatch, absolute_location, directory_of
from clusterd.storage.merging import merge_updates, plan_merge
from clusterd.storage.object_parts import GRACE_S, ObjectParts
from clusterd.storage.parts import PartInfo, write_part
from clusterd.storage.postgres_catalog import FORMAT
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from clusterd.storage.tail import ShardTail
from controller_proto.errors import Refusal
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Schema
from shm_arrangements import failpoints
from shm_arrangements.frontier import Frontier
from tests import postgres
from tests.clusterd.storage.test_shard import APPENDER, sample

DEADLINE_S = 60
PLACES = [
    pytest.param("directory", id="directory"),
    pytest.param("postgres", id="postgres", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.PostgresServer]:
    yield from postgres.servers()


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where no shards are yet: of the kind that the test is for."""
    if request.param == "directory":
        yield str(tmp_path / "data")
        return
    server = request.getfixturevalue("server")
    server.execute("postgres", "CREATE DATABASE shards")
    yield f"{server.dsn('shards')}&parts=file://{tmp_path}/parts"
    server.execute("postgres", "DROP DATABASE shards WITH (FORCE)")


on_every_place = pytest.mark.parametrize("location", PLACES, indirect=True)


def at(time: int) -> Frontier:
    return Frontier.at(time)


def rows_of(shard: Shard, lower: int = 0) -> Counter[Any]:
    blocks = shard.read(lower, shard.upper, block_rows=65_536)
    return Counter(update for block in blocks for update in block.to_rows())


def state_at(shard: Shard, time: int) -> Counter[Any]:
    """The collection at `time`."""
    found: Counter[Any] = Counter()
    for (row, when, diff), count in rows_of(shard).items():
        if when <= time:
            found[row] += diff * count
    return Counter({row: n for row, n in found.items() if n})


def block_on(tail: ShardTail) -> set[str]:
    poll = select.poll()
    poll.register(tail.fileno(), select.POLLIN)
    assert poll.poll(DEADLINE_S * 1000), "no notice within the deadline"
    return tail.drain()


@on_every_place
def test_what_one_process_appends_another_reads_is_told_of_and_cannot_append_again(location: str) -> None:
    with Store.open(location) as store, Store.open(location, create=False) as other:
        assert store.created
        assert not other.created
        shard = store.create_shard("a.b", SAMPLE_SCHEMA)
        with ShardTail(other) as tail:
            tail.watch("a.b")
            assert tail.drain() == set()
            shard.append(sample([3, 1]), at(0), at(5), positions={"f": "one", "g": "two"})
            assert block_on(tail) == {"a.b"}
            with pytest.raises(Refusal, match="unknown-shard: no shard named 'zz'"):
                tail.watch("zz")
        theirs = other.shard("a.b")
        assert theirs.schema == SAMPLE_SCHEMA
        assert (theirs.since, theirs.upper) == (at(0), at(5))
        assert theirs.positions == {"f": "one", "g": "two"}
        assert rows_of(theirs) == Counter([((0, "p0"), 3, 1), ((1, "p1"), 1, 1)])
        assert rows_of(theirs, 2) == Counter([((0, "p0"), 3, 1)])
        message = r"upper-mismatch: shard 'a.b' has upper \{5\}, the append expected \{3\}"
        with pytest.raises(Refusal, match=message):
            theirs.append(sample([3]), at(3), at(6), positions={"f": None})
        theirs.append(sample([]), at(5), at(6), positions={"f": None, "g": "three"})
        assert shard.positions == {"g": "three"}
        assert shard.advance_since(at(4)) == at(4)
        assert theirs.advance_since(at(2)) == at(4)
        assert theirs.statistics() == shard.statistics()
        assert shard.statistics().updates == 2
        shard.append(sample([]), at(6), Frontier.empty())
        assert theirs.upper.is_empty
        assert other.list() == ["a.b"]


@on_every_place
def test_a_new_shard_appears_with_what_fills_it_or_not_at_all(location: str) -> None:
    with Store.open(location) as store:

        def fill(shard: Shard) -> None:
            shard.append(sample([1]), at(0), at(2))
            raise OSError("no more")

        with pytest.raises(OSError, match="no more"):
            store.create_shard("s", SAMPLE_SCHEMA, fill=fill)
        assert store.list() == []
        shard = store.create_shard("s", SAMPLE_SCHEMA, fill=lambda s: s.append(sample([1]), at(0), at(2)))
        assert shard.upper == at(2)
        other = Schema((Column("id", ColumnType.INT64), Column("payload", ColumnType.INT64)))
        with pytest.raises(Refusal, match="schema-mismatch: shard 's' exists, column 'payload' is text"):
            store.create_shard("s", other)
        assert rows_of(shard) == Counter([((0, "p0"), 1, 1)])


@pytest.mark.slow
@on_every_place
def test_of_two_racing_processes_one_wins_each_upper_and_the_other_learns_it(location: str) -> None:
    total = 60
    both = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDER, location, who, str(total), "", "off"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for who in ("left", "right")
    ]  # fmt: skip
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    results = [tuple(map(int, process.communicate("\n", timeout=DEADLINE_S)[0].split())) for process in both]
    print("won, lost:", results)
    assert sum(won for won, _ in results) == total
    with Store.open(location) as store:
        assert sorted(row[0][0] for row in rows_of(store.shard("x")).elements()) == list(range(total))
        assert store.shard("x").statistics().parts == total
        assert store.sweep() == []


@on_every_place
def test_merging_keeps_the_collection_at_every_time_that_may_be_read(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 41
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(merging, "_SMALLEST", 2000)
    with Store.open(location) as store:
        shard = store.create_shard("m", SAMPLE_SCHEMA)
        since = most = 0
        model: list[Any] = []
        for time in range(40):
            rows = [(rng.randrange(5), "x") for _ in range(rng.choice([1, 3, 40]))]
            diffs = [rng.choice([1, -1]) for _ in rows]
            shard.append(updates_from_rows(SAMPLE_SCHEMA, rows, time, diffs), at(time), at(time + 1))
            model += [(row, time, diff) for row, diff in zip(rows, diffs, strict=True)]
            if rng.random() < 0.3:
                since = max(since, rng.randrange(time + 2))
                shard.advance_since(at(since))
            shard.merge()
            most = max(most, shard.statistics().parts)
            for read in {time, min(max(since, time // 2), time)} - set(range(since)):
                wanted: Counter[Any] = Counter()
                for row, when, diff in model:
                    if when <= read:
                        wanted[row] += diff
                assert state_at(shard, read) == Counter({row: n for row, n in wanted.items() if n})
        assert most <= 9
        assert shard.statistics().updates < len(model)
        with pytest.raises(Refusal, match="below-since"):
            shard.read(since, shard.upper, block_rows=10)
        assert shard.merge() == 0


@on_every_place
def test_of_two_mergers_one_replaces_the_parts_and_readers_keep_what_they_opened(location: str) -> None:
    with Store.open(location) as store, Store.open(location) as other:
        shard = store.create_shard("m", SAMPLE_SCHEMA)
        for time in range(4):
            shard.append(sample([time], time), at(time), at(time + 1))
        theirs = other.shard("m")
        reading = shard.read(0, at(4), block_rows=1)
        replace = theirs._catalog.replace_parts
        fewer: list[int] = []

        def late(*arguments: Any) -> bool:
            if not fewer:
                fewer.append(shard.merge())
            return replace(*arguments)

        theirs._catalog.replace_parts = late  # type: ignore[method-assign]
        assert theirs.merge() == 0
        assert fewer == [3]
        assert shard.statistics().parts == 1
        assert sorted(block.times.tolist() for block in reading) == [[0], [1], [2], [3]]
        assert rows_of(theirs) == Counter(((t, "p0"), t, 1) for t in range(4))
        assert store.sweep() == []
        shard.append(sample([4] * 8), at(4), at(5))


def test_what_cancels_out_leaves_no_part(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        shard = store.create_shard("m", SAMPLE_SCHEMA)
        for time, diff in enumerate([1, -1, 1, -1]):
            shard.append(updates_from_rows(SAMPLE_SCHEMA, [(1, "a")], time, diff), at(time), at(time + 1))
        shard.advance_since(at(3))
        assert shard.merge() == 4
        assert shard.statistics().parts == 0
        assert [path.name for path in (tmp_path / "data" / "shards" / "m").glob("part-*")] == []


def test_parts_are_merged_by_levels_and_large_ones_stay() -> None:
    def part(nbytes: int, at: int, kind: str = "part-") -> PartInfo:
        return PartInfo(f"{kind}{at}", at, at, 1, nbytes)

    most = 64 << 20
    small = [part(1000, i) for i in range(3)]
    assert plan_merge(small, most) == []
    assert plan_merge([*small, part(9000, 3)], most) == [*small, part(9000, 3)]
    assert plan_merge([*small, part(9000, 3, "errs-")], most) == []
    assert plan_merge([part(1 << 20, i) for i in range(3)] + small, most) == []
    large = [part(60 << 20, i) for i in range(9)]
    assert plan_merge(large, most) == large[:4]
    assert plan_merge(large, 1 << 20) == []
    assert plan_merge([part(100 << 20, i) for i in range(9)], most) == []
    # However appends come, few parts are left: what n appends of a size make.
    parts: list[PartInfo] = []
    for i in range(3000):
        parts.append(part(8000, i))
        while chosen := plan_merge(parts, most):
            parts = [p for p in parts if p not in chosen] + [part(sum(p.nbytes for p in chosen), i + 10_000)]
        assert len(parts) <= 3 * 7


def test_no_time_is_rounded_beyond_what_is_sealed() -> None:
    updates = sample([0, 1, 5])
    assert merge_updates([updates], at(3), at(6)).times.tolist() == [3, 3, 5]
    assert sorted(merge_updates([updates], at(9), at(6)).times.tolist()) == [5, 5, 5]
    assert sorted(merge_updates([updates], Frontier.empty(), at(6)).times.tolist()) == [5, 5, 5]
    assert merge_updates([updates], at(0), at(6)).times.tolist() == [0, 1, 5]


@pytest.mark.slow
@pytest.mark.parametrize("armed", ["shard.merge-written", "shard.merge-committed"])
def test_a_merger_killed_before_or_after_the_catalog_loses_and_doubles_nothing(
    tmp_path: Path, armed: str
) -> None:
    with Store.open(tmp_path / "data") as store:
        shard = store.create_shard("m", SAMPLE_SCHEMA)
        for time in range(4):
            shard.append(sample([time], time), at(time), at(time + 1))
        program = (
            "import sys; from clusterd.storage.store import Store; from shm_arrangements import failpoints\n"
            "failpoints.arm(sys.argv[2], 'exit'); Store.open(sys.argv[1]).shard('m').merge()"
        )
        arguments = [sys.executable, "-c", program, str(tmp_path / "data"), armed]
        killed = subprocess.run(arguments, timeout=DEADLINE_S, check=False)
        assert killed.returncode == failpoints.EXIT_STATUS
        wanted = Counter(((t, "p0"), t, 1) for t in range(4))
        assert rows_of(shard) == wanted
        assert len(store.sweep()) == (1 if armed == "shard.merge-written" else 4)
        assert rows_of(shard) == wanted
        assert len(list((tmp_path / "data" / "shards" / "m").glob("part-*"))) == shard.statistics().parts


def test_a_shard_half_made_by_who_was_killed_is_swept_and_one_being_made_is_not(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        dead = tmp_path / "data" / "shards" / ".new-dead"
        dead.mkdir()
        (dead / "catalog.db").write_bytes(b"half")
        swept: list[Any] = []

        def fill(shard: Shard) -> None:
            swept.append(store.sweep())
            shard.append(sample([0]), at(0), at(1))

        store.create_shard("s", SAMPLE_SCHEMA, fill=fill)
        assert swept == [[".new-dead"]]
        assert os.listdir(tmp_path / "data" / "shards") == ["s"]
        assert store.sweep() == []


class _Listed:
    """A catalog, as a sweep sees it."""

    def __init__(self, files: set[str], dropped: set[str]) -> None:
        self._files, self._dropped = files, dropped

    def files(self) -> set[str]:
        return self._files

    def dropped(self) -> set[str]:
        return self._dropped


@pytest.mark.parametrize("uri", ["mock:///bucket", "file://"])
def test_objects_are_removed_when_nobody_can_be_reading_them(tmp_path: Path, uri: str) -> None:
    system, path = fs.FileSystem.from_uri(uri if uri.startswith("mock") else f"file://{tmp_path}")
    now = [0.0]
    parts = ObjectParts(system, f"{path}/s", clock=lambda: now[0])
    with closing(Store.open(tmp_path / "data")) as store:
        specs = store.create_shard("s", SAMPLE_SCHEMA).specs
    written = [write_part(parts, specs, sample([3, 4])) for _ in range(4)]
    for part in written:
        part.release()
    files = [part.info.file for part in written]
    (block,) = parts.read(files[0], specs, 4, None)
    assert block.to_rows() == [((1, "p1"), 4, 1)]
    assert written[0].info.nbytes == system.get_file_info(f"{path}/s/{files[0]}").size
    catalog = _Listed({files[0]}, {files[1]})
    made_at = system.get_file_info(f"{path}/s/{files[0]}").mtime_ns / 1e9
    now[0] = made_at + GRACE_S - 60
    assert parts.sweep(catalog) == []
    now[0] = made_at + GRACE_S + 60
    assert parts.sweep(catalog) == sorted(files[2:])
    parts.retire(files[:1])
    assert list(parts.read(files[0], specs, 0, None))
    written[1].discard()
    with pytest.raises(FileNotFoundError):
        parts.read(files[1], specs, 0, None)
    empty = ObjectParts(system, f"{path}/none", clock=lambda: now[0])
    assert empty.sweep(catalog) == []


def test_locations_are_directories_or_databases(tmp_path: Path) -> None:
    assert directory_of(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert directory_of("postgres://h/d") is None
    assert absolute_location("postgres://h/d") == "postgres://h/d"
    assert absolute_location("a") == str(Path.cwd() / "a")
    with pytest.raises(Refusal, match="format-mismatch: 'mysql://h/d' is no place for shards"):
        Store.open("mysql://h/d")
    with pytest.raises(DataDirMismatch):
        Store.open(f"file://{tmp_path}", create=False)


@pytest.mark.slow
def test_a_database_says_where_its_parts_are_and_of_which_format_it_is(
    server: postgres.PostgresServer, tmp_path: Path
) -> None:
    server.execute("postgres", "CREATE DATABASE told")
    dsn = server.dsn("told")
    with pytest.raises(FileNotFoundError):
        Store.open(dsn, create=False)
    with pytest.raises(Refusal, match=r"format-mismatch: .* says not where parts are"):
        Store.open(dsn)
    with pytest.raises(Refusal, match="format-mismatch: no place for parts: 'gopher://x'"):
        Store.open(f"{dsn}&parts=gopher://x")
    with Store.open(f"{dsn}&parts=file://{tmp_path}/p") as store:
        assert store.created
        store.create_shard("s", SAMPLE_SCHEMA)
        located = store.place.location
    assert located.endswith(f"&parts=file://{tmp_path}/p")
    for again in (dsn, located):
        with Store.open(again) as store:
            assert store.list() == ["s"]
    with pytest.raises(Refusal, match=r"have their parts at file://.*, not at s3://b/p"):
        Store.open(f"{dsn}&parts=s3://b/p")
    server.execute("told", f"UPDATE clusterd.place SET format = '{FORMAT}9'")
    with pytest.raises(Refusal, match=f"format-mismatch: .* holds '{FORMAT}9'"):
        Store.open(dsn)
    with pytest.raises(ConnectionError, match="PostgreSQL:"):
        Store.open(server.dsn("nowhere"))
    server.execute("postgres", "DROP DATABASE told WITH (FORCE)")


@pytest.mark.slow
@pytest.mark.parametrize("location", PLACES[1:], indirect=True)
def test_a_lost_connection_is_an_error_of_the_machine_and_the_next_use_connects_again(
    server: postgres.PostgresServer, location: str
) -> None:
    with Store.open(location) as store:
        shard = store.create_shard("s", SAMPLE_SCHEMA)
        with closing(ShardTail(store)) as tail:
            tail.watch("s")
            query = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'clusterd'"
            )
            server.execute("postgres", query)
            with pytest.raises(ConnectionError):
                shard.append(sample([0]), at(0), at(1))
            with pytest.raises(ConnectionError):  # at once, or when the end of the stream is read
                block_on(tail) or block_on(tail)
        shard.append(sample([0]), at(0), at(1))
        assert shard.upper == at(1)


@pytest.mark.slow
@pytest.mark.parametrize("location", ["postgres"], indirect=True)
def test_a_database_that_is_changed_under_it_or_refuses_is_told_as_such(
    server: postgres.PostgresServer, location: str
) -> None:
    def refused(uri: str) -> str:
        done = CliRunner().invoke(main, ["merge", "s", "--data-dir", uri])
        assert isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code
        return done.output

    server.execute("shards", "CREATE ROLE stranger LOGIN")
    try:
        with Store.open(location) as store:
            shard = store.create_shard("s", SAMPLE_SCHEMA)
            stranger = location.replace("user=postgres", "user=stranger")
            assert "error: [Errno 13] PostgreSQL: permission denied for schema clusterd" in refused(stranger)
            assert 'PostgreSQL: invalid URI query parameter: "zz"' in refused(f"{location}&zz=1")
            server.execute("shards", "DROP TABLE clusterd.part")
            with pytest.raises(Refusal, match=r"format-mismatch: .*clusterd\.part.* does not exist"):
                shard.append(sample([0]), at(0), at(1))
            assert 'error: format-mismatch: PostgreSQL: relation "clusterd.part"' in refused(location)
    finally:
        server.execute("shards", "DROP ROLE stranger")


def test_the_command_merges_and_sweeps_and_says_what_is_no_place(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with Store.open(data) as store:
        for name in ("a", "b"):
            shard = store.create_shard(name, SAMPLE_SCHEMA)
            for time in range(4):
                shard.append(sample([time]), at(time), at(time + 1))
        (tmp_path / "data" / "shards" / "a" / "part-left.arrow").write_bytes(b"of a killed writer")
        done = CliRunner().invoke(main, ["merge", "a", "--data-dir", data])
        assert done.exit_code == 0
        assert done.output.splitlines() == [
            "shard 'a': 4 parts, 4 updates; now 1 part, 4 updates",
            "removed 1 file that no catalog lists",
        ]
        assert store.shard("b").statistics().parts == 4
    done = CliRunner().invoke(main, ["merge", "c", "--data-dir", data])
    assert done.exit_code == 1
    assert "error: unknown-shard: no shard named 'c'" in done.output
    for arguments in (["merge"], ["serve"]):
        done = CliRunner().invoke(main, [*arguments, "--data-dir", "mysql://h/d"])
        assert done.exit_code in (exit_codes.USAGE, exit_codes.DATA_FORMAT)
        assert "'mysql://h/d' is no place for shards" in done.output
    assert CliRunner().invoke(main, ["merge", "--data-dir", str(tmp_path / "none")]).exit_code == 1
