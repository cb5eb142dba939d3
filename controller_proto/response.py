"""Responses, replica to controller. One frozen Struct each; `t` is the tag on the wire.

`Refused`, `Synced`, `Closing` are about the conversation; `Frontiers`, `Status`, `PeekPart`, `PeekResponse`,
`SubscribeResponse` and `CopyToResponse` about collections.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from controller_proto.dataflow import WireFrontier
from controller_proto.ids import GlobalId
from controller_proto.schema import U64, Scalar, freeze

__all__ = [
    "STATES", "Closing", "Copied", "CopyError", "CopyToResponse", "DroppedAt", "Frontiers", "PeekCanceled",
    "PeekError", "PeekPart", "PeekResponse", "PeekResult", "PeekRows", "Refused", "Response", "State",
    "Status", "SubscribeBatch", "SubscribeError", "SubscribeResponse", "SubscribeUpdates", "Synced",
]  # fmt: skip


class Refused(msgspec.Struct, frozen=True, tag="refused", tag_field="t"):
    """The command `seq` was refused and had no effect. seq 0: the message could not be read that far."""

    seq: int
    code: str
    message: str
    hint: str = ""


class Synced(msgspec.Struct, frozen=True, tag="synced", tag_field="t"):
    """Every command up to and including the Sync with this `seq` has been validated."""

    seq: int


class Closing(msgspec.Struct, frozen=True, tag="closing", tag_field="t"):
    """Last message on a connection that the replica closes: `fenced`, `bad-frame`, `frame-too-large`, ..."""

    code: str
    message: str
    hint: str = ""


class Frontiers(msgspec.Struct, frozen=True, tag="frontiers", tag_field="t"):
    """Absent (None) means unchanged. Never lower than before in this session; empty is final."""

    id: GlobalId
    write: WireFrontier | None = None
    input: WireFrontier | None = None
    output: WireFrontier | None = None


State = Literal["created", "scheduled", "hydrating", "hydrated", "stalled", "errored"]
STATES: tuple[State, ...] = ("created", "scheduled", "hydrating", "hydrated", "stalled", "errored")


class Status(msgspec.Struct, frozen=True, tag="status", tag_field="t"):
    """How far collection `id` is on its way to `as_of`; told for people, nothing may depend on it.

    runtime: `maintenance`, `interactive` or `solo`. rows_done: updates of its shards that its first round has
    read, of the `rows_expected` that were there when it began (0: not known). since: microseconds since 1970
    from which on it is in this state. code, message, hint: why it is `stalled` or `errored`.
    """

    id: GlobalId
    status: State
    runtime: str
    rows_done: U64 = 0
    rows_expected: U64 = 0
    since: U64 = 0
    code: str = ""
    message: str = ""
    hint: str = ""


class PeekRows(msgspec.Struct, frozen=True, tag="rows", tag_field="k"):
    """columns[c][i] is the value of column c in row i; counts[i] its multiplicity (> 0).

    Columns and not rows: the daemon converts whole columns at once. Zero-column results still have counts.
    parts: how many PeekPart of this peek came before; their rows, in the order they came, are before these.
    """

    columns: tuple[tuple[Scalar, ...], ...]
    counts: tuple[int, ...]
    parts: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "columns", tuple(map(freeze, self.columns)))


class PeekError(msgspec.Struct, frozen=True, tag="error", tag_field="k"):
    """The answer is an error: of the request, or in the data at that time."""

    code: str
    message: str
    hint: str = ""


class PeekCanceled(msgspec.Struct, frozen=True, tag="canceled", tag_field="k"):
    """A CancelPeek came before the answer."""


class PeekPart(msgspec.Struct, frozen=True, tag="peek-part", tag_field="t"):
    """Rows, as in PeekRows, of an answer too large for one message; the PeekResponse is the end of it.

    Void if that is not rows: a peek may be canceled, or fail, until its PeekResponse.
    """

    uuid: str
    columns: tuple[tuple[Scalar, ...], ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "columns", tuple(map(freeze, self.columns)))


PeekResult = PeekRows | PeekError | PeekCanceled


class PeekResponse(msgspec.Struct, frozen=True, tag="peek", tag_field="t"):
    """One per peek. `time` is the time read at (None if it never came to that); `served_by` the role."""

    uuid: str
    result: PeekResult
    time: int | None = None
    served_by: str = ""


class SubscribeUpdates(msgspec.Struct, frozen=True, tag="updates", tag_field="k"):
    """Columns as in PeekRows; the update of row i is at times[i], its diff diffs[i] (not 0).

    Consolidated, sorted by time. `more`: the next message goes on with the same interval.
    """

    columns: tuple[tuple[Scalar, ...], ...]
    times: tuple[U64, ...]
    diffs: tuple[int, ...]
    more: bool = False

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "columns", tuple(map(freeze, self.columns)))


class SubscribeError(msgspec.Struct, frozen=True, tag="error", tag_field="k"):
    """There is an error in the collection, all through the interval."""

    code: str
    message: str
    hint: str = ""


class SubscribeBatch(msgspec.Struct, frozen=True, tag="batch", tag_field="k"):
    """All that changed in [lower, upper). Lower is the upper of the batch before, at first 0.

    The empty upper is the end: inputs ended, or `up_to` was reached. The first updates after an error carry
    the whole difference since the last ones, at the first time without it, so the sum of all updates is the
    collection at `upper`.
    """

    lower: U64
    upper: WireFrontier
    contents: SubscribeUpdates | SubscribeError


class DroppedAt(msgspec.Struct, frozen=True, tag="dropped-at", tag_field="k"):
    """The end, before its time: nothing is told from `upper` on. code: `dropped`, `limit`."""

    upper: WireFrontier
    code: str
    message: str
    hint: str = ""


class SubscribeResponse(msgspec.Struct, frozen=True, tag="subscribe", tag_field="t"):
    """Of the subscription `id`. Batches tile time; after an empty upper, or DroppedAt, nothing comes."""

    id: GlobalId
    said: SubscribeBatch | DroppedAt


class Copied(msgspec.Struct, frozen=True, tag="copied", tag_field="k"):
    """The file is there, whole. rows: in it, each as often as it is in the collection."""

    rows: U64


class CopyError(msgspec.Struct, frozen=True, tag="error", tag_field="k"):
    """There is no file: for an error in the data, in writing, or because it was dropped (`dropped`)."""

    code: str
    message: str
    hint: str = ""


class CopyToResponse(msgspec.Struct, frozen=True, tag="copy-to", tag_field="t"):
    """Of the copy `id`. One, ever."""

    id: GlobalId
    result: Copied | CopyError


Response = (
    Refused | Synced | Closing | Frontiers | Status | PeekPart | PeekResponse | SubscribeResponse
    | CopyToResponse
)  # fmt: skip
