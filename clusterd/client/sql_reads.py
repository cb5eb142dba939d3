"""SQL in any mode of reading: at which time, and what has to be there first; then the query.

Modes are those of modes.py, for all tables of a query together: what was written is the newest time up to
which every shard under any of them is sealed, and one time is read.

Does not: run the query (sql.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TypeAlias, TypeVar

from clusterd.client import peeks
from clusterd.client.answer import PeekFailed
from clusterd.client.arguments import read_time_of
from clusterd.client.core import Core
from clusterd.client.dataflows import Dataflows
from clusterd.client.handle import Handle, Standing
from clusterd.client.modes import TooStale, written_to
from clusterd.client.operation import Operation, Work
from clusterd.client.peeks import At, Bounded
from clusterd.client.sql import SqlSession
from clusterd.client.sql_result import SqlResult
from clusterd.introspection.relations import IDS
from shm_arrangements.errors import NotSealed

__all__ = ["Names", "sql"]

T = TypeVar("T")

_THE_TABLES = "the tables of the query"

Names: TypeAlias = Mapping[str, Handle | str]
"""What tables of a query stand for: what created them returned, or an id or name."""


def sql(
    core: Core,
    dataflows: Dataflows,
    session: SqlSession,
    query: str,
    at: At,
    names: Names | None,
    timeout_s: float | None,
) -> Operation[SqlResult]:
    """As `Client.sql`."""
    meant = _meant(dataflows, names or {})
    time = None if at == "strict" or isinstance(at, Bounded) else read_time_of(at)
    written = 0
    tables: list[str] = yield _work(session, partial(session.tables, query))
    if time is None and (relations := [name for name in tables if name in IDS and name not in meant]):
        with suppress(PeekFailed):  # it has none: then it is another table that is meant, or none
            yield from dataflows.relation(relations[0])  # asked for, all of them are of now
    if time is not None or at == "strict" or isinstance(at, Bounded):
        standing = [_standing(dataflows, meant, name) for name in tables]
        if time is None:
            reads = [name if one is None else one for name, one in zip(tables, standing, strict=True)]
            written = yield from written_to(dataflows, reads)
            time = written if at == "strict" else None
        deadline_s = None if timeout_s is None else monotonic() + timeout_s
        for one in standing:
            if time is not None and one is not None:  # the others are waited for where they are
                left_s = None if deadline_s is None else max(0.0, deadline_s - monotonic())
                yield from peeks.wait_frontier(core, one.export.id, time + 1, left_s)
    named = {name: where for name, (where, _) in meant.items()}
    wait_s = 0.0 if isinstance(at, Bounded) else timeout_s
    try:
        result: SqlResult = yield _work(
            session, partial(session.run, query, time, names=named, timeout_s=wait_s)
        )
    except NotSealed as error:
        if isinstance(at, Bounded):
            raise TooStale(_THE_TABLES, None, written, at.behind) from error
        raise
    if isinstance(at, Bounded) and result.time is not None and result.time < written - at.behind:
        raise TooStale(_THE_TABLES, result.time, written, at.behind)
    return result


def _work(session: SqlSession, do: Callable[[], T]) -> Work[T]:
    return Work(do, session.stop)


def _meant(dataflows: Dataflows, names: Names) -> dict[str, tuple[str, Standing | None]]:
    """By name: where it is found, an id or the shard of a view, and what it is if we know it."""
    found = {id: (one.export.shard or id, one) for id, one in dataflows.standing.items() if one.export.shard}
    made: dict[str, tuple[str, Standing | None]] = {**found}
    for name, given in names.items():
        one = given.standing if isinstance(given, Handle) else dataflows.standing.get(given)
        where = given if isinstance(given, str) else given.id
        made[name] = (where if one is None else one.export.shard or one.export.id, one)
    return made


def _standing(
    dataflows: Dataflows, meant: Mapping[str, tuple[str, Standing | None]], name: str
) -> Standing | None:
    if name in meant:
        return meant[name][1]
    of_shard = (one for one in dataflows.standing.values() if one.export.shard == name)
    return dataflows.standing.get(name) or next(of_shard, None)
