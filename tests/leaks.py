"""What a process holds that must not outlive a test: segments, file descriptors, child processes.

`snapshot()` before, `leaked(before)` after. Names of segments are judged by our prefix alone; descriptors
by what they point at, so that one closed and one opened do not cancel out. A child that is a helper of the
standard library (the resource tracker that `spawn` starts, one a process for its whole life) is not ours.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

PREFIX = "clusterd."
SHM = Path("/dev/shm")


@dataclasses.dataclass(frozen=True)
class Held:
    segments: frozenset[str]
    fds: dict[str, int]
    children: frozenset[int]


def _segments() -> frozenset[str]:
    return frozenset(name for name in os.listdir(SHM) if name.startswith(PREFIX))


def _fds() -> dict[str, int]:
    counts: dict[str, int] = {}
    tracker = str(resource_tracker._resource_tracker._fd)  # type: ignore[attr-defined]
    for fd in os.listdir("/proc/self/fd"):
        if fd == tracker:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the listing's own descriptor
        kind = target if target.startswith("/") else target.split(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _children() -> frozenset[int]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "resource_tracker" not in line and child.status() != psutil.STATUS_ZOMBIE:
            found.add(child.pid)
    return frozenset(found)


def snapshot() -> Held:
    return Held(_segments(), _fds(), _children())


def leaked(before: Held, *, foreign: frozenset[str] = frozenset()) -> list[str]:
    """Return one line for each thing held that was not held `before`; `foreign` segments are another's."""
    gc.collect()
    after = snapshot()
    lines = [f"segment {name}" for name in sorted(after.segments - before.segments - foreign)]
    for kind, count in after.fds.items():
        if kind.startswith(("/dev/shm", "socket", "pipe", "anon_inode")) and count > before.fds.get(kind, 0):
            lines.append(f"{count - before.fds.get(kind, 0)} descriptor(s) of {kind}")
    lines += [f"child process {pid}" for pid in sorted(after.children - before.children)]
    return lines
