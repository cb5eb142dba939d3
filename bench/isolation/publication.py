"""What does it cost to publish, if nobody reads? A dataflow's updates with pages turned and without.

The same dataflow and the same updates, batch by batch in turns, in processor time. Without means that a
page's turn is only noted in the writer, nothing is written to shared memory, and no bell rings. It is a
switch of this benchmark: a worker that does not publish is of no use. One worker in this process, as
bench-dataflows has it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.arrangements.common import require
from bench.dataflows.common import Facts
from bench.dataflows.worker import Shard, View, Worker
from bench.isolation.common import SEED, Bench
from shm_arrangements.clock import Cell
from shm_arrangements.frontier import Frontier
from shm_arrangements.page_layout import PageState
from shm_arrangements.publication import PublicationPage

BAR_SHARE = 0.03
_PLAN = """
import source=1000 shard=facts upper=0
build id=3000
  Reduce group_by=[#0] aggregates=[count(*), sum(#1)]
    Get u1000
export index=3001 on=3000 key=[0]
"""


def _note(page: Any, status: Any, since: Frontier, upper: Frontier, chain: Any, entries: Any) -> int:
    """In place of PublicationPage._show."""
    generation: int = page._state.generation + 1
    page._state, page._entries = PageState(generation, status, since, upper, chain), entries
    return generation


@contextmanager
def _unpublished() -> Iterator[None]:
    with patch.object(PublicationPage, "_show", _note), patch.object(Cell, "ring", lambda cell: None):
        yield


class _Course:
    """A view over facts that change, alone in its worker."""

    def __init__(self, worker: Worker, rows: int, seed: int) -> None:
        self._worker = worker
        rng = np.random.default_rng(seed)
        self._facts = Facts(rows, max(rows // 10, 10), 1000, rows, rng)
        self._shard = Shard(["k", "v"])
        self.view: View = worker.add(_PLAN, {"facts": self._shard}, index=True)
        self._shard.append(self._facts.load())
        worker.run()

    def update_s(self, batch: int) -> float:
        """Processor time of one batch of updates, all that follows from it included."""
        self._shard.append(self._facts.batch(batch))
        start = time.process_time()
        self._worker.run()
        return time.process_time() - start

    def state(self) -> tuple[int, int]:
        writer = self.view.index_writer
        assert writer is not None
        told = writer.statistics()
        return sum(each.batches for each in told), sum(each.nbytes for each in told)


def publication(bench: Bench) -> None:
    """Throughput of updates with publication, beside without; and what is kept for it."""
    rows = bench.sizes.view_rows // 10
    with Worker() as worker, Worker() as other:
        shown = _Course(worker, rows, SEED)
        with _unpublished():
            hidden = _Course(other, rows, SEED)
        for what, batch, bar in (
            ("batches of 1 %", max(rows // 100, 10), BAR_SHARE),
            ("ticks of 10 rows", 10, None),
        ):
            costs, rates = [], []
            for _ in range(2 * bench.sizes.runs + 1):
                gc.collect()
                spent: dict[str, list[float]] = {"shown": [], "hidden": []}
                for number in range(40):  # now one is first, now the other
                    if number % 4 in (0, 3):
                        spent["shown"].append(shown.update_s(batch))
                    else:
                        with _unpublished():
                            spent["hidden"].append(hidden.update_s(batch))
                one, without = (statistics.median(each) for each in spent.values())
                costs.append(1 - without / one)
                rates.append(batch / one)
            bench.median(f"publication, {what}, cost", costs, "share", bar=bar, rows=rows, batch_rows=batch,
                         updates_per_cpu_s=round(statistics.median(rates)))  # fmt: skip
        require(shown.state()[0] == hidden.state()[0], "as many batches, published or not")
        require(shown.state()[1] == hidden.state()[1], "as many bytes, published or not")
        bench.recorder.record(
            "publication, batches and bytes beyond those unpublished", 0, "bytes", bar=0.0,
            batches=shown.state()[0], batch_bytes=shown.state()[1],
        )  # fmt: skip
