"""Random histories of sessions against the whole daemon in one process, each interleaving by its seed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.clusterd.local_daemon import LocalDaemon
from tests.clusterd.session_history import Sessions

pytestmark = pytest.mark.slow

WORKERS = pytest.mark.parametrize("workers", [0, 1, 2])


def play(seed: int, workers: int) -> None:
    """In memory: appends to shards wait for no disk."""
    with (
        tempfile.TemporaryDirectory(prefix="histories-", dir="/dev/shm") as data_dir,
        LocalDaemon(Path(data_dir), workers, frames=1 + seed % 5) as daemon,
    ):
        Sessions(seed, daemon).play()
        daemon.require_nothing_held()


@WORKERS
def test_no_history_of_sessions_is_answered_wrongly(workers: int) -> None:
    for seed in range(1000 * workers, 1000 * workers + 20):
        play(seed, workers)


@pytest.mark.soak
@WORKERS
def test_thousands_of_histories_of_sessions(workers: int) -> None:
    for seed in range(10_000 * (workers + 1), 10_000 * (workers + 1) + 2000):
        play(seed, workers)
