"""Shards that cannot be read or written for a while: who wants them waits, nobody else, nothing is lost."""

from __future__ import annotations

import errno
import gc
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from clusterd.convert import updates_from_rows
from clusterd.multiplexer import events as mx
from clusterd.storage import local_parts
from clusterd.storage.directory_place import DirectoryNotices
from clusterd.storage.local_parts import LocalSink
from clusterd.storage.shard import Shard
from clusterd.storage.sqlite_catalog import SqliteCatalog
from controller_proto.codec import encode_body, encode_message
from controller_proto.command import (
    AllowWrites,
    CreateDataflow,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
)
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, SourceImport
from controller_proto.response import CopyError, CopyToResponse, DroppedAt, Status, SubscribeResponse
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier
from tests.clusterd.runtime.test_views import ABC, ALL, MODES, VIEW, Views

NO_ROOM = OSError(errno.ENOSPC, "no space left")


@pytest.fixture
def views(tmp_path: Path) -> Callable[[int], Views]:
    def make(workers: int) -> Views:
        replica = Views(tmp_path, workers)
        replica.boot()
        replica.write(ABC, 0)
        replica.create(*ALL, *VIEW)
        replica.send(AllowWrites(0, "u5"))
        replica.index("u8")
        replica.settle()
        assert replica.upper() == Frontier.at(1)
        return replica

    return make


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Of garbage: what is let go is gone at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _later(replica: Views) -> None:
    """What is put off is due."""
    for loop in replica.loops:
        for retries in (loop.dataflows._retries, loop.dataflows.views._retries):
            for name, (_, wait_s) in retries._waits.items():  # type: ignore[attr-defined]
                retries._waits[name] = 0.0, wait_s  # type: ignore[index]
    replica.settle()


def _files(tmp_path: Path) -> list[str]:
    """Of the view's shard, but for the parts that it has."""
    listed = {"catalog.db"}
    db = sqlite3.connect(tmp_path / "shards" / "m" / "catalog.db")
    listed |= {file for (file,) in db.execute("SELECT file FROM part")}
    db.close()
    return sorted(set(os.listdir(tmp_path / "shards" / "m")) - listed)


def _open_parts() -> list[str]:
    """Descriptors of parts that are being written."""
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [target for target in targets if ".writing" in target or "/part-" in target]


@contextmanager
def _locked(tmp_path: Path, shard: str, how: str) -> Iterator[None]:
    db = sqlite3.connect(tmp_path / "shards" / shard / "catalog.db", isolation_level=None)
    db.execute(f"BEGIN {how}")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


@MODES
@pytest.mark.parametrize("where", ["create", "write", "finish", "catalog", "committed"])
def test_a_view_without_room_is_written_when_there_is_and_all_else_goes_on(
    views: Callable[[int], Views],
    workers: int,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with views(workers) as replica:
        replica.write([(4, "delta")], 1)  # the source, before room is gone
        with monkeypatch.context() as full:
            _no_room(full, where)
            replica.peek("parked", "u5", 1)
            for _ in range(3):
                replica.settle()
                _later(replica)
            replica.peek("index", "u8", 1)
            replica.settle()
            assert replica.rows("index") == [*ABC, (4, "delta")]
            if where != "committed":
                assert replica.upper() == Frontier.at(1)
            assert not any(loop.has_work for loop in replica.loops)
            assert (replica.loops[0].timeout_ms() is None) == (where == "committed")
        _later(replica)
        assert replica.upper() == Frontier.at(2)
        assert replica.rows("parked") == [*ABC, (4, "delta")]
        assert len(replica.stored()) == 4
        assert _open_parts() == []
        replica.write([], 2)
        replica.settle()
        assert _files(tmp_path) == []
        assert [loop.timeout_ms() for loop in replica.loops[:1]] == [None]
    assert capfd.readouterr().err.count('"event":"ShardOutOfReach","shard":"m","name":"u5"') == 1


def _no_room(full: pytest.MonkeyPatch, where: str) -> None:
    """Writes of parts, or of catalogs, fail."""

    def fail(*args: Any) -> Any:
        raise NO_ROOM

    append = SqliteCatalog.compare_and_append

    def lose(*args: Any) -> Any:
        append(*args)
        raise NO_ROOM

    if where == "create":
        full.setattr(local_parts, "_create", fail)
    elif where == "write":
        full.setattr(local_parts._Syncing, "write", fail)
    elif where == "finish":
        full.setattr(LocalSink, "finish", fail)
    else:
        full.setattr(SqliteCatalog, "compare_and_append", fail if where == "catalog" else lose)


@MODES
def test_a_lock_on_a_views_shard_is_waited_for_by_nobody_else(
    views: Callable[[int], Views], workers: int, tmp_path: Path
) -> None:
    with views(workers) as replica:
        with _locked(tmp_path, "m", "IMMEDIATE"):
            replica.write([(4, "delta")], 1)
            replica.peek("index", "u8", 1, ((4,),))
            replica.peek("old", "u5", 0)
            replica.settle()
            assert replica.rows("index") == [(4, "delta")]
            assert replica.rows("old") == ABC
            assert replica.upper() == Frontier.at(1)
        _later(replica)
        assert replica.upper() == Frontier.at(2)
        with _locked(tmp_path, "m", "EXCLUSIVE"):
            replica.peek("a", "u5", 0)
            replica.peek("index2", "u8", 1, ((4,),))
            replica.settle()
            assert replica.rows("index2") == [(4, "delta")]
        _later(replica)
        if workers:  # it looks at how far the shard is first, which can be put off
            assert replica.rows("a") == ABC
        else:
            assert replica.error("a").code == "timeout"
        assert _files(tmp_path) == []


@MODES
def test_a_lock_on_a_source_puts_off_news_and_reads_and_loses_none(
    views: Callable[[int], Views], workers: int, tmp_path: Path
) -> None:
    with views(workers) as replica:
        replica.write([(4, "delta")], 1)
        with _locked(tmp_path, "s", "EXCLUSIVE"):
            replica.settle()  # the notice is there, the look fails
            replica.peek("later", "u8", 1)
            replica.peek("now", "u8", 0)
            replica.settle()
            assert replica.rows("now") == ABC
            assert replica.answer("later") is None
        _later(replica)
        assert replica.rows("later") == [*ABC, (4, "delta")]
        replica.index("u9", as_of=1, schedule=False)
        replica.settle()
        tries = 0

        def tried() -> bool:
            nonlocal tries
            tries += 1
            return tries > 4

        with _locked(tmp_path, "s", "EXCLUSIVE"):
            replica.send(Schedule(0, "u9"))
            replica.settle(until=tried)  # its round is begun, and waits in pieces
            replica.peek("other", "u8", 1, ((4,),))
            tries = 0
            replica.settle(until=lambda: replica.answer("other") is not None)
            assert replica.rows("other") == [(4, "delta")]
        replica.peek("nine", "u9", 1, ((4,),))
        replica.settle()
        assert replica.rows("nine") == [(4, "delta")]


def test_a_lock_while_a_view_is_looked_at_first_is_looked_at_again(tmp_path: Path) -> None:
    with Views(tmp_path, 1) as first:
        first.boot()
        first.write(ABC, 0)
        first.create(*ALL, *VIEW)
        first.send(AllowWrites(0, "u5"))
        first.settle()
    with Views(tmp_path, 1) as replica:
        replica.boot()
        replica.create(*ALL, *VIEW)
        replica.settle(until=lambda: replica.loops[0].dataflows.views.count > 0)
        with _locked(tmp_path, "m", "EXCLUSIVE"):
            replica.peek("a", "u5", 0)
            replica.settle()
        _later(replica)
        assert replica.rows("a") == ABC


@MODES
def test_what_a_killed_writer_left_is_swept_before_the_view_writes(
    views: Callable[[int], Views], workers: int, tmp_path: Path
) -> None:
    with views(workers) as replica:
        folder = tmp_path / "shards" / "m"
    for name in ("part-0123456789abcdef.writing", "errs-00000000000000000000-0123456789abcdef.arrow"):
        (folder / name).write_bytes(b"half")
    assert len(_files(tmp_path)) == 2
    with Views(tmp_path, workers) as replica:
        replica.boot()
        replica.create(*ALL, *VIEW)
        replica.settle()
        assert len(_files(tmp_path)) == 2  # it may not write
        replica.send(AllowWrites(0, "u5"))
        replica.write([(4, "delta")], 1)
        replica.settle()
        assert replica.upper() == Frontier.at(2)
        assert _files(tmp_path) == []


@MODES
def test_what_is_answered_once_or_told_ends_alone_where_its_shard_lost_a_part(
    views: Callable[[int], Views], workers: int, tmp_path: Path
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0, shard="t")
        replica.settle()
        for path in (tmp_path / "shards" / "t").glob("part-*"):
            path.unlink()
        source = SourceImport("u1000", "t", SAMPLE_SCHEMA)
        exports = (
            Export("t1", "copy-to", "u1000", SAMPLE_SCHEMA, uri=str(tmp_path / "a.csv")),
            Export("t2", "subscribe", "u1000", SAMPLE_SCHEMA),
            Export("t3", "index", "u1000", SAMPLE_SCHEMA, (0,)),
        )
        for export in exports:
            header = DataflowHeader(export.id, 0, 1 if export.id == "t3" else None, (source,), (), (export,))
            replica.send(CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, export.id))
        replica.peek("query", "t3", 0)
        replica.peek("index", "u8", 0)
        replica.settle()
        assert replica.rows("index") == ABC
        assert replica.error("query").code == "format-mismatch"
        (copied,) = [r.result for r in replica.responses if isinstance(r, CopyToResponse)]
        assert isinstance(copied, CopyError)
        assert copied.code == "format-mismatch"
        (told,) = [r.said for r in replica.responses if isinstance(r, SubscribeResponse)]
        assert isinstance(told, DroppedAt)
        assert told.code == "format-mismatch"
        for id in ("t1", "t2", "t3", "u5", "u8"):
            replica.drop(id)
        replica.settle()
        assert not replica.names()
        assert not (tmp_path / "a.csv").exists()


@MODES
def test_what_is_maintained_over_a_shard_that_lost_a_part_is_errored_and_all_else_goes_on(
    views: Callable[[int], Views], workers: int, tmp_path: Path, without_collections: None
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0, shard="t")
        for path in (tmp_path / "shards" / "t").glob("part-*"):
            path.unlink()
        replica.index("u10", shard="t")
        replica.over("u11", "u10", query=False)
        source = SourceImport("u1000", "t", SAMPLE_SCHEMA)
        view = Export("u12", "materialized-view", "u1000", SAMPLE_SCHEMA, shard="n")
        header = DataflowHeader("v", 0, None, (source,), (), (view,))
        replica.send(CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, "u12"))
        replica.send(AllowWrites(0, "u12"))
        for id in ("u10", "u11", "u12"):
            replica.peek(id, id, 0)
        replica.settle()
        said = {s.id: s for s in replica.responses if isinstance(s, Status)}
        for id in ("u10", "u11", "u12"):
            assert (said[id].status, said[id].code) == ("errored", "format-mismatch"), said[id]
            assert replica.reported(id) == [None, None, None]
            assert replica.error(id).code == "format-mismatch"
        replica.write([(4, "delta")], 1)
        replica.settle()
        replica.peek("index", "u8", 1)
        replica.peek("late", "u10", 0)
        replica.settle()
        assert replica.rows("index") == [*ABC, (4, "delta")]
        assert replica.error("late").code == "format-mismatch"
        for id in ("u12", "u11", "u10", "u5", "u8"):
            replica.drop(id)
        replica.settle()
        assert replica.reported("u10") == replica.reported("u12") == [(), (), ()]
        assert not replica.names()
        for loop in replica.loops:
            assert loop.core.statistics().collections == 0
            assert loop.dataflows.store is not None
            assert list(loop.dataflows.store._shards) == []


@MODES
def test_what_was_given_up_is_made_anew_for_a_controller_that_comes_back(
    views: Callable[[int], Views], workers: int, tmp_path: Path
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0, shard="t")
        lost = {path: path.read_bytes() for path in (tmp_path / "shards" / "t").glob("part-*")}
        for path in lost:
            path.unlink()
        replica.index("u10", shard="t")
        replica.over("u11", "u10", query=False)
        replica.peek("before", "u10", 0)
        replica.settle()
        assert replica.error("before").code == "format-mismatch"
        for path, data in lost.items():
            path.write_bytes(data)
        replica.connect(complete=False)
        replica.index("u10", shard="t")
        replica.over("u11", "u10", query=False)
        replica.peek("early", "u10", 0)
        replica.send(InitializationComplete(0))
        replica.peek("late", "u11", 0)
        replica.settle()
        assert replica.rows("early") == ABC
        assert replica.rows("late") == [(3,)]
        assert replica.mux.statistics().reconciled["errored"] == 2
        for id in ("u11", "u10"):
            replica.drop(id)
        replica.settle()
        assert not replica.names()


@MODES
def test_a_peek_of_what_is_given_up_during_a_replay_is_answered(
    views: Callable[[int], Views], workers: int, tmp_path: Path
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0, shard="t")
        replica.index("u10", shard="t")
        replica.settle()
        replica.connect(complete=False)
        replica.index("u10", shard="t")
        replica.peek("early", "u10", 1)
        replica.peek("old", "u10", 0)
        replica.write([(4, "delta")], 1, shard="t")
        for path in (tmp_path / "shards" / "t").glob("part-*"):
            path.unlink()
        replica.settle()
        assert replica.answer("early") is None
        replica.send(InitializationComplete(0))
        replica.settle()
        assert replica.mux.statistics().reconciled["reused"] == 1
        assert replica.error("early").code == "format-mismatch"
        assert replica.error("old").code == "format-mismatch"


@MODES
def test_a_reader_is_told_of_what_is_given_up_while_a_controller_says_its_replay(
    views: Callable[[int], Views], workers: int, tmp_path: Path
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0, shard="t")
        replica.index("u10", shard="t")
        replica.settle()
        reader = 99
        replica.to_mux(mx.Opened(reader))
        for said in (Hello(1, "", kind="reader"), Peek(2, "beside", "u10", 1)):
            replica.to_mux(mx.Received(reader, said, encode_message(said)))
        replica.settle()
        replica.connect(complete=False)
        replica.settle()
        replica.responses.clear()
        replica.write([(4, "delta")], 1, shard="t")
        for path in (tmp_path / "shards" / "t").glob("part-*"):
            path.unlink()
        replica.settle()
        assert replica.error("beside").code == "format-mismatch"
        assert [r for r in replica.responses if isinstance(r, Status)] == []  # P13


@MODES
def test_a_view_whose_shard_was_compacted_beyond_it_is_errored_and_its_replica_goes_on(
    views: Callable[[int], Views], workers: int, tmp_path: Path
) -> None:
    with views(workers) as replica:
        with _locked(tmp_path, "m", "IMMEDIATE"):
            replica.write([(4, "delta")], 1)
            replica.settle()
        stranger = replica.store.shard("m")
        nothing = updates_from_rows(SAMPLE_SCHEMA, [], 1, 1)
        stranger.append(nothing, Frontier.at(1), Frontier.at(9))
        stranger.advance_since(Frontier.at(7))
        _later(replica)
        said = [s for s in replica.responses if isinstance(s, Status) and s.id == "u5"]
        assert (said[-1].status, said[-1].code) == ("errored", "below-since")
        replica.peek("index", "u8", 1)
        replica.settle()
        assert replica.rows("index") == [*ABC, (4, "delta")]
        replica.drop("u5")
        replica.settle()
        assert replica.reported("u5") == [(), (), ()]


@MODES
def test_notices_that_are_lost_are_made_anew_and_nothing_is_missed(
    views: Callable[[int], Views],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with views(workers) as replica:
        tail = replica.loops[0].dataflows.tail
        assert tail is not None
        with monkeypatch.context() as lost:
            lost.setattr(DirectoryNotices, "drain", _unreachable)
            lost.setattr(DirectoryNotices, "watch", _unreachable)
            replica.write([(4, "delta")], 1)
            replica.settle()
            _later(replica)
            replica.peek("index", "u8", 0)
            replica.settle()
            assert replica.rows("index") == ABC
            said = [s for s in replica.responses if isinstance(s, Status) and s.id == "u8"]
            assert (said[-1].status, said[-1].code) == ("stalled", "limit")
            assert "server closed the connection" in said[-1].message
            assert replica.loops[0].timeout_ms() not in (None, 0)
        _later(replica)
        replica.write([(5, "echo")], 2)
        replica.settle()
        replica.peek("after", "u8", 2)
        replica.settle()
        assert len(replica.rows("after")) == 5
        said = [s for s in replica.responses if isinstance(s, Status) and s.id == "u8"]
        assert said[-1].status == "hydrated"
        assert replica.loops[0].dataflows.retry_in_s is None
        assert replica.upper() == Frontier.at(3)
    assert capfd.readouterr().err.count('"event":"ShardOutOfReach","shard":"s","name":"news"') == 1


def _unreachable(*args: Any) -> Any:
    raise ConnectionError("PostgreSQL: server closed the connection unexpectedly")


@MODES
def test_a_shard_that_is_compacted_while_it_is_read_is_not_read_wrong(
    views: Callable[[int], Views], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are merged between the first check of its since and the reading of its parts."""
    with views(workers) as replica:
        for time in range(1, 7):
            replica.write([(10 + time, "x")], time)
            replica.settle()
        read = Shard.read

        def compacted(self: Shard, *args: Any, **named: Any) -> Any:
            self.advance_since(Frontier.at(5))
            self.merge()
            return read(self, *args, **named)

        with monkeypatch.context() as racing:
            racing.setattr(Shard, "read", compacted)
            replica.peek("view", "u5", 2)
            replica.index("u9", as_of=2)
            replica.settle()
        assert replica.error("view").code == "below-since"
        for time in (2, 4, 5, 6):
            replica.peek(f"index{time}", "u9", time)
        replica.write([(20, "z")], 7)
        replica.settle()
        assert replica.error("index2").code == replica.error("index4").code == "below-since"
        assert "compacted to {5} before it was read at 2" in replica.error("index2").message
        assert len(replica.rows("index5")) == 8
        assert len(replica.rows("index6")) == 9
