"""Is the replica still plain to see while it is busy, how fresh is what it shows, and what does that cost?

One hydration after the other, of several seconds each, in both modes. Meanwhile a reader asks for every
relation in turn: how long an answer takes, and how old the figures of the busy worker are in it, by its own
`sampled_at_ms`. Then the same by SQL, joining `hydration` with `dataflows` every 100 ms. What it costs is
told by the same hydrations with introspection off, not looked at, and looked at, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.harness import Recorder, percentiles, say, spread
from bench.heavy import ROWS, Heavy, append_pairs, self_join, sized
from clusterd.client import Client
from clusterd.introspection.relations import RELATIONS
from clusterd.launcher import launch

ANSWER_MS = 20.0
AGE_MS = 200.0
COST = 1.03
_JOIN = """
SELECT d.name, h.id, h.status, h.progress FROM hydration h
JOIN exports e ON e.worker = h.worker AND e.id = h.id
JOIN dataflows d ON d.worker = e.worker AND d.dataflow = e.dataflow
"""


def run(*, smoke: bool = False) -> list[str]:
    """Both modes, then the cost; returns what missed its bar."""
    recorder = Recorder("introspection", smoke=smoke)
    hydration_s, watched_s = (0.5, 2.0) if smoke else (4.0, 24.0)
    with tempfile.TemporaryDirectory() as directory:
        for mode in ("two-runtime", "solo"):
            config = {"enable_two_runtime_compute": mode == "two-runtime"}
            with launch(config, Path(directory) / mode) as replica, Client.connect(replica) as client:
                heavy, _ = sized(client, hydration_s)
                with Client.connect(replica, reader=True) as reader:
                    with _busy(heavy):
                        _relations(recorder, mode, reader, watched_s)
                    with _busy(heavy):
                        _sql(recorder, mode, reader, watched_s / 2)
                recorder.record(
                    f"{mode}: a hydration meanwhile", statistics.median(e - s for s, e in heavy.spans), "s",
                    **spread([e - s for s, e in heavy.spans]),
                )  # fmt: skip
        _cost(recorder, Path(directory), rounds=2 if smoke else 12, seconds=0.2 if smoke else 1.0)
    return recorder.failed


@contextmanager
def _busy(heavy: Heavy) -> Iterator[None]:
    """Hydrate again and again in a thread; the last one is waited for."""
    ended = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not ended.is_set():
                heavy.hydrate()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(120)
    if failed:
        raise failed[0]


def _relations(recorder: Recorder, mode: str, reader: Client, seconds: float) -> None:
    handles = {relation.name: reader.relation(relation.name) for relation in RELATIONS}
    worker = "maintenance/0" if mode == "two-runtime" else "solo/0"
    took: list[float] = []
    ages_ms: list[float] = []
    seen_hydrating = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, handle in handles.items():
            start = time.perf_counter()
            answer = handle.peek(at="latest")
            took.append(time.perf_counter() - start)
            if answer.served_by != "introspection":
                raise RuntimeError(f"{name} was answered by {answer.served_by}")
            if name == "processes":
                sampled = {row[0]: row[-1] for row in answer.rows()}
                ages_ms.append(time.time() * 1e3 - sampled[worker])
            if name == "hydration":
                seen_hydrating += any(row[4] == "hydrating" for row in answer.rows())
        time.sleep(0.02)  # a reader, not a load
    if not seen_hydrating:
        raise RuntimeError("no hydration was seen at work")
    figures = percentiles(took)
    recorder.record(
        f"{mode}: a relation during hydrations, p99", figures["p99_us"] / 1e3, "ms", bar=ANSWER_MS, **figures
    )
    old = np.asarray(ages_ms)
    recorder.record(
        f"{mode}: age of the busy worker's figures, p99", float(np.percentile(old, 99)), "ms", bar=AGE_MS,
        p50=round(float(np.median(old)), 1), greatest=round(float(old.max()), 1), looks=len(old),
    )  # fmt: skip


def _sql(recorder: Recorder, mode: str, reader: Client, seconds: float) -> None:
    took: list[float] = []
    rows = 0
    reader.sql(_JOIN)  # the first one loads DuckDB
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        rows += len(reader.sql(_JOIN).rows())
        took.append(time.perf_counter() - start)
        time.sleep(0.1)
    if not rows:
        raise RuntimeError("the join of hydration and dataflows never had a row")
    figures = percentiles(took)
    recorder.record(
        f"{mode}: SQL join during hydrations, p99", figures["p99_us"] / 1e3, "ms", bar=ANSWER_MS, **figures
    )


def _cost(recorder: Recorder, directory: Path, *, rounds: int, seconds: float) -> None:
    """The same hydration on three replicas, in turns: without, not looked at, looked at."""
    config = {"enable_two_runtime_compute": True}
    took: dict[str, list[float]] = {"off": [], "on": [], "watched": []}
    with (
        launch(config, directory / "off", introspection=False) as without,
        launch(config, directory / "on") as replica,
        Client.connect(without) as off,
        Client.connect(replica) as on,
        Client.connect(replica, reader=True) as reader,
    ):
        plain, group = sized(off, seconds, name="cost")
        sized(on, seconds, name="cost")  # its answer is checked, and it is as warm as the other
        same = _same_size(on, group)
        for round in range(rounds):
            say(f"cost: round {round + 1} of {rounds}")
            took["off"].append(plain.hydrate())
            took["on"].append(same.hydrate())
            with _watched(reader):
                took["watched"].append(same.hydrate())
    least = statistics.median(took["off"])
    for case, bar in (("on", COST), ("watched", None)):
        ratios = [a / b for a, b in zip(took[case], took["off"], strict=True)]
        recorder.record(
            f"a hydration with introspection {case}, to without", statistics.median(took[case]) / least, "x",
            bar=bar, **spread(ratios),
        )  # fmt: skip


def _same_size(client: Client, group: int) -> Heavy:
    """A Heavy on `client`'s replica with groups of `group` rows."""
    append_pairs(client, "same", np.arange(ROWS) % max(1, ROWS // group), np.arange(ROWS))
    heavy = Heavy(client, self_join(client, "same"))
    heavy.hydrate()
    return heavy


@contextmanager
def _watched(reader: Client) -> Iterator[None]:
    """Somebody subscribes to what changes, as the console does."""
    names = ("hydration", "dataflows", "operator_elapsed", "peeks_active", "processes", "metrics")
    feeds = [reader.subscribe(reader.relation(name)) for name in names]
    ended = threading.Event()

    def take() -> None:
        while not ended.is_set():
            reader.pump(0.05)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)
        for feed in feeds:
            feed.close()
