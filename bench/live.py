"""What the terminal shows while the main job runs: updates a second, each view's frontier and lag, peek
latency.

Drawn by whoever calls `update`, at most a few times a second: no thread of its own. Where the output is no
terminal, a plain line every few seconds says the same.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from types import TracebackType

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["WINDOW_S", "Screen", "Shown", "milliseconds"]

_TERMINAL_PERIOD_S = 0.25
_PLAIN_PERIOD_S = 5.0
WINDOW_S = 5.0  # the latencies and rates shown are those of the last so many seconds


@dataclasses.dataclass(frozen=True)
class Shown:
    """One look at a run. frontiers: of each view, in ticks, None before the first. lags_s: how long ago
    the oldest append was that the view does not show yet. latencies: of recent peeks, seconds, NaN if not
    answered.
    """

    mode: str
    elapsed_s: float
    total_s: float
    day: int
    days: int
    updates_per_s: float
    frontiers: Mapping[str, int | None]
    lags_s: Mapping[str, float]
    latencies: np.ndarray
    hydrations: int
    hydrating_s: float | None


def milliseconds(seconds: float) -> str:
    """Two digits that matter: `0 ms`, `0.31 ms`, `48 ms`, `1,200 ms`."""
    value = seconds * 1e3
    if value == 0:
        return "0 ms"
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms" if value < 10 else f"{value:,.0f} ms"


class Screen:
    """A context manager; `update` draws if it is time to."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        )
        self._period_s = _TERMINAL_PERIOD_S if self._live is not None else _PLAIN_PERIOD_S
        self._next = 0.0

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def update(self, shown: Shown) -> None:
        self._next = time.monotonic() + self._period_s
        if self._live is not None:
            self._live.update(_page(shown), refresh=True)
        else:
            self._console.print(_line(shown), highlight=False, soft_wrap=True)


def _percentiles(latencies: np.ndarray) -> str:
    answered = latencies[~np.isnan(latencies)]
    if not len(answered):
        return "no answers yet"
    p50, p99 = np.percentile(answered, [50, 99])
    return f"p50 {milliseconds(p50)}, p99 {milliseconds(p99)}"


def _line(shown: Shown) -> str:
    worst = max(shown.lags_s.values(), default=0.0)
    return (
        f"{shown.mode}: {shown.elapsed_s:.0f} of {shown.total_s:.0f} s, day {shown.day} of {shown.days}, "
        f"{shown.updates_per_s:,.0f} updates/s, greatest lag {milliseconds(worst)}, "
        f"peeks {_percentiles(shown.latencies)}, {shown.hydrations} hydrations"
    )


def _page(shown: Shown) -> RenderableType:
    head = Text.assemble(
        (f"{shown.mode}  ", "bold"),
        f"{shown.elapsed_s:3.0f} of {shown.total_s:.0f} s   day {shown.day:3} of {shown.days}   ",
        (f"{shown.updates_per_s:,.0f} updates/s", "bold"),
    )
    busy = f"running for {shown.hydrating_s:.1f} s" if shown.hydrating_s is not None else "pausing"
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("view")
    table.add_column("frontier", justify="right")
    table.add_column("lag", justify="right")
    for name, frontier in shown.frontiers.items():
        table.add_row(name, "?" if frontier is None else f"{frontier:,}", milliseconds(shown.lags_s[name]))
    return Group(
        head,
        Text(""),
        table,
        Text(""),
        Text(f"peeks, last {WINDOW_S:.0f} s   {_percentiles(shown.latencies)}"),
        Text(f"heavy view           hydration {shown.hydrations + 1} {busy}"),
    )
