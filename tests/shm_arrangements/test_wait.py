"""Waiting: a ring is never missed, nobody spins, and whatever ends an index ends the wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shm_arrangements import instance
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach, wait_all
from shm_arrangements.errors import PublicationClosed, WaitTimeout, WriterGone
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

DEADLINE_S = 20
AT_ONCE_S = 0.8  # less than a slice of sleep: somebody rang
I64, TEXT = ColumnType.INT64, ColumnType.TEXT
SCHEMA = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
NOTHING, NO_ERRS = Updates.empty((I64, I64)), Updates.empty((TEXT,))


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance


def _index(held: Instance, id: int = 7) -> IndexWriter:
    index = IndexWriter(SegmentAllocator(held.token, 0), id, 1, SCHEMA, 0)
    index.insert(Updates.from_rows((I64, I64), [((1, 2), 0, 1)]), NO_ERRS, Frontier.at(1))
    return index


class _Waiter:
    """A call in a thread of its own: what it returned or raised, and when."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.result = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def until_asleep(self) -> None:
        """Return once the thread sleeps in a futex."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            with open(f"/proc/self/task/{self._thread.native_id}/syscall") as file:
                call = file.read().split()
            if call[0] == "202" and call[2] == "0x0":  # a shared FUTEX_WAIT: Python's own are private
                return
        raise AssertionError("never slept")

    def join(self) -> float:
        """Wait for the end; how long that took, in seconds."""
        began = time.monotonic()
        self._thread.join(DEADLINE_S)
        assert self.is_over, "still waiting"
        return time.monotonic() - began


pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")


def test_what_is_sealed_already_is_not_waited_for(held: Instance) -> None:
    index = _index(held)
    with attach("u7", held.token) as read:
        assert read.wait(0, timeout_s=0) == Frontier.at(1)
        for wrong in (-1, 1 << 64):
            with pytest.raises(ValueError, match="u64"):
                read.wait(wrong)
    index.close()


def test_a_time_that_does_not_come_is_a_timeout_and_told(held: Instance) -> None:
    index = _index(held)
    with attach("u7", held.token) as read:
        for timeout_s in (0, 0.01):
            with pytest.raises(WaitTimeout) as caught:
                read.wait(1, timeout_s)
            assert isinstance(caught.value, TimeoutError)
            assert (caught.value.facts["time"], caught.value.facts["ids"]) == (1, ["u7"])
    index.close()


@pytest.mark.parametrize("by", ["rows", "nothing", "empty", "errs"])
def test_a_sleeper_wakes_at_once_whatever_moves_the_upper(held: Instance, by: str) -> None:
    index = _index(held)
    with attach("u7", held.token) as read:
        waiter = _Waiter(lambda: read.wait(4, DEADLINE_S))
        waiter.until_asleep()
        index.insert(NOTHING, NO_ERRS, Frontier.at(3))
        index.set_compaction(Frontier.at(1))
        waiter.until_asleep()  # or again
        assert not waiter.is_over
        if by == "rows":
            index.insert(Updates.from_rows((I64, I64), [((1, 2), 4, 1)]), NO_ERRS, Frontier.at(6))
        elif by == "errs":
            index.insert(NOTHING, Updates.from_rows((TEXT,), [(("e: x",), 4, 1)]), Frontier.at(6))
        else:
            index.insert(NOTHING, NO_ERRS, Frontier.at(6) if by == "nothing" else Frontier.empty())
        assert waiter.join() < AT_ONCE_S
        assert waiter.result == (Frontier.empty() if by == "empty" else Frontier.at(6))
    index.close()


def test_an_index_that_is_dropped_ends_the_wait_for_it(held: Instance) -> None:
    index = _index(held)
    with attach("u7", held.token) as read:
        waiter = _Waiter(lambda: read.wait(4, DEADLINE_S))
        waiter.until_asleep()
        index.close()
        assert waiter.join() < AT_ONCE_S
        assert isinstance(waiter.result, PublicationClosed)
        with pytest.raises(PublicationClosed):
            read.wait(4, 0)


def test_bug10_several_are_waited_for_together_and_one_may_be_named_twice(held: Instance) -> None:
    one, two = _index(held, 7), _index(held, 8)
    with attach("u7", held.token) as first, attach("u8", held.token) as second:
        waiter = _Waiter(lambda: wait_all([second, first, first, second], 4, DEADLINE_S))
        waiter.until_asleep()
        one.advance(Frontier.at(9))
        two.advance(Frontier.at(4))
        waiter.until_asleep()
        assert not waiter.is_over
        two.advance(Frontier.at(8))
        assert waiter.join() < AT_ONCE_S
        assert waiter.result == [Frontier.at(8), Frontier.at(9), Frontier.at(9), Frontier.at(8)]
        assert wait_all([], 4) == []
        with pytest.raises(WaitTimeout) as caught:
            wait_all([first, second], 8, 0)
        assert caught.value.facts["ids"] == ["u8"]
        assert caught.value.facts["uppers"] == [second.upper]  # how far it had come
    one.close()
    two.close()


def test_who_releases_an_instance_wakes_those_who_wait(held: Instance) -> None:
    index = _index(held)
    read = attach("u7", held.token)
    waiter = _Waiter(lambda: read.wait(4, DEADLINE_S))
    waiter.until_asleep()
    held.release()
    assert waiter.join() < AT_ONCE_S
    assert isinstance(waiter.result, WriterGone)
    read.close()
    index.close()


def test_a_dead_instance_is_noticed_without_a_ring(held: Instance) -> None:
    index = _index(held)
    read = attach("u7", held.token)
    waiter = _Waiter(lambda: read.wait(4, DEADLINE_S))
    waiter.until_asleep()
    held.abandon()
    assert waiter.join() < 2
    assert isinstance(waiter.result, WriterGone)
    instance.unlink_all(held.token)
    read.close()
    index.close()


WRITER = """
    import os, signal, sys
    from shm_arrangements.arena import SegmentAllocator
    from shm_arrangements.frontier import Frontier
    from shm_arrangements.instance import Instance
    from shm_arrangements.reaper import Reaper
    from shm_arrangements.schema import ArrangementSchema
    from shm_arrangements.types import ColumnSpec, ColumnType
    from shm_arrangements.updates import Updates
    from shm_arrangements.index_writer import IndexWriter

    I64, TEXT = ColumnType.INT64, ColumnType.TEXT
    SCHEMA = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
    held = Instance.create()
    reaper = Reaper.start(held.token)
    index = IndexWriter(SegmentAllocator(held.token, 0), 7, 1, SCHEMA, 0)
    no_errs = Updates.empty((TEXT,))
    index.insert(Updates.from_rows((I64, I64), [((0, 0), 0, 1)]), no_errs, Frontier.at(1))
    print(held.token, reaper.pid, flush=True)
    """


def _writer(body: str) -> tuple[subprocess.Popen[str], str, int]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER) + textwrap.dedent(body)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert len(line) == 2, process.communicate()
    return process, line[0], int(line[1])


@pytest.mark.slow
def test_the_reaper_wakes_those_who_wait_for_a_writer_that_was_killed() -> None:
    process, token, reaper = _writer("sys.stdin.read()")
    read = attach("u7", token)
    waiter = _Waiter(lambda: read.wait(4, DEADLINE_S))
    waiter.until_asleep()
    pidfd = os.pidfd_open(reaper)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    assert waiter.join() < AT_ONCE_S
    assert isinstance(waiter.result, WriterGone)
    read.close()
    assert instance.is_alive(token) is False
    os.close(pidfd)


@pytest.mark.slow
def test_a_wait_is_ended_by_control_c() -> None:
    process, token, _ = _writer("sys.stdin.read()")
    body = f"""
        import sys
        from shm_arrangements.attach import attach
        read = attach("u7", "{token}")
        print("up", flush=True)
        try:
            read.wait(4)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "up\n", reader.communicate()
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with open(f"/proc/{reader.pid}/syscall") as file:
            call = file.read().split()
            if call[0] == "202" and call[2] == "0x0":
                break
    reader.send_signal(signal.SIGINT)
    out, err = reader.communicate(timeout=DEADLINE_S)
    assert (out, err, reader.returncode) == ("interrupted\n", "", 0)
    process.communicate(timeout=DEADLINE_S)


BUSY = """
    sys.stdin.readline()
    for t in range(1, 100_001):
        if t % 1000 == 0:
            index.insert(Updates.from_rows((I64, I64), [((t // 1000, t), t, 1)]), no_errs, Frontier.at(t + 1))
        else:
            index.advance(Frontier.at(t + 1))
        if t % 5000 == 0:
            index.set_compaction(Frontier.at(t - 3000))
            index.reclaim(float(t))
    print("done", flush=True)
    sys.stdin.read()
    """


@pytest.mark.slow
def test_no_reader_sees_an_upper_without_the_rows_before_it() -> None:
    """A row at each thousandth time, the cell alone between: who sees the upper beyond one finds it."""
    process, token, _ = _writer(BUSY)
    assert process.stdin is not None
    looks = moves = 0
    with attach("u7", token) as read:
        process.stdin.write("go\n")
        process.stdin.flush()
        upper = Frontier.at(1)
        deadline = time.monotonic() + 3 * DEADLINE_S
        while upper.time < 100_001:
            assert time.monotonic() < deadline, f"stuck at {upper}"
            before = read.wait(upper.time, DEADLINE_S) if looks % 3 else read.upper
            view = read.snapshot()
            assert view.at >= before.time - 1
            rows = int(view.scan().counts.sum())
            assert rows == 1 + view.at // 1000, f"{rows} rows at {view.at}"
            looks += 1
            moves += Frontier.at(view.at + 1) != upper
            upper = Frontier.at(view.at + 1)
    print(f"{looks} looks, {moves} different")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (out, err) == ("done\n", "")


@pytest.mark.slow
def test_of_ten_thousand_rings_and_answers_none_is_missed(held: Instance) -> None:
    """Each side waits for the other, so one lost ring stops both for a slice."""
    rounds = 10_000
    ping, pong = _index(held, 7), _index(held, 8)
    with attach("u7", held.token) as heard, attach("u8", held.token) as answered:

        def answer() -> None:
            for t in range(1, rounds):
                heard.wait(t, DEADLINE_S)
                pong.advance(Frontier.at(t + 1))

        waiter = _Waiter(answer)
        slowest = 0.0
        for t in range(1, rounds):
            began = time.monotonic()
            ping.advance(Frontier.at(t + 1))
            answered.wait(t, DEADLINE_S)
            slowest = max(slowest, time.monotonic() - began)
        waiter.join()
        assert waiter.result is None
    assert slowest < AT_ONCE_S
    ping.close()
    pong.close()
