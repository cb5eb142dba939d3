"""Views over views over views: every type at its edges, no columns, many times and long rows, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from clusterd.convert import updates_from_rows
from controller_proto.codec import encode_body
from controller_proto.command import AllowWrites, CreateDataflow, Peek, Schedule
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, SourceImport
from controller_proto.plan import Get, Mfp, Plan
from controller_proto.response import Copied, CopyToResponse
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.frontier import Frontier
from tests.clusterd.columns import VALUES
from tests.clusterd.runtime.test_views import MODES, Views

_COLUMNS = [column for column, _ in VALUES.values()]
EVERY = Schema(tuple(Column(c.name, c.type, True, c.scale, c.fields) for c in _COLUMNS))
IDS = ("u11", "u12", "u13")


def _rows() -> list[tuple[Any, ...]]:
    """The edges of each type side by side, and NULL of all."""
    most = max(len(values) for _, values in VALUES.values())
    rows = [tuple(values[at % len(values)] for _, values in VALUES.values()) for at in range(most)]
    return [*rows, (None,) * EVERY.arity]


def _chain(replica: Views, schema: Schema, *, as_of: int = 0, plan: Plan | None = None) -> None:
    """u11 over shard s, u12 over the shard of u11, u13 over that of u12."""
    for number, id in enumerate(IDS):
        shard = "s" if not number else f"v{number - 1}"
        source = SourceImport("u1", shard, replica.store.shard(shard).schema)
        export = Export(id, "materialized-view", "u9", schema, shard=f"v{number}")
        body = DataflowBody((Build("u9", plan if plan is not None and not number else Mfp(Get("u1"))),))
        header = DataflowHeader(id, as_of, None, (source,), (), (export,))
        replica.send(CreateDataflow(0, header, encode_body(body)), Schedule(0, id), AllowWrites(0, id))
        replica.settle()


def _append(replica: Views, schema: Schema, rows: list[Any], time: int, diffs: Any = 1) -> None:
    shard = replica.store.create_shard("s", schema)
    shard.append(updates_from_rows(schema, rows, time, diffs), shard.upper, Frontier.at(time + 1))


def _all(replica: Views) -> list[list[tuple[Any, ...]]]:
    found = []
    for id in IDS:
        uuid = f"{id}-{len(replica.responses)}"
        replica.send(Peek(0, uuid, id, None))
        replica.settle()
        found.append(replica.rows(uuid))
    return found


@pytest.mark.slow
@MODES
def test_every_type_goes_through_three_views_and_a_restart_finds_nothing_to_write(
    tmp_path: Path, workers: int
) -> None:
    rows = _rows()
    with Views(tmp_path / "d", workers) as replica:
        replica.boot()
        _append(replica, EVERY, rows, 0)
        _chain(replica, EVERY)
        _append(replica, EVERY, [rows[0], rows[-1]], 1, [-1, 3])
        replica.settle()
        first, second, third = _all(replica)
        assert len(third) == len(rows) + 2
        assert repr(first) == repr(second) == repr(third)
        stored = [len(replica.stored(f"v{number}")) for number in range(3)]
        assert stored == [len(rows) + 2] * 3
    with Views(tmp_path / "d", workers) as replica:
        replica.boot()
        _chain(replica, EVERY, as_of=1)
        assert [len(replica.stored(f"v{number}")) for number in range(3)] == stored
        _append(replica, EVERY, [], 2)
        replica.settle()
        assert [replica.upper(f"v{number}") for number in range(3)] == [Frontier.at(3)] * 3
        assert [len(replica.stored(f"v{number}")) for number in range(3)] == stored
        assert repr(_all(replica)[2]) == repr(third)


@MODES
def test_a_view_without_columns_counts_rows(tmp_path: Path, workers: int) -> None:
    schema = Schema((Column("k", ColumnType.INT64),))
    with Views(tmp_path / "d", workers) as replica:
        replica.boot()
        _append(replica, schema, [(1,), (2,), (3,)], 0)
        _chain(replica, Schema(()), plan=Mfp(Get("u1"), projection=()))
        assert [len(rows) for rows in _all(replica)] == [3, 3, 3]
        _append(replica, schema, [(1,), (2,), (3,)], 1, -1)
        replica.settle()
        assert [len(rows) for rows in _all(replica)] == [0, 0, 0]


@pytest.mark.slow
def test_thousands_of_times_in_one_round_and_rows_of_16_mib(tmp_path: Path) -> None:
    schema = Schema((Column("k", ColumnType.INT64), Column("t", ColumnType.TEXT)))
    long = "x" * (16 << 20)
    times = 5000
    with Views(tmp_path / "d", 1) as replica:
        replica.boot()
        shard = replica.store.create_shard("s", schema)
        shard.append(
            updates_from_rows(schema, [(time % 7, "y") for time in range(times)], list(range(times))),
            shard.upper,
            Frontier.at(times),
        )
        _chain(replica, schema)
        assert [replica.upper(f"v{number}") for number in range(3)] == [Frontier.at(times)] * 3
        assert {len(replica.stored(f"v{number}")) for number in range(3)} == {times}
        _append(replica, schema, [(1, long), (2, long)], times)
        replica.settle()
        replica.peek("many", "u13", times, projection=(0,))
        replica.settle()
        assert len(replica.rows("many")) == times + 2
        assert len(replica.stored("v2")) == times + 2
        export = Export("t1", "copy-to", "u1", schema, uri=str(tmp_path / "a.parquet"))
        header = DataflowHeader("t1", times, None, (SourceImport("u1", "v2", schema),), (), (export,))
        replica.send(CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, "t1"))
        replica.settle()
        (answer,) = [said.result for said in replica.responses if isinstance(said, CopyToResponse)]
        assert answer == Copied(times + 2)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet", columns=["t"])
    assert sum(len(text) for text in table["t"].to_pylist()) == 2 * len(long) + times
