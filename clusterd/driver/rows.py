"""Rows that scripts write: lines of literals, and synthetic ones.

Synthetic rows are made a column at a time: the first bigint counts from `start`, text is the same number
padded with zeros to the length asked for, other types are simple functions of it; nothing is random. Not
every type has made-up values.

Does not: append (driver.py does).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clusterd.convert import column_specs, type_name_of, updates_from_rows
from clusterd.driver.reads import placed
from controller_proto.errors import LocalProtocolError
from controller_proto.literals import parse_row
from controller_proto.schema import Schema
from controller_proto.script import split_line
from controller_proto.tokens import tokenize
from shm_arrangements.columns import Column
from shm_arrangements.types import DTYPES, ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["synthetic", "updates_from_lines"]

_OTHER_BYTES = 8  # what row-bytes counts for every column that is not text


def updates_from_lines(lines: Sequence[str], schema: Schema, time: int) -> Updates:
    """A row a line, `x N` at its end gives the diff. Raises LocalProtocolError `schema-mismatch`."""
    rows = []
    diffs = []
    for number, line in enumerate(lines, 1):
        diff = 1
        with placed(f"row {number}"):
            items = [_item(word) for word in split_line(line)]
            if len(items) == schema.arity + 2 and items[-2] == ("x", False):
                diff = _diff(items[-1][0])
                items = items[:-2]
            rows.append(parse_row(items, schema))
        diffs.append(diff)
    return updates_from_rows(schema, rows, time, diffs)


def _item(word: str) -> tuple[str, bool]:
    if not word.startswith('"'):
        return word, False
    tokens = tokenize(word)
    return (tokens[0].value, True) if len(tokens) == 2 else (word, False)


def _diff(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and abs(int(text)) < 1 << 63):
        raise LocalProtocolError("bad-message", f"{text!r} is no multiplicity")
    return int(text)


def synthetic(schema: Schema, start: int, count: int, row_bytes: int, times: NDArray[np.uint64]) -> Updates:
    """`count` rows numbered from `start`, at `times` (count,), each of about `row_bytes` bytes."""
    numbers = np.arange(start, start + count, dtype=np.int64)
    specs = column_specs(schema)
    texts = sum(spec.type is ColumnType.TEXT for spec in specs)
    text_bytes = max(1, (row_bytes - _OTHER_BYTES * (len(specs) - texts)) // max(texts, 1))
    columns = tuple(_column(spec, numbers, text_bytes) for spec in specs)
    return Updates(columns, times, np.ones(count, dtype=np.int64))


def _column(spec: ColumnSpec, numbers: NDArray[np.int64], text_bytes: int) -> Column:
    match spec.type:
        case ColumnType.INT64 | ColumnType.TIMESTAMP | ColumnType.TIMESTAMPTZ:
            return Column(spec.type, numbers)
        case ColumnType.FLOAT64:
            return Column(spec.type, numbers + 0.5)
        case ColumnType.BOOL:
            return Column(spec.type, numbers % 2 == 0)
        case ColumnType.TEXT:
            return _texts(numbers, text_bytes)
        case ColumnType.NUMERIC:
            return Column.from_pylist(spec.type, numbers.tolist())
        case ColumnType.UUID:
            return Column.from_pylist(spec.type, [uuid.UUID(int=number) for number in numbers.tolist()])
        case ColumnType.UINT64 | ColumnType.DATE:
            return Column(spec.type, numbers.astype(DTYPES[spec.type]))
    name = type_name_of(spec.type, spec.scale)
    raise LocalProtocolError("bad-message", f"column {spec.name}: no {name} is made up", "write-rows has all")


def _texts(numbers: NDArray[np.int64], text_bytes: int) -> Column:
    if not len(numbers):
        return Column.empty(ColumnType.TEXT)
    width = max(text_bytes, len(str(int(numbers.max()))))
    padded = np.char.zfill(numbers.astype(f"S{width}"), width)
    data = np.ascontiguousarray(padded).view(np.uint8)
    offsets = np.arange(len(numbers) + 1, dtype=np.int64) * width
    return Column(ColumnType.TEXT, data, offsets)
