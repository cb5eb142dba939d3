"""Every code stands in the module's head and in docs/ingest.md, and is raised somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from clusterd.ingest import errors

ROOT = Path(errors.__file__).parents[2]


def test_every_code_is_documented_and_used() -> None:
    head = re.findall(r"^\| ([a-z-]+) +\|", errors.__doc__ or "", re.MULTILINE)
    page = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "ingest.md").read_text(), re.MULTILINE)
    assert sorted(errors.CODES) == sorted(set(head) - {"code"}) == sorted(page[-len(errors.CODES) :])
    text = "".join(
        path.read_text() for path in (ROOT / "clusterd" / "ingest").glob("*.py") if path.name != "errors.py"
    )
    assert all(f'"{code}"' in text for code in errors.CODES)
