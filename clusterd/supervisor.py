"""The `clusterd serve` process: starts the others, waits, and sees to it that all end when one does (R1).

It is the parent of every process and does no work of its own, so it has nothing to wait for but their ends,
their words on the control pipes, and signals: one epoll without a timeout. Order of starting: the reaper
first, so that whatever comes after is cleaned up even if the supervisor is killed; then multiplexer and
workers side by side, since warming takes longest. The multiplexer takes clients in when all workers are
warm; READY is printed then. Order of stopping: no new clients, workers leave, names are unlinked, exit 0.

Does not: restart anything, import numpy or numba, read or write the protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import multiprocess
import setproctitle

from clusterd import exit_codes
from clusterd.config import Config
from clusterd.errors import DaemonError
from clusterd.events import InstanceSwept, ProcessDied, StartFailed, Stopped, Stopping, StopTimedOut, emit
from clusterd.functions import load_functions
from clusterd.introspection.collect_supervisor import collect_supervisor
from clusterd.introspection.page import ProgressPage
from clusterd.listening import ListeningSocket, http_address, listen_tcp
from clusterd.process import (
    ComputeRuntimeRole,
    ConsoleSpec,
    Died,
    MuxSpec,
    WorkerLink,
    WorkerSpec,
    exit_code_of,
    run_child,
)
from clusterd.storage.data_dir import directory_of, open_data_dir
from controller_proto.errors import Refusal
from shm_arrangements.errors import ShmExhausted
from shm_arrangements.instance import Instance, sweep
from shm_arrangements.reaper import Reaper

__all__ = ["ServeOptions", "Supervisor", "serve"]

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ROOT_CAUSE_S = 0.02  # deaths this close together are one event; the first cause is looked for among them
_START_AGAIN = "start it again: it hydrates from its shards"
_WORKER_ENTRY = "clusterd.runtime.loop:run_worker"
_MUX_ENTRY = "clusterd.endpoint:run_mux"
_OBSERVER_ENTRY = "clusterd.introspection.observer:run_observer"
_CONSOLE_ENTRY = "clusterd.console.process:run_console"

_decode_died = msgspec.msgpack.Decoder(Died).decode


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `clusterd serve` was asked for. worker_entry: `module:function`, for tests with other workers.
    introspection: whether there is an observer. http: host and port of the console, which asks the observer;
    port 0 is any that is free.
    """

    socket_path: Path
    interactive_workers: int = 0
    introspection: bool = False
    http: tuple[str, int] | None = None
    data_dir: str | None = None
    config: Config = field(default_factory=Config)
    worker_entry: str = _WORKER_ENTRY


class _Child:
    """A process, and what is known of it. The reaper is a `Reaper`, and has no control pipe."""

    def __init__(self, name: str, process: Any, control: Any) -> None:
        self.name = name
        self.process = process
        self.control = control
        self.ready = False
        self.died: Died | None = None

    def read_control(self) -> bool:
        """Take what it said; False once nothing more can come."""
        if self.control is None:
            return False
        try:
            while self.control.poll():
                said = self.control.recv_bytes()
                if said == b"ready":
                    self.ready = True
                else:
                    self.died = _decode_died(said)
        except (EOFError, OSError, msgspec.DecodeError):
            return False
        return True

    @property
    def exit_code(self) -> int:
        """As the shell counts; negative is a signal. Only once it has ended."""
        code = self.process.exitcode
        return 0 if code is None else int(code)

    @property
    def blame(self) -> int:
        """How likely its end was the cause of others': killed, failed, left."""
        return 0 if self.exit_code < 0 else 1 if self.died is not None else 2 if self.exit_code else 3


class Supervisor:
    """One daemon, from its start to its end: `run` is called once, in the main thread."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._config = options.config.supervisor
        self._context = multiprocess.get_context("spawn")
        self._children: list[_Child] = []
        self._living: dict[int, _Child] = {}  # by sentinel
        self._controls: dict[int, _Child] = {}
        self._epoll = select.epoll()
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        self._listening: ListeningSocket | None = None
        self._http: socket.socket | None = None
        self._instance: Instance | None = None
        self._reaper: _Child | None = None
        self._page: ProgressPage | None = None
        self._announced_ready = False
        self._stop_at: float | None = None

    def run(self) -> int:
        """Start, serve, end. Returns the exit code; nothing is left when it does."""
        self._catch_signals()
        try:
            self._start()
            code = self._wait()
        except ShmExhausted as error:
            emit(StartFailed(reason=f"{error}", exit_code=exit_codes.SHM_EXHAUSTED))
            code = exit_codes.SHM_EXHAUSTED
        finally:
            self._end()
        return code

    # -- start

    def _start(self) -> None:
        options = self._options
        _raise_descriptor_limit()
        if options.config.functions:
            load_functions(options.config.functions)  # refused here, it is refused with one clear line
        self._listening = ListeningSocket(options.socket_path, lock_deadline_s=self._config.lock_deadline_s)
        if options.http is not None:
            self._http = listen_tcp(*options.http)
        directory = None if options.data_dir is None else directory_of(options.data_dir)
        if directory is not None:
            open_data_dir(directory)
        swept = sweep()
        if swept:
            emit(InstanceSwept(tokens=swept))
        self._instance = Instance.create()
        self._start_reaper(self._instance.token)
        links, there = [], []
        roles = [
            (ComputeRuntimeRole.MAINTENANCE if options.interactive_workers else ComputeRuntimeRole.SOLO, 0)
        ]
        roles += [(ComputeRuntimeRole.INTERACTIVE, index) for index in range(options.interactive_workers)]
        bell = ring = None
        if options.introspection:
            roles.append((ComputeRuntimeRole.INTROSPECTION, 0))
            bell, ring = self._context.Pipe(duplex=False)
        for role, index in roles:
            mux_end, worker_end = self._context.Pipe()
            links.append(WorkerLink(role, index, mux_end))
            there.append(worker_end)
        mine, control = self._context.Pipe()
        mux = MuxSpec(
            self._listening.socket, tuple(links), control, os.getpid(), options.config,
            instance=self._instance.token, ring=ring,
        )  # fmt: skip
        self._spawn("mux", _MUX_ENTRY, mux, mine)
        for link, worker_end in zip(links, there, strict=True):
            mine, control = self._context.Pipe()
            observes = link.role is ComputeRuntimeRole.INTROSPECTION
            worker = WorkerSpec(
                role=link.role,
                index=link.index,
                mux=worker_end,
                control=control,
                instance=self._instance.token,
                data_dir=options.data_dir,
                parent_pid=os.getpid(),
                interactive_workers=options.interactive_workers,
                config=options.config,
                ring=bell if observes else ring,
            )
            self._spawn(link.name, _OBSERVER_ENTRY if observes else options.worker_entry, worker, mine)
            worker_end.close()
        for link in links:
            link.pipe.close()
        for end in (bell, ring):
            if end is not None:
                end.close()
        if options.http is not None:
            self._spawn_console(options.http[0])
        self._listening.close()
        if options.introspection:
            self._page = ProgressPage(self._instance.token, "supervisor")
            self._page.write(collect_supervisor(self._pids, options.config))  # it does not change

    @property
    def _pids(self) -> dict[str, int]:
        return {"supervisor": os.getpid(), **{child.name: child.process.pid for child in self._children}}

    def _spawn_console(self, host: str) -> None:
        assert self._http is not None
        mine, control = self._context.Pipe()
        address = f"unix:{self._options.socket_path}"
        self._spawn(
            "console", _CONSOLE_ENTRY, ConsoleSpec(self._http, host, address, control, os.getpid()), mine
        )

    def _start_reaper(self, token: str) -> None:
        self._reaper = _Child("reaper", Reaper.start(token), None)
        self._attend(self._reaper)

    def _spawn(self, name: str, entry: str, spec: Any, control: Any) -> None:
        """Start a child; from the main thread, which its death signal follows. Closes `spec.control` here."""
        process = self._context.Process(target=run_child, args=(name, entry, spec), name=name, daemon=True)
        process.start()
        spec.control.close()
        child = _Child(name, process, control)
        self._attend(child)
        self._controls[control.fileno()] = child
        self._epoll.register(control.fileno(), select.EPOLLIN)
        assert self._reaper is not None
        self._reaper.process.watch(process.pid)

    def _attend(self, child: _Child) -> None:
        self._children.append(child)
        self._living[child.process.sentinel] = child
        self._epoll.register(child.process.sentinel, select.EPOLLIN)

    def _announce_ready(self) -> None:
        self._announced_ready = True
        assert self._instance is not None
        facts = {
            "instance": self._instance.token,
            "listen": f"unix:{self._options.socket_path}",
            "data_dir": self._options.data_dir,
            "http": None if self._http is None else http_address(self._http),
            "pids": self._pids,
            "version": _version(),
        }
        with contextlib.suppress(OSError):
            sys.stdout.write(f"READY {json.dumps(facts)}\n")
            sys.stdout.flush()

    # -- serve

    def _wait(self) -> int:
        """Until one ends, or all have left after a stop. Returns the exit code."""
        while True:
            ended = self._poll(self._time_left())
            self._take_signals()
            if ended:
                code = self._judge(ended)
                if code is not None:
                    return code
            if self._stop_at is not None:
                if not self._workers_living():
                    emit(Stopped())
                    return exit_codes.STOPPED
                if time.monotonic() >= self._stop_at:
                    names = tuple(child.name for child in self._workers_living())
                    emit(StopTimedOut(processes=names, deadline_s=self._config.stop_deadline_s))
                    return exit_codes.STOPPED
            elif not self._announced_ready and all(
                child.ready for child in self._children if child is not self._reaper
            ):
                self._announce_ready()

    def _time_left(self) -> float | None:
        return None if self._stop_at is None else max(0.0, self._stop_at - time.monotonic())

    def _poll(self, timeout_s: float | None) -> list[_Child]:
        """Wait for the next thing; return the children found to have ended."""
        ended = []
        for fd, _ in self._epoll.poll(timeout_s):
            if fd == self._wake_in:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_in, 4096)
            elif fd in self._controls:
                if not self._controls[fd].read_control():
                    self._epoll.unregister(fd)
                    del self._controls[fd]
            elif fd in self._living:
                child = self._living.pop(fd)
                self._epoll.unregister(fd)
                child.process.join()
                child.read_control()
                ended.append(child)
        return ended

    def _judge(self, ended: list[_Child]) -> int | None:
        """None if they left as told; else the exit code, once the one line that says why is out."""
        stopping = self._stop_at is not None
        if stopping and all(child.exit_code == 0 and child is not self._reaper for child in ended):
            return None
        # Others may be ending because this one did: whoever was killed, or failed, comes first.
        until = time.monotonic() + _ROOT_CAUSE_S
        while (left := until - time.monotonic()) > 0:
            ended += self._poll(left)
        first = min(ended, key=lambda child: child.blame)
        died = first.died
        code = exit_codes.PROCESS_DIED if self._announced_ready or stopping else exit_codes.START_FAILED
        if first.exit_code < 0:
            name = _signal_name(-first.exit_code)
            reason = f"killed by {name}"
            code = exit_codes.PROCESS_DIED
        else:
            name = ""
            reason = died.exception if died is not None else f"ended with status {first.exit_code}"
            if first.exit_code in exit_codes.PASSED_ON:
                code = first.exit_code
        emit(
            ProcessDied(
                process=first.name,
                pid=first.process.pid,
                reason=reason,
                status=first.exit_code,
                signal=name,
                exception=died.exception if died is not None else "",
                traceback=died.traceback if died is not None else "",
                hint=_START_AGAIN if self._announced_ready else "",
            )
        )
        return code

    def _workers_living(self) -> list[_Child]:
        return [child for child in self._living.values() if child is not self._reaper]

    # -- signals

    def _catch_signals(self) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda seen, _frame: self._signals.append(seen))
        os.set_blocking(self._wake_out, False)
        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
        self._epoll.register(self._wake_in, select.EPOLLIN)

    def _take_signals(self) -> None:
        """The first one asks for an ordered stop; a second one means now."""
        while self._signals:
            number = self._signals.pop(0)
            now = time.monotonic()
            if self._stop_at is not None:
                self._stop_at = now
                continue
            self._stop_at = now + self._config.stop_deadline_s
            emit(Stopping(signal=_signal_name(number)))
            for child in self._children:
                if child.name in ("mux", "console"):  # the workers are told by the multiplexer
                    with contextlib.suppress(OSError):
                        child.control.send_bytes(b"stop")

    # -- end

    def _end(self) -> None:
        """Leave nothing: processes first, then names, the reaper last."""
        self._kill(self._workers_living())
        if self._page is not None:
            self._page.close()
        if self._listening is not None:
            self._listening.unlink()
            self._listening.close()
        if self._http is not None:
            self._http.close()
        if self._instance is not None:
            self._instance.release()
        if self._reaper is not None:
            self._reaper.process.dismiss()  # it finds nothing left to do, and leaves
            self._reaper.process.join(self._config.kill_deadline_s)
            self._kill([self._reaper] if self._reaper.process.is_alive() else [])
        signal.set_wakeup_fd(-1)
        for child in self._children:
            if child.control is not None:
                child.control.close()
            child.process.close()
        self._epoll.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _kill(self, children: list[_Child]) -> None:
        for child in children:
            child.process.kill()
        until = time.monotonic() + self._config.kill_deadline_s
        for child in children:
            child.process.join(max(0.0, until - time.monotonic()))


def _raise_descriptor_limit() -> None:
    """One descriptor a segment (architecture): as many as the hard limit gives, for us and our children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("clusterd")
    except PackageNotFoundError:
        return "unknown"


def serve(options: ServeOptions) -> int:
    """Run a daemon in this process until it ends. Returns the exit code (exit_codes.py)."""
    setproctitle.setproctitle("clusterd: supervisor")
    try:
        return Supervisor(options).run()
    except DaemonError as error:
        emit(StartFailed(reason=error.message, exit_code=error.exit_code, hint=error.hint))
        return error.exit_code
    except Refusal as error:
        code = exit_code_of(error)
        reason = f"{error.code}: {error.message}"
        emit(StartFailed(reason=reason, exit_code=code, hint=error.hint))
        return code
    except Exception as error:  # the last shell: say it, and end
        code = exit_code_of(error)
        code = exit_codes.START_FAILED if code == exit_codes.PROCESS_DIED else code
        emit(StartFailed(reason=f"{type(error).__name__}: {error}", exit_code=code))
        return code
