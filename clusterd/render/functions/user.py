"""Functions of the user on columns: what they are given, what is made of what they give, and their errors.

A function sees rows without errors, and, if it is strict, without NULLs. If it raises, or gives what is no
column of its type and length, the rows are halved and each half tried, down to single rows: so an error is
that of its row, whatever rows it came with, and Python runs by row only where something fails.

Does not: load modules (clusterd/functions.py), know aggregates but by their two kinds of functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clusterd.functions import Definition, definition
from clusterd.render.functions.evaluated import (
    Codes,
    Evaluated,
    Ints,
    all_valid,
    first_errors,
    told,
    with_nulls,
)
from clusterd.render.functions.lists import Lists, lists_of
from clusterd.render.functions.registry import CallSite, Implementation
from clusterd.render.functions.texts import spread
from clusterd.storage.arrow import column_from_arrow
from shm_arrangements.arrow import arrow_type, to_array
from shm_arrangements.columns import Column, canonical_floats
from shm_arrangements.conversion import column_of_values, to_numpy
from shm_arrangements.types import DTYPES, VARIABLE, WIDE, ColumnSpec, ColumnType

__all__ = ["user_implementation"]

_SHOWN: Final = 200  # characters of what it raised
_WIDE: Final = WIDE | VARIABLE
_DAY: Final = 86_400_000_000  # microseconds; a time of day may be 24:00:00
_MOMENTS: Final = {
    ColumnType.DATE: "datetime64[D]", ColumnType.TIMESTAMP: "datetime64[us]",
    ColumnType.TIMESTAMPTZ: "datetime64[us]", ColumnType.TIME: "timedelta64[us]",
}  # fmt: skip


def user_implementation(name: str) -> Implementation:
    """The implementation of a function of the user."""
    defined = definition(name)

    def run(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
        errors = first_errors(*(each.errors for each in args))
        columns = [spread(each.column, n) for each in args]
        fine = np.ones(n, np.bool_) if errors is None else np.broadcast_to(errors == 0, n)
        valid = all_valid(columns) if defined.strict else None
        if valid is not None:
            fine = fine & valid
        made, codes, rows = _Calls(defined, call).on(columns, np.flatnonzero(fine))
        places = np.full(n, len(made) - 1, np.int64)  # the last is NULL
        places[rows] = np.arange(len(rows))
        out = np.zeros(n, np.uint32)
        out[rows] = codes
        return with_nulls(made.take(places), None, errors, out)

    return run


class _Calls:
    """Calls of one function at one place of a plan."""

    def __init__(self, defined: Definition, call: CallSite) -> None:
        self._defined = defined
        self._call = call
        self._parts: list[Column] = []

    def on(self, columns: Sequence[Column], rows: Ints) -> tuple[Column, Codes, Ints]:
        """The results of `rows`, and behind them a NULL; their codes; and the rows that have one."""
        type_ = self._call.result.type
        if self._defined.is_grouped:
            columns, rows = _without_nulls(columns[0], rows)
        codes = np.zeros(len(rows), np.uint32)
        # All rows at first; what fails is halved. Last in, first out: the results come in order.
        pending = [(0, len(rows))] if len(rows) else []
        while pending:
            lo, hi = pending.pop()
            problem = self._try([column.take(rows[lo:hi]) for column in columns], hi - lo)
            if problem is None:
                continue
            if hi - lo == 1:
                codes[lo] = told(f"{self._shown}: {problem}")
                self._parts.append(Column.nulls(type_, 1))
            else:
                middle = (lo + hi) // 2
                pending += [(middle, hi), (lo, middle)]
        return Column.concat(type_, (*self._parts, Column.nulls(type_, 1))), codes, rows

    @property
    def _shown(self) -> str:
        return self._defined.name.partition(" ")[0]

    def _try(self, columns: Sequence[Column], n: int) -> str | None:
        """Keep the column that the function makes of n rows; or say why it does not."""
        defined, result = self._defined, self._call.result
        convert = to_array if defined.arrow else to_numpy
        specs = self._call.args
        ends: tuple[Ints, ...] = ()
        if defined.is_grouped:
            lists = lists_of(columns[0], n)
            element = specs[0].type.element  # type: ignore[union-attr]
            columns, specs, ends = (lists.elements,), (element,), (lists.ends,)
        try:
            given = [convert(spec, column) for spec, column in zip(specs, columns, strict=True)]
            with np.errstate(all="ignore"):
                made = defined.call(*given, *ends)
        except BaseException as error:  # it is the user's, and may raise anything: sys.exit, too
            return _shown(error)
        if defined.part is not None:
            if not isinstance(made, tuple) or len(made) <= defined.part:
                return "no tuple of as many arrays as there are sums"
            made = made[defined.part]
        try:
            column = _of_arrow(made, result) if defined.arrow else _of_numpy(made, result)
        except Exception:  # what was made is the user's: to look at it may raise anything
            return "no values of its type"
        if len(column) != n:
            return "another number of values than rows"
        self._parts.append(column)
        return None


def _shown(error: BaseException) -> str:
    """What was raised, in a text that can be stored."""
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # its own text raises
        text = type(error).__name__
    return text[:_SHOWN].encode(errors="replace").decode()


def _without_nulls(column: Column, rows: Ints) -> tuple[list[Column], Ints]:
    """Lists without their NULLs, and those of `rows` that have an element left."""
    lists = lists_of(column, len(column))
    valid = lists.elements.validity
    if valid is not None:
        kept = np.flatnonzero(valid)
        ends = np.concatenate(([0], np.cumsum(valid)))[lists.ends]
        lists = Lists(lists.elements.take(kept), ends.astype(np.int64))
    column = Column(column.type, np.empty(0, np.uint8), lists.ends, children=(lists.elements,))
    return [column], rows[lists.sizes[rows] > 0]


def _of_arrow(made: Any, spec: ColumnSpec) -> Column:
    wanted = arrow_type(spec)
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if not isinstance(made, pa.Array):
        raise TypeError("no Array")
    return column_from_arrow(made if made.type == wanted else made.cast(wanted), spec)


def _of_numpy(made: Any, spec: ColumnSpec) -> Column:
    type_ = spec.type
    if isinstance(made, list) and not isinstance(type_, ColumnType):
        return column_of_values(spec, made)  # lists of lists are no array
    mask = np.ma.getmaskarray(made) if isinstance(made, np.ma.MaskedArray) else None
    array: NDArray[Any] = np.asarray(made)
    if array.ndim != 1:
        raise ValueError("no column")
    if not isinstance(type_, ColumnType) or type_ in _WIDE or array.dtype == object:
        values = array.tolist()
        if mask is not None:
            values = [None if hidden else value for value, hidden in zip(values, mask.tolist(), strict=True)]
        return column_of_values(spec, values)
    if type_ in _MOMENTS:
        array, mask = _moments(array, type_, mask)
    valid = None if mask is None or not mask.any() else ~mask
    if valid is not None:
        array = np.where(valid, array, array.dtype.type(0))
    values = _cast(array, type_)
    return Column(type_, values, None, valid)


def _moments(
    array: NDArray[Any], type_: ColumnType, mask: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Moments or times of day in the type's own unit, and which are NULL. Raises TypeError, ValueError."""
    moments = array.astype(_MOMENTS[type_], casting="same_kind")
    mask = np.isnat(moments) if mask is None else mask | np.isnat(moments)
    values = moments.view(np.int64)
    fine = np.ones(len(array), np.bool_)
    if np.can_cast(array.dtype, moments.dtype):  # to a finer unit: numpy wraps
        fine = moments.astype(array.dtype).view(np.int64) == array.view(np.int64)
    if type_ is ColumnType.TIME:
        fine &= (values >= 0) & (values <= _DAY)
    if not (fine | mask).all():
        raise ValueError("beyond its range")
    return values, mask


def _cast(array: NDArray[Any], type_: ColumnType) -> NDArray[Any]:
    """The same values in the type's own form. Raises ValueError if it cannot hold them."""
    dtype = DTYPES[type_]
    if type_ in (ColumnType.FLOAT32, ColumnType.FLOAT64):
        if array.dtype.kind not in "fiu":
            raise ValueError("no numbers")
        with np.errstate(all="ignore"):
            values = array.astype(dtype)
        if (np.isinf(values) & np.isfinite(array)).any():
            raise ValueError("beyond its range")
        return canonical_floats(values)
    if (type_ is ColumnType.BOOL) != (array.dtype.kind == "b") or array.dtype.kind not in "biu":
        raise ValueError("another kind of values")
    values = array.astype(dtype)
    if not np.array_equal(values, array):
        raise ValueError("beyond its range")
    return np.ascontiguousarray(values)
