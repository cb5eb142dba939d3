"""Texts as Arrow sees them, as spans of bytes, and by their distinct values: what families build on.

Arrow's functions take a pattern, a padding, a set of characters, as one constant; `by_constants` calls them
once for each that occurs. What no kernel and no function of Arrow computes is computed in Python, once for
each distinct argument (`by_distinct`), which is for what is rare, long, or has few values.

Does not: implement any function of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clusterd.render.functions.evaluated import Codes, Ints, code_of, rows_of
from clusterd.render.functions.registry import parted
from shm_arrangements.columns import Column
from shm_arrangements.kernels import gather
from shm_arrangements.types import AnyType, ColumnType

__all__ = [
    "Failed", "by_constants", "by_distinct", "from_arrow", "from_spans", "plain_texts", "spread", "to_arrow",
]  # fmt: skip


class Failed:
    """What a function by distinct values gives for one that is an error."""

    __slots__ = ("code",)

    def __init__(self, error: str) -> None:
        self.code = code_of(error)


def spread(column: Column, n: int) -> Column:
    """The column with n rows of its own."""
    return column if len(column) == n else column.take(np.zeros(n, np.int64))


def plain_texts(column: Column) -> tuple[NDArray[np.uint8], Ints]:
    """The bytes of a VARIABLE column and its offsets."""
    assert column.offsets is not None
    return column.values, column.offsets


def to_arrow(column: Column) -> Any:
    """A VARIABLE column as large_string or large_binary, without its NULLs; no copy."""
    data, offsets = plain_texts(column)
    kind = pa.large_binary() if column.type is ColumnType.BYTEA else pa.large_string()
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(kind, len(column), buffers)


def from_arrow(type_: AnyType, array: Any) -> Column:
    """A VARIABLE column of a large_string or large_binary array; NULL there is empty and not valid."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type not in (pa.large_string(), pa.large_binary()):
        array = array.cast(pa.large_binary() if pa.types.is_binary(array.type) else pa.large_string())
    _, offsets, data = array.buffers()
    first, n = array.offset, len(array)
    ends: Ints = np.zeros(1, np.int64) if n == 0 else np.frombuffer(offsets, np.int64)[first : first + n + 1]
    values = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    valid = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
    column = Column(type_, values, ends, valid)
    return column if valid is None else column.canonical()


def from_spans(type_: AnyType, data: NDArray[np.uint8], lo: Ints, hi: Ints) -> Column:
    """The texts data[lo[i]:hi[i]], copied together."""
    offsets = np.empty(len(lo) + 1, np.int64)
    out = np.empty(gather.span_offsets(lo, hi, offsets), np.uint8)
    gather.gather_spans(data, lo, offsets, out)
    return Column(type_, out, offsets)


def by_constants(
    type_: AnyType,
    function: Callable[..., Column | tuple[Column, Codes | None]],
    column: Column,
    *options: Column,
) -> Column | tuple[Column, Codes | None]:
    """`function(column, *values)` for each combination of values of `options` that occurs, put together."""
    n = rows_of((column, *options))
    if all(len(each) == 1 for each in options):
        values = [each.to_pylist()[0] for each in options]
        return function(column, *values) if None not in values else Column.nulls(type_, 1)
    column = spread(column, n)
    rows = list(zip(*(_hashable(spread(each, n).to_pylist()) for each in options), strict=True))
    groups: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        if None not in row:
            groups.setdefault(row, []).append(i)
    if not groups:
        return Column.nulls(type_, 1)
    parts, places, codes = [], [], []
    for row, members in groups.items():
        at = np.array(members, np.int64)
        part, errors = parted(function(column.take(at), *row))
        parts.append(spread(part, len(at)))
        codes.append(np.zeros(len(at), np.uint32) if errors is None else np.broadcast_to(errors, len(at)))
        places.append(at)
    # Rows with a NULL among the options take any row: they are NULL whatever it holds.
    inverse = np.zeros(n, np.int64)
    inverse[np.concatenate(places)] = np.arange(sum(map(len, places)))
    found = np.concatenate(codes)[inverse]
    return Column.concat(parts[0].type, parts).take(inverse), found if found.any() else None


def _hashable(values: list[Any]) -> list[Any]:
    return [tuple(value) if isinstance(value, list) else value for value in values]


def by_distinct(type_: AnyType, function: Callable[..., Any], *args: Column) -> tuple[Column, Codes | None]:
    """`function(*values)` of every row, computed once for equal rows; it may give a Failed.

    Rows with a NULL give NULL. Values are those of values.py.
    """
    n = rows_of(args)
    lists = [each.to_pylist() if len(each) == n else each.to_pylist() * n for each in args]
    known: dict[Any, Any] = {}
    out: list[Any] = [None] * n
    codes = np.zeros(n, np.uint32)
    for i, row in enumerate(zip(*lists, strict=True)):
        if None in row:
            continue
        try:
            value = known[row]
        except KeyError:
            value = known[row] = function(*row)
        except TypeError:  # a list cannot be a key
            value = function(*row)
        if isinstance(value, Failed):
            codes[i] = value.code
        else:
            out[i] = value
    column = Column.from_pylist(type_, out)
    return column, codes if codes.any() else None
