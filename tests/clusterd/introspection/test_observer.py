"""The observer in this process: what it does where there is no room, and when the clock goes back."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import multiprocess
import pytest

from clusterd.config import Config
from clusterd.introspection import observer as observing
from clusterd.introspection.collect_outside import Lookout
from clusterd.introspection.exports import EXPORTS
from clusterd.introspection.observer import Observer
from clusterd.introspection.page import ProgressPage
from clusterd.introspection.sample import MuxSample, Outside
from clusterd.introspection.samples import Samples
from clusterd.process import ComputeRuntimeRole, WorkerSpec
from shm_arrangements import read
from shm_arrangements.errors import ShmExhausted
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from tests.clusterd.runtime.shell import Pipe

pytestmark = pytest.mark.slow


class Bed:
    """An observer, the page of a multiplexer that it reads, and the events that were told."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[object] = []
        monkeypatch.setattr(observing, "emit", self.told.append)
        self.instance = Instance.create()
        self._sockets = socket.socketpair()
        self._heard, ring = multiprocess.Pipe(duplex=False)
        self.ring = ring.fileno()
        self._ring = ring
        spec = WorkerSpec(
            ComputeRuntimeRole.INTROSPECTION, 0, Pipe(self._sockets[0]), Pipe(self._sockets[0]),
            self.instance.token, str(tmp_path), os.getppid(), 0, Config(), ring=self._heard,
        )  # fmt: skip
        self.observer = Observer(spec)
        self.page = ProgressPage(self.instance.token, "mux")

    def close(self) -> None:
        self.page.close()
        self.observer.close()
        self._heard.close()
        self._ring.close()
        for end in self._sockets:
            end.close()
        self.instance.release()

    def say(self, sessions: int) -> None:
        sample = MuxSample("mux", "mux", os.getpid(), time.time_ns() // 1_000_000, sessions)
        self.page.write(msgspec.msgpack.encode(sample))
        os.write(self.ring, b"!")

    def look(self) -> None:
        """A turn whose pause is over."""
        self.observer._read_s = -1e9
        self.observer.turn()

    def index(self, name: str) -> IndexWriter:
        return self.observer.owned[EXPORTS[name].id, 1]

    def sessions(self) -> list[float]:
        """What the metric of that name is at the newest time."""
        reader = self.index("metrics").reader().oks
        columns, _ = read.scan_at(reader.batches(), self.index("metrics").upper.time - 1)
        names, values = columns[0].to_pylist(), columns[-1].to_pylist()
        return [value for name, value in zip(names, values, strict=True) if name == "clusterd_sessions"]


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    made = Bed(tmp_path, monkeypatch)
    yield made
    made.close()


def test_all_relations_are_sealed_together_and_time_never_goes_back(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    uppers = []
    for now_ms in (1_000, 1_000, 400, 2_000):

        def look(self: Lookout, samples: Samples, now_ms: int = now_ms) -> Outside:
            self.seen = Outside(now_ms)
            return self.seen

        monkeypatch.setattr(Lookout, "look", look)
        bed.say(now_ms)
        bed.look()
        upper = {bed.observer.owned[export.id, 1].upper for export in EXPORTS.values()}
        assert len(upper) == 1
        uppers += [each.time for each in upper]
    assert uppers == [1_001, 1_002, 1_003, 2_001]


def test_what_there_was_no_room_for_is_told_once_there_is_and_said_once(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.say(1)
    bed.look()
    assert bed.sessions() == [1.0]

    def full(*args: object) -> None:
        raise ShmExhausted("no room in shared memory", asked_bytes=1, free_bytes=0)

    with monkeypatch.context() as patched:
        patched.setattr(IndexWriter, "insert", full)
        bed.say(2)
        bed.look()
        bed.look()  # again, with no ring
    assert [type(event).__name__ for event in bed.told] == ["IntrospectionBehind"]
    assert bed.observer.timeout_ms() is not None
    bed.look()
    assert bed.sessions() == [2.0]
    assert bed.index("metrics").upper != Frontier.minimum()


def test_without_a_descriptor_the_figures_stay_and_the_replica_lives(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*args: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Lookout, "look", none_left)
        bed.say(1)
        bed.look()
    assert [type(event).__name__ for event in bed.told] == ["IntrospectionBehind"]
    bed.look()
    assert bed.sessions() == [1.0]
