"""Instances: whose lock can be taken is dead, and nothing else decides."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shm_arrangements import instance, segment
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.instance import Instance
from shm_arrangements.names import control_name, new_token

SHM = Path("/dev/shm")

pytestmark = pytest.mark.alone
DEADLINE_S = 20

# Prints its token once it holds the lock and has made three segments; ends when stdin closes.
HOLDER = """
    import sys
    from shm_arrangements import segment
    from shm_arrangements.instance import Instance
    held = Instance.create()
    for seq in range(3):
        segment.create(f"clusterd.{held.token}.b.0.{seq}", 10_000).close()
    print(held.token, flush=True)
    sys.stdin.read()
    held.release()
    """


def _start(code: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,  # type: ignore[call-overload]
    )  # fmt: skip


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    return process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def tokens() -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def make() -> str:
        made.append(new_token())
        return made[-1]

    yield make
    for token in made:
        instance.unlink_all(token)


def _names(token: str) -> list[str]:
    return [name for name in os.listdir(SHM) if token in name]


def test_an_instance_is_alive_from_creation_to_release() -> None:
    with Instance.create() as held:
        assert instance.is_alive(held.token)
        assert held.token in instance.live_tokens()
        (info,) = [one for one in instance.list_instances() if one.token == held.token]
        assert (info.alive, info.pid, info.names) == (True, os.getpid(), 1)
        segment.create(f"clusterd.{held.token}.b.0.1", 10).close()
    assert not instance.is_alive(held.token)
    assert not _names(held.token)
    with pytest.raises(InvariantViolation):
        held.fileno()
    held.release()


def test_the_control_file_is_private_and_closed_on_exec() -> None:
    with Instance.create() as held:
        assert os.stat(SHM / control_name(held.token)).st_mode & 0o777 == 0o600
        assert fcntl.fcntl(held.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_sweep_takes_the_dead_and_leaves_the_living() -> None:
    with Instance.create() as living:
        segment.create(f"clusterd.{living.token}.b.0.1", 10).close()
        dead = Instance.create()
        segment.create(f"clusterd.{dead.token}.b.0.1", 10).close()
        assert dead.token not in instance.sweep()
        dead.abandon()
        assert dead.token in instance.sweep()
        assert not _names(dead.token)
        assert len(_names(living.token)) == 2
        assert instance.is_alive(living.token)


def test_sweep_takes_names_without_a_control_file_and_nothing_that_is_not_ours(
    tokens: Callable[[], str],
) -> None:
    token = tokens()
    segment.create(f"clusterd.{token}.b.0.1", 10).close()
    strangers = [SHM / f"clusterd.{new_token()}", SHM / "clusterd.notatoken000.b", SHM / f"x{token}"]
    for path in strangers:
        path.touch()
    try:
        assert token in instance.sweep()
        assert not (SHM / f"clusterd.{token}.b.0.1").exists()
        assert all(path.exists() for path in strangers)
    finally:
        for path in strangers:
            path.unlink()


def test_bug05_what_a_control_file_says_about_its_owner_keeps_nobody_alive(tokens: Callable[[], str]) -> None:
    with Instance.create() as other:
        for pid in (1, os.getpid()):
            token = tokens()
            header = struct.pack("<8sII12s4xQ", b"CLUSTRLD", 1, pid, token.encode(), 12345)
            (SHM / control_name(token)).write_bytes(header)
            segment.create(f"clusterd.{token}.b.0.1", 10).close()
            assert token in instance.sweep()
            assert not _names(token)
        assert instance.is_alive(other.token)


@pytest.mark.slow
def test_bug05_twenty_killed_instances_leave_nothing_and_a_living_one_is_untouched() -> None:
    with Instance.create() as living:
        segment.create(f"clusterd.{living.token}.b.0.1", 10).close()
        for _ in range(4):
            batch = [_start(HOLDER) for _ in range(5)]
            dead = [_line(process) for process in batch]
            assert all(len(_names(token)) == 4 for token in dead)
            assert not set(dead) & set(instance.sweep())
            for process in batch:
                process.kill()
                _end(process)
            assert set(dead) <= set(instance.sweep())
            assert not any(_names(token) for token in dead)
        assert len(_names(living.token)) == 2


def test_a_holder_that_ends_by_itself_leaves_nothing_and_says_nothing() -> None:
    process = _start(HOLDER)
    token = _line(process)
    assert instance.is_alive(token)
    out, err = _end(process)
    assert (process.returncode, out, err) == (0, "", "")
    assert not _names(token)


def test_a_probe_does_not_make_the_dead_look_alive_nor_the_living_dead() -> None:
    """Probes hold the lock shared for moments; neither creation nor a sweep may be misled by that."""
    stop = threading.Event()
    with Instance.create() as living:
        dead = [Instance.create() for _ in range(30)]

        def probe(probes: list[instance.LivenessProbe]) -> None:
            while not stop.is_set():
                for one in probes:
                    one.is_alive()
            for one in probes:
                one.close()

        threads = [
            threading.Thread(
                target=probe, args=([instance.LivenessProbe(one.token) for one in (*dead, living)],)
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        try:
            for one in dead:
                assert instance.is_alive(one.token)
                one.abandon()
                assert one.token in instance.sweep()
            assert instance.is_alive(living.token)
        finally:
            stop.set()
            for thread in threads:
                thread.join(DEADLINE_S)


def test_an_instance_being_created_is_never_swept() -> None:
    stop = threading.Event()

    def sweeping() -> None:
        while not stop.is_set():
            instance.sweep()

    threads = [threading.Thread(target=sweeping) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            with Instance.create() as held:
                name = f"clusterd.{held.token}.b.0.1"
                segment.create(name, 10).close()
                assert (SHM / name).exists()
                assert (SHM / control_name(held.token)).exists()
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE_S)


def test_a_child_that_is_handed_the_lock_keeps_the_instance_alive() -> None:
    held = Instance.create()
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=[held.fileno()])
    held.abandon()
    assert instance.is_alive(held.token)
    assert held.token not in instance.sweep()
    child.communicate(timeout=DEADLINE_S)
    assert not instance.is_alive(held.token)
    assert held.token in instance.sweep()


REAPER = """
    import os, sys
    from shm_arrangements.reaper import reaper_main
    assert "numpy" not in sys.modules and "numba" not in sys.modules and "multiprocessing" not in sys.modules
    print("up", os.getpid(), flush=True)
    reaper_main(int(sys.argv[1]), sys.argv[2], [int(pid) for pid in sys.argv[3:]])
    print("session", os.getsid(0) == os.getpid(), flush=True)
    """


def _reaper(token: str, *pids: int) -> tuple[subprocess.Popen[str], int]:
    """Start a reaper; returns it and the write end that stands for the supervisor."""
    read, write = os.pipe()
    process = _start(REAPER, str(read), token, *map(str, pids), pass_fds=[read])
    os.close(read)
    return process, write


def _await_ignored(pid: int, number: int) -> None:
    """Wait until the process ignores a signal: then the reaper is at its post."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        ignored = int(status.split("SigIgn:")[1].split()[0], 16)
        if ignored >> (number - 1) & 1:
            return
        os.sched_yield()
    raise AssertionError(f"{pid} does not ignore signal {number}")


def test_the_reaper_unlinks_when_the_supervisor_is_gone_and_no_sooner() -> None:
    dead = Instance.create()
    segment.create(f"clusterd.{dead.token}.b.0.1", 10).close()
    process, write = _reaper(dead.token)
    _await_ignored(process.pid, signal.SIGQUIT)  # the last that it sets
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process.pid, name)
    assert len(_names(dead.token)) == 2
    dead.abandon()
    os.close(write)
    out, err = _end(process)
    assert (process.returncode, err) == (0, "")
    assert "session True" in out
    assert not _names(dead.token)


@pytest.mark.slow
def test_the_reaper_waits_for_the_workers_and_kills_those_that_stay() -> None:
    dead = Instance.create()
    leaves, stays = (
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE),
        subprocess.Popen(["/bin/sleep", "600"]),
    )
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    process, write = _reaper(dead.token, leaves.pid, gone.pid)
    assert _line(process).startswith("up")
    os.write(write, f"{stays.pid}\n{gone.pid}\n".encode())
    dead.abandon()
    os.close(write)
    leaves.communicate(timeout=DEADLINE_S)
    assert stays.wait(DEADLINE_S) == -signal.SIGKILL
    assert _end(process)[1] == ""
    assert not _names(dead.token)


# Opens an instance as a program does and makes a name; then does what the first argument says.
PROGRAM = """
    import os, sys
    from shm_arrangements import segment
    from shm_arrangements.instance import Instance
    held = Instance.open()
    segment.create(f"clusterd.{held.token}.b.0.1", 10_000).close()
    print(held.token, flush=True)
    sys.stdin.readline()
    exec(sys.argv[1])
    """


def _await_gone(token: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while _names(token):
        assert time.monotonic() < deadline, _names(token)
        os.sched_yield()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("held.release()", 0),
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.killpg(os.getpgid(0), 9)", -signal.SIGKILL),
    ],
)
def test_a_program_may_end_in_any_way_and_its_reaper_leaves_nothing(ending: str, status: int) -> None:
    process = _start(PROGRAM, ending, start_new_session=True)
    token = _line(process)
    assert len(_names(token)) == 2
    out, err = process.communicate("\n", timeout=DEADLINE_S)  # the reaper keeps no pipe of it open
    assert (process.returncode, out, err) == (status, "", "")
    _await_gone(token)


def test_opening_sweeps_the_dead_and_releasing_ends_the_reaper() -> None:
    dead = Instance.create()
    dead.abandon()
    with Instance.open() as held:
        assert not _names(dead.token)
        assert instance.is_alive(held.token)
        assert held._reaper is not None
        reaper = held._reaper.pid
    assert not _names(held.token)
    with pytest.raises(ChildProcessError):
        os.waitpid(reaper, os.WNOHANG)  # its end was waited for
    held.watch(os.getpid())


@pytest.mark.slow
def test_the_reaper_of_a_program_kills_the_writers_it_was_told_of() -> None:
    process = _start(PROGRAM, "os.kill(os.getpid(), 9)")
    token = _line(process)
    stays = subprocess.Popen(["/bin/sleep", "600"])
    try:
        code = "held.watch(int(sys.argv[2])); os.kill(os.getpid(), 9)"
        other = _start(PROGRAM, code, str(stays.pid))
        second = _line(other)
        other.communicate("\n", timeout=DEADLINE_S)
        _await_gone(second)
        assert stays.wait(DEADLINE_S) == -signal.SIGKILL
    finally:
        stays.kill()
        stays.wait(DEADLINE_S)
        process.communicate("\n", timeout=DEADLINE_S)
    _await_gone(token)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from 3.12 on: the child uses none
        return os.fork()


def test_a_forked_child_neither_keeps_the_instance_alive_nor_releases_it() -> None:
    with Instance.open() as held:
        segment.create(f"clusterd.{held.token}.b.0.1", 10).close()
        read, write = os.pipe()
        child = _fork()
        if child == 0:
            held.release()  # has no part in it: nothing happens
            os.read(read, 1)
            os._exit(0)
        try:
            assert len(_names(held.token)) == 2
            held.abandon()
            assert not instance.is_alive(held.token)
            assert not _names(held.token)  # the reaper saw the end of the pipe although the child lives
        finally:
            os.write(write, b".")
            os.waitpid(child, 0)
            os.close(read)
            os.close(write)


def test_a_program_without_room_for_a_process_leaves_no_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir(SHM))
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(FileNotFoundError):
        Instance.open()
    assert set(os.listdir(SHM)) <= before


def test_unlink_all_refuses_what_is_no_token() -> None:
    with pytest.raises(InvariantViolation):
        instance.unlink_all("")
