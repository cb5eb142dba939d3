"""One peek at a time over the socket, nothing else going on; a prepared SELECT of psycopg beside it.

The same rows, the same keys, in turns within each run. Where processes run decides more than what they do,
so each comparison is made with the client on one core and the servers on another, and with all on one.
Whoever asks for many keys asks for them in one peek: what that gives is beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.arrangements.common import require
from bench.harness import percentiles, say
from bench.isolation.common import FACTOR, ROWS, Bench, check_peeks, pairs, placed, replica, some_keys
from bench.openloop import PeekSocket
from clusterd.client import Index

BAR_SELECT_RATIO = 1.2
_BATCH = 100


def round_trips(bench: Bench) -> None:
    """Peeks, one in flight, against a prepared SELECT of PostgreSQL over a unix socket too."""
    keys = [key for (key,) in some_keys(count=bench.sizes.counts)]
    with replica("two-runtime") as (started, client), _postgres() as server:
        index = pairs(client)
        check_peeks(started.address, index.id, [(key,) for key in keys[:200]], "interactive")
        ours = PeekSocket(started.address)
        servers = [started.pids["mux"], started.pids["interactive/0"]]
        select = None
        if server is not None:
            select, pid = _prepared(server)
            servers.append(pid)
        for where, core in (("two cores", 1), ("one core", 0)):
            with placed((os.getpid(), 0), *((pid, core) for pid in servers)):
                _compare(bench, where, keys, ours, index, select)
        ours.socket.close()


def _compare(
    bench: Bench,
    where: str,
    keys: list[int],
    ours: PeekSocket,
    index: Index,
    select: Callable[[int], Any] | None,
) -> None:
    count = iter(range(1 << 62))

    def peek(key: int) -> None:
        answer = ours.ask(f"{where}-{next(count)}", index.id, 0, (key,))
        require(answer.result.columns[1] == (FACTOR * key,), f"peek of {key}")  # type: ignore[union-attr]

    def by_client(key: int) -> None:
        require(index.peek(at=0, keys=[key]).rows() == [(key, FACTOR * key)], f"peek of {key} by the client")

    def batch(first: int) -> None:
        asked = [(first + i) % ROWS for i in range(_BATCH)]
        require(len(index.peek(at=0, keys=asked)["b"]) == _BATCH, "a peek of many keys")

    mine, theirs, ratios, by_clients, batches = [], [], [], [], []
    for _ in range(bench.sizes.runs):
        mine.append(_p50_us(peek, keys))
        by_clients.append(_p50_us(by_client, keys[: len(keys) // 4]))
        batches.append(_p50_us(batch, keys[: len(keys) // 10]) / _BATCH)
        if select is not None:
            theirs.append(_p50_us(select, keys))
            ratios.append(mine[-1] / theirs[-1])
    bench.median(f"peek, idle, one in flight, {where}, p50", mine, "us")
    bench.median(f"peek by the client, {where}, p50", by_clients, "us")
    bench.median(f"peek of {_BATCH} keys by the client, {where}, a key", batches, "us")
    if theirs:
        bench.median(f"psycopg, prepared SELECT, {where}, p50", theirs, "us")
        bench.median(f"peek / prepared SELECT, {where}", ratios, "ratio", bar=BAR_SELECT_RATIO)


def _p50_us(work: Callable[[int], Any], keys: list[int]) -> float:
    taken = np.empty(len(keys))
    for i, key in enumerate(keys):
        start = time.perf_counter()
        work(key)
        taken[i] = time.perf_counter() - start
    return float(percentiles(taken)["p50_us"])


@contextmanager
def _postgres() -> Iterator[Any]:
    """The server of the tests; None where PostgreSQL is not installed."""
    try:
        from tests.postgres import PostgresServer, binaries
    except ImportError:
        say("no comparison with PostgreSQL: the tests, whose server it is, are not here")
        yield None
        return
    where = binaries()
    if where is None:
        say("no comparison with PostgreSQL: it is not installed")
        yield None
        return
    server = PostgresServer(where)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _prepared(server: Any) -> tuple[Callable[[int], Any], int]:
    """What reads a row by its key, prepared and checked, and the process that answers."""
    connection = server.connect("postgres")
    connection.execute("CREATE TABLE kv (a bigint PRIMARY KEY, b bigint)")
    connection.execute(f"INSERT INTO kv SELECT i, {FACTOR} * i FROM generate_series(0, {ROWS - 1}) AS i")
    connection.execute("VACUUM ANALYZE kv")
    cursor = connection.cursor()

    def select(key: int) -> None:
        cursor.execute("SELECT a, b FROM kv WHERE a = %s", (key,), prepare=True)
        require(cursor.fetchall() == [(key, FACTOR * key)], f"SELECT of {key}")

    select(0)
    return select, connection.info.backend_pid
