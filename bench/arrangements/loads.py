"""Loading: unsorted records become one published batch: how fast, in how much memory; what filling costs."""

from __future__ import annotations

import time

import numpy as np

from bench.arrangements.common import (
    PAIRS,
    SEED,
    WORD,
    Bench,
    Peak,
    loaded,
    pairs,
    random_words,
    require,
    same_pairs,
    trace,
    word_column,
    words_of,
)
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.columns import Column
from shm_arrangements.instance import Instance
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

BAR_LOAD = 2.5
BAR_TEXT = 0.5
BAR_BYTES = 24.0
BAR_PEAK_BYTES = 48.0
TEXT_BYTES = 20
_TEXTS = ArrangementSchema(
    (ColumnSpec("k", ColumnType.TEXT, False), ColumnSpec("v", WORD, False)), (0,)
)  # fmt: skip


def arrange(bench: Bench) -> None:
    """Unsorted (u64, u64), diff 1, in one batch; bytes a record afterwards and at the peak."""
    n = bench.sizes.rows
    rng = np.random.default_rng(SEED)
    keys, values = random_words(n, rng), random_words(n, rng)
    updates = pairs(keys, values, 0)
    sizes, peaks = [], []

    def work() -> float:
        with Instance.create() as held, trace(PAIRS, held) as writer:
            peak = Peak(held.token)
            took = loaded(writer, updates)
            peaks.append(peak.nbytes() / n)
            sizes.append(writer.statistics().nbytes / n)
            if len(sizes) == 1:
                (batch,) = writer.reader().batches()
                k, v = map(words_of, batch.row_columns())
                require(same_pairs(k, v, keys, values), "the loaded batch")
                require((batch.diffs == 1).all() and (batch.times == 0).all(), "diffs and times")
        return took

    work()  # warm: kernels, and the heap as a process has it that has run for a while
    sizes.clear()
    peaks.clear()
    bench.rates("arrange", n, work, bar=BAR_LOAD)
    bench.median("arrange, memory after", sizes, "bytes/record", bar=BAR_BYTES, rows=n)
    bench.median("arrange, peak beside the input", peaks, "bytes/record", bar=BAR_PEAK_BYTES, rows=n)


def text(bench: Bench) -> None:
    """Text keys of 20 bytes, u64 values."""
    n = bench.sizes.rows
    rng = np.random.default_rng(SEED)
    letters = rng.integers(97, 123, (n, TEXT_BYTES), dtype=np.uint8)
    values = random_words(n, rng)
    offsets = np.arange(0, (n + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int64)
    columns = (Column(ColumnType.TEXT, letters.reshape(-1), offsets), word_column(values))
    updates = Updates(columns, np.zeros(n, np.uint64), np.ones(n, np.int64))
    sizes = []

    def work() -> float:
        with Instance.create() as held, trace(_TEXTS, held) as writer:
            took = loaded(writer, updates)
            sizes.append(writer.statistics().nbytes / n)
            if len(sizes) == 1:
                (batch,) = writer.reader().batches()
                found, v = batch.row_columns()
                require(_same_texts(found, words_of(v), letters, values), "the texts")
        return took

    work()
    sizes.clear()
    bench.rates("text keys", n, work, bar=BAR_TEXT, text_bytes=TEXT_BYTES)
    bench.median("text keys, memory after", sizes, "bytes/record", rows=n)


def fill(bench: Bench) -> None:
    """What the memory itself costs: filling a fresh segment, and a heap array that is there already."""
    nbytes = bench.sizes.rows * 16
    ones = np.ones(nbytes // 8, np.uint64)
    fresh, touched = [], []
    kept = np.zeros_like(ones)
    for _ in range(max(bench.sizes.runs, 3)):
        with Instance.create() as held:
            start = time.perf_counter()
            allocation = SegmentAllocator(held.token, 1).allocate(nbytes)
            np.copyto(allocation.buffer[:nbytes].view(np.uint64), ones)
            fresh.append((time.perf_counter() - start) * 1e3 / (nbytes / 1e6))
            allocation.abandon()
            del allocation
        start = time.perf_counter()
        np.copyto(kept, ones)
        touched.append((time.perf_counter() - start) * 1e3 / (nbytes / 1e6))
    bench.median("fill a fresh segment", fresh, "ms/MB", nbytes=nbytes)
    bench.median("fill touched heap", touched, "ms/MB", nbytes=nbytes)


def _same_texts(found: Column, values: np.ndarray, letters: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether both are the same pairs in any order. Values are distinct, so they tell who is who."""
    n = len(wanted)
    if found.offsets is None or not (np.diff(found.offsets) == TEXT_BYTES).all():
        return False
    first = int(found.offsets[0])
    mine = found.values[first : first + n * TEXT_BYTES].reshape(n, TEXT_BYTES)
    a, b = np.argsort(values), np.argsort(wanted)
    return bool((values[a] == wanted[b]).all() and (mine[a] == letters[b]).all())
