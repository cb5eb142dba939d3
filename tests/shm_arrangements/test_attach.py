"""Attach: the reads of a foreign process, exact, and safe against everything that ends."""

from __future__ import annotations

import datetime
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shm_arrangements import instance, names
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import Attached, attach, snapshot
from shm_arrangements.errors import (
    DataError,
    InvariantViolation,
    NoSuchInstance,
    NotReadable,
    NotSealed,
    PublicationClosed,
    WriterGone,
)  # fmt: skip
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id
from shm_arrangements.readers import list_readers
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

DEADLINE_S = 30
SCHEMA = ArrangementSchema(
    (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.INT64, False)), (0,)
)
I64, TEXT = ColumnType.INT64, ColumnType.TEXT
NO_ERRS = Updates.empty((TEXT,))
NOTHING = Updates.empty((I64, I64))


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as made:
        yield made


def _index(held: Instance, id: str = "u1", incarnation: int = 1, **options: Any) -> IndexWriter:
    schema = options.pop("schema", SCHEMA)
    return IndexWriter(SegmentAllocator(held.token, 0), collection_id(id), incarnation, schema, 0, **options)


def _rows(*rows: tuple[Any, int, int]) -> Updates:
    return Updates.from_rows((I64, I64), rows)


def _sealed(held: Instance, **options: Any) -> IndexWriter:
    """(7, 70)@1, (8, 80)@2, (9, 90)@3, sealed to 4."""
    index = _index(held, **options)
    for t, row in enumerate([(7, 70), (8, 80), (9, 90)], 1):
        index.insert(_rows((row, t, 1)), NO_ERRS, Frontier.at(t + 1))
    return index


def _names(token: str) -> list[str]:
    return sorted(name for name in os.listdir("/dev/shm") if token in name)


def _maps() -> int:
    return Path("/proc/self/maps").read_text().count("/dev/shm/clusterd")


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def test_an_attached_index_answers_at_each_of_its_times(held: Instance) -> None:
    index = _sealed(held)
    with attach("u1", held.token) as read:
        assert (read.since, read.upper) == (Frontier.minimum(), Frontier.at(4))
        assert read.snapshot().at == 3
        assert sorted(read.scan().rows()) == [(7, 70), (8, 80), (9, 90)]
        assert sorted(read.scan(at=2).rows()) == [(7, 70), (8, 80)]
        assert read.lookup(8).rows() == [(8, 80)]
        assert read.lookup(8, at=1).rows() == read.lookup(5).rows() == []
        found = read.lookup_many([9, 5, 7])
        assert {(key, row) for key, row in zip(found.key_index.tolist(), found.rows(), strict=True)} == {
            (0, (9, 90)), (2, (7, 70)),
        }  # fmt: skip
        same = read.lookup_many(np.array([9, 5, 7], np.int32))
        assert sorted(same.rows()) == [(7, 70), (9, 90)]
    with pytest.raises(PublicationClosed):
        read.snapshot()
    index.close()


def test_ids_may_be_text_or_u64_and_wrong_ones_are_told(held: Instance) -> None:
    index = _sealed(held)
    for id in ("u1", "1", 1):
        with attach(id, held.token) as read:
            assert (read.id, read.incarnation, read.instance) == ("u1", 1, held.token)
    with pytest.raises(PublicationClosed, match="not published"):
        attach("u2", held.token)
    with pytest.raises(PublicationClosed, match=r"not published \(id=x1.*lists what is published"):
        attach("x1", held.token)
    with pytest.raises(ValueError, match="not a u64"):
        attach(-1, held.token)
    index.close()


def test_without_a_token_the_only_live_instance_is_meant(held: Instance) -> None:
    if instance.live_tokens() != (held.token,):
        pytest.skip("other instances live on this machine")
    index = _sealed(held)
    with attach("u1") as read:
        assert read.instance == held.token
    with Instance.create() as other:
        with pytest.raises(NoSuchInstance, match=r"more than one.*take attach\('u1', '") as caught:
            attach("u1")
        assert set(caught.value.facts["instances"]) == {held.token, other.token}  # type: ignore[call-overload]
    index.close()


def test_what_cannot_be_read_says_what_can_be_done(held: Instance) -> None:
    index = _sealed(held, name="sevens")
    index.set_compaction(Frontier.at(2))
    assert repr(index) == "IndexWriter(u1 'sevens', since={2}, upper={4})"
    read = attach("sevens", held.token)
    assert repr(read) == f"Attached(u1 'sevens', incarnation=1, instance={held.token})"
    assert repr(read.snapshot(2)) == "ReadView(u1, at=2, since={2}, upper={4})"
    with pytest.raises(NotReadable, match="read at since or later"):
        read.snapshot(1)
    with pytest.raises(NotSealed, match=r"newest that can be read is upper - 1; wait\(time\)"):
        read.snapshot(4)
    read.close()
    with pytest.raises(PublicationClosed, match="this process has closed it: attach anew"):
        read.snapshot()
    with pytest.raises(NoSuchInstance, match="lists those there are"):
        attach("u1", "no token")
    index.close()
    assert repr(index) == "IndexWriter(u1 'sevens', closed)"


def test_what_a_writer_cannot_insert_is_said_before_anything_changes(held: Instance) -> None:
    index = _sealed(held)
    with pytest.raises(TypeError, match=r"a frontier is wanted, as Frontier.at\(5\), not 5"):
        index.insert(_rows(((1, 1), 4, 1)), NO_ERRS, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a frontier is wanted"):
        index.set_compaction(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 columns, the index has 2"):
        index.insert(Updates.from_rows((I64,), [((1,), 4, 1)]), NO_ERRS, Frontier.at(5))
    with pytest.raises(InvariantViolation, match="has times from the upper that stood"):
        index.insert(_rows(((1, 1), 3, 1)), NO_ERRS, Frontier.at(5))
    with pytest.raises(ValueError, match="not a token: 'flights'"):
        SegmentAllocator("flights", 0)
    assert index.upper == Frontier.at(4)
    index.close()


def test_a_time_that_is_none_is_a_type_error(held: Instance) -> None:
    index = _sealed(held)
    with attach("u1", held.token) as read:
        for at in ("b", True, 1.0):
            with pytest.raises(TypeError, match=r"at must be an int time, not .* is one tuple"):
                read.lookup(7, at)  # type: ignore[arg-type]
        assert read.lookup(7, np.int64(3)).rows() == [(7, 70)]
    index.close()


def test_an_instance_that_is_not_there_is_told_from_one_that_ended(held: Instance) -> None:
    with pytest.raises(NoSuchInstance, match="no such instance"):
        attach("u1", names.new_token())
    index = _sealed(held)
    index.insert(NOTHING, NO_ERRS, Frontier.at(5))
    read = attach("u1", held.token)
    view = read.snapshot()
    held.abandon()
    with pytest.raises(WriterGone):
        attach("u1", held.token)
    with pytest.raises(WriterGone):
        read.snapshot()
    instance.unlink_all(held.token)
    with pytest.raises(WriterGone):
        read.snapshot()
    assert sorted(view.scan().rows()) == [(7, 70), (8, 80), (9, 90)]
    read.close()
    index.close()


def test_a_time_before_since_or_not_sealed_is_refused_with_both_numbers(held: Instance) -> None:
    index = _sealed(held)
    index.set_compaction(Frontier.at(2))
    with attach("u1", held.token) as read:
        with pytest.raises(NotReadable) as early:
            read.snapshot(1)
        assert (early.value.facts["at"], early.value.facts["since"]) == (1, Frontier.at(2))
        for at in (4, 5, MAX_TIME):
            with pytest.raises(NotSealed):
                read.snapshot(at)
        assert len(read.scan(2)) == 2
    index.close()


def test_l3_an_index_where_nothing_is_sealed_is_not_an_empty_one(held: Instance) -> None:
    index = _index(held)
    with attach("u1", held.token) as read:
        for at in (None, 0):
            with pytest.raises(NotSealed):
                read.snapshot(at)
        index.insert(NOTHING, NO_ERRS, Frontier.at(1))
        assert read.scan().rows() == []
        index.set_compaction(Frontier.at(9))
        with pytest.raises(NotSealed):
            read.snapshot()
    index.close()


def test_bug44_a_finished_index_is_read_at_every_later_time(held: Instance) -> None:
    index = _sealed(held)
    index.insert(NOTHING, NO_ERRS, Frontier.empty())
    index.set_compaction(Frontier.at(5))
    with attach("u1", held.token) as read:
        assert read.upper.is_empty
        for at in (5, 9, MAX_TIME, None):
            assert len(read.scan(at)) == 3
        with pytest.raises(NotReadable):
            read.snapshot(2)
    index.close()


def test_bug42_the_slower_of_oks_and_errs_decides(held: Instance) -> None:
    index = _sealed(held)
    with attach("u1", held.token) as read:
        index.oks.insert(_rows(((6, 60), 6, 1)), Frontier.at(8))
        assert read.upper == Frontier.at(4)
        with pytest.raises(NotSealed):
            read.snapshot(7)
        index.errs.insert(NO_ERRS, Frontier.at(8))
        assert (6, 60) in read.scan(7).rows()
    index.close()


def test_an_error_in_data_is_the_answer_of_every_read_until_it_heals(held: Instance) -> None:
    index = _sealed(held)
    message = "eval-error: division by zero"
    index.insert(NOTHING, Updates.from_rows((TEXT,), [((message,), 4, 1)]), Frontier.at(5))
    index.insert(NOTHING, Updates.from_rows((TEXT,), [((message,), 5, -1)]), Frontier.at(6))
    index.insert(_rows(((1, 1), 6, -1)), NO_ERRS, Frontier.at(7))
    with attach("u1", held.token) as read:
        view = read.snapshot(4)
        for reading in (view.scan, lambda: view.lookup(7), lambda: view.lookup_many([])):
            with pytest.raises(DataError, match=message):
                reading()
        for at in (3, 5):
            assert len(read.scan(at)) == 3
        with pytest.raises(DataError, match="invalid-data"):
            read.scan(6)
        with pytest.raises(DataError, match="u1"):
            read.lookup(1, at=6)
        assert read.lookup(7, at=6).rows() == [(7, 70)]
    index.close()


def test_r9_the_newest_incarnation_that_is_open_is_read(held: Instance) -> None:
    old = _sealed(held)
    with attach("u1", held.token) as first:
        new = _index(held, incarnation=10)
        new.insert(_rows(((1, 1), 0, 1)), NO_ERRS, Frontier.at(1))
        with attach("u1", held.token) as second:
            assert (first.incarnation, second.incarnation) == (1, 10)
            assert (len(first.scan()), second.scan().rows()) == (3, [(1, 1)])
        new.close()
        with attach("u1", held.token) as third:
            assert third.incarnation == 1
    old.close()
    with pytest.raises(PublicationClosed):
        attach("u1", held.token)


def test_a_dropped_index_gives_no_new_snapshot_and_keeps_the_old(held: Instance) -> None:
    index = _sealed(held)
    read = attach("u1", held.token)
    view = read.snapshot()
    index.close()
    for refused in (read.snapshot, lambda: read.upper, lambda: read.since):
        with pytest.raises(PublicationClosed):
            refused()
    assert sorted(view.scan().rows()) == [(7, 70), (8, 80), (9, 90)]
    assert view.lookup(8).rows() == [(8, 80)]
    read.close()


def test_an_alias_is_attached_like_any_id(held: Instance) -> None:
    index = _sealed(held)
    index.publish_as(collection_id("u2"), 1)
    index.withdraw(collection_id("u1"), 1)
    with attach("u2", held.token) as read:
        assert (read.id, len(read.scan())) == ("u2", 3)
    index.close()


def test_shards_are_read_as_one_and_the_slowest_decides(held: Instance) -> None:
    parts = [_index(held, shard=shard, shards=3) for shard in range(3)]
    for shard, part in enumerate(parts):
        part.insert(_rows(((shard, shard), 0, 1)), NO_ERRS, Frontier.at(1 + shard))
    with attach("u1", held.token) as read:
        assert read.upper == Frontier.at(1)
        assert sorted(read.scan().rows()) == [(0, 0), (1, 1), (2, 2)]
        assert read.lookup(2).rows() == [(2, 2)]
        parts[0].close()
        with pytest.raises(PublicationClosed):
            read.snapshot()
    with pytest.raises(PublicationClosed):
        attach("u1", held.token)
    for part in parts:
        part.close()


KINDS = (ColumnType.BOOL, I64, ColumnType.FLOAT64, TEXT, ColumnType.NUMERIC, ColumnType.TIMESTAMP)
ALL = ArrangementSchema(
    tuple(ColumnSpec(name, kind, True) for name, kind in zip("biftnm", KINDS, strict=True)), (3, 5)
)
MOMENT = datetime.datetime(2013, 1, 1, 12, 30, 0, 5)
MICROS = 1_357_043_400_000_005
FULL = (True, -5, 2.5, "a", 10**30, MICROS)


def test_every_type_and_null_comes_out_as_numpy_arrow_and_python(held: Instance) -> None:
    index = _index(held, schema=ALL)
    index.insert(Updates.from_rows(KINDS, [(FULL, 0, 2), ((None,) * 6, 0, 1)]), NO_ERRS, Frontier.at(1))
    with attach("u1", held.token) as read:
        view = read.snapshot()
        found = view.lookup(("a", MOMENT))
        expected = (True, -5, 2.5, "a", 10**30, MOMENT)
        assert found.rows() == [expected, expected]
        assert (len(found), found.total, found.counts.tolist()) == (1, 2, [2])
        assert [found.column(name).dtype.kind for name in "biftmn"] == ["b", "i", "f", "O", "M", "O"]
        assert found["m"][0] == np.datetime64(MOMENT, "us")
        assert found.columns["n"].tolist() == [10**30]
        with pytest.raises(KeyError):
            found.column("x")
        assert view.lookup((None, None)).rows() == [(None,) * 6]
        assert view.lookup(("a", None)).rows() == []
        scan = view.scan()
        assert isinstance(scan["i"], np.ma.MaskedArray)
        assert scan["i"].sum() == -5
        assert None in scan["t"].tolist()
        table = scan.to_arrow()
        assert table.num_rows == 3
        assert Counter(table.column("t").to_pylist()) == {None: 1, "a": 2}
        assert table.column("m").to_pylist().count(MOMENT) == 2
        counted = scan.to_arrow(counts=True)
        assert sorted(counted.column("count").to_pylist()) == [1, 2]
        assert int(counted.column("n").to_pylist()[0] or counted.column("n").to_pylist()[1]) == 10**30
        for wrong in ("a", ("a",), ("a", "b"), (1, MOMENT)):
            with pytest.raises(ValueError, match=r"key|not a"):
                view.lookup(wrong)
    index.close()


def test_keys_given_as_arrays_must_fit_the_column(held: Instance) -> None:
    index = _sealed(held)
    with attach("u1", held.token) as read:
        view = read.snapshot()
        assert len(view.lookup_many(np.array([], np.int64))) == 0
        for wrong in (np.array([7.0]), np.array([7], np.uint64), np.array([[7]])):
            with pytest.raises(ValueError, match="key"):
                view.lookup_many(wrong)
        with pytest.raises(ValueError, match="not a"):
            view.lookup("7")
    index.close()


def test_bug10_a_key_given_twice_is_answered_twice(held: Instance) -> None:
    index = _sealed(held)
    with attach("u1", held.token) as read:
        found = read.lookup_many([8, 8, 7, 5, 8])
        assert found.key_index.tolist() == [0, 1, 2, 4]
        assert found.rows() == [(8, 80), (8, 80), (7, 70), (8, 80)]
    index.close()


def test_bug03_views_and_arrow_outlive_handles_while_the_writer_merges_and_unlinks(held: Instance) -> None:
    index = _sealed(held)
    rows = [((k, k * 10), 4, 1) for k in range(100, 5000)]
    index.insert(_rows(*rows), NO_ERRS, Frontier.at(5))
    read = attach("u1", held.token)
    view = read.snapshot()
    column = view.scan().column("v")
    part = view.scan().column("v")[10:][5:900]
    arrow = view.scan().to_arrow().column("v")
    sums = (int(column.sum()), int(part.sum()))
    read.close()
    del read, view
    gc.collect()
    for t in range(5, 55):
        index.insert(_rows(*[((k, t), t, 1) for k in range(300)]), NO_ERRS, Frontier.at(t + 1))
        index.set_compaction(Frontier.at(t))
        index.reclaim(float(t))
    index.close()
    gc.collect()
    assert (int(column.sum()), int(part.sum())) == sums
    assert int(column[::-1].copy().sum()) == sums[0] == sum(arrow.to_pylist())


def _fail(view: Any) -> None:
    raise RuntimeError(view[0])


@pytest.mark.slow
def test_bug04_a_thousand_attachments_leave_no_map_and_no_descriptor(held: Instance) -> None:
    index = _sealed(held)
    attach("u1", held.token).close()
    gc.collect()
    before = (_maps(), len(os.listdir("/proc/self/fd")))
    for _ in range(1000):
        read = attach("u1", held.token)
        scan = read.scan()
        one, two = scan.column("k"), scan.column("v")
        kept: Any = None
        try:
            _fail(one)
        except RuntimeError as error:
            kept = error.__traceback__
        read.close()
        assert two[0]
        del one, two, scan, kept
    del read
    gc.collect()
    assert (_maps(), len(os.listdir("/proc/self/fd"))) == before
    index.close()


ATTACHER = """
    import os, sys
    from shm_arrangements.attach import Attached, attach, snapshot
    read = attach("u1", sys.argv[1])
    view = read.snapshot()
    a, b, c = view.scan()["v"], view.scan()["k"], view.lookup(8)["v"]
    print(read.lookup(8).rows(), flush=True)
    """


@pytest.mark.slow
def test_bug01_attachers_may_end_in_any_way(held: Instance) -> None:
    index = _sealed(held)
    before = _names(held.token)
    endings = {"": 0, "os.kill(os.getpid(), 9)": -signal.SIGKILL, "raise RuntimeError('on purpose')": 1}
    for ending, status in endings.items():
        done = _run(textwrap.dedent(ATTACHER) + ending, held.token)
        assert (done.stdout, done.returncode) == ("[(8, 80)]\n", status), done.stderr
        if not ending.startswith("raise"):
            assert done.stderr == ""
        assert "tracker" not in done.stderr
        assert "ignored" not in done.stderr
        assert list_readers(held.token) == ()  # and the row of one that was killed goes with this look
        assert _names(held.token) == before
    with attach("u1", held.token) as read:
        assert read.lookup(8).rows() == [(8, 80)]
    index.close()


WRITER = """
    import sys, time
    from shm_arrangements import failpoints
    from shm_arrangements.types import ColumnSpec, ColumnType
    from shm_arrangements.frontier import Frontier
    from shm_arrangements.instance import Instance
    from shm_arrangements.schema import ArrangementSchema
    from shm_arrangements.arena import SegmentAllocator
    from shm_arrangements.updates import Updates
    from shm_arrangements.index_writer import IndexWriter

    I64 = ColumnType.INT64
    schema = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
    held = Instance.create()
    index = IndexWriter(SegmentAllocator(held.token, 0), 1, 1, schema, 0)
    no_errs = Updates.empty((ColumnType.TEXT,))
    print(held.token, flush=True)
    t = 0
    for line in sys.stdin:
        if line.startswith("arm"):
            failpoints.arm(*line.split()[1:])
        for _ in range(int(line) if line.strip().isdigit() else 0):
            # At time t every key's value is t: a read that mixes two times shows.
            rows = [((k, t), t, 1) for k in range(20)] + [((k, t - 1), t, -1) for k in range(20) if t]
            index.insert(Updates.from_rows((I64, I64), rows), no_errs, Frontier.at(t + 1))
            index.set_compaction(Frontier.at(max(t - 2, 0)))
            index.reclaim(time.monotonic())
            t += 1
        print("done", t, flush=True)
    index.close()
    held.release()
    """


def _writer() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    return process, _line(process)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, process.communicate()
    return line


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


@pytest.mark.slow
def test_a_reader_beside_a_busy_writer_sees_one_exact_time_in_every_snapshot() -> None:
    process, token = _writer()
    ticks = 800
    _say(process, "1")
    _line(process)
    with attach("u1", token) as read:
        _say(process, str(ticks))
        last = reads = retaken = 0
        deadline = time.monotonic() + DEADLINE_S
        while last < ticks and time.monotonic() < deadline:
            view = read.snapshot()
            assert view.at >= last
            retaken += view.at != last
            last = view.at
            reads += 1
            scan = view.scan()
            assert len(scan) == 20
            assert (scan["v"] == last).all()
            assert (scan.counts == 1).all()
            assert view.lookup(7).rows() == [(7, last)]
        assert last == ticks
        print(f"{reads} reads, {retaken} of them of a new time, {ticks} ticks")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, "")
    assert not _names(token)


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint", ["publication.before-flip", "spine.merge", "batch.unlink", "segment.create"]
)
def test_bug13_a_writer_killed_at_any_failpoint_leaves_the_last_turn_and_then_writer_gone(
    failpoint: str,
) -> None:
    process, token = _writer()
    _say(process, "30")
    _line(process)
    read = attach("u1", token)
    assert read.snapshot().at == 29
    _say(process, f"arm {failpoint} pause")
    _line(process)
    _say(process, "5000")
    # Stopped at the failpoint, the writer is alive: reads go on, of the last turn.
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    view = read.snapshot()
    assert (view.scan()["v"] == view.at).all()
    assert len(view.scan()) == 20
    process.kill()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert err == ""
    with pytest.raises(WriterGone):
        read.snapshot()
    assert token in instance.sweep()
    assert not _names(token)
    assert (view.scan()["v"] == view.at).all()
    with pytest.raises(WriterGone):
        read.snapshot()
    read.close()


def test_several_indexes_are_seen_at_one_time_the_newest_that_all_can_be_read_at(held: Instance) -> None:
    slow, fast = _sealed(held), _sealed(held, id="u2")
    for t in range(4, 7):
        fast.insert(_rows(((t, t), t, 1)), NO_ERRS, Frontier.at(t + 1))
    with attach("u1", held.token) as a, attach("u2", held.token) as b:
        with snapshot([a, b, a]) as views:
            assert (views.at, [view.at for view in views]) == (3, [3, 3, 3])
            assert sorted(views[1].scan().rows()) == sorted(views[0].scan().rows())
        slow.insert(NOTHING, NO_ERRS, Frontier.at(6))
        first, second = snapshot([a, b])
        assert (first.at, second.at) == (5, 5)
        assert sorted(views[1].scan().rows()) == [(7, 70), (8, 80), (9, 90)]
        assert len(second.scan()) == 5
        assert snapshot([a, b], at=2).at == 2
        with pytest.raises(NotSealed, match=r"id=u1, at=6, upper=\{6\}\); wait for it"):
            snapshot([a, b], at=6)
        fast.set_compaction(Frontier.at(6))
        fast.insert(_rows(((9, 9), 7, 1)), NO_ERRS, Frontier.at(8))
        for at in (None, 5):
            with pytest.raises(NotReadable, match=r"id=u2, at=5, since=\{6\}"):
                snapshot([a, b], at)
        slow.insert(NOTHING, NO_ERRS, Frontier.empty())
        assert snapshot([a, b]).at == 7
        with pytest.raises(ValueError, match="no index"):
            snapshot([])
        with pytest.raises(TypeError, match="at must be an int time"):
            snapshot([a], at="now")  # type: ignore[arg-type]
    slow.close()
    fast.close()


def test_views_of_several_indexes_stay_readable_when_the_writer_dies_and_no_new_ones_come(
    held: Instance,
) -> None:
    index = _sealed(held)
    a = attach("u1", held.token)
    views = snapshot([a, a])
    held.abandon()
    for refused in (lambda: snapshot([a]), lambda: a.changes(1)):
        with pytest.raises(WriterGone):
            refused()
    instance.unlink_all(held.token)
    assert [view.lookup(8).rows() for view in views] == [[(8, 80)]] * 2
    assert [view.changes(2).rows() for view in views] == [[((9, 90), 3, 1)]] * 2
    a.close()
    index.close()


def test_changes_are_told_between_times_that_can_be_read_and_refused_beyond(held: Instance) -> None:
    index = _sealed(held)
    message = "eval-error: division by zero"
    index.insert(_rows(((7, 70), 4, -1)), Updates.from_rows((TEXT,), [((message,), 4, 1)]), Frontier.at(5))
    index.set_compaction(Frontier.at(2))
    with attach("u1", held.token) as read:
        changes = read.changes(2)
        assert sorted(changes.rows()) == [((7, 70), 4, -1), ((9, 90), 3, 1)]
        assert changes.errors == ((message, 4, 1),)
        assert (len(read.changes(2, 2)), read.changes(2, 3).errors) == (0, ())
        with pytest.raises(NotReadable) as early:
            read.changes(1, 3)
        assert (early.value.facts["at"], early.value.facts["since"]) == (1, Frontier.at(2))
        with pytest.raises(NotSealed) as late:
            read.changes(2, 5)
        assert (late.value.facts["at"], late.value.facts["upper"]) == (5, Frontier.at(5))
        with pytest.raises(ValueError, match="from 4 to 3"):
            read.changes(4, 3)
        with pytest.raises(TypeError, match="at must be an int time"):
            read.changes("a")  # type: ignore[arg-type]
    index.close()


def test_ranges_are_read_through_an_attachment(held: Instance) -> None:
    index = _sealed(held)
    with attach("u1", held.token) as read:
        assert read.range(8).rows() == [(8, 80), (9, 90)]
        assert read.range(7, 8, include_upper=True, at=1).rows() == [(7, 70)]
        assert read.prefix(9).rows() == [(9, 90)]
    index.close()


def test_bug03_columns_of_small_batches_outlive_the_arena_they_are_in(held: Instance) -> None:
    index = _sealed(held)
    read = attach("u1", held.token)
    view = read.snapshot()
    found = view.lookup(8)
    column, lazy = view.lookup_many([7, 8, 9]).column("v"), view.scan()
    text = view.range(8).raw_columns()
    read.close()
    del read, view
    gc.collect()
    for t in range(4, 200):
        index.insert(_rows(*[((k, t), t, 1) for k in range(50)]), NO_ERRS, Frontier.at(t + 1))
        index.set_compaction(Frontier.at(t))
        index.reclaim(float(t))
    index.close()
    held.release()
    gc.collect()
    assert not _names(held.token)
    assert found.rows() == [(8, 80)]
    assert column.tolist() == [70, 80, 90]
    assert sorted(lazy.rows()) == [(7, 70), (8, 80), (9, 90)]
    assert text[1].to_pylist() == [80, 90]


def test_a_lookup_without_a_time_is_of_the_newest_whatever_moved(held: Instance) -> None:
    index = _sealed(held)
    with attach("u1", held.token) as read:
        first = read.snapshot()
        assert read.snapshot() is first
        moves = [
            lambda: index.advance(Frontier.at(5)),  # the clock alone
            lambda: index.oks.insert(_rows(((7, 71), 5, 1)), Frontier.at(6)),  # one half: the other decides
            lambda: index.errs.insert(NO_ERRS, Frontier.at(6)),
            lambda: index.insert(NOTHING, NO_ERRS, Frontier.at(7)),
            lambda: index.set_compaction(Frontier.at(6)),  # a page turns, time stands
        ]
        times = []
        for move in moves:
            move()
            view = read.snapshot()
            times.append(view.at)
            assert view is read.snapshot()
            assert (7, 71) in read.lookup(7).rows() if view.at >= 5 else read.lookup(7).rows() == [(7, 70)]
        assert times == [4, 4, 5, 6, 6]
        assert read.since == Frontier.at(6)
        assert read.snapshot().since == Frontier.at(6)
        index.close()
        with pytest.raises(PublicationClosed):
            read.lookup(7)


@pytest.mark.slow
def test_threads_look_up_while_another_closes_and_the_writer_goes_on(held: Instance) -> None:
    index = _sealed(held)
    ended: list[type[BaseException]] = []
    wrong: list[object] = []

    def look(read: Attached) -> None:
        last = 0
        try:
            while True:
                view = read.snapshot()
                if view.at < last or (7, 70) not in view.lookup(7).rows() or read.upper.time < view.at:
                    wrong.append(view)
                last = view.at
        except PublicationClosed as closed:
            ended.append(type(closed))

    for _ in range(8):
        read = attach("u1", held.token)
        threads = [threading.Thread(target=look, args=(read,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            upper = index.upper.time
            index.insert(_rows(((upper, 0), upper, 1)), NO_ERRS, Frontier.at(upper + 1))
            index.advance(Frontier.at(upper + 2))
        read.close()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert (ended, wrong) == ([PublicationClosed] * 24, [])
    index.close()
