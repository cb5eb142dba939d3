"""jsonb that is read: its parts are spans of its text (kernels/json.py), which become columns.

Escapes are taken apart in Python, once for each distinct text that has one.

Does not: loop over rows in Python but for that; make JSON (json_texts.py), or change it (json_values.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from clusterd.operators.kernels import json as kernels
from clusterd.render.functions.arithmetic import NAMES, of_lanes
from clusterd.render.functions.casts import numeric_of_texts
from clusterd.render.functions.casts_of_text import float_of_texts
from clusterd.render.functions.evaluated import (
    Codes,
    Ints,
    first_errors,
    rows_of,
    step,
    with_nulls,
)
from clusterd.render.functions.json_texts import quoted
from clusterd.render.functions.mathematics import failing
from clusterd.render.functions.registry import CallSite, Outcome, strict
from clusterd.render.functions.texts import (
    by_constants,
    by_distinct,
    from_spans,
    plain_texts,
    spread,
    to_arrow,
)
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType

__all__ = ["found_parts", "json_kinds", "spans_of"]

_TEXT, _JSONB, _BOOL = ColumnType.TEXT, ColumnType.JSONB, ColumnType.BOOL
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_KINDS: Final = ["object", "array", "string", "number", "boolean", "null"]
_FIRST: Final = np.full(256, 3, np.int64)  # the kind by the first byte; all others begin numbers
_FIRST[[ord(c) for c in '{["tfn']] = (0, 1, 2, 4, 4, 5)


def spans_of(column: Column) -> tuple[Any, Ints, Ints]:
    """The bytes of a VARIABLE column, and where in them each value begins and ends."""
    data, offsets = plain_texts(column)
    return data, np.ascontiguousarray(offsets[:-1]), np.ascontiguousarray(offsets[1:])


def _escaped(column: Column) -> Column:
    """Texts as they stand in JSON, without quotes."""
    data, _ = plain_texts(column)
    if not ((data < 32) | (data == 34) | (data == 92)).any():
        return Column(_TEXT, *plain_texts(column))
    data, ends = plain_texts(quoted(column))
    return from_spans(_TEXT, data, ends[:-1] + 1, ends[1:] - 1)


def _members(data: Any, lo: Ints, hi: Ints, keys: Column) -> tuple[Ints, Ints]:
    out_lo, out_hi = np.empty_like(lo), np.empty_like(lo)
    kernels.find_members(data, lo, hi, *plain_texts(_escaped(keys)), step(keys), out_lo, out_hi)
    return out_lo, out_hi


def _elements(data: Any, lo: Ints, hi: Ints, indexes: Ints) -> tuple[Ints, Ints]:
    out_lo, out_hi = np.empty_like(lo), np.empty_like(lo)
    kernels.find_elements(data, lo, hi, indexes, 0 if len(indexes) == 1 else 1, out_lo, out_hi)
    return out_lo, out_hi


def found_parts(data: Any, lo: Ints, hi: Ints, as_text: bool) -> Column:
    """The parts at spans, as jsonb or as texts; NULL where there is none."""
    there = lo >= 0
    lo, hi = np.where(there, lo, 0), np.where(there, hi, 0)
    if as_text and len(data):
        first = data[np.minimum(lo, len(data) - 1)]
        there = there & ~((first == ord("n")) & (hi > lo))
        is_string = there & (first == ord('"'))
        parts = from_spans(
            _TEXT, data, np.where(there, lo, 0) + is_string, np.where(there, hi, 0) - is_string
        )
        values, _ = plain_texts(parts)
        if (values == ord("\\")).any():
            marked = from_spans(_TEXT, data, np.where(there, lo, 0), np.where(there, hi, 0))
            parts = by_distinct(_TEXT, _unescaped, marked)[0]
    else:
        parts = from_spans(_TEXT if as_text else _JSONB, data, lo, hi)
    return with_nulls(parts, there).column


def _unescaped(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def _get(call: CallSite, args: Sequence[Column]) -> Outcome:
    as_text = call.result.type is _TEXT
    data, lo, hi = spans_of(spread(args[0], rows_of(args)))
    found = (
        _members(data, lo, hi, args[1])
        if args[1].type is _TEXT
        else _elements(data, lo, hi, np.ascontiguousarray(args[1].values))
    )
    return found_parts(data, *found, as_text)


strict("->")(_get)
strict("->>")(_get)


def _follow(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    return by_constants(type_, lambda column, path: _at(type_, column, path), *args)


def _at(type_: AnyType, column: Column, path: Sequence[str | None]) -> Column:
    """What a path leads to in each value."""
    if None in path:
        return Column.nulls(type_, len(column))
    data, lo, hi = spans_of(column)
    for name in path:
        in_object = _members(data, lo, hi, Column.from_pylist(_TEXT, [name]))
        index = int(name) if name and _INTEGER.fullmatch(name) else None
        if index is None:
            lo, hi = in_object
            continue
        in_array = _elements(data, lo, hi, np.array([index], np.int64))
        is_member = in_object[0] >= 0
        lo, hi = (np.where(is_member, a, b) for a, b in zip(in_object, in_array, strict=True))
    return found_parts(data, lo, hi, type_ is _TEXT)


strict("#>")(_follow)
strict("#>>")(_follow)


def _extract(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    return by_constants(type_, lambda column, *path: _at(type_, column, path), *args)


strict("jsonb_extract_path")(_extract)
strict("jsonb_extract_path_text")(_extract)


@strict("?")
def _has(call: CallSite, args: Sequence[Column]) -> Outcome:
    data, lo, hi = spans_of(spread(args[0], rows_of(args)))
    out = np.empty(len(lo), np.bool_)
    kernels.has_key(data, lo, hi, *plain_texts(_escaped(args[1])), step(args[1]), out)
    return Column(_BOOL, out)


def json_kinds(column: Column) -> Ints:
    """Of each value which of `_KINDS` it is."""
    data, lo, hi = spans_of(column)
    if not len(data):
        return np.full(len(lo), 5, np.int64)
    return np.where(hi > lo, _FIRST[data[np.minimum(lo, len(data) - 1)]], 5)


@strict("jsonb_typeof")
def _typeof(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column.from_pylist(_TEXT, _KINDS).take(json_kinds(args[0]))


@strict("jsonb_array_length")
def _array_length(call: CallSite, args: Sequence[Column]) -> Outcome:
    data, lo, hi = spans_of(args[0])
    out = np.empty(len(lo), np.int64)
    kernels.count_elements(data, lo, hi, out)
    return Column(ColumnType.INT64, out), failing(out < 0, "cannot get array length of a non-array")


# Casts.


def _of_kind(column: Column, kind: int) -> tuple[Column, Codes | None]:
    """The texts of values of a kind; of others an error, and the text 0."""
    wrong = json_kinds(column) != kind
    texts = Column(_TEXT, *plain_texts(column))
    if wrong.any():
        both = Column.concat(_TEXT, (texts, Column.from_pylist(_TEXT, ["0"])))
        texts = both.take(np.where(wrong, len(texts), np.arange(len(texts))))
    return texts, failing(wrong, "cannot cast jsonb value")


@strict("cast", "jsonb -> boolean")
def _to_boolean(call: CallSite, args: Sequence[Column]) -> Outcome:
    texts, codes = _of_kind(args[0], 4)
    return Column(_BOOL, pc.equal(to_arrow(texts), "true").to_numpy(zero_copy_only=False)), codes


def _range_codes(wrong: Any, name: str) -> Codes | None:
    return None if wrong is None else failing(wrong != 0, f"{name} out of range")


def _to_integer(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    assert isinstance(type_, ColumnType)
    texts, codes = _of_kind(args[0], 3)
    wide, wrong = numeric_of_texts(texts, call.result.scale)
    column, beyond = of_lanes(type_, wide.values, None)
    return column, first_errors(codes, _range_codes(wrong, NAMES[type_]), beyond)


for _type_name in ("smallint", "integer", "bigint", "uint2", "uint4", "uint8", "numeric(s)"):
    strict("cast", f"jsonb -> {_type_name}")(_to_integer)


@strict("cast", "jsonb -> real", "jsonb -> double precision")
def _to_float(call: CallSite, args: Sequence[Column]) -> Outcome:
    texts, codes = _of_kind(args[0], 3)
    type_ = call.result.type
    assert isinstance(type_, ColumnType)
    column, more = float_of_texts(type_, texts)
    return column, first_errors(codes, more)
