"""Casts from text to any type, and of booleans.

Numbers are read by a kernel or by Arrow, timestamps in the usual form by Arrow; what is left is read as
literals of scripts are (controller_proto/literals.py), once for each distinct text.

Does not: write texts (casts_to_text.py), loop over rows in Python but for what is said above.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clusterd.operators.kernels import digits as kernels
from clusterd.render.functions.arithmetic import NAMES, of_lanes
from clusterd.render.functions.casts import numeric_of_texts
from clusterd.render.functions.evaluated import Codes, code_of, first_errors
from clusterd.render.functions.registry import CallSite, Outcome, parted, strict
from clusterd.render.functions.texts import Failed, by_distinct, to_arrow
from controller_proto.errors import LocalProtocolError
from controller_proto.literals import parse_scalar
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from shm_arrangements.columns import Column, canonical_floats
from shm_arrangements.types import DTYPES, ColumnType

__all__ = ["float_of_texts"]

_INTEGERS: Final = ("smallint", "integer", "bigint", "uint2", "uint4", "uint8")
_FLOAT: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,10})?$"
_SPECIAL: Final = r"(?i)^[+-]?(inf|infinity)$|^nan$"
_ISO: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?$"
# Unique beginnings of these, as PostgreSQL takes them; `o` alone begins two.
_WORDS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_BOOLEANS: Final = {
    word[:size]: value
    for word, value in _WORDS.items()
    for size in range(1, len(word) + 1)
    if word[:size] != "o"
}


def malformed(type_name: str) -> str:
    """The error of a text that is no value of a type."""
    return f"invalid input syntax for type {type_name}"


def _codes(found: Any, malformed_name: str, range_name: str) -> Codes | None:
    if found is None:
        return None
    table = np.zeros(3, np.uint32)
    table[kernels.MALFORMED] = code_of(malformed(malformed_name))
    table[kernels.OUT_OF_RANGE] = code_of(f"{range_name} out of range")
    codes: Codes = table[found]
    return codes


def _to_integer(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    assert isinstance(type_, ColumnType)
    wide, wrong = numeric_of_texts(args[0], 0, is_integer=True)
    column, codes = of_lanes(type_, wide.values, None)
    return column, first_errors(_codes(wrong, NAMES[type_], NAMES[type_]), codes)


strict("cast", *(f"text -> {name}" for name in _INTEGERS))(_to_integer)


@strict("cast", "text -> numeric(s)")
def _to_numeric(call: CallSite, args: Sequence[Column]) -> Outcome:
    column, wrong = numeric_of_texts(args[0], call.result.scale)
    return column, _codes(wrong, "numeric", "numeric")


@strict("cast", "text -> real", "text -> double precision")
def _to_float(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    assert isinstance(type_, ColumnType)
    return float_of_texts(type_, args[0])


def float_of_texts(type_: ColumnType, column: Column) -> tuple[Column, Codes | None]:
    """The reals or doubles that texts are."""
    trimmed = pc.utf8_trim(to_arrow(column), characters=" \t\n\r\f\v")
    is_special = pc.match_substring_regex(trimmed, _SPECIAL)
    fits = pc.or_(pc.match_substring_regex(trimmed, _FLOAT), is_special)
    texts = pc.replace_substring(pc.if_else(fits, trimmed, "0"), "+", "")
    values = np.array([], np.float64)
    try:
        values = pc.cast(pc.replace_substring_regex(texts, "(?i)infinity", "inf"), pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # one that is beyond doubles
        values = np.array([float(text) for text in texts.to_pylist()], np.float64)
    special = is_special.to_numpy(zero_copy_only=False)
    is_zero = pc.match_substring_regex(texts, "^-?[0.]*([eE].*)?$").to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        out = values.astype(DTYPES[type_])
    beyond = (np.isinf(out) & ~special) | ((out == 0) & ~is_zero & ~special)
    wrong = ~fits.to_numpy(zero_copy_only=False)
    code = np.where(
        wrong, code_of(malformed(NAMES[type_])), np.where(beyond, code_of(f"{NAMES[type_]} out of range"), 0)
    ).astype(np.uint32)
    return Column(type_, canonical_floats(out)), code if code.any() else None


@strict("cast", "text -> boolean")
def _to_boolean(call: CallSite, args: Sequence[Column]) -> Outcome:
    wrong = Failed(malformed("boolean"))
    return by_distinct(ColumnType.BOOL, lambda text: _BOOLEANS.get(text.strip().lower(), wrong), args[0])


def _read(type_: ColumnType, texts: Column) -> Outcome:
    """As a literal of a script is read."""
    wire = WireColumn("", WireType[type_.name])
    failed = Failed(malformed(wire.type.value))

    def read(text: str) -> Any:
        quoted = type_ is ColumnType.JSONB
        try:
            value = parse_scalar(text if quoted else text.strip(), wire, quoted=quoted)
        except LocalProtocolError:
            return failed
        return uuid.UUID(str(value)) if type_ is ColumnType.UUID else failed if value is None else value

    return by_distinct(type_, read, texts)


@strict(
    "cast", "text -> bytea", "text -> time", "text -> interval", "text -> uuid", "text -> jsonb",
)  # fmt: skip
def _to_others(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    assert isinstance(type_, ColumnType)
    return _read(type_, args[0])


@strict("cast", "text -> date", "text -> timestamp", "text -> timestamptz")
def _to_moment(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    assert isinstance(type_, ColumnType)
    texts = to_arrow(args[0])
    if pc.all(pc.match_substring_regex(texts, _ISO), min_count=0).as_py():
        try:
            found = pc.cast(texts, pa.timestamp("us"))
        except pa.ArrowInvalid:
            pass  # a day or a time that there is not, among others
        else:
            moments = found.cast(pa.int64()).to_numpy()
            if type_ is ColumnType.DATE:
                return Column(type_, (moments // 86_400_000_000).astype(np.int32))
            return Column(type_, moments)
    if type_ is not ColumnType.DATE:
        return _read(type_, args[0])
    # The day of a timestamp is one too.
    days, codes = parted(_read(type_, args[0]))
    if codes is None:
        return days
    moments_, others = parted(_read(ColumnType.TIMESTAMP, args[0]))
    of_moments = (moments_.values // 86_400_000_000).astype(np.int32)
    column = Column(type_, np.where(codes != 0, of_moments, days.values))
    return column, None if others is None else np.where(others != 0, codes, np.uint32(0))


@strict("cast", *(f"boolean -> {name}" for name in _INTEGERS))
def _boolean_to_integer(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type
    return Column(type_, args[0].values.astype(DTYPES[type_]))


@strict("cast", *(f"{name} -> boolean" for name in _INTEGERS))
def _integer_to_boolean(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(ColumnType.BOOL, args[0].values != 0)
