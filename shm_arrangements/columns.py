"""Column: a typed vector of values with NULLs, in Arrow's layout, as numpy arrays.

One canonical form: -0.0 is 0.0, every NaN is the one NaN, and a NULL position holds zero bytes or an empty
text. So two columns with the same values have the same bytes, and equality, order and hash can be taken
from bytes. `from_pylist` makes the form; whoever builds a Column from arrays owes it (`canonical` makes
it).

A Column is a view: slicing copies nothing, and nobody writes to an array he did not make.

Does not: compare, hash or sort (rows.py); convert numerics to text (the layer above).
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.kernels import gather

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_I64_RANGE: Final = (-(1 << 63), (1 << 63) - 1)
_I128_RANGE: Final = (-(1 << 127), (1 << 127) - 1)
_MASK64: Final = (1 << 64) - 1


class ColumnType(enum.IntEnum):
    """The type codes of the byte format. Codes are never reused; more may follow."""

    BOOL = 1
    INT64 = 2
    FLOAT64 = 3
    TEXT = 4
    TIMESTAMP = 5
    NUMERIC = 6


DTYPES: Final[dict[ColumnType, np.dtype[Any]]] = {
    ColumnType.BOOL: np.dtype(np.bool_),
    ColumnType.INT64: np.dtype(np.int64),
    ColumnType.FLOAT64: np.dtype(np.float64),
    ColumnType.TEXT: np.dtype(np.uint8),
    ColumnType.TIMESTAMP: np.dtype(np.int64),
    ColumnType.NUMERIC: np.dtype(np.uint64),
}


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Name, type, and whether NULL may occur."""

    name: str
    type: ColumnType
    nullable: bool


def canonical_floats(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A copy with -0.0 as 0.0 and every NaN as the one NaN."""
    out: NDArray[np.float64] = values + 0.0  # -0.0 + 0.0 is 0.0
    out[np.isnan(out)] = np.nan
    return out


def _rows(type_: ColumnType, n: int) -> tuple[int, ...]:
    return (n, 2) if type_ is ColumnType.NUMERIC else (n,)


class Column:
    """n values of one type; all arrays in C order.

    values: (n,) bool, int64, float64, int64 microseconds; NUMERIC (n, 2) uint64 [low, high] of a two's
        complement 128-bit integer; TEXT the uint8 bytes that `offsets` points into.
    offsets: TEXT only, (n + 1,) int64, not necessarily from 0. validity: (n,) bool, or None if all are
        valid. Mapped columns keep it as bits and unpack on access: read it once into a local.
    """

    __slots__ = ("_bit_offset", "_bits", "_validity", "offsets", "type", "values")

    def __init__(
        self,
        type_: ColumnType,
        values: NDArray[Any],
        offsets: Ints | None = None,
        validity: Bools | None = None,
    ) -> None:
        self.type = type_
        self.values = values
        self.offsets = offsets
        self._validity = validity
        self._bits: NDArray[np.uint8] | None = None
        self._bit_offset = 0

    @classmethod
    def with_bits(
        cls, type_: ColumnType, values: NDArray[Any], offsets: Ints | None, bits: NDArray[np.uint8] | None
    ) -> Column:
        """A column whose validity is a bitmap, least significant bit first; None if all are valid."""
        column = cls(type_, values, offsets)
        column._bits = bits
        return column

    @classmethod
    def empty(cls, type_: ColumnType) -> Column:
        return cls.nulls(type_, 0)

    @classmethod
    def nulls(cls, type_: ColumnType, n: int) -> Column:
        """n NULLs (for n = 0, no validity)."""
        text = type_ is ColumnType.TEXT
        return cls(
            type_,
            np.zeros(0 if text else _rows(type_, n), DTYPES[type_]),
            np.zeros(n + 1, np.int64) if text else None,
            np.zeros(n, np.bool_) if n else None,
        )

    @classmethod
    def constant(cls, type_: ColumnType, value: object, n: int) -> Column:
        """`value` n times; None is NULL. Raises: ValueError as `from_pylist`."""
        if value is None:
            return cls.nulls(type_, n)
        return cls.from_pylist(type_, [value]).take(np.zeros(n, np.int64))

    @classmethod
    def from_pylist(cls, type_: ColumnType, values: Sequence[object]) -> Column:
        """Values of Python: bool, int, float (or int), str, int microseconds, int for NUMERIC; None is NULL.

        Raises: ValueError naming the value that does not fit the type.
        """
        n = len(values)
        known = np.fromiter((v is not None for v in values), np.bool_, n)
        validity = None if known.all() else known
        if type_ is ColumnType.TEXT:
            texts = [b"" if v is None else _text_bytes(v) for v in values]
            offsets = np.zeros(n + 1, np.int64)
            np.cumsum(np.fromiter(map(len, texts), np.int64, n), out=offsets[1:])
            return cls(type_, np.frombuffer(b"".join(texts), np.uint8), offsets, validity)
        if type_ is ColumnType.NUMERIC:
            wide = np.zeros((n, 2), np.uint64)
            for i, value in enumerate(values):
                number = 0 if value is None else _integer(value, _I128_RANGE, type_)
                wide[i, 0] = number & _MASK64
                wide[i, 1] = (number >> 64) & _MASK64
            return cls(type_, wide, None, validity)
        if type_ is ColumnType.BOOL:
            flags = [False if v is None else _boolean(v) for v in values]
            return cls(type_, np.array(flags, np.bool_), None, validity)
        if type_ is ColumnType.FLOAT64:
            numbers = np.array([0.0 if v is None else _floating(v) for v in values], np.float64)
            return cls(type_, canonical_floats(numbers), None, validity)
        integers = [0 if v is None else _integer(v, _I64_RANGE, type_) for v in values]
        return cls(type_, np.array(integers, np.int64), None, validity)

    @classmethod
    def concat(cls, type_: ColumnType, columns: Sequence[Column]) -> Column:
        """All of `columns`, one after the other; copies unless there is just one."""
        if len(columns) == 1:
            return columns[0]
        if not columns:
            return cls.empty(type_)
        valid = [c.validity for c in columns]
        validity = None
        if any(v is not None for v in valid):
            pairs = zip(columns, valid, strict=True)
            validity = np.concatenate([np.ones(len(c), np.bool_) if v is None else v for c, v in pairs])
        if type_ is not ColumnType.TEXT:
            return cls(type_, np.concatenate([c.values for c in columns]), None, validity)
        offsets = np.zeros(sum(map(len, columns)) + 1, np.int64)
        data, at, total = [], 0, 0
        for column in columns:
            assert column.offsets is not None
            n, first, last = len(column), int(column.offsets[0]), int(column.offsets[-1])
            np.add(column.offsets[1:], total - first, out=offsets[at + 1 : at + n + 1])
            data.append(column.values[first:last])
            at, total = at + n, total + last - first
        return cls(type_, np.concatenate(data), offsets, validity)

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def validity(self) -> Bools | None:
        if self._bits is None:
            return self._validity
        end = self._bit_offset + len(self)
        first = self._bit_offset >> 3
        bits = np.unpackbits(self._bits[first : (end + 7) >> 3], bitorder="little")
        return bits[self._bit_offset - 8 * first : end - 8 * first].view(np.bool_)

    @property
    def has_validity(self) -> bool:
        """Whether NULLs may be among the values, without unpacking anything."""
        return self._bits is not None or self._validity is not None

    def bits(self) -> tuple[NDArray[np.uint8], int] | None:
        """Validity as a bitmap and the bit it begins at; None if all are valid."""
        if self._bits is not None:
            return self._bits, self._bit_offset
        if self._validity is None:
            return None
        return np.packbits(self._validity, bitorder="little"), 0

    @property
    def null_count(self) -> int:
        validity = self.validity
        return 0 if validity is None else len(self) - int(np.count_nonzero(validity))

    @property
    def nbytes(self) -> int:
        """Bytes of the values this column shows."""
        if self.offsets is None:
            size = self.values.nbytes
        else:
            size = self.offsets.nbytes + int(self.offsets[-1] - self.offsets[0])
        if self._bits is not None:
            return size + (len(self) + 7) // 8
        return size + (0 if self._validity is None else self._validity.nbytes)

    def slice(self, lo: int, hi: int) -> Column:
        """Values lo..hi (within bounds), sharing memory."""
        if self.offsets is None:
            part = Column(self.type, self.values[lo:hi])
        else:
            part = Column(self.type, self.values, self.offsets[lo : hi + 1])
        if self._bits is not None:
            part._bits, part._bit_offset = self._bits, self._bit_offset + lo
        elif self._validity is not None:
            part._validity = self._validity[lo:hi]
        return part

    def take(self, rows: Ints) -> Column:
        """The values at `rows` (m,) int64, copied."""
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
        if self.offsets is None:
            return Column(self.type, self.values.take(rows, axis=0), None, validity)
        offsets = np.empty(len(rows) + 1, np.int64)
        data = np.empty(gather.text_offsets(self.offsets, rows, offsets), np.uint8)
        gather.gather_text(self.values, self.offsets, rows, offsets, data)
        return Column(self.type, data, offsets, validity)

    def filter(self, mask: Bools) -> Column:
        """The values where `mask` (n,) is true, copied."""
        return self.take(np.flatnonzero(mask))

    def canonical(self) -> Column:
        """The same values in the canonical form; self if it already is."""
        validity = self.validity
        if validity is not None and validity.all():
            return Column(self.type, self.values, self.offsets).canonical()
        if self.offsets is not None:
            if validity is None or not np.diff(self.offsets)[~validity].any():
                return self
            rows = np.flatnonzero(validity)
            kept = Column(self.type, self.values, self.offsets).take(rows)
            assert kept.offsets is not None
            sizes = np.zeros(len(self) + 1, np.int64)
            sizes[rows + 1] = np.diff(kept.offsets)
            return Column(self.type, kept.values, np.cumsum(sizes), validity)
        values = canonical_floats(self.values) if self.type is ColumnType.FLOAT64 else self.values
        if validity is not None:
            values = values.copy()
            values[~validity] = 0
        return Column(self.type, values, None, validity)

    def to_pylist(self) -> list[Any]:
        """Inverse of `from_pylist`."""
        if self.type is ColumnType.TEXT:
            assert self.offsets is not None
            base, end = int(self.offsets[0]), int(self.offsets[-1])
            data = self.values[base:end].tobytes()
            ends = (self.offsets - base).tolist()
            out: list[Any] = [data[a:b].decode() for a, b in itertools.pairwise(ends)]
        elif self.type is ColumnType.NUMERIC:
            high = self.values[:, 1].astype(np.int64).tolist()
            out = [(h << 64) | w for h, w in zip(high, self.values[:, 0].tolist(), strict=True)]
        else:
            out = self.values.tolist()
        validity = self.validity
        if validity is not None:
            for i in np.flatnonzero(~validity).tolist():
                out[i] = None
        return out

    def __repr__(self) -> str:
        return f"Column({self.type.name}, n={len(self)})"


def _misfit(type_: ColumnType, value: object) -> ValueError:
    return ValueError(f"not a {type_.name.lower()}: {value!r}")


def _text_bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise _misfit(ColumnType.TEXT, value)
    return value.encode()  # UnicodeEncodeError is a ValueError that shows the surrogate


def _boolean(value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _misfit(ColumnType.BOOL, value)
    return bool(value)


def _floating(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (float, int, np.floating, np.integer)):
        raise _misfit(ColumnType.FLOAT64, value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"beyond float64: {value!r}") from None


def _integer(value: object, bounds: tuple[int, int], type_: ColumnType) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise _misfit(type_, value)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _misfit(type_, value) from None
    if not bounds[0] <= number <= bounds[1]:
        raise ValueError(f"beyond {type_.name.lower()}: {number}")
    return number
