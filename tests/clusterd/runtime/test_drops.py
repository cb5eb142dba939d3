"""A drop frees what it can free at once: names, mappings, descriptors and the memory of the process.

Measured with the collector of garbage off: what is kept in a circle counts as kept, for an idle process may
not collect for hours.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller_proto.codec import encode_body
from controller_proto.command import CreateDataflow, Schedule
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.expr import ColumnRef
from controller_proto.plan import Get, Join, Plan
from controller_proto.response import PeekError
from controller_proto.schema import SAMPLE_SCHEMA, Schema
from tests import leaks
from tests.clusterd.runtime.shell import Shell

MODES = pytest.mark.parametrize("workers", [0, 1])
ROWS = [(i, f"{i:0200}") for i in range(3000)]
JOINED = Schema((*SAMPLE_SCHEMA.columns, *SAMPLE_SCHEMA.columns))
JOIN = Join((Get("u1000"), Get("u1000")), ((ColumnRef(0), ColumnRef(2)),))


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> tuple[int, int]:
    """Bytes of this process's own memory that Python and numpy took, and descriptors of shared memory."""
    mapped = sum(count for target, count in leaks._fds().items() if "/dev/shm/clusterd." in target)
    return tracemalloc.get_traced_memory()[0], mapped


def create(
    replica: Shell, id: str, plan: Plan, schema: Schema, *, kind: str = "index", over: str = ""
) -> None:
    """A dataflow over the shard, or over the index `over`; not scheduled."""
    sources = () if over else (SourceImport("u1000", "s", SAMPLE_SCHEMA),)
    header = DataflowHeader(
        id, 0, None, sources, (IndexImport(over),) if over else (), (Export(id, kind, "u5000", schema),)
    )
    replica.send(CreateDataflow(0, header, encode_body(DataflowBody((Build("u5000", plan),)))))


def run(replica: Shell, what: str) -> None:
    """Make `what` over the shard `s` and drop it."""
    if what == "never scheduled":
        create(replica, "u2", JOIN, JOINED)
    elif what == "hydrated":
        create(replica, "u2", JOIN, JOINED)
        replica.send(Schedule(0, "u2"))
    elif what == "in the middle of a round":
        create(replica, "u2", JOIN, JOINED)
        replica.send(Schedule(0, "u2"))
        replica.settle(until=lambda: replica.loops[0].dataflows.has_work)
        replica.loops[0].turn()
        assert replica.loops[0].dataflows.has_work
    elif what == "deferred":
        replica.index("u2")
        replica.settle()
        replica.over("t3", "u2", as_of=9)
        replica.settle()
        replica.drop("t3")
    elif what == "with reads parked":
        replica.index("u2")
        for number in range(3):
            replica.peek(f"p{number}", "u2", 9)
    elif what == "with a subscription":
        replica.index("u2")
        create(replica, "t3", Get("u2"), SAMPLE_SCHEMA, kind="subscribe", over="u2")
        replica.send(Schedule(0, "t3"))
    if what != "in the middle of a round":
        replica.settle()
    replica.drop("u2")
    replica.settle()
    if what == "with a subscription":
        replica.drop("t3")
        replica.settle()
    if what == "with reads parked":
        answers = [replica.answer(f"p{number}") for number in range(3)]
        assert [a.result.code for a in answers if a and isinstance(a.result, PeekError)] == ["dropped"] * 3


WHAT = [
    "never scheduled", "hydrated", "in the middle of a round", "deferred", "with reads parked",
    "with a subscription",
]  # fmt: skip


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("what", WHAT)
def test_a_drop_frees_memory_at_once(what: str, workers: int, tmp_path: Path) -> None:
    """Twice before: what is made at the first time stays."""
    with Shell(tmp_path, workers, chunk_s=0.0) as replica:
        replica.boot()
        replica.write(ROWS, 0)
        for _ in range(2):
            run(replica, what)
            replica.responses.clear()
            replica.connect(complete=True)  # ids begin anew
            replica.settle()
        tracemalloc.start()
        try:
            before = held()
            run(replica, what)
            replica.responses.clear()
            after = held()
        finally:
            tracemalloc.stop()
        assert replica.names() == []
        assert after[1] == before[1]
        assert after[0] - before[0] < 100_000, f"{after[0] - before[0]} bytes of {len(ROWS) * 200} are kept"
        for loop in replica.loops:
            statistics = loop.core.statistics()
            assert (statistics.collections, statistics.dataflows, statistics.peeks.parked) == (0, 0, 0)
