"""Columns as pandas, exactly: no integer becomes a float, and NULL is never NaN.

| type | pandas |
|---|---|
| integers, floats, BOOL | numpy's dtype, no copy; with NULLs the nullable Int64, Float64, boolean, .. |
| TIMESTAMP, TIMESTAMPTZ | datetime64[us], datetime64[us, UTC]; NULL is NaT |
| TIME | timedelta64[us]; NULL is NaT |
| everything else | Python objects, as conversion.py gives them; NULL is None |

The one module that imports pandas, and only who asks for a frame needs it.

Does not: set an index, or convert from pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shm_arrangements.columns import Column
from shm_arrangements.conversion import to_numpy, to_python
from shm_arrangements.errors import NotInstalled
from shm_arrangements.types import ColumnSpec, ColumnType


def to_frame(specs: Sequence[ColumnSpec], columns: Sequence[Column], rows: int) -> Any:
    """A pandas.DataFrame of `rows` rows. Raises: NotInstalled."""
    try:
        import pandas
    except ImportError as error:
        raise NotInstalled(
            "pandas is not installed", library="pandas", hint="pip install pandas, or use to_arrow()"
        ) from error
    arrays = {
        at: _array(pandas, spec, column) for at, (spec, column) in enumerate(zip(specs, columns, strict=True))
    }
    frame = pandas.DataFrame(arrays, index=pandas.RangeIndex(rows), copy=False)
    frame.columns = pandas.Index([spec.name for spec in specs], dtype=object)  # names may be the same
    return frame


def _array(pandas: Any, spec: ColumnSpec, column: Column) -> Any:
    if spec.type is ColumnType.DATE:  # pandas has no days
        values = np.empty(len(column), object)
        values[:] = to_python(spec, column)
    else:
        values = to_numpy(spec, column)
    if values.dtype == object:
        return pandas.Series(values, dtype=object, copy=False)
    if not isinstance(values, np.ma.MaskedArray):
        return pandas.DatetimeIndex(values).tz_localize("UTC") if _is_zoned(spec) else values
    data, mask = np.asarray(values.data), np.asarray(values.mask)
    if data.dtype.kind in "mM":
        data = np.where(mask, np.array("NaT", data.dtype), data)
        return pandas.DatetimeIndex(data).tz_localize("UTC") if _is_zoned(spec) else data
    made = {"b": "BooleanArray", "f": "FloatingArray"}.get(data.dtype.kind, "IntegerArray")
    return getattr(pandas.arrays, made)(data, mask)


def _is_zoned(spec: ColumnSpec) -> bool:
    return spec.type is ColumnType.TIMESTAMPTZ
