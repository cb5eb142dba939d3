"""How fast is a point read: over the unix socket, one at a time and many in flight, and attached?

Closed loop for rates and round trips (three runs, their spread), on an index of 100,000 rows. An attached
lookup reads the same arrangement from this process, with no call into the daemon.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.harness import Recorder, percentiles
from bench.heavy import append_pairs
from bench.isolation.common import KEYS, ROWS, check_peeks
from bench.openloop import PeekSocket, capacity
from clusterd.client import Client
from clusterd.launcher import launch


def run(*, smoke: bool = False) -> list[str]:
    """Both modes; returns what missed its bar."""
    recorder = Recorder("peeks", smoke=smoke)
    runs, count, seconds = (1, 500, 0.3) if smoke else (3, 10_000, 2.0)
    with tempfile.TemporaryDirectory() as directory:
        for mode in ("two-runtime", "solo"):
            two = mode == "two-runtime"
            with (
                launch({"enable_two_runtime_compute": two}, Path(directory) / mode) as replica,
                Client.connect(replica) as client,
            ):
                append_pairs(client, "kv", np.arange(ROWS), np.arange(ROWS) * 7)
                index = client.create_index("kv", key=["a"])
                index.wait(0)
                keys = [(int(k),) for k in np.random.default_rng(1).integers(0, ROWS, KEYS)]
                check_peeks(replica.address, index.id, keys[:200], "interactive" if two else "solo")
                trips = [_round_trips(replica.address, index.id, keys, count) for _ in range(runs)]
                _record(recorder, f"{mode} round trip", trips)
                for flight in (1, 8, 64):
                    rates = [
                        capacity(replica.address, index.id, keys, in_flight=flight, seconds=seconds, at=0)
                        for _ in range(runs)
                    ]
                    recorder.record(
                        f"{mode} rate, {flight} in flight", statistics.median(rates), "peeks/s",
                        least=round(min(rates)), greatest=round(max(rates)),
                    )  # fmt: skip
                if two:
                    attached = index.attach()
                    view = attached.snapshot(0)
                    for (key,) in keys[:200]:
                        if view.lookup(key).rows() != [(key, key * 7)]:
                            raise RuntimeError(f"attached lookup of {key}: {view.lookup(key).rows()}")
                    looks = []
                    for _ in range(runs):
                        taken = np.empty(count)
                        for i in range(count):
                            key = keys[i % len(keys)][0]
                            start = time.perf_counter()
                            view.lookup(key)
                            taken[i] = time.perf_counter() - start
                        looks.append(percentiles(taken))
                    _record(recorder, "attached lookup", looks)
                    attached.close()
    return recorder.failed


def _round_trips(address: str, collection: str, keys: list[tuple[int]], count: int) -> dict[str, float]:
    connection = PeekSocket(address)
    taken = np.empty(count)
    for i in range(count):
        start = time.perf_counter()
        connection.ask(str(i), collection, 0, keys[i % len(keys)])
        taken[i] = time.perf_counter() - start
    connection.socket.close()
    return percentiles(taken)


def _record(recorder: Recorder, case: str, runs: list[dict[str, float]]) -> None:
    for name in ("p50_us", "p99_us"):
        values = [found[name] for found in runs]
        recorder.record(
            f"{case} {name[:3]}",
            statistics.median(values),
            "us",
            runs=len(runs),
            least=min(values),
            greatest=max(values),
        )
