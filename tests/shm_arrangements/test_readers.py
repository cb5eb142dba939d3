"""Readers: counted while they hold something, gone when they have ended, and never waited for."""

from __future__ import annotations

import errno
import gc
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shm_arrangements import readers
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach
from shm_arrangements.discover import list_publications
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id
from shm_arrangements.readers import ReaderInfo, list_readers
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

DEADLINE_S = 30
FREED_WITHIN_S = 2.0  # BUG12
I64, TEXT = ColumnType.INT64, ColumnType.TEXT
SCHEMA = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
NO_ERRS = Updates.empty((TEXT,))


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as made:
        yield made


def _index(held: Instance, keys: int = 20_000) -> IndexWriter:
    index = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u1"), 1, SCHEMA, 0)
    index.insert(_updates(0, keys), NO_ERRS, Frontier.at(1))
    return index


def _updates(time: int, keys: int) -> Updates:
    return Updates.from_rows((I64, I64), [((key, key + time), time, 1) for key in range(keys)])


def _only(token: str) -> ReaderInfo:
    (info,) = list_readers(token)
    return info


def _rows(token: str) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"clusterd.{token}.r.")]


def test_a_reader_is_listed_with_what_it_holds_until_it_holds_nothing(held: Instance) -> None:
    index = _index(held)
    assert list_readers(held.token) == ()
    read = attach("u1", held.token)
    info = _only(held.token)
    assert (info.pid, info.snapshots, info.pinned_bytes) == (os.getpid(), 0, 0)
    assert (info.oldest_time, info.oldest_age_s) == (None, None)
    view = read.snapshot()
    info = _only(held.token)
    assert (info.snapshots, info.oldest_time) == (1, 0)
    assert info.oldest_age_s is not None
    assert 0 <= info.oldest_age_s < DEADLINE_S
    assert info.pinned_bytes >= 20_000 * 8
    assert read.snapshot() is view
    assert _only(held.token).snapshots == 1
    index.insert(_updates(1, 20_000), NO_ERRS, Frontier.at(2))
    newer = read.snapshot()
    info = _only(held.token)
    assert (info.snapshots, info.oldest_time) == (2, 0)
    del view
    info = _only(held.token)
    assert (info.snapshots, info.oldest_time) == (1, 1)
    read.close()
    assert _only(held.token).snapshots == 1
    del read, newer
    gc.collect()
    assert list_readers(held.token) == ()
    assert not _rows(held.token)
    index.close()


def test_an_array_that_outlives_its_view_still_pins_its_memory(held: Instance) -> None:
    index = _index(held)
    read = attach("u1", held.token)
    column = read.scan().column("v")
    read.close()
    gc.collect()
    info = _only(held.token)
    assert (info.snapshots, info.pinned_bytes >= column.nbytes) == (0, True)
    del column
    gc.collect()
    assert list_readers(held.token) == ()
    index.close()


def test_several_attachments_of_a_process_are_one_reader(held: Instance) -> None:
    index = _index(held)
    first, second = attach("u1", held.token), attach("u1", held.token)
    views = [first.snapshot(), second.snapshot()]
    assert _only(held.token).snapshots == 2
    first.close()
    assert len(_rows(held.token)) == 1
    del views, second  # without a close
    gc.collect()
    assert not _rows(held.token)
    index.close()


def test_lookups_make_no_new_snapshot_to_count(held: Instance) -> None:
    index = _index(held)
    with attach("u1", held.token) as read:
        for key in range(10):
            read.lookup(key)
        assert _only(held.token).snapshots == 1
    index.close()


def test_a_snapshot_costs_little_to_count() -> None:
    class View:
        pass

    attachment, token = View(), "0" * 12
    reader = readers.Reader(token)
    reader._may_make = False
    reader._note(readers._ATTACHMENT, attachment, 0)
    reader._may_make = False
    best = float("inf")
    for _ in range(20):
        views = [View() for _ in range(1000)]
        begun = time.perf_counter()
        for view in views:
            reader.took(view, 1, (1, 1), 100)
        best = min(best, (time.perf_counter() - begun) / 1000)
        del view
        views.clear()
    print(f"{best * 1e6:.2f} us a snapshot")
    assert not reader._views
    assert best < 10e-6  # 2 us on a free core; the bound is for one that is not


READER = """
    import sys
    from shm_arrangements.attach import attach
    read = attach("u1", sys.argv[1])
    view = read.snapshot()
    column = view.scan().column("v")
    print("holds", flush=True)
    sys.stdin.readline()
    """


def _reader(token: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(READER), token],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n", process.communicate()
    return process


def _mapped(token: str) -> list[str]:
    """Batches of the instance that some process maps although their names are gone."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:
            continue
        found += [line for line in text.splitlines() if f"clusterd.{token}.b" in line and "(deleted)" in line]
    return found


@pytest.mark.slow
def test_bug12_a_killed_reader_pins_nothing_and_delayed_nobody(held: Instance) -> None:
    index = _index(held)
    process = _reader(held.token)
    info = _only(held.token)
    assert (info.pid, info.snapshots) == (process.pid, 1)
    assert info.pinned_bytes >= 20_000 * 8
    # What it holds is merged away and unlinked all the same.
    first = index.oks.page.state.chain[0].locator(held.token)
    assert first is not None
    for t in range(1, 40):
        index.insert(_updates(t, 3_000), NO_ERRS, Frontier.at(t + 1))
        index.set_compaction(Frontier.at(t))
        index.reclaim(float(t))
    while index.exert(1 << 20):
        pass
    index.reclaim(1000.0)
    index.reclaim(2000.0)
    assert not Path(f"/dev/shm/{first.name}").exists()
    assert _mapped(held.token)
    assert _only(held.token).snapshots == 1
    killed = time.monotonic()
    process.kill()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert err == ""
    assert len(_rows(held.token)) == 1
    assert sum(one.pinned_bytes for one in list_readers(held.token)) == 0
    assert not _rows(held.token)
    assert not _mapped(held.token)
    assert time.monotonic() - killed < FREED_WITHIN_S
    index.close()


@pytest.mark.slow
def test_a_reader_that_ends_in_order_removes_its_own_row(held: Instance) -> None:
    index = _index(held)
    process = _reader(held.token)
    assert len(_rows(held.token)) == 1
    out, err = process.communicate("\n", timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (0, "", "")
    assert not _rows(held.token)
    index.close()


@pytest.mark.slow
def test_the_next_reader_removes_the_rows_of_those_that_were_killed(held: Instance) -> None:
    index = _index(held)
    for _ in range(2):
        process = _reader(held.token)
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        assert len(_rows(held.token)) == 1
    with attach("u1", held.token):
        assert [info.pid for info in list_readers(held.token)] == [os.getpid()]
        assert len(_rows(held.token)) == 1
    index.close()


def test_the_rows_go_with_the_instance(held: Instance) -> None:
    index = _index(held)
    read = attach("u1", held.token)
    assert _rows(held.token)
    held.release()
    assert not _rows(held.token)
    read.close()
    index.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_without_room_for_a_row_a_reader_reads_and_is_counted_later(
    held: Instance, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    index = _index(held)

    def no_room(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr(readers, "_create", no_room)
        read = attach("u1", held.token)
        assert read.lookup(7).rows() == [(7, 7)]
        assert list_readers(held.token) == ()
    assert read.lookup(7).rows() == [(7, 7)]
    with attach("u1", held.token):
        assert _only(held.token).snapshots == 1
    read.close()
    del read
    gc.collect()
    assert not _rows(held.token)
    index.close()


def test_creation_that_fails_leaves_no_row(held: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match="full"):
        readers._create(held.token)
    assert not _rows(held.token)


def test_a_forked_child_has_a_row_of_its_own(held: Instance) -> None:
    index = _index(held)
    read = attach("u1", held.token)
    view = read.snapshot()
    told, tell = os.pipe()
    go, start = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from 3.12 on: the child uses none
        child = os.fork()
    if child == 0:
        status = 1
        try:
            mine = attach("u1", held.token)
            more = mine.snapshot()
            os.write(tell, b"holds")
            os.read(go, 1)
            status = 0 if more.at == view.at else 2
        finally:
            os._exit(status)
    assert os.read(told, 5) == b"holds"
    rows = {info.pid: info for info in list_readers(held.token)}
    assert set(rows) == {os.getpid(), child}
    assert rows[os.getpid()].snapshots == 1
    assert rows[child].snapshots == 2
    os.write(start, b".")
    assert os.waitpid(child, 0)[1] == 0
    for fd in (told, tell, go, start):
        os.close(fd)
    assert [info.pid for info in list_readers(held.token)] == [os.getpid()]
    del view
    read.close()
    index.close()


def test_a_row_has_the_documented_bytes(held: Instance) -> None:
    index = _index(held)
    with attach("u1", held.token) as read:
        view = read.snapshot()
        (name,) = _rows(held.token)
        assert name == f"clusterd.{held.token}.r.{os.getpid()}.0"
        image = Path(f"/dev/shm/{name}").read_bytes()
        assert Path(f"/dev/shm/{name}").stat().st_mode & 0o777 == 0o600
        magic, version, pid, started, token = struct.unpack_from("<8sIIQ12s", image)
        assert (magic, version, pid, token.decode()) == (b"CLSTRRDR", 2, os.getpid(), held.token)
        assert started == _only(held.token).started > 0
        views, pinned, at, since_ns = struct.unpack_from("<4Q", image, 64)
        assert (views, at, pinned) == (1, view.at, _only(held.token).pinned_bytes)
        assert 0 < since_ns <= time.monotonic_ns()
        (pin,) = _only(held.token).pins
        words = collection_id("u1"), pin.incarnation, pin.views, pin.nbytes
        assert struct.unpack_from("<8Q", image, 128) == (*words, 0, 0, 0, 0)
    index.close()


def test_what_is_no_row_is_not_listed_and_what_nobody_holds_is_removed(held: Instance) -> None:
    path = Path(f"/dev/shm/clusterd.{held.token}.r.1.0")
    path.write_bytes(b"CLSTRRDR")
    assert list_readers(held.token) == ()
    assert not path.exists()
    with path.open("wb") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        for image in (b"", b"CLSTRRDR" + bytes(200)):
            file.write(image)
            file.flush()
            assert list_readers(held.token) == ()
        assert path.exists()


@pytest.mark.slow
def test_events_from_many_threads_and_from_the_collector_are_all_counted(held: Instance) -> None:
    import threading

    class View:
        def __init__(self) -> None:
            self.itself = self  # let go by the collector, at a moment of its own

    owner = View()
    reader = readers.enter(held.token, owner)
    threshold = gc.get_threshold()
    gc.set_threshold(7)

    def work() -> None:
        for at in range(4_000):
            reader.took(View(), at, (7, 1), 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert _only(held.token).snapshots == 0
    reader.leave(owner)
    assert not _rows(held.token)


def test_a_signal_that_kills_the_lister_leaves_the_rows_of_others(held: Instance) -> None:
    index = _index(held)
    with attach("u1", held.token):
        code = "import os, sys; from shm_arrangements.readers import list_readers; list_readers(sys.argv[1]);"
        done = subprocess.run(
            [sys.executable, "-c", code + "os.kill(os.getpid(), 9)", held.token],
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        assert len(_rows(held.token)) == 1
    index.close()


def test_a_reader_says_of_which_indexes_it_holds_memory(held: Instance) -> None:
    one, two = _index(held), IndexWriter(SegmentAllocator(held.token, 1), collection_id("u2"), 3, SCHEMA, 0)
    two.insert(_updates(0, 10), NO_ERRS, Frontier.at(1))
    with attach("u1", held.token) as first, attach("u2", held.token) as second:
        views = [first.snapshot(), first.snapshot(0), second.snapshot()]
        (row,) = list_readers(held.token)
        sizes = {info.id: info.nbytes for info in list_publications(held.token)}
        assert [(pin.id, pin.incarnation, pin.nbytes) for pin in row.pins] == [
            ("u1", 1, sizes["u1"]), ("u2", 3, sizes["u2"]),
        ]  # fmt: skip
        assert [pin.views for pin in row.pins] == [len({id(view) for view in views[:2]}), 1]
        one.close()
        first._newest = None
        del views[:2]
        gc.collect()
        (row,) = list_readers(held.token)
        assert [pin.id for pin in row.pins] == ["u2"]
        again = second.snapshot(0)
        (row,) = list_readers(held.token)
        assert [(pin.id, pin.views) for pin in row.pins] == [("u2", len({id(again), id(views[0])}))]
        del again, views
    two.close()
