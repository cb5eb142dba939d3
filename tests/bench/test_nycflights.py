"""The data of the main job: DuckDB finds the same times in the files, and the plans are well typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench import nycflights
from controller_proto.schema import ColumnType
from controller_proto.typing_rules import plan_schema

pa.enable_signal_handlers(False)  # reading CSV would open a pipe for them, once, and keep it

ENV = {"u1": nycflights.FLIGHTS, "u2": nycflights.AIRLINES}


@pytest.mark.slow
def test_every_day_has_24_distinct_times_and_duckdb_finds_the_same(tmp_path: Path) -> None:
    paths = nycflights.files(tmp_path)
    data = nycflights.load(paths)
    assert (len(data.flights), len(data.airlines)) == (336_776, 16)
    for number, day in enumerate(data.days()):
        first = number * nycflights.TICKS
        assert np.unique(day.times).tolist() == list(range(first, first + nycflights.TICKS))
    oracle = nycflights.Oracle(paths)
    counts = np.bincount(data.flights.times.astype(np.int64))
    assert oracle.rows("select tick, count(*) from flights group by all") == list(enumerate(counts.tolist()))
    for view in nycflights.views("u1", "u2"):
        assert len(oracle.rows(view.sql.format(time=nycflights.LAST_UPPER - 1))) in (10, 16, 36)
        assert len(oracle.rows(view.sql.format(time=0))[0]) == len(view.columns)
    oracle.close()


def test_the_plans_are_well_typed_and_named() -> None:
    for view in nycflights.views("u1", "u2"):
        schema = plan_schema(view.plan, ENV)
        assert schema.arity == len(view.columns)
        assert all(position < schema.arity for position in view.key)
    heavy = plan_schema(nycflights.heavy("u1", nycflights.day_code(40)), ENV)
    assert heavy.types == (ColumnType.TEXT, ColumnType.INT64, ColumnType.INT64)


def test_day_codes_rise_with_the_days() -> None:
    codes = [nycflights.day_code(day) for day in range(1, nycflights.DAYS + 1)]
    assert codes[0] == 31 + 1
    assert codes[-1] == 12 * 31 + 31
    assert all(np.diff(codes) > 0)
