"""The kernels as plain Python: what they compute does not depend on being compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numba, numpy as np
from hypothesis import HealthCheck, given, seed, settings
from shm_arrangements.kernels import seek
from shm_arrangements.testing import strategies
from shm_arrangements.testing.suite import HeapTrace, run_history

assert numba.config.DISABLE_JIT
np.seterr(over="ignore")  # hashes wrap, which compiled code does silently
ran = []

@seed(2)
@settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(strategies.histories(max_steps=5, max_updates=8))
def fold(history):
    ran.append(history)
    run_history(HeapTrace(history.schema), history)

fold()
codes, keys = np.array([1, 1, 5, 9], np.uint64), np.array([5, 1, 8], np.uint64)
lo, hi = np.empty(3, np.int64), np.empty(3, np.int64)
assert seek.find_runs(codes, keys, lo, hi, np.empty(seek.SCRATCH, np.int64)) == 3
assert (lo.tolist(), hi.tolist()) == ([2, 0, 3], [3, 2, 3])
print("ran", len(ran))
"""


HERE = Path(__file__).parent


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_kernels.py", "test_sort.py"])
def test_kernels_and_references_agree_without_compiling(name: str) -> None:
    done = _run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / name))
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.slow
def test_histories_fold_alike_with_kernels_as_plain_python() -> None:
    done = _run("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ran ")
