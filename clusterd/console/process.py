"""The process `console`: an event loop with the HTTP server in it, told by the supervisor when to end.

It connects to the daemon's socket when something is asked, as a reader. It ends as told, and its end without
that is the daemon's end (R1), as that of any other process.

The port is bound by the supervisor, so that one that is taken is said before anything is started.

Does not: print, keep anything.
"""

from __future__ import annotations

import asyncio
import gc
import socket

from clusterd.console.app import COMMON_HEADERS, App
from clusterd.console.http import HttpServer
from clusterd.console.source import Daemon, Known
from clusterd.introspection.relations import IDS, RELATIONS
from clusterd.introspection.rows_metrics import METRICS
from clusterd.process import ConsoleSpec

__all__ = ["daemon_at", "run_console"]


def daemon_at(address: str) -> Daemon:
    """The daemon that listens at `address`, with the introspection relations and metrics there are."""
    relations = {each.name: Known(IDS[each.name], each.columns) for each in RELATIONS}
    return Daemon(address, relations, {metric.name: metric.meaning for metric in METRICS.values()})


def run_console(spec: ConsoleSpec) -> None:
    """Entry of the console process."""
    asyncio.run(_serve(spec))


async def _serve(spec: ConsoleSpec) -> None:
    source = daemon_at(spec.address)
    server = HttpServer(App(source, spec.host).handle, common=COMMON_HEADERS)
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_reader(spec.control.fileno(), told.set)  # "stop", or the end of the supervisor
    listener: socket.socket = spec.listener
    listener.setblocking(False)
    await server.start(listener)
    gc.freeze()  # what is loaded stays; a collection looks only at what came after
    spec.control.send_bytes(b"ready")
    try:
        await told.wait()
    finally:
        loop.remove_reader(spec.control.fileno())
        await server.close()
        await source.close()
