"""What do processes pay that read a view in place? A lookup, a sum of it all, eight of them at once.

The view is published by this process, as a worker of a replica publishes its indexes, and read by others.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.arrangements.common import PAIRS, loaded, pairs
from bench.isolation.common import Bench, memory
from bench.isolation.reader import VIEW_ID, WARM_ID, scrambled
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

BAR_LOOKUP_US = 3.0
BAR_LOOKUP_PEER = 3.0
BAR_MANY_PEER = 3.0
BAR_FIRST_MS = 1.0
BAR_SHARED = 0.01
BAR_PRIVATE = 0.05
READERS = 8
_TIMEOUT_S = 600
_ROW_BYTES = 16


@contextmanager
def _view(rows: int) -> Iterator[tuple[str, IndexWriter]]:
    """Row i is (scrambled i, i); beside it a small index, to warm up with."""
    with Instance.create() as held:
        made: list[IndexWriter] = []
        try:
            for id, count in ((WARM_ID, 1), (VIEW_ID, rows)):
                made.append(IndexWriter(SegmentAllocator(held.token, id), id, 1, PAIRS, 0))
                places = np.arange(count, dtype=np.uint64)
                loaded(made[-1].oks, pairs(scrambled(places), places, 0))
                made[-1].errs.insert(Updates.empty((ColumnType.TEXT,)), Frontier.at(1))
            yield held.token, made[-1]
        finally:
            for index in made:
                index.close()


def _start(token: str, rows: int, what: str, **more: Any) -> subprocess.Popen[str]:
    job = json.dumps({"token": token, "rows": rows, "what": what, **more})
    command = [sys.executable, "-m", "bench.isolation.reader", job]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says at its end. Raises: RuntimeError."""
    out, _ = process.communicate(timeout=_TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(f"a reader ended with status {process.returncode}")
    told: dict[str, Any] = json.loads(out)
    return told


def lookups(bench: Bench) -> None:
    """Lookups of an attached view, one by one and many; py-lmdb's get and getmulti beside them."""
    rows, sizes = bench.sizes.view_rows, bench.sizes
    with _view(rows) as (token, _):
        found = _told(_start(token, rows, "lookups", counts=sizes.counts, runs=sizes.runs))
    bench.median("attached lookup, p50", found["lookup"], "us", bar=BAR_LOOKUP_US, rows=rows)
    bench.median("attached lookup_many", found["many"], "keys/s", rows=rows)
    if found["get"]:
        bench.median("py-lmdb get, p50", found["get"], "us", rows=rows)
        bench.median("py-lmdb getmulti", found["getmulti"], "keys/s", rows=rows)
        ratios = [mine / theirs for mine, theirs in zip(found["lookup"], found["get"], strict=True)]
        bench.median("attached lookup / get", ratios, "ratio", bar=BAR_LOOKUP_PEER, rows=rows)
        ratios = [mine / theirs for mine, theirs in zip(found["many"], found["getmulti"], strict=True)]
        bench.median("lookup_many / getmulti", ratios, "ratio", bar=BAR_MANY_PEER, at_most=False, rows=rows)


def whole(bench: Bench) -> None:
    """A view of 1 GiB summed by another process; then by eight at once."""
    rows = bench.sizes.view_bytes // _ROW_BYTES
    with _view(rows) as (token, _):
        sums = [_told(_start(token, rows, "sum")) for _ in range(bench.sizes.runs)]
        size: dict[str, Any] = {"view_bytes": rows * _ROW_BYTES}
        firsts = [each["first_ms"] for each in sums]
        bench.median("attach and sum, first byte", firsts, "ms", bar=BAR_FIRST_MS, **size)
        bench.median("attach and sum, all", [each["sum_s"] for each in sums], "s", **size)
        copied = max(each["copied"] for each in sums)
        bench.recorder.record("attach and sum, copied", copied, "bytes", bar=0.0, **size)
        _together(bench, token, rows)


def _together(bench: Bench, token: str, rows: int) -> None:
    view = rows * _ROW_BYTES
    alone = memory(os.getpid(), "Pss_Shmem")
    readers = [_start(token, rows, "hold") for _ in range(READERS)]
    try:
        told = []
        for reader in readers:
            assert reader.stdout is not None
            told.append(json.loads(reader.stdout.readline()))
        together = sum(memory(pid, "Pss_Shmem") for pid in (os.getpid(), *(r.pid for r in readers)))
    finally:
        for reader in readers:
            reader.communicate(timeout=_TIMEOUT_S)
    grown = (together - alone) / alone
    bench.recorder.record(
        f"{READERS} readers, growth of shared memory", grown, "share", bar=BAR_SHARED, view_bytes=view,
        alone_bytes=alone, together_bytes=together,
    )  # fmt: skip
    private = max(each["anonymous_growth"] for each in told)
    bench.recorder.record(
        f"{READERS} readers, private memory of one", private / view, "share", bar=BAR_PRIVATE,
        view_bytes=view, private_bytes=private,
        process_bytes=round(statistics.median(each["anonymous"] for each in told)),
    )  # fmt: skip
