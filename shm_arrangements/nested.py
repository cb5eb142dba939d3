"""Lists and records as one run of bytes each, for images of rows; and any scalar back from its order words.

Does not: say how the bytes are made (kernels/nested.py), or compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.columns import Bools, Column, Ints
from shm_arrangements.kernels import cells
from shm_arrangements.kernels import nested as kernels
from shm_arrangements.table import Table
from shm_arrangements.types import (
    DTYPES,
    VARIABLE,
    WIDE,
    AnyType,
    ColumnSpec,
    ColumnType,
    ListType,
    RecordType,
    child_specs,
)

Words = NDArray[np.uint64]

_SIGN: Final = np.uint64(1 << 63)
_SIGN32: Final = np.uint64(1 << 31)
_LOW32: Final = np.uint64((1 << 32) - 1)
_S32: Final = np.uint64(32)
_NO_VALUES: Final = np.empty(0, np.uint8)
_SIGNED: Final = frozenset("i")


def images_of(column: Column) -> tuple[Ints, NDArray[np.uint8]]:
    """The image of each list or record: offsets (n + 1,) int64 and bytes."""
    table = Table([column]).cells
    offsets = np.empty(len(column) + 1, np.int64)
    out = np.empty(kernels.image_offsets(table, 0, offsets), np.uint8)
    kernels.write_images(table, 0, offsets, out)
    return offsets, out


def column_of_images(type_: AnyType, data: NDArray[np.uint8], starts: Ints) -> Column:
    """The lists or records whose images begin at `starts` (n,) in `data`."""
    program = program_of(type_)
    return _decode(type_, program, 0, data, np.array(starts, np.int64))


def column_of_words(type_: ColumnType, words: Sequence[Words], validity: Bools | None) -> Column:
    """The scalars of these order words (two of a WIDE type); a NULL whose words are 0 comes out canonical."""
    values: NDArray[Any]
    if type_ in WIDE:
        values = np.empty((len(words[0]), 2), np.uint64)
        high, low = words
        if type_ is ColumnType.NUMERIC:
            values[:, 0], values[:, 1] = low, high ^ _SIGN
        elif type_ is ColumnType.UUID:
            values[:, 0], values[:, 1] = high.byteswap(), low.byteswap()
        else:
            values[:, 0] = ((high >> _S32) ^ _SIGN32) | (((high & _LOW32) ^ _SIGN32) << _S32)
            values[:, 1] = low ^ _SIGN
    elif type_ is ColumnType.FLOAT64:
        bits = words[0].astype(np.uint64)
        values = np.where(bits >> np.uint64(63) != 0, bits ^ _SIGN, ~bits).view(np.float64)
    elif type_ is ColumnType.FLOAT32:
        half = words[0].astype(np.uint32)
        top = np.uint32(1 << 31)
        values = np.where(half & top != 0, half ^ top, ~half).view(np.float32)
    elif type_ is ColumnType.BOOL:
        values = words[0] != 0
    elif DTYPES[type_].kind in _SIGNED:
        values = (words[0] ^ _SIGN).view(np.int64).astype(DTYPES[type_], copy=False)
    else:
        values = words[0].astype(DTYPES[type_])
    if validity is not None:
        values[~validity] = 0
    return Column(type_, values, None, validity)


def program_of(type_: AnyType) -> NDArray[np.int64]:
    """What tells kernels/nested.py of which nodes a type is made: (nodes, 3) kind, children, first child."""
    rows: list[list[int]] = [[0, 0, 0]]

    def describe(at: int, node: AnyType) -> None:
        if isinstance(node, ColumnType):
            rows[at][0] = _kind(node)
            return
        children = child_specs(node)
        first = len(rows)
        rows[at] = [
            cells.KIND_LIST if isinstance(node, ListType) else cells.KIND_RECORD,
            len(children),
            first,
        ]
        rows.extend([0, 0, 0] for _ in children)
        for i, child in enumerate(children):
            describe(first + i, child.type)

    describe(0, type_)
    return np.array(rows, np.int64)


def _kind(type_: ColumnType) -> int:
    """What `skip` has to know of a scalar: one word, two, or bytes."""
    if type_ in VARIABLE:
        return cells.KIND_BYTES
    return cells.KIND_I128 if type_ in WIDE else cells.KIND_U64


def _decode(type_: AnyType, program: Any, node: int, data: NDArray[np.uint8], at: Ints) -> Column:
    """The values whose images begin at `at`, which moves behind them."""
    valid = np.empty(len(at), np.bool_)
    validity = valid if kernels.read_nulls(data, at, valid) else None
    if isinstance(type_, ColumnType) and type_ not in VARIABLE:
        words = [np.empty(len(at), np.uint64) for _ in range(2 if type_ in WIDE else 1)]
        for part in words:
            kernels.read_words(data, at, valid, part)
        return column_of_words(type_, words, validity)
    if isinstance(type_, RecordType):
        some = np.flatnonzero(valid)
        inside = at[some]
        first = int(program[node, 2])
        children = tuple(
            _spread(field, _decode(field.type, program, first + i, data, inside), valid)
            for i, field in enumerate(type_.fields)
        )
        at[some] = inside
        return Column(type_, _NO_VALUES, None, validity, children=children, length=len(at))
    offsets = np.empty(len(at) + 1, np.int64)
    if isinstance(type_, ListType):
        starts = np.empty(kernels.list_sizes(program, node, data, at, valid, offsets), np.int64)
        kernels.list_starts(program, node, data, at, valid, starts)
        child = _decode(type_.element.type, program, int(program[node, 2]), data, starts)
        return Column(type_, _NO_VALUES, offsets, validity, children=(child,))
    texts = np.empty(kernels.text_sizes(data, at, valid, offsets), np.uint8)
    kernels.read_texts(data, at, valid, offsets, texts)
    return Column(type_, texts, offsets, validity)


def _spread(field: ColumnSpec, column: Column, valid: Bools) -> Column:
    """The values of the valid records at their places; elsewhere NULL, or zero where that may not be."""
    if len(column) == len(valid):
        return column
    filler = Column.nulls(field.type, 1) if field.nullable else Column.zeros(field.type, 1)
    rows = np.where(valid, np.cumsum(valid) - 1, len(column))
    return Column.concat(field.type, (column, filler)).take(rows)
