"""What every benchmark shares: the form of a result line, the machine's facts, percentiles, the run of cases.

A result is one JSON line `{"bench", "case", "value", "unit", ...}`, with `"bar"` and `"ok"` where there is a
bar, appended to bench/results/NAME.jsonl, with machine, versions, commit and time of the run. A benchmark
checks its answer before it times anything; the harness cannot do that for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
_LIBRARIES = ("numpy", "numba", "msgspec", "multiprocess", "pyarrow")


def _commit() -> str:
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def facts() -> dict[str, Any]:
    """Where and when a figure was taken: machine, versions, commit, time."""
    return {
        "machine": f"{_cpu()}, {os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GiB",
        "versions": {"python": platform.python_version(), **{n: metadata.version(n) for n in _LIBRARIES}},
        "commit": _commit(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@dataclasses.dataclass
class Recorder:
    """Writes the result lines of one benchmark. `smoke` lines, and those not to `keep`, are only printed."""

    bench: str
    smoke: bool = False
    keep: bool = True
    failed: list[str] = dataclasses.field(default_factory=list)
    lines: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._facts = facts()

    def record(
        self,
        case: str,
        value: float,
        unit: str,
        *,
        bar: float | None = None,
        at_most: bool = True,
        **more: Any,
    ) -> None:
        """Print and keep one figure; `bar` is an upper bound (a lower one with at_most=False)."""
        line: dict[str, Any] = {
            "bench": self.bench,
            "case": case,
            "value": round(float(value), 4),
            "unit": unit,
        }
        if bar is not None:
            line["bar"] = bar
            line["at_most"] = at_most
            line["ok"] = bool(value <= bar) if at_most else bool(value >= bar)
            if not line["ok"]:
                self.failed.append(case)
        line.update(more)
        if self.smoke:
            line["smoke"] = True
        self.lines.append(line)
        print(json.dumps(line), flush=True)
        if self.keep and not self.smoke:
            RESULTS.mkdir(exist_ok=True)
            with (RESULTS / f"{self.bench}.jsonl").open("a") as file:
                file.write(json.dumps({**line, **self._facts}) + "\n")


def run_cases(recorder: Recorder, cases: Mapping[str, Callable[[T], None]], bench: T, only: str) -> list[str]:
    """Run the cases with `only` in their name, and tell their figures; returns what missed its bar or failed.

    One that fails does not end the others, but in a smoke run.
    """
    failed: list[str] = []
    for name, case in cases.items():
        if only not in name:
            continue
        say(f"{name}: {(case.__doc__ or '').strip()}")
        try:
            case(bench)
        except Exception as error:  # the other figures do not depend on it
            if recorder.smoke:
                raise
            say(traceback.format_exc())
            failed.append(f"{name} failed: {error}")
    say(table(recorder.lines))
    return recorder.failed + failed


def table(lines: Sequence[dict[str, Any]]) -> str:
    """What was recorded, for people: measured, its spread over the runs, the bar and whether it is met."""
    rows = [("case", "measured", "least .. greatest", "bar", "met")]
    for line in lines:
        spread = f"{line['least']:g} .. {line['greatest']:g}" if "least" in line else ""
        bar = f"{'<=' if line['at_most'] else '>='} {line['bar']:g}" if "bar" in line else ""
        met = ("yes" if line["ok"] else "NO") if "bar" in line else ""
        rows.append((line["case"], f"{line['value']:,.6g} {line['unit']}", spread, bar, met))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    told = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in told)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """How many runs, and their least and greatest value."""
    return {"runs": len(values), "least": round(min(values), 4), "greatest": round(max(values), 4)}


def percentiles(latencies_s: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """p50, p99, p99.9 and the greatest, in microseconds, and how many there were."""
    values = np.asarray(latencies_s, dtype=np.float64) * 1e6
    p50, p99, p999 = np.percentile(values, [50, 99, 99.9])
    return {
        "p50_us": round(float(p50), 1),
        "p99_us": round(float(p99), 1),
        "p999_us": round(float(p999), 1),
        "max_us": round(float(values.max()), 1),
        "n": len(values),
    }


def say(text: str) -> None:
    """Tell whoever watches, beside the JSON lines."""
    print(text, file=sys.stderr, flush=True)
