"""SQL: ad-hoc queries at one time over what a replica publishes, and its shards, by DuckDB.

A table is an index, by its id (`u1001`) or the name that its writer gave it, in the same letters; where the
session knows a data directory, a shard by its name, and so a materialized view; or a relation of
introspection (`dataflows`). All tables of a query are read at the same time, each row as often as it occurs,
so the same query `at` the same time gives the same answer for as long as that time may be read. DuckDB's own
parser says which tables a query names, and DuckDB is given those as Arrow: columns of an index that is one
batch, each row once, are its memory itself; others are put together first, and shards are read from their
files. The errors of a collection are raised.

A session keeps its DuckDB and what it has attached, so that a query over small tables takes a few
milliseconds; of an index that was dropped and made anew it attaches to the new one.

Does not: speak to the daemon, wait unless it is told to, let a query write, read files or Python's variables,
need duckdb before the first query.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

import msgspec

from clusterd.client.sql_result import SqlFailed, SqlResult
from clusterd.client.sql_tables import tables_of
from clusterd.client.stored import newest_of_shards, stored_view
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from controller_proto.errors import Refusal
from shm_arrangements.attach import Attached, attach, snapshot, wait_all
from shm_arrangements.errors import NotInstalled, PublicationClosed, WaitTimeout, WriterGone
from shm_arrangements.types import ColumnType
from shm_arrangements.view import ReadView
from shm_arrangements.wait import SLICE_S

__all__ = ["SqlSession", "SqlStopped"]

_ID: Final = re.compile(r"[USTL][0-9]+", re.ASCII)
_EXTENSIONS: Final = {ColumnType.UUID: "arrow.uuid", ColumnType.JSONB: "arrow.json"}
_RECENT: Final = 64
_parents: Final[list[Any]] = []  # databases of the process that this one was forked from
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


class SqlStopped(Exception):
    """The query was stopped by who asked for it."""


class SqlSession:
    """Queries of one replica. Not for use by two threads at once, but for `stop`.

    instance: the token of its shared memory; None for the only one alive at each query. data_dir: where its
    shards are; None: tables are indexes alone.
    """

    def __init__(self, instance: str | None, data_dir: Path | str | None = None) -> None:
        self._instance = instance
        self._data_dir = data_dir
        self._store: Store | None = None
        self._attached: dict[str, Attached] = {}  # by what they were asked for as
        self._database: Any = None
        self._pid = 0
        self._is_stopped = False
        self._named: dict[str, list[str]] = {}  # what recent queries name: to parse one takes 2 ms

    def tables(self, query: str) -> list[str]:
        """The tables that a SELECT names. Raises: SqlFailed; NotInstalled."""
        if query in self._named:
            return self._named[query]
        database = self._open()
        asked = "SELECT json_serialize_sql(?::VARCHAR)"
        [(told,)] = self._execute(lambda: database.execute(asked, [query]).fetchall())
        parsed = msgspec.json.decode(told)
        if parsed["error"]:
            raise SqlFailed(parsed["error_message"])
        if len(parsed["statements"]) != 1:
            raise SqlFailed(f"write one SELECT, not {len(parsed['statements'])}")
        if len(self._named) >= _RECENT:
            self._named.clear()
        found = self._named[query] = tables_of(parsed["statements"][0])
        return found

    def run(
        self,
        query: str,
        at: int | None = None,
        *,
        names: Mapping[str, str] = _NO_NAMES,
        timeout_s: float | None = 0.0,
    ) -> SqlResult:
        """Run one SELECT at `at` (None: the newest time that all the tables it names can be read at).

        names: what tables stand for: an id, or a name as it is published or a shard has it; in any letters.
        timeout_s: how long to wait for `at` to be sealed, of indexes, or for the first time that is (None: as
        long as it takes).

        Raises: SqlFailed; NotInstalled without duckdb; PublicationClosed naming a table that is not there;
        WaitTimeout; SqlStopped; DataError as a table holds it; what else `shm_arrangements.snapshot` raises;
        Refusal of a shard.
        """
        self._is_stopped = False
        meant = {name.lower(): name for name in names}
        tables: dict[str, tuple[str, str]] = {}
        for name in self.tables(query):
            if name.lower() in tables:
                other = tables[name.lower()][0]
                raise SqlFailed(f"{other!r} and {name!r} are one table to SQL, whatever the letters")
            given = meant.get(name.lower())
            tables[name.lower()] = name, name if given is None else names[given]
        wanted = dict(tables.values())
        known = set(self._attached)
        try:
            time, views = self._views(wanted, at, timeout_s)
        except (PublicationClosed, WriterGone):
            if known.isdisjoint(wanted.values()):
                raise
            self._let_go()  # dropped, or begun anew, since we attached
            time, views = self._views(wanted, at, timeout_s)
        return self._query(query, time, views)

    def stop(self) -> None:
        """Have the query that runs end in SqlStopped, soon. From any thread; without a query no effect."""
        self._is_stopped = True
        if self._database is not None:
            self._database.interrupt()

    def close(self) -> None:
        """Let go of everything. A later query begins anew."""
        self._let_go()
        if self._database is not None:
            if self._pid == os.getpid():
                self._database.close()
            else:
                _parents.append(self._database)
        if self._store is not None:
            self._store.close()
        self._database = self._store = None

    def _open(self) -> Any:
        if self._database is not None and self._pid == os.getpid():
            return self._database
        try:
            import duckdb
        except ImportError as error:
            hint = "pip install 'duckdb>=1.0', which the extra `sql` names"
            raise NotInstalled(
                "duckdb, which runs SQL, is not installed", library="duckdb", hint=hint
            ) from error
        if self._database is not None:
            _parents.append(self._database)  # closing it would wait for threads that a fork does not bring
        config: dict[str, Any] = {"enable_external_access": False, "python_enable_replacements": False}
        database = duckdb.connect(":memory:", config=config)
        database.execute("SET TimeZone = 'UTC'")
        self._database = database  # now it may be stopped
        self._pid = os.getpid()
        return self._database

    def _execute(self, do: Callable[[], Any]) -> Any:
        """What DuckDB gives. Raises: SqlFailed, SqlStopped."""
        import duckdb

        try:
            return do()
        except duckdb.InterruptException as error:
            raise SqlStopped("the query was stopped") from error
        except duckdb.Error as error:
            raise SqlFailed(str(error)) from error

    def _query(self, query: str, time: int | None, views: Mapping[str, ReadView]) -> SqlResult:
        database = self._open()
        registered = []
        try:
            for name, view in views.items():
                rows = _arrow_of(name, view)
                registered.append(name)
                self._execute(partial(database.register, name, rows))
            if self._is_stopped:
                raise SqlStopped("the query was stopped")
            return SqlResult(self._execute(lambda: database.sql(query).to_arrow_table()), time)
        finally:
            while registered:
                with contextlib.suppress(SqlStopped):  # it is too late for that
                    self._execute(partial(database.unregister, registered[-1]))
                    registered.pop()

    def _views(
        self, wanted: Mapping[str, str], at: int | None, timeout_s: float | None
    ) -> tuple[int | None, dict[str, ReadView]]:
        """A view of each table, and the one time that all are of."""
        indexes: dict[str, Attached] = {}
        shards: dict[str, Shard] = {}
        for name, meant in wanted.items():
            try:
                indexes[name] = self._index(meant)
            except PublicationClosed:
                shard = self._shard(meant)
                if shard is not None:
                    shards[name] = shard
                elif (id := _relation(meant)) is not None:
                    indexes[name] = self._attached[meant] = self._index(id)
                else:
                    raise
        time = at
        views: dict[str, ReadView] = {}
        if indexes:
            if timeout_s != 0:
                self._wait(indexes.values(), at, timeout_s)
            taken = snapshot(list(indexes.values()), at)
            if at is None and shards and newest_of_shards(shards.values()) < taken.at:
                taken = snapshot(list(indexes.values()), newest_of_shards(shards.values()))
            time = taken.at
            views = dict(zip(indexes, taken, strict=True))
        elif shards and at is None:
            time = newest_of_shards(shards.values())
        for name, shard in shards.items():
            assert time is not None
            views[name] = stored_view(shard, time)
        return time, views

    def _wait(self, indexes: Iterable[Attached], at: int | None, timeout_s: float | None) -> None:
        """Until `at` is sealed, or (None) any time at all. Raises: WaitTimeout, SqlStopped."""
        if at is None:
            for each in indexes:
                since = each.since
                if not since.is_empty and each.upper.less_equal(since.time):
                    self._wait([each], since.time, timeout_s)
            return
        deadline_s = None if timeout_s is None else monotonic() + timeout_s
        waited = list(indexes)
        while not self._is_stopped:
            left_s = SLICE_S if deadline_s is None else deadline_s - monotonic()
            try:
                wait_all(waited, at, min(SLICE_S, max(0.0, left_s)))
            except WaitTimeout as error:
                if left_s <= SLICE_S and deadline_s is not None:
                    error.facts["timeout_s"] = timeout_s
                    raise
            else:
                return
        raise SqlStopped("the query was stopped")

    def _index(self, meant: str) -> Attached:
        found = self._attached.get(meant)
        if found is None:
            id = meant.lower() if _ID.fullmatch(meant) else meant
            found = self._attached[meant] = attach(id, self._instance)
        return found

    def _shard(self, name: str) -> Shard | None:
        if self._data_dir is None:
            return None
        if self._store is None:
            self._store = Store.open(self._data_dir, create=False)
        with contextlib.suppress(Refusal):
            return self._store.shard(name)
        return None

    def _let_go(self) -> None:
        for each in self._attached.values():
            each.close()
        self._attached.clear()


def _relation(name: str) -> str | None:
    """The id of the relation of introspection that is called so."""
    from clusterd.introspection.relations import IDS  # which few queries need

    return IDS.get(name)


def _arrow_of(name: str, view: ReadView) -> Any:
    """Its rows as a pyarrow.RecordBatch; UUIDs and JSON say what they are. Raises: SqlFailed, DataError."""
    specs = view.schema.columns
    if not specs:
        raise SqlFailed(f"{name} has no columns, and SQL has no such table")
    batch = view.scan().to_arrow()
    schema = batch.schema
    for at, spec in enumerate(specs):
        extension = _EXTENSIONS.get(spec.type) if isinstance(spec.type, ColumnType) else None
        if extension is not None:
            told = {"ARROW:extension:name": extension, "ARROW:extension:metadata": ""}
            schema = schema.set(at, schema.field(at).with_metadata(told))
    return batch if schema is batch.schema else type(batch).from_arrays(batch.columns, schema=schema)
