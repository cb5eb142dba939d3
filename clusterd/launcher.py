"""Launcher: start a replica on this machine, and hold on to it.

Whoever launches decides whether reads get a runtime of their own: `enable_two_runtime_compute` in the
configuration makes `launch` pass `--interactive-workers`; a running replica ignores the setting. A
replica counts as started when it has printed its READY line, and not by any look at its socket. What it
writes to stderr goes to a file, so that it can never block on us, and is at hand when it ends
unexpectedly.

Does not: speak the protocol (client.py), restart anything, send the configuration (a controller does).
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import select
import shutil
import signal as signals
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from clusterd.config import DEFAULTS, merge_settings

__all__ = ["LaunchError", "Replica", "launch"]

Value = bool | int | float | str
_PREFIX = "clusterd-replica-"  # of the directories that `launch` makes, and sweeps
_LOCK = "lock"  # a file of its own: the daemon locks the directory of its socket while it binds
_STDERR_SHOWN = 4_000  # characters of stderr that an error carries
_EXIT_AFTER_EOF_S = 10.0  # its stdout is closed, so it is on its way out


class LaunchError(Exception):
    """The replica ended before it was ready, or was not ready in time. `exit_code` is None in that case."""

    def __init__(self, message: str, exit_code: int | None, stderr: str) -> None:
        super().__init__(f"{message}\n{stderr[-_STDERR_SHOWN:]}".rstrip())
        self.exit_code = exit_code
        self.stderr = stderr


class _Ready(msgspec.Struct, frozen=True):
    instance: str
    listen: str
    pids: dict[str, int]
    version: str = ""
    http: str | None = None


@dataclasses.dataclass
class Replica:
    """A running replica. `pids` has `supervisor`, `mux`, `reaper`, `maintenance/0`, ... ; a context manager.

    address: what clients connect to (`unix:PATH`). config: the settings it was launched for, which its
    controller sends with create-instance. http: where its console is, if it was asked for.
    """

    instance: str
    address: str
    pids: Mapping[str, int]
    process: subprocess.Popen[bytes]
    config: Mapping[str, Value]
    data_dir: Path | str
    directory: Path
    http: str | None = None
    _lock: int = dataclasses.field(default=-1, repr=False)
    _last_stderr: str = dataclasses.field(default="", repr=False)

    @property
    def mode(self) -> str:
        """`two-runtime` or `solo`."""
        return "two-runtime" if any(name.startswith("interactive/") for name in self.pids) else "solo"

    def stop(self, timeout_s: float = 10.0) -> int:
        """Ask it to stop, and wait. Returns its exit status; kills it after `timeout_s`."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Wait for the replica to end. Returns its exit status; raises subprocess.TimeoutExpired."""
        status = self.process.wait(timeout_s)
        self._cleanup()
        return status

    def kill(self, process: str = "supervisor", signal: int = signals.SIGKILL) -> None:
        """Send `signal` to one process, by its name in `pids`. Raises KeyError naming the ones there are."""
        if process not in self.pids:
            raise KeyError(f"no process {process!r}; there are {', '.join(self.pids)}")
        os.kill(self.pids[process], signal)

    def stderr(self) -> str:
        """What the replica has written to stderr."""
        try:
            return (self.directory / "stderr").read_text(errors="replace")
        except FileNotFoundError:
            return self._last_stderr

    def _cleanup(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._last_stderr = self.stderr()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Replica:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def launch(
    config: Mapping[str, Value] | None = None,
    data_dir: Path | str | None = None,
    *,
    interactive_workers: int = 1,
    read_cores: str = "",
    functions: Path | str = "",
    introspection: bool = True,
    http: str | None = None,
    test_hooks: bool = False,
    listen: str | None = None,
    detach: bool = False,
    deadline_s: float = 60.0,
) -> Replica:
    """Start `clusterd serve` and wait until it is ready.

    data_dir: of the shards; None is a fresh one, which ends with the replica. interactive_workers: how
    many, if `config` has `enable_two_runtime_compute` on; else the replica is Solo. read_cores: those kept
    for what serves reads then (cores.py). functions: the module of the user's functions, `PATH.py` or a name
    (clusterd/functions.py). introspection: whether a process shows what the others do. http: `HOST:PORT` for
    the console. listen: `unix:PATH`; a fresh path if None. detach: in a session of its own, so that a ^C
    meant for us does not reach it. deadline_s: for READY; a first start compiles kernels. Raises:
    LaunchError; Refusal (`unknown-setting`, `bad-message`) for a wrong `config`.
    """
    settings = merge_settings(DEFAULTS, config or {})
    _sweep_directories()
    directory, lock = _make_directory()
    address = listen if listen is not None else f"unix:{directory / 'socket'}"
    shards = data_dir if data_dir is not None else directory / "data"
    command = [sys.executable, "-m", "clusterd", "serve", "--listen", address, "--data-dir", str(shards)]
    if settings["enable_two_runtime_compute"]:
        command += ["--interactive-workers", str(interactive_workers)]
        if read_cores:
            command += ["--read-cores", read_cores]
    if functions:
        command += ["--functions", str(functions)]
    if not introspection:
        command.append("--no-introspection")
    if http is not None:
        command += ["--http", http]
    if test_hooks:
        command.append("--test-hooks")
    with (directory / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=detach,
            pass_fds=(lock,),
        )
    try:
        ready = _await_ready(process, directory / "stderr", deadline_s)
    except BaseException:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)
        raise
    return Replica(
        instance=ready.instance,
        address=ready.listen,
        pids=ready.pids,
        process=process,
        config=dict(config or {}),
        data_dir=shards,
        directory=directory,
        http=ready.http,
        _lock=lock,
    )


def _make_directory() -> tuple[Path, int]:
    """A directory for one replica, and the descriptor that holds its lock.

    The replica has the descriptor too: the lock stands until the launcher and the replica have both ended.
    """
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return directory, lock


def _sweep_directories() -> None:
    """Remove the directories whose launcher and replica were both killed, so that nobody holds the lock."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            fd = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            made = (directory / "stderr").exists()  # else another launcher is about to lock it
            if made and os.fstat(fd).st_uid == os.getuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(fd)


def _await_ready(process: subprocess.Popen[bytes], stderr: Path, deadline_s: float) -> _Ready:
    """The facts of the READY line. Raises LaunchError."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    deadline = time.monotonic() + deadline_s
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            told = stderr.read_text(errors="replace")
            hint = "`clusterd warm` compiles its kernels, if it was busy with them"
            raise LaunchError(f"replica not ready within {deadline_s:g} s; {hint}", None, told)
        data = os.read(fd, 4096)
        if not data:
            status = process.wait(_EXIT_AFTER_EOF_S)
            told = stderr.read_text(errors="replace")
            raise LaunchError(f"replica ended with status {status} before it was ready", status, told)
        line += data
    word, _, facts = line.partition(b" ")
    if word != b"READY":
        raise LaunchError(f"expected a READY line, got {line!r}", None, "")
    return msgspec.json.decode(facts, type=_Ready)
