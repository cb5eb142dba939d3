"""Given: updates whose arrays somebody else made, on their way into an arrangement.

Kernels read memory by address and take a column's word for what lies there: of an array of another dtype, or
of offsets that leave their bytes, they would store something else, or what is somebody else's. And a value in
two forms (a NaN of other bits, whatever stands where a value is NULL) would be two keys, of which a lookup
finds one. So arrays are checked before anything reads them, and values brought to their canonical form
(columns.py).

Does not: see whether text is UTF-8, or JSON in its canonical text; know what columns are wanted (builder.py).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.columns import Column, Encoding
from shm_arrangements.types import (
    DTYPES,
    VARIABLE,
    WIDE,
    AnyType,
    ColumnType,
    ListType,
    RecordType,
    child_specs,
)
from shm_arrangements.updates import Updates

_FLOATS: Final = frozenset({ColumnType.FLOAT32, ColumnType.FLOAT64})
# Types of which a plain array of this dtype, without NULLs, is right whatever it holds.
_ONE_FORM: Final[dict[AnyType, np.dtype[Any]]] = {
    type_: DTYPES[type_] for type_ in ColumnType if type_ not in VARIABLE | WIDE | _FLOATS
}
_BOOL, _I64, _U64 = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.uint64)
_INDEX_TYPES: Final = frozenset(map(np.dtype, ("u1", "u2", "u4")))


def canonical_updates(updates: Updates) -> Updates:
    """The same updates, columns in the canonical form; `updates` itself if all are of numbers without NULLs.

    Cost: half a microsecond for each of these; of floats, of texts, and of what may be NULL a pass.
    Raises: ValueError naming the array that is not what its column, or a time or diff, has.
    """
    _require(updates.times, _U64, "times")
    _require(updates.diffs, _I64, "diffs")
    others = [i for i, column in enumerate(updates.columns) if not _is_one_form(column)]
    if not others:
        return updates
    columns = list(updates.columns)
    for i in others:
        columns[i] = _canonical(columns[i], f"column {i}")
    return Updates(tuple(columns), updates.times, updates.diffs)


def _is_one_form(column: Column) -> bool:
    """Whether a column can be taken as it is, by far the most frequent."""
    dtype = _ONE_FORM.get(column.type)
    if dtype is None or column.encoding is not Encoding.PLAIN or column.has_validity:
        return False
    values = column.values
    return type(values) is np.ndarray and values.dtype == dtype and values.ndim == 1


def _canonical(column: Column, name: str) -> Column:
    _validate_arrays(column, name)
    return column.canonical()


def _validate_arrays(column: Column, name: str) -> None:
    if column.encoding is not Encoding.PLAIN:
        _validate_encoded(column, name)
        return
    type_, n = column.type, len(column)
    if column.has_validity:
        _require(column.validity, _BOOL, f"validity of {name}", n)
    if isinstance(type_, RecordType):
        _validate_children(column.children, type_, name)
        if any(len(child) != n for child in column.children):
            raise ValueError(
                f"the fields of {name} are {[len(child) for child in column.children]} long, not {n}"
            )
    elif isinstance(type_, ListType):
        _validate_children(column.children, type_, name)
        _validate_offsets(column.offsets, len(column.children[0]), name)
    elif type_ in VARIABLE:
        _require(column.values, DTYPES[type_], name)
        _validate_offsets(column.offsets, len(column.values), name)
    else:
        _require(column.values, DTYPES[type_], name, n, 2 if type_ in WIDE else 1)


def _validate_encoded(column: Column, name: str) -> None:
    stored, indices = column.stored, column.indices
    assert stored is not None
    _validate_arrays(stored, name)
    if indices is None:
        if len(stored) != 1:
            raise ValueError(f"{name} is constant, of {len(stored)} values")
        return
    if indices.dtype not in _INDEX_TYPES or indices.ndim != 1:
        raise ValueError(f"indices of {name} are {_form(indices)}")
    if len(indices) and int(indices.max()) >= len(stored):
        raise ValueError(f"indices of {name} lead beyond its dictionary")
    if column.has_validity:
        _require(column.validity, _BOOL, f"validity of {name}", len(column))


def _validate_children(children: tuple[Column, ...], type_: AnyType, name: str) -> None:
    specs = child_specs(type_)
    if [child.type for child in children] != [spec.type for spec in specs]:
        raise ValueError(
            f"{name} is of parts {[child.type.name for child in children]}, not those of its type"
        )
    for child, spec in zip(children, specs, strict=True):
        _validate_arrays(child, f"{spec.name!r} of {name}")


def _validate_offsets(offsets: Any, limit: int, name: str) -> None:
    _require(offsets, _I64, f"offsets of {name}")
    if offsets[0] < 0 or offsets[-1] > limit or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"offsets of {name} do not ascend within its {limit} values")


def _require(array: Any, dtype: np.dtype[Any], name: str, n: int | None = None, words: int = 1) -> None:
    """Raise unless it is an array of `dtype`, and of n values of so many words, if n is given."""
    right = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == (1 if words == 1 else 2)
    if right and n is not None:
        right = array.shape == ((n,) if words == 1 else (n, words))
    if not right:
        wanted = f"{dtype} {'' if n is None else (n,) if words == 1 else (n, words)}".rstrip()
        raise ValueError(f"{name}: an array of {wanted} is wanted, not {_form(array)}")


def _form(array: Any) -> str:
    return f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
