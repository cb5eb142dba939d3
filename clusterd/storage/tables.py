"""Files of rows as Arrow tables, piece by piece: Parquet, Arrow IPC (file or stream), CSV.

What a file is it says itself, in its first bytes; CSV says nothing, so that goes by the name. A CSV file has
a line of names; an empty field without quotes, and the word `null`, is NULL. Its types are those asked for,
or what Arrow makes of the fields.

Does not: choose column types (arrow.py), parse values (literals.py does, for types that CSV readers do not
know), stream CSV (a piece is a file's row group or record batch; CSV is one piece).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from clusterd.convert import column_from_scalars, from_wire
from clusterd.storage.arrow import column_to_arrow
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.literals import parse_scalar
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.arrow import arrow_type

__all__ = ["Source", "open_source"]

_NULLS = ["", "null", "NULL"]
# What Arrow's reader of CSV makes exactly what we would; the others come as text.
_BY_READER = frozenset(ColumnType) - {
    ColumnType.BYTEA, ColumnType.FLOAT32, ColumnType.NUMERIC, ColumnType.TIME, ColumnType.TIMESTAMP,
    ColumnType.TIMESTAMPTZ, ColumnType.INTERVAL, ColumnType.UUID, ColumnType.JSONB, ColumnType.LIST,
    ColumnType.RECORD,
}  # fmt: skip


class Source(msgspec.Struct, frozen=True):
    """A file that is open: its Arrow schema, how many rows it has (None: it does not say), its pieces."""

    schema: Any
    rows: int | None
    pieces: Iterator[Any]


def open_source(file: Path, asked: Schema | None) -> AbstractContextManager[Source]:
    """Open `file`. asked: the types of columns by name, as far as the file does not say.

    Raises Refusal: `format-mismatch`, now or while pieces are taken, if it is none of these formats or
    broken; `schema-mismatch` for a field of CSV that is not of the type asked for.
    """
    with file.open("rb") as opened:
        start = opened.read(8)
    if start[:4] == b"PAR1":
        return _parquet(file)
    if start[:6] == b"ARROW1" or start[:4] == b"\xff\xff\xff\xff":
        return _ipc(file, stream=start[:1] == b"\xff")
    if file.suffix.lower() in (".csv", ".tsv"):
        return _csv(file, asked)
    raise Refusal(
        "format-mismatch",
        f"{file} is not a Parquet file, nor Arrow IPC",
        "name it .csv or .tsv if that is what it is",
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
def _parquet(file: Path) -> Iterator[Source]:
    with _broken(file, "Parquet"):
        source = pq.ParquetFile(file)

    def pieces() -> Iterator[Any]:
        for group in range(source.num_row_groups):
            with _broken(file, "Parquet"):
                table = source.read_row_group(group)
            yield table

    with source:
        yield Source(source.schema_arrow, source.metadata.num_rows, pieces())


@contextmanager
def _ipc(file: Path, *, stream: bool) -> Iterator[Source]:
    with closing(pa.memory_map(str(file))) as mapped:
        with _broken(file, "Arrow"):
            reader = pa.ipc.open_stream(mapped) if stream else pa.ipc.open_file(mapped)

        def pieces() -> Iterator[Any]:
            count = None if stream else reader.num_record_batches
            at = 0
            while count is None or at < count:
                with _broken(file, "Arrow"):
                    try:
                        batch = reader.read_next_batch() if stream else reader.get_batch(at)
                    except StopIteration:
                        return
                yield pa.Table.from_batches([batch])
                at += 1

        yield Source(reader.schema, None, pieces())


@contextmanager
def _csv(file: Path, asked: Schema | None) -> Iterator[Source]:
    columns = {} if asked is None else {column.name: column for column in asked.columns}
    types = {
        name: arrow_type(from_wire(column)) if column.type in _BY_READER else pa.large_string()
        for name, column in columns.items()
    }
    try:
        table = pa.csv.read_csv(
            file,
            parse_options=pa.csv.ParseOptions(delimiter="\t" if file.suffix.lower() == ".tsv" else ","),
            convert_options=pa.csv.ConvertOptions(
                column_types=types, null_values=_NULLS, strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
    except pa.ArrowInvalid as error:
        code = "schema-mismatch" if str(error).startswith("In CSV column") else "format-mismatch"
        raise Refusal(code, f"{file}: {error}") from error
    for at, name in enumerate(table.column_names):
        if name in columns and columns[name].type not in _BY_READER:
            table = table.set_column(at, name, _parsed(table.column(at), columns[name]))
    yield Source(table.schema, len(table), iter([table]))


def _parsed(texts: Any, column: Column) -> Any:
    """The values that scripts would make of these texts."""
    spec = from_wire(column)
    nullable = msgspec.structs.replace(column, nullable=True)
    try:
        values = [
            None if text is None else parse_scalar(text, nullable, quoted=column.type is ColumnType.JSONB)
            for text in texts.to_pylist()
        ]
        return column_to_arrow(spec, column_from_scalars(spec, values))
    except LocalProtocolError as error:
        raise Refusal(error.code, error.message) from error
