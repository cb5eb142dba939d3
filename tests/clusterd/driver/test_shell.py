"""The shell: stanzas typed, cancelled and completed; at a terminal of its own where that matters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterd.driver.completion import complete
from clusterd.driver.driver import DIRECTIVES, carry_out
from clusterd.driver.help import help_lines
from clusterd.driver.interrupts import Interrupts
from clusterd.driver.shell import Shell
from clusterd.driver.state import Run
from clusterd.storage.store import Store
from controller_proto.command import CancelPeek, Command, Peek
from controller_proto.response import PeekCanceled, PeekResponse, PeekRows, Response
from tests.clusterd.driver.fake import fake_replica
from tests.clusterd.driver.terminal import terminal


def _react(command: Command) -> list[Response]:
    """Peeks at 0 are answered, later ones when they are cancelled."""
    if isinstance(command, Peek) and command.time == 0:
        return [PeekResponse(command.uuid, PeekRows(((1,), ("a",)), (1,)), 0)]
    if isinstance(command, CancelPeek):
        return [PeekResponse(command.uuid, PeekCanceled())]
    return []


@contextmanager
def _run(tmp_path: Path) -> Iterator[Run]:
    with fake_replica(tmp_path / "socket", _react) as replica:
        run = Run(replica.address, store=Store.open(tmp_path / "data"), timeout_s=10.0)
        try:
            yield run
        finally:
            run.close()


def _talk(run: Run, *lines: str | Callable[[], None]) -> list[str]:
    """What is asked and shown; a function among the lines is called where it stands."""
    left, shown = list(lines), []

    def read(prompt: str) -> str:
        while left:
            item = left.pop(0)
            if isinstance(item, str):
                shown.append(prompt + item)
                return item
            item()
        raise EOFError

    Shell(run, read, shown.append).loop()
    return shown


BOOT = ("create-instance", "", "initialization-complete")
INDEX = "define-index source=1000 index=1 shard=s key=[0] as-of=0 upper=1"


def test_a_stanza_is_carried_out_when_it_is_complete(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        shown = _talk(
            run, "create-instance", "  max_result_bytes u64 1000", "# a comment", "----",
            "", "# another", "initialization-complete", INDEX, "peek id=1 ts=0", "exit", "never",
        )  # fmt: skip
        assert shown == [
            "> create-instance", ".   max_result_bytes u64 1000", ". # a comment", ". ----", "ok",
            "> ", "> # another", "> initialization-complete", "ok", f"> {INDEX}", "ok",
            "> peek id=1 ts=0", '1 "a"', "> exit",
        ]  # fmt: skip
        assert run.config == {"max_result_bytes": 1000}


def test_a_body_is_asked_for_only_where_it_can_be_of_use(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        shown = _talk(
            run, *BOOT, "create-dataflow asof=0", "explain ref=x", "send-raw hex=zz", "peek id=[", "x",
            "explain", "  import source=1000 shard=s upper=1", "  export index=2 on=1000 key=[0]", "",
            "on conn=main", "connect as=r kind=reader", "require mode=solo",
        )  # fmt: skip
        assert shown[5:] == [
            "> create-dataflow asof=0",
            "error: bad-message: create-dataflow does not take asof=; did you mean as-of=?",
            "> explain ref=x",
            "error: unknown-id: no dataflow is called 'x'",
            "> send-raw hex=zz",
            "error: bad-message: hex=: non-hexadecimal number found in fromhex() arg at position 0",
            "> peek id=[",
            "error: bad-message: ] is missing in 'peek id=['",
            "> x",
            "error: bad-message: no directive is called 'x'; there are " + ", ".join(DIRECTIVES),
            "> explain",
            ".   import source=1000 shard=s upper=1",
            ".   export index=2 on=1000 key=[0]",
            ". ",
            "Export index u2 on=u1000 key=[#0]",
            "  Source u1000",
            "> on conn=main",
            "ok",
            "> connect as=r kind=reader",
            "ok",
            "r> require mode=solo",
            "skip: requires mode=solo",
        ]


def test_an_error_shows_its_hint(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        shown = _talk(run, "schedule id=x1")
        assert shown[1:] == ["error: unknown-id: 'x1' is not an id", "hint: write u1001, s1 or t7"]


def test_help_tells_of_all_directives_or_all_of_one(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        shown = "\n".join(_talk(run, "help"))
        assert all(name in shown for name in DIRECTIVES)
        assert _talk(run, "help pek")[1:] == ["no directive is called 'pek'; did you mean peek?"]
    for name, directive in DIRECTIVES.items():
        assert help_lines(name)[0] == f"{name} {directive.usage}".rstrip()
        assert max(map(len, help_lines(name))) < 240


def test_an_interrupt_cancels_what_is_typed_or_what_waits(tmp_path: Path) -> None:
    with _run(tmp_path) as run:

        def interrupt() -> None:
            run.interrupts.strike(2, None)

        shown = _talk(run, *BOOT, INDEX, "create-dataflow as-of=0", "  import index=1", interrupt, interrupt)
        assert shown[-3:] == [".   import index=1", "canceled", "canceled"]
        assert _talk(run, "peek id=1 ts=0") == ["> peek id=1 ts=0", '1 "a"']

        # Kept from before the wait, it strikes when the peek is waited for; the replica is told.
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            carry_out(run, "peek id=1 ts=9")
        assert carry_out(run, "quiet ms=20 kind=peek") == ["ok"]
        assert carry_out(run, "peek id=1 ts=0") == ['1 "a"']
        assert isinstance(run.session.answers["p2"].result, PeekCanceled)


def test_an_interrupt_strikes_where_it_may_and_the_second_one_anywhere() -> None:
    interrupts = Interrupts()
    interrupts.strike(2, None)
    with pytest.raises(KeyboardInterrupt), interrupts.may_strike():
        raise AssertionError("the one that was kept comes first")
    with interrupts.may_strike(), pytest.raises(KeyboardInterrupt):
        interrupts.strike(2, None)
    interrupts.strike(2, None)
    interrupts.forget()
    with interrupts.may_strike():
        pass
    interrupts.strike(2, None)
    with pytest.raises(KeyboardInterrupt):
        interrupts.strike(2, None)


def test_directives_arguments_ids_and_names_are_completed(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        _talk(
            run, *BOOT, INDEX,
            "define-schema name=fruit", "  a text", "", "write-rows shard=s ts=0", "  1 a", "",
            "create-dataflow as-of=0 name=totals", "import index=1", "export index=t5 on=1000 key=[0]", "",
            "start-peek name=slow id=1 ts=9", "connect as=beside kind=reader",
        )  # fmt: skip

        def typed(line: str, *above: str) -> list[str]:
            return complete(run, above, line)

        assert typed("aw") == [
            "await-frontier ", "await-subscribe ", "await-copy ", "await-status ", "await-published ",
            "await-gone ", "await-peek ", "await-exit ",
        ]  # fmt: skip
        assert typed("he") == ["help "]
        assert typed("help await-ex") == ["await-exit"]
        assert typed("await-frontier ") == ["id=", "ts=", "timeout-secs=", "allow-timeout "]
        assert typed("await-frontier id=1 allow-timeout t") == ["ts=", "timeout-secs="]
        assert typed("await-frontier id=") == ["u1 ", "t5 "]
        assert typed("peek id=1 ts=l") == ["latest "]
        assert typed("quiet ms=5 kind=") == ["frontiers ", "peek ", "subscribe "]
        assert typed("quiet ms=") == []
        assert typed("await-peek name=") == ["slow "]
        assert typed("create-dataflow name=") == []
        assert typed("explain ref=t") == ["totals "]
        assert typed("on conn=") == ["main ", "beside "]
        assert typed("write-rows shard=") == ["s "]
        assert typed("write-rows schema=") == ["fruit "]
        assert typed("nothing ") == []

        assert typed("max_result_b", "create-instance") == ["max_result_bytes "]
        assert typed("  max_result_bytes ", "create-instance") == ["u64 "]
        assert typed("  read_routing string i", "update-configuration") == ["interactive"]
        assert typed("  a ti", "define-schema name=x") == ["time", "timestamp", "timestamptz"]
        assert typed("  a time n", "define-schema name=x") == ["nullable"]
        above = ("create-dataflow as-of=0", "  import source=1000 shard=s upper=1", "  build id=u9")
        assert typed("  imp", *above) == ["import "]
        assert typed("    Red", *above) == ["Reduce "]
        assert typed("      Get ", *above) == ["1000", "u9"]
        assert typed("  import shard=", *above) == ["s "]
        assert typed("  import index=", *above) == ["u1 ", "t5 "]
        assert typed("  export kind=s", *above) == ["subscribe "]
        assert typed("  export index=3 on=", *above) == ["1000 ", "u9 "]
        assert "key=" in typed("  export index=3 ", *above)
        assert typed("  Filter #0", *above) == []


def _driver(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "clusterd.driver_cli", *arguments]


@pytest.mark.slow
def test_at_a_terminal_lines_are_completed_kept_and_cancelled(tmp_path: Path) -> None:
    history = tmp_path / "state" / "history"
    with fake_replica(tmp_path / "socket", _react) as replica:
        command = _driver(
            "shell", "--connect", replica.address, "--as", "controller", "--history", str(history)
        )
        with terminal(command) as screen:
            assert "as a controller" in screen.until("\n> ")
            screen.type("create-inst\t\n")
            screen.until("create-instance \n. ")
            screen.type("\n")
            screen.until("ok\n> ")
            screen.type(f"initialization-complete\n{INDEX}\n")
            screen.until("ok\n> ")
            screen.until("ok\n> ")
            screen.type("peek i\t")
            screen.until("id=")
            screen.type("u\t")
            screen.until("u1 ")
            screen.type("ts=0\n")
            screen.until('1 "a"\n> ')
            screen.type("create-dataflow as-of=0\nimport")
            screen.until("import")
            screen.type("\x03")
            screen.until("canceled\n> ")
            screen.type("peek id=1 ts=9\n")
            screen.until("ts=9\n")
            screen.type("\x03")
            screen.until("canceled\n> ")
            screen.type("peek id=1 ts=0\n")
            screen.until('1 "a"\n> ')
            screen.type("\x04")
            assert screen.ended() == 0
        assert isinstance(replica.heard[-2], Peek)
        with terminal(command) as screen:
            screen.until("\n> ")
            screen.type("\x10")  # ^P: the line before
            screen.until("peek id=1 ts=0")
            os.kill(screen.process.pid, 15)
            assert screen.ended() == 128 + 15
    assert history.read_text().splitlines()[:4] == [
        "create-instance ", "initialization-complete", INDEX, "peek id=u1 ts=0",
    ]  # fmt: skip


# A signal of which Python knows and that interrupts nothing, as one does that comes right before a wait.
_SILENT_SIGNALS = """
import _thread, sys, threading
from clusterd.driver_cli import main
fifo = sys.argv.pop(1)
def trip():
    for number in open(fifo, "rb").read():
        _thread.interrupt_main(number)
threading.Thread(target=trip, daemon=True).start()
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_right_before_a_key_is_waited_for_does_not_wait_for_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with fake_replica(tmp_path / "socket", _react) as replica:
        command = [sys.executable, "-c", _SILENT_SIGNALS, str(fifo), "shell", "--connect", replica.address]
        with terminal([*command, "--history", str(tmp_path / "history")]) as screen:
            screen.until("\n> ")
            screen.type("pee")
            screen.until("pee")
            fifo.write_bytes(bytes([number]))
            if number == signal.SIGINT:
                screen.until("canceled\n> ")
                screen.type("\x04")
                assert screen.ended() == 0
            else:
                assert screen.ended() == 128 + 15


@pytest.mark.slow
def test_without_a_terminal_stanzas_are_read_from_stdin_and_nothing_is_asked(tmp_path: Path) -> None:
    with fake_replica(tmp_path / "socket", _react) as replica:
        done = subprocess.run(
            _driver("shell", "--connect", replica.address, "--as", "controller"),
            input="create-instance\n\ninitialization-complete\nquiet ms=0",
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\nok\nok\n", "")
