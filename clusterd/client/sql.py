"""SQL: ad-hoc queries of published indexes at one time, by DuckDB over their shared memory.

A table is an index: its id (`u1001`), or the name that its writer gave it, in the same letters. All tables of
a query are read at the same time, of one snapshot, so the same query `at` the same time gives the same answer
for as long as that time may be read. DuckDB's own parser says which tables a query names, and DuckDB is given
those as Arrow: columns of an index that is one batch, each row once, are its memory itself; others are put
together first. The errors of a collection are raised.

Does not: speak to the daemon, wait, let a query read files or Python's variables, need duckdb before it is
called. Text of jsonb, and the bytes of a uuid, come as they are stored.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec

from shm_arrangements.attach import attach, snapshot
from shm_arrangements.errors import NotInstalled

__all__ = ["SqlFailed", "SqlResult", "run_sql"]


class SqlFailed(Exception):
    """DuckDB refused the query; its message says why and where."""


class SqlResult:
    """The rows of a query; `time` is that of all its tables, None without any."""

    __slots__ = ("_table", "time")

    def __init__(self, table: Any, time: int | None) -> None:
        self._table = table
        self.time = time

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def rows(self) -> list[tuple[Any, ...]]:
        """Every row as a tuple of Python values; NULL is None."""
        if not self._table.num_columns:
            return []
        return list(zip(*(column.to_pylist() for column in self._table.columns), strict=True))

    def dicts(self) -> list[dict[str, Any]]:
        """`rows()`, each as a dict by column name."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows()]

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return self._table

    def to_pandas(self) -> Any:
        """A pandas.DataFrame, as Arrow makes it. Raises: NotInstalled."""
        try:
            return self._table.to_pandas()
        except ImportError as error:
            hint = "pip install pandas, or use to_arrow()"
            raise NotInstalled("pandas is not installed", library="pandas", hint=hint) from error


def run_sql(query: str, instance: str | None, at: int | None = None) -> SqlResult:
    """Run one SELECT over what an instance (None: the only one alive) publishes, at `at` (None: the newest
    time that all the indexes it names can be read at).

    Raises: SqlFailed; NotInstalled without duckdb; PublicationClosed naming an index that is not there;
    DataError as an index holds it; what else `shm_arrangements.snapshot` raises.
    """
    try:
        import duckdb
    except ImportError as error:
        hint = "pip install 'duckdb>=1.0'"
        raise NotInstalled("duckdb, which runs SQL, is not installed", library="duckdb", hint=hint) from error
    config: dict[str, Any] = {"enable_external_access": False, "python_enable_replacements": False}
    time = at
    with ExitStack() as stack:
        database = stack.enter_context(duckdb.connect(":memory:", config=config))
        try:
            names = _tables_of(database, query)
            attached = [stack.enter_context(attach(name, instance)) for name in names]
            if attached:
                views = snapshot(attached, at)
                time = views.at
                for name, view in zip(names, views, strict=True):
                    database.register(name, view.scan().to_arrow())
            return SqlResult(database.sql(query).to_arrow_table(), time)
        except duckdb.Error as error:
            raise SqlFailed(str(error)) from error


def _tables_of(database: Any, query: str) -> list[str]:
    """The tables that a query names, but for those that it makes itself (WITH). Raises: SqlFailed."""
    [(told,)] = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    parsed = msgspec.json.decode(told)
    if parsed["error"]:
        raise SqlFailed(parsed["error_message"])
    if len(parsed["statements"]) != 1:
        raise SqlFailed(f"write one SELECT, not {len(parsed['statements'])}")
    found: dict[str, None] = {}
    made: set[str] = set()
    stack: list[Any] = [parsed["statements"]]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        elif isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                found[node["table_name"]] = None
            made.update(each["key"].lower() for each in node.get("cte_map", {}).get("map", ()))
            stack += node.values()
    return sorted(name for name in found if name.lower() not in made)
