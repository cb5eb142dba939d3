"""A copy is a whole file or none, also of a process that is killed in the middle of it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest

from clusterd.convert import column_specs, columns_from_rows
from clusterd.storage import copy_out
from clusterd.storage.copy_out import CopyOut, check_copy, sweep_copies
from controller_proto.dataflow import Export
from controller_proto.errors import Refusal
from controller_proto.schema import Column, ColumnType, Schema

KV = Schema((Column("k", ColumnType.INT64), Column("v", ColumnType.TEXT, True)))
ROWS: list[tuple[Any, ...]] = [(1, "a"), (2, None), (3, 'say "x", y')]


def _export(path: Path | str, format: str = "", schema: Schema = KV) -> Export:
    return Export("t1", "copy-to", "u1", schema, uri=str(path), format=format)


def _columns(rows: list[tuple[Any, ...]] = ROWS, schema: Schema = KV) -> Any:
    return columns_from_rows(column_specs(schema), rows)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("uri", ["{}/out.parquet", "file://{}/out.parquet"])
def test_a_copy_appears_whole_in_place_of_what_was_there(tmp_path: Path, uri: str) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    (out / "out.parquet").write_text("old")
    copy = CopyOut(_export(uri.format(out)), data)
    copy.write(_columns())
    copy.write(_columns([(4, "d")]))
    assert (out / "out.parquet").read_text() == "old"
    assert len(_names(out)) == 2
    assert len(_names(data / "copies")) == 1
    copy.commit()
    copy.abort()
    assert _names(out) == ["out.parquet"]
    assert _names(data / "copies") == []
    found = pyarrow.parquet.read_table(out / "out.parquet")
    assert [tuple(row.values()) for row in found.to_pylist()] == [*ROWS, (4, "d")]


def test_csv_tells_null_from_the_empty_text_and_has_a_header_without_rows(tmp_path: Path) -> None:
    copy = CopyOut(_export(tmp_path / "a.csv"), None)
    copy.write(_columns([*ROWS, (4, "")]))
    copy.commit()
    assert (tmp_path / "a.csv").read_text() == '"k","v"\n1,"a"\n2,\n3,"say ""x"", y"\n4,""\n'
    CopyOut(_export(tmp_path / "none", "csv"), None).commit()
    assert (tmp_path / "none").read_text() == '"k","v"\n'
    CopyOut(_export(tmp_path / "none.parquet"), None).commit()
    assert pyarrow.parquet.read_table(tmp_path / "none.parquet").column_names == ["k", "v"]


def test_columns_of_one_name_get_numbers(tmp_path: Path) -> None:
    column = Column("n", ColumnType.INT64)
    schema = Schema((column, column))
    copy = CopyOut(_export(tmp_path / "a.csv", schema=schema), None)
    copy.write(_columns([(1, 2)], schema))
    copy.commit()
    assert (tmp_path / "a.csv").read_text().startswith('"n","n_2"\n')


def test_an_aborted_copy_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("old")
    data = tmp_path / "data"
    data.mkdir()
    copy = CopyOut(_export(tmp_path / "a.csv"), data)
    copy.write(_columns())
    copy.abort()
    copy.abort()
    CopyOut(_export(tmp_path / "b.csv"), data).abort()
    assert _names(tmp_path) == ["a.csv", "data"]
    assert (tmp_path / "a.csv").read_text() == "old"
    assert _names(data / "copies") == []


def test_a_place_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for operation in ("write", "commit"):
        copy = CopyOut(_export(tmp_path / "nowhere" / "a.csv"), data)
        with pytest.raises(Refusal) as raised:
            copy.write(_columns()) if operation == "write" else copy.commit()
        assert raised.value.code == "write-failed"
        assert "nowhere/a.csv" in raised.value.message
        assert _names(data / "copies") == []
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "a.csv", tmp_path / ("n" * 250 + ".csv")):
        with pytest.raises(Refusal):
            CopyOut(_export(place), data).commit()
        assert _names(data / "copies") == []
    (tmp_path / "file").unlink()
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "folder.csv" / "file").touch()
    copy = CopyOut(_export(tmp_path / "folder.csv"), data)
    copy.write(_columns())
    with pytest.raises(Refusal):
        copy.commit()
    assert _names(tmp_path) == ["data", "folder.csv"]


@pytest.mark.parametrize(
    ("uri", "format", "says"),
    [
        ("out.csv", "", "is no place for a file"),
        ("nope://a/b", "", "is no place for a file"),
        ("file:///", "", "is no place for a file"),
        ("file:///tmp/a b.csv", "", "is no place for a file"),
        ("file://host/tmp/a.csv", "", "is no place for a file"),
        ("s3://bucket", "", "is no place for a file"),
        ("/tmp/", "", "is no place for a file"),
        ("/tmp/a\0b", "", "is no place for a file"),
        ("s3://[/a", "", "is no place for a file"),
        ("", "", "is no place for a file"),
        ("/tmp/a.csv", "", "column 'i' (interval) has no form in csv"),
        ("/tmp/a", "", "no place for column 'i'"),
    ],
)
def test_what_cannot_be_written_is_refused_when_it_is_asked_for(uri: str, format: str, says: str) -> None:
    with pytest.raises(Refusal) as raised:
        check_copy(_export(uri, format, Schema((Column("i", ColumnType.INTERVAL),))))
    assert raised.value.code == "invalid-plan"
    assert says in raised.value.message
    if "column" in says:
        assert raised.value.hint == "cast it to text", "the other format has no form for it either"


def test_every_type_goes_to_parquet_or_is_refused() -> None:
    for type_ in ColumnType:
        fields = (
            (Column("element", ColumnType.INT64),) if type_ in (ColumnType.LIST, ColumnType.RECORD) else ()
        )
        schema = Schema((Column("c", type_, fields=fields),))
        if type_ is ColumnType.INTERVAL:
            continue
        check_copy(_export("/tmp/a", "parquet", schema))


_KILLED = """
import sys
from pathlib import Path
from tests.clusterd.storage.test_copy_out import _columns, _export
from clusterd.storage.copy_out import CopyOut
copy = CopyOut(_export(sys.argv[1]), Path(sys.argv[2]))
copy.write(_columns())
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["{}/a%20#b.csv", "file://{}/a%20b.csv"])
def test_what_a_killed_process_was_writing_goes_at_the_next_start_and_no_sooner(
    tmp_path: Path, uri: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    writer = subprocess.Popen(
        [sys.executable, "-c", _KILLED, uri.format(tmp_path), str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        assert sweep_copies(data) == 0
        assert len(_names(tmp_path)) == 2
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(30)
    assert len(_names(tmp_path)) == 2
    assert any(name.startswith((".a b.csv.", ".a%20#b.csv.")) for name in _names(tmp_path))
    assert sweep_copies(data) == 1
    assert _names(tmp_path) == ["data"]
    assert _names(data / "copies") == []
    assert sweep_copies(data) == 0
    assert sweep_copies(tmp_path / "nothing") == 0


def test_what_cannot_be_removed_stays_in_the_journal_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    copy = CopyOut(_export(tmp_path / "a.csv"), data)
    copy.write(_columns())
    with monkeypatch.context() as away:
        away.setattr(copy_out, "_removed", lambda system, path: False)
        copy.abort()
    assert len(_names(tmp_path)) == 2
    assert sweep_copies(data) == 1
    assert _names(tmp_path) == ["data"]


def test_a_journal_without_room_is_an_error_of_writing_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    fds = len(os.listdir("/proc/self/fd"))

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as without_room:
        without_room.setattr(os, "write", full)
        with pytest.raises(Refusal, match="no space left") as raised:
            CopyOut(_export(tmp_path / "a.csv"), data).write(_columns())
    assert raised.value.code == "write-failed"
    assert _names(data / "copies") == []
    assert _names(tmp_path) == ["data"]
    assert len(os.listdir("/proc/self/fd")) == fds
