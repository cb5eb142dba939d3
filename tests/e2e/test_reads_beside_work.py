"""Reads of what is sealed, beside a hydration (L27) and beside scans (L28): who waits is told by order."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from bench.heavy import append_pairs, sized
from clusterd.client import Client, Index
from tests.e2e.support import replica_in

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROWS = 400_000
READS = 1_000
DEADLINE_S = 60.0
LEAST_S = 1.5  # what the scans take together: some times what the lookups do


def _lookups(client: Client, index: Index) -> list[str]:
    return [client.start_peek(index, keys=[key * 7], at=0) for key in range(READS)]


def _check(client: Client, lookups: list[str], served_by: str) -> None:
    for key, uuid in enumerate(lookups):
        answer = client.await_peek(uuid, DEADLINE_S)
        assert (answer.rows(), answer.served_by) == ([(key * 7, key * 21)], served_by)


@pytest.mark.parametrize(("mode", "workers"), [("solo", 1), ("two-runtime", 1), ("two-runtime", 3)])
def test_l27_l28_lookups_wait_for_no_hydration_and_no_scan(mode: str, workers: int, tmp_path: Path) -> None:
    served_by = "interactive" if mode == "two-runtime" else "solo"
    with replica_in(mode, tmp_path, workers=workers) as replica, Client.connect(replica) as client:
        append_pairs(client, "s", np.arange(ROWS), np.arange(ROWS) * 3)
        index = client.create_index("s", key=["a"])
        index.wait(0)

        # L28: scans, and then lookups. The lookups are answered first, and every scan is whole.
        began_s = time.monotonic()
        expected = index.peek(where=["#1 % 1000000 = 0"], at=0).rows()
        scan_s = time.monotonic() - began_s
        assert expected == [(int(a), int(a) * 3) for a in range(ROWS) if a * 3 % 1_000_000 == 0]
        count = max(3, int(LEAST_S / scan_s) + 1)
        scans = [client.start_peek(index, where=["#1 % 1000000 = 0"], at=0) for _ in range(count)]
        _check(client, _lookups(client, index), served_by)
        client.pump(0.0)
        assert not all(client.core.is_answered(uuid) for uuid in scans), "the scans came first"
        for uuid in scans:
            answer = client.await_peek(uuid, DEADLINE_S)
            assert (answer.rows(), answer.served_by) == (expected, served_by)

        # L27: a hydration, and then lookups, which it does not hold up; what is not sealed waits.
        heavy, _ = sized(client, 0.6, rows=20_000)
        unsealed = client.start_peek(index, keys=[7], at=1)
        hydrating = client.create_index(heavy.plan, key=heavy.key, as_of=0)
        _check(client, _lookups(client, index), served_by)
        if mode == "two-runtime":
            status = hydrating.status
            assert status is None or status.status != "hydrated", "the hydration ended first"
        assert not client.core.is_answered(unsealed)
        client.advance("s", 2)
        answer = client.await_peek(unsealed, DEADLINE_S)
        assert (answer.rows(), answer.time) == ([(7, 21)], 1)
        hydrating.wait(0, timeout_s=DEADLINE_S)
