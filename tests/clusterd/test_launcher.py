"""The directories that `launch` makes: swept once neither launcher nor replica is there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from clusterd import launcher


def test_a_directory_whose_launcher_and_replica_are_gone_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = tmp_path / "clusterd-data"
    kept.mkdir()
    (kept / "stderr").touch()
    directory, lock = launcher._make_directory()
    new, new_lock = launcher._make_directory()  # has no stderr yet: it is being made
    os.close(new_lock)
    (directory / "stderr").touch()
    replicas = os.dup(lock)  # what the replica has inherited
    launcher._sweep_directories()
    os.close(lock)
    launcher._sweep_directories()
    assert directory.exists()
    os.close(replicas)
    launcher._sweep_directories()
    assert not directory.exists()
    assert kept.exists()
    assert new.exists()
