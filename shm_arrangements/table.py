"""Table: columns as kernels see them, by the addresses of their arrays, in whatever encoding.

A table is one row of eight int64 a column, and further rows for what lists and records are made of
(kernels/cells.py says what is where). Kernels may read what it names as long as the table lives, for it keeps
the arrays; nobody writes to them.

Does not: read a value (kernels/cells.py), or copy an array that lies in C order.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.columns import Column, Encoding, Ints
from shm_arrangements.kernels import cells
from shm_arrangements.types import VARIABLE, ColumnType, ListType

KINDS: Final = {  # how kernels read a value of a type
    ColumnType.BOOL: cells.KIND_U8,
    ColumnType.INT16: cells.KIND_I16,
    ColumnType.INT32: cells.KIND_I32,
    ColumnType.DATE: cells.KIND_I32,
    ColumnType.INT64: cells.KIND_I64,
    ColumnType.TIMESTAMP: cells.KIND_I64,
    ColumnType.TIMESTAMPTZ: cells.KIND_I64,
    ColumnType.TIME: cells.KIND_I64,
    ColumnType.UINT16: cells.KIND_U16,
    ColumnType.UINT32: cells.KIND_U32,
    ColumnType.UINT64: cells.KIND_U64,
    ColumnType.FLOAT32: cells.KIND_F32,
    ColumnType.FLOAT64: cells.KIND_F64,
    ColumnType.NUMERIC: cells.KIND_I128,
    ColumnType.UUID: cells.KIND_UUID,
    ColumnType.INTERVAL: cells.KIND_INTERVAL,
    ColumnType.TEXT: cells.KIND_BYTES,
    ColumnType.BYTEA: cells.KIND_BYTES,
    ColumnType.JSONB: cells.KIND_BYTES,
}
_SIMPLE: Final = frozenset(KINDS) - VARIABLE
_INDEX_MODES: Final = {1: cells.INDEX_U8, 2: cells.INDEX_U16, 4: cells.INDEX_U32}


class Table:
    """Columns as kernels see them: `cells` (rows, 8) int64 holds addresses; this keeps the arrays alive."""

    __slots__ = ("_kept", "cells", "may_have_nulls")

    def __init__(self, columns: Sequence[Column]) -> None:
        """columns: of equal length, in any encoding; the table's first rows are theirs, in order."""
        rows: list[list[int]] = []
        kept: list[Any] = []
        others = []
        for at, column in enumerate(columns):
            if column.type in _SIMPLE and column.encoding is Encoding.PLAIN and not column.has_validity:
                # By far the most frequent.
                rows.append([KINDS[column.type], _address(column.values, kept), 0, 0, 0, 0, 0, 0])
            else:
                rows.append([0] * cells.FIELDS)
                others.append((at, column))
        for at, column in others:
            _describe(column, at, rows, kept)
        self.may_have_nulls = bool(others) and any([row[cells.VALIDITY] for row in rows])
        flat = array("q", itertools.chain.from_iterable(rows))  # an array of lists would take twice the time
        self.cells = np.frombuffer(flat, np.int64).reshape(len(rows), cells.FIELDS)
        self._kept = kept

    @classmethod
    def of_cells(cls, found: Ints, kept: list[Any]) -> Table:
        """Of cells made elsewhere, (rows, 8), that point into the arrays `kept`."""
        table = cls.__new__(cls)
        table.cells, table._kept = found, kept
        table.may_have_nulls = bool(found[:, cells.VALIDITY].any())
        return table


def _describe(column: Column, at: int, rows: list[list[int]], kept: list[Any]) -> None:
    """Fill row `at` for a column, and append rows for its children."""
    row = rows[at]
    inner = column
    if column.encoding is not Encoding.PLAIN:
        assert column.stored is not None
        inner = column.stored
        row[cells.MODE] = cells.CONSTANT
        if column.indices is not None:
            row[cells.MODE] = _INDEX_MODES[column.indices.itemsize]
            row[cells.INDICES] = _address(column.indices, kept)
    shown = inner if column.encoding is Encoding.CONSTANT else column
    if (validity := shown.stored_validity) is not None:
        row[cells.VALIDITY] = _address(validity[0], kept)
        row[cells.BIT] = cells.BYTES if validity[1] is None else validity[1]
    row[cells.VALUES] = _address(inner.values, kept)
    if inner.offsets is not None:
        row[cells.OFFSETS] = _address(inner.offsets, kept)
    if isinstance(inner.type, ColumnType):
        row[cells.KIND] = KINDS[inner.type]
        return
    is_list = isinstance(inner.type, ListType)
    row[cells.KIND] = cells.KIND_LIST if is_list else cells.KIND_RECORD
    if not is_list:
        row[cells.OFFSETS] = len(inner.children)
    row[cells.CHILD] = first = len(rows)
    rows.extend([0] * cells.FIELDS for _ in inner.children)
    for i, child in enumerate(inner.children):
        _describe(child, first + i, rows, kept)


def _address(array: NDArray[Any], kept: list[Any]) -> int:
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    kept.append(array)
    address: int = array.__array_interface__["data"][0]
    return address
