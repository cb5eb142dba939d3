"""`clusterd top`: read the flags, show the essentials of a daemon until ^C, or once.

It watches the relations as a page of the console does, through the same reader, and draws again when they
changed, PACE_S apart at least; with nothing to tell it waits.

Does not: decide what is essential (console/essentials.py does).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from clusterd.console.essentials import READ, page
from clusterd.console.process import daemon_at
from clusterd.console.reader import Unanswered
from clusterd.console.source import Daemon
from clusterd.console.tables import Row, Tables
from controller_proto.errors import LocalProtocolError

__all__ = ["top"]

PACE_S = 0.5


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--connect", "address", default="unix:clusterd.sock", show_default=True, metavar="unix:PATH",
    help="Of the daemon, as its READY line says under `listen`.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print one page and end.")
def top(address: str, once: bool) -> None:
    """Show what a daemon is doing, in a terminal.

    Processes, how far collections are and what they wait for, peeks. The page is drawn again when something
    changed, until ^C. What it shows are the relations that `clusterd introspection` lists.

    \b
    Examples:
      clusterd top
      clusterd top --connect unix:/tmp/clusterd.sock --once

    \b
    Exit status:
      0  done      1  the daemon cannot be asked      2  wrong usage
    """
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_once(address) if once else _watch(address))
    except (Unanswered, LocalProtocolError) as error:
        click.echo(f"clusterd: {error}", err=True)
        sys.exit(1)


async def _once(address: str) -> None:
    source = daemon_at(address)
    try:
        told = {name: _named(source, name, await source.rows(name)) for name in READ}
    finally:
        await source.close()
    Console().print(page(told, _now_ms(), rows=1_000))


async def _watch(address: str) -> None:
    """Raises Unanswered when the daemon is gone."""
    source, changed = daemon_at(address), asyncio.Event()
    tables = Tables(changed.set)
    watching = await source.watch(tables, READ)
    lost = watching.lost
    lost.add_done_callback(lambda _: changed.set())
    try:
        with Live(auto_refresh=False, screen=sys.stdout.isatty()) as live:
            while not lost.done():
                changed.clear()
                told = {name: _named(source, name, tables.rows(name)) for name in READ}
                live.update(page(told, _now_ms(), live.console.height), refresh=True)
                await changed.wait()
                await asyncio.sleep(PACE_S)
    finally:
        await watching.close()
    raise Unanswered("disconnected", lost.result())


def _named(source: Daemon, name: str, rows: Iterable[Row]) -> list[dict[str, Any]]:
    columns = source.columns[name]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
