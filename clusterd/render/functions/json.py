"""jsonb: parts of it are spans of its text (kernels/json.py); what is built is put together as text.

Escapes are taken apart and made in Python, once for each distinct text that has one.

Does not: loop over rows in Python but for that, and for `@>`, once for each distinct pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from clusterd.operators.kernels import json as kernels
from clusterd.operators.kernels import lists as texts_kernels
from clusterd.render.functions.arithmetic import NAMES, of_lanes
from clusterd.render.functions.casts import double_texts, numeric_of_texts, numeric_texts
from clusterd.render.functions.casts_of_text import float_of_texts
from clusterd.render.functions.casts_to_text import text_of
from clusterd.render.functions.evaluated import (
    Bools,
    Codes,
    Evaluated,
    Ints,
    code_of,
    first_errors,
    rows_of,
    step,
    with_nulls,
)
from clusterd.render.functions.mathematics import failing
from clusterd.render.functions.registry import CallSite, Outcome, Strict, opened, strict
from clusterd.render.functions.text import joined
from clusterd.render.functions.texts import (
    Failed,
    by_constants,
    by_distinct,
    from_arrow,
    from_spans,
    plain_texts,
    spread,
    to_arrow,
)
from controller_proto.jsonb import canonical_json
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType

__all__ = ["found_parts", "json_kinds", "json_texts", "quoted", "spans_of"]

_TEXT, _JSONB, _BOOL = ColumnType.TEXT, ColumnType.JSONB, ColumnType.BOOL
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_PLAIN_INTEGERS: Final = (
    ColumnType.INT16, ColumnType.INT32, ColumnType.INT64, ColumnType.UINT16, ColumnType.UINT32,
)  # fmt: skip
_DIGITS: Final = 20
_NOT_FINITE: Final = ['"NaN"', '"Infinity"', '"-Infinity"']
_KINDS: Final = ["object", "array", "string", "number", "boolean", "null"]
_FIRST: Final = np.full(256, 3, np.int64)  # the kind by the first byte; all others begin numbers
_FIRST[[ord(c) for c in '{["tfn']] = (0, 1, 2, 4, 4, 5)


def _column(outcome: Outcome) -> Column:
    return outcome[0] if isinstance(outcome, tuple) else outcome


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
            parts = _column(by_distinct(_TEXT, _unescaped, marked))
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


# What is built.


def json_texts(spec: ColumnSpec, column: Column) -> Column:
    """(n,) the JSON of each value of a column of `spec`, NULL as null: no NULL among them.

    As PostgreSQL makes it: numbers as such, but NaN and infinities as strings, moments in ISO 8601, bytes as
    `\\x...`, lists as arrays, records as objects.
    """
    texts = _plain_json(spec, column.plain())
    valid = column.validity
    if valid is None or valid.all():
        return _as_jsonb(texts)
    both = Column.concat(_TEXT, (texts, Column.from_pylist(_TEXT, ["null"])))
    return _as_jsonb(both.take(np.where(valid, np.arange(len(texts)), len(texts))))


def _plain_json(spec: ColumnSpec, column: Column) -> Column:
    """As texts; whatever stands where there is NULL."""
    type_ = spec.type
    if isinstance(type_, ListType):
        return _list_json(type_.element, column)
    if isinstance(type_, RecordType):
        pairs = zip(type_.fields, column.children, strict=True)
        members = [(Column.from_pylist(_TEXT, [f.name]), _text_of_json(f, c)) for f, c in pairs]
        return _object_json(members, len(column))
    if type_ in _PLAIN_INTEGERS:
        values = np.ascontiguousarray(column.values).astype(np.int64, copy=False)
        offsets, out = np.empty(len(values) + 1, np.int64), np.empty(_DIGITS * len(values), np.uint8)
        texts_kernels.write_integers(values, offsets, out)
        return Column(_TEXT, out[: int(offsets[-1])].copy(), offsets)
    match type_:
        case ColumnType.JSONB:
            return Column(_TEXT, *plain_texts(column))
        case ColumnType.FLOAT32 | ColumnType.FLOAT64:
            finite = np.isfinite(column.values)
            texts = from_arrow(_TEXT, double_texts(np.where(finite, column.values, 0)))
            texts = _column(by_distinct(_TEXT, canonical_json, texts))
            if finite.all():
                return texts
            both = Column.concat(_TEXT, (texts, Column.from_pylist(_TEXT, _NOT_FINITE)))
            which = np.where(np.isnan(column.values), 0, np.where(column.values > 0, 1, 2)) + len(texts)
            return both.take(np.where(finite, np.arange(len(texts)), which))
        case ColumnType.NUMERIC if spec.scale:
            texts = to_arrow(numeric_texts(column.values, spec.scale))
            return from_arrow(_TEXT, pc.replace_substring_regex(texts, r"\.?0+$", ""))
        case ColumnType.TIMESTAMP | ColumnType.TIMESTAMPTZ:
            iso = pc.replace_substring(to_arrow(text_of(spec, column)), " ", "T")
            iso = pc.replace_substring_regex(iso, r"\+00$", "+00:00")
            return quoted(from_arrow(_TEXT, iso))
        case ColumnType.BOOL:
            return text_of(spec, column)
        case _ if type_ in NAMES:
            return text_of(spec, column)
        case _:
            return quoted(text_of(spec, column))


def _text_of_json(spec: ColumnSpec, column: Column) -> Column:
    return Column(_TEXT, *plain_texts(json_texts(spec, column)))


def quoted(column: Column) -> Column:
    """Texts as strings of JSON."""
    text, offsets = plain_texts(column)
    offsets = np.ascontiguousarray(offsets)
    ends = np.empty(len(column) + 1, np.int64)
    made = np.empty(texts_kernels.quoted_offsets(offsets, text, ends), np.uint8)
    texts_kernels.quote_texts(offsets, text, made)
    return Column(_TEXT, made, ends)


def _list_json(element: ColumnSpec, column: Column) -> Column:
    offsets = column.offsets
    assert offsets is not None
    first, last = int(offsets[0]), int(offsets[-1])
    texts = _text_of_json(element, column.children[0].slice(first, last))
    ends = offsets - first
    between = np.ones(len(texts), np.int64)
    between[ends[1:][ends[1:] > ends[:-1]] - 1] = 0  # behind all but the last of each list
    texts = joined(texts, Column.from_pylist(_TEXT, ["", ","]).take(between))
    data, places = plain_texts(texts)
    inner = Column(_TEXT, data, places[ends])
    brackets = Column.from_pylist(_TEXT, ["["]), Column.from_pylist(_TEXT, ["]"])
    return joined(joined(brackets[0], inner), brackets[1])


def _object_json(members: Sequence[tuple[Column, Column]], n: int) -> Column:
    """An object of keys (texts, of length 1 or n) and values as JSON texts."""
    constant = all(len(key) == 1 for key, _ in members)
    if constant:
        named = {key.to_pylist()[0] or "": (key, value) for key, value in members}
        members = [named[name] for name in sorted(named)]
    total = spread(Column.zeros(_TEXT, 1), n)
    opening = "{"
    for key, value in members:
        start = joined(
            Column.from_pylist(_TEXT, [opening]), joined(quoted(key), Column.from_pylist(_TEXT, [":"]))
        )
        total = joined(total, joined(start, value))
        opening = ","
    total = joined(total, Column.from_pylist(_TEXT, ["}" if members else "{}"]))
    return total if constant else _column(by_distinct(_TEXT, canonical_json, total))


def _as_jsonb(column: Column) -> Column:
    return Column(_JSONB, *plain_texts(column), column.validity)


@strict("to_jsonb")
def _to_jsonb(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _as_jsonb(_plain_json(call.args[0], args[0].plain()))


@opened("jsonb_build_array")
def _build_array(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    total, opening = spread(Column.zeros(_TEXT, 1), n), "["
    errors = [each.errors for each in args]
    for spec, argument in zip(call.args, args, strict=True):
        texts = _text_of_json(spec, argument.column)
        total = joined(total, joined(Column.from_pylist(_TEXT, [opening]), texts))
        opening = ","
    total = joined(total, Column.from_pylist(_TEXT, ["]" if args else "[]"]))
    return with_nulls(_as_jsonb(total), None, *errors)


@opened("jsonb_build_object")
def _build_object(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    errors = [each.errors for each in args]
    if len(args) % 2:
        odd = np.full(n, code_of("argument list must have even number of elements"), np.uint32)
        return with_nulls(spread(Column.zeros(_JSONB, 1), n), None, *errors, odd)
    members: list[tuple[Column, Column]] = []
    for at in range(0, len(args), 2):
        key = args[at].column
        valid: Bools | None = key.validity
        if valid is not None:
            errors.append(failing(~valid, "key must not be null"))
        members.append((text_of(call.args[at], key), _text_of_json(call.args[at + 1], args[at + 1].column)))
    return with_nulls(_as_jsonb(_object_json(members, n)), None, *errors)


# What is changed: value by value, once for each distinct one.


def _changed(function: Callable[..., Any]) -> Strict:
    """`function` of parsed values, of which the first is written again."""

    def of_texts(text: str, *others: Any) -> Any:
        value = function(_parsed(text), *others)
        return value if isinstance(value, Failed) else _written(value)

    return lambda call, args: by_distinct(_JSONB, of_texts, *args)


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{encode_basestring(key)}:{_written(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return encode_basestring(value) if isinstance(value, str) else json.dumps(value)


def _joined(a: Any, text: str) -> Any:
    b = _parsed(text)
    if isinstance(a, dict) and isinstance(b, dict):
        return {**a, **b}
    return [*(a if isinstance(a, list) else [a]), *(b if isinstance(b, list) else [b])]


def _without_key(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if name != key}
    if isinstance(value, list):
        return [each for each in value if isinstance(each, _Number) or each != key]
    return Failed("cannot delete from scalar")


def _without_element(value: Any, index: int) -> Any:
    if isinstance(value, dict):
        return Failed("cannot delete from object using integer index")
    if not isinstance(value, list):
        return Failed("cannot delete from scalar")
    at = index + len(value) if index < 0 else index
    return [each for place, each in enumerate(value) if place != at]


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stripped(each) for key, each in value.items() if each is not None}
    return list(map(_stripped, value)) if isinstance(value, list) else value


def _set(value: Any, path: Sequence[str | None], text: str, creates: bool = True) -> Any:
    if not isinstance(value, dict | list):
        return Failed("cannot set path in scalar")
    return _set_in(value, tuple(path), _parsed(text), creates) if path else value


def _set_in(value: Any, path: tuple[str | None, ...], new: Any, creates: bool) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(value, dict) and name is not None:
        if name in value:
            made = _set_in(value[name], rest, new, creates) if rest else new
            return made if isinstance(made, Failed) else {**value, name: made}
        return value if rest or not creates else {**value, name: new}
    if isinstance(value, list) and name is not None:
        if not _INTEGER.fullmatch(name):
            return Failed("path element is not an integer")
        at = int(name)
        place = at + len(value) if at < 0 else at
        if 0 <= place < len(value):
            made = _set_in(value[place], rest, new, creates) if rest else new
            return made if isinstance(made, Failed) else [*value[:place], made, *value[place + 1 :]]
        return value if rest or not creates else [new, *value] if at < 0 else [*value, new]
    return value


strict("||", "jsonb, jsonb -> jsonb")(_changed(_joined))
strict("-", "jsonb, text -> jsonb")(_changed(_without_key))
strict("-", "jsonb, bigint -> jsonb")(_changed(_without_element))
strict("jsonb_strip_nulls")(_changed(_stripped))
strict("jsonb_set")(_changed(_set))


def _extract(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    return by_constants(type_, lambda column, *path: _at(type_, column, path), *args)


strict("jsonb_extract_path")(_extract)
strict("jsonb_extract_path_text")(_extract)


# Containment.


class _Number(str):
    __slots__ = ()


def _parsed(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number)


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and _contains(whole[key], value) for key, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return all(any(_contains(each, wanted) for each in whole) for wanted in part)
    return _equal(whole, part)


def _holds(whole: str, part: str) -> bool:
    a, b = _parsed(whole), _parsed(part)
    if isinstance(a, list) and not isinstance(b, list | dict):
        return any(_equal(each, b) for each in a)  # an array contains a scalar among its elements
    return _contains(a, b)


@strict("@>", "jsonb, jsonb -> boolean")
def _contained(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_BOOL, _holds, *args)


@strict("<@", "jsonb, jsonb -> boolean")
def _part_of(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_BOOL, lambda part, whole: _holds(whole, part), *args)
