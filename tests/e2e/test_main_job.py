"""`make run`, small: both modes, checked against DuckDB, with its picture and its numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.soak]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.run", "--days", "10", "--seconds", "5", *arguments],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, timeout=170,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_the_main_job_agrees_with_duckdb_and_leaves_picture_and_numbers(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "answers equal DuckDB's on the same files" in done.stdout
    numbers = json.loads((tmp_path / "run" / "run.json").read_text())
    assert set(numbers["modes"]) == {"solo", "two-runtime"}
    for mode in numbers["modes"].values():
        assert mode["hydrations_s"]
        assert mode["peeks"]["at any time"]["n"] == 1500
    assert (tmp_path / "run" / "latency.png").stat().st_size > 10_000


def test_serve_leaves_the_replica_up_and_says_how_to_connect(tmp_path: Path) -> None:
    done = run(tmp_path, "--serve")
    assert done.returncode == 0, done.stdout
    pid = int(done.stdout.split("kill ")[-1].split()[0])
    try:
        script = done.stdout.split("In .venv/bin/python:")[1].split("Stop it")[0]
        lines = "\n".join(
            line.strip().replace("client.index", "x = client.index") for line in script.splitlines()
        )
        shown = subprocess.run(
            [sys.executable, "-c", f"{lines}\nprint(x)"],
            text=True,
            timeout=60,
            stdout=subprocess.PIPE,
            check=True,
        )
        assert "airline" in shown.stdout
    finally:
        os.kill(pid, signal.SIGTERM)
