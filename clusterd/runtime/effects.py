"""What the core of a runtime is told, and what it asks for: events in, effects out.

Events are the multiplexer's messages (`internal.ToWorker`) and those below, by which the shell reports what
came of an effect. Effects are carried out in the order given, each before the next event: a snapshot is taken
before the hold it lets go is reported (R6), inputs are released before a terminal report is sent (P10).

Does not: decide or do anything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clusterd.internal import FromWorker, ToWorker
from clusterd.runtime.peeks import Key, PendingPeek
from controller_proto.dataflow import DataflowHeader, Export
from shm_arrangements.frontier import Frontier

__all__ = [
    "Abandon", "ArmFailpoint", "Build", "CloseGraph", "CloseIndex", "CloseView", "Configure", "Effect",
    "Evaluate", "Evaluated", "Event", "Failed", "Flush", "Forget", "Leave", "PageSeen", "PermitWrites",
    "Progressed", "ReadPage", "RoundDone", "Send", "SetCompaction", "ShardMoved", "Stalled", "StartRound",
    "Tell", "UnwatchShard", "Unwritable", "WatchShard",
]  # fmt: skip


class PageSeen(msgspec.Struct, frozen=True):
    """The answer to ReadPage. state: `absent` (not published), `open`, `closed`; of both halves together."""

    key: Key
    state: str
    since: Frontier = Frontier.minimum()
    upper: Frontier = Frontier.minimum()


class RoundDone(msgspec.Struct, frozen=True):
    """The round of dataflow `number` is over and its exports are sealed to `upper`.

    owes: its subscription holds updates until an error is gone.
    """

    number: int
    upper: Frontier
    owes: bool = False


class Progressed(msgspec.Struct, frozen=True):
    """The first round of dataflow `number` has read another part of the updates that its shards had."""

    number: int
    rows_done: int
    rows_expected: int


class Tell(msgspec.Struct, frozen=True):
    """What the subscription or the copy that is dataflow `number` says, before the RoundDone it came of.

    said, lower, ends: as of `internal.Telling`. upper: up to where it was told, with this.
    """

    number: int
    said: bytes
    lower: Frontier
    ends: bool
    upper: Frontier


class ShardMoved(msgspec.Struct, frozen=True):
    """The shard is durable up to `upper`. Also the first answer to WatchShard."""

    name: str
    upper: Frontier


class Stalled(msgspec.Struct, frozen=True):
    """A shard that is read, by its name, or the shard of a view that is written is out of reach, and is tried
    again; or the view is written again: then `code` is empty. A shard that is read says ShardMoved then.
    """

    where: str | Key
    code: str = ""
    message: str = ""
    hint: str = ""


class Unwritable(msgspec.Struct, frozen=True):
    """What is in the view's shard cannot be told any more: the view ends, nothing else does."""

    key: Key
    code: str
    message: str
    hint: str = ""


class Evaluated(msgspec.Struct, frozen=True):
    """`response` is the encoded PeekResponse of a peek that was handed out by Evaluate."""

    session: int
    uuid: str
    response: bytes


class Stashed(msgspec.Struct, frozen=True):
    """The answer of a peek that was handed out by Evaluate is whole, and waits to be taken in parts."""

    session: int
    uuid: str


class PartTaken(msgspec.Struct, frozen=True):
    """`response`: an encoded PeekPart, as SendPart asked for. The last part comes as Evaluated."""

    session: int
    uuid: str
    response: bytes


class WaitedOut(msgspec.Struct, frozen=True):
    """The peek was parked for `limit_s`, as long as it may be."""

    pending: PendingPeek
    limit_s: float


class Failed(msgspec.Struct, frozen=True):
    """Query `number` could not be built or run, for want of a resource: it ends, nothing else does."""

    number: int
    code: str
    message: str
    hint: str = ""


class Flush(msgspec.Struct, frozen=True):
    """The pipe to the multiplexer has room: what was held back to coalesce can go.

    now_us: microseconds since 1970.
    """

    now_us: int = 0


Event = (
    ToWorker | PageSeen | RoundDone | Progressed | Tell | ShardMoved | Stalled | Unwritable | Evaluated
    | Stashed | PartTaken | WaitedOut | Failed | Flush
)  # fmt: skip


class Send(msgspec.Struct, frozen=True):
    """Say `message` to the multiplexer."""

    message: FromWorker


class ReadPage(msgspec.Struct, frozen=True):
    """Read how far another process's collection is; answer with PageSeen.

    stored: of a view, which is in a shard; None of an index, which is published.
    """

    key: Key
    stored: Export | None = None


class Evaluate(msgspec.Struct, frozen=True):
    """Take the collection's snapshot now, and answer the peek from it at `time`, by Evaluated, in time."""

    pending: PendingPeek
    time: int


class Parked(msgspec.Struct, frozen=True):
    """The peek waits from now on; if it does so for too long, say WaitedOut."""

    pending: PendingPeek


class SendPart(msgspec.Struct, frozen=True):
    """The next part of a stashed answer is wanted: PartTaken, or Evaluated if it is the last, in time."""

    session: int
    uuid: str


class Abandon(msgspec.Struct, frozen=True):
    """No answer is owed any more: stop evaluating; what is stashed can go."""

    session: int
    uuid: str


class Build(msgspec.Struct, frozen=True):
    """Render dataflow `number` with writers for its exports.

    In the interactive runtime: first take the snapshots of all imports, in one step (R7).
    """

    number: int
    header: DataflowHeader
    plan: Any
    exports: tuple[Key, ...]
    imports: tuple[Key, ...]


class StartRound(msgspec.Struct, frozen=True):
    """Run `[lower, upper)` in chunks; RoundDone when it is over."""

    number: int
    lower: int
    upper: Frontier


class CloseGraph(msgspec.Struct, frozen=True):
    """Dataflow `number` computes no more: abandon its round, release what it reads. Its indexes stay."""

    number: int


class CloseIndex(msgspec.Struct, frozen=True):
    """Close the collection's page and unlink its segments."""

    key: Key


class CloseView(msgspec.Struct, frozen=True):
    """Write the view no more; what is in its shard stays."""

    key: Key


class PermitWrites(msgspec.Struct, frozen=True):
    """The view may be written, from now on and for good."""

    key: Key


class SetCompaction(msgspec.Struct, frozen=True):
    """The collection's history may be rounded up to `frontier`."""

    key: Key
    frontier: Frontier


class Forget(msgspec.Struct, frozen=True):
    """Nothing here needs the other process's collection any more: let go of its page and snapshot."""

    key: Key


class WatchShard(msgspec.Struct, frozen=True):
    """Follow the shard; answer with ShardMoved, now and whenever it moves."""

    name: str


class UnwatchShard(msgspec.Struct, frozen=True):
    """No dataflow reads the shard any more."""

    name: str


class Configure(msgspec.Struct, frozen=True):
    """Dynamic settings that changed, in force at once."""

    settings: dict[str, bool | int | float | str]


class ArmFailpoint(msgspec.Struct, frozen=True):
    """Test hook."""

    name: str
    action: str


class Leave(msgspec.Struct, frozen=True):
    """Release everything and exit 0."""


Effect = (
    Send | ReadPage | Evaluate | Parked | SendPart | Abandon | Build | StartRound | CloseGraph | CloseIndex
    | CloseView | PermitWrites
    | SetCompaction | Forget | WatchShard | UnwatchShard | Configure | ArmFailpoint | Leave
)  # fmt: skip
