"""JSON lines as Arrow tables: one object a line, its fields the columns.

| column type                       | JSON                                                                 |
|-----------------------------------|----------------------------------------------------------------------|
| boolean, text                     | true, false; string                                                  |
| integers, double precision, real  | number; also "NaN", "Infinity", "-Infinity" of the last two          |
| numeric                           | number or string, exactly                                            |
| jsonb                             | anything                                                             |
| list, record                      | array; object                                                        |
| the others                        | string, in the form that scripts have                                |

`null`, and a field that is not there, is NULL. Where nobody says the types they are those of the first piece:
boolean, bigint, double precision, text, and jsonb for what is nested.

Does not: take objects that span lines; read files (tables.py cuts them).
"""

from __future__ import annotations

import decimal
import itertools
import operator
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from clusterd.convert import column_from_scalars, from_wire
from clusterd.storage.arrow import column_to_arrow, wire_column
from clusterd.storage.refused import at_row, refused_value
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.literals import parse_scalar
from controller_proto.schema import Column, ColumnType, Scalar, scalar_problem
from shm_arrangements.arrow import arrow_type

__all__ = ["JsonLines", "parsed_texts"]

_T = ColumnType
_INTEGERS = (_T.INT16, _T.INT32, _T.INT64, _T.UINT16, _T.UINT32, _T.UINT64)
_DECODED = {
    _T.BOOL: bool, **dict.fromkeys(_INTEGERS, int), _T.TEXT: str, _T.NUMERIC: decimal.Decimal,
    _T.FLOAT32: float | Literal["NaN", "Infinity", "-Infinity"], _T.JSONB: msgspec.Raw,
    _T.FLOAT64: float | Literal["NaN", "Infinity", "-Infinity"],
}  # fmt: skip
_AS_THEY_ARE = (_T.BOOL, *_INTEGERS, _T.TEXT, _T.NUMERIC, _T.FLOAT64)
_NULL = msgspec.Raw(b"null")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_SAY_TYPES = "say the types with --columns"
_DECODER: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class JsonLines:
    """A reader of lines that has these columns."""

    def __init__(self, file: Path, columns: Sequence[Column], kept: Sequence[str] = ()) -> None:
        """kept: the columns that a row must have; if any, the others may be NULL, or wrong."""
        self._file = file
        self._kept = kept
        self.columns = tuple(msgspec.structs.replace(c, nullable=c.nullable or bool(kept)) for c in columns)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_row_type("Row", self.columns))

    @classmethod
    def like(cls, file: Path, lines: bytes) -> JsonLines:
        """With the columns that hold these lines, at least one. Raises Refusal, naming what no type holds."""
        try:
            rows = _DECODER.decode_lines(lines)
        except _UNREADABLE as error:
            raise cls(file, ())._located(lines, 1, error, _DECODER) from error
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        return cls(file, tuple(_guessed(file, name, [row.get(name) for row in rows]) for name in names))

    @property
    def schema(self) -> Any:
        """The `pa.Schema` of the tables."""
        fields = [from_wire(column) for column in self.columns]
        return pa.schema([pa.field(s.name, arrow_type(s), nullable=s.nullable) for s in fields])

    def table_and_errors(self, lines: bytes, first_row: int) -> tuple[Any, dict[int, str]]:
        """As `table`, but of a row that is refused only the columns that are `kept` are there; the others are
        NULL, and why is told, by the row's place among these.
        """
        try:
            return self.table(lines, first_row), {}
        except Refusal:
            if not self._kept:
                raise
        needed = [
            msgspec.structs.replace(column, nullable=True)
            if column.name in self._kept
            else Column(column.name, _T.JSONB, True)
            for column in self.columns
        ]
        lenient = JsonLines(self._file, needed)
        lenient._decoder = msgspec.json.Decoder(_row_type("Row", needed, forbid_unknown=False))
        wide = pa.schema([pa.field(field.name, field.type) for field in self.schema])
        given = list(filter(bytes.strip, lines.split(b"\n")))
        errors: dict[int, str] = {}
        tables = []
        spans = [(0, len(given))]
        while spans:  # by halves, in order: nearly all rows are right
            lo, hi = spans.pop()
            text = b"\n".join(given[lo:hi])
            try:
                tables.append(self.table(text, first_row + lo))
            except Refusal as refusal:
                if hi - lo > 1:
                    middle = (lo + hi) // 2
                    spans += [(middle, hi), (lo, middle)]
                    continue
                table = lenient.table(text, first_row + lo)  # without its key nobody knows what it is about
                errors[lo] = f"invalid-data: {refusal.message}"
                for place, field in enumerate(wide):
                    if field.name not in self._kept:
                        table = table.set_column(place, field, pa.nulls(1, field.type))
                tables.append(table)
        return pa.concat_tables([table.cast(wide) for table in tables]), errors

    def table(self, lines: bytes, first_row: int) -> Any:
        """The rows of these lines as a `pa.Table`. first_row: the number of the first, for refusals.

        Raises Refusal: `schema-mismatch`, `format-mismatch`, naming the file, the row and, but for what is
        no JSON, the column.
        """
        try:
            rows = self._decoder.decode_lines(lines)
            if sum(map(bool, map(bytes.strip, lines.split(b"\n")))) != len(rows):
                raise msgspec.DecodeError("not an object a line")
        except _UNREADABLE as error:
            raise self._located(lines, first_row, error, self._decoder) from error
        arrays = []
        for at, column in enumerate(self.columns):
            values = list(map(operator.attrgetter(_name(at)), rows))
            try:
                arrays.append(_array(column, values))
            except Refusal as refusal:
                raise refused_value(
                    self._file, first_row, values, partial(_array, column), refusal
                ) from refusal
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _located(self, lines: bytes, first_row: int, error: Exception, decoder: Any) -> Refusal:
        row = first_row - 1
        for line in lines.split(b"\n"):
            if not line.strip():
                continue
            row += 1
            try:
                decoder.decode(line)
            except msgspec.ValidationError as invalid:
                return at_row(
                    self._file, row, Refusal("schema-mismatch", self._said(str(invalid)), _SAY_TYPES)
                )
            except _UNREADABLE as broken:
                return at_row(self._file, row, Refusal("format-mismatch", f"no JSON object: {broken}"))
        return at_row(self._file, row, Refusal("format-mismatch", f"an object ends on another line: {error}"))

    def _said(self, problem: str) -> str:
        """What the decoder says, with the column's name for the path."""
        what, _, path = problem.partition(" - at ")
        what, path = what[0].lower() + what[1:], path.strip("`").removeprefix("$").removeprefix(".")
        if not path and (field := re.search("field `(.*)`$", what)):
            path = field[1]
        return f"column {path!r}: {what}" if path else what


def _name(at: int) -> str:
    return f"c{at}"


def _row_type(name: str, columns: Sequence[Column], *, forbid_unknown: bool = True) -> Any:
    fields: list[Any] = []
    for at, column in enumerate(columns):
        decoded = _decoded(column)
        if column.type is _T.JSONB and column.nullable:
            fields.append((_name(at), decoded, _NULL))
        elif column.nullable:
            fields.append((_name(at), decoded | None, None))
        else:
            fields.append((_name(at), decoded))
    return msgspec.defstruct(
        name, fields, kw_only=True, forbid_unknown_fields=forbid_unknown, gc=False,
        rename={_name(at): column.name for at, column in enumerate(columns)},
    )  # fmt: skip


def _decoded(column: Column) -> Any:
    """What a field of this column is decoded to."""
    if column.type is _T.LIST:
        (element,) = column.fields
        decoded = _decoded(element)
        return list[decoded | None] if element.nullable else list[decoded]  # type: ignore[valid-type]
    if column.type is _T.RECORD:
        return _row_type("Record", column.fields)
    return _DECODED.get(column.type, str)


def _array(column: Column, values: Sequence[Any]) -> Any:
    """Raises Refusal naming the column and the value."""
    spec = from_wire(column)
    if column.type is _T.JSONB:
        texts = [None if raw == _NULL else bytes(raw).decode() for raw in values]
        if not column.nullable and None in texts:
            raise Refusal("schema-mismatch", f"column {column.name!r} is not nullable, and a row has null")
        return pa.array(texts, pa.large_string())
    if column.type in _AS_THEY_ARE:
        try:
            return pa.array(values, arrow_type(spec))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
            pass  # a value among them is special, or out of range: the slow way says which
    to_scalar = _to_scalar(column)
    try:
        scalars = [None if value is None else to_scalar(value) for value in values]
        for scalar in scalars:
            if scalar is not None and (problem := scalar_problem(scalar, column)) is not None:
                raise Refusal("schema-mismatch", problem)
        return column_to_arrow(spec, column_from_scalars(spec, scalars))
    except LocalProtocolError as error:
        raise Refusal(error.code, error.message) from error
    except ValueError as error:
        raise Refusal("schema-mismatch", f"column {column.name!r}: {error}") from error


def _to_scalar(column: Column) -> Callable[[Any], Scalar]:
    match column.type:
        case _T.LIST:
            element = _to_scalar(column.fields[0])
            return lambda values: tuple(None if v is None else element(v) for v in values)
        case _T.RECORD:
            parts = [(operator.attrgetter(_name(at)), _to_scalar(c)) for at, c in enumerate(column.fields)]
            return lambda row: tuple(None if get(row) is None else to(get(row)) for get, to in parts)
        case _T.FLOAT32 | _T.FLOAT64:
            return float
        case _T.NUMERIC:
            return lambda value: parse_scalar(str(value), column)  # as digits it might fill the memory
        case _T.JSONB:
            return lambda raw: parse_scalar(bytes(raw).decode(), column, quoted=True)
        case _ if column.type in _DECODED:
            return lambda value: value
    return lambda text: parse_scalar(text, column, quoted=True)


def _guessed(file: Path, name: str, values: Sequence[Any]) -> Column:
    if not {dict, list}.isdisjoint(map(type, values)):
        return Column(name, _T.JSONB, True)
    try:
        found = pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise Refusal("schema-mismatch", f"{file}: column {name!r}: {error}", _SAY_TYPES) from error
    if pa.types.is_null(found):
        raise Refusal("schema-mismatch", f"{file}: column {name!r} has only nulls", _SAY_TYPES)
    return msgspec.structs.replace(wire_column(pa.field(name, found)), nullable=True)


def parsed_texts(column: Column, texts: Sequence[str | None]) -> Any:
    """The values that scripts would make of these texts, as a `pa.Array`. Raises Refusal naming the value."""
    spec = from_wire(column)
    nullable = msgspec.structs.replace(column, nullable=True)
    quoted = column.type is _T.JSONB
    try:
        values = [None if text is None else parse_scalar(text, nullable, quoted=quoted) for text in texts]
        return column_to_arrow(spec, column_from_scalars(spec, values))
    except LocalProtocolError as error:
        raise Refusal(error.code, error.message) from error
