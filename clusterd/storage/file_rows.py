"""Rows of a file as the shard has them: its columns of the shard's types, and a time for each row.

Every value is checked here, before anything is appended; what cannot be taken is refused with the file, the
row and the column.

Does not: read files (tables.py), append (load.py).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clusterd.convert import column_specs, type_name_of
from clusterd.storage.arrow import column_from_arrow, schema_from_arrow
from clusterd.storage.refused import at_row, find_refused
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements.columns import Bools, Column
from shm_arrangements.rows import RowSpec, Words, encode
from shm_arrangements.types import ColumnSpec, ColumnType

__all__ = ["columns_of", "equal_to", "file_schema", "position_of", "times_of", "validate_time_column"]

_TIMES = (
    ColumnType.INT16, ColumnType.INT32, ColumnType.INT64, ColumnType.UINT16, ColumnType.UINT32,
    ColumnType.UINT64, ColumnType.TIMESTAMP, ColumnType.TIMESTAMPTZ,
)  # fmt: skip


def file_schema(found: Any, asked: Schema | None) -> Schema:
    """The columns as the shard shall have them, of a file whose `pa.Schema` is `found`: `asked`, or what
    holds the file's types. Raises Refusal(`schema-mismatch`) if the file has other columns, or of types that
    do not go with them.
    """
    repeated = [name for name, count in Counter(found.names).items() if count > 1]
    if repeated:
        hint = "each column needs a name of its own"
        raise Refusal("schema-mismatch", f"the file has several columns {repeated[0]!r}", hint)
    if asked is None:
        return schema_from_arrow(found)
    wanted = [column.name for column in asked.columns]
    if sorted(found.names) != sorted(wanted):
        raise Refusal(
            "schema-mismatch", f"the file has columns {', '.join(found.names)}, not {', '.join(wanted)}"
        )
    for spec in column_specs(asked):
        column_from_arrow(pa.array([], found.field(spec.name).type), spec)
    return asked


def position_of(specs: tuple[ColumnSpec, ...], name: str, purpose: str) -> int:
    """Where the column is. Raises Refusal(`schema-mismatch`) if it is not there."""
    names = [spec.name for spec in specs]
    if name not in names:
        raise Refusal("schema-mismatch", f"no column {name!r} {purpose}", f"there are: {', '.join(names)}")
    return names.index(name)


def validate_time_column(spec: ColumnSpec) -> None:
    """Raises Refusal(`schema-mismatch`) if its values are no times."""
    if spec.type not in _TIMES:
        kind = type_name_of(spec.type, spec.scale)
        raise Refusal(
            "schema-mismatch", f"time column {spec.name!r} is {kind}", "an integer or timestamp is needed"
        )


def columns_of(
    table: Any, specs: tuple[ColumnSpec, ...], file: Path, first_row: int, nulls: bool = False
) -> tuple[Column, ...]:
    """The columns of a `pa.Table` that has these names. first_row: the number of its first row, for refusals.
    nulls: whether there may be NULL in any column.

    Raises Refusal(`schema-mismatch`) if a value has no place in its column.
    """
    return tuple(_column(table.column(spec.name), spec, file, first_row, nulls) for spec in specs)


def _column(array: Any, spec: ColumnSpec, file: Path, first_row: int, nulls: bool) -> Column:
    try:
        column = column_from_arrow(array, spec)
    except Refusal:
        column_from_arrow(array.slice(0, 0), spec)  # of the type alone: no row is to blame
        found = find_refused(lambda lo, hi: column_from_arrow(array.slice(lo, hi - lo), spec), len(array))
        if found is None:
            raise
        raise at_row(file, first_row + found[0], found[1]) from found[1]
    if not (spec.nullable or nulls) and column.null_count:
        row = int(np.flatnonzero(~np.asarray(column.validity))[0])
        refusal = Refusal("schema-mismatch", f"column {spec.name!r} is not nullable, and NULL is there")
        raise at_row(file, first_row + row, refusal)
    return column


def equal_to(column: Column, text: str) -> Bools:
    """(n,) whether the texts are `text`."""
    wanted = Column.constant(ColumnType.TEXT, text, 1)
    spec = RowSpec(((ColumnType.TEXT, True),))
    rows = np.arange(len(column), dtype=np.int64)
    return encode([column], spec).equal(rows, encode([wanted.plain()], spec), np.zeros_like(rows))


def times_of(column: Column, name: str, file: Path, first_row: int) -> Words:
    """(n,) the times that a time column says. Raises Refusal(`schema-mismatch`) at a NULL or negative one."""
    validity = column.validity
    wrong = np.zeros(len(column), np.bool_) if validity is None else ~validity
    problem = f"time column {name!r} is NULL"
    if not wrong.any():
        wrong = column.values < 0
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        if validity is None or validity[row]:
            problem = f"time column {name!r} has the negative time {int(column.values[row])}"
        raise at_row(file, first_row + row, Refusal("schema-mismatch", problem))
    return column.values.astype(np.uint64)
