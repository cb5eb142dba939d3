"""Every benchmark still runs, small; what it measures is no test's business."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.__main__ import NAMES

# All of bench-isolation starts two dozen replicas: a case of it stands for the others but in the soak.
CASES = [(name, "queries" if name == "isolation" else "") for name in NAMES]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize(("name", "only"), [*CASES, pytest.param("isolation", "", marks=pytest.mark.soak)])
def test_bench_smoke(name: str, only: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "bench", name, "--smoke", *(["--only", only] if only else [])],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert lines
    for line in lines:
        assert {"bench", "case", "value", "unit"} <= line.keys()
        assert line["bench"] == name
        assert line["smoke"] is True
