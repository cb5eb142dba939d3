"""What the cases share: sizes, random data, S(N) beside each timing, memory at its peak.

A machine has good and bad minutes. So every rate is put in relation to a sort by numpy that ran right before
it, and the figure is the median of these relations; sizes are those of the bars unless somebody asks for
less, and then the bars say little.

Does not: time anything itself but the sort.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.harness import Recorder, spread
from shm_arrangements import instance as instances
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.instance import Instance
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import DTYPES, ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import TraceWriter

Words = NDArray[np.uint64]

FULL_ROWS: Final = 10_000_000
WORD: Final = ColumnType.UINT64
PAIRS: Final = ArrangementSchema((ColumnSpec("k", WORD, False), ColumnSpec("v", WORD, False)), (0,))
SEED: Final = 3


@dataclass(frozen=True)
class Sizes:
    """Everything in proportion to `rows`, which is 10 M where the bars hold.

    churned: updates of each key of the churn.
    """

    rows: int
    runs: int
    churned: int

    @property
    def small(self) -> int:
        return self.rows // 10

    @property
    def batch(self) -> int:
        return self.rows // 1000

    @property
    def keys(self) -> int:
        """Of one `lookup_many`, and of the churn."""
        return self.rows // 100

    @property
    def churn(self) -> int:
        """Updates in all."""
        return self.keys * self.churned


@dataclass(frozen=True)
class Bench:
    """What a case is given."""

    recorder: Recorder
    sizes: Sizes

    def rates(
        self,
        case: str,
        n: int,
        work: Callable[[], float],
        *,
        bar: float,
        **more: Any,
    ) -> None:
        """Record rows/s and their relation to S(n), `bar` of it; `work` does n rows and says the seconds."""
        rates, ratios, sorts = [], [], []
        for _ in range(self.sizes.runs):
            sorted_per_s = sort_rate(n)
            rates.append(n / work())
            ratios.append(rates[-1] / sorted_per_s)
            sorts.append(sorted_per_s)
        self.recorder.record(
            f"{case}, rate", statistics.median(rates), "rows/s", **spread(rates),
            s_rows_per_s=round(statistics.median(sorts)), rows=n, **more,
        )  # fmt: skip
        self.recorder.record(
            f"{case}, rate / S({n:,})", statistics.median(ratios), "ratio", bar=bar, at_most=False,
            **spread(ratios), rows=n, **more,
        )  # fmt: skip

    def median(
        self, case: str, values: list[float], unit: str, *, bar: float | None = None, at_most: bool = True,
        **more: Any,
    ) -> None:  # fmt: skip
        """Record the median of the runs."""
        self.recorder.record(
            case, statistics.median(values), unit, bar=bar, at_most=at_most, **spread(values), **more
        )


def sort_rate(n: int) -> float:
    """S(n): rows/s of numpy's stable argsort on n random u64, once, now."""
    words = random_words(n, np.random.default_rng(SEED))
    start = time.perf_counter()
    np.argsort(words, kind="stable")
    return n / (time.perf_counter() - start)


def random_words(n: int, rng: np.random.Generator) -> Words:
    """n random u64 (or, where the column type has a sign, its 64 bits)."""
    return rng.integers(0, 1 << 64, n, dtype=np.uint64)


def word_column(words: Words) -> Column:
    """The words as a column of type WORD, without a copy."""
    return Column(WORD, words.view(DTYPES[WORD]))


def words_of(column: Column) -> Words:
    """Inverse of `word_column`."""
    return np.asarray(column.values).view(np.uint64)


def pairs(keys: Words, values: Words, t: int, diffs: NDArray[np.int64] | int = 1) -> Updates:
    """Updates of PAIRS, all at time t."""
    n = len(keys)
    counts = np.full(n, diffs, np.int64) if isinstance(diffs, int) else diffs
    return Updates((word_column(keys), word_column(values)), np.full(n, t, np.uint64), counts)


@contextmanager
def trace(schema: ArrangementSchema, held: Instance, id: int = 1) -> Iterator[TraceWriter]:
    """A published arrangement of the instance; dropped at the end."""
    writer = TraceWriter(SegmentAllocator(held.token, id), id, 1, schema, 0)
    try:
        yield writer
    finally:
        writer.close()


def loaded(writer: TraceWriter, updates: Updates) -> float:
    """Insert everything as one batch, at [upper, upper + 1); the seconds it took."""
    gc.collect()
    start = time.perf_counter()
    writer.insert(updates, Frontier.at(writer.upper.time + 1))
    return time.perf_counter() - start


def shm_bytes(token: str) -> int:
    """What the names of an instance take in /dev/shm."""
    total = 0
    for name in instances.names_of(token):
        try:
            total += os.stat(f"/dev/shm/{name}").st_blocks * 512
        except FileNotFoundError:
            continue
    return total


class Peak:
    """Memory of this process at its highest since the beginning, beyond what it had then.

    Resident memory includes what is touched of shared mappings; shared memory that is reserved and not
    touched is added.
    """

    def __init__(self, token: str) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is the present
        self._token = token
        self._before = _status("VmRSS")
        self._shared = _status("RssShmem")
        self._segments = shm_bytes(token)

    def nbytes(self) -> int:
        untouched = shm_bytes(self._token) - self._segments - (_status("RssShmem") - self._shared)
        return _status("VmHWM") - self._before + max(untouched, 0)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def is_mapped(array: np.ndarray) -> bool:
    """Whether the array lies in a mapping of one of our segments."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address and address + array.nbytes <= last:
            return "/dev/shm/clusterd." in line
    return False


def require(holds: Any, what: str) -> None:
    """A benchmark of wrong answers is worth nothing. Raises: RuntimeError."""
    if not holds:
        raise RuntimeError(f"wrong answer: {what}")


def same_pairs(keys: Any, values: Any, wanted_keys: Words, wanted_values: Words) -> bool:
    """Whether both are the same pairs in any order; keys are distinct."""
    if len(keys) != len(wanted_keys):
        return False
    mine, wanted = np.argsort(keys, kind="stable"), np.argsort(wanted_keys, kind="stable")
    return bool(
        np.array_equal(keys[mine], wanted_keys[wanted])
        and np.array_equal(values[mine], wanted_values[wanted])
    )
