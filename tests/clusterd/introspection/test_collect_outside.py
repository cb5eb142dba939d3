"""What the observer sees by itself, of processes that come to an end meanwhile."""

from __future__ import annotations

import subprocess

import msgspec
import psutil
import pytest

from clusterd.introspection.collect_outside import Lookout
from clusterd.introspection.sample import MuxSample
from clusterd.introspection.samples import Samples


def test_a_process_that_ends_while_it_is_looked_at_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "60"])
    threads = psutil.Process.num_threads

    def then_it_ends(process: psutil.Process) -> int:
        count: int = threads(process)
        child.kill()
        child.wait(10)
        return count

    try:
        samples = Samples()
        samples.take(msgspec.msgpack.encode(MuxSample("mux", "mux", child.pid, 0)))
        lookout = Lookout("0" * 16)
        assert [each.pid for each in lookout.look(samples).processes] == [child.pid]
        monkeypatch.setattr(psutil.Process, "num_threads", then_it_ends)
        assert lookout.look(samples).processes == ()
    finally:
        child.kill()
        child.wait(10)
