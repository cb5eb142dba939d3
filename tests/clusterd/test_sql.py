"""SQL over published indexes: which are named, at which time, and what goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusterd.__main__ import main
from clusterd.client.sql import SqlSession
from clusterd.client.sql_result import SqlFailed, SqlResult
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.errors import DataError, NotInstalled, NotSealed, PublicationClosed
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id
from shm_arrangements.result import Result
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

TEXT = ColumnType.TEXT
COLUMNS = (ColumnSpec("name", TEXT, False), ColumnSpec("kilos", ColumnType.INT64, True))
NO_ERRS = Updates.empty((TEXT,))


def _index(held: Instance, id: str) -> IndexWriter:
    schema = ArrangementSchema(COLUMNS, (0,))
    return IndexWriter(SegmentAllocator(held.token, int(id[1:])), collection_id(id), 1, schema, 0)


def run_sql(query: str, instance: str | None, at: int | None = None, **options: Any) -> SqlResult:
    session = SqlSession(instance)
    try:
        return session.run(query, at, **options)
    finally:
        session.close()


def _rows(*rows: tuple[tuple[str, int | None], int, int]) -> Updates:
    return Updates.from_rows((TEXT, ColumnType.INT64), rows)


@pytest.fixture
def held() -> Iterator[Instance]:
    """u1: sealed to 3; u2: to 2; u3 has an error."""
    with Instance.create() as made:
        fruit, more, broken = _index(made, "u1"), _index(made, "u2"), _index(made, "u3")
        fruit.insert(_rows((("fig", 1), 0, 1), (("pear", None), 0, 2)), NO_ERRS, Frontier.at(2))
        fruit.insert(_rows((("plum", 9), 2, 1)), NO_ERRS, Frontier.at(3))
        more.insert(_rows((("pear", 7), 1, 1)), NO_ERRS, Frontier.at(2))
        broken.insert(_rows(), Updates.from_rows((TEXT,), [(("no kilos",), 0, 1)]), Frontier.at(2))
        yield made
        for index in (fruit, more, broken):
            index.close()


def test_a_query_reads_all_its_tables_at_one_time(held: Instance) -> None:
    joined = "SELECT a.name, b.kilos FROM u1 a JOIN u2 b USING (name)"
    done = run_sql(joined, held.token)
    assert (done.rows(), done.time, done.names, len(done)) == ([("pear", 7)] * 2, 1, ["name", "kilos"], 2)
    assert run_sql(joined, held.token, at=0).rows() == []
    newest = run_sql("WITH u3 AS (FROM u1) SELECT sum(kilos) AS n, count(*) AS c FROM u3", held.token)
    assert (newest.dicts(), newest.time) == ([{"n": 10, "c": 4}], 2)
    assert newest.to_arrow().num_rows == 1
    assert newest.to_pandas()["c"].tolist() == [4]
    assert run_sql("SELECT 1 AS a, 2 AS a", held.token).rows() == [(1, 2)]


def test_errors_of_collections_and_times_are_raised(held: Instance) -> None:
    with pytest.raises(DataError, match="no kilos"):
        run_sql("SELECT count(*) FROM u1, u3", held.token)
    with pytest.raises(NotSealed, match="u2"):
        run_sql("SELECT * FROM u1, u2", held.token, at=2)
    with pytest.raises(PublicationClosed):
        run_sql("SELECT * FROM u77", held.token)


def test_duckdb_is_given_the_memory_of_an_index_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    made = Result.to_arrow

    def to_arrow(self: Result, *, counts: bool = False) -> Any:
        given.append(made(self, counts=counts))
        return given[-1]

    monkeypatch.setattr(Result, "to_arrow", to_arrow)
    with Instance.create() as held:
        index = _index(held, "u1")
        rows = [((f"name {n}", n), 0, 1) for n in range(10_000)]
        index.insert(_rows(*rows), NO_ERRS, Frontier.at(1))
        assert run_sql("SELECT sum(kilos)::BIGINT FROM u1", held.token).rows() == [(49_995_000,)]
        lines = [
            line.split() for line in Path("/proc/self/maps").read_text().splitlines() if held.token in line
        ]
        mapped = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
        for buffer in (each for column in given[0].columns for each in column.buffers() if each is not None):
            assert any(low <= buffer.address < high for low, high in mapped)
        given.clear()
        index.close()


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELEC 1", "syntax error"),
        ("CREATE TABLE a AS FROM u1", "Only SELECT"),
        ("SELECT 1; SELECT 2", "one SELECT, not 2"),
        ("SELECT weight FROM u1", "weight"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
    ],
)
def test_what_duckdb_refuses_is_told(held: Instance, query: str, why: str) -> None:
    with pytest.raises(SqlFailed, match=why):
        run_sql(query, held.token)


def test_without_duckdb_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(NotInstalled, match="pip install 'duckdb") as caught:
        run_sql("SELECT 1", None)
    assert caught.value.facts["library"] == "duckdb"


def test_the_command_prints_a_table_csv_or_json(held: Instance) -> None:
    query = ["sql", "SELECT name, kilos FROM u1 WHERE name < 'plum' ORDER BY ALL", "--instance", held.token]
    told = {
        format: CliRunner().invoke(main, [*query, "--format", format]) for format in ("table", "csv", "json")
    }
    assert [done.exit_code for done in told.values()] == [0, 0, 0]
    assert told["csv"].stdout.splitlines() == ["name,kilos", "fig,1", "pear,", "pear,"]
    assert told["json"].stdout.splitlines()[:2] == [
        '{"name": "fig", "kilos": 1}',
        '{"name": "pear", "kilos": null}',
    ]
    assert "fig" in told["table"].stdout
    failed = CliRunner().invoke(main, ["sql", "SELECT * FROM u3", "--instance", held.token])
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "no kilos" in failed.stderr
