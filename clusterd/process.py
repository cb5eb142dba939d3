"""What every process of the daemon is started with, and the first and last things it does.

`run_child` is the target of every spawned process: name, death signal, signals, priority, then the entry,
imported only here so that no process loads more than it needs. (The reaper is to outlive its parent, and is
started by shm_arrangements/reaper.py.) Whatever ends the entry is told to the
supervisor as a `Died` note on the control pipe, before the exit: one log line can then name the exception.

Death with the parent (R1) has a gap: the parent may end before the signal is asked for. So the parent's pid
is compared afterwards; a child that was adopted in between leaves at once.

Does not: create pipes or processes (supervisor.py), know what the entries do.
"""

from __future__ import annotations

import ctypes
import enum
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import msgspec
import setproctitle

from clusterd import exit_codes
from clusterd.config import Config
from clusterd.cores import plan_cores

__all__ = [
    "ComputeRuntimeRole",
    "ConsoleSpec",
    "Died",
    "MuxSpec",
    "WorkerLink",
    "WorkerSpec",
    "die_with_parent",
    "exit_code_of",
    "run_child",
]

_PR_SET_PDEATHSIG = 1
# Maintenance gives way to reads when cores are scarce: nice 5 is a third of a reader's weight, and a batch
# task does not preempt one that runs. On an idle machine it costs maintenance nothing.
MAINTENANCE_NICE = 5
MAINTENANCE_POLICY = "SCHED_BATCH"
_TRACEBACK_CHARS = 16_384  # fits the pipe, so that the last word never blocks


class ComputeRuntimeRole(enum.StrEnum):
    """What a worker is for (architecture, Roles)."""

    SOLO = "solo"
    MAINTENANCE = "maintenance"
    INTERACTIVE = "interactive"
    INTROSPECTION = "introspection"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker gets. `mux` and `control` are `multiprocess` Connections, this end of each.

    `control` carries bytes: b"ready" once, to the supervisor, after `internal.Ready` went to the multiplexer.
    `ring` is the pipe by which the observer is told of new samples: its reading end for the observer itself,
    the other for all others; None where there is no observer.
    """

    role: ComputeRuntimeRole
    index: int
    mux: Any
    control: Any
    instance: str
    data_dir: str | None
    parent_pid: int
    interactive_workers: int
    config: Config
    ring: Any = None

    @property
    def name(self) -> str:
        return f"{self.role.value}/{self.index}"


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """The multiplexer's end of the pipe to one worker."""

    role: ComputeRuntimeRole
    index: int
    pipe: Any

    @property
    def name(self) -> str:
        return f"{self.role.value}/{self.index}"


@dataclass(frozen=True, slots=True)
class MuxSpec:
    """What the multiplexer gets: the listening socket, and one link a worker: maintenance (or solo) first,
    the observer, if there is one, last. `ring` as of a WorkerSpec.
    """

    listener: Any
    links: tuple[WorkerLink, ...]
    control: Any
    parent_pid: int
    config: Config
    instance: str = ""
    ring: Any = None


@dataclass(frozen=True, slots=True)
class ConsoleSpec:
    """What the console gets. listener: a TCP socket that listens, by the name `host`; address: the daemon's.

    `control` as a worker's, and b"stop" comes in on it.
    """

    listener: Any
    host: str
    address: str
    control: Any
    parent_pid: int


class Died(msgspec.Struct, frozen=True, tag="died"):
    """A child's last word on its control pipe."""

    exit_code: int
    exception: str
    traceback: str


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; leave at once if it already has.

    The signal follows the parent's *thread* that spawned us: the supervisor spawns from its main thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(exit_codes.PROCESS_DIED)


def yield_to_readers() -> None:
    """Lower this process's claim on the cores (maintenance only)."""
    try:
        os.sched_setscheduler(0, getattr(os, MAINTENANCE_POLICY), os.sched_param(0))
        os.nice(MAINTENANCE_NICE)
    except OSError:
        return  # a sandbox may forbid it; only latency under load is worse then


def take_cores(spec: Any) -> None:
    """Run where processes of this kind may: see cores.py."""
    kept = spec.config.read_cores if isinstance(spec, WorkerSpec | MuxSpec) else ()
    if kept:
        reads = isinstance(spec, MuxSpec) or spec.role is ComputeRuntimeRole.INTERACTIVE
        os.sched_setaffinity(0, plan_cores(kept, frozenset(os.sched_getaffinity(0)), reads=reads))


def exit_code_of(error: BaseException) -> int:
    """Return the exit code a process that died of `error` ends with."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    if type(error).__name__ == "ShmExhausted":
        return exit_codes.SHM_EXHAUSTED
    if getattr(error, "code", None) == "format-mismatch":
        return exit_codes.DATA_FORMAT
    return exit_codes.PROCESS_DIED


def _run_entry(entry: str, spec: Any) -> int:
    module, _, function = entry.partition(":")
    result = getattr(importlib.import_module(module), function)(spec)
    return result if isinstance(result, int) else 0


def run_child(title: str, entry: str, spec: Any) -> None:
    """Target of every spawned process. entry: `module:function`, given `spec`; may return an exit code."""
    setproctitle.setproctitle(f"clusterd: {title}")
    die_with_parent(spec.parent_pid)
    # The supervisor alone decides: a terminal's ^C and a service manager's TERM reach the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    # Who launched us reads stdout up to READY alone: what a function of the user prints would fill the pipe.
    os.dup2(2, 1)
    take_cores(spec)
    if isinstance(spec, WorkerSpec) and spec.role is ComputeRuntimeRole.MAINTENANCE:
        yield_to_readers()
    try:
        code = _run_entry(entry, spec)
    except BaseException as error:
        code = exit_code_of(error)
        note = Died(code, f"{type(error).__name__}: {error}", traceback.format_exc()[-_TRACEBACK_CHARS:])
        try:
            spec.control.send_bytes(msgspec.msgpack.encode(note))
        except OSError:
            traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)  # no atexit hooks: they may join threads or touch what the supervisor unlinks
