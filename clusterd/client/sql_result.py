"""What a query brings back, and how it is written down.

Does not: run queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from shm_arrangements import text
from shm_arrangements.errors import AmbiguousName, NotInstalled

__all__ = ["FORMATS", "SqlFailed", "SqlResult", "require_place", "write_result"]

FORMATS: Final = ("table", "csv", "json", "parquet")
_CHUNK: Final = 4096
_NUMBERS: Final = (
    "int",
    "uint",
    "float",
    "double",
    "decimal",
    "halffloat",
)  # names of Arrow's types begin so


class SqlFailed(Exception):
    """The query was refused; the message says why and where."""


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
        """Every row as a tuple of Python values: NULL is None, a decimal without a point an int, a uuid
        text, a struct a dict.
        """
        return [row for chunk in self.chunks() for row in chunk]

    def dicts(self) -> list[dict[str, Any]]:
        """`rows()`, each as a dict by column name. Raises: AmbiguousName if two columns have one."""
        names = self.distinct_names()
        return [dict(zip(names, row, strict=True)) for row in self.rows()]

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

    def distinct_names(self) -> list[str]:
        """`names`, for who needs them apart. Raises: AmbiguousName."""
        names = self.names
        for name in names:
            if names.count(name) > 1:
                hint = "name them apart: SELECT .. AS .."
                raise AmbiguousName("several columns have this name", name=name, hint=hint)
        return names

    def chunks(self) -> Iterator[list[tuple[Any, ...]]]:
        """`rows()`, some thousands at a time."""
        for lo in range(0, len(self), _CHUNK):
            yield list(zip(*map(_values, self._table.slice(lo, _CHUNK).columns), strict=True))

    def __repr__(self) -> str:
        return f"SqlResult({', '.join(self.names)}; {len(self)} rows at {self.time})"


def require_place(result: SqlResult, form: str) -> None:
    """Before a file is touched: whether `form` has a place for all of it. Raises: AmbiguousName (json);
    ValueError naming a column (parquet).
    """
    if form == "json":
        result.distinct_names()
    if form == "parquet":
        from shm_arrangements import arrow

        arrow.require_parquet_schema(result.to_arrow().schema)


def write_result(result: SqlResult, form: str, file: BinaryIO) -> None:
    """Write it as one of FORMATS: a table, CSV (NULL is nothing, the empty text is quoted), an object of JSON
    a line, Parquet. Raises: as `require_place`; OSError.
    """
    if form == "parquet":
        from shm_arrangements import arrow

        require_place(result, form)
        arrow.write_parquet_table(result.to_arrow(), file)
        return
    for line in {"table": _table_lines, "csv": _csv_lines, "json": _json_lines}[form](result):
        file.write(line.encode() + b"\n")
    file.flush()


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if getattr(column.type, "scale", None) == 0:
        return [None if value is None else int(value) for value in values]
    return values


def _table_lines(result: SqlResult) -> Iterator[str]:
    types = [str(field.type) for field in result.to_arrow().schema]
    right = [at for at, type_ in enumerate(types) if type_.startswith(_NUMBERS)]
    cells = [tuple(map(_cell, row)) for row in result.rows()]
    yield from text.table_lines([tuple(result.names), *cells], right)
    yield f"({text.plural(len(result), 'row')})"


def _csv_lines(result: SqlResult) -> Iterator[str]:
    yield text.csv_line(result.names)
    for rows in result.chunks():
        for row in rows:
            yield text.csv_line(None if value is None else _cell(value) for value in row)


def _json_lines(result: SqlResult) -> Iterator[str]:
    names = result.distinct_names()
    for rows in result.chunks():
        for row in rows:
            yield json.dumps(dict(zip(names, map(_json_value, row), strict=True)), ensure_ascii=False)


def _cell(value: Any) -> str:
    if isinstance(value, list | dict):
        return json.dumps(_json_value(value), ensure_ascii=False)
    return text.value_text(_plain(value))


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    return text.json_value(_plain(value))


def _plain(value: Any) -> Any:
    """An interval of Arrow is a tuple with names, as arrangements give it without."""
    return tuple(value) if isinstance(value, tuple) else value
