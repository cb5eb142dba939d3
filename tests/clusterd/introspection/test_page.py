"""Progress pages: the newest sample whole or none, whatever the writer does; and when one is written."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterd.introspection import page as pages
from clusterd.introspection.page import MAX_SAMPLE_BYTES, ProgressPage, ProgressReader
from clusterd.introspection.progress import PAUSE_S, Progress
from shm_arrangements.names import SHM_DIRECTORY, new_token, progress_name


@pytest.fixture
def token() -> str:
    return new_token()


@pytest.fixture
def page(token: str) -> Iterator[ProgressPage]:
    made = ProgressPage(token, "solo/0")
    yield made
    made.close()


def test_a_reader_takes_each_sample_once_and_may_come_before_the_page(token: str) -> None:
    reader = ProgressReader(token, "solo/0")
    assert reader.take() is None
    page = ProgressPage(token, "solo/0")
    assert reader.take() is None
    assert page.write(b"one")
    assert (reader.take(), reader.take()) == (b"one", None)
    for sample in (b"two", b"", b"three"):
        assert page.write(sample)
    assert (reader.take(), reader.take()) == (b"three", None)
    page.close()
    page.close()
    assert not (Path(SHM_DIRECTORY) / progress_name(token, "solo/0")).exists()
    reader.close()


def test_a_page_takes_no_memory_for_what_was_never_written(token: str, page: ProgressPage) -> None:
    page.write(b"x" * 1000)
    page.write(b"x" * 1000)
    told = (Path(SHM_DIRECTORY) / progress_name(token, "solo/0")).stat()
    assert told.st_blocks * 512 <= 3 * 4096


def test_a_sample_that_is_too_large_leaves_the_one_before(token: str, page: ProgressPage) -> None:
    reader = ProgressReader(token, "solo/0")
    page.write(b"small")
    assert not page.write(bytes(MAX_SAMPLE_BYTES + 1))
    assert reader.take() == b"small"
    assert page.write(bytes(MAX_SAMPLE_BYTES))
    assert reader.take() == bytes(MAX_SAMPLE_BYTES)
    reader.close()


def test_a_full_dev_shm_leaves_the_sample_before(
    token: str, page: ProgressPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.write(b"before")

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pages.os, "pwritev", full)
        assert not page.write(b"lost")
    reader = ProgressReader(token, "solo/0")
    assert reader.take() == b"before"
    assert page.write(b"after")
    assert reader.take() == b"after"
    reader.close()


@pytest.mark.slow
def test_whoever_reads_while_it_is_written_gets_whole_samples_in_order(
    token: str, page: ProgressPage
) -> None:
    written = 3_000
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(1, written + 1):
                page.write(number.to_bytes(4, "big") * (1 + number % 997))
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    reader = ProgressReader(token, "solo/0")
    last = 0
    while last < written:
        sample = reader.take()
        if sample is None:
            assert not failed, failed
            continue
        number = int.from_bytes(sample[:4], "big")
        assert sample == number.to_bytes(4, "big") * (1 + number % 997)
        assert number > last
        last = number
    writer.join(10)
    reader.close()


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.cost_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_news_are_told_at_once_then_after_a_pause_and_never_without_news(
    token: str, page: ProgressPage
) -> None:
    heard, ring = os.pipe()
    clock = _Clock()
    told = 0

    def collect() -> bytes:
        nonlocal told
        told += 1
        clock.now_s += clock.cost_s
        return b"%d" % told

    progress = Progress(page, ring, collect, clock, clock)
    progress.tell()
    assert (told, progress.due_s) == (1, None)
    progress.tell()
    assert told == 1
    progress.note()
    progress.tell()
    assert (told, progress.due_s) == (1, pytest.approx(100.0 + PAUSE_S))
    clock.now_s += PAUSE_S + 1e-9
    clock.cost_s = 0.01  # so that the next pause is a second
    progress.tell()
    assert (told, progress.due_s) == (2, None)
    progress.note()
    assert progress.due_s == pytest.approx(clock.now_s + 1.0)
    assert os.read(heard, 100) == b"!!"
    os.close(heard)
    os.close(ring)


def test_what_there_was_no_room_for_is_told_after_the_pause(
    token: str, page: ProgressPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, ring = os.pipe()
    clock = _Clock()
    progress = Progress(page, ring, lambda: b"news", clock, clock)
    with monkeypatch.context() as patched:
        patched.setattr(ProgressPage, "write", lambda self, sample: False)
        progress.tell()
    assert progress.due_s == pytest.approx(clock.now_s + PAUSE_S)
    clock.now_s += PAUSE_S + 1e-9
    progress.tell()
    assert progress.due_s is None
    reader = ProgressReader(token, "solo/0")
    assert reader.take() == b"news"
    reader.close()
    os.close(heard)
    os.close(ring)


def test_what_a_sample_leaves_out_is_told_after_the_pause(token: str, page: ProgressPage) -> None:
    heard, ring = os.pipe()
    clock = _Clock()
    told: list[int] = []

    def collect() -> bytes:
        told.append(len(told))
        if len(told) == 1:
            progress.note()  # it had no time for all
        return b""

    progress = Progress(page, ring, collect, clock, clock)
    progress.tell()
    assert progress.due_s == pytest.approx(clock.now_s + PAUSE_S)
    clock.now_s += PAUSE_S + 1e-9
    progress.tell()
    assert (told, progress.due_s) == ([0, 1], None)
    os.close(heard)
    os.close(ring)


def test_a_ring_that_nobody_hears_keeps_nobody(token: str, page: ProgressPage) -> None:
    heard, ring = os.pipe()
    clock = _Clock()
    progress = Progress(page, ring, lambda: b"", clock, clock)
    os.set_blocking(ring, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(ring, b"x" * 4096)
    progress.tell()
    os.close(heard)
    progress.note()
    clock.now_s += 1
    progress.tell()
    os.close(ring)
