"""What a peek brings back, and how a schema is written down in Python.

Does not: speak to anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clusterd.convert import column_from_scalars, column_specs
from controller_proto import response
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.literals import parse_type
from controller_proto.schema import ColumnType, Schema
from shm_arrangements.result import Result

__all__ = ["Answer", "PeekCanceled", "PeekFailed", "schema_of"]


class PeekFailed(Exception):
    """The answer of a peek was an error; `code` is stable. Its text is `CODE: MESSAGE; HINT`."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}; {hint}" if hint else f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint


class PeekCanceled(Exception):
    """The peek was canceled before it was answered."""


def schema_of(columns: Schema | Mapping[str, str]) -> Schema:
    """A schema from `{"name": "type"}`, types by their PostgreSQL names, with `?` at the end if nullable.

    >>> schema_of({"id": "bigint", "note": "text?"}).columns[1].nullable
    True
    """
    if isinstance(columns, Schema):
        return columns
    made = []
    for name, type_ in columns.items():
        try:
            made.append(parse_type(type_.removesuffix("?"), name, nullable=type_.endswith("?")))
        except LocalProtocolError as error:
            known = ", ".join(t.value for t in ColumnType)
            raise Refusal(
                "schema-mismatch", f"column {name!r}: no type {type_!r}", f"there are: {known}"
            ) from error
    return Schema(tuple(made))


class Answer(Result):
    """The rows of a peek, read as those of an attached index; `time` and `served_by` say when and by whom."""

    __slots__ = ("served_by", "time")

    def __init__(self, schema: Schema, rows: response.PeekRows, time: int | None, served_by: str) -> None:
        specs = column_specs(schema)
        columns = tuple(
            column_from_scalars(spec, values) for spec, values in zip(specs, rows.columns, strict=True)
        )
        super().__init__(specs, columns, np.array(rows.counts, dtype=np.int64), None)
        self.time = time
        self.served_by = served_by

    def dicts(self) -> list[dict[str, Any]]:
        """`rows()`, each as a dict by column name."""
        names = [spec.name for spec in self.specs]
        return [dict(zip(names, row, strict=True)) for row in self.rows()]
