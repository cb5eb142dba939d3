"""Random histories of sessions through real daemons: connections lost anywhere, take-overs, readers; and kills.

What a history does is told by its seed; what happens when is the processes' own. After each the daemon holds
what it held before: no segment, no descriptor, no child more.
"""

from __future__ import annotations

import os
import random
import select
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
