"""Load a file of rows into a shard, as one append: all of its rows, or none.

Rows get their times from a column of the file: an integer is the time itself, a timestamp counts as
microseconds since 1970-01-01 UTC. The column stays in the rows. Times have to be at or beyond the shard's
upper, for what is sealed cannot change; the shard is then sealed up to one past the greatest time.

Does not: stream (the file's columns are in memory at once, since rows must be sorted by time); print.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from clusterd.convert import column_specs, type_name_of
from clusterd.storage.arrow import column_from_arrow, schema_from_arrow
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from clusterd.storage.tables import open_source
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements.columns import Column
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["Loaded", "load_file", "updates_from_table"]

_TIMES = (
    ColumnType.INT16, ColumnType.INT32, ColumnType.INT64, ColumnType.UINT16, ColumnType.UINT32,
    ColumnType.UINT64, ColumnType.TIMESTAMP, ColumnType.TIMESTAMPTZ,
)  # fmt: skip


class Loaded(msgspec.Struct, frozen=True):
    """What a load did; times are None for a file without rows."""

    rows: int
    min_time: int | None
    max_time: int | None
    upper: tuple[int, ...]


def load_file(
    store: Store,
    file: Path,
    shard_name: str,
    time_column: str,
    *,
    asked: Schema | None = None,
    progress: Callable[[int, int | None], None],
) -> Loaded:
    """Append the rows of `file` to the shard, which is made with them in it if it is not there.

    The types are those of the shard, or of `asked`, which have to hold every value exactly; where there is
    neither, those that hold what the file's types do (arrow.py). `progress(rows done, of rows)` is called
    meanwhile; of rows is None if the file does not say.

    Raises Refusal: `format-mismatch` (no such file, or a broken one), `schema-mismatch` (a column, or the
    time column, or a value), `upper-mismatch` (times that are sealed, or another writer was faster).
    """
    if asked is None and store.has_shard(shard_name):
        asked = store.shard(shard_name).schema
    with open_source(file, asked) as source:
        schema = schema_from_arrow(source.schema) if asked is None else _checked(source.schema, asked)
        specs = column_specs(schema)
        at = _time_position(specs, time_column)
        if store.has_shard(shard_name):
            store.create_shard(shard_name, schema)  # refuses another schema before anything is read
        done = 0
        pieces = []
        for table in source.pieces:
            pieces.append(updates_from_table(table, specs, at))
            done += len(pieces[-1])
            progress(done, source.rows)
    if not done:
        return Loaded(0, None, None, store.create_shard(shard_name, schema).upper.to_wire())
    updates = Updates.concat(pieces)
    least, most = int(updates.times.min()), int(updates.times.max())
    new_upper = Frontier.empty() if most == MAX_TIME else Frontier.at(most + 1)

    def append(shard: Shard) -> None:
        upper = shard.upper
        if not upper.less_equal(least):
            raise _sealed(shard_name, upper, least)
        shard.append(updates, upper, Frontier.join(upper, new_upper))

    shard = store.create_shard(shard_name, schema, fill=append)
    return Loaded(done, least, most, shard.upper.to_wire())


def _checked(found: Any, asked: Schema) -> Schema:
    """`asked`, if the file has these columns, and of types that go with them."""
    wanted = [column.name for column in asked.columns]
    if sorted(found.names) != sorted(wanted):
        raise Refusal(
            "schema-mismatch", f"the file has columns {', '.join(found.names)}, not {', '.join(wanted)}"
        )
    for spec in column_specs(asked):
        column_from_arrow(pa.array([], found.field(spec.name).type), spec)
    return asked


def _sealed(name: str, upper: Frontier, least: int) -> Refusal:
    if upper.is_empty:
        return Refusal("upper-mismatch", f"shard {name!r} has ended", "load into another shard")
    return Refusal(
        "upper-mismatch",
        f"shard {name!r} already holds times up to {upper.time - 1}, and the file has rows at {least}",
        "what is sealed cannot change; if this file was loaded before, there is nothing to do",
    )


def _time_position(specs: tuple[ColumnSpec, ...], name: str) -> int:
    names = [spec.name for spec in specs]
    if name not in names:
        raise Refusal(
            "schema-mismatch", f"no column {name!r} to take times from", f"there are: {', '.join(names)}"
        )
    spec = specs[names.index(name)]
    if spec.type not in _TIMES:
        kind = type_name_of(spec.type, spec.scale)
        raise Refusal(
            "schema-mismatch", f"time column {name!r} is {kind}", "an integer or timestamp is needed"
        )
    return names.index(name)


def updates_from_table(table: Any, specs: tuple[ColumnSpec, ...], time_position: int) -> Updates:
    """The rows of a `pa.Table` with columns of these names, once each, at the times that the column at
    `time_position` says.

    Raises Refusal(`schema-mismatch`) if a time is NULL or negative, or a value has no place in its column.
    """
    columns = tuple(column_from_arrow(table.column(spec.name), spec) for spec in specs)
    return Updates(
        columns, _times(columns[time_position], specs[time_position].name), np.ones(len(table), np.int64)
    )


def _times(column: Column, name: str) -> Any:
    if column.null_count:
        raise Refusal("schema-mismatch", f"time column {name!r} has {column.null_count} NULLs")
    if len(column) and int(column.values.min()) < 0:
        raise Refusal(
            "schema-mismatch", f"time column {name!r} has the negative time {int(column.values.min())}"
        )
    return column.values.astype(np.uint64)
