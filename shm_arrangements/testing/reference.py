"""What each kernel computes, in plain Python and numpy: slow, obvious, and written without the kernel.

`REFERENCES` has a function for each kernel, by its name. It takes what the kernel takes, less the arrays that
are only written to and the scratch, and returns what the kernel leaves in each array that it writes to, in
their order, and then what it returns, if anything. An array may be shorter than the kernel's: what is behind
is not said. Where a kernel takes a table, the reference takes a `Relation`.

Order, equality and hash are those of Python's values, as values.py lists them; so it is shown at once that
encodings and forms in memory do not matter.

Does not: share code with the kernels, or say what arguments are fit (the tests of kernels draw them).
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.types import VARIABLE, AnyType, ColumnType, ListType, RecordType

Array = NDArray[Any]
REFERENCES: Final[dict[str, Callable[..., Any]]] = {}

_MASK: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63


class _Anything:
    """Equal to everything: where the kernel's result is not specified."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


ANYTHING: Final = _Anything()


def reference_of(kernel: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the reference of a kernel, named as file.function."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        REFERENCES[kernel] = function
        return function

    return register


@dataclass(frozen=True)
class Relation:
    """Rows of Python's values, with the types of their columns."""

    types: tuple[AnyType, ...]
    rows: tuple[tuple[Any, ...], ...]


# Values: their order, their words, their hash.


def key_of(type_: AnyType, value: Any) -> tuple[Any, ...]:
    """What orders, in Python, as a value does: NULL last, NaN behind infinity."""
    if value is None:
        return (1,)
    if isinstance(type_, ListType):
        return (0, tuple(key_of(type_.element.type, element) for element in value))
    if isinstance(type_, RecordType):
        pairs = zip(type_.fields, value, strict=True)
        return (0, tuple(key_of(field.type, part) for field, part in pairs))
    if isinstance(value, float):
        return (0, 1, 0.0) if math.isnan(value) else (0, 0, value)
    if isinstance(value, str):
        return (0, value.encode())
    return (0, value.bytes) if type_ is ColumnType.UUID else (0, value)


def row_key(relation: Relation, row: int, first: int = 0, last: int | None = None) -> tuple[Any, ...]:
    """What orders as a row does, by its columns first..last-1."""
    pairs = zip(relation.types, relation.rows[row], strict=True)
    return tuple(key_of(type_, value) for type_, value in pairs)[first:last]


def _float_word(value: float, form: str, bits: int) -> int:
    canonical = math.nan if math.isnan(value) else value + 0.0
    if math.isnan(canonical):
        canonical = float("nan")
    word = int.from_bytes(struct.pack(f">{form}", canonical), "big")
    sign = 1 << (bits - 1)
    return word ^ sign if word < sign else word ^ ((1 << bits) - 1)


def words_of(type_: ColumnType, value: Any) -> tuple[int, ...]:
    """The order words of a value, unsigned: one, or two of a wide one."""
    unsigned = (ColumnType.BOOL, ColumnType.UINT16, ColumnType.UINT32, ColumnType.UINT64)
    if type_ in unsigned:
        return (int(value),)
    if type_ is ColumnType.FLOAT64:
        return (_float_word(value, "d", 64),)
    if type_ is ColumnType.FLOAT32:
        return (_float_word(value, "f", 32),)
    if type_ is ColumnType.NUMERIC:
        return ((value >> 64) + _SIGN, value & _MASK)
    if type_ is ColumnType.UUID:
        return (value.int >> 64, value.int & _MASK)
    if type_ is ColumnType.INTERVAL:
        months, days, nanoseconds = value
        half = 1 << 31
        return (((months + half) << 32) | (days + half), nanoseconds + _SIGN)
    if type_ in VARIABLE:
        return (int.from_bytes(_bytes_of(value)[:8].ljust(8, b"\0"), "big"),)
    return (value + _SIGN,)


def _bytes_of(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _mix(h: int, word: int) -> int:
    h = ((h ^ word) * 0x9E3779B97F4A7C15) & _MASK
    h = ((h ^ (h >> 32)) * 0xD6E8FEB86659FD93) & _MASK
    return h ^ (h >> 29)


def _mix_value(h: int, type_: AnyType, value: Any) -> int:
    if value is None:
        return _mix(h, 0x3C6EF372FE94F82B)
    if isinstance(type_, ListType):
        h = _mix(h, len(value))
        for element in value:
            h = _mix_value(h, type_.element.type, element)
    elif isinstance(type_, RecordType):
        for field, part in zip(type_.fields, value, strict=True):
            h = _mix_value(h, field.type, part)
    elif type_ in VARIABLE:
        data = _bytes_of(value)
        h = _mix(h, len(data))
        for at in range(0, len(data), 8):
            h = _mix(h, int.from_bytes(data[at : at + 8], "little"))
    else:
        for word in words_of(type_, value):
            h = _mix(h, word)
    return h


def hash_row(relation: Relation, row: int, first: int, last: int) -> int:
    """The hash of columns first..last-1 of a row."""
    h = 0x6A09E667F3BCC908
    for column in range(first, last):
        h = _mix_value(h, relation.types[column], relation.rows[row][column])
    return _mix(h, int(first == last))


# cells


@reference_of("cells.hash_table")
def hash_table(relation: Relation, first: int, last: int) -> tuple[Array]:
    hashes = [hash_row(relation, row, first, last) for row in range(len(relation.rows))]
    return (np.array(hashes, np.uint64),)


_WIDTHS: Final = {
    ColumnType.BOOL: 8, ColumnType.INT16: 16, ColumnType.UINT16: 16, ColumnType.INT32: 32,
    ColumnType.UINT32: 32, ColumnType.DATE: 32, ColumnType.FLOAT32: 32,
}  # fmt: skip


@reference_of("cells.ordered_codes")
def ordered_codes(relation: Relation, last: int) -> tuple[Array]:
    codes = []
    for row in relation.rows:
        bits = ""
        for type_, value in itertools.islice(zip(relation.types, row, strict=True), last):
            width = _WIDTHS.get(type_, 64) if isinstance(type_, ColumnType) else 64
            word = 0
            if value is not None and isinstance(type_, ColumnType):
                word = words_of(type_, value)[0]
                if type_ in (ColumnType.INT16, ColumnType.INT32, ColumnType.DATE):
                    word += (1 << (width - 1)) - _SIGN
            bits += f"{int(value is None)}{word:0{width}b}"
            if width == 64:
                break
        codes.append(int(bits[:64].ljust(64, "0"), 2))
    return (np.array(codes, np.uint64),)


@reference_of("cells.equal_pairs")
def equal_pairs(
    a: Relation, rows_a: Array, b: Relation, rows_b: Array, columns: int
) -> tuple[Array, int]:
    pairs = zip(rows_a.tolist(), rows_b.tolist(), strict=True)
    same = [row_key(a, i, 0, columns) == row_key(b, j, 0, columns) for i, j in pairs]
    return np.array(same, np.bool_), sum(same)


# sort


@reference_of("sort.sort_codes")
def sort_codes(codes: Array) -> tuple[Array, Array]:
    """The stable order of codes, and the codes in it."""
    order: Any = np.argsort(codes, kind="stable")
    return order.astype(np.uint32), codes[order]


# hashing


@reference_of("hashing.checksum")
def checksum(words: Array, first: int, state: int) -> tuple[int]:
    total = int(state)
    for position, word in enumerate(words.tolist(), int(first)):
        x = ((word ^ (position * 0x9E3779B97F4A7C15 & _MASK)) * 0xD6E8FEB86659FD93) & _MASK
        total = (total + (x ^ (x >> 32))) & _MASK
    return (total,)


# seek


def _is_run(codes: Sequence[int], code: int, start: int) -> int:
    """End of the run of `code` that begins at `start`."""
    while start < len(codes) and codes[start] == code:
        start += 1
    return start


@reference_of("seek.find_runs")
def find_runs(codes: Array, keys: Array) -> tuple[Array, Array, int]:
    lo, hi = np.searchsorted(codes, keys, "left"), np.searchsorted(codes, keys, "right")
    return lo, hi, int((hi - lo).sum())


@reference_of("seek.match_runs")
def match_runs(codes_a: Array, codes_b: Array, i: int, j: int, room: int) -> tuple[Any, ...]:
    left, right = codes_a.tolist(), codes_b.tolist()
    found = []
    for code in sorted(set(left[i:]) & set(right[j:])):
        a, b = left.index(code, i), right.index(code, j)
        found.append((a, _is_run(left, code, a), b, _is_run(right, code, b)))
    found = found[:room]
    runs = np.array(found, np.int64).reshape(-1, 4)
    after = (found[-1][1], found[-1][3]) if found and len(found) == room else (ANYTHING, ANYTHING)
    return runs[:, 0], runs[:, 1], runs[:, 2], runs[:, 3], (len(found), *after)


@reference_of("seek.expand_runs")
def expand_runs(lo: Array, hi: Array, times: Array, last: int) -> tuple[Array, Array, int]:
    found = [
        (row, key)
        for key, (first, end) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True))
        for row in range(first, end)
        if times[row] <= last
    ]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1], len(found)


# gather


def _texts(data: Array, offsets: Array) -> list[bytes]:
    return [data[lo:hi].tobytes() for lo, hi in itertools.pairwise(offsets.tolist())]


def _laid(texts: Sequence[bytes], first: int = 0) -> tuple[Array, Array]:
    """Offsets of texts laid end to end from `first` on, and their bytes."""
    offsets = np.array([first, *itertools.accumulate(map(len, texts), initial=first)][1:], np.int64)
    return offsets, np.frombuffer(b"".join(texts), np.uint8)


def _of_pair(a: Sequence[Any], b: Sequence[Any], rows: Array) -> list[Any]:
    return [a[row] if row >= 0 else b[~row] for row in rows.tolist()]


@reference_of("gather.text_offsets")
def text_offsets(offsets: Array, rows: Array) -> tuple[Array, int]:
    sizes = np.diff(offsets)[rows]
    return np.concatenate([[0], np.cumsum(sizes)]), int(sizes.sum())


@reference_of("gather.gather_text")
def gather_text(data: Array, offsets: Array, rows: Array, out_offsets: Array) -> tuple[Array]:
    texts = _texts(data, offsets)
    return (_laid([texts[row] for row in rows.tolist()])[1],)


@reference_of("gather.list_elements")
def list_elements(offsets: Array, rows: Array, out_offsets: Array) -> tuple[Array]:
    elements = [at for row in rows.tolist() for at in range(offsets[row], offsets[row + 1])]
    return (np.array(elements, np.int64),)


@reference_of("gather.span_offsets")
def span_offsets(lo: Array, hi: Array) -> tuple[Array, int]:
    return np.concatenate([[0], np.cumsum(hi - lo)]), int((hi - lo).sum())


@reference_of("gather.gather_spans")
def gather_spans(data: Array, lo: Array, out_offsets: Array) -> tuple[Array]:
    sizes = np.diff(out_offsets)
    texts = [data[first : first + size].tobytes() for first, size in zip(lo, sizes, strict=True)]
    return (_laid(texts)[1],)


def _bits(bits: Array) -> list[bool]:
    return np.unpackbits(bits, bitorder="little").astype(np.bool_).tolist()


@reference_of("gather.gather_bits")
def gather_bits(bits: Array, bit_offset: int, rows: Array) -> tuple[Array, int]:
    found = np.array(_bits(bits), np.bool_)[rows + bit_offset]
    return found, int(found.sum())


@reference_of("gather.pair_words")
def pair_words(a: Array, b: Array, rows: Array) -> tuple[Array]:
    return (np.array(_of_pair(a.tolist(), b.tolist(), rows), np.uint64),)


@reference_of("gather.pair_times")
def pair_times(a: Array, b: Array, rows: Array, since: int) -> tuple[Array]:
    times = _of_pair(a.tolist(), b.tolist(), rows)
    return (np.array([max(time, int(since)) for time in times], np.uint64),)


@reference_of("gather.pair_wide")
def pair_wide(a: Array, b: Array, rows: Array) -> tuple[Array]:
    return (np.array(_of_pair(a.tolist(), b.tolist(), rows), np.uint64).reshape(-1, 2),)


@reference_of("gather.pair_bytes")
def pair_bytes(a: Array, b: Array, rows: Array) -> tuple[Array]:
    return (np.array(_of_pair(a.tolist(), b.tolist(), rows), np.uint8),)


@reference_of("gather.pair_text_bytes")
def pair_text_bytes(a_offsets: Array, b_offsets: Array, rows: Array) -> tuple[int]:
    return (sum(_of_pair(np.diff(a_offsets).tolist(), np.diff(b_offsets).tolist(), rows)),)


@reference_of("gather.pair_text")
def pair_text(
    a: Array, a_offsets: Array, b: Array, b_offsets: Array, rows: Array, out_offsets: Array
) -> tuple[Array, Array]:
    first = int(out_offsets[0])
    offsets, data = _laid(_of_pair(_texts(a, a_offsets), _texts(b, b_offsets), rows), first)
    return offsets, np.concatenate([np.full(first, UNTOUCHED, np.uint8), data])


UNTOUCHED: Final = 0xA5  # what arrays that are only written to hold before


@reference_of("gather.pair_bits")
def pair_bits(
    a: Array, a_first: int, b: Array, b_first: int, rows: Array, out: Array, first: int
) -> tuple[Array, int]:
    n = len(rows)
    ones = [True] * (2 * n + 64)
    mine = _bits(a)[a_first:] if len(a) else ones
    other = _bits(b)[b_first:] if len(b) else ones
    found = _of_pair(mine, other, rows)
    bits = _bits(out)[:first] + found
    whole = np.packbits(np.array(bits, np.bool_), bitorder="little") if found else out[:0]
    return np.concatenate([whole, out[len(whole) :]]), n - sum(found)
