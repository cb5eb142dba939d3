"""Stopping: waits that SIGTERM and ^C end at once, and appends that they do not disturb.

A signal sets a flag and writes to a pipe that every wait also waits for. What does not wait looks at the flag
where stopping does no harm.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stop", "StopRequested"]


class StopRequested(Exception):
    """A signal asked for the end."""


class Stop:
    """signal: the one that came; empty before."""

    def __init__(self) -> None:
        self.signal = ""
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def request(self, name: str) -> None:
        """Ask for the end; callable from a signal handler."""
        self.signal = self.signal or name
        os.write(self._write_fd, b"\0")

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask for the end as long as this lasts; main thread only."""

        def handle(number: int, _frame: FrameType | None) -> None:
            self.request(signal.Signals(number).name)

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Raises StopRequested if the end was asked for."""
        if self.signal:
            raise StopRequested(self.signal)

    def wait(self, timeout_s: float | None, *, read_fd: int = -1, write_fd: int = -1) -> bool:
        """Wait until `read_fd` has something to read, or `write_fd` room; False if neither came in time.

        Raises StopRequested.
        """
        poll = select.poll()
        poll.register(self._read_fd, select.POLLIN)
        if read_fd >= 0:
            poll.register(read_fd, select.POLLIN | (select.POLLOUT if read_fd == write_fd else 0))
        elif write_fd >= 0:
            poll.register(write_fd, select.POLLOUT)
        ready = poll.poll(None if timeout_s is None else max(0, timeout_s) * 1000)
        self.check()
        return bool(ready)

    def close(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)
