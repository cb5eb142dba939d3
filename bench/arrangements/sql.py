"""SQL over small indexes from a session that stays, and a lookup that asks for the newest time first."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

from bench.arrangements.common import Bench, require
from bench.harness import say
from clusterd.client.sql import SqlSession
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

BAR_QUERY_MS = 10.0
BAR_NEWEST_US = 3.0
ROWS = 200
CALLS = 200
SCHEMA = ArrangementSchema(
    (ColumnSpec("name", ColumnType.TEXT, False), ColumnSpec("n", ColumnType.INT64, False)), (0,)
)
QUERY = "SELECT name, u1.n + u2.n AS n FROM u1 JOIN u2 USING (name) ORDER BY n"


def small(bench: Bench) -> None:
    """A join of two small indexes by SQL, and a lookup through the attachment; each call by itself."""
    with Instance.create() as held:
        indexes = [_index(held, id) for id in ("u1", "u2")]
        try:
            with attach("u1", held.token) as index:
                require(index.lookup("name 7").rows() == [("name 7", 7)], "a lookup through the attachment")
                times = [_each(lambda: index.lookup("name 7")) for _ in range(bench.sizes.runs)]
                bench.median(
                    "attached lookup, newest time", [1e6 * t for t in times], "us", bar=BAR_NEWEST_US
                )
            if importlib.util.find_spec("duckdb") is None:
                say("duckdb is not installed: no SQL (pip install '.[sql]')")
                return
            session = SqlSession(held.token)
            try:
                rows = session.run(QUERY).rows()
                require(rows == [(f"name {n}", 2 * n) for n in range(ROWS)], "rows of the join")
                times = [_each(lambda: session.run(QUERY).rows()) for _ in range(bench.sizes.runs)]
                bench.median("SQL join, small", [1e3 * t for t in times], "ms", bar=BAR_QUERY_MS, rows=ROWS)
            finally:
                session.close()
        finally:
            for writer in indexes:
                writer.close()


def _index(held: Instance, id: str) -> IndexWriter:
    index = IndexWriter(SegmentAllocator(held.token, int(id[1:])), collection_id(id), 1, SCHEMA, 0)
    rows = Updates.from_rows(SCHEMA.columns, [((f"name {n}", n), 0, 1) for n in range(ROWS)])
    index.insert(rows, Updates.empty((ColumnType.TEXT,)), Frontier.at(1))
    return index


def _each(call: Any) -> float:
    """Seconds of one of many calls, the median."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[CALLS // 2]
