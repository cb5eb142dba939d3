"""Every benchmark still runs, small; what it measures is no test's business."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.__main__ import NAMES


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bench_smoke(name: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "bench", name, "--smoke"],
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
