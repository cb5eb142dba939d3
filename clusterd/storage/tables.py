"""Files of rows as Arrow tables, piece by piece: Parquet, Arrow IPC (file or stream), CSV, JSON lines.

What a file is it says itself, in its first bytes; texts say nothing, so that goes by the name. A CSV file has
a line of names; an empty field without quotes, and the word `null`, is NULL. Its types are those asked for,
or what Arrow makes of the fields. A piece is a row group, a record batch, or some MiB of whole rows of text.

Every piece says where the next one begins, and a file can be opened there: texts may have grown meanwhile.

Does not: choose column types (arrow.py), parse values (json_lines.py does, for types that CSV readers do not
know), take half a row.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from clusterd.convert import from_wire
from clusterd.storage.json_lines import JsonLines, parsed_texts
from clusterd.storage.refused import at_row, refused_value
from controller_proto.errors import Refusal
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.arrow import arrow_type

__all__ = ["SUFFIXES", "Opening", "Piece", "Source", "can_grow", "is_known", "open_source"]

PIECE_BYTES = 8 << 20  # of text: some 100,000 rows, which are one append and about as large a part
_CSV = (".csv", ".tsv")
_JSON_LINES = (".jsonl", ".ndjson")
_BINARY = (".parquet", ".arrow", ".arrows", ".feather", ".ipc")
SUFFIXES = (*_BINARY, *_CSV, *_JSON_LINES)
_NULLS = ["", "null", "NULL"]
# What Arrow's reader of CSV makes exactly what we would; the others come as text.
_BY_READER = frozenset(ColumnType) - {
    ColumnType.BYTEA, ColumnType.FLOAT32, ColumnType.NUMERIC, ColumnType.TIME, ColumnType.TIMESTAMP,
    ColumnType.TIMESTAMPTZ, ColumnType.INTERVAL, ColumnType.UUID, ColumnType.JSONB, ColumnType.LIST,
    ColumnType.RECORD,
}  # fmt: skip


class Piece(msgspec.Struct, frozen=True):
    """Some rows as a `pa.Table`, and where the next piece begins. done: the share of the file before that.
    errors: what is wrong with rows, by their place; of those only the columns that are kept are there.
    """

    table: Any
    next: int
    done: float
    errors: Mapping[int, str] = MappingProxyType({})


class Source(msgspec.Struct, frozen=True):
    """A file that is open: its Arrow schema, its pieces, and whether it is text that may grow.

    schema: None if it is empty, and nobody said what it shall have; then there are no pieces. columns: what
    they are, if the schema does not say.
    """

    schema: Any
    pieces: Iterator[Piece]
    grows: bool
    columns: Schema | None = None


class Opening(msgspec.Struct, frozen=True):
    """Where in a file to begin: `next` of a piece, and the rows before it. whole: its last line is complete
    whether or not an end of line follows. kept: the columns that every row of JSON must have, while the
    others may be wrong; none if no value may be.
    """

    start: int = 0
    rows: int = 0
    whole: bool = True
    kept: tuple[str, ...] = ()


_FROM_THE_START = Opening()


def can_grow(file: Path) -> bool:
    """Whether it is text, that more may be written to."""
    return file.suffix.lower() in (*_CSV, *_JSON_LINES)


def is_known(file: Path) -> bool:
    """Whether its name is one of those that files of rows have."""
    return file.suffix.lower() in SUFFIXES


def open_source(
    file: Path, asked: Schema | None, opening: Opening = _FROM_THE_START
) -> AbstractContextManager[Source]:
    """Open `file`. asked: the types of columns by name, as far as the file does not say.

    Raises Refusal: `format-mismatch`, now or while pieces are taken, if it is none of these formats or
    broken; `schema-mismatch` for a field of text that is not of the type asked for, naming file, row and
    column.
    """
    with file.open("rb") as opened:
        start = opened.read(8)
    if start[:4] == b"PAR1":
        return _parquet(file, opening)
    if start[:6] == b"ARROW1" or start[:4] == b"\xff\xff\xff\xff":
        return _ipc(file, opening, stream=start[:1] == b"\xff")
    if file.suffix.lower() in _CSV:
        return _csv(file, asked, opening)
    if file.suffix.lower() in _JSON_LINES:
        return _json_lines(file, asked, opening)
    raise Refusal(
        "format-mismatch",
        f"{file} is not a Parquet file, nor Arrow IPC",
        "name it .csv, .tsv or .jsonl if that is what it is",
    )


@contextmanager
def _broken(file: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None):  # Arrow also raises OSError, without one, for what it cannot read
            raise
        raise Refusal("format-mismatch", f"{file} is not a {what} file: {error}") from error


@contextmanager
def _parquet(file: Path, opening: Opening) -> Iterator[Source]:
    with _broken(file, "Parquet"):
        source = pq.ParquetFile(file)

    def pieces() -> Iterator[Piece]:
        for group in range(opening.start, source.num_row_groups):
            with _broken(file, "Parquet"):
                table = source.read_row_group(group)
            yield Piece(table, group + 1, (group + 1) / source.num_row_groups)

    with source:
        yield Source(source.schema_arrow, pieces(), False)


@contextmanager
def _ipc(file: Path, opening: Opening, *, stream: bool) -> Iterator[Source]:
    with closing(pa.memory_map(str(file))) as mapped:
        with _broken(file, "Arrow"):
            reader = pa.ipc.open_stream(mapped) if stream else pa.ipc.open_file(mapped)

        def pieces() -> Iterator[Piece]:
            count = None if stream else reader.num_record_batches
            at = 0
            while count is None or at < count:
                with _broken(file, "Arrow"):
                    try:
                        batch = reader.read_next_batch() if stream else reader.get_batch(at)
                    except StopIteration:
                        return
                at += 1
                if at > opening.start:
                    done = at / count if count else mapped.tell() / max(mapped.size(), 1)
                    yield Piece(pa.Table.from_batches([batch]), at, done)

        yield Source(reader.schema, pieces(), False)


# -- texts --------------------------------------------------------------------------------------------------


def _texts(file: Path, start: int, *, whole: bool, quotes: bool) -> Generator[tuple[bytes, int, float]]:
    """Whole rows, some MiB at a time, where the next ones begin, and the share of the file before that.

    quotes: an end of line between double quotes belongs to a field.
    """
    with file.open("rb") as opened:
        opened.seek(start)
        size = max(file.stat().st_size, 1)
        held = b""
        while True:
            read = opened.read(PIECE_BYTES)
            held += read
            end = len(held) if whole and not opened.peek(1) else _whole_rows(held, quotes=quotes)
            if end:
                start += end
                yield held[:end], start, min(start / size, 1.0)
                held = held[end:]
            if not read:
                return


def _whole_rows(text: bytes, *, quotes: bool) -> int:
    """How many bytes of `text`, which begins with a row, are whole rows."""
    if not quotes or b'"' not in text:
        return text.rfind(b"\n") + 1
    seen = np.frombuffer(text, np.uint8)
    inside = np.cumsum(seen == ord('"'), dtype=np.int64) & 1
    ends = np.flatnonzero((seen == ord("\n")) & (inside == 0))
    return int(ends[-1]) + 1 if len(ends) else 0


@contextmanager
def _json_lines(file: Path, asked: Schema | None, opening: Opening) -> Iterator[Source]:
    texts = _texts(file, opening.start, whole=opening.whole, quotes=False)
    first = next(texts, (b"", opening.start, 1.0))
    if not opening.start:
        first = (first[0].removeprefix(codecs.BOM_UTF8), *first[1:])
    if asked is None and not first[0].strip():
        yield Source(None, iter(()), True)
        return
    reader = JsonLines.like(file, first[0]) if asked is None else JsonLines(file, asked.columns)
    reader = JsonLines(file, reader.columns, opening.kept)

    def pieces() -> Iterator[Piece]:
        rows = opening.rows
        for text, following, done in _and_then(first, texts):
            table, errors = reader.table_and_errors(text, rows + 1)
            rows += len(table)
            yield Piece(table, following, done, errors)

    with closing(texts):
        yield Source(reader.schema, pieces(), True, Schema(reader.columns))


def _and_then(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    if first[0]:
        yield first
    yield from others


@contextmanager
def _csv(file: Path, asked: Schema | None, opening: Opening) -> Iterator[Source]:
    reader = _Csv(file, {} if asked is None else {column.name: column for column in asked.columns})
    with closing(_texts(file, 0, whole=opening.whole, quotes=True)) as texts:
        head = _first_row(next(texts, (b"", 0, 1.0))[0])
    names = reader.fields(head)
    if not names:
        yield Source(reader.schema if asked is not None else None, iter(()), True)
        return
    texts = _texts(file, max(opening.start, len(head)), whole=opening.whole, quotes=True)
    first = next(texts, (b"", len(head), 1.0))
    table = reader.table(first[0], names, opening.rows + 1)

    def pieces() -> Iterator[Piece]:
        rows = opening.rows + len(table)
        if first[0]:
            yield Piece(table, first[1], first[2])
        for text, following, done in texts:
            found = reader.table(text, names, rows + 1)
            rows += len(found)
            yield Piece(found, following, done)

    with closing(texts):
        yield Source(table.schema, pieces(), True)


def _not_utf8(column: str) -> Refusal:
    return Refusal(
        "schema-mismatch",
        f"column {column!r} is no text in UTF-8",
        "convert the file (iconv -f latin1 -t utf-8), or say bytea with --columns if it is no text",
    )


def _first_row(text: bytes) -> bytes:
    end = text.find(b"\n") + 1
    while end and text.count(b'"', 0, end) % 2:
        end = text.find(b"\n", end) + 1
    return text[:end] if end else text


class _Csv:
    """Reads pieces of a CSV file. columns: the types asked for."""

    def __init__(self, file: Path, columns: dict[str, Column]) -> None:
        self._file = file
        self._columns = columns
        self._delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
        self._types = {
            name: arrow_type(from_wire(column)) if column.type in _BY_READER else pa.large_string()
            for name, column in columns.items()
        }

    @property
    def schema(self) -> Any:
        """The `pa.Schema` of what was asked for."""
        return pa.schema(list(self._types.items()))

    def fields(self, text: bytes) -> list[str]:
        """The fields of the first row. Raises Refusal(`format-mismatch`) if they cannot be names."""
        try:
            return next(self._rows(text), [])
        except csv.Error as error:
            problem = f"{self._file}: the line of names: {error}"
            raise Refusal("format-mismatch", problem, "the first line has to name the columns") from error

    def _rows(self, text: bytes) -> Iterator[list[str]]:
        return csv.reader(
            io.StringIO(text.decode("utf-8-sig", errors="replace"), newline=""), delimiter=self._delimiter
        )

    def table(self, text: bytes, names: list[str], first_row: int) -> Any:
        """Raises Refusal as `open_source`."""
        if not text.strip():
            text = b""
        if not text:
            types = [(name, self._types.get(name, pa.null())) for name in names]
            if not self._types:
                problem = "has a line of names and no row: nothing tells the types of its columns"
                raise Refusal("schema-mismatch", f"{self._file} {problem}", "say them with --columns")
            table = pa.schema(types).empty_table()
        else:
            try:
                table = self._read(text, names, self._types)
            except pa.ArrowInvalid as error:
                raise self._located(text, names, first_row, error) from error
            self._require_text(table, first_row)
        for at, name in enumerate(table.column_names):
            column = self._columns.get(name)
            if column is not None and column.type not in _BY_READER:
                texts = table.column(at).to_pylist()
                try:
                    values = parsed_texts(column, texts)
                except Refusal as refusal:
                    raise refused_value(
                        self._file, first_row, texts, partial(parsed_texts, column), refusal
                    ) from refusal
                table = table.set_column(at, name, values)
        return table

    def _require_text(self, table: Any, first_row: int) -> None:
        """Raises Refusal(`format-mismatch`) where Arrow took for bytes what is text of another encoding."""
        for name, column in zip(table.column_names, table.columns, strict=True):
            if name in self._types or not pa.types.is_binary(column.type):
                continue
            for row, value in enumerate(column.to_pylist(), first_row):
                try:
                    (value or b"").decode()
                except UnicodeDecodeError as error:
                    raise at_row(self._file, row, _not_utf8(name)) from error

    def _read(self, text: bytes, names: list[str], types: dict[str, Any]) -> Any:
        return pa.csv.read_csv(
            io.BytesIO(text),
            read_options=pa.csv.ReadOptions(column_names=names, block_size=max(len(text), 1)),
            parse_options=pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=types, null_values=_NULLS, strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip

    def _located(self, text: bytes, names: list[str], first_row: int, error: Exception) -> Refusal:
        """The refusal of what Arrow's reader refused, with its row."""
        problem = re.fullmatch(r"In CSV column #(\d+): (.*)", str(error), re.DOTALL)
        if problem is None:
            with suppress(csv.Error):  # a field that is too large for it; Arrow takes larger ones
                for row, fields in enumerate(filter(None, self._rows(text)), first_row):
                    if len(fields) != len(names):
                        given = f"{len(fields)} fields, and {len(names)} columns"
                        return at_row(self._file, row, Refusal("format-mismatch", given))
            return Refusal("format-mismatch", f"{self._file}: {error}")
        name = names[int(problem[1])]
        refusal = Refusal("schema-mismatch", f"column {name!r}: {problem[2]}", "say the types with --columns")
        if "invalid UTF8" in problem[2]:
            refusal = _not_utf8(name)
        value = re.search(r"invalid value '(.*)'", problem[2], re.DOTALL)
        texts = self._read(text, names, dict.fromkeys(names, pa.large_binary())).column(name)
        if value is not None:
            given = pa.scalar(value[1].encode(errors="replace"), pa.large_binary())
            row = pc.index(texts, given).as_py()
        else:
            row = next((at for at, each in enumerate(texts.to_pylist()) if not _is_utf8(each)), -1)
        return at_row(self._file, first_row + row, refusal) if row >= 0 else refusal


def _is_utf8(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
