"""What the observer sees by itself: processes as the system counts them, readers of shared memory, errors.

Errors in data are read where they lie, in shared memory, and only of indexes whose errs moved since; so no
worker is asked for them.

Does not: read pages (observer.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import numpy as np
import psutil

from clusterd.introspection.sample import (
    ErrorFigures,
    IndexFigures,
    Outside,
    ProcessFigures,
    ReaderFigures,
)
from clusterd.introspection.samples import Samples
from controller_proto.ids import id_to_u64
from shm_arrangements import read
from shm_arrangements.errors import FormatMismatch, PublicationClosed, RegistryFull
from shm_arrangements.names import PageName
from shm_arrangements.readers import list_readers
from shm_arrangements.snapshot import PublishedTrace

__all__ = ["Lookout"]


class Lookout:
    """token: of the instance. `seen`: what `look` found last."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._processes: dict[int, psutil.Process] = {}
        self._errors: dict[tuple[str, str, int], tuple[IndexFigures, ErrorFigures | None]] = {}
        self.seen = Outside(0)

    def look(self, samples: Samples) -> Outside:
        """Find out what is so now. samples: who is there."""
        now_ms = time.time_ns() // 1_000_000
        self.seen = Outside(
            now_ms,
            tuple(self._look_at_processes(samples)),
            tuple(self._readers(now_ms)),
            tuple(self._look_at_errors(samples)),
        )
        return self.seen

    def _look_at_processes(self, samples: Samples) -> Iterable[ProcessFigures]:
        known, self._processes = self._processes, {}
        there = {sample.pid: (sample.process, sample.role) for sample in samples.by_process.values()}
        for supervisor in samples.supervisors:  # it knows of those, too, that say nothing of themselves
            there = {pid: (name, name) for name, pid in supervisor.pids} | there
        for pid, (name, role) in there.items():
            # psutil says so in its own words, /proc in two others: it ended while it was looked at.
            with contextlib.suppress(psutil.Error, FileNotFoundError, ProcessLookupError):
                process = known.get(pid) or psutil.Process(pid)
                self._processes[pid] = process
                yield _process(name, role, process)

    def _readers(self, now_ms: int) -> Iterable[ReaderFigures]:
        with contextlib.suppress(RegistryFull):
            for reader in list_readers(self._token):
                age_s = reader.oldest_age_s
                yield ReaderFigures(
                    reader.pid,
                    _command(reader.pid),
                    reader.snapshots,
                    reader.pinned_bytes,
                    reader.oldest_time,
                    None if age_s is None else now_ms - int(age_s * 1000),
                    tuple((pin.id, pin.incarnation, pin.nbytes) for pin in reader.pins),
                )

    def _look_at_errors(self, samples: Samples) -> Iterable[ErrorFigures]:
        known, self._errors = self._errors, {}
        for sample in samples.workers:
            for half in sample.indexes:
                if half.half != "errs" or not half.updates:
                    continue
                name = sample.process, half.id, half.incarnation
                held = known.get(name)
                if held is None or held[0] != half:
                    held = half, self._errors_of(sample.process, half)
                self._errors[name] = held
                if held[1] is not None:
                    yield held[1]

    def _errors_of(self, worker: str, half: IndexFigures) -> ErrorFigures | None:
        """Those that stand at the newest time; None if none does."""
        page = PageName(self._token, id_to_u64(half.id), half.incarnation, "errs")
        try:
            trace = PublishedTrace(page)
        except (PublicationClosed, FormatMismatch, RegistryFull):
            return None
        try:
            chain = trace.snapshot().batches()
            upper = trace.read().upper
        except (PublicationClosed, FormatMismatch, RegistryFull):
            return None
        finally:
            trace.close()
        last = max((int(batch.times.max()) for batch in chain if len(batch)), default=0)
        columns, counts = read.scan_at(chain, last if upper.is_empty else max(last, upper.time - 1))
        standing = np.flatnonzero(counts > 0)
        if not len(standing):
            return None
        texts = columns[0].take(standing).to_pylist()
        first = min(int(batch.times.min()) for batch in chain if len(batch))
        return ErrorFigures(
            worker, half.id, half.incarnation, int(counts[standing].sum()), min(map(str, texts)), first, last
        )


def _process(name: str, role: str, process: psutil.Process) -> ProcessFigures:
    with process.oneshot():
        cpu = process.cpu_times()
        memory = process.memory_info()
        threads = process.num_threads()
    minor, major = _faults(process.pid)
    cpu_s = round(cpu.user + cpu.system, 2)
    sizes = memory.rss, memory.shared
    return ProcessFigures(name, role, process.pid, cpu_s, *sizes, minor, major, threads)


def _faults(pid: int) -> tuple[int, int]:
    """Minor and major page faults."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return int(fields[7]), int(fields[9])


def _command(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""
