"""The first session that the README shows is run, as one program, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

README = Path(__file__).parents[2] / "README.md"


def test_the_first_session_prints_what_the_readme_says(tmp_path: Path) -> None:
    section = README.read_text().split("\n## Five minutes\n")[1].split("\n## ")[0]
    shown = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```\n", section, re.DOTALL)
    assert len(shown) == section.count("```python\n"), "each program is followed by what it prints"
    program = "".join(code for code, _ in shown)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed for _, printed in shown)
