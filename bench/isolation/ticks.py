"""What do many published indexes cost while nothing happens? Time passes over all of them, once a second.

The indexes read one shard, which is sealed further each second without a row. Processor time is that of the
worker that maintains them; what it writes in that time is news: frontiers, and notices for readers. Then the
replica is started anew on the same shards and all indexes are made again, in both modes in turn.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.arrangements.common import require
from bench.isolation.common import FACTOR, MODES, Bench, cpu_s, pairs, written
from clusterd.client import Client
from clusterd.launcher import Replica, launch

BAR_CORE = 0.02
BAR_RESTART = 2.0
_ROWS = 1_000
_TICK_S = 1.0


def ticks(bench: Bench) -> None:
    """Indexes over which time passes, and a restart with them, beside Solo."""
    count = bench.sizes.indexes
    with ExitStack() as stack:
        places = {mode: Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data" for mode in MODES}
        for mode, data in places.items():
            with launch(_config(mode), data) as replica, Client.connect(replica) as client:
                indexes = [pairs(client)] + [client.create_index("kv", key=["a"]) for _ in range(count - 1)]
                for index in indexes:
                    index.wait(0)
                _tick(bench, mode, replica, client, count, max(3, 2 * bench.sizes.runs))
                last = client.store.shard("kv").upper.time - 1
                require(indexes[-1].peek(at=last, keys=[5]).rows() == [(5, 5 * FACTOR)], "a row, later")
        taken = [
            {mode: _restart_s(mode, data, count) for mode, data in places.items()}
            for _ in range(bench.sizes.runs)
        ]
    for mode in MODES:
        bench.median(f"{mode}, restart with {count} indexes", [each[mode] for each in taken], "s")
    ratios = [each["two-runtime"] / each["solo"] for each in taken]
    bench.median(f"restart with {count} indexes / Solo", ratios, "ratio", bar=BAR_RESTART)


def _config(mode: str) -> dict[str, bool]:
    return {"enable_two_runtime_compute": mode == "two-runtime"}


def _tick(bench: Bench, mode: str, replica: Replica, client: Client, count: int, ticks: int) -> None:
    pid = replica.pids["maintenance/0" if mode == "two-runtime" else "solo/0"]
    time.sleep(_TICK_S)
    shares, writes, sizes = [], [], []
    for _ in range(ticks):
        cpu, (calls, nbytes), start = cpu_s(pid), written(pid), time.monotonic()
        client.advance("kv", client.store.shard("kv").upper.time + 1)
        time.sleep(_TICK_S)
        shares.append((cpu_s(pid) - cpu) / (time.monotonic() - start))
        now = written(pid)
        writes.append(float(now[0] - calls))
        sizes.append(now[1] - nbytes)
        client.pump()
    bar = mode == "two-runtime"
    bench.median(f"{mode}, {count} idle indexes, one core", shares, "share", bar=BAR_CORE if bar else None,
                 bytes_a_tick=round(statistics.median(sizes)))  # fmt: skip
    bench.median(f"{mode}, {count} idle indexes, writes a tick", writes, "writes")


def _restart_s(mode: str, data: Path, count: int) -> float:
    """From the launch until all indexes can be read at the newest time of the shard."""
    start = time.perf_counter()
    with launch(_config(mode), data) as replica, Client.connect(replica) as client:
        last = client.store.shard("kv").upper.time - 1
        indexes = [client.create_index("kv", key=["a"]) for _ in range(count)]
        for index in indexes:
            index.wait(last)
        took = time.perf_counter() - start
        require(indexes[-1].peek(at=last, keys=[5]).rows() == [(5, 5 * FACTOR)], "a row, after a restart")
    return took
