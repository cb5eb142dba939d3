"""Peeks: what is asked for, as a command; what came, as an Answer or an exception.

Does not: wait; the operations here say for what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict
from uuid import uuid4

from clusterd.client.answer import Answer, PeekCanceled, PeekFailed
from clusterd.client.arguments import order_of, position_of, read_time_of, require_list
from clusterd.client.core import Asked, Core
from clusterd.client.handle import Standing
from clusterd.client.operation import Operation, Wait
from clusterd.client.values import key_rows
from controller_proto import command, response
from controller_proto.command import MAX_WAIT_S, NO_LIMITS, RUNTIMES, ReadLimits
from controller_proto.dataflow import WireFrontier
from controller_proto.errors import Disconnected, LocalProtocolError, Refusal
from controller_proto.expr import Expr
from controller_proto.ids import GlobalId
from controller_proto.parse_expr import parse_expr
from controller_proto.plan import OrderBy
from controller_proto.validate import validate_peek

__all__ = ["At", "Bounded", "PeekOptions", "peek", "start_peek", "wait_answer", "wait_frontier"]


@dataclass(frozen=True, slots=True)
class Bounded:
    """As `at`: the newest sealed time, if it is at most `behind` times behind what was written."""

    behind: int

    def __post_init__(self) -> None:
        if isinstance(self.behind, bool) or not isinstance(self.behind, int) or self.behind < 0:
            raise ValueError(f"behind must be a number of times, from 0 on, it is {self.behind!r}")


At: TypeAlias = int | Literal["latest", "strict"] | Bounded | None
"""At which time to read, as modes.py says; None is `latest`."""


class PeekOptions(TypedDict, total=False):
    """What a peek may say, as keywords.

    at: a time, answered when that is sealed; `latest`, the default (None is the same): the newest sealed
    time, which the answer names as `time`; or, but for `start_peek`, `strict` or Bounded, as modes.py says.
    keys: values (or tuples, for a key of several columns) of the index's key; None, the default, is all rows.
    where: predicates, as expressions or their text (`#1 > 5`). order_by: names, or OrderBy; without, rows
    come sorted by value. limit, offset: of rows, each counted as often as it occurs. select: columns to
    return. wait_s: the longest that the replica has it wait for its time, answered `wait-limit` then. limits:
    of what it may take, answered `limit`, `result-too-large` or `timeout` beyond. runtime: `interactive` or
    `maintenance`, who should answer, where `read_routing` is `hinted`.
    """

    at: At
    keys: Sequence[Any] | None
    where: Sequence[Expr | str]
    order_by: Sequence[str | OrderBy]
    limit: int | None
    offset: int
    select: Sequence[str] | None
    wait_s: float | None
    limits: ReadLimits
    runtime: Literal["any", "interactive", "maintenance"]


def start_peek(
    core: Core,
    of: Standing,
    *,
    at: At = None,
    keys: Sequence[Any] | None = None,
    where: Sequence[Expr | str] = (),
    order_by: Sequence[str | OrderBy] = (),
    limit: int | None = None,
    offset: int = 0,
    select: Sequence[str] | None = None,
    wait_s: float | None = None,
    limits: ReadLimits = NO_LIMITS,
    runtime: Literal["any", "interactive", "maintenance"] = "any",
) -> str:
    """Say a peek; PeekOptions says what of. Returns its uuid.

    Raises TypeError, ValueError, Refusal(`invalid-plan`) for arguments that cannot be meant.
    """
    time = read_time_of(at)
    for name, given in (("keys", keys), ("where", where), ("order_by", order_by), ("select", select)):
        require_list(name, given)
    schema = of.export.schema
    finishing = command.Finishing(
        predicates=tuple(parse_expr(each) if isinstance(each, str) else each for each in where),
        order_by=tuple(order_of(schema, each) for each in order_by),
        limit=limit,
        offset=offset,
        projection=None if select is None else tuple(position_of(schema, name) for name in select),
    )
    rows = None if keys is None else key_rows([schema.columns[i] for i in of.export.key], keys)
    uuid = uuid4().hex
    if wait_s is not None and not 0 <= wait_s <= MAX_WAIT_S:
        raise ValueError(f"wait_s must be seconds, up to {MAX_WAIT_S:g}, it is {wait_s!r}")
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime must be one of {', '.join(RUNTIMES)}, it is {runtime!r}")
    _require_limits(limits)
    said = command.Peek(
        0,
        uuid=uuid,
        id=of.export.id,
        time=time,
        keys=rows,
        finishing=finishing,
        wait_s=wait_s,
        runtime=runtime,
        limits=limits,
    )
    core.ask(said, Asked(of, time, validate_peek(said, of.export)))
    return uuid


def _require_limits(limits: ReadLimits) -> None:
    """Raises ValueError, TypeError, as what the replica would refuse to decode."""
    if not isinstance(limits, ReadLimits):
        raise TypeError(f"limits must be ReadLimits(rows_read=.., run_s=..), not {limits!r}")
    for name in ("rows_read", "result_rows", "result_bytes"):
        most = getattr(limits, name)
        if most is not None and (
            isinstance(most, bool) or not isinstance(most, int) or not 0 <= most < 1 << 64
        ):
            raise ValueError(f"limits.{name} must be a number, from 0 on, it is {most!r}")
    if limits.run_s is not None and not 0 <= limits.run_s <= MAX_WAIT_S:
        raise ValueError(f"limits.run_s must be seconds, up to {MAX_WAIT_S:g}, it is {limits.run_s!r}")


def wait_answer(core: Core, uuid: str, timeout_s: float | None) -> Operation[Answer]:
    """The answer of a started peek. Raises PeekFailed, PeekCanceled, TimeoutError; whoever gives up waiting
    cancels it, but for a lost connection: `reconnect` asks again.
    """
    asked = core.asked.get(uuid)
    if asked is None:
        message = f"no answer to a peek {uuid!r} is owed"
        raise LocalProtocolError("unknown-id", message, "await what start_peek returned, once")
    try:
        yield Wait(("peek", uuid), lambda: core.is_answered(uuid), timeout_s)
    except Disconnected:
        raise
    except BaseException as error:
        core.forget_peek(uuid)
        if isinstance(error, TimeoutError):
            of = asked.of
            raise TimeoutError(_late(core, of.export.id, asked.at, timeout_s, of.since)) from None
        raise
    answer = core.take_answer(uuid)
    match answer.result:
        case response.PeekRows() as rows:
            return Answer(asked.schema, rows, answer.time, answer.served_by)
        case response.PeekError(code, message, hint):
            raise PeekFailed(code, message, hint)
        case _:
            raise PeekCanceled(uuid)


def peek(core: Core, of: Standing, timeout_s: float | None, options: PeekOptions) -> Operation[Answer]:
    """Ask and wait. Raises as both; after a lost connection it is not asked again."""
    uuid = start_peek(core, of, **options)
    try:
        return (yield from wait_answer(core, uuid, timeout_s))
    except Disconnected:
        core.forget_peek(uuid)
        raise


def wait_frontier(core: Core, id: GlobalId, time: int, timeout_s: float | None) -> Operation[None]:
    """Wait until the write frontier of `id` is at or beyond `time`. Raises TimeoutError."""

    def reached() -> bool:
        found = core.frontier(id)
        return found is not None and (found == () or found[0] >= time)

    try:
        yield Wait(("frontier", id), reached, timeout_s)
    except TimeoutError:
        raise TimeoutError(_late(core, id, max(0, time - 1), timeout_s)) from None


def wait_hydrated(core: Core, id: GlobalId, timeout_s: float | None) -> Operation[response.Status]:
    """Wait until `id` is hydrated. Raises Refusal if it is errored; TimeoutError."""

    def settled() -> bool:
        found = core.statuses.get(id)
        return found is not None and found.status in ("hydrated", "errored")

    try:
        yield Wait(("status", id), settled, timeout_s)
    except TimeoutError:
        found = core.statuses.get(id)
        state = "nothing was heard of it" if found is None else f"it is {found.status}"
        why = f": {found.code}: {found.message}" if found is not None and found.code else ""
        raise TimeoutError(f"{id} is not hydrated after {timeout_s:g} s: {state}{why}") from None
    found = core.statuses[id]
    if found.status == "errored":
        raise Refusal(found.code, found.message, found.hint)
    return found


def _late(core: Core, id: GlobalId, at: int | None, timeout_s: float | None, since: int = 0) -> str:
    """Why `id` is not there at `at` yet, as far as we were told."""
    found = core.frontier(id)
    asked = f"{id} at {'newest' if at is None else at}"
    after = f"after {timeout_s:g} s"
    if found is not None and (found == () or found[0] > (since if at is None else at)):
        return f"{asked}: sealed (frontier {_braced(found)}), but not answered {after}"
    hint = "write to or advance its shards, or schedule it"
    if found is None:
        return f"{asked}: no frontier was heard {after}; {hint}"
    what = "nothing is sealed yet" if found[0] <= since else "that time is not sealed yet"
    return f"{asked}: {what} (frontier {_braced(found)}) {after}; {hint}"


def _braced(frontier: WireFrontier) -> str:
    return f"{{{', '.join(map(str, frontier))}}}"
