"""An idle daemon makes no wake-ups (R10), and reading copies nothing (interactive memory)."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.heavy import append_pairs
from clusterd.runtime.published import IDLE_S
from tests.e2e.support import MODES, client_in, role, segments, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MEASURED_S = 5.0


def _voluntary_switches(pid: int) -> int:
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


@pytest.mark.parametrize("mode", MODES)
def test_an_idle_daemon_makes_no_wake_ups_at_all(mode: str, tmp_path: Path) -> None:
    with client_in(mode, tmp_path, introspection=True) as (replica, client):
        append_pairs(client, "s", np.arange(1000), np.arange(1000))
        index = client.create_index("s", key=["a"])
        index.wait(0)
        parked = client.start_peek(index, at=5)
        assert index.count(0) == 1000
        pids = dict(replica.pids)

        def counts() -> dict[str, int]:
            return {name: _voluntary_switches(pid) for name, pid in pids.items()}

        # Reclaiming what was superseded, and letting go of snapshots not used any more, are one-shot timers:
        # what is idle has seen their end.
        seen = counts()

        def settled() -> bool:
            nonlocal seen
            before, seen = seen, counts()
            return before == seen

        time.sleep(IDLE_S + 0.5)
        wait_until(settled, 10, "the daemon settled")
        before = counts()
        time.sleep(MEASURED_S)  # the measurement itself
        after = counts()
        assert after == before
        client.cancel_peek(parked)


def anonymous_bytes(pid: int) -> int:
    """What it holds of its own, and nobody else could map.

    Not its unique set: batches that maintenance has merged away and let go of meanwhile count in that, though
    a reader's last snapshot only borrows them, and so do a library's pages once other daemons have ended.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Anonymous:"))


def test_the_interactive_worker_keeps_no_copy_of_what_it_serves(tmp_path: Path) -> None:
    rows = 4_000_000
    with client_in("two-runtime", tmp_path) as (replica, client):
        # Of more rows than a piece of a scan has: what a piece needs, of any view, is there from then on.
        append_pairs(client, "small", np.arange(200_000), np.arange(200_000))
        small = client.create_index("small", key=["a"])
        small.wait(0)
        assert small.peek(keys=[3], at=0).rows() == [(3, 3)]
        assert small.peek(at=0, limit=1, order_by=["b"]).rows() == [(0, 0)]
        process = psutil.Process(replica.pids["interactive/0"])
        before = anonymous_bytes(process.pid)
        files = {item.path for item in process.open_files()}
        append_pairs(client, "big", np.arange(rows), np.arange(rows) * 3)
        big = client.create_index("big", key=["a"])
        big.wait(0)
        view = sum((Path("/dev/shm") / name).stat().st_size for name in segments(replica.instance))
        assert view > rows * 16
        for key in range(0, rows, rows // 500):
            answer = big.peek(keys=[key], at=0)
            assert answer.rows() == [(key, key * 3)]
            assert answer.served_by == role("two-runtime")
        assert big.peek(at=0, limit=1, order_by=["b"]).rows() == [(0, 0)]
        grown = anonymous_bytes(process.pid) - before
        assert grown < 0.05 * view, f"private memory grew by {grown} bytes beside a view of {view} bytes"
        opened = {item.path for item in process.open_files()} - files
        assert not any(str(tmp_path) in path for path in opened), opened
        assert not any(str(tmp_path) in item.path for item in process.memory_maps())
