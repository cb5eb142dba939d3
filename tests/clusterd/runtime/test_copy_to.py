"""Copies in a replica: one answer each, whatever comes in between, and a whole file or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusterd.multiplexer import events as mx
from controller_proto.codec import encode_body
from controller_proto.command import CreateDataflow, Hello, InitializationComplete, Peek, Schedule
from controller_proto.dataflow import (
    Build,
    DataflowBody,
    DataflowHeader,
    Export,
    IndexImport,
    SourceImport,
)
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.history import History
from controller_proto.plan import Get, Mfp, Plan
from controller_proto.response import Copied, CopyError, CopyToResponse, Frontiers, PeekError, Refused
from controller_proto.schema import SAMPLE_SCHEMA, ColumnType, Schema
from tests.clusterd.runtime.shell import Shell

MODES = pytest.mark.parametrize("workers", [0, 1])
ROWS = [(1, "alpha"), (2, "beta"), (2, "beta"), (3, "gamma")]


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[int], Shell]:
    def make(workers: int) -> Shell:
        replica = Shell(tmp_path / "data", workers, chunk_s=0.0)
        replica.boot()
        replica.write(ROWS, 0)
        return replica

    return make


def _copy(
    replica: Shell,
    id: str,
    uri: Path | str,
    *,
    as_of: int = 0,
    index: str = "",
    plan: Plan | None = None,
    schema: Schema = SAMPLE_SCHEMA,
    schedule: bool = True,
) -> CreateDataflow:
    """`plan`, over u1000, of the shard or of an index on it."""
    on = "u1000" if plan is None else "u5000"
    builds = () if plan is None else (Build(on, plan),)
    sources = () if index else (SourceImport("u1000", "s", SAMPLE_SCHEMA),)
    imports = (IndexImport(index),) if index else ()
    export = Export(id, "copy-to", on, schema, uri=str(uri))
    create = CreateDataflow(
        0, DataflowHeader(id, as_of, None, sources, imports, (export,)), encode_body(DataflowBody(builds))
    )
    replica.send(create)
    if schedule:
        replica.send(Schedule(0, id))
    return create


def _results(replica: Shell, id: str) -> list[Copied | CopyError]:
    return [r.result for r in replica.responses if isinstance(r, CopyToResponse) and r.id == id]


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "data")


def _at_rest(replica: Shell) -> bool:
    return all(loop.core.statistics().dataflows == 0 for loop in replica.loops)


@MODES
def test_the_collection_at_as_of_becomes_a_file_with_each_row_as_often_as_it_is_there(
    shell: Callable[[int], Shell], workers: int, tmp_path: Path
) -> None:
    with shell(workers) as replica:
        replica.write([(4, "later")], 1)
        replica.index("u1")
        replica.settle()
        _copy(replica, "t1", tmp_path / "shard.csv")
        _copy(replica, "t2", tmp_path / "index.csv", index="u1", as_of=1)
        replica.settle()
        assert _results(replica, "t1") == [Copied(4)]
        assert _results(replica, "t2") == [Copied(5)]
        assert sorted((tmp_path / "shard.csv").read_text().splitlines()[1:]) == [
            '1,"alpha"', '2,"beta"', '2,"beta"', '3,"gamma"',
        ]  # fmt: skip
        assert len((tmp_path / "index.csv").read_text().splitlines()) == 6
        assert not [r for r in replica.responses if isinstance(r, Frontiers) and r.id in ("t1", "t2")]
        replica.drop("t1")
        replica.drop("t2")
        replica.drop("u1")
        replica.settle()
        assert len(_results(replica, "t1")) == 1
        assert _at_rest(replica)
        assert not replica.names()
        assert _files(tmp_path) == ["index.csv", "shard.csv"]
        assert replica.mux.statistics().declared == 0


@MODES
def test_errors_in_the_data_and_in_writing_are_the_answer_and_there_is_no_file(
    shell: Callable[[int], Shell], workers: int, tmp_path: Path
) -> None:
    with shell(workers) as replica:
        divided = Call("/", (ColumnRef(0), Literal(ColumnType.INT64, 0)))
        plan = Mfp(Get("u1000"), maps=(divided,), projection=(2, 1))
        _copy(replica, "t1", tmp_path / "a.csv", plan=plan)
        _copy(replica, "t2", tmp_path / "nowhere" / "a.csv")
        replica.settle()
        (first,), (second,) = _results(replica, "t1"), _results(replica, "t2")
        assert isinstance(first, CopyError)
        assert (first.code, first.message) == ("eval-error", "division by zero")
        assert isinstance(second, CopyError)
        assert second.code == "write-failed"
        _copy(replica, "t3", "ftp://example/a.csv", schedule=False)
        replica.settle()
        assert [r.code for r in replica.responses if isinstance(r, Refused)] == ["invalid-plan"]
        assert _files(tmp_path) == []


@MODES
def test_a_copy_waits_for_its_time_and_for_its_schedule(
    shell: Callable[[int], Shell], workers: int, tmp_path: Path
) -> None:
    with shell(workers) as replica:
        _copy(replica, "t1", tmp_path / "a.csv", as_of=1, schedule=False)
        replica.settle()
        replica.write([(9, "x")], 1)
        replica.settle()
        assert _results(replica, "t1") == []
        replica.send(Schedule(0, "t1"))
        replica.settle()
        assert _results(replica, "t1") == [Copied(5)]


@MODES
def test_a_drop_in_each_state_is_answered_and_leaves_no_file(
    shell: Callable[[int], Shell], workers: int, tmp_path: Path
) -> None:
    with shell(workers) as replica:
        replica.write([(k, "x" * 500) for k in range(30_000)], 1)
        _copy(replica, "t1", tmp_path / "a.csv", as_of=1, schedule=False)  # never scheduled
        _copy(replica, "t2", tmp_path / "b.csv", as_of=7)  # its time is not sealed
        replica.settle()
        _copy(replica, "t3", tmp_path / "c.csv", as_of=1)
        replica.settle(until=lambda: any(name.endswith(".writing") for name in _files(tmp_path)))
        assert len(_files(tmp_path)) == 1
        for id in ("t1", "t2", "t3"):
            assert _results(replica, id) == []
            replica.drop(id)
        replica.settle()
        for id in ("t1", "t2", "t3"):
            (result,) = _results(replica, id)
            assert isinstance(result, CopyError)
            assert result.code == "dropped"
        assert _at_rest(replica)
        assert _files(tmp_path) == []
        assert list((tmp_path / "data" / "copies").iterdir()) == []


@MODES
def test_an_index_that_is_dropped_is_read_to_the_end_by_a_copy_of_it(
    shell: Callable[[int], Shell], workers: int, tmp_path: Path
) -> None:
    with shell(workers) as replica:
        replica.index("u1")
        replica.settle()
        _copy(replica, "t1", tmp_path / "a.csv", index="u1", schedule=False)
        replica.drop("u1")
        replica.settle()
        replica.send(Schedule(0, "t1"))
        replica.settle()
        assert _results(replica, "t1") == [Copied(4)]
        replica.drop("t1")
        replica.settle()
        assert not replica.names()


@MODES
def test_a_copy_of_the_last_session_is_made_anew_by_the_next_and_answered_there_alone(
    shell: Callable[[int], Shell], workers: int, tmp_path: Path
) -> None:
    with shell(workers) as replica:
        create = _copy(replica, "t1", tmp_path / "a.csv", as_of=1)
        replica.settle()
        replica.connect(complete=False)
        replica.send(create, Schedule(0, "t1"))
        replica.write([(9, "x")], 1)  # the old one ends before it is dropped
        replica.settle()
        assert _results(replica, "t1") == []
        replica.send(InitializationComplete(0))
        replica.settle()
        assert _results(replica, "t1") == [Copied(5)]
        replica.connect(complete=True)
        replica.settle()
        assert _at_rest(replica)
        assert _files(tmp_path) == ["a.csv"]


@MODES
def test_a_copy_is_no_index_and_is_a_controllers_alone(
    shell: Callable[[int], Shell], workers: int, tmp_path: Path
) -> None:
    with shell(workers) as replica:
        _copy(replica, "t1", tmp_path / "a.csv")
        replica.settle()
        replica.send(Peek(0, "p", "t1", 0))
        replica.settle()
        assert replica.error("p") == PeekError(
            "invalid-plan", "t1 is a copy-to, not an index", "peek an index on it"
        )
        other = Shell.__new__(Shell)
        other.__dict__.update(replica.__dict__, session=99, seq=0)
        replica.to_mux(mx.Opened(99))
        other.send(Hello(0, "reader", kind="reader"))
        _copy(other, "t2", tmp_path / "b.csv")
        refused = [r for r in replica.responses if isinstance(r, Refused)]
        assert refused[0].code == "unauthorized"


def test_a_controller_that_comes_back_says_a_copy_again_until_it_is_answered(tmp_path: Path) -> None:
    history = History()
    export = Export("t1", "copy-to", "u1000", SAMPLE_SCHEMA, uri="/tmp/a.csv")
    header = DataflowHeader("t1", 0, None, (SourceImport("u1000", "s", SAMPLE_SCHEMA),), (), (export,))
    history.sent(CreateDataflow(1, header, encode_body(DataflowBody(()))))
    history.sent(Schedule(2, "t1"))
    assert [type(each) for each in history.commands()][1:3] == [CreateDataflow, Schedule]
    history.heard(CopyToResponse("t1", Copied(3)))
    assert len(history) == 0
