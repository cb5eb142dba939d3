"""A program at a terminal of its own: what it shows is read until something wanted stands there."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

__all__ = ["Terminal", "terminal"]

# The terminal becomes the controlling one, so that ^C is a signal; then the program takes this one's place.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_WITHIN_S = 60.0


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str) -> str:
        """What was shown up to and with `text`, since the last call."""
        deadline = time.monotonic() + _WITHIN_S
        while text not in self._shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self._shown!r}"
            if select.select([self._master], [], [], left)[0]:
                try:
                    data = os.read(self._master, 4096)
                except OSError:  # the other end is closed
                    data = b""
                assert data, f"{text!r} is not in {self._shown!r}, and the program has ended"
                self._shown += data.decode().replace("\r\n", "\n")
        before, _, self._shown = self._shown.partition(text)
        return before + text

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(_WITHIN_S)


@contextmanager
def terminal(command: Sequence[str]) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )  # fmt: skip
        os.close(slave)
        try:
            yield Terminal(process, master)
        finally:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_WITHIN_S)
                process.kill()
                process.wait()
    finally:
        os.close(master)
