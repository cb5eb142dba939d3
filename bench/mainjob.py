"""The main job in one mode: a year of flights replays, three views follow it, a heavy view hydrates again and
again, and a process of its own peeks at a fixed rate. `run.py` is its door.

One loop does it all: it appends the days that are due, walks the heavy view through its life (create,
schedule, await, drop, pause), takes in frontiers, and draws. What it starts with is what the other mode
starts with: same files, same size of the heavy view, same rate, same pace.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console

from bench import nycflights
from bench.live import WINDOW_S, Screen, Shown
from bench.nycflights import TICKS, Flights, Oracle, View
from bench.openloop import OpenLoop
from clusterd.client import Client, Index
from clusterd.launcher import Replica, launch
from controller_proto.schema import Row
from shm_arrangements.frontier import Frontier

__all__ = ["Load", "Outcome", "WrongAnswer", "run_mode"]

PAUSE_S = 1.0  # between hydrations, so that the picture shows both
KEPT_DAYS = 7  # of history that the views keep readable
TARGET_S = 1.4  # of a hydration, in processor time
STARTUP_S = 60.0
_FIRST_ID = 1001
_TURN_S = 0.02  # how long the loop sleeps when nothing arrives


class WrongAnswer(Exception):
    """A view differs from what DuckDB says of the same files."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What is done to a replica. heavy_days None: find the size that takes `TARGET_S`."""

    days: int
    seconds: float
    peeks_per_s: float
    heavy_days: int | None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of it; seconds throughout. hydrations: [from, to) counted as `due` is. lags: by view, how
    long each day's append took to show. checked: how many answers were compared with DuckDB's.
    """

    mode: str
    heavy_days: int
    due: np.ndarray
    latencies: np.ndarray
    hydrations: list[tuple[float, float]]
    lags: dict[str, list[float]]
    updates: int
    replay_s: float
    checked: int
    rows: dict[str, list[Row]]
    ids: dict[str, str]


def run_mode(
    mode: str,
    load: Load,
    data: Flights,
    oracle: Oracle,
    directory: Path,
    console: Console,
    *,
    leave_up: Callable[[Replica], None] | None = None,
) -> Outcome:
    """Do the job in `mode` (`solo` or `two-runtime`) and check every view.

    leave_up: is handed the replica, still running, once all is checked. Raises WrongAnswer.
    """
    data_dir = directory / f"data-{mode}"
    shutil.rmtree(data_dir, ignore_errors=True)
    config = {"enable_two_runtime_compute": mode == "two-runtime"}
    with ExitStack() as stack:
        with console.status(f"{mode}: starting a replica"):
            replica = launch(config, data_dir, detach=leave_up is not None, deadline_s=STARTUP_S)
        stack.callback(replica.stop)
        client = stack.enter_context(Client.connect(replica))
        outcome = _Job(mode, load, data, oracle, client, replica, directory, console).run(stack)
        if leave_up is not None:
            leave_up(replica)
            stack.pop_all()
        return outcome


class _Job:
    def __init__(
        self, mode: str, load: Load, data: Flights, oracle: Oracle, client: Client, replica: Replica,
        directory: Path, console: Console,
    ) -> None:  # fmt: skip
        self._mode = mode
        self._load = load
        self._data = data
        self._oracle = oracle
        self._client = client
        self._address = replica.address
        self._worker = psutil.Process(replica.pids["solo/0" if mode == "solo" else "maintenance/0"])
        self._directory = directory
        self._console = console
        self._appended: list[float] = []  # when each day was
        self._lags: dict[str, list[float]] = {}
        self._hydrations: list[tuple[float, float]] = []
        self._heavy_ids = iter(range(9001, 10_000_000))

    def run(self, stack: ExitStack) -> Outcome:
        client, load = self._client, self._load
        self._set_up()
        checked = 0
        heavy_days = load.heavy_days
        with self._console.status(f"{self._mode}: sizing the heavy view"):
            if heavy_days is None:
                heavy_days = self._size()
            checked += self._check_heavy(heavy_days)
        self._append(0)
        for view in self._views:
            self._indexes[view.name].wait(TICKS - 1)
        carriers = self._indexes["carriers"]
        keys = [(row[0],) for row in carriers.peek(at=TICKS - 1).rows()]
        peeks = OpenLoop(
            self._address, carriers.id, keys, rate=load.peeks_per_s, seconds=load.seconds,
            file=self._directory / f"latencies-{self._mode}.f64",
        )  # fmt: skip
        stack.callback(peeks.stop)
        replay_s = self._replay(peeks, heavy_days)
        due, latencies, roles = peeks.join()
        wanted = {"solo"} if self._mode == "solo" else {"interactive"}
        if roles != wanted:
            raise WrongAnswer(f"peeks were answered by {roles}, not by {wanted}")
        last = load.days * TICKS - 1
        for index in self._indexes.values():
            index.wait(last)
        rows: dict[str, list[Row]] = {}
        for at in (last, max(0, last - (KEPT_DAYS - 2) * TICKS)):
            for view in self._views:
                found = self._check(view, at)
                rows.setdefault(view.name, found)
                checked += 1
        client.pump()
        return Outcome(
            mode=self._mode, heavy_days=heavy_days, due=due - due[0], latencies=latencies,
            hydrations=[(start - due[0], end - due[0]) for start, end in self._hydrations],
            lags=self._lags, updates=int(self._data.starts[load.days]), replay_s=replay_s, checked=checked,
            rows=rows, ids={name: index.id for name, index in self._indexes.items()},
        )  # fmt: skip

    def _set_up(self) -> None:
        client, data = self._client, self._data
        client.create_shard("flights", nycflights.FLIGHTS)
        for name, schema, updates in (
            ("airlines", nycflights.AIRLINES, data.airlines),
            ("flights_2013", nycflights.FLIGHTS, data.history()),
        ):
            client.create_shard(name, schema)
            client.store.shard(name).append(updates, Frontier.minimum(), Frontier.at(1))
            client.advance(name, None)
        self._views = nycflights.views(client.source("flights").id, client.source("airlines").id)
        self._indexes: dict[str, Index] = {}
        for number, view in enumerate(self._views):
            self._indexes[view.name] = client.create_index(
                view.plan, view.key, names=view.columns, id=f"u{_FIRST_ID + number}", as_of=0
            )
            self._lags[view.name] = []

    # -- the heavy view -------------------------------------------------------------------------------------

    def _create_heavy(self, days: int) -> Index:
        plan = nycflights.heavy(self._client.source("flights_2013").id, nycflights.day_code(days))
        return self._client.create_index(plan, (0,), id=f"u{next(self._heavy_ids)}", as_of=0)

    def _hydrate(self, days: int) -> float:
        """Hydrate once. Returns the processor time it took, which other load on the machine leaves alone."""
        before = self._worker.cpu_times()
        index = self._create_heavy(days)
        index.wait(0)
        after = self._worker.cpu_times()
        index.drop()
        return float(after.user + after.system - before.user - before.system)

    def _size(self) -> int:
        """How many days of the self-join take `TARGET_S`: its work is as good as linear in them."""
        few, many = 5, 25
        self._hydrate(few)  # first use of pages and files
        short = statistics.median(self._hydrate(few) for _ in range(3))
        long = statistics.median(self._hydrate(many) for _ in range(3))
        per_day = max((long - short) / (many - few), 1e-3)
        return int(np.clip(few + (TARGET_S - short) / per_day, 1, nycflights.DAYS))

    def _check_heavy(self, days: int) -> int:
        index = self._create_heavy(days)
        found = sorted(index.peek(at=0).rows())
        index.drop()
        self._compare(
            "the heavy view", 0, found, nycflights.HEAVY_SQL.format(until=nycflights.day_code(days))
        )
        return 1

    # -- the replay -----------------------------------------------------------------------------------------

    def _append(self, day: int) -> None:
        shard = self._client.store.shard("flights")
        upper = day * TICKS
        shard.append(self._data.day(day), Frontier.at(upper), Frontier.at(upper + TICKS))
        self._appended.append(time.monotonic())
        if day >= KEPT_DAYS:
            for index in self._indexes.values():
                self._client.allow_compaction(index, (day - KEPT_DAYS) * TICKS)

    def _replay(self, peeks: OpenLoop, heavy_days: int) -> float:
        """Append every day at its moment, hydrating all the while. Returns how long that took."""
        load = self._load
        start = self._appended[0]
        pace = load.seconds / load.days
        heavy: Index | None = None
        heavy_since = 0.0
        heavy_next = start + PAUSE_S
        with Screen(self._console) as screen:
            while True:
                now = time.monotonic()
                if now >= start + load.seconds and len(self._appended) == load.days and heavy is None:
                    return self._appended[-1] - start
                if len(self._appended) < load.days and now >= start + len(self._appended) * pace:
                    self._append(len(self._appended))
                if heavy is None and heavy_next <= now < start + load.seconds - TARGET_S:
                    heavy_since = now
                    heavy = self._create_heavy(heavy_days)
                self._client.pump(_TURN_S)
                if heavy is not None and heavy.frontier not in (None, (0,)):
                    self._hydrations.append((heavy_since, time.monotonic()))
                    heavy.drop()
                    heavy, heavy_next = None, time.monotonic() + PAUSE_S
                self._note_lags()
                if screen.is_due:
                    busy = time.monotonic() - heavy_since if heavy is not None else None
                    screen.update(self._look(peeks, start, busy))

    def _note_lags(self) -> None:
        now = time.monotonic()
        for name, index in self._indexes.items():
            shown, frontier = self._lags[name], index.frontier
            while frontier is not None and len(shown) < len(self._appended) and (
                not frontier or frontier[0] >= (len(shown) + 1) * TICKS
            ):  # fmt: skip
                shown.append(now - self._appended[len(shown)])

    def _look(self, peeks: OpenLoop, start: float, hydrating_s: float | None) -> Shown:
        now = time.monotonic()
        due, latencies = peeks.so_far()
        recent = [at for at in self._appended if at > now - WINDOW_S]
        updates = sum(
            len(self._data.day(day)) for day in range(len(self._appended) - len(recent), len(self._appended))
        )
        lags, frontiers = {}, {}
        for name, index in self._indexes.items():
            behind = len(self._lags[name]) < len(self._appended)
            lags[name] = now - self._appended[len(self._lags[name])] if behind else 0.0
            frontiers[name] = index.frontier[0] if index.frontier else None
        return Shown(
            mode=self._mode, elapsed_s=now - start, total_s=self._load.seconds, day=len(self._appended),
            days=self._load.days, updates_per_s=updates / min(WINDOW_S, max(now - start, 1.0)),
            frontiers=frontiers, lags_s=lags, latencies=latencies[due > now - WINDOW_S],
            hydrations=len(self._hydrations), hydrating_s=hydrating_s,
        )  # fmt: skip

    # -- the answers ----------------------------------------------------------------------------------------

    def _check(self, view: View, at: int) -> list[Row]:
        found = sorted(self._indexes[view.name].peek(at=at).rows())
        self._compare(f"view {view.name}", at, found, view.sql.format(time=at))
        return found

    def _compare(self, what: str, at: int, found: list[Row], sql: str) -> None:
        wanted = self._oracle.rows(sql)
        if found != wanted:
            missing = [row for row in wanted if row not in found][:3]
            extra = [row for row in found if row not in wanted][:3]
            raise WrongAnswer(
                f"{self._mode}: {what} at {at} has {len(found)} rows, DuckDB {len(wanted)}; "
                f"missing {missing}, not expected {extra}"
            )
