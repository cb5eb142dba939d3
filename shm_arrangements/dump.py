"""Dump: rows of an index as a table, CSV, JSON lines or Parquet.

Rows are converted some thousands at a time: a dump needs little memory beside the columns it is given.

Does not: read an index, choose rows but the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from shm_arrangements import text
from shm_arrangements.columns import Column
from shm_arrangements.conversion import to_python
from shm_arrangements.result import Changes, Result
from shm_arrangements.types import ColumnSpec, ColumnType

_CHUNK: Final = 4096
_NUMBERS: Final = frozenset(ColumnType) - {
    ColumnType.BOOL, ColumnType.TEXT, ColumnType.BYTEA, ColumnType.JSONB, ColumnType.UUID
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows as columns, in row order."""

    specs: tuple[ColumnSpec, ...]
    columns: tuple[Column, ...]
    n: int

    @classmethod
    def of_result(cls, result: Result) -> Rows:
        """Each row as often as it occurs."""
        return cls(result.specs, result.repeated(), result.total)

    @classmethod
    def of_changes(cls, changes: Changes) -> Rows:
        """Those of rows, with the last columns `time` and `diff`."""
        specs, columns = changes.whole()
        return cls(tuple(specs), tuple(columns), len(changes))

    def first(self, n: int) -> Rows:
        """The first `n`, or all if that is more."""
        return self._slice(0, min(n, self.n))

    def chunks(self) -> Iterator[list[tuple[object, ...]]]:
        """The rows as Python values, `_CHUNK` at a time."""
        for lo in range(0, self.n, _CHUNK):
            part = self._slice(lo, min(lo + _CHUNK, self.n))
            values = [to_python(*pair) for pair in zip(part.specs, part.columns, strict=True)]
            yield list(zip(*values, strict=True)) if values else [()] * part.n

    def _slice(self, lo: int, hi: int) -> Rows:
        return Rows(self.specs, tuple(column.slice(lo, hi) for column in self.columns), hi - lo)


def require_place(specs: Sequence[ColumnSpec], form: str) -> None:
    """Raises: ValueError naming a column for whose type `form` has no place."""
    if form == "parquet":
        from shm_arrangements import arrow

        arrow.require_parquet(specs)


def write_rows(rows: Rows, form: str, file: BinaryIO) -> None:
    """Write them as `form`: table, csv, json or parquet. Raises: as `require_place`; OSError."""
    if form == "parquet":
        from shm_arrangements import arrow

        arrow.write_parquet(rows.specs, rows.columns, file)
        return
    lines = {"table": _table, "csv": _csv, "json": _json}[form](rows)
    for line in lines:
        file.write(line.encode() + b"\n")
    file.flush()


def _table(rows: Rows) -> Iterator[str]:
    head = tuple(spec.name for spec in rows.specs)
    right = [at for at, spec in enumerate(rows.specs) if spec.type in _NUMBERS]
    widths: list[int] = []
    for values in rows.chunks():
        cells: list[tuple[str, ...]] = [tuple(text.value_text(value) for value in row) for row in values]
        if not widths:
            widths = text.table_widths([head, *cells])
            cells.insert(0, head)
        yield from text.table_lines(cells, right, widths=widths)
    if not widths:
        yield from text.table_lines([head], right)
    yield f"({rows.n:,} row{'' if rows.n == 1 else 's'})"


def _csv(rows: Rows) -> Iterator[str]:
    yield text.csv_line(spec.name for spec in rows.specs)
    for values in rows.chunks():
        yield from map(text.csv_line, values)


def _json(rows: Rows) -> Iterator[str]:
    names = [spec.name for spec in rows.specs]
    for values in rows.chunks():
        for row in values:
            told = dict(zip(names, map(text.json_value, row), strict=True))
            yield json.dumps(told, ensure_ascii=False)
