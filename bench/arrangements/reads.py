"""Reading: one key, many keys, everything; one batch and a chain of eight; LMDB beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.arrangements import peer_lmdb
from bench.arrangements.common import (
    PAIRS,
    SEED,
    Bench,
    Words,
    is_mapped,
    loaded,
    pairs,
    random_words,
    require,
    same_pairs,
    word_column,
)
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach
from shm_arrangements.builder import build_batch
from shm_arrangements.chain import Chain
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.kernels import find
from shm_arrangements.kernels.cells import TABLE
from shm_arrangements.kernels.jit import OUT_I64, U64, kernel
from shm_arrangements.kernels.refs import TABLES
from shm_arrangements.table import Table
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.view import ReadView

BAR_COMPILED_US = 1.0
BAR_PYTHON_US = 2.5
BAR_SORTED = 5e6
BAR_RANDOM = 2e6
BAR_PEER = 3.0
BAR_SCAN = 100e6
CHAIN = 8


@contextmanager
def _index(keys: Words, values: Words) -> Iterator[tuple[IndexWriter, ReadView]]:
    """One batch, published, and a view of it as another process would have it."""
    with Instance.create() as held:
        writer = IndexWriter(SegmentAllocator(held.token, 1), 1, 1, PAIRS, 0)
        try:
            loaded(writer.oks, pairs(keys, values, 0))
            writer.errs.insert(Updates.empty((ColumnType.TEXT,)), Frontier.at(1))
            with attach(1, held.token) as attached:
                yield writer, attached.snapshot(0)
        finally:
            writer.close()


def lookups(bench: Bench) -> None:
    """One key from compiled code and from Python, many keys at once; LMDB beside."""
    _lookups(bench, random_words(bench.sizes.rows, np.random.default_rng(SEED)), barred=True)


def consecutive(bench: Bench) -> None:
    """The same where keys are 0, 1, 2, ...: all codes lie in a small part of the 64 bits."""
    _lookups(bench, np.arange(bench.sizes.rows, dtype=np.uint64), barred=False)


def _lookups(bench: Bench, keys: Words, *, barred: bool) -> None:
    n, many, runs = bench.sizes.rows, bench.sizes.keys, bench.sizes.runs
    rng = np.random.default_rng(SEED + 1)
    values = random_words(n, rng)
    chosen = rng.integers(0, n, many)
    asked, wanted = keys[chosen], values[chosen]
    one_by_one = asked[: max(many // 5, 100)].tolist()
    expected = list(zip(one_by_one, wanted[: len(one_by_one)].tolist(), strict=True))
    order = np.argsort(asked, kind="stable")
    asked_in = {"sorted": (asked[order], wanted[order]), "random": (asked, wanted)}
    more: dict[str, Any] = {"rows": n}

    def record(case: str, values: list[float], unit: str, bar: float | None = None, **further: Any) -> None:
        if barred:
            bench.median(case, values, unit, bar=bar, at_most=unit == "us", **more, **further)
        else:
            bench.median(f"{case}, consecutive keys", values, unit, **more, **further)

    with _index(keys, values) as (writer, view):
        (batch,) = writer.oks.reader().batches()
        compiled = [_compiled_us(batch, asked, wanted) for _ in range(runs)]
        record("lookup, compiled", compiled, "us", BAR_COMPILED_US, keys=many)
        python = [_python_us(view, one_by_one, expected) for _ in range(runs)]
        record("lookup, Python", python, "us", BAR_PYTHON_US, keys=len(one_by_one))
        for name, bar in (("sorted", BAR_SORTED), ("random", BAR_RANDOM)):
            rates = [many / _many_s(view, *asked_in[name]) for _ in range(max(runs, 3))]
            record(f"lookup_many, {name}", rates, "keys/s", bar, keys=many)
        if not barred:
            return
        with peer_lmdb.store(keys, values) as transaction:
            if transaction is None:
                return
            plain = [peer_lmdb.get_us(transaction, one_by_one, [v for _, v in expected]) for _ in range(runs)]
            record("LMDB get", plain, "us", keys=len(one_by_one))
            for name, (k, v) in asked_in.items():
                as_bytes = peer_lmdb.as_bytes(k), peer_lmdb.as_bytes(v)
                theirs, ratios = [], []
                for _ in range(max(runs, 3)):
                    theirs.append(many / peer_lmdb.get_many_s(transaction, *as_bytes))
                    ratios.append(many / _many_s(view, k, v) / theirs[-1])
                record(f"LMDB getmulti, {name}", theirs, "keys/s", keys=many)
                record(f"lookup_many / getmulti, {name}", ratios, "ratio", BAR_PEER, keys=many)


@kernel(find.CHAIN, TABLES, TABLE, U64, OUT_I64)
def _find_each(chain: Any, cells: Any, keys: Any, codes: Any, out: Any) -> None:
    """The row of each key, found as other kernels find one: out[k] is where it stands, or -1."""
    words = find.words_at(chain[0, find.CODES], chain[0, find.ROWS])
    for k in range(codes.shape[0]):
        lo, hi = find.find_in_batch(words, cells[0], codes[k], keys, k, 1)
        out[k] = lo if lo < hi else -1


def _compiled_us(batch: Any, asked: Words, wanted: Words) -> float:
    """Microseconds a key, searched one after the other from compiled code; values taken out."""
    keys = (word_column(asked),)
    chain, codes, table = Chain([batch]), PAIRS.codes_of(keys), Table(keys)
    rows = np.empty(len(asked), np.int64)
    _find_each(chain.rows, chain.cells, table.cells, codes[:0], rows)
    start = time.perf_counter()
    _find_each(chain.rows, chain.cells, table.cells, codes, rows)
    values = batch.columns[1].values.take(rows)
    took = time.perf_counter() - start
    require(np.array_equal(values.view(np.uint64), wanted), "values of the kernels")
    return took * 1e6 / len(asked)


def _python_us(view: ReadView, asked: list[int], wanted: list[tuple[int, int]]) -> float:
    """Microseconds of one lookup of a Python int, its rows taken out."""
    lookup = view.lookup
    start = time.perf_counter()
    found = [lookup(key).rows() for key in asked]
    took = time.perf_counter() - start
    require([rows[0] for rows in found] == wanted, "rows of lookup")
    return took * 1e6 / len(asked)


def _many_s(view: ReadView, asked: Words, wanted: Words) -> float:
    """Seconds of one lookup_many, the values taken out as numpy."""
    start = time.perf_counter()
    result = view.lookup_many(asked)
    values = result.column("v")
    took = time.perf_counter() - start
    require(
        result.key_index is not None and np.array_equal(result.key_index, np.arange(len(asked))), "key_index"
    )
    require(np.array_equal(values.view(np.uint64), wanted), "values of lookup_many")
    return took


def scans(bench: Bench) -> None:
    """Everything as numpy: one batch without a copy, and two shapes of a chain of eight."""
    n = bench.sizes.rows
    rng = np.random.default_rng(SEED)
    keys, values = random_words(n, rng), random_words(n, rng)
    with _index(keys, values) as (_, view):
        result = view.scan()
        k, v = result.column("k"), result.column("v")
        require(same_pairs(k.view(np.uint64), v.view(np.uint64), keys, values), "the scan")
        copied = float(sum(not is_mapped(array) for array in (k, v)))
        bench.recorder.record("scan of one batch, arrays copied", copied, "arrays", bar=0.0, rows=n)
        taken = [_scan_s(view) * 1e6 for _ in range(max(bench.sizes.runs, 3))]
        bench.median("scan of one batch", taken, "us", rows=n)
    small = n // 1000
    shapes = {
        "one large, seven small": [n - (CHAIN - 1) * small] + [small] * (CHAIN - 1),
        "falling by halves": [n >> i for i in range(1, CHAIN)] + [n - sum(n >> i for i in range(1, CHAIN))],
    }
    for name, parts in shapes.items():
        with Instance.create() as held:
            allocator = SegmentAllocator(held.token, 1)
            ends = np.cumsum([0, *parts])
            chain = []
            for t, (lo, hi) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
                about = Description(Frontier.at(t), Frontier.at(t + 1), Frontier.minimum())
                updates = pairs(keys[lo:hi], values[lo:hi], t)
                chain.append(build_batch(updates, PAIRS, about, allocator))
            view = ReadView("chain", PAIRS, chain, [], CHAIN)
            result = view.scan()
            k, v = (result.column(c).view(np.uint64) for c in ("k", "v"))
            require(same_pairs(k, v, keys, values), f"the scan of {name}")
            del result, k, v
            rates = [n / _scan_s(view) for _ in range(max(bench.sizes.runs, 3))]
            bench.median(f"scan of {CHAIN} batches, {name}", rates, "rows/s", bar=BAR_SCAN, at_most=False,
                         rows=n, sizes=parts)  # fmt: skip


def _scan_s(view: ReadView) -> float:
    start = time.perf_counter()
    result = view.scan()
    arrays = result.column("k"), result.column("v"), result.counts
    took = time.perf_counter() - start
    require(len({len(array) for array in arrays}) == 1, "columns of one length")
    return took
