"""Text: lengths, parts, cases, and what is put before, behind and between.

Kernels find the bytes of characters; Arrow maps cases and splits. No text is longer than 64 MiB: the only
functions that make long ones of short ones check it.

Does not: loop over rows in Python but for initcap, once for each distinct text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clusterd.operators.kernels import scalar
from clusterd.operators.kernels import text as kernels
from clusterd.render.functions.evaluated import Codes, Ints, code_of, rows_of, step
from clusterd.render.functions.registry import CallSite, Outcome, Strict, strict
from clusterd.render.functions.texts import (
    by_constants,
    by_distinct,
    from_arrow,
    from_spans,
    plain_texts,
    spread,
    to_arrow,
)
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType

__all__ = ["MAX_BYTES", "characters", "joined"]

MAX_BYTES: Final = 64 << 20  # as a frame: no longer one could be read
_TEXT: Final = ColumnType.TEXT
_FAR: Final = 1 << 40  # no position or count beyond it makes a difference


def joined(a: Column, b: Column) -> Column:
    """Texts of `a`, each followed by that of `b`; NULL as an empty one."""
    n = rows_of((a, b))
    (a_data, a_offsets), (b_data, b_offsets) = plain_texts(a), plain_texts(b)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(np.broadcast_to(np.diff(a_offsets) + np.diff(b_offsets), n), out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    scalar.text_concat(a_data, a_offsets, step(a), b_data, b_offsets, step(b), offsets, data)
    return Column(a.type, data, offsets)


@strict("||", "text, text -> text", "bytea, bytea -> bytea")
def _concat(call: CallSite, args: Sequence[Column]) -> Outcome:
    return joined(*args)


# Lengths.


def _lengths(column: Column) -> Ints:
    """In characters."""
    data, offsets = plain_texts(column)
    out = np.empty(len(column), np.int64)
    kernels.count_characters(data, offsets, out)
    return out


def _sizes(column: Column) -> Ints:
    """In bytes."""
    return np.diff(plain_texts(column)[1])


@strict("length", "text -> bigint")
@strict("char_length")
def _length(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(ColumnType.INT64, _lengths(args[0]))


@strict("length", "bytea -> bigint")
@strict("octet_length")
def _octets(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(ColumnType.INT64, _sizes(args[0]))


@strict("bit_length")
def _bits(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(ColumnType.INT64, 8 * _sizes(args[0]))


# Cases, ends, and what replaces.


def _by_arrow(function: Callable[..., Any]) -> Strict:
    return lambda call, args: from_arrow(_TEXT, function(to_arrow(args[0])))


strict("lower")(_by_arrow(pc.utf8_lower))
strict("upper")(_by_arrow(pc.utf8_upper))
strict("reverse")(_by_arrow(pc.utf8_reverse))


def _capital(word: re.Match[str]) -> str:
    first, rest = word[0][0].upper(), word[0][1:].lower()
    return (first if len(first) == 1 else word[0][0]) + rest


@strict("initcap")
def _initcap(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_TEXT, lambda text: re.sub(r"[^\W_]+", _capital, text), args[0])


def _trimming(function: Callable[..., Any]) -> Strict:
    def trim(column: Column, characters: str = " ") -> Column:
        return from_arrow(_TEXT, function(to_arrow(column), characters=characters)) if characters else column

    return lambda call, args: by_constants(_TEXT, trim, *args)


for _name, _function in (
    ("trim", pc.utf8_trim), ("btrim", pc.utf8_trim), ("ltrim", pc.utf8_ltrim), ("rtrim", pc.utf8_rtrim),
):  # fmt: skip
    strict(_name)(_trimming(_function))


@strict("replace")
def _replace(call: CallSite, args: Sequence[Column]) -> Outcome:
    def replaced(column: Column, old: str, new: str) -> Column:
        if not old:
            return column
        return from_arrow(_TEXT, pc.replace_substring(to_arrow(column), pattern=old, replacement=new))

    return by_constants(_TEXT, replaced, *args)


@strict("translate")
def _translate(call: CallSite, args: Sequence[Column]) -> Outcome:
    def translated(column: Column, old: str, new: str) -> Outcome:
        table = {ord(c): new[i] if i < len(new) else None for i, c in reversed(list(enumerate(old)))}
        return by_distinct(_TEXT, lambda text: text.translate(table), column)

    return by_constants(_TEXT, translated, *args)


def _ending(function: Callable[..., Any]) -> Strict:
    def test(column: Column, pattern: str) -> Column:
        found = function(to_arrow(column), pattern=pattern)
        return Column(ColumnType.BOOL, found.to_numpy(zero_copy_only=False))

    return lambda call, args: by_constants(ColumnType.BOOL, test, *args)


strict("starts_with")(_ending(pc.starts_with))
strict("ends_with")(_ending(pc.ends_with))


# Parts.


def _near(values: NDArray[np.int64]) -> Ints:
    return np.clip(values, -_FAR, _FAR)


def characters(column: Column, first: Ints, last: Ints) -> Column:
    """Of each text the characters from `first`, from 0, up to before `last`; arrays of length 1 or n."""
    data, offsets = plain_texts(column)
    n = next((len(each) for each in (column, first, last) if len(each) != 1), 1)
    lo, hi = np.empty(n, np.int64), np.empty(n, np.int64)
    steps = [0 if len(each) == 1 else 1 for each in (column, first, last)]
    first, last = np.ascontiguousarray(first), np.ascontiguousarray(last)
    kernels.character_spans(data, offsets, steps[0], first, steps[1], last, steps[2], lo, hi)
    return from_spans(column.type, data, lo, hi)


def _bytes(column: Column, first: Ints, last: Ints) -> Column:
    data, offsets = plain_texts(column)
    sizes = np.diff(offsets)
    lo = offsets[:-1] + np.minimum(first, sizes)
    hi = np.maximum(lo, offsets[:-1] + np.minimum(last, sizes))
    return from_spans(column.type, data, lo, hi)


@strict("substr")
@strict("substring")
def _substring(call: CallSite, args: Sequence[Column]) -> Outcome:
    begin = _near(args[1].values) - 1
    codes: Codes | None = None
    end = np.full(1, _FAR, np.int64)
    if len(args) == 3:
        size = args[2].values
        if (size < 0).any():
            code = np.uint32(code_of("negative substring length not allowed"))
            codes = np.where(size < 0, code, np.uint32(0))
        end = np.maximum(begin + _near(size), 0)
    part = characters if args[0].type is _TEXT else _bytes
    return part(args[0], np.maximum(begin, 0), end), codes


@strict("left")
def _left(call: CallSite, args: Sequence[Column]) -> Outcome:
    count = _near(args[1].values)
    end = np.where(count < 0, np.maximum(_lengths(args[0]) + count, 0), count)
    return characters(args[0], np.zeros(1, np.int64), end)


@strict("right")
def _right(call: CallSite, args: Sequence[Column]) -> Outcome:
    count = _near(args[1].values)
    begin = np.where(count < 0, -count, np.maximum(_lengths(args[0]) - count, 0))
    return characters(args[0], begin, np.full(1, _FAR, np.int64))


@strict("strpos")
def _position(call: CallSite, args: Sequence[Column]) -> Outcome:
    (data, offsets), (wanted, wanted_offsets) = map(plain_texts, args)
    out = np.empty(rows_of(args), np.int64)
    kernels.find_text(data, offsets, step(args[0]), wanted, wanted_offsets, step(args[1]), out)
    return Column(ColumnType.INT64, out)


@strict("split_part")
def _split_part(call: CallSite, args: Sequence[Column]) -> Outcome:
    def part(column: Column, separator: str, field: int) -> Outcome:
        n = len(column)
        if not field:
            return Column.zeros(_TEXT, n), np.full(n, code_of("field position must not be zero"), np.uint32)
        if not separator:
            return column if field in (1, -1) else Column.zeros(_TEXT, n)
        lists = pc.split_pattern(to_arrow(column), pattern=separator)
        ends = lists.offsets.to_numpy().astype(np.int64)
        data, offsets = plain_texts(from_arrow(_TEXT, lists.values))
        at = (ends[:-1] - 1 if field > 0 else ends[1:]) + field
        there = (at >= ends[:-1]) & (at < ends[1:])
        at = np.where(there, at, 0)
        # Where there is none, an empty span; so is every one of no parts.
        padded = np.concatenate((offsets, offsets[-1:]))
        return from_spans(_TEXT, data, padded[at], np.where(there, padded[at + 1], padded[at]))

    return by_constants(_TEXT, part, *args)


# What makes long texts.


def _repeated(column: Column, counts: Ints) -> tuple[Column, Codes | None]:
    """Each text as often as `counts` says; one that would be too long is an error."""
    n = max(len(column), len(counts)) if min(len(column), len(counts)) else 0
    column, counts = spread(column, n), np.broadcast_to(np.maximum(counts, 0), n)
    sizes = _sizes(column)
    counts = np.where(sizes == 0, 0, counts)
    long = counts > MAX_BYTES // np.maximum(sizes, 1)
    repeated = pc.binary_repeat(to_arrow(column), pa.array(np.where(long, 0, counts)))
    codes = np.where(long, np.uint32(code_of("text too long")), np.uint32(0)) if long.any() else None
    return from_arrow(_TEXT, repeated), codes


@strict("repeat")
def _repeat(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _repeated(args[0], args[1].values)


def _padding(args: Sequence[Column]) -> tuple[Column, Column, Codes | None]:
    """What each text is filled with, and what is kept of it."""
    fill = args[2] if len(args) == 3 else Column.from_pylist(_TEXT, [" "])
    wanted = np.maximum(_near(args[1].values), 0)
    need = np.maximum(wanted - _lengths(args[0]), 0)
    per_fill = _lengths(fill)
    filling, codes = _repeated(fill, np.where(per_fill == 0, 0, -(-need // np.maximum(per_fill, 1))))
    zero = np.zeros(1, np.int64)
    return characters(filling, zero, need), characters(args[0], zero, wanted), codes


@strict("lpad")
def _lpad(call: CallSite, args: Sequence[Column]) -> Outcome:
    filling, kept, codes = _padding(args)
    return joined(filling, kept), codes


@strict("rpad")
def _rpad(call: CallSite, args: Sequence[Column]) -> Outcome:
    filling, kept, codes = _padding(args)
    return joined(kept, filling), codes
