"""What goes into the multiplexer and what comes out: events and effects, as data.

Sessions are the numbers of client connections; workers are positions, 0 the maintenance (or solo) worker and
1 .. M the interactive ones.

Does not: decide (machine.py and its parts), perform (endpoint.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from clusterd import internal
from controller_proto.command import Command
from controller_proto.dataflow import WireFrontier
from controller_proto.ids import GlobalId
from controller_proto.response import Closing, Response

__all__ = [
    "Backlog", "Close", "Closed", "Effect", "Effects", "Event", "Fenced", "Forward", "Hold", "Opened", "Pass",
    "Received", "Reconciled", "Rejected", "Reply", "Stream", "Tell", "Unread", "WorkerSaid",
]  # fmt: skip


@dataclass(slots=True)
class Opened:
    """A client connected; its session number was never used before."""

    session: int


@dataclass(slots=True)
class Received:
    """A client sent `command`; `payload` is the frame it came in, to be passed on verbatim."""

    session: int
    command: Command
    payload: bytes


@dataclass(slots=True)
class Rejected:
    """A client sent a whole frame that is no message."""

    session: int
    seq: int
    code: str
    message: str
    hint: str


@dataclass(slots=True)
class Closed:
    """The connection is gone."""

    session: int


@dataclass(slots=True)
class WorkerSaid:
    worker: int
    message: internal.FromWorker


@dataclass(slots=True)
class Backlog:
    """The worker has left more (`full`), or again less, unread than it may."""

    worker: int
    full: bool


@dataclass(slots=True)
class Unread:
    """The client has too much unread: what the subscription tells was not passed on, from `lower` on."""

    session: int
    id: GlobalId
    lower: WireFrontier
    backlog_bytes: int


Event = Opened | Received | Rejected | Closed | WorkerSaid | Backlog | Unread


@dataclass(slots=True)
class Forward:
    """Pass a command on, as `internal.Run`, to each of `workers` in this order."""

    workers: tuple[int, ...]
    session: int
    command: Command
    payload: bytes
    incarnations: dict[GlobalId, int]


@dataclass(slots=True)
class Tell:
    """Say `message` to each of `workers`."""

    workers: tuple[int, ...]
    message: internal.ToWorker


@dataclass(slots=True)
class Reply:
    session: int
    response: Response


@dataclass(slots=True)
class Pass:
    """Pass a worker's encoded answer on to the client."""

    session: int
    response: msgspec.Raw


@dataclass(slots=True)
class Stream:
    """Pass on what a subscription tells; if much is not read already, answer with Unread and do not.

    The response is `head`, then `said`, which others may be told as well. lower: of the batch that it is of.
    """

    session: int
    id: GlobalId
    head: bytes
    said: msgspec.Raw
    lower: WireFrontier


@dataclass(slots=True)
class Close:
    """Say `closing`, then close the connection; the multiplexer has forgotten the session."""

    session: int
    closing: Closing


@dataclass(slots=True)
class Hold:
    """Test hook: stop writing to the worker, or go on."""

    worker: int
    held: bool


@dataclass(slots=True)
class Fenced:
    """For the log: controller `newer` ended the session of controller `older`."""

    older: int
    newer: int


@dataclass(slots=True)
class Reconciled:
    """For the log: what became of the dataflows that stood (`reconcile.tally`)."""

    session: int
    counts: dict[str, int]


Effect = Forward | Tell | Reply | Pass | Stream | Close | Hold | Fenced | Reconciled
Effects = list[Effect]  # to be performed in order
