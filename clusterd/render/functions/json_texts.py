"""JSON that is made of values: whole columns at a time, put together as text.

What is made has its members in the order of jsonb and no key twice, so it is equal to other JSON if its text
is; Python is asked for that once for each distinct object whose keys are not constant.

Does not: read JSON (json.py), or change it (json_values.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow.compute as pc

from clusterd.operators.kernels import lists as texts_kernels
from clusterd.render.functions.arithmetic import NAMES
from clusterd.render.functions.casts import double_texts, numeric_texts
from clusterd.render.functions.casts_to_text import text_of
from clusterd.render.functions.evaluated import (
    Bools,
    Evaluated,
    code_of,
    with_nulls,
)
from clusterd.render.functions.mathematics import failing
from clusterd.render.functions.registry import CallSite, Outcome, opened, strict
from clusterd.render.functions.text import joined
from clusterd.render.functions.texts import (
    by_distinct,
    from_arrow,
    plain_texts,
    spread,
    to_arrow,
)
from controller_proto.jsonb import canonical_json
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType

__all__ = ["json_texts", "quoted"]

_TEXT, _JSONB = ColumnType.TEXT, ColumnType.JSONB
_PLAIN_INTEGERS: Final = (
    ColumnType.INT16, ColumnType.INT32, ColumnType.INT64, ColumnType.UINT16, ColumnType.UINT32,
)  # fmt: skip
_DIGITS: Final = 20
_NOT_FINITE: Final = ['"NaN"', '"Infinity"', '"-Infinity"']


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
            texts = by_distinct(_TEXT, canonical_json, texts)[0]
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
    return total if constant else by_distinct(_TEXT, canonical_json, total)[0]


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
