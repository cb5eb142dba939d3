"""The console of a real daemon: metrics, health, a cancel, `clusterd top` and `profile`; and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from clusterd import exit_codes
from clusterd.client import Client
from clusterd.client.answer import PeekCanceled
from clusterd.introspection.rows_metrics import METRICS
from clusterd.launcher import Replica, launch
from tests.e2e.support import ENDS_WITHIN_S, MODES, alive, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODE = {mode: {"enable_two_runtime_compute": mode == "two-runtime"} for mode in MODES}
DEADLINE_S = 10.0


def get(url: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def series(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status, text = get(f"{url}/metrics")
    assert status == 200, text
    families = list(text_string_to_metric_families(text))
    known = {name.removesuffix("_total") for name in METRICS}
    assert {family.name for family in families} <= known
    assert all(family.documentation for family in families)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clusterd", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(params=MODES)
def replica(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replica]:
    with launch(MODE[request.param], tmp_path, http="127.0.0.1:0") as found:
        yield found


def test_a_daemon_with_a_console_is_scraped_canceled_watched_and_sampled(
    replica: Replica, tmp_path: Path
) -> None:
    url = replica.http
    assert url is not None
    assert url.startswith("http://127.0.0.1:")
    assert get(f"{url}/live") == (200, "live\n")
    assert get(f"{url}/ready") == (200, "ready\n")
    role = {("role", "interactive")} if replica.mode == "two-runtime" else set()
    with Client.connect(replica) as client:
        client.create_shard("s", {"a": "bigint"})
        client.write("s", [(1,), (2,)], at=0)
        index = client.create_index("s", key=["a"])
        index.wait(0)
        assert index.count(0) == 2
        lag = ("clusterd_frontier_lag", (("id", index.id),))

        def answered() -> float:
            """Peeks that whoever answers peeks has counted."""
            found = series(url).items()
            return sum(n for (name, at), n in found if name == "clusterd_peeks_total" and role <= set(at))

        # Figures are 100 ms old at most.
        wait_until(lambda: series(url).get(lag) == 0 and answered() >= 1, DEADLINE_S, "it was counted")
        assert series(url)["clusterd_sessions", ()] >= 1
        # A parked peek, of another session than the console's, is canceled from the page.
        parked = client.start_peek(index, at=9)
        top = run("top", "--once", "--connect", replica.address)
        assert top.returncode == 0, top.stderr
        assert index.id in top.stdout
        (line,) = (line for line in top.stdout.splitlines() if "parked" in line)
        assert line.split()[0] == index.id
        (session,) = (each["session"] for each in client.relation("peeks_active").peek().dicts())
        cancel = f"{url}/peeks/{session}/{parked}/cancel"
        assert get(cancel, "POST", {"Origin": "http://evil.example"})[0] == 403
        assert get(cancel, "POST", {"Origin": url})[0] == 202
        with pytest.raises(PeekCanceled):
            client.await_peek(parked, DEADLINE_S)
        client.drop(index)
        wait_until(lambda: lag not in series(url), DEADLINE_S, "the series of what was dropped went")
    graph = tmp_path / "graph.svg"
    sampled = run("profile", "--seconds", "1", "-o", str(graph), "--connect", replica.address)
    if sampled.returncode:  # where ptrace is not allowed, that is said and how to allow it
        assert "SYS_PTRACE" in sampled.stderr
    else:
        assert "clusterd: supervisor" in graph.read_text()
    assert run("top", "--once", "--connect", "unix:/nowhere").returncode == 1


def test_a_console_nobody_looks_at_makes_no_wake_ups_and_takes_little_memory(tmp_path: Path) -> None:
    with launch({}, tmp_path, http="127.0.0.1:0") as replica:
        process = psutil.Process(replica.pids["console"])
        assert replica.http is not None
        assert get(f"{replica.http}/ready")[0] == 200
        wait_until(lambda: not process.net_connections("tcp")[1:], DEADLINE_S, "the connection was closed")
        before = process.num_ctx_switches().voluntary
        time.sleep(2.0)  # the measurement itself
        assert process.num_ctx_switches().voluntary == before
        assert process.memory_info().rss < 64 << 20
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert not any(library in maps for library in ("llvmlite", "arrow", "numpy"))


def test_the_end_of_the_console_is_the_end_of_the_daemon(tmp_path: Path) -> None:
    with launch({}, tmp_path, http="127.0.0.1:0") as replica:
        os.kill(replica.pids["console"], signal.SIGKILL)
        pids = list(replica.pids.values())
        wait_until(lambda: not alive(pids), ENDS_WITHIN_S, "every process ended")
        assert replica.process.wait(DEADLINE_S) == exit_codes.PROCESS_DIED


def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path: Path) -> None:
    with launch({}, tmp_path, http="127.0.0.1:0") as replica:
        assert replica.http is not None
        address = replica.http.removeprefix("http://")
        socket_path = f"unix:{tmp_path / 'other'}"
        failed = run("serve", "--listen", socket_path, "--data-dir", str(tmp_path / "d"), "--http", address)
    assert failed.returncode == exit_codes.USAGE
    assert f"cannot listen on {address}" in failed.stderr
    assert run("serve", "--http", "here").returncode == exit_codes.USAGE
    assert run("serve", "--no-introspection", "--http", address).returncode == exit_codes.USAGE
