"""Point: finding the one row of one key from Python, in little more than the time of a call.

Most keys have one row, in one batch, once. For these a key becomes what a kernel takes without making an
array: the word that is its own code, or a slot of memory that stands for a table of one row; the kernel
answers with a reference; and the row is read through memoryviews, which give Python's values directly. What
does not fit says MANY, and is looked up like many keys.

Slots are taken and given back, so that threads that share a view do not share one.

Does not: answer for more than one row, or for errors.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from shm_arrangements.batch import Batch
from shm_arrangements.chain import Chain
from shm_arrangements.columns import Column, Encoding
from shm_arrangements.conversion import to_python
from shm_arrangements.kernels import find
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.table import Table
from shm_arrangements.types import DTYPES, VARIABLE, WIDE, ColumnSpec, ColumnType

Finder = Callable[[Any], int]

_SIGN: Final = 1 << 63
_WORDS: Final = 1 << 64
_FLOAT, _WORD = struct.Struct("<d"), struct.Struct("<q")
_TEXT_BYTES: Final = 256  # longer keys are looked up like many
_CHARACTERS: Final = (ColumnType.TEXT, ColumnType.JSONB)
# Types whose Python value is what a memoryview of their array gives.
_AS_STORED: Final = frozenset(
    {
        ColumnType.BOOL, ColumnType.INT16, ColumnType.INT32, ColumnType.INT64, ColumnType.UINT16,
        ColumnType.UINT32, ColumnType.UINT64, ColumnType.FLOAT32, ColumnType.FLOAT64,
    }
)  # fmt: skip
_INTEGERS: Final = _AS_STORED - {ColumnType.BOOL, ColumnType.FLOAT32, ColumnType.FLOAT64}


def finder(chain: Chain, at: int) -> Finder:
    """What finds the reference of the one update up to `at` that a key has: NONE, or MANY if in doubt."""
    schema = chain.schema
    latest = at if at < _SIGN else at - _WORDS
    if schema.code is CodeKind.IDENTITY:
        return _by_word(chain, schema.key_specs[0], latest)
    if schema.key and all(map(_has_slot, schema.key_specs)):
        return _by_slot(chain, latest)
    return _in_doubt


def _in_doubt(key: Any) -> int:
    return find.MANY


def _by_word(chain: Chain, spec: ColumnSpec, latest: int) -> Finder:
    call, rows = find.find_word.direct(), chain.rows
    nullable, many = spec.nullable, find.MANY  # the code 0 is NULL's, too
    if spec.type is ColumnType.UINT64:

        def find_unsigned(key: Any) -> int:
            if type(key) is not int or not 0 <= key < _WORDS or (nullable and not key):
                return many
            return call(rows, key if key < _SIGN else key - _WORDS, latest)  # type: ignore[no-any-return]

        return find_unsigned
    if spec.type is ColumnType.FLOAT64:

        def find_float(key: Any) -> int:
            if type(key) is not float or key != key or (nullable and not key):
                return many
            return call(rows, *_WORD.unpack(_FLOAT.pack(key + 0.0)), latest)  # type: ignore[no-any-return]

        return find_float

    def find_signed(key: Any) -> int:
        if type(key) is not int or not -_SIGN <= key < _SIGN or (nullable and not key):
            return many
        return call(rows, key, latest)  # type: ignore[no-any-return]

    return find_signed


class _Slot:
    """A table of one key, to be overwritten: `write` says whether the key fitted."""

    __slots__ = ("_writers", "cells", "table")

    def __init__(self, specs: tuple[ColumnSpec, ...]) -> None:
        columns, writers = [], []
        for spec in specs:
            column, writer = _place_for(spec)
            columns.append(column)
            writers.append(writer)
        self.table = Table(columns)
        self.cells = self.table.cells
        self._writers = writers

    def write(self, key: Any) -> bool:
        writers = self._writers
        if len(writers) == 1:
            return writers[0](key)
        if type(key) is not tuple or len(key) != len(writers):
            return False
        return all([writer(part) for writer, part in zip(writers, key, strict=True)])


def _by_slot(chain: Chain, latest: int) -> Finder:
    call, rows, cells = find.find_key.direct(), chain.rows, chain.cells
    specs = chain.schema.key_specs
    many, columns, ordered = find.MANY, len(specs), int(chain.schema.code is CodeKind.ORDERED)
    free: list[_Slot] = []

    def find_slot(key: Any) -> int:
        try:
            slot = free.pop()
        except IndexError:
            slot = _Slot(specs)
        found = call(rows, cells, slot.cells, columns, ordered, latest) if slot.write(key) else many
        free.append(slot)
        return found

    return find_slot


def _has_slot(spec: ColumnSpec) -> bool:
    return spec.type in _AS_STORED or spec.type in VARIABLE or spec.type is ColumnType.UUID


def _place_for(spec: ColumnSpec) -> tuple[Column, Callable[[Any], bool]]:
    """A column of one value, and what overwrites it."""
    type_ = spec.type
    assert isinstance(type_, ColumnType)
    if type_ in VARIABLE:
        data, offsets = np.zeros(_TEXT_BYTES, np.uint8), np.zeros(2, np.int64)
        return Column(type_, data, offsets), _text_writer(type_, _view(data), _view(offsets))
    if type_ in WIDE:
        wide = np.zeros((1, 2), np.uint64)
        return Column(type_, wide), _uuid_writer(_view(wide.view(np.uint8).reshape(-1)))
    values = np.zeros(1, DTYPES[type_])
    return Column(type_, values), _number_writer(type_, _view(values))


def _text_writer(type_: ColumnType, data: memoryview, offsets: memoryview) -> Callable[[Any], bool]:
    is_text = type_ in _CHARACTERS

    def write(value: Any) -> bool:
        if is_text and type(value) is str:
            try:
                value = value.encode()
            except UnicodeEncodeError:
                return False
        elif is_text or type(value) is not bytes:
            return False
        size = len(value)
        if size > _TEXT_BYTES:
            return False
        data[:size] = value
        offsets[1] = size
        return True

    return write


def _uuid_writer(data: memoryview) -> Callable[[Any], bool]:
    def write(value: Any) -> bool:
        if type(value) is not uuid.UUID:
            return False
        data[:] = value.bytes
        return True

    return write


def _number_writer(type_: ColumnType, data: memoryview) -> Callable[[Any], bool]:
    is_float = type_ not in _INTEGERS and type_ is not ColumnType.BOOL
    wanted: Any = float if is_float else bool if type_ is ColumnType.BOOL else int

    def write(value: Any) -> bool:
        if type(value) is not wanted or value != value:
            return False
        try:
            data[0] = value + 0.0 if is_float else value  # no -0.0
        except (ValueError, OverflowError):  # beyond the type
            return False
        return True

    return write


def row_reader(schema: ArrangementSchema, batch: Batch) -> Callable[[int], tuple[Any, ...]]:
    """What gives a row of a batch as a tuple of Python values, as `to_python` does, in row order."""
    pairs = zip(schema.columns, batch.row_columns(), strict=True)
    readers = [_reader(spec, column) for spec, column in pairs]
    if len(readers) == 2:
        first, second = readers
        return lambda row: (first(row), second(row))
    return lambda row: tuple([reader(row) for reader in readers])


def _reader(spec: ColumnSpec, column: Column) -> Callable[[int], Any]:
    if column.encoding is Encoding.PLAIN and not column.has_validity:
        if spec.type in _AS_STORED:
            return _view(column.values).__getitem__
        if spec.type in VARIABLE:
            offsets = column.offsets
            assert offsets is not None
            return functools.partial(_text, spec.type in _CHARACTERS, _view(column.values), _view(offsets))
    if column.encoding is Encoding.CONSTANT and column.stored is not None:
        value = to_python(spec, column.stored)[0]
        if not isinstance(value, list):  # which its holder could change
            return lambda row: value
    return lambda row: to_python(spec, column.slice(row, row + 1))[0]


def _view(array: Any) -> memoryview:
    return memoryview(array)


def _text(characters: bool, data: memoryview, offsets: memoryview, row: int) -> Any:
    value = bytes(data[offsets[row] : offsets[row + 1]])
    return value.decode() if characters else value
