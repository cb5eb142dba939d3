"""`clusterd load`: the rows of a Parquet file, at the times of a column; or a typed error and nothing."""

from __future__ import annotations

import datetime
import decimal
import errno
import io
import math
import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from clusterd import exit_codes
from clusterd.convert import scalars_from_column
from clusterd.storage.cli import load
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from controller_proto.literals import parse_type
from controller_proto.schema import Schema, type_name
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates

# Arrow's reader of CSV opens a pipe once a process, for signals, and keeps it.
pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))


def run(directory: Path, table: Any, *, column: str = "t", shard: str = "s") -> Result:
    file = directory / "in.parquet"
    pq.write_table(table, file, row_group_size=2)
    arguments = [str(file), "--shard", shard, "--time-column", column, "--data-dir", str(directory / "data")]
    return CliRunner().invoke(load, arguments)


def test_rows_are_loaded_at_the_times_of_the_column(tmp_path: Path) -> None:
    table = pa.table({
        "t": pa.array([5, 3, 9, 3], pa.int32()),
        "name": pa.array(["a", None, "c", "a"]).dictionary_encode(),
        "x": pa.array([1.5, None, -0.0, 2.0], pa.float32()),
    })  # fmt: skip
    result = run(tmp_path, table)
    assert result.exit_code == 0, result.output
    assert "loaded 4 rows into shard 's', times 3 to 9, upper {10}" in result.output
    with Store.open(tmp_path / "data", create=False) as store:
        shard = store.shard("s")
        assert shard.upper == Frontier.at(10)
        assert [c.name for c in shard.schema.columns] == ["t", "name", "x"]
        (block,) = shard.read(0, shard.upper, block_rows=100)
        assert block.to_rows() == [
            ((3, None, None), 3, 1), ((3, "a", 2.0), 3, 1), ((5, "a", 1.5), 5, 1), ((9, "c", 0.0), 9, 1),
        ]  # fmt: skip


def test_a_timestamp_column_counts_in_microseconds(tmp_path: Path) -> None:
    result = run(tmp_path, pa.table({"t": pa.array([1_357_000_000], pa.timestamp("s", "UTC"))}))
    assert "times 1357000000000000 to 1357000000000000" in result.output


def test_a_second_load_of_the_same_times_is_refused_whole(tmp_path: Path) -> None:
    table = pa.table({"t": [0, 1]})
    assert run(tmp_path, table).exit_code == 0
    result = run(tmp_path, pa.table({"t": [1, 2]}))
    assert result.exit_code == 1
    assert (
        "error: upper-mismatch: shard 's' already holds times up to 1, and the file has rows at 1"
        in result.output
    )
    assert "hint:" in result.output
    with Store.open(tmp_path / "data") as store:
        assert store.shard("s").upper == Frontier.at(2)
        assert store.shard("s").statistics().updates == 2
    assert run(tmp_path, pa.table({"t": [2]})).exit_code == 0


@pytest.mark.parametrize(
    ("table", "column", "message"),
    [
        (pa.table({"t": [1]}), "when", "schema-mismatch: no column 'when' to take times from"),
        (pa.table({"t": ["x"]}), "t", "schema-mismatch: time column 't' is text"),
        (pa.table({"t": [1, None]}), "t", "schema-mismatch: {}, row 2: time column 't' is NULL"),
        (
            pa.table({"t": [1, -4]}),
            "t",
            "schema-mismatch: {}, row 2: time column 't' has the negative time -4",
        ),
        (pa.table({"t": [1], "n": [None]}), "t", "schema-mismatch: column 'n' is of Arrow type null"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, table: Any, column: str, message: str
) -> None:
    result = run(tmp_path, table, column=column)
    assert result.exit_code == 1
    assert f"error: {message.format(tmp_path / 'in.parquet')}" in result.output
    with Store.open(tmp_path / "data") as store:
        assert store.list() == []


def test_a_load_that_fails_in_the_append_leaves_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(Shard, "append", full)
    assert run(tmp_path, pa.table({"t": [1]})).exit_code != 0
    monkeypatch.undo()
    assert list((tmp_path / "data" / "shards").iterdir()) == []
    result = run(tmp_path, pa.table({"t": [1]}))
    assert result.exit_code == 0
    assert f"data directory {tmp_path / 'data'}\n" in result.output


def test_a_load_says_which_data_directory_and_that_it_was_made(tmp_path: Path) -> None:
    result = run(tmp_path, pa.table({"t": [1]}))
    assert f"data directory {tmp_path / 'data'} (made now)" in result.output
    file = str(tmp_path / "in.parquet")
    arguments = [file, "--shard", "s", "--time-column", "t", "--data-dir", "/proc/foo"]
    result = CliRunner().invoke(load, arguments)
    assert result.exit_code == exit_codes.START_FAILED
    assert "error: data directory /proc/foo cannot be used" in result.output
    assert "hint:" in result.output


def test_a_file_without_rows_and_a_shard_name_that_is_none(tmp_path: Path) -> None:
    result = run(tmp_path, pa.table({"t": pa.array([], pa.int64())}))
    assert "loaded 0 rows into shard 's', upper {0}" in result.output
    result = run(tmp_path, pa.table({"t": [1]}), shard="../up")
    assert result.exit_code == 1
    assert "error: unknown-shard: '../up' is not a shard name" in result.output


def test_no_parquet_and_no_data_directory_are_format_errors(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    arguments = [str(tmp_path / "letter"), "--shard", "s", "--time-column", "t", "--data-dir"]
    result = CliRunner().invoke(load, [*arguments, str(tmp_path / "data")])
    assert result.exit_code == exit_codes.DATA_FORMAT
    assert "is not a Parquet file" in result.output
    result = CliRunner().invoke(load, [*arguments, str(tmp_path)])
    assert result.exit_code == exit_codes.DATA_FORMAT
    assert "no VERSION file" in result.output


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(load, ["--help"])
    assert result.exit_code == 0
    assert "clusterd load flights.parquet --shard flights --time-column hour_of_year" in result.output


def loaded(directory: Path, file: Path, *options: str, shard: str = "s") -> Result:
    arguments = [str(file), "--shard", shard, "--time-column", "t", "--data-dir", str(directory / "data")]
    return CliRunner().invoke(load, [*arguments, *options])


def contents(directory: Path, shard: str = "s") -> tuple[list[str], list[tuple[Any, ...]]]:
    """The types of the shard's columns, as written, and its rows in wire values."""
    with Store.open(directory / "data", create=False) as store:
        found = store.shard(shard)
        types = [type_name(c) + "?" * c.nullable for c in found.schema.columns]
        blocks = list(found.read(0, found.upper, block_rows=1 << 16))
        columns = Updates.concat(blocks).columns
        rows = zip(*map(scalars_from_column, found.specs, columns), strict=True)
        return types, sorted(rows, key=repr)


def tables() -> dict[str, Any]:
    """A table of every kind of column that a file can have."""
    day, noon = datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 0)
    return {
        "t": pa.array([1, 2], pa.uint16()),
        "flag": pa.array([True, None]),
        "u": pa.array([2**63 - 1, 0], pa.uint64()),
        "f": pa.array([0.5, None], pa.float32()),
        "n": pa.array([decimal.Decimal("12.300000000"), None], pa.decimal128(38, 9)),
        "word": pa.array(["a", "b"]).dictionary_encode(),
        "b": pa.array([b"\x00\xff", None]),
        "d": pa.array([day, None]),
        "clock": pa.array([datetime.time(3, 0), None], pa.time64("ns")),
        **{f"at_{u}": pa.array([noon, None], pa.timestamp(u)) for u in ("s", "ms", "us", "ns")},
        "zoned": pa.array([noon, None], pa.timestamp("ms", "UTC")),
        "l": pa.array([[1, None], []], pa.list_(pa.int32())),
        "r": pa.array([{"a": "x", "b": [day]}, None]),
    }


NOON = 1_577_934_000_000_000
TYPES = [
    "bigint?", "boolean?", "bigint?", "double precision?", "numeric(38,9)?", "text?", "bytea?", "date?",
    "time?", *["timestamp?"] * 4, "timestamptz?", "bigint? list?", "record(a text?, b date? list?)?",
]  # fmt: skip
ROWS = [
    (1, True, 2**63 - 1, 0.5, "12.300000000", "a", b"\x00\xff", 18263, 10_800_000_000, *[NOON] * 5, (1, None),
     ("x", (18263,))),
    (2, None, 0, None, None, "b", *[None] * 8, (), None),
]  # fmt: skip


@pytest.mark.parametrize("with_arrow_schema", [True, False])
def test_a_parquet_file_of_every_type_is_loaded_exactly(tmp_path: Path, with_arrow_schema: bool) -> None:
    """BUG87: the unit of times is that of the column, whether or not the file also holds an Arrow schema."""
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table(tables()), file, store_schema=with_arrow_schema, row_group_size=1)
    assert loaded(tmp_path, file).exit_code == 0
    types, rows = contents(tmp_path)
    assert types == TYPES
    assert rows == ROWS


def test_an_arrow_schema_of_another_unit_does_not_shift_times(tmp_path: Path) -> None:
    """BUG87: Parquet has milliseconds, the Arrow schema beside it says nanoseconds."""
    file = tmp_path / "in.parquet"
    noon = datetime.datetime(2020, 1, 2, 3, 0)
    table = pa.table({"t": [1], "at": pa.array([noon], pa.timestamp("ns"))})
    pq.write_table(table, file, coerce_timestamps="ms", allow_truncated_timestamps=True)
    assert loaded(tmp_path, file).exit_code == 0
    assert contents(tmp_path) == (["bigint?", "timestamp?"], [(1, NOON)])


def test_pages_of_nulls_and_empty_row_groups_are_loaded(tmp_path: Path) -> None:
    table = pa.table(tables())
    none = table.slice(0, 0)
    file = tmp_path / "in.parquet"
    with pq.ParquetWriter(file, table.schema) as writer:
        for piece in (none, table.slice(1), none, table.slice(0, 1), none):
            writer.write_table(piece)
    assert loaded(tmp_path, file).exit_code == 0
    assert contents(tmp_path)[1] == ROWS


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files_and_streams_are_loaded_too(tmp_path: Path, stream: bool) -> None:
    file = tmp_path / "in.arrow"
    table = pa.table(tables())
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    assert loaded(tmp_path, file).exit_code == 0
    assert contents(tmp_path) == (TYPES, ROWS)


COLUMNS = (
    "t uint8;i smallint;n numeric(38,2)?;f real;x double precision?;d date;at timestamptz;gap interval;"
    "id uuid;j jsonb?;b bytea;l bigint? list;r record(a bigint, b text?);word text?"
)


def test_a_csv_file_has_the_types_that_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text(
        "word,t,i,n,f,x,d,at,gap,id,j,b,l,r\n"
        "null,1,-7,12.3,0.1,NaN,2020-01-02,2020-01-02 03:00:00+00,1 mon 00:00:01,"
        '00000000-0000-0000-0000-000000000005,"{""b"":1.0,""a"":[]}",\\x00ff,"{1,null}","(1,""x"")"\n'
        "a,18446744073709551614,7,,2,,1969-12-31,1970-01-01T00:00:00Z,00:00:00,"
        '00000000-0000-0000-0000-000000000006,null,\\x,{},"(2,null)"\n'
    )
    assert loaded(tmp_path, file, "--columns", COLUMNS.replace(";", ", ")).exit_code == 0
    types, rows = contents(tmp_path)
    assert types == [column.partition(" ")[2] for column in COLUMNS.split(";")]
    ids = [str(uuid.UUID(int=n)) for n in (5, 6)]
    assert repr(rows) == repr([
        (1, -7, "12.30", 0.10000000149011612, math.nan, 18263, NOON, (1, 0, 10**9), ids[0], '{"a":[],"b":1}',
         b"\x00\xff", (1, None), (1, "x"), None),
        (2**64 - 2, 7, None, 2.0, None, -1, 0, (0, 0, 0), ids[1], None, b"", (), (2, None), "a"),
    ])  # fmt: skip


def test_a_csv_file_without_types_has_those_that_its_fields_look_like(tmp_path: Path) -> None:
    file = tmp_path / "in.tsv"
    file.write_text("t\tx\tword\td\n1\t0.5\ta\t2020-01-02\n2\t\tb c\t\n")
    assert loaded(tmp_path, file).exit_code == 0
    types, rows = contents(tmp_path)
    assert types == ["bigint?", "double precision?", "text?", "date?"]
    assert rows == [(1, 0.5, "a", 18263), (2, None, "b c", None)]


def test_a_shard_that_is_there_says_the_types(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        store.create_shard("s", Schema(parse_type("record(i integer, t uint8)").fields))
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table({"t": [5], "i": pa.array([-7], pa.int64())}), file)
    assert loaded(tmp_path, file).exit_code == 0
    assert contents(tmp_path) == (["integer", "uint8"], [(-7, 5)])
    pq.write_table(pa.table({"t": [6], "i": pa.array([2**31], pa.int64())}), file)
    result = loaded(tmp_path, file)
    assert result.exit_code == 1
    message = "row 1: column 'i': 2147483648 is out of range for integer"
    assert f"error: schema-mismatch: {file}, {message}" in result.output


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("t bigint, i uint8", "schema-mismatch: {}, row 1: column 'i': -7 is out of range for uint8"),
        ("t bigint, i text", "schema-mismatch: column 'i' is int64, text expected"),
        ("t bigint", "schema-mismatch: the file has columns t, i, not t"),
        ("t bigint, i money", "invalid-plan: type 'money' is not known"),
        ("t date, i bigint", "schema-mismatch: column 't' is int64, date expected"),
    ],
)
def test_columns_that_do_not_fit_the_file_are_refused(tmp_path: Path, columns: str, message: str) -> None:
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table({"t": [5], "i": pa.array([-7], pa.int64())}), file)
    result = loaded(tmp_path, file, "--columns", columns)
    assert result.exit_code == 1
    assert f"error: {message.format(file)}" in result.output
    with Store.open(tmp_path / "data") as store:
        assert store.list() == []


@pytest.mark.parametrize(
    ("field", "type_", "message"),
    [
        ("x", "bigint", "conversion error to int64: invalid value 'x'"),
        ("1.234", "numeric(38,2)", "column i: '1.234' is no numeric(38,2)"),
        ("2020-13-01", "date", "invalid value '2020-13-01'"),
        ("1e39", "real", "column i: 1e+39 is out of range of real"),
        ('"{"', "jsonb", "column i: '{' is no jsonb"),
    ],
)
def test_a_field_of_csv_that_is_not_of_its_type_is_refused(
    tmp_path: Path, field: str, type_: str, message: str
) -> None:
    file = tmp_path / "in.csv"
    file.write_text(f"t,i\n1,{field}\n")
    result = loaded(tmp_path, file, "--columns", f"t bigint, i {type_}")
    assert result.exit_code == 1
    assert f"error: schema-mismatch: {file}, row 1: column" in result.output
    assert message in result.output


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("name", "data", "columns", "message"),
    [
        ("in.csv", b"a,a\n1,2\n", None, "schema-mismatch: the file has several columns 'a'"),
        ("in.csv", b"a,b\n1,x\n2,caf\xe9\n", "a bigint, b text",
         "schema-mismatch: {}, row 2: column 'b' is no text in UTF-8"),
        ("in.csv", b"a" * 200_000 + b",b\n1,2\n", None, "format-mismatch: {}: the line of names: field"),
        ("in.jsonl", b'{"a":1}\n{"a":1e999999999}\n', "t bigint?, a numeric(38,2)",
         "schema-mismatch: {}, row 2: column a: '1E+999999999' is no numeric(38,2)"),
        ("in.jsonl", b'{"a":1}\n{"a":' + DEEP + b"}\n", None, "format-mismatch: {}, row 2: no JSON object"),
        ("in.jsonl", b'{"a":1}\n{"a":' + DEEP + b"}\n", "t bigint?, a jsonb",
         "format-mismatch: {}, row 2: no JSON object"),
        ("in\udcff.csv", b"a\n1\n", None, "format-mismatch: the name '{}' is not UTF-8"),
    ],
)  # fmt: skip
def test_what_no_reader_takes_is_told_with_its_row_and_is_no_traceback(
    tmp_path: Path, name: str, data: bytes, columns: str | None, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    result = loaded(tmp_path, file, *(() if columns is None else ("--columns", columns)))
    assert isinstance(result.exception, SystemExit), result.exception
    told = message.format(str(file).encode("ascii", "backslashreplace").decode())
    assert f"error: {told}" in result.output
    with Store.open(tmp_path / "data") as store:
        assert store.list() == []


def test_a_pipe_is_refused_for_it_cannot_be_read_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.csv")  # nobody writes to it: to open it would wait for ever
    result = loaded(tmp_path, tmp_path / "in.csv")
    assert f"format-mismatch: '{tmp_path}/in.csv' is no regular file" in result.output


@pytest.mark.parametrize("start", [b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff\x10\0\0\0"])
def test_a_broken_file_is_a_format_error(tmp_path: Path, start: bytes) -> None:
    file = tmp_path / "in.bin"
    file.write_bytes(start + b"garbage that is no footer at all" * 3)
    result = loaded(tmp_path, file)
    assert result.exit_code == exit_codes.DATA_FORMAT
    assert "error: format-mismatch: " in result.output
