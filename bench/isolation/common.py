"""What the cases share: sizes, a replica with an index of pairs, processes held to cores, private memory.

The index is of rows (k, 7 k), so that an answer is checked by arithmetic.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.arrangements.common import require
from bench.harness import Recorder, spread
from bench.heavy import append_pairs
from bench.openloop import PeekSocket
from clusterd.client import Client, Index
from clusterd.launcher import Replica, launch
from controller_proto.response import PeekRows

SEED: Final = 1
ROWS: Final = 100_000  # of the index that is peeked
KEYS: Final = 4_096  # that are asked for, again and again
FACTOR: Final = 7
MODES: Final = ("two-runtime", "solo")


@dataclass(frozen=True)
class Sizes:
    """runs: of each figure. view_rows, view_bytes: of what is attached. counts scale with `counts`."""

    runs: int
    seconds: float  # of one open loop
    hydration_s: float
    hydration_rows: int
    scan_s: float
    counts: int
    view_rows: int
    view_bytes: int
    indexes: int


FULL: Final = Sizes(5, 20.0, 1.0, 200_000, 2.0, 2_000, 10_000_000, 1 << 30, 200)
QUICK: Final = Sizes(3, 6.0, 0.5, 100_000, 0.5, 500, 1_000_000, 1 << 26, 50)
SMOKE: Final = Sizes(1, 1.5, 0.1, 5_000, 0.05, 50, 20_000, 1 << 20, 5)


@dataclass(frozen=True)
class Bench:
    """What a case is given."""

    recorder: Recorder
    sizes: Sizes

    def median(
        self, case: str, values: Sequence[float], unit: str, *, bar: float | None = None,
        at_most: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        """Record the median of the runs."""
        self.recorder.record(
            case, statistics.median(values), unit, bar=bar, at_most=at_most, **spread(values), **more
        )


@contextmanager
def replica(
    mode: str, *, interactive_workers: int = 1, read_cores: str = ""
) -> Iterator[tuple[Replica, Client]]:
    """A fresh one, and its controller."""
    config = {"enable_two_runtime_compute": mode == "two-runtime"}
    with (
        tempfile.TemporaryDirectory() as directory,
        launch(
            config, Path(directory) / "data", interactive_workers=interactive_workers, read_cores=read_cores
        ) as started,
        Client.connect(started) as client,
    ):
        yield started, client


def pairs(client: Client, shard: str = "kv", rows: int = ROWS) -> Index:
    """An index, by its first column, of rows (k, FACTOR * k) at time 0; hydrated."""
    append_pairs(client, shard, np.arange(rows), np.arange(rows) * FACTOR)
    index = client.create_index(shard, key=["a"])
    index.wait(0)
    return index


def some_keys(rows: int = ROWS, count: int = KEYS) -> list[tuple[int]]:
    """`count` keys of the rows that there are, the same each time."""
    return [(int(k),) for k in np.random.default_rng(SEED).integers(0, rows, count)]


def check_peeks(address: str, collection: str, keys: Sequence[tuple[int]], role: str) -> None:
    """Before anything is timed: peeks of `keys` give the right rows, and `role` answers them."""
    connection = PeekSocket(address)
    for (key,) in keys:
        answer = connection.ask(f"check-{key}", collection, 0, (key,))
        right = answer.result == PeekRows(((key,), (key * FACTOR,)), (1,)) and answer.served_by == role
        require(right, f"peek of {key}: {answer}")
    connection.socket.close()


def cpu_s(pid: int) -> float:
    """Processor time that the only thread of a process that works has had."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def written(pid: int) -> tuple[int, int]:
    """How often the process has written, and how many bytes."""
    told = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(told["syscw"]), int(told["wchar"])


def memory(pid: int, field: str) -> int:
    """Bytes of a process, of all its mappings: `Private_Dirty`, `Pss_Shmem`, `Anonymous`, ..."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


@contextmanager
def placed(*processes: tuple[int, int]) -> Iterator[None]:
    """Hold processes (pid, core) to one core each meanwhile; on a machine of one core to that."""
    allowed = sorted(os.sched_getaffinity(0))
    before = [(pid, os.sched_getaffinity(pid)) for pid, _ in processes]
    try:
        for pid, core in processes:
            os.sched_setaffinity(pid, {allowed[core % len(allowed)]})
        yield
    finally:
        for pid, cores in before:
            os.sched_setaffinity(pid, cores)


@contextmanager
def held_to(cores: Sequence[int]) -> Iterator[None]:
    """Hold this process to these cores meanwhile; none leaves it where it may be."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores or before)
        yield
    finally:
        os.sched_setaffinity(0, before)
