"""The library as other programs use it: docs/arrangements.md runs as it stands; every end leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from shm_arrangements import instance
from shm_arrangements.instance import Instance

pytestmark = [pytest.mark.alone, pytest.mark.slow]

DEADLINE_S = 60
ENDS_WITHIN_S = 2.0  # R1
DOCUMENT = Path(__file__).parents[2] / "docs" / "arrangements.md"


def _start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, process.communicate(timeout=DEADLINE_S)
    return line


def _names(token: str) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if token in name]


def _await_gone(token: str) -> float:
    begun = time.monotonic()
    while _names(token):
        assert time.monotonic() - begun < DEADLINE_S, _names(token)
        time.sleep(0.005)
    return time.monotonic() - begun


def test_the_programs_of_the_document_run_as_they_stand() -> None:
    write, read, alone = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    told = "    print(instance.token, flush=True)\n    input()\n"
    assert write.endswith("    input()\n")
    writer = _start(write.removesuffix("    input()\n") + told)
    token = _line(writer)
    reader = _start(read.replace('attach("flights")', f'attach("flights", "{token}")'))
    out, err = reader.communicate(timeout=DEADLINE_S)
    assert (reader.returncode, err) == (0, "")
    assert out.splitlines() == ["8 [('JFK', 15)]", "15", "[('JFK', 15)]", "{9}"]
    out, err = writer.communicate("\n", timeout=DEADLINE_S)
    assert (writer.returncode, out, err) == (0, "", "")
    assert not _names(token)
    last = _start(alone)
    out, err = last.communicate(timeout=DEADLINE_S)
    assert (last.returncode, err) == (0, "")
    told = re.findall(r"print\(.*\)  # (?:.*: )?(.*)", alone)  # what each line says it prints
    assert out.splitlines() == told
    assert len(told) == 9


# An index u1: every key's value is the time. Then it does what it is told.
WRITER = """
    import os, sys, time
    from shm_arrangements import (
        ArrangementSchema, ColumnSpec, ColumnType, Frontier, IndexWriter, Instance, SegmentAllocator,
        ShmExhausted, Updates, collection_id,
    )
    from shm_arrangements import failpoints
    I64 = ColumnType.INT64
    schema = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
    held = Instance.open()
    index = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u1"), 1, schema, 0)
    no_errs = Updates.empty((ColumnType.TEXT,))

    def tick(t):
        rows = [((k, t), t, 1) for k in range(5000)] + [((k, t - 1), t, -1) for k in range(5000) if t]
        index.insert(Updates.from_rows((I64, I64), rows), no_errs, Frontier.at(t + 1))

    for t in range(5):
        tick(t)
    print(held.token, flush=True)
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
    """


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


WAITER = """
    import sys
    from shm_arrangements import attach
    with attach("u1", sys.argv[1]) as read:
        print("waits", flush=True)
        print(read.wait(5, timeout_s=60), flush=True)
        found = read.scan(at=5)
        print(len(found), set(found["v"].tolist()), flush=True)
    """


def test_bug09_who_waits_for_a_batch_whose_creation_failed_once_gets_it_from_the_second_try() -> None:
    writer = _start(WRITER)
    token = _line(writer)
    waiter = _start(WAITER, token)
    assert _line(waiter) == "waits"
    _say(writer, "failpoints.arm('segment.create', 'error', times=1)")
    assert _line(writer) == "done"
    attempt = "exec('try:\\n tick(5)\\nexcept ShmExhausted as error:\\n print(error.asked_bytes > 0)')"
    _say(writer, attempt)
    assert [_line(writer), _line(writer)] == ["True", "done"]
    _say(writer, attempt)
    assert _line(writer) == "done"
    out, err = waiter.communicate(timeout=DEADLINE_S)
    assert (waiter.returncode, out.splitlines(), err) == (0, ["{6}", "5000 {5}"], "")
    out, err = writer.communicate("held.release()\n", timeout=DEADLINE_S)
    assert (writer.returncode, err) == (0, "")
    assert not _names(token)


def test_bug05_twenty_programs_killed_with_their_group_leave_nothing_and_one_beside_them_lives() -> None:
    living = _start(WRITER)
    kept = _line(living)
    before = set(_names(kept))
    slowest = 0.0
    for _ in range(4):
        killed = [_start(WRITER) for _ in range(5)]
        tokens = [_line(process) for process in killed]
        assert all(_names(token) for token in tokens)
        for process in killed:
            os.killpg(process.pid, signal.SIGKILL)
        for process, token in zip(killed, tokens, strict=True):
            _, err = process.communicate(timeout=DEADLINE_S)
            assert err == ""
            slowest = max(slowest, _await_gone(token))
    print(f"the last name went {slowest:.3f} s after the kill was seen")
    assert slowest < ENDS_WITHIN_S
    _say(living, "tick(5)")
    assert _line(living) == "done"
    assert before - set(_names(kept)) == set()
    living.communicate("held.release()\n", timeout=DEADLINE_S)
    assert not _names(kept)


def test_what_program_and_reaper_left_is_swept_by_the_next_that_opens() -> None:
    process = _start(WRITER)
    token = _line(process)
    _say(process, "print(held._reaper.pid)")
    reaper = int(_line(process))
    os.kill(reaper, signal.SIGKILL)
    process.kill()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert err == ""
    assert _names(token)
    assert not instance.is_alive(token)
    with Instance.open():
        assert not _names(token)


SPAWNER = """
    import multiprocessing, sys
    from shm_arrangements import attach

    def read(token):
        with attach("u1", token) as index:
            assert len(index.scan()) == 5000
            keep.append(index.snapshot().scan()["k"])

    keep = []

    if __name__ == "__main__":
        read(sys.argv[1])
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            child = context.Process(target=read, args=(sys.argv[1],))
            child.start()
            child.join()
            print(method, child.exitcode, flush=True)
    """


def test_bug01_children_of_a_reader_that_attach_take_nothing_with_them_and_say_nothing(
    tmp_path: Path,
) -> None:
    writer = _start(WRITER)
    token = _line(writer)
    before = sorted(_names(token))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(SPAWNER))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(program), token],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        env={**os.environ, "PYTHONPATH": str(DOCUMENT.parents[1])},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "fork 0\nspawn 0\n", "")
    # A forked child of `multiprocessing` ends without its exit handlers: its row goes with the next look.
    from shm_arrangements.readers import list_readers

    assert list_readers(token) == ()
    assert sorted(_names(token)) == before
    writer.communicate("held.release()\n", timeout=DEADLINE_S)
    assert not _names(token)
