"""What does a query dataflow cost beyond its work? Joins of maintained indexes, from send to answer.

The indexes are maintained; the query imports them as they are and gives a few rows. All is counted: the
creation, its acceptance, the plan rendered, the snapshots taken, its result published and peeked.
"""

from __future__ import annotations

import time

import numpy as np

from bench.arrangements.common import require
from bench.harness import percentiles
from bench.isolation.common import FACTOR, MODES, ROWS, Bench, pairs, replica
from clusterd.client import Client

BAR_MS = 10.0
_NAMES = 1_000
_FEW = 10


def queries(bench: Bench) -> None:
    """A small join of two maintained indexes, and of three by a delta join; send to answer."""
    for mode in MODES:
        with replica(mode) as (_, client):
            kv, names, third = (pairs(client, *each) for each in (("kv", ROWS), ("n", _NAMES), ("o", _NAMES)))
            two = f"Filter #0 < {_FEW}\n  Join on=(#0 = #2)\n    Get {kv.id}\n    Get {names.id}"
            three = (
                f"Filter #0 < {_FEW}\n  Join on=(#0 = #2 = #4)\n    Get {kv.id}\n    Get {names.id}\n"
                f"    Get {third.id}"
            )
            counted = f"Reduce aggregates=[count(*), sum(#1)]\n  Get {names.id}"
            rows = [(k, FACTOR * k) for k in range(_FEW)]
            total = FACTOR * int(np.arange(_NAMES).sum())
            cases: tuple[tuple[str, str, list[tuple[int, ...]]], ...] = (
                ("join of two indexes", two, [2 * row for row in rows]),
                ("join of three indexes", three, [3 * row for row in rows]),
                ("count and sum of an index", counted, [(_NAMES, total)]),
            )
            for what, plan, wanted in cases:
                found = [_query_s(client, plan, wanted) for _ in range(bench.sizes.runs * 20)]
                figures = percentiles(found)
                bar = BAR_MS if mode == "two-runtime" and what.startswith("join of two") else None
                bench.recorder.record(
                    f"{mode}, query, {what}, p50", figures["p50_us"] / 1e3, "ms", bar=bar, **figures
                )


def _query_s(client: Client, plan: str, wanted: list[tuple[int, ...]]) -> float:
    start = time.perf_counter()
    answer = client.query(plan, at=0)
    took = time.perf_counter() - start
    require(sorted(tuple(map(int, row)) for row in answer.rows()) == wanted, "rows of the query")
    return took
