"""A process that reads a published index of pairs, and says as JSON what that took.

The index is `View`'s: row i is (scrambled i, i), so that a reader knows what it has to find. What is timed is
timed after the answer was checked, in a process that has read another index before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from bench.arrangements import peer_lmdb
from bench.arrangements.common import SEED, Words, is_mapped, require
from bench.harness import percentiles
from bench.isolation.common import memory
from shm_arrangements.attach import attach
from shm_arrangements.view import ReadView

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
WARM_ID: Final = 2
VIEW_ID: Final = 1


def scrambled(places: Words) -> Words:
    """Distinct keys, as good as random, of distinct places."""
    return places * _ODD


def main() -> None:
    """Do the job, and print what was measured as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", help="JSON: token, rows, what (lookups, sum, hold), counts, runs")
    job = json.loads(parser.parse_args().job)
    with attach(WARM_ID, job["token"]) as index:
        require(index.lookup(0).rows() == [(0, 0)] and index.scan().column("v").sum() == 0, "the small index")
        index.lookup_many(np.arange(2, dtype=np.uint64)).column("v")
    told = {"lookups": _lookups, "sum": _sum, "hold": _sum}[job["what"]](job)
    print(json.dumps(told), flush=True)
    if job["what"] == "hold":
        sys.stdin.read()  # until whoever asked has looked


def _sum(job: dict[str, Any]) -> dict[str, Any]:
    """The whole column, from attaching on."""
    before = memory(os.getpid(), "Anonymous")
    start = time.perf_counter()
    index = attach(VIEW_ID, job["token"])
    values = index.scan().column("v")
    first = int(values[0])
    first_s = time.perf_counter() - start
    total = int(values.view(np.uint64).sum(dtype=np.uint64))
    took_s = time.perf_counter() - start
    rows = job["rows"]
    require(0 <= first < rows and total == rows * (rows - 1) // 2, "the sum of the view")
    _held.append((index, values))
    return {
        "first_ms": first_s * 1e3, "sum_s": took_s, "copied": 0 if is_mapped(values) else values.nbytes,
        "anonymous_growth": memory(os.getpid(), "Anonymous") - before,
        "anonymous": memory(os.getpid(), "Anonymous"),
    }  # fmt: skip


_held: list[Any] = []  # by the process of `hold`, until its end


def _lookups(job: dict[str, Any]) -> dict[str, Any]:
    """One key at a time and many, of the view and of LMDB, in turns."""
    rows, counts = job["rows"], job["counts"]
    places = np.random.default_rng(SEED).integers(0, rows, 50 * counts).astype(np.uint64)
    keys = scrambled(places)
    few = keys[: 5 * counts].tolist()
    found: dict[str, list[float]] = {name: [] for name in ("lookup", "many", "get", "getmulti")}
    with attach(VIEW_ID, job["token"]) as index:
        view = index.snapshot(0)
        wanted = [[(k, int(v))] for k, v in zip(few, places[: len(few)], strict=True)]
        require([view.lookup(key).rows() for key in few] == wanted, "rows of lookup")
        all_places = np.arange(rows, dtype=np.uint64)
        with peer_lmdb.store(scrambled(all_places), all_places) as transaction:
            as_bytes = None if transaction is None else peer_lmdb.as_bytes(keys)
            for _ in range(job["runs"]):
                found["lookup"].append(_each_us(lambda key: view.lookup(key).rows(), few))
                found["many"].append(len(keys) / _many_s(view, keys, places))
                if transaction is None or as_bytes is None:
                    continue
                found["get"].append(_each_us(_getter(transaction), few))
                taken = peer_lmdb.get_many_s(transaction, as_bytes, peer_lmdb.as_bytes(places))
                found["getmulti"].append(len(keys) / taken)
    return found


def _getter(transaction: Any) -> Callable[[int], int]:
    """Reads of LMDB, of a Python int, the value taken out as one."""
    get = transaction.get
    return lambda key: int.from_bytes(get(key.to_bytes(8, "big")), "big")


def _each_us(read: Callable[[int], Any], keys: list[int]) -> float:
    """p50 of one read, its row taken out."""
    taken = np.empty(len(keys))
    clock = time.perf_counter
    for i, key in enumerate(keys):
        start = clock()
        read(key)
        taken[i] = clock() - start
    return float(percentiles(taken)["p50_us"])


def _many_s(view: ReadView, keys: Words, places: Words) -> float:
    start = time.perf_counter()
    values = view.lookup_many(keys).column("v")
    took = time.perf_counter() - start
    require(np.array_equal(values.view(np.uint64), places), "values of lookup_many")
    return took


if __name__ == "__main__":
    main()
