"""The picture is drawn from whatever a run gives, one mode or two, with or without hydrations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from bench.picture import Run, draw


@pytest.mark.slow
def test_both_modes_are_drawn_side_by_side(tmp_path: Path) -> None:
    due = np.arange(0, 4, 0.01)
    runs = [
        Run("solo", due, np.full(len(due), 0.02), [(0.5, 1.5), (2.5, 3.5)]),
        Run("two-runtime", due, np.full(len(due), 0.0003), []),
    ]
    draw(runs, tmp_path / "two.png", title="two")
    draw(runs[1:], tmp_path / "one.png", title="one")
    for name in ("two.png", "one.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
