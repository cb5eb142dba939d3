"""What the daemon tells its operator: typed events, one JSON line each on stderr.

`emit` never waits: a line that stderr has no room for is dropped and counted, and the next one that gets
through says how many were. A pipe that polls writable takes PIPE_BUF bytes at once, so longer lines are cut.

Does not: serve as a debug log; pure cores return effects, kernels say nothing.
"""

from __future__ import annotations

import os
import select
import stat
import time
from typing import Any

import msgspec

__all__ = [
    "ClientClosed", "ControllerFenced", "DataflowsReconciled", "Event", "FailpointRefused", "InstanceSwept",
    "IntrospectionBehind", "ProcessDied", "ShardOutOfReach", "StaleSocketReplaced", "StartFailed",
    "StopTimedOut", "Stopped", "Stopping", "emit",
]  # fmt: skip

_LINE_BYTES = select.PIPE_BUF  # what a pipe that polls writable is sure to take whole
_SHORT = 16  # characters; shorter texts are not cut


class Event(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    """Base; the class name is the tag. Fields are facts: counts, ids, names."""


class ProcessDied(Event, frozen=True):
    """R1: `process` ended though nobody asked it to; the daemon ends with it. `reason` is one phrase.

    status: what `process` itself ended with, negative for a signal; not what the daemon then exits with.
    """

    process: str
    pid: int
    reason: str
    status: int
    signal: str = ""
    exception: str = ""
    traceback: str = ""
    hint: str = ""


class StartFailed(Event, frozen=True):
    """The daemon could not start."""

    reason: str
    exit_code: int
    hint: str = ""


class Stopping(Event, frozen=True):
    """An ordered stop was asked for, by `signal`."""

    signal: str


class Stopped(Event, frozen=True):
    """The ordered stop is done."""


class StopTimedOut(Event, frozen=True):
    """These did not leave in time and were killed."""

    processes: tuple[str, ...]
    deadline_s: float


class InstanceSwept(Event, frozen=True):
    """Leftovers of dead instances were removed at start."""

    tokens: tuple[str, ...]


class StaleSocketReplaced(Event, frozen=True):
    """The socket file of a daemon that is dead was replaced."""

    path: str


class ControllerFenced(Event, frozen=True):
    """Session `older` was closed because a controller with a later epoch came as session `newer`."""

    older: int
    newer: int


class DataflowsReconciled(Event, frozen=True):
    """A controller came back as `session`: how many dataflows go on, were replaced (by why), or dropped."""

    session: int
    counts: dict[str, int]


class ClientClosed(Event, frozen=True):
    """The daemon closed a connection, and why."""

    session: int
    code: str
    message: str


class ShardOutOfReach(Event, frozen=True):
    """`shard` could not be read or written for `name`, a collection or "news": it is tried again until it
    can, which is said once.
    """

    shard: str
    name: str
    problem: str


class IntrospectionBehind(Event, frozen=True):
    """There was no room for what changed of introspection: it shows what was, until there is."""

    reason: str


class FailpointRefused(Event, frozen=True):
    """A test hook named no failpoint or action that there is."""

    name: str
    reason: str


_encode = msgspec.json.Encoder().encode
_dropped = 0


def emit(event: Event, *, fd: int = 2) -> bool:
    """Write `event` as one line to `fd`; False if it was dropped since the reader is behind or gone."""
    global _dropped
    facts: dict[str, Any] = {"ts": round(time.time(), 3), "pid": os.getpid(), **msgspec.to_builtins(event)}
    if _dropped:
        facts["dropped_events"] = _dropped
    line = _fitted(facts, fd)
    poll = select.poll()
    try:
        poll.register(fd, select.POLLOUT)
        if any(seen & select.POLLOUT for _, seen in poll.poll(0)):
            os.write(fd, line)
            _dropped = 0
            return True
    except OSError:
        pass
    _dropped += 1
    return False


def _fitted(facts: dict[str, Any], fd: int) -> bytes:
    """One line; for a pipe the longest texts are halved until it fits. A traceback keeps its end."""
    line: bytes = _encode(facts) + b"\n"
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return line
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return line
    while len(line) > _LINE_BYTES:
        name = max((n for n, v in facts.items() if isinstance(v, str)), key=lambda n: len(facts[n]))
        text: str = facts[name]
        if len(text) < _SHORT:  # it is no text that is long
            return _encode({name: facts[name] for name in ("ts", "pid", "event")}) + b"\n"
        half = len(text) // 2
        facts[name] = "..." + text[-half:] if name == "traceback" else text[:half] + "..."
        line = _encode(facts) + b"\n"
    return line
