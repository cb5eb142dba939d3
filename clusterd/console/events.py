"""Events: what changes in the relations, to every page that is open, as server-sent events.

    event: state    data: {"there": true, "why": "", "now_ms": 1, "columns": {"hydration": ["worker", ..]}}
    event: change   data: {"hydration": {"came": [[..], ..], "went": [[..], ..]}, ..}

A `state` begins anew: what was told before is void. While pages are open relations are subscribed to, once
for all of them; the last page that goes ends that. Each is told at most every PACE_S seconds, of the net
change since, so that a slow page is behind and never a burden.

Does not: keep history; a page that is opened starts with what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from clusterd.console.reader import Unanswered
from clusterd.console.source import Source
from clusterd.console.tables import Change, Row, Tables

__all__ = ["MAX_WATCHERS", "SHOWN", "Events"]

# The relations that the page shows.
SHOWN = (
    "arrangement_sharing", "arrangement_sizes", "config", "dataflow_channels", "dataflow_operators",
    "dataflows", "errors", "exports", "hydration", "import_frontiers", "operator_elapsed",
    "peek_durations_histogram", "peeks_active", "processes", "publications", "staleness",
)  # fmt: skip

PACE_S = 0.25
AGAIN_S = 1.0  # before a daemon that went, or is not there yet, is asked again; only while pages are open
MAX_WATCHERS = 16
_EXACT = 1 << 53  # beyond it a browser's numbers are not; such integers go as text


class Events:
    """The pages that are open, of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tables = Tables(self._ring)
        self._rung: dict[int, asyncio.Event] = {}
        self._telling: asyncio.Task[None] | None = None
        self._state = (0, False, "")  # (number, whether the daemon is there, why not)

    @property
    def is_full(self) -> bool:
        return len(self._rung) >= MAX_WATCHERS

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """One page's events, without end."""
        watcher = self._tables.watch()
        rung = self._rung[watcher] = asyncio.Event()
        rung.set()
        if self._telling is None:
            self._telling = asyncio.ensure_future(self._tell())
        told = 0  # nothing is known before the first answer
        try:
            while True:
                await rung.wait()
                rung.clear()
                number, there, why = self._state
                if number != told:
                    told = number
                    columns = {name: self._source.columns[name] for name in SHOWN}
                    yield _event(
                        "state",
                        {
                            "there": there,
                            "why": why,
                            "now_ms": time.time_ns() // 1_000_000,
                            "columns": columns,
                        },
                    )
                # Until all relations are there, what comes of them is the next state's.
                changes = self._tables.take(watcher) if there else {}
                if changes:
                    yield _event("change", {name: _plain(change) for name, change in changes.items()})
                await asyncio.sleep(PACE_S)
        finally:
            self._tables.leave(watcher)
            del self._rung[watcher]
            if not self._tables.watched:
                await self._stop()

    async def _stop(self) -> None:
        telling, self._telling = self._telling, None
        if telling is not None:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling

    async def _tell(self) -> None:
        while True:
            try:
                self._tables.clear()
                watching = await self._source.watch(self._tables, SHOWN)
            except Unanswered as error:
                self._be(there=False, why=str(error))
            else:
                self._be(there=True, why="")
                try:
                    why = await watching.lost
                finally:
                    await watching.close()
                    self._tables.clear()
                self._be(there=False, why=why)
            await asyncio.sleep(AGAIN_S)

    def _be(self, *, there: bool, why: str) -> None:
        number, *before = self._state
        if before != [there, why] or there:
            self._state = (number + 1, there, why)
            self._ring()

    def _ring(self) -> None:
        for rung in self._rung.values():
            rung.set()


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def _plain(change: Change) -> dict[str, list[list[Any]]]:
    return {"came": [_exact(row) for row in change.came], "went": [_exact(row) for row in change.went]}


def _exact(row: Row) -> list[Any]:
    return [str(v) if type(v) is int and not -_EXACT <= v <= _EXACT else v for v in row]
