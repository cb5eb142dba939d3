"""Commands, controller to replica. One frozen Struct each; `t` is the tag on the wire.

New fields have defaults. Every command carries `seq` (rising, per connection); a refusal names it. Success is
silent, `Sync` asks for an answer when all before it were validated. Stages are `stage.py`'s.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from controller_proto.dataflow import DataflowHeader, WireFrontier
from controller_proto.expr import Expr
from controller_proto.ids import GlobalId
from controller_proto.plan import OrderBy
from controller_proto.schema import U64, Row, freeze

__all__ = [
    "MAX_WAIT_S", "NO_LIMITS", "PROTOCOL_VERSION", "RUNTIMES", "AllowCompaction", "AllowWrites", "CancelPeek",
    "Command", "CreateDataflow", "CreateInstance", "Finishing", "Hello", "InitializationComplete", "Peek",
    "ReadLimits", "Schedule", "Sync", "TestHook", "UpdateConfiguration",
]  # fmt: skip

PROTOCOL_VERSION = 1
RUNTIMES = ("any", "interactive", "maintenance")  # of `Peek.runtime`
MAX_WAIT_S = 1e9  # 30 years; a peek that may wait for ever says nothing


class _Command(msgspec.Struct, frozen=True, tag_field="t"):
    seq: U64


class Hello(_Command, frozen=True, tag="hello"):
    """First on every connection. kind `controller` fences older ones by `epoch`; `reader` only peeks."""

    nonce: str
    epoch: U64 = 0
    version: U64 = PROTOCOL_VERSION
    kind: str = "controller"
    token: str = ""


class CreateInstance(_Command, frozen=True, tag="create-instance"):
    """Once per controller session, after Hello; begins initialisation. Values are typed by the registry."""

    config: dict[str, bool | int | float | str] = {}


class UpdateConfiguration(_Command, frozen=True, tag="update-configuration"):
    """Dynamic settings, in force at once."""

    config: dict[str, bool | int | float | str] = {}


class InitializationComplete(_Command, frozen=True, tag="initialization-complete"):
    """Ends initialisation: the replica makes its state the one the commands since Hello describe."""


class CreateDataflow(_Command, frozen=True, tag="create-dataflow"):
    """`body` is an encoded `DataflowBody`, left undecoded by the multiplexer."""

    header: DataflowHeader
    body: msgspec.Raw


class Schedule(_Command, frozen=True, tag="schedule"):
    """Permission to compute. A dataflow starts when every export not dropped is scheduled."""

    id: GlobalId


class AllowWrites(_Command, frozen=True, tag="allow-writes"):
    """Sinks of `id` may write. Without effect on an index."""

    id: GlobalId


class AllowCompaction(_Command, frozen=True, tag="allow-compaction"):
    """No new read of `id` will be below `frontier`; the empty frontier drops it."""

    id: GlobalId
    frontier: WireFrontier


class Finishing(msgspec.Struct, frozen=True):
    """Applied in this order: keys, maps, predicates, order_by, offset, limit, projection.

    Columns in predicates and order_by count before the projection; maps append.
    Without order_by rows come sorted by value, column by column, NULL last.
    """

    maps: tuple[Expr, ...] = ()
    predicates: tuple[Expr, ...] = ()
    order_by: tuple[OrderBy, ...] = ()
    limit: U64 | None = None
    offset: U64 = 0
    projection: tuple[int, ...] | None = None


class ReadLimits(msgspec.Struct, frozen=True):
    """What one read may take, each None for as much as the setting of that name allows, else the lesser.

    rows_read: rows the keys select, each once, before any finishing (`max_rows_read`). result_rows: of the
    answer, counting multiplicity (`max_result_rows`). result_bytes: of the answer (`max_result_bytes`).
    run_s: seconds from its time being sealed to its answer being made (`run_limit`).
    """

    rows_read: U64 | None = None
    result_rows: U64 | None = None
    result_bytes: U64 | None = None
    run_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] | None = None


NO_LIMITS = ReadLimits()


class Peek(_Command, frozen=True, tag="peek"):
    """Read index `id` at `time` (None: the newest sealed time). `keys` None: all rows; `[]`: none.

    Answered exactly once, by a PeekResponse with the same uuid.
    wait_s: the longest it may be parked, in seconds; then the answer is `wait-limit`, as it is after the
        time that the setting `wait_limit` says, if that is less.
    runtime: which one should answer, heard where `read_routing` is `hinted`; either gives the same answer.
    """

    uuid: str
    id: GlobalId
    time: U64 | None
    keys: tuple[Row, ...] | None = None
    finishing: Finishing = Finishing()
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] | None = None
    runtime: Literal["any", "interactive", "maintenance"] = "any"
    limits: ReadLimits = NO_LIMITS

    def __post_init__(self) -> None:
        if self.keys:
            msgspec.structs.force_setattr(self, "keys", tuple(map(freeze, self.keys)))


class CancelPeek(_Command, frozen=True, tag="cancel-peek"):
    """The peek may be answered `canceled`; its answer may be on its way already.

    session: whose peek it is, as the relation `peeks_active` names sessions; 0 is this connection's own.
    """

    uuid: str
    session: U64 = 0


class Sync(_Command, frozen=True, tag="sync"):
    """Answered by Synced when every earlier command of the connection has been validated by its owner."""


class TestHook(_Command, frozen=True, tag="test-hook"):
    """Only honoured by a daemon started with --test-hooks; else refused `unauthorized`.

    process: `mux`, `maintenance/0`, `interactive/0`. action: `stall`, `release`, or `failpoint:ACTION` with
    `name`.
    """

    __test__: ClassVar[bool] = False  # by its name pytest would take it for a class of tests

    process: str
    action: str
    name: str = ""


Command = (
    Hello | CreateInstance | UpdateConfiguration | InitializationComplete | CreateDataflow | Schedule
    | AllowWrites | AllowCompaction | Peek | CancelPeek | Sync | TestHook
)  # fmt: skip
