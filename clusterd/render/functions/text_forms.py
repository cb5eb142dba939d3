"""Texts made of values of any type: concatenation, formats, quotes, numbers of characters.

Does not: loop over rows in Python but for format and quotes, once for each distinct text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clusterd.render.functions.casts_to_text import hex_texts, text_of
from clusterd.render.functions.evaluated import Bools, Evaluated, code_of, first_errors, with_nulls
from clusterd.render.functions.registry import CallSite, Outcome, opened, strict
from clusterd.render.functions.text import characters, joined
from clusterd.render.functions.texts import Failed, by_distinct, from_spans, plain_texts, spread
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType

__all__: list[str] = []

_TEXT: Final = ColumnType.TEXT
_SPEC: Final = re.compile(r"%(?:%|(?:(\d{1,6})\$)?([sIL])|)")
_NAME: Final = re.compile(r"[a-z_][a-z_0-9]*")


def _text(call: CallSite, position: int, argument: Evaluated) -> Column:
    """An argument as text; NULL is an empty one, and not valid."""
    column = text_of(call.args[position], argument.column)
    return with_nulls(column, argument.column.validity).column


def _valid(column: Column) -> Bools:
    valid = column.validity
    return np.ones(len(column), np.bool_) if valid is None else valid


@strict("||", "text, any -> text", "any, text -> text")
def _concat_any(call: CallSite, args: Sequence[Column]) -> Outcome:
    return joined(*(text_of(spec, column) for spec, column in zip(call.args, args, strict=True)))


@opened("concat")
def _concat(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    total = Column.zeros(_TEXT, 1)
    for position, argument in enumerate(args):
        total = joined(total, _text(call, position, argument))
    return with_nulls(total, None, *(each.errors for each in args))


@opened("concat_ws")
def _concat_ws(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    separator = spread(args[0].column, n)
    total = Column.zeros(_TEXT, 1)
    begun = np.zeros(1, np.bool_)
    for position, argument in enumerate(args[1:], 1):
        text = _text(call, position, argument)
        valid = _valid(text)
        between = with_nulls(separator, np.broadcast_to(begun & valid, n)).column
        total = joined(joined(total, between), text)
        begun = begun | valid
    return with_nulls(total, separator.validity, *(each.errors for each in args))


def _quoted(text: str) -> str:
    quoted = text.replace("'", "''")
    return f"E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{quoted}'"


def _identifier(text: str) -> str:
    if _NAME.fullmatch(text):
        return text
    return '"' + text.replace('"', '""') + '"'


@strict("quote_literal")
def _quote_literal(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_TEXT, _quoted, args[0])


@strict("quote_ident")
def _quote_ident(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_TEXT, _identifier, args[0])


def _format(template: str, values: Sequence[str | None]) -> str | None:
    """The template filled; None if it is none, or asks for what there is not."""
    at = 0

    def fill(match: re.Match[str]) -> str:
        nonlocal at
        if match[0] == "%%":
            return "%"
        if match[0] == "%":
            raise IndexError
        at = int(match[1]) if match[1] else at + 1
        if at == 0:
            raise IndexError
        value = values[at - 1]
        if match[2] == "s":
            return value or ""
        if value is None and match[2] == "I":
            raise IndexError
        if match[2] == "I":
            return _identifier(value or "")
        return "NULL" if value is None else _quoted(value)

    try:
        return _SPEC.sub(fill, template)
    except IndexError:
        return None


@opened("format")
def _formatted(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    columns = [spread(_text(call, position, each), n).to_pylist() for position, each in enumerate(args)]
    known: dict[Any, str | None] = {}
    out: list[str | None] = []
    codes = np.zeros(n, np.uint32)
    for i, row in enumerate(zip(*columns, strict=True)):
        if row not in known:
            known[row] = None if row[0] is None else _format(row[0], row[1:])
        out.append(known[row])
        if known[row] is None and row[0] is not None:
            codes[i] = code_of("invalid format")
    errors = first_errors(*(each.errors for each in args), codes)
    return with_nulls(Column.from_pylist(_TEXT, out), None, errors)


# Numbers of characters, and hexadecimal ones.


@strict("ascii")
def _ascii(call: CallSite, args: Sequence[Column]) -> Outcome:
    first = characters(args[0], np.zeros(1, np.int64), np.ones(1, np.int64))
    return by_distinct(ColumnType.INT64, lambda text: ord(text) if text else 0, first)


@strict("chr")
def _chr(call: CallSite, args: Sequence[Column]) -> Outcome:
    failed = Failed("requested character not valid")

    def character(number: int) -> str | Failed:
        fits = 0 < number <= 0x10FFFF and not 0xD800 <= number < 0xE000
        return chr(number) if fits else failed

    return by_distinct(_TEXT, character, args[0])


@strict("to_hex")
def _to_hex(call: CallSite, args: Sequence[Column]) -> Outcome:
    n = len(args[0])
    data = args[0].values.view(np.uint64).astype(">u8").view(np.uint8)
    digits, offsets = plain_texts(
        hex_texts(Column(ColumnType.BYTEA, data, np.arange(n + 1, dtype=np.int64) * 8))
    )
    leading = (digits.reshape(n, 16) != ord("0")).argmax(axis=1) if n else np.zeros(0, np.int64)
    zero = args[0].values == 0
    return from_spans(_TEXT, digits, offsets[:-1] + np.where(zero, 15, leading), offsets[1:])
