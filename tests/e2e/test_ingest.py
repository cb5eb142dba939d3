"""The feed from PostgreSQL as its own process: killed at any moment, stopped, and what it says to whom."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import setproctitle
from click.testing import CliRunner

from clusterd.client import Client
from clusterd.ingest.cli import main
from clusterd.launcher import launch
from clusterd.storage.store import Store
from tests.clusterd.ingest.feeding import contents, wait_sealed, wal_end
from tests.postgres import DEADLINE_S, PostgresServer, servers

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
PROGRAM = [sys.executable, "-m", "clusterd.ingest.cli"]
ACCOUNTS, TOTAL = 40, 40_000
BOTH = ("left_", "right_")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    yield from servers()


class Ingest:
    """The process, with the connection string in the environment. Killed at the end, if it is there."""

    def __init__(self, server: PostgresServer, database: str, data_dir: Path) -> None:
        arguments = ["--publication", "p", "--slot", database, "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            [*PROGRAM, "postgres", *arguments],
            env={**os.environ, "CLUSTERD_POSTGRES_DSN": server.dsn(database)},
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stderr is not None
        self._log = self.process.stderr

    def event(self, *names: str) -> dict[str, Any]:
        """Wait for the next event of one of these names."""
        while line := self._log.readline():
            print(line.decode(), end="")
            if line.startswith(b"{"):
                event: dict[str, Any] = json.loads(line)
                if event["event"] in names:
                    return event
        raise AssertionError(f"it ended with {self.process.wait(DEADLINE_S)} before {names}")

    def end(self, number: int) -> int:
        """Send a signal; the exit status. What it still says is printed."""
        self.process.send_signal(number)
        rest = self._log.read()
        self._log.close()
        print(rest.decode(), end="")
        return self.process.wait(DEADLINE_S)

    def __enter__(self) -> Ingest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._log.closed:
            self.end(signal.SIGKILL)


class Workload(threading.Thread):
    """Moves amounts between two tables, a transaction each, so that their sum is the same at every moment.

    Accounts have a large note that most updates do not touch; they are closed and opened again; a third
    table is truncated at times.
    """

    def __init__(self, server: PostgresServer, database: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._connection = server.connect(database)
        self._rng = random.Random(seed)
        self.ending = threading.Event()
        self.count = 0

    def run(self) -> None:
        with self._connection:
            while not self.ending.is_set():
                self._step()
                self.count += 1
                if self.count % 10 == 0:
                    self.ending.wait(0.05)  # the feed has to keep up, on the cores that are left

    def _step(self) -> None:
        rng = self._rng
        left, right = rng.sample(BOTH, 2)
        one, other, amount = rng.randrange(ACCOUNTS), rng.randrange(ACCOUNTS), rng.randrange(50)
        statements = [
            f"UPDATE {left} SET amount = amount - {amount} WHERE id = {one}",
            f"UPDATE {right} SET amount = amount + {amount} WHERE id = {other}",
            f"INSERT INTO log VALUES ({self.count}, {amount})",
        ]
        kind = rng.random()
        if kind < 0.1:  # close an account, and open it again with another note
            statements += [
                f"WITH gone AS (DELETE FROM {left} WHERE id = {one} RETURNING id, amount)"
                f" INSERT INTO {left} SELECT id + 1000, amount, repeat(md5('{rng.random()}'), 90) FROM gone",
                f"UPDATE {left} SET id = id - 1000 WHERE id >= 1000",
            ]
        elif kind < 0.15:
            statements.append(f"UPDATE {left} SET note = NULL WHERE id = {one}")
        elif kind < 0.17:
            statements.append("TRUNCATE log")
        elif kind < 0.2:
            statements.append("ROLLBACK; BEGIN")
        self._connection.execute(f"BEGIN; {'; '.join(statements)}; COMMIT".encode())


def prepare(server: PostgresServer, database: str) -> None:
    note = "(SELECT string_agg(md5((i * 100 + k)::text), '') FROM generate_series(1, 90) k)"
    server.execute("postgres", f"CREATE DATABASE {database}")
    server.execute(
        database,
        *(f"CREATE TABLE {t} (id integer PRIMARY KEY, amount bigint NOT NULL, note text)" for t in BOTH),
        "CREATE TABLE log (number integer, amount integer)",
        *(f"ALTER TABLE {t} REPLICA IDENTITY FULL" for t in (*BOTH, "log")),
        *(f"ALTER TABLE {t} ALTER note SET STORAGE EXTERNAL" for t in BOTH),
        f"INSERT INTO left_ SELECT i, 500, {note} FROM generate_series(0, {ACCOUNTS - 1}) i",
        f"INSERT INTO right_ SELECT i, 500, {note} FROM generate_series(0, {ACCOUNTS - 1}) i",
        "CREATE PUBLICATION p FOR TABLE left_, right_, log",
    )


def check_every_time(data_dir: Path) -> int:
    """The sum over both tables at every time at which there are rows; no row is ever less than not there.
    Returns how many times there are.
    """
    changes: dict[int, list[tuple[str, Any, int]]] = defaultdict(list)
    with Store.open(data_dir) as store:
        uppers = {store.shard(name).upper.time for name in (*BOTH, "log")}
        first = max(store.shard(name).since.time for name in BOTH)
        for name in (*BOTH, "log"):
            shard = store.shard(name)
            for updates in shard.read(0, shard.upper, block_rows=65_536):
                for row, when, diff in updates.to_rows():
                    changes[when].append((name, row, diff))
    assert len(uppers) == 1
    rows: Counter[tuple[str, Any]] = Counter()
    for when in sorted(changes):
        for name, row, diff in changes[when]:
            rows[name, row] += diff
        touched = [rows[name, row] for name, row, _ in changes[when]]
        assert min(touched) >= 0, f"a row at {when} is less than not there"
        if when >= first:
            total = sum(row[1] * count for (name, row), count in rows.items() if name != "log")
            assert total == TOTAL, f"a part of a transaction at {when}"
    return len(changes)


def killed_again_and_again(server: PostgresServer, tmp_path: Path, seed: int, kills: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    database = f"kill{seed}"
    prepare(server, database)
    data_dir = tmp_path / "data"
    workload = Workload(server, database, seed)
    workload.start()
    try:
        for number in range(kills):
            with Ingest(server, database, data_dir) as feed:
                event = feed.event("SnapshotBegun", "Streaming")
                if event["event"] == "SnapshotBegun" and number:
                    event = feed.event("Streaming")
                if event["event"] == "Streaming" and rng.random() < 0.8:  # else maybe before its first append
                    # The first shard of an append, or all of them.
                    names = ["left_"] if rng.random() < 0.3 else [*BOTH, "log"]
                    wait_sealed(data_dir, names, event["behind"] + 1)
                time.sleep(rng.uniform(0, 0.15))  # the moment is the point
                assert feed.end(signal.SIGKILL) == -signal.SIGKILL
        workload.ending.set()
        workload.join(DEADLINE_S)
        with Ingest(server, database, data_dir) as feed:
            wait_sealed(data_dir, [*BOTH, "log"], wal_end(server, database))
            assert feed.end(signal.SIGTERM) == 0
    finally:
        workload.ending.set()
        workload.join(DEADLINE_S)
    times = check_every_time(data_dir)
    print(workload.count, "transactions,", times, "times")
    for name in (*BOTH, "log"):
        assert contents(data_dir, name) == Counter(server.execute(database, f"SELECT * FROM {name}")), name


def test_a_feed_that_is_killed_at_any_moment_has_exactly_what_the_tables_have(
    server: PostgresServer, tmp_path: Path
) -> None:
    killed_again_and_again(server, tmp_path, 1, kills=5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_feed_that_is_killed_many_times_has_exactly_what_the_tables_have(
    server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    killed_again_and_again(server, tmp_path, seed, kills=12)


def test_a_view_over_two_tables_never_shows_a_part_of_a_transaction(
    server: PostgresServer, tmp_path: Path
) -> None:
    database = "views"
    prepare(server, database)
    data_dir = tmp_path / "data"
    workload = Workload(server, database, 9)
    total = "Reduce group_by=[] aggregates=[sum(#1)]\n  Union\n    Get left_\n    Get right_"
    with Ingest(server, database, data_dir) as feed:
        feed.event("Streaming")
        with (
            launch({"enable_two_runtime_compute": True}, data_dir) as replica,
            Client.connect(replica) as client,
        ):
            changes = client.subscribe(total)
            batch = changes.next()
            assert batch is not None
            assert [(row, diff) for row, _, diff in batch.changes.rows()] == [((TOTAL,), 1)]
            workload.start()
            while workload.is_alive():
                batch = changes.next()
                assert batch is not None
                assert not batch.changes.rows()
                if workload.count >= 300:
                    workload.ending.set()
            at = wal_end(server, database)  # what was committed before is seen by who reads at this time
            while batch.upper is None or batch.upper <= at:
                batch = changes.next()
                assert batch is not None
                assert not batch.changes.rows()
            index = client.create_index("log", key=["number"])
            assert index.peek(at=at).rows() == sorted(server.execute(database, "SELECT * FROM log"))
            asked = ["status", "--dsn", server.dsn(database), "--data-dir", str(data_dir), "--slot"]
            lag = CliRunner().invoke(main, [*asked, database]).output
            told = CliRunner().invoke(main, [*asked, database, "--json"])
        assert feed.end(signal.SIGTERM) == 0
    assert "slot views: reserved, read by server process" in lag
    assert "shard left_: table public.left_, upper " in lag
    assert json.loads(told.output)["behind_bytes"] < 1 << 20
    missing = CliRunner().invoke(main, [*asked, "x"])
    assert (missing.exit_code, missing.stderr.split(":")[0]) == (1, "error")
    assert "no slot 'x'" in missing.stderr


@pytest.mark.parametrize(
    ("dsn", "code"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/shop", "cannot-connect"),
        ("host=127.0.0.1 password=hunter2 and nonsense", "bad-setup"),
        ("postgresql://me:hunter2@127.0.0.1:nonsense/shop", "cannot-connect"),
    ],
)
def test_a_password_is_in_no_message_and_not_in_the_command_line(
    tmp_path: Path, dsn: str, code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    title = setproctitle.getproctitle()
    done = CliRunner().invoke(
        main, ["postgres", "--dsn", dsn, "--publication", "p", "--data-dir", str(tmp_path)]
    )
    seen = Path("/proc/self/cmdline").read_text()
    setproctitle.setproctitle(title)
    assert done.exit_code == 1
    told = capfd.readouterr().err
    assert json.loads(told.splitlines()[-1])["code"] == code
    assert "hunter2" not in told + done.output + seen


@pytest.mark.parametrize(
    "arguments", [["--slot", "Not-One"], ["--shard", "a"], ["--numeric-scale", "39"], []]
)
def test_wrong_usage_is_told_as_such(arguments: list[str]) -> None:
    publication = ["--publication", "p"] if arguments else []
    done = CliRunner().invoke(main, ["postgres", *publication, *arguments])
    assert done.exit_code == 2
    assert "Usage:" in done.stderr
