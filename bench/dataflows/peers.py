"""The same views in Pathway, in the same run: it has a process and an environment of its own.

At a fifth of the rows of the bars, since it is slow: as many rows a key, batches of the same share. It is
given the rows by a connector in Python, as a program would, and once from a CSV file, which is its fastest
way in. Our own figure beside it is of the same sizes.

Does not: install anything. `make bench-dataflows` does; without it the cases say so, and that is all.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from bench.arrangements.updates import RETRACTED
from bench.dataflows.common import SEED, Bench
from bench.dataflows.maintained import DISTINCT, JOIN, SUMS, TOP, Course, Work
from bench.dataflows.worker import Worker
from bench.harness import say

PYTHON = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
_PROGRAM = Path(__file__).parents[1] / "peers" / "pathway_views.py"
_SHARE = 5  # of the rows of the bars: one in so many
_BATCHES = 20
_TIMEOUT_S = 120


def pathway(bench: Bench) -> None:
    """Pathway, from PyPI: load and updates of the same views."""
    if not PYTHON.exists():
        say(f"Pathway is not there ({PYTHON} is missing): `make bench-dataflows` installs it if it can")
        bench.recorder.record("pathway, installed", 0, "yes or no")
        return
    rows = bench.sizes.rows // _SHARE
    views = ("sums", SUMS), ("join", JOIN), ("distinct", DISTINCT), ("top", TOP)
    for view, work in views[:1] if bench.recorder.smoke else views:
        batch = max(5, round(rows / 100 * work.batch))
        load_s, update_s = _ours(work, rows, batch)
        more: dict[str, Any] = {"rows": rows, "keys": work.keys(rows)}
        pushed = _run(view, rows, batch)
        read = _run(view, rows, batch, "--static")
        if pushed is not None:
            load, updates = pushed["taken_s"][0], pushed["taken_s"][1:]
            each = {**more, "pathway": pushed["version"]}
            bench.recorder.record(
                f"pathway, {work.name}, load, rate", rows / load, "rows/s",
                ours_rows_per_s=round(rows / load_s), ours_is_times_as_fast=round(load / load_s, 1), **each,
            )  # fmt: skip
            median = statistics.median(updates)
            bench.recorder.record(
                f"pathway, {work.name}, updates, rate", batch / median, "rows/s", batch_rows=batch,
                retracted=RETRACTED, p50_ms=round(1e3 * median, 3), ours_p50_ms=round(1e3 * update_s, 3),
                ours_is_times_as_fast=round(median / update_s, 1), **each,
            )  # fmt: skip
        if read is not None:
            taken = read["taken_s"][0]
            bench.recorder.record(
                f"pathway, {work.name}, load from CSV, rate", rows / taken, "rows/s",
                ours_is_times_as_fast=round(taken / load_s, 1), **more, pathway=read["version"],
            )  # fmt: skip


def _ours(work: Work, rows: int, batch: int) -> tuple[float, float]:
    """Seconds of the load, and the median of the updates."""
    with Worker() as worker:
        course = Course(work, worker, rows, _BATCHES * batch, np.random.default_rng(SEED), index=False)
        load_s = course.load()
        return load_s, statistics.median(course.update(course.facts.batch(batch)) for _ in range(_BATCHES))


def _run(view: str, rows: int, batch: int, *options: str) -> dict[str, Any] | None:
    """What the program says, or None, and then why."""
    command = [str(PYTHON), str(_PROGRAM), view, str(rows), str(_BATCHES), str(batch), *options]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        say(f"pathway {view} {options} failed: {error.stderr[-400:]}")
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as error:
        say(f"pathway {view} {options} gave no figure: {error}")
    else:
        return found
    return None
