"""Refs: a row of one of several sources as one int64, and what is read of it.

A ref has the source from bit `ROW_BITS` on, and the row below. So there may be 2^23 sources of 2^40 rows
each, and refs of one source ascend as its rows do; those of the first are the rows themselves. The tables of
the sources (cells.py) lie behind each other, (sources, rows of a table, fields), in any encoding each.

Does not: check that there is such a source, or row.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.kernels.cells import VALUES, bytes_at, compare_cells, is_null, place_of
from shm_arrangements.kernels.jit import i64, inner, read

TABLES = read(i64, 3)

ROW_BITS: Final = 40
ROW_MASK: Final = (1 << ROW_BITS) - 1


@inner
def ref_of(source: Any, row: Any) -> Any:
    """The ref of a row of a source."""
    return (np.int64(source) << ROW_BITS) | np.int64(row)


@inner
def same_value(tables: Any, column: Any, r: Any, s: Any) -> bool:
    """Whether two refs have the same value."""
    a, b = tables[r >> ROW_BITS], tables[s >> ROW_BITS]
    return compare_cells(a, r & ROW_MASK, b, s & ROW_MASK, column, column + 1) == 0


@inner
def null_at(tables: Any, row: Any, ref: Any) -> bool:
    """Whether a ref has NULL in a row of its table."""
    return is_null(tables[ref >> ROW_BITS], row, ref & ROW_MASK)


@inner
def place_at(tables: Any, row: Any, ref: Any) -> Any:
    """Where among what is stored the value of a ref stands."""
    return place_of(tables[ref >> ROW_BITS], row, ref & ROW_MASK)


@inner
def span_at(tables: Any, row: Any, ref: Any) -> Any:
    """Where the text or list of a ref begins and ends."""
    table = tables[ref >> ROW_BITS]
    return bytes_at(table, row, place_of(table, row, ref & ROW_MASK))


@inner
def text_at(tables: Any, row: Any, ref: Any) -> Any:
    """Address and bytes of the text of a ref."""
    lo, hi = span_at(tables, row, ref)
    return tables[ref >> ROW_BITS, row, VALUES] + lo, hi - lo
