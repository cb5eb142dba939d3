"""What a worker's first read would have to load is loaded before it is ready, and pandas never."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pandas")

# It looks for a pattern in texts, for which Arrow's answer becomes a numpy array.
PROGRAM = """
import sys
from clusterd.runtime.rehearsal import rehearse

rehearse(has_functions={has_functions})
print("pandas" in sys.modules)
before = set(sys.modules)
rehearse(has_functions={has_functions})
print(sorted(set(sys.modules) - before))
import pandas
print(len(pandas.Series([1, 2])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("has_functions", [False, True])
def test_no_first_read_loads_pandas(has_functions: bool) -> None:
    program = PROGRAM.format(has_functions=has_functions)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(has_functions), "[]", "2"]
