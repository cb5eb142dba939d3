"""Modes: at which time a read reads, and for what it waits.

| at | reads | waits |
|---|---|---|
| `"latest"` | the newest sealed time | never, once anything is sealed |
| a time | that time | until it is sealed |
| `Bounded(behind=n)` | the newest sealed time | never: TooStale if that is more than n times behind |
| `"strict"` | what was written when it was asked for | until that is sealed |

What was written is the newest time up to which all shards that a collection is made of are sealed, through
other indexes and views too; the client looks when the read begins. So a strict read sees every write that had
ended before it began, and a bound is never judged by what was written later. It knows the shards only of what
it created. Peeks, counts, queries and SQL have the same modes; of several inputs or tables, one time is read,
and what was written is judged by the shards of all of them. Each answer says its `time`.

Does not: wait; the operations here say for what.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterd.client import peeks
from clusterd.client.answer import Answer, PeekFailed
from clusterd.client.arguments import LAST_TIME, read_time_of
from clusterd.client.core import Core
from clusterd.client.dataflows import Dataflows
from clusterd.client.handle import Handle, Standing
from clusterd.client.operation import Operation
from clusterd.client.peeks import At, Bounded, PeekOptions
from controller_proto.dataflow import WireFrontier
from controller_proto.plan import Plan

__all__ = ["TooStale", "newest_of", "query", "read", "written_to"]


class TooStale(Exception):
    """A bounded read found the collection too far behind. time: newest sealed, None if nothing is; written:
    what it was measured by; behind: what was allowed. Read again later, or `at="strict"`, which waits.
    """

    def __init__(self, id: str, time: int | None, written: int, behind: int) -> None:
        sealed = "nothing is sealed" if time is None else f"{time} is sealed, {written - time} behind"
        hint = "allow more, or read at='strict', which waits"
        super().__init__(f"{id}: {written} is written and {sealed}; {behind} behind is allowed; {hint}")
        self.time = time
        self.written = written
        self.behind = behind


def read(
    core: Core, dataflows: Dataflows, of: Standing, timeout_s: float | None, options: PeekOptions
) -> Operation[Answer]:
    """A peek in any mode. Raises as `peeks.peek`; TooStale; LocalProtocolError where the shards are not
    known.
    """
    at = options.get("at")
    if isinstance(at, Bounded):
        written = yield from written_to(dataflows, [of])
        return (yield from _bounded(core, of, timeout_s, options, written, at.behind))
    if at == "strict":
        written = yield from written_to(dataflows, [of])
        options = {**options, "at": written}
    return (yield from peeks.peek(core, of, timeout_s, options))


def query(
    dataflows: Dataflows,
    on: str | Plan | Handle,
    at: At,
    names: Sequence[str] | None,
    timeout_s: float | None,
) -> Operation[Answer]:
    """As `Client.query`. A bound is judged before anything is computed."""
    time = None if at == "strict" or isinstance(at, Bounded) else read_time_of(at)
    plan = yield from dataflows.input(on)
    reads = dataflows.reads(plan)
    if at == "strict" and reads:
        time = yield from written_to(dataflows, reads)
    elif time is None:
        time = yield from dataflows.newest(plan)
    if isinstance(at, Bounded) and reads:
        written = yield from written_to(dataflows, reads)
        if time < written - at.behind:
            raise TooStale("the query", time, written, at.behind)
    return (yield from dataflows.query(plan, time, names, timeout_s))


def written_to(dataflows: Dataflows, reads: Iterable[Standing | str]) -> Operation[int]:
    """The newest time up to which what these are made of is there; a text is the name of a shard. Raises
    LocalProtocolError if we cannot know.
    """
    uppers: list[WireFrontier] = []
    since = 0
    for one in reads:
        uppers += yield from dataflows.uppers(one)
        since = max(since, 0 if isinstance(one, str) else one.since)
    return newest_of(uppers, since)


def newest_of(uppers: Iterable[WireFrontier], since: int) -> int:
    """The newest time up to which everything is there, but not before `since`, where reading begins.

    >>> newest_of([(4,), (7,), ()], 0), newest_of([(0,)], 2), newest_of([()], 0) == LAST_TIME
    (3, 2, True)
    """
    return max(since, min((upper[0] - 1 for upper in uppers if upper), default=LAST_TIME))


def _bounded(
    core: Core, of: Standing, timeout_s: float | None, options: PeekOptions, written: int, behind: int
) -> Operation[Answer]:
    id = of.export.id
    try:
        answer = yield from peeks.peek(core, of, timeout_s, {**options, "at": "latest", "wait_s": 0.0})
    except PeekFailed as error:
        if error.code == "wait-limit":
            raise TooStale(id, None, written, behind) from error
        raise
    if answer.time is not None and answer.time < written - behind:
        raise TooStale(id, answer.time, written, behind)
    return answer
