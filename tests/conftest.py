"""Around every test: nothing may be left behind. Seeds are printed by the tests that draw them.

A daemon that starts sweeps what dead instances left, those of a test beside it too. So tests marked `alone`
(they leave dead instances on purpose) and tests that start daemons (`e2e`) do not overlap in time.

Several test processes may run side by side; a segment belongs to this one if its instance's token was not
in use elsewhere, which the token file tells: its lock is held by a process of ours or by nobody.
"""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile
import time
from collections.abc import Iterator

import hypothesis
import psutil
import pytest

from tests import leaks

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.load_profile("default")

SETTLE_S = 2.0  # what the reaper may take to unlink after a kill (R1)


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    """What is there before a module's first test stays: collecting garbage after each need not look at it."""
    gc.collect()
    gc.freeze()


def _foreign(names: frozenset[str]) -> frozenset[str]:
    """Names of instances whose control file is held open by a process outside this test process's tree."""
    me = psutil.Process()
    ours = {me.pid, *(child.pid for child in me.children(recursive=True))}
    tokens: set[str] = set()
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        try:
            links = [
                os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")
            ]
        except OSError:
            continue
        tokens.update(
            link.split("clusterd.", 1)[1].split(".")[0]
            for link in links
            if link.startswith("/dev/shm/clusterd.")
        )
    return frozenset(name for name in names if name.startswith("clusterd.") and name.split(".")[1] in tokens)


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """A place among the test processes of this user: e2e tests side by side, `alone` without them."""
    alone = request.node.get_closest_marker("alone") is not None
    if not alone and request.node.get_closest_marker("e2e") is None:
        yield
        return
    stem = os.path.join(tempfile.gettempdir(), f"clusterd-tests-{os.getuid()}")
    with open(f"{stem}.gate", "w") as gate, open(f"{stem}.room", "w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)  # nobody passes one who waits for the room
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.fixture(autouse=True)
def no_leaks(turn: None) -> Iterator[None]:
    before = leaks.snapshot()
    yield
    lines = leaks.leaked(before)
    deadline = time.monotonic() + SETTLE_S
    while lines and time.monotonic() < deadline:
        time.sleep(0.02)
        # Seen, then asked who holds it, then still seen: a name that another process makes or removes
        # meanwhile is in one of the two lists at most.
        seen = set(leaks.leaked(before))
        names = frozenset(os.listdir(leaks.SHM))
        lines = [line for line in leaks.leaked(before, foreign=_foreign(names)) if line in seen]
    assert not lines, "left behind: " + "; ".join(lines)
