"""The language of scripts, a stanza at a time, at a terminal.

A stanza is carried out when it is complete: a directive without a body at once, one with a body at an empty
line. What it says it takes is checked before its body is asked for. ^C cancels what is typed, or what waits
(interrupts.py says where it may strike); the end of the input ends the shell.

Does not: launch or stop a replica (run.py does), know any directive.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from clusterd.driver.completion import DELIMITERS, complete
from clusterd.driver.driver import DIRECTIVES, carry_out
from clusterd.driver.help import help_lines
from clusterd.driver.state import Run, Skip
from clusterd.driver.wakeups import interrupt_waits
from controller_proto.errors import LocalProtocolError
from controller_proto.script import Stanza, split_words

__all__ = ["Shell", "shell"]

_KEPT_LINES = 2_000  # of the history file
_SIGNALLED = 128  # a shell's exit status for a signal begins here

Read = Callable[[str], str]


class Shell:
    """read: the next line, after a prompt; raises EOFError at the end. write: a line of output."""

    def __init__(self, run: Run, read: Read, write: Callable[[str], None]) -> None:
        self._run = run
        self._read = read
        self._write = write
        self._typed: list[str] = []  # the lines of the stanza so far

    def loop(self) -> None:
        """Until the end of the input, or `exit`."""
        while True:
            try:
                if not self._one():
                    return
            except KeyboardInterrupt:
                self._write("canceled")
            except EOFError:
                return
            finally:
                self._typed = []
                self._run.interrupts.forget()

    def completions(self, line: str) -> list[str]:
        """What may stand in place of the last word of `line`."""
        return complete(self._run, self._typed, line)

    def _one(self) -> bool:
        """One stanza; False if it was the last."""
        line = self._line("> " if self._run.on == "main" else f"{self._run.on}> ")
        name, _, topic = line.partition(" ")
        if name == "exit":
            return False
        if name == "help":
            self._show(help_lines(topic.strip()))
        elif line and not line.startswith("#"):
            self._carry_out(line)
        return True

    def _line(self, prompt: str) -> str:
        with self._run.interrupts.may_strike():
            return self._read(prompt).rstrip()

    def _carry_out(self, line: str) -> None:
        self._typed = [line]
        if self._wants_body(line):
            while (below := self._line(". ")).strip() not in ("", "----"):
                self._typed.append(below)
        stanza = Stanza(1, tuple(self._typed), ())
        try:
            self._show(carry_out(self._run, stanza.directive, stanza.body))
        except Skip as reason:
            self._show([f"skip: {reason}"])
        if self._run.hint:
            self._write(f"hint: {self._run.hint}")

    def _wants_body(self, line: str) -> bool:
        """Not of a line that will be refused."""
        try:
            words = split_words(line)
            directive = DIRECTIVES.get(words.name)
            if directive is None:
                return False
            directive.check(words, ())
        except LocalProtocolError:
            return False
        return directive.takes_body(words)

    def _show(self, lines: list[str]) -> None:
        for line in lines:
            self._write(line)


def shell(run: Run, history: Path) -> None:
    """Talk with whoever is at stdin: with prompts, line editing and history if that is a terminal."""
    with _signals(run):
        if not sys.stdin.isatty():
            Shell(run, _next_line, _print).loop()
            return
        with interrupt_waits(), _editing(history) as set_completer:
            talk = Shell(run, input, _print)
            set_completer(talk.completions)
            talk.loop()
        _print("")


def _next_line(prompt: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def _signals(run: Run) -> Iterator[None]:
    """^C strikes where it may; a terminal that goes away, or a kill, ends us in order."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(_SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGHUP, signal.SIGTERM)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, run.interrupts.strike)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _editing(history: Path) -> Iterator[Callable[[Callable[[str], list[str]]], None]]:
    """Line editing with `history`; sets what completes a line. Without readline lines are typed plainly."""
    try:
        import readline
    except ImportError:
        yield lambda completions: None
        return
    with suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(history)
    before = readline.get_current_history_length()
    readline.set_history_length(_KEPT_LINES)
    readline.set_completer_delims(DELIMITERS)
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    found: list[str] = []

    def set_completer(completions: Callable[[str], list[str]]) -> None:
        def candidate(text: str, state: int) -> str | None:
            if state == 0:
                found[:] = completions(readline.get_line_buffer()[: readline.get_endidx()])
            return found[state] if state < len(found) else None

        readline.set_completer(candidate)

    try:
        yield set_completer
    finally:
        readline.set_completer(None)
        with suppress(OSError):
            history.touch(mode=0o600)
            readline.append_history_file(readline.get_current_history_length() - before, history)
