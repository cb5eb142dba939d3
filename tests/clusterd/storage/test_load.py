"""`clusterd load`: the rows of a Parquet file, at the times of a column; or a typed error and nothing."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from clusterd import exit_codes
from clusterd.storage.cli import load
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from shm_arrangements.frontier import Frontier


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
        (pa.table({"t": [1, None]}), "t", "schema-mismatch: time column 't' has 1 NULLs"),
        (pa.table({"t": [1, -4]}), "t", "schema-mismatch: time column 't' has the negative time -4"),
        (pa.table({"t": [1], "n": [None]}), "t", "schema-mismatch: column 'n' is of Arrow type null"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, table: Any, column: str, message: str
) -> None:
    result = run(tmp_path, table, column=column)
    assert result.exit_code == 1
    assert f"error: {message}" in result.output
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
