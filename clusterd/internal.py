"""What the multiplexer and the workers say to each other, over pipes, as frames of MessagePack.

Every message about a conversation carries its `session`, the number of the connection it belongs to; both
ends drop messages of sessions that are over. Every message about a collection names `(id, incarnation)`
(R9), so that a returning id is never taken for its predecessor. `Look` says only "look again at this id"
(R10).

Does not: route (multiplexer/), frame (controller_proto.framing), touch a file descriptor (link.py).
"""

from __future__ import annotations

import msgspec

from controller_proto.command import Command
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.ids import GlobalId
from controller_proto.response import Status

__all__ = [
    "Answer", "Applied", "AppliedBy", "Cut", "Declare", "Ended", "Fetch", "FromWorker", "FrontierReport",
    "Hook",
    "Look", "Looks", "LooksAck", "Part", "Ready", "Refusal", "Run", "SessionEnd", "SessionStart", "Stashed",
    "StatusReport", "Stop", "SyncDone", "Telling", "ToWorker", "Undeclare",
]  # fmt: skip


class SessionStart(msgspec.Struct, frozen=True, tag="session-start"):
    """A controller said hello. Commands of `session` follow; before InitializationComplete nothing changes.

    Sent to every worker. For a reader's session there is no SessionStart: its peeks just carry their number.
    """

    session: int


class SessionEnd(msgspec.Struct, frozen=True, tag="session-end"):
    """The connection is over: its parked peeks end unanswered. A controller's dataflows run on."""

    session: int


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Carry out `command`. `incarnations`: of every id the command exports, imports or names."""

    session: int
    command: Command
    incarnations: dict[GlobalId, int] = {}


class Declare(msgspec.Struct, frozen=True, tag="declare"):
    """To interactive workers: maintenance owns `export.id`, readable from `as_of` on: an index once it is
    published, a view as far as its shard is written.
    """

    session: int
    export: Export
    incarnation: int
    as_of: int


class Undeclare(msgspec.Struct, frozen=True, tag="undeclare"):
    """What waits for `id` is answered with `code`: `unknown-id` if the owner refused the dataflow; `dropped`
    of a view, whose compaction no interactive worker hears of.
    """

    session: int
    id: GlobalId
    incarnation: int
    code: str = "unknown-id"


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """To interactive workers: the owner gave the collection up; what reads it is answered so."""

    id: GlobalId
    incarnation: int
    code: str
    message: str
    hint: str


class AppliedBy(msgspec.Struct, frozen=True, tag="applied-by"):
    """To maintenance: interactive worker `worker` counts at `frontier` on the collection (R6)."""

    worker: int
    id: GlobalId
    incarnation: int
    frontier: WireFrontier


class Look(msgspec.Struct, frozen=True, tag="look"):
    """To interactive workers and the observer: the page of `id` appeared, moved or closed."""

    id: GlobalId
    incarnation: int


class Looks(msgspec.Struct, frozen=True, tag="looks"):
    """Of maintenance: these pages appeared, moved or closed since it last said so, in one frame however many.

    At most one unacknowledged an id (R10).
    """

    keys: tuple[tuple[GlobalId, int], ...]


class LooksAck(msgspec.Struct, frozen=True, tag="looks-ack"):
    """To maintenance: the multiplexer has taken the Looks; others of these ids may be sent."""

    keys: tuple[tuple[GlobalId, int], ...]


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """To the owner of a subscription: nobody takes what it tells any more. It computes no more."""

    id: GlobalId
    incarnation: int


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Send the next part of a stashed answer; the connection has taken the one before."""

    session: int
    uuid: str


class Hook(msgspec.Struct, frozen=True, tag="hook"):
    """Test hook: arm failpoint `name` with `action` (off, error, exit, pause)."""

    name: str
    action: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave: answer nothing more, release what is held, exit 0."""


ToWorker = (
    SessionStart | SessionEnd | Run | Declare | Undeclare | Ended | AppliedBy | Look | LooksAck | Cut | Fetch
    | Hook
    | Stop
)  # fmt: skip


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """First message of a worker: kernels are warm, commands are welcome."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """`response` is an encoded wire PeekResponse, passed on undecoded."""

    session: int
    uuid: str
    response: msgspec.Raw


class Stashed(msgspec.Struct, frozen=True, tag="stashed"):
    """The answer is too large for one message: it goes out in parts, each when a Fetch asks for it."""

    session: int
    uuid: str


class Part(msgspec.Struct, frozen=True, tag="part"):
    """`response` is an encoded wire PeekPart. The last of an answer is an Answer instead."""

    session: int
    uuid: str
    response: msgspec.Raw


class Telling(msgspec.Struct, frozen=True, tag="telling"):
    """What subscriptions, or a copy, say: encoded, the `said` of a SubscribeResponse or the `result` of a
    CopyToResponse, to be passed on undecoded to each that it is `to`: session, id, incarnation.

    lower: of its batch: before it, everything was told. ends: nothing comes after it.
    """

    to: list[tuple[int, GlobalId, int]]
    said: msgspec.Raw
    lower: WireFrontier
    ends: bool


class FrontierReport(msgspec.Struct, frozen=True, tag="frontier-report"):
    """Frontiers of an own collection that moved; None is unchanged."""

    session: int
    id: GlobalId
    incarnation: int
    write: WireFrontier | None = None
    input: WireFrontier | None = None
    output: WireFrontier | None = None


class StatusReport(msgspec.Struct, frozen=True, tag="status-report"):
    """An own collection is in another state, or further in it."""

    session: int
    incarnation: int
    status: Status

    @property
    def id(self) -> GlobalId:
        return self.status.id


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The command `seq` of `session` had no effect."""

    session: int
    seq: int
    code: str
    message: str
    hint: str = ""


class SyncDone(msgspec.Struct, frozen=True, tag="sync-done"):
    """Every command of `session` that this worker got before Sync `seq` has been validated."""

    session: int
    seq: int


class Applied(msgspec.Struct, frozen=True, tag="applied"):
    """From an interactive worker: the frontier at which it counts on the collection; it only rises."""

    id: GlobalId
    incarnation: int
    frontier: WireFrontier


FromWorker = (
    Ready | Answer | Stashed | Part | Telling | FrontierReport | StatusReport | Refusal | SyncDone | Looks
    | Applied
)  # fmt: skip
