"""The command `shm-arrangements`, on instances of this process, on a real one, and on a dead one."""

from __future__ import annotations

import csv
import datetime
import decimal
import doctest
import gc
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from shm_arrangements import instance, listing, text
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach
from shm_arrangements.cli import main
from shm_arrangements.columns import Column
from shm_arrangements.dump import Rows, write_rows
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id, new_token
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType, ListType
from shm_arrangements.updates import Updates

pytestmark = pytest.mark.alone  # leaves dead instances, and counts those there are

DEADLINE_S = 60
I64, TEXT = ColumnType.INT64, ColumnType.TEXT
SCHEMA = ArrangementSchema((ColumnSpec("dest", TEXT, True), ColumnSpec("delay", I64, False)), (0,))
NO_ERRS = Updates.empty((TEXT,))
COMMANDS = ("ls", "inspect", "dump", "verify", "sweep")


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as made:
        yield made


@pytest.fixture
def index(held: Instance) -> Iterator[IndexWriter]:
    """JFK 5 @0 twice, NULL -1 @0, "" 3 @1; sealed to 2."""
    made = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u1"), 4, SCHEMA, 0, name="flights")
    rows = [(("JFK", 5), 0, 2), ((None, -1), 0, 1)]
    made.insert(Updates.from_rows((TEXT, I64), rows), NO_ERRS, Frontier.at(1))
    made.insert(Updates.from_rows((TEXT, I64), [(("", 3), 1, 1)]), NO_ERRS, Frontier.at(2))
    yield made
    made.close()


def _run(*arguments: str, status: int = 0) -> Result:
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done


def _json(*arguments: str) -> Any:
    return json.loads(_run(*arguments).stdout)


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_is_complete(command: tuple[str, ...]) -> None:
    told = _run(*command, "--help").output
    assert "Examples:\n" in told
    assert "shm-arrangements " in told
    assert "Exit status:\n" in told
    found = main.commands[command[0]] if command else main
    for parameter in found.params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None)
    assert not command or len(told) > 500


def test_ls_shows_instances_publications_and_readers(held: Instance, index: IndexWriter) -> None:
    with attach("u1", held.token) as read:
        view = read.snapshot()
        told = _run("ls", "-i", held.token).output
        line, head, row, reader_head, reader = told.splitlines()
        assert re.fullmatch(rf"{held.token}  live, pid {os.getpid()} .+ old, \d+ names, \d+\.\d [KM]iB", line)
        assert head.split() == ["id", "name", "key", "updates", "bytes", "since", "upper", "batches"]
        assert re.fullmatch(r"  u1  flights  dest +3  \d+(\.\d)? K?i?B +0 +2 +2", row)
        assert reader_head.split()[:3] == ["reader", "snapshots", "pins"]
        assert re.match(rf"  pid {os.getpid()} \S.* 1 +\d.* {view.at}, held ", reader)
    del view, read
    gc.collect()
    found = _json("ls", "--json", "-i", held.token[:6])
    (one,) = found["instances"]
    assert (one["instance"], one["alive"], one["pid"], one["readers"]) == (held.token, True, os.getpid(), [])
    (publication,) = one["publications"]
    assert publication["id"] == "u1"
    assert (publication["since"], publication["upper"], publication["key"]) == ([0], [2], ["dest"])
    assert publication["columns"][1] == {"name": "delay", "type": "int64", "nullable": False, "scale": 0}


def test_ls_tells_what_is_not_as_usual(held: Instance, index: IndexWriter) -> None:
    index.publish_as(collection_id("s2"), 1)
    index.insert(
        Updates.empty((TEXT, I64)), Updates.from_rows((TEXT,), [(("eval-error: x",), 2, 1)]), Frontier.empty()
    )
    fresh = IndexWriter(SegmentAllocator(held.token, 0), collection_id("t3"), 1, ArrangementSchema((), ()), 7)
    told = _run("ls", "-i", held.token).output
    assert "alias of u1, 1 errors" in told
    assert re.search(r"  t3 +\(\) +0 +0 B +7 +0 +0  fresh", told)
    assert "closed" in told
    fresh.close()


def test_ls_of_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "list_instances", lambda: ())
    assert _run("ls").output == "no instance has a name in shared memory\n"
    assert _json("ls", "--json") == {"instances": []}
    done = _run("inspect", "u1", status=3)
    assert done.stderr == "error: no instance lives\nhint: start a writer\n"


def test_a_dead_instance_is_said_to_be_dead_and_sweep_removes_it() -> None:
    dead = Instance.create()
    index = IndexWriter(SegmentAllocator(dead.token, 0), collection_id("u1"), 1, SCHEMA, 0)
    index.insert(Updates.empty((TEXT, I64)), NO_ERRS, Frontier.at(1))
    dead.abandon()
    assert "dead (sweep removes it)" in _run("ls", "-i", dead.token).output
    for command in ("inspect", "dump"):
        done = _run(command, "u1", "-i", dead.token, status=4)
        assert done.stderr.startswith(f"error: the instance is dead (instance={dead.token})\nhint: ")
    assert ": whole" in _run("verify", "-i", dead.token).output
    assert f"would remove {dead.token}" in _run("sweep", "--dry-run").output
    assert instance.names_of(dead.token)
    assert f"removed {dead.token}" in _run("sweep").output
    assert not instance.names_of(dead.token)
    assert dead.token not in _run("sweep").output
    _run("ls", "-i", dead.token, status=3)


def test_sweep_leaves_the_living_and_takes_the_rows_of_dead_readers(
    held: Instance, index: IndexWriter
) -> None:
    row = Path(f"/dev/shm/clusterd.{held.token}.r.1.0")
    row.write_bytes(b"")
    names = set(instance.names_of(held.token))
    _run("sweep")
    assert set(instance.names_of(held.token)) == names - {row.name}


def test_inspect_shows_schema_and_chain(held: Instance, index: IndexWriter) -> None:
    told = _run("inspect", "flights", "-i", held.token).output
    assert told.startswith(
        f"u1 'flights' of instance {held.token}, incarnation 4\nlive, since 0, upper 2, 1 shard\n"
    )
    assert re.search(r"\n  dest +text +null +1\n  delay +int64\n", told)
    assert re.search(rf"\n  oks +0 +1 +2 .+ #+  clusterd\.{held.token}\.[ab]\.0\.\d+", told)
    assert re.search(r"\n  oks +1 +2 +1 ", told)
    document = _json("inspect", "u1", "--json", "-i", held.token)
    chain = [batch for batch in document["chain"] if batch["half"] == "oks"]
    assert [(batch["lower"], batch["upper"], batch["updates"]) for batch in chain] == [
        ([0], [1], 2),
        ([1], [2], 1),
    ]
    assert document["name"] == "flights"
    assert document["readers"] == []


def test_dump_writes_tables_csv_and_json(held: Instance, index: IndexWriter) -> None:
    at = ("-i", held.token)
    lines = _run("dump", "flights", *at).output.splitlines()
    assert lines[0] == "dest  delay"
    assert sorted(lines[1:-1]) == sorted(["JFK       5", "JFK       5", "NULL     -1", "          3"])
    assert lines[-1] == "(4 rows)"
    lines = _run("dump", "u1", "--format", "csv", *at).output.splitlines()
    assert (lines[0], sorted(lines[1:])) == ("dest,delay", sorted(["JFK,5", "JFK,5", ",-1", '"",3']))
    rows = [json.loads(line) for line in _run("dump", "u1", "--format", "json", *at).output.splitlines()]
    assert sorted(rows, key=str) == sorted(
        [{"dest": "JFK", "delay": 5}] * 2 + [{"dest": None, "delay": -1}, {"dest": "", "delay": 3}], key=str
    )
    assert len(_run("dump", "u1", "--at", "0", "--format", "csv", *at).output.splitlines()) == 4
    assert _run("dump", "u1", "--limit", "2", *at).output.endswith("(2 rows)\n")
    assert _run("dump", "u1", "--limit", "0", *at).output == "dest  delay\n(0 rows)\n"


def test_dump_writes_what_changed(held: Instance, index: IndexWriter) -> None:
    rows = [(("JFK", 5), 2, -1), (("LAX", 9), 3, 1), (("LAX", 9), 4, -1)]
    index.insert(Updates.from_rows((TEXT, I64), rows), NO_ERRS, Frontier.at(5))

    def changes(*arguments: str) -> list[tuple[object, ...]]:
        done = _run("dump", "flights", "--changes", *arguments, "--format", "json", "-i", held.token)
        return sorted(tuple(json.loads(line).values()) for line in done.output.splitlines())

    assert changes("1", "4") == [("JFK", 5, 2, -1), ("LAX", 9, 3, 1), ("LAX", 9, 4, -1)]
    assert changes("0", "2") == [("", 3, 1, 1), ("JFK", 5, 2, -1)]
    assert changes("4", "4") == []
    at = ("-i", held.token)
    told = _run("dump", "u1", "--changes", "2", "3", *at).output.splitlines()
    assert told == ["dest  delay  time  diff", "LAX       9     3     1", "(1 row)"]
    assert "time is not sealed (at=5" in _run("dump", "u1", "--changes", "1", "5", *at, status=5).stderr
    assert "after the second" in _run("dump", "u1", "--changes", "3", "2", *at, status=2).stderr
    assert "exclude" in _run("dump", "u1", "--changes", "1", "2", "--at", "1", *at, status=2).stderr
    index.set_compaction(Frontier.at(3))
    assert "time is before since (at=2" in _run("dump", "u1", "--changes", "2", "4", *at, status=5).stderr


def test_dump_writes_parquet_to_a_file(held: Instance, index: IndexWriter, tmp_path: Path) -> None:
    import pyarrow.parquet

    path = tmp_path / "flights.parquet"
    _run("dump", "u1", "--format", "parquet", "-o", str(path), "-i", held.token)
    table = pyarrow.parquet.read_table(path)
    assert sorted(table.column("delay").to_pylist()) == [-1, 3, 5, 5]
    assert table.column("dest").null_count == 1


def test_parquet_is_refused_by_column_before_the_file_is_touched(held: Instance, tmp_path: Path) -> None:
    schema = ArrangementSchema((ColumnSpec("for_how_long", ColumnType.INTERVAL, False),), (0,))
    made = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u2"), 1, schema, 0)
    made.insert(Updates.from_rows((ColumnType.INTERVAL,), [(((1, 2, 3),), 0, 1)]), NO_ERRS, Frontier.at(1))
    path = tmp_path / "kept.parquet"
    path.write_bytes(b"kept")
    done = _run("dump", "u2", "--format", "parquet", "-o", str(path), "-i", held.token, status=2)
    assert "parquet has no place for column 'for_how_long' of type interval: csv and json" in done.stderr
    assert path.read_bytes() == b"kept"
    made.close()


def test_types_are_shown_as_scripts_write_them() -> None:
    money = ColumnSpec("price", ColumnType.NUMERIC, False, scale=2)
    rows = listing.schema_rows(ArrangementSchema((money,), (0,)))
    assert rows[1][:2] == ("price", "numeric(38,2)")


def test_the_summary_of_each_command_is_whole() -> None:
    assert not re.search(r"\w\.\.\.", _run("--help").stdout)


def test_an_output_that_cannot_be_written_is_said_by_name(
    held: Instance, index: IndexWriter, tmp_path: Path
) -> None:
    at = ("-i", held.token, "-o")
    done = _run("dump", "u1", *at, str(tmp_path / "no" / "file"), status=2)
    assert "Invalid value for --output" in done.stderr
    assert "file: No such file or directory" in done.stderr
    done = _run("dump", "u1", *at, "/dev/full", status=7)
    assert done.stderr == "error: /dev/full is not complete: No space left on device\n"


def test_values_of_other_types_come_out_as_text_and_json() -> None:
    moment = datetime.datetime(2013, 1, 1, 12, 30)
    assert text.value_text(moment) == "2013-01-01 12:30:00"
    assert text.value_text(decimal.Decimal("1E+2")) == "100"
    assert text.value_text(b"\x00\xff") == text.json_value(b"\x00\xff") == "\\x00ff"
    assert text.value_text((1, None, "x")) == '[1, null, "x"]'
    assert text.json_value([uuid.UUID(int=7), [float("nan"), -float("inf")]]) == [
        str(uuid.UUID(int=7)), ["NaN", "-Infinity"],
    ]  # fmt: skip
    assert (text.value_text(True), text.value_text(2.5), text.json_value(False)) == ("true", "2.5", False)
    fields = ['a "b", c', "line\nbreak", "", None, "x"]
    assert next(csv.reader(io.StringIO(text.csv_line(fields)))) == ['a "b", c', "line\nbreak", "", "", "x"]


def test_the_examples_of_text_hold() -> None:
    assert doctest.testmod(text).failed == 0


def test_lists_can_be_dumped() -> None:
    tags = ListType(ColumnSpec("tag", TEXT, False))
    column = Column.from_pylist(tags, [["a", "b"], [], None])
    rows = Rows((ColumnSpec("tags", tags, True),), (column,), 3)
    for form, lines in {
        "json": ['{"tags": ["a", "b"]}', '{"tags": []}', '{"tags": null}'],
        "csv": ["tags", '"[""a"", ""b""]"', "[]", ""],
    }.items():
        file = io.BytesIO()
        write_rows(rows, form, file)
        assert file.getvalue().decode().split("\n") == [*lines, ""]


def test_long_dumps_come_in_pieces() -> None:
    n = 10_000
    column = Column.from_pylist(I64, list(range(n)))
    file = io.BytesIO()
    write_rows(Rows((ColumnSpec("k", I64, False),), (column,), n), "table", file)
    lines = file.getvalue().decode().splitlines()
    assert [line.strip() for line in lines] == ["k", *map(str, range(n)), "(10,000 rows)"]


def test_rows_of_no_columns_are_dumped_as_often_as_they_occur(held: Instance) -> None:
    none = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u2"), 1, ArrangementSchema((), ()), 0)
    none.insert(Updates.from_rows((), [((), 0, 3)]), NO_ERRS, Frontier.at(1))
    assert _run("dump", "u2", "--format", "json", "-i", held.token).output == "{}\n{}\n{}\n"
    assert _run("dump", "u2", "-i", held.token).output.endswith("(3 rows)\n")
    none.close()


def test_verify_says_whole_or_what_is_damaged(held: Instance, index: IndexWriter) -> None:
    told = _run("verify", "-i", held.token).output
    assert re.fullmatch(rf"{held.token}: 2 pages, 2 batches, 3 updates: whole \(.+ in .+ s\)\n", told)
    _run("verify", "flights", "-i", held.token)
    locator = index.oks.page.state.chain[0].locator(held.token)
    assert locator is not None
    with (Path("/dev/shm") / locator.name).open("r+b") as file:
        file.seek(locator.offset + 16)
        file.write(b"\xaa")
    done = _run("verify", "u1", "-i", held.token, status=1)
    first, last = done.output.splitlines()
    assert first.startswith(f"damaged: clusterd.{held.token}.p.")
    assert "checksum" in first
    assert "1 damage" in last


def test_errors_name_the_value_and_what_to_do(held: Instance, index: IndexWriter) -> None:
    at = ("-i", held.token)
    for command in ("inspect", "dump", "verify"):
        done = _run(command, "u9", *at, status=3)
        assert "id=u9" in done.stderr
        assert "hint: `shm-arrangements ls` lists what is published" in done.stderr
        assert "id=nothing" in _run(command, "nothing", *at, status=3).stderr
    assert "time is not sealed (at=2" in _run("dump", "u1", "--at", "2", *at, status=5).stderr
    index.set_compaction(Frontier.at(1))
    assert "time is before since (at=0" in _run("dump", "u1", "--at", "0", *at, status=5).stderr
    assert "'x' is not" in _run("dump", "u1", "--at", "x", *at, status=2).stderr
    _run("dump", status=2)
    token = new_token()
    assert f"instance={token}" in _run("ls", "-i", token, status=3).stderr
    with Instance.create() as other:
        done = _run("dump", "u1", status=3)
        assert held.token in done.stderr
        assert other.token in done.stderr
        assert "choose one with --instance TOKEN" in done.stderr
        assert "give more digits" in _run("inspect", "u1", "-i", "", status=3).stderr
    message = Updates.from_rows((TEXT,), [(("eval-error: division by zero",), 2, 1)])
    index.insert(Updates.empty((TEXT, I64)), message, Frontier.at(3))
    assert "eval-error: division by zero" in _run("dump", "u1", *at, status=6).stderr


WRITER = """
    import sys, time
    from shm_arrangements import (
        ArrangementSchema, ColumnSpec, ColumnType, Frontier, IndexWriter, Instance, SegmentAllocator, Updates,
        collection_id,
    )
    I64 = ColumnType.INT64
    schema = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
    with Instance.open() as held:
        index = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u1"), 1, schema, 0, name="ticks")
        no_errs = Updates.empty((ColumnType.TEXT,))
        t = 0
        while True:
            rows = [((k, t), t, 1) for k in range(50)] + [((k, t - 1), t, -1) for k in range(50) if t]
            index.insert(Updates.from_rows((I64, I64), rows), no_errs, Frontier.at(t + 1))
            index.set_compaction(Frontier.at(max(0, t - 3)))
            index.reclaim(time.monotonic())
            if t == 3:
                print(held.token, flush=True)
            t += 1
    """


_MAIN = "from shm_arrangements.cli import main; main()"


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _MAIN, *arguments],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_every_command_works_beside_a_program_that_writes_and_ends_with_it() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout is not None
        token = writer.stdout.readline().strip()
        for command in (("ls",), ("inspect", "ticks"), ("dump", "ticks"), ("verify",)):
            done = _command(*command, "-i", token)
            assert (done.returncode, done.stderr) == (0, ""), done
        rows = [
            json.loads(line)
            for line in _command("dump", "ticks", "--format", "json", "-i", token).stdout.splitlines()
        ]
        assert len(rows) == 50
        assert len({row["v"] for row in rows}) == 1
        assert _command("dump", "u1", "--at", "0", "-i", token).returncode == 5
        piped = subprocess.run(
            f"{sys.executable} -c '{_MAIN}' dump ticks -i {token} | head -1",
            shell=True, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert (piped.stdout.split(), piped.stderr) == (["k", "v"], "")
    finally:
        writer.kill()
        _, err = writer.communicate(timeout=DEADLINE_S)
    assert err == ""


def test_the_command_is_light_until_it_needs_more() -> None:
    code = """
        import sys
        from shm_arrangements.cli import main
        try:
            main(["sweep", "--dry-run"])
        except SystemExit:
            pass
        print([name for name in ("numpy", "numba", "pyarrow") if name in sys.modules], file=sys.stderr)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stderr == "[]\n"
