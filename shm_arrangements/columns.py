"""Column: a typed vector of values with NULLs, in Arrow's layout, as numpy arrays, plain or encoded.

One canonical form of values: -0.0 is 0.0, every NaN is the one NaN, and a NULL position holds zero bytes or
an empty text. So two columns with the same values order, compare and hash alike. `from_pylist` makes the
form; whoever builds a Column from arrays owes it (`canonical` makes it).

A column is stored in one of three encodings: PLAIN; CONSTANT, one value that stands for all; DICTIONARY, for
texts, an index a row into a column of distinct ones. Kernels read all three in place (kernels/cells.py).
The attributes `values`, `offsets` and `children` decode an encoded column and keep the result with it; what
is hot asks for `encoding` first.

A Column is a view: slicing copies nothing, and nobody writes to an array he did not make.

Does not: show kernels where its arrays are (table.py); compare, hash or sort (kernels/cells.py, rows.py); or
know Python's values (values.py).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.kernels import gather
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

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Encoding(enum.IntEnum):
    """How a column is stored; the codes are those of the byte format."""

    PLAIN = 0
    CONSTANT = 1
    DICTIONARY = 2


def canonical_floats(values: NDArray[Any]) -> NDArray[Any]:
    """A copy of floats with -0.0 as 0.0 and every NaN as the one NaN."""
    with np.errstate(invalid="ignore"):  # a signaling NaN is a NaN like any
        out: NDArray[Any] = values + values.dtype.type(0.0)  # -0.0 + 0.0 is 0.0
    out[np.isnan(out)] = np.nan
    return out


_NO_VALUES: Final = np.empty(0, np.uint8)


class Column:
    """n values of one type; all arrays in C order.

    values: (n,) of the type's dtype; WIDE types (n, 2) uint64 ([low, high] of a two's complement 128-bit
        integer; months and days, nanoseconds; the 16 bytes); VARIABLE types the uint8 bytes that `offsets`
        points into; nothing for lists and records.
    offsets: VARIABLE types and lists, (n + 1,) int64, not necessarily from 0. children: a list's elements,
        a record's fields. validity: (n,) bool, or None if all are valid. Mapped columns keep it as bits and
        unpack on access: read it once into a local.
    """

    __slots__ = (
        "_bit_offset", "_bits", "_children", "_decoded", "_length", "_offsets", "_validity", "_values",
        "encoding", "indices", "stored", "type",
    )  # fmt: skip

    def __init__(
        self,
        type_: AnyType,
        values: NDArray[Any],
        offsets: Ints | None = None,
        validity: Bools | None = None,
        *,
        children: tuple[Column, ...] = (),
        length: int | None = None,
    ) -> None:
        """length: of a record without fields; else it is that of the arrays."""
        self.type = type_
        self.encoding = Encoding.PLAIN
        self.stored: Column | None = None  # the one value, or the dictionary
        self.indices: NDArray[Any] | None = None
        self._values = values
        self._offsets = offsets
        self._children = children
        self._validity = validity
        self._bits: NDArray[np.uint8] | None = None
        self._bit_offset = 0
        self._decoded: Column | None = None
        if offsets is not None:
            self._length = len(offsets) - 1
        elif type(type_) is RecordType:
            self._length = len(children[0]) if length is None else length
        else:
            self._length = len(values)

    @classmethod
    def with_bits(
        cls,
        type_: AnyType,
        values: NDArray[Any],
        offsets: Ints | None,
        bits: NDArray[np.uint8] | None,
        *,
        children: tuple[Column, ...] = (),
        length: int | None = None,
    ) -> Column:
        """A column whose validity is a bitmap, least significant bit first; None if all are valid."""
        column = cls(type_, values, offsets, children=children, length=length)
        column._bits = bits
        return column

    @classmethod
    def repeated(cls, one: Column, n: int) -> Column:
        """A CONSTANT column: the value of a column of length 1, n times. No copy."""
        column = cls._encoded(one.type, Encoding.CONSTANT, n)
        column.stored = one.plain()
        return column

    @classmethod
    def of_dictionary(
        cls,
        dictionary: Column,
        indices: NDArray[Any],
        validity: Bools | None = None,
        bits: NDArray[np.uint8] | None = None,
    ) -> Column:
        """A DICTIONARY column: row i is entry indices[i] (uint8, uint16, uint32) of a VARIABLE column.

        A NULL row's entry is the empty one. No copy.
        """
        column = cls._encoded(dictionary.type, Encoding.DICTIONARY, len(indices))
        column.stored, column.indices = dictionary, indices
        column._validity, column._bits = validity, bits
        return column

    @classmethod
    def _encoded(cls, type_: AnyType, encoding: Encoding, n: int) -> Column:
        column = cls(type_, _NO_VALUES, length=0)
        column.encoding, column._length = encoding, n
        return column

    @classmethod
    def empty(cls, type_: AnyType) -> Column:
        return cls.nulls(type_, 0)

    @classmethod
    def nulls(cls, type_: AnyType, n: int) -> Column:
        """n NULLs (for n = 0, no validity)."""
        validity = np.zeros(n, np.bool_) if n else None
        if type(type_) is ListType:
            none = (cls.empty(type_.element.type),)
            return cls(type_, _NO_VALUES, np.zeros(n + 1, np.int64), validity, children=none)
        if type(type_) is RecordType:
            children = tuple(
                cls.nulls(field.type, n) if field.nullable else cls.zeros(field.type, n)
                for field in child_specs(type_)
            )
            return cls(type_, _NO_VALUES, None, validity, children=children, length=n)
        column = cls.zeros(type_, n)
        column._validity = validity
        return column

    @classmethod
    def zeros(cls, type_: AnyType, n: int) -> Column:
        """n times the type's zero: 0, false, the empty text or list, a record of zeros."""
        if type(type_) is RecordType:
            children = tuple(cls.zeros(field.type, n) for field in type_.fields)
            return cls(type_, _NO_VALUES, children=children, length=n)
        if type(type_) is ListType:
            children = (cls.empty(type_.element.type),)
            return cls(type_, _NO_VALUES, np.zeros(n + 1, np.int64), children=children)
        assert isinstance(type_, ColumnType)
        if type_ in VARIABLE:
            return cls(type_, _NO_VALUES, np.zeros(n + 1, np.int64))
        return cls(type_, np.zeros((n, 2) if type_ in WIDE else n, DTYPES[type_]))

    @classmethod
    def constant(cls, type_: AnyType, value: object, n: int) -> Column:
        """`value` n times; None is NULL. Raises: ValueError as `from_pylist`."""
        if value is None:
            return cls.repeated(cls.nulls(type_, 1), n)
        return cls.repeated(cls.from_pylist(type_, [value]), n)

    @classmethod
    def from_pylist(cls, type_: AnyType, values: Sequence[object]) -> Column:
        """Values of Python, as values.py lists them by type; None is NULL.

        Raises: ValueError naming the value that does not fit the type.
        """
        from shm_arrangements import values as python_values

        return python_values.column_of(type_, values)

    def to_pylist(self) -> list[Any]:
        """Inverse of `from_pylist`."""
        from shm_arrangements import values as python_values

        return python_values.list_of(self)

    @classmethod
    def concat(cls, type_: AnyType, columns: Sequence[Column]) -> Column:
        """All of `columns`, one after the other; copies unless there is just one."""
        if len(columns) == 1:
            return columns[0]
        if not columns:
            return cls.empty(type_)
        columns = [column.plain() for column in columns]
        n = sum(map(len, columns))
        valid = [c.validity for c in columns]
        validity = None
        if any(v is not None for v in valid):
            pairs = zip(columns, valid, strict=True)
            validity = np.concatenate([np.ones(len(c), np.bool_) if v is None else v for c, v in pairs])
        if type(type_) is RecordType:
            fields = enumerate(type_.fields)
            children = tuple(cls.concat(f.type, [c._children[i] for c in columns]) for i, f in fields)
            return cls(type_, _NO_VALUES, None, validity, children=children, length=n)
        if columns[0]._offsets is None:
            return cls(type_, np.concatenate([c._values for c in columns]), None, validity)
        offsets = np.zeros(n + 1, np.int64)
        spans, at, total = [], 0, 0
        for column in columns:
            mine = column._offsets
            assert mine is not None
            size, first, last = len(column), int(mine[0]), int(mine[-1])
            np.add(mine[1:], total - first, out=offsets[at + 1 : at + size + 1])
            spans.append((first, last))
            at, total = at + size, total + last - first
        if type(type_) is ListType:
            parts = [c._children[0].slice(lo, hi) for c, (lo, hi) in zip(columns, spans, strict=True)]
            child = cls.concat(type_.element.type, parts)
            return cls(type_, _NO_VALUES, offsets, validity, children=(child,))
        data = [c._values[lo:hi] for c, (lo, hi) in zip(columns, spans, strict=True)]
        return cls(type_, np.concatenate(data), offsets, validity)

    def __len__(self) -> int:
        return self._length

    def plain(self) -> Column:
        """The same values PLAIN: this column if it is, else decoded once and kept with it."""
        if self.encoding is Encoding.PLAIN:
            return self
        if self._decoded is None:
            assert self.stored is not None
            if self.encoding is Encoding.CONSTANT:
                self._decoded = self.stored.take(np.zeros(self._length, np.int64))
            else:
                assert self.indices is not None
                decoded = self.stored.take(self.indices.astype(np.int64))
                decoded._validity, decoded._bits = self._validity, self._bits
                decoded._bit_offset = self._bit_offset
                self._decoded = decoded
        return self._decoded

    @property
    def values(self) -> NDArray[Any]:
        return self._values if self.encoding is Encoding.PLAIN else self.plain()._values

    @property
    def offsets(self) -> Ints | None:
        return self._offsets if self.encoding is Encoding.PLAIN else self.plain()._offsets

    @property
    def children(self) -> tuple[Column, ...]:
        return self._children if self.encoding is Encoding.PLAIN else self.plain()._children

    @property
    def validity(self) -> Bools | None:
        if self.encoding is Encoding.CONSTANT:
            return self.plain().validity
        if self._bits is None:
            return self._validity
        end = self._bit_offset + len(self)
        first = self._bit_offset >> 3
        bits = np.unpackbits(self._bits[first : (end + 7) >> 3], bitorder="little")
        return bits[self._bit_offset - 8 * first : end - 8 * first].view(np.bool_)

    @property
    def has_validity(self) -> bool:
        """Whether NULLs may be among the values, without unpacking anything."""
        if self.encoding is Encoding.CONSTANT:
            return self.stored is not None and self.stored.has_validity
        return self._bits is not None or self._validity is not None

    @property
    def stored_validity(self) -> tuple[NDArray[Any], int | None] | None:
        """Validity as it is kept: a bitmap and the bit it begins at, or bools and None; None for all valid.

        Of a CONSTANT column it is `stored` that has it.
        """
        if self._bits is not None:
            return self._bits, self._bit_offset
        return None if self._validity is None else (self._validity, None)

    def bits(self) -> tuple[NDArray[np.uint8], int] | None:
        """Validity as a bitmap and the bit it begins at; None if all are valid."""
        if self._bits is not None:
            return self._bits, self._bit_offset
        validity = self.validity
        return None if validity is None else (np.packbits(validity, bitorder="little"), 0)

    @property
    def null_count(self) -> int:
        if self.encoding is Encoding.CONSTANT:
            assert self.stored is not None
            return self.stored.null_count * len(self)
        validity = self.validity
        return 0 if validity is None else len(self) - int(np.count_nonzero(validity))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that what this column shows takes, as it is encoded."""
        if self.encoding is not Encoding.PLAIN:
            assert self.stored is not None
            size = self.stored.nbytes + (0 if self.indices is None else self.indices.nbytes)
        elif self._offsets is not None:
            lo, hi = int(self._offsets[0]), int(self._offsets[-1])
            size = self._offsets.nbytes
            size += self._children[0].slice(lo, hi).nbytes if self._children else hi - lo
        else:
            size = self._values.nbytes + sum(child.nbytes for child in self._children)
        if self._bits is not None:
            return size + (len(self) + 7) // 8
        return size + (0 if self._validity is None else self._validity.nbytes)

    def slice(self, lo: int, hi: int) -> Column:
        """Values lo..hi (within bounds), sharing memory."""
        if self.encoding is Encoding.CONSTANT:
            assert self.stored is not None
            return Column.repeated(self.stored, hi - lo)
        if self.encoding is Encoding.DICTIONARY:
            assert self.stored is not None
            assert self.indices is not None
            part = Column.of_dictionary(self.stored, self.indices[lo:hi])
        elif self._offsets is not None:
            part = Column(self.type, self._values, self._offsets[lo : hi + 1], children=self._children)
        elif self._children:
            children = tuple(child.slice(lo, hi) for child in self._children)
            part = Column(self.type, self._values, children=children, length=hi - lo)
        elif type(self.type) is RecordType:
            part = Column(self.type, self._values, length=hi - lo)
        else:
            part = Column(self.type, self._values[lo:hi])
        if self._bits is not None:
            part._bits, part._bit_offset = self._bits, self._bit_offset + lo
        elif self._validity is not None:
            part._validity = self._validity[lo:hi]
        return part

    def take(self, rows: Ints) -> Column:
        """The values at `rows` (m,) int64, copied; an encoded column stays as it is encoded."""
        if self.encoding is Encoding.CONSTANT:
            assert self.stored is not None
            return Column.repeated(self.stored, len(rows))
        rows = np.ascontiguousarray(rows)
        validity = None
        if self._bits is not None:
            validity = np.empty(len(rows), np.bool_)
            if gather.gather_bits(self._bits, self._bit_offset, rows, validity) == len(rows):
                validity = None
        elif self._validity is not None:
            validity = self._validity.take(rows)
            if validity.all():
                validity = None
        if self.encoding is Encoding.DICTIONARY:
            assert self.stored is not None
            assert self.indices is not None
            return Column.of_dictionary(self.stored, self.indices.take(rows), validity)
        if type(self.type) is RecordType:
            children = tuple(child.take(rows) for child in self._children)
            return Column(self.type, self._values, None, validity, children=children, length=len(rows))
        if self._offsets is None:
            return Column(self.type, self._values.take(rows, axis=0), None, validity)
        offsets = np.empty(len(rows) + 1, np.int64)
        total = gather.text_offsets(self._offsets, rows, offsets)
        if self._children:
            elements = np.empty(total, np.int64)
            gather.list_elements(self._offsets, rows, offsets, elements)
            children = (self._children[0].take(elements),)
            return Column(self.type, self._values, offsets, validity, children=children)
        data = np.empty(total, np.uint8)
        gather.gather_text(self._values, self._offsets, rows, offsets, data)
        return Column(self.type, data, offsets, validity)

    def filter(self, mask: Bools) -> Column:
        """The values where `mask` (n,) is true, copied."""
        return self.take(np.flatnonzero(mask))

    def canonical(self) -> Column:
        """The same values in the canonical form; self if it already is. JSON texts stand as they are."""
        if self.encoding is Encoding.CONSTANT:
            assert self.stored is not None
            return Column.repeated(self.stored.canonical(), len(self))
        if self.encoding is Encoding.DICTIONARY:
            return self.plain().canonical()
        validity = self.validity
        if validity is not None and validity.all():
            plain = (self._values, self._offsets, None)
            return Column(self.type, *plain, children=self._children, length=len(self)).canonical()
        if type(self.type) is RecordType:
            children = tuple(child.canonical() for child in self._children)
            return Column(self.type, self._values, None, validity, children=children, length=len(self))
        if self._offsets is not None:
            column = self
            if self._children:
                children = (self._children[0].canonical(),)
                column = Column(self.type, self._values, self._offsets, validity, children=children)
            if validity is None or not np.diff(self._offsets)[~validity].any():
                return column
            rows = np.flatnonzero(validity)
            kept = Column(self.type, self._values, self._offsets, children=column._children).take(rows)
            assert kept._offsets is not None
            sizes = np.zeros(len(self) + 1, np.int64)
            sizes[rows + 1] = np.diff(kept._offsets)
            return Column(self.type, kept._values, np.cumsum(sizes), validity, children=kept._children)
        values = self._values
        if self.type in (ColumnType.FLOAT64, ColumnType.FLOAT32):
            values = canonical_floats(values)
        if validity is not None:
            values = values.copy()
            values[~validity] = 0
        return Column(self.type, values, None, validity)

    def __repr__(self) -> str:
        return f"Column({self.type.name}, n={len(self)})"
