"""kill -9 at every failpoint: no reader is wrong, and the sweep leaves nothing.

A process writes: it creates, publishes, merges, unlinks, drops. At the k-th time that it comes to a failpoint
it kills itself. Whoever had attached keeps what he had; whoever comes finds the writer gone; what the pages
say is whole and right to the last turn, for those who still had them mapped; and the names can be swept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shm_arrangements import failpoints, instance
from shm_arrangements.attach import Attached, attach
from shm_arrangements.discover import page_names
from shm_arrangements.errors import NoSuchInstance, PublicationClosed, WriterGone
from shm_arrangements.names import HALVES
from shm_arrangements.page_layout import PageStatus
from shm_arrangements.read import scan_at
from shm_arrangements.snapshot import PublishedTrace
from shm_arrangements.verify import verify_pages
from shm_arrangements.view import ReadView

pytestmark = [pytest.mark.alone, pytest.mark.slow]

DEADLINE_S = 60
KEYS = 700
POINTS = sorted(failpoints.OURS)

# For each line `POINT K` it forks a writer, which tells its token, waits for a line, and then works until it
# comes to POINT for the K-th time; it tells when it begins to close its indexes. After its end the server
# tells how it ended: its status, or minus the signal.
SERVER = """
    import os, signal, sys
    from shm_arrangements import failpoints
    from shm_arrangements.arena import SegmentAllocator
    from shm_arrangements.frontier import Frontier
    from shm_arrangements.instance import Instance
    from shm_arrangements.schema import ArrangementSchema
    from shm_arrangements.types import ColumnSpec, ColumnType
    from shm_arrangements.updates import Updates
    from shm_arrangements.index_writer import IndexWriter, advance_idle

    I64, KEYS = ColumnType.INT64, int(sys.argv[1])
    SCHEMA = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
    NO_ERRS = Updates.empty((ColumnType.TEXT,))
    NOTHING = Updates.empty((I64, I64))

    def line():
        read = b""
        while not read.endswith(b"\\n"):
            byte = os.read(0, 1)
            if not byte:
                os._exit(0)
            read += byte
        return read.decode().split()

    def tell(*words):
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    def tick(index, t):
        # At time t every key's value is t: a read that mixes two times shows.
        rows = [((k, t), t, 1) for k in range(KEYS)] + [((k, t - 1), t, -1) for k in range(KEYS) if t]
        index.insert(Updates.from_rows((I64, I64), rows), NO_ERRS, Frontier.at(t + 1))
        index.set_compaction(Frontier.at(max(t - 2, 0)))

    def write(point, at):
        held = Instance.create()
        allocator, other = SegmentAllocator(held.token, 0), SegmentAllocator(held.token, 1)
        ballast = allocator.allocate(16 << 20)  # so that arenas are long and ticks are small
        ballast.seal()
        quiet = IndexWriter(allocator, 2, 1, SCHEMA, 0)
        quiet.insert(Updates.from_rows((I64, I64), [((7, 70), 0, 1)]), NO_ERRS, Frontier.at(1))
        index = IndexWriter(allocator, 1, 1, SCHEMA, 0, name="ticks")
        for t in range(5):
            tick(index, t)
        tell(held.token)
        line()
        seen = 0

        def hit(name):
            nonlocal seen
            if name == point:
                seen += 1
                if seen == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        failpoints.hit = hit
        for t in range(5, 65):
            tick(index, t)
            advance_idle([quiet], Frontier.at(t + 1))
            for one in (index, quiet):
                one.reclaim(float(t))
            if t % 12 == 0:
                short = IndexWriter(other, 100 + t, 1, SCHEMA, 0)
                for s in range(4):
                    tick(short, s)
                short.publish_as(200 + t, 1)
                short.withdraw(100 + t, 1)
                short.advance(Frontier.at(9))
                short.close()
                large = allocator.allocate(8 << 20, deferred=True)
                for upto in range(1 << 20, 9 << 20, 1 << 20):
                    large.reserve(upto)
                large.abandon()
            if t % 20 == 0:
                while index.exert(1 << 20):
                    pass
        tell("closing")
        index.close()
        quiet.close()
        allocator.free(ballast.locator)
        held.release()
        os._exit(min(seen, 255))

    while True:
        point, at = line()
        child = os.fork()
        if child == 0:
            try:
                write(point, int(at))
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(255)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """


class Server:
    """Starts writers. One warm process for all of them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SERVER), str(KEYS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def start(self, point: str, at: int) -> str:
        """Returns the token of the writer's instance."""
        self.say(f"{point} {at}")
        return self.line()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, self._process.communicate(timeout=DEADLINE_S)
        return line

    def close(self) -> None:
        _, err = self._process.communicate(timeout=DEADLINE_S)
        assert (self._process.returncode, err) == (0, "")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def _require_right(columns: Any, counts: Any, at: int) -> None:
    keys, values = columns[0].values, columns[1].values
    assert np.array_equal(np.sort(keys), np.arange(KEYS))
    assert (values == at).all()
    assert (counts == 1).all()


def _require_view_right(view: ReadView) -> None:
    found = view.scan()
    _require_right(found.raw_columns(), found.counts, view.at)
    assert view.lookup(7).rows() == [(7, view.at)]


def _require_pages_right(token: str) -> None:
    """What the last turn of each page said, to who maps it before the sweep."""
    damages = [damage for verdict in verify_pages(token) for damage in verdict.damages]
    assert not damages
    for name in page_names(token):
        if name.half != HALVES[0]:
            continue
        try:
            trace = PublishedTrace(name)
            if trace.read().status is not PageStatus.LIVE:
                continue
            snapshot = trace.snapshot()
        except PublicationClosed:  # not made yet, or on its way out
            continue
        at = snapshot.upper.time - 1
        columns, counts = scan_at(snapshot.batches(), at, schema=snapshot.schema)
        if name.id == 2:
            assert [column.values.tolist() for column in columns] == [[7], [70]]
        else:
            _require_right(columns, counts, min(at, 3) if name.id > 2 else at)
        trace.close()


def _require_gone(read: Attached, token: str, *, dropped: bool) -> None:
    """`dropped`: the writer had begun to close the index, and may have said so on its page."""
    with pytest.raises((WriterGone, PublicationClosed) if dropped else WriterGone):
        read.snapshot()
    for name in ("u1", "ticks"):
        with pytest.raises((WriterGone, NoSuchInstance)):
            attach(name, token)


def _kill_at(server: Server, point: str, at: int) -> bool:
    """One case; whether the writer came to the point so often."""
    token = server.start(point, at)
    with attach("u1", token) as read:
        view = read.snapshot()
        column = view.scan().column("v")
        _require_view_right(view)
        server.say("go")
        said = server.line()
        closing = said == "closing"
        status = int(server.line() if closing else said)
        if status >= 0:
            assert status < at, "the writer failed"
            assert not instance.names_of(token)
            return False
        assert status == -signal.SIGKILL
        _require_view_right(view)
        _require_gone(read, token, dropped=closing)
        _require_pages_right(token)
        assert token in instance.sweep()
        assert not [name for name in os.listdir("/dev/shm") if token in name]
        _require_gone(read, token, dropped=closing)
        _require_view_right(view)
        assert (column == view.at).all()
    return True


@pytest.mark.parametrize("point", POINTS)
def test_a_writer_killed_at_a_failpoint_leaves_no_reader_wrong_and_nothing_after_the_sweep(
    server: Server, point: str
) -> None:
    assert _kill_at(server, point, 1), f"the writer of this test never comes to {point}: let it"


@pytest.mark.soak
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_may_be_killed_there_any_time(server: Server, point: str) -> None:
    at, step = 2, 1
    while at < 200 and _kill_at(server, point, at):
        at, step = at + step, step + 1
    print(f"{point}: killed up to the {at - step}th time")
