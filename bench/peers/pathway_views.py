"""One view in Pathway, loaded and changed; a program of its own, for the interpreter that has Pathway.

`python pathway_views.py VIEW ROWS BATCHES BATCH [--static]` prints one JSON line. Each commit is pushed row
by row by a connector in Python, and the next waits until the view's row count and sum are those that numpy
gives for the rows then there; so every answer is checked, and the time of a commit is from its first row to
that moment. With --static the rows come from a CSV file, which the engine reads by itself, and there are no
updates.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ["PATHWAY_THREADS"] = "1"
os.environ.setdefault("PATHWAY_MONITORING_SERVER", "")

import numpy as np
import pathway as pw

WAIT_S = 120.0
TOP = 10
NAME = 7  # the name of key k is k times this


class Row(pw.Schema):  # type: ignore[misc]
    id: int = pw.column_definition(primary_key=True)
    k: int
    v: int


class Name(pw.Schema):  # type: ignore[misc]
    k: int = pw.column_definition(primary_key=True)
    name: int


class State:
    """The rows that are there, and what the view comes to."""

    def __init__(self, view: str, rows: int) -> None:
        rng = self.rng = np.random.default_rng(5)
        self.view, self.keys = view, max(1, rows // 10)
        self.values = 1_000_000 if view == "top" else 1000
        self.k, self.v = rng.integers(0, self.keys, rows), rng.integers(0, self.values, rows)
        self.id = np.arange(rows)
        self.next = rows

    def change(self, n: int) -> tuple[list[Any], list[Any]]:
        """n updates, a fifth of them retractions: (rows that come, rows that go)."""
        gone = self.rng.choice(len(self.id), n // 5, replace=False)
        came = n - len(gone)
        old = list(zip(self.id[gone].tolist(), self.k[gone].tolist(), self.v[gone].tolist(), strict=True))
        k, v = self.rng.integers(0, self.keys, came), self.rng.integers(0, self.values, came)
        ids = np.arange(self.next, self.next + came)
        self.next += came
        self.id = np.concatenate((np.delete(self.id, gone), ids))
        self.k = np.concatenate((np.delete(self.k, gone), k))
        self.v = np.concatenate((np.delete(self.v, gone), v))
        return list(zip(ids.tolist(), k.tolist(), v.tolist(), strict=True)), old

    def all(self) -> list[Any]:
        return list(zip(self.id.tolist(), self.k.tolist(), self.v.tolist(), strict=True))

    def answer(self) -> tuple[int, int]:
        """How many rows the view has, and the sum of a column of it."""
        if self.view == "sums":
            return len(np.unique(self.k)), int(self.v.sum())
        if self.view == "join":
            return len(self.k), int(self.k.sum()) * NAME
        if self.view == "distinct":
            pairs = np.unique(self.k * self.values + self.v)
            return len(pairs), int((pairs % self.values).sum())
        order = np.lexsort((-self.v, self.k))
        k, v = self.k[order], self.v[order]
        first = np.arange(len(k)) - np.searchsorted(k, k) < TOP
        return len(np.unique(k)), int(v[first].sum())


class Seen:
    """The newest answer of the engine, and waiting for one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: tuple[int, int] | None = None

    def on_change(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            with self._changed:
                self._newest = int(row["n"]), int(row["s"])
                self._changed.notify_all()

    def wait(self, answer: tuple[int, int]) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._newest == answer, WAIT_S)


class Names(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """The other side of the join: all of it before the first row of this one."""

    def __init__(self, keys: int, pushed: threading.Event) -> None:
        super().__init__()
        self._keys, self._pushed = keys, pushed

    def run(self) -> None:
        for k in range(self._keys):
            self.next(k=k, name=k * NAME)
        self.commit()
        self._pushed.set()


class Rows(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """Pushes and waits, commit by commit. taken: seconds of each."""

    def __init__(
        self, state: State, batches: int, batch: int, seen: Seen, may_begin: threading.Event
    ) -> None:
        super().__init__()
        self._state, self._batches, self._batch = state, batches, batch
        self._seen, self._may_begin = seen, may_begin
        self.taken: list[float] = []
        self.is_right = True

    @property
    def _deletions_enabled(self) -> bool:
        return True

    def run(self) -> None:
        self._may_begin.wait()
        came: list[Any] = self._state.all()
        gone: list[Any] = []
        for number in range(self._batches + 1):
            if number:
                came, gone = self._state.change(self._batch)
            answer = self._state.answer()
            start = time.perf_counter()
            for id, k, v in came:
                self.next(id=id, k=k, v=v)
            for id, k, v in gone:
                self.delete(id=id, k=k, v=v)
            self.commit()
            self.is_right = self._seen.wait(answer)
            self.taken.append(time.perf_counter() - start)
            if not self.is_right:
                return


def view_of(view: str, rows: pw.Table, names: pw.Table | None) -> pw.Table:
    """The view, as one row: how many rows it has, and the sum of a column."""
    if view == "sums":
        kept = rows.groupby(rows.k).reduce(rows.k, c=pw.reducers.count(), x=pw.reducers.sum(rows.v))
    elif view == "distinct":
        kept = rows.groupby(rows.k, rows.v).reduce(rows.k, x=rows.v)
    elif names is not None:
        kept = rows.join(names, rows.k == names.k).select(rows.k, rows.v, x=names.name)
    else:  # there is no top-k: of each group's sorted values the first are cut off
        groups = rows.groupby(rows.k).reduce(rows.k, all=pw.reducers.sorted_tuple(-rows.v))
        kept = groups.select(x=pw.apply_with_type(lambda values: -sum(values[:TOP]), int, groups.all))
    return kept.reduce(n=pw.reducers.count(), s=pw.reducers.sum(kept.x))


def static(state: State) -> float:
    """Seconds to load from CSV, the engine's start included."""
    with tempfile.TemporaryDirectory() as directory:
        facts, names = Path(directory, "facts.csv"), Path(directory, "names.csv")
        with facts.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "k", "v"), *state.all()])
        with names.open("w", newline="") as file:
            csv.writer(file).writerows([("k", "name"), *((k, k * NAME) for k in range(state.keys))])
        seen = Seen()
        rows = pw.io.csv.read(str(facts), schema=Row, mode="static")
        side = pw.io.csv.read(str(names), schema=Name, mode="static") if state.view == "join" else None
        pw.io.subscribe(view_of(state.view, rows, side), on_change=seen.on_change)
        start = time.perf_counter()
        pw.run(monitoring_level=pw.MonitoringLevel.NONE)
        taken = time.perf_counter() - start
    if not seen.wait(state.answer()):
        raise RuntimeError("wrong answer")
    return taken


def pushed(state: State, batches: int, batch: int) -> list[float]:
    """Seconds of each commit."""
    seen, may_begin = Seen(), threading.Event()
    source = Rows(state, batches, batch, seen, may_begin)
    rows = pw.io.python.read(source, schema=Row, autocommit_duration_ms=None)
    names = None
    if state.view == "join":
        names = pw.io.python.read(Names(state.keys, may_begin), schema=Name, autocommit_duration_ms=None)
    else:
        may_begin.set()
    pw.io.subscribe(view_of(state.view, rows, names), on_change=seen.on_change)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    if not source.is_right:
        raise RuntimeError(f"no right answer within {WAIT_S:.0f} s")
    return source.taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("view", choices=["sums", "distinct", "join", "top"])
    parser.add_argument("rows", type=int)
    parser.add_argument("batches", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("--static", action="store_true")
    options = parser.parse_args()
    state = State(options.view, options.rows)
    taken = [static(state)] if options.static else pushed(state, options.batches, options.batch)
    print(json.dumps({"version": pw.__version__, "taken_s": taken}))


if __name__ == "__main__":
    main()
