"""Reaper: the process that removes an instance's names when its owner is killed.

It waits for one thing, the end of a pipe whose only write end is the owner's: the kernel closes that however
the owner ends, so nothing is polled and no pid compared. It is started before any name but the control file
is made, in a session of its own and with an interpreter of its own, so that no signal to the owner's group,
no lock, thread or open file of the owner is there to harm it. It loads the standard library alone.

Should it be killed too, the names wait for the next sweep.

Does not: decide whether the owner lives (the pipe does), look at the lock, restart anything.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from shm_arrangements.bells import open_bells, ring_bells
from shm_arrangements.instance import unlink_all

PATIENCE_S: Final = 1.0  # what watched processes may take to follow the owner (R1: all is over within 2 s)

_JOIN_S: Final = 5.0
_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Without site and environment: what the reaper runs does not depend on where the owner was started.
_FLAGS: Final = ("-I", "-S")
_BODY: Final = "import sys; sys.path.append(sys.argv[1]); from shm_arrangements import reaper; reaper.main()"
_PACKAGE_PARENT: Final = Path(__file__).resolve().parents[1]


class Reaper:
    """A reaper that runs, seen from the owner. `pid`, `sentinel`, `exitcode`, `join`, `kill`: as a `Process`.

    sentinel: a descriptor that is readable once it has ended.
    """

    __slots__ = ("_pipe", "_status", "pid", "sentinel")

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.sentinel = os.pidfd_open(pid)
        self._pipe = pipe
        self._status: int | None = None

    @classmethod
    def start(cls, token: str) -> Reaper:
        """Start the reaper of the instance `token`; this process is the owner. Cost: about 1 ms here.

        Raises: OSError if no process can be started.
        """
        read, write = os.pipe()  # closed on exec: nobody but this process has the write end
        arguments = [sys.executable, *_FLAGS, "-c", _BODY, str(_PACKAGE_PARENT), token]
        files = [
            (os.POSIX_SPAWN_DUP2, read, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),  # who waits for our output's end
            (os.POSIX_SPAWN_DUP2, 1, 2),  # must not have to wait for the reaper's
        ]
        try:
            pid = os.posix_spawn(sys.executable, arguments, os.environ, file_actions=files, setsid=True)
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)
        return cls(pid, write)

    def watch(self, pid: int) -> None:
        """Have it wait for process `pid` before it unlinks, and kill it after `PATIENCE_S`.

        For processes that write to the instance too. No effect once either has ended.
        """
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"%d\n" % pid)

    @property
    def exitcode(self) -> int | None:
        """None while it runs; negative is a signal."""
        if self._status is None:
            self._collect(os.WNOHANG)
        return self._status

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended, or the time is over."""
        if self.is_alive():
            poller = select.poll()
            poller.register(self.sentinel, select.POLLIN)
            if poller.poll(None if timeout_s is None else timeout_s * 1000):
                self._collect(0)

    def kill(self) -> None:
        """End it at once: names stay."""
        if self.is_alive():
            signal.pidfd_send_signal(self.sentinel, signal.SIGKILL)

    def dismiss(self) -> None:
        """Close the pipe: it unlinks what is there and leaves. Idempotent."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def close(self) -> None:
        """`dismiss`, wait for its end, and let go of it. Idempotent."""
        self.dismiss()
        if self.sentinel >= 0:
            self.join(_JOIN_S)
            os.close(self.sentinel)
            self.sentinel = -1

    def disown(self) -> None:
        """Let go of everything without a word, in a forked child: the reaper is the parent's."""
        for fd in (self._pipe, self.sentinel):
            if fd >= 0:
                os.close(fd)
        self._pipe = self.sentinel = -1
        self._status = 0

    def _collect(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            self._status = 0  # somebody waited for all children: how it ended is not known
            return
        if pid:
            self._status = os.waitstatus_to_exitcode(status)


def reaper_main(pipe_fd: int, token: str, pids: Iterable[int] = ()) -> None:
    """Body of a reaper process: remove what a killed owner leaves behind; returns when that is done.

    pipe_fd: read end of a pipe whose only write end is the owner's. Pids of further processes to wait for
        are announced on it, decimal, a line each; end of file means that the owner is gone. Left open.
    Those processes get `PATIENCE_S` to follow, then SIGKILL; then every name of the instance goes.
    """
    with contextlib.suppress(PermissionError):
        os.setsid()  # a signal to the owner's group must not take the reaper along
    for name in _IGNORED:
        signal.signal(name, signal.SIG_IGN)
    pidfds: list[int] = []
    _watch(pids, pidfds)
    rest = b""
    while data := os.read(pipe_fd, 4096):
        *lines, rest = (rest + data).split(b"\n")
        _watch([int(line) for line in lines if line.strip()], pidfds)
    living = _wait(pidfds, PATIENCE_S)
    for pidfd in living:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    _wait(living, PATIENCE_S)
    bells = open_bells(token)
    unlink_all(token)
    ring_bells(bells)


def main() -> None:
    """The process that `Reaper.start` starts: standard input is the pipe, the last argument the token."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what the owner's libraries left open across exec
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("reaper")
    reaper_main(0, sys.argv[-1])


def _watch(pids: Iterable[int], pidfds: list[int]) -> None:
    """Open a pidfd for each pid: from then on its number may be used again without harm."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            pidfds.append(os.pidfd_open(pid))


def _wait(pidfds: Sequence[int], patience_s: float) -> list[int]:
    """Wait until all have ended or patience is over; return, and keep open, those that have not."""
    poller = select.poll()
    living = set(pidfds)
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    deadline = time.monotonic() + patience_s
    while living and (left := deadline - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(left * 1000):
            poller.unregister(pidfd)
            living.discard(pidfd)
            os.close(pidfd)
    return sorted(living)
