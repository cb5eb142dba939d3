"""The picture of a run: latency of every peek over time, Solo beside two-runtime, hydrations shaded.

Both panels have one logarithmic scale, so a height means the same in both. Every peek is a dot; the line is
the 99th percentile of each second.

Does not: measure, or smooth anything away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Run", "draw"]

_COLORS = {"solo": "#b45309", "two-runtime": "#1d4ed8"}
_TITLES = {
    "solo": "Solo: one process maintains and reads",
    "two-runtime": "Two runtimes: reads have their own",
}
_INK, _MUTED, _SHADE = "#1f2937", "#6b7280", "#9ca3af"
_TICKS = {1e-4: "0.1 ms", 1e-3: "1 ms", 1e-2: "10 ms", 1e-1: "100 ms", 1.0: "1 s", 10.0: "10 s"}


@dataclasses.dataclass(frozen=True)
class Run:
    """One load. due, latencies: (n,) float64 seconds, due counted from the start. hydrations: [from, to)
    each.
    """

    mode: str
    due: np.ndarray
    latencies: np.ndarray
    hydrations: Sequence[tuple[float, float]]


def draw(runs: Sequence[Run], file: Path, *, title: str) -> None:
    """Write the picture of `runs`, side by side, to `file` (its suffix says the format)."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(runs), figsize=(5.6 * len(runs), 4.8), sharey=True, squeeze=False, layout="constrained"
    )
    figure.suptitle(title, fontsize=12, color=_INK, x=0.012, ha="left")
    for panel, run in zip(panels[0], runs, strict=True):
        _panel(panel, run)
    low = min(float(run.latencies.min()) for run in runs)
    high = max(float(run.latencies.max()) for run in runs)
    first: Any = panels[0][0]
    first.set_ylim(low / 1.5, high * 3)
    first.set_yticks(list(_TICKS), list(_TICKS.values()))
    first.set_ylim(low / 1.5, high * 3)  # set_yticks widens the range to its ticks
    first.set_ylabel("peek latency (log scale)", color=_MUTED)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _panel(panel: Any, run: Run) -> None:
    color = _COLORS[run.mode]
    panel.set_yscale("log")
    panel.minorticks_off()
    for number, (start, end) in enumerate(run.hydrations):
        label = "a hydration runs" if number == 0 else None
        panel.axvspan(start, end, color=_SHADE, alpha=0.22, linewidth=0, label=label)
    panel.plot(
        run.due, run.latencies, linestyle="", marker=".", markersize=2.2, alpha=0.22, color=color,
        markeredgewidth=0, rasterized=True, label="one peek",
    )  # fmt: skip
    seconds, p99 = _p99_by_second(run)
    panel.plot(seconds, p99, color=_INK, linewidth=1.2, drawstyle="steps-mid", label="p99 of each second")
    p50, worst = np.percentile(run.latencies, [50, 99]) * 1e3
    told = f"p50 {p50:.2g} ms, p99 {worst:.2g} ms"
    panel.set_title(f"{_TITLES[run.mode]}\n{told}", fontsize=10.5, color=color, loc="left")
    panel.set_xlabel("seconds", color=_MUTED)
    panel.set_xlim(0, float(run.due[-1]))
    panel.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(colors=_MUTED, length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color("#d1d5db")
    legend = panel.legend(loc="upper right", ncols=3, fontsize=8, frameon=False, labelcolor=_MUTED)
    for handle in legend.legend_handles:
        handle.set_alpha(0.6)
        if hasattr(handle, "set_markersize"):
            handle.set_markersize(6)


def _p99_by_second(run: Run) -> tuple[np.ndarray, np.ndarray]:
    second = run.due.astype(np.int64)
    found = np.unique(second)
    return found + 0.5, np.array([np.percentile(run.latencies[second == s], 99) for s in found])
