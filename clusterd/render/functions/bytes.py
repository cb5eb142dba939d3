"""Bytes: digests, and bytes as text.

Digests are Python's, once for each distinct argument.

Does not: loop over rows in Python but for that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from clusterd.render.functions.casts_to_text import hex_texts
from clusterd.render.functions.evaluated import code_of, rows_of
from clusterd.render.functions.mathematics import failing
from clusterd.render.functions.registry import CallSite, Outcome, Strict, strict
from clusterd.render.functions.texts import Failed, by_constants, by_distinct, plain_texts
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType

__all__: list[str] = []

_TEXT, _BYTEA = ColumnType.TEXT, ColumnType.BYTEA
_LINE: Final = 76  # of base64, as in PostgreSQL and MIME
_ESCAPED: Final = re.compile(rb"\\\\|\\([0-3][0-7]{2})|[^\\]", re.DOTALL)


@strict("md5", "text -> text")
def _md5_of_text(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_TEXT, lambda text: hashlib.md5(text.encode()).hexdigest(), args[0])


@strict("md5", "bytea -> text")
def _md5(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_TEXT, lambda data: hashlib.md5(data).hexdigest(), args[0])


def _digest(function: Callable[[bytes], Any]) -> Strict:
    return lambda call, args: by_distinct(_BYTEA, lambda data: function(data).digest(), args[0])


for _function in (hashlib.sha224, hashlib.sha256, hashlib.sha384, hashlib.sha512):
    strict(_function.__name__.removeprefix("openssl_"))(_digest(_function))


def _base64(data: bytes) -> str:
    text = base64.b64encode(data).decode()
    return "\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))


def _escape(data: bytes) -> str:
    shown = (r"\\" if b == 92 else f"\\{b:03o}" if b == 0 or b > 127 else chr(b) for b in data)
    return "".join(shown)


def _unknown(type_: ColumnType, column: Column) -> Outcome:
    n = len(column)
    return Column.zeros(type_, n), np.full(n, code_of("unrecognized encoding"), np.uint32)


@strict("encode")
def _encode(call: CallSite, args: Sequence[Column]) -> Outcome:
    def encoded(column: Column, name: str) -> Outcome:
        match name.lower():
            case "hex":
                return hex_texts(column)
            case "base64":
                return by_distinct(_TEXT, _base64, column)
            case "escape":
                return by_distinct(_TEXT, _escape, column)
        return _unknown(_TEXT, column)

    return by_constants(_TEXT, encoded, *args)


_FAILED: Final = Failed("invalid encoded data")


def _from_hex(text: str) -> bytes | Failed:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return _FAILED


def _from_base64(text: str) -> bytes | Failed:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return _FAILED


def _from_escape(text: str) -> bytes | Failed:
    data = text.encode()
    parts = [*_ESCAPED.finditer(data)]
    if sum(len(part[0]) for part in parts) != len(data):
        return _FAILED
    return b"".join(bytes([int(part[1], 8)]) if part[1] else part[0][:1] for part in parts)


_DECODERS: Final = {"hex": _from_hex, "base64": _from_base64, "escape": _from_escape}


@strict("decode")
def _decode(call: CallSite, args: Sequence[Column]) -> Outcome:
    def decoded(column: Column, name: str) -> Outcome:
        decoder = _DECODERS.get(name.lower())
        return _unknown(_BYTEA, column) if decoder is None else by_distinct(_BYTEA, decoder, column)

    return by_constants(_BYTEA, decoded, *args)


def _is_utf8(name: str) -> bool:
    return name.lower().replace("-", "") in ("utf8", "unicode")


@strict("convert_to")
def _convert_to(call: CallSite, args: Sequence[Column]) -> Outcome:
    def converted(column: Column, name: str) -> Outcome:
        return Column(_BYTEA, *plain_texts(column)) if _is_utf8(name) else _unknown(_BYTEA, column)

    return by_constants(_BYTEA, converted, *args)


@strict("convert_from")
def _convert_from(call: CallSite, args: Sequence[Column]) -> Outcome:
    failed = Failed("invalid byte sequence")

    def decoded(data: bytes) -> str | Failed:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return failed

    def converted(column: Column, name: str) -> Outcome:
        return by_distinct(_TEXT, decoded, column) if _is_utf8(name) else _unknown(_TEXT, column)

    return by_constants(_TEXT, converted, *args)


@strict("get_byte")
def _get_byte(call: CallSite, args: Sequence[Column]) -> Outcome:
    data, offsets = plain_texts(args[0])
    n = rows_of(args)
    index = np.broadcast_to(args[1].values, n)
    sizes, starts = np.broadcast_to(np.diff(offsets), n), np.broadcast_to(offsets[:-1], n)
    wrong = (index < 0) | (index >= sizes)
    if not len(data):
        return Column.zeros(ColumnType.INT64, n), failing(wrong, "index out of range")
    found = data[np.where(wrong, 0, starts + index)].astype(np.int64)
    return Column(ColumnType.INT64, found), failing(wrong, "index out of range")
