"""What the tests with real processes share: modes, replicas that are stopped, waits with deadlines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from clusterd.client import Client
from clusterd.launcher import Replica, launch

MODES = ("solo", "two-runtime")
ENDS_WITHIN_S = 2.0  # R1


@contextmanager
def replica_in(
    mode: str, data_dir: Path, *, workers: int = 1, introspection: bool = False
) -> Iterator[Replica]:
    """introspection: one process less to start where nobody looks."""
    config = {"enable_two_runtime_compute": mode == "two-runtime"}
    with launch(
        config, data_dir, interactive_workers=workers, introspection=introspection, test_hooks=True
    ) as replica:
        assert replica.mode == mode
        yield replica


@contextmanager
def client_in(mode: str, data_dir: Path, *, introspection: bool = False) -> Iterator[tuple[Replica, Client]]:
    with (
        replica_in(mode, data_dir, introspection=introspection) as replica,
        Client.connect(replica) as client,
    ):
        yield replica, client


def role(mode: str) -> str:
    """Who answers peeks in `mode`."""
    return "interactive" if mode == "two-runtime" else "solo"


def segments(token: str) -> list[str]:
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith(f"clusterd.{token}."))


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Seconds it took; fails after `timeout_s`. For states of the system that nothing announces."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - start


def alive(pids: list[int]) -> list[int]:
    """Which of `pids` still run (a zombie does not)."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found
