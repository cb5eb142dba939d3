"""Each row of a file once: JSON lines, positions, files that grow, folders, keys; whenever it is killed."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from clusterd.convert import scalars_from_column, updates_from_rows
from clusterd.storage import tables
from clusterd.storage.cli import load
from clusterd.storage.follow import Follower
from clusterd.storage.keyed import KeyedState
from clusterd.storage.load import Loaded, Loader, Target
from clusterd.storage.store import Store
from controller_proto.errors import Refusal
from controller_proto.literals import parse_type
from controller_proto.schema import Schema, type_name
from shm_arrangements import failpoints
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates
from tests.clusterd.storage.test_load import contents, loaded

DEADLINE_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def columns(text: str) -> Schema:
    return Schema(parse_type(f"record({text})").fields)


def run(directory: Path, path: Path, *options: str, shard: str = "s") -> Result:
    arguments = [str(path), "--shard", shard, "--data-dir", str(directory / "data"), *options]
    return CliRunner().invoke(load, arguments)


def updates_of(store: Store, shard: str = "s") -> list[tuple[Any, ...]]:
    """(row in wire values, time, diff), in the order of the appends."""
    handle = store.shard(shard)
    found: list[tuple[Any, ...]] = []
    for block in handle.read(0, handle.upper, block_rows=1 << 16):
        rows = zip(*map(scalars_from_column, handle.specs, block.columns), strict=True)
        found += zip(rows, block.times.tolist(), block.diffs.tolist(), strict=True)
    return found


def state_of(store: Store, shard: str = "s") -> Counter[Any]:
    """The rows at the end; every prefix of time has to be a collection, with no row less than 0 times."""
    state: Counter[Any] = Counter()
    updates = updates_of(store, shard)
    for time in sorted({time for _, time, _ in updates}):
        for row, at, diff in updates:
            if at == time:
                state[row] += diff
        assert min(state.values()) >= 0
    return +state


# -- JSON lines ---------------------------------------------------------------------------------------------


def test_json_lines_have_the_types_that_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(
        '{"t": 1, "i": -7, "n": 12.30, "f": 0.1, "x": "NaN", "b": true, "d": "2020-01-02", '
        '"j": {"b": 1.0, "a": []}, "l": [1, null], "r": {"a": 1, "b": "x"}, "y": "\\\\x00ff", "u": "é"}\n'
        "\n"
        '{"u": null, "t": 18446744073709551614, "n": "0.10", "l": [], "i": 1}\r\n'
    )
    asked = (
        "t uint8, i smallint, n numeric(38,2), f real?, x double precision?, b boolean?, d date?, j jsonb?, "
        "l bigint? list, r record(a bigint, b text?)?, y bytea?, u text?"
    )
    result = loaded(tmp_path, file, "--columns", asked)
    assert result.exit_code == 0, result.output
    types, rows = contents(tmp_path)
    assert types == [type_name(c) + "?" * c.nullable for c in columns(asked).columns]
    nan = float("nan")
    assert repr(rows) == repr([
        (1, -7, "12.30", 0.10000000149011612, nan, True, 18263, '{"a":[],"b":1}', (1, None), (1, "x"),
         b"\x00\xff", "é"),
        (2**64 - 2, 1, "0.10", *[None] * 5, (), None, None, None),
    ])  # fmt: skip


def test_json_lines_without_types_have_those_that_their_values_have(tmp_path: Path) -> None:
    file = tmp_path / "in.ndjson"
    file.write_text('{"t":1,"x":1,"w":"a","o":{"k":[1,"b"]},"ok":true}\n{"t":2,"x":2.5,"l":[1]}')
    assert loaded(tmp_path, file).exit_code == 0
    assert contents(tmp_path) == (
        ["bigint?", "double precision?", "text?", "jsonb?", "boolean?", "jsonb?"],
        [(1, 1.0, "a", '{"k":[1,"b"]}', True, None), (2, 2.5, None, None, None, "[1]")],
    )


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ('{"t": 2, "i": "x"}', "schema-mismatch", "row 2: column 'i': expected `int`, got `str`"),
        ('{"t": 2, "i": 40000}', "schema-mismatch", "row 2: column i: 40000 is out of range of smallint"),
        ('{"t": 2}', "schema-mismatch", "row 2: column 'i': object missing required field"),
        ('{"t": 2, "i": 1, "z": 1}', "schema-mismatch", "row 2: column 'z': object contains unknown field"),
        ('{"t": 2, "i": 1, "d": "soon"}', "schema-mismatch", "row 2: column d: 'soon' is no date"),
        ('{"t": 2, "i": 1, "l": [1, "q"]}', "schema-mismatch", "row 2: column 'l[1]': expected `int"),
        ('{"t": 2, "i": 1', "format-mismatch", "row 2: no JSON object: Input data was truncated"),
        ("[2]", "schema-mismatch", "row 2: expected `object`, got `array`"),
        ('{"t": 2, "i": 1} {"t": 3, "i": 1}', "format-mismatch", "row 2: no JSON object: JSON is malformed"),
    ],
)
def test_a_line_that_does_not_fit_is_refused_by_file_row_and_column(
    tmp_path: Path, line: str, code: str, message: str
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(f'{{"t": 1, "i": 1}}\n\n{line}\n{{"t": 3, "i": 3}}\n')
    result = loaded(tmp_path, file, "--columns", "t bigint, i smallint, d date?, l bigint list?")
    assert result.exit_code != 0
    assert f"error: {code}: {file}, {message}" in result.output
    with Store.open(tmp_path / "data") as store:
        assert store.list() == []


def test_fields_of_csv_are_refused_by_row_too(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text('t,i\n1,"1\n"\n2,1,3\n')
    result = loaded(tmp_path, file, "--columns", "t bigint, i text")
    assert f"error: format-mismatch: {file}, row 2: 3 fields, and 2 columns" in result.output
    file.write_text("t,i\n1,1\n2,\n")
    result = loaded(tmp_path, file, "--columns", "t bigint, i bigint")
    assert f"error: schema-mismatch: {file}, row 2: column 'i' is not nullable" in result.output


# -- positions ----------------------------------------------------------------------------------------------


def test_a_file_that_was_loaded_gives_only_what_was_written_since(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\n')
    assert "loaded 2 rows into shard 's', times 0 to 0, upper {1}" in run(tmp_path, file).output
    assert "loaded 0 rows into shard 's' (2 were there before), upper {1}" in run(tmp_path, file).output
    with file.open("a") as more:
        more.write('{"a": 3}\n')
    result = run(tmp_path, file)
    assert "loaded 1 rows into shard 's' (2 were there before), times 1 to 1, upper {2}" in result.output
    file.rename(tmp_path / "other.jsonl")
    assert "loaded 0 rows" in run(tmp_path, tmp_path / "other.jsonl").output
    file.write_text('{"a": 9}\n')
    assert "loaded 1 rows" in run(tmp_path, file).output
    assert [row for (row,) in contents(tmp_path)[1]] == [1, 2, 3, 9]


def test_a_parquet_file_is_loaded_once(tmp_path: Path) -> None:
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3]}), file, row_group_size=2)
    assert "loaded 3 rows into shard 's', times 0 to 1, upper {2}" in run(tmp_path, file).output
    assert "loaded 0 rows into shard 's' (3 were there before)" in run(tmp_path, file).output
    pq.write_table(pa.table({"a": [4, 5, 6]}), file, row_group_size=2)
    assert "loaded 3 rows" in run(tmp_path, file).output


def test_pieces_end_where_rows_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = 11
    print("seed", seed)
    rng = random.Random(seed)
    texts = ["".join(rng.choices('ab"\n,é', k=rng.randrange(12))) for _ in range(60)]
    quoted = ['"' + text.replace('"', '""') + '"' for text in texts]
    file = tmp_path / "in.csv"
    file.write_text('\ufeff"n","te\nxt"\n' + "".join(f"{i},{text}\n" for i, text in enumerate(quoted)))
    monkeypatch.setattr(tables, "PIECE_BYTES", 40)
    assert (
        run(tmp_path, file, "--columns", "n bigint, te xt text".replace("te xt", '"te\nxt"')).exit_code == 0
    )
    assert sorted(contents(tmp_path)[1]) == list(enumerate(texts))


LOADER = """
import sys
from pathlib import Path
from clusterd.storage import tables
from clusterd.storage.cli import load
from shm_arrangements import failpoints

armed, after, piece_bytes, *arguments = sys.argv[1:]
tables.PIECE_BYTES = int(piece_bytes)
from clusterd.storage.shard import Shard
append = Shard.append
def counted(self, *args, **kwargs):
    global after
    after = int(after) - 1
    if after == 0:
        failpoints.arm(armed, "exit")
    append(self, *args, **kwargs)
Shard.append = counted
load(arguments)
"""


@pytest.mark.slow
@pytest.mark.parametrize("armed", ["shard.part-written", "shard.catalog-committed"])
@pytest.mark.parametrize("upsert", [False, True])
def test_a_load_killed_in_the_middle_and_run_again_loses_and_doubles_nothing(
    tmp_path: Path, armed: str, upsert: bool
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("".join(f'{{"k": {i % 70}, "v": {i}}}\n' for i in range(100)))
    options = ["--upsert", "k"] if upsert else []
    arguments = [str(file), "--shard", "s", "--data-dir", str(tmp_path / "data"), *options]
    killed = subprocess.run(
        [sys.executable, "-c", LOADER, armed, "3", "256", *arguments],
        capture_output=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert killed.returncode == failpoints.EXIT_STATUS, killed.stderr
    result = run(tmp_path, file, *options)
    assert "were there before" in result.output
    last = {i % 70: i for i in range(100)}
    wanted = sorted(last.items()) if upsert else [(i % 70, i) for i in range(100)]
    with Store.open(tmp_path / "data") as store:
        assert sorted(state_of(store).elements()) == sorted(wanted)


def test_two_loads_of_one_file_at_once_take_each_row_once(tmp_path: Path, store: Store) -> None:
    """The one that loses the race looks again, and finds that the other took the rows."""
    file = tmp_path / "in.jsonl"
    file.write_text('{"a": 1}\n')
    target = Target("s", key=("a",))
    loaders = [Loader(store, target, follows=True, progress=lambda *_: None) for _ in range(2)]
    assert loaders[0].take(file).rows == 1
    with file.open("a") as more:
        more.write('{"a": 2}\n')
    shard = store.shard("s")
    append, raced = shard.append, []

    def late(*arguments: Any, **named: Any) -> None:
        if not raced:
            raced.append(0)
            raced.append(loaders[1].take(file).rows)
        append(*arguments, **named)

    shard.append = late  # type: ignore[method-assign]
    assert loaders[0].take(file).rows == 0
    assert raced == [0, 1]
    assert sorted(state_of(store)) == [(1,), (2,)]


# -- following ----------------------------------------------------------------------------------------------


class Following:
    """A follower that is told when to look."""

    def __init__(self, store: Store, path: Path, target: Target) -> None:
        self.reports: list[tuple[str, int]] = []
        loader = Loader(store, target, follows=True, progress=lambda *_: None)
        self.follower = Follower(path, loader, self.report)
        self.follower.take_all()

    def report(self, file: Path, done: Loaded) -> None:
        if done.rows:
            self.reports.append((file.name, done.rows))

    def look(self) -> list[tuple[str, int]]:
        """Take what the kernel has told of; what was taken, by file."""
        self.reports = []
        poll = select.poll()
        poll.register(self.follower.fileno(), select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000), "no notice within the deadline"
        self.follower.drain()
        return self.reports


@pytest.fixture
def following() -> Iterator[Any]:
    opened: list[Following] = []

    def open_(*arguments: Any) -> Following:
        opened.append(Following(*arguments))
        return opened[-1]

    yield open_
    for one in opened:
        one.follower.close()


def append_to(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def test_a_growing_file_is_read_up_to_its_last_whole_row(
    tmp_path: Path, store: Store, following: Any
) -> None:
    file = tmp_path / "in.csv"
    file.write_text("")
    one = following(store, file, Target("s", asked=columns("a bigint, b text")))
    assert one.reports == []
    append_to(file, "a,b\n1,x\n2,")
    assert one.look() == [("in.csv", 1)]
    append_to(file, 'y\n3,"z\n')
    assert one.look() == [("in.csv", 1)]
    append_to(file, 'z"\n')
    assert one.look() == [("in.csv", 1)]
    assert updates_of(store) == [((1, "x"), 0, 1), ((2, "y"), 1, 1), ((3, "z\nz"), 2, 1)]
    file.write_text("a,b\n9,r\n")  # written over, as a log that begins anew
    assert one.look() == [("in.csv", 1)]
    assert len(state_of(store)) == 4


def test_rows_that_come_late_get_the_first_time_that_is_not_sealed(
    tmp_path: Path, store: Store, following: Any
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"t": 5}\n{"t": 3}\n')
    one = following(store, file, Target("s", "t"))
    append_to(file, '{"t": 4}\n{"t": 9}\n')
    one.look()
    assert updates_of(store) == [((3,), 3, 1), ((5,), 5, 1), ((4,), 6, 1), ((9,), 9, 1)]
    assert store.shard("s").upper == Frontier.at(10)


def test_a_folder_gets_new_files_and_knows_those_that_got_another_name(
    tmp_path: Path, store: Store, following: Any
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.jsonl").write_text('{"a": 2}\n')
    (folder / "a.jsonl").write_text('{"a": 1}\n')
    (folder / "README").write_text("not rows")
    one = following(store, folder, Target("s"))
    assert one.reports == [("a.jsonl", 1), ("b.jsonl", 1)]
    pq.write_table(pa.table({"a": [3, 4]}), tmp_path / "c.parquet")
    (tmp_path / "c.parquet").rename(folder / "c.parquet")
    pq.write_table(pa.table({"a": [5]}), folder / "d.parquet")
    (folder / "e.jsonl").mkdir()  # neither ends it
    os.mkfifo(folder / "f.jsonl")
    assert one.look() == [("c.parquet", 2), ("d.parquet", 1)]
    (folder / "a.jsonl").rename(folder / "a.1.jsonl")
    assert one.look() == []
    append_to(folder / "a.1.jsonl", '{"a": 6}\n')
    (folder / "a.jsonl").write_text('{"a": 7}\n')
    assert sorted(one.look()) == [("a.1.jsonl", 1), ("a.jsonl", 1)]
    assert sorted(state_of(store)) == [(i,) for i in range(1, 8)]


def test_logs_that_pass_their_names_on_are_read_once(tmp_path: Path, store: Store, following: Any) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, a in (("l.2.jsonl", 1), ("l.1.jsonl", 2), ("l.jsonl", 3)):
        (folder / name).write_text(f'{{"a": {a}}}\n')
    one = following(store, folder, Target("s"))
    for a in (4, 5):  # the oldest goes
        (folder / "l.1.jsonl").replace(folder / "l.2.jsonl")
        (folder / "l.jsonl").rename(folder / "l.1.jsonl")
        append_to(folder / "l.1.jsonl", f'{{"a": {a}0}}\n')  # its writer has it open
        (folder / "l.jsonl").write_text(f'{{"a": {a}}}\n')
        assert sorted(one.look()) == [("l.1.jsonl", 1), ("l.jsonl", 1)]
        following(store, folder, Target("s"))
    assert state_of(store) == Counter([(1,), (2,), (3,), (4,), (40,), (5,), (50,)])


def test_bug70_a_folder_half_taken_when_killed_whose_files_changed_meanwhile(
    tmp_path: Path, store: Store, following: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PIECE_BYTES", 500)
    folder = tmp_path / "in"
    folder.mkdir()
    for f in range(1, 6):
        (folder / f"{f}.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(100 * f, 100 * f + 100)))
    target = Target("s", file_column="file")
    loader = Loader(store, target, follows=True, progress=lambda *_: None)
    for f in (1, 2):
        loader.take(folder / f"{f}.jsonl")
    steps = loader._steps(folder / "3.jsonl")  # killed in the middle of it
    half = next(steps).rows
    steps.close()
    assert 0 < half < 100
    append_to(folder / "1.jsonl", '{"n": 1}\n')
    (folder / "2.jsonl").unlink()
    before = state_of(store)
    following(store, folder, target)
    after = state_of(store)
    assert sum(after.values()) == len(after) == 401
    assert sum((before - after).values()) == 100
    assert sum((after - before).values()) == 1 + 300 - half


@pytest.mark.slow
def test_bug68_a_follower_killed_at_rest_reads_each_line_once(tmp_path: Path, store: Store) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("")
    lines = 0
    arguments = [str(file), "--shard", "s", "--data-dir", str(tmp_path / "data"), "--follow"]
    command = [sys.executable, "-m", "clusterd", "load", *arguments, "--columns", "n bigint"]
    for how in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("data directory")
        for _ in range(3):
            append_to(file, f'{{"n": {lines}}}\n')
            lines += 1
            assert "loaded 1 rows into shard 's'" in process.stdout.readline()
        process.send_signal(how)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == (0 if how == signal.SIGINT else -how)
    assert sorted(state_of(store)) == [(n,) for n in range(lines)]


# -- keys ---------------------------------------------------------------------------------------------------


def test_a_later_row_of_a_key_replaces_and_a_null_value_deletes(
    tmp_path: Path, store: Store, following: Any
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"k":"a","v":1}\n{"k":"b","v":2}\n{"k":"a","v":3}\n{"k":"c","v":null}\n')
    one = following(store, file, Target("s", key=("k",)))
    assert sorted(state_of(store)) == [("a", 3), ("b", 2)]
    append_to(file, '{"k":"b","v":null}\n{"k":"a","v":3}\n{"k":"d","v":0}\n')
    assert one.look() == [("in.jsonl", 3)]
    assert sorted(updates_of(store)[2:]) == [(("b", 2), 1, -1), (("d", 0), 1, 1)]
    append_to(file, '{"k":"b","v":7}\n')
    again = following(store, file, Target("s", key=("k",)))  # reads its state back
    assert again.reports == [("in.jsonl", 1)]
    assert sorted(state_of(store)) == [("a", 3), ("b", 7), ("d", 0)]


def test_a_shard_with_several_rows_of_a_key_is_no_key_value_feed(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"k":1,"v":1}\n{"k":1,"v":2}\n')
    assert run(tmp_path, file).exit_code == 0
    append_to(file, '{"k":1,"v":3}\n')
    result = run(tmp_path, file, "--upsert", "k")
    assert "error: invalid-data: shard 's' has 2 rows of 1 keys (k)" in result.output
    assert "hint:" in result.output
    assert "no column 'q' to tell rows apart by" in run(tmp_path, file, "--upsert", "q").output
    both = run(tmp_path, file, "--upsert", "k", "--file-column", "f")
    assert "error: schema-mismatch: file column 'f' in a key-value feed" in both.output


def errors_of(store: Store, shard: str = "s") -> Counter[Any]:
    """The errors in data at the end."""
    handle = store.shard(shard)
    found: Counter[Any] = Counter()
    for block in handle.read_errors(0, handle.upper, block_rows=1 << 16):
        for (text,), _, diff in block.to_rows():
            found[text] += diff
    assert min(found.values(), default=0) >= 0
    return +found


def test_bug75_null_keys_and_values_that_do_not_decode_are_errors_until_they_are_superseded(
    tmp_path: Path, store: Store, following: Any
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("")
    target = Target("s", asked=columns("k bigint, v text"), key=("k",))
    one = following(store, file, target)

    def give(*lines: str) -> None:
        append_to(file, "".join(f"{line}\n" for line in lines))
        one.look()

    give('{"k":5,"v":"a"}', '{"k":7,"v":"q"}')
    assert sorted(state_of(store)) == [(5, "a"), (7, "q")]
    give('{"k":5,"v":null}', '{"k":5,"v":null}', '{"k":6,"v":null}', '{"k":null,"v":"z"}')
    assert sorted(state_of(store)) == [(7, "q")]
    assert list(errors_of(store)) == ["invalid-data: a row has no key (k)"]
    give('{"k":5,"v":"b"}')
    give('{"k":5,"v":["no text"]}', '{"k":7,"v":"q"}')
    assert sorted(state_of(store)) == [(7, "q")]
    wrong = f"invalid-data: {file}, row 8: column 'v': expected `str | null`, got `array`"
    assert sorted(errors_of(store)) == sorted(["invalid-data: a row has no key (k)", wrong])
    one = following(store, file, target)  # the errors are read back too
    give('{"k":5,"v":"c"}', '{"k":null,"v":null}')
    assert sorted(state_of(store)) == [(5, "c"), (7, "q")]
    assert errors_of(store) == Counter()
    append_to(file, '{"v":"no key at all"\n')
    with pytest.raises(Refusal, match=r"format-mismatch: .*in\.jsonl, row 12: no JSON object"):
        one.look()


def test_a_load_says_which_keys_are_errors_and_that_a_folder_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("k,v\n1,a\n,b\n")
    done = run(tmp_path, tmp_path / "in.csv", "--upsert", "k")
    assert "loaded 2 rows into shard 's'" in done.output
    assert "1 key is an error in data until a later row takes the place: invalid-data: a row" in done.output
    (tmp_path / "folder" / "deeper").mkdir(parents=True)
    (tmp_path / "folder" / "notes.txt").write_text("no rows")
    done = run(tmp_path, tmp_path / "folder")
    assert (done.exit_code, "loaded" in done.output) == (0, False)
    assert f"no file in {tmp_path / 'folder'} has a name that ends in .parquet, .arrow, " in done.output


def test_random_feeds_of_keys_equal_a_dictionary_at_every_time(store: Store) -> None:
    seed = 29
    print("seed", seed)
    rng = random.Random(seed)
    schema = columns("v text?, k bigint?, w bigint?")
    shard = store.create_shard("s", schema)
    state = KeyedState(shard.specs, (1,))
    upper = 0
    model: dict[Any, Any] = {}
    changes: Counter[Any] = Counter()
    failed: Counter[int] = Counter()
    keyless = False
    for _ in range(60):
        n = rng.choice([1, 2, 30, 200])
        rows = [
            (
                rng.choice([None, "a", "b"]),
                rng.choice([None, *range(rng.choice([3, 300]))]),
                rng.choice([None, 0]),
            )
            for _ in range(n)
        ]
        times = [upper + rng.randrange(3) for _ in range(n)]
        given = updates_from_rows(schema, rows, times)
        found, errors = state.replace(given.columns, given.times)
        for _, time, diff in errors.to_rows():
            failed[time] += diff
        for row, time, diff in found.to_rows():
            changes[row, time] += diff
        for time in range(upper, upper + 3):
            for value in [row for row, at, _ in given.to_rows() if at == time]:
                is_tombstone = value[0] is None and value[2] is None
                model.pop(value[1], None)
                if value[1] is None:  # is an error, of a key like others
                    keyless = not is_tombstone
                elif not is_tombstone:
                    model[value[1]] = value
            standing = Counter()  # type: ignore[var-annotated]
            for (row, at), diff in changes.items():
                if at <= time:
                    standing[row] += diff
            assert Counter({row: n for row, n in standing.items() if n}) == Counter(model.values())
            assert sum(diff for at, diff in failed.items() if at <= time) == keyless
        assert len(state) == len(model) + keyless
        assert len(state.failed) == keyless
        shard.append(found, Frontier.at(upper), Frontier.at(upper + 3), errors=errors)
        upper += 3
        if rng.random() < 0.1:
            again = KeyedState(shard.specs, (1,))
            again.read(shard, shard.upper, state.failed)
            state = again
            assert len(state) == len(model) + keyless


@pytest.mark.slow
def test_the_state_of_many_keys_is_read_back_at_once(store: Store) -> None:
    schema = columns("k bigint, v bigint?")
    shard = store.create_shard("s", schema)
    one = updates_from_rows(schema, [(0, 0)], 0)
    n = 300_000
    many = Updates(one.columns, one.times, one.diffs).take(np.zeros(n, np.int64))
    many.columns[0].values[:] = np.arange(n)
    shard.append(many, Frontier.at(0), Frontier.at(1))
    state = KeyedState(shard.specs, (0,))
    state.read(shard, shard.upper)
    assert len(state) == n
    given = updates_from_rows(schema, [(7, 1), (n, 1), (8, None)], 1)
    found = state.replace(given.columns, given.times)[0].to_rows()
    assert Counter(found) == Counter([((7, 0), 1, -1), ((7, 1), 1, 1), ((n, 1), 1, 1), ((8, 0), 1, -1)])


def test_an_empty_file_has_columns_only_if_they_are_said(
    tmp_path: Path, store: Store, following: Any
) -> None:
    for file in (tmp_path / "in.csv", tmp_path / "in.jsonl"):
        file.write_text("")
        assert f"error: schema-mismatch: {file} is empty" in run(tmp_path, file, shard=file.suffix[1:]).output
        one = following(store, file, Target(file.suffix[1:]))
        assert store.list() == []
        append_to(file, "a\n1\n" if file.suffix == ".csv" else '{"a":1}\n')
        assert one.look() == [(file.name, 1)]
        assert "loaded 0 rows" in run(tmp_path, file, shard=file.suffix[1:]).output
        store.close()
        (tmp_path / "data" / "shards" / file.suffix[1:]).rename(tmp_path / file.suffix[1:])


@pytest.mark.soak
def test_a_follower_killed_at_any_moment_has_each_key_as_it_was_written_last(tmp_path: Path) -> None:
    seed = 5
    print("seed", seed)
    rng = random.Random(seed)
    folder = tmp_path / "in"
    folder.mkdir()
    arguments = [str(folder), "--shard", "s", "--data-dir", str(tmp_path / "data"), "--upsert", "k"]
    command = [sys.executable, "-m", "clusterd", "load", *arguments, "--columns", "k bigint, v bigint?"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    model: dict[int, int] = {}
    for turn in range(8):
        process = subprocess.Popen([*command, "--follow"], stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        process.stdout.readline()
        # One file at a time grows, for rows of a key in several files have no order between them.
        for written in range(rng.randrange(1, 60)):
            key, value = rng.randrange(20), rng.choice([None, written, 1000 * turn + written])
            append_to(folder / f"{turn}.jsonl", f'{{"k":{key},"v":{"null" if value is None else value}}}\n')
            model.pop(key, None)
            if value is not None:
                model[key] = value
        if rng.random() < 0.5:
            process.stdout.readline()
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    done = run(tmp_path, folder, "--upsert", "k")
    assert done.exit_code == 0, done.output
    with Store.open(tmp_path / "data") as store:
        assert sorted(state_of(store)) == sorted(model.items())


def test_a_bom_before_json_lines_is_no_part_of_them(tmp_path: Path, store: Store) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"id":1}\n')
    assert run(tmp_path, file).exit_code == 0
    with file.open("a") as more:
        more.write('{"id":2}\n')
    assert run(tmp_path, file).exit_code == 0
    assert state_of(store) == Counter({(1,): 1, (2,): 1})


@pytest.mark.parametrize(
    ("text", "options", "problem", "hint"),
    [
        (b"id,name\n", (), "has a line of names and no row", "say them with --columns"),
        (
            b"id,name\n1,a\n2,caf\xe9\n",
            (),
            "a.csv, row 2: column 'name' is no text in UTF-8",
            "iconv -f latin1",
        ),
        (
            b"id,name\n1,a\n2,caf\xe9\n",
            ("--columns", "id bigint, name text"),
            "column 'name' is no text in UTF-8",
            "iconv -f latin1",
        ),
    ],
)
def test_csv_that_has_no_rows_or_another_encoding_says_so(
    tmp_path: Path, text: bytes, options: tuple[str, ...], problem: str, hint: str
) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(text)
    done = run(tmp_path, file, *options)
    assert done.exit_code != 0
    assert problem in done.output
    assert hint in done.output


def test_a_link_in_a_circle_in_a_followed_folder_is_no_file(
    tmp_path: Path, store: Store, following: Any
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"id":1}\n')
    one = following(store, folder, Target("s"))
    os.symlink(folder / "c.jsonl", folder / "b.jsonl")
    os.symlink(folder / "b.jsonl", folder / "c.jsonl")
    (folder / "d.jsonl").write_text('{"id":2}\n')
    one.look()
    assert state_of(store) == Counter({(1,): 1, (2,): 1})
