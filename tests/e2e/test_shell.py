"""The shell of the test driver at a terminal, with a replica that it launched."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.clusterd.driver.terminal import Terminal, terminal
from tests.e2e.support import ENDS_WITHIN_S, alive, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def _ask(screen: Terminal, stanza: str, answer: str) -> None:
    screen.type(stanza)
    screen.until(f"{answer}\n> ")


@pytest.mark.parametrize("end", ["^D", "hang-up"])
def test_a_cancel_leaves_the_replica_that_was_launched_and_the_end_of_the_shell_ends_it(
    end: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "clusterd.driver_cli", "shell", "--history", str(tmp_path / "history")]
    with terminal(command) as screen:
        assert "a solo replica of its own" in screen.until("\n> ")
        daemon = [child.pid for child in psutil.Process(screen.process.pid).children(recursive=True)]
        assert len(daemon) >= 3
        _ask(screen, "create-instance\n\n", "ok")
        _ask(screen, "initialization-complete\n", "ok")
        _ask(screen, "write-rows shard=s ts=0\n  1 a\n\n", "wrote 1")
        _ask(screen, "define-index source=1000 index=1 shard=s key=[0] as-of=0 upper=1\n", "ok")
        _ask(screen, "schedule id=1\n", "ok")
        for waiting in (
            "await-frontier id=1 ts=9",
            "peek id=1 ts=9",
            "await-published id=2",
            "sleep ms=60000",
        ):
            screen.type(f"{waiting}\n")
            screen.until(f"{waiting}\n")
            screen.type("\x03")
            screen.until("canceled\n> ")
        assert alive(daemon) == daemon
        _ask(screen, "peek id=1 ts=0\n", '1 "a"')
        _ask(screen, "published id=1 fields=since,upper\n", "since=0 upper=1")
        if end == "^D":
            screen.type("\x04")
            assert screen.ended() == 0
        else:
            screen.process.send_signal(signal.SIGHUP)
            assert screen.ended() == 128 + signal.SIGHUP
        wait_until(lambda: not alive(daemon), ENDS_WITHIN_S, "the daemon has ended")
