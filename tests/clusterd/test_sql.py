"""SQL over published indexes and shards: what is named, at which time, as which values, what goes wrong."""

from __future__ import annotations

import csv
import datetime
import decimal
import doctest
import io
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from clusterd.__main__ import main
from clusterd.client import sql_tables
from clusterd.client.answer import schema_of
from clusterd.client.sql import SqlSession, SqlStopped
from clusterd.client.sql_result import SqlFailed, SqlResult
from clusterd.convert import updates_from_rows
from clusterd.introspection import relations
from clusterd.storage.store import Store
from shm_arrangements import instance
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import Attached
from shm_arrangements.errors import (
    AmbiguousName,
    DataError,
    NoSuchInstance,
    NotInstalled,
    NotReadable,
    NotSealed,
    PublicationClosed,
    WaitTimeout,
    WriterGone,
)
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id
from shm_arrangements.result import Result
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
from shm_arrangements.updates import Updates
from tests.shm_arrangements.killed_reader import killed_in

TEXT = ColumnType.TEXT
COLUMNS = (ColumnSpec("name", TEXT, False), ColumnSpec("kilos", ColumnType.INT64, True))
NO_ERRS = Updates.empty((TEXT,))


def _index(held: Instance, id: str, incarnation: int = 1, **options: Any) -> IndexWriter:
    schema = options.pop("schema", ArrangementSchema(COLUMNS, (0,)))
    allocator = SegmentAllocator(held.token, int(id[1:]))
    return IndexWriter(allocator, collection_id(id), incarnation, schema, 0, **options)


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


def test_a_session_goes_on_with_an_index_made_anew_and_ends_with_its_writer() -> None:
    held = Instance.create()
    session = SqlSession(held.token)
    index = _index(held, "u9", name="nine")
    index.insert(_rows((("old", 1), 0, 1)), NO_ERRS, Frontier.at(1))
    query = "SELECT name FROM nine"
    assert [session.run(query).rows() for _ in range(3)] == [[("old",)]] * 3
    index.insert(_rows((("older", 1), 1, 1)), NO_ERRS, Frontier.at(2))
    assert len(session.run(query)) == 2
    index.close()
    with pytest.raises(PublicationClosed):
        session.run(query)
    index = _index(held, "u9", 2, name="nine")
    index.insert(_rows((("new", 1), 0, 1)), NO_ERRS, Frontier.at(1))
    assert session.run(query).rows() == [("new",)]
    index.close()
    index = _index(held, "u10", name="nine")  # another id, under the name
    index.insert(_rows((("newest", 1), 0, 1)), NO_ERRS, Frontier.at(1))
    assert session.run(query).rows() == [("newest",)]
    assert session.run("SELECT 1 AS a").time is None
    held.abandon()
    with pytest.raises(WriterGone):
        session.run(query)
    instance.unlink_all(held.token)
    with pytest.raises(NoSuchInstance):
        session.run(query)
    session.close()
    index.close()


def test_bug03_a_result_outlives_its_session_and_the_index(held: Instance) -> None:
    index = _index(held, "u9")
    index.insert(_rows((("fig", 1), 0, 1)), NO_ERRS, Frontier.at(1))
    session = SqlSession(held.token)
    done = session.run("FROM u9")
    session.close()
    index.close()
    assert done.rows() == [("fig", 1)]
    assert session.run("SELECT name FROM u1 LIMIT 0").names == ["name"]  # it begins anew
    session.close()


KINDS: dict[str, tuple[Any, Any, str]] = {  # of each type a value, and what SQL makes of it: value and type
    "b": (ColumnType.BOOL, True, "BOOLEAN"),
    "i16": (ColumnType.INT16, -5, "SMALLINT"),
    "u64": (ColumnType.UINT64, 2**64 - 1, "UBIGINT"),
    "f32": (ColumnType.FLOAT32, 1.5, "FLOAT"),
    "f64": (ColumnType.FLOAT64, float("inf"), "DOUBLE"),
    "t": (ColumnType.TEXT, "", "VARCHAR"),
    "bytes": (ColumnType.BYTEA, b"\x00\xff", "BLOB"),
    "d": (ColumnType.DATE, datetime.date(2013, 1, 1), "DATE"),
    "tod": (ColumnType.TIME, datetime.time(1, 2, 3, 4), "TIME"),
    "ts": (ColumnType.TIMESTAMP, datetime.datetime(2013, 1, 1, 5), "TIMESTAMP"),
    "tz": (
        ColumnType.TIMESTAMPTZ, datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC),
        "TIMESTAMP WITH TIME ZONE",
    ),
    "j": (ColumnType.JSONB, '{"a": [1]}', "JSON"),
    "id": (ColumnType.UUID, uuid.UUID(int=5), "UUID"),
    "iv": (ColumnType.INTERVAL, (1, 2, 3000), "INTERVAL"),
    "l": (ListType(ColumnSpec("x", ColumnType.INT64, True)), [1, None], "BIGINT[]"),
}  # fmt: skip


def test_every_type_and_null_come_as_what_sql_knows_and_rows_as_often_as_they_occur(held: Instance) -> None:
    record = RecordType((ColumnSpec("x", ColumnType.INT64, False), ColumnSpec("y", ColumnType.TEXT, True)))
    columns = (
        *(ColumnSpec(name, kind, True) for name, (kind, _, _) in KINDS.items()),
        ColumnSpec("n", ColumnType.NUMERIC, True, 2), ColumnSpec("whole", ColumnType.NUMERIC, True, 0),
        ColumnSpec("r", record, True),
    )  # fmt: skip
    index = _index(held, "u9", schema=ArrangementSchema(columns, (0,)))
    amount, large = decimal.Decimal("-1.25"), 10**37
    row = (*(value for _, value, _ in KINDS.values()), amount, large, (1, None))
    rows = [(row, 0, 2), ((None,) * len(columns), 0, 1)]
    index.insert(Updates.from_rows(columns, rows), NO_ERRS, Frontier.at(1))
    found = run_sql("FROM u9 ORDER BY b NULLS LAST", held.token).rows()
    wanted = [value for _, value, _ in KINDS.values()]
    wanted[list(KINDS).index("id")] = str(uuid.UUID(int=5))
    assert found[0] == found[1] == (*wanted, amount, large, {"x": 1, "y": None})
    assert found[2] == (None,) * len(columns)
    types = run_sql("SELECT typeof(COLUMNS(*)) FROM u9 LIMIT 1", held.token).rows()[0]
    told = [type_ for _, _, type_ in KINDS.values()]
    assert types == (*told, "DECIMAL(38,2)", "DECIMAL(38,0)", "STRUCT(x BIGINT, y VARCHAR)")
    asked = f"SELECT count(*), sum(n), max(j->'a'->>0) FROM u9 WHERE id = '{uuid.UUID(int=5)}'"
    assert run_sql(asked, held.token).rows() == [(2, 2 * amount, "1")]
    # In UTC wherever it runs.
    assert run_sql("SELECT hour(tz) FROM u9 WHERE b LIMIT 1", held.token).rows() == [(5,)]
    index.close()


COUNTING = "WITH RECURSIVE u3 AS (SELECT 1 n UNION ALL SELECT n+1 FROM u3 WHERE n < 3) FROM u3 SELECT sum(n)"


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("WITH u2 AS (FROM u1) SELECT count(*) FROM u2", [(3,)]),
        ("WITH u1 AS (FROM u1) SELECT count(*) FROM u1", [(3,)]),
        ("SELECT count(*) FROM (WITH u1 AS (SELECT 1 AS a) FROM u1) q, U1", [(3,)]),
        ("WITH a AS (FROM u1), b AS (FROM a) SELECT count(*) FROM b, a", [(9,)]),
        (COUNTING, [(6,)]),
        ("SELECT (SELECT count(*) FROM u2) + count(*) FROM u1 WHERE name IN (SELECT name FROM u2)", [(3,)]),
        ("SELECT count(*) FROM u1 UNION ALL SELECT count(*) FROM u2", [(3,), (1,)]),
        ("SELECT count(*) > 0 FROM information_schema.tables", [(False,)]),
        ("SELECT column_name FROM (DESCRIBE u1)", [("name",), ("kilos",)]),
        ("SELECT sum(range) FROM range(4)", [(6,)]),
    ],
)
def test_tables_are_what_no_with_makes(held: Instance, query: str, rows: list[tuple[Any, ...]]) -> None:
    assert run_sql(query, held.token, 1).rows() == rows


def test_the_examples_of_its_parts_hold() -> None:
    assert doctest.testmod(sql_tables) == (0, 1)


def test_names_stand_for_indexes_and_relations_and_letters_do_not_matter(
    held: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relations, "IDS", {"hydration": "u1"})
    assert run_sql("SELECT count(*) FROM hydration", held.token).rows() == [(4,)]
    assert run_sql("SELECT count(*) FROM Fruit", held.token, names={"fruit": "u1"}).rows() == [(4,)]
    with pytest.raises(SqlFailed, match="'Fruit' and 'fruit' are one table to SQL"):
        run_sql('FROM "Fruit", fruit', held.token, names={"fruit": "u1"})
    with pytest.raises(PublicationClosed, match="not published"):
        run_sql("FROM main.u1, other", held.token)


def test_a_table_without_columns_is_refused_and_of_equal_columns_names_are_made(held: Instance) -> None:
    none = _index(held, "u8", schema=ArrangementSchema((), ()))
    none.insert(Updates.from_rows((), [((), 0, 3)]), NO_ERRS, Frontier.at(1))
    with pytest.raises(SqlFailed, match="u8 has no columns"):
        run_sql("SELECT count(*) FROM u8", held.token)
    spec = ColumnSpec("a", ColumnType.INT64, False)
    twice = _index(held, "u9", schema=ArrangementSchema((spec, spec), (0,)))
    twice.insert(Updates.from_rows((spec, spec), [((1, 2), 0, 1)]), NO_ERRS, Frontier.at(1))
    assert run_sql("FROM u9", held.token).rows() == [(1, 2)]
    none.close()
    twice.close()


def test_a_time_is_waited_for_as_long_as_is_said(held: Instance) -> None:
    index = _index(held, "u9")
    index.insert(_rows((("fig", 1), 0, 1)), NO_ERRS, Frontier.at(1))
    with pytest.raises(NotSealed):
        run_sql("FROM u9", held.token, 5)
    with pytest.raises(WaitTimeout, match=r"timeout_s=0\.01"):
        run_sql("FROM u9", held.token, 5, timeout_s=0.01)
    session = SqlSession(held.token)
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(session.run("FROM u9", 5, timeout_s=None).rows())
        except SqlStopped as stopped:
            found.append(stopped)

    for end in (session.stop, lambda: index.insert(_rows((("fig", 2), 5, 1)), NO_ERRS, Frontier.at(6))):
        asking = threading.Thread(target=ask)
        asking.start()
        while asking.is_alive() and not found:
            end()
            end = session.stop if end == session.stop else lambda: None
            asking.join(0.01)
        asking.join(30)
        assert not asking.is_alive()
        if end == session.stop:
            assert isinstance(found.pop(), SqlStopped)
    assert sorted(found.pop()) == [("fig", 1), ("fig", 2)]
    fresh = _index(held, "u10")
    with pytest.raises(WaitTimeout):
        session.run("FROM u10", timeout_s=0.01)  # nothing is sealed
    fresh.advance(Frontier.at(1))
    assert session.run("FROM u10", timeout_s=0.01).rows() == []
    fresh.close()
    session.stop()  # nothing runs
    assert session.run("SELECT 1").rows() == [(1,)]
    session.close()
    index.close()


def test_a_query_that_runs_is_stopped_from_another_thread(held: Instance) -> None:
    session = SqlSession(held.token)
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            session.run(
                "SELECT count(*) FROM range(1000000000) a, range(1000) b WHERE a.range % 7 = b.range % 5"
            )
        except SqlStopped as stopped:
            ended.append(stopped)

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        session.stop()
        asking.join(0.01)
    assert len(ended) == 1
    assert session.run("SELECT count(*) FROM u1").rows() == [(4,)]
    session.close()


def test_shards_are_tables_too_and_one_time_is_read_of_all(held: Instance, tmp_path: Path) -> None:
    schema = schema_of({"name": "text", "cents": "bigint?"})
    with Store.open(tmp_path) as store:
        prices, broken = store.create_shard("prices", schema), store.create_shard("broken", schema)
        for t, row in enumerate([("fig", 50), ("pear", None), ("fig", 60)]):
            prices.append(updates_from_rows(schema, [row], t), Frontier.at(t), Frontier.at(t + 1))
        gone = updates_from_rows(schema, [("fig", 50)], 3, -1)
        prices.append(gone, Frontier.at(3), Frontier.at(4))
        errors = Updates.from_rows((TEXT,), [(("invalid-data: no price",), 1, 1)])
        nothing = updates_from_rows(schema, [], 0)
        broken.append(nothing, Frontier.minimum(), Frontier.at(9), errors=errors)
        store.create_shard("fresh", schema)
        session = SqlSession(held.token, tmp_path)
        joined = "SELECT name, kilos, cents FROM u1 JOIN prices USING (name) ORDER BY ALL"
        done = session.run(joined)  # u1 is sealed to 3
        assert (done.rows(), done.time) == (
            [("fig", 1, 50), ("fig", 1, 60), ("pear", None, None), ("pear", None, None)], 2,
        )  # fmt: skip
        assert session.run(joined, 0).rows() == [("fig", 1, 50)]
        later = session.run("SELECT cents FROM prices WHERE name = 'fig'")
        assert (later.rows(), later.time) == ([(60,)], 3)
        both = session.run("SELECT count(*) FROM prices, sold", names={"sold": "prices"})
        assert both.rows() == [(4,)]
        prices.advance_since(Frontier.at(2))
        with pytest.raises(NotReadable, match="shard=prices, at=1"):
            session.run("FROM prices", 1)
        with pytest.raises(NotSealed, match="shard=prices, at=4"):
            session.run("FROM prices", 4)
        with pytest.raises(NotSealed, match="shard=fresh"):
            session.run("FROM fresh")
        with pytest.raises(DataError, match="no price"):
            session.run("FROM broken")
        assert session.run("FROM broken", 0).rows() == []
        with pytest.raises(PublicationClosed, match="not published"):
            session.run("FROM nothing")
        session.close()
        command = ["sql", joined, "--instance", held.token, "--data-dir", str(tmp_path), "--format", "csv"]
        told = CliRunner().invoke(main, command)
        assert told.stdout.splitlines()[:2] == ["name,kilos,cents", "fig,1,50"]


def test_a_forked_child_queries_with_a_database_of_its_own(held: Instance) -> None:
    session = SqlSession(held.token)
    assert len(session.run("FROM u1")) == 4
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if len(session.run("FROM u1")) == 4 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(session.run("FROM u1")) == 4
    session.close()


def test_results_are_written_so_that_they_can_be_read_again(held: Instance, tmp_path: Path) -> None:
    query = """SELECT * FROM (VALUES (1, '', NULL, 2.50::DECIMAL(9, 2), [1, NULL], {'a': 'x"y'}, 'a,"b"',
        '2013-01-01'::DATE, true, (SELECT sum(2)), 'q'::BLOB)) t(i, e, n, d, l, s, q, day, b, big, blob)"""

    def told(form: str, *more: str) -> Any:
        done = CliRunner().invoke(main, ["sql", query, "--instance", held.token, "--format", form, *more])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    (row,) = csv.DictReader(io.StringIO(told("csv")))
    assert row == {
        "i": "1", "e": "", "n": "", "d": "2.50", "l": "[1, null]", "s": '{"a": "x\\"y"}', "q": 'a,"b"',
        "day": "2013-01-01", "b": "true", "big": "2", "blob": "\\x71",
    }  # fmt: skip
    assert '1,"",,2.50' in told("csv")
    assert told("json").rstrip() == (
        '{"i": 1, "e": "", "n": null, "d": "2.50", "l": [1, null], "s": {"a": "x\\"y"}, "q": "a,\\"b\\"", '
        '"day": "2013-01-01", "b": true, "big": 2, "blob": "\\\\x71"}'
    )
    assert told("table").splitlines()[2:] == ["(1 row)"]
    file = tmp_path / "rows.parquet"
    told("parquet", "--output", str(file))
    again = pyarrow.parquet.read_table(file).to_pylist()
    assert (again[0]["d"], again[0]["l"], again[0]["s"]) == (decimal.Decimal("2.50"), [1, None], {"a": 'x"y'})
    failures = {
        ("SELECT 1 AS a, 2 AS a", "json"): "several columns have this name",
        ("SELECT INTERVAL 1 DAY AS i", "parquet"): "parquet has no place for column 'i'",
        ("FROM u1", "--at", "9"): "not sealed at the time",
        ("FROM u1", "--at", "9", "--wait", "0.01"): "not sealed in time",
        ("FROM u1", "--instance", "unix:/nowhere"): "cannot connect to unix:/nowhere",
        ("FROM u1", "--instance", "tcp:::1"): "no instance can be told",
        ("FROM nothing", "--data-dir", str(tmp_path / "none")): "none",
    }
    for (asked, *options), message in failures.items():
        if len(options) == 1:
            options = ["--format", *options, "--output", str(tmp_path / "out")]
        command = ["sql", asked, "--instance", held.token, *options]
        done = CliRunner().invoke(main, command)
        assert (done.exit_code, message in done.stderr) == (1, True), (asked, done.stderr)
    assert not (tmp_path / "out").exists()


def test_dicts_want_names_that_differ() -> None:
    with pytest.raises(AmbiguousName, match="name them apart"):
        run_sql("SELECT 1 AS a, 2 AS a", None).dicts()


@pytest.mark.slow
def test_bug12_a_reader_killed_in_the_midst_of_a_query_holds_nothing() -> None:
    made: list[SqlSession] = []  # by the child: a database does not outlive a fork

    def query(read: Attached) -> None:
        if not made:
            made.append(SqlSession(read.instance))
        assert len(made[0].run("SELECT name, count(*) FROM u1 GROUP BY name")) == 4_000

    with Instance.create() as held:
        index = _index(held, "u1")
        for t in range(2):
            rows = [((f"name {key}", key), t, 1) for key in range(4_000)]
            index.insert(_rows(*rows), NO_ERRS, Frontier.at(t + 1))
        for after in (1, 3):
            killed_in(query, held.token, after)
        index.close()
