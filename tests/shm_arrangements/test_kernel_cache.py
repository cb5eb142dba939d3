"""The cache of compiled kernels: stale never, torn never, and filled by several processes at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import config

from shm_arrangements.kernels import cache, jit

PACKAGE = Path(__file__).parents[2] / "shm_arrangements"

INNER = """
from shm_arrangements.kernels.jit import inner

STEP = {step}

@inner
def above(x):
    return x + STEP
"""
KERNEL = """
from shm_arrangements.kernels.jit import i64, kernel
from {inner} import above
{comment}
@kernel(i64)
def twice(x):
    return above(above(x))
"""


class Code:
    """A file with an inner function and one with a kernel that calls it, in a directory of their own."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self._monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(str(home))
        monkeypatch.setattr(jit, "_KERNELS", [])

    def write(self, step: int, comment: str = "") -> None:
        (self.home / "below_it.py").write_text(INNER.format(step=step))
        (self.home / "the_kernel.py").write_text(KERNEL.format(inner="below_it", comment=comment))

    def load(self) -> Any:
        """The kernel as a process that starts sees it."""
        modules = []
        for name in ("below_it", "the_kernel"):
            path = self.home / f"{name}.py"
            module = type(sys)(name)
            module.__file__ = str(path)
            self._monkeypatch.setitem(sys.modules, name, module)
            exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
            modules.append(module)
        return modules[1].twice

    def hits(self, kernel: Any) -> int:
        return sum(kernel._call.stats.cache_hits.values())


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Code:
    if config.DISABLE_JIT:
        pytest.skip("nothing is compiled")
    monkeypatch.setattr(config, "CACHE_DIR", "")
    code = Code(tmp_path, monkeypatch)
    code.write(step=1)
    return code


def _files(home: Path, suffix: str) -> list[Path]:
    return sorted((home / "__pycache__").glob(f"the_kernel.twice-*{suffix}"))


def test_a_kernel_is_compiled_once_and_loaded_after(code: Code) -> None:
    first = code.load()
    assert first(5) == 7
    assert code.hits(first) == 0
    second = code.load()
    assert second(5) == 7
    assert code.hits(second) == 1


def test_a_changed_inner_function_of_another_file_is_noticed(code: Code) -> None:
    assert code.load()(5) == 7
    code.write(step=10)
    assert code.load()(5) == 25
    assert len(_files(code.home, ".nbi")) == 1  # the older state is gone


def test_an_edit_that_changes_no_code_costs_nothing(code: Code) -> None:
    assert code.load()(5) == 7
    code.write(step=1, comment="# a word\n\n")
    kernel = code.load()
    assert kernel(5) == 7
    assert code.hits(kernel) == 1


def test_a_kernel_in_memory_does_not_write_under_the_name_of_its_edited_file(code: Code) -> None:
    older = code.load()
    code.write(step=10)
    assert older(5) == 7
    assert code.load()(5) == 25


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", ["empty", "cut", "zeros behind", "a bit", "foreign"])
def test_a_damaged_file_is_compiled_anew_and_replaced(code: Code, suffix: str, damage: str) -> None:
    assert code.load()(5) == 7
    [path] = _files(code.home, suffix)
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    if damage == "a bit":
        data[half] ^= 1
    damaged = {
        "empty": b"", "cut": data[:half], "zeros behind": data[:half] + bytes(half), "a bit": data,
        "foreign": b"not a pickle at all",
    }[damage]  # fmt: skip
    path.write_bytes(damaged)
    assert code.load()(5) == 7
    last = code.load()
    assert last(5) == 7
    assert code.hits(last) == 1


def test_a_process_that_ended_between_index_and_data_leaves_what_a_later_one_completes(code: Code) -> None:
    assert code.load()(5) == 7
    [data] = _files(code.home, ".nbc")
    data.unlink()
    assert code.load()(5) == 7
    assert data.exists()


def test_a_cache_that_cannot_be_written_costs_only_its_use(
    code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(cache.caching.IndexDataCacheFile, "_save_data", full)
    assert code.load()(5) == 7


def test_where_the_source_lies_may_be_read_only(
    code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    (tmp_path / "__pycache__").write_text("no directory can be made here")
    assert code.load()(5) == 7
    assert list(home.rglob("the_kernel.twice-*.nbc"))
    kernel = code.load()
    assert kernel(5) == 7
    assert code.hits(kernel) == 1


def test_without_any_place_for_a_cache_kernels_are_compiled_all_the_same(
    code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "__pycache__"))
    (tmp_path / "__pycache__").write_text("no directory can be made here")
    assert code.load()(5) == 7


# What each of the processes that start at once does: a line when it begins, one a kernel, one at the end.
STARTER = """
import os, sys
import numpy as np
from shm_arrangements.kernels import {modules}, jit, sort

say = lambda line: print(line, flush=True)
say("begin")
kernels = jit.kernels()
first = int(sys.argv[1]) % len(kernels)
for kernel in kernels[first:] + kernels[:first]:
    kernel.compile()
    say(kernel.name)
codes = np.random.default_rng(1).integers(0, 1 << 64, 5000, dtype=np.uint64)
order, keys = sort.sort_codes(codes)
assert (order == np.argsort(codes, kind="stable")).all() and (keys == np.sort(codes)).all()
misses = sum(sum(kernel._call.stats.cache_misses.values()) for kernel in kernels)
say(f"end {{misses}} {{len(kernels)}}")
"""


def _start(modules: str, home: Path, number: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTER.format(modules=modules), str(number * 7)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(home / "cache")},
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> tuple[int, int]:
    """How many kernels the process compiled, and of how many."""
    out, err = process.communicate(timeout=170)
    assert process.returncode == 0, err
    _, misses, kernels = out.splitlines()[-1].split()
    return int(misses), int(kernels)


def _start_at_once(modules: str, home: Path, kill_after: int) -> None:
    # A copy, so that all of them see the same code whoever edits it meanwhile.
    shutil.copytree(PACKAGE, home / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    processes = [_start(modules, home, number) for number in range(4)]
    victim = processes[0]
    assert victim.stdout is not None
    for _ in range(kill_after):
        assert victim.stdout.readline()
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    done = [_finish(process) for process in processes[1:]]
    kernels = done[0][1]
    # What is compiled twice is what the victim had begun, or what found a lock held for too long.
    assert sum(misses for misses, _ in done) <= kernels, done
    assert _finish(_start(modules, home, 0)) == (0, kernels)


@pytest.mark.slow
def test_processes_that_start_at_once_share_the_work_and_one_may_be_killed(tmp_path: Path) -> None:
    _start_at_once("hashing", tmp_path, 2)


@pytest.mark.soak
@pytest.mark.parametrize("kill_after", [1, 3, 8])
def test_all_kernels_are_warmed_by_several_at_once_with_one_killed(tmp_path: Path, kill_after: int) -> None:
    modules = sorted(path.stem for path in Path(jit.__file__).parent.glob("[a-z]*.py"))
    _start_at_once(", ".join(modules), tmp_path, kill_after)
