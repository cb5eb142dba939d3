"""The very first start: daemons compile into one empty cache at once, and one is killed while it does.

BUG84. Two of them start beside the one that was killed, each with five workers; all that start later load
what they left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterd.client import Client
from tests.e2e.support import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.alone]

ROOT = Path(__file__).parents[2]
PACKAGES = ("clusterd", "controller_proto", "shm_arrangements")
READERS = 4
LATER = 20
COMPILED_WITHIN_S = 480


class Daemon:
    """One over the packages in `home`, and so over their cache."""

    def __init__(self, home: Path, name: str) -> None:
        self.socket = home / f"{name}.sock"
        self._err = home / f"{name}.err"
        self._data = home / f"{name}.data"
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "clusterd", "serve", "--listen", f"unix:{self.socket}",
                    "--interactive-workers", str(READERS), "--data-dir", str(self._data),
                ],
                cwd=home, stdout=subprocess.PIPE, stderr=err, env=os.environ | {"PYTHONPATH": str(home)},
            )  # fmt: skip

    def require_right(self) -> None:
        """It gets ready, answers and stops."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"READY"), (self.process.wait(30), self._err.read_text()[-2000:])
        with Client.connect(f"unix:{self.socket}", data_dir=self._data) as client:
            client.create_shard("pairs", {"k": "bigint", "v": "text"})
            client.write("pairs", [(n % 10, f"v{n}") for n in range(1000)], at=0)
            index = client.create_index("pairs", key=["k"])
            found = index.peek(keys=[3], at=0, order_by=["v"], limit=2)
            assert found.rows() == [(3, "v103"), (3, "v113")]
            assert found.served_by == "interactive"
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


def test_bug84_daemons_that_compile_into_one_cache_at_once_are_ready_and_right(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))

    def compiled() -> int:
        return len(list(tmp_path.glob("**/*.nbc")))

    started = [Daemon(tmp_path, f"d{n}") for n in range(3)]
    try:
        wait_until(lambda: compiled() > 20, COMPILED_WITHIN_S, "kernels are compiled")
        assert started[0].process.poll() is None
        started[0].kill()
        for daemon in started[1:]:
            daemon.require_right()
        before = compiled()
        for n in range(LATER):
            started.append(Daemon(tmp_path, f"later{n}"))
            started[-1].require_right()
        assert compiled() == before, "a later start compiled again"
    finally:
        for daemon in started:
            if daemon.process.poll() is None:
                daemon.kill()
