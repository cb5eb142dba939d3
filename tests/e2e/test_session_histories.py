"""Random histories of sessions through real daemons: connections lost anywhere, take-overs, readers, kills.

What a history does is told by its seed; what happens when is the processes' own. After each the daemon holds
what it held before: no segment, no descriptor, no child more.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from clusterd import exit_codes
from clusterd.client import Client, SubscriptionEnded
from clusterd.launcher import Replica
from clusterd.storage.store import Store
from controller_proto.errors import Disconnected
from controller_proto.schema import Column, ColumnType, Schema
from tests.clusterd.columns import VALUES
from tests.clusterd.session_history import Sessions
from tests.e2e.support import ENDS_WITHIN_S, alive, replica_in, segments, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DEADLINE_S = 30.0
CASES = [("solo", 0), ("two-runtime", 1), ("two-runtime", 2)]


class RealDaemon:
    """A daemon of many processes, which go on by themselves."""

    comes_to_rest = False

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.address = replica.address
        self.store = Store.open(replica.data_dir)

    def close(self) -> None:
        self.store.close()

    def step(self, rng: random.Random, count: int = 1) -> None:
        """Let them: a moment, now and then."""
        if count > 3:
            os.sched_yield()

    def settle(self, meanwhile: Callable[[], bool], done: Callable[[], bool] | None) -> None:
        """Until `done`; without, until nothing came for a moment: nothing says when nothing will."""
        deadline = time.monotonic() + DEADLINE_S
        quiet = 0
        while quiet < 10 if done is None else not done():
            if time.monotonic() > deadline:
                return  # whoever asked says what did not come
            quiet = 0 if meanwhile() else quiet + 1
            select.select([], [], [], 0.001)

    def held(self) -> dict[str, int]:
        """Descriptors of each process, children of the supervisor, segments of the instance."""
        found = {name: _descriptors(pid) for name, pid in self.replica.pids.items()}
        found["children"] = len(psutil.Process(self.replica.pids["supervisor"]).children(recursive=True))
        found["segments"] = len(segments(self.replica.instance))
        return found


def _descriptors(pid: int) -> int:
    """Those that may pile up: the one that watches shards is opened at the first use and stays."""
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += os.readlink(f"/proc/{pid}/fd/{fd}") != "anon_inode:inotify"
        except OSError:
            continue  # closed meanwhile
    return count


def play(replica: Replica, seeds: range) -> None:
    daemon = RealDaemon(replica)
    try:
        held = daemon.held()
        for number, seed in enumerate(seeds):
            Sessions(seed, daemon, number=number, epoch=1 + 1000 * number).play()
            wait_until(lambda: daemon.held() == held, DEADLINE_S, f"it holds {held} again")
    finally:
        daemon.close()


@pytest.mark.parametrize(("mode", "workers"), CASES)
def test_no_history_of_sessions_with_a_daemon_is_answered_wrongly(
    mode: str, workers: int, tmp_path: Path
) -> None:
    with replica_in(mode, tmp_path, workers=workers) as replica:
        play(replica, range(100 * workers, 100 * workers + 8))
        assert "Traceback" not in replica.stderr()


KILLS = [
    pytest.param("two-runtime", 1, "supervisor"),
    pytest.param("two-runtime", 1, "mux"),
    pytest.param("two-runtime", 1, "maintenance/0"),
    pytest.param("two-runtime", 1, "interactive/0"),
    pytest.param("two-runtime", 1, "reaper", marks=pytest.mark.soak),
    pytest.param("solo", 0, "solo/0", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("mode", "workers", "target"), KILLS)
def test_a_kill_in_the_middle_of_a_history_leaves_nothing_and_the_next_start_answers_rightly(
    mode: str, workers: int, target: str, tmp_path: Path
) -> None:
    """Of supervisor and mux the connection ends, of a worker too; the reaper is needed by none of it."""
    seed = 500 + [param.values[2] for param in KILLS].index(target)
    print(f"seed {seed}")
    moment = random.Random(seed).randrange(5, 40)
    with replica_in(mode, tmp_path, workers=workers) as replica:
        daemon = RealDaemon(replica)
        history = Sessions(seed, daemon)
        try:
            history.connect()
            for _ in range(moment):
                history.act()
            if seed % 2:
                history.settle()
            pids = list(replica.pids.values())
            replica.kill(target)
            if target != "supervisor":
                assert replica.wait(10) == exit_codes.PROCESS_DIED
            wait_until(lambda: not alive(pids), ENDS_WITHIN_S + 1, "every process ended")
            wait_until(lambda: not segments(replica.instance), ENDS_WITHIN_S + 1, "no segment is left")
        finally:
            history.close()
            daemon.close()
    with replica_in(mode, tmp_path, workers=workers) as replica:
        history.go_on(daemon := RealDaemon(replica))
        daemon.close()
        assert len(segments(replica.instance)) == 1


@pytest.mark.parametrize("mode", ["two-runtime"])
def test_a_client_killed_in_the_middle_of_a_stream_costs_nobody_anything(mode: str, tmp_path: Path) -> None:
    with replica_in(mode, tmp_path) as replica, Client.connect(replica) as client:
        daemon = RealDaemon(replica)
        daemon.close()
        before = daemon.held()
        client.create_shard("s", {"id": "bigint", "payload": "text"})
        rows = [(i, f"{i:0500}") for i in range(20_000)]
        t = client.write("s", rows)
        index = client.create_index("s", key=["id"])
        index.wait(t)
        for count in (0, 1, 5):
            # It reads some messages of the 10 MB that are told, says so, and waits to be killed.
            code = f"""
import sys
from clusterd.client import Client
client = Client.connect({replica.address!r}, reader=True, data_dir={str(replica.data_dir)!r})
told = client.subscribe(client.index({index.id!r}))
for _ in range({count}):
    client._wire.recv(10)
print("under way", flush=True)
sys.stdin.read()
"""
            with subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as reader:
                assert reader.stdout is not None
                assert reader.stdout.readline() == b"under way\n"
                reader.kill()
            assert index.peek(keys=[7], at=t).rows() == [rows[7]]
        again = client.write("s", [(-1, "after")])
        assert index.peek(keys=[-1], at=again).rows() == [(-1, "after")]
        index.drop()
        wait_until(lambda: daemon.held() == before, DEADLINE_S, f"it holds {before} again")


@pytest.mark.parametrize(("mode", "target"), [("solo", "solo/0"), ("two-runtime", "interactive/0")])
def test_a_daemon_killed_in_the_middle_of_a_stream_ends_it_and_the_next_tells_all(
    mode: str, target: str, tmp_path: Path
) -> None:
    rows = [(i, f"{i:0500}") for i in range(20_000)]
    with replica_in(mode, tmp_path) as replica, Client.connect(replica) as client:
        client.create_shard("s", {"id": "bigint", "payload": "text"})
        t = client.write("s", rows)
        told = client.subscribe(client.create_index("s", key=["id"], as_of=t), as_of=t)
        client.pump(10)
        replica.kill(target)
        with pytest.raises((Disconnected, SubscriptionEnded)):
            list(told)
        pids = list(replica.pids.values())
        wait_until(lambda: not alive(pids), ENDS_WITHIN_S + 1, "every process ended")
        wait_until(lambda: not segments(replica.instance), ENDS_WITHIN_S + 1, "no segment is left")
    with replica_in(mode, tmp_path) as replica, Client.connect(replica) as client:
        told = client.subscribe(client.create_index("s", key=["id"], as_of=t), as_of=t)
        first = told.next(DEADLINE_S)
        assert first is not None
        assert sorted(first.changes.rows()) == [(row, t, 1) for row in rows]


@pytest.mark.parametrize("mode", ["solo", "two-runtime"])
def test_rows_of_every_type_are_told_as_they_are_peeked(mode: str, tmp_path: Path) -> None:
    """NULL, NaN, the ends of each range, and rows of several MB beside short ones."""
    schema = Schema(
        (
            *(Column(c.name, c.type, True, c.scale, c.fields) for c, _ in VALUES.values()),
            Column("long", ColumnType.TEXT),
        )
    )
    longest = max(len(values) for _, values in VALUES.values())
    rows = [
        (
            *(values[i] if i < len(values) else None for _, values in VALUES.values()),
            "x" * (5 << 20 if i == 3 else i),
        )
        for i in range(longest + 1)
    ]
    with replica_in(mode, tmp_path) as replica, Client.connect(replica) as client:
        client.create_shard("s", schema)
        t = client.write("s", rows)
        index = client.create_index("s", key=["i8"], as_of=t)
        streams = [client.subscribe(index, as_of=t), client.subscribe("s", as_of=t)]
        peeked = sorted(map(repr, index.peek(at=t).rows()))
        assert len(peeked) == len(rows)
        for stream in streams:
            first = stream.next(DEADLINE_S)
            assert first is not None
            assert sorted(repr(row) for row, _, _ in first.changes.rows()) == peeked
        again = client.write("s", rows[2:5], diff=-1)
        for stream in streams:
            second = stream.next(DEADLINE_S)
            assert second is not None
            assert [(at, diff) for _, at, diff in second.changes.rows()] == [(again, -1)] * 3
